"""What a table that a source feeds has of some keys: found in the state of the operator that keeps its newest rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.dataflow.operators.spark_hash import spark_hash
from headrace.state.arrangement import Arrangement
from headrace.state.schema import TableSchema

if TYPE_CHECKING:
    from headrace.dataflow.operators.task import Task

STATE = "rows"


@dataclass(frozen=True)
class RowsByKey:
    """The state table `rows` of an operator, which has the rows of a source by key."""

    operator: str
    schema: TableSchema
    key: tuple[str, ...]
    """The source's columns of which the key is made, in the order in which they are hashed."""
    names: tuple[str, ...]
    """The source's columns that the state's values are."""
    weak_hash: int | None = None
    """Keeps only that many different hash values: for tests."""

    def find(self, task: Task, keys: pa.RecordBatch) -> pa.RecordBatch:
        """See `HeldRows`: the rows as of the last commit, and of earlier steps of the epoch."""
        columns = [keys.column(name).cast(field.type) for name, field in zip(self.key, self.schema.key)]
        k = spark_hash(columns)
        if self.weak_hash is not None:
            k %= self.weak_hash
        refs = task.params.state[f"{self.operator}/{STATE}"].refs
        rows = Arrangement(self.schema, refs, task.params.root).fetch(np.unique(k))
        values = [rows.column(field.name) for field in self.schema.value]
        return pa.RecordBatch.from_arrays(values, names=self.names)
