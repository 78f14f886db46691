"""Incremental plans: which operators, which state, and what is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headrace.common.columns import Column
from headrace.errors import (
    NotSupported,
    StatementError,
    SyntaxFault,
    UndefinedColumn,
    UndefinedFunction,
    UndefinedTable,
)
from headrace.plan import tree
from headrace.plan.aggregates import Aggregate
from headrace.plan.inputs import Input
from headrace.plan.joins import Join
from headrace.plan.planner import PlannedRelation, Planner, ViewPlan
from headrace.plan.recompute import Recompute
from headrace.plan.rowwise import Rowwise
from headrace.plan.temporal import TemporalFilter
from headrace.state.accumulators.accumulator import Layout
from headrace.state.accumulators.doubles import DoubleSum

TABLES = {
    "t": (("a", "int"), ("b", "string"), ("x", "double"), ("d", "decimal(10,2)"), ("l", "array<int>")),
    "s": (("a", "int"), ("b", "string"), ("y", "bigint")),
    "log": (("a", "int"), ("at", "timestamp"), ("z", "decimal(30,2)")),
}


def planner_of(spark: SparkSession, names: list[str]) -> Planner:
    made = Planner(spark)
    for name in names:
        columns = [Column(n, k) for n, k in TABLES[name]]
        made.define(PlannedRelation(sorted(TABLES).index(name) + 1, name, name == "log"), columns, name)
    return made


@pytest.fixture(scope="module")
def planner(spark: SparkSession) -> Planner:
    return planner_of(spark, list(TABLES))


def kinds(plan: ViewPlan) -> list[str]:
    """Operators from the top, rowwise ones by their label; without projections, which Catalyst places as it likes."""
    found = [op.label if isinstance(op, Rowwise | Recompute) else op.kind for op in tree.walk(plan.root)]
    return [kind for kind in found if kind != "Project"]


def states(plan: ViewPlan) -> list[str]:
    return sorted(plan.state_tables())


def only(plan: ViewPlan, kind: type[tree.Operator]) -> tree.Operator:
    (found,) = [op for op in tree.walk(plan.root) if isinstance(op, kind)]
    return found


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT a, x + 1 AS y FROM t WHERE b = 'x'", ["Filter", "input"]),
        ("SELECT a FROM t UNION ALL SELECT a FROM s", ["union", "input", "input"]),
        ("SELECT a, i FROM t LATERAL VIEW explode(l) e AS i", ["Generate", "Filter", "input"]),
        ("SELECT t.a, s.y FROM t JOIN s ON t.a = s.a", ["join", "Filter", "input", "Filter", "input"]),
        ("SELECT t.a, s.y FROM t FULL JOIN s ON t.a = s.a", ["join", "input", "input"]),
        ("SELECT a, count(*) AS c, sum(d) AS s FROM t GROUP BY a", ["aggregate", "input"]),
        ("SELECT DISTINCT a, b FROM t", ["aggregate", "input"]),
        ("SELECT a, max(x) AS m FROM t GROUP BY a", ["aggregate", "input"]),
        ("SELECT b, bit_and(a) AS i, bit_or(a) AS j, bit_xor(a) AS k FROM t GROUP BY b", ["aggregate", "input"]),
        ("SELECT b, bit_or(DISTINCT a) AS j, bit_xor(DISTINCT a) AS k FROM t GROUP BY b", ["Aggregate", "input"]),
        ("SELECT a, max(l) AS m FROM t GROUP BY a", ["Aggregate", "input"]),
        ("SELECT a, max(b COLLATE UTF8_LCASE) AS m FROM t GROUP BY a", ["Aggregate", "input"]),
        (
            "SELECT a, min(b) AS m, count(DISTINCT b) AS c, avg(DISTINCT x) AS d FROM t GROUP BY a",
            ["aggregate", "input"],
        ),
        ("SELECT count(DISTINCT a) AS c, count(DISTINCT b) FILTER (WHERE a > 1) AS d FROM t", ["aggregate", "input"]),
        ("SELECT a, max(at) AS m FROM log GROUP BY a", ["aggregate", "input"]),
        ("SELECT a, stddev(x) AS m FROM t GROUP BY a", ["Aggregate", "input"]),
        ("SELECT a, count(DISTINCT b) AS c FROM t GROUP BY a", ["aggregate", "input"]),
        ("SELECT a, rank() OVER (PARTITION BY b ORDER BY a) AS r FROM t", ["Window", "input"]),
        ("SELECT a FROM t ORDER BY a LIMIT 3", ["TopN", "input"]),
        ("SELECT a, b FROM t ORDER BY a", ["input"]),
        ("SELECT 1 AS one", ["constant"]),
    ],
)
def test_operators(planner: Planner, query: str, expected: list[str]) -> None:
    assert kinds(planner.plan(query)) == expected


@pytest.mark.parametrize("order", [1, -1])
def test_what_is_refused_does_not_depend_on_the_order_of_columns(planner: Planner, order: int) -> None:
    """Whether one call needs recomputing is asked when all have been looked at."""
    calls = ["collect_list(a) AS l", "CAST(max(make_ym_interval(a, 0)) AS string) AS m"][::order]
    with pytest.raises(NotSupported, match=r"type interval .* cannot be kept"):
        planner.plan(f"SELECT x, {', '.join(calls)} FROM t GROUP BY x")


def test_join_state(planner: Planner) -> None:
    inner = planner.plan("SELECT t.a, t.x, s.y FROM t JOIN s ON t.a = s.a AND t.b = s.b")
    join = only(inner, Join)
    assert isinstance(join, Join)
    assert [n.rsplit("/", 1)[1] for n in states(inner)] == ["left", "right", "rows"]
    assert [str(f.type) for f in join.left.schema().key] == ["int32", "string"]
    assert len(join.left.values) == 2 and len(join.right.values) == 1
    assert join.distribution() is not None and join.distribution().count(",") == 1  # type: ignore[union-attr]
    left = planner.plan("SELECT t.a, s.y FROM t LEFT JOIN s ON t.a = s.a")
    assert [n.rsplit("/", 1)[1] for n in states(left)] == ["left", "left_matches", "right", "rows"]
    full = planner.plan("SELECT t.a, s.y FROM t FULL JOIN s ON t.a = s.a")
    assert {"left_matches", "right_matches"} <= {n.rsplit("/", 1)[1] for n in states(full)}
    cross = only(planner.plan("SELECT t.a, s.y FROM t CROSS JOIN s"), Join)
    assert cross.distribution() == "(one group)"


def test_an_expansion_of_which_no_column_is_needed(planner: Planner) -> None:
    query = """SELECT 1 AS one FROM t WHERE a IS NULL EXCEPT SELECT 1 AS one FROM (
        SELECT stddev(n) AS s, sort_array(collect_list(k)) AS l FROM (
            SELECT x AS j, d AS k, count(b) AS n FROM t GROUP BY ROLLUP (x, d)))"""
    expands = [op for op in tree.walk(planner.plan(query).root) if isinstance(op, Rowwise) and op.label == "Expand"]
    assert [op.output for op in expands] == [[]]


@pytest.mark.parametrize(
    ("query", "join_type"),
    [
        ("SELECT t.b FROM t RIGHT JOIN s ON t.a = s.a", "left"),
        ("SELECT a FROM t WHERE a IN (SELECT a FROM s)", "semi"),
        ("SELECT a FROM t WHERE NOT EXISTS (SELECT 1 FROM s WHERE s.a = t.a)", "anti"),
        ("SELECT a FROM t WHERE x > 1 OR a IN (SELECT a FROM s)", "existence"),
        ("SELECT a, (SELECT count(*) FROM s) AS c FROM t", "left"),
    ],
)
def test_join_types(planner: Planner, query: str, join_type: str) -> None:
    join = only(planner.plan(query), Join)
    assert isinstance(join, Join) and join.join_type == join_type


def test_aggregate_state(planner: Planner) -> None:
    plan = planner.plan("SELECT b, count(*) AS c, sum(d) AS s, avg(x) AS m FROM t GROUP BY b")
    schema = plan.state_tables()[f"{only(plan, Aggregate).id}/groups"]
    assert [str(f.type) for f in schema.key] == ["string"]
    assert schema.value == ()
    assert [how for _, how in schema.diffs].count("exact") == 1
    assert only(plan, Aggregate).distribution() == "b"
    total = only(planner.plan("SELECT sum(x) AS s FROM t"), Aggregate)
    assert isinstance(total, Aggregate) and total.is_global and total.distribution() == "(one group)"


def test_a_plan_is_told_from_one_that_keeps_sums_of_doubles_otherwise(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a view whose state is of before is quarantined, and readable, instead of being fed what it does not know."""
    queries = ["SELECT a, sum(x) AS s FROM t GROUP BY a", "SELECT avg(x) AS m FROM t", "SELECT sum(a) AS s FROM t"]
    now = [planner.plan(query).fingerprint for query in queries]
    layout = DoubleSum.layout

    def before(own: DoubleSum) -> Layout:
        return [*layout(own)[:-1], ("x", pa.float64(), "add"), ("x__lo", pa.float64(), "add")]

    monkeypatch.setattr(DoubleSum, "layout", before)
    assert [planner.plan(query).fingerprint == known for query, known in zip(queries, now)] == [False, False, True]


@pytest.mark.parametrize(
    ("query", "different"),
    [
        ("count(*) FILTER (WHERE b IN ('x,y','z')) AS p, count(*) FILTER (WHERE b IN ('x','y','z')) AS q", 2),
        ("max(concat(b, ', ', b)) AS p, max(concat(b, ', , ', b)) AS q", 2),
        ("max(b || ', ' || b || 'x') AS p, max(b || ', , ' || b || 'x') AS q", 2),
        ("count(DISTINCT concat(b, ', ', b)) AS p, count(DISTINCT concat(b, b)) AS q", 2),
        ("sum(coalesce(x, 0.0D)) AS p, sum(coalesce(x, -0.0D)) AS q", 2),
        ("max(if(a > 1, 1, 0)) AS p, max(if(a > 1, '1', '0')) AS q, max(if(a > 1, 1L, 0L)) AS r", 3),
        ("sum(x + 1) AS p, sum(1 + x) AS q, avg(x + 1) + sum(x + 1) AS r", 2),
    ],
)
def test_aggregates_that_read_alike_are_told_apart(planner: Planner, query: str, different: int) -> None:
    """Catalyst writes constants without quotes and types."""
    found = only(planner.plan(f"SELECT a, {query} FROM t GROUP BY a"), Aggregate)
    assert isinstance(found, Aggregate) and len(found.accumulators) == different


def test_distinct_values_that_read_alike_are_told_apart(planner: Planner) -> None:
    """And so are their filters."""
    found = only(
        planner.plan(
            "SELECT a, count(DISTINCT if(x > 1, 1, 0)) AS p, count(DISTINCT if(x > 1, '1', '0')) AS q, "
            "count(DISTINCT b) FILTER (WHERE b IN ('x,y','z')) AS r, "
            "count(DISTINCT b) FILTER (WHERE b IN ('x','y','z')) AS s FROM t GROUP BY a"
        ),
        Aggregate,
    )
    assert isinstance(found, Aggregate)
    assert [len(d.filters) for d in found.distincts] == [1, 1, 2]
    assert len({(a.distinct, a.filter) for a in found.accumulators}) == 4


def test_values_that_are_kept_in_order_or_counted_once(planner: Planner) -> None:
    plan = planner.plan(
        "SELECT a, min(b) AS lo, max(x) AS hi, count(DISTINCT b) AS c, sum(DISTINCT x) AS s, avg(DISTINCT x) AS m, "
        "count(*) AS n FROM t GROUP BY a"
    )
    names = [n.rsplit("/", 1)[1] for n in states(plan)]
    assert names == ["distinct0", "distinct1", "groups", "ordered0", "ordered1", "rows"]
    text = "\n".join(plan.explain())
    assert "count(distinct b)" in text and "knownnullable" not in text
    once = planner.plan(
        "SELECT a, count(DISTINCT b) AS c, count(DISTINCT b) FILTER (WHERE x > 1) AS d, sum(x) AS s, "
        "count(DISTINCT d) FILTER (WHERE x > 1) AS e, count(DISTINCT b) FILTER (WHERE x > 1) + 1 AS f FROM t GROUP BY a"
    )
    tables = once.state_tables()
    assert list(states(once)) == ["0/distinct0", "0/distinct1", "0/groups", "view/rows"]
    assert [f.name for f, _ in tables["0/distinct0"].diffs] == ["__w", "w1"], "one weight for each filter"
    assert [f.name for f, _ in tables["0/distinct1"].diffs] == ["__w"]
    assert once.root.distribution() == "distinct values, then a"
    assert only(plan, Aggregate).distribution() == "a", "where rows of a group come to one task anyway"
    log = planner.plan("SELECT max(at) AS hi, min(z) AS lo FROM log")
    assert [n.rsplit("/", 1)[1] for n in states(log)] == ["groups", "rows"], "of input that only grows nothing is kept"


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("SELECT a FROM t ORDER BY x DESC, a LIMIT 3 OFFSET 2", (5, False, 1)),
        ("SELECT a FROM t ORDER BY a, x LIMIT 3", (3, False, 2)),
        ("SELECT a FROM t LIMIT 3", (3, False, 0)),
        ("SELECT a FROM t ORDER BY a OFFSET 2", None),
        ("SELECT a FROM t ORDER BY b COLLATE UTF8_LCASE LIMIT 2", None),
        ("SELECT a FROM t ORDER BY a, b COLLATE UTF8_LCASE LIMIT 2", (2, False, 1)),
        ("SELECT * FROM (SELECT a, rank() OVER (PARTITION BY b ORDER BY x) AS r FROM t) WHERE r <= 3", (3, False, 1)),
        ("SELECT * FROM (SELECT a, rank() OVER (ORDER BY x) AS r FROM t) WHERE 3 > r AND a > 1", (2, False, 1)),
        ("SELECT * FROM (SELECT a, dense_rank() OVER (ORDER BY x) AS r FROM t) WHERE r = 2", (2, True, 1)),
        ("SELECT * FROM (SELECT a, row_number() OVER w AS r, sum(x) OVER w AS s, lag(a) OVER w AS p FROM t "
         "WINDOW w AS (ORDER BY a)) WHERE r < 5", (4, False, 1)),
        ("SELECT * FROM (SELECT a, row_number() OVER w AS r, lead(a) OVER w AS n FROM t WINDOW w AS (ORDER BY a)) "
         "WHERE r < 5", None),
        ("SELECT * FROM (SELECT a, rank() OVER w AS r, percent_rank() OVER w AS p FROM t WINDOW w AS (ORDER BY a)) "
         "WHERE r < 5", None),
        ("SELECT * FROM (SELECT a, rank() OVER (ORDER BY a) AS r FROM t) WHERE r > 2", None),
        ("SELECT * FROM (SELECT a, rank() OVER (ORDER BY a) AS r FROM t) WHERE r < 2 OR a = 1", None),
        ("SELECT * FROM (SELECT a, sum(a) OVER (ORDER BY a) AS r FROM t) WHERE r < 2", None),
    ],
)  # fmt: skip
def test_first_rows(planner: Planner, query: str, first: tuple[int, bool, int] | None) -> None:
    """Where a limit, or a bound of a rank, says that the rows behind do not matter."""
    plan = planner.plan(query)
    found = only(plan, Recompute)
    assert isinstance(found, Recompute)
    made = found.first and (found.first.need, found.first.by_value, len(found.first.orders))
    assert made == first
    assert (" from the first " in "\n".join(plan.explain())) == bool(first and first[2])


def test_first_rows_of_an_input_that_only_grows(planner: Planner) -> None:
    """All that is kept, which the fingerprint says: state without the other rows serves no input that can shrink."""
    query = "SELECT * FROM (SELECT a, rank() OVER (PARTITION BY b ORDER BY a DESC) AS r FROM {}) WHERE r <= 2"

    def shown(text: str) -> str:
        plan = planner.plan(text)
        assert planner.plan(text).fingerprint == plan.fingerprint
        return "\n".join(plan.explain())

    assert " keeps the first 2 rows by [a DESC" in shown(query.format("(SELECT a, z AS b FROM log)"))
    assert " keeps the first 2 rows by [a DESC" in shown(
        query.format("(SELECT l.a, r.z AS b FROM log l JOIN log r ON l.a = r.a)")
    )
    assert " from the first 2 rows by [a DESC" in shown(query.format("(SELECT a, count(*) AS b FROM log GROUP BY a)"))
    assert " keeps the first 3 rows" in shown("SELECT a FROM log LIMIT 3")


def test_columns_that_nobody_reads_are_not_taken_in(planner: Planner) -> None:
    inputs = [op for op in tree.walk(planner.plan("SELECT count(b) AS c FROM t WHERE a > 1").root) if not op.children]
    assert [sorted(i.columns) for i in inputs if isinstance(i, Input)] == [["a", "b"]]
    (none,) = [op for op in tree.walk(planner.plan("SELECT count(*) AS c FROM t").root) if not op.children]
    assert isinstance(none, Input) and none.columns == []


def test_upstreams_and_columns(planner: Planner) -> None:
    plan = planner.plan("SELECT t.a, s.y AS why, d FROM s JOIN t ON t.a = s.a JOIN s u ON u.a = t.a")
    assert sorted(plan.upstreams) == [2, 3]
    assert [(c.name, c.type) for c in plan.columns] == [("a", "int"), ("why", "bigint"), ("d", "decimal(10,2)")]
    assert [f.name for f in plan.schema.key] == ["a", "why", "d"]
    assert planner.columns_of("SELECT a AS q FROM t") == (Column("q", "int"),)


@pytest.mark.parametrize(
    ("query", "append_only"),
    [
        ("SELECT a FROM log WHERE a > 1", True),
        ("SELECT DISTINCT a FROM log", True),
        ("SELECT x.a FROM log x JOIN log y ON x.a = y.a", True),
        ("SELECT a FROM log UNION ALL SELECT 1", True),
        ("SELECT a FROM log UNION ALL SELECT a FROM t", False),
        ("SELECT a, count(*) AS c FROM log GROUP BY a", False),
        ("SELECT x.a FROM log x LEFT JOIN log y ON x.a = y.a", False),
        ("SELECT a FROM log ORDER BY a LIMIT 1", False),
        ("SELECT a FROM t", False),
    ],
)
def test_append_only(planner: Planner, query: str, append_only: bool) -> None:
    assert planner.plan(query).append_only is append_only


QUERIES = [
    "SELECT a FROM t",
    "SELECT b FROM t",
    "SELECT a FROM t WHERE a > 1",
    "SELECT a FROM t WHERE a > 2",
    "SELECT a, count(*) AS c FROM t GROUP BY a",
    "SELECT a, count(b) AS c FROM t GROUP BY a",
    "SELECT a, stddev(x) AS c FROM t GROUP BY a",
    "SELECT a, var_pop(x) AS c FROM t GROUP BY a",
    "SELECT t.a, s.y FROM t JOIN s ON t.a = s.a",
    "SELECT t.a, s.y FROM t JOIN s ON t.b = s.b",
    "SELECT t.a, s.y FROM t LEFT JOIN s ON t.a = s.a",
    "SELECT a FROM t ORDER BY a LIMIT 1",
    "SELECT a FROM t ORDER BY a LIMIT 2",
    "SELECT a FROM t ORDER BY b LIMIT 2",
    "SELECT a FROM t UNION ALL SELECT a FROM s",
    "SELECT a FROM t UNION ALL SELECT 1",
    "SELECT a FROM t UNION ALL SELECT 2",
]


def test_fingerprints_tell_queries_apart_and_nothing_else(spark: SparkSession, planner: Planner) -> None:
    other = planner_of(spark, list(reversed(TABLES)))
    first = [planner.plan(q).fingerprint for q in QUERIES]
    assert [other.plan(q).fingerprint for q in QUERIES] == first
    assert len(set(first)) == len(QUERIES), [q for q, f in zip(QUERIES, first) if first.count(f) > 1]


def test_explain(planner: Planner) -> None:
    lines = planner.plan("SELECT t.b, count(*) AS c FROM t LEFT JOIN s ON t.a = s.a GROUP BY t.b").explain()
    assert lines[0] == "materialize: [b string, c bigint]"
    text = "\n".join(lines)
    assert "#" not in text
    for part in (" join: left", " aggregate: by", " input: t [a, b]", " input: s [a]", "/left_matches:"):
        assert part in text
    assert text.count("distributed by:") == 2
    assert " append-only" in "\n".join(planner.plan("SELECT a FROM log").explain())


def test_dataframes(planner: Planner) -> None:
    t, s = planner.relation_frame(3), planner.relation_frame(2)
    frame = t.join(s, "a").groupBy("a").agg(F.sum("y").alias("y"))
    sql = planner.plan("SELECT a, sum(y) AS y FROM t JOIN s USING (a) GROUP BY a")
    assert planner.plan(frame).columns == sql.columns
    assert kinds(planner.plan(frame)) == kinds(sql)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT now() AS n FROM t",
        "SELECT a FROM t WHERE current_time() > TIME '12:00:00'",
        "SELECT a FROM t WHERE TIMESTAMP '2024-01-01' > now() OR a > 1",
        "SELECT a FROM t WHERE hour(now()) > a",
        "SELECT a FROM t WHERE timestamp_seconds(x) > now() - INTERVAL '1' MONTH",
        "SELECT a FROM t WHERE timestamp_seconds(x) > date_trunc('hour', now())",
        "SELECT t.a FROM t LEFT JOIN s ON t.a = s.a AND timestamp_seconds(t.x) > now()",
        "SELECT count(*) AS n FROM t GROUP BY to_date(now())",
        "SELECT a, (SELECT max(now()) FROM s) AS n FROM t",
        "SELECT rand() AS r FROM t",
        "SELECT uuid() AS u FROM t",
        "SELECT a, (SELECT r FROM (SELECT rand() AS r FROM s) LIMIT 1) AS r FROM t",
        "SELECT a, monotonically_increasing_id() AS i FROM t",
        "SELECT a, a FROM t",
        "SELECT a AS __k FROM t",
        "SELECT INTERVAL '1' YEAR * a AS i FROM t",
        "SELECT b COLLATE UTF8_LCASE AS b, count(*) AS n FROM t GROUP BY 1",
        "SELECT DISTINCT struct(a, b COLLATE UTF8_LCASE) AS s FROM t",
        "SELECT a, rank() OVER (PARTITION BY b COLLATE UTF8_LCASE ORDER BY a) AS n FROM t",
        "SELECT a FROM t WHERE b COLLATE UTF8_LCASE IN (SELECT b COLLATE UTF8_LCASE FROM t)",
        "SELECT a FROM t TABLESAMPLE (10 PERCENT)",
        "SELECT t.a FROM t WHERE a > (SELECT y FROM s) OR EXISTS (SELECT 1 FROM s TABLESAMPLE (5 PERCENT))",
    ],
)
def test_refused(planner: Planner, query: str) -> None:
    with pytest.raises(NotSupported) as caught:
        planner.plan(query)
    assert caught.value.sqlstate == "0A000"


def test_conditions_with_now(planner: Planner) -> None:
    """Whatever Spark makes of a condition: each is found again as a comparison with the time, and nothing else."""
    ago = "timestamp_seconds(x) > now() - INTERVAL '1' DAY"
    plan = planner.plan(f"SELECT a FROM t WHERE {ago} AND a > 1 AND DATE '2024-01-01' <= current_date()")
    (op,) = (op for op in tree.walk(plan.root) if isinstance(op, TemporalFilter))
    assert [(b.shift, b.late, b.leaves) for b in op.bounds] == [((-86_400_000_000,), 0, True), ((), 0, False)]
    assert plan.temporal and not plan.append_only
    joined = planner.plan(f"SELECT t.a FROM t JOIN s ON t.a = s.a WHERE {ago} AND NOT now() < timestamp_seconds(y)")
    assert kinds(joined).count("temporal filter") == 2 and kinds(joined)[0] == "join"
    entering = planner.plan("SELECT a FROM log WHERE now() - INTERVAL '5' SECOND >= timestamp_seconds(a)")
    assert entering.append_only, "nothing leaves"
    assert (
        entering.fingerprint
        == planner.plan("SELECT a FROM log WHERE now() - INTERVAL '5' SECOND >= timestamp_seconds(a)").fingerprint
    )
    assert "timestamp_seconds(a) <= now() - 5 s" in "\n".join(entering.explain())


def test_data_from_elsewhere_is_refused(planner: Planner) -> None:
    with pytest.raises(NotSupported, match="only relations of this database"):
        planner.plan(planner.bridge.frame(planner.bridge.analyzed(planner.bridge.relation(_schema()))))


def _schema() -> object:
    from pyspark.sql.types import StructType

    return StructType.fromDDL("a int")


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("SELECT nope FROM t", UndefinedColumn),
        ("SELECT nope(a) FROM t", UndefinedFunction),
        ("SELECT a FROM nope", UndefinedTable),
        ("SELEC a FROM t", SyntaxFault),
        ("SELECT a, sum(x) AS s FROM t", StatementError),
    ],
)
def test_errors_of_analysis(planner: Planner, query: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        planner.plan(query)


def test_a_forgotten_relation_is_gone(spark: SparkSession) -> None:
    made = planner_of(spark, ["t", "s"])
    made.forget(3)
    with pytest.raises(UndefinedTable):
        made.plan("SELECT a FROM t")
    made.plan("SELECT a FROM s")


def test_definitions_are_apart(spark: SparkSession) -> None:
    one, two = planner_of(spark, ["t"]), planner_of(spark, ["s"])

    one.plan("SELECT x FROM t")
    with pytest.raises(UndefinedTable):
        two.plan("SELECT x FROM t")
