"""Temporal joins: each row finds the rows of another relation with its key, as that relation is at the epoch.

No state and no shuffle: each row looks up its key in the relation's own runs. The job takes in no changes of that
relation (`JobState.lookups`), so these give it no work and end no exact range; it needs the relation readable from
its own frontier on, above which its next epoch lies (`Graph.needs`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.dataflow.operators.pairs import Ints, in_pieces, matching_pairs, take_or_null
from headrace.dataflow.operators.task import Labelled, Task, Unkeyed, int64
from headrace.state.arrangement import Arrangement
from headrace.state.kernels import checked
from headrace.state.kernels.hashing import hash_columns
from headrace.state.schema import TableSchema


@dataclass(frozen=True)
class LookupStage(Labelled, Unkeyed):
    """No state of its own. Input rows are keys, then `width` columns that are passed on, and `__w`.

    Output rows are these columns, those of the relation (null where there is no match), whether there is one, `__w`.
    """

    operator: str
    relation: int
    schema: TableSchema
    names: tuple[str, ...]
    """Columns of the relation that are wanted."""
    width: int
    outer: bool
    """Rows without a match come out, too."""
    output: pa.Schema

    def run(self, task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Look up the rows as they come."""
        params, fields = task.params, self.schema.key
        table = Arrangement(self.schema, params.lookups[self.relation], params.root, as_of=params.to_epoch)
        for batch in batches:
            keys = [batch.column(i).cast(f.type) for i, f in enumerate(fields)]
            present = np.flatnonzero(np.logical_and.reduce([np.asarray(key.is_valid()) for key in keys]))
            keys = [key.take(pa.array(present)) for key in keys]
            hashes = hash_columns(keys)
            rows = table.fetch(np.unique(hashes))
            alone = np.ones(batch.num_rows, dtype=np.bool_)
            k, found = int64(rows.column("__k")), [rows.column(f.name) for f in fields]
            matching = ((present[li], ri) for li, ri in matching_pairs(hashes, keys, k, found))
            for at, ri in in_pieces(matching, batch, rows):
                alone[at] = False
                yield self._batch(batch, at, rows, ri)
            if self.outer and alone.any():
                at = np.flatnonzero(alone)
                yield self._batch(batch, at, rows, np.full(len(at), -1))

    def _batch(self, batch: pa.RecordBatch, at: Ints, rows: pa.RecordBatch, found: Ints) -> pa.RecordBatch:
        """Rows of the input at some positions, beside those of the relation at others (-1 for none)."""
        matched, input_rows = found >= 0, pa.array(at)
        own = [batch.column(len(self.schema.key) + i).take(input_rows) for i in range(self.width)]
        other = [take_or_null(rows.column(name), found) for name in self.names]
        times = int64(rows.column("__w"))[found] if len(rows) else np.ones(len(at), dtype=np.int64)
        weights = checked.times(int64(batch.column("__w"))[at], np.where(matched, times, 1))
        arrays = [*own, *other, pa.array(matched), pa.array(weights)]
        arrays = [a if a.type == f.type else a.cast(f.type) for a, f in zip(arrays, self.output)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.output)
