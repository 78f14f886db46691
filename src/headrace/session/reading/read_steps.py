"""Runs plans of reads: over the snapshot that any other way would choose, in whatever thread asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.columns import arrow_type
from headrace.dataflow.operators.inputs import SnapshotScan
from headrace.dataflow.operators.kernel_expressions import Column, Expression, RowColumns
from headrace.session.execution.points import KeyScan, key_scan
from headrace.session.reading.read_order import sorted_places
from headrace.session.reading.read_plans import ReadPlan, Steps
from headrace.session.reading.read_totals import grouped
from headrace.session.reading.surroundings import Surroundings
from headrace.session.result import ResultColumn
from headrace.session.shared_reads import KeptRows
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
    context: Surroundings, plan: ReadPlan, values: Sequence[object], snapshot: Snapshot, stack: ExitStack
) -> Iterator[pa.RecordBatch]:
    """The rows of a plan over its relation as a snapshot has it.

    Raises `TooMuch`, `NoTwin`, `UncertainValue`, or what Arrow raises, before the first of them is handed out: then it
    is for Spark to compute, or to tell what is wrong. The stack holds what is read.
    """
    steps, shared = plan.steps(values), context.shared_reads
    stored = _looked_up(context, plan, values, snapshot, stack)
    if stored is not None:
        return answered(plan, steps, stored, steps.rest, context.check)
    content = _content(context, plan, snapshot)
    if content is not None:
        return content_rows(context, plan, values, content)
    with shared.computing(context.check):
        return answered(plan, steps, _scanned(context, plan, snapshot), steps.where, context.check)


def content_rows(
    context: Surroundings, plan: ReadPlan, values: Sequence[object], content: KeptRows, *, waits: bool = True
) -> Iterator[pa.RecordBatch]:
    """The rows of a plan over all rows of its relation, in its turn where it waits for that.

    Raises what `snapshot_rows` does.
    """
    shared, question = context.shared_reads, plan.question(values, context.zone)
    known = shared.answer(content, question)
    if known is not None:
        return iter(known)
    with shared.computing(context.check) if waits else nullcontext():
        rows = content_answer(plan, plan.steps(values), content, context.check)
    found = list(islice(rows, 2))
    if len(found) < 2:
        shared.keep_answer(content, question, found)
    return chain(found, rows)


def content_answer(
    plan: ReadPlan, steps: Steps, content: KeptRows, check: Callable[[], None] = lambda: None
) -> Iterator[pa.RecordBatch]:
    """The same, computed."""
    if plan.counts and steps.where is None:
        return iter([_batch(plan.columns, [pa.array([checked.as_bigint(content.count)], pa.int64())])])
    return answered(plan, steps, iter([content.batch(plan.names)]), steps.where, check)


def answered(
    plan: ReadPlan, steps: Steps, stored: Iterator[pa.RecordBatch], condition: Expression | None,
    check: Callable[[], None] = lambda: None,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """The answer over stored rows, each of which has in the last column how often it is there."""
    if plan.counts and condition is None:
        return iter([_counted(plan, stored)])
    if steps.plain and not plan.grouped and condition is None:
        return _handed_out(plan, steps, stored)
    kept = []
    for batch in stored:
        check()
        rows = RowColumns.of(batch.columns, batch.num_rows)
        kept.append(rows if condition is None else rows.where(condition))
    weight = len(plan.names)
    if plan.grouped:
        kept, weight = [_groups(plan, steps, kept)], len(steps.keys) + len(steps.totals)
    return _expanded(plan, steps, _computed(steps, kept, weight))


def _scan(context: Surroundings, plan: ReadPlan, snapshot: Snapshot) -> SnapshotScan:
    assert plan.record is not None
    return context.scan(snapshot.tables[plan.record.id], plan.names)


def _looked_up(
    context: Surroundings, plan: ReadPlan, values: Sequence[object], snapshot: Snapshot, stack: ExitStack
) -> Iterator[pa.RecordBatch] | None:
    """The stored rows that have what they are to be equal to; None where no key or index finds them."""
    assert plan.record is not None
    if not plan.equal:
        return None
    wanted = plan.wanted(values)
    if wanted is None:
        return iter(())
    found: KeyScan | None = key_scan(context, plan.record, plan.names, wanted, snapshot, stack)
    return None if found is None else found.stored(0)


def _content(context: Surroundings, plan: ReadPlan, snapshot: Snapshot) -> KeptRows | None:
    """All rows of a relation that is small; None for one that is not, or that the transaction has changed."""
    record = plan.record
    assert record is not None
    table = snapshot.tables[record.id]
    if sum(r.rows for r in table.refs) > READ_ROWS or context.has_changed(record.id):
        return None
    names = [column.name for column in table.columns]
    return context.shared_reads.content(
        record.id, table, lambda: context.scan(table, names), context.check
    )  # fmt: skip


def _scanned(context: Surroundings, plan: ReadPlan, snapshot: Snapshot) -> Iterator[pa.RecordBatch]:
    """The stored rows of a relation, in no order. Raises `TooMuch`."""
    assert plan.record is not None
    refs = snapshot.tables[plan.record.id].refs
    if not plan.streams and (sum(r.rows for r in refs) > READ_ROWS or sum(r.length for r in refs) > READ_BYTES):
        raise TooMuch
    scan = _scan(context, plan, snapshot)
    return (batch for i in range(scan.parallelism) for batch in scan.unsorted(i))


def _counted(plan: ReadPlan, stored: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """The number of rows. Raises `NumericOutOfRange` where it is no bigint."""
    count = checked.as_bigint(sum(checked.count(np.asarray(b.column(b.num_columns - 1))) for b in stored))
    return _batch(plan.columns, [pa.array([count], pa.int64())])


def _groups(plan: ReadPlan, steps: Steps, kept: Sequence[RowColumns]) -> RowColumns:
    """The groups that are wanted: their keys, their totals, and that each is there once."""
    found = grouped(steps.keys, steps.totals, kept, Column(len(plan.names)))
    width = len(steps.keys) + len(steps.totals)
    columns = [found.column(i) for i in range(width)] if found.length else []
    rows = RowColumns.of([*columns, pa.repeat(pa.scalar(1, pa.int64()), found.length)], found.length)
    return rows if steps.having is None or not rows.length else rows.where(steps.having)


def _handed_out(plan: ReadPlan, steps: Steps, stored: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Columns of the rows as they are read, one batch after another."""
    at = steps.copied or ()
    columns = (
        pa.record_batch([*(batch.column(i) for i in at), batch.column(batch.num_columns - 1)], _labels(len(at) + 1))
        for batch in stored
    )
    return _expanded(plan, steps, columns)


def _computed(steps: Steps, kept: Sequence[RowColumns], weight: int) -> Iterator[pa.RecordBatch]:
    """What the query puts out for each row, in order, and in the last column how often the row is there.

    Of the rows the column at `weight` says so.
    """
    wanted = [*steps.outputs, Column(weight), *(key.value for key in steps.order)]
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
