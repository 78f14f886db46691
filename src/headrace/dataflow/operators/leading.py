"""The first rows of every partition of an input that only grows: nothing else has to be kept.

A row that has once fallen behind the first rows of its partition never comes back, because no row in front of it goes.

So the state gets what has come among the first rows and loses what has fallen behind; `EXPLAIN` says `keeps the first
N rows`, and so does the fingerprint. Where such an input is a leaf, its tasks pass on only their own first rows of
each partition. Partitions that share a `__k` are kept whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.dataflow.operators.first_rows import keys_shared, row_codes, shared_keys
from headrace.dataflow.operators.recompute import NEW, OLD, FirstRows, versions
from headrace.dataflow.operators.spill import Account
from headrace.dataflow.operators.task import GATHER_ROWS, Keyed, Labelled, Task, Unkeyed, int64, state_batch
from headrace.errors import HeadraceError
from headrace.state.arrangement import Arrangement
from headrace.state.kernels import concat, consolidate, in_row_order, joined, negated, sizes, stable_order, take
from headrace.state.kernels.equality import Bools, Ints
from headrace.state.kernels.hashing import hash_columns
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
        codes = joined([self.first.codes(b) for b in batches], "__h")
        keys = [_column(batches, f.name) for f in self.schema.key]
        k, weights = (int64(_column(batches, name)) for name in ("__k", "__w"))
        keep, order = first_of(k, weights, int64(codes), keys, self.first)
        kept = [b.select([n for n in self.schema.arrow().names if n != "__h"]) for b in _filtered(batches, keep)]
        delta = concat(kept, kept[0].schema)
        columns = dict(zip(delta.schema.names, delta.columns))
        columns["__h"] = codes.filter(pa.array(keep))
        delta = state_batch(self.schema, columns)
        places = np.cumsum(keep) - 1
        return consolidate(take(delta, places[order]), self.schema)


@dataclass(frozen=True)
class FirstOfInputStage(Unkeyed, Labelled):
    """What a leaf's task has read of an input that only grows: only the first rows of each partition go on."""

    operator: str
    """The operator that keeps the first rows."""
    by: tuple[str, ...]
    """Columns that make a partition."""
    first: FirstRows
    weak_hash: int | None = None
    """Keeps only that many different hash values: for tests."""
    role = "first"

    def run(self, task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The first rows of all that there is room for, and so on."""
        account = Account(task.memory)
        held: list[pa.RecordBatch] = []
        rows = nbytes = 0
        try:
            for batch in batches:
                held.append(batch)
                rows += batch.num_rows
                nbytes += batch.nbytes
                full = rows >= GATHER_ROWS or nbytes >= sizes.CHUNK_BYTES
                if full or (task.params.memory_bytes and not account.take(batch)):
                    yield from self._first(held)
                    held, rows, nbytes = [], 0, 0
                    account.release()
            yield from self._first(held)
        finally:
            account.release()

    def _first(self, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if not batches:
            return
        keys = [_column(batches, name) for name in self.by]
        weights = int64(_column(batches, "__w"))
        k = hash_columns(keys) if keys else np.zeros(len(weights), dtype=np.int64)
        if self.weak_hash is not None:
            k %= self.weak_hash
        codes = np.concatenate([int64(self.first.codes(b)) for b in batches])
        yield from _filtered(batches, first_of(k, weights, codes, keys, self.first)[0])


@dataclass(frozen=True)
class FirstRowsChange:
    """What a delta makes of the first rows of its partitions."""

    rows: pa.RecordBatch
    """The first rows that there were, and the delta."""
    old: Ints
    """Places of the first rows of all partitions that change, as they were."""
    new: Ints
    """Places of the first rows of these partitions as they are now."""
    left: Ints
    """Places of the rows that are not among the first any more."""
    entered: Ints
    """Places of the rows that have become so."""
    schema: TableSchema

    def written(self) -> pa.RecordBatch:
        """The change of the state table, sorted."""
        gone, come = take(self.rows, self.left), take(self.rows, self.entered)
        return consolidate(concat([negated(gone, self.schema), come], self.rows.schema), self.schema)


def advance(table: Arrangement, delta: pa.RecordBatch, need: int, *, by_code: bool = False) -> FirstRowsChange:
    """The first `need` rows of every partition in `delta` before and after it, with those that tie with the last.

    Or those of the first `need` values, `by_code`. The delta is sorted, and none of its weights is negative.
    """
    schema = table.schema
    delta_k = int64(delta.column("__k"))
    keys = delta_k[_starts(delta_k)]
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
    stays = leading(k, code, units, np.full(len(k), need))
    if len(shared):
        stays |= np.isin(k, shared)
    fresh = order >= before.num_rows
    key = np.cumsum(_starts(k)) - 1
    changed = np.zeros(len(keys), dtype=np.bool_)
    changed[key[stays & fresh]] = True
    changes = changed[key]
    old, new = (in_row_order(rows, order[which & changes], schema) for which in (~fresh, stays))
    return FirstRowsChange(rows, old, new, order[~stays & ~fresh], order[stays & fresh], schema)


def first_of(k: Ints, weights: Ints, code: Ints, keys: Sequence[pa.Array], first: FirstRows) -> tuple[Bools, Ints]:
    """Which rows are among the first of their partition, and these in order of `k` and order code.

    `keys` are the columns that make a partition. All rows of partitions that share a `k` are among the first.
    """
    order = stable_order([k, code])
    k, code = k[order], code[order]
    units = counted_units(k, code, weights[order], by_code=first.by_code)
    which = leading(k, code, units, np.full(len(k), first.need))
    if not which.all():
        shared = keys_shared(k, order, keys)
        if len(shared):
            which |= np.isin(k, shared)
    keep = np.zeros(len(order), dtype=np.bool_)
    keep[order[which]] = True
    return keep, order[which]


def _starts(k: Ints) -> Bools:
    """Which rows of sorted keys are the first of theirs."""
    starts = np.ones(len(k), dtype=np.bool_)
    starts[1:] = k[1:] != k[:-1]
    return starts


def _column(batches: Sequence[pa.RecordBatch], name: str) -> pa.Array:
    return joined([b.column(name) for b in batches], name)


def _filtered(batches: Sequence[pa.RecordBatch], keep: Bools) -> Iterator[pa.RecordBatch]:
    """Those rows of all batches, one after the other, that are to be kept."""
    start = 0
    for batch in batches:
        part = keep[start : start + batch.num_rows]
        start += batch.num_rows
        if part.any():
            yield batch if part.all() else batch.filter(pa.array(part))


__all__ = ["FirstOfInputStage", "LeadingStage", "FirstRowsChange", "advance", "first_of"]
