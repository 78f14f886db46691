"""What drivers do over the wire with a real database: bound parameters, prepared statements, pipelines."""

from __future__ import annotations

import asyncio
import datetime as dt
import io
import json
from collections.abc import Awaitable, Callable, Iterator
from decimal import Decimal
from typing import Any

import asyncpg
import psycopg
import pytest
from samples import SAMPLES

from clients import connect
from headrace.server import ServerThread
from headrace.session.database import Database
from headrace.session.idle import IdleClock
from headrace.session.variables import Variables
from headrace.sql import statements as st
from postgres import Postgres
from support import WAIT_S, eventually

ITEM = (7, "it's", Decimal("1.50"), dt.date(2024, 2, 3), 2.5, True, b"\0\xff")
COLUMNS = "id int PRIMARY KEY, name text, price numeric(10,2), day date, x float8, ok boolean, raw bytea"


@pytest.fixture
def table(database: Database, request: pytest.FixtureRequest) -> Iterator[str]:
    name = "t_" + "".join(c if c.isalnum() else "_" for c in request.node.name)[:50].lower()
    database.sql(f"CREATE TABLE {name} ({COLUMNS})")
    yield name
    database.sql(f"DROP TABLE {name}")


def with_asyncpg(server: ServerThread, use: Callable[[Any], Awaitable[None]]) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(
            host="127.0.0.1", port=server.port, user="root", database="dev", timeout=WAIT_S
        )
        try:
            await use(connection)
        finally:
            await connection.close()

    asyncio.run(run())


def test_psycopg_binds_several_parameters(server: ServerThread, table: str) -> None:
    items = [(i, *ITEM[1:]) for i in range(30)]
    with connect(server) as connection:
        connection.cursor().executemany(f"INSERT INTO {table} VALUES (%s,%s,%s,%s,%s,%s,%s)", items)
        marks = ",".join(["(%s,%s,%s,%s,%s,%s,%s)"] * 2)
        connection.execute(f"INSERT INTO {table} VALUES {marks}", (100, *ITEM[1:], 101, *ITEM[1:]), prepare=True)
        found = connection.execute(
            f"SELECT * FROM {table} WHERE id<%s OR id=%s ORDER BY id", (30, 101), binary=True
        ).fetchall()
    assert found == [*items, (101, *ITEM[1:])]


def test_psycopg_lets_go_of_what_it_has_prepared(server: ServerThread, table: str) -> None:
    with connect(server) as connection:
        connection.prepare_threshold, connection.prepared_max = 0, 2
        for i in range(6):
            assert connection.execute(f"SELECT %s::int+{i}", (1,)).fetchone() == (1 + i,)
        connection.execute(f"CREATE VIEW v_{table} AS SELECT id FROM {table}")
        connection.execute(f"DROP VIEW v_{table}")  # upon which it sends DEALLOCATE ALL
        assert connection.execute("SELECT %s::int+0", (1,)).fetchone() == (1,)
        connection.execute("DEALLOCATE ALL")
        connection.execute("DISCARD ALL")


def test_psycopg_pipelines_bound_inserts(server: ServerThread, table: str) -> None:
    with connect(server) as connection, connection.pipeline():
        cursors = [
            connection.execute(f"INSERT INTO {table} (id,name) VALUES (%s,%s) RETURNING id", (i, str(i)))
            for i in range(10)
        ]
        assert [cursor.fetchone() for cursor in cursors] == [(i,) for i in range(10)]


def test_psycopg_async(server: ServerThread, table: str) -> None:
    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(
            host="127.0.0.1", port=server.port, user="root", dbname="dev", autocommit=True
        ) as connection:
            await connection.execute(f"INSERT INTO {table} VALUES (%s,%s,%s,%s,%s,%s,%s)", ITEM)
            cursor = await connection.execute(f"SELECT * FROM {table} WHERE id=%s AND name=%s", ITEM[:2])
            assert await cursor.fetchall() == [ITEM]

    asyncio.run(run())


def test_asyncpg_binds_several_parameters(server: ServerThread, table: str) -> None:
    async def use(connection: Any) -> None:
        items = [(i, *ITEM[1:]) for i in range(30)]
        await connection.executemany(f"INSERT INTO {table} VALUES ($1,$2,$3,$4,$5,$6,$7)", items)
        found = await connection.fetch(f"SELECT * FROM {table} WHERE id<$1 OR id=$2 ORDER BY id", 10, 20)
        assert [tuple(row) for row in found] == [*items[:10], items[20]]
        assert await connection.execute(f"UPDATE {table} SET name=$1 WHERE id=$2", "other", 3) == "UPDATE 1"
        assert await connection.fetchval(f"SELECT name FROM {table} WHERE id=$1", 3) == "other"
        await connection.reset()

    with_asyncpg(server, use)


def test_asyncpg_reads_every_list(server: ServerThread) -> None:
    async def use(connection: Any) -> None:
        for sql in [sql for sql in SAMPLES[st.Show] if "kinds_" not in sql]:
            await connection.fetch(sql)
        assert await connection.fetchval("SHOW TIME ZONE") == "UTC"

    with_asyncpg(server, use)


def test_asyncpg_asks_the_catalogs_about_types(server: ServerThread, table: str) -> None:
    """Records, arrays of them, and codecs: for each it reads `pg_type`, in binary."""

    async def use(connection: Any) -> None:
        assert [tuple(row["r"]) for row in await connection.fetch("SELECT ROW(1, 'a'::text) AS r")] == [(1, "a")]
        arrays = await connection.fetchval("SELECT ARRAY[ROW(1, 'a'::text), ROW(2, NULL)]")
        assert [tuple(record) for record in arrays] == [(1, "a"), (2, None)]
        statement = await connection.prepare(f"SELECT id, price, raw FROM {table} WHERE id = ANY($1) AND name = $2")
        assert [a.type.name for a in statement.get_attributes()] == ["int4", "numeric", "bytea"]
        assert [p.name for p in statement.get_parameters()] == ["int4[]", "text"]
        await connection.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        assert await connection.fetchval("SELECT $1::jsonb", {"a": [1]}) == {"a": [1]}
        await connection.reset_type_codec("jsonb", schema="pg_catalog")
        with pytest.raises(ValueError, match=r"unknown type: public\.hstore"):
            await connection.set_builtin_type_codec("hstore", codec_name="pg_contrib.hstore")
        with pytest.raises(ValueError, match=r"unknown type: public\.no_table"):
            await connection.set_type_codec("no_table", encoder=str, decoder=str)
        await connection.set_type_codec(table, encoder=tuple, decoder=tuple, format="tuple")
        await connection.reset_type_codec(table)
        rows = await connection.fetch(
            "SELECT oid, typname, typtype, typinput FROM pg_type WHERE oid = ANY($1) AND typtype = $2", [23, 25], b"b"
        )
        assert [tuple(row) for row in rows] == [(23, "int4", b"b", "int4in"), (25, "text", b"b", "textin")]
        named = await connection.fetchrow(f"SELECT '{table}'::regclass, '{table}'::regclass::oid, $1::regtype", "int4")
        assert (named[0], named[2]) == (table, "integer") and named[1] > 0
        assert await connection.fetchval("SELECT relname FROM pg_class WHERE oid = $1", named[1]) == table
        await connection.reload_schema_state()

    with_asyncpg(server, use)


def test_asyncpg_copies(server: ServerThread, table: str) -> None:
    async def use(connection: Any) -> None:
        items = [(i, *ITEM[1:]) for i in range(5)]
        assert await connection.copy_records_to_table(table, records=items) == "COPY 5"
        few = ((i, str(i)) for i in range(5, 8))
        assert await connection.copy_records_to_table(table, records=few, columns=["id", "name"]) == "COPY 3"
        assert await connection.copy_to_table(table, source=io.BytesIO(b"8,x\n"), columns=["id", "name"], format="csv")
        out = io.BytesIO()
        query = f"SELECT id, name FROM {table} WHERE id > $1 ORDER BY id"
        assert await connection.copy_from_query(query, 6, output=out, format="csv", header=True) == "COPY 2"
        assert out.getvalue() == b"id,name\n7,7\n8,x\n"
        assert await connection.copy_from_table(table, output=io.BytesIO(), format="binary") == "COPY 9"
        with pytest.raises(asyncpg.FeatureNotSupportedError):
            await connection.copy_records_to_table(table, records=items, where="id > 3")
        with pytest.raises(asyncpg.FeatureNotSupportedError):
            await connection.add_listener("news", lambda *heard: None)
        assert await connection.fetchval(f"SELECT count(*) FROM {table}") == 9

    with_asyncpg(server, use)


def test_asyncpg_follows_changes(server: ServerThread, table: str) -> None:
    """A subscription's cursor, and its stream until it is cancelled."""

    async def use(connection: Any) -> None:
        await connection.execute(f"CREATE SUBSCRIPTION {table}_log FROM {table} WITH (retention = '1 hour')")
        await connection.execute(f"DECLARE news SUBSCRIPTION CURSOR FOR {table}_log FULL")
        await connection.execute(f"INSERT INTO {table} (id, name) VALUES ($1, $2)", 1, "a")
        rows = await connection.fetch("FETCH 5 FROM news WITH (timeout = '20s')")
        assert [(row["id"], row["name"], row["op"]) for row in rows] == [(1, "a", "Insert")]
        await connection.execute("CLOSE news")
        out = io.BytesIO()
        ended = await connection.copy_from_query(f"SUBSCRIBE {table} FULL UP TO now()", output=out, format="csv")
        assert ended == "COPY 1" and out.getvalue().split(b",")[1:4] == [b"Insert", b"1", b"a"]
        heard = asyncio.Event()

        async def hear(data: bytes) -> None:
            if b"second" in data:
                heard.set()

        stream = asyncio.ensure_future(connection.copy_from_query(f"SUBSCRIBE {table}_log FULL", output=hear))
        other = await asyncpg.connect(host="127.0.0.1", port=server.port, user="root", database="dev")
        await other.execute(f"INSERT INTO {table} (id, name) VALUES (2, 'second')")
        await asyncio.wait_for(heard.wait(), WAIT_S)
        stream.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stream
        assert await connection.fetchval(f"SELECT count(*) FROM {table}") == 2  # the line is of use afterwards
        await other.execute(f"DROP SUBSCRIPTION {table}_log")
        await other.close()

    with_asyncpg(server, use)


def test_asyncpg_lends_connections(server: ServerThread, table: str) -> None:
    """A pool resets what it gets back: cursors, settings, what was listened to."""

    async def run() -> None:
        at = {"host": "127.0.0.1", "port": server.port, "user": "root", "database": "dev", "timeout": WAIT_S}
        async with asyncpg.create_pool(**at, min_size=1, max_size=2) as pool:
            async with pool.acquire() as lent:
                await lent.execute("SET search_path = pg_catalog")
                await lent.execute("SET TIME ZONE 'Europe/Berlin'")
            names = [pool.execute(f"INSERT INTO {table} (id) VALUES ($1)", i) for i in range(8)]
            assert await asyncio.gather(*names) == ["INSERT 0 1"] * 8
            assert await pool.fetchval(f"SELECT count(*) FROM {table}") == 8
            assert {await pool.fetchval("SHOW TIME ZONE") for _ in range(3)} == {"UTC"}

    asyncio.run(run())


def test_asyncpg_prepares_by_statement(server: ServerThread) -> None:
    async def use(connection: Any) -> None:
        await connection.fetch("PREPARE twice (int) AS SELECT $1 * 2 AS x")
        assert [tuple(row) for row in await connection.fetch("EXECUTE twice(21)")] == [(42,)]
        await connection.fetch("DEALLOCATE twice")

    with_asyncpg(server, use)


def test_prepare_execute_and_deallocate(server: ServerThread, table: str) -> None:
    with connect(server) as connection:
        connection.execute(f"PREPARE put (int, text, unknown) AS INSERT INTO {table} (id,name,price) VALUES ($1,$2,$3)")
        connection.execute("EXECUTE put(1, 'it''s', -2.5)")
        connection.execute("EXECUTE put(2, NULL, 3)")
        connection.execute(f"PREPARE got AS SELECT name,price FROM {table} WHERE id=$1")
        assert connection.execute("EXECUTE got(1)").fetchall() == [("it's", Decimal("-2.50"))]
        assert connection.execute("EXECUTE got('2')", binary=True).fetchall() == [(None, Decimal("3.00"))]
        with pytest.raises(psycopg.errors.DuplicatePreparedStatement):
            connection.execute("PREPARE got AS SELECT 1")
        with pytest.raises(psycopg.errors.SyntaxError, match="wrong number of parameters"):
            connection.execute("EXECUTE got(1, 2)")
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="expression as a value"):
            connection.execute("EXECUTE got(1 + 1)")
        with pytest.raises(psycopg.errors.InvalidTextRepresentation):
            connection.execute("EXECUTE got('x')")
        connection.execute("DEALLOCATE PREPARE got")
        for statement in ("EXECUTE got(1)", "DEALLOCATE got"):
            with pytest.raises(psycopg.errors.InvalidSqlStatementName):
                connection.execute(statement)
        connection.execute("DISCARD ALL")
        with pytest.raises(psycopg.errors.InvalidSqlStatementName):
            connection.execute("EXECUTE put(3, 'x', 1)")


@pytest.mark.parametrize(
    ("limit", "sqlstate"), [("idle_in_transaction_session_timeout", "25P03"), ("transaction_timeout", "25P04")]
)
def test_a_transaction_that_is_left_alone_pins_nothing_for_ever(
    server: ServerThread, database: Database, table: str, limit: str, sqlstate: str
) -> None:
    pins = database.coordinator._core.storage.pins
    eventually(lambda: not pins, "earlier tests to let go")
    with connect(server) as connection:
        connection.execute("BEGIN")
        connection.execute(f"SELECT count(*) FROM {table}")
        assert pins
        connection.execute(f"SET {limit} = '10ms'")
        eventually(lambda: not pins, "the transaction to be ended")
        with pytest.raises(psycopg.Error) as raised:
            connection.execute("SELECT 1")
        assert raised.value.sqlstate == sqlstate
    events = database.sql("SELECT message FROM headrace_catalog.events WHERE kind = 'client_sent_away'").rows()
    assert any(("transaction timeout" in message) for (message,) in events)


def test_limits_of_idle_sessions() -> None:
    now_s = [100.0]
    clock = IdleClock(lambda: now_s[0])
    variables = Variables(idle_session_timeout="1s", idle_in_transaction_session_timeout="5s", transaction_timeout="8s")

    transaction: object | None = None

    def limit() -> tuple[float, str] | None:
        found = clock.limit(variables, transaction)
        return None if found is None else (found.seconds, found.error.sqlstate)

    assert limit() == (1, "57P05")
    transaction = object()
    assert limit() == (5, "25P03")
    now_s[0] += 4
    assert limit() == (4, "25P04")
    now_s[0] += 40
    assert limit() == (0, "25P04")
    transaction = object()
    assert limit() == (5, "25P03"), "each transaction has its own time"
    transaction = None
    variables.set("idle_session_timeout", "0")
    assert limit() is None


@pytest.mark.parametrize("way", ["protocol", "sql"])
@pytest.mark.parametrize("kind", ["INSERT INTO {} VALUES ({}) RETURNING *", "DELETE FROM {} WHERE id = {} RETURNING *",
                                  "UPDATE {} SET n = n + {} RETURNING *"])  # fmt: skip
def test_what_would_return_other_columns_writes_nothing(
    server: ServerThread, database: Database, request: pytest.FixtureRequest, way: str, kind: str
) -> None:
    """It is found out before anything is written, and the statement can be prepared again."""
    name = f"changing_{abs(hash(request.node.name))}"
    database.sql(f"CREATE TABLE {name} (id int, n int DEFAULT 0)")
    with connect(server) as connection:
        connection.execute(f"INSERT INTO {name} VALUES (1, 1)")
        text = kind.format(name, "$1")
        if way == "sql":
            connection.execute(f"PREPARE p_{name} (int) AS {text}")
            run = f"EXECUTE p_{name} (1)"
            connection.execute(run)
        else:
            cursor = connection.cursor()
            statement, given = kind.format(name, "%s"), (1,)
            cursor.execute(statement, given, prepare=True)
        before = connection.execute(f"SELECT id, n FROM {name} ORDER BY id, n").fetchall()
        database.sql(f"ALTER TABLE {name} ADD COLUMN more text")
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="cached plan must not change"):
            if way == "sql":
                connection.execute(run)
            else:
                cursor.execute(statement, given, prepare=True)
        assert connection.execute(f"SELECT id, n FROM {name} ORDER BY id, n").fetchall() == before
    database.sql(f"DROP TABLE {name}")


SET_IN_TRANSACTIONS = (
    ("SET search_path TO elsewhere", "search_path"),
    ("SET TimeZone TO 'Europe/Berlin'", "TimeZone"),
    ("SELECT set_config('statement_timeout', '5000', false)", "statement_timeout"),
    ("SET ROLE rolled_back", "role"),
    ("SET my.own = '1'", "my.own"),
    ("RESET application_name", "application_name"),
)


@pytest.mark.parametrize(("text", "name"), SET_IN_TRANSACTIONS)
@pytest.mark.parametrize("end", ["ROLLBACK", "error", "ROLLBACK TO s", "COMMIT"])
def test_what_is_set_is_undone_with_the_transaction(
    server: ServerThread, database: Database, postgres: Postgres, text: str, name: str, end: str
) -> None:
    """As PostgreSQL does it: otherwise a pool that cleans up by ROLLBACK hands on other rights."""
    for sql in ("DROP ROLE IF EXISTS rolled_back", "CREATE ROLE rolled_back"):
        database.sql(sql)
        postgres.execute(sql)
    with connect(server) as ours, postgres.connect() as theirs:
        changed = []
        for connection in (ours, theirs):
            for sql in ("SET application_name = 'mine'", "SET my.own = '0'"):
                connection.execute(sql)
            before = connection.execute(f"SHOW {name}").fetchone()
            for sql in ("BEGIN", "SAVEPOINT s", text):
                connection.execute(sql)
            if end == "error":
                with pytest.raises(psycopg.Error):
                    connection.execute("SELECT 1 / 0")
            connection.execute("ROLLBACK" if end == "error" else end)
            inside = connection.execute(f"SHOW {name}").fetchone()
            connection.execute("COMMIT")
            changed.append((inside != before, connection.execute(f"SHOW {name}").fetchone() != before))
            connection.execute("RESET ROLE")
        assert changed[0] == changed[1] == ((end == "COMMIT",) * 2)
    postgres.execute("DROP ROLE rolled_back")
    database.sql("DROP ROLE rolled_back")


@pytest.mark.parametrize("lock", ["FOR UPDATE", "FOR SHARE", "FOR NO KEY UPDATE", "FOR UPDATE NOWAIT"])
def test_rows_that_are_read_for_an_update(server: ServerThread, table: str, lock: str) -> None:
    """Nothing is locked: the transaction that commits later fails where another one has changed what it has read."""
    with connect(server) as one, connect(server) as other:
        one.execute(f"INSERT INTO {table} (id, name) VALUES (1, 'a')")
        for connection in (one, other):
            connection.execute("BEGIN")
            found = connection.execute(f"SELECT name FROM {table} WHERE id = %s {lock}", (1,)).fetchall()
            assert found == [("a",)]
        one.execute(f"UPDATE {table} SET name = 'b' WHERE id = 1")
        one.execute("COMMIT")
        with pytest.raises(psycopg.errors.SerializationFailure):
            other.execute(f"UPDATE {table} SET price = 2 WHERE id = 1")
            other.execute("COMMIT")
        other.execute("ROLLBACK")
        assert one.execute(f"SELECT name, price FROM {table}").fetchall() == [("b", None)]
