"""The coordinator: epochs, barriers, checkpoint groups, writes and reads of one database.

Jobs that share a checkpoint group step, commit and fail together; by default each view has a group of its own. A group
has a thread that runs its epochs, commits them, and retries them by itself. Epochs come from one clock; a tick binds
sources, a write to a table has an epoch of its own, and a view runs to an epoch once everything at or below it is
complete.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import AddEvent
from headrace.catalog.records import ObjectRecord
from headrace.common.clock import Clock, SystemClock
from headrace.common.ownership import Ownership
from headrace.config import Settings
from headrace.coordinator.changes import TableChange
from headrace.coordinator.compaction import Compactor
from headrace.coordinator.core import Core, Job, Runner, RunnerFactory, lag_ms
from headrace.coordinator.exact import newest
from headrace.coordinator.graph import Known
from headrace.coordinator.history import Checkpoint
from headrace.coordinator.lanes import STOP_WAIT_S
from headrace.coordinator.lifecycle import Lifecycle
from headrace.coordinator.location import location_edits
from headrace.coordinator.logs import LogKeeper
from headrace.coordinator.maintenance import Maintenance
from headrace.coordinator.metrics import Metric, collect
from headrace.coordinator.progress import AttemptProgress
from headrace.coordinator.progress_server import ProgressServer
from headrace.coordinator.reads import DEFAULT_WAIT_S, NEWEST, ReadOptions, Reads, Snapshot
from headrace.coordinator.status import EdgeStatus, GroupStatus, RelationEpochs, Status
from headrace.coordinator.tables import WriteResult, write
from headrace.coordinator.ticker import Ticker
from headrace.coordinator.vacuum import Vacuum
from headrace.coordinator.watchdog import Barrier, Watchdog, barriers, waiting_for
from headrace.dataflow.merging import SparkMerger
from headrace.dataflow.runner import EpochRunner
from headrace.errors import Fenced, HeadraceError, JobFailed, QueryCanceled, SnapshotUnavailable, UndefinedObject
from headrace.plan.planner import Planner, ViewPlan
from headrace.state.memory import MemoryUse
from headrace.state.merge import MergePart, MergeRunner
from headrace.state.schema import RunRef, TableSchema
from headrace.state.spool import forget_leftovers
from headrace.state.stores import StoreRoot

T = TypeVar("T")

SLOW_START_S = 10.0
"""A start that takes this long is an event, with its steps."""


@dataclass(frozen=True)
class JobStatus:
    """A job as shown to users."""

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
    ) -> None:
        self._planner = planner
        slots = max(1, settings.parallelism or os.cpu_count() or 1)
        self._core = Core(settings, catalog, clock or SystemClock(), slots)
        self._watchdog = Watchdog(self._core)
        self._ticker = Ticker(self._core, self._look)
        self._merger: SparkMerger | None = None
        self._compactor = Compactor(self._core, merge_runner or self._spark_merge)
        self._vacuum = Vacuum(self._core)
        self._logs = LogKeeper(self._core)
        self._maintenance = Maintenance(self._core, self._compactor, self._logs, self._vacuum)
        self._reads = Reads(self._core)
        self._status_of = Status(self._core, self._core.history, self._reads)
        self._life = Lifecycle(
            self._core, planner, make_runner or self._spark_runner, self._maintenance.request, self._ticker.lock,
            self._forget,
        )  # fmt: skip
        self._progress = ProgressServer(self._core.progress, settings.progress_host) if settings.progress_host else None
        self._threads: list[threading.Thread] = []
        self._ownership: Ownership | None = None
        self._start_s: dict[str, float] = {}

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

        Raises `Fenced`, `StorageError`, and `InvalidParameter` if the state is known to be in another place.
        """
        core = self._core
        self._step("storage", self._prepare)
        self._step("views", self._life.recover)
        self._step("reads", self._reads.recover)
        if sum(self._start_s.values()) >= SLOW_START_S:
            text = ", ".join(f"{step} {seconds:.1f} s" for step, seconds in self._start_s.items())
            core.catalog.transact([AddEvent("slow_start", None, f"the start took long: {text}")])
        if self._progress is not None:
            self._progress.start()
        for name, target in (("ticker", self._ticker.run), ("maintenance", self._maintenance.run)):
            self._threads.append(threading.Thread(target=target, name=f"headrace-{name}", daemon=True))
        for job in list(core.jobs.values()):
            core.history.paused(job.id, job.status == "paused", core.clock.monotonic_s())
            self._life.lanes.launch(job)
        for thread in self._threads:
            thread.start()

    def _prepare(self) -> None:
        core = self._core
        edits = location_edits(core.settings, core.catalog.state)
        core.store.prepare()
        core.catalog.transact(edits)
        forget_leftovers(core.settings.spool_location)
        self._ownership = Ownership(core.settings.data_dir)

    def _step(self, name: str, work: Callable[[], None]) -> None:
        """Do a step of the start and note how long it took."""
        since_s = self._core.clock.monotonic_s()
        work()
        self._start_s[name] = self._core.clock.monotonic_s() - since_s

    def stop(self, wait_s: float = STOP_WAIT_S) -> None:
        """Stop ticking, let running epochs finish for up to `wait_s`, then cancel them. Harmless when repeated."""
        core = self._core
        with core.changed:
            again, core.stopping = core.stopping, True
        core.notify()
        core.memory.wake()
        self._life.lanes.halt_all(wait_s)
        for thread in self._threads:
            thread.join(wait_s)
        self._threads.clear()
        if self._progress is not None:
            self._progress.stop()
        if not again and core.failure is None:
            with suppress(HeadraceError):
                core.epochs.settle()
        if self._ownership is not None:
            self._ownership.release()

    def abort(self, error: BaseException) -> None:
        """Stop for good because of something outside; every later call fails with it."""
        self._core.fatal(error)

    def watch_spark(self, is_lost: Callable[[], bool]) -> None:
        """Let `is_lost` be asked when something fails as if Spark had ended. If it has, it calls `suspend`."""
        self._core.spark_is_lost = is_lost

    def suspend(self, reason: HeadraceError) -> None:
        """Spark has ended: run no epoch until `renew`. What has been written stays readable. Harmless if repeated."""
        core = self._core
        with core.changed:
            news, core.suspended = core.suspended is None, reason
        core.notify()
        if news and not core.stopping:
            self._say("spark_lost", f"{reason.message}; every group goes on from its checkpoint with another one")

    def renew(self, begin: Callable[[], None]) -> None:
        """There is another Spark application: `begin` moves the planner there, then all views are planned again.

        Every group resumes at its own checkpoint. Raises `SparkLost` if that one has ended, too.
        """
        core = self._core
        since_s = core.clock.monotonic_s()
        with self._life.ddl:
            begin()
            self._merger = None
            self._life.replan()
            with core.changed:
                core.suspended = None
                core.changed.notify_all()
        took = f"{len(core.jobs)} views were planned again in {core.clock.monotonic_s() - since_s:.1f} s"
        self._say("spark_restarted", f"Spark runs again; {took}")

    def _say(self, kind: str, text: str) -> None:
        try:
            self._core.catalog.transact([AddEvent(kind, None, text)])
        except Fenced as error:
            self._core.fatal(error)
        except HeadraceError:
            pass  # an event less: what it tells of goes on

    def configure(self, settings: Settings) -> None:
        """Let changed system parameters take effect."""
        self._core.settings = settings
        self._core.memory.resize(self._core.budget_bytes())
        self._core.notify()

    def _spark_runner(self, plan: ViewPlan, relations: Mapping[int, TableSchema | None]) -> Runner:
        return EpochRunner(self._planner.bridge, plan, relations)

    def _spark_merge(self, parts: Sequence[MergePart]) -> list[RunRef | None]:
        if self._merger is None:
            self._merger = SparkMerger(self._planner.bridge.spark)
        return self._merger(parts)

    # ---- definitions

    def create_relation(self, record: ObjectRecord) -> int:
        """Create a schema, table, source or plain view; durable on return. Returns its id; `record.id` is ignored.

        Raises `DuplicateTable` (`DuplicateObject`) for a name that is taken, `InvalidParameter` for
        options that make no source.
        """
        return self._guarded(lambda: self._life.create_relation(record))

    def create_view(self, record: ObjectRecord, plan: ViewPlan) -> int:
        """Create a materialized view or a sink and start its job; durable on return, which does not wait for rows.

        `record.payload["spark_sql"]` is the query that `plan` was made of.
        """

        def create() -> int:
            job = self._life.create_view(record, plan)
            try:
                # The first epoch is to see what the sources hold now.
                self._ticker.tick()
            except Fenced:
                raise
            except HeadraceError:
                # The view exists; its job waits for the next tick that succeeds.
                pass
            self._life.lanes.launch(job)
            return job.id

        return self._guarded(create)

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

    def wait_created(self, job_id: int, timeout_s: float | None = None) -> None:
        """Wait until a view is readable: it holds what its inputs held, and has caught up with them.

        Raises `JobFailed` with the cause as soon as an attempt fails, `QueryCanceled` after `timeout_s`,
        `UndefinedObject` if it is dropped.
        """
        core = self._core
        with core.changed:
            job = self._job(job_id)

            def settled() -> bool:
                return bool(job.created or job.error or core.stopping or job_id not in core.jobs)

            done = core.changed.wait_for(settled, timeout_s)
            if job.created:
                return
            core.check()
            self._job(job_id)
            if job.error is not None:
                raise _job_failed(job)
            assert not done
            raise QueryCanceled(
                f'materialized view "{job.name}" is still being created', detail=job.progress or None,
                hint="it goes on in the background; SHOW JOBS shows its progress",
            )  # fmt: skip

    def drop(self, ids: Sequence[int]) -> None:
        """Drop objects together; stops their jobs first. Durable on return; the files go with vacuum.

        Automatic indexes that only they use go with them.

        Raises `DependentObjectsExist` if anything else is built on one of them, `UndefinedTable`.
        """
        self._guarded(lambda: self._life.drop(ids))

    def _look(self) -> None:
        """Before each periodic tick."""
        self._life.settle()
        self._watchdog.look()

    def _forget(self, ids: Sequence[int]) -> None:
        for i in ids:
            self._reads.forget(i)
            self._ticker.forget(i)
        with self._core.lock:
            groups = {j.group for j in self._core.jobs.values()}
        self._core.history.forget(set(ids), groups)

    def alter_job(self, job_id: int, *, paused: bool | None = None, options: Mapping[str, str] | None = None) -> None:
        """Pause or resume a job, and set options of it.

        Options are parallelism, max_rows_per_epoch, checkpoint_interval_ms, barrier_interval_ms, log_limit_mb,
        log_limit_policy, and checkpoint_group, which moves it to another group. Raises `InvalidParameter` for other
        options and where groups would wait for each other.
        """
        self._guarded(lambda: self._life.alter(job_id, paused, options))

    # ---- writes and reads

    def write(self, table_id: int, change: TableChange) -> WriteResult:
        """Change a table; durable, and visible to every later read of it, on return. Serialised per table."""
        return self._guarded(lambda: write(self._core, table_id, change))

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
            self._bind_unread(relation_ids, options)
            return self._reads.snapshot(relation_ids, options)

        return self._guarded(read)

    def state_snapshot(self, table_ids: Sequence[int]) -> Snapshot:
        """What state tables hold, by their ids, each as of its committed epoch; close it after use.

        Raises `UndefinedTable`.
        """
        return self._guarded(lambda: self._reads.state(table_ids))

    def hold(self, epoch: int) -> Callable[[], None]:
        """Keep what there is readable at an epoch, for reads that follow; what is returned lets go of it."""
        core = self._core
        with core.lock:
            pin = core.pins.pin(core.relations, epoch)
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
                fresh = [r for r in map(core.relation, relation_ids) if r.kind == "source" and not r.bound]
            if not fresh:
                return
            self._ticker.tick(also=[r.id for r in fresh])
            for relation in fresh:
                if relation.error is not None:
                    raise relation.error
            if options.check is not None:
                options.check()
            late = [r for r in fresh if not r.bound]
            if late and core.clock.monotonic_s() >= until_s:
                raise SnapshotUnavailable(
                    f'source "{late[0].name}" has not said within {limit_s:g} s what it holds',
                    hint="read it again once it answers, or with a longer statement_timeout",
                )

    def tick(self) -> int:
        """Make a tick now; returns its epoch."""
        return self._guarded(self._ticker.tick)

    def flush(self, timeout_s: float | None = None) -> int:
        """Make a tick, and wait until every created job has reached it; returns its epoch.

        Jobs that are being created, paused or quarantined, and those that they hold up, are not waited for. When a job
        fails meanwhile, all that it does not hold up are still waited for. What was under way before may have met
        what has been mended since: its failure does not count. Raises `JobFailed` naming a job, `QueryCanceled` after
        `timeout_s`.
        """
        core = self._core
        epoch = self.tick()
        with core.changed:
            out = core.jobs_below(j.id for j in core.jobs.values() if j.status == "creating")
            out |= core.held_up(j.id for j in core.jobs.values() if j.status in ("paused", "quarantined"))
            jobs = [j for j in core.jobs.values() if j.id not in out]
            before = {j.id: j.failed_total for j in jobs}
            stale = {j.id for j in jobs if j.busy}
            for job in jobs:
                # A job that is failing is tried once more, at once.
                job.forced, job.retry_at_s = epoch, 0.0
            core.changed.notify_all()

            def waiting() -> list[Job]:
                # Not the frontier: a view whose input has taken in several epochs at once will not change before the
                # last of them, and has none of their rows.
                known, here = Known(), [j for j in jobs if j.id in core.jobs and j.status == "created"]
                return [j for j in here if (newest(core.exact(j.id, known)) or 0) < epoch]

            def failed(left: list[Job]) -> list[Job]:
                return [j for j in left if j.failed_total > before[j.id] and j.error is not None]

            def settled() -> bool:
                left = waiting()
                for job in [j for j in failed(left) if j.id in stale]:
                    stale.discard(job.id)
                    before[job.id], job.retry_at_s = job.failed_total, 0.0
                    core.changed.notify_all()
                # A failing job holds up only its group and those built on it; all others are waited for.
                return core.stopping or {j.id for j in left} <= core.held_up(j.id for j in failed(left))

            core.changed.wait_for(settled, timeout_s)
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
        return self._guarded(self._compactor.pass_once)

    def check_logs(self) -> None:
        """Look now for logs that have outgrown their limits, and do what `log_limit_policy` says."""
        self._guarded(self._logs.look)

    def memory(self) -> MemoryUse:
        """What this process's writes and merges use of the memory budget."""
        return self._core.memory.use()

    def metrics(self) -> list[Metric]:
        """What has been counted, most of it since the server started. Raises `Fenced`, `StorageError`."""
        return collect(self._core, self._compactor.counts, self._vacuum.counts, self._start_s)

    def vacuum(self) -> int:
        """Delete unreferenced objects now, where that is due; returns their number."""
        return self._guarded(self._vacuum.pass_once)

    def jobs(self) -> list[JobStatus]:
        """All jobs of materialized views and sinks, by id."""
        core = self._core
        with core.lock:
            return [self._status(job) for _, job in sorted(core.jobs.items())]

    def barriers(self) -> list[Barrier]:
        """The epochs under way or stuck, and what each waits for."""
        return barriers(self._core)

    def groups(self) -> list[GroupStatus]:
        """All checkpoint groups, by name."""
        return self._status_of.groups()

    def checkpoints(self) -> list[Checkpoint]:
        """The newest checkpoints of every group, newest first."""
        return self._core.history.checkpoints()

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
            relations = self._core.relations.values()
            return {r.id: (r.error, r.error_since_ms) for r in relations if r.error is not None}

    def _status(self, job: Job) -> JobStatus:
        core, m, reading = self._core, job.metrics, job.reading
        frontier, attempt = core.job_frontier(job), core.progress.of(job.attempt)
        now_s = core.clock.monotonic_s()
        retry_s = max(0.0, job.retry_at_s - now_s) if job.failures else 0.0
        held = next((j for j in core.lane_of(job) if j.error is not None and j is not job), None)
        return JobStatus(
            id=job.id,
            name=job.name,
            kind=self._core.relation(job.id).kind,
            group=job.group,
            status=job.shown_status,
            committed_epoch=job.committed,
            frontier=frontier,
            lag_ms=lag_ms(core.clock.now_ms(), newest(core.exact(job.id)) or 0),
            rows_in=m.rows_in,
            rows_out=m.rows_out,
            epochs=m.epochs,
            last_epoch_ms=m.last_epoch_ms,
            error=job.error,
            error_since_ms=job.error_since_ms if job.error is not None else 0,
            row_errors=m.row_errors,
            late_rows=m.late_rows,
            progress=job.progress or ("" if held is None else f'held up by "{held.name}" of its checkpoint group'),
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
        job = self._core.jobs.get(job_id)
        if job is None:
            raise UndefinedObject(f"there is no job {job_id}")
        return job

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
