"""Group recompute: the old and the new rows of every partition that changed, for Spark's own operator to work on.

The stage puts the rows of changed partitions out twice: as they were (`__side` 0) and as they are now (1). Spark's
own operator then runs over both at once, with the side as one more grouping or partitioning key, and the side becomes
the weight. So whatever Spark can compute over a group can be kept up to date. Rows come out in the order of their
hash: an operator that is sensitive to order gives the same answer for the same rows in every epoch, and ties of a
top-N are broken the same way each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.dataflow.operators.first_rows import first_versions
from headrace.dataflow.operators.task import OUTPUT_ROWS, Keyed, Labelled, Task, collect, int64, state_batch
from headrace.errors import HeadraceError
from headrace.state.kernels import concat, consolidate, in_row_order, negated
from headrace.state.kernels.copies import piece_rows, repeated
from headrace.state.kernels.order_code import OrderColumn, order_codes
from headrace.state.schema import TableSchema

OLD, NEW = 0, 1
"""`__side` of an output row."""


_Version: TypeAlias = tuple[pa.RecordBatch, np.ndarray]
"""Rows, and which of them are put out in what order."""


@dataclass(frozen=True)
class FirstRows:
    """How much of a partition decides the result: its first `need` rows, or with `by_code` its first values.

    `orders` are the input columns whose order code is a row's `__h`; without any that comes with the input.
    """

    need: int
    by_code: bool
    orders: tuple[tuple[str, OrderColumn], ...]

    def codes(self, batch: pa.RecordBatch) -> pa.Array:
        """The order code of every input row."""
        if not self.orders:
            return batch.column("__h")
        return pa.array(order_codes([batch.column(n) for n, _ in self.orders], [key for _, key in self.orders]))


@dataclass(frozen=True)
class RecomputeStage(Labelled, Keyed):
    """State table `rows`. Input rows are `__k`, `__h`, `__w`, keys, values; output rows are values, `__side`.

    Rows of a partition come out in the order of a hash, which depends on nothing but the rows: an operator that is
    sensitive to order gives the same result for the same rows in every epoch. With `phantom` each side has one more
    row, marked by `__row` = false, which keeps a grouping without keys alive when it has no rows. With `first` only
    the first rows of a partition are read and put out, and those partitions only in which they have changed.
    """

    operator: str
    schema: TableSchema
    phantom: bool
    output: pa.Schema
    first: FirstRows | None = None

    def run(self, task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fetch the partitions that the delta touches, and put out both of their versions."""
        batch = collect(batches)
        first = self.phantom and task.params.first
        if batch is None:
            if first:
                yield self._phantom(NEW)
            return
        delta = self._delta(batch)
        if delta.num_rows == 0 and not first:
            return
        old, new = self._versions(task, delta)
        yield from self._side(*old, OLD)
        yield from self._side(*new, NEW)
        if self.phantom:
            if not task.params.first:
                yield self._phantom(OLD)
            yield self._phantom(NEW)
        task.write([("rows", self.schema, delta)])

    def _delta(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = set(batch.schema.names)
        columns = {f.name: batch.column(f.name) for f in self.schema.arrow() if f.name in names}
        if self.first is not None and self.schema.has_row_hash:
            columns["__h"] = self.first.codes(batch)
        return consolidate(state_batch(self.schema, columns), self.schema)

    def _versions(self, task: Task, delta: pa.RecordBatch) -> tuple[_Version, _Version]:
        table = task.arrangement("rows", self.schema)
        if self.first is None:
            old = table.fetch(np.unique(int64(delta.column("__k"))))
            new = consolidate(concat([old, delta], delta.schema), self.schema)
            return (old, np.arange(old.num_rows)), (new, np.arange(new.num_rows))
        old, new = first_versions(table, delta, delta, self.first.need, by_code=self.first.by_code)
        changed = _changed(old, new, self.schema)
        return (old, self._of_keys(old, changed)), (new, self._of_keys(new, changed))

    def _of_keys(self, rows: pa.RecordBatch, keys: np.ndarray) -> np.ndarray:
        """Positions of the rows of some `__k`."""
        found = np.flatnonzero(np.isin(int64(rows.column("__k")), keys))
        return in_row_order(rows, found, self.schema)

    def _side(self, rows: pa.RecordBatch, places: np.ndarray, side: int) -> Iterator[pa.RecordBatch]:
        if len(places) and int64(rows.column("__w"))[places].min() < 0:
            raise HeadraceError(f"operator {self.operator} was told to remove a row that it does not have")
        yield from versions(rows, places, side, self.schema, self.output)

    def _phantom(self, side: int) -> pa.RecordBatch:
        row = {"__side": side, "__row": False}
        return pa.RecordBatch.from_arrays(
            [pa.array([row.get(f.name)], f.type) for f in self.output], schema=self.output
        )


def _changed(old: pa.RecordBatch, new: pa.RecordBatch, schema: TableSchema) -> np.ndarray:
    """Every `__k` whose rows differ."""
    difference = consolidate(concat([negated(old, schema), new], new.schema), schema)
    return np.unique(int64(difference.column("__k")))


def versions(
    rows: pa.RecordBatch, places: np.ndarray, side: int, schema: TableSchema, output: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of a state table at some places as output rows of a side, each as often as it is there."""
    weights = int64(rows.column("__w"))[places]
    columns = [rows.column(f.name) for f in schema.value]
    marked = "__row" in output.names
    most = piece_rows(rows.select([f.name for f in schema.value]), OUTPUT_ROWS)
    for positions in repeated(weights, most):
        at = pa.array(places[positions])
        arrays = [*(c.take(at) for c in columns), pa.array(np.full(len(at), side, dtype=np.int32))]
        if marked:
            arrays.append(pa.array(np.ones(len(at), dtype=bool)))
        yield pa.RecordBatch.from_arrays(arrays, schema=output)
