"""Grouping with accumulable aggregates: one look-up for each changed group, out come the old and the new row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.dataflow.operators.pairs import lookup, take_or_null
from headrace.dataflow.operators.task import Keyed, Labelled, Task, gathered, int64, sliced, state_batch
from headrace.dataflow.operators.values import Distinct, Ordered
from headrace.state import accumulators
from headrace.state.kernels import concat, consolidate, empty, rows_equal
from headrace.state.kernels.combine import add_double_double
from headrace.state.kernels.hashing import hash_columns
from headrace.state.schema import TableSchema

Columns = dict[str, pa.Array]
_Part = tuple[pa.RecordBatch, list[pa.RecordBatch], list[pa.RecordBatch]]
"""Changes of groups, of each table of distinct values, of each table of values in order."""


@dataclass(frozen=True)
class Sum:
    """One accumulator: its kind, the wire columns it is fed from, and how it is read.

    With `distinct` it is fed from the column `value` of that table of distinct values instead. An extremum of values
    that may be taken back is what `ordered` says.
    """

    kind: str
    prefix: str
    argument_type: pa.DataType
    result_type: pa.DataType
    with_count: bool
    distinct: int | None = None
    value: str = ""
    ordered: Ordered | None = None

    @property
    def diffs(self) -> list[str]:
        """Names of its diff columns."""
        return [f.name for f, _ in accumulators.state_diffs(self.kind, self.argument_type, self.prefix)]

    @property
    def shown(self) -> str | None:
        """The diff column with the bits of the sum as it was last put out."""
        return f"{self.prefix}_out" if self.kind == "sum_float" else None


@dataclass(frozen=True)
class AggregateStage(Labelled, Keyed):
    """State table `groups`. Input rows are `__k`, `__w`, group columns, wire columns `<prefix>_<suffix>`.

    Beside it there is a table for each kind of distinct values, and one for each extremum of changing values.

    A sum of doubles may differ in its last bits between the order in which it grew and that in which its runs are read.
    So that the very row is taken back that was put out, its bits are kept beside the sum.
    """

    operator: str
    schema: TableSchema
    sums: tuple[Sum, ...]
    output: pa.Schema
    """Group columns, results and their counts, `__w`."""
    distincts: tuple[Distinct, ...] = ()
    reduces = True

    @property
    def keyed(self) -> bool:
        """Not with distinct values: ranges of the groups' keys would not write their tables in order."""
        return not self.distincts

    @property
    def is_global(self) -> bool:
        """One group, which is there even without rows."""
        return not self.schema.key

    def run(self, task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Combine the epoch's rows by group, look up what was there, put out what changed."""
        parts = [self._part(part) for part in gathered(batches)]
        first = self.is_global and task.params.first
        if not parts and not first:
            return
        delta = self._combined([p[0] for p in parts])
        values = [_merged(d.schema, [p[1][i] for p in parts]) for i, d in enumerate(self.distincts)]
        if parts:
            for i, (table, change) in enumerate(zip(self.distincts, values)):
                delta = self._counted_once(delta, i, *table.transitions(task, change))
        k = int64(delta.column("__k"))
        names = [f.name for f in self.schema.key]
        old = task.arrangement("groups", self.schema).fetch(np.unique(k))
        found = lookup(k, [delta.column(n) for n in names], int64(old.column("__k")), [old.column(n) for n in names])
        before = self._before(old, found)
        after: Columns = {}
        for field, how in self.schema.diffs:
            self._combine(field.name, how, before, delta, after)
        for s in self.sums:
            if s.shown is not None:
                after[s.shown] = _bits(self._total(s, after), int64(after["__w"]) > 0)
        writes = [(d.table, d.schema, change) for d, change in zip(self.distincts, values)]
        for i, o in enumerate(self._ordered):
            change = _merged(o.schema, [p[2][i] for p in parts])
            before[o.wire], after[o.wire] = o.versions(task, delta, change)
            writes.append((o.table, o.schema, change))
        yield from self._changes(delta, before, after, first)
        task.write([("groups", self.schema, self._settled(delta, before, after)), *writes])

    @property
    def _ordered(self) -> list[Ordered]:
        return [s.ordered for s in self.sums if s.ordered is not None]

    def _part(self, batch: pa.RecordBatch) -> _Part:
        """What some rows of the epoch come to: by group, by distinct value, by value that may be an extremum."""
        return self._delta(batch), [d.delta(batch) for d in self.distincts], [o.delta(batch) for o in self._ordered]

    def _delta(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The change of every group that has rows; where values are kept beside it, of those that stay equal, too."""
        columns = {n: batch.column(n) for n in ("__k", "__w", *(f.name for f in self.schema.key))}
        weights = int64(batch.column("__w"))
        for s in self.sums:
            if s.distinct is None:
                wire = [batch.column(f"{s.prefix}_{suffix}") for suffix in accumulators.wire_columns(s.kind)]
                columns.update(zip(s.diffs, accumulators.to_diffs(s.kind, wire, weights)))
        return consolidate(self._with_zeros(columns), self.schema, keep_zeros=self._keeps_values)

    def _combined(self, parts: list[pa.RecordBatch]) -> pa.RecordBatch:
        target = self.schema.arrow()
        delta = parts[0] if len(parts) == 1 else empty(target)
        if len(parts) > 1:
            delta = consolidate(concat(parts, target), self.schema, keep_zeros=self._keeps_values)
        return self._zero(target) if self.is_global and not delta.num_rows else delta

    @property
    def _keeps_values(self) -> bool:
        return bool(self.distincts or self._ordered)

    def _with_zeros(self, columns: Columns) -> pa.RecordBatch:
        """A batch of the state's layout in which diffs that are not given change nothing."""
        n = len(columns["__k"])
        for field, how in self.schema.diffs:
            if field.name not in columns:
                nothing = pa.nulls(n, field.type)
                columns[field.name] = nothing if how in ("min", "max") else pc.fill_null(nothing, 0)
        return state_batch(self.schema, columns)

    def _counted_once(self, delta: pa.RecordBatch, i: int, rows: pa.RecordBatch, signs: np.ndarray) -> pa.RecordBatch:
        """The groups' change with what the values do that came or went for good."""
        if not rows.num_rows:
            return delta
        columns: Columns = {f.name: rows.column(f.name) for f in self.schema.key}
        columns["__k"] = delta.column("__k").take(pa.array(self._groups_of(delta, rows)))
        columns["__w"] = pa.array(np.zeros(len(signs), dtype=np.int64))
        for s in self.sums:
            if s.distinct == i:
                columns.update(zip(s.diffs, accumulators.from_values(s.kind, rows.column(s.value), signs)))
        return consolidate(concat([delta, self._with_zeros(columns)], delta.schema), self.schema, keep_zeros=True)

    def _groups_of(self, delta: pa.RecordBatch, rows: pa.RecordBatch) -> np.ndarray:
        """For each row the position of its group in `delta`, which has all of them."""
        if self.is_global:
            return np.zeros(rows.num_rows, dtype=np.int64)
        groups, wanted = ([b.column(f.name) for f in self.schema.key] for b in (delta, rows))
        hashes = hash_columns(groups)
        order = np.argsort(hashes)
        found = lookup(hash_columns(wanted), wanted, hashes[order], [c.take(pa.array(order)) for c in groups])
        assert (found >= 0).all(), "a value of a group that the epoch has no row of"
        return order[found]

    def _zero(self, target: pa.Schema) -> pa.RecordBatch:
        """The group of a global aggregate without any rows."""
        arrays = [pa.array([0], pa.int64())]
        for field, how in self.schema.diffs:
            arrays.append(pa.array([None if how in ("min", "max") else 0], field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=target)

    def _before(self, old: pa.RecordBatch, found: np.ndarray) -> Columns:
        columns = {}
        for field, how in self.schema.diffs:
            values = take_or_null(old.column(field.name), found)
            columns[field.name] = values if how in ("min", "max") else pc.fill_null(values, 0)
        return columns

    def _combine(self, name: str, how: str, before: Columns, delta: pa.RecordBatch, after: Columns) -> None:
        if name in after:
            return
        if how == "add":
            after[name] = pa.array(int64(before[name]) + int64(delta.column(name)))
        elif how == "twosum":
            low = f"{name}__lo"
            high_sum, low_sum = add_double_double(
                *(np.asarray(c) for c in (before[name], before[low], delta.column(name), delta.column(low)))
            )
            after[name], after[low] = pa.array(high_sum), pa.array(low_sum)
        else:
            kind = before[name].type
            plain = pa.timestamp(kind.unit) if pa.types.is_timestamp(kind) else kind  # the kernels know no zones
            pick = pc.min_element_wise if how == "min" else pc.max_element_wise
            after[name] = pick(before[name].cast(plain), delta.column(name).cast(plain)).cast(kind)

    def _settled(self, delta: pa.RecordBatch, before: Columns, after: Columns) -> pa.RecordBatch:
        """What to store: a group that vanished takes its rounding residue with it."""
        gone = int64(after["__w"]) == 0
        shown = {s.shown for s in self.sums}
        arrays = []
        for field in delta.schema:
            column = delta.column(field.name)
            if field.name in shown:
                column = pa.array(int64(after[field.name]) - int64(before[field.name]))
            elif field.type == pa.float64() and field.name in before and gone.any():
                column = pa.array(np.where(gone, -np.asarray(before[field.name]), np.asarray(column)))
            arrays.append(column)
        return consolidate(pa.RecordBatch.from_arrays(arrays, schema=delta.schema), self.schema)

    def _total(self, s: Sum, diffs: Columns) -> pa.Array:
        if s.ordered is not None:
            return diffs[s.ordered.wire]
        return accumulators.read(s.kind, [diffs[n] for n in s.diffs], s.result_type)

    def _values(self, diffs: Columns, *, shown: bool) -> list[pa.Array]:
        """Sums and counts by the diffs; with `shown`, sums of doubles as they were put out."""
        values = []
        for s in self.sums:
            total = self._total(s, diffs)
            if shown and s.shown is not None:
                total = pc.if_else(pc.is_valid(total), pa.array(int64(diffs[s.shown]).view(np.float64)), total)
            values.append(total)
            if s.with_count:
                values.append(accumulators.counted(s.kind, [diffs[n] for n in s.diffs]))
        return values

    def _changes(self, delta: pa.RecordBatch, before: Columns, after: Columns, first: bool) -> Iterator[pa.RecordBatch]:
        n = delta.num_rows
        was = np.full(n, not first) if self.is_global else int64(before["__w"]) > 0
        now = np.ones(n, dtype=bool) if self.is_global else int64(after["__w"]) > 0
        old_values, new_values = self._values(before, shown=True), self._values(after, shown=False)
        everyone = np.arange(n)
        same = was & now
        if old_values:
            same &= rows_equal(old_values, everyone, new_values, everyone)
        groups = [delta.column(f.name) for f in self.schema.key]
        for mask, values, weight in ((was & ~same, old_values, -1), (now & ~same, new_values, 1)):
            rows = pa.array(np.flatnonzero(mask))
            columns = [c.take(rows) for c in (*groups, *values)]
            weights = pa.array(np.full(len(rows), weight, dtype=np.int64))
            batch = pa.RecordBatch.from_arrays([*columns, weights], schema=self.output)
            yield from sliced(batch)


def _bits(totals: pa.Array, there: np.ndarray) -> pa.Array:
    """The bits of doubles as integers; 0 for null, and for groups that are gone."""
    bits = np.asarray(pc.fill_null(totals, 0.0)).view(np.int64)
    return pa.array(np.where(there & np.asarray(pc.is_valid(totals)), bits, 0))


def _merged(schema: TableSchema, parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The changes of one table of values together."""
    if len(parts) == 1:
        return parts[0]
    return consolidate(concat(parts, schema.arrow()), schema) if parts else empty(schema.arrow())
