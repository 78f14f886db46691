"""What keeps a read from a newer snapshot, or from any: views in trouble and views behind, as errors and notices.

The caller holds the lock that guards the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NoReturn, TypeAlias

from headrace.common.epoch import epoch_ms
from headrace.coordinator.decide.exact import Interval, intersect_all, newest
from headrace.coordinator.decide.graph import Graph
from headrace.coordinator.decide.query_epochs import Candidate, Consistency, common_epochs
from headrace.coordinator.run.live_state import Job, LiveRelation
from headrace.errors import SnapshotUnavailable

HIDDEN: Final = "<insufficient privilege>"
"""In the place of what failed, which may have values of rows in it, for who may not see those."""
MayKnow: TypeAlias = Callable[[int], bool]
"""Whether a reader may be told what failed in a job."""


def refuse_behind(
    graph: Graph[LiveRelation, Job], read: Sequence[Candidate], behind: Job, wanted: int, consistency: Consistency, *,
    exactly: bool, written: int, may_know: MayKnow,
) -> NoReturn:  # fmt: skip
    """Raise `SnapshotUnavailable`: a view is not at the epoch that a read must have, and does not get there in time.

    With `exactly` it is the transaction's epoch; `written` is the one at which the session has written last.
    """
    at = graph.job_frontier(behind)
    why = stuck_jobs(graph, behind.id) or [behind]
    reasons = "; ".join(_state_of(graph, j, may_know) for j in why)
    created = [graph.exact(j.id) for j in created_views(graph)]
    common = newest(common_epochs(consistency, read, created))
    if exactly:
        shown = f"the transaction reads at epoch {wanted}"
        hint = "end the transaction and start it again"
    elif not wanted:
        shown = "no epoch came in time at which all that is read can be read together"
        hint = "each relation is readable by itself"
    elif wanted == written:
        shown = f"the session has written at epoch {wanted}"
        hint = "SET read_your_writes = off accepts an older snapshot"
    else:
        name = next(graph.relation(c.relation).name for c in read if c.floor == wanted)
        shown = f'"{name}" was already shown at epoch {wanted}'
        hint = "SET monotonic_reads = 'off' accepts an older snapshot; each relation is readable by itself"
        if consistency == "global" and behind.id not in {c.relation for c in read}:
            hint = "SET query_consistency = 'snapshot' looks only at the relations of the query"
    raise SnapshotUnavailable(
        f"{behind.in_words} ({behind.shown_status}) is at epoch {at}, but {shown}",
        detail=f"newest common snapshot: {common or 'none'}; floor: {wanted}; {reasons}",
        hint=hint,
    )


def notices(
    graph: Graph[LiveRelation, Job], ids: Sequence[int], epochs: Mapping[int, int], limit_ms: int, *, others: bool,
    may_know: MayKnow,
) -> list[str]:  # fmt: skip
    """What a read is told of its views in trouble, and of those further behind than a limit (0: any).

    With `others`, of views that it does not read, too, where these hold it back.
    """
    own = graph.jobs_above(ids)
    found = [_state_of(graph, j, may_know) for j in reversed(own) if _trouble(j)]
    for job in (graph.jobs[i] for i in ids if i in graph.jobs):
        late_ms = epoch_ms(graph.complete) - epoch_ms(epochs[job.id])
        if limit_ms and late_ms > limit_ms and not _trouble(job):
            found.append(f"{job.in_words} is {late_ms / 1000:.0f} s behind: epoch {epochs[job.id]}")
    if others and epochs:
        found += _holding_back(graph, own, next(iter(epochs.values())), may_know)
    return found


def _holding_back(graph: Graph[LiveRelation, Job], own: Sequence[Job], epoch: int, may_know: MayKnow) -> list[str]:
    """The views in trouble without which a global read would be newer."""
    counted = created_views(graph)
    well: list[Sequence[Interval]] = [graph.exact(j.id) for j in counted if not stuck_jobs(graph, j.id)]
    best = newest(intersect_all(well)) if well else graph.complete
    if best is None or best <= epoch:
        return []
    held = [j for j in counted if _trouble(j) and j not in own]
    return [f"{_state_of(graph, j, may_know)}; it holds back global reads" for j in held]


def created_views(graph: Graph[LiveRelation, Job]) -> list[Job]:
    """The views that `global` counts: all but those that are still being created."""
    return [j for j in graph.jobs.values() if j.created]


def _trouble(job: Job) -> bool:
    return job.error is not None or job.paused or job.quarantined


def stuck_jobs(graph: Graph[LiveRelation, Job], relation_id: int) -> list[Job]:
    """The views, out of one and all that it is built on, that do not go on by themselves. Under the lock.

    With each of them count those that it moves in step with: where one of a group is stuck, none goes on.
    """
    found = {j.id: j for above in graph.jobs_above([relation_id]) for j in [above, *graph.lane_of(above)]}
    return [j for j in found.values() if _trouble(j)]


def _state_of(graph: Graph[LiveRelation, Job], job: Job, may_know: MayKnow) -> str:
    """What keeps a view, in one sentence."""
    if job.error is not None:
        since = datetime.fromtimestamp(job.trouble.since_ms / 1000, UTC).isoformat(timespec="seconds")
        verb = "quarantined" if job.quarantined else "failing"
        reason = job.error.message if may_know(job.id) else HIDDEN
        return f"{job.in_words} is {verb} since {since}: {reason}"
    if job.paused:
        return f"{job.in_words} is paused"
    late_s = (epoch_ms(graph.complete) - epoch_ms(graph.job_frontier(job))) / 1000
    return f"{job.in_words} is {late_s:.1f} s behind"


def refuse_new(job: Job, may_know: MayKnow) -> NoReturn:
    """Raise `SnapshotUnavailable`: a view is not readable at all yet."""
    reason = "" if job.error is None else f": {job.error.message if may_know(job.id) else HIDDEN}"
    raise SnapshotUnavailable(
        f"{job.in_words} is still being created{reason}",
        detail=job.catching_up.text or None,
        hint="SHOW JOBS shows its progress",
    )


def refuse_shown(name: str, epoch: int, floor: int) -> NoReturn:
    """Raise `SnapshotUnavailable`: a relation has been shown at a later epoch than the transaction's."""
    raise SnapshotUnavailable(
        f'"{name}" cannot be read at epoch {epoch}, which the transaction reads at: it was already shown at epoch '
        f"{floor} before the transaction began",
        hint="end the transaction and start it again, with a query of this relation first; SET monotonic_reads = 'off' "
        "accepts an older snapshot",
    )


def refuse_passed(name: str, epoch: int) -> NoReturn:
    """Raise `SnapshotUnavailable`: a relation was never as it would have to be at the transaction's epoch."""
    raise SnapshotUnavailable(
        f'"{name}" cannot be read at epoch {epoch}, which the transaction reads at: it has changed from before that '
        "epoch to after it in one checkpoint",
        hint="end the transaction and start it again; with query_consistency = 'global' it reads at an epoch that all "
        "views share",
    )
