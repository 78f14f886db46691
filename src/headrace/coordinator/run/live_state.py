"""Relations, jobs and epochs while the server runs: what is known of them in memory, and the lock that guards it."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal, Protocol

from headrace.catalog.catalog import Catalog
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.common.clock import Clock
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.base import SlotStanding, Source
from headrace.coordinator.decide.automatic import is_automatic
from headrace.coordinator.decide.graph import Graph
from headrace.coordinator.decide.job import JobState, PlanFacts
from headrace.coordinator.decide.relation import RelationState
from headrace.coordinator.decide.split_times import SplitTimes
from headrace.coordinator.run.epochs import EpochClock
from headrace.coordinator.run.waiting import Waiters
from headrace.dataflow.epoch_result import EpochResult
from headrace.dataflow.kept_plans import LastingPlan, Outline
from headrace.dataflow.params import EpochParams
from headrace.errors import HeadraceError
from headrace.plan.planner import ViewPlan
from headrace.state.schema import TableSchema


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
    told_s: float = -math.inf
    """When the question was asked that its source has answered last, be it by an error, by the monotonic clock."""
    slot: SlotStanding | None = None
    """Of a shared source: how far behind lies what it holds where it reads, as of the last look; None while it is not
    looked at: it is paused, or cannot be read."""
    left: Mapping[str, int] | None = None
    """How many rows of a source's splits are there and not bound yet, as of the last look; None as above."""
    behind: bool = False
    """There were more rows of a source than its last answer took in; it may know that without their number."""
    added: tuple[str, ...] = ()
    """Columns that have come where a source reads, and that it does not have, as of the last look."""
    times: SplitTimes = field(default_factory=SplitTimes)
    """The highest event times that jobs have read of a source."""


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
    remark: str = ""
    """What a sink left undone besides, the last time that it delivered something."""

    def add(self, result: EpochResult) -> None:
        """Count a step that has been committed."""
        self.rows_in += result.rows_in
        self.rows_out += result.rows_out
        self.row_errors += result.row_error_count
        self.late_rows += result.late_rows
        self.spilled_bytes += result.spilled_bytes
        self.io.update(result.io)
        if result.rows_out:
            self.remark = result.remark


ShownStatus = Literal["quarantined", "failing", "paused", "held", "starting", "creating", "running"]
"""What people see of a job's life, the worst first. `held` is one that would run, but for another of its group."""


@dataclass
class Job(JobState):
    """A job while the server runs: its plan and what runs it, what it has done, and which logs it holds up.

    The lock of `LiveState` guards all of it but `sources`, which only the thread of its lane uses.
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

    def await_plan(self) -> None:
        """What it runs by is not to be used any more, and nothing that was begun by it: it will be planned."""
        self.runner = None
        self.facts = PlanFacts(awaited=True)
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


class LiveState:
    """What is known in memory of relations, jobs and epochs. `lock` guards it, and is never held over I/O or Spark.

    `changed` is that lock, too, with those who wait for something to become of it. `Locks` says in which order it is
    taken with others.
    """

    def __init__(self, catalog: Catalog, clock: Clock, wake_others: Callable[[], None], *, following: bool) -> None:
        """`wake_others` lets those look again who wait elsewhere, for jobs that may have changed."""
        self.lock = threading.RLock()
        self.changed = Waiters(self.lock)
        """Notified when an epoch becomes complete, a group commits or fails, or a job is altered."""
        self.epochs = EpochClock(catalog, clock, self.changed, following=following)
        self.graph: Graph[LiveRelation, Job] = Graph(lambda: self.epochs.complete)
        """`lock` guards it, and all that is in it."""
        self.mirrored: CatalogState | None = None
        """On a standby: the content that relations and jobs, and the newest complete epoch, are those of. The catalog's
        own may be a moment newer, with history gone that was there."""
        self._wake_others = wake_others

    def notify(self) -> None:
        """Wake everybody who waits for progress."""
        with self.changed:
            self.changed.notify_all()
        self._wake_others()


def take_up(live: LiveState, changed: Sequence[ObjectRecord]) -> None:
    """Let what runs know objects by what is stored of them by now."""
    graph = live.graph
    with live.changed:
        for record in (o for o in changed if o.content.in_graph):
            if record.id in graph.relations:
                graph.relations[record.id].record = record
            else:
                graph.relations[record.id] = LiveRelation(record)
            job = graph.jobs.get(record.id)
            if job is not None:
                job.rename(record.name, automatic=is_automatic(record))
        live.changed.notify_all()
