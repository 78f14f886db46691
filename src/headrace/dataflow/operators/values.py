"""What an aggregate keeps of the values themselves: those it counts once, and those of which it wants the first.

Both are state tables beside the sums of `AggregateStage`, and cost a look-up for each value or group that changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.dataflow.operators.first_rows import first_versions
from headrace.dataflow.operators.pairs import lookup
from headrace.dataflow.operators.task import Task, int64, state_batch
from headrace.state.kernels import consolidate, extrema
from headrace.state.kernels.equality import Ints
from headrace.state.kernels.hashing import hash_columns
from headrace.state.kernels.order_code import SortKey, order_codes
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
        columns["__h"] = pa.array(order_codes([values], [SortKey(self.largest, None)]))
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
    """Key: the group, then the values."""
    wire: tuple[str, ...]
    weak_hash: int | None = None
    """Only that many different hash values: for tests, that collisions change nothing."""

    @property
    def values(self) -> list[str]:
        """Names of the value columns."""
        return [f.name for f in self.schema.key[-len(self.wire) :]]

    def delta(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The table's change, from rows with `__w`, group columns and the values."""
        for name in self.wire:
            batch = batch.filter(pc.is_valid(batch.column(name)))
        groups = [f.name for f in self.schema.key[: -len(self.wire)]]
        columns = {n: batch.column(n) for n in groups} | {
            n: batch.column(wire) for n, wire in zip(self.values, self.wire)
        }
        # The group's own hash stands for its columns, which may be long and are the same in many rows.
        hashes = hash_columns([batch.column("__k"), *(columns[n] for n in self.values)])
        columns["__k"] = pa.array(hashes if self.weak_hash is None else hashes % self.weak_hash)
        columns["__w"] = batch.column("__w")
        return consolidate(state_batch(self.schema, columns), self.schema)

    def transitions(self, task: Task, delta: pa.RecordBatch) -> tuple[pa.RecordBatch, Ints]:
        """Rows whose count passed between zero and more, and +1 or -1 for each."""
        k = int64(delta.column("__k"))
        old = task.arrangement(self.table, self.schema).fetch(np.unique(k))
        names = [f.name for f in self.schema.key]
        found = lookup(k, [delta.column(n) for n in names], int64(old.column("__k")), [old.column(n) for n in names])
        before = np.zeros(len(k), dtype=np.int64)
        before[found >= 0] = int64(old.column("__w"))[found[found >= 0]]
        after = before + int64(delta.column("__w"))
        signs = (after > 0).astype(np.int64) - (before > 0).astype(np.int64)
        changed = np.flatnonzero(signs)
        return delta.take(pa.array(changed)), signs[changed]


__all__ = ["Distinct", "Ordered"]
