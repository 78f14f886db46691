"""The state of the coordinator as the system relations show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, get_args

from headrace.connectors.job_options import CHECKPOINT
from headrace.coordinator.core import Core, Job, Relation, ShownStatus, option_int
from headrace.coordinator.exact import Interval
from headrace.coordinator.history import History
from headrace.coordinator.logs import UnreadLog, edges, log_part, unread
from headrace.coordinator.options import log_limit
from headrace.coordinator.reads import Reads

INTERVALS_SHOWN = 16
"""Newest exact ranges that are shown of a relation."""


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

    def __init__(self, core: Core, history: History, reads: Reads) -> None:
        self._core = core
        self._history = history
        self._reads = reads

    def groups(self) -> list[GroupStatus]:
        """All checkpoint groups, by name."""
        core = self._core
        with core.lock:
            groups: dict[str, list[Job]] = {}
            for job in core.graph.jobs.values():
                groups.setdefault(job.group, []).append(job)
            return [self._group(name, sorted(jobs, key=lambda j: j.id)) for name, jobs in sorted(groups.items())]

    def _group(self, name: str, jobs: list[Job]) -> GroupStatus:
        core = self._core
        interval_ms = core.settings.checkpoint_interval_ms
        return GroupStatus(
            name=name,
            jobs=tuple(j.name for j in jobs),
            status=min((j.shown_status for j in jobs), key=_WORST.index),
            committed_epoch=min(j.committed for j in jobs),
            frontier=min(core.graph.job_frontier(j) for j in jobs),
            checkpoint_interval_ms=max(option_int(j.options, CHECKPOINT, interval_ms) for j in jobs),
            in_flight=max(j.activity.epochs for j in jobs),
            checkpoints=max(j.metrics.epochs for j in jobs),
            rows_in=sum(j.metrics.rows_in for j in jobs),
            rows_out=sum(j.metrics.rows_out for j in jobs),
            failures=max(j.trouble.failed_total for j in jobs),
        )

    def epochs(self) -> list[RelationEpochs]:
        """Every table, source and materialized view, by id."""
        core = self._core
        with core.lock:
            return [self._epochs(r) for _, r in sorted(core.graph.relations.items())]

    def _epochs(self, relation: Relation) -> RelationEpochs:
        core = self._core
        exact = core.graph.exact(relation.id)
        job = core.graph.jobs.get(relation.id)
        return RelationEpochs(
            relation_id=relation.id,
            name=relation.name,
            kind=relation.record.kind,
            committed_epoch=None if job is None else job.committed,
            frontier=core.graph.frontier(relation.id),
            safe_epoch=relation.safe,
            floor=self._reads.floor(relation.id),
            newest_exact=exact[-1][1] if exact else None,
            exact=tuple(exact[-INTERVALS_SHOWN:]),
            current_epoch=core.epochs.complete,
        )

    def log_stores(self) -> list[EdgeStatus]:
        """Every edge to a view, by the ids of its ends. Looks into merged runs, and so may read from the store."""
        found = []
        for upstream, downstream in edges(self._core):
            with unread(self._core, upstream, downstream) as log:
                if log is not None:
                    found.append(self._edge(log))
        return found

    def _edge(self, log: UnreadLog) -> EdgeStatus:
        core, relation, job = self._core, log.relation, log.job
        size: int | None = None
        if relation.schema is None:
            with core.lock:
                changes = relation.changes.in_range(log.position, log.complete)
                epochs = [low for low, _ in changes]
                known = [relation.rows_by_epoch.get(e) for e in epochs]
            rows = None if None in known else sum(r for r in known if r is not None)
        else:
            parts = [log_part(core.root, log, ref) for ref in log.refs]
            epochs = sorted(frozenset().union(*(p.epochs for p in parts)))
            rows, size = sum(p.rows for p in parts), sum(p.bytes for p in parts)
        with core.lock:
            lost = relation in core.graph.lost_logs(job)
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
            limit_bytes=log_limit(core.settings, job.options).bytes or None,
            log_state="lost" if lost else "growing" if relation.id in job.growing else "kept",
            rows_historical=reads.historical,
            rows_flushed=reads.flushed,
            rows_buffered=reads.buffered,
            truncated_to=relation.safe,
            paused_ms=self._history.paused_ms(job.id, core.clock.monotonic_s()),
        )
