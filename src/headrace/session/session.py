"""A session: statements in, results out, with settings and a transaction of its own.

A transaction reads one snapshot, fixed by its first read, and what it has written itself (see `transactions.py`).
CREATE, DROP and ALTER take effect at once, and ROLLBACK does not take them back.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from headrace.catalog.contents import MadeBy
from headrace.catalog.edits import AddEvent
from headrace.catalog.records import ObjectRecord
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
from headrace.session import idle, transactions
from headrace.session.audit import note_done, note_failed
from headrace.session.engine import Jobs
from headrace.session.execution import cursors
from headrace.session.execution.cursors import OpenCursor
from headrace.session.execution.handler import Handler, Server, Started
from headrace.session.execution.row_writes import RowPlan, run_plan, start_plan
from headrace.session.execution.select import read
from headrace.session.execution.subscriptions import SubscriptionCursor
from headrace.session.execution.transacting import bracket
from headrace.session.handlers import handler_of
from headrace.session.interrupts import Interrupts
from headrace.session.locating import located
from headrace.session.named import Named
from headrace.session.names import Names
from headrace.session.prepared import PreparedStatement, prepare
from headrace.session.read_epochs import SessionReads
from headrace.session.reading.at_once import read_at_once
from headrace.session.reading.planning import PlannedRead
from headrace.session.result import IdleLimit, Notice, Pending, Prepared, Result
from headrace.session.rights import Rights
from headrace.session.scripts import run_script
from headrace.session.system.functions import localize
from headrace.session.texts import KnownTexts
from headrace.session.transactions import Transaction
from headrace.session.variables import SEVERITIES, Variables, defaults_of, duration_ms
from headrace.sql import statements as st
from headrace.sql.parser import parse, parse_one
from headrace.sql.query import Query
from headrace.sql.scalar import values_of
from headrace.state.changes import TableChange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.plan.planner import Planner
    from headrace.session.database import Database

_LOOK_WAIT_S = 10.0
"""Most seconds that a read on a standby waits for another look at the catalog."""
_numbers = itertools.count(1)
_S = TypeVar("_S", bound=st.Statement)


class Session:
    """One client's session. One thread at a time, `cancel` excepted."""

    system_schemas = ("pg_catalog", "information_schema", "headrace_catalog", "headrace_internal", "rw_catalog")

    def __init__(self, database: Database, settings: Mapping[str, str] | None = None):
        self.database = database
        self.number: int = next(_numbers)
        self.began_ms = database.now_ms()
        self.variables = Variables(**{**defaults_of(database.settings), **(settings or {})})
        self.authenticated = self.user
        """The role that has connected, whatever it has become since."""
        self.client = ""
        """The address of the client that it is for; "" for the program itself."""
        self._rights: Rights | None = None
        self._role_ids: dict[str, int] = {}
        """The ids that the roles had which the session has been."""
        if not self.rights.superuser:
            self.variables.hold({"is_superuser": "off"})
        self._idle = idle.IdleClock()
        self.tell: Callable[[Notice], None] = lambda notice: None
        """What a server tells the client while a statement runs; in its thread."""
        self.jobs = Jobs(database.keeper, f"headrace-session-{self.number}", self.check, self.wait_for_spark)
        self.statements: Named[Prepared] = Named("prepared statement", "26000", "42P05")
        """Prepared statements, those of the protocol among them."""
        self.cursors: Named[OpenCursor] = Named("cursor", "34000", "42P03")
        """What DECLARE has made."""
        self.subscription_cursors: Named[SubscriptionCursor] = Named("cursor", "34000", "42P03")
        """The same of cursors over subscriptions, which have nothing to do with transactions."""
        self.find_portal: Callable[[str], Any] = lambda name: None
        self.pipeline: MadeBy | None = None
        """The definition of a pipeline for which the session creates objects."""
        self.transaction: Transaction | None = None
        """The transaction that BEGIN has opened."""
        self.writing: Transaction | None = None
        """The transaction of the statement that runs, if that writes: the open one, or one of its own."""
        self.interrupts = Interrupts(
            f"headrace-wait-{self.number}",
            lambda: self.jobs.cancel(),
            lambda request, error: database.coordinator.writer.cancel(request, error),
        )
        self._requested = False
        self._closed = False
        self._quickly = -1, False
        """For which version of the settings statements start quickly, and whether they do."""
        self._told: tuple[Mapping[str, str], bool, Mapping[str, str]] = {}, False, {}
        """What clients are told: the session's settings, whether the server is a standby, and both together."""
        self._texts = KnownTexts(self)
        self.conflicted_at = 0
        """The epoch of the newest change that was in the way of a transaction of the session."""
        self.last_write = 0
        """The epoch of its last write."""
        self.reads = SessionReads(self)

    # ---- what servers use

    @property
    def transaction_status(self) -> str:
        """`I` idle, `T` in a transaction, `E` in a failed one."""
        if self.transaction is None or self.transaction.script:
            return "I"
        return "E" if self.transaction.failed else "T"

    @property
    def parameters(self) -> Mapping[str, str]:
        """Settings that a client is told when it connects: the same mapping as long as none of them changes."""
        own, standby = self.variables.reported(), self.on_standby
        if self._told[0] is not own or self._told[1] != standby:
            self._told = own, standby, {**own, "in_hot_standby": "on" if standby else "off"}
        return self._told[2]

    @property
    def user(self) -> str:
        """The name of the role that is connected, or that it has become by SET SESSION AUTHORIZATION."""
        return self.variables.get("session_authorization")

    @property
    def role(self) -> str:
        """The name of the role whose rights the session has: the user, or what it has become by SET ROLE."""
        return self.variables.role

    @property
    def zone(self) -> Zone:
        """The time zone in which its statements read and show times."""
        return self.variables.zone

    @property
    def rights(self) -> Rights:
        """What the session may do now."""
        state, name = self.database.catalog.image, self.role
        known = self._rights
        if known is None or known.state.objects is not state.objects or known.name != name:
            known = Rights(state.snapshot(), name, self._role_ids.get(name, 0))
            self._role_ids.setdefault(name, known.role_id)
            self._rights = known
        return known

    def become(self, user: str | None, role: str | None, *, local: bool = False) -> None:
        """Be another user (None: the one who has connected), with the rights of a role (None: its own)."""
        if local:
            self.variables.hold({"role": role or "none"}, local=True)
        else:
            self.variables.hold({"session_authorization": user, "role": role})
        if self.role != self.authenticated:  # another one of that name has not connected
            self._role_ids.pop(self.role, None)
        superuser = "on" if self.rights.superuser else "off"
        self.variables.hold({"is_superuser": superuser}, local=local)

    @property
    def on_standby(self) -> bool:
        """Whether the server only follows another one."""
        return self.database.coordinator.is_standby

    def look_again(self) -> None:
        """On a standby: get hold of what the catalog names now, for reads at whatever epoch."""
        self.database.coordinator.look_again(_LOOK_WAIT_S)

    def greeting(self) -> list[Notice]:
        """What a client is told when it connects."""
        status = self.database.coordinator.standby()
        if status is None:
            return []
        where = f", which is at {status.address}" if status.address else ""
        text = f"this server is a standby of {status.owner}{where}; it has heard of that {status.staleness_ms} ms ago"
        return [Notice(text)]

    def idle_limit(self) -> IdleLimit | None:
        """How long the client may now ask for nothing."""
        return self._idle.limit(self.variables, self.transaction)

    @property
    def send_limit_s(self) -> float | None:
        """Seconds for which the client may take nothing of what it is sent."""
        limit_ms = self.database.settings.client_timeout_ms
        return limit_ms / 1000 if limit_ms else None

    def expired(self, error: HeadraceError) -> None:
        """Tell that the client is sent away: what it held kept history from being merged."""
        event = AddEvent("client_sent_away", None, f"session {self.number}: {error.message}", error.hint or "")
        if not self.on_standby:
            self.database.catalog.transact([event])

    def begin_request(self) -> None:
        """A cancel counts until the next call, and stops all that is run up to there. Any thread may call this.

        Without it each call of `execute`, `prepare` and `PreparedStatement.execute` is a request of its own.
        """
        self.interrupts.begin()
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
                yield from run_script(self, wanted)
            elif wanted:
                yield self.run(wanted[0])
            if len(statements) == 1 and statements[0].preparable:
                self._texts.met(sql)

    def prepare(self, sql: str, parameter_types: Sequence[str | None] = ()) -> PreparedStatement:
        """Parse one statement and find the types of its parameters and of its result."""
        with self._request(), self._failing(text=sql), self._limited():
            self.check()
            self._require_open()
            prepared: PreparedStatement | None = self._texts.prepared(sql, parameter_types)
            if prepared is None:
                prepared = self.prepared(parse_one(sql), parameter_types)
                self._texts.keep(sql, parameter_types, prepared)
            return prepared

    def prepared(self, statement: st.Statement, parameter_types: Sequence[str | None]) -> PreparedStatement:
        """Prepare a statement that is parsed already."""
        return prepare(self, statement, parameter_types)

    def knows_statement(self, sql: str, parameter_types: Sequence[str | None]) -> bool:
        """Whether a text is prepared without blocking, to a statement that is quick."""
        found = self._texts.prepared(sql, parameter_types)
        return found is not None and found.is_quick

    def cancel(self) -> None:
        """Stop what runs, from another thread."""
        self.interrupts.stop("canceling statement due to user request")

    def close(self) -> None:
        """Give up an open transaction, and what runs."""
        # First what waits: once the transaction is over, nothing keeps what it has written from vacuum.
        self.interrupts.withdraw("the session was closed")
        transactions.end(self)
        cursors.close_all(self)
        if not self._closed:
            self._closed = True
            self.database.forget(self)

    # ---- running

    def run(self, statement: st.Statement) -> Result:
        """Runs one statement. Its errors are the session's: translated, and placed in the text."""
        with self._request(), self._failing(statement):
            self.check()
            self._admit(statement)
            with self._limited():
                result = handler_of(statement).run(self, statement)
                self.interrupts.durable |= statement.writes  # DDL stays done, too
            note_done(self, statement)
            result.notices[:] = [n for n in result.notices if self.is_shown(n)]
            return result

    @contextmanager
    def going_on(self, statement: st.Statement) -> Iterator[None]:
        """Do inside the block what belongs to a statement that was run before: its client sends it piece by piece."""
        with self._request(), self._failing(statement):
            self._require_open()
            self.check()
            with self._limited():
                yield

    def is_shown(self, notice: Notice) -> bool:
        """Whether the client wants to be told that much."""
        least = SEVERITIES.index(self.variables.get("client_min_messages"))
        return SEVERITIES.index(notice.severity.lower()) >= least

    def run_planned(self, statement: st.Statement, plan: RowPlan, texts: Sequence[str | None]) -> Result:
        """Run a statement that was planned before, with the texts of its parameters."""
        with self._request(), self._failing(statement):
            self.check()
            self._admit(statement)
            with self._limited():
                return run_plan(self, plan, texts)

    @property
    def starts_quickly(self) -> bool:
        """Whether statements may be started without waiting for them: nothing limits their time or follows them.

        The end of a transaction may have to get rows of cursors.
        """
        if self.cursors:
            return False
        variables = self.variables
        if self._quickly[0] != variables.version:
            limited = bool(duration_ms(variables.get("statement_timeout")))
            self._quickly = variables.version, not limited and not variables.is_on("rw_implicit_flush")
        return self._quickly[1]

    @property
    def finds_quickly(self) -> bool:
        """Whether an open transaction finds single rows without waiting for a store across the network."""
        return self.transaction is None or self.database.coordinator.root.is_local

    def start_planned(self, statement: st.Statement, plan: RowPlan, texts: Sequence[str | None]) -> Result | Pending:
        """The same, without waiting for its commit."""
        try:
            self.check()
            self._admit(statement)
            started = start_plan(self, statement, plan, texts)
        except BaseException as error:
            self._fail(error, statement)
        return self._waiting(started)

    def start_text(self, sql: str) -> Result | Pending | None:
        """Start a statement that ends or begins a transaction, or is like others before; None for what is to be run."""
        if not self.starts_quickly:
            return None
        statement = bracket(sql)
        if statement is not None:
            return self.start_bracket(statement)
        known = self._texts.find(sql)
        return None if known is None else known[0].start(known[1])

    def knows_text(self, sql: str) -> bool:
        """Whether `start_text` starts a text, without blocking whoever calls it."""
        return self.starts_quickly and (bracket(sql) is not None or self._texts.find(sql) is not None)

    def start_bracket(self, statement: st.Statement) -> Result | Pending:
        """The same for one that is parsed already."""
        try:
            self.check()
            self._admit(statement)
            start = handler_of(statement).start
            assert start is not None
            started = start(self, statement)
        except BaseException as error:
            self._fail(error, statement)
        return self._waiting(started)

    def run_read(
        self, statement: st.Statement, plan: Callable[[], PlannedRead | None], texts: Sequence[str | None]
    ) -> Result | None:
        """Run a read by its plan, with the texts of its parameters; None for what is to be run the ordinary way."""
        with self._request(), self._failing(statement):
            self.check()
            self._admit(statement)
            with self._limited():
                planned = plan()
                if planned is None:
                    return None
                try:
                    result = read(self, planned, values_of(texts, planned.plan.types, self.zone))
                except ObjectMissing:
                    if not self.on_standby:
                        raise
                    return None  # which looks at the catalog again
            if result is not None:
                result.notices[:] = [n for n in result.notices if self.is_shown(n)]
            return result

    def start_read(self, statement: st.Statement, planned: PlannedRead, texts: Sequence[str | None]) -> Result | None:
        """The same without waiting; None for what is to be run the ordinary way, also where something is wrong."""
        try:
            self.check()
            self._admit(statement)
            return read_at_once(self, planned, texts)
        except Exception:
            return None

    def _waiting(self, started: Started | Result) -> Result | Pending:
        """Note what was started, so that it can be cancelled: perhaps it was already."""
        if not isinstance(started, Result):
            self.interrupts.waiting_for(started.request)
        return started

    def finish(self, statement: st.Statement, result: Callable[[], Result]) -> Result:
        """Take the result of a statement that was started: its errors are those of the session."""
        self.interrupts.waited()
        try:
            return result()
        except BaseException as error:
            self._fail(error, statement)

    def _admit(self, statement: st.Statement) -> None:
        """Raise what is in the way of a statement, as things stand with the session and its server."""
        self._require_open()
        handler, transaction = handler_of(statement), self.transaction
        if transaction is not None and transaction.failed and not handler.in_failed(statement):
            raise TransactionError(
                "current transaction is aborted, commands ignored until end of transaction block", sqlstate="25P02"
            )
        if handler.server is not Server.ANY:
            coordinator = self.database.coordinator
            coordinator.refuse_writes(statement.words)
            if handler.server is Server.READY:
                coordinator.wait_ready(self.check)
        if statement.writes and self._reads_only():
            raise ReadOnlyTransaction(f"cannot execute {statement.words} in a read-only transaction")
        alone = None if transaction is None else handler.outside(statement)
        if alone is not None:
            raise TransactionError(f"{alone} cannot run inside a transaction block", sqlstate="25001")

    def _require_open(self) -> None:
        if self._closed:
            raise ShuttingDown("the session is closed")
        self.database.check()

    @contextmanager
    def _failing(self, statement: st.Statement | None = None, text: str = "") -> Iterator[None]:
        """Errors inside the block are headrace's, say where in the statement, and fail the transaction."""
        spark = self.database.keeper.session
        try:
            yield
        except BaseException as error:
            self._fail(error, statement, spark, text)

    def _fail(
        self, error: BaseException, statement: st.Statement | None, spark: SparkSession | None = None, text: str = ""
    ) -> NoReturn:  # fmt: skip
        """Raise an error as the session tells it, of what was run on a Spark session, if it was."""
        if self.transaction is not None:
            self.transaction.failed = True
        if not isinstance(error, Exception):
            raise error
        found = self.database.keeper.explained(translate(error), spark)
        if isinstance(found, SerializationFailure):
            found = transactions.explained(self, self.transaction, found)
        reason = self.interrupts.reason
        if reason is not None and not isinstance(found, QueryCanceled):
            found = QueryCanceled(reason)
        if statement is not None:
            found = located(found, statement)
        note_failed(self, statement, text, found)
        if found is error:
            raise error
        raise found from error

    def _limited(self) -> AbstractContextManager[None]:
        """Apply `statement_timeout`."""
        return self.interrupts.limited(duration_ms(self.variables.get("statement_timeout")))

    def check(self) -> None:
        """Raise `QueryCanceled` if the running statement was cancelled."""
        self.interrupts.check()

    def wait(self, step: Callable[[Callable[[], None]], object]) -> None:
        """Wait for `step` in a thread of its own, as long as nobody cancels it. It calls now and then what it gets."""
        self.interrupts.wait(step)

    # ---- what the kinds of statements share

    def wait_for_spark(self) -> None:
        """Return once Spark runs: it may be starting, or have ended and be starting again; the client is told so.

        What views need to go on may come later (`wait_for_views`). Raises `QueryCanceled`, `OperationalError` where
        Spark does not start.
        """
        self.database.keeper.wait_ready(self.check, self._tell)

    def wait_for_views(self) -> None:
        """Return once Spark runs and all views are planned there. Raises what `wait_for_spark` does."""

        def check() -> None:
            self.check()
            self.wait_for_spark()

        check()
        self.database.coordinator.wait_planned(check)

    def _tell(self, text: str) -> None:
        notice = Notice(text)
        if self.is_shown(notice):
            self.tell(notice)

    @property
    def planner(self) -> Planner:
        """The database's planner, once it has planned all views that there are: new ones come after these."""
        self.wait_for_views()
        return self.database.planner

    def names(self, *, checked: bool = True) -> Names:
        """Look-up of names along the search path. Unchecked, for what finds out by itself if the catalog is lost."""
        return Names(self.database.catalog, self.variables.search_path(), checked, self.rights, self.zone)

    def handler(self, statement: _S) -> Handler[_S]:
        """What there is to know of a statement: for those that hold another one."""
        return handler_of(statement)

    def localized(self, query: Query) -> Query:
        """The query with functions and casts that only the session or the catalog can answer replaced."""
        return localize(self, query)

    @property
    def acting(self) -> Transaction | None:
        """The transaction in which the statement that runs reads."""
        return self.writing or self.transaction

    @contextmanager
    def within(self, transaction: Transaction) -> Iterator[None]:
        """Let what is read inside the block be read in a transaction that writes."""
        self.writing = transaction
        try:
            yield
        finally:
            self.writing = None

    def has_changed(self, table_id: int) -> bool:
        """Whether the transaction that is open wants to write to a table."""
        transaction = self.acting
        return transaction is not None and transaction.work.has_changed(table_id)

    def wrote(self, epoch: int) -> None:
        """Something has been written at an epoch: whoever wants to cancel it comes too late."""
        self.interrupts.wrote()
        self.last_write = max(self.last_write, epoch)
        if self.variables.is_on("rw_implicit_flush"):
            self.flush()

    def write(self, record: ObjectRecord, change: TableChange) -> None:
        """Write to a table: now, or at COMMIT."""
        if change.inserts is None and change.deletes is None:
            return

        def run(transaction: Transaction) -> tuple[None, None]:
            if transaction.implicit:
                transaction.work.defer(record.id, change)
            else:
                transaction.work.change(record.id, change)
            return None, None

        transactions.run_writing(self, run)

    def flush(self) -> None:
        """Wait until every view has what was written before."""
        self.wait_for_views()  # without it no view goes on, and whoever waits is to be told what is wrong with it
        self.wait(lambda check: self.database.coordinator.flush(check=check))

    # ---- settings

    def setting(self, name: str) -> str:
        """What SHOW says of a setting."""
        if name == "transaction_read_only":
            return "on" if self._reads_only() else "off"
        if name == "in_hot_standby":
            return "on" if self.on_standby else "off"
        return self.variables.get(name)

    def _reads_only(self) -> bool:
        transaction = self.transaction
        if self.on_standby:
            return True
        return transaction.read_only if transaction else self.variables.is_on("default_transaction_read_only")
