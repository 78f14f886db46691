"""What the translation does not handle is refused before anything is made of it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from sqlglot import exp

from headrace.dataflow import spark as spark_settings
from headrace.errors import HeadraceError, NotSupported, UndefinedFunction
from headrace.plan.catalyst.bridge import PLANNING_CONF
from headrace.sql import builtin, law
from headrace.sql.dialect import Headrace
from headrace.sql.handled import HANDLED
from headrace.sql.parser import parse, parse_expression, parse_one, parse_query
from headrace.sql.statements import TableName

CLASSES = sorted(
    {c for c in vars(exp).values() if inspect.isclass(c) and issubclass(c, exp.Expression)},
    key=lambda c: c.__name__,
)


def spark(query: str) -> str:
    return parse_query(query).to_spark(lambda name: f"`r_{name.name}`")


def refusal(text: str) -> HeadraceError:
    with pytest.raises(HeadraceError) as raised:
        for statement in parse(text):
            query = getattr(statement, "query", None)
            if query is not None:
                query.to_spark(lambda name: f"`r_{name.name}`")
    return raised.value


def test_each_class_and_argument_of_the_parser_is_handled_or_refused() -> None:
    assert len(CLASSES) > 900
    for kind in CLASSES:
        for name in kind.arg_types:
            node = kind()
            node.args[name] = exp.Null()
            if kind not in HANDLED:
                with pytest.raises(NotSupported, match="is not supported"):
                    law.check(node)
                    law.check_older(node)
            elif name not in HANDLED[kind]:
                with pytest.raises(NotSupported) as raised:
                    law.check(node)
                assert str(raised.value).startswith(law.words_of(kind, name)), (kind, name)


def test_the_list_names_classes_and_arguments_that_there_are() -> None:
    for kind, arguments in HANDLED.items():
        assert kind in CLASSES
        assert arguments <= set(kind.arg_types), kind


def test_each_name_that_is_parsed_gives_a_class_of_the_list() -> None:
    parser = Headrace.Parser
    for name in {*parser.FUNCTIONS, *parser.FUNCTION_PARSERS}:
        assert name.lower() in builtin.PARSED | builtin.CALLED | {"date_trunc"}, name
    assert not builtin.PARSED & builtin.CALLED


REFUSED = [
    ("DELETE FROM t ORDER BY a LIMIT 1", "42601", "syntax error at or near", 15),
    ("DELETE FROM t LIMIT 1", "42601", "syntax error at or near", 15),
    ("DELETE t FROM t", "42601", "syntax error at or near", 8),
    ("UPDATE t SET a = 1 LIMIT 1", "42601", "syntax error at or near", 20),
    ("UPDATE t SET a = 1 ORDER BY a", "42601", "syntax error at or near", 20),
    ("UPDATE t SET s.f = 1", "0A000", "SET of a part of a column", 14),
    ("UPDATE t SET a[1] = 1", "0A000", "SET of a part of a column", 14),
    ("UPDATE t SET (s.f, a) = (1, 2)", "0A000", "SET of a part of a column", 15),
    ("UPDATE t, u SET a = 1", "42601", "syntax error at or near", 9),
    ("UPDATE ONLY t SET a = 1", "0A000", "ONLY", 13),
    ("DELETE FROM ONLY t", "0A000", "ONLY", 18),
    ("SELECT * FROM ONLY t", "0A000", "ONLY", 20),
    ("INSERT INTO t VALUES (1) ON CONFLICT (a) WHERE a > 1 DO UPDATE SET b = 'x'", "0A000", "ON CONFLICT", 48),
    ("INSERT INTO t DEFAULT VALUES", "0A000", "DEFAULT VALUES", 13),
    ("INSERT OR REPLACE INTO t VALUES (1)", "42601", "syntax error at or near", 8),
    ("INSERT OVERWRITE t VALUES (1)", "42601", "syntax error at or near", 8),
    ("INSERT INTO t BY NAME SELECT 1", "42601", "syntax error at or near", 15),
    ("SELECT a FROM t FETCH FIRST 3 ROWS WITH TIES", "42601", "WITH TIES cannot be", 36),
    ("SELECT a FROM t FETCH FIRST 10 PERCENT ROWS ONLY", "42601", "syntax error at or near", 32),
    ("SELECT a FROM t LIMIT 10 PERCENT", "42601", "syntax error at or near", 26),
    ("SELECT * FROM t PIVOT (sum(a) FOR b IN (1, 2))", "42601", "syntax error at or near", 27),
    ("SELECT * FROM unnest(array[1]) WITH ORDINALITY AS x(a, b)", "0A000", "WITH ORDINALITY", None),
    ("SELECT * FROM generate_series(1, 2) WITH ORDINALITY", "0A000", "WITH ORDINALITY", None),
    ("SELECT sum(a) OVER (ORDER BY a ROWS BETWEEN 1 PRECEDING AND CURRENT ROW EXCLUDE CURRENT ROW) FROM t",
     "0A000", "EXCLUDE", None),
    ("SELECT sum(a) OVER (ORDER BY a GROUPS 1 PRECEDING) FROM t", "0A000", "GROUPS", None),
    ('SELECT a COLLATE "de_DE" FROM t', "0A000", "COLLATE", None),
    ("SELECT * FROM other.public.t", "0A000", "cross-database references are not implemented", 15),
    ("INSERT INTO other.public.t VALUES (1)", "0A000", "cross-database references are not implemented", 13),
    ("DROP TABLE other.public.t", "0A000", "cross-database references are not implemented", 12),
    ("CREATE TABLE other.public.t (a int)", "0A000", "cross-database references are not implemented", 14),
    ("CREATE SOURCE s (a int PRIMARY KEY) WITH (connector = 'datagen')", "0A000", "PRIMARY KEY in CREATE SOURCE", None),
    ("CREATE OR REPLACE SCHEMA s", "0A000", "CREATE OR REPLACE SCHEMA", 19),
    ("CREATE OR REPLACE INDEX i ON t (a)", "0A000", "CREATE OR REPLACE INDEX", 19),
    ("CREATE TEMPORARY MATERIALIZED VIEW v AS SELECT 1 AS a", "0A000", "TEMPORARY", 18),
    ("CREATE TABLE t (a int PRIMARY KEY, b int PRIMARY KEY)", "42P16", "multiple primary keys", None),
    ("CREATE TABLE t (a int PRIMARY KEY, b int, PRIMARY KEY (b))", "42P16", "multiple primary keys", None),
    ("CREATE TABLE t (a int, b int, PRIMARY KEY (a, a))", "42701", "appears twice", None),
    ("CREATE TABLE t (a int, a int)", "42701", "specified more than once", None),
    ('CREATE TABLE t (a int, "A" int)', "0A000", "upper and lower case", None),
    ("CREATE TABLE t (a timestamp(3))", "0A000", r"timestamp\(3\)", None),
    ("CREATE TABLE t (a struct<\"x`y\" int>)", "0A000", "field name", None),
    ("ALTER TABLE t ADD COLUMN a int PRIMARY KEY", "0A000", "PRIMARY KEY", None),
    ("SELECT a FROM t JOIN u USING (t.a)", "42601", "syntax error at or near", 32),
    ("SELECT 1_000", "42601", "trailing junk after numeric literal", 8),
    ("SELECT 0x1F", "42601", "trailing junk after numeric literal", 8),
    ("SELECT 0b11", "42601", "trailing junk after numeric literal", 8),
    ("SELECT 123abc", "42601", "trailing junk after numeric literal", 8),
    ("SELECT 1e", "42601", "trailing junk after numeric literal", 8),
    ("SELECT unnest(a), generate_series(1, 3) FROM t", "0A000", "several set-returning", None),
    ("SELECT unnest(a) AS x, 1 + unnest(b) FROM t", "0A000", "several set-returning", None),
    ("SELECT extract(\"day FROM c), (SELECT 1) AS y, extract(day\" FROM c) FROM t", "0A000", "unit", None),
    ("SELECT date_trunc('century', c) FROM t", "0A000", "unit", None),
    ("SELECT date_trunc(b, c) FROM t", "0A000", "unit that is no literal", 19),
    ("SELECT date_trunc('day', c, 'Europe/Berlin') FROM t", "0A000", "time zone", None),
    ("SELECT a FROM t GROUP BY DISTINCT a", "0A000", "GROUP BY ALL or DISTINCT", None),
    ("SELECT a FROM t GROUP BY ALL", "42601", "syntax error at end of input", 29),
    ("SELECT a FROM t QUALIFY row_number() OVER () = 1", "42601", "syntax error at or near", 25),
    ("SELECT a FROM t TABLESAMPLE SYSTEM (10)", "0A000", "TABLESAMPLE", None),
    ("SELECT a FROM t FOR UPDATE SKIP LOCKED", "0A000", "SKIP LOCKED", None),
    ("SELECT a FROM t CLUSTER BY a", "42601", "syntax error at or near", 25),
    ("SELECT a FROM t SORT BY a", "42601", "syntax error at or near", 22),
    ("SELECT a FROM t LIMIT 1 BY a", "42601", "syntax error at or near", 25),
    ("SELECT a FROM t START WITH a = 1 CONNECT BY a = b", "42601", "syntax error at or near", 23),
    ("SELECT * FROM t LATERAL VIEW explode(a) e AS x", "42601", "syntax error at or near", 17),
    ("SELECT a FROM t ASOF JOIN u ON true", "0A000", "ASOF JOIN", None),
    ("SELECT a FROM t x(b int)", "42601", "syntax error at or near", 21),
    ("SELECT * FROM t FOR SYSTEM_TIME BETWEEN 1 AND 2", "42601", "syntax error at or near", 21),
    ("SELECT * FROM t VERSION AS OF 3", "42601", "syntax error at or near", 25),
    ("WITH d AS (DELETE FROM t RETURNING *) SELECT * FROM d", "0A000", "inside of another", None),
    ("SELECT a INTO x FROM t", "0A000", "SELECT INTO", None),
    ("SELECT a[1:2] FROM t", "0A000", "slice", None),
    ("SELECT array_length(a, 2) FROM t", "0A000", "another dimension", None),
    ("SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY a) FROM t", "0A000", "percentile_cont", None),
    ("SELECT trunc(1.29, 1)", "0A000", "trunc with a number of digits", None),
    ("SELECT j -> k FROM t", "0A000", "key that is no literal", None),
    ("SELECT j -> 'a' FROM t", "0A000", "->", None),
    ("SELECT ARRAY(SELECT a FROM t)", "0A000", r"ARRAY\(query\)", None),
    ("SELECT X'1F'", "0A000", "bit string", None),
    ("SELECT U&'abc'", "0A000", "Unicode", None),
    ("SELECT a BETWEEN SYMMETRIC 2 AND 1 FROM t", "0A000", "SYMMETRIC", None),
    ("SELECT interval '1-2' YEAR TO MONTH", "0A000", "span of units", None),
    ("SELECT f(VARIADIC a) FROM t", "0A000", "VARIADIC", None),
    ("SELECT f(x => 1)", "0A000", "argument by name", None),
    ("SELECT a = ALL (SELECT 1) FROM t", "0A000", r"ALL \(query\)", None),
    ("SELECT a LIKE ANY (ARRAY['x']) FROM t", "0A000", "ANY with another operator", None),
    ("SELECT regexp_replace(a, b, 'x') FROM t", "0A000", "no literal", None),
    ("SELECT s2.users.id FROM s1.users, s2.users", "0A000", "ambiguous", None),
    ("SELECT 1 FROM s1.users WHERE EXISTS (SELECT 1 FROM s2.users WHERE s2.users.id = s1.users.id)",
     "0A000", "ambiguous", None),
    ("SELECT s2.users.id FROM s1.users", "42P01", "invalid reference to FROM-clause entry", 8),
    ("SELECT s2.t.id FROM users", "42P01", "missing FROM-clause entry", 8),
    ("SELECT __item FROM t WHERE a = ANY (b)", "42939", "reserved", 8),
    ("SELECT a FROM t AS __ranked", "42939", "reserved", 20),
]  # fmt: skip


@pytest.mark.parametrize(("text", "state", "message", "position"), REFUSED, ids=[text for text, *_ in REFUSED])
def test_refused(text: str, state: str, message: str, position: int | None) -> None:
    error = refusal(text)
    assert error.sqlstate == state
    assert re.search(message, str(error)), str(error)
    if position is not None:
        assert error.position == position


SPARKS = """java_method('java.lang.System', 'getenv', 'PATH') | reflect('java.util.UUID', 'randomUUID')
    try_reflect('a', 'b') | input_file_name() | session_window(ts, '1 s') | window(ts, '1 s') | uuid()
    monotonically_increasing_id() | spark_partition_id() | version2() | array_sort(a) | collect_list(a)
    named_struct('a', 1) | struct(a) | map(a, b) | nvl(a, b) | if(a, 1, 2) | try_cast(a AS int) | from_json(a, 'b')
    read_files('x') | current_metastore() | assert_true(a) | raise_error(a) | aes_decrypt(a, b) | year(ts)
    pg_catalog.reflect('a', 'b') | pg_catalog.input_file_name() | "reflect"('a', 'b') | Java_Method('a', 'b')
    to_json(a) | xpath(a, b) | sequence(1, 2) | explode(a) | percentile(a, 0.5) | current_time | sha2(a, 256)"""


@pytest.mark.parametrize("call", [part.strip() for part in SPARKS.replace("\n", "|").split("|")])
def test_functions_of_spark_are_not_to_be_called(call: str) -> None:
    for query in (f"SELECT {call} AS x FROM t", f"SELECT a FROM t WHERE {call} = 1"):
        assert refusal(query).sqlstate in ("42883", "0A000", "42601")
    with pytest.raises(HeadraceError):
        parse_expression(call).to_spark()


def test_an_unknown_function_is_named_with_its_place() -> None:
    with pytest.raises(UndefinedFunction, match=r"function reflect .* does not exist") as raised:
        spark("SELECT a, reflect('java.lang.System', 'getenv') FROM t")
    assert raised.value.position == 11


def test_session_values_do_not_come_from_spark() -> None:
    for call in ("version()", "current_user", "current_catalog", "current_database()", "session_user"):
        assert refusal(f"SELECT {call} FROM t").sqlstate == "0A000"


def test_no_name_of_a_users_query_hides_an_internal_relation() -> None:
    text = parse_query("WITH r5 AS (SELECT 1 AS a) SELECT r5.a, t.a FROM r5 JOIN t ON true").to_spark(lambda _: "`r5`")
    assert "FROM `r5__cte` AS `r5` JOIN `r5` AS `t`" in text
    nested = parse_query("WITH r5 AS (SELECT a FROM t) SELECT * FROM (SELECT * FROM r5 AS q) AS z").to_spark(
        lambda _: "`r5`"
    )
    assert nested.startswith("WITH `r5__cte` AS (SELECT `t`.`a` FROM `r5` AS `t`)") or "FROM `r5` AS `t`" in nested
    assert "FROM `r5__cte` AS `q`" in nested


def test_ctes_of_one_name_stay_apart() -> None:
    text = spark("WITH a AS (SELECT 1 AS x), b AS (WITH a AS (SELECT 2 AS x) SELECT x FROM a) SELECT * FROM a, b")
    assert "`a__cte` AS (SELECT 1 AS `x`)" in text
    assert "`a__cte1` AS (SELECT 2 AS `x`)" in text
    assert "SELECT `x` FROM `a__cte1` AS `a`" in text
    assert text.endswith("SELECT * FROM `a__cte` AS `a`, `b__cte` AS `b`")


def test_an_index_of_an_array_is_the_one_that_is_written() -> None:
    for index in ("k", "t.k", "k - 1", "1 + 1"):
        assert f"GREATEST({spark(f'SELECT {index} AS x FROM t')[7:].split(' AS ')[0]}, 0)" in spark(
            f"SELECT arr[{index}] AS x FROM t"
        )
    assert "TRY_ELEMENT_AT(`arr`, 2)" in spark("SELECT arr[2] FROM t")
    found = parse_one("UPDATE t SET a = arr[2] FROM (SELECT arr[3] AS b FROM u) AS q WHERE arr[4] = 1")
    assert "[3]" in found.sources  # type: ignore[attr-defined]


def test_now_has_a_zone() -> None:
    assert "FROM_UTC_TIMESTAMP(" in spark("SELECT now() AT TIME ZONE 'Europe/Berlin'")
    assert "timestamp_ntz" not in spark("SELECT date_trunc('hour', now())")


def test_comments_do_not_reach_spark() -> None:
    assert "/*" not in spark("SELECT /*+ BROADCAST(t) */ a /* x */ FROM t -- y")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT public.t.a FROM public.t",
        "SELECT s.t.a, u.a FROM s.t JOIN u ON s.t.a = u.a",
        "SELECT a FROM dev.public.t",
        'SELECT a COLLATE "C", b COLLATE pg_catalog."default" FROM t',
        "SELECT a FROM t FOR UPDATE",
        "WITH c AS MATERIALIZED (SELECT 1 AS a) SELECT a FROM c",
        "SELECT a FROM t FETCH FIRST ROW ONLY",
        "SELECT extract(EPOCH FROM ts), extract('day' FROM ts), date_part('hour', ts) FROM t",
        "SELECT 1, 1.5, .5, 1., 1e5, 1.5E-3, -2::int",
        "SELECT * FROM t JOIN u USING (a, b)",
        "SELECT (j -> 'a') ->> 'b', j -> 'a' -> 'b' ->> 'c', j ->> 'a' FROM t",
        "SELECT unnest(a) FROM t",
        "SELECT 'x'::regclass::text, a::pg_catalog.regtype FROM t",
        "SELECT E'a\\n', $$x$$, N'y'",
    ],
)
def test_what_is_understood_is_translated(query: str) -> None:
    assert spark(query)


def test_log_of_one_number_is_to_base_ten() -> None:
    assert "LOG10(100)" in spark("SELECT log(100)")
    assert "LOG(2, 8)" in spark("SELECT log(2, 8)")


def test_spark_substitutes_no_variables(tmp_path: Path) -> None:
    assert PLANNING_CONF["spark.sql.variable.substitute"] == "false"
    assert spark_settings._conf(tmp_path, "1g", "")["spark.sql.variable.substitute"] == "false"
    assert "spark.sql.variable.substitute" in spark_settings._OWN


def test_spark_gives_no_variable_of_the_environment(sql_spark: Any) -> None:
    session = sql_spark.newSession()
    for key, value in PLANNING_CONF.items():
        session.conf.set(key, value)
    texts = ["${env:PATH}", "${system:java.version}", "${spark:spark.app.id}", "${spark.app.id}"]
    for text in texts:
        query = parse_query(f"SELECT '{text}' AS x").to_spark(lambda name: name.name)
        assert session.sql(query).collect()[0][0] == text


def test_names_of_statements_are_kept() -> None:
    found = parse_one("DROP TABLE dev.public.t")
    assert found.names == (TableName("public", "t"),)  # type: ignore[attr-defined]
