"""The coordinator: epochs, barriers, checkpoint groups, writes and reads of one database.

Jobs that share a checkpoint group step, commit and fail together; by default each view has a group of its own. A group
has a thread that runs its epochs, commits them, and retries them by itself. Epochs come from one clock; a tick binds
sources, a write to a table has an epoch of its own, and a view runs to an epoch once everything at or below it is
complete.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from structlog import get_logger

from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import AddEvent
from headrace.catalog.following import FollowedCatalog, Refreshed
from headrace.catalog.records import ObjectRecord
from headrace.common.clock import Clock, SystemClock
from headrace.common.ownership import Ownership, is_served
from headrace.config import Settings
from headrace.connectors.sources import Secrets
from headrace.coordinator.compaction import Compactor
from headrace.coordinator.core import SPARK_STARTS, Core, Job, Runner, RunnerFactory, lag_ms
from headrace.coordinator.exact import newest
from headrace.coordinator.graph import Known
from headrace.coordinator.history import Checkpoint, RowErrors
from headrace.coordinator.lanes import STOP_WAIT_S
from headrace.coordinator.lease import Lease
from headrace.coordinator.lease_keeper import LeaseKeeper
from headrace.coordinator.lifecycle import Lifecycle
from headrace.coordinator.location import location_edits
from headrace.coordinator.logs import LogKeeper
from headrace.coordinator.maintenance import Maintenance
from headrace.coordinator.metrics import Metric, collect
from headrace.coordinator.mirror import mirror
from headrace.coordinator.owner import Owner
from headrace.coordinator.progress import AttemptProgress
from headrace.coordinator.progress_server import ProgressServer
from headrace.coordinator.reads import CHECK_S, DEFAULT_WAIT_S, NEWEST, Later, ReadOptions, Reads, Snapshot
from headrace.coordinator.standby import Standby, StandbyStatus, Why
from headrace.coordinator.status import EdgeStatus, GroupStatus, RelationEpochs, Status
from headrace.coordinator.subscriptions import Feed
from headrace.coordinator.ticker import Ticker
from headrace.coordinator.vacuum import Vacuum
from headrace.coordinator.watchdog import Barrier, Watchdog, barriers, waiting_for
from headrace.coordinator.writes.handing import Handing
from headrace.coordinator.writes.layout import Key, Row
from headrace.coordinator.writes.requests import Request, TableWrite, WriteResult
from headrace.coordinator.writes.settling import restore
from headrace.coordinator.writes.transaction import WriteTransaction
from headrace.coordinator.writes.writer import Writer
from headrace.dataflow.executors import prove
from headrace.dataflow.merging import SparkMerger
from headrace.dataflow.runner import EpochRunner
from headrace.errors import (
    Fenced,
    HeadraceError,
    InvalidParameter,
    JobFailed,
    QueryCanceled,
    SnapshotUnavailable,
    SparkLost,
    StatementError,
    UndefinedObject,
)
from headrace.plan.planner import Planner, ViewPlan
from headrace.state.changes import TableChange
from headrace.state.memory import MemoryUse
from headrace.state.merge import MergePart, MergeRunner
from headrace.state.proof import put_proof, remove_proof
from headrace.state.schema import RunRef, TableSchema
from headrace.state.spool import forget_leftovers
from headrace.state.stores import StoreRoot

T = TypeVar("T")

_PACES = ("barrier_interval_ms", "checkpoint_interval_ms")
"""Settings that say when a job may run next."""
SLOW_START_S = 10.0
"""A start that takes this long is an event, with its steps."""


@dataclass(frozen=True)
class JobStatus:
    """The status of a job, as SHOW JOBS and `headrace_catalog.jobs` show it."""

    id: int
    name: str
    kind: str
    group: str
    status: str
    """creating, running, failing, paused or quarantined."""
    committed_epoch: int
    frontier: int
    lag_ms: int
    """How far the newest epoch at which it is exact lies behind the wall clock."""
    rows_in: int
    rows_out: int
    epochs: int
    """Epochs since the server started; so are the counts of rows and errors."""
    last_epoch_ms: int
    error: HeadraceError | None
    error_since_ms: int
    row_errors: int
    late_rows: int
    """Rows of its sources that it has not taken in because the watermark had passed them."""
    progress: str
    waiting_for: str
    """What keeps it from its next checkpoint; empty if it has nothing to do."""
    failures: int
    """Failed attempts since the last one that succeeded."""
    retry_in_ms: int
    """Until the next attempt, if the last one failed."""
    in_flight_epoch: int | None
    """The epoch that it is working on."""
    upstreams: tuple[int, ...]
    rows_done: int | None = None
    """Rows of its inputs' content that it has read, while it is being created; None otherwise."""
    rows_expected: int | None = None
    rows_per_second: float | None = None
    remaining_ms: int | None = None
    """How long that will take at the present rate."""


class Coordinator:
    """Runs one database. The catalog is opened, and closed, by the caller. Thread-safe.

    `failed` is set, and `failure` says why, when it has to stop by itself: another process has opened the
    database. After that every call raises.

    With a `FollowedCatalog` it is a standby: it serves reads, refuses all else (`ReadOnlyTransaction`), and becomes the
    active one in place when it takes over.
    """

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        planner: Planner,
        clock: Clock | None = None,
        *,
        make_runner: RunnerFactory | None = None,
        merge_runner: MergeRunner | None = None,
        root: StoreRoot | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        """`root` is where tasks find the state, by default as the settings say; they reach this process at `host`."""
        self._planner = planner
        slots = max(1, settings.parallelism or os.cpu_count() or 1)
        following = isinstance(catalog, FollowedCatalog)
        self._core = Core(settings, catalog, clock or SystemClock(), slots, root, following=following)
        self._core.on_fatal = self._halt
        self._watchdog = Watchdog(self._core)
        self._ticker = Ticker(self._core, self._look)
        self._merger: SparkMerger | None = None
        self._compactor = Compactor(self._core, merge_runner or self._spark_merge)
        self._owner = Owner(self._core)
        self._vacuum = Vacuum(self._core, self._owner)
        self._logs = LogKeeper(self._core)
        self._maintenance = Maintenance(
            self._core, self._compactor, self._logs, self._vacuum, self._settle
        )  # fmt: skip
        self._reads = Reads(self._core)
        self._writer = Writer(self._core, self._maintenance.request)
        self._compactor.merged = self._writer.merged
        self._core.hand_over = Handing(self._core, self._writer).prepared
        self._status_of = Status(self._core, self._core.history, self._reads)
        self._life = Lifecycle(
            self._core, planner, make_runner or self._spark_runner, self._maintenance.request, self._ticker.lock,
            self._writer.paused, self._forget,
        )  # fmt: skip
        progress_host = host if settings.progress_host is None else settings.progress_host
        self._progress = ProgressServer(self._core.progress, progress_host) if progress_host else None
        self._threads: list[threading.Thread] = []
        self._ownership: Ownership | None = None
        self._start_s: dict[str, float] = {}
        self._lease = LeaseKeeper(self._core)
        self._standby: Standby | None = None
        self._ready = threading.Event()
        """Set but while a server that takes over plans its views."""
        self.on_catalog_change: Callable[[Refreshed | None], None] = lambda found: None
        """On a standby: called with what has changed in the catalog; with None where that may be anything, and before
        views are planned again to take over."""
        if not isinstance(catalog, FollowedCatalog):
            self._ready.set()
        else:
            self._standby = Standby(self._core, catalog, self._succeed, lambda found: self.on_catalog_change(found))

    @property
    def failure(self) -> BaseException | None:
        """Why the coordinator has stopped by itself."""
        return self._core.failure

    @property
    def root(self) -> StoreRoot:
        """Where the state lives."""
        return self._core.root

    @property
    def failed(self) -> threading.Event:
        """Set when the coordinator has stopped by itself."""
        return self._core.failed

    # ---- life

    def start(self) -> None:
        """Recover what the catalog holds, and start all threads.

        Raises `Fenced`, `StorageError`, and `InvalidParameter` if the state is known to be in another place, or to be
        another database's.
        """
        try:
            if self._standby is not None:
                self._follow(self._standby)
            else:
                self._lead()
        except BaseException:
            # A lease that went on being renewed would keep every standby from taking over.
            self._tell_to_stop()
            self._lease.end(STOP_WAIT_S)
            self._end_threads(STOP_WAIT_S)
            raise

    def _follow(self, standby: Standby) -> None:
        """Begin as a standby. Whatever writes waits until it takes over."""
        core = self._core
        if is_served(core.settings.data_dir):
            raise InvalidParameter(
                f"another server uses the directory {core.settings.data_dir}",
                hint="give each server a --data of its own, and both the same --state and --catalog",
            )
        location_edits(core.settings, core.catalog.state)  # refuses another place for the state
        self._owner.check()
        standby.begin()
        self._use_host()
        self._launch("standby", standby.run)

    def _lead(self, writable: Callable[[], None] = lambda: None) -> None:
        """Become the active server; `writable` is called as soon as tables can be written to."""
        core = self._core
        if self._lease.take():
            self._lease.start()
        self._step("storage", self._prepare)
        self._writer.recover()
        writable()
        self._step("relations", self._life.recover)
        self._step("reads", self._reads.recover)
        if self._progress is not None:
            self._progress.start(self._core.guard.forever)
        for job in list(core.graph.jobs.values()):
            core.history.paused(job.id, job.paused, core.clock.monotonic_s())
        if core.suspended is None:
            self._plan_views()
        for name, target in (("ticker", self._ticker.run), ("maintenance", self._maintenance.run)):
            self._launch(name, target)
        self._ready.set()

    def _plan_views(self) -> None:
        """Plan all views at the start, where Spark runs; should it end meanwhile, whoever brings another one does."""
        with suppress(SparkLost), self._life.ddl:
            self._life.define()
            self._step("views", self._life.plan)
            self._tell_of_slow_start()

    def _tell_of_slow_start(self) -> None:
        if sum(self._start_s.values()) >= SLOW_START_S:
            text = ", ".join(f"{step} {seconds:.1f} s" for step, seconds in self._start_s.items())
            self._core.catalog.transact([AddEvent("slow_start", None, f"the start took long: {text}")])

    def _launch(self, name: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=f"headrace-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _succeed(self, why: Why) -> None:
        """The catalog is this server's now: become the active one. Called by the standby's thread."""
        core, standby = self._core, self._standby
        assert standby is not None
        before, since_s = standby.status(), core.clock.monotonic_s()

        def writable() -> None:
            # What is read and written needs no plans of views; who needs them waits.
            self._reads.recover()
            with core.changed:
                self._standby = None
                core.changed.notify_all()
            took = f"it took writes {core.clock.monotonic_s() - since_s:.1f} s after its fence"
            text = f"this server has taken over from {before.owner}, since {why}; {took}"
            get_logger("headrace").info(text)
            self._say("took_over", text)
            core.guard.chore("taking in what another server has changed", lambda: self.on_catalog_change(None))

        try:
            with self._life.ddl:
                with core.catalog.reading() as state, core.changed:
                    mirror(core.graph, state)
                    core.mirrored = None
                    core.epochs.lead(state)
                self._lead(writable)
        except BaseException as error:
            core.fatal(error)
            if not isinstance(error, Exception):
                raise

    def _prepare(self) -> None:
        core = self._core
        edits = location_edits(core.settings, core.catalog.state)
        core.store.prepare()
        self._owner.claim()
        core.catalog.transact(edits)
        restored = restore(core.catalog, core.root)
        if restored:
            text = f"{restored} objects of the last writes were made again from the catalog"
            core.catalog.transact([AddEvent("objects_restored", None, text)])
        forget_leftovers(core.settings.spool_location)
        if self._ownership is None:
            self._use_host()

    def _use_host(self) -> None:
        """Make sure of what this server needs of its host, and of those of Spark's tasks."""
        core = self._core
        if core.root.proof:
            put_proof(core.root)
            self._prove()
        self._ownership = Ownership(core.settings.data_dir)

    def _prove(self) -> None:
        """Make sure that tasks on other hosts, if there are any, use the same store."""
        if self._core.root.proof:
            prove(self._planner.bridge.spark, self._core.root)

    def _step(self, name: str, work: Callable[[], None]) -> None:
        """Do a step of the start and note how long it took."""
        since_s = self._core.clock.monotonic_s()
        work()
        self._start_s[name] = self._core.clock.monotonic_s() - since_s

    def stop(self, wait_s: float = STOP_WAIT_S) -> None:
        """Stop ticking, let running epochs finish for up to `wait_s`, then cancel them. Harmless when repeated."""
        core = self._core
        again = self._tell_to_stop()
        # What is left of a failed server must not run on: none of it may commit.
        self._life.lanes.halt_all(wait_s if core.failure is None else 0.0)
        self._end_threads(wait_s)
        if self._progress is not None:
            self._progress.stop()
        self._lease.end(wait_s)
        if core.root.proof and not again:
            remove_proof(core.root)
        if not again and core.failure is None and self._standby is None:
            with suppress(HeadraceError):
                core.epochs.settle()
                self._lease.release()
        if self._ownership is not None:
            self._ownership.release()

    def _tell_to_stop(self) -> bool:
        """Let all threads know that they are to end; whether they had been told before."""
        core = self._core
        with core.changed:
            again, core.stopping = core.stopping, True
        core.notify()
        core.memory.wake()
        return again

    def _end_threads(self, wait_s: float) -> None:
        """Wait for the threads of this object, which have been told to stop."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(wait_s)
        self._threads.clear()

    def _halt(self) -> None:
        """Cancel all that runs, without waiting for it: this process has lost the database."""
        with suppress(RuntimeError):  # The process has no thread left. Nothing of what goes on running can commit.
            threading.Thread(target=self._cancel_all, name="headrace-halt", daemon=True).start()

    def _cancel_all(self) -> None:
        merger = self._merger
        if merger is not None:
            merger.cancel()
        self._life.lanes.halt_all(0.0)

    def abort(self, error: BaseException) -> None:
        """Stop for good because of something outside; every later call fails with it."""
        self._core.fatal(error)

    def watch_spark(self, is_lost: Callable[[], bool]) -> None:
        """Let `is_lost` be asked when something fails as if Spark had ended. If it has, it calls `suspend`."""
        self._core.spark_is_lost = is_lost

    def expect_spark(self) -> None:
        """Before `start`: Spark comes later, by `renew`. All that does without it need not wait for it."""
        self._core.suspended = SPARK_STARTS

    def suspend(self, reason: HeadraceError) -> None:
        """Spark has ended: run no epoch until `renew`. What has been written stays readable. Harmless if repeated."""
        core = self._core
        with core.changed:
            news, core.suspended = core.suspended in (None, SPARK_STARTS), reason
        core.notify()
        if news and not core.stopping:
            self._say("spark_lost", f"{reason.message}; every group goes on from its checkpoint with another one")

    def renew(self, begin: Callable[[], None], serve: Callable[[], None] = lambda: None) -> None:
        """There is another Spark application, or the first one: `begin` moves the planner there, then all views are
        planned.

        `serve` is called as soon as all relations are defined there: queries need no plans of views. Every group
        resumes at its own checkpoint. Raises `SparkLost` if that one has ended, too, and `Fenced`.
        """
        try:
            self._renew(begin, serve)
        except Fenced as error:
            self._core.fatal(error)
            raise

    def _renew(self, begin: Callable[[], None], serve: Callable[[], None]) -> None:
        core = self._core
        since_s = core.clock.monotonic_s()
        with self._life.ddl:
            begin()
            self._prove()
            self._merger = None
            first, leads = core.suspended is SPARK_STARTS, self._standby is None
            if leads:
                self._life.define()
            serve()
            if first or not leads:  # nothing runs before it is planned; who takes over plans it
                self._resume()
        if leads:
            if first:
                self._step("views", self._life.plan)
            else:
                self._life.plan()
            self._resume()
        took = f"{len(core.graph.jobs)} views were planned in {core.clock.monotonic_s() - since_s:.1f} s"
        if not first:
            self._say("spark_restarted", f"Spark runs again; {took}")
            return
        get_logger("headrace").info(f"Spark runs; {took}")
        if leads:
            self._tell_of_slow_start()

    def _resume(self) -> None:
        core = self._core
        with core.changed:
            core.suspended = None
            core.changed.notify_all()

    def _say(self, kind: str, text: str) -> None:
        try:
            self._core.catalog.transact([AddEvent(kind, None, text)])
        except Fenced as error:
            self._core.fatal(error)
        except HeadraceError:
            pass  # an event less: what it tells of goes on

    def note_failure(self, what: str, error: Exception) -> None:
        """Tell of a failure of something that runs beside the coordinator, and is begun again."""
        try:
            self._core.guard.note(what, error)
        except Fenced as fenced:
            self._core.fatal(fenced)

    def configure(self, settings: Settings) -> None:
        """Let changed system parameters take effect, also where somebody waits by what they were."""
        core = self._core
        with core.changed:
            before, core.settings = core.settings, settings
            now_s, most_s = core.clock.monotonic_s(), settings.group_retry_max_ms / 1000
            paced = any(getattr(before, name) != getattr(settings, name) for name in _PACES)
            for job in core.graph.jobs.values():
                job.retry(min(job.trouble.retry_at_s, now_s + most_s))
                if paced:
                    job.repace()
        core.memory.resize(core.budget_bytes())
        core.notify()

    def _spark_runner(self, plan: ViewPlan, relations: Mapping[int, TableSchema | None]) -> Runner:
        return EpochRunner(self._planner.bridge, plan, relations)

    def _spark_merge(self, parts: Sequence[MergePart]) -> list[RunRef | None]:
        if self._merger is None:
            self._merger = SparkMerger(self._planner.bridge.spark)
        return self._merger(parts)

    # ---- standby

    @property
    def is_standby(self) -> bool:
        """Whether it only follows another server."""
        return self._standby is not None

    def standby(self) -> StandbyStatus | None:
        """What this server knows of the active one, if it is a standby; None for the active one."""
        standby = self._standby
        return None if standby is None else standby.status()

    @property
    def lease(self) -> Lease | None:
        """What the active server has last said of itself to those that stand by; None where it keeps no lease."""
        return self._lease.lease

    def check_lease(self) -> None:
        """Raise `ShuttingDown` (57P03) where this server's lease has run out: new clients are to go elsewhere."""
        self._lease.check()

    def announce(self, address: str) -> None:
        """Say where clients reach this server; standbys pass that on."""
        self._lease.announce(address)

    def refuse_writes(self, what: str) -> None:
        """Raise `ReadOnlyTransaction` on a standby; it names the active server."""
        standby = self._standby
        if standby is not None:
            raise standby.refusal(what)

    def wait_planned(self, check: Callable[[], None]) -> None:
        """Return once all views are planned in the Spark that runs, at once on a standby, which plans none.

        `check` is asked now and then, and raises if nobody waits any more.
        """
        core = self._core
        while self._standby is None:
            self.wait_ready(check)
            with core.changed:
                if core.changed.wait_until(core.is_planned, CHECK_S):
                    return
            check()
            core.check()

    def wait_ready(self, check: Callable[[], None]) -> None:
        """Return once views may be planned: who has just taken over writes to tables before that.

        `check` is asked now and then, and raises if nobody waits any more.
        """
        while not self._ready.wait(CHECK_S):
            check()
            self._core.check()

    def take_over(self, timeout_s: float, check: Callable[[], None] = lambda: None) -> bool:
        """Let a standby become the active server, whatever the other one does; whether it is one within the time.

        `check` is asked now and then while it waits. Raises `StatementError` on the active server.
        """
        standby, core = self._standby, self._core
        if standby is None:
            raise StatementError("this server is the active one, only a standby takes over", sqlstate="55000")
        standby.tell()
        with core.changed:
            core.changed.wait_until(
                lambda: self._standby is None or core.stopping or not standby.was_told, timeout_s, check
            )
        core.check()
        return self._standby is None

    def look_again(self, timeout_s: float) -> None:
        """On a standby: return once it has what is in the catalog now, or the time is over."""
        if self._standby is not None:
            self._standby.look_again(timeout_s)

    # ---- definitions

    def create_relation(self, record: ObjectRecord) -> int:
        """Create a schema, table, source or plain view; durable on return. Returns its id; `record.id` is ignored.

        Raises `DuplicateTable` (`DuplicateObject`) for a name that is taken, `InvalidParameter` for
        options that make no source.
        """
        return self._changing("CREATE", lambda: self._life.create_relation(record))

    def create_secret(self, record: ObjectRecord, value: str) -> int:
        """Create a secret, encrypted; durable on return. Returns its id; `record.id` is ignored.

        Raises `DuplicateObject`, and `InvalidParameter` where there is no key.
        """
        return self._guarded(lambda: self._life.create_secret(record, value))

    def create_subscription(self, record: ObjectRecord) -> int:
        """Create a subscription to the relation that it depends on; durable on return. Returns its id.

        From now on changes stay readable for `retention_ms` of its content. Raises `DuplicateTable`, `UndefinedTable`,
        and `SnapshotUnavailable` for a view that is still being created.
        """
        return self._changing("CREATE", lambda: self._life.create_subscription(record))

    def feed(self, relation_id: int, *, holds: bool = False) -> Feed:
        """The changes of a table or view, from a position on that the reader has; close it after use.

        Raises `UndefinedTable`, and `SnapshotUnavailable` for a view that is still being created.
        """
        if self._standby is not None:
            self._standby.check_readable([relation_id])
        return self._guarded(lambda: Feed(self._core, relation_id, holds=holds))

    def alter_secret(self, secret_id: int, value: str) -> None:
        """Give a secret another value; durable on return. Raises `UndefinedObject`, `InvalidParameter`."""
        self._guarded(lambda: self._life.alter_secret(secret_id, value))

    def alter_objects(
        self, object_ids: Sequence[int], change: Callable[[ObjectRecord], ObjectRecord], done: str
    ) -> None:
        """Change what is stored of objects, and nothing that runs, in one step; `done` says so in an event.

        `change` gets what is stored while no other statement changes it, so that of two at once both hold. Durable on
        return. Raises `UndefinedObject` for one that is gone, `DuplicateObject` if its new name is taken.
        """
        self._guarded(lambda: self._life.alter_objects(object_ids, change, done))

    def secrets(self, secrets: Mapping[str, int]) -> Secrets | None:
        """What tells the values of the secrets that options have, as of now; None if there are none."""
        return self._core.vault.of(secrets)

    def create_view(self, record: ObjectRecord, plan: ViewPlan) -> int:
        """Create a materialized view or a sink and start its job; durable on return, which does not wait for rows.

        `record.content` has the query that `plan` was made of.
        """

        def create() -> int:
            job = self._life.create_view(record, plan)
            # The first epoch is to see what the sources hold now. Where that fails the view exists all the same, and
            # its job waits for the next tick that succeeds.
            self._core.guard.chore("a tick", self._ticker.tick)
            self._life.lanes.launch(job)
            return job.id

        return self._changing("CREATE", create)

    @contextmanager
    def defining(self) -> Iterator[None]:
        """Keep others from creating, altering and dropping anything within the block, which must not wait for them."""
        with self._life.ddl:
            yield

    def may_read(self, group: str, relation_id: int) -> bool:
        """Whether a new job of a checkpoint group (empty: the default) can read a relation: no circle comes of it."""
        return self._life.may_read(group, relation_id)

    def group_named(self, wanted: str | None) -> str:
        """The checkpoint group of a new job with this option; "own" stands for one by itself, empty for the default."""
        return self._life.group_named(wanted)

    def wait_created(
        self, job_id: int, timeout_s: float | None = None, check: Callable[[], None] | None = None
    ) -> None:
        """Wait until a view is readable: it holds what its inputs held, and has caught up with them.

        `check` is asked now and then, and raises if nobody waits any more.

        Raises `JobFailed` with the cause as soon as an attempt fails, `QueryCanceled` after `timeout_s`,
        `UndefinedObject` if it is dropped.
        """
        core = self._core
        with core.changed:
            job = self._job(job_id)

            def settled() -> bool:
                return bool(job.created or job.error or core.stopping or job_id not in core.graph.jobs)

            done = core.changed.wait_until(settled, timeout_s, check)
            if job.created:
                return
            core.check()
            self._job(job_id)
            if job.error is not None:
                raise _job_failed(job)
            assert not done
            raise QueryCanceled(
                f'materialized view "{job.name}" is still being created', detail=job.catching_up.text or None,
                hint="it goes on in the background; SHOW JOBS shows its progress",
            )  # fmt: skip

    def drop(self, ids: Sequence[int]) -> None:
        """Drop objects together; stops their jobs first. Durable on return; the files go with vacuum.

        Automatic indexes that only they use go with them.

        Raises `DependentObjectsExist` if anything else is built on one of them, `UndefinedTable`.
        """
        self._changing("DROP", lambda: self._life.drop(ids))

    def _look(self) -> None:
        """Before each periodic tick. Raises `Fenced`."""
        chore = self._core.guard.chore
        chore("what is left of undecided statements", self._life.settle)
        chore("the watchdog", self._watchdog.look)
        chore("the care for lanes", self._life.lanes.revive)

    def _forget(self, ids: Sequence[int]) -> None:
        for i in ids:
            self._reads.forget(i)
            self._ticker.forget(i)
            self._writer.forget(i)
        with self._core.lock:
            groups = {j.group for j in self._core.graph.jobs.values()}
        self._core.history.forget(set(ids), groups)

    def alter_job(self, job_id: int, *, paused: bool | None = None, options: Mapping[str, str] | None = None) -> None:
        """Pause or resume a job, and set options of it.

        Options are parallelism, max_rows_per_epoch, checkpoint_interval_ms, barrier_interval_ms, log_limit_mb,
        log_limit_policy, and checkpoint_group, which moves it to another group. Raises `InvalidParameter` for other
        options and where groups would wait for each other.
        """
        self._changing("ALTER", lambda: self._life.alter(job_id, paused, options))

    # ---- writes and reads

    def write(self, table_id: int, change: TableChange) -> WriteResult:
        """Change a table by what is in it; durable, and visible to every later read, on return.

        Raises `WrongObjectType`, `UndefinedTable`, `DiskFull`, `StorageError`; then nothing is written.
        """
        return self.commit(TableWrite(table_id, change))

    def commit(self, request: Request, check: Callable[[], None] = lambda: None) -> WriteResult:
        """Commit what one writer wants, together with what others want; durable, and visible to all, on return.

        `check` is asked while it waits for its turn, and raises if it was cancelled.
        """
        return self._changing("a write", lambda: self._writer.write(request, check))

    @property
    def writer(self) -> Writer:
        """The way of all changes into tables."""
        return self._writer

    def _settle(self) -> None:
        self._writer.tidy()
        self._writer.settling.pass_once()

    def begin(self) -> WriteTransaction:
        """A transaction that reads one snapshot and writes at one epoch; whoever has it closes it."""
        return WriteTransaction(self._core, self._writer)

    @contextmanager
    def transaction(
        self, gated: Collection[int] = (), check: Callable[[], None] = lambda: None
    ) -> Iterator[WriteTransaction]:  # fmt: skip
        """A transaction that reads one snapshot and writes at one epoch; it is gone, committed or not, after the block.

        Nobody else writes to the tables that are `gated` meanwhile.
        """
        with ExitStack() as held:
            gate = held.enter_context(self._writer.gate(gated, check)) if gated else None
            work = WriteTransaction(self._core, self._writer, gate)
            held.callback(work.close)
            yield work

    def tables_read(self, relation_ids: Collection[int]) -> set[int]:
        """The tables among relations, and those that the views among them are made of."""
        core = self._core
        with core.lock:
            found = {i for job in core.graph.jobs_above(relation_ids) for i in (job.id, *job.upstreams)} | set(
                relation_ids
            )
            return {i for i in found if i in core.graph.relations and core.graph.relations[i].writable}

    def snapshot(
        self,
        relation_ids: Sequence[int],
        *,
        at: int | None = None,
        timeout_s: float | None = None,
        options: ReadOptions = NEWEST,
    ) -> Snapshot:
        """One consistent state of tables, views and sources; close it after use.

        `options` say which epochs it may show; the default is the newest epoch at which all of them are exact. No
        relation is shown at an earlier epoch than before: the call waits for that, and raises `SnapshotUnavailable`
        if it cannot come true. `at` (or `options.at`) is time travel: the newest epoch up to it. Raises
        `EpochTooOld`, `EpochTooNew` for one outside of what can be read.
        """
        if at is not None or timeout_s is not None:
            options = replace(options, at=at, timeout_s=timeout_s)

        def read() -> Snapshot:
            standby = self._standby
            if standby is None:
                self._bind_unread(relation_ids, options)
            else:
                standby.check_readable(relation_ids)
            snapshot = self._reads.snapshot(relation_ids, options)
            if standby is not None:
                snapshot.notices += standby.notices()
            return snapshot

        return self._guarded(read)

    def row_now(self, table_id: int, key: Key, options: ReadOptions) -> Row | Later | None:
        """The row of a table that has a primary key, as of the epoch that `snapshot` would read it at, without waiting.

        None where there is none, `LATER` where something has to be waited for.
        """
        return self._guarded(lambda: self._reads.row_now(self.writer, table_id, key, options))

    def state_snapshot(self, table_ids: Sequence[int]) -> Snapshot:
        """What state tables hold, by their ids, each as of its committed epoch; close it after use.

        Raises `UndefinedTable`.
        """
        return self._guarded(lambda: self._reads.state(table_ids))

    def hold(self, epoch: int) -> Callable[[], None]:
        """Keep what there is readable at an epoch, for reads that follow; what is returned lets go of it."""
        core = self._core
        with core.lock:
            pin = core.pins.pin(core.graph.relations, epoch)
        return lambda: core.pins.unpin(pin)

    def _bind_unread(self, relation_ids: Sequence[int], options: ReadOptions) -> None:
        """Bind sources that nothing has read before, so that a query does not see them empty.

        Raises the error of one that cannot be read, and `SnapshotUnavailable` for one that does not answer in time.
        """
        core = self._core
        limit_s = DEFAULT_WAIT_S if options.timeout_s is None else options.timeout_s
        until_s = core.clock.monotonic_s() + limit_s
        while True:
            with core.lock:
                fresh = [r for r in map(core.graph.relation, relation_ids) if r.external and not r.bound]
            if not fresh:
                return
            self.wait_ready(options.check or (lambda: None))
            self._ticker.tick(also=[r.id for r in fresh])
            for relation in fresh:
                if relation.error is not None:
                    raise relation.error
            late = [r for r in fresh if not r.bound]
            while late:
                if options.check is not None:
                    options.check()
                if core.clock.monotonic_s() >= until_s:
                    raise SnapshotUnavailable(
                        f'source "{late[0].name}" has not said within {limit_s:g} s what it holds',
                        hint="read it again once it answers, or with a longer statement_timeout",
                    )
                if self._ticker.answered([r.id for r in late], CHECK_S):
                    break

    def tick(self) -> int:
        """Make a tick now; returns its epoch."""
        return self._changing("FLUSH", self._ticker.tick)

    def flush(self, timeout_s: float | None = None, check: Callable[[], None] | None = None) -> int:
        """Make a tick, and wait until every created job has reached it; returns its epoch.

        Jobs that are being created, paused or quarantined, and those that they hold up, are not waited for. When a job
        fails meanwhile, all that it does not hold up are still waited for. What was under way before may have met
        what has been mended since: its failure does not count. What is still to be planned is waited for: only then it
        is known which jobs run. `check` is asked now and then, and raises if nobody waits any more. Raises `JobFailed`
        naming a job, `QueryCanceled` `timeout_s` after that.
        """
        core = self._core
        self.refuse_writes("FLUSH")
        self.wait_planned(check or (lambda: None))
        epoch = self.tick()
        with core.changed:
            out = core.graph.jobs_below(j.id for j in core.graph.jobs.values() if j.creating)
            out |= core.graph.held_up(j.id for j in core.graph.jobs.values() if j.paused or j.quarantined)
            jobs = [j for j in core.graph.jobs.values() if j.id not in out]
            before = {j.id: j.trouble.failed_total for j in jobs}
            stale = {j.id for j in jobs if j.activity.epochs}
            for job in jobs:
                # A job that is failing is tried once more, at once.
                job.hurry(epoch)
                job.retry(0.0)
            core.changed.notify_all()

            def waiting() -> list[Job]:
                # Not the frontier: a view whose input has taken in several epochs at once will not change before the
                # last of them, and has none of their rows.
                known, here = Known(), [j for j in jobs if j.id in core.graph.jobs and j.life.serves]
                return [j for j in here if (newest(core.graph.exact(j.id, known)) or 0) < epoch]

            def failed(left: list[Job]) -> list[Job]:
                return [j for j in left if j.trouble.failed_total > before[j.id] and j.error is not None]

            def settled() -> bool:
                left = waiting()
                for job in [j for j in failed(left) if j.id in stale]:
                    stale.discard(job.id)
                    before[job.id] = job.trouble.failed_total
                    job.retry(0.0)
                    core.changed.notify_all()
                # A failing job holds up only its group and those built on it; all others are waited for.
                return core.stopping or {j.id for j in left} <= core.graph.held_up(j.id for j in failed(left))

            core.changed.wait_until(settled, timeout_s, check)
            left = waiting()
            if not left:
                return epoch
            core.check()
            for job in failed(left):
                raise _job_failed(job)
            names = ", ".join(f'"{j.name}"' for j in left)
            raise QueryCanceled(f"FLUSH was given up: not yet at epoch {epoch} are {names}")

    def current_epoch(self) -> int:
        """The newest complete epoch."""
        return self._core.epochs.complete

    # ---- maintenance and status

    def compact(self) -> int:
        """Merge runs now, where that is due; returns the number of merges."""
        return self._changing("compaction", self._compactor.pass_once)

    def check_logs(self) -> None:
        """Look now for logs that have outgrown their limits, and do what `log_limit_policy` says."""
        self._changing("the look at logs", self._logs.look)

    def memory(self) -> MemoryUse:
        """What this process's writes and merges use of the memory budget."""
        return self._core.memory.use()

    def metrics(self) -> list[Metric]:
        """What has been counted, most of it since the server started. Raises `Fenced`, `StorageError`."""
        return collect(self._core, self._compactor.counts, self._vacuum.counts, self._start_s)

    def vacuum(self) -> int:
        """Delete unreferenced objects now, where that is due; returns their number."""
        self._writer.tidy()
        return self._changing("vacuum", self._vacuum.pass_once)

    def jobs(self) -> list[JobStatus]:
        """All jobs of materialized views and sinks, by id."""
        core = self._core
        with core.lock:
            return [self._status(job) for _, job in sorted(core.graph.jobs.items())]

    def barriers(self) -> list[Barrier]:
        """The epochs under way or stuck, and what each waits for."""
        return barriers(self._core)

    def groups(self) -> list[GroupStatus]:
        """All checkpoint groups, by name."""
        return self._status_of.groups()

    def checkpoints(self) -> list[Checkpoint]:
        """The newest checkpoints of every group, newest first."""
        return self._core.history.checkpoints()

    def row_errors(self) -> list[RowErrors]:
        """The newest rows that jobs have gone on past although something failed on them, newest first."""
        return self._core.history.row_errors()

    def log_stores(self) -> list[EdgeStatus]:
        """Every edge between a relation and a view that reads it. May read from the store."""
        return self._status_of.log_stores()

    def epochs(self) -> list[RelationEpochs]:
        """Where every relation is exact, by id."""
        return self._status_of.epochs()

    def progress(self) -> list[AttemptProgress]:
        """The attempts under way and their tasks, as last reported."""
        return self._core.progress.live()

    def source_errors(self) -> dict[int, tuple[HeadraceError, int]]:
        """Sources that cannot be bound at present: the error, and since when, Unix milliseconds."""
        with self._core.lock:
            relations = self._core.graph.relations.values()
            return {r.id: (r.error, r.error_since_ms) for r in relations if r.error is not None}

    def _status(self, job: Job) -> JobStatus:
        core, m, reading = self._core, job.metrics, job.catching_up.reading
        frontier, attempt = core.graph.job_frontier(job), core.progress.of(job.activity.attempt)
        now_s = core.clock.monotonic_s()
        retry_s = max(0.0, job.trouble.retry_at_s - now_s) if job.failures else 0.0
        held = next((j for j in core.graph.lane_of(job) if j.error is not None and j is not job), None)
        return JobStatus(
            id=job.id,
            name=job.name,
            kind=self._core.graph.relation(job.id).record.kind,
            group=job.group,
            status=job.shown_status,
            committed_epoch=job.committed,
            frontier=frontier,
            lag_ms=lag_ms(core.clock.now_ms(), newest(core.graph.exact(job.id)) or 0),
            rows_in=m.rows_in,
            rows_out=m.rows_out,
            epochs=m.epochs,
            last_epoch_ms=m.last_epoch_ms,
            error=job.error,
            error_since_ms=job.trouble.since_ms if job.error is not None else 0,
            row_errors=m.row_errors,
            late_rows=m.late_rows,
            progress=job.catching_up.text
            or ("" if held is None else f'held up by "{held.name}" of its checkpoint group'),
            waiting_for=waiting_for(core, job, attempt),
            failures=job.failures,
            retry_in_ms=round(retry_s * 1000),
            in_flight_epoch=None if attempt is None else attempt.epoch,
            upstreams=job.upstreams,
            rows_done=None if reading is None else reading.rows_done,
            rows_expected=None if reading is None else reading.rows_expected,
            rows_per_second=None if reading is None else reading.rate(now_s),
            remaining_ms=None if reading is None else reading.remaining_ms(now_s),
        )

    def _job(self, job_id: int) -> Job:
        job = self._core.graph.jobs.get(job_id)
        if job is None:
            raise UndefinedObject(f"there is no job {job_id}")
        return job

    def _changing(self, what: str, action: Callable[[], T]) -> T:
        """The same for something that only the active server does."""
        self.refuse_writes(what)
        return self._guarded(action)

    def _guarded(self, action: Callable[[], T]) -> T:
        """Do something; if it finds out that the database belongs to another process, stop for good."""
        self._core.check()
        try:
            return action()
        except Fenced as error:
            self._core.fatal(error)
            raise


def _job_failed(job: Job) -> JobFailed:
    assert job.error is not None
    return JobFailed(
        f'job "{job.name}" is failing: {job.error.message}',
        detail=job.error.detail,
        hint=job.error.hint,
        sqlstate=job.error.sqlstate,
    )
