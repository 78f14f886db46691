"""Joins that look rows up by primary key or index: what views show, depend on, and keep over restarts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.config import Settings
from headrace.errors import DependentObjectsExist
from headrace.session.database import Database, connect

SETTINGS = Settings(
    run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=100, compaction_trigger_runs=2, retention_ms=0
)
INNER = "SELECT o.id, o.cents, p.name FROM o JOIN p ON o.person = p.id"
LEFT = "SELECT p.id, p.name, o.cents FROM p LEFT JOIN o ON o.person = p.id"


def tables_of(database: Database, view: str) -> set[str]:
    """Names of a view's state tables."""
    state = database.catalog.state
    return {t.operator for t in state.tables_of(next(o.id for o in state.objects.values() if o.name == view))}


def change(database: Database, n: int) -> None:
    """Inserts, updates and deletes on both sides."""
    values = ", ".join(f"({n * 100 + i}, {i % 7}, {i})" for i in range(30))
    database.sql(f"INSERT INTO o VALUES {values}; DELETE FROM o WHERE id % 5 = {n % 5}")
    database.sql(f"UPDATE p SET name = name || '{n}' WHERE id % 3 = {n % 3}; DELETE FROM p WHERE id = {n}")


def compacted(database: Database, n: int) -> int:
    """More changes, and how many merges follow; what a paused view has to look up as it was stays readable."""
    change(database, n)
    merges = database.coordinator.compact()
    state = database.catalog.state
    paused = [j for j in state.jobs.values() if j.status == "paused"]
    read = [
        (j, t) for j in paused for i in j.plan.upstreams or () for t in state.tables_of(i) if t.operator == "view/rows"
    ]
    assert len(read) == 4 and all(t.safe_epoch <= j.committed_epoch for j, t in read)
    return merges


def exact(database: Database) -> None:
    """I1: both views hold what their queries give."""
    database.flush()
    for view, query in (("by_key", INNER), ("by_index", LEFT)):
        got = sorted(database.sql(f"SELECT * FROM {view}").rows(), key=repr)
        assert got == sorted(database.sql(query).rows(), key=repr) and got, view


@pytest.mark.parametrize("rows_at_once", [10_000, pytest.param(20, marks=pytest.mark.soak)])
def test_views_that_look_rows_up(spark: SparkSession, tmp_path: Path, rows_at_once: int) -> None:
    """I1, I16: through backfills and epochs in steps, a pause with compaction, and restarts."""
    settings = SETTINGS.replaced(backfill_slice_rows=rows_at_once, max_rows_per_epoch=rows_at_once)
    with connect(tmp_path / "db", spark=spark, settings=settings) as database:
        database.sql("CREATE TABLE p (id int PRIMARY KEY, name text); CREATE TABLE o (id int, person int, cents int)")
        values = ", ".join(f"({i}, 'p{i}')" for i in range(8))
        database.sql(f"INSERT INTO p VALUES {values}")
        change(database, 1)
        assert "shared" not in str(database.sql(f"EXPLAIN CREATE MATERIALIZED VIEW v AS {LEFT}").rows())
        database.sql("CREATE INDEX i ON o (person) INCLUDE (cents)")
        lines = [line for (line,) in database.sql(f"EXPLAIN CREATE MATERIALIZED VIEW v AS {LEFT}").rows()]
        assert any(line.endswith("right: i by (person): cents") for line in lines)
        database.sql(f"CREATE MATERIALIZED VIEW by_key AS {INNER}; CREATE MATERIALIZED VIEW by_index AS {LEFT}")
        assert {t.partition("/")[2] for t in tables_of(database, "by_key")} == {"rows", "left"}
        database.sql("SET streaming_use_arrangements = off")
        assert "shared" not in str(database.sql(f"EXPLAIN CREATE MATERIALIZED VIEW v AS {INNER}").rows())
        exact(database)
        database.sql("ALTER MATERIALIZED VIEW by_key PAUSE; ALTER MATERIALIZED VIEW by_index PAUSE")
        assert compacted(database, 2)
        with pytest.raises(DependentObjectsExist):
            database.sql("DROP INDEX i")
    with connect(tmp_path / "db", spark=spark, settings=settings) as database:
        database.coordinator.compact()
        database.sql("ALTER MATERIALIZED VIEW by_key RESUME; ALTER MATERIALIZED VIEW by_index RESUME")
        exact(database)
        assert {j.status for j in database.coordinator.jobs()} == {"running"}
        database.sql("DROP INDEX i CASCADE")
        names = {o.name for o in database.catalog.state.objects.values()}
        assert "by_index" not in names and "by_key" in names


def test_no_circle_of_groups_comes_of_an_index(spark: SparkSession) -> None:
    """An index in a group of its own is not used by a view of the group that the index reads; one in the group is."""
    with connect(spark=spark, settings=SETTINGS) as database:
        database.sql("CREATE TABLE t (k int, v int)")
        grouped = "SELECT k, max(v) AS v FROM t GROUP BY k"
        database.sql(f"CREATE MATERIALIZED VIEW m WITH (checkpoint_group = 'g') AS {grouped}")
        database.sql("CREATE INDEX i ON m (k)")
        query = "AS SELECT t.v, m.v AS most FROM t JOIN m ON t.k = m.k"
        inside = f"CREATE MATERIALIZED VIEW v WITH (checkpoint_group = 'g') {query}"
        assert "shared" not in str(database.sql(f"EXPLAIN {inside}").rows())
        assert "shared" in str(database.sql(f"EXPLAIN CREATE MATERIALIZED VIEW v {query}").rows())
        database.sql("SET default_checkpoint_group = g; CREATE INDEX j ON m (k)")
        assert "shared 0.0/right: j by (k)" in str(database.sql(f"EXPLAIN {inside}").rows())
        database.sql(f"{inside}; INSERT INTO t VALUES (1, 1), (1, 2), (2, 3)")
        database.flush()
        assert sorted(database.sql("SELECT * FROM v").rows()) == [(1, 2), (2, 2), (3, 3)]
