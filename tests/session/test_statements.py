"""Statements through one database: DDL, DML, reads, errors, transactions."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from headrace.errors import HeadraceError
from headrace.session.database import Database
from headrace.session.session import Session


@pytest.fixture(scope="module")
def shop(database: Database) -> Database:
    database.sql("""
        CREATE TABLE items (id int PRIMARY KEY, kind text NOT NULL, price numeric(10,2) DEFAULT 1.50, sold date);
        INSERT INTO items VALUES (1, 'a', 10, '2024-01-01'), (2, 'b', 20, '2024-01-02'), (3, 'a', 30, NULL);
        CREATE TABLE log (n bigint, t text) APPEND ONLY;
        INSERT INTO log VALUES (1, 'x'), (1, 'x'), (2, 'y');
        CREATE MATERIALIZED VIEW totals AS SELECT kind, sum(price) AS total, count(*) AS n FROM items GROUP BY kind;
        CREATE VIEW big(k, t) AS SELECT kind, total FROM totals WHERE total > 15;
        CREATE MATERIALIZED VIEW doubled AS SELECT k, t * 2 AS t2 FROM big;
    """)
    return database


def rows(database: Database, sql: str) -> list[tuple[Any, ...]]:
    return database.sql(sql).rows()


def state_of(call: Any) -> str:
    with pytest.raises(HeadraceError) as caught:
        call()
    return caught.value.sqlstate


def test_scan_and_spark_agree(shop: Database) -> None:
    plain = rows(shop, "SELECT id, kind, price, sold FROM items ORDER BY kind DESC, id")
    computed = rows(shop, "SELECT id, kind, price, sold FROM items WHERE true ORDER BY kind DESC, id")
    assert plain == computed
    assert plain[0] == (2, "b", Decimal("20.00"), dt.date(2024, 1, 2))


def test_nulls_are_sorted_like_postgres(shop: Database) -> None:
    assert [r[0] for r in rows(shop, "SELECT id FROM items ORDER BY sold")] == [1, 2, 3]
    assert [r[0] for r in rows(shop, "SELECT id FROM items ORDER BY sold DESC")] == [3, 2, 1]
    assert [r[0] for r in rows(shop, "SELECT id FROM items ORDER BY sold NULLS FIRST LIMIT 2 OFFSET 1")] == [1, 2]


def test_counts_include_duplicates(shop: Database) -> None:
    assert rows(shop, "SELECT count(*) FROM log") == [(3,)]
    assert rows(shop, "SELECT count(*) FROM log WHERE n = 1") == [(2,)]
    assert sorted(rows(shop, "SELECT n, t FROM log")) == [(1, "x"), (1, "x"), (2, "y")]


def test_constants(shop: Database) -> None:
    result = shop.sql("SELECT 1, 'x' AS t, 2.50, true, NULL")
    assert result.rows() == [(1, "x", Decimal("2.50"), True, None)]
    assert [c.name for c in result.columns] == ["?column?", "t", "?column?", "?column?", "?column?"]
    assert "PostgreSQL 13" in rows(shop, "SELECT version()")[0][0]
    assert rows(shop, "SELECT 7 / 2, 1 + 1") == [(3, 2)]


def test_views_follow_changes(shop: Database) -> None:
    query = "SELECT kind, sum(price) AS total, count(*) AS n FROM items GROUP BY kind"
    inserted = shop.sql("INSERT INTO items (id, kind) VALUES (4, 'c'), (5, 'b') RETURNING id, price")
    assert inserted.rows() == [(4, Decimal("1.50")), (5, Decimal("1.50"))]
    assert inserted.tag == "INSERT 0 2"
    assert shop.sql("UPDATE items SET price = price + 1, sold = '2024-05-05' WHERE kind = 'a'").tag == "UPDATE 2"
    assert shop.sql("DELETE FROM items WHERE id = 2").tag == "DELETE 1"
    shop.flush()
    assert sorted(rows(shop, "SELECT * FROM totals")) == sorted(rows(shop, query))
    assert rows(shop, "SELECT * FROM doubled ORDER BY k") == [("a", Decimal("84.00"))]
    assert rows(shop, "SELECT k FROM big") == [("a",)]


def test_insert_from_query_and_conflicts(shop: Database) -> None:
    shop.sql("CREATE TABLE copies (id int PRIMARY KEY, kind text)")
    assert shop.sql("INSERT INTO copies SELECT id, kind FROM items WHERE id IN (1, 3)").tag == "INSERT 0 2"
    shop.sql("INSERT INTO copies VALUES (1, 'new')")
    shop.sql("INSERT INTO copies VALUES (3, 'ignored') ON CONFLICT DO NOTHING")
    assert rows(shop, "SELECT * FROM copies ORDER BY id") == [(1, "new"), (3, "a")]
    shop.sql("INSERT INTO copies VALUES (2 + 7, upper('x'))")
    assert rows(shop, "SELECT * FROM copies WHERE id = 9") == [(9, "X")]
    shop.sql("DROP TABLE copies")


@pytest.mark.parametrize(
    ("sql", "state"),
    [
        ("SELECT * FROM missing", "42P01"),
        ("SELECT missing FROM items", "42703"),
        ("SELECT 1 / (id - id) FROM items", "22012"),
        ("SELECT CAST('abc' AS int)", "22P02"),
        ("SELECT CAST(kind AS int) FROM items", "22P02"),
        ("SELEC 1", "42601"),
        ("INSERT INTO items VALUES ('x', 'a')", "22P02"),
        ("INSERT INTO items VALUES (9, NULL)", "23502"),
        ("INSERT INTO items (id, nope) VALUES (9, 'x')", "42703"),
        ("INSERT INTO items VALUES (99999999999, 'x')", "22003"),
        ("INSERT INTO totals VALUES ('x', 1, 1)", "42809"),
        ("UPDATE totals SET n = 1", "42809"),
        ("DELETE FROM log", "0A000"),
        ("CREATE TABLE items (a int)", "42P07"),
        ("DROP TABLE missing", "42P01"),
        ("DROP VIEW items", "42809"),
        ("DROP TABLE items", "2BP01"),
        ("CREATE SOURCE s WITH (connector = 'nothing')", "22023"),
        ("SET nonsense = 1", "42704"),
        ("SHOW nonsense", "42704"),
    ],
)
def test_errors(shop: Database, sql: str, state: str) -> None:
    assert state_of(lambda: shop.sql(sql)) == state
    assert rows(shop, "SELECT 1") == [(1,)]


def test_errors_say_where(shop: Database) -> None:
    with pytest.raises(HeadraceError) as caught:
        shop.sql("SELECT 1; SELECT * FROM itms")
    assert caught.value.position == 25
    assert "items" in (caught.value.hint or "")


def test_a_view_that_fails_is_not_created(shop: Database) -> None:
    query = "CREATE MATERIALIZED VIEW bad AS SELECT 1 / (id - id) AS x FROM items"
    assert state_of(lambda: shop.sql(query)) == "22012"
    assert state_of(lambda: shop.sql("SELECT * FROM bad")) == "42P01"


def test_drop_cascade(shop: Database) -> None:
    shop.sql("CREATE TABLE base (a int)")
    shop.sql("CREATE VIEW over_base AS SELECT a FROM base; CREATE VIEW over_that AS SELECT a FROM over_base")
    with pytest.raises(HeadraceError) as caught:
        shop.sql("DROP TABLE base")
    assert caught.value.detail == "view over_base depends on table base\nview over_that depends on view over_base"
    dropped = shop.sql("DROP TABLE base CASCADE")
    assert dropped.notices == ["drop cascades to view over_that", "drop cascades to view over_base"]
    assert shop.sql("DROP TABLE IF EXISTS base").notices == ['table "base" does not exist, skipping']


def test_transactions(shop: Database) -> None:
    session = Session(shop.instance)

    def run(sql: str) -> list[tuple[Any, ...]]:
        return [row for result in session.execute(sql) for row in result.rows()]

    run("CREATE TABLE ledger (a int)")
    run("BEGIN; INSERT INTO ledger VALUES (1); INSERT INTO ledger VALUES (2)")
    assert session.transaction_status == "T"
    assert rows(shop, "SELECT * FROM ledger") == []
    run("COMMIT")
    assert sorted(rows(shop, "SELECT * FROM ledger")) == [(1,), (2,)]
    run("BEGIN; INSERT INTO ledger VALUES (3); ROLLBACK")
    run("BEGIN")
    assert run("SELECT count(*) FROM ledger") == [(2,)]
    shop.sql("INSERT INTO ledger VALUES (4)")
    assert run("SELECT count(*) FROM ledger") == [(2,)]
    assert state_of(lambda: run("SELECT nonsense FROM ledger")) == "42703"
    assert session.transaction_status == "E"
    assert state_of(lambda: run("SELECT 1")) == "25P02"
    run("ROLLBACK")
    assert session.transaction_status == "I"
    assert run("SELECT count(*) FROM ledger") == [(3,)]
    session.close()


def test_prepared_statements(shop: Database) -> None:
    session = Session(shop.instance)
    insert = session.prepare("INSERT INTO log VALUES ($1, $2)")
    assert insert.parameter_types == ["bigint", "string"]
    assert insert.columns is None
    assert insert.execute(["7", "it's"]).tag == "INSERT 0 1"
    select = session.prepare("SELECT t FROM log WHERE n = $1 LIMIT $2", [None, None])
    assert select.parameter_types == ["bigint", "bigint"]
    assert [(c.name, c.type) for c in select.columns or []] == [("t", "string")]
    assert select.execute(["7", "5"]).rows() == [("it's",)]
    returning = session.prepare("INSERT INTO items VALUES ($1, $2) RETURNING id, price * 2 AS p")
    assert [c.name for c in returning.columns or []] == ["id", "p"]
    session.close()


def test_a_prepared_query_of_a_relation_that_is_dropped(shop: Database) -> None:
    """PC-39: it fails with the name of what is missing, alone or in a join; it is never half an answer."""
    session = Session(shop.instance)
    shop.sql("CREATE TABLE short (n int); INSERT INTO short VALUES (1), (2)")
    for query in ("SELECT n FROM short", "SELECT count(*) FROM short a JOIN items b ON a.n = b.id"):
        select = session.prepare(query)
        assert select.execute([]).rows()
        shop.sql("DROP TABLE short")
        assert state_of(lambda select=select: select.execute([]).rows()) == "42P01"
        shop.sql("CREATE TABLE short (n int); INSERT INTO short VALUES (1), (2)")
    shop.sql("DROP TABLE short")
    session.close()


def test_settings(shop: Database) -> None:
    session = Session(shop.instance, {"application_name": "test"})

    def one(sql: str) -> Any:
        return [row for result in session.execute(sql) for row in result.rows()][-1][0]

    assert session.parameters["server_version"].startswith("13.14.0")
    assert one("SHOW application_name") == "test"
    assert one("SET statement_timeout = '5s'; SHOW statement_timeout") == "5s"
    assert one("BEGIN; SET LOCAL statement_timeout = 70000; SHOW statement_timeout") == "70000"
    assert one("COMMIT; SHOW statement_timeout") == "5s"
    assert one("RESET ALL; SHOW statement_timeout") == "0"
    assert one("SELECT current_setting('timezone')") == "UTC"
    assert one("SELECT current_setting('no.such', true)") is None
    assert state_of(lambda: one("SELECT current_setting('no.such', false)")) == "42704"
    assert state_of(lambda: one("SELECT current_setting('no.such')")) == "42704"
    assert "pg_catalog" in one("SELECT current_schemas(true)")
    assert "pg_catalog" not in one("SELECT current_schemas(false)")
    assert one("SET timezone = 'europe/rome'; SHOW timezone") == "Europe/Rome"
    assert state_of(lambda: one("SET timezone = 'Europe/Nowhere'")) == "22023"
    session.close()


def test_checkpoint_groups(shop: Database) -> None:
    """PC-2: groups of views by option, by setting, and by ALTER; what cannot be is refused."""
    session = Session(shop.instance)

    def run(sql: str) -> list[tuple[Any, ...]]:
        return [row for result in session.execute(sql) for row in result.rows()]

    run("CREATE MATERIALIZED VIEW g1 WITH (checkpoint_group = 'x') AS SELECT count(*) AS c FROM items")
    run("SET default_checkpoint_group = 'x'; CREATE MATERIALIZED VIEW g2 AS SELECT c + 1 AS d FROM g1")
    run("CREATE MATERIALIZED VIEW g3 WITH (checkpoint_group = own) AS SELECT d + 1 AS e FROM g2")
    run("RESET default_checkpoint_group; INSERT INTO items VALUES (77, 'g', 1, NULL); FLUSH")
    groups = dict(run("SELECT name, checkpoint_group FROM headrace_catalog.jobs WHERE name LIKE 'g_'"))
    assert groups["g1"] == groups["g2"] == "x" and groups["g3"].startswith("job-")
    committed = dict(run("SELECT name, committed_epoch FROM headrace_catalog.jobs WHERE name LIKE 'g_'"))
    assert committed["g1"] == committed["g2"]
    ((c, d, e),) = run("SELECT c, d, e FROM g1, g2, g3")
    assert (d, e) == (c + 1, c + 2)
    assert state_of(lambda: run("ALTER MATERIALIZED VIEW g2 SET (checkpoint_group = 'y', paralelism = 2)")) == "22023"
    run("ALTER MATERIALIZED VIEW g3 SET (checkpoint_group = 'x'); DELETE FROM items WHERE id = 77; FLUSH")
    assert run("SELECT c, d, e FROM g1, g2, g3") == [(c - 1, d - 1, e - 1)]
    assert state_of(lambda: run("ALTER MATERIALIZED VIEW g2 SET (checkpoint_group = own)")) == "22023"
    run("DROP MATERIALIZED VIEW g1 CASCADE")
    session.close()


def test_statement_timeout(shop: Database) -> None:
    session = Session(shop.instance)
    # Not less: whoever takes it back has so long for it.
    list(session.execute("SET statement_timeout = 1000"))
    slow = "SELECT count(*) FROM generate_series(1, 100000) a(x), generate_series(1, 100000) b(y) WHERE x + y = 5"
    assert state_of(lambda: list(session.execute(slow))) == "57014"
    list(session.execute("SET statement_timeout = 0"))
    assert [r.rows() for r in session.execute("SELECT 1")] == [[(1,)]]
    session.close()


def test_show_and_describe(shop: Database) -> None:
    assert ("items",) in rows(shop, "SHOW TABLES")
    assert rows(shop, "SHOW MATERIALIZED VIEWS LIKE 'tot%'") == [("totals",)]
    assert rows(shop, "DESCRIBE items")[0] == ("id", "integer", "NO", "YES", None)
    assert "CREATE VIEW big" in rows(shop, "SHOW CREATE VIEW big")[0][1]
    lines = "\n".join(r[0] for r in rows(shop, "EXPLAIN CREATE MATERIALIZED VIEW x AS SELECT count(*) FROM items"))
    assert "view/rows" in lines
    assert rows(shop, "EXPLAIN SELECT count(*) FROM items WHERE id > 1")


def test_dataframes(shop: Database) -> None:
    frame = shop.table("items")
    assert frame.count() == rows(shop, "SELECT count(*) FROM items")[0][0]
    shop.create_materialized_view("from_table", frame.groupBy("kind").count())
    shop.create_materialized_view("from_relation", shop.relation("items").filter("id > 1").select("id"))
    shop.create_materialized_view("from_spark", "SELECT kind, any_value(id) AS i FROM items GROUP BY kind HAVING false",
                                  dialect="spark")  # fmt: skip
    want = sorted(rows(shop, "SELECT kind, count(*) FROM items GROUP BY kind"))
    assert sorted(rows(shop, "SELECT * FROM from_table")) == want
    assert rows(shop, "SELECT * FROM from_spark") == []
    assert "kind" in shop.explain("SELECT kind FROM items")


def test_system_relations(shop: Database) -> None:
    found = rows(shop, "SELECT relname, relkind FROM pg_catalog.pg_class WHERE relname IN ('items', 'totals', 'big')")
    assert sorted(found) == [("big", "v"), ("items", "r"), ("totals", "m")]
    names = rows(shop, "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'items' "
                       "ORDER BY ordinal_position")  # fmt: skip
    assert names == [("id", "integer"), ("kind", "text"), ("price", "numeric"), ("sold", "date")]
    assert ("totals",) in rows(shop, "SELECT name FROM headrace_catalog.jobs")


def test_sources(shop: Database) -> None:
    shop.sql("""
        CREATE SOURCE numbers (n bigint) WITH (
            connector = 'datagen', rows_per_second = 'unlimited', number_of_rows = '10',
            fields.n.kind = 'sequence', fields.n.start = '1'
        )
    """)
    assert rows(shop, "SHOW SOURCES") == [("numbers",)]
    assert rows(shop, "SELECT count(*), sum(n) FROM numbers") == [(10, 55)]
    shop.sql("CREATE MATERIALIZED VIEW counted AS SELECT count(*) AS n FROM numbers")
    shop.flush()
    assert rows(shop, "SELECT * FROM counted") == [(10,)]
    shop.sql("DROP SOURCE numbers CASCADE")


def test_result_forms(shop: Database) -> None:
    result = shop.sql("SELECT n, t FROM log ORDER BY n LIMIT 1")
    assert result.to_pandas().shape == (1, 2)
    assert result.to_arrow().num_rows == len(result) == 1
    assert "(1 row)" in repr(result)
    assert "<table>" in result._repr_html_()
    assert repr(shop.sql("SET search_path = public")) == "SET"
