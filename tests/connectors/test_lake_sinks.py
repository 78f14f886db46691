"""The sinks into Iceberg and Delta: types, keys of several columns, tables of others, and an object store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Transaction

from headrace.common.columns import Column, arrow_schema
from headrace.connectors.sinks import Sink, SinkPosition, open_sink
from headrace.errors import InvalidParameter, NotSupported, SinkError
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

    def sink(self, columns: tuple[Column, ...], **options: str) -> Sink:
        mine = {"connector": self.kind, "create_table_if_not_exists": "true", **self.more, **options}
        if self.kind == "iceberg":
            mine |= {"catalog.type": "sql", "catalog.uri": self.uri, "warehouse.path": self.place,
                     "database.name": "n", "table.name": "t"}  # fmt: skip
        else:
            mine["location"] = f"{self.place}/t"
        made = open_sink(mine, columns)
        made.reach()
        return made

    def rows(self) -> list[dict[str, Any]]:
        if self.kind == "iceberg":
            return list(self.catalog.load_table("n.t").scan().to_arrow().to_pylist())
        return list(self._delta.to_pyarrow_table().to_pylist())


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


def test_a_column_that_must_have_a_value(lake: Lake) -> None:
    required = pa.field("more", pa.string(), nullable=False)
    lake.make(pa.schema([("a", pa.int32()), ("b", pa.string()), ("v", pa.int64()), required]))
    with pytest.raises(InvalidParameter, match="must have a value"):
        lake.sink(PAIR, primary_key="a")


def test_a_null_where_the_table_takes_none(lake: Lake) -> None:
    required = pa.field("b", pa.string(), nullable=False)
    lake.make(pa.schema([("a", pa.int32()), required, ("v", pa.int64())]))
    sink = lake.sink(PAIR, primary_key="a")
    with pytest.raises(SinkError, match='no value for the column "b"'):
        deliver(sink, 1, (1, None, 1, 1))
    assert lake.rows() == []


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
