"""Notes the rows on which an expression fails that gives NULL there, or leaves the row out: `on_error` of a view.

The stage stands before the operator that computes the guarded expressions (`Builder.noted`), gets a flag for each,
counts inserted rows and keeps samples, which travel in the acknowledgement. Without a guard in a plan there is no
such stage. It is also what keeps an aggregate's result from coming into a guard: a sum that does not fit is no
failure of a row.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.common.texts import text_of
from headrace.dataflow.acknowledgements import NotedFailure
from headrace.dataflow.operators.inputs import ERROR_SAMPLES
from headrace.dataflow.operators.task import Task, Unkeyed, int64
from headrace.state.kernels import checked

VALUE_CHARS = 1000
"""Characters that are kept of each value of a sample."""


@dataclass(frozen=True)
class FailureStage(Unkeyed):
    """Passes rows through without their last columns, which say for each expression whether it fails."""

    operator: str
    label: str
    output: pa.Schema
    """With `__w`, the weight: a row that is taken back is not noted again."""
    width: int
    """How many of the first columns are those of samples."""

    def run(self, task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Passes rows on as they come, and counts and samples failures."""
        for batch in batches:
            self._note(task, batch)
            yield pa.RecordBatch.from_arrays(batch.columns[: len(self.output)], schema=self.output)

    def _note(self, task: Task, batch: pa.RecordBatch) -> None:
        flags = [np.asarray(c.fill_null(False)) for c in batch.columns[len(self.output) :]]
        failing = np.flatnonzero(np.logical_or.reduce(flags))
        if not len(failing):
            return
        task.row_error_count += checked.count(int64(batch.column("__w"))[failing])
        for row in failing[: max(ERROR_SAMPLES - len(task.row_errors), 0)].tolist():
            check = next(i for i, found in enumerate(flags) if found[row])
            texts = (text_of(batch.column(i)[row]) for i in range(self.width))
            values = tuple(None if text is None else text[:VALUE_CHARS] for text in texts)
            task.row_errors.append(NotedFailure(self.operator, self.label, check, values))
