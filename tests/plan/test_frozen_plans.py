"""What views keep is found again by every later version: fingerprints and state layouts of plans, as they once were.

A plan that differs here quarantines the views that databases have of it. `frozen_plans.json` is written anew only where
that is meant, by `PYTHONPATH=src:tests python tests/plan/test_frozen_plans.py`, and the changelog says so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.common.columns import Column
from headrace.plan.planner import PlannedRelation, Planner
from headrace.sql.parser import parse_query
from headrace.state.schema import TableSchema

FROZEN = Path(__file__).with_name("frozen_plans.json")
COLUMNS = [
    Column("a", "int"), Column("b", "string"), Column("x", "double"), Column("y", "bigint"),
    Column("d", "decimal(10,2)"), Column("z", "decimal(30,2)"), Column("s", "tinyint"), Column("l", "array<int>"),
    Column("at", "timestamp_ntz"),
]  # fmt: skip
EVERY_SUM = "count(*) AS n, sum(s) AS s, sum(a) AS a, sum(y) AS y, sum(d) AS d, sum(z) AS z, sum(x) AS x, avg(y) AS m"
QUERIES = [
    "SELECT a, x + 1 AS y FROM t WHERE b = 'x'",
    "SELECT a FROM t UNION ALL SELECT a FROM u",
    "SELECT a, i FROM t LATERAL VIEW explode(l) e AS i",
    "SELECT t.a, u.y FROM t JOIN u ON t.a = u.a",
    "SELECT t.a, u.y FROM t JOIN u ON t.a = u.a AND t.x < u.x",
    "SELECT t.a, u.y FROM t LEFT JOIN u ON t.a = u.a AND t.b = u.b",
    "SELECT t.a, u.y FROM t FULL JOIN u ON t.a = u.a",
    "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a)",
    "SELECT a FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.a = t.a)",
    f"SELECT b, {EVERY_SUM} FROM t GROUP BY b",
    f"SELECT {EVERY_SUM} FROM t",
    "SELECT b, min(a) AS i, max(y) AS j, min(b) AS k, max(d) AS m, min(x) AS o, max(at) AS q FROM t GROUP BY b",
    "SELECT b, min(a) AS i, max(y) AS j, max(b) AS k FROM log GROUP BY b",
    "SELECT b, bit_and(a) AS i, bit_or(y) AS j, bit_xor(s) AS k, bool_or(a > 1) AS m FROM t GROUP BY b",
    "SELECT b, count(DISTINCT a) AS i, sum(DISTINCT y) AS j, sum(d) AS k FROM t GROUP BY b",
    "SELECT b, sum(a) FILTER (WHERE y > 1) AS i, count(x) FILTER (WHERE a > 0) AS j FROM t GROUP BY b",
    "SELECT DISTINCT a, b FROM t",
    "SELECT a, b, sum(y) AS y FROM t GROUP BY ROLLUP (a, b)",
    "SELECT b, stddev(x) AS i, collect_list(a) AS j FROM t GROUP BY b",
    "SELECT a, rank() OVER (PARTITION BY b ORDER BY y) AS r FROM t",
    "SELECT * FROM (SELECT a, b, row_number() OVER (PARTITION BY b ORDER BY y DESC) AS r FROM t) WHERE r <= 3",
    "SELECT * FROM (SELECT a, b, row_number() OVER (PARTITION BY b ORDER BY y) AS r FROM log) WHERE r = 1",
    "SELECT a FROM t ORDER BY y LIMIT 5",
    "SELECT a FROM t WHERE now() - INTERVAL '5' SECOND >= timestamp_seconds(a)",
    "SELECT window(at, '1 minute').start AS w, count(*) AS n FROM log GROUP BY 1",
    "SELECT l.a, r.y FROM log l JOIN late r ON l.a = r.a AND l.at >= r.at - INTERVAL '5 seconds' AND l.at <= r.at",
    "SELECT l.y, k.x FROM log l JOIN keyed_now k ON l.a = k.a",
]  # fmt: skip
SESSIONS = (
    "SELECT a, window_start, window_end, count(*) AS n FROM SESSION(log, at, INTERVAL '10 s', a) GROUP BY 1, 2, 3"
)
CLOSING = [
    parse_query(SESSIONS).to_spark(lambda table: f"`{table.name}`"),
    "SELECT window(at, '1 minute').start AS w, b, sum(y) AS y, max(a) AS a FROM log GROUP BY 1, 2",
    "SELECT at, a FROM log",
]


def planner_of(spark: SparkSession) -> Planner:
    """Two relations of any changes, two that only grow and have watermarks, and one with a primary key."""
    made = Planner(spark)
    for i, (name, grows) in enumerate((("t", False), ("u", False), ("log", True), ("late", True)), start=1):
        made.define(PlannedRelation(i, name, grows, "at" if grows else None), COLUMNS, name)
    made.define(PlannedRelation(5, "keyed", False, primary_key=("a",)), COLUMNS, "keyed")
    return made


def _layout(schema: TableSchema) -> str:
    """The columns of a state table: key, what is kept beside it, and what changes, with how it is combined."""
    key, value = (", ".join(f"{f.name} {f.type}" for f in fields) for fields in (schema.key, schema.value))
    return f"{key} | {value} | {', '.join(f'{f.name} {f.type} {how}' for f, how in schema.diffs)}"


def kept(planner: Planner) -> dict[str, Any]:
    """For each query what its views keep."""
    found = {}
    for query in [*QUERIES, *CLOSING]:
        plan = planner.plan(query, on_window_close=query in CLOSING)
        tables = {name: _layout(schema) for name, schema in sorted(plan.state_tables().items())}
        found[query] = {"fingerprint": plan.fingerprint, "tables": tables}
    return found


@pytest.fixture(scope="module")
def now(spark: SparkSession) -> dict[str, Any]:
    return kept(planner_of(spark))


@pytest.mark.parametrize("query", [*QUERIES, *CLOSING])
def test_views_find_what_they_have_kept(now: dict[str, Any], query: str) -> None:
    assert now[query] == json.loads(FROZEN.read_text())[query]


if __name__ == "__main__":
    from headrace.dataflow.spark import local_session

    FROZEN.write_text(json.dumps(kept(planner_of(local_session())), indent=1) + "\n")
