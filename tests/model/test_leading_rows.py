"""Ranks with a bound over input that only grows: only the first rows are kept, and the answer is the batch answer."""

from __future__ import annotations

import random
from decimal import Decimal

import pytest
from engine import Engine, Row, Table
from pyspark.sql import SparkSession

from headrace.common.columns import Column
from headrace.dataflow.build import EpochPlan
from headrace.dataflow.operators.leading import FirstOfInputStage
from headrace.dataflow.runner import EpochRunner
from headrace.plan.planner import PlannedRelation, Planner
from headrace.sql.parser import parse_query
from headrace.sql.statements import TableName

T = (Column("a", "int"), Column("b", "string"), Column("n", "decimal(30,2)"), Column("v", "double"))
S = (Column("a", "int"), Column("c", "string"))

# Complete orders for row_number(), so that there is one right answer; ties for the others. Strings share their first
# eight bytes, and decimals and doubles their leading bits: codes say less than values.
QUERIES = {
    "row_number": "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY a ORDER BY b DESC NULLS FIRST, n, v) AS r "
    "FROM t) WHERE r <= {n}",
    "rank": "SELECT a, b, r FROM (SELECT *, rank() OVER (PARTITION BY b ORDER BY n NULLS LAST) AS r FROM t) "
    "WHERE r <= {n}",
    "dense_rank": "SELECT a, v, r FROM (SELECT *, dense_rank() OVER (PARTITION BY a ORDER BY v DESC) AS r FROM t) "
    "WHERE r <= {n}",
    "several": "SELECT * FROM (SELECT a, b, rank() OVER w AS r, dense_rank() OVER w AS d, count(*) OVER w AS c, "
    "max(v) OVER w AS m FROM t WINDOW w AS (PARTITION BY a ORDER BY n DESC NULLS LAST)) WHERE r <= {n} AND d <= 2",
    "computed": "SELECT a, x, r FROM (SELECT *, rank() OVER (PARTITION BY a + 1 ORDER BY x) AS r FROM "
    "(SELECT a, upper(b) AS x FROM t WHERE n IS NOT NULL)) WHERE r <= {n}",
    "joined": "SELECT * FROM (SELECT t.a, t.b, s.c, rank() OVER (PARTITION BY t.a ORDER BY s.c, t.b DESC) AS r "
    "FROM t JOIN s ON t.a = s.a) WHERE r <= {n}",
    "of_ranks": "SELECT b, count(*) AS c FROM (SELECT b, rank() OVER (PARTITION BY a ORDER BY n) AS r FROM t) "
    "WHERE r <= {n} GROUP BY b",
    "top": "SELECT * FROM t ORDER BY n DESC NULLS LAST, b, a, v LIMIT {n}",
    "union": "SELECT * FROM (SELECT a, b, dense_rank() OVER (PARTITION BY a ORDER BY b) AS r FROM "
    "(SELECT a, b FROM t UNION ALL SELECT a, c FROM s)) WHERE r <= {n}",
}  # fmt: skip
DEFAULT = (("row_number", 2, None, 2), ("rank", 1, 1, 5), ("several", 4, 2, 1))


def _t(r: random.Random) -> Row:
    return (
        r.choice([None, 0, 1, 2, 3]),
        r.choice([None, "", "abcdefgh", "abcdefghi", "abcdefghj", "é"]),
        r.choice(
            [None, *(Decimal(x) for x in ("0.00", "12345678901234567890.25", "12345678901234567890.50", "-1.00"))]
        ),
        r.choice([None, 0.0, -0.0, float("nan"), 1.5, -1.5]),
    )


@pytest.mark.parametrize(
    "below",
    ["t", "(SELECT a AS k, b, n AS m FROM t)", "(SELECT a AS k, b, b, n AS m FROM t)"],
)
def test_the_input_passes_on_its_first_rows_alone(spark: SparkSession, below: str) -> None:
    """Whatever leaves its rows as they are stands between, also one column twice, as the binder's projections do."""
    key, order = ("a", "n") if below == "t" else ("k", "m")
    planner = Planner(spark)
    planner.define(PlannedRelation(1, "t", True), T, "t")
    inner = f"SELECT {key}, {order}, row_number() OVER (PARTITION BY {key} ORDER BY {order}) AS r FROM {below} x"
    plan = planner.plan(f"SELECT {key}, CAST(r AS bigint) AS r FROM ({inner}) WHERE r <= 1")
    epoch = EpochPlan(planner.bridge, 1, None, {1: None})
    epoch.build(plan)
    assert [type(stage) for stages in epoch.following.values() for stage in stages] == [FirstOfInputStage]


def test_the_binder_s_projections_hide_nothing(spark: SparkSession) -> None:
    planner = Planner(spark)
    planner.define(PlannedRelation(1, "t", True), T, "t")
    query = parse_query(
        "SELECT a, b FROM (SELECT *, row_number() OVER (PARTITION BY a ORDER BY n DESC, b) AS r FROM t) s WHERE r <= 1"
    )
    schema = {TableName(None, "t"): {c.name: c.type for c in T}}
    epoch = EpochPlan(planner.bridge, 1, None, {1: None})
    epoch.build(planner.plan(query.to_spark(lambda table: f"`{table.name}`", schema)))
    assert [type(stage) for stages in epoch.following.values() for stage in stages] == [FirstOfInputStage]


def _again(spark: SparkSession, engine: Engine, weak_hash: int | None) -> None:
    """What a restart does: the query is planned again, over the state that there is."""
    planner = Planner(spark)
    for table in engine.tables.values():
        engine.define(planner, table)
    plan = planner.plan(engine.query)  # type: ignore[arg-type]
    assert plan.fingerprint == engine.plan.fingerprint
    schemas = {t.id: t.schema for t in engine.tables.values()}
    engine.planner, engine.plan = planner, plan
    engine.runner = EpochRunner(planner.bridge, plan, schemas, weak_hash=weak_hash)


def _run(
    spark: SparkSession, query: str, seed: int, weak_hash: int | None, degrees: tuple[int, ...], epochs: int
) -> None:
    tables = [Table(1, "t", T, append_only=True), Table(2, "s", S, append_only=True)]
    r = random.Random(seed)
    with Engine(spark, tables, query, weak_hash, codegen=False) as engine:
        assert any(" keeps the first " in line for line in engine.plan.explain())
        for i in range(epochs):
            engine.insert("t", *(_t(r) for _ in range(r.choice([1, 3, 30]))))
            if " s" in query:
                engine.insert("s", *((r.choice([None, 0, 1, 2]), r.choice([None, "x", "y"])) for _ in range(3)))
            engine.advance(degrees[i % len(degrees)])
            engine.check()
            if i == epochs // 2:
                _again(spark, engine, weak_hash)


@pytest.mark.parametrize(("name", "need", "weak_hash", "parallelism"), DEFAULT)
def test_ranks(spark: SparkSession, name: str, need: int, weak_hash: int | None, parallelism: int) -> None:
    """I1, I2: the view is the batch answer at every epoch, whatever the parallelism; also after a restart."""
    _run(spark, QUERIES[name].format(n=need), need, weak_hash, (parallelism,), 3)


@pytest.mark.soak
@pytest.mark.parametrize("weak_hash", [None, 1, 3])
@pytest.mark.parametrize("need", range(1, 6))
@pytest.mark.parametrize("name", sorted(QUERIES))
def test_many_ranks(spark: SparkSession, name: str, need: int, weak_hash: int | None) -> None:
    """I1, I2: the same for all queries, bounds and parallelisms."""
    _run(spark, QUERIES[name].format(n=need), need, weak_hash, (1, 2, 5), 7)
