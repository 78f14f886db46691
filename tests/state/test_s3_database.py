"""A whole database whose state is on an S3 server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headrace
from headrace.config import Settings
from headrace.coordinator.upkeep.owner import FOLDER
from headrace.state.stores import store_of
from object_server import S3Server


@pytest.fixture
def keyed_spark(spark: SparkSession, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Spark may be older than the server: tell its workers the server's credentials."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setitem(spark.sparkContext.environment, name, os.environ[name])
    return spark


def test_a_database_lives_in_an_object_store(keyed_spark: SparkSession, s3: S3Server, tmp_path: Path) -> None:
    """Views, compaction, vacuum and a restart that has lost its cache: nothing of the state is on the local disk."""
    root = s3.root(tmp_path / "cache")
    settings = Settings(
        state_options=dict(root.options),
        barrier_interval_ms=50,
        vacuum_grace_ms=0,
        retention_ms=0,
        compaction_trigger_runs=3,
        compaction_interval_ms=600_000,
    )
    with headrace.connect(tmp_path / "db", spark=keyed_spark, state=root.url, settings=settings) as db:
        db.sql("CREATE TABLE t (a bigint, v bigint)")
        db.sql("CREATE MATERIALIZED VIEW m AS SELECT a, sum(v) AS s FROM t GROUP BY a")
        for i in range(4):
            db.sql(f"INSERT INTO t VALUES (1, {i}), (2, {10 * i})")
        db.flush()
        assert sorted(db.sql("SELECT a, s FROM m")) == [(1, 6), (2, 60)]
        assert db.coordinator.compact() > 0
        db.coordinator.vacuum()
        assert db.coordinator.vacuum() > 0
        counted = dict(db.sql("SELECT name, value FROM headrace_catalog.metrics"))
        for name in ("server_io_bytes_written", "worker_io_requests", "worker_io_bytes_written", "worker_cache_hits"):
            assert counted[name] > 0, name
        assert counted["server_io_failures"] == counted["worker_io_failures"] == 0
        left = {o.path for o in store_of(db.coordinator.root).list() if not o.path.startswith(f"{FOLDER}/")}
        assert left == {r.ref.path for r in db.catalog.state.runs.values()}
    assert not (tmp_path / "db" / "state").exists()
    for copy in (tmp_path / "db" / "cache").iterdir():
        copy.unlink()
    with headrace.connect(tmp_path / "db", spark=keyed_spark, state=root.url, settings=settings) as db:
        db.sql("INSERT INTO t VALUES (3, 7)")
        db.flush()
        assert sorted(db.sql("SELECT a, s FROM m")) == [(1, 6), (2, 60), (3, 7)]
