"""What the catalog says of watermarks at an epoch. Pure.

The watermark of a source or table is part of the record of an epoch (`RemapRecord`), written before anybody uses it: so
what is late, and what has been closed at an epoch, is the same for every job, whenever and however often it runs. A
row is late if it is below the watermark that there was before the epoch in which the row came.

So nothing depends on when a job runs. A job that takes in many bindings at once gets a source's range cut where the
watermark has risen (`cuts`), each piece with the time below which its rows are late, and `InputStage` leaves those
out. A source that delivers in the order of its times (`Source.time_column`) has no late rows. An `INSERT` into a
table with a watermark writes such a record, too. Where the connector does not know times beforehand, tasks report the
newest that they have read, and the next binding takes it up; what was read and not taken up when the server stopped
is made up for by the next rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from headrace.catalog.contents import PlannedContent, SourceContent, TableContent
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.base import Offsets
from headrace.coordinator.decide.graph import Graph, J, R
from headrace.coordinator.decide.job import JobState
from headrace.plan.watermark_rules import LeastWatermark
from headrace.state.watermark import not_below, times_us


@dataclass(frozen=True)
class RelationWatermark:
    """The watermark that a relation declares: `WATERMARK FOR column AS column - delay`."""

    column: str
    delay_us: int


def declared(record: ObjectRecord) -> RelationWatermark | None:
    """The watermark that a source or table is declared with."""
    content = record.content
    found = content.watermark if isinstance(content, (TableContent, SourceContent)) else None
    return None if found is None else RelationWatermark(found.column, found.delay_ms * 1000)


def time_column(record: ObjectRecord) -> str | None:
    """The column of a relation that has a watermark: declared, or that of EMIT ON WINDOW CLOSE."""
    own = declared(record)
    if own is not None:
        return own.column
    return record.content.watermark_column if isinstance(record.content, PlannedContent) else None


def raised(before: int | None, newest_us: int | None, delay_us: int) -> int | None:
    """The watermark once `newest_us` has been seen: it never goes back."""
    reached = None if newest_us is None else max(newest_us - delay_us, -(1 << 63))
    if before is None or reached is None:
        return reached if before is None else before
    return max(before, reached)


def newest_checkpoints(jobs: Iterable[JobState]) -> dict[int, int]:
    """Return by relation the newest checkpoint of the jobs that are told its times, in one pass over all jobs."""
    newest: dict[int, int] = {}
    for job in jobs:
        for relation_id in job.event_time.relations:
            newest[relation_id] = max(job.committed, newest.get(relation_id, 0))
    return newest


def watermark_at(graph: Graph[R, J], state: CatalogState, relation_id: int, epoch: int) -> int | None:
    """The watermark of a relation at an epoch, Unix microseconds; None if there is none yet."""
    job = graph.jobs.get(relation_id)
    if job is not None:
        return mark_at(graph, state, job.event_time.closes, epoch)
    binding = state.offsets_at(relation_id, epoch)
    return None if binding is None else binding.watermark_us


def mark_at(graph: Graph[R, J], state: CatalogState, mark: LeastWatermark | None, epoch: int) -> int | None:
    """What a mark of a plan comes to at an epoch."""
    return None if mark is None else mark.value(lambda i, _: watermark_at(graph, state, i, epoch))


@dataclass(frozen=True)
class Cut:
    """A part of a source's range in which one watermark decides what is late: between its offsets at two epochs."""

    from_epoch: int
    """0 for the source's first row."""
    to_epoch: int
    after: Offsets | None
    to: Offsets
    below_us: int | None


def cut_between(state: CatalogState, source_id: int, from_epoch: int, to_epoch: int) -> Cut | None:
    """Return the range of (from, to] as one part, judged by the watermark at its beginning; None if it is empty."""
    before = state.offsets_at(source_id, from_epoch) if from_epoch else None
    after = None if before is None else before.offsets
    to = _offsets_at(state, source_id, to_epoch)
    if to is None or to == after:
        return None
    return Cut(from_epoch, to_epoch, after, to, None if before is None else before.watermark_us)


def cuts(state: CatalogState, source_id: int, from_epoch: int, to_epoch: int) -> Iterator[Cut]:
    """The range of (from, to], cut where the watermark has risen."""
    before = state.offsets_at(source_id, from_epoch) if from_epoch else None
    below = None if before is None else before.watermark_us
    at = from_epoch
    for binding in state.remaps_in(source_id, from_epoch, to_epoch):
        if binding.watermark_us != below:
            if (found := cut_between(state, source_id, at, binding.epoch)) is not None:
                yield found
            at, below = binding.epoch, binding.watermark_us
    if at < to_epoch and (last := cut_between(state, source_id, at, to_epoch)) is not None:
        yield last


def _offsets_at(state: CatalogState, source_id: int, epoch: int) -> Offsets | None:
    found = state.offsets_at(source_id, epoch)
    return None if found is None else found.offsets


def in_time(rows: pa.RecordBatch, column: str, below_us: int | None) -> tuple[pa.RecordBatch, int | None]:
    """The rows that are not late, and the newest of their times."""
    times = times_us(rows.column(column))
    if below_us is not None:
        keep = not_below(times, below_us)
        rows, times = rows.filter(keep), times.filter(keep)
    return rows, pc.max(times).as_py()


def closes(graph: Graph[R, J], state: CatalogState, job: J, after: int, up_to: int) -> bool:
    """Whether the watermark passes what a job holds back: then there is something to do without any input."""
    mark = job.event_time.closes
    now = mark_at(graph, state, mark, up_to)
    return now is not None and now != mark_at(graph, state, mark, after)
