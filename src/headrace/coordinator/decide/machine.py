"""What a checkpoint group does next: decisions over the graph, without a thread, a clock, a disk or Spark.

Jobs that step together are a *lane*: the jobs of a group that have joined it, or one job that has not joined its group
yet because it is being created or has just been moved. A lane has one target epoch, one attempt and one commit. So
the global checkpoint is the case of one group with all jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.common.epoch import epoch_ms
from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.decide.exact import intersect_all
from headrace.coordinator.decide.graph import NOT_AHEAD, Graph, GraphIndex, J, R
from headrace.coordinator.decide.membership import GroupPlace
from headrace.coordinator.decide.row_sizes import Intake
from headrace.coordinator.decide.targets import Decision, aligned_target, bounded_target, decide
from headrace.state.schema import ROWS

MAX_HELD = 32
"""Epochs that are held between two checkpoints: with more of them the checkpoint comes early."""
MAX_ROUNDS = 50
"""Checkpoints that a job may need to catch up before it is said that it does not."""


def next_epoch(
    graph: Graph[R, J], lane: Sequence[J], most: Intake, ahead: Mapping[int, int] = NOT_AHEAD,
    dues: Mapping[int, int] = NOT_AHEAD,
) -> Decision:  # fmt: skip
    """The epoch that a lane runs to next, and whether it may run now.

    `ahead` are the epochs to which its jobs have been run and that are not committed yet: the next one starts there.
    `dues` are the epochs at which time changes something after them.

    An epoch that has been begun is finished first: its target is kept in the positions of the lane's jobs. Where the
    inputs are never exact together, the views above are asked to stop at one epoch (`align`).
    """
    if not lane or not all(j.runnable for j in lane):
        return Decision(0, False)
    begun = {j.position.epoch for j in lane if j.position is not None}
    if begun:
        assert len(begun) == 1, "a lane takes in one epoch at a time"
        return _resumed(graph, lane, begun.pop())
    known = GraphIndex()
    reached = {j.id: max(j.committed, ahead.get(j.id, 0)) for j in lane}
    upstreams = graph.upstreams(lane, known, reached)
    fresh = not any(j.committed for j in lane)
    at_least = max(j.committed for j in lane) if any(j.pending for j in lane) else 0
    due = graph.due(lane, dues)
    found = decide(min(reached.values()), upstreams, graph.complete, at_least=at_least, due=due)
    if not found.run or not upstreams:
        return found
    change = found.first_change if found.first_change is not None and found.first_change <= found.target else 0
    if at_least and not change and not any(_gets_on(graph, j, found.target) for j in lane):
        return Decision(found.target, False, found.first_change)
    first = 1 if fresh else max(at_least, change)
    common = intersect_all([graph.exact(u.relation, known) for u in upstreams])
    for job in lane:
        # Up to the target it is settled where the inputs are exact: a stop that they have passed by cannot be met.
        job.keep_stops(lambda s: s > found.target or aligned_target(common, first, s, s) is not None)
    last = min([found.target, *(stop for job in lane for stop in job.stops.epochs)])
    limit = last
    if not fresh:
        limit = bounded_target(last, _changes(graph, lane, min(reached.values()), last, most.bytes), most)
    target = aligned_target(common, first, last, limit)
    if target is None:
        if min(j.stops.asking for j in lane) <= found.target:
            align(graph, lane)
        return Decision(found.target, False, found.first_change)
    return Decision(target, True, found.first_change)


def _gets_on(graph: Graph[R, J], job: J, target: int) -> bool:
    """Whether a checkpoint without a change is of use to a job: it waits for one, and not for a change of a source."""
    return job.pending and (job.membership.joining or _is_whole(graph, job, target))


def idle(graph: Graph[R, J], lane: Sequence[J]) -> bool:
    """Whether a lane has nothing to do however many epochs become complete, until an input changes or it is altered.

    A lane of which a job cannot run has not; one that waits for anything but a change is not idle.
    """
    return not all(j.runnable for j in lane) or all(_idle(graph, j) for j in lane)


def _idle(graph: Graph[R, J], job: J) -> bool:
    at, in_step = job.standing, job.membership.place is GroupPlace.IN_STEP
    waits = not at.exact or at.position is not None or at.due or not in_step or job.trouble.failures
    return not waits and all(
        graph.first_change(i, at.committed) is None for i in job.upstreams if i not in job.lookups
    )  # fmt: skip


def may_run_ahead(graph: Graph[R, J], lane: Sequence[J], in_flight: int, most: int) -> bool:
    """Whether a lane may begin an epoch while `in_flight` earlier ones of it have been run and are not committed.

    Only where nothing but their commits is missing. What begins with the next checkpoint waits for it: a job that is
    being created or joins the group, one within an epoch, one that has failed. A sink does, too: what it has
    delivered of an epoch cannot be taken back with the one before.
    """
    if not in_flight:
        return True
    calm = all(j.created and j.joined and j.position is None and not (j.pending or j.failures or j.whole) for j in lane)
    joining = any(j.runnable and not j.joined and j.group == lane[0].group for j in graph.jobs.values())
    return in_flight < most and calm and not joining and all(ROWS in j.tables for j in lane)


def pacing(lane: Sequence[J]) -> Sequence[J]:
    """The jobs whose options say how often a lane runs: not those of automatic indexes, unless there are no others."""
    return [job for job in lane if not job.automatic] or lane


def checkpoint_due(graph: Graph[R, J], lane: Sequence[J], held: int, *, overdue: bool) -> bool:
    """Whether `held` epochs of a lane that have been run are committed now, and not held until its next checkpoint.

    They are held only as long as nobody waits for them, nothing begins with a checkpoint, and there are not too many.
    """
    asked = any(j.pace.forced > j.committed for j in lane)
    return overdue or asked or not may_run_ahead(graph, lane, held, MAX_HELD)


def _resumed(graph: Graph[R, J], lane: Sequence[J], target: int) -> Decision:
    behind = [j for j in lane if j.committed < target]
    upstreams = graph.upstreams(lane)
    late = next((u.relation for u in upstreams if u.frontier < target), None)
    first = min((u.first_change for u in upstreams if u.first_change is not None), default=None)
    return Decision(target, bool(behind) and late is None, first, late)


def _changes(
    graph: Graph[R, J], lane: Sequence[J], low: int, target: int, most_bytes: float
) -> list[tuple[int, int | None, float]]:
    """(Epoch, rows, bytes of a row) of everything that a lane's next epoch may take in."""
    found: list[tuple[int, int | None, float]] = []
    for upstream in graph.takes_changes(lane):
        relation = graph.relation(upstream)
        # Of a range of epochs it is not known when in it the rows came: it counts in full at its end.
        ranges = relation.changes.in_range(low, target)
        row_bytes = relation.counted_bytes(most_bytes)
        found += [(min(high, target), relation.rows_by_epoch.get(first), row_bytes) for first, high in ranges]
    return found


def align(graph: Graph[R, J], lane: Sequence[J]) -> None:
    """Ask the views above a lane to stop at one epoch, so that there is one at which all are exact.

    Those that step together with one of them stop there too, and so must what they read. All that runs there runs to an
    earlier epoch than the newest complete one, so none has passed it.
    """
    for job in lane:
        job.align(graph.complete)
    above = graph.external(lane)
    while above:
        upper = graph.jobs.get(above.pop())
        if upper is not None and graph.complete not in upper.stops.epochs:
            upper.stop_at(graph.complete)
            above += graph.external(graph.lane_of(upper))


def align_for_reads(graph: Graph[R, J], epoch: int) -> None:
    """Ask all views to stop at one epoch, for a read that finds none at which those that it reads are exact.

    All of them, and only at the newest epoch that was asked for: so one stop serves all reads that wait, and a view
    that is slow is not made to stop more than once on its way.
    """
    for job in graph.jobs.values():
        job.stop_for_reads(epoch)


def caught_up(graph: Graph[R, J], job: J, target: int, within_ms: int) -> bool:
    """Whether a job that is at `target` is as fresh as its inputs let it be, or at most `within_ms` behind that."""
    if not _is_whole(graph, job, target):
        return False
    reach = min((graph.frontier(i) for i in job.upstreams), default=target)
    if reach <= target or epoch_ms(reach) - epoch_ms(target) <= within_ms:
        return True
    on_time = not target < job.due <= reach
    return on_time and all(graph.first_change(i, target) is None for i in job.upstreams if i not in job.lookups)


def _is_whole(graph: Graph[R, J], job: J, target: int) -> bool:
    """Whether all that a job has of its sources at `target` is of one moment."""
    return all(graph.relation(i).whole_from <= target for i in job.upstreams)


def may_join(graph: Graph[R, J], job: J, within_ms: int) -> bool:
    """Whether a job that runs by itself can move in step with its group from the group's next epoch on.

    Not while either of them is within an epoch or cannot run, nor before all of its inputs in the group have joined.
    """
    lane = graph.lane(job.group)
    if not job.committed or any(j.position is not None or j.failures or not j.runnable for j in [job, *lane]):
        return False
    apart = any(graph.in_group(i, job.group) and not graph.jobs[i].joined for i in job.upstreams)
    return not apart and caught_up(graph, job, job.committed, within_ms)


@dataclass(frozen=True)
class LaneOutcome:
    """What the commit of an epoch makes of the jobs of its lane."""

    created: tuple[int, ...]
    """Jobs that are readable from now on."""
    late: tuple[int, ...]
    """Those among them, and those that stay as they are, that do not catch up with their inputs."""


def outcome(graph: Graph[R, J], lane: Sequence[J], target: int, within_ms: int) -> LaneOutcome:
    """Which jobs of a lane become readable with its checkpoint at `target`.

    One that joins a group of others does; one by itself does when it has caught up, or when it is clear that it will
    not: then it is created all the same, and said to lag. One that has not joined its group stays invisible.
    """
    created: list[int] = []
    late: list[int] = []
    in_step = any(j.created for j in lane)
    for job in lane:
        if job.created or not job.creating or not _is_whole(graph, job, target):
            continue
        worn = job.catching_up.rounds + 1 >= MAX_ROUNDS
        if in_step or caught_up(graph, job, target, within_ms):
            if job.joined:
                created.append(job.id)
        elif worn:
            late.append(job.id)
            if job.joined:
                created.append(job.id)
    return LaneOutcome(tuple(created), tuple(late))
