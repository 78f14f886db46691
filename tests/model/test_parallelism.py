"""Parallelism that changes from epoch to epoch."""

from __future__ import annotations

import random

import pytest
from engine import Engine, Table
from pyspark.sql import SparkSession

from headrace.common.columns import Column

_QUERIES = {
    "outer join": "SELECT a.k, a.v, b.v AS w FROM a LEFT JOIN b ON a.k = b.k",
    "aggregate": "SELECT k, count(*) AS c, sum(v) AS s, min(v) AS m, count(DISTINCT v) AS d FROM a GROUP BY k",
    "window over a join": "SELECT a.k, a.v, rank() OVER (PARTITION BY a.k ORDER BY a.v, b.v) AS r "
                          "FROM a JOIN b ON a.k = b.k",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(_QUERIES))
def test_it_changes_at_every_epoch(spark: SparkSession, name: str) -> None:
    """LS-22: more tasks, then fewer, then one: state and log lose no row and give none twice, also of retractions."""
    draw = random.Random(7)
    columns = (Column("k", "int"), Column("v", "int"))
    with Engine(spark, [Table(1, "a", columns), Table(2, "b", columns)], _QUERIES[name]) as e:
        for parallelism in (1, 3, 2, 5, 1, 4):
            for table in ("a", "b"):
                rows = e.tables[table].rows
                removed = [(row, -1) for row in draw.sample(rows, len(rows) // 3)]
                e.change(table, [*removed, *(((draw.randrange(8), draw.randrange(5)), 1) for _ in range(25))])
            result = e.advance(parallelism)
            assert result.rows_in
            e.check()
