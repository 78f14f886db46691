"""Transactions as drivers use them: prepared statements, pipelines, cancels, conflicts, clients that go away."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import asyncpg
import psycopg
import pytest

from clients import connect
from headrace.catalog.contents import TableContent
from headrace.coordinator.decide import retry_turns
from headrace.server import ServerThread
from headrace.session.database import Database
from support import WAIT_S, eventually

LEVELS = ("READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
Connection = psycopg.Connection[Any]


@pytest.fixture
def table(database: Database, request: pytest.FixtureRequest) -> Iterator[str]:
    name = "w_" + "".join(c if c.isalnum() else "_" for c in request.node.name)[:50].lower()
    database.sql(f"CREATE TABLE {name} (id int PRIMARY KEY, n bigint); INSERT INTO {name} VALUES (1, 1), (2, 2)")
    yield name
    database.sql(f"DROP TABLE {name}")


def content(database: Database, table: str) -> list[tuple[int, int]]:
    return sorted(database.sql(f"SELECT id, n FROM {table}").rows())


def gate(database: Database, table: str) -> Any:
    """Nobody writes to the table inside the block."""
    record = next(o for o in database.catalog.state.objects_of(TableContent) if o.name == table)
    return database.coordinator.writer.gate([record.id])


def until_waiting(database: Database) -> None:
    eventually(lambda: database.coordinator.writer._queue, "a write to wait")


@pytest.mark.parametrize("prepare", [False, True])
def test_prepared_statements_in_and_out_of_transactions(
    server: ServerThread, database: Database, table: str, prepare: bool
) -> None:
    with connect(server) as c:
        put, add = f"INSERT INTO {table} VALUES (%s, %s)", f"UPDATE {table} SET n = n + %s WHERE id = %s RETURNING n"
        for begin, end in (("", ""), ("BEGIN", "COMMIT"), ("BEGIN", "ROLLBACK"), ("", "")):
            c.execute(begin, prepare=prepare)
            c.execute(put, (3, 3), prepare=prepare)
            assert c.execute(add, (1, 3), prepare=prepare).fetchall() == [(4,)]
            assert c.execute(add, (1, 9), prepare=prepare).fetchall() == []
            assert c.execute(f"SELECT n FROM {table} WHERE id = %s", (3,), prepare=prepare).fetchone() == (4,)
            c.execute(end, prepare=prepare)
            assert c.execute(f"DELETE FROM {table} WHERE id = %s", (3,), prepare=prepare).rowcount == (
                end != "ROLLBACK"
            )
    assert content(database, table) == [(1, 1), (2, 2)]


def test_a_pipeline_with_a_transaction_in_it(server: ServerThread, database: Database, table: str) -> None:
    with connect(server) as c:
        with c.pipeline():
            c.execute("BEGIN")
            for i in range(10, 20):
                c.execute(f"INSERT INTO {table} VALUES (%s, %s)", (i, i), prepare=True)
            moved = c.execute(f"UPDATE {table} SET n = n + 1 WHERE id = %s RETURNING n", (10,))
            c.execute("COMMIT")
            after = c.execute(f"SELECT count(*) FROM {table}")
            assert moved.fetchone() == (11,) and after.fetchone() == (12,)
        with pytest.raises(psycopg.errors.NotNullViolation), c.pipeline():
            c.execute("BEGIN")
            c.execute(f"INSERT INTO {table} VALUES (30, 30)")
            c.execute(f"INSERT INTO {table} VALUES (%s, %s)", (None, 1))
            c.execute("COMMIT")
        c.execute("ROLLBACK")
    assert len(content(database, table)) == 12


def with_asyncpg(server: ServerThread, use: Callable[[Any, Any], Awaitable[None]]) -> None:
    async def run() -> None:
        made = [
            await asyncpg.connect(host="127.0.0.1", port=server.port, user="root", database="dev", timeout=WAIT_S)
            for _ in range(2)
        ]
        try:
            await use(*made)
        finally:
            for connection in made:
                await connection.close()

    asyncio.run(run())


def test_asyncpg_in_conflict(server: ServerThread, database: Database, table: str) -> None:
    """Two that read the same counter: the second COMMIT is told 40001, and its next transaction goes through."""

    async def use(one: Any, two: Any) -> None:
        for isolation in ("serializable", "repeatable_read", "read_committed"):
            first, second = one.transaction(isolation=isolation), two.transaction(isolation=isolation)
            await first.start()
            await second.start()
            for connection in (one, two):
                n = await connection.fetchval(f"SELECT n FROM {table} WHERE id = $1", 1)
                await connection.execute(f"UPDATE {table} SET n = $1 WHERE id = $2", n + 1, 1)
            await first.commit()
            with pytest.raises(asyncpg.SerializationError):
                await second.commit()
            assert not two.is_in_transaction()
            await two.execute(f"UPDATE {table} SET n = n + 1 WHERE id = $1", 1)
        async with one.transaction():
            await one.executemany(f"INSERT INTO {table} VALUES ($1, $2)", [(i, i) for i in range(10, 15)])

    with_asyncpg(server, use)
    assert content(database, table) == [(1, 7), (2, 2), *((i, i) for i in range(10, 15))]


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_is_serializable(server: ServerThread, database: Database, table: str, level: str) -> None:
    """Write skew is refused, whatever was asked for."""
    with connect(server) as one, connect(server) as two:
        for c, begin in ((one, f"BEGIN ISOLATION LEVEL {level}"), (two, f"START TRANSACTION ISOLATION LEVEL {level}")):
            c.execute(begin)
            assert c.execute(f"SELECT sum(n) FROM {table}").fetchone() == (3,)
        one.execute(f"UPDATE {table} SET n = n - 3 WHERE id = 1")
        two.execute(f"UPDATE {table} SET n = n - 3 WHERE id = 2")
        one.execute("COMMIT")
        with pytest.raises(psycopg.errors.SerializationFailure):
            two.execute("COMMIT")
        assert two.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert content(database, table) == [(1, -2), (2, 2)]


def test_a_read_only_transaction(server: ServerThread, database: Database, table: str) -> None:
    with connect(server) as reader, connect(server) as writer:
        for begin in ("BEGIN READ ONLY", "BEGIN TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY"):
            reader.execute(begin)
            before = reader.execute(f"SELECT * FROM {table} ORDER BY id").fetchall()
            writer.execute(f"UPDATE {table} SET n = n + 1 WHERE id = 1")
            assert reader.execute(f"SELECT * FROM {table} ORDER BY id").fetchall() == before
            reader.execute("COMMIT")  # is not refused
            assert reader.execute(f"SELECT n FROM {table} WHERE id = 1").fetchone() == (before[0][1] + 1,)
        reader.execute("BEGIN READ ONLY")
        for parameters in ((), (5,)):
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                reader.execute(f"INSERT INTO {table} VALUES ({'%s' if parameters else '5'}, 1)", parameters)
            reader.execute("ROLLBACK")
            reader.execute("BEGIN READ ONLY")
        reader.execute("ROLLBACK")
    assert content(database, table) == [(1, 3), (2, 2)]


def refused(own: Connection, other: Connection, table: str) -> None:
    """Let a session's transaction be refused because of another one."""
    own.execute("BEGIN")
    own.execute(f"UPDATE {table} SET n = n + 1 WHERE id = 1")
    other.execute(f"UPDATE {table} SET n = n + 1 WHERE id = 1")
    with pytest.raises(psycopg.errors.SerializationFailure):
        own.execute("COMMIT")


@pytest.mark.parametrize("idle", ["sleeps", "dies"])
def test_who_was_refused_waits_for_nobody_who_does_nothing(
    server: ServerThread, database: Database, table: str, idle: str
) -> None:
    """The turn of a client that does nothing is over by itself; a session that is quick again afterwards is so."""
    with connect(server) as first, connect(server) as second, connect(server) as other:
        for one in (first, second):
            refused(one, other, table)
        first.execute("BEGIN")
        if idle == "dies":
            first.close()
        second.execute("BEGIN")
        second.execute(f"UPDATE {table} SET n = 0 WHERE id = 1")
        second.execute("COMMIT")
    assert content(database, table)[0] == (1, 0)


def test_who_was_refused_may_go_on_otherwise(server: ServerThread, database: Database, table: str) -> None:
    with connect(server) as own, connect(server) as other:
        refused(own, other, table)
        own.execute(f"UPDATE {table} SET n = 7 WHERE id = 1; SELECT 1")
        refused(own, other, table)
        own.execute("BEGIN READ ONLY")
        assert own.execute(f"SELECT n FROM {table} WHERE id = 1").fetchone() == (8,)
        own.execute("COMMIT")
        refused(own, other, table)
        own.execute(f"INSERT INTO {table} VALUES (5, 5)")
    assert content(database, table)[0] == (1, 9)


@pytest.mark.parametrize("text", ["BEGIN", "UPDATE {t} SET n = 0 WHERE id = 1; UPDATE {t} SET n = 0 WHERE id = 2"])
def test_who_waits_for_a_turn_does_so_within_the_time_limit(
    server: ServerThread, table: str, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(retry_turns, "LASTS_S", 10.0 * WAIT_S)
    with connect(server) as first, connect(server) as second, connect(server) as other:
        for one in (first, second):
            refused(one, other, table)
        first.execute("BEGIN")
        second.execute("SET statement_timeout = 100")
        with pytest.raises(psycopg.errors.QueryCanceled):
            second.execute(text.format(t=table))
        assert second.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        second.execute("BEGIN")
        second.execute("COMMIT")


def test_rollback_to_after_an_error(server: ServerThread, database: Database, table: str) -> None:
    with connect(server) as c:
        c.execute("BEGIN")
        c.execute(f"INSERT INTO {table} VALUES (3, 3)")
        c.execute("SAVEPOINT s")
        c.execute(f"UPDATE {table} SET n = 100 WHERE id = %s", (1,))
        with pytest.raises(psycopg.errors.NumericValueOutOfRange):
            c.execute(f"UPDATE {table} SET n = n * %s WHERE id = %s", (2**62, 1))
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            c.execute(f"UPDATE {table} SET n = %s WHERE id = %s", (5, 2), prepare=True)
        c.execute("ROLLBACK TO s")
        assert c.execute(f"SELECT * FROM {table} ORDER BY id").fetchall() == [(1, 1), (2, 2), (3, 3)]
        c.execute(f"UPDATE {table} SET n = n + 1 WHERE id = 3")
        c.execute("RELEASE s")
        c.execute("COMMIT")
        c.execute("BEGIN")
        c.execute(f"UPDATE {table} SET n = 0 WHERE id = 1")
        with pytest.raises(psycopg.errors.NotNullViolation):
            c.execute(f"INSERT INTO {table} VALUES (NULL, 1)")
        assert c.execute("COMMIT").statusmessage == "ROLLBACK"
    assert content(database, table) == [(1, 1), (2, 2), (3, 4)]


def waiting(c: Connection, errors: list[str | None], *statements: tuple[Any, ...]) -> threading.Thread:
    def run() -> None:
        try:
            for sql, *parameters in statements:
                c.execute(sql, *parameters)
            errors.append("done")
        except psycopg.Error as error:
            errors.append(error.sqlstate)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("sql", ["INSERT INTO {t} VALUES (9, 9)", "INSERT INTO {t} VALUES (%s, 9)", "COMMIT"])
@pytest.mark.parametrize("timeout", [False, True])
def test_what_waits_behind_others_can_be_given_up(
    server: ServerThread, database: Database, table: str, sql: str, timeout: bool
) -> None:
    """By a cancel or by `statement_timeout`; nothing of it is written then, and the connection goes on."""
    with connect(server) as c:
        parameters = ((8,),) if "%s" in sql else ()
        if sql == "COMMIT":
            c.execute("BEGIN")
            c.execute(f"INSERT INTO {table} VALUES (9, 9)")
        if timeout:
            c.execute("SET statement_timeout = '300ms'")
        errors: list[str | None] = []
        with gate(database, table):
            thread = waiting(c, errors, (sql.format(t=table), *parameters))
            if not timeout:
                until_waiting(database)
                c.cancel_safe(timeout=WAIT_S)  # PQcancel would keep Python to itself, which the server needs
            thread.join(WAIT_S)
            assert errors == ["57014"]
        c.execute("SET statement_timeout = 0")
        assert c.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        assert content(database, table) == [(1, 1), (2, 2)]
        c.execute(f"INSERT INTO {table} VALUES (5, 5)")
    assert content(database, table) == [(1, 1), (2, 2), (5, 5)]


def test_a_client_that_dies_in_the_middle_of_a_transaction(
    server: ServerThread, database: Database, table: str
) -> None:
    sessions = len(database.instance._sessions)
    c = connect(server)
    c.execute("BEGIN")
    c.execute(f"UPDATE {table} SET n = 0 WHERE id = 1")
    c.execute(f"UPDATE {table} SET n = 0 WHERE n = 2")
    c.pgconn.finish()
    eventually(lambda: len(database.instance._sessions) == sessions, "its session to end")
    assert not database.coordinator._core.storage.pins.prefixes()
    assert content(database, table) == [(1, 1), (2, 2)]


def test_a_client_that_dies_while_its_commit_waits(server: ServerThread, database: Database, table: str) -> None:
    """It is committed or not, as a whole, and nobody else is held up."""
    sessions = len(database.instance._sessions)
    c = connect(server)
    c.execute("BEGIN")
    c.execute(f"UPDATE {table} SET n = 10 WHERE id = 1")
    c.execute(f"UPDATE {table} SET n = 20 WHERE id = 2")
    with gate(database, table):
        c.pgconn.send_query(b"COMMIT")
        c.pgconn.flush()
        until_waiting(database)
        c.pgconn.finish()
        eventually(lambda: len(database.instance._sessions) == sessions, "its session to end")
    eventually(lambda: not database.coordinator._core.storage.pins.prefixes(), "all to be let go of")
    assert content(database, table) in ([(1, 1), (2, 2)], [(1, 10), (2, 20)])
    with connect(server) as other:
        other.execute(f"UPDATE {table} SET n = 5 WHERE id = 1")
    assert (1, 5) in content(database, table)


def test_increments_of_many_clients(server: ServerThread, database: Database, table: str) -> None:
    """In statements of their own none is lost; in transactions whoever was told of a commit counts."""
    counted: list[int] = []

    def client(number: int) -> None:
        with connect(server) as c:
            for i in range(8):
                c.execute(f"UPDATE {table} SET n = n + 1 WHERE id = 1", prepare=bool(number % 2))
                try:
                    with c.transaction():
                        row = c.execute(f"SELECT n FROM {table} WHERE id = %s", (2,)).fetchone()
                        assert row is not None
                        c.execute(f"UPDATE {table} SET n = %s WHERE id = 2", (row[0] + 1,))
                    counted.append(i)
                except psycopg.errors.SerializationFailure:
                    pass

    threads = [threading.Thread(target=client, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert counted and content(database, table) == [(1, 49), (2, 2 + len(counted))]
