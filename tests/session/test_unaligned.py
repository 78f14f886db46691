"""Views that are cut behind their joins."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace.config import Settings
from headrace.coordinator import TableChange
from headrace.errors import HeadraceError
from headrace.session.database import Database, connect

QUERY = "SELECT x, count(*) AS n, sum(v) AS s FROM a, b LEFT JOIN c ON b.w = c.w WHERE a.k = b.k AND v > 0 GROUP BY x"
SETTINGS = Settings(run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=200)


def jobs(db: Database) -> dict[str, str]:
    return {row[1]: row[2] for row in db.sql("SHOW JOBS").rows()}


def check(db: Database, query: str) -> None:
    db.flush()
    assert sorted(db.sql("SELECT * FROM v").rows(), key=str) == sorted(db.sql(query).rows(), key=str)


def fill(db: Database) -> None:
    db.sql("CREATE TABLE a (k int, v bigint); CREATE TABLE b (k int, w int); CREATE TABLE c (w int, x text)")
    db.sql("INSERT INTO a VALUES (1, 1), (1, 2), (2, 3), (3, -1); INSERT INTO b VALUES (1, 1), (1, 2), (2, 2)")
    db.sql("INSERT INTO c VALUES (1, 'one'), (1, 'uno'); SET streaming_enable_unaligned_join = true")


def joins_apart(db: Database, query: str) -> int:
    lines = [line for (line,) in db.sql(f"EXPLAIN CREATE MATERIALIZED VIEW v AS {query}").rows()]
    return len([line for line in lines if line.startswith("job of its own, join_")])


def test_joins_are_jobs_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    """A join inside the view has a job, a group and a log of its own; the view is what its query says."""
    plain = "SELECT a.v, b.w FROM a JOIN b ON a.k = b.k"
    query = "SELECT w, count(*) AS n, sum(v) AS s FROM a, b WHERE a.k = b.k AND v > 0 GROUP BY w"
    with connect(tmp_path, spark=spark, settings=SETTINGS) as db:
        fill(db)
        assert [joins_apart(db, text) for text in (plain, query, QUERY)] == [0, 1, 2]
        db.sql(f"CREATE MATERIALIZED VIEW v AS {query}")
        assert jobs(db) == dict.fromkeys(("v", "v$join_1"), "running")
        assert len({row[10] for row in db.sql("SHOW JOBS").rows()}) == 2  # the groups
        assert db.sql("SHOW MATERIALIZED VIEWS").rows() == [("v",)]
        listed = db.sql("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'").rows()
        assert sorted(name for (name,) in listed) == ["a", "b", "c", "v"]
        db.sql("INSERT INTO b VALUES (2, 7); UPDATE a SET v = v + 1 WHERE k < 3; DELETE FROM b WHERE w = 1")
        check(db, query)
        db.sql("ALTER MATERIALIZED VIEW v PAUSE")
        assert set(jobs(db).values()) == {"paused"}
        with pytest.raises(HeadraceError, match="depend"):
            db.sql('DROP MATERIALIZED VIEW "v$join_1"')
        db.sql("DROP MATERIALIZED VIEW v; DROP TABLE a; DROP TABLE b; DROP TABLE c")
        assert jobs(db) == {}


@pytest.mark.soak
def test_they_are_taken_up_after_a_restart_and_go_when_the_view_fails(spark: SparkSession, tmp_path: Path) -> None:
    """PC-46: a cut view goes on after a restart; one that cannot be created leaves no part of it behind."""
    with connect(tmp_path, spark=spark, settings=SETTINGS) as db:
        fill(db)
        db.sql(f"CREATE MATERIALIZED VIEW v AS {QUERY}")
    with connect(tmp_path, spark=spark, settings=SETTINGS) as db:
        db.sql("INSERT INTO a VALUES (2, 100); INSERT INTO b VALUES (3, 2); DELETE FROM c WHERE x = 'uno'")
        check(db, QUERY)
        before = jobs(db)
        assert before == dict.fromkeys(("v", "v$join_1", "v$join_2"), "running")
        db.sql("SET streaming_enable_unaligned_join = true; INSERT INTO a VALUES (9, 9); INSERT INTO b VALUES (9, 0)")
        for failing in ("sum(a.v / b.w) AS q FROM a JOIN b ON a.k = b.k", "sum(v) AS q FROM a JOIN b ON a.v / b.w = 1"):
            with pytest.raises(HeadraceError, match="is failing"):
                db.sql(f"CREATE MATERIALIZED VIEW bad AS SELECT {failing}")
        assert jobs(db) == before
        db.sql("DROP TABLE a CASCADE")
        assert jobs(db) == {}


def kill_workers(spark: SparkSession) -> int:
    """SIGKILL to the Python workers that Spark has forked; how many there were."""
    jvm = spark.sparkContext._gateway.proc.pid
    killed = 0
    for daemon in children(jvm):
        for worker in children(daemon):
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
                killed += 1
    return killed


def children(process: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


@pytest.mark.soak
def test_a_join_that_amplifies_while_workers_die(spark: SparkSession, tmp_path: Path) -> None:
    """LS-23: 20,000 rows that meet ten each: the same rows with a log behind the join and without, workers killed."""
    settings = SETTINGS.replaced(max_rows_per_epoch=4000, group_retry_initial_ms=50)
    with connect(tmp_path, spark=spark, settings=settings) as db:
        db.sql("CREATE TABLE a (k int, v bigint); CREATE TABLE b (k int, w int)")
        ids = {name: db.catalog.state.object_named("public", name) for name in ("a", "b")}
        rows = {"a": (np.arange(20_000) % 500, np.arange(20_000)), "b": (np.arange(5000) % 500, np.arange(5000) % 7)}
        query = "SELECT b.w, count(*) AS n, sum(a.v) AS s FROM a JOIN b ON a.k = b.k GROUP BY b.w"
        for name, on in (("apart", "true"), ("whole", "false")):
            db.sql(f"SET streaming_enable_unaligned_join = {on}; CREATE MATERIALIZED VIEW {name} AS {query}")
        for name in ("b", "a"):
            record = ids[name]
            assert record is not None
            types = (pa.int32(), pa.int64() if name == "a" else pa.int32())
            columns = [pa.array(values, kind) for values, kind in zip(rows[name], types)]
            batch = pa.RecordBatch.from_arrays(columns, names=[c.name for c in record.columns])
            db.coordinator.write(record.id, TableChange(batch))
        killed = 0
        while killed < 3:
            killed += min(1, kill_workers(spark))
        for _ in range(30):
            with suppress(HeadraceError):
                db.flush()
                break
        found = [sorted(db.sql(f"SELECT * FROM {name}").rows()) for name in ("apart", "whole")]
        assert found == [sorted(db.sql(query).rows())] * 2
        assert sum(n for _, n, _ in found[0]) == 200_000
        kinds = {kind for (kind,) in db.sql("SELECT kind FROM headrace_catalog.events").rows()}
        assert "job_failed" in kinds
