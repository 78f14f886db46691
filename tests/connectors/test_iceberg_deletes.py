"""Iceberg tables of which rows are deleted beside their files, by Iceberg's own library: positions, vectors, values."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.types import DoubleType, LongType, NestedField

import iceberg_writer
from headrace.common.columns import Column
from headrace.connectors.lake import deletes
from headrace.connectors.lake.iceberg_source import check_file, is_unpartitioned
from headrace.connectors.sinks import SinkPosition, open_sink
from headrace.errors import HeadraceError, NotSupported
from iceberg_writer import Writer
from lake_follower import Follower, check_followed, rows_of
from lakes import SCHEMA, IcebergLake, Row, table_of

_numbers = itertools.count()
Place = tuple[str, int]
"""A data file, and a row of it."""


@pytest.fixture(scope="module")
def writer(rest_catalog: str) -> Iterator[Writer]:
    with iceberg_writer.writer(rest_catalog) as found:
        yield found


class MergeOnRead(IcebergLake):
    """A table that is changed by files of deletes; what is in it, is known by what was done."""

    def __init__(self, folder: Path, uri: str, writer: Writer, version: int, partitioned: bool) -> None:
        self.folder, self.uri, self.writer, self.version = folder, uri, writer, version
        self.namespace = f"mor{next(_numbers)}"
        self.catalog.create_namespace(self.namespace)
        properties = {"format-version": str(version)}
        table = self.catalog.create_table(
            f"{self.namespace}.t", SCHEMA, location=f"file://{folder}/t", properties=properties
        )
        self.partitioned = partitioned
        if partitioned:
            with table.update_spec() as update:
                update.add_identity("p")
        self.files: dict[str, list[Row]] = {}
        self.gone: set[Place] = set()

    @property
    def place(self) -> Mapping[str, str]:
        return {"type": "rest", "uri": self.uri, "warehouse": ""}

    @property
    def catalog(self):  # type: ignore[no-untyped-def]
        return load_catalog("rest", type="rest", uri=self.uri)

    @property
    def table(self):  # type: ignore[no-untyped-def]
        return self.catalog.load_table(f"{self.namespace}.t")

    def options(self) -> Mapping[str, str]:
        return {**super().options(), "database.name": self.namespace}

    def _partition(self, rows: Sequence[Row]) -> str:
        return f"p={rows[0][2]}" if self.partitioned else ""

    def append(self, rows: Sequence[Row]) -> None:
        for _, some in itertools.groupby(sorted(rows, key=lambda r: str(r[2])), lambda r: r[2]):
            part = list(some)
            self.files[self.writer.append(self.table, table_of(part), self._partition(part))] = part

    def live(self) -> dict[Place, Row]:
        found = {(path, i): row for path, rows in self.files.items() for i, row in enumerate(rows)}
        return {place: row for place, row in found.items() if place not in self.gone}

    def rows(self) -> Counter[Row]:
        return Counter(self.live().values())

    def by_position(self, places: Sequence[Place]) -> None:
        """By a file of positions for each partition, or by a vector for each data file."""
        self.gone.update(places)
        paths = {path for path, _ in places}
        if self.version > 2:
            made = [iceberg_writer.vector(p, sorted(i for q, i in self.gone if q == p)) for p in sorted(paths)]
        else:
            groups: dict[str, dict[str, list[int]]] = {}
            for path, i in places:
                groups.setdefault(self._partition(self.files[path]), {}).setdefault(path, []).append(i)
            made = [iceberg_writer.positions(self.table, group) for group in groups.values()]
        self.writer.delete(self.table, *made)

    def by_value(self, names: Sequence[str], like: Place) -> None:
        """All rows (of the partition, if there are any) that are equal to one in some columns."""
        at = [SCHEMA.get_field_index(name) for name in names]
        path, row = like[0], self.files[like[0]][like[1]]
        near = {p for p, rows in self.files.items() if not self.partitioned or rows[0][2] == row[2]}
        wanted = [row[i] for i in at]
        self.gone |= {place for place, r in self.live().items() if place[0] in near and [r[i] for i in at] == wanted}
        rows = table_of([row]).select(list(names))
        self.writer.delete(self.table, iceberg_writer.equality(self.table, path, rows))

    def upsert(self, like: Place) -> None:
        """One row by its id, as stream processors do: what is added at once with a delete is not deleted by it."""
        path, row = like[0], self.files[like[0]][like[1]]
        partition = self._partition([row])
        near = {p for p, rows in self.files.items() if self._partition(rows) == partition}
        self.gone |= {place for place, r in self.live().items() if place[0] in near and r[0] == row[0]}
        new: list[Row] = [(row[0], "new", row[2])]
        delete = iceberg_writer.equality(self.table, path, table_of(new).select(["id"]))
        self.files[self.writer.upsert(self.table, [delete], table_of(new), partition)] = new

    def compact(self) -> None:
        """All files of one partition into one, and nothing else is a change."""
        paths = sorted(self.files)
        same = [p for p in paths if self._partition(self.files[p]) == self._partition(self.files[paths[0]])]
        rows = [row for (path, _), row in sorted(self.live().items()) if path in same]
        if not rows:
            return
        partition = self._partition(self.files[paths[0]])
        made = self.writer.replace(self.table, same, table_of(rows), partition)
        for path in same:
            del self.files[path]
        self.gone = {place for place in self.gone if place[0] not in same}
        self.files[made] = rows


def history(lake: MergeOnRead, seed: int) -> Iterator[Callable[[], None]]:
    draw, new = random.Random(seed), itertools.count(1)

    def fresh() -> None:
        lake.append([(next(new), draw.choice(["x", "y", None]), draw.choice("ab")) for _ in range(draw.randint(1, 6))])

    def positions() -> None:
        live = sorted(lake.live())
        lake.by_position(draw.sample(live, min(len(live), draw.randint(1, 3))))

    def value() -> None:
        lake.by_value(draw.choice([["id"], ["v"], ["v", "p"], ["id", "v"]]), draw.choice(sorted(lake.live())))

    def upsert() -> None:
        lake.upsert(draw.choice(sorted(lake.live())))

    yield fresh
    yield fresh
    yield upsert
    for _ in range(12):
        yield draw.choice([fresh, upsert, positions, positions, value, lake.compact]) if len(lake.live()) > 3 else fresh


@pytest.mark.parametrize(
    ("version", "partitioned"),
    [(2, True), (3, False), *(pytest.param(*rest, marks=pytest.mark.soak) for rest in ((2, False), (3, True)))],
)
@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.soak), 1])
def test_every_snapshot_is_followed(
    rest_catalog: str, writer: Writer, version: int, partitioned: bool, seed: int, tmp_path: Path
) -> None:
    lake = MergeOnRead(tmp_path, rest_catalog, writer, version, partitioned)
    check_followed(lake, history(lake, seed), lazy_every=4)


def test_compaction_is_not_read(rest_catalog: str, writer: Writer, tmp_path: Path) -> None:
    lake = MergeOnRead(tmp_path, rest_catalog, writer, 2, False)
    lake.append([(1, "x", "a"), (2, "y", "a")])
    lake.append([(3, "x", "a")])
    changed, added = Follower(lake), Follower(lake, append_only="true")
    for follower in (changed, added):
        follower.follow()
    lake.compact()
    lake.append([(4, "x", "a")])
    for follower in (changed, added):
        before = follower.at
        assert follower.step() and follower.open().plan(before, follower.at, 4) == []
        follower.follow()
        assert follower.kept == lake.rows()
    # Who begins late, or has been away, reads the same.
    for low in added.bounds:
        assert set(rows_of(added.open(), low, added.at).values()) <= {1}
    assert rows_of(added.open(), added.bounds[1], added.at) == {(4, "x", "a"): 1}
    lake.by_position([(next(iter(lake.files)), 0)])
    with pytest.raises(HeadraceError, match="takes rows away"):
        added.follow()


def test_a_sink_leaves_small_files_where_the_package_cannot_put_them_together(
    rest_catalog: str, writer: Writer, tmp_path: Path
) -> None:
    """Its epochs are there: none of them fails."""
    lake = MergeOnRead(tmp_path, rest_catalog, writer, 2, False)
    lake.append([(1, "x", "a"), (2, "y", "a")])
    lake.by_value(["v"], next(iter(lake.live())))
    columns = [Column("id", "bigint"), Column("v", "string"), Column("p", "string")]
    place = {name: value for name, value in lake.options().items() if name != "refresh.interval"}
    sink = open_sink({**place, "type": "append-only", "compact_files": "2"}, columns)
    sink.reach()
    arrays = [pa.array([7], pa.int64()), pa.array(["z"]), pa.array(["a"]), pa.array([1], pa.int64())]
    rows = pa.RecordBatch.from_arrays(arrays, names=["id", "v", "p", "__w"])
    for epoch in (1, 2, 3):
        assert sink.write(SinkPosition("d", epoch - 1, epoch, 0, "a"), iter([rows])) == 1
        assert sink.undone is not None and "equality deletes" in sink.undone.message
    follower = Follower(lake)
    follower.follow()
    assert follower.kept == Counter({(2, "y", "a"): 1, (7, "z", "a"): 3})


@pytest.mark.parametrize(
    ("content", "form", "ids", "key", "message"),
    [
        (0, FileFormat.AVRO, None, None, "format AVRO"),
        (1, FileFormat.ORC, None, None, "format ORC"),
        (2, FileFormat.PARQUET, [2], None, "type double"),
        (0, FileFormat.PARQUET, None, b"k", "encrypted"),
        (2, FileFormat.PARQUET, [1], None, None),
    ],
)
def test_files_that_are_not_understood_are_refused_when_they_are_bound(
    content: int, form: FileFormat, ids: list[int] | None, key: bytes | None, message: str | None
) -> None:
    schema = Schema(NestedField(1, "a", LongType()), NestedField(2, "b", DoubleType()))
    file = SimpleNamespace(content=content, file_format=form, equality_ids=ids, key_metadata=key, file_path="f")
    with pytest.raises(NotSupported, match=message) if message else nullcontext():
        check_file(file, [schema], "Iceberg table n.t")


def test_specs_without_partitions() -> None:
    """Equality deletes of such are for all files."""
    assert is_unpartitioned([]) and is_unpartitioned([VoidTransform()])
    assert not is_unpartitioned([VoidTransform(), IdentityTransform()])


def test_values_that_are_deleted_by() -> None:
    gone = deletes.equal_to(
        [pa.chunked_array([["a", None, "a", "b"]]), pa.chunked_array([pa.array([1, 2, None, 1])])], [-2, -1]
    )
    rows = [("a", 1), ("a", 2), ("a", None), (None, 2), (None, None), ("b", 1), ("c", 1), ("b", 9)]
    names, numbers = zip(*rows)
    batch = pa.record_batch([pa.nulls(8), pa.array(names), pa.array(numbers, pa.int64())], ["other", "a", "b"])
    assert gone(batch, 0).tolist() == [True, False, True, True, False, True, False, False]
    with pytest.raises(NotSupported, match="double"):
        deletes.equal_to([pa.chunked_array([[1.5]])], [-1])
