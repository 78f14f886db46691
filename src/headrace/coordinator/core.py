"""What the parts of a running coordinator share: relations, jobs, epochs, and the lock that guards them."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.catalog.catalog import Catalog
from headrace.catalog.records import ObjectRecord
from headrace.common.clock import Clock
from headrace.common.columns import Column
from headrace.common.epoch import epoch_ms
from headrace.config import Settings
from headrace.connectors.base import Source, open_source
from headrace.coordinator.epochs import EpochClock
from headrace.coordinator.exact import ChangeLog, Interval, clipped, end_of_range, frontier, intersect_all, view_exact
from headrace.coordinator.history import History
from headrace.coordinator.pins import Pins
from headrace.coordinator.progress import ProgressBook
from headrace.coordinator.targets import Upstream, first_change_of
from headrace.dataflow.params import EpochParams
from headrace.dataflow.runner import EpochResult
from headrace.errors import (
    Fenced,
    HeadraceError,
    InvalidParameter,
    JobFailed,
    ShuttingDown,
    StorageError,
    UndefinedTable,
)
from headrace.plan.planner import ViewPlan
from headrace.state.memory import MemoryController, budget_bytes, machine_bytes
from headrace.state.schema import TableSchema
from headrace.state.stores import StoreRoot, store_of

ROWS = "view/rows"
"""The state table that holds a relation's rows, of views and tables alike."""


class Runner(Protocol):
    """What runs a view's epochs."""

    def run(self, params: EpochParams, parallelism: int) -> EpochResult:
        """Run one attempt."""
        ...

    def cancel(self, attempt: str) -> None:
        """Stop an attempt that runs in another thread."""
        ...


RunnerFactory = Callable[[ViewPlan, Mapping[int, "TableSchema | None"]], Runner]
"""Makes the runner of a view from its plan and the layouts of its inputs."""


@dataclass
class Relation:
    """A table, source, materialized view or sink while the server runs."""

    record: ObjectRecord
    schema: TableSchema | None = None
    """Layout of its rows; None for a source or sink."""
    state_table: int = 0
    """Id of the state table that holds its rows; 0 for a source or sink."""
    changes: ChangeLog = field(default_factory=ChangeLog)
    rows_by_epoch: dict[int, int] = field(default_factory=dict)
    """Rows that its newest changes have, where they are known."""
    safe: int = 0
    """Oldest epoch at which it may be read; never below what the catalog says."""
    bound: bool = False
    """A source that has offsets."""
    writing: threading.Lock = field(default_factory=threading.Lock)
    dropped: bool = False
    error: HeadraceError | None = None
    """Why the source cannot be bound at present."""
    error_since_ms: int = 0

    @property
    def id(self) -> int:
        """The object's id."""
        return self.record.id

    @property
    def kind(self) -> str:
        """table, source, materialized_view or sink."""
        return self.record.kind

    @property
    def name(self) -> str:
        """The name as SQL knows it."""
        return self.record.name

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns."""
        return self.record.columns

    def open(self) -> Source:
        """The source itself. Raises `InvalidParameter`, `SourceError`."""
        return open_source(self.record.options, self.record.columns)

    def changed(self, epoch: int, rows: int | None = None) -> None:
        """Note a change."""
        self.changes.add(epoch)
        if rows is not None:
            self.rows_by_epoch[epoch] = rows


@dataclass
class Metrics:
    """What a job has done since the server started."""

    rows_in: int = 0
    rows_out: int = 0
    epochs: int = 0
    last_epoch_ms: int = 0
    row_errors: int = 0
    spilled_bytes: int = 0


@dataclass
class Job:
    """The job of a materialized view or a sink while the server runs."""

    id: int
    name: str
    upstreams: tuple[int, ...]
    tables: dict[str, int]
    """Name of a state table -> its id."""
    group: str
    status: str
    """As in the catalog: creating, created, paused or quarantined."""
    committed: int = 0
    exact: tuple[Interval, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    plan: ViewPlan | None = None
    runner: Runner | None = None
    sources: dict[int, Source] = field(default_factory=dict)
    failures: int = 0
    """Failed attempts since the last one that succeeded."""
    failed_total: int = 0
    row_limit: int = 0
    """Most input rows of its next epoch while memory or disk is short; 0 for no limit but the configured one."""
    error: HeadraceError | None = None
    error_since_ms: int = 0
    retry_at_s: float = 0.0
    not_before_s: float = 0.0
    stops: set[int] = field(default_factory=set)
    """Epochs at which a view below wants this one to be exact, together with its other inputs."""
    read_stop: int = 0
    """The stop that a waiting read has asked for last; it takes the place of the one before."""
    aligning: int = 0
    """The epoch at which this view has last asked its inputs to be exact together."""
    forced: int = 0
    """An epoch that someone waits for: the cadence does not hold it back."""
    attempt: str | None = None
    attempt_since_s: float = 0.0
    progress: str = ""
    metrics: Metrics = field(default_factory=Metrics)
    committing: threading.Lock = field(default_factory=threading.Lock)
    stopping: bool = False
    thread: threading.Thread | None = None

    @property
    def runnable(self) -> bool:
        """Whether its status lets it run."""
        return self.status in ("creating", "created") and not self.stopping

    @property
    def shown_status(self) -> str:
        """creating, running, failing, paused or quarantined."""
        if self.status in ("paused", "quarantined"):
            return self.status
        if self.error is not None:
            return "failing"
        return "creating" if self.status == "creating" else "running"


class FairSlots:
    """A limit on what runs at once; who waits longest goes first."""

    def __init__(self, slots: int) -> None:
        self._lock = threading.Condition()
        self._free = slots
        self._queue: deque[object] = deque()

    @contextmanager
    def slot(self, give_up: Callable[[], bool]) -> Iterator[bool]:
        """Wait for a slot; False, without one, as soon as `give_up` says so (asked whenever `wake` is called)."""
        ticket = object()
        with self._lock:
            self._queue.append(ticket)
            try:
                self._lock.wait_for(lambda: give_up() or (self._free > 0 and self._queue[0] is ticket))
                granted = not give_up()
            finally:
                self._queue.remove(ticket)
                self._lock.notify_all()
            if granted:
                self._free -= 1
        try:
            yield granted
        finally:
            if granted:
                with self._lock:
                    self._free += 1
                    self._lock.notify_all()

    def wake(self) -> None:
        """Let those that wait ask whether to give up."""
        with self._lock:
            self._lock.notify_all()


def state_root(settings: Settings) -> StoreRoot:
    """Where a database with these settings keeps its state. Raises `InvalidParameter`."""
    url = settings.state_url or str(settings.data_dir / "state")
    if url.startswith("memory:"):
        raise InvalidParameter("state in memory is not seen by Spark's workers", hint="give a directory for state_url")
    return StoreRoot(
        url=url,
        options=tuple(sorted(settings.state_options.items())),
        cache_dir=str((settings.cache_dir or settings.data_dir / "cache").absolute()),
        cache_bytes=settings.cache_mb << 20,
        concurrency=settings.io_concurrency,
        timeout_ms=settings.io_timeout_ms,
    )


class Core:
    """The shared state. `lock` guards relations, jobs and pins' epochs; never held over I/O or Spark."""

    def __init__(self, settings: Settings, catalog: Catalog, clock: Clock, slots: int) -> None:
        self.settings = settings
        self.catalog = catalog
        self.clock = clock
        self.root = state_root(settings)
        self.store = store_of(self.root)
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        """Notified when an epoch becomes complete, a group commits or fails, or a job is altered."""
        self.epochs = EpochClock(catalog, clock, self.changed)
        self.pins = Pins()
        self.history = History()
        self.progress = ProgressBook(clock.monotonic_s, clock.now_ms)
        self.slots = FairSlots(slots)
        self.tasks_at_once = slots
        """Tasks of epochs that are taken to run side by side, which share the memory budget."""
        self.memory = MemoryController(self.budget_bytes())
        self.relations: dict[int, Relation] = {}
        self.jobs: dict[int, Job] = {}
        self.stopping = False
        self.failure: BaseException | None = None
        self.failed = threading.Event()
        self._attempts = itertools.count(1)

    def budget_bytes(self) -> int:
        """The memory budget, as configured now."""
        return budget_bytes(self.settings.memory_budget_mb, machine_bytes())

    # ---- what depends on what; the caller holds `lock`

    def relation(self, relation_id: int) -> Relation:
        """Raises `UndefinedTable` for one that is not there (any more)."""
        found = self.relations.get(relation_id)
        if found is None:
            raise UndefinedTable(f"relation {relation_id} does not exist", hint="it may have been dropped")
        return found

    def frontier(self, relation_id: int, known: dict[int, int] | None = None) -> int:
        """The newest epoch up to which a relation will not change any more; 0 if it cannot be read yet.

        `known` holds the frontiers of views that are worked out already.
        """
        relation = self.relations.get(relation_id)
        if relation is None:
            return 0
        job = self.jobs.get(relation_id)
        if job is not None:
            return self.job_frontier(job, known)
        if relation.kind == "source" and not relation.bound:
            return 0
        return self.epochs.complete

    def job_frontier(self, job: Job, known: dict[int, int] | None = None) -> int:
        """The frontier of a view."""
        known = {} if known is None else known
        if job.id not in known:
            ups = self.upstreams(job, known)
            upper = min((u.frontier for u in ups), default=self.epochs.complete)
            views = [self.exact(i) for i in job.upstreams if i in self.jobs]
            if views and job.committed:
                # A view shows its changes at its checkpoints: between two of them its content may be out of date.
                upper = min(upper, end_of_range(intersect_all(views), job.committed))
            known[job.id] = frontier(job.committed, upper, first_change_of(ups))
        return known[job.id]

    def upstreams(self, job: Job, known: dict[int, int] | None = None) -> list[Upstream]:
        """A job's inputs as its next epoch sees them."""
        known = {} if known is None else known
        return [Upstream(i, self.frontier(i, known), self._first_change(i, job.committed)) for i in job.upstreams]

    def _first_change(self, relation_id: int, after: int) -> int | None:
        relation = self.relations.get(relation_id)
        return None if relation is None else relation.changes.first_after(after)

    def exact(self, relation_id: int) -> list[Interval]:
        """The readable epochs at which a relation is exact."""
        relation = self.relation(relation_id)
        job = self.jobs.get(relation_id)
        if job is not None:
            return clipped(view_exact(job.exact, job.committed, self.job_frontier(job)), relation.safe)
        return [(relation.safe, self.epochs.complete)]

    def common(self, job: Job) -> list[Interval]:
        """The epochs at which all inputs of a job are exact. The caller holds `lock`."""
        return intersect_all([self.exact(i) for i in job.upstreams])

    def align(self, job: Job) -> None:
        """Ask the views above a job to stop at one epoch, so that there is one at which all are exact.

        All that runs there runs to an earlier epoch than the newest complete one, so none has passed it.
        """
        job.aligning = self.epochs.complete
        above = list(job.upstreams)
        while above:
            upper = self.jobs.get(above.pop())
            if upper is not None and job.aligning not in upper.stops:
                upper.stops.add(job.aligning)
                above += upper.upstreams
        self.changed.notify_all()

    def align_for_reads(self, epoch: int) -> None:
        """Ask all views to stop at one epoch, for a read that finds none at which those that it reads are exact.

        All of them, and only at the newest epoch that was asked for: so one stop serves all reads that wait, and a
        view that is slow is not made to stop more than once on its way.
        """
        for job in self.jobs.values():
            if job.read_stop < epoch:
                job.stops.discard(job.read_stop)
                job.stops.add(epoch)
                job.read_stop = epoch

    def jobs_above(self, relation_ids: Iterable[int]) -> list[Job]:
        """The jobs of these relations and of all that they are built on, those below first."""
        found: dict[int, Job] = {}
        left = list(relation_ids)
        while left:
            job = self.jobs.get(left.pop())
            if job is not None and job.id not in found:
                found[job.id] = job
                left += job.upstreams
        return sorted(found.values(), key=lambda j: -j.id)

    def consumers(self, relation_id: int) -> list[Job]:
        """The jobs that read a relation."""
        return [j for j in self.jobs.values() if relation_id in j.upstreams]

    def jobs_below(self, job_ids: Iterable[int]) -> set[int]:
        """These jobs and all that depend on them."""
        found = set(job_ids)
        grown = True
        while grown:
            more = {j.id for j in self.jobs.values() if j.id not in found and found.intersection(j.upstreams)}
            found |= more
            grown = bool(more)
        return found

    # ---- attempts, failures

    def attempt_name(self, job_id: int) -> str:
        """A name for an attempt, unique over all processes that ever open this database."""
        return f"{job_id}-{self.catalog.token or 0}-{next(self._attempts)}"

    def notify(self) -> None:
        """Wake everybody who waits for progress."""
        with self.changed:
            self.changed.notify_all()
        self.slots.wake()

    def fatal(self, error: BaseException) -> None:
        """Stop for good: the database belongs to another process."""
        with self.changed:
            if self.failure is None:
                self.failure = error
            self.stopping = True
            self.changed.notify_all()
        self.failed.set()
        self.slots.wake()

    def check_fence(self) -> None:
        """Raises `Fenced` if the catalog has been opened by another process; other errors of it count for nothing."""
        try:
            _ = self.catalog.state
        except Fenced:
            raise
        except HeadraceError:
            return

    def check(self) -> None:
        """Raises if the coordinator has stopped: its fatal error, or `ShuttingDown`."""
        if self.failure is not None:
            if isinstance(self.failure, Fenced):
                raise Fenced(self.failure.message, hint=self.failure.hint, detail=self.failure.detail)
            raise ShuttingDown(f"the coordinator has stopped: {self.failure}")
        if self.stopping:
            raise ShuttingDown("the server is shutting down")


def as_headrace_error(error: BaseException) -> HeadraceError:
    """Any exception as one that carries an SQLSTATE."""
    if isinstance(error, HeadraceError):
        return error
    if isinstance(error, OSError):
        return StorageError(f"{type(error).__name__}: {error}")
    return JobFailed(f"{type(error).__name__}: {error}")


def lag_ms(now_ms: int, frontier_epoch: int) -> int:
    """How far a frontier lies behind the wall clock."""
    return max(0, now_ms - epoch_ms(frontier_epoch)) if frontier_epoch else 0


def option_int(options: Mapping[str, Any], name: str, default: int) -> int:
    """An option of a job as a number; the default where there is none."""
    value = options.get(name)
    return default if value is None else int(value)
