"""Reads that are answered where they are asked, on the event loop, too: expressions, and rows by primary key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from headrace.coordinator.reads import Later
from headrace.coordinator.writes.layout import Row
from headrace.dataflow.operators.kernel_expressions import RowColumns
from headrace.session.context import Context
from headrace.session.reading.read_planning import PlannedRead
from headrace.session.reading.read_plans import ReadPlan, Steps
from headrace.session.reading.read_steps import constant_rows
from headrace.session.result import Result, RowResult
from headrace.sql import statements as st
from headrace.sql.scalar import values_of

_CHARS_AT_MOST: Final = 10_000
"""Length of the parameters' texts up to which it is quick to compute with them."""


def is_at_once(context: Context, planned: PlannedRead) -> bool:
    """Whether a read needs to wait for nothing, as far as its session and its kind say."""
    if context.transaction is not None or planned.timed or not planned.lasting:
        return False
    return planned.plan.record is None or (planned.plan.point and context.reads.newest)


def read_at_once(context: Context, planned: PlannedRead, texts: Sequence[str | None]) -> Result | None:
    """Its result; None where it is to be run the ordinary way: something has to be waited for, or is wrong."""
    plan = planned.plan
    if sum(len(text) for text in texts if text is not None) > _CHARS_AT_MOST:
        return None
    values = values_of(texts, plan.types, context.zone) if texts else ()
    if plan.record is None:
        return Result(st.Select.told, plan.columns, constant_rows(plan, values))
    wanted = plan.wanted(values)
    if wanted is None:
        return Result(st.Select.told, plan.columns)
    key = tuple([wanted[name] for name in plan.record.primary_key])
    row = context.coordinator.row_now(plan.record.id, key, context.reads.options())
    if isinstance(row, Later):
        return None
    if row is None:
        return Result(st.Select.told, plan.columns)
    steps = plan.steps(values)
    if steps.offset or steps.limit == 0:
        return Result(st.Select.told, plan.columns)
    if steps.rest is None and steps.copied is not None:
        places = plan.places
        found = tuple([row[places[i]] for i in steps.copied])
        return RowResult(st.Select.told, plan.columns, _batch(plan, found), values=found)
    computed = _computed(plan, steps, row)
    return Result(st.Select.told, plan.columns, iter(()) if computed is None else iter((computed,)))


def _batch(plan: ReadPlan, values: Sequence[object]) -> Iterator[pa.RecordBatch]:
    """Values as the only row, which is made when it is asked for."""
    arrays = [pa.array((value,), kind) for value, kind in zip(values, plan.kinds, strict=True)]
    yield pa.RecordBatch.from_arrays(arrays, names=list(plan.query.names))


def _computed(plan: ReadPlan, steps: Steps, row: Row) -> pa.RecordBatch | None:
    """What the query makes of the only row that it reads; None for nothing. Raises what kernels do."""
    read = [pa.array((row[at],), kind) for at, kind in zip(plan.places, plan.read_kinds, strict=True)]
    rows = RowColumns.of(read, 1)
    if steps.rest is not None:
        rows = rows.where(steps.rest)
    if not rows.length:
        return None
    return pa.RecordBatch.from_arrays([rows.array(o) for o in steps.outputs], names=list(plan.query.names))
