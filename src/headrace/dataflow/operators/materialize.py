"""The last operator: the view's own rows, which are at once its state and the log that others read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.dataflow.operators.task import Keyed, Labelled, Task, collect, state_batch
from headrace.state.kernels import consolidate
from headrace.state.kernels.hashing import hash_columns
from headrace.state.schema import TableSchema

OPERATOR = "view"
INTO = "into"
"""The operator's name where the rows are those that a table is to get."""
TABLE = "rows"


@dataclass(frozen=True)
class MaterializeStage(Labelled, Keyed):
    """State table `view/rows`, or `into/rows`. Input rows have `__w` and, at the positions `columns`, the columns of
    the view; no output.
    """

    schema: TableSchema
    columns: tuple[int, ...]
    weak_hash: int | None = None
    """Only that many different hash values: for tests, that collisions change nothing."""
    operator: str = OPERATOR

    def keys(self, batch: pa.RecordBatch) -> np.ndarray:
        """The hash by which the view's own rows are sorted: of the whole row, or of an index's key."""
        hashes = hash_columns([batch.column(i) for i in self.columns[: len(self.schema.key)]])
        return hashes if self.weak_hash is None else hashes % self.weak_hash

    def run(self, task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Consolidate the epoch's change and write it."""
        batch = collect(batches)
        if batch is not None:
            data = [batch.column(i) for i in self.columns]
            columns = {f.name: column for f, column in zip(self.schema.data_fields, data)}
            if self.schema.has_row_hash:
                columns["__h"] = pa.array(hash_columns(data))
            columns["__k"] = pa.array(self.keys(batch))
            columns["__w"] = batch.column("__w")
            task.write([(TABLE, self.schema, consolidate(state_batch(self.schema, columns), self.schema))])
        yield from ()
