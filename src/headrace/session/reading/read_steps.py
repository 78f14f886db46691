"""Runs plans of reads: over the snapshot that any other way would choose, in whatever thread asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.columns import arrow_type
from headrace.dataflow.operators.inputs import SnapshotScan
from headrace.dataflow.operators.kernel_expressions import Column, Expression, RowColumns
from headrace.session.context import Context
from headrace.session.execution.points import KeyScan, key_scan
from headrace.session.reading.read_order import sorted_places
from headrace.session.reading.read_plans import ReadPlan, Steps
from headrace.session.reading.read_totals import totals
from headrace.session.result import ResultColumn
from headrace.state.kernels import checked
from headrace.state.kernels.copies import copies

if TYPE_CHECKING:
    from headrace.coordinator.reads import Snapshot

READ_ROWS: Final = 200_000
"""Stored rows up to which a relation is read to compute with them; beyond, Spark's tasks do that side by side."""
READ_BYTES: Final = 64 << 20
"""The same for the bytes of their runs."""
_OUTPUT_ROWS: Final = 65_536


class TooMuch(Exception):
    """Raised where more would have to be read than is read here: Spark is to do it."""


def constant_rows(plan: ReadPlan, values: Sequence[object]) -> Iterator[pa.RecordBatch]:
    """The rows of a plan over no relation. Raises what `computed` does."""
    steps = plan.steps(values)
    rows = RowColumns.of([], 1)
    if steps.where is not None:
        rows = rows.where(steps.where)
    taken = 0 if steps.offset or steps.limit == 0 else rows.length
    return iter([_batch(plan.columns, [rows.array(o) for o in steps.outputs]).slice(0, taken)])


def snapshot_rows(
    context: Context, plan: ReadPlan, values: Sequence[object], snapshot: Snapshot, stack: ExitStack
) -> Iterator[pa.RecordBatch]:
    """The rows of a plan over its relation as a snapshot has it.

    Raises `TooMuch`, `NoTwin`, `UncertainValue`, or what Arrow raises, before the first of them is handed out: then it
    is for Spark to compute, or to tell what is wrong. The stack holds what is read.
    """
    steps = plan.steps(values)
    stored, looked_up = _chosen(context, plan, values, snapshot, stack)
    return answered(plan, steps, stored, steps.rest if looked_up else steps.where, context.check)


def answered(
    plan: ReadPlan, steps: Steps, stored: Iterator[pa.RecordBatch], condition: Expression | None,
    check: Callable[[], None] = lambda: None,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """The answer over stored rows, each of which has in the last column how often it is there."""
    if plan.counts and condition is None:
        return iter([_counted(plan, stored)])
    if steps.plain and not plan.aggregates and condition is None:
        return _handed_out(plan, steps, stored)
    kept = []
    for batch in stored:
        check()
        rows = RowColumns.of(batch.columns, batch.num_rows)
        kept.append(rows if condition is None else rows.where(condition))
    if plan.aggregates:
        return iter([_total(plan, steps, kept)])
    return _expanded(plan, steps, _computed(plan, steps, kept))


def _scan(context: Context, plan: ReadPlan, snapshot: Snapshot) -> SnapshotScan:
    assert plan.record is not None
    return context.engine.scan(snapshot.tables[plan.record.id], plan.names)


def _chosen(
    context: Context, plan: ReadPlan, values: Sequence[object], snapshot: Snapshot, stack: ExitStack
) -> tuple[Iterator[pa.RecordBatch], bool]:
    """The stored rows that a plan reads, and whether they were looked up by what they are to be equal to."""
    record = plan.record
    assert record is not None
    if plan.equal:
        wanted = plan.wanted(values)
        if wanted is None:
            return iter(()), True
        found: KeyScan | None = key_scan(context, record, plan.names, wanted, snapshot, stack)
        if found is not None:
            return found.stored(0), True
    refs = snapshot.tables[record.id].refs
    if not plan.streams and (sum(r.rows for r in refs) > READ_ROWS or sum(r.length for r in refs) > READ_BYTES):
        raise TooMuch
    return _stored(_scan(context, plan, snapshot)), False


def _stored(scan: SnapshotScan) -> Iterator[pa.RecordBatch]:
    return (batch for i in range(scan.parallelism) for batch in scan.stored(i))


def _counted(plan: ReadPlan, stored: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """The number of rows. Raises `NumericOutOfRange` where it is no bigint."""
    count = checked.as_bigint(sum(checked.count(np.asarray(b.column(b.num_columns - 1))) for b in stored))
    return _batch(plan.columns, [pa.array([count], pa.int64())])


def _total(plan: ReadPlan, steps: Steps, kept: Sequence[RowColumns]) -> pa.RecordBatch:
    """The one row of a query with aggregates."""
    found = totals(plan.aggregates, steps.over, kept, Column(len(plan.names)))
    kinds = [arrow_type(a.type.spark) for a in plan.aggregates]
    arrays = [
        pa.repeat(value, 1).cast(kind) if isinstance(value, pa.Scalar) else pa.array([value], kind)
        for value, kind in zip(found, kinds, strict=True)
    ]
    rows = RowColumns.of(arrays, 1)
    return _batch(plan.columns, [rows.array(o) for o in steps.outputs])


def _handed_out(plan: ReadPlan, steps: Steps, stored: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Columns of the rows as they are read, one batch after another."""
    at = steps.copied or ()
    columns = (
        pa.record_batch([*(batch.column(i) for i in at), batch.column(batch.num_columns - 1)], _labels(len(at) + 1))
        for batch in stored
    )
    return _expanded(plan, steps, columns)


def _computed(plan: ReadPlan, steps: Steps, kept: Sequence[RowColumns]) -> Iterator[pa.RecordBatch]:
    """What the query puts out for each stored row, in order, and in the last column how often the row is there."""
    weight = Column(len(plan.names))
    wanted = [*steps.outputs, weight, *(key.value for key in steps.order)]
    arrays = [[rows.array(e) for e in wanted] for rows in kept if rows.length]
    if not arrays:
        return iter(())
    columns = [pa.concat_arrays(same) for same in zip(*arrays, strict=True)]
    width = len(steps.outputs) + 1
    rows = pa.record_batch(columns[:width], _labels(width))
    if not steps.order:
        return iter([rows])
    there = np.asarray(rows.column(width - 1)) > 0
    if not there.all():
        rows, columns = rows.filter(pa.array(there)), [c.filter(pa.array(there)) for c in columns]
    most = None if steps.limit is None else steps.offset + steps.limit
    return iter([rows.take(sorted_places(columns[width:], steps.order, most))])


def _expanded(plan: ReadPlan, steps: Steps, stored: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each row as often as it is there, from the offset up to the limit."""
    skip, left = steps.offset, steps.limit
    width = len(plan.columns)
    for rows in stored:
        for part in copies(rows, np.asarray(rows.column(width)), _OUTPUT_ROWS):
            start = min(skip, part.num_rows)
            skip -= start
            part = part.slice(start, left) if left is not None else part.slice(start)
            if left is not None:
                left -= part.num_rows
            if part.num_rows:
                yield _batch(plan.columns, part.columns[:width])
            if left == 0:
                return


def _labels(width: int) -> list[str]:
    return [str(i) for i in range(width)]


def _batch(columns: Sequence[ResultColumn], arrays: Sequence[pa.Array]) -> pa.RecordBatch:
    given = [a if a.type == arrow_type(c.type) else pc.cast(a, arrow_type(c.type)) for a, c in zip(arrays, columns)]
    return pa.RecordBatch.from_arrays(given, names=[c.name for c in columns])
