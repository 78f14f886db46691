"""Sessions over the wire: psycopg connections that run programs, reconnect, and know what an answer means."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Protocol

import psycopg
import statements
from events import Broken, Freshness, History, Op, Transaction
from programs import BALANCE, VIEWS, Program, Programs, final_program, keys_of_round
from psycopg import pq
from running import Lost, Refused, perform_at_once
from statements import Statement

from support import WAIT_S, eventually

_NOBODY_KNOWS = ("08", "57P", "58", "XX")
"""Classes of SQLSTATE that leave open whether a commit has happened."""
_PAUSE_S = 0.02
MOST_SESSIONS = 100
"""Sessions of a round have smaller numbers; after each reconnect a session counts as another one."""


class Reachable(Protocol):
    """A server that can be connected to."""

    def connect(self, **options: Any) -> psycopg.Connection[Any]: ...


class WireClient:
    """One session: a connection, made anew after it has broken."""

    def __init__(self, server: Reachable, settings: Sequence[str], bound: bool):
        self._server, self._settings, self._bound = server, settings, bound
        self._connection: psycopg.Connection[Any] | None = None
        self._tag: str | None = None
        """What the last statement was answered with."""
        self.connections = 0
        """How often it has connected; what a session may rely on ends with its connection."""

    def connect(self) -> None:
        """Connect if there is no connection; raises OperationalError while the server is down."""
        if self._connection is None or self._connection.closed:
            made = self._server.connect()
            try:
                for sql in self._settings:
                    made.execute(sql)
            except psycopg.Error:
                made.close()  # a session without its settings would promise something else
                raise
            self._connection = made
            self.connections += 1

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()

    # ---- what `running.Client` asks for

    def begin(self) -> None:
        self._execute(Statement("BEGIN"))

    def commit(self) -> None:
        self._execute(Statement("COMMIT"))
        assert self._tag == "COMMIT", f"a transaction without an error was told {self._tag}"

    def rollback(self) -> None:
        self._execute(Statement("ROLLBACK"))

    def commit_after_error(self) -> None:
        """COMMIT; that it has committed nothing is seen by the checker."""
        self._execute(Statement("COMMIT"))

    def run(self, op: Op, alone: bool) -> Any:
        match op.kind:
            case "savepoint":
                return self._execute(Statement(f"SAVEPOINT {op.value}")) and None
            case "rollback_to":
                return self._execute(Statement(f"ROLLBACK TO {op.value}")) and None
            case "error":
                return self._fail(op.form)
            case "read":
                rows = [row for each in statements.reads(op, alone) for row in self._execute(each)[1]]
                return statements.shown(op, rows)
            case "transfer" if alone:
                self.begin()
                result = self._write(op, alone)
                self.commit()
                return result
            case _:
                return self._write(op, alone)

    def _write(self, op: Op, alone: bool) -> Any:
        for statement in statements.writes(op, alone):
            changed, rows = self._execute(statement)
            if changed == 0:
                self._roll_back_quietly()
                raise Refused(f"found no row: {statement.sql}")
            if changed > 1:
                return Broken(f"{changed} rows changed: {statement.sql}")
        return rows[0][0] if op.form == "told" else None

    def _fail(self, form: str) -> None:
        """A statement that cannot succeed."""
        assert self._connection is not None
        sql = {"missing": "SELECT * FROM nowhere", "null": "INSERT INTO counters VALUES (-1, NULL)"}[form]
        try:
            self._connection.execute(sql)
        except psycopg.Error as error:
            if self._connection.closed or error.sqlstate is None:
                raise Lost(str(error)) from error
            if error.sqlstate.startswith("40"):
                self._roll_back_quietly()
                raise Refused(error.sqlstate) from error
            return
        raise AssertionError(f"{sql} has succeeded")

    def _execute(self, statement: Statement) -> tuple[int, statements.Rows]:
        """Run a statement; the number of rows that it changed, and its rows."""
        assert self._connection is not None
        try:
            if self._bound and statement.values:
                cursor = self._connection.execute(statement.sql, statement.values)
            else:
                cursor = self._connection.execute(statement.literal())
            self._tag = cursor.statusmessage
            return cursor.rowcount, cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            state = error.sqlstate
            text = f"{state or 'no answer'}: {str(error).splitlines()[0]} ({statement.sql})"
            if self._connection.closed or state is None or state.startswith(_NOBODY_KNOWS):
                self.close()
                raise Lost(text) from error
            self._roll_back_quietly()
            raise Refused(text) from error

    def _roll_back_quietly(self) -> None:
        assert self._connection is not None
        if self._connection.info.transaction_status != pq.TransactionStatus.IDLE:
            with contextlib.suppress(psycopg.Error):
                self._connection.execute("ROLLBACK")


class Round:
    """The sessions of one round, each in a thread, and the history that they make."""

    def __init__(self, server: Reachable, seed: int, number: int, settings: Callable[[int], Sequence[str]]):
        self._server, self._seed, self._number, self._settings = server, seed, number, settings
        self.history = History(balance=BALANCE)
        self._ids = count()
        self._ending = threading.Event()
        self._failures: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def start(self, sessions: int, fresh_views: Callable[[], None] = lambda: None) -> None:
        """Make the rows that the keys begin with, let views take them in, and start the sessions."""
        with self._server.connect() as connection:
            for sql in statements.set_up_round(self._number):
                connection.execute(sql)
        fresh_views()
        assert sessions <= MOST_SESSIONS
        for session in range(sessions):
            thread = threading.Thread(target=self._session, args=(session,), name=f"session-{session}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def end(self) -> None:
        """Let every session finish what it does; raises what one has raised."""
        self._ending.set()
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive(), f"{thread.name} waits for an answer after {WAIT_S:g} s"
        if self._failures:
            raise self._failures[0]

    def read_all(self, fresh_views: Callable[[], None]) -> History:
        """Add what all keys hold in the end, in tables, and in views when those have taken in everything."""
        self.history.final = self._last(final_program(self._number))
        fresh_views()
        keys = [key for key in keys_of_round(self._number) if key.kind in VIEWS]
        self._last(Program(tuple(Op("read", key, via=VIEWS[key.kind]) for key in keys)))
        return self.history

    def _session(self, session: int) -> None:
        programs = Programs(self._seed, self._number, session)
        # Every second one sends values apart from the statement, every third waits for what it has written itself.
        client = WireClient(self._server, self._settings(session), bound=session % 2 == 1)
        try:
            while not self._ending.is_set():
                try:
                    client.connect()
                except psycopg.Error:
                    self._ending.wait(_PAUSE_S)
                    continue
                program = programs.next()
                freshness = program.freshness(own=waits_for_own_writes(session))
                self._perform(client, program, session + MOST_SESSIONS * (client.connections - 1), freshness)
        except BaseException as error:
            self._failures.append(error)
        finally:
            client.close()

    def _perform(self, client: WireClient, program: Program, session: int, freshness: Freshness) -> Transaction:
        made = perform_at_once(client, program, next(self._ids), session, time.monotonic_ns, freshness)
        self.history.transactions.append(made)
        return made

    def _last(self, program: Program) -> int:
        """Run a program until it succeeds; the id of the transaction that did."""
        client = WireClient(self._server, self._settings(0), bound=False)
        done: list[int] = []

        def succeeded() -> bool:
            try:
                client.connect()
            except psycopg.Error:
                return False
            made = self._perform(client, program, -1 - len(done), "newest")
            if made.status == "ok":
                done.append(made.id)
            return bool(done)

        eventually(succeeded, "the last read of a round")
        client.close()
        return done[0]


def waits_for_own_writes(session: int) -> bool:
    """Whether a session has its reads of views wait for what it has written."""
    return session % 3 != 2
