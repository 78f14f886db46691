"""A session: statements in, results out, with settings and a transaction of its own.

A transaction reads one snapshot, fixed by its first read, and what it has written itself (see `transactions.py`).
CREATE, DROP and ALTER take effect at once, and ROLLBACK does not take them back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from headrace.catalog.edits import AddEvent
from headrace.common.zones import Zone
from headrace.errors import (
    HeadraceError,
    ObjectMissing,
    QueryCanceled,
    ReadOnlyTransaction,
    SerializationFailure,
    ShuttingDown,
    TransactionError,
)
from headrace.plan.failures import translate
from headrace.session import idle
from headrace.session.audit import AuditLog, note_done, note_failed
from headrace.session.context import Context, Services
from headrace.session.execution.cursors import close_all
from headrace.session.execution.handler import Server, Started
from headrace.session.execution.in_transaction import end, explained
from headrace.session.execution.row_writes import RowPlan, run_plan, start_plan
from headrace.session.execution.select import read
from headrace.session.execution.transacting import bracket
from headrace.session.handlers import handler_of
from headrace.session.literal_texts import KnownTexts
from headrace.session.locating import located
from headrace.session.prepared import PreparedStatement, prepare, prepare_rows
from headrace.session.reading.at_once import PointRead, point_or_result, read_at_once
from headrace.session.reading.read_planning import PlannedRead
from headrace.session.result import IdleLimit, Notice, Pending, Result
from headrace.session.scripts import run_script
from headrace.session.transactions import aborted
from headrace.session.variables import duration_ms
from headrace.sql import statements as st
from headrace.sql.parser import parse, parse_one
from headrace.sql.scalar import values_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Home(Protocol):
    """What a session needs of the database that it is one of."""

    @property
    def services(self) -> Services:
        """What all of its sessions share."""
        ...

    @property
    def audit(self) -> AuditLog | None:
        """Where it is noted who does what; None where nobody asks for it."""
        ...

    def check(self) -> None:
        """Raise what has stopped the database, if anything has."""
        ...

    def forget(self, session: Session) -> None:
        """A session has ended."""
        ...


class ReadBeside(NamedTuple):
    """How a session stands for reads that are answered beside it."""

    settings: int
    """Another number whenever a setting has changed."""
    at_least: int
    """The epoch of its last write."""
    zone: Zone


class Session:
    """One client's session: what servers use of it. One thread at a time, `cancel` excepted.

    What its statements use, and what it keeps from one to the next, is its `context`.
    """

    def __init__(self, home: Home, settings: Mapping[str, str] | None = None):
        self._home = home
        self._audit = home.audit
        self.context = context = Context(home.services, settings or {}, self)
        self.number = context.number
        self.statements = context.statements
        self.cursors = context.cursors
        self._idle = idle.IdleClock()
        self._requested = False
        self._closed = False
        self._quickly = -1, False
        """For which version of the settings statements start quickly, and whether they do."""
        self._told: tuple[Mapping[str, str], bool, Mapping[str, str]] = {}, False, {}
        """What clients are told: the session's settings, whether the server is a standby, and both together."""
        self._texts = KnownTexts(self)

    # ---- what servers use

    @property
    def client(self) -> str:
        """The address of the client that it is for; "" for the program itself."""
        return self.context.client

    @client.setter
    def client(self, address: str) -> None:
        self.context.client = address

    @property
    def tell(self) -> Callable[[Notice], None]:
        """What tells the client something while a statement runs."""
        return self.context.tell

    @tell.setter
    def tell(self, tell: Callable[[Notice], None]) -> None:
        self.context.tell = tell

    @property
    def find_portal(self) -> Callable[[str], object]:
        """What finds a portal of the server by its name."""
        return self.context.find_portal

    @find_portal.setter
    def find_portal(self, find: Callable[[str], Any]) -> None:
        self.context.find_portal = find

    @property
    def drop_portals(self) -> Callable[[int], None]:
        """See `SessionLike`."""
        return self.context.drop_portals

    @drop_portals.setter
    def drop_portals(self, drop: Callable[[int], None]) -> None:
        self.context.drop_portals = drop

    @property
    def savepoints_made(self) -> int:
        """How many savepoints there have been in the transaction that is open."""
        transaction = self.context.transaction
        return 0 if transaction is None else transaction.savepoints_made

    @property
    def transaction_status(self) -> str:
        """`I` idle, `T` in a transaction, `E` in a failed one."""
        transaction = self.context.transaction
        if transaction is None or transaction.script:
            return "I"
        return "E" if transaction.failed else "T"

    @property
    def parameters(self) -> Mapping[str, str]:
        """Settings that a client is told when it connects: the same mapping as long as none of them changes."""
        own, standby = self.context.variables.reported(), self.context.on_standby
        if self._told[0] is not own or self._told[1] != standby:
            self._told = own, standby, {**own, "in_hot_standby": "on" if standby else "off"}
        return self._told[2]

    def greeting(self) -> list[Notice]:
        """What a client is told when it connects."""
        status = self.context.coordinator.standby()
        if status is None:
            return []
        where = f", which is at {status.address}" if status.address else ""
        text = f"this server is a standby of {status.owner}{where}; it has heard of that {status.staleness_ms} ms ago"
        return [Notice(text)]

    def idle_limit(self) -> IdleLimit | None:
        """How long the client may now ask for nothing."""
        return self._idle.limit(self.context.variables, self.context.transaction)

    @property
    def send_limit_s(self) -> float | None:
        """Seconds for which the client may take nothing of what it is sent."""
        limit_ms = self.context.settings.client_timeout_ms
        return limit_ms / 1000 if limit_ms else None

    @property
    def sends_until_s(self) -> float | None:
        """By the monotonic clock, until when the rows that are being sent may be."""
        return self.context.interrupts.sends_until_s

    @property
    def stopped(self) -> Callable[[], None]:
        """What is called when what runs is to stop."""
        return self.context.interrupts.stopped

    @stopped.setter
    def stopped(self, call: Callable[[], None]) -> None:
        self.context.interrupts.stopped = call

    def expired(self, error: HeadraceError) -> None:
        """Tell that the client is sent away: what it held kept history from being merged."""
        event = AddEvent("client_sent_away", None, f"session {self.number}: {error.message}", error.hint or "")
        if not self.context.on_standby:
            self.context.catalog.transact([event])

    def read_beside(self) -> ReadBeside | None:
        """What somebody has to know who answers reads beside the session, while nothing runs in it; None if nobody may:
        what the client is allowed to do, and when, hangs on what it asks for next."""
        context = self.context
        if context.transaction is not None or self._closed or context.on_standby or not self.starts_quickly:
            return None
        if self.idle_limit() is not None:
            return None
        return ReadBeside(context.variables.version, context.last_write, context.zone)

    def failed(self) -> None:
        """Something has failed that the client has asked for, though no statement: its transaction fails, too."""
        if self.context.transaction is not None:
            self.context.transaction.failed = True

    def begin_request(self) -> None:
        """A cancel counts until the next call, and stops all that is run up to there. Any thread may call this.

        Without it each call of `execute`, `prepare` and `PreparedStatement.execute` is a request of its own.
        """
        self.context.begin_request()
        self._requested = True

    @contextmanager
    def _request(self) -> Iterator[None]:
        """Begin and end a request, unless there is one."""
        if self._requested:
            yield
            return
        self.begin_request()
        try:
            yield
        finally:
            self._requested = False

    def execute(self, sql: str) -> Iterator[Result]:
        """Run a script; one result for each statement, when it is asked for."""
        with self._request():
            with self._failing():
                statements = parse(sql)
            wanted = [statement for statement in statements if not isinstance(statement, st.Empty)]
            if len(wanted) > 1:
                yield from run_script(self.context, self.run, wanted)
            elif wanted:
                yield self.run(wanted[0])
            if len(statements) == 1 and statements[0].preparable:
                self._texts.met(sql)

    def prepare(self, sql: str, parameter_types: Sequence[str | None] = ()) -> PreparedStatement:
        """Parse one statement and find the types of its parameters and of its result."""
        with self._request(), self._failing(text=sql), self._limited():
            self.context.check()
            self._require_open()
            prepared: PreparedStatement | None = self._texts.prepared(sql, parameter_types)
            if prepared is None:
                prepared = prepare_rows(self, sql, parameter_types)
            if prepared is None:
                prepared = self.prepared(parse_one(sql), parameter_types)
                self._texts.keep(sql, parameter_types, prepared)
            return prepared

    def prepared(self, statement: st.Statement, types: Sequence[str | None]) -> PreparedStatement:
        """Prepare a statement that is parsed already."""
        return prepare(self, statement, types)

    def known_statement(self, sql: str, parameter_types: Sequence[str | None]) -> PreparedStatement | None:
        """What a text is prepared to without blocking, a statement that is quick; None for any other text."""
        found = self._texts.prepared(sql, parameter_types)
        return found if found is not None and found.is_quick else None

    def explaining(self, statement: st.Statement) -> Callable[[], list[str]] | None:
        """What gives the lines of EXPLAIN for a statement; None where EXPLAIN does not take it."""
        explain = handler_of(statement).explain
        return None if explain is None else lambda: explain(self.context, statement)

    def cancel(self) -> None:
        """Stop what runs, from another thread."""
        self.context.cancel()

    def close(self) -> None:
        """Give up an open transaction, and what runs."""
        # First what waits: once the transaction is over, nothing keeps what it has written from vacuum.
        self.context.interrupts.withdraw("the session was closed")
        end(self.context)
        close_all(self.context)
        if not self._closed:
            self._closed = True
            self._home.forget(self)

    # ---- running

    def run(self, statement: st.Statement) -> Result:
        """Runs one statement. Its errors are the session's: translated, and placed in the text."""
        with self._request(), self._failing(statement):
            context, begun_s = self.context, time.monotonic()
            context.check()
            self._admit(statement)
            with self._limited():
                result = handler_of(statement).run(context, statement)
                context.interrupts.durable |= statement.writes  # DDL stays done, too
            if self._audit is not None:
                note_done(self._audit, context, statement)
            result.notices[:] = [n for n in result.notices if context.is_shown(n)]
            self._limit_sending(statement, result, begun_s)
            return result

    @contextmanager
    def going_on(self, statement: st.Statement) -> Iterator[None]:
        """Do inside the block what belongs to a statement that was run before: its client sends it piece by piece."""
        with self._request(), self._failing(statement):
            self._require_open()
            self.context.check()
            with self._limited():
                yield

    def run_planned(self, statement: st.Statement, plan: RowPlan, texts: Sequence[str | None]) -> Result:
        """Run a statement that was planned before, with the texts of its parameters."""
        with self._request(), self._failing(statement):
            self.context.check()
            self._admit(statement)
            with self._limited():
                return run_plan(self.context, plan, texts)

    @property
    def starts_quickly(self) -> bool:
        """Whether statements may be started without waiting for them: nothing limits their time or follows them.

        The end of a transaction may have to get rows of cursors.
        """
        if self.cursors:
            return False
        variables = self.context.variables
        if self._quickly[0] != variables.version:
            limited = bool(duration_ms(variables.get("statement_timeout")))
            self._quickly = variables.version, not limited and not variables.is_on("rw_implicit_flush")
        return self._quickly[1]

    def starts_at_once(self, statement: st.Statement) -> bool:
        """Whether a statement without a plan may be started so. A transaction may have to wait for its turn."""
        handler = handler_of(statement)
        return handler.start is not None and self.starts_quickly and handler.starts_now(self.context)

    @property
    def finds_quickly(self) -> bool:
        """Whether an open transaction finds single rows without waiting for a store across the network."""
        context = self.context
        return context.transaction is None or context.coordinator.root.is_local

    def start_planned(self, statement: st.Statement, plan: RowPlan, texts: Sequence[str | None]) -> Result | Pending:
        """The same, without waiting for its commit."""
        try:
            context = self.context
            context.check()
            self._admit(statement)
            started = start_plan(context, statement, plan, texts)
        except BaseException as error:
            self._fail(error, statement)
        return self._waiting(started)

    def start_text(self, sql: str) -> Result | Pending | None:
        """Start a statement that ends or begins a transaction, or is like others before; None for what is to be run."""
        if not self.starts_quickly:
            return None
        statement = bracket(sql)
        if statement is not None:
            return self.start_bracket(statement) if self.starts_at_once(statement) else None
        known = self._texts.find(sql)
        return None if known is None else known[0].start(known[1])

    def known_text(self, sql: str) -> tuple[PreparedStatement, Sequence[str]] | None:
        """The statement that is like others before, and the values in it, if it can be started without blocking."""
        return self._texts.find(sql) if self.starts_quickly else None

    def planned_text(self, sql: str) -> PreparedStatement | None:
        """The statement that is like others before, and has a plan: also if it blocks whoever runs it."""
        return self._texts.planned(sql)

    def knows_text(self, sql: str) -> bool:
        """Whether `start_text` starts a text, without blocking whoever calls it."""
        statement = bracket(sql)
        if statement is not None:
            return self.starts_at_once(statement)
        return self.starts_quickly and self._texts.find(sql) is not None

    def start_bracket(self, statement: st.Statement) -> Result | Pending:
        """The same for one that is parsed already."""
        try:
            context = self.context
            context.check()
            self._admit(statement)
            start = handler_of(statement).start
            assert start is not None
            started = start(context, statement)
        except BaseException as error:
            self._fail(error, statement)
        return self._waiting(started)

    def run_read(
        self, statement: st.Statement, plan: Callable[[], PlannedRead | None], texts: Sequence[str | None]
    ) -> Result | None:
        """Run a read by its plan, with the texts of its parameters; None for what is to be run the ordinary way."""
        with self._request(), self._failing(statement):
            context, begun_s = self.context, time.monotonic()
            context.check()
            self._admit(statement)
            with self._limited():
                planned = plan()
                if planned is None:
                    return None
                try:
                    result = read(context, planned, values_of(texts, planned.plan.types, context.zone))
                except ObjectMissing:
                    if not context.on_standby:
                        raise
                    return None  # which looks at the catalog again
            if result is not None:
                result.notices[:] = [n for n in result.notices if context.is_shown(n)]
                self._limit_sending(statement, result, begun_s)
            return result

    def start_read(self, statement: st.Statement, planned: PlannedRead, texts: Sequence[str | None]) -> Result | None:
        """The same without waiting; None for what is to be run the ordinary way, also where something is wrong."""
        try:
            context = self.context
            context.check()
            self._admit(statement)
            return read_at_once(context, planned, texts)
        except Exception:
            return None

    def begin_point(
        self, statement: st.Statement, planned: PlannedRead, texts: Sequence[str | None]
    ) -> PointRead | Result | None:
        """The same of a read of a single row, which is still to be looked up."""
        try:
            context = self.context
            context.check()
            self._admit(statement)
            return point_or_result(planned.plan, texts, context.zone)
        except Exception:
            return None

    def _waiting(self, started: Started | Result) -> Result | Pending:
        """Note what was started, so that it can be cancelled: perhaps it was already."""
        if not isinstance(started, Result):
            self.context.interrupts.waiting_for(started.request)
        return started

    def finish(self, statement: st.Statement, result: Callable[[], Result]) -> Result:
        """Take the result of a statement that was started: its errors are those of the session."""
        self.context.interrupts.waited()
        try:
            return result()
        except BaseException as error:
            self._fail(error, statement)

    def _admit(self, statement: st.Statement) -> None:
        """Raise what is in the way of a statement, as things stand with the session and its server."""
        self._require_open()
        context = self.context
        handler, transaction = handler_of(statement), context.transaction
        if transaction is not None and transaction.failed and not handler.in_failed(statement):
            raise aborted()
        if handler.server is not Server.ANY:
            coordinator = context.coordinator
            coordinator.refuse_writes(statement.words)
            if handler.server is Server.READY:
                coordinator.wait_ready(context.check)
        if statement.writes and context.reads_only:
            raise ReadOnlyTransaction(f"cannot execute {statement.words} in a read-only transaction")
        alone = None if transaction is None else handler.outside(statement)
        if alone is not None:
            raise TransactionError(f"{alone} cannot run inside a transaction block", sqlstate="25001")

    def _require_open(self) -> None:
        if self._closed:
            raise ShuttingDown("the session is closed")
        self._home.check()

    @contextmanager
    def _failing(self, statement: st.Statement | None = None, text: str = "") -> Iterator[None]:
        """Errors inside the block are headrace's, say where in the statement, and fail the transaction."""
        spark = self.context.keeper.session
        try:
            yield
        except BaseException as error:
            self._fail(error, statement, spark, text)

    def _fail(
        self, error: BaseException, statement: st.Statement | None, spark: SparkSession | None = None, text: str = ""
    ) -> NoReturn:  # fmt: skip
        """Raise an error as the session tells it, of what was run on a Spark session, if it was."""
        context = self.context
        self.failed()
        if not isinstance(error, Exception):
            raise error
        found = context.keeper.explained(translate(error), spark)
        if isinstance(found, SerializationFailure):
            found = explained(context, context.transaction, found)
        reason = context.interrupts.reason
        if reason is not None and not isinstance(found, QueryCanceled):
            found = QueryCanceled(reason)
        if statement is not None:
            found = located(found, statement)
        if self._audit is not None:
            note_failed(self._audit, context, statement, text, found)
        if found is error:
            raise error
        raise found from error

    def _limited(self) -> AbstractContextManager[None]:
        """Apply `statement_timeout`."""
        return self.context.interrupts.limited(self._limit_ms())

    def _limit_ms(self) -> int:
        return duration_ms(self.context.variables.get("statement_timeout"))

    def _limit_sending(self, statement: st.Statement, result: Result, begun_s: float) -> None:
        """Apply it to sending the rows, too, and to each further part of them that the client asks for by itself.

        What is durable holds, and what follows something has no end.
        """
        interrupts, limit_ms = self.context.interrupts, self._limit_ms()
        if result.columns is None or interrupts.durable:
            return
        since = [begun_s]

        @contextmanager
        def sending() -> Iterator[Callable[[], None]]:
            if result.follows:
                with self._failing(statement):
                    yield lambda: None
                return
            from_s = since.pop() if since else time.monotonic()
            until_s = from_s + limit_ms / 1000 if limit_ms else None
            with self._failing(statement), interrupts.sending(until_s) as check:
                try:
                    yield check
                except BaseException:
                    result.stopped()
                    raise

        result.sending = sending
