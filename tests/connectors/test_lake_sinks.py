"""The sinks into Iceberg and Delta: types, keys of several columns, tables of others, and an object store."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Transaction

from headrace.common import faults
from headrace.common.columns import Column, arrow_schema
from headrace.connectors import held_changes
from headrace.connectors.base import Admission, Offsets
from headrace.connectors.refusals import RowsRefused
from headrace.connectors.sinks import Sink, SinkPosition, open_sink
from headrace.connectors.sources import open_source
from headrace.errors import InvalidParameter, NotSupported
from lake_follower import rows_of
from object_server import S3Server, s3_server

PAIR = (Column("a", "int"), Column("b", "string"), Column("v", "bigint"))
KINDS = ("iceberg", "deltalake")


class Lake:
    """One table, by its package."""

    def __init__(self, kind: str, place: str, more: Mapping[str, str], folder: Path) -> None:
        self.kind, self.more = kind, dict(more)
        self.uri, self.place = f"sqlite:///{folder}/catalog.db", place

    @property
    def catalog(self) -> Catalog:
        properties = {"s3.endpoint": self.more["s3.endpoint"], "s3.region": "us-east-1"} if self.more else {}
        return load_catalog("default", type="sql", uri=self.uri, warehouse=self.place, **properties)

    @property
    def _delta(self) -> DeltaTable:
        if not self.more:
            return DeltaTable(f"{self.place}/t")
        store = {"AWS_ENDPOINT_URL": self.more["s3.endpoint"], "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
        return DeltaTable(f"{self.place}/t", storage_options=store)

    def make(self, schema: pa.Schema) -> None:
        """A table that somebody else has made."""
        if self.kind == "iceberg":
            self.catalog.create_namespace_if_not_exists("n")
            self.catalog.create_table("n.t", schema)
        else:
            DeltaTable.create(f"{self.place}/t", schema)

    def append(self, rows: pa.Table) -> None:
        """Rows of somebody else's."""
        if self.kind == "iceberg":
            self.catalog.load_table("n.t").append(rows)
        else:
            write_deltalake(self._delta, rows, mode="append")

    def where(self) -> dict[str, str]:
        """The options that say where it is."""
        if self.kind == "iceberg":
            return {"catalog.type": "sql", "catalog.uri": self.uri, "warehouse.path": self.place,
                    "database.name": "n", "table.name": "t"}  # fmt: skip
        return {"location": f"{self.place}/t"}

    def sink(self, columns: tuple[Column, ...], **options: str) -> Sink:
        mine = {"connector": self.kind, "create_table_if_not_exists": "true", **self.more, **self.where(), **options}
        made = open_sink(mine, columns)
        made.reach()
        return made

    def rows(self) -> list[dict[str, Any]]:
        if self.kind == "iceberg":
            return list(self.catalog.load_table("n.t").scan().to_arrow().to_pylist())
        return list(self._delta.to_pyarrow_table().to_pylist())

    def files(self) -> int:
        """How many data files the table has."""
        if self.kind == "iceberg":
            return len([*self.catalog.load_table("n.t").scan().plan_files()])
        return len(self._delta.file_uris())

    def compacted(self) -> bool:
        """Whether files were put together in the way that such tables have for that."""
        if self.kind == "iceberg":
            snapshots = self.catalog.load_table("n.t").snapshots()
            return "replace" in {s.summary.operation.value for s in snapshots if s.summary is not None}
        return "OPTIMIZE" in {commit["operation"] for commit in self._delta.history()}


@pytest.fixture(params=KINDS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    place = f"file://{tmp_path}" if request.param == "iceberg" else str(tmp_path)
    return Lake(request.param, place, {}, tmp_path)


def changes(columns: tuple[Column, ...], *rows: tuple[Any, ...]) -> Iterator[pa.RecordBatch]:
    """One batch of rows with their weights."""
    fields = [*arrow_schema(columns), pa.field("__w", pa.int64())]
    arrays = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), fields, strict=True)]
    yield pa.RecordBatch.from_arrays(arrays, names=[f.name for f in fields])


def deliver(sink: Sink, epoch: int, *rows: tuple[Any, ...]) -> int:
    position = SinkPosition("d", epoch - 1, epoch, 0, "a")
    return sink.write(position, changes(tuple(sink.columns), *rows))


def test_a_key_of_several_columns(lake: Lake) -> None:
    """Rows whose keys have parts of keys that change stay as they are."""
    sink = lake.sink(PAIR, primary_key="a, b")
    deliver(sink, 1, *((a, b, 10 * a, 1) for a in range(3) for b in ("x", "y", "it's")))
    deliver(sink, 2, (0, "x", 0, -1), (1, "y", 10, -1), (1, "y", 11, 1), (5, "it's", 50, 1))
    found = {(r["a"], r["b"]): r["v"] for r in lake.rows()}
    wanted = {(a, b): 10 * a for a in range(3) for b in ("x", "y", "it's")} | {(1, "y"): 11, (5, "it's"): 50}
    del wanted[0, "x"]
    assert found == wanted and len(lake.rows()) == len(wanted)


def test_a_table_of_others(lake: Lake) -> None:
    """It has more columns, wider ones, in another order, and rows that nobody here knows."""
    schema = pa.schema([("v", pa.int64()), ("more", pa.string()), ("b", pa.string()), ("a", pa.int64())])
    lake.make(schema)
    lake.append(pa.table({"v": [1], "more": ["theirs"], "b": ["z"], "a": [9]}, schema=schema))
    sink = lake.sink(PAIR, primary_key="a, b")
    deliver(sink, 1, (1, "x", 5, 1), (2, "x", 6, 1))
    lake.append(pa.table({"v": [2], "more": ["later"], "b": ["x"], "a": [8]}, schema=schema))
    deliver(sink, 2, (1, "x", 5, -1), (2, "x", 6, -1), (2, "x", 7, 1))
    found = sorted((r["a"], r["b"], r["v"], r["more"]) for r in lake.rows())
    assert [f[:3] for f in found] == [(2, "x", 7), (8, "x", 2), (9, "z", 1)]
    assert [f[3] for f in found[1:]] == ["later", "theirs"]


TYPED = (
    Column("k", "date"), Column("b", "boolean"), Column("s", "smallint"), Column("f", "float"), Column("d", "double"),
    Column("n", "decimal(20,4)"), Column("x", "binary"), Column("t", "timestamp_ntz"), Column("z", "timestamp"),
    Column("l", "array<int>"), Column("r", "struct<a:int,b:string>"), Column("m", "map<string,int>"),
)  # fmt: skip


def test_types(lake: Lake) -> None:
    import datetime as dt

    zone = dt.UTC
    full = (dt.date(2024, 2, 29), True, -3, 0.5, 1e300, Decimal("123456789.1234"), b"\x00\xff",
            dt.datetime(2024, 1, 1, 12, 0, 0, 123456), dt.datetime(2024, 1, 1, 12, tzinfo=zone), [1, None],
            {"a": 1, "b": None}, [("x", 1), ("y", None)])  # fmt: skip
    empty = (dt.date(1969, 1, 1), *[None] * 11)
    sink = lake.sink(TYPED, primary_key="k")
    deliver(sink, 1, (*full, 1), (*empty, 1))
    names = [c.name for c in TYPED]
    assert sorted((tuple(r[n] for n in names) for r in lake.rows()), key=str) == sorted([full, empty], key=str)
    deliver(sink, 2, (*full, -1), (*empty, -1), (full[0], *[None] * 11, 1))
    assert [tuple(r[n] for n in names) for r in lake.rows()] == [(full[0], *[None] * 11)]


@pytest.mark.parametrize("key", ["k, d", "l"])
def test_keys_that_are_not_found_exactly_are_refused(lake: Lake, key: str) -> None:
    with pytest.raises(NotSupported, match="in the primary_key of this sink"):
        lake.sink(TYPED, primary_key=key)


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        ({"a": pa.int64(), "v": pa.int64()}, 'has no column "b"'),
        ({"a": pa.int32(), "b": pa.string(), "v": pa.int32()}, "does not hold every bigint"),
        ({"a": pa.int32(), "b": pa.binary(), "v": pa.int64()}, "does not hold every string"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(lake: Lake, theirs: dict[str, pa.DataType], message: str) -> None:
    lake.make(pa.schema([*theirs.items()]))
    with pytest.raises(InvalidParameter, match=message):
        lake.sink(PAIR, primary_key="a")


@pytest.mark.parametrize(
    ("theirs", "fits"), [((38, 10), True), ((12, 2), True), ((12, 4), True), ((11, 4), False), ((20, 1), False)]
)
def test_a_number_with_more_places_is_the_same_number(lake: Lake, theirs: tuple[int, int], fits: bool) -> None:
    columns = (Column("k", "decimal(10,2)"), Column("v", "bigint"))
    lake.make(pa.schema([("k", pa.decimal128(*theirs)), ("v", pa.int64())]))
    if not fits:
        with pytest.raises(InvalidParameter, match=r"does not hold every decimal\(10,2\)"):
            lake.sink(columns, primary_key="k")
        return
    sink = lake.sink(columns, primary_key="k")
    deliver(sink, 1, (Decimal("1.50"), 1, 1), (Decimal("-99999999.99"), 2, 1))
    deliver(sink, 2, (Decimal("1.50"), 1, -1), (Decimal("-99999999.99"), 2, -1), (Decimal("-99999999.99"), 3, 1))
    assert [(row["k"], row["v"]) for row in lake.rows()] == [(Decimal("-99999999.99"), 3)]
    source = open_source({"connector": lake.kind, **lake.where()}, (Column("K", "decimal(38,10)"), columns[1]))
    source.claim()
    bound = source.latest_offsets({}, Admission(), 0)
    assert [*rows_of(source, {}, bound.offsets).elements()] == [(Decimal("-99999999.99"), 3)]


def test_a_column_that_must_have_a_value(lake: Lake) -> None:
    required = pa.field("more", pa.string(), nullable=False)
    lake.make(pa.schema([("a", pa.int32()), ("b", pa.string()), ("v", pa.int64()), required]))
    with pytest.raises(InvalidParameter, match="must have a value"):
        lake.sink(PAIR, primary_key="a")


def test_a_null_where_the_table_takes_none(lake: Lake) -> None:
    required = pa.field("b", pa.string(), nullable=False)
    lake.make(pa.schema([("a", pa.int32()), required, ("v", pa.int64())]))
    sink = lake.sink(PAIR, primary_key="a")
    with pytest.raises(RowsRefused) as error:
        deliver(sink, 1, (1, None, 1, 1))
    assert 'no value for the column "b", which the table needs: insert of {"a":1,' in error.value.failure().message
    assert lake.rows() == []
    sink = lake.sink(PAIR, primary_key="a", on_row_error="dead_letter", dead_letter_table="t")
    with pytest.raises(RowsRefused) as error:
        deliver(sink, 1, (1, None, 1, 1), (2, "b", 2, 1), (3, None, 3, 1), (4, None, 4, -1))
    assert [(r.op, r.row) for r in error.value.refusals] == [
        ("insert", '{"a":1,"b":null,"v":1}'), ("insert", '{"a":3,"b":null,"v":3}')
    ]  # fmt: skip


def test_a_row_that_is_refused_late_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The epoch is tried again and again: each attempt would leave the files of the rows before."""
    monkeypatch.setattr(held_changes, "PIECE_BYTES", 500)
    lake = Lake("iceberg", f"file://{tmp_path}", {}, tmp_path)
    lake.make(pa.schema([pa.field("a", pa.int32()), pa.field("b", pa.string(), nullable=False)]))
    sink = lake.sink(PAIR[:2], type="append-only")
    rows = [
        changes(PAIR[:2], *((i, None if i == 99 else "x", 1) for i in range(low, low + 20)))
        for low in range(0, 100, 20)
    ]
    with pytest.raises(RowsRefused):
        sink.write(SinkPosition("d", 0, 1, 0, "a"), chain.from_iterable(rows))
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize("kind", [{"primary_key": "a, b"}, {"type": "append-only"}])
def test_small_files_are_put_together(lake: Lake, kind: dict[str, str]) -> None:
    """By a commit of its own, which neither changes a row nor what has been delivered, and which others may outrun."""
    sink = lake.sink(PAIR, **kind, compact_files="4")
    for epoch in range(1, 10):
        assert deliver(sink, epoch, (epoch, "x", epoch, 1)) == 1
    assert sorted(row["a"] for row in lake.rows()) == [*range(1, 10)]
    assert lake.files() < 4
    assert deliver(sink, 9, (9, "x", 9, 1)) == 0, "it is there"
    assert lake.compacted(), "who follows the table is told that no row has changed"


def test_files_of_commits_that_others_outran_are_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake("iceberg", f"file://{tmp_path}", {}, tmp_path)
    sink = lake.sink(PAIR, type="append-only", compact_files="3")
    for epoch in range(1, 3):
        deliver(sink, epoch, (epoch, "x", epoch, 1))
    commit, outrun = Transaction.commit_transaction, iter([True, False, True])  # the first attempt, and the compaction
    theirs = pa.table({"a": [9], "b": ["z"], "v": [9]}, schema=arrow_schema(PAIR))

    def late(made: Transaction) -> object:
        if next(outrun, False):
            with monkeypatch.context() as patch:
                patch.setattr(Transaction, "commit_transaction", commit)
                lake.append(theirs)
        return commit(made)

    monkeypatch.setattr(Transaction, "commit_transaction", late)
    assert deliver(sink, 3, (3, "x", 3, 1)) == 1
    monkeypatch.undo()
    assert sorted(row["a"] for row in lake.rows()) == [1, 2, 3, 9, 9] and not lake.compacted()
    assert len([*tmp_path.rglob("*.parquet")]) == lake.files() == 5, "no other files are left"
    assert deliver(sink, 4, (4, "x", 4, 1)) == 1 and lake.compacted()


@pytest.fixture
def armed() -> Iterator[Callable[[str, str], None]]:
    yield lambda point, action: faults.arm(point, action)
    faults.disarm_all()


@pytest.mark.parametrize("point", ["lake.compact.before", "lake.compact.written"])
@pytest.mark.parametrize("action", ["fail", "full"])
def test_an_epoch_that_is_there_does_not_fail_with_compaction(
    lake: Lake, point: str, action: str, tmp_path: Path, armed: Callable[[str, str], None]
) -> None:
    """It is said, and tried again with the next one; what was written for it does not stay."""
    if lake.kind == "deltalake" and point == "lake.compact.written":
        point = "lake.compact.after"
    sink = lake.sink(PAIR, type="append-only", compact_files="2")
    deliver(sink, 1, (1, "x", 1, 1))
    armed(point, action)
    assert deliver(sink, 2, (2, "x", 2, 1)) == 1
    assert sink.undone is not None and sink.undone.message.startswith(f"small files of {sink._name} are not put")
    assert sorted(row["a"] for row in lake.rows()) == [1, 2]
    assert lake.kind == "deltalake" or len([*tmp_path.rglob("*.parquet")]) == lake.files() == 2
    faults.disarm_all()
    sink = lake.sink(PAIR, type="append-only", compact_files="2")
    assert deliver(sink, 2, (2, "x", 2, 1)) == 0
    assert deliver(sink, 3, (3, "x", 3, 1)) == 1 and sink.undone is None
    assert sorted(row["a"] for row in lake.rows()) == [1, 2, 3] and lake.compacted()


def test_who_follows_the_table_reads_no_row_twice(lake: Lake) -> None:
    """Files that are put together have rows of before: a source that takes nothing back passes over them."""
    sink = lake.sink(PAIR, type="append-only", compact_files="3")
    deliver(sink, 1, (1, "x", 1, 1))
    made = {"connector": lake.kind, "append_only": "true", **lake.where()}
    at: Offsets = {}
    for epoch in range(2, 9):
        deliver(sink, epoch, (epoch, "x", epoch, 1))
        source, new = open_source(made, PAIR), Counter[int]()
        while True:
            bound = source.latest_offsets(at, Admission(), 0)
            new.update(row[0] for row in rows_of(source, at, bound.offsets).elements())
            at = bound.offsets
            if not bound.behind:
                break
        assert new == Counter([1, 2] if epoch == 2 else [epoch])
    assert lake.compacted()


@pytest.mark.parametrize("least", ["1", "-1"])
def test_too_few_files_to_put_together(lake: Lake, least: str) -> None:
    with pytest.raises(InvalidParameter, match="compact_files"):
        lake.sink(PAIR, primary_key="a", compact_files=least)


@pytest.mark.parametrize("kind", [{"primary_key": "a, b"}, {"type": "append-only"}])
def test_rows_that_break_a_constraint(tmp_path: Path, kind: dict[str, str]) -> None:
    lake = Lake("deltalake", str(tmp_path), {}, tmp_path)
    sink = lake.sink(PAIR, **kind, on_row_error="dead_letter", dead_letter_table="t")
    lake._delta.alter.add_constraint({"positive": "v > 0"})
    rows = [(i, str(i), 0 if i in (7, 150, 151) else i + 1, 1) for i in range(200)]
    with pytest.raises(RowsRefused) as error:
        deliver(sink, 1, *rows)
    assert [(r.op, r.row) for r in error.value.refusals] == [
        ("insert", json.dumps({"a": i, "b": str(i), "v": 0}, separators=(",", ":"))) for i in (7, 150, 151)
    ]
    assert error.value.refusals[0].error == "it breaks a constraint of the table: positive (v > 0)"
    assert lake.rows() == []
    assert deliver(sink, 1, *(row for row in rows if row[2])) == 197 == len(lake.rows())


def test_a_table_that_is_not_there(lake: Lake) -> None:
    with pytest.raises(InvalidParameter, match="there is no"):
        lake.sink(PAIR, primary_key="a", create_table_if_not_exists="false")


def test_others_that_commit_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that finds another snapshot is made again, unless the epoch is there by then."""
    lake = Lake("iceberg", f"file://{tmp_path}", {}, tmp_path)
    sink = lake.sink(PAIR, primary_key="a")
    deliver(sink, 1, (1, "x", 1, 1))
    table = lake.catalog.load_table("n.t")
    commit, failures = type(table.catalog).commit_table, iter((1, 2))

    def beaten(catalog: Catalog, *args: Any, **more: Any) -> Any:
        if next(failures, None):
            raise CommitFailedException("somebody was faster")
        return commit(catalog, *args, **more)

    def rebuilt(_: Transaction) -> None:
        pytest.fail("the package must not commit the epoch again by itself")

    monkeypatch.setattr(type(table.catalog), "commit_table", beaten)
    monkeypatch.setattr(Transaction, "_rebuild_snapshot_updates", rebuilt)
    assert deliver(sink, 2, (1, "x", 1, -1), (2, "x", 2, 1)) == 2
    assert [(r["a"], r["v"]) for r in lake.rows()] == [(2, 2)]
    found = lake.catalog.load_table("n.t")
    snapshot = found.current_snapshot()
    assert found.properties["headrace.delivered.d"] == "2" and snapshot is not None
    assert snapshot.summary is not None and snapshot.summary["headrace.epoch"] == "2"


def test_options_that_reach_elsewhere_are_refused(tmp_path: Path) -> None:
    place = {"catalog.type": "sql", "database.name": "n", "table.name": "t", "type": "append-only"}
    for options in ({"catalog.uri": "mysql://x"}, {"catalog.uri": "sqlite:////x", "py-io-impl": "os.system"}):
        with pytest.raises(InvalidParameter):
            open_sink({"connector": "iceberg", **place, **options}, PAIR)
    with pytest.raises(InvalidParameter, match="location"):
        open_sink({"connector": "deltalake", "location": "relative", "type": "append-only"}, PAIR)


@pytest.fixture(scope="module")
def store() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_store(store: S3Server, kind: str, tmp_path: Path) -> None:
    place = f"s3://{store.bucket}/{kind}"
    keys = {"s3.access.key": "test", "s3.secret.key": "test"}
    lake = Lake(kind, place, {"s3.endpoint": store.endpoint, "s3.region": "us-east-1", **keys}, tmp_path)
    sink = lake.sink(PAIR, primary_key="a")
    deliver(sink, 1, (1, "x", 1, 1), (2, "x", 2, 1))
    deliver(sink, 1, (1, "x", 1, 1), (2, "x", 2, 1))
    deliver(sink, 2, (1, "x", 1, -1), (2, "x", 2, -1), (2, "x", 3, 1))
    assert [(r["a"], r["v"]) for r in lake.rows()] == [(2, 3)]


def test_a_rest_catalog(rest_catalog: str, tmp_path: Path) -> None:
    """Two sinks into one table, which others write to as well; each epoch is there once."""
    place = {"catalog.type": "rest", "catalog.uri": rest_catalog, "database.name": "n", "table.name": "t"}
    catalog = load_catalog("rest", type="rest", uri=rest_catalog)
    catalog.create_namespace("n")
    catalog.create_table("n.t", arrow_schema(PAIR), location=f"file://{tmp_path}/t")
    sinks = [open_sink({"connector": "iceberg", "primary_key": "a", **place}, PAIR) for _ in range(2)]
    for epoch in (1, 2, 3):
        for number, sink in enumerate(sinks):
            sink.reach()
            position = SinkPosition(f"d{number}", epoch - 1, epoch, 0, "a")
            for _ in range(2):
                sink.write(position, changes(PAIR, (10 * number + epoch, "x", epoch, 1)))
        catalog.load_table("n.t").append(pa.table({"a": [100 + epoch], "b": ["y"], "v": [0]}, arrow_schema(PAIR)))
    table = catalog.load_table("n.t")
    assert sorted(r["a"] for r in table.scan().to_arrow().to_pylist()) == [1, 2, 3, 11, 12, 13, 101, 102, 103]
    assert {k: v for k, v in table.properties.items() if "delivered" in k} == {
        "headrace.delivered.d0": "3", "headrace.delivered.d1": "3",
    }  # fmt: skip
