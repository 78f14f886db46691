"""Rows on their way to an aggregate, combined by key in the worker that made them, so that fewer have to travel."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.dataflow.operators.task import Labelled, Task, Unkeyed, gathered, int64, sliced

_SAMPLE_ROWS = 8_192
"""Rows by which it is seen whether combining pays."""
_PAYS_BELOW = 0.7
"""Share of them that may be left."""
_LARGEST_SUM = 1 << 62


@dataclass(frozen=True)
class CombineStage(Unkeyed, Labelled):
    """Rows that are equal `by` some columns become one: `sums` are added up, of the others an extremum is kept.

    No state. Rows may come out with equal keys all the same: those of different batches, and where keys hardly repeat.
    """

    operator: str
    by: tuple[str, ...]
    sums: tuple[str, ...]
    """Columns of type int64 without nulls."""
    extremes: tuple[tuple[str, str], ...]
    """Columns, with `min` or `max`; none of floating point, of which Arrow passes over NaN."""
    output: pa.Schema
    role = "combine"

    def run(self, task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Combine what comes in, in large pieces."""
        for batch in gathered(batches):
            yield from sliced(self._combined(batch) if self._pays(batch) else batch)

    def _pays(self, batch: pa.RecordBatch) -> bool:
        """Whether sums stay in range, and keys repeat among some rows from all over the batch."""
        for name in self.sums:
            values = int64(batch.column(name))
            if max(int(values.max()), -int(values.min())) * len(values) > _LARGEST_SUM:
                return False
        if batch.num_rows <= _SAMPLE_ROWS or not self.by:
            return True
        at = np.linspace(0, batch.num_rows - _SAMPLE_ROWS // 8, 8).astype(np.int64)
        some = pa.Table.from_batches([batch.select(self.by).slice(int(i), _SAMPLE_ROWS // 8) for i in at])
        left = some.group_by(list(self.by), use_threads=False).aggregate([])
        return bool(left.num_rows < _PAYS_BELOW * some.num_rows)

    def _combined(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        wanted = [*((name, "sum") for name in self.sums), *self.extremes]
        grouped = pa.Table.from_batches([batch]).group_by(list(self.by), use_threads=False)
        found = grouped.aggregate(wanted).combine_chunks()
        names = {f"{name}_{how}": name for name, how in wanted}
        found = found.rename_columns([names.get(name, name) for name in found.column_names])
        columns = [found.column(f.name).combine_chunks() for f in self.output]
        return pa.RecordBatch.from_arrays(columns, schema=self.output)
