"""A database whose Spark ends while it is open, in processes of their own: there is one Spark for each process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

OWN = """
import sys, time
from pathlib import Path
import headrace
from headrace.errors import HeadraceError, SparkLost
from headrace.config import Settings

def again(call):
    for _ in range(60):
        try:
            return call()
        except SparkLost:
            time.sleep(0.5)
    raise AssertionError("Spark does not come back")

with headrace.connect(sys.argv[1], settings=Settings(barrier_interval_ms=100, spark_driver_memory_mb=768)) as db:
    db.sql("CREATE TABLE t (a int)")
    db.create_materialized_view("v", db.relation("t").groupBy("a").count())
    stale = db.relation("t")
    query = "SELECT t.a, count(*) FROM t JOIN t AS u ON t.a = u.a GROUP BY t.a"  # of one relation needs no Spark
    kept = db.instance.engine.kept
    for number, end in enumerate((db.spark.stop, db.spark.sparkContext._gateway.proc.kill)):
        first, found = db.spark, kept.found
        assert {len(db.sql(query)) for _ in range(3)} == {number} and kept.found > found
        end()
        db.sql(f"INSERT INTO t VALUES ({number})")
        assert len(again(lambda: db.sql(query))) == number + 1
        assert db.spark is not first
        db.flush()
        assert sorted(db.sql("SELECT * FROM v").rows()) == sorted(db.sql(query).rows())
    try:
        db.create_materialized_view("w", stale)
        raise AssertionError("a plan of the Spark that has ended")
    except SparkLost as error:
        assert "made again" in (error.hint or "")
    db.create_materialized_view("w", db.relation("t"))
    events = db.sql("SELECT kind, message FROM headrace_catalog.events ORDER BY sequence").rows()
    assert [k for k, _ in events if k.startswith("spark")] == ["spark_lost", "spark_restarted"] * 2, events
    assert not {k for k, _ in events} & {"job_failed", "job_quarantined"}, events
"""

GIVEN = """
import sys
import headrace
from headrace.dataflow.spark import local_session
from headrace.errors import HeadraceError, SparkLost

spark = local_session()
db = headrace.connect(sys.argv[1], spark=spark)
db.sql("CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS SELECT count(*) AS c FROM t")
spark.stop()
assert db.coordinator.failed.wait(30)
try:
    db.sql("SELECT * FROM v")
    raise AssertionError("the database goes on without Spark")
except SparkLost as error:
    assert "the database was opened with" in error.message and "open the database again" in (error.hint or "")
db.close()
"""


@pytest.mark.soak
@pytest.mark.parametrize("script", [OWN, GIVEN], ids=["own", "given"])
def test_spark_ends(script: str, tmp_path: Path) -> None:
    """PC-42: stopped or killed, the database's own Spark is replaced; one that it was given cannot be, and is told."""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "db")], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
