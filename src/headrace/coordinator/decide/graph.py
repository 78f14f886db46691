"""The streaming graph as decisions see it: relations, jobs, what they depend on, how far they are. Pure.

No thread, clock, disk or Spark here: who uses it guards it with a lock of his own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from operator import attrgetter
from typing import Final, Generic, TypeVar

from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.decide.exact import (
    Interval,
    clipped,
    frontier,
    intersect_all,
    next_epoch_after,
    view_exact,
)
from headrace.coordinator.decide.job import JobState
from headrace.coordinator.decide.membership import Move
from headrace.coordinator.decide.relation import RelationState
from headrace.coordinator.decide.targets import Upstream, first_change_of
from headrace.errors import LogLost, UndefinedTable
from headrace.plan.watermark_rules import NO_EVENT_TIME


@dataclass
class GraphIndex:
    """What has been worked out of a graph that stands still."""

    frontiers: dict[int, int] = field(default_factory=dict)
    exacts: dict[int, list[Interval]] = field(default_factory=dict)


ANY_EPOCH: Final = 1
"""Older than all."""
NOT_AHEAD: Final[Mapping[int, int]] = {}
"""No job has been run beyond its checkpoint."""
R = TypeVar("R", bound=RelationState)
J = TypeVar("J", bound=JobState)


class Graph(Generic[R, J]):
    """Relations and jobs by id, and what follows from where they are. `complete` tells the newest complete epoch."""

    def __init__(self, complete: Callable[[], int]) -> None:
        self.relations: dict[int, R] = {}
        self.jobs: dict[int, J] = {}
        self._complete = complete

    @property
    def complete(self) -> int:
        """The newest complete epoch."""
        return self._complete()

    def relation(self, relation_id: int) -> R:
        """Raises `UndefinedTable` for one that is not there (any more)."""
        found = self.relations.get(relation_id)
        if found is None:
            raise UndefinedTable(f"relation {relation_id} does not exist", hint="it may have been dropped")
        return found

    # ---- frontiers and exact epochs

    def frontier(self, relation_id: int, known: GraphIndex | None = None) -> int:
        """The newest epoch up to which a relation will not change any more; 0 if it cannot be read yet.

        `known` holds what is worked out already.
        """
        relation = self.relations.get(relation_id)
        if relation is None:
            return 0
        job = self.jobs.get(relation_id)
        if job is not None:
            return self.job_frontier(job, known)
        if relation.external and not relation.bound:
            return 0
        return self.complete

    def is_filled(self, relation_id: int) -> bool:
        """Whether a relation has content; a view has some once it is created, and a table from the beginning."""
        job = self.jobs.get(relation_id)
        return job is None or job.created

    def job_frontier(self, job: J, known: GraphIndex | None = None) -> int:
        """The frontier of a view; 0 until it is created."""
        known = GraphIndex() if known is None else known
        if job.id not in known.frontiers:
            known.frontiers[job.id] = self._job_frontier(job, known) if job.created else 0
        return known.frontiers[job.id]

    def _job_frontier(self, job: J, known: GraphIndex) -> int:
        ups = self.upstreams([job], known)
        first = first_change_of(ups, job.due)
        return frontier(job.committed, min((u.frontier for u in ups), default=self.complete), first)

    def exact(self, relation_id: int, known: GraphIndex | None = None) -> list[Interval]:
        """The readable epochs at which a relation is exact."""
        known = GraphIndex() if known is None else known
        if relation_id not in known.exacts:
            known.exacts[relation_id] = clipped(self._exact(relation_id, known), self.relation(relation_id).safe)
        return known.exacts[relation_id]

    def _exact(self, relation_id: int, known: GraphIndex) -> list[Interval]:
        job = self.jobs.get(relation_id)
        if job is None:
            return [(0, self.complete)]
        if not job.created:
            return []
        views = [self.exact(i, known) for i in job.upstreams if i in self.jobs]
        # A view shows its changes at its checkpoints: between two of them its content may be out of date.
        inputs = intersect_all(views) if views else None
        return view_exact(job.exact, job.committed, self.job_frontier(job, known), inputs)

    # ---- edges

    def external(self, lane: Sequence[J]) -> list[int]:
        """The inputs of jobs that step together, but for those that are among them."""
        inside = {j.id for j in lane}
        return list(dict.fromkeys(i for j in lane for i in j.upstreams if i not in inside))

    def upstreams(
        self, lane: Sequence[J], known: GraphIndex | None = None, ahead: Mapping[int, int] = NOT_AHEAD
    ) -> list[Upstream]:
        """The external inputs of jobs that step together, as their next epoch sees them.

        `ahead` are the epochs to which jobs have been run beyond their checkpoints.
        """
        known = GraphIndex() if known is None else known
        found = []
        for i in self.external(lane):
            readers = [j for j in lane if i in j.upstreams and i not in j.lookups]
            changes = [self.first_change(i, ahead.get(j.id, j.committed)) for j in readers]
            first = min((c for c in changes if c is not None), default=None)
            found.append(Upstream(i, self.frontier(i, known), first))
        return found

    def due(self, lane: Sequence[J], dues: Mapping[int, int] = NOT_AHEAD) -> int:
        """The first epoch at which time alone may change the content of one of these jobs; 0 for none.

        `dues` has it of jobs that have been run and not committed.
        """
        return min((due for j in lane if (due := dues.get(j.id, j.due))), default=0)

    def first_change(self, relation_id: int, after: int) -> int | None:
        """The earliest epoch above a checkpoint (or 0) at which a relation may have changed; None if it has not.

        Where the log after the checkpoint is gone it may have changed at once: whoever goes on finds out what it lacks.
        """
        relation = self.relations.get(relation_id)
        if relation is None:
            return None
        if not after:  # Content is read instead of the log.
            return relation.changes.first_after(after)
        try:
            return next_epoch_after(relation.changes, after, kept_from=relation.safe, newest=self.complete)
        except LogLost:
            return after + 1

    def consumers(self, relation_id: int) -> list[J]:
        """The jobs that read a relation."""
        return [j for j in self.jobs.values() if relation_id in j.upstreams]

    def takes_changes(self, lane: Sequence[J]) -> list[int]:
        """Those of the external inputs of jobs that step together of which any takes in the changes."""
        return [i for i in self.external(lane) if any(i in j.upstreams and i not in j.lookups for j in lane)]

    def needs(self, job: J, relation_id: int) -> int:
        """The epoch from which on a job needs an input as it was; 0 if it has not begun.

        Rows are looked up at its next epoch, which lies above its frontier. Of a source that it reads step by step for
        the first time it needs the bindings that its position names.
        """
        if relation_id in job.lookups and job.created:
            return max(job.reads_from, self.job_frontier(job))
        if job.committed or job.position is None:
            return job.reads_from
        return job.position.of(relation_id).needs or job.reads_from

    def is_cut(self, job: J, relation_id: int) -> bool:
        """Return True if a job reads an input range by range, each judged by another watermark of a source."""
        relation = self.relation(relation_id)
        return relation.external and relation_id in job.event_time.relations and not relation.in_order

    def log_readers(self, relation_id: int, without: Collection[int] = ()) -> list[int]:
        """The epochs from which on jobs need the log of a relation (or its content, where they have just begun).

        Not of the jobs `without`, nor of those that have lost a log: they can never go on, so nothing is kept for them.
        """
        readers = [j for j in self.consumers(relation_id) if _has_begun(j) and j.id not in without]
        return [self.needs(j, relation_id) or ANY_EPOCH for j in readers if not self.lost_logs(j)]

    def bindings_for(self, job: J) -> list[int]:
        """The relations whose bindings tell a job what it reads, and which watermarks hold for it.

        The watermark of a view is that of the relations which it is built on. Of a job that cannot be planned, or is
        not planned yet, it is not known what it would need.
        """
        if job.event_time == NO_EVENT_TIME and not job.quarantined and not job.starting:
            return list(dict.fromkeys(job.upstreams))
        return self.above([job.id])

    def binding_readers(self, relation_id: int, without: Collection[int] = ()) -> list[int]:
        """Return the epochs from which on jobs, but for those `without`, need a relation's bindings and changes."""
        jobs = (job for job in self.jobs.values() if job.id not in without)
        return [epoch for job in jobs for i, epoch in self._bindings_needed(job) if i == relation_id]

    def oldest_bindings(self) -> dict[int, int]:
        """Return the oldest epoch from which on any job needs bindings and changes, by relation; in one pass."""
        oldest: dict[int, int] = {}
        for job in self.jobs.values():
            for relation_id, epoch in self._bindings_needed(job):
                oldest[relation_id] = min(epoch, oldest.get(relation_id, epoch))
        return oldest

    def _bindings_needed(self, job: J) -> Iterator[tuple[int, int]]:
        """Yield each relation whose bindings and changes a job needs, and from which epoch on.

        A job that has lost a log needs none. One that has not begun begins where its inputs can be read: of them it
        needs nothing now, of what they are built on nothing before that.
        """
        if self.lost_logs(job):
            return
        begun = _has_begun(job)
        for relation_id in self.bindings_for(job):
            if begun:
                yield relation_id, self.needs(job, relation_id) or ANY_EPOCH
            elif relation_id not in job.upstreams:
                yield relation_id, self._begins_from(job)

    def _begins_from(self, job: J) -> int:
        """An epoch below which a job that has not begun will not begin.

        Tables and sources are exact up to the newest epoch: only a view makes it begin at an earlier one.
        """
        views = [self.jobs[i] for i in job.upstreams if i in self.jobs]
        return max((self._readable_from(view) for view in views), default=self.complete)

    def _readable_from(self, view: J) -> int:
        """An epoch below which a view is not readable, or will never be."""
        exact = self.exact(view.id)
        if exact:
            return exact[0][0]
        return view.reads_from or self._begins_from(view)

    def lost_logs(self, job: J) -> list[R]:
        """The inputs of a job whose logs are gone before it has taken them in, and sources whose bindings are."""
        inputs = dict.fromkeys(job.upstreams)
        found = [self.relations[i] for i in inputs if i in self.relations]
        more = (self.relations[i] for i in self.bindings_for(job) if i not in inputs and i in self.relations)
        found += [r for r in more if r.external]
        return [r for r in found if 0 < self.needs(job, r.id) < r.safe]

    def jobs_above(self, relation_ids: Iterable[int]) -> list[J]:
        """The jobs of these relations and of all that they are built on, those below first."""
        found: dict[int, J] = {}
        left = list(relation_ids)
        while left:
            job = self.jobs.get(left.pop())
            if job is not None and job.id not in found:
                found[job.id] = job
                left += job.upstreams
        return sorted(found.values(), key=lambda j: -j.id)

    def jobs_below(self, job_ids: Iterable[int]) -> set[int]:
        """These jobs and all that depend on them."""
        found = set(job_ids)
        grown = True
        while grown:
            more = {j.id for j in self.jobs.values() if j.id not in found and found.intersection(j.upstreams)}
            found |= more
            grown = bool(more)
        return found

    def held_up(self, job_ids: Iterable[int]) -> set[int]:
        """These jobs and all that make no progress while they do not: those in step with them, and those below."""
        found: set[int] = set()
        more = set(job_ids)
        while more - found:
            found |= more
            mates = {j.id for i in found for j in self.lane_of(self.jobs[i])}
            more = self.jobs_below(found | mates)
        return found

    def above(self, job_ids: Iterable[int]) -> list[int]:
        """All relations that these jobs are built on, directly or not, by id."""
        found: set[int] = set()
        pending = list(job_ids)
        while pending:
            job = self.jobs.get(pending.pop())
            if job is not None:
                new = [i for i in job.upstreams if i not in found]
                found.update(new)
                pending += new
        return sorted(found)

    # ---- groups

    def lane(self, group: str) -> list[J]:
        """The jobs of a group that move in step, each after those it is built on. (Ids only grow along edges.)"""
        found = [
            j for j in self.jobs.values()
            if (at := j.membership).group == group and at.joined and not j.activity.withdrawn
        ]  # fmt: skip
        return sorted(found, key=attrgetter("id"))

    def filling(self, job_id: int, group: str) -> J | None:
        """A job of a group that is being created over this one: it would be waited for, and wait itself, in there."""
        readers = (j for _, j in sorted(self.jobs.items()) if j.group == group and job_id in j.upstreams)
        return next((j for j in readers if not j.created), None)

    def lane_of(self, job: J) -> list[J]:
        """The jobs that step together with one; it alone while it has not joined its group."""
        return self.lane(job.group) if job.joined else [job]

    def settle(self, group: str) -> list[J]:
        """Which jobs of a group move in step from now on; returns those that do not any more.

        Those that did before do, unless they can't be run, are within another epoch, or read one of the group that does
        not move in step. Where none is left the oldest that can run begins the group anew.
        """
        members = [j for _, j in sorted(self.jobs.items()) if j.group == group]
        if not any(j.joined and not j.quarantined for j in members):
            for job in [j for j in members if not j.quarantined][:1]:
                job.move(Move.LEADS)
        epoch, out = 0, []
        for job in members:
            own = job.position.epoch if job.position is not None else 0
            apart = any(self.in_group(i, group) and not self.jobs[i].joined for i in job.upstreams)
            if job.joined and (job.quarantined or apart or own not in (0, epoch or own)):
                job.move(Move.LEFT)
                out.append(job)
            if job.joined:
                epoch = epoch or own
        return out

    def in_group(self, relation_id: int, group: str) -> bool:
        """Whether a relation is a view of that group."""
        job = self.jobs.get(relation_id)
        return job is not None and job.group == group

    def cycle_of(self, job_id: int, group: str, upstreams: Iterable[int]) -> list[str] | None:
        """The groups that would wait for each other if a job with these inputs were in `group`; None if none would.

        A group steps as a whole, so that a group which reads another must not be read by that one in turn.
        """
        edges: dict[str, set[str]] = {}
        reads = {j.id: (j.group, j.upstreams) for j in self.jobs.values()}
        reads[job_id] = (group, tuple(upstreams))
        for own, inputs in reads.values():
            edges.setdefault(own, set()).update(reads[i][0] for i in inputs if i in reads and reads[i][0] != own)
        return _path(edges, group)


def _path(edges: dict[str, set[str]], start: str) -> list[str] | None:
    """A way from a node back to itself."""
    pending = [[start]]
    seen: set[str] = set()
    while pending:
        way = pending.pop()
        for after in sorted(edges.get(way[-1], ())):
            if after == start:
                return [*way, start]
            if after not in seen:
                seen.add(after)
                pending.append([*way, after])
    return None


def _has_begun(job: JobState) -> bool:
    """Whether a job needs the log of its inputs, or may need it: what it has stored of an epoch may be durable."""
    return bool(job.reads_from or job.activity.unsure)
