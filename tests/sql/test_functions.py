"""CREATE FUNCTION as statements, and calls of created functions in queries."""

from __future__ import annotations

import pytest

from headrace.errors import HeadraceError
from headrace.sql.binder.world import Routine
from headrace.sql.parser import parse_one, parse_query
from headrace.sql.statements import CreateFunction, Drop, TableName

ROUTINES = {
    "series": Routine("series", "f1", "table", ("int",), None),
    "mean": Routine("mean", "f2", "aggregate", ("bigint",), "double"),
    "gcd": Routine("gcd", "f3", "scalar", ("int", "int"), "int"),
    "free": Routine("free", "f4", "scalar", None, "string"),
}


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("SELECT gcd(a, 2) FROM t", "SELECT CAST(f3(CAST(`a` AS int), CAST(2 AS int)) AS int) AS `gcd` FROM t AS `t`"),
        ("SELECT GCD(4, 2) / 2 AS q",
         "SELECT CAST((CAST(f3(CAST(4 AS int), CAST(2 AS int)) AS int) DIV 2) AS int) AS `q`"),
        ("SELECT gcd(mean(x), 2) AS q FROM t",
         "SELECT CAST(f3(CAST(RINT(CAST(f2(sort_array(collect_list(named_struct('a0', CAST(`x` AS bigint))))) AS double"
         ")) AS int), CAST(2 AS int)) AS int) AS `q` FROM t AS `t`"),
        ("SELECT free(1, 'x') AS r", "SELECT CAST(f4(1, 'x') AS string) AS `r`"),
        ("SELECT * FROM series(3)", "SELECT * FROM f1(CAST(3 AS int)) AS `series`"),
        ("SELECT * FROM t, series(t.n) s", "SELECT * FROM t AS `t`, LATERAL f1(CAST(`t`.`n` AS int)) AS `s`"),
        ("SELECT * FROM t LEFT JOIN LATERAL series(t.n) AS s(x) ON true",
         "SELECT * FROM t AS `t` LEFT JOIN LATERAL f1(CAST(`t`.`n` AS int)) AS `s`(`x`) ON TRUE"),
        ("SELECT mean(DISTINCT x) AS m FROM t",
         "SELECT CAST(f2(sort_array(collect_list(DISTINCT named_struct('a0', CAST(`x` AS bigint))))) AS double) AS `m` "
         "FROM t AS `t`"),
        ("SELECT mean(x) FILTER (WHERE gcd(x, 1) > 1) OVER (PARTITION BY gcd(y, 2)) AS m FROM t",
         "SELECT CAST(f2(sort_array(collect_list(named_struct('a0', CAST(`x` AS bigint))) "
         "FILTER(WHERE CAST(f3(CAST(`x` AS int), CAST(1 AS int)) AS int) > 1) "
         "OVER (PARTITION BY CAST(f3(CAST(`y` AS int), CAST(2 AS int)) AS int)))) AS double) AS `m` FROM t AS `t`"),
    ],
)  # fmt: skip
def test_calls_become_sparks(query: str, text: str) -> None:
    assert parse_query(query).to_spark(str, None, ROUTINES) == text


@pytest.mark.parametrize(
    ("query", "state", "message"),
    [
        ("SELECT gcd(1)", "42883", "with 1 arguments"),
        ("SELECT series(1)", "42809", "table function"),
        ("SELECT * FROM gcd(1, 2)", "42809", "no table function"),
        ("SELECT gcd(1, 2) OVER () FROM t", "42809", "no aggregate"),
        ("SELECT mean(x ORDER BY y) FROM t", "0A000", "ORDER BY"),
    ],
)
def test_wrong_calls(query: str, state: str, message: str) -> None:
    with pytest.raises(HeadraceError, match=message) as raised:
        parse_query(query).to_spark(str, None, ROUTINES)
    assert raised.value.sqlstate == state and raised.value.hint


def test_functions_called_are_known() -> None:
    assert parse_query('SELECT gcd(Free(1), 2), sum(x), "Big"(1) FROM series(2)').functions() == {
        "gcd", "free", "series", "Big",
    }  # fmt: skip


def test_create_function() -> None:
    found = parse_one(
        "CREATE OR REPLACE FUNCTION s.f(int, double precision, x numeric(10,2)) RETURNS TABLE (a int, b text) "
        "LANGUAGE python IMMUTABLE STRICT AS $$ yield 1, 'x' $$ WITH (vectorized = 'pandas')"
    )
    assert isinstance(found, CreateFunction)
    assert found.name == TableName("s", "f") and found.or_replace and found.strict
    assert found.arguments == ((None, "int"), (None, "double"), ("x", "decimal(10,2)"))
    assert found.table == (("a", "int"), ("b", "string")) and found.returns is None
    assert found.body == " yield 1, 'x' " and found.options == {"vectorized": "pandas"}
    aggregate = parse_one("CREATE AGGREGATE IF NOT EXISTS m(v int) RETURNS float8 LANGUAGE python AS '' VOLATILE")
    assert isinstance(aggregate, CreateFunction)
    assert (aggregate.aggregate, aggregate.returns, aggregate.volatility) == (True, "double", "volatile")
    dropped = parse_one("DROP FUNCTION IF EXISTS f(int, numeric(3, 1)), g CASCADE")
    assert dropped == Drop("function", (TableName(None, "f"), TableName(None, "g")), True, True)


@pytest.mark.parametrize(
    ("text", "state", "message"),
    [
        ("f(x int) RETURNS int AS ''", "42601", "no LANGUAGE"),
        ("f(x int) LANGUAGE python AS ''", "42601", "no RETURNS"),
        ("f(x int) RETURNS int LANGUAGE python", "42601", "no AS"),
        ("f(x nope) RETURNS int LANGUAGE python AS ''", "42704", "nope"),
        ("f(OUT x int) RETURNS int LANGUAGE python AS ''", "0A000", "OUT"),
        ("f(x int) RETURNS int LANGUAGE python AS f USING LINK 'http://h'", "0A000", "outside"),
        ("f(x int) RETURNS int LANGUAGE python AS '' PERHAPS", "42601", "PERHAPS"),
    ],
)
def test_statements_that_are_wrong(text: str, state: str, message: str) -> None:
    with pytest.raises(HeadraceError, match=message) as raised:
        parse_one(f"CREATE FUNCTION {text}")
    assert raised.value.sqlstate == state
