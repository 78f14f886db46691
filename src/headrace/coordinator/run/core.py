"""What the parts of a running coordinator share: relations, jobs, epochs, and the lock that guards them."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol

from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import Edit
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.common.clock import Clock
from headrace.common.epoch import epoch_ms
from headrace.config import Settings
from headrace.connectors.base import SlotStanding, Source
from headrace.coordinator.ddl.secrets import Vault
from headrace.coordinator.decide.graph import Graph, RelationState
from headrace.coordinator.decide.job import JobState, PlanFacts
from headrace.coordinator.observe.history import History
from headrace.coordinator.observe.progress import ProgressBook
from headrace.coordinator.observe.sparing import Sparing
from headrace.coordinator.run.epochs import EpochClock
from headrace.coordinator.run.guard import Guard
from headrace.coordinator.run.pins import Pins
from headrace.coordinator.run.waiting import Waiters
from headrace.dataflow.lasting import LastingPlan, Outline
from headrace.dataflow.params import EpochParams
from headrace.dataflow.runner import EpochResult
from headrace.errors import (
    Fenced,
    HeadraceError,
    InvalidParameter,
    JobFailed,
    OperationalError,
    ShuttingDown,
    SparkLost,
    StorageError,
)
from headrace.plan.planner import ViewPlan
from headrace.state.memory import MemoryController, budget_bytes, machine_bytes
from headrace.state.schema import RunRef, TableSchema
from headrace.state.stores import StoreRoot, store_of


class Runner(Protocol):
    """Runs the epochs of one view on Spark. A protocol, so that tests need no Spark."""

    def run(self, params: EpochParams, parallelism: int) -> EpochResult:
        """Run one attempt."""
        ...

    def run_with(
        self, params: EpochParams, parallelism: int, others: Sequence[tuple[Any, EpochParams, int]]
    ) -> list[EpochResult]:
        """Run one attempt, and one of each of other runners like this one, as one job; the results in that order."""
        ...

    def cancel(self, attempt: str) -> None:
        """Stop an attempt that runs in another thread."""
        ...


RunnerFactory = Callable[[ViewPlan | LastingPlan, Mapping[int, "TableSchema | None"]], Runner]
"""Makes the runner of a view from its plan and the layouts of its inputs."""


@dataclass
class LiveRelation(RelationState):
    """A relation while the server runs: its state in the graph, and what the ticker knows of it."""

    dropped: bool = False
    error: HeadraceError | None = None
    """Why the source cannot be bound at present."""
    error_since_ms: int = 0
    slot: SlotStanding | None = None
    """Of a shared source: how far behind lies what it holds where it reads, as of the last look."""
    newest_us: int | None = None
    """The highest event time that jobs have read of a source, Unix microseconds."""


@dataclass
class Metrics:
    """What a job has done since the server started, by committed steps and epochs."""

    rows_in: int = 0
    rows_out: int = 0
    epochs: int = 0
    last_epoch_ms: int = 0
    row_errors: int = 0
    late_rows: int = 0
    spilled_bytes: int = 0
    io: Counter[str] = field(default_factory=Counter)
    """What its tasks have read and written, by the names of the fields of `IoMetrics`."""

    def add(self, result: EpochResult) -> None:
        """Count a step that has been committed."""
        self.rows_in += result.rows_in
        self.rows_out += result.rows_out
        self.row_errors += result.row_error_count
        self.late_rows += result.late_rows
        self.spilled_bytes += result.spilled_bytes
        self.io.update(result.io)


ShownStatus = Literal["quarantined", "failing", "paused", "starting", "creating", "running"]
"""What people see of a job's life, the worst first."""


@dataclass
class Job(JobState):
    """A job while the server runs: its plan and what runs it, what it has done, and which logs it holds up.

    The core's lock guards all of it but `sources`, which only the thread of its lane uses.
    """

    plan: ViewPlan | Outline | None = None
    runner: Runner | None = None
    sources: dict[int, Source] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=Metrics)
    growing: Mapping[int, int] = field(default_factory=dict)
    """Input -> bytes of its log that this job has not taken in, where that is more than its limit."""

    def take_plan(self, plan: ViewPlan | Outline | None, runner: Runner | None) -> None:
        """It has been planned, or cannot be; what it has begun by another plan is void."""
        self.plan, self.runner = plan, runner
        known = self.facts if plan is None else PlanFacts(plan.event_time, plan.temporal, plan.changes_only)
        self.facts = replace(known, awaited=False)
        self.void()

    def outgrow(self, growing: Mapping[int, int]) -> None:
        """Which logs are kept for it beyond its limit."""
        self.growing = growing

    @property
    def shown_status(self) -> ShownStatus:
        """What people see of its life."""
        if self.quarantined:
            return "quarantined"
        if self.paused:
            return "paused"
        if self.error is not None:
            return "failing"
        if self.starting:
            return "starting"
        return "creating" if self.creating else "running"


SPARK_STARTS: Final = SparkLost("Spark is starting")
"""Why no epoch runs at the start of a server that Spark has not started for yet."""
PLANNING_TRIES: Final = 3
"""Failures in a row after which who waits for views to be planned is told why, and a view of which the planning has
ended Spark each time is left out."""
PATIENCE_S = 1.0
"""Seconds that a group may hold a slot before it may not count any more."""


class FairSlots:
    """A limit on what runs at once; who waits longest goes first.

    Who has held a slot for `PATIENCE_S` may well be waiting itself, inside a slow function say. Up to `spare` such
    holders are not counted, so that they do not keep all others from running.
    """

    def __init__(self, slots: int, spare: int = 0, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Condition()
        self._slots, self._spare, self._monotonic_s = slots, spare, monotonic_s
        self._held: dict[object, float] = {}
        """Holder -> since when."""
        self._queue: deque[object] = deque()

    def _free_in_s(self) -> float | None:
        """Seconds until a slot is free if nobody gives one back; 0 or less for one that is free, None for never."""
        over = len(self._held) - self._slots
        if over < 0:
            return 0.0
        if over >= self._spare:
            return None
        # The one that has to have outstayed its time for one more to be let in.
        return sorted(self._held.values())[over] + PATIENCE_S - self._monotonic_s()

    @contextmanager
    def slot(self, give_up: Callable[[], bool]) -> Iterator[bool]:
        """Wait for a slot; False, without one, as soon as `give_up` says so (asked whenever `wake` is called)."""
        ticket = object()
        with self._lock:
            self._queue.append(ticket)
            try:
                while not give_up():
                    left_s = self._free_in_s() if self._queue[0] is ticket else None
                    if left_s is not None and left_s <= 0:
                        break
                    self._lock.wait(left_s)
                granted = not give_up()
            finally:
                self._queue.remove(ticket)
                self._lock.notify_all()
            if granted:
                self._held[ticket] = self._monotonic_s()
        try:
            yield granted
        finally:
            if granted:
                with self._lock:
                    del self._held[ticket]
                    self._lock.notify_all()

    def wake(self) -> None:
        """Let those that wait ask whether to give up."""
        with self._lock:
            self._lock.notify_all()


def state_root(settings: Settings) -> StoreRoot:
    """Where a database with these settings keeps its state. Raises `InvalidParameter`."""
    # Whoever runs Spark's tasks may have another working directory.
    url = settings.state_url or str((settings.data_dir / "state").absolute())
    url = url if "://" in url or url.startswith("memory:") else os.path.abspath(url)
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


class HandOver(Protocol):
    """See `Handing.prepared`."""

    def __call__(
        self, sink: ObjectRecord, runs: Sequence[RunRef], check: Callable[[], None]
    ) -> AbstractContextManager[Callable[[Sequence[Edit]], None]]: ...


def _no_tables(
    sink: ObjectRecord, runs: Sequence[RunRef], check: Callable[[], None]
) -> AbstractContextManager[Callable[[Sequence[Edit]], None]]:
    raise NotImplementedError("nobody writes to tables here")


class Core:
    """The shared state. `lock` guards relations, jobs and pins' epochs; never held over I/O or Spark.

    `committing` is held over a commit of jobs from its first look at the catalog to the change of what is in memory, so
    that no two of them move the same job. `raising` is held by who raises safe epochs, from working one out until what
    is built on it is durable or given up: so none goes back behind what somebody else relies on. They are taken in the
    order `raising`, `committing`, `catalog.reading()`, `lock`; a gate of the writer before all of them, and its lead
    behind `committing`.
    """

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        clock: Clock,
        slots: int,
        root: StoreRoot | None = None,
        *,
        following: bool = False,
    ) -> None:
        self.settings = settings
        self.catalog = catalog
        self.clock = clock
        self.root = root or state_root(settings)
        self.store = store_of(replace(self.root, proof=""))
        self.lock = threading.RLock()
        self.changed = Waiters(self.lock)
        """Notified when an epoch becomes complete, a group commits or fails, or a job is altered."""
        self.committing = threading.Lock()
        self.vault = Vault(catalog, settings)
        self.raising = threading.Lock()
        self.epochs = EpochClock(catalog, clock, self.changed, following=following)
        self.graph: Graph[LiveRelation, Job] = Graph(lambda: self.epochs.complete)
        """`lock` guards it, and all that is in it."""
        self.mirrored: CatalogState | None = None
        """On a standby: the content that relations and jobs, and the newest complete epoch, are those of. The catalog's
        own may be a moment newer, with history gone that was there."""
        self.pins = Pins()
        self.sparing = Sparing(clock.monotonic_s)
        self.guard = Guard(
            self.changed, clock, catalog, self.sparing, settings=lambda: self.settings,
            stopping=lambda: self.stopping, fatal=self.fatal,
        )  # fmt: skip
        self.history = History()
        self.progress = ProgressBook(clock.monotonic_s, clock.now_ms)
        self.slots = FairSlots(slots, max(slots, 2), clock.monotonic_s)
        self.tasks_at_once = slots
        """Tasks of epochs that are taken to run side by side, which share the memory budget."""
        self.memory = MemoryController(self.budget_bytes())
        self.totals = Metrics()
        """Of all jobs together, dropped ones included."""
        self.stopping = False
        self.suspended: HeadraceError | None = None
        """Why no epoch runs at present: Spark is starting, or has ended and is being started again."""
        self.spark_is_lost: Callable[[], bool] = lambda: False
        """Asked by who met `SparkLost`: whether all of Spark has ended. If so, `suspended` is set on return."""
        self.unplanned: list[HeadraceError] = []
        """Why views could not be planned, each time since they last were. `lock` guards it."""
        self.hand_over: HandOver = _no_tables
        """How what sinks have for tables gets there."""
        self.failure: BaseException | None = None
        self.on_fatal: Callable[[], None] = lambda: None
        """Called once `failure` is set: what still runs is to be cancelled. Must not wait."""
        self.failed = threading.Event()
        self._attempts = itertools.count(1)

    def is_planned(self) -> bool:
        """Whether all views have been planned in the Spark that runs, or nobody plans them any more. Under the lock."""
        return self.stopping or (self.suspended is None and not any(job.starting for job in self.graph.jobs.values()))

    def check_planning(self) -> None:
        """Raises if planning has failed so often in a row that nobody should wait for it. It goes on being tried."""
        with self.lock:
            failures = len(self.unplanned)
            if failures >= PLANNING_TRIES:
                error = self.unplanned[-1]
                raise OperationalError(
                    f"views cannot be planned: {error.message}", detail=error.detail,
                    hint=f"it has failed {failures} times in a row and is tried again; tables can be read and written",
                )  # fmt: skip

    def budget_bytes(self) -> int:
        """The memory budget, as configured now."""
        return budget_bytes(self.settings.memory_budget_mb, machine_bytes())

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
        self.on_fatal()

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
