"""Reads that are answered where they are asked, on the event loop, too: expressions, and rows by primary key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from headrace.common.zones import Zone
from headrace.coordinator.reads import Later
from headrace.coordinator.writes.layout import Key, Row
from headrace.dataflow.operators.kernel_expressions import RowColumns
from headrace.session.context import Context
from headrace.session.coordination import Coordination
from headrace.session.reading.read_planning import PlannedRead
from headrace.session.reading.read_plans import ReadPlan, Steps
from headrace.session.reading.read_steps import constant_rows, content_rows
from headrace.session.reading.surroundings import Surroundings
from headrace.session.result import Result, RowResult
from headrace.session.shared_reads import KeptRows
from headrace.sql import statements as st
from headrace.sql.scalar import values_of

_CHARS_AT_MOST: Final = 10_000
"""Length of the parameters' texts up to which it is quick to compute with them."""
_VALUES_AT_MOST: Final = 20_000
"""Rows in memory, times expressions, up to which it is quick to compute with them: in a fraction of a millisecond."""


def is_at_once(context: Context, planned: PlannedRead) -> bool:
    """Whether a read needs to wait for nothing, as far as its session and its kind say."""
    plan = planned.plan
    if not is_of_newest(context, planned):
        return False
    return plan.record is None or plan.point or known_content(context, plan) is not None


def is_of_newest(context: Context, planned: PlannedRead) -> bool:
    """Whether a read needs nothing of its session but its settings, and the newest rows that there are."""
    if context.transaction is not None or planned.timed or planned.plan.uses_now or not planned.lasting:
        return False
    return planned.plan.record is None or context.reads.newest


def known_content(context: Surroundings, plan: ReadPlan) -> KeptRows | None:
    """The rows of a plan's relation, if it is known what they were, and little is to be computed of them."""
    assert plan.record is not None
    content = context.shared_reads.known(plan.record.id)
    if content is None or content.of != plan.record.columns:
        return None
    if plan.counts and plan.query.where is None:
        return content
    if content.rows * plan.width <= _VALUES_AT_MOST:
        return content
    asked = None if plan.types else context.shared_reads.answer(content, plan.question((), context.zone))
    return None if asked is None else content


class PointRead(NamedTuple):
    """A read that waits for the row with a primary key, and for nothing else."""

    plan: ReadPlan
    values: Sequence[object]
    """Those of its parameters."""
    key: Key

    @property
    def table(self) -> int:
        """The table that it reads."""
        assert self.plan.record is not None
        return self.plan.record.id

    def result(self, row: Row | None) -> Result:
        """Its result, once the row is known, or that there is none. Raises what kernels do."""
        plan = self.plan
        if row is None:
            return Result(st.Select.told, plan.columns)
        if plan.copied is not None:
            found = tuple([row[at] for at in plan.copied])
            return RowResult(st.Select.told, plan.columns, _batch(plan, found), values=found)
        steps = plan.steps(self.values)
        computed = None if steps.offset or steps.limit == 0 else _computed(plan, steps, row)
        return Result(st.Select.told, plan.columns, iter(()) if computed is None else iter((computed,)))


def point_or_result(plan: ReadPlan, texts: Sequence[str | None], zone: Zone) -> PointRead | Result | None:
    """What is left to do of an expression, or of a read of a single row; None for any other, or where it is too much.

    Raises what kernels do, and `DataError`s.
    """
    values = values_at_once(plan, texts, zone)
    if values is None:
        return None
    if plan.record is None:
        return Result(st.Select.told, plan.columns, constant_rows(plan, values))
    if not plan.point:
        return None
    key = plan.key(values)
    return Result(st.Select.told, plan.columns) if key is None else PointRead(plan, values, key)


def rows_of(coordinator: Coordination, asked: Sequence[tuple[Context, PointRead]]) -> list[Row | Later | None]:
    """The rows that reads of a single table wait for, looked up together. Raises what looking them up does."""
    keys = [(read.key, context.reads.options()) for context, read in asked]
    return coordinator.rows_now(asked[0][1].table, keys)


def read_at_once(context: Context, planned: PlannedRead, texts: Sequence[str | None]) -> Result | None:
    """Its result; None where it is to be run the ordinary way: something has to be waited for, or is wrong."""
    plan = planned.plan
    if plan.record is None or plan.point:
        found = point_or_result(plan, texts, context.zone)
        if not isinstance(found, PointRead):
            return found
        (row,) = rows_of(context.coordinator, [(context, found)])
        return None if isinstance(row, Later) else found.result(row)
    values = values_at_once(plan, texts, context.zone)
    return None if values is None else _of_content(context, plan, values)


def values_at_once(plan: ReadPlan, texts: Sequence[str | None], zone: Zone) -> Sequence[object] | None:
    """The values of parameters; None where there is too much to read at once."""
    if sum(len(text) for text in texts if text is not None) > _CHARS_AT_MOST:
        return None
    return values_of(texts, plan.types, zone) if texts else ()


def _of_content(context: Context, plan: ReadPlan, values: Sequence[object]) -> Result | None:
    """The same over all rows of its relation, which are in memory."""
    assert plan.record is not None
    content = known_content(context, plan)
    if content is None or not context.coordinator.shows_now(plan.record.id, content.runs, context.reads.options()):
        return None
    most = context.settings.max_result_rows
    batches = list(content_rows(context, plan, values, content, waits=False))
    if most and sum(batch.num_rows for batch in batches) > most:
        return None  # which is told by the ordinary way
    return Result(st.Select.told, plan.columns, iter(batches))


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
