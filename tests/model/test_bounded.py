"""Views whose tasks have next to no memory: they spill, and are as exact as ever."""

from __future__ import annotations

import pytest
from engine import Engine, Table
from pyspark.sql import SparkSession

from headrace.common.columns import Column
from headrace.errors import OutOfBudget

COLUMNS = (Column("a", "int"), Column("x", "int"))


def test_a_tiny_budget_changes_nothing(spark: SparkSession) -> None:
    """FS-17: outer join, aggregate, window and view spill through several levels of slices; then a decline."""
    query = (
        "SELECT a, n, row_number() OVER (PARTITION BY n ORDER BY a) AS i FROM "
        "(SELECT l.a, count(r.x) AS n FROM t l LEFT JOIN s r ON l.a = r.a GROUP BY l.a)"
    )
    with Engine(spark, [Table(1, "t", COLUMNS), Table(2, "s", COLUMNS)], query, codegen=False) as engine:
        engine.memory_bytes = 6000
        engine.insert("t", *((a, a % 7) for a in range(300)))
        engine.insert("s", *((a, x) for a in range(0, 400, 3) for x in range(a % 3 + 1)))
        assert engine.advance(1).spilled_bytes > 0
        engine.check()
        engine.delete("t", *((a, a % 7) for a in range(0, 300, 2)))
        engine.insert("s", *((a, 5) for a in range(100)))
        assert engine.advance(3).spilled_bytes > 0
        engine.check()
        assert not list((engine.root / "spool").rglob("*"))
        engine.budget_bytes = 1
        engine.insert("t", (7, 7), (8, 8))
        before = engine.rows()
        engine.memory_bytes = 1
        with pytest.raises(OutOfBudget):
            engine.advance(1)
        assert engine.rows() == before and not list((engine.root / "spool").rglob("*"))
        engine.budget_bytes = 1 << 40
        engine.advance(1)
        engine.check()
