"""A session: statements in, results out, with settings and a transaction of its own.

A transaction reads one snapshot, fixed by its first read, and what it has written itself (see `transactions.py`).
CREATE, DROP and ALTER take effect at once, and ROLLBACK does not take them back.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from headrace.catalog.contents import MadeBy
from headrace.catalog.edits import AddEvent
from headrace.catalog.records import ObjectRecord
from headrace.common.zones import Zone
from headrace.coordinator.query_epochs import Consistency, Floors, Monotonic
from headrace.coordinator.reads import ReadOptions
from headrace.coordinator.writes.requests import Request
from headrace.errors import (
    HeadraceError,
    ObjectMissing,
    QueryCanceled,
    ReadOnlyTransaction,
    SerializationFailure,
    ShuttingDown,
    SnapshotUnavailable,
    TransactionError,
)
from headrace.plan.failures import translate
from headrace.session import idle, transactions
from headrace.session.engine import Jobs
from headrace.session.execution import cursors
from headrace.session.execution.cursors import OpenCursor
from headrace.session.execution.handler import Handler, Server, Started
from headrace.session.execution.row_writes import RowPlan, run_plan, start_plan
from headrace.session.execution.select import read
from headrace.session.execution.subscriptions import SubscriptionCursor
from headrace.session.execution.transacting import bracket
from headrace.session.handlers import handler_of
from headrace.session.locating import located
from headrace.session.named import Named
from headrace.session.names import Names
from headrace.session.prepared import PreparedStatement, prepare
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

    from headrace.coordinator.reads import Snapshot
    from headrace.plan.planner import Planner
    from headrace.session.database import Database

_WAIT_SLICE_S = 0.1
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
        self._writing: Transaction | None = None
        """The transaction of the statement that runs, if that writes: the open one, or one of its own."""
        self._cancelled: str | None = None
        self._durable = False
        """Whether the statement that runs has written something that is durable."""
        self._waits_for: Request | None = None
        """What was started and waits to be committed."""
        self._requested = False
        self._timing = threading.Lock()
        self._timer: threading.Timer | None = None
        self._closed = False
        self._quickly = -1, False
        """For which version of the settings statements start quickly, and whether they do."""
        self._newest = -1, False
        """For which version of the settings tables are read as of the newest epoch, and whether they are."""
        self._options: tuple[tuple[int, int], ReadOptions] | None = None
        self._told: tuple[Mapping[str, str], bool, Mapping[str, str]] = {}, False, {}
        """What clients are told: the session's settings, whether the server is a standby, and both together."""
        self._texts = KnownTexts(self)
        self.conflicted_at = 0
        """The epoch of the newest change that was in the way of a transaction of the session."""
        self.last_write = 0
        """The epoch of its last write."""
        self._floors = Floors()

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
        self._cancelled = None
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
        with self._request(), self._failing(), self._limited():
            self.check()
            self._require_open()
            prepared: PreparedStatement | None = self._texts.prepared(sql, parameter_types)
            if prepared is None:
                prepared = self.prepared(parse_one(sql), parameter_types)
                self._texts.keep(sql, parameter_types, prepared)
            return prepared

    def prepared(self, statement: st.Statement, parameter_types: Sequence[str | None]) -> PreparedStatement:
        """Find the same of a statement that is parsed."""
        return prepare(self, statement, parameter_types)

    def knows_statement(self, sql: str, parameter_types: Sequence[str | None]) -> bool:
        """Whether a text is prepared without blocking, to a statement that is quick."""
        found = self._texts.prepared(sql, parameter_types)
        return found is not None and found.is_quick

    def cancel(self) -> None:
        """Stop what runs, from another thread."""
        self._stop("canceling statement due to user request")

    def close(self) -> None:
        """Give up an open transaction, and what runs."""
        # First what waits: once the transaction is over, nothing keeps what it has written from vacuum.
        self._withdraw("the session was closed")
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
                self._durable |= statement.writes  # DDL stays done, too
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
    def reads_newest(self) -> bool:
        """Whether a table is read as of the newest complete epoch: nothing asks for another one."""
        variables = self.variables
        if self._newest[0] != variables.version:
            fits = not int(variables.get("query_epoch") or 0) and variables.get("query_consistency") != "global"
            self._newest = variables.version, fits
        return self._newest[1]

    def read_options(self) -> ReadOptions:
        """How a read outside of transactions chooses its epoch."""
        now = self.variables.version, self.last_write
        if self._options is None or self._options[0] != now:
            self._options = now, self._read_options((), None)
        return self._options[1]

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
            self._waits_for = started.request
            if self._cancelled is not None:
                self._withdraw(self._cancelled)
        return started

    def finish(self, statement: st.Statement, result: Callable[[], Result]) -> Result:
        """Take the result of a statement that was started: its errors are those of the session."""
        self._waits_for = None
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
    def _failing(self, statement: st.Statement | None = None) -> Iterator[None]:
        """Errors inside the block are headrace's, say where in the statement, and fail the transaction."""
        spark = self.database.keeper.session
        try:
            yield
        except BaseException as error:
            self._fail(error, statement, spark)

    def _fail(
        self, error: BaseException, statement: st.Statement | None, spark: SparkSession | None = None
    ) -> NoReturn:  # fmt: skip
        """Raise an error as the session tells it, of what was run on a Spark session, if it was."""
        if self.transaction is not None:
            self.transaction.failed = True
        if not isinstance(error, Exception):
            raise error
        found = self.database.keeper.explained(translate(error), spark)
        if isinstance(found, SerializationFailure):
            found = transactions.explained(self, self.transaction, found)
        reason = self._cancelled
        if reason is not None and not isinstance(found, QueryCanceled):
            found = QueryCanceled(reason)
        if statement is not None:
            found = located(found, statement)
        if found is error:
            raise error
        raise found from error

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """Apply `statement_timeout`."""
        limit_ms = duration_ms(self.variables.get("statement_timeout"))
        if not limit_ms or self._timer is not None:  # EXECUTE runs a statement inside of another one
            self._durable = False
            yield
            self._check_end()
            return
        self._durable = False
        timer = threading.Timer(limit_ms / 1000, lambda: self._time_out(timer))
        timer.daemon = True
        self._timer = timer
        timer.start()
        try:
            yield
            self._check_end()
        finally:
            with self._timing:
                self._timer = None
            timer.cancel()

    def _check_end(self) -> None:
        """Raise `QueryCanceled` for a statement that was cancelled at its end, unless it has written: that holds."""
        if not self._durable:
            self.check()

    def _time_out(self, timer: threading.Timer) -> None:
        """The time of a statement is over; if it has ended just now, the next one has nothing to do with that."""
        with self._timing:
            if self._timer is timer:
                self._stop("canceling statement due to statement timeout")

    def _stop(self, reason: str) -> None:
        self._cancelled = reason
        self.jobs.cancel()
        self._withdraw(reason)

    def _withdraw(self, reason: str) -> None:
        """Let what was started fail, unless it is being committed."""
        waits_for = self._waits_for
        if waits_for is not None:
            self.database.coordinator.writer.cancel(waits_for, QueryCanceled(reason))

    def check(self) -> None:
        """Raise `QueryCanceled` if the running statement was cancelled."""
        if self._cancelled is not None:
            raise QueryCanceled(self._cancelled)

    def wait(self, step: Callable[[Callable[[], None]], object]) -> None:
        """Run `step` in a thread of its own, so that waiting for it can be cancelled.

        It gets what it has to call now and then, and which raises once nobody waits for it any more.
        """
        done, given_up = threading.Event(), threading.Event()

        def check() -> None:
            if given_up.is_set():
                raise QueryCanceled("nobody waits for this any more")

        failures: list[BaseException] = []

        def run() -> None:
            try:
                step(check)
            except BaseException as error:
                failures.append(error)
            finally:
                done.set()

        threading.Thread(target=run, name=f"headrace-wait-{self.number}", daemon=True).start()
        try:
            while not done.wait(_WAIT_SLICE_S):
                self.check()
        finally:
            given_up.set()
        if failures:
            raise failures[0]

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

    @contextmanager
    def within(self, transaction: Transaction) -> Iterator[None]:
        """Let what is read inside the block be read in a transaction that writes."""
        self._writing = transaction
        try:
            yield
        finally:
            self._writing = None

    def has_changed(self, table_id: int) -> bool:
        """Whether the transaction that is open wants to write to a table."""
        transaction = self._writing or self.transaction
        return transaction is not None and transaction.work.has_changed(table_id)

    def wrote(self, epoch: int) -> None:
        """Something has been written at an epoch: whoever wants to cancel it comes too late."""
        self._cancelled, self._durable = None, True
        self.last_write = max(self.last_write, epoch)
        if self.variables.is_on("rw_implicit_flush"):
            self.flush()

    def snapshot(
        self, relations: Sequence[int], at: int | None, point: tuple[int, tuple[object, ...]] | None = None
    ) -> AbstractContextManager[Snapshot]:
        """A snapshot of relations: at an epoch that is asked for, that of the transaction, or the newest.

        `point` is the table and the primary key of the one row that is read, where that is known.
        """
        return self._snapshot(relations, at, point)

    @contextmanager
    def _snapshot(
        self, relations: Sequence[int], at: int | None, point: tuple[int, tuple[object, ...]] | None
    ) -> Iterator[Snapshot]:
        transaction = self._writing or self.transaction
        options = self._read_options(relations, at)
        if transaction is None or options.at is not None:
            with self.database.coordinator.snapshot(list(relations), options=options) as snapshot:
                yield snapshot
            return
        with ExitStack() as stack:
            snapshot = stack.enter_context(self._transaction_snapshot(transaction, relations, options))
            if transaction.work.epoch is None:
                transaction.shown = snapshot.shown
                transaction.behind = self._behind(relations, snapshot)
            transaction.work.fix(snapshot.epoch)
            if point is not None and transaction.work.can_look_up(point[0]):
                transaction.work.note_keys(point[0], [point[1]])
            else:
                transaction.work.note_tables(self.database.coordinator.tables_read(relations))
            for i in snapshot.tables:
                if transaction.work.has_changed(i):
                    own = transaction.work.own_runs(i)
                    snapshot.tables[i] = replace(snapshot.tables[i], refs=(*snapshot.tables[i].refs, *own))
            yield snapshot

    def _behind(self, relations: Sequence[int], snapshot: Snapshot) -> str | None:
        """Why a snapshot is older than the tables that it is made of; None if it is not."""
        coordinator = self.database.coordinator
        tables = coordinator.tables_read(relations)
        if tables.issuperset(relations) or coordinator.writer.last_change(tables) <= snapshot.epoch:
            return None
        return "; ".join(snapshot.notices) or "a view that it has read had not taken them in yet"

    def _transaction_snapshot(
        self, transaction: Transaction, relations: Sequence[int], options: ReadOptions
    ) -> AbstractContextManager[Snapshot]:
        """The first read waits for what the session has written; where that cannot be, only writing fails."""
        try:
            return self.database.coordinator.snapshot(list(relations), options=options)
        except SnapshotUnavailable:
            if transaction.implicit or not options.at_least or self.variables.is_on("read_your_writes"):
                raise
            return self.database.coordinator.snapshot(list(relations), options=replace(options, at_least=0))

    def _read_options(self, relations: Sequence[int], at: int | None) -> ReadOptions:
        """How the session's settings, its transaction and its writes let a read choose its epoch."""
        v, transaction = self.variables, self._writing or self.transaction
        if self._writing is None:
            at = at or int(v.get("query_epoch") or 0) or None
        if at is not None:
            return ReadOptions(at=at, check=self.check)
        fixed = None if transaction is None else transaction.work.epoch
        consistency = cast(Consistency, v.get("query_consistency"))
        at_least = self.last_write if v.is_on("read_your_writes") else 0
        if transaction is not None:
            # A transaction reads one snapshot.
            consistency = "snapshot" if consistency == "latest" or transaction.implicit else consistency
            if not transaction.read_only and fixed is None:
                at_least = self._needed(transaction, relations)
        return ReadOptions(
            consistency=consistency,
            monotonic=cast(Monotonic, v.get("monotonic_reads")),
            exactly=fixed,
            shown={} if transaction is None else transaction.shown,
            at_least=at_least,
            session=self._floors,
            align=transaction is not None and fixed is None,
            check=self.check,
        )

    def _needed(self, transaction: Transaction, relations: Sequence[int]) -> int:
        """The epoch that the snapshot of a transaction that may write must have reached, so that it can commit.

        Its own session's writes must be there; for a single statement, the newest change of any table that it reads.
        """
        if not transaction.implicit:
            return transaction.at_least
        coordinator = self.database.coordinator
        tables = coordinator.tables_read(relations)
        return max(transaction.at_least, coordinator.writer.last_change(tables))

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
