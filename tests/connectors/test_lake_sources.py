"""The sources of Iceberg and Delta tables: at every snapshot they have the rows that the table's own package reads."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake import Field as DeltaField
from pyiceberg.catalog import load_catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.types import IntegerType, LongType, NestedField, StructType, TimestamptzType, TimeType
from pyspark.sql import SparkSession

from delta_log import DeltaLog, VectorLake
from headrace.common.columns import Column
from headrace.connectors.base import FIELD_IDS, Admission
from headrace.connectors.lake.delta_source import DeltaLog as DeltaTables
from headrace.connectors.sources import open_source
from headrace.errors import HeadraceError, NotSupported, SourceError
from headrace.session.database import Database, connect
from lake_follower import COLUMNS, Follower, check_followed, rows_of
from lakes import SCHEMA, DeltaLake, IcebergLake, Lake, Row, table_of
from object_server import S3Server
from support import eventually

KINDS: dict[str, Callable[..., Lake]] = {"iceberg": IcebergLake, "deltalake": DeltaLake}
CHANGED = {**KINDS, "vectors": VectorLake}


@pytest.fixture(params=[*KINDS])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return KINDS[request.param](tmp_path)


def history(lake: Lake, seed: int) -> list[Callable[[], None]]:
    """Random changes; whoever makes them runs them one by one."""
    draw, new = random.Random(seed), itertools.count(1)

    def some() -> list[int]:
        ids = [row[0] for row in lake.rows()]
        return draw.sample(ids, min(len(ids), draw.randint(1, 4))) or [0]

    def fresh(count: int) -> list[Row]:
        return [(next(new), draw.choice(["x", "y", None]), draw.choice(["a b", "c/d", None])) for _ in range(count)]

    def merged() -> None:
        lake.merge([(i, f"m{draw.randint(0, 9)}", "a b") for i in some()] + fresh(2))

    kinds = [
        lambda: lake.append(fresh(draw.randint(1, 6))), lambda: lake.append(fresh(3)), lambda: lake.delete(some()),
        merged, lake.compact, lambda: lake.overwrite(fresh(4)),
    ]  # fmt: skip
    return draw.choices(kinds, [4, 4, 4, 3, 2, 1], k=12)


@pytest.mark.parametrize("kind", [*CHANGED])
@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("seed", [*(pytest.param(n, marks=pytest.mark.soak) for n in range(2)), 2])  # 2: all kinds
def test_every_snapshot_is_followed(kind: str, partitioned: bool, seed: int, tmp_path: Path) -> None:
    """One reader follows each commit, one several at once, and one begins late; each pair of offsets can be read."""
    lake = CHANGED[kind](tmp_path, partitioned)
    check_followed(lake, history(lake, seed), lazy_every=5)
    late = Follower(lake)
    late.follow(3)
    assert late.kept == lake.rows()


def content(database: Database, query: str) -> Counter[Any]:
    return Counter(tuple(row) for row in database.sql(query).rows())


@pytest.mark.parametrize("kind", [*KINDS])
def test_views_tables_and_queries(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    """What the table takes back, views take back, too; with a primary key and without one."""
    lake = KINDS[kind](tmp_path)
    lake.append([(i, "xy"[i % 2], None) for i in range(20)])
    with connect(tmp_path / "db", spark=spark) as database:
        database.sql(f"CREATE SOURCE s WITH ({lake.sql()})")
        database.sql(f"CREATE TABLE keyed (id bigint PRIMARY KEY, v text) WITH ({lake.sql()})")
        database.sql(f"CREATE TABLE plain (id bigint, v text) WITH ({lake.sql()})")
        database.sql("CREATE MATERIALIZED VIEW sums AS SELECT v, count(*) AS n, sum(id) AS s FROM s GROUP BY v")

        def followed() -> bool:
            there = lake.rows()
            wanted = Counter((row[0], row[1]) for row in there.elements())
            sums = Counter(
                (v, sum(r[1] == v for r in there.elements()), sum(r[0] for r in there.elements() if r[1] == v))
                for v in {row[1] for row in there}
            )
            return (
                content(database, "SELECT id, v FROM keyed") == wanted
                and content(database, "SELECT id, v FROM plain") == wanted
                and content(database, "SELECT v, n, s FROM sums") == sums
                and content(database, "SELECT id, v FROM s") == wanted
            )

        eventually(followed, "the first content")
        for change in (lambda: lake.delete([1, 2, 3]), lambda: lake.merge([(4, "z", None), (99, "x", None)]),
                       lake.compact, lambda: lake.overwrite([(7, "y", "p")])):  # fmt: skip
            change()
            eventually(followed, "a change")
        lake.append([(7, "z", None)])
        eventually(lambda: content(database, "SELECT count(*) FROM plain") == {(2,): 1}, "a row with the same key")
        eventually(lambda: sum(content(database, "SELECT id FROM keyed").values()) == 1, "one row of a key")


def refused(follower: Follower, *words: str) -> HeadraceError:
    """What the next binding is told, which says all of these words."""
    with pytest.raises(HeadraceError) as caught:
        follower.follow()
    text = f"{caught.value.message} {caught.value.hint}"
    assert all(word in text for word in words), text
    return caught.value


def test_deletion_vectors_come_and_go(tmp_path: Path) -> None:
    lake = VectorLake(tmp_path)
    follower = Follower(lake)
    lake.append([(i, "x", None) for i in range(1000)])
    lake.delete([0, 500, 999])
    follower.follow()
    lake.delete([*range(1, 400)])
    before = follower.at
    follower.follow()
    assert follower.kept == lake.rows()
    assert sorted(rows_of(follower.open(), before, follower.at)) == [(i, "x", None) for i in range(1, 400)]
    lake.restore()
    follower.follow()
    assert follower.kept == lake.rows() and len(follower.kept) == 1000


@pytest.mark.parametrize("counted", [True, False])
def test_large_files_are_read_in_parts(tmp_path: Path, counted: bool) -> None:
    """With a deletion vector, and where nobody says how many rows there are."""
    lake = VectorLake(tmp_path)
    lake.append([(i, None, None) for i in range(200_000)])
    gone = [0, 65_535, 65_536, 131_072, 199_999] if counted else []
    lake.delete(gone)
    (add,) = lake.log.files().values()
    if not counted:
        lake.log.commit({"add": {**add, "stats": None}})
    follower = Follower(lake)
    follower.follow()
    tasks = follower.open().plan({}, follower.at, 8)
    assert (len(tasks) > 1 or not counted) and tasks[-1]["pieces"][-1]["stop"] is None
    assert {row[0] for row in follower.kept} == {*range(200_000)} - {*gone} and set(follower.kept.values()) == {1}


def test_renamed_and_new_columns(lake: Lake) -> None:
    """They are found by what they keep; columns that come later are NULL in files from before, or left alone."""
    if isinstance(lake, IcebergLake):
        follower = Follower(lake)
        lake.append([(1, "x", "a")])
        follower.follow()
        with lake.table.update_schema() as update:
            update.rename_column("v", "w")
            update.add_column("more", IntegerType())
        more = pa.table({"id": [2], "w": ["y"], "p": ["b"], "more": pa.array([5], pa.int32())})
        lake.table.append(more)
        lake.table.delete("id = 1")
    else:
        assert isinstance(lake, DeltaLake)
        shutil.rmtree(lake.location)
        lake = DeltaLake(Path(lake.location).parent, True, **{"delta.columnMapping.mode": "name"})
        follower = Follower(lake)
        lake.append([(1, "x", "a")])
        follower.follow()
        log = DeltaLog(lake.location)
        text = log.actions("metaData")[-1]
        schema = json.loads(text["schemaString"])
        for field in schema["fields"]:
            field["name"] = {"v": "w", "p": "q"}.get(field["name"], field["name"])
        log.commit({"metaData": {**text, "schemaString": json.dumps(schema), "partitionColumns": ["q"]}})
        write_deltalake(lake.location, pa.table({"id": [2], "w": ["y"], "q": ["b"]}), mode="append")
        lake.delete([1])
    follower.follow()
    assert follower.kept == {(2, "y", "b"): 1}
    late = Follower(lake, [Column("id", "bigint"), Column("w", "string")])
    late.follow()
    assert late.kept == {(2, "y"): 1}


def test_a_source_gets_columns(lake: Lake, tmp_path: Path) -> None:
    """What was bound before is read with them, too, and they keep what they are found by."""
    lake.append([(1, "x", "a"), (2, "y", "b")])
    follower = Follower(lake)
    follower.follow()
    before, bounds = follower.at, [follower.at]
    assert follower.bind().added == ()
    more = pa.table({**table_of([(3, "z", "c")]).to_pydict(), "n": pa.array([7], pa.int64())})
    if isinstance(lake, IcebergLake):
        with lake.table.update_schema() as update:
            update.add_column("n", LongType())
        lake.table.append(more)
    else:
        write_deltalake(f"{tmp_path}/delta", more, mode="append", schema_mode="merge")
    assert follower.bind().added == ("n",)
    follower.follow()
    assert follower.kept == lake.rows(), "it is left alone"
    bounds.append(follower.at)
    assert [c.name for c in follower.open().columns_there(before)] == ["id", "v", "p", "n"]
    n = Column("n", "bigint")
    with pytest.raises(SourceError, match="not all of whose values are int"):
        follower.open().found_by([Column("n", "int")])
    assert follower.open().found_by([Column("N", "bigint")])[FIELD_IDS]
    with pytest.raises(SourceError, match='no column "none"'):
        follower.open().found_by([Column("none", "int")])
    follower.options |= follower.open().found_by([n])
    follower.columns = [*COLUMNS, n]
    lake.delete([1])
    bound = follower.bind()
    assert bound.added == ()
    follower.at = bound.offsets
    bounds.append(follower.at)
    wide = follower.open()
    first, second, third = bounds
    old = {(1, "x", "a", None): 1, (2, "y", "b", None): 1}
    assert rows_of(wide, {}, first) == old
    assert rows_of(wide, first, second) == {(3, "z", "c", 7): 1}
    assert rows_of(wide, second, third) == {(1, "x", "a", None): -1}
    assert rows_of(wide, {}, third) == {(2, "y", "b", None): 1, (3, "z", "c", 7): 1}
    if isinstance(lake, IcebergLake):
        with lake.table.update_schema() as update:
            update.rename_column("n", "m")
        lake.table.append(more.rename_columns(["id", "v", "p", "m"]))
        assert [c.name for c in wide.columns_there(third)] == ["id", "v", "p", "n"]
        follower.kept = Counter()
        follower.follow()
        assert follower.kept == {(3, "z", "c", 7): 1}
        with lake.table.update_schema() as update:
            update.delete_column("m")
        lake.append([(9, None, None)])
        refused(follower, 'no column "n" any more')


def test_tables_of_a_lake_get_columns(lake: Lake, spark: SparkSession, tmp_path: Path) -> None:
    lake.append([(1, "x", "a"), (2, "y", "b")])
    more = pa.table({**table_of([(3, "z", "c")]).to_pydict(), "n": pa.array([7], pa.int64())})
    with connect(tmp_path / "db", spark=spark) as database:
        database.sql(f"CREATE TABLE t (id bigint PRIMARY KEY, v text) WITH ({lake.sql()})")
        database.sql(f"CREATE SOURCE s WITH ({lake.sql()}); CREATE MATERIALIZED VIEW seen AS SELECT * FROM t")
        if isinstance(lake, IcebergLake):
            with lake.table.update_schema() as update:
                update.add_column("n", LongType())
            lake.table.append(more)
        else:
            write_deltalake(f"{tmp_path}/delta", more, mode="append", schema_mode="merge")
        eventually(lambda: content(database, "SELECT id FROM seen") == {(1,): 1, (2,): 1, (3,): 1})
        shown = "SELECT columns_there FROM headrace_catalog.sources WHERE name = 't$changes'"
        assert content(database, shown) == {("p, n",): 1}
        database.sql("ALTER TABLE t ADD COLUMN n bigint")
        assert database.sql("ALTER SOURCE s REFRESH SCHEMA").notices == ['source "s" has new columns: "n" bigint']
        assert database.sql("ALTER TABLE t REFRESH SCHEMA").notices == [
            'table "t" has new columns: "p" character varying'
        ]
        lake.delete([1])
        wanted = Counter([(2, "y", None, "b"), (3, "z", 7, "c")])
        eventually(lambda: content(database, "SELECT id, v, n, p FROM t") == wanted)
        eventually(lambda: content(database, "SELECT * FROM seen") == Counter([(2, "y"), (3, "z")]))
        database.sql("CREATE MATERIALIZED VIEW all_of AS SELECT id, v, n, p FROM s")
        eventually(lambda: content(database, "SELECT * FROM all_of") == wanted)


def test_a_column_without_counterpart_keeps_no_other_from_coming(spark: SparkSession, tmp_path: Path) -> None:
    """And columns that are NOT NULL are no key: all rows stay."""
    lake = IcebergLake(tmp_path)
    with lake.table.update_schema() as update:
        update.add_column("at", TimeType())
        update.add_column("n", LongType())
    lake.append([(1, "x", "a")])
    with connect(tmp_path / "db", spark=spark) as database:
        database.sql(f"CREATE TABLE t (id bigint NOT NULL, v text) WITH ({lake.sql()})")
        eventually(lambda: content(database, "SELECT id FROM t") == {(1,): 1})
        for text, said in (("ADD COLUMN none int", 'no column "none"'), ("ADD COLUMN at text", "time64"),
                           ("REFRESH SCHEMA", '"at" of type time64')):  # fmt: skip
            with pytest.raises(HeadraceError, match=said):
                database.sql(f"ALTER TABLE t {text}")
        database.sql("ALTER TABLE t ADD COLUMN n bigint")
        lake.append([(1, "x", "a"), (1, "y", "a")])
        eventually(lambda: content(database, "SELECT * FROM t") == {(1, "x", None): 2, (1, "y", None): 1})


def test_what_changes_of_columns_is_told(tmp_path: Path) -> None:
    lake = IcebergLake(tmp_path)
    with lake.table.update_schema() as update:
        update.add_column("n", IntegerType())
    narrow, wide = (Follower(lake, [Column("id", "bigint"), Column("n", kind)]) for kind in ("int", "bigint"))
    lake.table.append(pa.table({"id": [1], "n": pa.array([1], pa.int32())}))
    for follower in (narrow, wide):
        follower.follow()
    with lake.table.update_schema() as update:
        update.update_column("n", LongType())
    lake.table.append(pa.table({"id": [2], "n": [1 << 40]}))
    wide.follow()
    assert wide.kept == {(1, 1): 1, (2, 1 << 40): 1}
    refused(narrow, '"n"', "int64", "create it again")
    with lake.table.update_schema() as update:
        update.delete_column("n")
    lake.append([(3, None, None)])
    refused(wide, 'no column "n" any more')
    for columns in ([Column("id", "int")], [Column("none", "int")]):
        with pytest.raises(SourceError, match='column "'):
            Follower(lake, columns)


def test_tables_that_are_made_again_are_told(lake: Lake, tmp_path: Path) -> None:
    lake.append([(1, "x", "a")])
    follower = Follower(lake)
    follower.follow()
    if isinstance(lake, IcebergLake):
        lake.catalog.drop_table("n.t")
        refused(follower, "there is no Iceberg table n.t")
        lake.catalog.create_table("n.t", SCHEMA)
    else:
        shutil.rmtree(tmp_path / "delta")
        refused(follower, "there is no Delta table")
        lake = DeltaLake(tmp_path)
    lake.append([(1, "x", "a")])
    refused(follower, "made again", "create it again")


def test_expired_snapshots_are_told(lake: Lake) -> None:
    lake.append([(1, "x", "a")])
    follower, added = Follower(lake), Follower(lake, append_only="true")
    for each in (follower, added):
        each.follow()
    lake.append([(2, "x", "a")])
    bound = follower.bind().offsets
    lake.append([(3, "x", "a")])
    if isinstance(lake, IcebergLake):
        newest = lake.table.current_snapshot()
        for snapshot in lake.table.snapshots():
            if newest is not None and snapshot.snapshot_id != newest.snapshot_id:
                lake.table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
    else:
        assert isinstance(lake, DeltaLake)
        lake.table.create_checkpoint()
        for version in range(3):
            (Path(lake.location) / "_delta_log" / f"{version:020}.json").unlink()
    for each in (follower, added):
        refused(each, "no snapshot", "create it again")
    with pytest.raises(SourceError, match="no snapshot"):
        follower.open().plan(follower.at, bound, 2)
    late = Follower(lake)
    late.follow()
    assert late.kept == lake.rows()


def test_snapshots_in_between_are_not_needed(tmp_path: Path) -> None:
    lake = IcebergLake(tmp_path)
    lake.append([(1, "x", "a")])
    follower, added = Follower(lake), Follower(lake, append_only="true")
    for each in (follower, added):
        each.follow()
    lake.append([(2, "x", "a")])
    middle = lake.table.current_snapshot()
    lake.append([(3, "x", "a")])
    assert middle is not None
    lake.table.maintenance.expire_snapshots().by_id(middle.snapshot_id).commit()
    follower.follow()
    assert follower.kept == lake.rows()
    refused(added, "which rows were added is not known")


def test_going_back(lake: Lake) -> None:
    lake.append([(1, "x", "a")])
    old = lake.table
    snapshot = old.current_snapshot() if isinstance(lake, IcebergLake) else None
    lake.append([(2, "x", "a")])
    lake.delete([1])
    follower, added = Follower(lake), Follower(lake, **{"scan.startup.mode": "latest"})
    for each in (follower, added):
        each.follow()
    if snapshot is not None:
        lake.table.manage_snapshots().set_current_snapshot(snapshot.snapshot_id).commit()
    else:
        lake.table.restore(1)
    follower.follow()
    assert follower.kept == lake.rows() == {(1, "x", "a"): 1}
    refused(added, "added" if snapshot is not None else "takes rows away")


def test_files_that_are_gone_are_told(lake: Lake, tmp_path: Path) -> None:
    lake.append([(1, "x", "a")])
    follower = Follower(lake)
    follower.follow()
    lake.overwrite([(2, "x", "a")])
    bound = follower.bind().offsets
    for path in tmp_path.rglob("*.parquet"):
        path.unlink()
    source = follower.open()
    with pytest.raises(SourceError, match="is gone") as caught:
        rows_of(source, follower.at, bound)
    assert "create it again" in str(caught.value.hint)


def test_only_what_is_added(lake: Lake) -> None:
    lake.append([(1, "x", "a")])
    newest = Follower(lake, **{"scan.startup.mode": "latest"})
    newest.follow()
    assert newest.kept == {}
    lake.append([(2, "x", "a")])
    lake.append([(3, "x", "a")])
    newest.follow(1)
    assert newest.kept == {(2, "x", "a"): 1, (3, "x", "a"): 1}
    assert rows_of(newest.open(), {}, newest.at) == newest.kept
    source = newest.open()
    tasks = source.plan({}, newest.at, 2)
    assert all(made.weights is None for task in tasks for made in source.read(task))
    lake.delete([2])
    refused(newest, "takes rows away", "without append_only")


def test_the_first_content_is_taken_in_by_files(lake: Lake) -> None:
    for i in range(6):
        lake.append([(10 * i + n, "x", "a") for n in range(10)])
    follower = Follower(lake)
    sizes = []
    while follower.step(25):
        sizes.append(sum(follower.kept.values()))
        if len(sizes) == 1:
            lake.delete([0, 59])
    assert sizes[:3] == [20, 40, 60] and follower.kept == lake.rows()


def test_fields_that_are_renamed_after_they_were_bound_are_told(tmp_path: Path) -> None:
    """A schema changes without a snapshot; a field that is not found would be NULL."""
    lake = IcebergLake(tmp_path)
    kind = pa.struct([("a", pa.int32())])
    with lake.table.update_schema() as update:
        update.add_column("s", StructType(NestedField(99, "a", IntegerType(), required=False)))
    lake.table.append(pa.table({"id": [1], "s": pa.array([{"a": 1}], kind)}))
    follower = Follower(lake, [Column("id", "bigint"), Column("s", "struct<a:int>")])
    bound = follower.bind().offsets
    (task,) = follower.open().plan({}, bound, 1)
    with lake.table.update_schema() as update:
        update.rename_column("s.a", "aa")
    with pytest.raises(SourceError, match='"s"'):
        follower.open().plan({}, bound, 1)
    with pytest.raises(SourceError, match='"s"'):
        list(follower.open().read(task))


def test_times_of_int96(lake: Lake, tmp_path: Path) -> None:
    """They reach further than nanoseconds do: read as they are, or refused."""
    lake.append([(1, "x", "a")])
    (path,) = tmp_path.rglob("*.parquet")
    far = datetime(9999, 12, 31, tzinfo=UTC)
    if isinstance(lake, IcebergLake):
        with lake.table.update_schema() as update:
            update.add_column("at", TimestamptzType())
        schema = schema_to_pyarrow(lake.table.schema())
    else:
        location = f"{tmp_path}/delta"
        schema = pa.schema([*SCHEMA, ("at", pa.timestamp("us", "UTC"))])
        DeltaTable(location).alter.add_columns([DeltaField("at", "timestamp")])
    values = [pa.array([v], f.type) for v, f in zip((1, "x", "a", far), schema)]
    pq.write_table(pa.table(values, schema=schema), path, use_deprecated_int96_timestamps=True)
    follower = Follower(lake, [Column("id", "bigint"), Column("at", "timestamp")])
    if isinstance(lake, IcebergLake):
        refused(follower, "INT96", '"at"')
    else:
        follower.follow()
        assert follower.kept == {(1, far): 1}
    narrow = Follower(lake, [Column("id", "bigint")])
    narrow.follow()
    assert narrow.kept == {(1,): 1}


def test_partitions_by_columns_that_are_gone(tmp_path: Path) -> None:
    lake = IcebergLake(tmp_path, True)
    lake.append([(1, "x", "a"), (2, "x", "b")])
    with lake.table.update_spec() as spec:
        spec.remove_field("p")
    with lake.table.update_schema() as update:
        update.delete_column("p")
    follower = Follower(lake, [Column("id", "bigint")])
    follower.follow()
    assert follower.kept == {(1,): 1, (2,): 1}


def test_a_file_that_is_there_twice_is_told(tmp_path: Path) -> None:
    lake = IcebergLake(tmp_path)
    path = f"{tmp_path}/f.parquet"
    pq.write_table(table_of([(1, "x", "a")]), path)
    lake.table.add_files([path])
    lake.table.add_files([path], check_duplicate_files=False)
    refused(Follower(lake), "twice", "f.parquet")


def test_many_commits_are_bound_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.connectors.lake.source._MOST_COMMITS", 3)
    lake = DeltaLake(tmp_path)
    follower = Follower(lake, append_only="true")
    follower.follow()
    for i in range(8):
        lake.append([(i, "x", "a")])
    sizes = []
    while follower.step():
        sizes.append(sum(follower.kept.values()))
    assert sizes == [3, 6, 8]
    table = DeltaTables("t", lake.location, {})
    for version in range(8):
        table.content(version)
    assert len(table._versions) <= 4


def test_columns_types_and_faults(lake: Lake) -> None:
    """What is not declared is inferred; a NULL where none may be is at fault, whether it comes or goes."""
    lake.append([(1, None, "a"), (2, "x", "a")])
    source = open_source(lake.options(), [])
    assert [(c.name, c.type) for c in type(source).infer_columns(lake.options())] == [
        ("id", "bigint"), ("v", "string"), ("p", "string"),
    ]  # fmt: skip
    columns = [Column("v", "string", False), Column("id", "bigint")]
    with pytest.raises(SourceError, match="NOT NULL"):
        Follower(lake, columns).follow()
    skipping = Follower(lake, columns, on_error="skip")
    skipping.follow()
    assert skipping.kept == {("x", 2): 1}
    lake.delete([1])
    skipping.follow()
    assert skipping.kept == {("x", 2): 1}
    only = skipping.open().only(["id"])
    assert rows_of(only, {}, skipping.bounds[1]) == {("x", 2): 1}, "a column that can be at fault is looked at"


def test_features_that_are_not_understood_are_refused(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    lake.append([(1, "x", "a")])
    log = DeltaLog(lake.location)
    features = {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": ["rowTracking", "typeWidening"]}
    log.commit({"protocol": {**features, "readerFeatures": ["typeWidening"]}})
    with pytest.raises(HeadraceError, match="typeWidening"):
        Follower(lake)


def test_files_elsewhere_are_refused(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    lake.append([(1, "x", "a")])
    log = DeltaLog(lake.location)
    (add,) = log.files().values()
    log.commit({"add": {**add, "path": f"file://{tmp_path}/other/part.parquet"}})
    refused(Follower(lake), "elsewhere")


def test_watermarks_need_rows_that_are_only_added(spark: SparkSession, tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    with connect(tmp_path / "db", spark=spark) as database:
        columns = "(id bigint, v timestamp, WATERMARK FOR v AS v - INTERVAL '1 minute')"
        with pytest.raises(NotSupported, match="takes rows back"):
            database.sql(f"CREATE SOURCE s {columns} WITH ({lake.sql()})")
        with pytest.raises(NotSupported, match="primary key"):
            database.sql(f"CREATE TABLE t (id bigint PRIMARY KEY) WITH ({lake.sql(append_only='true')})")


def test_only_what_is_new_is_delivered(spark: SparkSession, tmp_path: Path) -> None:
    """A file that is written anew adds nothing, so append-only sinks read what nets the changes."""
    lake, out = DeltaLake(tmp_path), f"{tmp_path}/out"
    lake.append([(i, "x", None) for i in (1, 2, 3)])
    sink = f"connector = 'deltalake', location = '{out}', create_table_if_not_exists = true, type = 'append-only'"
    with connect(tmp_path / "db", spark=spark) as database:
        database.sql(f"CREATE SOURCE s WITH ({lake.sql()})")
        database.sql("CREATE VIEW through AS SELECT id FROM s")
        database.sql("CREATE TABLE target (id bigint)")
        for made in (
            f"CREATE SINK k FROM s WITH ({sink}, force_append_only = true)",
            f"CREATE SINK k FROM through WITH ({sink}, force_append_only = true)",
            "CREATE SINK k INTO target FROM through WITH (type = 'append-only', force_append_only = true)",
        ):
            with pytest.raises(NotSupported, match="force_append_only") as caught:
                database.sql(made)
            assert "MATERIALIZED VIEW" in str(caught.value.hint)
        database.sql("CREATE MATERIALIZED VIEW m AS SELECT id FROM s")
        database.sql(f"CREATE SINK k FROM m WITH ({sink}, force_append_only = true)")

        def delivered() -> list[int]:
            there = DeltaTable.is_deltatable(out)
            return sorted(pa.table(DeltaTable(out).scan().read_all())["id"].to_pylist()) if there else []

        eventually(lambda: delivered() == [1, 2, 3], "the first content")
        lake.delete([2])
        lake.append([(4, "x", None)])
        eventually(lambda: 4 in delivered(), "a row that is added")
        assert delivered() == [1, 2, 3, 4]


def test_tables_that_are_fed_by_a_lake(spark: SparkSession, tmp_path: Path) -> None:
    """They are not APPEND ONLY by themselves."""
    lake = DeltaLake(tmp_path)
    with connect(tmp_path / "db", spark=spark) as database:
        with pytest.raises(NotSupported, match="APPEND ONLY") as caught:
            database.sql(f"CREATE TABLE t (id bigint) APPEND ONLY WITH ({lake.sql()})")
        assert "append_only = true" in str(caught.value.hint)


@pytest.mark.parametrize("kind", [*KINDS])
def test_an_object_store(s3: S3Server, kind: str, tmp_path: Path) -> None:
    place = f"s3://{s3.bucket}/source-{kind}"
    options = {name: value for name, value in s3.options.items() if name.startswith("s3.")}
    rows = [table_of([(i, "x", "a")]) for i in range(3)]
    if kind == "iceberg":
        uri = f"sqlite:///{tmp_path}/catalog.db"
        store = {"s3.endpoint": s3.endpoint, "s3.region": "us-east-1"}
        catalog = load_catalog("default", type="sql", uri=uri, warehouse=place, **store)
        catalog.create_namespace("n")
        table = catalog.create_table("n.t", SCHEMA)
        for some in rows:
            table.append(some)
        table.delete("id = 1")
        options |= {"catalog.type": "sql", "catalog.uri": uri, "database.name": "n", "table.name": "t"}
    else:
        store = {"AWS_ENDPOINT_URL": s3.endpoint, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
        for some in rows:
            write_deltalake(place, some, mode="append", storage_options=store)
        DeltaTable(place, storage_options=store).delete("id = 1")
        options |= {"location": place}
    source = open_source({"connector": kind, **options}, COLUMNS)
    bound = source.latest_offsets({}, Admission(), 0)
    assert rows_of(source, {}, bound.offsets) == {(0, "x", "a"): 1, (2, "x", "a"): 1}
