"""What a statement may use: a `Context`, one for each session.

Whoever carries out a statement gets the session's context, and nothing else of the session, its database or the server:
what is not in this file is not within reach. `Session`, `Instance` and `Database` are built on it and not known here,
so a test makes one of what it needs.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pyspark.sql import SparkSession

from headrace.catalog.catalog import Catalog
from headrace.catalog.contents import IndexContent, MadeBy
from headrace.catalog.records import ObjectRecord
from headrace.common.clock import Clock
from headrace.common.lazy_dataclass import dataclass
from headrace.common.zones import Zone
from headrace.config import Settings
from headrace.dataflow.operators.inputs import SnapshotScan
from headrace.errors import JobFailed
from headrace.plan.planner import Planner
from headrace.session.coordination import Coordination
from headrace.session.engine import Engine, Jobs
from headrace.session.interrupts import Interrupts
from headrace.session.keeper import SparkKeeper
from headrace.session.kernel_plans import KernelPlans
from headrace.session.named import ByName
from headrace.session.open_cursors import OpenCursor, OpenSubscription
from headrace.session.parameters import Parameters
from headrace.session.read_epochs import SessionReads
from headrace.session.result import Notice, Prepared, Result
from headrace.session.rights import Rights
from headrace.session.shared_plans import SharedPlans
from headrace.session.shared_reads import SharedReads
from headrace.session.transactions import Transaction
from headrace.session.turns import Turns
from headrace.session.variables import SEVERITIES, Variables, defaults_of
from headrace.sql import statements as st
from headrace.sql.binder.moments import Times

if TYPE_CHECKING:
    from headrace.coordinator.reads import Snapshot, SnapshotTable

_LOOK_WAIT_S = 10.0
"""Most seconds that a read on a standby waits for another look at the catalog."""
_numbers = itertools.count(1)


def _now_us() -> int:
    return time.time_ns() // 1000


class ReaderStatus(NamedTuple):
    """What is to be seen of a reading process beside the server."""

    number: int
    pid: int | None
    state: str
    """`starting`, `running`, or `ended`: then it is started again."""
    epoch: int | None
    """The newest at which it has shown anything."""
    reads: int
    """How many it has answered, with those before it in its place."""
    connections: int


class System(Protocol):
    """The server as a whole, for the few statements that are about more than their own session."""

    def alter_system(self, name: str | None, value: str | None) -> None:
        """Set a system parameter, for good; without a value put it back, without a name put all back."""
        ...

    def contexts(self) -> Sequence[Context]:
        """Those of the sessions that are open, in the order in which they were opened."""
        ...

    @property
    def reading_processes(self) -> Callable[[], Sequence[ReaderStatus]]:
        """Tells of the reading processes beside the server."""
        ...


class Statements(Protocol):
    """How a session runs statements: for one that holds another, and one that goes on after its handler's call."""

    def prepared(self, statement: st.Statement, types: Sequence[str | None]) -> Prepared:
        """A statement that is parsed, with its parameters open."""
        ...

    def explaining(self, statement: st.Statement) -> Callable[[], list[str]] | None:
        """What gives the lines of EXPLAIN for a statement; None where EXPLAIN does not take it."""
        ...

    def going_on(self, statement: st.Statement) -> AbstractContextManager[None]:
        """Do inside the block what belongs to a statement that was run before: its client sends it piece by piece."""
        ...

    def finish(self, statement: st.Statement, result: Callable[[], Result]) -> Result:
        """Take the result of a statement that was started: its errors are those of the session."""
        ...


@dataclass(frozen=True)
class Services:
    """What all sessions of a database share."""

    catalog: Catalog
    coordinator: Coordination
    parameters: Parameters
    clock: Clock
    keeper: SparkKeeper
    planner: Planner
    engine: Engine
    kernels: KernelPlans
    turns: Turns
    system: System
    shared_reads: SharedReads = field(default_factory=SharedReads)
    shared_plans: SharedPlans[object] = field(default_factory=SharedPlans)

    def spark_sessions(self) -> list[SparkSession]:
        """The sessions in which functions must be known: those that plan views and those that run queries."""
        return [self.planner.bridge.spark, *self.engine.sessions] if self.planner.has_spark else []


class Context:
    """What the statements of one session use, and what it keeps from one to the next. One thread at a time."""

    def __init__(self, services: Services, settings: Mapping[str, str], runner: Statements) -> None:
        """`settings` are the session's defaults, where they are others than the server's."""
        self.catalog = services.catalog
        self.coordinator = services.coordinator
        self.clock = services.clock
        self.keeper = services.keeper
        self.engine = services.engine
        self.kernels = services.kernels
        self.turns = services.turns
        self.shared_reads = services.shared_reads
        self.shared_plans = services.shared_plans
        self.system = services.system
        self.runner = runner
        self._services = services
        self._parameters = services.parameters

        self.number: int = next(_numbers)
        self.began_ms = self.clock.now_ms()
        self.variables = Variables(**{**defaults_of(self.settings), **settings})
        self.authenticated = self.user
        """The role that has connected, whatever it has become since."""
        self.client = ""
        """The address of the client that it is for; "" for the program itself."""
        self._rights: Rights | None = None
        self._role_ids: dict[str, int] = {}
        """The ids that the roles had which the session has been."""
        if not self.rights.superuser:
            self.variables.hold({"is_superuser": "off"})
        self.tell: Callable[[Notice], None] = lambda notice: None
        """What a server tells the client while a statement runs; in its thread."""
        self.find_portal: Callable[[str], OpenCursor | None] = lambda name: None
        """What a server has under a name that is no cursor's."""
        self.drop_portals: Callable[[int], None] = lambda since: None
        """What a server does when a transaction ends, or goes back to a savepoint: portals since then are gone."""

        self.interrupts = Interrupts(
            f"headrace-wait-{self.number}",
            lambda: self.jobs.cancel(),
            lambda request, error: self.coordinator.writer.cancel(request, error),
        )
        self.check = self.interrupts.check
        """Raises `QueryCanceled` if the running statement was cancelled."""
        self.wait = self.interrupts.wait
        """Waits for something in a thread of its own, as long as nobody cancels it."""
        self.jobs = Jobs(self.keeper, f"headrace-session-{self.number}", self.check, self.wait_for_spark)

        self.statements: ByName[Prepared] = ByName("prepared statement", "26000", "42P05")
        """Prepared statements, those of the protocol among them."""
        self.cursors: ByName[OpenCursor] = ByName("cursor", "34000", "42P03")
        """What DECLARE has made."""
        self.subscription_cursors: ByName[OpenSubscription] = ByName("cursor", "34000", "42P03")
        """The same of cursors over subscriptions, which have nothing to do with transactions."""
        self.pipeline: MadeBy | None = None
        """The definition of a pipeline for which the session creates objects."""

        self.transaction: Transaction | None = None
        """The transaction that BEGIN has opened."""
        self.writing: Transaction | None = None
        """The transaction of the statement that runs, if that writes: the open one, or one of its own."""
        self.asked_us = _now_us()
        """When the client has asked for what runs, in microseconds since 1970: that of all statements of a text."""
        self.refused_over: frozenset[int] = frozenset()
        """The tables over which its last transaction was refused: the next one waits for its turn."""
        self.conflicted_at = 0
        """The epoch of the newest change that was in the way of a transaction of the session."""
        self.last_write = 0
        """The epoch of its last write."""
        self.reads = SessionReads(self)

    # ---- settings, and who it is

    @property
    def settings(self) -> Settings:
        """The system's parameters that are in force."""
        return self._parameters.settings

    @property
    def zone(self) -> Zone:
        """The time zone in which statements read and show times."""
        return self.variables.zone

    def setting(self, name: str) -> str:
        """What SHOW says of a setting."""
        if name == "transaction_read_only":
            return "on" if self.reads_only else "off"
        if name == "in_hot_standby":
            return "on" if self.on_standby else "off"
        return self.variables.get(name)

    @property
    def user(self) -> str:
        """The name of the role that is connected, or that it has become by SET SESSION AUTHORIZATION."""
        return self.variables.get("session_authorization")

    @property
    def role(self) -> str:
        """The name of the role whose rights the session has: the user, or what it has become by SET ROLE."""
        return self.variables.role

    @property
    def rights(self) -> Rights:
        """What the session may do now."""
        state, name = self.catalog.image, self.role
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

    # ---- the transaction

    def begin_request(self) -> None:
        """A client asks for something: a cancel that came before is not for that."""
        self.interrupts.begin()
        self.asked_us = _now_us()

    @property
    def times(self) -> Times:
        """What the statement that runs has for the times that it asks for."""
        transaction, asked_us = self.acting, self.asked_us
        return Times(asked_us if transaction is None else transaction.began_us, asked_us, _now_us())

    @property
    def in_block(self) -> bool:
        """Whether the client has begun a transaction; that of several statements in one text is none of its own."""
        return self.transaction is not None and not self.transaction.script

    @property
    def reads_only(self) -> bool:
        """Whether nothing may be written now."""
        if self.on_standby:
            return True
        transaction = self.transaction
        return transaction.read_only if transaction else self.variables.is_on("default_transaction_read_only")

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

    def scan(self, table: SnapshotTable, names: Sequence[str]) -> SnapshotScan:
        """What reads a stored relation's columns `names` slice by slice."""
        return self.engine.scan(table, names)

    def indexes(self) -> Iterable[ObjectRecord]:
        """The indexes that there are."""
        return self.catalog.state.objects_of(IndexContent)

    def index_snapshot(self, index_id: int, relation_id: int, at: int) -> Snapshot:
        """An index at the newest epoch up to `at` at which it has what its relation had."""
        return self.coordinator.snapshot([index_id, relation_id], at=at)

    def wrote(self, epoch: int) -> None:
        """Something has been written at an epoch: whoever wants to cancel it comes too late."""
        self.interrupts.wrote()
        self.last_write = max(self.last_write, epoch)
        if self.variables.is_on("rw_implicit_flush"):
            self.flush()

    # ---- the client

    def is_shown(self, notice: Notice) -> bool:
        """Whether the client wants to be told that much."""
        least = SEVERITIES.index(self.variables.get("client_min_messages"))
        return SEVERITIES.index(notice.severity.lower()) >= least

    def cancel(self) -> None:
        """Stop what runs, from another thread."""
        self.interrupts.stop("canceling statement due to user request")

    # ---- Spark, views, a standby

    def wait_for_spark(self) -> None:
        """Return once Spark runs: it may be starting, or have ended and be starting again; the client is told so.

        What views need to go on may come later (`wait_for_views`). Raises `QueryCanceled`, `OperationalError` where
        Spark does not start.
        """
        self.keeper.wait_ready(self.check, self._tell)

    def _tell(self, text: str) -> None:
        notice = Notice(text)
        if self.is_shown(notice):
            self.tell(notice)

    def wait_for_views(self) -> None:
        """Return once Spark runs and all views are planned there. Raises what `wait_for_spark` does."""
        self._wait_planned(self.wait_for_spark)

    def wait_for_running(self) -> None:
        """Return once it is known of all views whether they run, be it without Spark. Raises as `wait_for_views`."""
        self._wait_planned(lambda: self.keeper.wait_ready(self.check, self._tell, self.coordinator.runs_all))

    def _wait_planned(self, wait: Callable[[], None]) -> None:
        def check() -> None:
            self.check()
            wait()

        check()
        self.coordinator.wait_planned(check)

    @property
    def planner(self) -> Planner:
        """The database's planner, once it has planned all views that there are: new ones come after these."""
        self.wait_for_views()
        return self._services.planner

    def spark_sessions(self) -> list[SparkSession]:
        """See `Services`."""
        return self._services.spark_sessions()

    def flush(self) -> None:
        """Wait until every view has what was written before."""
        self.wait_for_running()  # else no view goes on, and whoever waits is to be told what is wrong with Spark
        try:
            self.wait(lambda check: self.coordinator.flush(check=partial(self._check_flush, check)))
        except JobFailed as error:
            if not error.job_id or self.may_know(error.job_id):
                raise
            hint = "SHOW JOBS says of one's own views what it is; members of pg_monitor see it of all."
            raise JobFailed(f'view "{error.job_name}" is failing', hint=hint, sqlstate=error.sqlstate) from None

    def _check_flush(self, check: Callable[[], None]) -> None:
        """Raises if nobody waits any more, or if a view waits for a Spark that does not start."""
        check()
        if not self.coordinator.runs_all():
            self.keeper.check_starts()

    def may_know(self, object_id: int) -> bool:
        """Whether the session may be told what failed in the job of an object."""
        return self.rights.may_know(object_id)

    @property
    def on_standby(self) -> bool:
        """Whether the server only follows another one."""
        return self.coordinator.is_standby

    def look_again(self) -> None:
        """On a standby: get hold of what the catalog names now, for reads at whatever epoch."""
        self.coordinator.look_again(_LOOK_WAIT_S)
