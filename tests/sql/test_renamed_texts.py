"""Texts get other names of relations, and are otherwise what they were; what is uncertain is refused."""

from __future__ import annotations

import pytest

from headrace.sql.renaming import Uncertain, defined_query, definition_with, query_with, spelled
from headrace.sql.statements import TableName


def _spell(name: TableName) -> TableName | None:
    return TableName(name.schema, "u") if name.name == "t" and name.schema in (None, "s") else None


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("SELECT a FROM t", "SELECT a FROM u AS t"),
        ("SELECT t.a, t.* FROM t", "SELECT t.a, t.* FROM u AS t"),
        ("SELECT x.a FROM t x", "SELECT x.a FROM u x"),
        ("SELECT x.a FROM t AS x(a), t y", "SELECT x.a FROM u AS x(a), u y"),
        ('SELECT a FROM s."t" /* t */ -- t\n WHERE b = \'t\'', 'SELECT a FROM s.u AS t /* t */ -- t\n WHERE b = \'t\''),
        ("SELECT a FROM other.t", "SELECT a FROM other.t"),
        ("SELECT t FROM t", "SELECT t FROM u AS t"),
        ("SELECT 'ä', t.a FROM t JOIN z USING (a)", "SELECT 'ä', t.a FROM u AS t JOIN z USING (a)"),
        ("SELECT a FROM z WHERE EXISTS (SELECT FROM t WHERE t.a = z.a)",
         "SELECT a FROM z WHERE EXISTS (SELECT FROM u AS t WHERE t.a = z.a)"),
        ("WITH c AS (SELECT a FROM t) SELECT c.a FROM c", "WITH c AS (SELECT a FROM u AS t) SELECT c.a FROM c"),
        ("SELECT a FROM TUMBLE(t, ts, INTERVAL '1 day')", "SELECT a FROM TUMBLE(u, ts, INTERVAL '1 day') AS t"),
        ("SELECT a FROM TUMBLE(t, ts, INTERVAL '1 day') w", "SELECT a FROM TUMBLE(u, ts, INTERVAL '1 day') w"),
        ("SELECT 1 FROM z JOIN t FOR SYSTEM_TIME AS OF PROCTIME() ON z.a = t.a",
         "SELECT 1 FROM z JOIN u FOR SYSTEM_TIME AS OF PROCTIME() AS t ON z.a = t.a"),
        ("SELECT * FROM z LEFT SEMI JOIN t ON z.a = t.a", "SELECT * FROM z LEFT SEMI JOIN u AS t ON z.a = t.a"),
        ("SELECT a FROM t UNION ALL SELECT a FROM t AS t", "SELECT a FROM u AS t UNION ALL SELECT a FROM u AS t"),
    ],
)  # fmt: skip
def test_a_query_says_the_new_name(query: str, found: str) -> None:
    assert query_with(query, _spell) == found


@pytest.mark.parametrize(
    "query",
    [
        "WITH t AS (SELECT 1) SELECT * FROM t, s.t",
        "WITH u AS (SELECT 1) SELECT * FROM u, t",
        "SELECT s.t.a FROM s.t",
        "SELECT * FROM t, other.t",
        "TABLE t",
        "SELECT db.s.t.a FROM db.s.t",
    ],
)
def test_what_is_uncertain_is_refused(query: str) -> None:
    with pytest.raises(Uncertain):
        query_with(query, _spell)


@pytest.mark.parametrize(
    ("definition", "own", "found"),
    [
        ("create view v (x) as select a from t", "w", "create view w (x) as select a from u AS t"),
        ("CREATE MATERIALIZED VIEW IF NOT EXISTS s.v WITH (parallelism = 1) AS SELECT a FROM t EMIT ON WINDOW CLOSE",
         "w", "CREATE MATERIALIZED VIEW IF NOT EXISTS s.w WITH (parallelism = 1) AS SELECT a FROM u AS t "
         "EMIT ON WINDOW CLOSE"),
        ("CREATE INDEX i ON s.t (a) INCLUDE (t)", None, "CREATE INDEX i ON s.u (a) INCLUDE (t)"),
        ('CREATE INDEX i ON "t"(t)', "Order", 'CREATE INDEX "Order" ON u(t)'),
        ("CREATE SINK k FROM t WITH (connector = 'blackhole')", None,
         "CREATE SINK k FROM u WITH (connector = 'blackhole')"),
        ("CREATE SINK k INTO t FROM z", None, "CREATE SINK k INTO u FROM z"),
        ("CREATE SINK k INTO z AS SELECT a FROM t", "j", "CREATE SINK j INTO z AS SELECT a FROM u AS t"),
        ("CREATE SUBSCRIPTION q FROM t WITH (retention = '1 day')", None,
         "CREATE SUBSCRIPTION q FROM u WITH (retention = '1 day')"),
        ("CREATE TABLE x (*) FROM t TABLE 'public.t'", None, "CREATE TABLE x (*) FROM u TABLE 'public.t'"),
        ("CREATE TABLE v (t int, v text DEFAULT 'v', PRIMARY KEY (t))", "w",
         "CREATE TABLE w (t int, v text DEFAULT 'v', PRIMARY KEY (t))"),
        ("CREATE TABLE v (t int);\nALTER TABLE v ADD COLUMN v int", "w",
         "CREATE TABLE w (t int);\nALTER TABLE w ADD COLUMN v int"),
        ("CREATE SOURCE v (t int) WITH (connector = 'datagen')", "w",
         "CREATE SOURCE w (t int) WITH (connector = 'datagen')"),
    ],
)  # fmt: skip
def test_a_definition_says_the_new_names(definition: str, own: str | None, found: str) -> None:
    assert definition_with(definition, own, _spell) == found


def test_a_definition_without_a_name_of_its_own_is_refused() -> None:
    with pytest.raises(Uncertain):
        definition_with("SELECT a FROM t", "w", _spell)


def test_the_query_of_a_view() -> None:
    assert defined_query("CREATE VIEW v AS SELECT a FROM t") == "SELECT a FROM t"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a", "a"),
        ("A", '"A"'),
        ("select", '"select"'),
        ("new", "new"),
        ("between", '"between"'),
        ("a b", '"a b"'),
        ('a"b', '"a""b"'),
    ],
)  # fmt: skip
def test_names_are_quoted_where_they_must(name: str, found: str) -> None:
    assert spelled(TableName(None, name)) == found
