"""INSERT ... ON CONFLICT DO UPDATE does what PostgreSQL does, as an operation on rows and as a query over pairs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from headrace.server import ServerThread

Client = psycopg.Connection[Any]
KINDS = pytest.mark.parametrize("extra", ["", ", j jsonb"], ids=["rows", "pairs"])
"""A table whose rows Python has, and one whose rows it has not."""


def connected(server: ServerThread, user: str = "root") -> Client:
    return psycopg.connect(f"host=127.0.0.1 port={server.port} dbname=dev user={user}", autocommit=True)


@pytest.fixture
def client(server: ServerThread) -> Iterator[Client]:
    with connected(server) as found:
        found.execute("DROP TABLE IF EXISTS t; DROP TABLE IF EXISTS s")
        yield found


def made(client: Client, extra: str = "") -> None:
    client.execute(f"CREATE TABLE t (a int, b text, n bigint NOT NULL DEFAULT 7, x int{extra}, PRIMARY KEY (a, b))")
    client.execute("INSERT INTO t (a, b, n, x) VALUES (1, 'k', 10, NULL), (2, 'k', 20, 5)")


def rows(client: Client, sql: str = "SELECT a, b, n, x FROM t ORDER BY a, b", *values: Any) -> list[tuple[Any, ...]]:
    return client.execute(sql, values or None).fetchall()


ONE, TWO = (1, "k", 10, None), (2, "k", 20, 5)
UPDATES = [
    ("(1, 'k', 3, 4)", "SET n = excluded.n", [(1, "k", 3, None), TWO], 1),
    ("(1, 'k', 3, 4), (9, 'k', 1, 1)", "SET n = t.n + EXCLUDED.n, x = excluded.x",
     [(1, "k", 13, 4), TWO, (9, "k", 1, 1)], 2),
    ("(1, 'k', 3, 4), (2, 'k', 3, 4)", "SET n = excluded.n WHERE t.x < excluded.n OR t.n = 20",
     [ONE, (2, "k", 3, 5)], 1),
    ("(1, 'k', 3, 4), (1, 'k', 5, 4)", "SET n = excluded.n WHERE excluded.n > 4", [(1, "k", 5, None), TWO], 1),
    ("(2, 'k', 3, 4)", "SET (n, x) = (DEFAULT, t.x - 1)", [ONE, (2, "k", 7, 4)], 1),
    ("(2, 'k', 3, 4)", "SET a = excluded.a, b = t.b, n = excluded.n, x = NULL", [ONE, (2, "k", 3, None)], 1),
    ("(2, 'k', 3, 4)", "SET x = coalesce(excluded.x, 0) * length(t.b || 'ab')", [ONE, (2, "k", 20, 12)], 1),
    ("(2, 'k', DEFAULT, 4)", "SET n = excluded.n", [ONE, (2, "k", 7, 5)], 1),
    ("(2, 'k', 3, 4)", "SET x = abs(-t.x) / 2 WHERE greatest(t.n, excluded.n) = 20", [ONE, (2, "k", 20, 2)], 1),
    ("(2, 'k', 3, 4)", "SET x = 1 / (t.x - 5) WHERE t.x <> 5", [ONE, TWO], 0),
]  # fmt: skip


@KINDS
@pytest.mark.parametrize(("values", "update", "expected", "count"), UPDATES)
def test_rows_that_are_there_are_changed(
    client: Client, extra: str, values: str, update: str, expected: list[tuple[Any, ...]], count: int
) -> None:
    made(client, extra)
    cursor = client.execute(f"INSERT INTO t (a, b, n, x) VALUES {values} ON CONFLICT (b, a) DO UPDATE {update}")
    assert (rows(client), cursor.statusmessage) == (expected, f"INSERT 0 {count}")


@pytest.mark.parametrize(("values", "update", "expected", "count"), UPDATES)
def test_the_rows_of_a_query_do_so_in_a_transaction_too(
    client: Client, values: str, update: str, expected: list[tuple[Any, ...]], count: int
) -> None:
    made(client)
    client.execute("BEGIN; DELETE FROM t; INSERT INTO t VALUES (1, 'k', 10, NULL), (2, 'k', 20, 5)")
    asked = f"SELECT v.a, v.b, v.n, v.x FROM (VALUES {values.replace('DEFAULT', '7')}) AS v(a, b, n, x)"
    client.execute(f"INSERT INTO t {asked} ON CONFLICT ON CONSTRAINT t_pkey DO UPDATE {update}")
    assert rows(client) == expected
    client.execute("ROLLBACK")
    assert rows(client) == [ONE, TWO]


@KINDS
@pytest.mark.parametrize(("what", "state", "words"), [
    ("VALUES (5, 'k', 1, 1), (5, 'k', 2, 2) ON CONFLICT (a, b) DO UPDATE SET n = 1", "21000", "second time"),
    ("VALUES (1, 'k', 1, 1), (1, 'k', 2, 2) ON CONFLICT (a, b) DO UPDATE SET n = 1", "21000", "second time"),
    ("VALUES (5, 'k', 1, 1), (5, 'k', 2, 2) ON CONFLICT (a, b) DO UPDATE SET n = 1 WHERE false", "21000", ""),
    ("VALUES (1, 'k', NULL, 1) ON CONFLICT (a, b) DO UPDATE SET n = 1", "23502", "null value"),
    ("VALUES (1, 'k', 1, 1) ON CONFLICT (a, b) DO UPDATE SET n = NULL", "23502", "null value"),
    ("VALUES (1, 'k', 1, 1) ON CONFLICT (a, b) DO UPDATE SET n = n + 1", "42702", "ambiguous"),
    ("VALUES (1, 'k', 1, 1) ON CONFLICT (a, b) DO UPDATE SET y = 1", "42703", '"y"'),
    ("VALUES (1, 'k', 1, 1) ON CONFLICT (a, b) DO UPDATE SET n = excluded.y", "42703", "y"),
    ("VALUES (1, 'k', 1, 1) ON CONFLICT (a, b) DO UPDATE SET n = s.n", "42P01", "FROM-clause"),
    ("VALUES (1, 'k', 1, 1) ON CONFLICT (a, b) DO UPDATE SET n = 1, n = 2", "42601", "multiple"),
    ("VALUES (1, 'k', 1, 1) ON CONFLICT (a, b) DO UPDATE SET n = excluded.n, n = t.n", "42601", "multiple"),
    ("VALUES (1, 'k', 1, 1) ON CONFLICT (a, b) DO UPDATE SET a = excluded.a, a = t.a", "42601", "multiple"),
    ("SELECT 1, 'k', 1, 1 ON CONFLICT (a, b) DO UPDATE SET n = excluded.n, n = t.n", "42601", "multiple"),
    ("SELECT 1, 'k', 1, 1 WHERE false ON CONFLICT (a, b) DO UPDATE SET n = 1, n = 2", "42601", "multiple"),
    ("SELECT 1, 'k', 1, 1 WHERE false ON CONFLICT (a, b) DO UPDATE SET n = s.n", "42P01", "FROM-clause"),
    ("VALUES (1, 'k', 1, 1) ON CONFLICT (a, b) DO UPDATE SET n = 1 RETURNING excluded.n", "42P01", "FROM-clause"),
    ("VALUES (1, 'k', 1, 1) RETURNING s.n", "42P01", "FROM-clause"),
    ("AS o VALUES (1, 'k', 1, 1) ON CONFLICT (a, b) DO UPDATE SET n = 1 RETURNING t.n", "42P01", "FROM-clause"),
    ("VALUES (1, 'k', 1, 1) ON CONFLICT (a, b) DO UPDATE SET n = true", "42804", "type"),
    ("VALUES (1, 'k', 1, 1) ON CONFLICT (a) DO UPDATE SET n = 1", "42P10", "no unique"),
    ("VALUES (1, 'k', 1, 1) ON CONFLICT (a) DO NOTHING", "42P10", "no unique"),
    ("VALUES (1, 'k', 1, 1) ON CONFLICT (z) DO NOTHING", "42703", '"z"'),
    ("VALUES (1, 'k', 1, 1) ON CONFLICT ON CONSTRAINT u DO UPDATE SET n = 1", "42704", '"u"'),
    ("VALUES (1, 'k', 1, 1) ON CONFLICT DO UPDATE SET n = 1", "42601", "inference"),
    ("VALUES (1, 'k', 1, 1) ON CONFLICT (a, b) WHERE a > 1 DO UPDATE SET n = 1", "0A000", "WHERE"),
    ("VALUES (1, 'k', 1, 1) ON CONFLICT (a, b) DO UPDATE SET a = 3", "0A000", "primary key"),
    ("VALUES (1, 'k', 1, 1) ON CONFLICT (a, b) DO UPDATE SET n = (SELECT 1)", "0A000", "query"),
    ("AS excluded VALUES (1, 'k', 1, 1) ON CONFLICT (a, b) DO UPDATE SET n = excluded.n", "42712", "once"),
])  # fmt: skip
def test_what_is_wrong_changes_nothing(client: Client, extra: str, what: str, state: str, words: str) -> None:
    made(client, extra)
    with pytest.raises(psycopg.Error) as failed:
        client.execute(f"INSERT INTO t {what}")
    assert (failed.value.sqlstate, words in str(failed.value)) == (state, True), failed.value
    assert rows(client) == [ONE, TWO]


@KINDS
@pytest.mark.parametrize(("update", "state"), [
    ("SET n = 1, n = 2 WHERE a = 1 AND b = 'k'", "42601"), ("SET n = 1, n = 2", "42601"),
    ("SET (n, x) = (1, 2), n = 3", "42601"), ("SET n = 1 WHERE a = 1 AND b = 'k' RETURNING s.n", "42P01"),
])  # fmt: skip
def test_what_is_wrong_with_an_update_changes_nothing(client: Client, extra: str, update: str, state: str) -> None:
    made(client, extra)
    with pytest.raises(psycopg.Error) as failed:
        client.execute(f"UPDATE t {update}")
    assert failed.value.sqlstate == state
    assert rows(client) == [ONE, TWO]


@KINDS
def test_what_a_column_cannot_hold_is_told(client: Client, extra: str) -> None:
    client.execute(f"CREATE TABLE t (a int PRIMARY KEY, n smallint{extra})")
    client.execute("INSERT INTO t (a, n) VALUES (1, 30000)")
    for value in ("40000", "t.n + excluded.n"):
        with pytest.raises(psycopg.errors.NumericValueOutOfRange):
            client.execute(f"INSERT INTO t (a, n) VALUES (1, 30000) ON CONFLICT (a) DO UPDATE SET n = {value}")
    assert rows(client, "SELECT a, n::int FROM t") == [(1, 30000)]


@KINDS
def test_parameters_and_returning(client: Client, extra: str) -> None:
    made(client, extra)
    sql = (
        "INSERT INTO t AS old (a, b, n, x) VALUES (%s, %s, %s, %s), (%s, 'k', 1, 1) ON CONFLICT (a, b) "
        "DO UPDATE SET n = old.n + excluded.n + %s, x = %s WHERE old.n < %s RETURNING {}"
    )
    given = (1, "k", 5, 6, 2, 100, 8, 15)
    for prepare in (False, True):
        client.execute("UPDATE t SET n = 10 WHERE a = 1")
        got = client.execute(sql.format("a, n AS total"), given, prepare=prepare)
        assert (got.fetchall(), got.statusmessage) == ([(1, 115)], "INSERT 0 1")
    client.execute("UPDATE t SET n = 10 WHERE a = 1")
    assert rows(client, sql.format("a + 1, upper(b), *"), *given)[0][:6] == (2, "K", 1, "k", 115, 8)


def test_many_rows_of_parameters_and_pipelines(client: Client) -> None:
    made(client)
    one = "(%s, 'k', %s, %s)"
    sql = f"INSERT INTO t VALUES {', '.join([one] * 30)} ON CONFLICT (a, b) DO UPDATE SET n = t.n + excluded.n"
    values = [v for i in range(1, 31) for v in (i, i, i)]
    for _ in range(2):
        client.execute(sql, values)
    found = rows(client)
    assert [n for _, _, n, _ in found] == [12, 24, *(2 * i for i in range(3, 31))]
    with client.pipeline():
        for i in range(20):
            client.execute("INSERT INTO t VALUES (1, 'k', %s, 0) ON CONFLICT (a, b) DO UPDATE SET n = excluded.n", (i,))
    assert rows(client)[0][:3] == (1, "k", 19)


@KINDS
def test_views_follow(client: Client, extra: str) -> None:
    made(client, extra)
    client.execute("CREATE MATERIALIZED VIEW v AS SELECT b, sum(n) AS n, count(*) AS c FROM t GROUP BY b")
    client.execute(
        "INSERT INTO t (a, b, n) VALUES (1, 'k', 5), (3, 'k', 6) ON CONFLICT (a, b) DO UPDATE SET n = excluded.n"
    )
    client.execute("FLUSH")
    assert rows(client, "SELECT b, n::int, c FROM v") == [("k", 31, 3)]
    client.execute("DROP MATERIALIZED VIEW v")


@KINDS
def test_counters_of_several_writers_add_up(server: ServerThread, client: Client, extra: str) -> None:
    client.execute(f"CREATE TABLE t (a int PRIMARY KEY, n int{extra})")
    update = "INSERT INTO t (a, n) VALUES (%s, 1) ON CONFLICT (a) DO UPDATE SET n = t.n + excluded.n"
    failed: list[BaseException] = []

    def write(number: int) -> None:
        try:
            with connected(server) as own:
                for i in range(15):
                    own.execute(update, (i % 3,), prepare=bool(number % 2))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert rows(client, "SELECT a, n FROM t ORDER BY a") == [(0, 20), (1, 20), (2, 20)]


@KINDS
def test_a_transaction_that_lost_its_row_to_another_fails(server: ServerThread, client: Client, extra: str) -> None:
    made(client, extra)
    upsert = "INSERT INTO t (a, b, n) VALUES (1, 'k', 1) ON CONFLICT (a, b) DO UPDATE SET n = t.n + excluded.n"
    with connected(server) as other:
        client.execute("BEGIN")
        client.execute(upsert)
        other.execute(upsert)
        with pytest.raises(psycopg.errors.SerializationFailure):
            client.execute("COMMIT")
    assert rows(client)[0] == (1, "k", 11, None)


@KINDS
def test_a_tables_own_rule_gives_way(client: Client, extra: str) -> None:
    for rule in ("OVERWRITE", "IGNORE"):
        client.execute(f"DROP TABLE IF EXISTS t; CREATE TABLE t (a int PRIMARY KEY, n int{extra}) ON CONFLICT {rule}")
        client.execute("INSERT INTO t (a, n) VALUES (1, 1)")
        client.execute("INSERT INTO t (a, n) VALUES (1, 5) ON CONFLICT (a) DO UPDATE SET n = t.n + excluded.n")
        assert rows(client, "SELECT a, n FROM t") == [(1, 6)]


def test_it_takes_the_rights_of_all_that_it_does(server: ServerThread, client: Client) -> None:
    made(client)
    client.execute("DROP ROLE IF EXISTS upserter; CREATE ROLE upserter LOGIN")
    sql = "INSERT INTO t VALUES (1, 'k', 5, 6) ON CONFLICT (a, b) DO UPDATE SET n = 5"
    with connected(server, "upserter") as own:
        for rights in (("INSERT",), ("INSERT", "UPDATE"), ("INSERT", "SELECT"), ("UPDATE", "SELECT")):
            client.execute(f"REVOKE ALL ON t FROM upserter; GRANT {', '.join(rights)} ON t TO upserter")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                own.execute(sql)
        client.execute("GRANT INSERT, UPDATE, SELECT ON t TO upserter")
        own.execute(sql)
    assert rows(client)[0] == (1, "k", 5, None)
    client.execute("DROP TABLE t; DROP ROLE upserter")


def test_tables_without_a_key_and_those_that_only_grow(client: Client) -> None:
    client.execute("CREATE TABLE s (a int)")
    for sql, state in (
        ("INSERT INTO s VALUES (1) ON CONFLICT (a) DO UPDATE SET a = 2", "42P10"),
        ("INSERT INTO s VALUES (1) ON CONFLICT ON CONSTRAINT s_pkey DO UPDATE SET a = 2", "42704"),
    ):
        with pytest.raises(psycopg.Error) as failed:
            client.execute(sql)
        assert failed.value.sqlstate == state
    client.execute("INSERT INTO s VALUES (1) ON CONFLICT DO NOTHING")
    assert rows(client, "SELECT * FROM s") == [(1,)]
