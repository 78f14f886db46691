"""Pins every JVM internal that the bridge uses: a new Spark version is to fail here and not in a user's view."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, StructType

from headrace.plan.border_types import arrow_of
from headrace.plan.catalyst.bridge import PLANNING_CONF, Bridge
from headrace.plan.catalyst.expressions import Attribute, Expr
from headrace.plan.catalyst.kinds import AggregateCall, AggregateFunction
from headrace.plan.catalyst.nodes import Node, Subquery
from headrace.plan.catalyst.typed_nodes import CHILDREN


@pytest.fixture(scope="module")
def bridge(spark: SparkSession) -> Bridge:
    made = Bridge(spark)
    for name, ddl in {"t": "a int, b double, d decimal(10,2), s string", "u": "a int, x double"}.items():
        made.relation(StructType.fromDDL(ddl)).createOrReplaceTempView(name)
    return made


def node(b: Bridge, query: str, kind: str) -> Any:
    """The topmost node of a kind in the optimized plan of a query."""
    todo = [b.optimized(b.spark.sql(query))]
    while todo:
        found = todo.pop(0)
        if found.kind == kind:
            return found
        todo += found.children
    raise AssertionError(f"no {kind} in {query}")


def expression(b: Bridge, text: str) -> Any:
    """A resolved, optimized expression over t."""
    return node(b, f"SELECT {text} AS e FROM t", "Project").named[0]


def call(b: Bridge, text: str) -> Any:
    """An aggregate call over t."""
    results = node(b, f"SELECT s, {text} AS e FROM t GROUP BY s", "Aggregate").results
    return next(e for r in results for e in r.find(frozenset({"AggregateExpression"})))


def texts(b: Bridge, items: Any) -> list[str]:
    return [i.text.split("#")[0] for i in items]


def run(b: Bridge, plan: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(r) for r in b.frame(plan).collect()), key=repr)


def values(b: Bridge, query: str) -> Any:
    return b.analyzed(b.spark.sql(query))


def test_session_settings_are_known(bridge: Bridge) -> None:
    for key, value in PLANNING_CONF.items():
        assert bridge.spark.conf.get(key) == value


def test_excluded_rules_exist(bridge: Bridge) -> None:
    """A rule that was renamed would silently be applied again."""
    from headrace.plan.catalyst.bridge import _EXCLUDED_RULES

    for name in _EXCLUDED_RULES.split(","):
        bridge._jvm.java.lang.Class.forName(name + "$")


def test_seq_and_items(bridge: Bridge) -> None:
    reader = bridge._reader
    assert reader.items(reader.seq([1, "two", None])) == [1, "two", None]
    assert reader.items(reader.seq([])) == []
    assert reader.none.isEmpty() and reader.some("x").get() == "x"


def test_relation_and_its_id(bridge: Bridge) -> None:
    one, two = (bridge.relation(StructType.fromDDL("a int")) for _ in range(2))
    first, second = (bridge.analyzed(f).leaf_id for f in (one, two))
    assert first is not None and first != second
    both = bridge.optimized(one.alias("x").join(one.alias("y"), F.col("x.a") == F.col("y.a")))
    leaves = [leaf for c in both.children for leaf in _leaves(bridge, c)]
    assert [leaf.leaf_id for leaf in leaves] == [first, first]
    assert both.leaf_id is None
    assert one.collect() == []


def _leaves(b: Bridge, plan: Any) -> list[Any]:
    below = plan.children
    return [leaf for c in below for leaf in _leaves(b, c)] or [plan]


def test_optimized_decorrelates_and_keeps_relations(bridge: Bridge) -> None:
    query = "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a)"
    assert node(bridge, query, "Join").join_type == "LeftSemi"
    assert node(bridge, "SELECT count(*) FROM t", "LogicalRDD") is not None
    assert bridge.spark.conf.get("spark.sql.optimizer.excludedRules", "") == ""


def test_optimized_leaves_scalar_subqueries_apart(bridge: Bridge) -> None:
    """Merged, they would be a common table expression, for which there is no rule."""
    query = "SELECT s, (SELECT max(a) FROM u) AS hi, (SELECT min(a) FROM u) AS lo FROM t"
    found = node(bridge, query, "Project")
    assert bridge.optimized(bridge.spark.sql(query)).kind == "Project"
    assert len([s for e in found.expressions for s in e.find(frozenset({"ScalarSubquery"}))]) == 2


def test_optimized_has_no_window_group_limit(bridge: Bridge) -> None:
    query = "SELECT * FROM (SELECT a, row_number() OVER (PARTITION BY s ORDER BY a) AS r FROM t) WHERE r = 1"
    with pytest.raises(AssertionError):
        node(bridge, query, "WindowGroupLimit")
    assert node(bridge, query, "Window") is not None


def test_analyzed_and_frame(bridge: Bridge) -> None:
    plan = bridge.analyzed(bridge.spark.sql("SELECT 1 AS x UNION ALL SELECT 2"))
    assert run(bridge, plan) == [(1,), (2,)]


def test_kind_children_output_expressions(bridge: Bridge) -> None:
    found = node(bridge, "SELECT a + 1 AS e FROM t WHERE b > 0", "Project")
    assert found.kind == "Project"
    assert [c.kind for c in found.children] == ["Filter"]
    assert texts(bridge, found.output) == ["e"]
    assert [e.kind for e in found.expressions] == ["Alias"]


def test_children_are_asked_for_by_what_they_are_called(bridge: Bridge) -> None:
    """Of every kind that is not asked for a Seq of them the methods return just what that Seq has, in its order."""
    e = "s IS NULL OR NOT (s IS NOT NULL AND a + 1 < a - 2 OR a * 2 <= 3 AND a = 4 OR a > 5 AND a >= 6)"
    queries = [
        f"SELECT {e} AS e, CAST(a AS string), shiftright(a, 1) & 3 FROM t WHERE rand() > 0.5 ORDER BY s LIMIT 3",
        "SELECT s, sum(a) + 1, avg(b), min(b), max(d) FROM (SELECT * FROM t) AS x GROUP BY s",
        "SELECT t.a FROM t LEFT JOIN u ON t.a = u.a AND t.b < u.x UNION ALL SELECT 1 UNION ALL VALUES (1), (2)",
    ]
    found: set[str] = set()

    def look(part: Any) -> None:
        asked = part.reader.items(part.in_java.children())
        if part.kind in CHILDREN:
            assert [a.in_java.equals(b) for a, b in zip(part.children, asked, strict=True)] == [True] * len(asked)
            found.add(part.kind)
        for child in part.children:
            look(child)

    for query in queries:
        frame = bridge.spark.sql(query)
        written = bridge._reader.part(frame._jdf.queryExecution().logical(), Node)
        for root in (bridge.analyzed(frame), bridge.optimized(frame), written):
            for each in root.walk():
                look(each)
                for top in bridge._reader.parts(each.in_java.expressions(), Expr):
                    look(top)
    child, made = expression(bridge, "a + 1").in_java, bridge.spark._jvm.org.apache.spark.sql.catalyst.expressions
    for kind in ("UnscaledValue", "KnownNullable", "KnownNotNull"):  # which Spark itself puts in now and then
        look(bridge._reader.part(getattr(made, kind)(child), Expr))
    assert found == set(CHILDREN)


def test_a_part_is_asked_once_and_does_not_change(bridge: Bridge) -> None:
    e = expression(bridge, "a + 1")
    assert all(a is b for a, b in zip(e.children, e.children, strict=True)) and len(e.children) > 0
    top = node(bridge, "SELECT a, s FROM t WHERE a > 1", "Filter")
    assert top.output[0] is top.output[0] and top.expressions[0] is top.condition
    with pytest.raises(AttributeError, match="does not change"):
        top.condition = e


@pytest.mark.parametrize(
    "query",
    [
        "SELECT a + 1 AS e, s FROM t WHERE b > 0 ORDER BY a",
        "SELECT s, sum(a) FILTER (WHERE b > 0), count(DISTINCT a) FROM t GROUP BY s",
        "SELECT a, sum(b) OVER (PARTITION BY s ORDER BY a) AS w FROM t",
        "SELECT t.a FROM t LEFT JOIN u ON t.a = u.a AND t.b < u.x CROSS JOIN u AS v",
        "SELECT a, x FROM t LATERAL VIEW explode(sequence(1, a)) e AS x WHERE a > (SELECT max(a) FROM u)",
    ],
)
def test_what_is_put_together_here_is_what_spark_would_say(bridge: Bridge, query: str) -> None:
    """The expressions of nodes, and the children of calls, are known from their parts without asking for them."""
    frame = bridge.spark.sql(query)
    for root in (bridge.analyzed(frame), bridge.optimized(frame)):
        for each in root.walk():
            asked = each.reader.items(each.in_java.expressions())
            assert [str(e.toString()) for e in asked] == [e.text for e in each.expressions]
            for call in (c for e in each.expressions for c in e.every(AggregateCall)):
                assert [str(c.toString()) for c in call.reader.items(call.in_java.children())] == [
                    c.text for c in call.children
                ]
            for e in each.expressions:
                assert e.references == {int(a.exprId().id()) for a in e.reader.items(e.in_java.references().toSeq())}


def test_with_children(bridge: Bridge) -> None:
    found = node(bridge, "SELECT a FROM t WHERE b > 0", "Filter")
    limited = found.child
    assert found.with_children([limited]).equals(found)
    plus = expression(bridge, "a + 1").child
    left, right = plus.children
    assert texts(bridge, plus.with_children([right, left]).children) == texts(bridge, [right, left])


def test_project_filter_aggregate_union_run(bridge: Bridge) -> None:
    rows = values(bridge, "SELECT * FROM VALUES (1, 'x'), (2, 'x'), (3, 'y') AS v(a, s)")
    a, s = rows.output
    filtered = bridge.analyzed(bridge.frame(rows).where(bridge.column(a) > 1))
    kept = bridge.filter(filtered.condition, rows)
    assert run(bridge, kept) == [(2, "x"), (3, "y")]
    assert run(bridge, bridge.project([bridge.alias(s, "z")], kept)) == [("x",), ("y",)]
    assert run(bridge, bridge.aggregate([s], [s], rows)) == [("x",), ("y",)]
    assert run(bridge, bridge.union([kept, kept])) == [(2, "x"), (2, "x"), (3, "y"), (3, "y")]


def _changed(b: Bridge, old: Any, child: Any) -> Any:
    """Puts the child's attributes where the old child's were."""
    pairs = {o.id: n for o, n in zip(old.child.output, child.output)}
    return lambda e: e.rewritten(lambda x: pairs.get(x.id) if isinstance(x, Attribute) else None)


def test_window(bridge: Bridge) -> None:
    old = node(bridge, "SELECT a, s, row_number() OVER (PARTITION BY s ORDER BY a DESC) AS r FROM t", "Window")
    names = texts(bridge, old.child.output)
    rows = values(bridge, f"SELECT {', '.join(names)} FROM VALUES (1, 'x'), (2, 'x'), (3, 'y') AS v(a, s)")
    child = dict(zip(names, rows.output))
    made, found = bridge.window(old, _changed(bridge, old, rows), [child["s"]], rows)
    (r,) = found.values()
    assert list(found) == [e.id for e in old.functions]
    got = bridge.frame(made).select(bridge.column(child["a"]), bridge.column(r)).collect()
    assert sorted(map(tuple, got)) == [(1, 2), (2, 1), (3, 1)]
    assert texts(bridge, old.partition) == ["s"]


def test_expand(bridge: Bridge) -> None:
    old = node(bridge, "SELECT s, count(*) FROM t GROUP BY ROLLUP (s)", "Expand")
    rows = values(bridge, "SELECT * FROM VALUES ('x', 7L), ('y', 8L) AS v(s, w)")
    s, w = rows.output
    ids = {o.id for o in old.child.output}

    def only_s(e: Any) -> Any:
        return s if isinstance(e, Attribute) and e.id in ids else None

    made, found = bridge.expand(old, lambda e: e.rewritten(only_s), w, rows)
    assert set(found) == {a.id for a in old.output}
    assert len(run(bridge, made)) == 4
    assert {r[-1] for r in run(bridge, made)} == {7, 8}


def test_extended_generate(bridge: Bridge) -> None:
    old = node(bridge, "SELECT a, x FROM t LATERAL VIEW explode(sequence(1, a)) e AS x", "Generate")
    rows = values(bridge, "SELECT * FROM VALUES (2), (3) AS v(a)")
    made, found = bridge.extended(old, _changed(bridge, old, rows), rows)
    assert set(found) == {a.id for a in old.added}
    (x,) = found.values()
    assert sorted(r[0] for r in bridge.frame(made).select(bridge.column(x)).collect()) == [1, 1, 2, 2, 3]


@pytest.mark.parametrize("kind", ["BatchEvalPython", "ArrowEvalPython"])
def test_extended_python(bridge: Bridge, kind: str) -> None:
    from pyspark.sql.functions import pandas_udf, udf

    plain = kind == "BatchEvalPython"
    made = udf(lambda x: x + 1, "int", useArrow=False) if plain else pandas_udf(lambda x: x + 1, "int")
    bridge.spark.udf.register("one_more", made)
    old = node(bridge, "SELECT one_more(a) AS y FROM t", kind)
    rows = values(bridge, "SELECT * FROM VALUES (2), (3) AS v(a)")
    plan, found = bridge.extended(old, _changed(bridge, old, rows), rows)
    assert set(found) == {a.id for a in old.added}
    (y,) = found.values()
    assert sorted(r[0] for r in bridge.frame(plan).select(bridge.column(y)).collect()) == [3, 4]


def _udtf(bridge: Bridge) -> None:
    from pyspark.sql.functions import udtf

    class Twice:
        def eval(self, n: int) -> Any:
            yield (n,)
            yield (n + 1,)

    bridge.spark.udtf.register("twice", udtf(Twice, returnType="x: int").asDeterministic())


def test_extended_python_table_function(bridge: Bridge) -> None:
    _udtf(bridge)
    old = node(bridge, "SELECT a, x FROM t, LATERAL twice(a)", "ArrowEvalPythonUDTF")
    assert not old.call.takes_table and old.call.declared_deterministic
    rows = values(bridge, "SELECT * FROM VALUES (2), (5) AS v(a)")
    plan, found = bridge.extended(old, _changed(bridge, old, rows), rows)
    (x,) = found.values()
    assert sorted(r[0] for r in bridge.frame(plan).select(bridge.column(x)).collect()) == [2, 3, 5, 6]


def test_python_functions_are_read_and_renewed(bridge: Bridge) -> None:
    from pyspark import cloudpickle

    rows = bridge.frame(values(bridge, "SELECT * FROM VALUES (2), (5) AS v(a)"))
    made = rows.groupBy("a").applyInPandas(lambda g: g, "a int")
    old = bridge.analyzed(made)
    function = old.call
    loaded, _ = cloudpickle.loads(bridge.python_command(function))
    assert loaded(3) == 3
    bridge.renew_function(function)
    keys, output, child = old.keys, old.output, old.child
    again = bridge.flat_map_groups(old.kind, keys, function, output, child)
    assert sorted(run(bridge, again)) == [(2,), (5,)]
    mapped = bridge.analyzed(rows.mapInArrow(lambda batches: batches, "a int"))
    assert not mapped.is_barrier
    child = mapped.child
    again = bridge.map_in(mapped.kind, mapped.call, mapped.output, child)
    assert sorted(run(bridge, again)) == [(2,), (5,)]


def test_equi_join(bridge: Bridge) -> None:
    join = node(bridge, "SELECT t.a FROM t JOIN u ON t.a = u.a AND t.b < u.x", "Join")
    left, right, residual = bridge.equi_join(join)
    assert (texts(bridge, left), texts(bridge, right)) == (["a"], ["a"])
    assert residual.kind == "LessThan"
    left, right, residual = bridge.equi_join(node(bridge, "SELECT t.a FROM t JOIN u ON t.a <=> u.a", "Join"))
    assert len(left) == len(right) == 2 and residual is None
    left, right, residual = bridge.equi_join(node(bridge, "SELECT t.a FROM t JOIN u ON t.a > u.a", "Join"))
    assert (left, right) == ((), ()) and residual.kind == "GreaterThan"
    assert bridge.equi_join(node(bridge, "SELECT t.a FROM t CROSS JOIN u", "Join")) == ((), (), None)


@pytest.mark.parametrize(
    ("query", "join_type"),
    [
        ("SELECT t.a FROM t CROSS JOIN u", ("Cross", "Inner")),
        ("SELECT t.a FROM t LEFT JOIN u ON t.a = u.a", ("LeftOuter",)),
        ("SELECT u.a FROM t RIGHT JOIN u ON t.a = u.a", ("RightOuter",)),
        ("SELECT t.a, u.a FROM t FULL JOIN u ON t.a = u.a", ("FullOuter",)),
        ("SELECT t.a FROM t LEFT ANTI JOIN u ON t.a = u.a", ("LeftAnti",)),
        ("SELECT a FROM t WHERE b > 0 OR a IN (SELECT a FROM u)", ("ExistenceJoin",)),
    ],
)
def test_join_types_are_spelled_as_expected(bridge: Bridge, query: str, join_type: tuple[str, ...]) -> None:
    found = node(bridge, query, "Join")
    assert found.join_type in join_type
    if join_type == ("ExistenceJoin",):
        assert found.exists.kind == "AttributeReference"


def test_left_join_single(bridge: Bridge) -> None:
    left, right = values(bridge, "SELECT 1 AS a"), values(bridge, "SELECT 2 AS b WHERE false")
    assert run(bridge, bridge.left_join_single(left, right)) == [(1, None)]


def test_serialize_round_trip(bridge: Bridge) -> None:
    plan = bridge.local_leaf(values(bridge, "SELECT 1 AS x, 'a' AS y").output)
    again = bridge.deserialize(bridge.serialize(plan))
    assert again.kind == "LocalRelation"
    assert texts(bridge, again.output) == ["x", "y"]


def test_alias_and_attribute_id(bridge: Bridge) -> None:
    a = values(bridge, "SELECT 1 AS x").output[0]
    one, two = bridge.alias(a, "n"), bridge.alias(a, "n")
    assert one.id != two.id
    assert bridge.alias(a, "n", one).id == one.id
    assert isinstance(one.attribute, Attribute) and not isinstance(one, Attribute)
    assert one.name == "n"


@pytest.mark.parametrize("order", ["a", "a DESC", "a NULLS LAST", "a DESC NULLS FIRST", "a DESC NULLS LAST"])
def test_ordering(bridge: Bridge, order: str) -> None:
    sort = values(bridge, f"SELECT * FROM VALUES (2), (NULL), (1) AS v(a) ORDER BY {order}")
    want = bridge.frame(sort).collect()
    child = bridge.frame(sort.child)
    assert child.orderBy(*[bridge.ordering(o) for o in sort.orders]).collect() == want


def test_literals_and_casts(bridge: Bridge) -> None:
    rows = values(bridge, "SELECT 1 AS x")
    made = {
        "text": bridge.literal("x"),
        "yes": bridge.literal(True),
        "day": bridge.text_as("2024-02-29", expression(bridge, "DATE'2024-01-01'")),
        "long": bridge.literal_long(5),
        "decimal": bridge.literal_decimal(4),
        "double": bridge.cast(bridge.literal(3), expression(bridge, "b")),
    }
    types = {name: e.type for name, e in made.items()}
    assert types == {
        "text": "string", "yes": "boolean", "day": "date", "long": "bigint", "decimal": "decimal(38,4)",
        "double": "double",
    }  # fmt: skip
    (row,) = run(bridge, bridge.project([bridge.alias(e, n) for n, e in made.items()], rows))
    assert (row[0], row[1], str(row[2]), row[3], row[4], row[5]) == ("x", True, "2024-02-29", 5, None, 3.0)


def test_and_normalized_rewrite_find_references(bridge: Bridge) -> None:
    a = expression(bridge, "a + 1")
    (plus,) = a.children
    attribute = next(plus.find(frozenset({"AttributeReference"})))
    assert plus.references == {attribute.id}
    other = plus.rewritten(lambda e: bridge.literal(41) if isinstance(e, Attribute) else None)
    assert other.references == set()
    assert run(bridge, bridge.project([bridge.alias(other, "x")], values(bridge, "SELECT 1 AS x"))) == [(42,)]
    assert plus.rewritten(lambda e: None) is plus
    b = next(expression(bridge, "b * 2").find(frozenset({"AttributeReference"})))
    assert not bridge.normalized(b).equals(b)
    assert bridge.normalized(attribute).equals(attribute)
    yes = bridge.and_(bridge.literal(True), bridge.literal(False))
    assert run(bridge, bridge.project([bridge.alias(yes, "x")], values(bridge, "SELECT 1 AS x"))) == [(False,)]


def test_types(bridge: Bridge) -> None:
    assert bridge.spark_type_of("struct<a:int,b:array<double>>").simpleString() == "struct<a:int,b:array<double>>"
    e = expression(bridge, "CAST(b AS double) * 2")
    assert e.spark_type == DoubleType()
    assert e.type == "double"
    assert arrow_of(e) == pa.float64()


@pytest.mark.parametrize("text", ["sum(a)", "avg(a)", "sum(d)", "avg(b)"])
def test_eval_mode(bridge: Bridge, text: str) -> None:
    assert call(bridge, text).function.eval_mode == "ANSI"
    assert call(bridge, f"try_{text}").function.eval_mode == "TRY"


@pytest.mark.parametrize(
    ("text", "kind"), [("sum(a)", "Sum"), ("avg(d)", "Average"), ("min(s)", "Min"), ("count(a)", "Count")]
)
def test_aggregate_functions(bridge: Bridge, text: str, kind: str) -> None:
    found = call(bridge, text)
    function = found.function
    assert function.kind == kind
    assert found.is_distinct is False and found.filter is None
    if kind in ("Sum", "Average"):
        assert isinstance(function, AggregateFunction) and function.buffers and function.result.text
    assert found.does_as(found)
    assert found.canonical.text


def test_aggregate_expression_and_filtered(bridge: Bridge) -> None:
    plain, cut = call(bridge, "sum(a)"), call(bridge, "sum(a) FILTER (WHERE b > 0)")
    argument = cut.function.child
    assert bridge.filtered(plain, argument).equals(argument)
    assert bridge.filtered(cut, argument).kind == "If"
    rows = values(bridge, "SELECT * FROM VALUES (1, 1), (2, 1), (2, -1) AS v(a, b)")
    a = rows.output[0]
    function = plain.function.with_children([a])
    distinct = bridge.call(plain, function, distinct=True, condition=None)
    assert run(bridge, bridge.aggregate([], [bridge.alias(distinct, "x")], rows)) == [(3,)]


def test_multiplied(bridge: Bridge) -> None:
    rows = values(bridge, "SELECT * FROM VALUES (1, 'x') AS v(a, s)")
    a, s = rows.output
    found = bridge.multiplied([[a, bridge.null_of(s)], [bridge.null_of(a), s]], ["b", "z"], rows)
    assert run(bridge, found) == [(1, None), (None, "x")]
    assert bridge.frame(found).columns == ["b", "z"]


def test_all_not_null(bridge: Bridge) -> None:
    rows = values(bridge, "SELECT * FROM VALUES (1, 1), (NULL, 2) AS v(a, b)")
    both = bridge.all_not_null(rows.output)
    assert run(bridge, bridge.project([bridge.alias(both, "x")], rows)) == [(None,), (True,)]


def test_unscaled(bridge: Bridge) -> None:
    rows = values(bridge, "SELECT CAST(1.25 AS decimal(10,2)) AS d")
    unscaled = bridge.alias(bridge.unscaled(rows.output[0]), "x")
    assert run(bridge, bridge.project([unscaled], rows)) == [(125,)]


@pytest.mark.parametrize("query", ["SELECT a FROM t LIMIT 3", "SELECT a FROM t OFFSET 2"])
def test_cuts(bridge: Bridge, query: str) -> None:
    if "LIMIT" in query:
        assert node(bridge, query, "GlobalLimit").count == 3
    else:
        assert node(bridge, query, "Offset").count == 2


def test_scalar_subqueries(bridge: Bridge) -> None:
    found = node(bridge, "SELECT a FROM t WHERE a > (SELECT max(a) FROM u)", "Filter")
    (subquery,) = found.condition.every(Subquery)
    assert subquery.kind == "ScalarSubquery" and subquery.id > 0
    assert subquery.plan.has_one_row_at_most and not found.has_one_row_at_most
    assert [s.kind for s in found.subqueries] == ["Aggregate"]
    other = values(bridge, "SELECT 7 AS seven")
    assert subquery.over(other).plan is other


def test_determinism(bridge: Bridge) -> None:
    plan = values(bridge, "SELECT rand() AS r, now() AS n, 1 AS o")
    flags = [e.is_deterministic for e in plan.named]
    assert flags == [False, True, True]
    kinds = frozenset({"CurrentTimestamp", "Now", "CurrentDate", "LocalTimestamp", "CurrentTime"})
    for text in ("now()", "current_timestamp()", "current_date()", "localtimestamp()", "current_time()"):
        (e,) = values(bridge, f"SELECT {text} AS x").named
        assert list(e.find(kinds)), text


def test_physical_plans_can_be_cloned_and_run_again(bridge: Bridge) -> None:
    frame = bridge.spark.range(0, 10, 1, 2).groupBy((F.col("id") % 3).alias("m")).count()
    physical = bridge.executed(frame, 2)
    assert physical.shuffles
    assert [bridge.count_rows([physical.cloned().rows()]) for _ in range(3)] == [3, 3, 3]


def test_plans_that_tell_the_time(bridge: Bridge) -> None:
    def tells(query: str) -> bool:
        return bridge.tells_time(bridge.analyzed(bridge.spark.sql(query)), literals="'" in query)

    for text in ("now()", "current_date()", "CAST('today' AS date)", "CAST('no' || 'w' AS timestamp)",
                 "unix_timestamp()", "localtimestamp()"):  # fmt: skip
        assert tells(f"SELECT {text} AS x FROM t"), text
    for text in (
        "a + 1",
        "CAST('2024-01-01' AS date)",
        "CAST(s AS timestamp)",
        "upper('now')",
        "TIMESTAMP'2024-01-01'",
    ):
        assert not tells(f"SELECT {text} AS x FROM t"), text


def test_plans_as_spark_runs_them(bridge: Bridge) -> None:
    nothing = bridge.optimized_by_default(bridge.spark.sql("SELECT a FROM t WHERE false"))
    assert nothing.is_empty and not values(bridge, "SELECT a FROM t").is_empty
    modes = [expression(bridge, f"{cast}(b AS int)").child.eval_mode for cast in ("CAST", "try_cast")]
    assert modes == ["ANSI", "TRY"]
