"""Indexes: kept as jobs, used by reads of one key and by temporal joins, listed and dropped."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.catalog.contents import IndexContent
from headrace.config import Settings
from headrace.errors import DependentObjectsExist, NotSupported, UndefinedColumn, WrongObjectType
from headrace.session.database import Database, connect
from headrace.session.execution import points
from headrace.session.reading import read_steps

SETTINGS = Settings(run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=200)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The state tables in which reads have looked keys up."""
    found: list[int] = []

    def spy(*args: Any) -> points.KeyScan | None:
        made = points.key_scan(*args)
        found.extend({ref.table_id for ref in made.table.refs} if made is not None else ())
        return made

    monkeypatch.setattr(read_steps, "key_scan", spy)
    return found


def same(database: Database, columns: str, condition: str) -> None:
    """A read by key gives what Spark computes of the same condition in a form that no look-up knows."""
    fast = database.sql(f"SELECT {columns} FROM t WHERE {condition}").rows()
    slow = database.sql(f"SELECT {columns} FROM t WHERE ({condition}) IS TRUE").rows()
    assert Counter(fast) == Counter(slow), condition


def test_reads_by_key_and_temporal_joins(spark: SparkSession, tmp_path: Path, used: list[int]) -> None:
    choice = random.Random(1)
    with connect(tmp_path / "db", spark=spark, settings=SETTINGS) as database:
        database.sql("CREATE TABLE t (id int PRIMARY KEY, c bigint, s text, d int)")
        values = ", ".join(f"({i}, {choice.choice(['NULL', 1, 2, 3])}, 's{i % 4}', {i})" for i in range(40))
        database.sql(f"INSERT INTO t VALUES {values}")
        database.sql("CREATE INDEX i ON t (c, s) INCLUDE (d); CREATE INDEX IF NOT EXISTS i ON t (d)")
        (index,) = database.catalog.state.objects_of(IndexContent)
        kept = {t.id for t in database.catalog.state.tables_of(index.id)}
        database.sql("DELETE FROM t WHERE id < 5; UPDATE t SET s = 's0' WHERE id = 20")
        same(database, "d", "c = 1 AND s = 's0'")  # right after the write: the index may be behind
        same(database, "count(*)", "'s0' = s AND c = 2")
        assert used and set(used) == kept
        database.flush()
        same(database, "d, c", "c = 3 AND s = 's1' AND d = 13")
        used.clear()
        same(database, "s, d", "id = 20")
        same(database, "*", "t.id = 3 AND c = 1")
        assert len(used) == 2 and not set(used) & kept, "the primary key is at hand in the table"
        used.clear()
        same(database, "id", "c = 1 AND s = 's0'")
        same(database, "d", "c = 1")
        assert not used, "a column or a part of the key is missing"
        database.sql("CREATE TABLE a (x int, y text) APPEND ONLY")
        database.sql(
            "CREATE MATERIALIZED VIEW j AS SELECT x, t.d FROM a LEFT JOIN t FOR SYSTEM_TIME AS OF PROCTIME() "
            "ON a.x = t.c AND t.s = a.y"
        )
        database.sql("INSERT INTO a VALUES (1, 's0'), (9, 's1')")
        database.flush()
        wanted = database.sql("SELECT 1, d FROM t WHERE c = 1 AND s = 's0' UNION ALL SELECT 9, NULL").rows()
        assert Counter(database.sql("SELECT * FROM j").rows()) == Counter(wanted)
    with connect(tmp_path / "db", spark=spark, settings=SETTINGS) as database:
        assert [j.status for j in database.coordinator.jobs()] == ["running", "running"]
        database.sql("DELETE FROM t; INSERT INTO t VALUES (1, 1, 's0', 7); INSERT INTO a VALUES (1, 's0')")
        database.flush()
        assert Counter(database.sql("SELECT * FROM j").rows()) == Counter([*wanted, (1, 7)])
        assert database.sql("SHOW INDEXES").rows() == [("i", "t", "c, s", "d", "NO")]
        assert database.sql("SHOW INDEXES FROM a").rows() == []
        listed = database.sql("SELECT tablename, indexname FROM pg_catalog.pg_indexes ORDER BY 2").rows()
        assert listed == [("t", "i"), ("t", "t_pkey")]
        for name, error in (("INDEX i", DependentObjectsExist), ("TABLE t", DependentObjectsExist)):
            with pytest.raises(error):
                database.sql(f"DROP {name}")
        for text, refused in {
            "CREATE INDEX k ON t (nope)": UndefinedColumn,
            "CREATE INDEX k ON t (c) DISTRIBUTED BY (s)": NotSupported,
            "CREATE INDEX k ON i (c)": WrongObjectType,
            "SELECT * FROM i": WrongObjectType,
        }.items():
            with pytest.raises(refused):
                database.sql(text)
        database.sql("DROP MATERIALIZED VIEW j; DROP TABLE t")
        assert database.sql("SHOW INDEXES").rows() == []
