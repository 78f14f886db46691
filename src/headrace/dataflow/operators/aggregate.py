"""Grouping with accumulable aggregates: one look-up for each changed group, out come the old and the new row.

The old row goes out with -1, the new one with +1. A global aggregate always has its one row. The view's old row needs
no copy to be taken back: exact sums give the same bits again.

Variance, `corr` and the like keep no sums; they are group recompute. Spark's batch answer rounds after each addition
of doubles, in an order that it does not promise, and may overflow on the way: tests compare with exact fractions
where that shows, else to ten digits. docs/design/0002 says how sums are kept.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.dataflow.operators.group_changes import Columns, GroupChanges, Sum, merged
from headrace.dataflow.operators.kept_values import Distinct, Ordered
from headrace.dataflow.operators.pairs import fetched, take_or_null
from headrace.dataflow.operators.task import Keyed, Labelled, Task, gathered, int64, sliced, state_batch
from headrace.state.kernels import checked, consolidate, neutral, or_neutral, rows_equal, totals
from headrace.state.schema import TableSchema

_Part = tuple[pa.RecordBatch, list[pa.RecordBatch], list[pa.RecordBatch]]
"""Changes of groups, of each table of distinct values, of each table of values in order."""


@dataclass(frozen=True)
class AggregateStage(Labelled, Keyed):
    """State table `groups`. Input rows are `__k`, `__w`, group columns, wire columns `<prefix>_<suffix>`.

    Beside it there is a table for each kind of distinct values, and one for each extremum of changing values.

    What is read of the sums depends on nothing but the rows, so that the very row is taken back that was put out.
    """

    operator: str
    schema: TableSchema
    sums: tuple[Sum, ...]
    output: pa.Schema
    """Group columns, results and their counts, `__w`."""
    distincts: tuple[Distinct, ...] = ()
    changed: bool = False
    """Input rows are changes of groups, as a `DistinctStage` puts them out."""
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
        changes = GroupChanges(self.schema, self.sums, self.distincts, bool(self.distincts or self._ordered))
        parts = [self._part(changes, part) for part in gathered(batches)]
        first = self.is_global and task.params.first
        if not parts and not first:
            return
        delta = changes.together([p[0] for p in parts])
        if self.is_global and not delta.num_rows:
            delta = self._zero()
        delta, writes = changes.counted_once(task, delta, [p[1] for p in parts])
        old, found = fetched(task.arrangement("groups", self.schema), delta)
        before = self._before(old, found)
        after: Columns = {}
        for field, how in self.schema.diffs:
            what = checked.ROWS if field.name == "__w" else checked.SUMS
            after[field.name] = totals(how, before[field.name], delta.column(field.name), what)
        for i, o in enumerate(self._ordered):
            change = merged(o.schema, [p[2][i] for p in parts])
            before[o.wire], after[o.wire] = o.versions(task, delta, change)
            writes.append((o.table, o.schema, change))
        yield from self._changes(delta, before, after, first)
        task.write([("groups", self.schema, consolidate(delta, self.schema)), *writes])

    @property
    def _ordered(self) -> list[Ordered]:
        return [s.ordered for s in self.sums if s.ordered is not None]

    def _part(self, changes: GroupChanges, batch: pa.RecordBatch) -> _Part:
        """What some rows of the epoch come to: by group, by distinct value, by value that may be an extremum."""
        if self.changed:
            columns = {f.name: batch.column(f.name) for f in self.schema.arrow()}
            return consolidate(state_batch(self.schema, columns), self.schema), [], []
        return changes.of_rows(batch), [d.delta(batch) for d in self.distincts], [o.delta(batch) for o in self._ordered]

    def _zero(self) -> pa.RecordBatch:
        """The group of a global aggregate without any rows."""
        arrays = [pa.array([0], pa.int64())]
        for field, how in self.schema.diffs:
            arrays.append(neutral(how, field.type, 1))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema.arrow())

    def _before(self, old: pa.RecordBatch, found: np.ndarray) -> Columns:
        columns = {}
        for field, how in self.schema.diffs:
            columns[field.name] = or_neutral(how, take_or_null(old.column(field.name), found))
        return columns

    def _total(self, s: Sum, diffs: Columns) -> pa.Array:
        if s.ordered is not None:
            return diffs[s.ordered.wire]
        return s.accumulator.read([diffs[n] for n in s.diffs])

    def _values(self, diffs: Columns) -> list[pa.Array]:
        """Sums and counts by the diffs."""
        values = []
        for s in self.sums:
            values.append(self._total(s, diffs))
            if s.with_count:
                values.append(s.accumulator.counted([diffs[n] for n in s.diffs]))
        return values

    def _changes(self, delta: pa.RecordBatch, before: Columns, after: Columns, first: bool) -> Iterator[pa.RecordBatch]:
        n = delta.num_rows
        was = np.full(n, not first) if self.is_global else int64(before["__w"]) > 0
        now = np.ones(n, dtype=bool) if self.is_global else int64(after["__w"]) > 0
        old_values, new_values = self._values(before), self._values(after)
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
