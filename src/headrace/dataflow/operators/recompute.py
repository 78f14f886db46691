"""Group recompute: the old and the new rows of every partition that changed, for Spark's own operator to work on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from headrace.dataflow.operators.first_rows import first_versions
from headrace.dataflow.operators.task import Keyed, Labelled, Task, chunks, collect, int64, state_batch
from headrace.errors import HeadraceError
from headrace.state.kernels import concat, consolidate, stable_order
from headrace.state.kernels.hashing import hash_columns
from headrace.state.kernels.order_code import SortKey, order_codes
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
    orders: tuple[tuple[str, SortKey], ...]


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
        if self.first is not None and self.first.orders and self.schema.has_row_hash:
            ordering = [batch.column(name) for name, _ in self.first.orders]
            columns["__h"] = pa.array(order_codes(ordering, [key for _, key in self.first.orders]))
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
        """Positions of the rows of some `__k`. Those that tie, as any other, by a hash: `__h` says nothing of them."""
        found = np.flatnonzero(np.isin(int64(rows.column("__k")), keys))
        if not self.schema.value or not len(found):
            return found
        return found[stable_order([hash_columns([rows.column(f.name) for f in self.schema.value])[found]])]

    def _side(self, rows: pa.RecordBatch, places: np.ndarray, side: int) -> Iterator[pa.RecordBatch]:
        weights = int64(rows.column("__w"))[places]
        if len(weights) and weights.min() < 0:
            raise HeadraceError(f"operator {self.operator} was told to remove a row that it does not have")
        positions = np.repeat(places, weights)

        def make(s: slice) -> pa.RecordBatch:
            part = rows.take(pa.array(positions[s]))
            values = [part.column(f.name) for f in self.schema.value]
            arrays = [*values, pa.array(np.full(part.num_rows, side, dtype=np.int32))]
            if self.phantom:
                arrays.append(pa.array(np.ones(part.num_rows, dtype=bool)))
            return pa.RecordBatch.from_arrays(arrays, schema=self.output)

        yield from chunks(len(positions), make)

    def _phantom(self, side: int) -> pa.RecordBatch:
        row = {"__side": side, "__row": False}
        return pa.RecordBatch.from_arrays(
            [pa.array([row.get(f.name)], f.type) for f in self.output], schema=self.output
        )


def _changed(old: pa.RecordBatch, new: pa.RecordBatch, schema: TableSchema) -> np.ndarray:
    """Every `__k` whose rows differ."""
    place = schema.diff_start
    weights = pa.array(-int64(old.column(place)))
    taken_back = old.set_column(place, old.schema.field(place), weights)
    difference = consolidate(concat([taken_back, new], new.schema), schema)
    return np.unique(int64(difference.column("__k")))
