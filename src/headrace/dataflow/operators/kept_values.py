"""What an aggregate keeps of the values themselves: those it counts once, and those of which it wants the first.

Both are state tables beside the sums of `AggregateStage`, and cost a look-up for each value or group that changes.

A minimum or maximum over input that can change looks up the first code of each changed group before and after, and
chooses among the few values that share it. A DISTINCT aggregate looks up each changed value: where its weight for an
aggregate's filter passes between zero and more, the value goes into or out of the sums. All aggregates over the same
values share a table, which has one weight for each different filter.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.lazy_dataclass import dataclass
from headrace.dataflow.operators.first_rows import first_versions
from headrace.dataflow.operators.pairs import fetched, lookup
from headrace.dataflow.operators.task import Task, int64, state_batch
from headrace.state.kernels import checked, consolidate, extrema
from headrace.state.kernels.equality import Bools, Ints, validity
from headrace.state.kernels.hashing import hash_columns
from headrace.state.kernels.order_code import OrderColumn, order_codes
from headrace.state.schema import TableSchema


@dataclass(frozen=True)
class Ordered:
    """The values of each group in the order in which its minimum (or maximum) comes first; nulls are left out."""

    table: str
    schema: TableSchema
    """Key: the group. Value: one column."""
    wire: str
    largest: bool

    def delta(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The table's change, from rows with `__k`, `__w`, group columns and the value."""
        rows = batch.filter(pc.is_valid(batch.column(self.wire)))
        values = rows.column(self.wire)
        columns = {f.name: rows.column(f.name) for f in self.schema.key}
        columns |= {"__k": rows.column("__k"), "__w": rows.column("__w"), self.schema.value[0].name: values}
        columns["__h"] = pa.array(order_codes([values], [OrderColumn(self.largest, None)]))
        return consolidate(state_batch(self.schema, columns), self.schema)

    def versions(self, task: Task, groups: pa.RecordBatch, delta: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
        """The extremum of each of the groups (sorted by `__k`), before and after the change; null without values."""
        before, after = first_versions(task.arrangement(self.table, self.schema), groups, delta, 1)
        return self._extrema(before, groups), self._extrema(after, groups)

    def _extrema(self, rows: pa.RecordBatch, groups: pa.RecordBatch) -> pa.Array:
        names = [f.name for f in self.schema.key]
        keys, group_keys = [rows.column(n) for n in names], [groups.column(n) for n in names]
        place = lookup(int64(rows.column("__k")), keys, int64(groups.column("__k")), group_keys)
        found = np.flatnonzero(place >= 0)
        values = rows.column(self.schema.value[0].name).take(pa.array(found))
        return extrema(values, place[found], groups.num_rows, largest=self.largest)


@dataclass(frozen=True)
class Distinct:
    """How often each group has each value (of one or more columns, none null): so that it is counted once."""

    table: str
    schema: TableSchema
    """Key: the group, then the values. Diffs: one weight for all rows, others for those that pass a filter."""
    wire: tuple[str, ...]
    weights: tuple[str, ...] = ("__w",)
    """For each diff the wire column that feeds it."""
    weak_hash: int | None = None
    """Only that many different hash values: for tests, that collisions change nothing."""

    @property
    def values(self) -> list[str]:
        """Names of the value columns."""
        return [f.name for f in self.schema.key[-len(self.wire) :]]

    def rows(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Bools]:
        """The rows of a batch that have a value, and where they are in it."""
        there = np.ones(batch.num_rows, dtype=np.bool_)
        for name in self.wire:
            present = validity(batch.column(name))
            if present is not None:
                there &= present
        names = dict.fromkeys(["__k", *self._groups, *self.wire, *self.weights])
        rows = batch.select(list(names))
        return rows if there.all() else rows.filter(pa.array(there)), there

    def hashes(self, rows: pa.RecordBatch) -> Ints:
        """`__k` of rows in the table."""
        # The group's own hash stands for its columns, which may be long and are the same in many rows.
        hashes = hash_columns([rows.column("__k"), *(rows.column(n) for n in self.wire)])
        return hashes if self.weak_hash is None else hashes % self.weak_hash

    def delta(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The table's change, from rows with `__k` of the group, group columns, the values and weights."""
        rows, _ = self.rows(batch)
        columns = {n: rows.column(n) for n in self._groups}
        columns |= {n: rows.column(wire) for n, wire in zip(self.values, self.wire)}
        columns |= {field.name: rows.column(wire) for (field, _), wire in zip(self.schema.diffs, self.weights)}
        columns["__k"] = pa.array(self.hashes(rows))
        return consolidate(state_batch(self.schema, columns), self.schema)

    def transitions(self, task: Task, delta: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, Ints]]:
        """Rows with a weight that passed between zero and more, and for each weight +1, -1 or 0 of each."""
        old, found = fetched(task.arrangement(self.table, self.schema), delta)
        known = found >= 0
        signs, moved = {}, np.zeros(delta.num_rows, dtype=np.bool_)
        for field, _ in self.schema.diffs:
            before = np.zeros(delta.num_rows, dtype=np.int64)
            before[known] = int64(old.column(field.name))[found[known]]
            after = checked.plus(before, int64(delta.column(field.name)), checked.ROWS)
            signs[field.name] = (after > 0).astype(np.int64) - (before > 0).astype(np.int64)
            moved |= signs[field.name] != 0
        changed = np.flatnonzero(moved)
        return delta.take(pa.array(changed)), {name: sign[changed] for name, sign in signs.items()}

    @property
    def _groups(self) -> list[str]:
        return [f.name for f in self.schema.key[: -len(self.wire)]]


__all__ = ["Distinct", "Ordered"]
