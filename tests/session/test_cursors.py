"""Cursors: as PostgreSQL moves them, which is asked the same, and as drivers use them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import asyncpg
import psycopg
import pytest

from clients import connect
from headrace.server import ServerThread
from headrace.session.database import Database
from postgres import Postgres

ROWS = 10
QUERY = "SELECT n FROM numbers ORDER BY n"


@pytest.fixture(scope="module", autouse=True)
def numbers(database: Database) -> Iterator[None]:
    database.sql("CREATE TABLE numbers (n int PRIMARY KEY)")
    database.sql("INSERT INTO numbers VALUES " + ", ".join(f"({i})" for i in range(1, ROWS + 1)))
    yield
    database.sql("DROP TABLE numbers")


@pytest.fixture
def both(server: ServerThread, postgres: Postgres) -> Iterator[list[psycopg.Connection[Any]]]:
    with connect(server) as own, postgres.connect() as other:
        other.execute(f"CREATE TEMP TABLE numbers AS SELECT n::int FROM generate_series(1, {ROWS}) AS n")
        yield [own, other]


def said(connection: psycopg.Connection[Any], sql: str) -> tuple[Any, ...]:
    """What a statement returns, or its error."""
    try:
        cursor = connection.execute(sql)
        return cursor.statusmessage, cursor.fetchall() if cursor.description else None
    except psycopg.Error as error:
        return error.sqlstate, error.diag.message_primary, error.diag.message_hint


MOVES = [
    "FETCH c", "FETCH NEXT c", "FETCH 3 FROM c", "FETCH PRIOR c", "FETCH BACKWARD 2 FROM c", "FETCH ABSOLUTE 5 c",
    "FETCH RELATIVE 2 c", "FETCH RELATIVE -3 c", "FETCH RELATIVE 0 c", "FETCH FORWARD 0 c", "FETCH LAST c",
    "FETCH NEXT c", "FETCH NEXT c", "FETCH PRIOR c", "FETCH FIRST c", "FETCH PRIOR c", "FETCH PRIOR c", "FETCH c",
    "MOVE 3 c", "FETCH c", "MOVE BACKWARD ALL c", "MOVE FORWARD ALL c", "FETCH BACKWARD ALL c", "FETCH ABSOLUTE -2 c",
    "FETCH ABSOLUTE 0 c", "FETCH c", "FETCH ABSOLUTE 99 c", "FETCH BACKWARD 3 c", "FETCH -2 c", "FETCH ALL c",
    "MOVE ABSOLUTE 4 c", "MOVE RELATIVE 1 c", "MOVE RELATIVE 99 c", "FETCH ABSOLUTE -99 c", "FETCH c", "CLOSE c",
    "FETCH c",
]  # fmt: skip


def test_scrolling_is_that_of_postgres(both: list[psycopg.Connection[Any]]) -> None:
    for connection in both:
        connection.execute("BEGIN")
        connection.execute(f"DECLARE c SCROLL CURSOR FOR {QUERY}")
    for move in MOVES:
        assert said(both[0], move) == said(both[1], move), move


@pytest.mark.parametrize("moves", [
    ["FETCH c", "FETCH 3 c", "MOVE 2 c", "FETCH ALL c", "FETCH c"],
    ["FETCH ABSOLUTE 3 c", "FETCH RELATIVE 2 c", "MOVE RELATIVE 1 c", "FETCH FORWARD ALL c"],
    ["FETCH 2 c", "FETCH PRIOR c"], ["FETCH 2 c", "FETCH RELATIVE 0 c"], ["FETCH LAST c"], ["FETCH BACKWARD ALL c"],
    ["FETCH 3 c", "FETCH ABSOLUTE 1 c"], ["MOVE BACKWARD 1 c"], ["FETCH ABSOLUTE 20 c", "FETCH c"], ["FETCH 0 c"],
])  # fmt: skip
def test_forward_only_is_that_of_postgres(both: list[psycopg.Connection[Any]], moves: list[str]) -> None:
    for connection in both:
        connection.execute("BEGIN")
        connection.execute(f"DECLARE c NO SCROLL CURSOR FOR {QUERY}")
    for move in moves:
        assert said(both[0], move) == said(both[1], move), move


@pytest.mark.parametrize("script", [
    [f"DECLARE c CURSOR FOR {QUERY}"],
    ["BEGIN", f"DECLARE c CURSOR FOR {QUERY}", "COMMIT", "FETCH c"],
    ["BEGIN", f"DECLARE c CURSOR WITH HOLD FOR {QUERY}", "FETCH 2 c", "COMMIT", "FETCH 3 c", "CLOSE c", "FETCH c"],
    ["BEGIN", f"DECLARE c SCROLL CURSOR WITH HOLD FOR {QUERY}", "FETCH 2 c", "COMMIT", "FETCH PRIOR c", "CLOSE ALL"],
    ["BEGIN", f"DECLARE c CURSOR WITH HOLD FOR {QUERY}", "ROLLBACK", "FETCH c"],
    [f"DECLARE c CURSOR WITH HOLD FOR {QUERY}", "FETCH 2 c", "BEGIN", "FETCH c", "ROLLBACK", "FETCH c", "CLOSE c"],
    [f"DECLARE c CURSOR WITH HOLD FOR {QUERY}", f"DECLARE c CURSOR WITH HOLD FOR {QUERY}", "CLOSE c"],
    ["BEGIN", "SAVEPOINT s", f"DECLARE c CURSOR FOR {QUERY}", "ROLLBACK TO s", "FETCH c"],
    ["BEGIN", "SAVEPOINT s", f"DECLARE c CURSOR FOR {QUERY}", "RELEASE s", "SAVEPOINT t", "ROLLBACK TO t", "FETCH c"],
    ["BEGIN", "SAVEPOINT s", "SAVEPOINT t", f"DECLARE c CURSOR FOR {QUERY}", "RELEASE t", "ROLLBACK TO s", "FETCH c"],
    ["BEGIN", f"DECLARE c CURSOR FOR {QUERY}", "SAVEPOINT s", "FETCH c", "ROLLBACK TO s", "FETCH c"],
    [f"DECLARE c CURSOR WITH HOLD FOR {QUERY}", "DISCARD ALL", "FETCH c"],
    ["CLOSE c"], ["CLOSE ALL"], ["FETCH c"], ["DECLARE c SCROLL NO SCROLL CURSOR FOR SELECT 1"],
])  # fmt: skip
def test_lives_of_cursors_are_those_of_postgres(both: list[psycopg.Connection[Any]], script: list[str]) -> None:
    for statement in script:
        assert said(both[0], statement)[:2] == said(both[1], statement)[:2], statement


def test_a_cursor_reads_one_snapshot(server: ServerThread) -> None:
    with connect(server) as connection, connect(server) as other:
        connection.execute("BEGIN")
        connection.execute(f"DECLARE c CURSOR FOR {QUERY}")
        assert connection.execute("FETCH c").fetchall() == [(1,)]
        other.execute("INSERT INTO numbers VALUES (100)")
        other.execute("DELETE FROM numbers WHERE n = 2")
        assert len(connection.execute("FETCH ALL c").fetchall()) == ROWS - 1
        connection.execute("COMMIT")
        other.execute("DELETE FROM numbers WHERE n = 100")
        other.execute("INSERT INTO numbers VALUES (2)")


def test_memory_is_limited(server: ServerThread, database: Database) -> None:
    database.sql("CREATE TABLE much (n int, t text)")
    database.sql("INSERT INTO much SELECT n, repeat('x', 100) FROM generate_series(1, 100000) AS g(n)")
    database.sql("ALTER SYSTEM SET cursor_memory_bytes = 1000000")
    try:
        with connect(server) as connection:
            connection.execute("BEGIN")
            connection.execute("DECLARE c NO SCROLL CURSOR FOR SELECT n, t FROM much")
            connection.execute("MOVE 90000 c")
            assert len(connection.execute("FETCH ALL c").fetchall()) == 10_000
            connection.execute("DECLARE d SCROLL CURSOR FOR SELECT n, t FROM much")
            with pytest.raises(psycopg.Error) as failed:
                connection.execute("MOVE ALL d")
            assert failed.value.sqlstate == "53200"
            connection.execute("ROLLBACK")
            connection.execute("BEGIN; DECLARE d SCROLL CURSOR WITH HOLD FOR SELECT n, t FROM much; SAVEPOINT s")
            with pytest.raises(psycopg.Error):
                connection.execute("MOVE ALL d")
            connection.execute("ROLLBACK TO s; DELETE FROM much WHERE n = 1")
            connection.execute("COMMIT")  # what has failed is not held, and is in the way of nothing else
            assert said(connection, "FETCH d")[0] == "34000"
            assert said(connection, "SELECT count(*)::int FROM much")[1] == [(99_999,)]
    finally:
        database.sql("ALTER SYSTEM RESET cursor_memory_bytes")
        database.sql("DROP TABLE much")


def test_what_a_failed_commit_would_have_held_is_gone(server: ServerThread) -> None:
    """It may have read what was never committed."""
    with connect(server) as connection, connect(server) as other:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO numbers VALUES (100)")
        connection.execute(f"DECLARE c CURSOR WITH HOLD FOR {QUERY} DESC")
        other.execute("INSERT INTO numbers VALUES (100)")
        with pytest.raises(psycopg.errors.SerializationFailure):
            connection.execute("COMMIT")
        assert said(connection, "FETCH c")[0] == "34000"
        other.execute("DELETE FROM numbers WHERE n = 100")


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("scrollable", [None, True])
def test_psycopg_cursors_of_the_server(server: ServerThread, binary: bool, scrollable: bool | None) -> None:
    with connect(server, autocommit=False) as connection:
        with connection.cursor("named", binary=binary, scrollable=scrollable) as cursor:
            cursor.itersize = 3
            cursor.execute("SELECT n, 'x' AS t FROM numbers WHERE n <= %s ORDER BY n", (7,))
            assert cursor.description is not None and [c.name for c in cursor.description] == ["n", "t"]
            assert cursor.fetchone() == (1, "x")
            assert [n for n, _ in cursor.fetchmany(2)] == [2, 3]
            assert [n for n, _ in cursor] == [4, 5, 6, 7]
            if scrollable:
                cursor.scroll(0, "absolute")
                assert cursor.fetchone() == (1, "x")
        connection.commit()
        with connection.cursor("held", withhold=True) as cursor:
            cursor.execute(QUERY)
            connection.commit()
            assert len(cursor.fetchall()) == ROWS


def test_a_binary_cursor(server: ServerThread) -> None:
    with connect(server) as connection:
        connection.execute("BEGIN")
        connection.execute(f"DECLARE c BINARY CURSOR FOR {QUERY}")
        result = connection.pgconn.exec_(b"FETCH c")
        assert (result.fformat(0), result.get_value(0, 0)) == (1, b"\0\0\0\1")


def test_asyncpg_cursors(server: ServerThread) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(host="127.0.0.1", port=server.port, user="root", database="dev")
        try:
            async with connection.transaction():
                found = [row["n"] async for row in connection.cursor(QUERY, prefetch=3)]
                assert found == list(range(1, ROWS + 1))
                cursor = await connection.cursor("SELECT n FROM numbers WHERE n > $1 ORDER BY n", 2)
                assert (await cursor.fetchrow())["n"] == 3
                assert await cursor.forward(2) == 2
                assert [row["n"] for row in await cursor.fetch(2)] == [6, 7]
        finally:
            await connection.close()

    asyncio.run(run())
