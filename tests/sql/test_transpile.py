"""Queries of the dialect, run on Spark: the answers are PostgreSQL's."""

from __future__ import annotations

from typing import Any

import pytest
from rendering import SCHEMA, T, rename, rendered

from headrace.common.zones import UTC
from headrace.sql.dml import delete_query, update_query
from headrace.sql.parser import parse_one, parse_query
from headrace.sql.statements import Delete, Insert, TableName, Update

SCHEMA[TableName("public", "t")] = SCHEMA[TableName(None, "t")]


@pytest.fixture(scope="module")
def ask(sql_spark: Any) -> Any:
    sql_spark.sql(f"SELECT a, b, s, d, ts, tz, f, CAST(n AS DECIMAL(10,2)) AS n FROM {T}").createOrReplaceTempView(
        "hr_t"
    )
    sql_spark.sql("SELECT * FROM VALUES (1, 'x'), (1, 'y'), (2, 'z') AS u(a, x)").createOrReplaceTempView("hr_u")

    def run(query: str) -> list[tuple[str | None, ...]]:
        frame = sql_spark.sql(parse_query(query).to_spark(rename, SCHEMA))
        return rendered(frame)

    return run


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("7 / 2", "3"),
        ("-7 / 2", "-3"),
        ("7 % -2", "1"),
        ("7.0 / 2", "3.5000000000000000"),
        ("2 ^ 10", "1024"),
        ("5 # 3", "6"),
        ("'7'::int / 2", "3"),
        ("2.5::float8::int", "2"),
        ("3.5::float8::int", "4"),
        ("2.5::int", "3"),
        ("-2.5::numeric::int", "-3"),
        ("1.50::numeric", "1.50"),
        ("'abcdef'::varchar(3)", "abc"),
        ("true::text", "true"),
        ("1.0::float8::text", "1"),
        ("'a' || 'b' || NULL", None),
        ("concat('a', NULL, 'b')", "ab"),
        ("'it''s' || E'\\n' || 'back\\slash'", "it's\nback\\slash"),
        ("'Hello' ILIKE 'h%'", "t"),
        ("'hello' ~ 'l+o$'", "t"),
        ("'Hello' ~* 'hELL'", "t"),
        ("'hello' !~ 'x'", "t"),
        ("regexp_replace('banana', 'a', 'o')", "bonana"),
        ("regexp_replace('banana', 'a', 'o', 'g')", "bonono"),
        ("regexp_replace('2024-01', '(\\d+)-(\\d+)', '\\2/\\1')", "01/2024"),
        ("regexp_replace('cost 5', '5', '$1', 'g')", "cost $1"),
        ("split_part('a,b,c', ',', 2)", "b"),
        ("substring('hello' from 2 for 3)", "ell"),
        ("position('l' in 'hello')", "3"),
        ("strpos('hello', 'z')", "0"),
        ("ltrim('xxa', 'x')", "a"),
        ("btrim('  a ')", "a"),
        ("nullif(1, 1)", None),
        ("NULL IS DISTINCT FROM 1", "t"),
        ("array[1, 2, 3]", "{1,2,3}"),
        ("(array[10, 20])[1]", "10"),
        ("(array[10, 20])[3]", None),
        ("array_length(array[1, 2], 1)", "2"),
        ("2 = ANY(array[1, 2])", "t"),
        ("3 <> ALL(array[1, 2])", "t"),
        ("date '2024-02-29' + interval '1 day'", "2024-03-01 00:00:00"),
        ("date '2024-03-01' - date '2024-02-28'", "2"),
        ("timestamp '2024-01-31 10:00' + interval '1 month'", "2024-02-29 10:00:00"),
        ("timestamp '2024-01-01' + interval '1 month 2 days 03:00'", "2024-02-03 03:00:00"),
        ("'90 minutes'::interval + timestamp '2024-01-01'", "2024-01-01 01:30:00"),
        ("date_trunc('hour', timestamp '2024-02-29 13:45:10')", "2024-02-29 13:00:00"),
        ("date_trunc('month', timestamptz '2024-02-29 13:45:10Z')", "2024-02-01 00:00:00+00"),
        ("extract(epoch from timestamp '1970-01-02 00:00:00.5')", "86400.500000"),
        ("extract(epoch from interval '1 day 00:00:01')", "86401.000000"),
        ("extract(dow from date '2024-03-03')", "0"),
        ("extract(isodow from date '2024-03-03')", "7"),
        ("extract(week from date '2024-01-01')", "1"),
        ("date_part('year', date '2024-03-03')", "2024"),
        ("extract(century from date '2001-01-01')", "21"),
        ("to_char(timestamp '2024-02-09 13:05:07', 'YYYY-MM-DD HH24:MI:SS')", "2024-02-09 13:05:07"),
        ("to_char(timestamp '2024-02-09 13:05:07', 'Mon FMDD, YYYY')", "Feb 9, 2024"),
        ("to_char(timestamp '2024-02-09 13:05:07', 'YYYY\"T\"HH12 AM')", "2024T01 PM"),
        ("to_date('09.02.2024', 'DD.MM.YYYY')", "2024-02-09"),
        ("timestamp '2024-07-01 12:00' at time zone 'Europe/Berlin'", "2024-07-01 10:00:00+00"),
        ("timestamptz '2024-07-01 12:00Z' at time zone 'Europe/Berlin'", "2024-07-01 14:00:00"),
        ("row(1, 'a b')", '(1,"a b")'),
        ("('{\"a\": {\"b\": 5}}'::jsonb -> 'a') ->> 'b'", "5"),
        ("pg_catalog.upper('x')", "X"),
        ("CASE WHEN 1 > 2 THEN 'a' ELSE 'b' END", "b"),
        ("'{1,NULL,3}'::int[]", "{1,NULL,3}"),
        ("'2024-1-2 3:04'::timestamp", "2024-01-02 03:04:00"),
        ("'on'::boolean", "t"),
        ("'\\xCAFE'::bytea", "\\xcafe"),
        ("trunc(-2.7::float8)", "-2"),
    ],
)
def test_expression(ask: Any, expression: str, expected: str | None) -> None:
    assert ask(f"SELECT {expression}") == [(expected,)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT b / 3, a / 2, f / 2, t.a FROM t WHERE a = 1", [("3", "0", "1.25", "1")]),
        ("SELECT q.h FROM (SELECT b / a AS h FROM t) q ORDER BY h", [("10",), ("10",), (None,)]),
        ("WITH c AS (SELECT a AS k FROM t) SELECT k / 2 FROM c ORDER BY k DESC LIMIT 1", [("1",)]),
        ("SELECT a FROM t ORDER BY b", [("1",), ("2",), ("3",)]),
        ("SELECT a FROM t ORDER BY b DESC", [("3",), ("2",), ("1",)]),
        ("SELECT a FROM t ORDER BY a LIMIT 1 OFFSET 1", [("2",)]),
        ("SELECT a FROM t ORDER BY a FETCH FIRST 2 ROWS ONLY", [("1",), ("2",)]),
        ("SELECT count(*) FILTER (WHERE a > 1), count(*) FROM t", [("2", "3")]),
        ("SELECT array_agg(b ORDER BY a) FROM t", [("{10,20,NULL}",)]),
        ("SELECT array_agg(s ORDER BY a DESC) FROM t", [("{NULL,two,one}",)]),
        ("SELECT array_agg(a) FROM t WHERE a > 10", [(None,)]),
        ("SELECT array_agg(a ORDER BY a) FILTER (WHERE a > 1) FROM t", [("{2,3}",)]),
        ("SELECT array_agg(DISTINCT a) FROM u", [("{1,2}",)]),
        ("SELECT a, string_agg(x, '-' ORDER BY x DESC) FROM u GROUP BY a ORDER BY a", [("1", "y-x"), ("2", "z")]),
        ("SELECT string_agg(x, ',') FROM u WHERE a > 5", [(None,)]),
        ("SELECT DISTINCT ON (a) a, x FROM u ORDER BY a DESC, x DESC", [("2", "z"), ("1", "y")]),
        ("SELECT DISTINCT ON (1) a AS k, x FROM u ORDER BY k, x LIMIT 1", [("1", "x")]),
        ("VALUES (1, 'a'), (2, 'b') ORDER BY 1 DESC", [("2", "b"), ("1", "a")]),
        ("SELECT column2 FROM (VALUES (1, 'a')) v", [("a",)]),
        ("SELECT * FROM generate_series(1, 3)", [("1",), ("2",), ("3",)]),
        ("SELECT g.x * 2 FROM generate_series(5, 1, -2) AS g(x)", [("10",), ("6",), ("2",)]),
        ("SELECT * FROM generate_series(3, 1)", []),
        ("SELECT i FROM t, generate_series(1, t.a) AS i WHERE a = 2 ORDER BY i", [("1",), ("2",)]),
        (
            "SELECT * FROM generate_series(timestamp '2024-01-01', timestamp '2024-01-02', interval '12 hours')",
            [("2024-01-01 00:00:00",), ("2024-01-01 12:00:00",), ("2024-01-02 00:00:00",)],
        ),
        ("SELECT * FROM unnest(array['p', 'q']) AS r(c)", [("p",), ("q",)]),
        (
            "SELECT a, window_start, window_end FROM tumble(t, ts, interval '1 hour') WHERE a = 1",
            [("1", "2024-02-29 13:00:00", "2024-02-29 14:00:00")],
        ),
        (
            "SELECT window_start FROM hop(t, ts, interval '30 minutes', interval '1 hour') WHERE a = 2 ORDER BY 1",
            [("2024-03-03 00:00:00",), ("2024-03-03 00:30:00",)],
        ),
        (
            "SELECT date_trunc('month', ts), tz::text FROM t WHERE a = 1",
            [("2024-02-01 00:00:00", "2024-02-29 13:45:10+00")],
        ),
        ("SELECT t.a FROM public.t WHERE public.t.a = 1", [("1",)]),
        ("SELECT T.A FROM T AS T WHERE EXISTS (SELECT 1 FROM u WHERE u.a = T.a) ORDER BY a", [("1",), ("2",)]),
        ("SELECT a FROM t WHERE a = ANY (SELECT a FROM u) ORDER BY a", [("1",), ("2",)]),
        ("SELECT a FROM t WHERE (a, 'x') IN (SELECT a, x FROM u)", [("1",)]),
        ("WITH t AS (SELECT 42 AS a) SELECT a FROM t", [("42",)]),
        (
            "SELECT sum(b) OVER (ORDER BY a), lag(a) OVER (ORDER BY a) FROM t ORDER BY a",
            [("10", None), ("30", "1"), ("30", "2")],
        ),
        ("SELECT l.x FROM t, LATERAL (SELECT x FROM u WHERE u.a = t.a) l ORDER BY x", [("x",), ("y",), ("z",)]),
        (
            "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT n FROM r ORDER BY n",
            [("1",), ("2",), ("3",)],
        ),
        ("SELECT count(*) FROM t GROUP BY a > 1 HAVING count(*) > 1", [("2",)]),
        ("TABLE u ORDER BY x LIMIT 1", [("1", "x")]),
    ],
)
def test_query(ask: Any, query: str, expected: list[tuple[str | None, ...]]) -> None:
    assert ask(query) == expected


def test_output_names(sql_spark: Any, ask: Any) -> None:
    query = parse_query(
        'SELECT count(*), a::text, 1 + 1, max(b) AS "Top", now(), CASE WHEN true THEN 1 END FROM t GROUP BY a'
    )
    frame = sql_spark.sql(query.to_spark(rename, SCHEMA))
    assert frame.columns == ["count", "a", "?column?", "Top", "now", "case"]


def test_update_and_delete(sql_spark: Any, ask: Any) -> None:
    update = parse_one("UPDATE t AS q SET a = q.a + 1, s = DEFAULT FROM u WHERE q.a = u.a AND u.x = 'z'")
    assert isinstance(update, Update)
    text = update_query(update, ["a", "s"], {"s": "'none'"}).to_spark(rename, SCHEMA)
    frame = sql_spark.sql(text)
    assert frame.columns == ["a", "s", "__new_a", "__new_s"]
    assert rendered(frame) == [("2", "two", "3", "none")]
    delete = parse_one("DELETE FROM t WHERE b IS NULL RETURNING a, upper(s)")
    assert isinstance(delete, Delete) and delete.returning is not None
    assert rendered(sql_spark.sql(delete_query(delete, ["a"]).to_spark(rename, SCHEMA))) == [("3",)]
    assert rendered(sql_spark.sql(delete.returning.to_spark(lambda _: "hr_t", SCHEMA, UTC) + " WHERE a = 2")) == [
        ("2", "TWO")
    ]


def test_insert_expressions(sql_spark: Any) -> None:
    insert = parse_one("INSERT INTO t VALUES (1 + 1, upper('x')), (DEFAULT, 'y')")
    assert isinstance(insert, Insert) and insert.rows is not None
    assert insert.literal_rows(["int", "string"], UTC) is None
    query = insert.rows.query(["int", "string"], ["7", None])
    assert rendered(sql_spark.sql(query.to_spark(rename))) == [("2", "X"), ("7", "y")]


def test_relations_as_of_the_processing_time() -> None:
    """A temporal join names the other relation as a leaf of its own; beside it that may be read as usual."""
    query = parse_query(
        "SELECT a.k FROM a JOIN b FOR SYSTEM_TIME AS OF PROCTIME() ON a.k = b.k "
        "LEFT JOIN b FOR SYSTEM_TIME AS OF proctime() AS c ON a.k = c.k JOIN b AS d ON d.k = a.k"
    )
    text = query.to_spark(lambda name: f"`r{name.name}`")
    assert [part.split("`")[1] for part in text.split("JOIN ")[1:]] == ["rb_now", "rb_now", "rb"]
    assert {name.name for name in query.looked_up()} == {"b"}
