"""Filters by the current time: rows wait for the time at which they enter or leave, and are harvested as it passes.

A row passes from `enters` on until before `leaves`, both known when it comes. A row that has left is nowhere; one
that has entered and will leave is kept under the time of leaving; one that is still to enter under that of entering.
So where a row is depends on the time alone, and one that is taken back is found there.

`now()` of an epoch is the epoch's time. The row's `__k` is the next of its two times, in microseconds and not a hash,
so each epoch scans the keys that have become due since the last one. Every step tells in its acknowledgement when
something is next due; with the commit that becomes the job's `due_epoch`. To the coordinator it is one more change at
that epoch: before it the view is exact and costs nothing, from then on it has work.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.common.shifts import ALWAYS, NEVER, Ints, Shift, first_at_least, now_us
from headrace.dataflow.operators.task import Keyed, Labelled, Task, Unkeyed, collect, int64, sliced, state_batch
from headrace.state.kernels import consolidate
from headrace.state.schema import TableSchema

TABLE = "rows"
OUT = "__o"
"""The weight of a row in the operator's output, beside its weight in the state."""


@dataclass(frozen=True)
class TimeBound:
    """When a row enters or leaves, by its column `name` of Unix microseconds."""

    name: str
    shift: Shift
    late: int
    leaves: bool

    def times(self, rows: pa.RecordBatch) -> Ints:
        """The first current time at which the bound is reached, for each row."""
        times = int64(rows.column(self.name))
        return first_at_least(self.shift, np.minimum(times, NEVER - self.late) + self.late)


@dataclass(frozen=True)
class PlaceStage(Unkeyed, Labelled):
    """Finds out where the rows of an epoch are to be, and which of the stored ones are due.

    Input rows are `__s`, `__h`, `__w`, the bounds' columns and the values; or, where `__s` is not null, the number of a
    slice of what is due. Output rows are those of the state table, then `__o`.
    """

    operator: str
    schema: TableSchema
    bounds: tuple[TimeBound, ...]
    parallelism: int
    role = "place"

    def run(self, task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Place the new rows, and harvest the slices that the input names."""
        now = now_us(task.params.to_epoch)
        for batch in batches:
            marks = batch.column("__s")
            rows = batch.filter(marks.is_null())
            if rows.num_rows:
                yield self._placed(rows, now)
            for i in marks.drop_null().to_pylist():
                yield from self._harvested(task, i, now)

    def _placed(self, rows: pa.RecordBatch, now: int) -> pa.RecordBatch:
        enters, leaves = np.full(rows.num_rows, ALWAYS), np.full(rows.num_rows, NEVER)
        for bound in self.bounds:
            if bound.leaves:
                leaves = np.minimum(leaves, bound.times(rows))
            else:
                enters = np.maximum(enters, bound.times(rows))
        keep = (enters < leaves) & (now < leaves)
        waits = now < enters
        columns = {f.name: rows.column(f.name) for f in self.schema.value[1:]}
        columns |= {"__h": rows.column("__h"), "leaves": pa.array(leaves)}
        weights = int64(rows.column("__w"))
        found = self._batch(columns, np.where(waits, enters, leaves), weights, np.where(waits, 0, weights))
        return found if keep.all() else found.filter(pa.array(keep))

    def _harvested(self, task: Task, i: int, now: int) -> Iterator[pa.RecordBatch]:
        """The i-th slice of the stored rows that have become due since the last epoch; the first also looks ahead."""
        table = task.arrangement(TABLE, self.schema)
        if i == 0:
            task.next_due(table.lowest_key(now + 1))
        if not task.params.from_epoch or not table.refs:
            return
        low = max(now_us(task.params.from_epoch) + 1, min(r.k_min for r in table.refs))
        width = now + 1 - low
        if width <= 0:
            return
        begin, end = (low + n * width // self.parallelism for n in (i, i + 1))
        for rows in table.scan(begin, end):
            yield from self._passed(rows, now)

    def _passed(self, rows: pa.RecordBatch, now: int) -> Iterator[pa.RecordBatch]:
        """What becomes of stored rows whose time has come: some leave, others enter."""
        weights, leaves = int64(rows.column("__w")), int64(rows.column("leaves"))
        due = int64(rows.column("due"))
        enters = due < leaves
        columns = {f.name: rows.column(f.name) for f in self.schema.value} | {"__h": rows.column("__h")}
        yield self._batch(columns, due, -weights, np.where(enters, 0, -weights))
        come = pa.array(enters & (now < leaves))
        if come.true_count:
            columns = {name: column.filter(come) for name, column in columns.items()}
            weights = weights[np.asarray(come)]
            yield self._batch(columns, int64(columns["leaves"]), weights, weights)

    def _batch(self, columns: dict[str, pa.Array], due: Ints, weights: Ints, out: Ints) -> pa.RecordBatch:
        """Rows of the state table, with their weights in the output; nothing is kept of what never leaves."""
        place = pa.array(due)
        kept = pa.array(np.where(due == NEVER, 0, weights))
        rows = state_batch(self.schema, {**columns, "__k": place, "due": place, "__w": kept})
        return rows.append_column(OUT, pa.array(out))


@dataclass(frozen=True)
class KeepStage(Labelled, Keyed):
    """State table `rows`: keeps what `PlaceStage` has placed, and puts out what passes."""

    operator: str
    schema: TableSchema
    output: pa.Schema
    """The values, then `__w`."""

    def run(self, task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows' places, and put out those that have entered or left."""
        batch = collect(batches)
        if batch is None:
            return
        weights, out = int64(batch.column("__w")), int64(batch.column(OUT))
        passing = batch.filter(pa.array(out != 0))
        values = [passing.column(f.name) for f in self.schema.value[1:]]
        yield from sliced(pa.RecordBatch.from_arrays([*values, passing.column(OUT)], schema=self.output))
        kept = batch.filter(pa.array(weights != 0)).select(self.schema.arrow().names)
        rows = consolidate(kept, self.schema)
        come = int64(rows.column("__k"))[int64(rows.column("__w")) > 0]
        task.next_due(int(come.min()) if len(come) else None)
        task.write([(TABLE, self.schema, rows)])
