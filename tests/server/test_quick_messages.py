"""What is handled on the event loop: nothing that may take its time there."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import Future
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from memory_session import Database
from wire_line import Line

from headrace.errors import HeadraceError, NumericOutOfRange
from headrace.server import ServerThread, backend, frontend
from headrace.server.backend import BackendDecoder
from headrace.server.connection import ELSEWHERE, Connection
from headrace.server.frontend import Bind, Describe, Execute, Parse, Query, Sync
from headrace.session.result import Notice, Result, ResultColumn
from support import WAIT_S


@pytest.fixture
def line() -> Line:
    made = Line()
    made.say(frontend.Startup({"user": "root", "database": "dev"}))
    return made


def quick(connection: Connection, *messages: Any) -> bool:
    return connection.is_quick(messages)


def test_a_portal_that_was_bound_before_is_not_run_on_the_event_loop(line: Line) -> None:
    """A client may flush after Bind, or its bytes may come in two parts: then Execute comes by itself."""
    line.say(Parse("s", "SELECT generate_series(1, 100000)", ()), Bind("p", "s", (), (), ()))
    assert not quick(line.connection, Execute("p", 0), Sync())
    assert not quick(line.connection, Execute("unknown", 0), Sync())


def test_a_portal_with_rows_left_is_not_dropped_on_the_event_loop(line: Line) -> None:
    line.say(Query("BEGIN"), Parse("s", "SELECT generate_series(1, 100000)", ()))
    line.say(Bind("p", "s", (), (), ()), Execute("p", 5), Sync())
    line.connection.session.knows_text = lambda sql: True  # type: ignore[union-attr]
    assert not quick(line.connection, Query("COMMIT"))


def test_the_end_of_a_transaction_that_is_waited_for_is_not_on_the_event_loop(line: Line) -> None:
    """With a time limit, say, COMMIT runs like any other statement: it blocks whoever runs it."""
    session: Any = line.connection.session
    session.knows_text = lambda sql: False
    assert not quick(line.connection, Query("COMMIT"))
    session.knows_text = lambda sql: True
    assert quick(line.connection, Query("COMMIT"))


def test_a_text_that_is_not_quick_any_more_is_not_run_on_the_event_loop(line: Line) -> None:
    session: Any = line.connection.session
    session.knows_text, session.start_text = (lambda sql: True), (lambda sql: None)
    asked = [Query("SELECT generate_series(1, 100000)")]
    assert quick(line.connection, *asked)
    said = line.connection.receive(asked)
    assert next(said) is ELSEWHERE
    assert b"".join(data for data in said if isinstance(data, bytes)).endswith(b"Z\x00\x00\x00\x05I")
    session.knows_text = lambda sql: False
    assert not quick(line.connection, *asked)
    assert ELSEWHERE not in line.connection.receive(asked)


class OnceQuick:
    """A prepared statement that is quick outside of transactions only, as with a store across the network."""

    parameter_types: ClassVar[list[str]] = []
    columns = None

    def __init__(self, session: Any) -> None:
        self._session = session
        self.ran_in: list[str] = []

    @property
    def is_quick(self) -> bool:
        return bool(self._session.transaction_status == "I")

    def start(self, parameters: Any) -> Any:
        raise AssertionError("it is not quick any more")

    def execute(self, parameters: Any) -> Result:
        self.ran_in.append(threading.current_thread().name)
        return Result("UPDATE 1")


class Begins(OnceQuick):
    """A prepared BEGIN."""

    def start(self, parameters: Any) -> Any:
        self.ran_in.append(threading.current_thread().name)
        self._session.transaction_status = "T"
        return Result("BEGIN")


BEGUN = [Bind("", "begin"), Execute(""), Bind("", "s"), Describe("P", ""), Execute(""), Sync()]


def test_what_a_transaction_makes_slow_that_the_same_messages_begin_is_run_elsewhere(line: Line) -> None:
    """So drivers begin transactions: together with the first statement, both prepared."""
    session: Any = line.connection.session
    begin, statement = Begins(session), OnceQuick(session)
    session.statements.put("begin", begin)
    session.statements.put("s", statement)
    assert quick(line.connection, *BEGUN)
    said = line.connection.receive(BEGUN)
    assert next(said) is ELSEWHERE and not statement.ran_in
    out = b"".join(data for data in said if isinstance(data, bytes))
    assert b"BEGIN" in out and b"UPDATE 1" in out and out.endswith(b"Z\x00\x00\x00\x05T")


def test_the_event_loop_hands_over_what_is_not_quick_any_more(database: Database, server: ServerThread) -> None:
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as client:
        decoder = BackendDecoder()

        def until_ready() -> list[Any]:
            said: list[Any] = []
            while not said or not isinstance(said[-1], backend.ReadyForQuery):
                data = client.recv(65536)
                assert data
                said += decoder.feed(data)
            return said

        client.sendall(frontend.Startup({"user": "root", "database": "dev"}).encode())
        until_ready()
        session: Any = database.sessions[-1]
        begin, statement = Begins(session), OnceQuick(session)
        session.statements.put("begin", begin)
        session.statements.put("s", statement)
        client.sendall(b"".join(m.encode() for m in BEGUN))
        tags = [m.tag for m in until_ready() if isinstance(m, backend.CommandComplete)]
        assert tags == ["BEGIN", "UPDATE 1"]
        assert begin.ran_in == ["pg-server"] and statement.ran_in != ["pg-server"]
        client.sendall(Query("commit").encode())  # and it goes on as ever
        assert until_ready()[-1] == backend.ReadyForQuery("I")


class Written:
    """A prepared statement that runs without blocking, and whose commit is waited for or not."""

    parameter_types: ClassVar = ["bigint"]
    columns = None
    is_quick = True

    def __init__(self, *, waits: bool, fails: str = "") -> None:
        self.waits, self.fails = waits, fails
        self.ready: Future[None] = Future()
        self.given: list[Any] = []

    def execute(self, parameters: Any) -> Result:
        raise AssertionError("it is quick")

    def start(self, parameters: Any) -> Any:
        self.given.append(list(parameters))
        if self.fails == "at once":
            raise NumericOutOfRange("too much")
        return self if self.waits else self.finish()

    def finish(self) -> Result:
        if self.fails:
            raise HeadraceError("another one was first", sqlstate="40001")
        return Result("UPDATE 1", notices=[Notice("a word")])


ASKED = [Bind("", "s", (), (b"7",), ()), Describe("P", ""), Execute("", 0), Sync()]
VARIANTS: list[list[Any]] = [
    ASKED,
    [ASKED[0], *ASKED[2:]],
    [Bind("", "s", (0,), (b"7",), (0,)), *ASKED[1:]],
    [Bind("", "s", (), (), ()), *ASKED[1:]],
    [Bind("", "s", (), (b"\xff",), ()), *ASKED[1:]],
]


def answers(messages: list[Any], statement: Written, *, quickly: bool, again: bool) -> bytes:
    line = Line()
    line.say(frontend.Startup({"user": "root", "database": "dev"}))
    connection = line.connection
    connection.session.statements.put("s", statement)  # type: ignore[union-attr]
    if again:
        line.say(Query("BEGIN"))
    connection.begin()
    out = b""
    taken = connection.take_quickly(messages) if quickly else None
    if taken is not None:
        out += taken if isinstance(taken, bytes) else connection.finish_quickly(taken)
    else:
        assert not quickly
        assert connection.is_quick(messages)
        out += b"".join(data for data in connection.receive(messages) if isinstance(data, bytes))
    more = [Execute("", 0), Sync()] if again else [Query("SELECT 1")]
    connection.is_quick(more)
    return out + b"|" + b"".join(data for data in connection.receive(more) if isinstance(data, bytes))


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("fails", ["", "at once", "later"])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("messages", VARIANTS)
def test_the_short_way_says_the_same(messages: list[Any], waits: bool, fails: str, again: bool) -> None:
    one, two = Written(waits=waits, fails=fails), Written(waits=waits, fails=fails)
    long = answers(messages, one, quickly=False, again=again)
    assert answers(messages, two, quickly=True, again=again) == long
    assert one.given == two.given


class Read(Written):
    """The same of a query, which a session knows by its text as well."""

    columns: ClassVar = [ResultColumn("n", "bigint")]

    def finish(self) -> Result:
        if self.fails:
            raise NumericOutOfRange("too much")
        return Result("SELECT", self.columns, iter([pa.record_batch({"n": pa.array([7], pa.int64())})]))


TEXT = "SELECT 7"
TOLD_AGAIN = [Query("SELECT 1"), Bind("", "", (), (b"7",), ()), Sync()]
"""Afterwards the client finds out whether there is an unnamed statement."""


def read_answers(messages: list[Any], statement: Read, *, quickly: bool, failed: bool) -> bytes:
    line = Line()
    line.say(frontend.Startup({"user": "root", "database": "dev"}))
    session: Any = line.connection.session
    session.known_text = lambda sql: (statement, ["7"]) if sql == TEXT else None
    session.knows_text = lambda sql: sql == TEXT
    session.start_text = lambda sql: statement.start(["7"]) if sql == TEXT else None
    session.known_statement = lambda sql, types: statement if sql == TEXT else None
    prepare = session.prepare
    session.prepare = lambda sql, types=(): statement if sql == TEXT else prepare(sql, types)
    line.say(Parse("", "SELECT 2", ()), Bind("", "", (), (), ()), Sync())
    if failed:  # what follows is left out up to the Sync
        line.say(Bind("", "unknown", (), (), ()))
    line.connection.begin()
    out, taken = b"", line.connection.take_quickly(messages) if quickly else None
    assert quickly == (taken is not None) or failed
    if taken is None:
        line.connection.is_quick(messages)
        out = b"".join(data for data in line.connection.receive(messages) if isinstance(data, bytes))
    else:
        out = taken if isinstance(taken, bytes) else line.connection.finish_quickly(taken)  # type: ignore[arg-type]
    return out + b"|" + b"".join(data for data in line.connection.receive(TOLD_AGAIN[1:]) if isinstance(data, bytes))


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("fails", ["", "at once", "later"])
@pytest.mark.parametrize(
    "messages",
    [
        [Query(TEXT)],
        [Parse("", TEXT, (20,)), Bind("", "", (), (b"7",), ()), Describe("P", ""), Execute("", 0), Sync()],
        [Parse("", TEXT, ()), Bind("", "", (), (b"7",), (1,)), Execute("", 0), Sync()],
        [Parse("", TEXT, ()), Bind("", "", (), (b"\xff",), (1,)), Describe("P", ""), Execute("", 0), Sync()],
    ],
)
def test_the_short_way_of_texts_says_the_same(messages: list[Any], fails: str, waits: bool, failed: bool) -> None:
    one, two = Read(waits=waits, fails=fails), Read(waits=waits, fails=fails)
    long = read_answers(messages, one, quickly=False, failed=failed)
    assert read_answers(messages, two, quickly=True, failed=failed) == long
    assert one.given == two.given


@pytest.mark.parametrize(
    "messages",
    [
        [],
        ASKED[:3],
        [*ASKED, Sync()],
        [Bind("p", "s", (), (b"7",), ()), *ASKED[1:]],
        [ASKED[0], Describe("S", "s"), *ASKED[2:]],
        [*ASKED[:2], Execute("", 1), Sync()],
        [*ASKED[:2], Execute("p", 0), Sync()],
        [Bind("", "unknown", (), (b"7",), ()), *ASKED[1:]],
        [Bind("", "s", (), (b"7",), (0, 0)), *ASKED[1:]],
        [*ASKED[:3], frontend.Flush()],
    ],
)
def test_the_short_way_takes_nothing_else(line: Line, messages: list[Any]) -> None:
    line.connection.session.statements.put("s", Written(waits=False))  # type: ignore[union-attr]
    assert line.connection.take_quickly(messages) is None
