"""EMIT ON WINDOW CLOSE: rows wait until the watermark has passed them.

The stage stands at the top of a view with `EMIT ON WINDOW CLOSE`. Rows wait in its table `open`, and retractions
cancel there. In the last step of an epoch every task puts out what of its slice lies below the mark; runs whose times
all lie above are not read. When a watermark rises without any row, the job has a step without input
(`commit._closes`), and what it has closed counts as a change for views above it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.lazy_dataclass import dataclass
from headrace.dataflow.operators.task import Keyed, Labelled, Task, collect, int64, sliced, state_batch
from headrace.state.arrangement import Arrangement, slice_bounds
from headrace.state.kernels import concat, consolidate
from headrace.state.schema import TableSchema
from headrace.state.watermark import event_times, not_below

TABLE = "open"


@dataclass(frozen=True)
class WindowCloseStage(Labelled, Keyed):
    """State table `open`: the rows that wait, each with its weight. Input rows are `__k`, `__w`, `__i` and the columns.

    A row with `__i` is none of the input: it stands for the slice `__i` of `parallelism` slices of the state, in which
    the task looks for rows that the watermark has passed. Rows that were taken back before never come out.
    """

    operator: str
    schema: TableSchema
    parallelism: int
    output: pa.Schema

    def run(self, task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Put out what has been closed, keep what has not."""
        batch = collect(batches)
        if batch is None:
            return
        slices = batch.column("__i").drop_null().to_pylist()
        rows = batch.filter(pc.is_null(batch.column("__i")))
        columns = {name: rows.column(name) for name in self.schema.arrow().names}
        delta = consolidate(state_batch(self.schema, columns), self.schema)
        below_us = task.params.closed_us
        if below_us is not None:
            closed, delta = self._split(delta, below_us)
            table = task.arrangement(TABLE, self.schema)
            waited = (part for i in sorted(slices) for part in self._closing(table, i, below_us))
            names = [f.name for f in self.schema.key]
            for part in (p for done in self._together(waited, closed) for p in sliced(done)):
                arrays = [part.column(n) for n in [*names, "__w"]]
                yield pa.RecordBatch.from_arrays(arrays, schema=self.output)
        task.write([(TABLE, self.schema, delta)])

    def _together(self, waited: Iterator[pa.RecordBatch], closed: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Rows that have waited, in order of `__k`, combined with those that have just come, a part at a time."""
        assert not self.schema.has_row_hash, "else parts might share a key"
        k, start = int64(closed.column("__k")), 0
        for part in waited:
            if part.num_rows:
                last = int64(part.column("__k"))[-1]
                end = max(start, int(np.searchsorted(k, last, side="right")))
                yield consolidate(concat([part, closed.slice(start, end - start)], closed.schema), self.schema)
                start = end
        yield closed.slice(start)

    def _closing(self, table: Arrangement, i: int, below_us: int) -> Iterator[pa.RecordBatch]:
        """The rows of a slice of the state that lie below the watermark now. Runs without any are not read."""
        due = table.beginning_before(below_us)
        for rows in due.scan(*slice_bounds(i, self.parallelism)):
            yield self._split(rows, below_us)[0]

    def _split(self, rows: pa.RecordBatch, below_us: int) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The rows below the watermark, and the others."""
        passed = ~np.asarray(not_below(event_times(rows, self.schema), below_us))
        if not passed.any():
            return rows.slice(0, 0), rows
        return rows.filter(pa.array(passed)), rows.filter(pa.array(~passed))
