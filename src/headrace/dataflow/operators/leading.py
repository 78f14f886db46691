"""The first rows of every partition of an input that only grows: nothing else has to be kept.

A row that has once fallen behind the first rows of its partition never comes back, because no row in front of it goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.dataflow.operators.first_rows import row_codes, shared_keys
from headrace.dataflow.operators.recompute import NEW, OLD, FirstRows, versions
from headrace.dataflow.operators.task import Keyed, Labelled, Task, int64, state_batch
from headrace.errors import HeadraceError
from headrace.state.arrangement import Arrangement
from headrace.state.kernels import concat, consolidate, in_row_order, rows_equal, stable_order, take
from headrace.state.kernels.equality import Bools, Ints
from headrace.state.kernels.order_code import counted_units, leading
from headrace.state.schema import TableSchema


@dataclass(frozen=True)
class LeadingStage(Labelled, Keyed):
    """State table `rows`: of each partition its first rows, and no others. Input and output as `RecomputeStage`'s.

    Where partitions share a `__k`, all their rows are kept. Rows that are in the state without being among the first
    change nothing.
    """

    operator: str
    schema: TableSchema
    output: pa.Schema
    first: FirstRows

    def run(self, task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Put out both versions of the partitions whose first rows change, and write what enters and leaves them."""
        delta = self._delta(list(batches))
        if delta is None:
            return
        moved = advance(task.arrangement("rows", self.schema), delta, self.first.need, by_code=self.first.by_code)
        yield from versions(moved.rows, moved.old, OLD, self.schema, self.output)
        yield from versions(moved.rows, moved.new, NEW, self.schema, self.output)
        task.write([("rows", self.schema, moved.written())])

    def _delta(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch | None:
        """Those of the new rows that are among the first of the new ones, as rows of the state."""
        batches = [b for b in batches if b.num_rows]
        if not batches:
            return None
        if any(int64(b.column("__w")).min() < 0 for b in batches):
            raise HeadraceError(f"operator {self.operator} was told to remove a row of an input that only grows")
        keep, order = first_of(batches, [f.name for f in self.schema.key], self.first)
        kept: list[pa.RecordBatch] = []
        start = 0
        for batch in batches:
            part = keep[start : start + batch.num_rows]
            start += batch.num_rows
            rows = batch if part.all() else batch.filter(pa.array(part))
            names = set(rows.schema.names)
            columns = {f.name: rows.column(f.name) for f in self.schema.arrow() if f.name in names}
            if self.schema.has_row_hash:
                columns["__h"] = self.first.codes(rows)
            kept.append(state_batch(self.schema, columns))
        delta = concat(kept, self.schema.arrow())
        place = np.cumsum(keep) - 1
        return consolidate(take(delta, place[order]), self.schema)


@dataclass(frozen=True)
class Moved:
    """What a delta makes of the first rows of its partitions."""

    rows: pa.RecordBatch
    """The first rows that there were, and the delta."""
    old: Ints
    """Places of the first rows of all partitions that change, as they were."""
    new: Ints
    """The same, as they are now."""
    left: Ints
    """Places of the rows that are not among the first any more."""
    entered: Ints
    """Places of the rows that have become so."""
    schema: TableSchema

    def written(self) -> pa.RecordBatch:
        """The change of the state table, sorted."""
        gone, come = take(self.rows, self.left), take(self.rows, self.entered)
        at = self.schema.diff_start
        gone = gone.set_column(at, gone.schema.field(at), pa.array(-int64(gone.column(at))))
        return consolidate(concat([gone, come], self.rows.schema), self.schema)


def advance(table: Arrangement, delta: pa.RecordBatch, need: int, *, by_code: bool = False) -> Moved:
    """The first `need` rows of every partition in `delta` before and after it, with those that tie with the last.

    Or those of the first `need` values, `by_code`. No weight of the delta is negative.
    """
    schema = table.schema
    keys = np.unique(int64(delta.column("__k")))
    before = table.first_rows(keys, np.full(len(keys), need), by_code=by_code)
    shared = shared_keys([before, delta], schema)
    if len(shared):
        others = before.filter(pa.array(~np.isin(int64(before.column("__k")), shared)))
        before = concat([others, table.fetch(shared)], before.schema)
    rows = concat([before, delta], before.schema)
    k, code, weights = int64(rows.column("__k")), row_codes(rows, schema), int64(rows.column("__w"))
    order = stable_order([k, code])
    k, code = k[order], code[order]
    units = counted_units(k, code, weights[order], by_code=by_code)
    stays = leading(k, code, units, np.full(len(k), need)) | np.isin(k, shared)
    fresh = order >= before.num_rows
    changes = np.isin(k, np.unique(k[stays & fresh]))
    old, new = (in_row_order(rows, order[which & changes], schema) for which in (~fresh, stays))
    return Moved(rows, old, new, order[~stays & ~fresh], order[stays & fresh], schema)


def first_of(batches: list[pa.RecordBatch], keys: list[str], first: FirstRows) -> tuple[Bools, Ints]:
    """Which rows of all batches are among the first of their partition in them, and these in order of `__k`, code.

    All rows of partitions that share a `__k` are.
    """
    k = np.concatenate([int64(b.column("__k")) for b in batches])
    code = np.concatenate([int64(first.codes(b)) for b in batches])
    weights = np.concatenate([int64(b.column("__w")) for b in batches])
    order = stable_order([k, code])
    k, code = k[order], code[order]
    units = counted_units(k, code, weights[order], by_code=first.by_code)
    which = leading(k, code, units, np.full(len(k), first.need))
    if not which.all():
        which |= np.isin(k, _shared_within(batches, keys, order, k))
    keep = np.zeros(len(order), dtype=np.bool_)
    keep[order[which]] = True
    return keep, order[which]


def _shared_within(batches: list[pa.RecordBatch], keys: list[str], order: Ints, k: Ints) -> Ints:
    """Every `__k` of rows of different partitions; `order` sorts the rows of all batches by it, `k` is it in order."""
    columns = [pa.concat_arrays([b.column(name) for b in batches]) for name in keys]
    pairs = np.flatnonzero(k[1:] == k[:-1])
    equal = rows_equal(columns, order[pairs], columns, order[pairs + 1])
    return np.unique(k[pairs[~equal]])


__all__ = ["LeadingStage", "Moved", "advance", "first_of"]
