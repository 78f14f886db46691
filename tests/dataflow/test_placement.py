"""Rows that a join has brought together stay where they are: how many shuffles the plans of epochs have."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace.common.columns import Column
from headrace.dataflow.build import EpochPlan
from headrace.plan.planner import PlannedRelation, Planner
from headrace.plan.tree import WEIGHT
from headrace.state.schema import TableSchema

CASES = {
    "SELECT t.a, s.b FROM t JOIN s ON t.a = s.a": 1,
    # Matches of a preserved side are counted where the join has brought its rows.
    "SELECT t.a, s.b FROM t LEFT JOIN s ON t.a = s.a": 1,
    "SELECT t.a, s.b FROM t FULL JOIN s ON t.a = s.a AND t.b < s.b": 1,
    "SELECT a, b FROM t WHERE NOT EXISTS (SELECT 1 FROM s WHERE s.a = t.a AND s.b > t.b)": 1,
    "SELECT a, b FROM t WHERE b > 0 OR a IN (SELECT a FROM s)": 1,
    # The second one is Spark's own, for what the window function is computed of.
    "SELECT x, sb FROM (SELECT t.a AS x, s.b AS sb, row_number() OVER (PARTITION BY s.a, t.b ORDER BY s.b) AS n "
    "FROM t JOIN s ON t.a = s.a) q WHERE n <= 2": 2,
    # Rows by another column, or by a value that is no column, have to move.
    "SELECT x, sb FROM (SELECT t.a AS x, s.b AS sb, row_number() OVER (PARTITION BY s.b ORDER BY s.a) AS n "
    "FROM t JOIN s ON t.a = s.a) q WHERE n <= 2": 3,
    "SELECT t.b, s.b AS sb FROM t LEFT JOIN s ON t.a + 1 = s.a": 2,
}


SCHEMA = TableSchema((pa.field("a", pa.int32()), pa.field("b", pa.int32())), (), WEIGHT)


@pytest.fixture(scope="module")
def planner(spark: SparkSession) -> Planner:
    made = Planner(spark)
    for i, name in enumerate(("t", "s"), 1):
        made.define(PlannedRelation(i, name, False), [Column("a", "int"), Column("b", "int")], name)
    return made


@pytest.mark.parametrize("query", CASES)
def test_shuffles(planner: Planner, query: str) -> None:
    frame, _ = EpochPlan(planner.bridge, 2, None, {1: SCHEMA, 2: SCHEMA}).build(planner.plan(query))
    plan = str(frame._jdf.queryExecution().executedPlan().toString())
    assert plan.count("Exchange ") == CASES[query], plan
