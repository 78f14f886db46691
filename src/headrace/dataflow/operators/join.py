"""The inner part of a join, with both sides arranged by the join key: in state of its own, or as a relation is.

The change is `added(dL) * R_new - removed(dL) * R_old + L_kept * dR`, where `L_kept` is `L_old` without what was
removed: every pair of it was or is in the result. In the shorter `dL * R_new + L_old * dR` rows that go meet rows that
come; these pairs cancel out, but not before the query's own expressions, which may fail on them, have been computed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.lazy_dataclass import dataclass
from headrace.dataflow.operators.pairs import Ints, in_pieces, matching_pairs
from headrace.dataflow.operators.shared_sides import SharedRows, row_hashes, unique
from headrace.dataflow.operators.task import Keyed, Labelled, Task, collect, int64, sliced, state_batch
from headrace.state.kernels import checked, concat, consolidate
from headrace.state.schema import TableSchema

PAIR, LEFT, RIGHT = 0, 1, 2
"""What an output row is (`__t`): a joined pair, or a row of a preserved side on its way to be counted."""


@dataclass(frozen=True)
class Side:
    """One side: where its columns travel in the common row of both sides, and how they are kept."""

    name: str
    schema: TableSchema
    slots: tuple[int, ...]
    preserved: bool
    shared: SharedRows | None = None
    """Where its rows are looked up; None for a side with a state table."""

    def by_key(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of either side by the `__k` by which this side's rows are found."""
        return rows if self.shared is None else self.shared.by_key(rows)

    def stored(self, task: Task, keys: Ints) -> pa.RecordBatch:
        """The side's rows so far with these `__k` (sorted, unique)."""
        if self.shared is None:
            return task.arrangement(self.name, self.schema).fetch(keys)
        return self.shared.fetch(task, keys, self.schema)


@dataclass(frozen=True)
class JoinStage(Labelled, Keyed):
    """State tables `left` and `right`, but for a side that is shared.

    Input rows are `__s` (0 left, 1 right), `__k`, `__h`, `__w`, keys, slots.
    """

    operator: str
    left: Side
    right: Side
    output: pa.Schema

    def run(self, task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join the deltas with each other and with what is stored."""
        batch = collect(batches)
        if batch is None:
            return
        is_right = int64(batch.column("__s").cast(pa.int64())) == 1
        left, left_loose = self._delta(batch, ~is_right, self.left)
        right, right_loose = self._delta(batch, is_right, self.right)
        yield from self._left_changes(task, left, right)
        yield from self._right_changes(task, left, right)
        for side, tag, rows in ((self.left, LEFT, left), (self.right, RIGHT, right)):
            if side.preserved:
                yield from self._preserved(rows, side, tag)
        yield from self._preserved(left_loose, self.left, LEFT)
        yield from self._preserved(right_loose, self.right, RIGHT)
        sides = ((self.left, left), (self.right, right))
        task.write([(side.name, side.schema, rows) for side, rows in sides if side.shared is None])

    def _left_changes(self, task: Task, left: pa.RecordBatch, right: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """`added(dL) * R_new - removed(dL) * R_old`."""
        left, right = self.right.by_key(left), self.right.by_key(right)
        old = self.right.stored(task, unique(left))
        new = consolidate(concat([old, right], right.schema), self.right.schema)
        removed, added = _signs(left)
        yield from self._pairs(added, new)
        yield from self._pairs(removed, old)

    def _right_changes(self, task: Task, left: pa.RecordBatch, right: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """`L_kept * dR`."""
        left, right = self.left.by_key(left), self.left.by_key(right)
        old = self.left.stored(task, unique(right))
        kept = consolidate(concat([old, _of_keys(_signs(left)[0], right)], left.schema), self.left.schema)
        yield from self._pairs(kept, right)

    @property
    def tagged(self) -> bool:
        """Whether output rows carry `__t`."""
        return self.left.preserved or self.right.preserved

    def _delta(self, batch: pa.RecordBatch, mask: np.ndarray, side: Side) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The side's consolidated delta, and apart from it the rows that can match nothing for a null in the key."""
        rows = batch.filter(pa.array(mask))
        columns = {name: rows.column(name) for name in ("__k", "__h", "__w") if name in rows.schema.names}
        for f in side.schema.key:
            columns[f.name] = rows.column(f.name)
        for f, slot in zip(side.schema.value, side.slots):
            columns[f.name] = rows.column(f"s{slot}")
        delta = state_batch(side.schema, columns)
        if side.shared is not None:
            delta = row_hashes(delta, side.schema)
        loose = delta.slice(0, 0)
        nulls = [pc.is_null(rows.column(f.name)) for f in side.schema.key if rows.column(f.name).null_count]
        if nulls:
            some = nulls[0]
            for n in nulls[1:]:
                some = pc.or_(some, n)
            if side.preserved:
                loose = delta.filter(some)
            delta = delta.filter(pc.invert(some))
        return consolidate(delta, side.schema), loose

    def _pairs(self, left: pa.RecordBatch, right: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not left.num_rows or not right.num_rows:
            return
        left_keys = [left.column(f.name) for f in self.left.schema.key]
        right_keys = [right.column(f.name) for f in self.right.schema.key]
        left_w, right_w = int64(left.column("__w")), int64(right.column("__w"))
        pairs = matching_pairs(int64(left.column("__k")), left_keys, int64(right.column("__k")), right_keys)
        for li, ri in in_pieces(pairs, left, right):
            lt, rt = pa.array(li), pa.array(ri)
            columns = [left.column(f.name).take(lt) for f in self.left.schema.value]
            columns += [right.column(f.name).take(rt) for f in self.right.schema.value]
            yield self._batch(columns, checked.times(left_w[li], right_w[ri]), PAIR)

    def _preserved(self, rows: pa.RecordBatch, side: Side, tag: int) -> Iterator[pa.RecordBatch]:
        for part in sliced(rows):
            own = [part.column(f.name) for f in side.schema.value]
            other = self.right if side is self.left else self.left
            nulls = [pa.nulls(part.num_rows, f.type) for f in other.schema.value]
            columns = own + nulls if tag == LEFT else nulls + own
            yield self._batch(columns, int64(part.column("__w")), tag)

    def _batch(self, columns: list[pa.Array], weights: np.ndarray, tag: int) -> pa.RecordBatch:
        arrays = [*columns, pa.array(weights)]
        if self.tagged:
            arrays.append(pa.array(np.full(len(weights), tag, dtype=np.int32)))
        return pa.RecordBatch.from_arrays(arrays, schema=self.output)


def _signs(delta: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Rows with negative and with positive weights."""
    negative = int64(delta.column("__w")) < 0
    if not negative.any():
        return delta.slice(0, 0), delta
    return delta.filter(pa.array(negative)), delta.filter(pa.array(~negative))


def _of_keys(rows: pa.RecordBatch, other: pa.RecordBatch) -> pa.RecordBatch:
    """Those rows whose `__k` occurs in the other batch."""
    if not rows.num_rows:
        return rows
    return rows.filter(pa.array(np.isin(int64(rows.column("__k")), int64(other.column("__k")))))
