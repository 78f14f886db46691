"""What every barrier that is under way, or stuck, waits for.

A barrier waits for tasks, a retry, an input, the cadence, compaction or a slot. A view that is more than
`lag_notice_ms` behind makes one event.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import AddEvent
from headrace.common.clock import Clock
from headrace.common.epoch import TOLERATED_AHEAD_MS, epoch_ms
from headrace.common.lazy_dataclass import dataclass
from headrace.common.loggers import get_logger
from headrace.config import Settings
from headrace.coordinator.decide.exact import intersect_all, newest
from headrace.coordinator.decide.graph import Graph
from headrace.coordinator.decide.targets import decide
from headrace.coordinator.decide.view_options import log_limit
from headrace.coordinator.observe.progress import AttemptProgress, ProgressBook
from headrace.coordinator.observe.sparing import Sparing
from headrace.coordinator.run.application import SPARK_STARTS
from headrace.coordinator.run.live_state import Job, LiveRelation
from headrace.errors import HeadraceError, LogLost

MIB = 1 << 20


@dataclass(frozen=True)
class Barrier:
    """An epoch that a job has not committed yet, and what it waits for."""

    group: str
    job_id: int
    epoch: int
    """The epoch that it runs to; the newest complete one where it does not run at present."""
    from_epoch: int
    """Its newest checkpoint."""
    state: str
    """running, or what the job is shown as."""
    waiting_for: str
    running_ms: int | None
    """How long the attempt has been running; None if it is not."""
    tasks_done: int
    tasks_known: int
    """Tasks that have started so far."""
    rows_in: int
    """Rows that the tasks of all operators have taken in so far."""
    rows_out: int


class Barriers:
    """Says what each barrier waits for; changes nothing. `lock` guards the graph; `suspended` says why nothing runs."""

    def __init__(
        self, graph: Graph[LiveRelation, Job], lock: AbstractContextManager[object], progress: ProgressBook,
        catalog: Catalog, clock: Clock, settings: Callable[[], Settings], suspended: Callable[[], HeadraceError | None],
    ) -> None:  # fmt: skip
        self._graph = graph
        self._lock = lock
        self._progress = progress
        self._catalog = catalog
        self._clock = clock
        self._settings = settings
        self._suspended = suspended

    def all(self) -> list[Barrier]:
        """The barriers under way or stuck, by group."""
        live = {a.name: a for a in self._progress.live()}
        with self._lock:
            jobs = sorted(self._graph.jobs.values(), key=lambda j: j.id)
            found = [self._barrier(j, live.get(j.activity.attempt or "")) for j in jobs if self._open(j)]
        return sorted(found, key=lambda b: (b.group, b.job_id))

    def _open(self, job: Job) -> bool:
        return job.activity.attempt is not None or self._graph.job_frontier(job) < self._graph.complete

    def _barrier(self, job: Job, progress: AttemptProgress | None) -> Barrier:
        tasks = list(progress.tasks.values()) if progress is not None else []
        since_s = self._clock.monotonic_s() - job.activity.since_s
        return Barrier(
            group=job.group,
            job_id=job.id,
            epoch=progress.epoch if progress is not None else self._graph.complete,
            from_epoch=job.committed,
            state="running" if job.activity.attempt is not None else job.shown_status,
            waiting_for=self.waiting_for(job, progress),
            running_ms=round(since_s * 1000) if job.activity.attempt is not None else None,
            tasks_done=sum(t.state == "done" for t in tasks),
            tasks_known=len(tasks),
            rows_in=sum(t.rows_in for t in tasks),
            rows_out=sum(t.rows_out for t in tasks),
        )

    def waiting_for(self, job: Job, progress: AttemptProgress | None = None) -> str:
        """What keeps a job from its next checkpoint, and which logs are kept for it beyond their limit.

        Empty if it has nothing to do. The caller holds the lock.
        """
        lost = [f'the log of "{r.name}" is gone: drop it and create it again' for r in self._graph.lost_logs(job)]
        growing = [self._graph.relations[i] for i in sorted(job.growing) if i in self._graph.relations]
        notices = lost or [f"it {self.growth(job, r)}" for r in growing]
        return "; ".join(filter(None, [self.blocked_by(job, progress), *notices]))

    def growth(self, job: Job, relation: LiveRelation) -> str:
        """How far a log has outgrown a job's limit. The caller holds the lock."""
        kept_mb, limit_mb = job.growing.get(relation.id, 0) / MIB, log_limit(self._settings(), job.options).bytes / MIB
        what = "the bindings" if relation.external else "the log"
        return f'has not read {kept_mb:.1f} MiB of {what} of "{relation.name}", more than log_limit_mb = {limit_mb:.0f}'

    def blocked_by(self, job: Job, progress: AttemptProgress | None = None) -> str:
        """What keeps a job from its next checkpoint; empty if it has nothing to do. The caller holds the lock."""
        if job.paused:
            return "ALTER MATERIALIZED VIEW ... RESUME: it is paused"
        if job.quarantined:
            cause = "a new start" if isinstance(job.error, LogLost) else "its plan"
            return f"{cause}: it is quarantined" + (f": {job.error.message}" if job.error is not None else "")
        starts = self._suspended() is SPARK_STARTS
        if self._suspended() is not None and not (starts and job.runner is not None):
            return "Spark: it is starting" if starts else "Spark: it has ended, and is being started again"
        if job.starting:
            return "its plan: the views are planned one after another once Spark runs"
        if job.activity.attempt is not None:
            # An attempt that has just failed is still being cleared away.
            return (self._of_retry(job) if progress is None else "") or _of_attempt(progress)
        if self._graph.job_frontier(job) >= self._graph.complete:
            return ""
        return self._of_retry(job) or self._of_group(job) or self._of_input(job) or self._of_turn(job)

    def _of_retry(self, job: Job) -> str:
        left_s = job.trouble.retry_at_s - self._clock.monotonic_s()
        if not job.failures or left_s <= 0:
            return ""
        return f"its retry in {left_s:.1f} s" + (f": {job.error.message}" if job.error is not None else "")

    def holder(self, job: Job) -> Job | None:
        """Another job that moves in step with it and cannot go on, so that none of them does. The lock is held."""
        others = (j for j in self._graph.lane_of(job) if j is not job)
        return next((j for j in others if j.error is not None or not j.runnable), None)

    def _of_group(self, job: Job) -> str:
        """Another job that moves in step with it and cannot go on, or works at present."""
        held = self.holder(job)
        if held is not None:
            return f'"{held.name}" of its checkpoint group, which is {held.shown_status}'
        busy = next((j for j in self._graph.lane_of(job) if j is not job and j.activity.attempt is not None), None)
        return "" if busy is None else f'"{busy.name}" of its checkpoint group to finish its part of the epoch'

    def _of_input(self, job: Job) -> str:
        """An input that has to go on first."""
        lane = self._graph.lane_of(job)
        upstreams = self._graph.upstreams(lane)
        committed = min((j.committed for j in lane), default=job.committed)
        found = decide(committed, upstreams, self._graph.complete, due=self._graph.due(lane))
        if not found.run:
            slowest = min(upstreams, key=lambda u: u.frontier, default=None)
            relation = None if slowest is None else self._graph.relations.get(slowest.relation)
            if slowest is None or relation is None:
                return "one of its inputs"
            return f'its input "{relation.name}", which is at epoch {slowest.frontier}'
        common = intersect_all([self._graph.exact(u.relation) for u in upstreams])
        if upstreams and (newest(common, found.target) or 0) <= committed:
            return "an epoch at which all its inputs are exact"
        return ""

    def _of_turn(self, job: Job) -> str:
        """Its own turn."""
        left_s = (
            max(job.pace.not_before_s, job.pace.commit_after_s if job.activity.epochs else 0.0)
            - self._clock.monotonic_s()
        )
        if left_s > 0 and job.pace.forced <= job.committed:
            return f"its checkpoint_interval_ms, {left_s:.1f} s more"
        if job.activity.epochs:
            return "the commit of what it has written"
        image, most = self._catalog.image, self._settings().compaction_stall_runs
        runs = max((image.run_count(t) for t in job.tables.values()), default=0)
        if runs >= most:
            return f"compaction: a state table has {runs} runs (compaction_stall_runs is {most})"
        return "a free slot among the groups that run at once"


def _of_attempt(progress: AttemptProgress | None) -> str:
    if progress is None:
        return "what its epoch takes in, or the commit of what it has written"
    declined = next((t for t in progress.tasks.values() if t.state == "declined"), None)
    if declined is not None:
        which = f"task {declined.task} of operator {declined.operator}"
        return f"the end of its other tasks: {which} declined: {declined.reason}"
    missing = progress.unfinished()
    if missing:
        return "; ".join(f"operator {o}: {done} of {n} tasks done" for o, (done, n) in sorted(missing.items()))
    if progress.tasks and len(progress.beside) > 1:
        return f"the end of the Spark job that it shares with {len(progress.beside) - 1} other views"
    return "its next tasks to start" if progress.tasks else "its first task to start"


class Watchdog:
    """Makes an event of every view that falls behind, with what it waits for, and of a clock that does; each once."""

    def __init__(
        self, barriers: Barriers, graph: Graph[LiveRelation, Job], lock: AbstractContextManager[object],
        catalog: Catalog, sparing: Sparing, settings: Callable[[], Settings], ahead_ms: Callable[[], int],
    ) -> None:  # fmt: skip
        """`ahead_ms` tells how far the newest epoch is ahead of the wall clock."""
        self._barriers = barriers
        self._graph = graph
        self._lock = lock
        self._catalog = catalog
        self._sparing = sparing
        self._settings = settings
        self._ahead_ms = ahead_ms
        self._late: set[int] = set()
        self._ahead = False

    def look(self) -> None:
        """Look at the clock and at all barriers; called now and then by one thread. Raises what the catalog does."""
        self._look_at_clock()
        graph, limit_ms = self._graph, self._settings().lag_notice_ms
        with self._lock:
            now_ms = epoch_ms(graph.complete)
            late = {
                j.id: now_ms - epoch_ms(graph.job_frontier(j))
                for j in graph.jobs.values()
                if j.committed and limit_ms and now_ms - epoch_ms(graph.job_frontier(j)) > limit_ms
            }
        self._late &= late.keys()
        news = late.keys() - self._late
        if news:
            for barrier in self._barriers.all():
                if barrier.job_id in news:
                    self._say(barrier, late[barrier.job_id])
                    self._late.add(barrier.job_id)

    def _look_at_clock(self) -> None:
        ahead_ms = self._ahead_ms()
        if ahead_ms > TOLERATED_AHEAD_MS and not self._ahead:
            text = (
                f"the clock is {ahead_ms / 1000:.0f} s behind the newest epoch: it has been ahead once, or is wrong "
                "now. Until it has caught up, time in views and what is kept by time go on from that epoch, at half "
                "its pace"
            )
            get_logger("headrace").warning("the clock is behind the epochs", seconds=ahead_ms // 1000)
            self._catalog.transact([AddEvent("clock_behind", None, text)])
        self._ahead = ahead_ms > TOLERATED_AHEAD_MS

    def _say(self, barrier: Barrier, late_ms: int) -> None:
        """Raises what the catalog does: then the next look says it."""
        with self._lock:
            job = self._graph.jobs.get(barrier.job_id)
        if job is None:
            return
        text = f"{job.in_words} is {late_ms / 1000:.0f} s behind; it waits for {barrier.waiting_for}"
        event = self._sparing.thinned(AddEvent("barrier_late", job.id, text))
        self._catalog.transact([] if event is None else [event])
