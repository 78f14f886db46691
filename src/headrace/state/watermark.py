"""Event-time expiry: which stored rows lie below a table's watermark and can never matter again. Pure.

Event times are Unix microseconds, from the column that `TableSchema.expires` names. A row without an event time stays.

A table's watermark in the catalog only rises (`RaiseWatermark`, or with a `CommitTable`). Every read skips rows below
it at once, runs that lie below it as a whole leave the version without being read, and merges drop the rest. Tasks
get it in their `StateInput`; a step reads its state as of the epoch from which it starts, which may be ahead of the
catalog.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.state.schema import RunRef, TableSchema


def event_times(batch: pa.RecordBatch, schema: TableSchema) -> pa.Array:
    """The event times of stored rows, int64 microseconds, null where there is none. The schema names a column."""
    assert schema.expires is not None
    name, _, part = schema.expires.partition(".")
    column = batch.column(name)
    return times_us(pc.struct_field(column, part) if part else column)


def times_us(column: pa.Array) -> pa.Array:
    """Timestamps, or int64 microseconds, as int64 microseconds since 1970 UTC."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz))
    return column.cast(pa.int64())


def not_below(times: pa.Array, watermark: int) -> pa.BooleanArray:
    """For each event time whether the watermark has not passed it; it never passes a row without one."""
    return pc.fill_null(pc.greater_equal(times, watermark), True)


def alive(batch: pa.RecordBatch, schema: TableSchema, watermark: int | None) -> pa.RecordBatch:
    """The rows that are not below the watermark; the batch itself where that is all of them."""
    if watermark is None or schema.expires is None:
        return batch
    keep = not_below(event_times(batch, schema), watermark)
    return batch if pc.all(keep).as_py() is not False else batch.filter(keep)


def time_range(batches: Sequence[pa.RecordBatch], schema: TableSchema) -> tuple[int, int] | None:
    """Lowest and highest event time of rows; None if any row has none."""
    if schema.expires is None:
        return None
    ends = []
    for batch in batches:
        times = event_times(batch, schema)
        if times.null_count:
            return None
        values = np.asarray(times)
        ends.append((int(values.min()), int(values.max())))
    return min(low for low, _ in ends), max(high for _, high in ends)


def expired_runs(refs: Sequence[RunRef], watermark: int | None) -> list[RunRef]:
    """The runs all of whose rows are below the watermark: they can be dropped without being read."""
    if watermark is None:
        return []
    return [r for r in refs if r.time_max is not None and r.time_max < watermark]


def may_expire(ref: RunRef, watermark: int | None) -> bool:
    """Whether any row of a run may be below the watermark."""
    return watermark is not None and (ref.time_min is None or ref.time_min < watermark)
