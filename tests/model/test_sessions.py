"""Session windows over tables that change in any way: equal to Spark's batch answer of what SESSION stands for."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

import pytest
from engine import Engine, Row, Table
from pyspark.sql import SparkSession

from headrace.common.columns import Column
from headrace.dataflow.runner import EpochRunner
from headrace.plan import tree
from headrace.plan.planner import Planner
from headrace.sql.parser import parse_query

ORIGIN = datetime(2024, 1, 1)
COLUMNS = (Column("k", "double"), Column("s", "string"), Column("t", "timestamp"), Column("x", "int"))
KEYS = [None, 0.0, -0.0, float("nan"), 1.5]
QUERIES = {
    "counted": "SELECT k, window_start, window_end, count(*) AS n, min(x) AS m "
    "FROM SESSION(r, t, INTERVAL '5 seconds', k) GROUP BY 1, 2, 3",
    "rows": "SELECT * FROM SESSION(r, t, INTERVAL '3 seconds', s, k)",
    "of all": "SELECT s, window_end - window_start AS length FROM SESSION(r, t, INTERVAL '1 second') WHERE x > 0",
    "of a query": "WITH q AS (SELECT s AS name, max(t) AS last FROM r GROUP BY s, x), e AS (SELECT window_start AS b, "
    "count(*) AS n FROM SESSION(q, last, INTERVAL '4 seconds') GROUP BY 1) "
    "SELECT l.b, r.n FROM e l LEFT JOIN e r ON l.n = r.n",
}  # fmt: skip


def run(spark: SparkSession, name: str, seed: int, epochs: int, changes: int, parallelisms: list[int]) -> None:
    """Random inserts, deletes and updates, epoch by epoch; the view is planned again in between, as at a start."""
    choice = random.Random(seed)
    table = Table(1, "r", COLUMNS)
    query = parse_query(QUERIES[name]).to_spark(lambda t: f"`{t.name}`")
    weak = choice.choice([None, 2])
    with Engine(spark, [table], query, weak_hash=weak, codegen=False) as engine:
        kinds = [op.kind for op in tree.walk(engine.plan.root)]
        assert "session" in kinds and "Window" not in "\n".join(engine.plan.explain())
        for i in range(epochs):
            for _ in range(choice.randrange(1, 3)):
                engine.change("r", _delta(choice, table, changes))
            engine.advance(parallelisms[i % len(parallelisms)])
            engine.check()
            if i == 1:
                _plan_again(engine, spark, weak)


def _delta(choice: random.Random, table: Table, changes: int) -> list[tuple[Row, int]]:
    gone = [(row, -1) for row in table.rows if choice.random() < 0.25]
    moved = [((*row[:2], _time(choice), row[3]), 1) for row, _ in gone if choice.random() < 0.5]
    new: list[tuple[Any, int]] = [
        ((choice.choice(KEYS), choice.choice("ab"), _time(choice), choice.randrange(3)), 1) for _ in range(changes)
    ]
    return [*gone, *moved, *new, *choice.sample(new, 1)]


def _time(choice: random.Random) -> datetime | None:
    return None if choice.random() < 0.1 else ORIGIN + timedelta(milliseconds=500 * choice.randrange(100))


def _plan_again(engine: Engine, spark: SparkSession, weak_hash: int | None) -> None:
    planner = Planner(spark)
    for table in engine.tables.values():
        engine.define(planner, table)
    assert isinstance(engine.query, str)
    plan = planner.plan(engine.query)
    assert plan.fingerprint == engine.plan.fingerprint
    engine.planner, engine.plan = planner, plan
    schemas = {t.id: t.schema for t in engine.tables.values()}
    engine.runner = EpochRunner(planner.bridge, plan, schemas, weak_hash=weak_hash)


def test_sessions_follow_any_change(spark: SparkSession) -> None:
    """Sessions by a key with NaN, both zeros and nulls, whatever the parallelism, over a restart."""
    run(spark, "counted", 1, 3, 25, [1, 2, 1])


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", QUERIES)
def test_random_histories_of_sessions(spark: SparkSession, name: str, seed: int) -> None:
    run(spark, name, 10 + seed, 8, 5 + 20 * seed, [5, 1, 2])
