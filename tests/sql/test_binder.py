"""Queries by the binder, run on Spark: what was wrong before there was one, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from binder_cases import VALUES
from rendering import SCHEMA, T, rename, rendered

from headrace.errors import HeadraceError, NotSupported
from headrace.sql.binder.bind import BindingContext, bind_query
from headrace.sql.binder.bound_tree import Values
from headrace.sql.binder.parse_tree import NotBound
from headrace.sql.binder.way import parameter_types
from headrace.sql.binder.world import NOTHING
from headrace.sql.parser import parse_query
from headrace.sql.postgres import parse_statement
from headrace.sql.statements import TableName


@pytest.fixture(scope="module")
def ask(sql_spark: Any) -> Any:
    sql_spark.sql(f"SELECT a, b, s, d, ts, tz, f, CAST(n AS DECIMAL(10,2)) AS n FROM {T}").createOrReplaceTempView(
        "hr_t"
    )
    sql_spark.sql("SELECT * FROM VALUES (1, 'x'), (1, 'y'), (2, 'z') AS u(a, x)").createOrReplaceTempView("hr_u")

    def run(query: str) -> list[tuple[str | None, ...]]:
        text = parse_query(query).bound(rename, SCHEMA)
        assert text is not None, "the binder does not know all of it"
        return rendered(sql_spark.sql(text))

    return run


@pytest.mark.parametrize(("query", "expected"), VALUES, ids=[q for q, _ in VALUES])
def test_value(ask: Any, query: str, expected: str | None) -> None:
    assert ask(query) == [(expected,)]


REFUSED = [
    ("SELECT nope FROM t", "42703", 'column "nope" does not exist', 8),
    ("SELECT t.nope FROM t", "42703", "column t.nope does not exist", 8),
    ("SELECT x.a FROM t", "42P01", 'missing FROM-clause entry for table "x"', 8),
    ("SELECT a FROM t, u", "42702", 'column reference "a" is ambiguous', 8),
    ("SELECT a FROM t AS q, u AS q", "42712", 'table name "q" specified more than once', None),
    ("SELECT 1 FROM t WHERE s = 1", "42883", "operator does not exist: text = integer", 25),
    ("SELECT a + s FROM t", "42883", "operator does not exist: integer + text", 10),
    ("SELECT a FROM t WHERE a", "42804", "argument of WHERE must be type boolean, not type integer", 23),
    ("SELECT a, count(*) FROM t", "42803", 'column "t.a" must appear in the GROUP BY clause', None),
    ("SELECT a FROM t WHERE count(*) > 1", "42803", "aggregate functions are not allowed in WHERE", 23),
    ("SELECT sum(count(*)) FROM t", "42803", "aggregate function calls cannot be nested", 12),
    ("SELECT CASE WHEN true THEN 1 ELSE s END FROM t", "42804", "CASE types text and integer cannot be matched", None),
    ("SELECT a = 'x' FROM t", "22P02", 'invalid input syntax for type integer: "x"', None),
    (
        "SELECT a FROM t UNION SELECT a, a FROM t",
        "42601",
        "each UNION query must have the same number of columns",
        None,
    ),
    ("SELECT DISTINCT a FROM t ORDER BY b", "42P10", "ORDER BY expressions must appear in select list", None),
    ("SELECT a FROM t ORDER BY 2", "42P10", "ORDER BY position 2 is not in select list", 26),
    ("SELECT a FROM t LIMIT -1", "2201W", "LIMIT must not be negative", None),
    ("SELECT 'é', nope FROM t", "42703", "nope", 13),
    ("SELECT lower(a) FROM t", "42883", "function lower(integer) does not exist", 8),
    ("SELECT java_method('java.lang.System', 'exit', '1')", "42883", "java_method(unknown, unknown, unknown)", 8),
    ("SELECT a FROM t WHERE reflect('java.util.UUID', 'randomUUID') = 'x'", "42883", "reflect", 23),
    ("SELECT \"reflect\"('a', 'b')", "42883", "reflect", 8),
    ("SELECT pg_catalog.java_method('a', 'b')", "42883", "java_method", 8),
    ("SELECT CAST(spark.java_method('a', 'b') AS text)", "0A000", "spark.java_method is not supported", None),
    ("SELECT CAST(spark.reflect('a', 'b') AS text)", "0A000", "spark.reflect is not supported", None),
    ("SELECT CAST(spark.\"java_method\"('a', 'b') AS text)", "0A000", "spark.java_method is not supported", None),
    ("SELECT spark.levenshtein('a', 'b')", "42P18", "the type of spark.levenshtein is not known", 8),
    ("SELECT * FROM reflect('a', 'b')", "0A000", "reflect in FROM", 15),
    ("SELECT (ARRAY[1])[java_method('a', 'b')]", "42883", "java_method", 19),
    ("SELECT t FROM t", "0A000", "a whole row as a value is not supported", 8),
    ("SELECT a FROM ONLY t", "0A000", "ONLY is not supported", 20),
    ("SELECT s ~ '\\1' FROM t", "0A000", "in a regular expression is not supported", None),
    ("SELECT regexp_replace(s, 'a|ab', 'x') FROM t", "0A000", "PostgreSQL takes the longest", None),
    ("SELECT to_char(ts, s) FROM t", "0A000", "a template that is no literal", 8),
    ("SELECT CASE WHEN true THEN generate_series(1, 2) END", "0A000", "set-returning functions are not allowed", 28),
    ("SELECT s -> 'a' FROM t", "0A000", "the operator text -> unknown is not supported", 10),
    ("SELECT version() FROM t", "0A000", "version", 8),
    ("SELECT (ARRAY[1, 2])[1:2][1]", "0A000", "a subscript of several dimensions is not supported", None),
    ("SELECT abs(VARIADIC ARRAY[1])", "0A000", "VARIADIC is not supported", 8),
    ("SELECT * FROM t TABLESAMPLE system (1)", "0A000", "TABLESAMPLE is not supported", None),
    ("SELECT B'101'", "0A000", "a bit string is not supported", 8),
    ("SELECT a FROM t FOR UPDATE SKIP LOCKED", "0A000", "SKIP LOCKED is not supported", None),
    ("SELECT a FROM t GROUP BY a FOR UPDATE", "0A000", "FOR UPDATE is not allowed with GROUP BY clause", None),
    ("SELECT DISTINCT a FROM t FOR SHARE", "0A000", "FOR SHARE is not allowed with DISTINCT clause", None),
    ("SELECT a FROM t UNION SELECT a FROM t FOR UPDATE", "0A000", "FOR UPDATE is not allowed with UNION", None),
    ("SELECT a FROM t FOR UPDATE OF t", "0A000", "FOR UPDATE OF is not supported", None),
]


@pytest.mark.parametrize(("query", "state", "message", "position"), REFUSED, ids=[q for q, *_ in REFUSED])
def test_refused(query: str, state: str, message: str, position: int | None) -> None:
    with pytest.raises(HeadraceError) as raised:
        parse_query(query).to_spark(rename, SCHEMA)
    assert raised.value.sqlstate == state
    assert message in str(raised.value)
    if position is not None:
        assert raised.value.position == position


def bind(query: str) -> Any:
    return bind_query(parse_statement(query), BindingContext(lambda name: SCHEMA.get(TableName(None, name.name))))


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1::struct<a int>",
        "SELECT '{}'::map(int, text)",
        "SELECT 1 FROM t LEFT SEMI JOIN (SELECT 1) q ON true",
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION SELECT n + 1 FROM r WHERE n < 3) SELECT * FROM r",
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT max(n) + 1 FROM r) SELECT * FROM r",
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT r.n FROM t LEFT JOIN r ON r.n = t.a) SELECT * FROM r",
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT a FROM t WHERE a IN (SELECT n FROM r)) SELECT * FROM r",
        "WITH RECURSIVE r AS (SELECT * FROM s), s AS (SELECT 1) SELECT * FROM r",
        "SELECT * FROM SESSION(t, ts)",
        "SELECT * FROM SESSION(t, s, INTERVAL '1 s')",
        "SELECT a FROM t TABLESAMPLE SYSTEM (10)",
        "SELECT f(a => 1) FROM t",
        "SELECT t FROM t",
        "SELECT a FROM ONLY t",
    ],
)
def test_what_is_not_known_is_not_bound(query: str) -> None:
    with pytest.raises(NotBound):
        bind(query)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT " + "+".join(["1"] * 100_000),
        "SELECT " + "+".join(["1"] * 900),
        "SELECT " + "CASE WHEN true THEN " * 900 + "1" + " END" * 900,
        " UNION ALL ".join(["SELECT 1"] * 3_000),
        "SELECT " + "(1, 2), " * 10 + "-" * 1 + " - ".join(["1"] * 5_000),
    ],
)
def test_what_is_too_deep_is_refused(query: str) -> None:
    with pytest.raises(NotSupported, match="nested too deeply"):
        bind(query)


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("VALUES " + ", ".join(["(1, 'a' || 'b')"] * 20_000), 20_000),
        ("SELECT " + " + ".join(["1"] * 200), None),
        (" UNION ALL ".join(["SELECT 1"] * 100), None),
        ("SELECT 1 WHERE " + " AND ".join(["1 = 1"] * 600), None),
    ],
)
def test_what_is_wide_is_bound(query: str, count: int | None) -> None:
    found = bind(query)
    assert count is None or (isinstance(found, Values) and len(found.rows) == count)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 120) SELECT count(*), sum(n) FROM r",
         [("120", "7260")]),
        ("WITH RECURSIVE r AS (SELECT a, 0 AS depth FROM t WHERE a = 1 UNION ALL SELECT t.a, depth + 1 FROM t "
         "JOIN r ON t.a = r.a + 1), o AS (SELECT * FROM r) SELECT o.a, r.depth FROM r JOIN o USING (a) ORDER BY 1",
         [("1", "0"), ("2", "1"), ("3", "2")]),
        ("WITH RECURSIVE t AS (SELECT 7 AS a) SELECT a FROM t", [("7",)]),
        ("SELECT generate_series(1, 2), generate_series(1, 3)", [("1", "1"), ("2", "2"), (None, "3")]),
        ("SELECT unnest(ARRAY[a, 7]) / 2, a FROM t WHERE a < 3 ORDER BY 2, 1",
         [("0", "1"), ("3", "1"), ("1", "2"), ("3", "2")]),
        ("SELECT * FROM unnest(ARRAY[7, 8]) WITH ORDINALITY ORDER BY 2", [("7", "1"), ("8", "2")]),
        ("SELECT g.v, g.n FROM generate_series(3, 4) WITH ORDINALITY AS g(v, n) ORDER BY 1", [("3", "1"), ("4", "2")]),
        ("SELECT * FROM unnest(ARRAY[1, 2], ARRAY['x']) AS q(a, b) ORDER BY 1", [("1", "x"), ("2", None)]),
        ("SELECT a, array_agg(b) OVER (ORDER BY a) FROM t ORDER BY a",
         [("1", "{10}"), ("2", "{10,20}"), ("3", "{10,20,NULL}")]),
        ("SELECT x, grouping(a, x) FROM u GROUP BY ROLLUP (a, x) HAVING a = 2 OR a IS NULL ORDER BY 2",
         [("z", "0"), (None, "1"), (None, "3")]),
        ("SELECT ARRAY[x, NULL] FROM u ORDER BY ARRAY[a, NULL] DESC, x DESC",
         [("{z,NULL}",), ("{y,NULL}",), ("{x,NULL}",)]),
        ("SELECT * EXCEPT (x) FROM u LEFT SEMI JOIN t ON u.a = t.a AND t.b > 10", [("2",)]),
        ("SELECT t.a FROM t LEFT ANTI JOIN u AS q ON q.a = t.a", [("3",)]),
        ("SELECT a FROM u ORDER BY a FETCH FIRST 1 ROW WITH TIES", [("1",), ("1",)]),
        ("SELECT DISTINCT ON (a) a, x FROM u ORDER BY a, x DESC", [("1", "y"), ("2", "z")]),
        ("SELECT DISTINCT ON (a) x FROM u ORDER BY a DESC, x LIMIT 1", [("z",)]),
        ("SELECT a, count(*) FROM u GROUP BY ROLLUP (a) ORDER BY 1", [("1", "2"), ("2", "1"), (None, "3")]),
        ("SELECT a, x, count(*) FROM u GROUP BY GROUPING SETS ((a), (a, x), ()) ORDER BY 1, 2, 3",
         [("1", "x", "1"), ("1", "y", "1"), ("1", None, "2"), ("2", "z", "1"), ("2", None, "1"), (None, None, "3")]),
        ("SELECT t.a, l.n FROM t LEFT JOIN LATERAL (SELECT count(*) AS n FROM u WHERE u.a = t.a) l ON true ORDER BY 1",
         [("1", "2"), ("2", "1"), ("3", "0")]),
        ("SELECT a, x FROM t FULL JOIN u USING (a) ORDER BY 1, 2", [("1", "x"), ("1", "y"), ("2", "z"), ("3", None)]),
        ("SELECT u.a, t.b FROM t RIGHT JOIN u ON u.a = t.a AND t.b > 10 ORDER BY 1, 2",
         [("1", None), ("1", None), ("2", "20")]),
        ("(SELECT a FROM t EXCEPT SELECT a FROM u) UNION ALL (SELECT a FROM u INTERSECT SELECT a FROM t) ORDER BY 1",
         [("1",), ("2",), ("3",)]),
        ("SELECT x, sum(a) OVER (PARTITION BY a ORDER BY x ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM u ORDER BY x",
         [("x", "1"), ("y", "2"), ("z", "2")]),
        ("SELECT array_agg(b ORDER BY a DESC), array_agg(DISTINCT a) FROM t", [("{NULL,20,10}", "{1,2,3}")]),
        ("SELECT count(*) FILTER (WHERE b IS NULL), bool_or(a > 2), max(s) FROM t", [("1", "t", "two")]),
        ("SELECT a FROM t WHERE a NOT IN (SELECT a FROM u) OR s = 'one' ORDER BY a", [("1",), ("3",)]),
        ("SELECT (SELECT max(x) FROM u WHERE u.a = t.a), EXISTS (SELECT FROM u WHERE u.a = t.a) FROM t ORDER BY a",
         [("y", "t"), ("z", "t"), (None, "f")]),
    ],
)  # fmt: skip
def test_query(ask: Any, query: str, expected: list[tuple[str | None, ...]]) -> None:
    assert ask(query) == expected


@pytest.mark.parametrize(
    ("query", "types"),
    [
        ("SELECT $1, a + $2, s || $3 FROM t WHERE b = $4 AND ts > $5 LIMIT $6",
         ["string", "int", "string", "bigint", "timestamp_ntz", "bigint"]),
        ("SELECT a FROM t WHERE a IN ($1, 2) AND s LIKE $2 AND coalesce(b, $3) > 5 AND $4::date = d AND f < $5",
         ["int", "string", "bigint", "date", "double"]),
        ("SELECT CASE WHEN $1 THEN $2 ELSE n END FROM t WHERE a BETWEEN $3 AND $3",
         ["boolean", "decimal(10,2)", "int"]),
        ("SELECT a / $1 FROM t", ["int"]),
        ("SELECT to_char(ts, $1) FROM t", [None]),
    ],
)  # fmt: skip
def test_parameters_have_the_types_of_their_places(query: str, types: list[str | None]) -> None:
    assert parameter_types(query, SCHEMA, NOTHING, [None] * len(types)) == types


def test_an_error_says_which_functions_there_are() -> None:
    with pytest.raises(HeadraceError) as raised:
        parse_query("SELECT lower(a) FROM t").to_spark(rename, SCHEMA)
    assert "There is lower(text)." in str(raised.value.hint)
    with pytest.raises(HeadraceError) as raised:
        parse_query("SELECT levenshtein(s, s) FROM t").to_spark(rename, SCHEMA)
    assert "spark.levenshtein(...)" in str(raised.value.hint)


def test_a_type_that_is_given_stays() -> None:
    assert parameter_types("SELECT a + $1 FROM t", SCHEMA, NOTHING, ["bigint"]) == ["bigint"]
