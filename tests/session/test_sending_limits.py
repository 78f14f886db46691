"""`statement_timeout` and cancels while rows are on their way, as in PostgreSQL: also to a client that takes none."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import psycopg
import pyarrow as pa
import pytest

from headrace.errors import QueryCanceled
from headrace.server import ServerThread, run_server_in_thread
from headrace.server.backend import BackendDecoder, BackendKeyData, CopyData, DataRow, ReadyForQuery, Report
from headrace.server.copy_out import CopyOut
from headrace.server.frontend import Bind, CancelRequest, Execute, Parse, Query, Startup, Sync
from headrace.session.database import Database
from headrace.session.session import Session
from support import WAIT_S, eventually

ROWS, ROW_BYTES = 1_000, 40_000
"""More than the system has room for on the way to a client."""
LIMIT = "SET statement_timeout = '1500ms'"


@pytest.fixture(scope="module")
def database(database: Database) -> Database:
    database.sql(
        f"CREATE TABLE large (id bigint, t text); "
        f"INSERT INTO large SELECT i, repeat('x', {ROW_BYTES}) FROM generate_series(1, {ROWS}) AS s(i)"
    )
    return database


@pytest.fixture
def sessions() -> list[Session]:
    return []


@pytest.fixture
def server(database: Database, sessions: list[Session]) -> Iterator[ServerThread]:
    def opened(parameters: dict[str, str]) -> Session:
        sessions.append(database.instance.client_session(parameters))
        return sessions[-1]

    with run_server_in_thread(opened) as running:
        yield running


class Client:
    """A client that takes what it is sent only when it wants to."""

    def __init__(self, server: ServerThread) -> None:
        self.line = socket.socket()
        self.line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        self.line.settimeout(WAIT_S)
        self.line.connect(("127.0.0.1", server.port))
        self._decoder = BackendDecoder()
        self.line.sendall(Startup({"user": "root", "database": "dev"}).encode())
        self.key = next(m for m in self.answer() if isinstance(m, BackendKeyData))

    def answer(self) -> list[object]:
        """All that comes until the server is ready again."""
        found: list[object] = []
        while not found or not isinstance(found[-1], ReadyForQuery):
            found += self._decoder.feed(self.line.recv(1 << 20))
        return found

    def ask(self, *statements: str) -> None:
        for sql in statements:
            self.line.sendall(Query(sql).encode())
            self.answer()


@pytest.fixture
def client(server: ServerThread) -> Iterator[Client]:
    found = Client(server)
    yield found
    found.line.close()


def failed(answer: list[object]) -> tuple[str, str, int]:
    """The code of the error, the state that the transaction is in then, and how many rows came before."""
    ready = answer[-1]
    assert isinstance(ready, ReadyForQuery)
    (error,) = [m for m in answer if isinstance(m, Report) and m.fields["S"] == "ERROR"]
    return error.fields["C"], ready.status, sum(isinstance(m, DataRow | CopyData) for m in answer)


def until_stopped(session: Session) -> None:
    """Return when rows were being sent, and are not any more."""
    interrupts = session.context.interrupts
    eventually(lambda: interrupts.until_s is not None, "rows to be sent")
    eventually(lambda: interrupts.until_s is None, "the rows to be let go of")


@pytest.mark.parametrize("sql", [
    "SELECT * FROM large", "COPY large TO STDOUT", "COPY large TO STDOUT (FORMAT binary)",
    "SELECT * FROM large; SELECT 2",
])  # fmt: skip
def test_a_statement_has_no_more_time_for_its_rows(client: Client, sessions: list[Session], sql: str) -> None:
    client.ask(LIMIT)
    client.line.sendall(Query(sql).encode())
    until_stopped(sessions[0])  # though the client has taken nothing
    code, status, rows = failed(client.answer())
    assert (code, status) == ("57014", "I")
    assert 0 < rows < ROWS
    client.ask("SET statement_timeout = 0")
    client.line.sendall(Query("SELECT count(*) FROM large").encode())
    assert [m.values for m in client.answer() if isinstance(m, DataRow)] == [(str(ROWS).encode(),)]


def test_a_prepared_statement_has_no_more_time_either(client: Client, sessions: list[Session]) -> None:
    client.ask(LIMIT)
    messages = Parse("", "SELECT * FROM large"), Bind("", ""), Execute("", 0), Sync()
    client.line.sendall(b"".join(m.encode() for m in messages))
    until_stopped(sessions[0])
    code, status, rows = failed(client.answer())
    assert (code, status) == ("57014", "I")
    assert 0 < rows < ROWS


def test_rows_of_a_cursor_have_no_more_time_and_its_transaction_fails(client: Client, sessions: list[Session]) -> None:
    client.ask(LIMIT, "BEGIN", "DECLARE c CURSOR FOR SELECT * FROM large", "FETCH 2 FROM c")
    client.line.sendall(Query("FETCH ALL FROM c").encode())
    until_stopped(sessions[0])
    code, status, rows = failed(client.answer())
    assert (code, status) == ("57014", "E")
    assert 0 < rows < ROWS
    client.line.sendall(Query("SELECT 1").encode())
    assert failed(client.answer())[0] == "25P02"


def rows_of(client: Client, sql: str) -> list[bytes | None]:
    client.line.sendall(Query(sql).encode())
    return [m.values[0] for m in client.answer() if isinstance(m, DataRow)]


@pytest.mark.parametrize("direction", ["ALL", f"FORWARD {ROWS}", "BACKWARD ALL"])
def test_a_cursor_that_is_held_goes_back_to_where_it_was(
    client: Client, sessions: list[Session], direction: str
) -> None:
    scroll = "SCROLL" if direction.startswith("BACKWARD") else "NO SCROLL"
    client.ask("BEGIN", f"DECLARE c {scroll} CURSOR WITH HOLD FOR SELECT * FROM large ORDER BY id", "COMMIT")
    assert rows_of(client, "FETCH 3 FROM c") == [b"1", b"2", b"3"]
    if scroll == "SCROLL":
        client.ask("MOVE LAST FROM c")
    client.ask(LIMIT)
    client.line.sendall(Query(f"FETCH {direction} FROM c").encode())
    until_stopped(sessions[0])
    code, status, rows = failed(client.answer())
    assert (code, status) == ("57014", "I")
    assert 0 < rows < ROWS - 3
    client.ask("SET statement_timeout = 0")
    expected = [b"4", b"5"] if scroll == "NO SCROLL" else []
    assert rows_of(client, "FETCH 2 FROM c") == expected
    client.ask("CLOSE c")


def test_a_cursor_of_a_transaction_is_not_run_again(client: Client, sessions: list[Session]) -> None:
    client.ask(LIMIT, "BEGIN", "DECLARE c CURSOR FOR SELECT * FROM large", "SAVEPOINT s")
    client.line.sendall(Query("FETCH ALL FROM c").encode())
    until_stopped(sessions[0])
    assert failed(client.answer())[:2] == ("57014", "E")
    client.ask("ROLLBACK TO s")
    client.line.sendall(Query("FETCH 1 FROM c").encode())
    assert failed(client.answer()) == ("55000", "E", 0)


def test_a_portal_that_has_failed_is_not_run_again(client: Client, sessions: list[Session]) -> None:
    client.ask(LIMIT, "BEGIN")
    messages = Parse("", "SELECT * FROM large"), Bind("p", ""), Bind("q", ""), Execute("q", 1), Sync()
    client.line.sendall(b"".join(m.encode() for m in messages))
    client.answer()
    client.ask("SAVEPOINT s")
    client.line.sendall(Execute("p", 0).encode() + Sync().encode())
    until_stopped(sessions[0])
    assert failed(client.answer())[:2] == ("57014", "E")
    client.line.sendall(Execute("q", 1).encode() + Sync().encode())
    assert failed(client.answer()) == ("25P02", "E", 0)
    client.ask("ROLLBACK TO s")
    client.line.sendall(Execute("p", 0).encode() + Sync().encode())
    assert failed(client.answer()) == ("55000", "E", 0)


def test_the_first_rows_of_a_binary_copy_are_limited_too(
    client: Client, sessions: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    limited, begin = [], CopyOut.begin

    def begun(self: CopyOut, batches: Iterator[pa.RecordBatch]) -> tuple[list[bytes], Iterator[pa.RecordBatch]]:
        limited.append(sessions[0].sends_until_s is not None)
        return begin(self, batches)

    monkeypatch.setattr(CopyOut, "begin", begun)
    client.ask("SET statement_timeout = '1h'", "COPY (SELECT id FROM large) TO STDOUT (FORMAT binary)")
    assert limited == [True]


def test_a_cancel_does_not_wait_for_the_client(
    server: ServerThread, client: Client, sessions: list[Session], database: Database
) -> None:
    client.ask("SET statement_timeout = '1h'")
    client.line.sendall(Query("SELECT * FROM large").encode())
    interrupts = sessions[0].context.interrupts
    eventually(lambda: interrupts.until_s is not None, "rows to be sent")
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as other:
        other.sendall(CancelRequest(client.key.pid, client.key.secret).encode())
        assert other.recv(1) == b""
    eventually(lambda: interrupts.until_s is None, "the rows to be let go of")
    code, status, rows = failed(client.answer())
    assert (code, status) == ("57014", "I")
    assert rows < ROWS


def test_each_part_that_a_client_asks_for_has_its_own_time(database: Database) -> None:
    session = database.session({"statement_timeout": "1h"})
    (result,) = session.execute("SELECT id FROM large")
    interrupts, limits = session.context.interrupts, []
    assert session.sends_until_s is None
    for _ in range(3):
        with result.sending() as check:
            check()
            limits.append(session.sends_until_s)
        assert session.sends_until_s is None
    first, second, third = (limit for limit in limits if limit is not None)
    assert first < second < third
    with pytest.raises(QueryCanceled, match="statement timeout"), result.sending() as check:
        interrupts.until_s = 0.0
        check()
    session.close()


def test_nobody_waits_for_the_client_of_rows_that_are_to_stop(database: Database) -> None:
    """Whenever the cancel comes: it may be while a piece is made, before the client is waited for."""
    session = database.session()
    (result,) = session.execute("SELECT id FROM large")
    session.cancel()
    assert session.sends_until_s is None
    (result,) = session.execute("SELECT id FROM large")
    with pytest.raises(QueryCanceled, match="user request"), result.sending() as check:
        assert session.sends_until_s is None
        session.cancel()
        until_s = session.sends_until_s
        assert until_s is not None and until_s <= time.monotonic()
        check()
    assert session.sends_until_s is None
    session.close()


def test_a_program_that_takes_all_rows_at_once_has_the_same_limit(database: Database) -> None:
    session = database.session({"statement_timeout": "1h"})
    (result,) = session.execute("SELECT id FROM large")
    rows = result.batches

    def late() -> Iterator[object]:
        for batch in rows:
            yield batch
            session.context.interrupts.until_s = 0.0

    result.batches = late()  # type: ignore[assignment]
    with pytest.raises(QueryCanceled, match="statement timeout"):
        result.rows()
    session.close()


def test_what_was_written_and_what_is_followed_is_not_limited(database: Database, server: ServerThread) -> None:
    session = database.session({"statement_timeout": "1h"})
    database.sql("CREATE TABLE written (a int)")
    for sql in ("INSERT INTO written VALUES (1) RETURNING a", "COPY (SUBSCRIBE written) TO STDOUT"):
        (result,) = session.execute(sql)
        with result.sending():
            assert session.sends_until_s is None, sql
        close = getattr(result.batches, "close", None)
        if close is not None:
            close()
    session.close()
    with psycopg.connect(host="127.0.0.1", port=server.port, user="root", dbname="dev", autocommit=True) as limited:
        limited.execute("SET statement_timeout = '1ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            limited.execute("SELECT * FROM large").fetchall()
