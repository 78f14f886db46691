"""COPY over the wire with a real database: drivers, transactions, failures, large ones."""

from __future__ import annotations

import asyncio
import datetime as dt
import io
import selectors
import shutil
import subprocess
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg import sql as text

from clients import connect, count
from headrace.server import ServerThread
from headrace.session.database import Database
from headrace.session.execution import copying
from support import WAIT_S, eventually, wait_for_line

COLUMNS = (
    "id int PRIMARY KEY, name text, price numeric(10,2), day date, x float8, ok boolean, raw bytea, at timestamptz"
)
ITEM = (
    7, "it's\t\\ \n", Decimal("1.50"), dt.date(2024, 2, 3), 2.5, True, b"\0\xff",
    dt.datetime(2024, 2, 3, 4, 5, 6, 789, tzinfo=dt.UTC),
)  # fmt: skip
TYPES = ["int4", "text", "numeric", "date", "float8", "bool", "bytea", "timestamptz"]


@pytest.fixture
def table(database: Database, request: pytest.FixtureRequest) -> Iterator[str]:
    name = "c_" + "".join(c if c.isalnum() else "_" for c in request.node.name)[:50].lower()
    database.sql(f"CREATE TABLE {name} ({COLUMNS})")
    yield name
    database.sql(f"DROP TABLE {name}")


@pytest.mark.parametrize("how", ["", "(FORMAT csv)", "(FORMAT binary)"])
def test_psycopg_copies_rows_in_and_out(server: ServerThread, table: str, how: str) -> None:
    items = [ITEM, (8, *[None] * 7), (9, "", *ITEM[2:])]
    with connect(server) as connection:
        cursor = connection.cursor()
        if how == "(FORMAT csv)":  # psycopg writes no CSV itself
            with cursor.copy(f"COPY {table} (id, name) FROM STDIN {how}") as copy:
                copy.write('7,"a ""b"""\n8,\n')
            with cursor.copy(f"COPY (SELECT id, name FROM {table} ORDER BY id) TO STDOUT {how}") as copy:
                assert b"".join(map(bytes, copy)) == b'7,"a ""b"""\n8,\n'
            return
        with cursor.copy(f"COPY {table} FROM STDIN {how}") as copy:
            copy.set_types(TYPES)
            for item in items:
                copy.write_row(item)
        assert cursor.statusmessage == "COPY 3"
        assert connection.execute(f"SELECT * FROM {table} ORDER BY id").fetchall() == items
        with cursor.copy(f"COPY (SELECT * FROM {table} ORDER BY id) TO STDOUT {how}") as copy:
            copy.set_types(TYPES)
            assert list(copy.rows()) == items
        assert cursor.rowcount == 3


def test_asyncpg_copies_records_tables_and_queries(server: ServerThread, table: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(host="127.0.0.1", port=server.port, user="root", database="dev")
        try:
            items = [(i, *ITEM[1:]) for i in range(1000)]
            assert await connection.copy_records_to_table(table, records=items) == "COPY 1000"
            assert [tuple(r) for r in await connection.fetch(f"SELECT * FROM {table} ORDER BY id")] == items
            out = io.BytesIO()
            found = await connection.copy_from_query(
                f"SELECT id, day FROM {table} WHERE id < $1 ORDER BY id", 2, output=out, format="csv", header=True
            )
            assert (found, out.getvalue()) == ("COPY 2", b"id,day\n0,2024-02-03\n1,2024-02-03\n")
            out = io.BytesIO()
            assert await connection.copy_from_table(table, columns=["id"], output=out, format="binary") == "COPY 1000"
            assert await connection.execute(f"DELETE FROM {table}") == "DELETE 1000"
            found = await connection.copy_to_table(table, source=io.BytesIO(b"1;x\n"), columns=["id", "name"],
                                                   format="csv", delimiter=";")  # fmt: skip
            assert found == "COPY 1"
            with pytest.raises(asyncpg.exceptions.InvalidTextRepresentationError):
                await connection.copy_to_table(table, source=io.BytesIO(b"x\n"), columns=["id"])
            assert await connection.fetchval(f"SELECT count(*) FROM {table}") == 1
        finally:
            await connection.close()

    asyncio.run(run())


@pytest.mark.skipif(shutil.which("psql") is None, reason="psql is not installed")
def test_psql_copies_files(server: ServerThread, table: str, tmp_path: Path) -> None:
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text('id,name\n1,one\n2,"two\nlines"\n')
    script = "\n".join([
        f"\\copy {table} (id, name) FROM '{source}' CSV HEADER",
        f"\\copy (SELECT id, name FROM {table} ORDER BY id) TO '{target}' CSV HEADER",
        f"COPY {table} (id, name) FROM STDIN;", "3\tthree", "\\.",
        f"COPY (SELECT id, name FROM {table} WHERE id = 3) TO STDOUT; SELECT 1 AS after;",
    ])  # fmt: skip
    done = subprocess.run(
        ["psql", "-X", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", str(server.port), "-U", "root", "dev"],
        input=script, capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:4] == ["COPY 2", "COPY 2", "COPY 1", "3\tthree"]
    assert "after" in done.stdout
    assert target.read_text() == source.read_text()


def test_rows_are_one_change_with_their_transaction(server: ServerThread, table: str) -> None:
    with connect(server) as connection, connect(server) as other:
        with (
            pytest.raises(psycopg.errors.InvalidTextRepresentation) as failed,
            connection.cursor().copy(f"COPY {table} (id) FROM STDIN") as copy,
        ):
            copy.write("1\n2\nthree\n")
        diag = failed.value.diag
        assert diag.context == f'COPY {table}, line 3, column id: "three"'
        assert count(connection, table) == 0
        connection.execute("BEGIN")
        with connection.cursor().copy(f"COPY {table} (id) FROM STDIN") as copy:
            copy.write("1\n2\n")
        assert (count(connection, table), count(other, table)) == (2, 0)
        connection.execute("ROLLBACK")
        assert count(connection, table) == 0
        connection.execute("BEGIN")
        with (
            pytest.raises(psycopg.errors.NotNullViolation),
            connection.cursor().copy(f"COPY {table} (id, name) FROM STDIN") as copy,
        ):
            copy.write("\\N\tx\n")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            connection.execute("SELECT 1")
        connection.execute("ROLLBACK")


def test_a_client_may_give_up(server: ServerThread, table: str) -> None:
    with connect(server) as connection:
        with pytest.raises(KeyError), connection.cursor().copy(f"COPY {table} (id) FROM STDIN") as copy:
            copy.write("1\n")
            raise KeyError("changed my mind")
        assert connection.info.transaction_status.name == "IDLE"
        assert count(connection, table) == 0
        with pytest.raises(psycopg.errors.QueryCanceled) as failed:
            copy_fail(connection, f"COPY {table} (id) FROM STDIN", b"1\n", b"no more")
        assert failed.value.diag.message_primary == "COPY from stdin failed: no more"


def next_result(line: psycopg.pq.abc.PGconn) -> psycopg.pq.abc.PGresult | None:
    """The next result of what was sent; waits without holding up the server's threads."""
    while line.flush():
        wait_for_line(line.socket, selectors.EVENT_WRITE)
    while line.is_busy():
        wait_for_line(line.socket)
        line.consume_input()
    return line.get_result()


def copy_fail(connection: psycopg.Connection[Any], sql: str, data: bytes, reason: bytes) -> None:
    """Send some rows, and then that there is an error."""
    line = connection.pgconn
    line.exec_(sql.encode())
    line.put_copy_data(data)
    line.put_copy_end(reason)
    result = next_result(line)
    assert result is not None
    next_result(line)
    raise psycopg.errors.lookup((result.error_field(psycopg.pq.DiagnosticField.SQLSTATE) or b"").decode())(
        "", info=result
    )


def test_a_cancel_stops_it(server: ServerThread, table: str) -> None:
    with connect(server) as connection:
        with (
            pytest.raises(psycopg.errors.QueryCanceled),
            connection.cursor().copy(f"COPY {table} (id) FROM STDIN") as copy,
        ):
            copy.write("1\n")
            connection.cancel_safe()
            for i in range(2, 1_000_000):
                copy.write(f"{i}\n")
        assert count(connection, table) == 0


def test_statements_before_and_after_it_in_one_message(server: ServerThread, table: str) -> None:
    with connect(server) as connection:
        line = connection.pgconn
        line.send_query(
            f"INSERT INTO {table} (id) VALUES (1); COPY {table} (id) FROM STDIN; COPY {table} (id) FROM STDIN;"
            f"SELECT count(*) FROM {table}".encode()
        )
        tags = []
        while (result := next_result(line)) is not None:
            if result.status == psycopg.pq.ExecStatus.COPY_IN:
                line.put_copy_data(f"{10 + len(tags)}\n".encode())
                line.put_copy_end()
                continue
            tags.append((result.command_status or b"").decode())
        assert tags == ["INSERT 0 1", "COPY 1", "COPY 1", "SELECT 1"]
        assert count(connection, table) == 3


@pytest.mark.parametrize("keyed", [True, False])
def test_large_ones_go_through_a_file(
    server: ServerThread, database: Database, monkeypatch: pytest.MonkeyPatch, keyed: bool
) -> None:
    monkeypatch.setattr(copying, "HELD_BYTES", 1000)
    name = f"large_copy_{keyed}".lower()
    database.sql(f"CREATE TABLE {name} (id int {'PRIMARY KEY' if keyed else ''}, name text)")
    spool = database.settings.spool_location
    try:
        with connect(server) as connection:
            for again in range(2):
                with connection.cursor().copy(f"COPY {name} FROM STDIN") as copy:
                    for i in range(200_000):
                        copy.write(f"{i}\tname {i} {again}\n")
            assert count(connection, name) == (200_000 if keyed else 400_000)
            connection.execute("BEGIN")
            with connection.cursor().copy(f"COPY {name} FROM STDIN") as copy:
                copy.write("".join(f"{i}\tx\n" for i in range(200_000, 300_000)))
            assert count(connection, name) == (300_000 if keyed else 500_000)
            connection.execute("ROLLBACK")
            assert count(connection, name) == (200_000 if keyed else 400_000)
            found = connection.execute(f"SELECT name FROM {name} WHERE id = 150000 ORDER BY name").fetchall()
            assert found == ([("name 150000 1",)] if keyed else [("name 150000 0",), ("name 150000 1",)])
        assert not list(spool.glob("copy-*"))
    finally:
        database.sql(f"DROP TABLE {name}")


def test_a_client_that_is_lost_leaves_nothing(
    server: ServerThread, database: Database, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "HELD_BYTES", 100)
    spool = database.settings.spool_location
    connection = connect(server)
    line = connection.pgconn
    line.exec_(f"COPY {table} (id) FROM STDIN".encode())
    line.put_copy_data("".join(f"{i}\n" for i in range(400_000)).encode())
    line.flush()
    eventually(lambda: bool(list(spool.glob("copy-*"))))
    line.finish()
    eventually(lambda: not list(spool.glob("copy-*")))
    with connect(server) as other:
        assert count(other, table) == 0


def test_defaults_views_and_what_cannot_be_copied(server: ServerThread, database: Database) -> None:
    database.sql("CREATE TABLE cd (a int, b int DEFAULT 5)")
    database.sql("CREATE MATERIALIZED VIEW cm AS SELECT sum(a) AS s FROM cd")
    database.sql("CREATE VIEW cv AS SELECT a FROM cd")
    with connect(server) as connection:
        with connection.cursor().copy("COPY cd (a) FROM STDIN") as copy:
            copy.write("1\n2\n")
        connection.execute("FLUSH")
        with connection.cursor().copy("COPY cm TO STDOUT") as copy:
            assert b"".join(map(bytes, copy)) == b"3\n"
        assert connection.execute("SELECT a, b FROM cd ORDER BY a").fetchall() == [(1, 5), (2, 5)]
        for statement, state, message in (
            ("COPY cv TO STDOUT", "42809", 'cannot copy from view "cv"'),
            ("COPY cm FROM STDIN", "42809", 'cannot copy to materialized view "cm"'),
            ("COPY nope TO STDOUT", "42P01", 'relation "nope" does not exist'),
            ("COPY cd (nope) TO STDOUT", "42703", 'column "nope" of relation "cd" does not exist'),
            ("COPY cd (a, a) FROM STDIN", "42701", 'column "a" specified more than once'),
            ("COPY cd TO '/tmp/x'", "22023", None), ("COPY cd FROM PROGRAM 'cat'", "0A000", None),
            ("COPY cd FROM STDIN WHERE a > 1", "0A000", None), ("COPY cd FROM STDIN (FREEZE 3)", "42601", None),
            ("COPY cd FROM STDIN (ENCODING 'latin1')", "0A000", None),
        ):  # fmt: skip
            with pytest.raises(psycopg.Error) as failed:
                connection.execute(text.SQL(statement))
            assert failed.value.diag.sqlstate == state, statement
            assert message is None or failed.value.diag.message_primary == message
        connection.execute("SET transaction_read_only TO off")
        connection.execute("BEGIN READ ONLY")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            connection.execute("COPY cd FROM STDIN")
        connection.execute("ROLLBACK")
    database.sql("DROP VIEW cv")
    database.sql("DROP MATERIALIZED VIEW cm")
    database.sql("DROP TABLE cd")


def test_a_failure_takes_back_what_its_script_has_done(server: ServerThread, table: str) -> None:
    with connect(server) as connection:
        line = connection.pgconn
        line.send_query(f"INSERT INTO {table} (id) VALUES (1); COPY {table} (id) FROM STDIN; SELECT 1".encode())
        states = []
        while (result := next_result(line)) is not None:
            if result.status == psycopg.pq.ExecStatus.COPY_IN:
                line.put_copy_data(b"x\n")
                line.put_copy_end()
                continue
            states.append((result.error_field(psycopg.pq.DiagnosticField.SQLSTATE) or b"").decode())
        assert states == ["", "22P02"]
        assert connection.info.transaction_status.name == "IDLE"
        assert count(connection, table) == 0
