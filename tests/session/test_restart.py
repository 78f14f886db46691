"""What is there after closing and opening again."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.config import Settings
from headrace.errors import ShuttingDown
from headrace.session.database import connect


def test_tables_and_views_survive(spark: SparkSession, tmp_path: Path) -> None:
    settings = Settings(run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=200)
    with connect(tmp_path / "db", spark=spark, settings=settings) as database:
        database.sql("CREATE TABLE t (a int, b text); INSERT INTO t VALUES (1, 'x'), (2, 'y')")
        database.sql("CREATE VIEW v AS SELECT a, upper(b) AS b FROM t")
        database.sql("CREATE MATERIALIZED VIEW m AS SELECT b, count(*) AS n FROM v GROUP BY b")
        session = database.session()
    with pytest.raises(ShuttingDown):
        list(session.execute("SELECT 1"))
    with connect(tmp_path / "db", spark=spark, settings=settings) as database:
        assert database.sql("SELECT * FROM t ORDER BY a").rows() == [(1, "x"), (2, "y")]
        assert database.sql("SELECT * FROM m ORDER BY b").rows() == [("X", 1), ("Y", 1)]
        database.sql("INSERT INTO t VALUES (3, 'x')")
        database.flush()
        assert database.sql("SELECT * FROM m ORDER BY b").rows() == [("X", 2), ("Y", 1)]
