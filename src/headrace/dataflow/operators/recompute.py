"""Group recompute: the old and the new rows of every partition that changed, for Spark's own operator to work on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.dataflow.operators.task import Keyed, Labelled, Task, chunks, collect, int64, state_batch
from headrace.errors import HeadraceError
from headrace.state.kernels import concat, consolidate
from headrace.state.schema import TableSchema

OLD, NEW = 0, 1
"""`__side` of an output row."""


@dataclass(frozen=True)
class RecomputeStage(Labelled, Keyed):
    """State table `rows`. Input rows are `__k`, `__h`, `__w`, keys, values; output rows are values, `__h`, `__side`.

    Rows of a partition come out in the order of their hash, which depends on nothing but the rows: an operator that is
    sensitive to order gives the same result for the same rows in every epoch. With `phantom` each side has one more
    row, marked by `__row` = false, which keeps a grouping without keys alive when it has no rows.
    """

    operator: str
    schema: TableSchema
    phantom: bool
    output: pa.Schema

    def run(self, task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fetch the partitions that the delta touches, and put out both of their versions."""
        batch = collect(batches)
        first = self.phantom and task.params.first
        if batch is None:
            if first:
                yield self._phantom(NEW)
            return
        columns = {f.name: batch.column(f.name) for f in self.schema.arrow()}
        delta = consolidate(state_batch(self.schema, columns), self.schema)
        if delta.num_rows == 0 and not first:
            return
        touched = np.unique(int64(delta.column("__k")))
        old = task.arrangement("rows", self.schema).fetch(touched)
        new = consolidate(concat([old, delta], delta.schema), self.schema)
        yield from self._side(old, OLD)
        yield from self._side(new, NEW)
        if self.phantom:
            if not task.params.first:
                yield self._phantom(OLD)
            yield self._phantom(NEW)
        task.write([("rows", self.schema, delta)])

    def _side(self, rows: pa.RecordBatch, side: int) -> Iterator[pa.RecordBatch]:
        weights = int64(rows.column("__w"))
        if len(weights) and weights.min() < 0:
            raise HeadraceError(f"operator {self.operator} was told to remove a row that it does not have")
        positions = np.repeat(np.arange(len(weights)), weights)

        def make(s: slice) -> pa.RecordBatch:
            part = rows.take(pa.array(positions[s]))
            values = [part.column(f.name) for f in self.schema.value]
            hashes = part.column("__h") if self.schema.value else part.column("__k")
            arrays = [*values, hashes, pa.array(np.full(part.num_rows, side, dtype=np.int32))]
            if self.phantom:
                arrays.append(pa.array(np.ones(part.num_rows, dtype=bool)))
            return pa.RecordBatch.from_arrays(arrays, schema=self.output)

        yield from chunks(len(positions), make)

    def _phantom(self, side: int) -> pa.RecordBatch:
        row = {"__h": 0, "__side": side, "__row": False}
        return pa.RecordBatch.from_arrays(
            [pa.array([row.get(f.name)], f.type) for f in self.output], schema=self.output
        )
