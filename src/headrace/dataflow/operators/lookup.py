"""Temporal joins: each row finds the row of another relation with its key, as that relation is at the epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.dataflow.operators.pairs import lookup, take_or_null
from headrace.dataflow.operators.task import Labelled, Task, Unkeyed, int64
from headrace.state.arrangement import Arrangement
from headrace.state.kernels.hashing import hash_columns
from headrace.state.schema import TableSchema


@dataclass(frozen=True)
class LookupStage(Labelled, Unkeyed):
    """No state of its own. Input rows are `__w`, keys `k0` ..., and `width` columns that are passed on.

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
        params = task.params
        table = Arrangement(self.schema, params.lookups[self.relation], params.root, as_of=params.to_epoch)
        for batch in batches:
            found, rows = self._found(table, batch)
            if not self.outer:
                batch, found = batch.filter(pa.array(found >= 0)), found[found >= 0]
            own = [batch.column(f"o{i}") for i in range(self.width)]
            other = [take_or_null(rows.column(name), found) for name in self.names]
            arrays = [*own, *other, pa.array(found >= 0), batch.column("__w")]
            arrays = [a if a.type == f.type else a.cast(f.type) for a, f in zip(arrays, self.output)]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.output)

    def _found(self, table: Arrangement, batch: pa.RecordBatch) -> tuple[np.ndarray, pa.RecordBatch]:
        """For each row the position of its match, or -1, among the rows that were looked up."""
        fields = self.schema.key
        keys = [batch.column(f"k{i}").cast(f.type) for i, f in enumerate(fields)]
        hashes = hash_columns(keys)
        present = np.logical_and.reduce([np.asarray(key.is_valid()) for key in keys])
        rows = table.fetch(np.unique(hashes[present]))
        found = lookup(hashes, keys, int64(rows.column("__k")), [rows.column(f.name) for f in fields])
        return np.where(present, found, -1), rows
