"""What rows come to by group: the change of the sums that `AggregateStage` keeps, with values that count once.

A row is sent once for each kind of values (`Expand`), the first time with what it adds to the plain sums; Spark
combines such rows by group and value, this stage looks the values up and puts out by how much groups change, and a
second one adds that to the groups. So one group has as many tasks as there are. Only where minima or maxima may be
taken back, all rows of a group come to one task, which does both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.dataflow.operators.kept_values import Distinct, Ordered
from headrace.dataflow.operators.pairs import lookup
from headrace.dataflow.operators.task import Keyed, Labelled, Task, gathered, int64, sliced, state_batch
from headrace.state.accumulators import Accumulator
from headrace.state.kernels import concat, consolidate, empty, neutral
from headrace.state.kernels.equality import Ints
from headrace.state.kernels.hashing import hash_columns
from headrace.state.schema import TableSchema

Columns = dict[str, pa.Array]
Write = tuple[str, TableSchema, pa.RecordBatch]
"""A state table's name and layout, and its change."""


@dataclass(frozen=True)
class Sum:
    """An accumulator, and what it is fed from: wire columns whose names begin with `prefix`.

    With `distinct` it is fed from the column `value` of that table of distinct values instead, of which those count
    whose `weight` there is above zero. An extremum of values that may be taken back is what `ordered` says.
    """

    accumulator: Accumulator
    prefix: str
    with_count: bool
    """Whether the number of rows is put out, too."""
    distinct: int | None = None
    value: str = ""
    weight: str = "__w"
    ordered: Ordered | None = None

    @property
    def diffs(self) -> list[str]:
        """Names of its diff columns."""
        return [f.name for f, _ in self.accumulator.diffs(self.prefix)]


@dataclass(frozen=True)
class GroupChanges:
    """From rows with `__k`, `__w`, group columns and wire columns `<prefix>_<suffix>` to changes in the groups' layout.

    Where values are kept beside the sums (`keeps_values`), groups are told of that stay equal, too.
    """

    schema: TableSchema
    sums: tuple[Sum, ...]
    distincts: tuple[Distinct, ...] = ()
    keeps_values: bool = False

    def of_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What some rows change by themselves: all but what is fed from distinct values."""
        columns = {n: batch.column(n) for n in ("__k", "__w", *(f.name for f in self.schema.key))}
        weights = int64(batch.column("__w"))
        for s in self.sums:
            if s.distinct is None:
                sent = [batch.column(f"{s.prefix}_{w.suffix}") for w in s.accumulator.wire]
                columns.update(zip(s.diffs, s.accumulator.of_rows(sent, weights)))
        return consolidate(self._with_zeros(columns), self.schema, keep_zeros=self.keeps_values)

    def together(self, parts: list[pa.RecordBatch]) -> pa.RecordBatch:
        """Changes of groups as one."""
        target = self.schema.arrow()
        if len(parts) < 2:
            return parts[0] if parts else empty(target)
        return consolidate(concat(parts, target), self.schema, keep_zeros=self.keeps_values)

    def counted_once(
        self, task: Task, delta: pa.RecordBatch, parts: list[list[pa.RecordBatch]]
    ) -> tuple[pa.RecordBatch, list[Write]]:
        """The groups' change with what the values do that came or went for good, and the change of their tables.

        `parts` are changes of the tables of distinct values, in their order; `delta` has all groups of their rows.
        """
        writes: list[Write] = []
        for i, table in enumerate(self.distincts):
            change = merged(table.schema, [p[i] for p in parts])
            rows, signs = table.transitions(task, change)
            if rows.num_rows:
                delta = self._with_values(delta, i, rows, signs)
            writes.append((table.table, table.schema, change))
        return delta, writes

    def _with_values(
        self, delta: pa.RecordBatch, i: int, rows: pa.RecordBatch, signs: Mapping[str, Ints]
    ) -> pa.RecordBatch:
        columns: Columns = {"__k": pa.array(self._groups_of(delta, rows))}
        for s in self.sums:
            if s.distinct == i:
                found = s.accumulator.of_values(rows.column(s.value), signs[s.weight])
                columns.update(zip(s.diffs, found))
        by_place = TableSchema((), (), tuple((f, how) for f, how in self.schema.diffs if f.name in columns))
        once = consolidate(state_batch(by_place, columns), by_place)
        place = once.column("__k")
        columns = {f.name: delta.column(f.name).take(place) for f in self.schema.key}
        columns |= {"__k": delta.column("__k").take(place), "__w": pa.array(np.zeros(len(place), dtype=np.int64))}
        columns |= {f.name: once.column(f.name) for f, _ in by_place.diffs}
        return consolidate(concat([delta, self._with_zeros(columns)], delta.schema), self.schema, keep_zeros=True)

    def _groups_of(self, delta: pa.RecordBatch, rows: pa.RecordBatch) -> Ints:
        """For each row the position of its group in `delta`, which has all of them."""
        if not self.schema.key:
            return np.zeros(rows.num_rows, dtype=np.int64)
        groups, wanted = ([b.column(f.name) for f in self.schema.key] for b in (delta, rows))
        hashes = hash_columns(groups)
        order = np.argsort(hashes)
        found = lookup(hash_columns(wanted), wanted, hashes[order], [c.take(pa.array(order)) for c in groups])
        assert (found >= 0).all(), "a value of a group that the epoch has no row of"
        return order[found]

    def _with_zeros(self, columns: Columns) -> pa.RecordBatch:
        """A batch of the state's layout in which diffs that are not given change nothing."""
        n = len(columns["__k"])
        for field, how in self.schema.diffs:
            if field.name not in columns:
                columns[field.name] = neutral(how, field.type, n)
        return state_batch(self.schema, columns)


@dataclass(frozen=True)
class DistinctStage(Keyed, Labelled):
    """Counts values once: state tables `distinct<i>`, by group and value. What it puts out are changes of groups.

    So it can run in many tasks for one group. A row has values for one of the tables at most, nulls for the others.
    """

    operator: str
    changes: GroupChanges
    reduces = True
    role = "distinct"

    def keys(self, batch: pa.RecordBatch) -> np.ndarray:
        """The `__k` of a row in the table that it has values for."""
        found = np.zeros(batch.num_rows, dtype=np.int64)
        for table in self.changes.distincts:
            rows, there = table.rows(batch)
            found[there] = table.hashes(rows)
        return found

    def run(self, task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Look up the values that have rows; put out, by group, what rows and values change."""
        changes = self.changes
        parts = [(changes.of_rows(b), [d.delta(b) for d in changes.distincts]) for b in gathered(batches)]
        if not parts:
            return
        delta, writes = changes.counted_once(task, changes.together([p[0] for p in parts]), [p[1] for p in parts])
        yield from sliced(consolidate(delta, changes.schema))
        task.write(writes)


def merged(schema: TableSchema, parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The changes of one table of values together."""
    if len(parts) == 1:
        return parts[0]
    return consolidate(concat(parts, schema.arrow()), schema) if parts else empty(schema.arrow())


__all__ = ["DistinctStage", "GroupChanges", "Sum", "Write", "merged"]
