"""The ranges of sources that an epoch of a job takes in, and the read tasks of those that its next step gets to. Pure.

Where rows may be late a range is cut at the bindings that raised the watermark. A position names such bindings, so
they are kept for a view that is being filled, and what it has read does not depend on which others there still are.
Each range has its share of the tasks, by its rows: so a step is bounded, however uneven the ranges are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from headrace.catalog.state import CatalogState
from headrace.connectors.base import Offsets
from headrace.coordinator.decide.graph import Graph, J, R
from headrace.coordinator.decide.group_epoch import GroupEpoch, JobPart
from headrace.coordinator.decide.job import JobState
from headrace.coordinator.decide.relation import RelationState
from headrace.coordinator.decide.row_sizes import Intake
from headrace.coordinator.decide.steps import SourceRest, digest_of, parts_for
from headrace.coordinator.decide.targets import UNKNOWN_ROWS
from headrace.coordinator.decide.watermarks import Cut, cut_between, cuts
from headrace.dataflow.params import ReadPart
from headrace.errors import LogLost, TasksChanged


class SourceRanges(Protocol):
    """Answers questions about ranges of sources' offsets; opening sources is not pure, so this is passed in."""

    def rows(self, source_id: int, after: Offsets | None, to: Offsets) -> int | None:
        """How many rows it has; None if that is not known. Without `after`, from the beginning."""
        ...

    def bytes(self, source_id: int, after: Offsets | None, to: Offsets) -> int | None:
        """How many bytes it has; None if that is not known."""
        ...

    def tasks(self, source_id: int, after: Offsets | None, to: Offsets, parts: int) -> Sequence[dict[str, object]]:
        """The range as about `parts` read tasks; the same ones each time."""
        ...


def taken_at_once(part: JobPart[J], limit: Intake) -> Intake:
    """Return most that one step of a job takes in: all there is where its epoch is not to be cut."""
    return Intake(math.inf) if part.job.whole or part.job.delivers else limit


def lost(job: JobState, relation: RelationState, needed: int, safe: int) -> LogLost:
    """Return the error of a job whose input does not reach back as far as it needs."""
    return LogLost(
        f'job "{job.name}" has lost the log of "{relation.name}"',
        detail=f"it needs the changes after epoch {needed}, they are kept from {safe} on",
        hint="drop the view and create it again",
    )


def source_rests(
    graph: Graph[R, J], state: CatalogState, epoch: GroupEpoch[J], part: JobPart[J], ranges: SourceRanges,
    limit: Intake, parallelism: int,
) -> list[SourceRest]:  # fmt: skip
    """Return what is left of the ranges of a job's sources in an epoch.

    Raises the errors of sources, `LogLost`, and `TasksChanged` for a position that its tasks do not fit any more.
    """
    rests: list[SourceRest] = []
    _check_bindings(graph, state, part, epoch.target)
    for upstream in part.job.upstreams:
        taken = part.position.of(upstream)
        if not graph.relation(upstream).external or taken.done:
            continue
        end = state.offsets_at(upstream, epoch.target)
        if end is None:
            continue
        left = _cuts_left(graph, state, part, upstream, epoch.target)
        own = _rests_of(part, graph.relation(upstream), left, end.offsets, ranges, limit, parallelism)
        if not own and taken.needs:  # what was left of it has no rows, and it is over with that
            own = [SourceRest(upstream, (), 0, 1, to_epoch=epoch.target)]
        rests += own
    return rests


def _rests_of(
    part: JobPart[J], source: RelationState, left: Iterator[Cut], end: Offsets, ranges: SourceRanges, limit: Intake,
    parallelism: int,
) -> list[SourceRest]:  # fmt: skip
    """Return the ranges of one source, with the tasks of those that a step gets to; the last rest stands for others."""
    rests: list[SourceRest] = []
    room, taken, total = taken_at_once(part, limit), part.position.of(source.id), -1
    for cut in left:
        if total < 0:
            total = _rows(ranges, source.id, cut.after, end)
        if room.is_exceeded:
            return [*rests, SourceRest(source.id, (), total, 0, cut=False)]
        rows = _rows(ranges, source.id, cut.after, cut.to)
        row_bytes = _row_bytes(source, ranges.bytes(source.id, cut.after, cut.to), rows, limit)
        begun = cut.to_epoch == taken.to_epoch
        parts = taken.parts if begun else _share(rows, max(total, rows), limit.rows_of(row_bytes), parallelism)
        tasks = tuple(ReadPart(t, cut.below_us) for t in ranges.tasks(source.id, cut.after, cut.to, parts))
        low = taken.sequence if begun else 0
        if begun and (low > len(tasks) or digest_of(tasks[:low]) != taken.digest):
            raise _tasks_changed(part.job, source)
        if low < len(tasks):
            rest = SourceRest(source.id, tasks, rows, parts, low, row_bytes, cut.from_epoch, cut.to_epoch, final=False)
            rests.append(rest)
            room = room.without(rest.rows, row_bytes)
        total = max(0, total - rows)
    return [*rests[:-1], replace(rests[-1], final=True)] if rests else []


def _rows(ranges: SourceRanges, source_id: int, after: Offsets | None, to: Offsets) -> int:
    counted = ranges.rows(source_id, after, to)
    return UNKNOWN_ROWS if counted is None else counted


def _share(rows: int, total: int, limit: float, parallelism: int) -> int:
    """Return into how many tasks to cut a range of `rows` out of `total`: its share of them, at least one."""
    return max(1, math.ceil(parts_for(total, limit, parallelism) * rows / max(total, 1)))


def _cuts_left(graph: Graph[R, J], state: CatalogState, part: JobPart[J], upstream: int, target: int) -> Iterator[Cut]:
    """Yield the ranges of a source that a job has still to read: first the one that is begun, as it was cut then."""
    taken, by_watermark = part.position.of(upstream), graph.is_cut(part.job, upstream)
    begin = taken.from_epoch or part.committed
    if taken.sequence:
        begun = cut_between(state, upstream, begin, taken.to_epoch)
        if begun is None:  # also of a position that does not say so
            raise _tasks_changed(part.job, graph.relation(upstream))
        yield begun if by_watermark else replace(begun, below_us=None)
        begin = taken.to_epoch
    known = state.sources.get(upstream)
    if by_watermark and not begin and known is not None:  # bindings below may be there still, and go at any time
        begin = known.safe_epoch
        if (forgotten := cut_between(state, upstream, 0, begin)) is not None:
            yield forgotten
    if by_watermark:
        yield from cuts(state, upstream, begin, target)
    elif begin < target and (cut := cut_between(state, upstream, begin, target)) is not None:
        yield replace(cut, below_us=None)


def _tasks_changed(job: JobState, source: RelationState) -> TasksChanged:
    return TasksChanged(
        f'{job.in_words} was reading "{source.name}" step by step, and what there is to read is cut differently now',
        hint="what it has read of this epoch is given up, and it begins to read that anew",
    )


def _row_bytes(source: RelationState, size: int | None, rows: int, limit: Intake) -> float:
    """Return what a row of a range counts for: as the offsets tell, if they do, else by what has been read of it."""
    return source.counted_bytes(limit.bytes) if size is None else size / max(rows, 1)


def _check_bindings(graph: Graph[R, J], state: CatalogState, part: JobPart[J], target: int) -> None:
    """Raise `LogLost` where bindings that the job needs are gone."""
    for source_id in graph.bindings_for(part.job):
        known = state.sources.get(source_id)
        begun = part.position.of(source_id)
        oldest = target if source_id in part.job.lookups else part.committed or begun.needs or target
        if known is not None and oldest < known.safe_epoch:
            raise lost(part.job, graph.relation(source_id), oldest, known.safe_epoch)
