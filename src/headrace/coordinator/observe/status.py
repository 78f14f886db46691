"""The state of the coordinator as the system relations show it."""

from __future__ import annotations

from typing import Final, NamedTuple, get_args

from headrace.common.epoch import epoch_ms
from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.decide.exact import Interval, newest
from headrace.coordinator.decide.graph import Graph
from headrace.coordinator.decide.machine import pacing
from headrace.coordinator.decide.view_options import cadence, log_limit
from headrace.coordinator.observe.epoch_history import History
from headrace.coordinator.observe.progress import ProgressBook
from headrace.coordinator.observe.watchdog import Barriers
from headrace.coordinator.reads import Reads
from headrace.coordinator.run.live_state import Job, LiveRelation, LiveState, ShownStatus
from headrace.coordinator.run.runtime import Runtime
from headrace.coordinator.upkeep.logs import UnreadLog, UnreadLogs, log_part
from headrace.errors import HeadraceError, SourceError
from headrace.state.stores import StoreRoot

INTERVALS_SHOWN = 16
"""Newest exact ranges that are shown of a relation."""


class RelationName(NamedTuple):
    """A relation, for who looks it up, and as people call it."""

    id: int
    name: str


class UnreadSource(NamedTuple):
    """A source that cannot be read, as it was at one look: a tick changes that at any moment."""

    source: LiveRelation
    error: HeadraceError
    since_ms: int


@dataclass(frozen=True)
class JobStatus:
    """The status of a job, as SHOW JOBS and `headrace_catalog.jobs` show it."""

    id: int
    name: str
    kind: str
    group: str
    status: ShownStatus
    """See `ShownStatus`."""
    committed_epoch: int
    frontier: int
    lag_ms: int
    """How far the newest epoch at which it is exact lies behind the wall clock; or, where that is longer, for how long
    a source that it is built on cannot be read."""
    rows_in: int
    rows_out: int
    epochs: int
    """Epochs since the server started; so are the counts of rows and errors."""
    last_epoch_ms: int
    error: HeadraceError | None
    """Its own; else that of a source that it is built on and that cannot be read, which is none of its status."""
    error_since_ms: int
    unread: RelationName | None
    """The source that `error` is of; None where it is the job's own."""
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


@dataclass(frozen=True)
class GroupStatus:
    """A checkpoint group as `headrace_catalog.checkpoint_groups` shows it."""

    name: str
    jobs: tuple[str, ...]
    status: str
    """The worst of its jobs'."""
    committed_epoch: int
    frontier: int
    checkpoint_interval_ms: int
    in_flight: int
    """Epochs that have begun and are not committed yet."""
    checkpoints: int
    """Since the server started; so are the counts that follow."""
    rows_in: int
    rows_out: int
    failures: int


@dataclass(frozen=True)
class EdgeStatus:
    """The log between a relation and a view that reads it: one line of `headrace_catalog.log_stores`."""

    upstream_id: int
    upstream: str
    downstream_id: int
    downstream: str
    position: int
    """The consumer has taken in all up to this epoch."""
    oldest_unconsumed: int | None
    backlog_epochs: int
    """Epochs with changes that it has not taken in."""
    backlog_rows: int | None
    """None for a source that does not tell."""
    backlog_bytes: int | None
    """What they take of the runs that hold them; None for a source."""
    limit_bytes: int | None
    """The size at which `log_limit_policy` applies; None for no limit."""
    log_state: str
    """kept; growing, when it was beyond its limit when that was looked at last; or lost."""
    rows_historical: int
    """Rows read since the server started: by the first epoch; so are the two that follow."""
    rows_flushed: int
    """From the log, as far as it lies in the store."""
    rows_buffered: int
    """From the log, by steps that found all of it unpacked in this host's cache."""
    truncated_to: int
    """At and below this epoch the log is merged away."""
    paused_ms: int


@dataclass(frozen=True)
class RelationEpochs:
    """Where a relation can be read: one line of `headrace_catalog.epochs`."""

    relation_id: int
    name: str
    kind: str
    committed_epoch: int | None
    """The newest checkpoint of a view."""
    frontier: int
    safe_epoch: int
    floor: int
    """No read shows it before this epoch."""
    newest_exact: int | None
    exact: tuple[Interval, ...]
    """Its newest exact ranges, oldest first."""
    current_epoch: int


_WORST: Final[tuple[ShownStatus, ...]] = get_args(ShownStatus)


class Status:
    """Makes what people see of the coordinator's state; changes nothing."""

    def __init__(
        self, live: LiveState, root: StoreRoot, runtime: Runtime, history: History, progress: ProgressBook, *,
        reads: Reads, barriers: Barriers, unread: UnreadLogs,
    ) -> None:  # fmt: skip
        self._live = live
        self._root = root
        self._runtime = runtime
        self._history = history
        self._progress = progress
        self._reads = reads
        self._barriers = barriers
        self._unread = unread

    def jobs(self) -> list[JobStatus]:
        """All jobs of materialized views and sinks, by id."""
        live = self._live
        with live.lock:
            unread = unread_sources(live.graph)
            return [self._job(job, unread.get(id)) for id, job in sorted(live.graph.jobs.items())]

    def _job(self, job: Job, unread: UnreadSource | None) -> JobStatus:
        live, runtime = self._live, self._runtime
        m, reading = job.metrics, job.catching_up.reading
        frontier, attempt = live.graph.job_frontier(job), self._progress.of(job.activity.attempt)
        now_s = runtime.clock.monotonic_s()
        retry_s = max(0.0, job.trouble.retry_at_s - now_s) if job.failures else 0.0
        now_ms = runtime.clock.now_ms()
        unread_ms = 0 if unread is None else now_ms - unread.since_ms
        told = None if job.error is not None else unread
        holder = self._barriers.holder(job)
        status: ShownStatus = job.shown_status
        return JobStatus(
            id=job.id,
            name=job.name,
            kind=live.graph.relation(job.id).record.kind,
            group=job.group,
            status="held" if holder is not None and status == "running" else status,
            committed_epoch=job.committed,
            frontier=frontier,
            lag_ms=max(
                unread_ms, _lag_ms(max(now_ms, epoch_ms(live.graph.complete)), newest(live.graph.exact(job.id)) or 0)
            ),
            rows_in=m.rows_in,
            rows_out=m.rows_out,
            epochs=m.epochs,
            last_epoch_ms=m.last_epoch_ms,
            error=job.error if told is None else _of_source(told),
            error_since_ms=told.since_ms if told is not None else job.trouble.since_ms if job.error else 0,
            unread=None if told is None else RelationName(told.source.id, told.source.record.in_words),
            row_errors=m.row_errors,
            late_rows=m.late_rows,
            progress=job.catching_up.text
            or ("" if holder is None else f'held up by "{holder.name}" of its checkpoint group'),
            waiting_for=self._barriers.waiting_for(job, attempt),
            failures=job.failures,
            retry_in_ms=round(retry_s * 1000),
            in_flight_epoch=None if attempt is None else attempt.epoch,
            upstreams=job.upstreams,
            rows_done=None if reading is None else reading.rows_done,
            rows_expected=None if reading is None else reading.rows_expected,
            rows_per_second=None if reading is None else reading.rate(now_s),
            remaining_ms=None if reading is None else reading.remaining_ms(now_s),
        )

    def groups(self) -> list[GroupStatus]:
        """All checkpoint groups, by name."""
        live = self._live
        with live.lock:
            groups: dict[str, list[Job]] = {}
            for job in live.graph.jobs.values():
                groups.setdefault(job.group, []).append(job)
            return [self._group(name, sorted(jobs, key=lambda j: j.id)) for name, jobs in sorted(groups.items())]

    def _group(self, name: str, jobs: list[Job]) -> GroupStatus:
        pace = cadence(self._runtime.settings, (job.options for job in pacing(jobs)))
        return GroupStatus(
            name=name,
            jobs=tuple(j.name for j in jobs),
            status=min((j.shown_status for j in jobs), key=_WORST.index),
            committed_epoch=min(j.committed for j in jobs),
            frontier=min(self._live.graph.job_frontier(j) for j in jobs),
            checkpoint_interval_ms=pace.checkpoint_ms,
            in_flight=max(j.activity.epochs for j in jobs),
            checkpoints=max(j.metrics.epochs for j in jobs),
            rows_in=sum(j.metrics.rows_in for j in jobs),
            rows_out=sum(j.metrics.rows_out for j in jobs),
            failures=max(j.trouble.failed_total for j in jobs),
        )

    def epochs(self) -> list[RelationEpochs]:
        """Every table, source and materialized view, by id."""
        live = self._live
        with live.lock:
            return [self._epochs(r) for _, r in sorted(live.graph.relations.items())]

    def _epochs(self, relation: LiveRelation) -> RelationEpochs:
        live = self._live
        exact = live.graph.exact(relation.id)
        job = live.graph.jobs.get(relation.id)
        return RelationEpochs(
            relation_id=relation.id,
            name=relation.name,
            kind=relation.record.kind,
            committed_epoch=None if job is None else job.committed,
            frontier=live.graph.frontier(relation.id),
            safe_epoch=relation.safe,
            floor=self._reads.floor(relation.id),
            newest_exact=exact[-1][1] if exact else None,
            exact=tuple(exact[-INTERVALS_SHOWN:]),
            current_epoch=live.epochs.complete,
        )

    def log_stores(self) -> list[EdgeStatus]:
        """Every edge to a view, by the ids of its ends. Looks into merged runs, and so may read from the store."""
        found = []
        for upstream, downstream in self._unread.edges():
            with self._unread.unread(upstream, downstream) as log:
                if log is not None:
                    found.append(self._edge(log))
        return found

    def _edge(self, log: UnreadLog) -> EdgeStatus:
        live, runtime = self._live, self._runtime
        relation, job = log.relation, log.job
        size: int | None = None
        if relation.schema is None:
            with live.lock:
                changes = relation.changes.in_range(log.position, log.complete)
                epochs = [low for low, _ in changes]
                known = [relation.rows_by_epoch.get(e) for e in epochs]
            rows = None if None in known else sum(r for r in known if r is not None)
        else:
            parts = [log_part(self._root, log, ref) for ref in log.refs]
            epochs = sorted(frozenset().union(*(p.epochs for p in parts)))
            rows, size = sum(p.rows for p in parts), sum(p.bytes for p in parts)
        with live.lock:
            lost = relation in live.graph.lost_logs(job)
        reads = self._history.reads(relation.id, job.id)
        return EdgeStatus(
            upstream_id=relation.id,
            upstream=relation.name,
            downstream_id=job.id,
            downstream=job.name,
            position=log.position,
            oldest_unconsumed=min(epochs, default=None),
            backlog_epochs=len(epochs),
            backlog_rows=rows,
            backlog_bytes=size,
            limit_bytes=log_limit(runtime.settings, job.options).bytes or None,
            log_state="lost" if lost else "growing" if relation.id in job.growing else "kept",
            rows_historical=reads.historical,
            rows_flushed=reads.flushed,
            rows_buffered=reads.buffered,
            truncated_to=relation.safe,
            paused_ms=self._history.paused_ms(job.id, runtime.clock.monotonic_s()),
        )


def unread_sources(graph: Graph[LiveRelation, Job]) -> dict[int, UnreadSource]:
    """The jobs that are built on a source which cannot be read, each with the one of which that is so for longest."""
    known = ((r, r.error) for r in graph.relations.values())
    failing = [UnreadSource(r, error, r.error_since_ms) for r, error in known if error is not None]
    if not failing:
        return {}
    readers: dict[int, list[int]] = {}
    for job in graph.jobs.values():
        for i in job.upstreams:
            readers.setdefault(i, []).append(job.id)
    found: dict[int, UnreadSource] = {}
    for unread in sorted(failing, key=lambda u: (u.since_ms, u.source.id)):
        todo = [unread.source.id]
        while todo:
            news = [i for i in readers.get(todo.pop(), ()) if i not in found]
            found |= dict.fromkeys(news, unread)
            todo += news
    return found


def _of_source(unread: UnreadSource) -> HeadraceError:
    """Why a source cannot be read, for those that read it."""
    error = unread.error
    message = f"{unread.source.record.in_words}: {error.message}"
    return SourceError(message, detail=error.detail, hint=error.hint, sqlstate=error.sqlstate)


def _lag_ms(now_ms: int, frontier_epoch: int) -> int:
    """How far a frontier lies behind the wall clock, or behind the newest epoch where that is ahead."""
    return max(0, now_ms - epoch_ms(frontier_epoch)) if frontier_epoch else 0
