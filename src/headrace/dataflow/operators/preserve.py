"""The outer part of a join: which rows of a preserved side have a match, counted after the residual condition.

Equal rows match equally, so a side is counted by distinct row: its multiplicity and the weight of its joined pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.dataflow.operators.join import LEFT, PAIR, RIGHT
from headrace.dataflow.operators.pairs import fetched
from headrace.dataflow.operators.task import Keyed, Task, chunks, collect, int64, state_batch
from headrace.state.kernels import checked, consolidate, sizes
from headrace.state.schema import TableSchema

DONE = 3
"""`__t` of a row that no later stage of the join looks at."""

Mode = Literal["outer", "semi", "anti", "existence"]


@dataclass(frozen=True)
class PreserveStage(Keyed):
    """Counts the matches of one side's rows. Input rows are `__k`, `__w`, `__t`, left columns, right columns."""

    operator: str
    table: str
    schema: TableSchema
    own: tuple[str, ...]
    """Columns of the preserved side."""
    tag: int
    mode: Mode
    output: pa.Schema
    """Left columns, right columns (`outer` only), then `__w`, `__t` or the existence flag, as the mode has it."""

    @property
    def label(self) -> str:
        """Names the stage among those of its join."""
        return f"{self.operator}.{self.table}"

    def run(self, task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Put out joined pairs as they are, and every row of the side whose state of being matched changed."""
        batch = collect(batches)
        if batch is None:
            return
        tags = np.asarray(batch.column("__t"))
        if self.mode == "outer":
            yield from self._passed(batch, tags)
        mine = batch.filter(pa.array((tags == PAIR) | (tags == self.tag)))
        if not mine.num_rows:
            return
        delta = self._delta(mine)
        old, found = fetched(task.arrangement(self.table, self.schema), delta)
        yield from self._changes(delta, old, found)
        task.write([(self.table, self.schema, delta)])

    def _passed(self, batch: pa.RecordBatch, tags: np.ndarray) -> Iterator[pa.RecordBatch]:
        rows = batch.filter(pa.array(tags != self.tag))
        if rows.num_rows:
            yield rows.select(self.output.names)

    def _delta(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        weights, tags = int64(rows.column("__w")), np.asarray(rows.column("__t"))
        columns = {f.name: rows.column(n) for f, n in zip(self.schema.key, self.own)}
        columns["__k"] = rows.column("__k")
        columns["__w"] = pa.array(np.where(tags == self.tag, weights, 0))
        columns["matches"] = pa.array(np.where(tags == PAIR, weights, 0))
        return consolidate(state_batch(self.schema, columns), self.schema)

    def _changes(self, delta: pa.RecordBatch, old: pa.RecordBatch, found: np.ndarray) -> Iterator[pa.RecordBatch]:
        def before(name: str) -> np.ndarray:
            values = int64(old.column(name))
            return np.where(found >= 0, values[found], 0) if len(values) else np.zeros(len(found), dtype=np.int64)

        w_old, m_old = before("__w"), before("matches")
        w_new = checked.plus(w_old, int64(delta.column("__w")), checked.ROWS)
        m_new = checked.plus(m_old, int64(delta.column("matches")), checked.ROWS)
        unmatched = w_new * (m_new == 0) - w_old * (m_old == 0)
        matched = w_new * (m_new != 0) - w_old * (m_old != 0)
        if self.mode in ("outer", "anti"):
            yield from self._rows(delta, unmatched, None)
        elif self.mode == "semi":
            yield from self._rows(delta, matched, None)
        else:
            yield from self._rows(delta, matched, True)
            yield from self._rows(delta, unmatched, False)

    def _rows(self, delta: pa.RecordBatch, weights: np.ndarray, exists: bool | None) -> Iterator[pa.RecordBatch]:
        changed = np.flatnonzero(weights)
        rows, weights = delta.take(pa.array(changed)), weights[changed]

        def make(s: slice) -> pa.RecordBatch:
            n = s.stop - s.start
            part = rows.slice(s.start, n)
            columns = {name: part.column(f.name) for f, name in zip(self.schema.key, self.own)}
            columns["__w"] = pa.array(weights[s])
            columns["__t"] = pa.array(np.full(n, DONE, dtype=np.int32))
            columns["exists"] = pa.array([exists] * n, pa.bool_())
            arrays = [columns[f.name] if f.name in columns else pa.nulls(n, f.type) for f in self.output]
            return pa.RecordBatch.from_arrays(arrays, schema=self.output)

        large = rows.nbytes > sizes.CHUNK_BYTES
        yield from chunks(len(changed), make, sizes.row_bytes(rows) if large else None)


__all__ = ["DONE", "LEFT", "PAIR", "RIGHT", "Mode", "PreserveStage"]
