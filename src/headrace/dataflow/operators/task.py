"""What every operator's task does: learn of its epoch, read and write state, acknowledge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from headrace.common.faults import fault_point
from headrace.dataflow.params import PROPERTY, EpochParams, decode
from headrace.state.arrangement import Arrangement
from headrace.state.run import Section, write_run
from headrace.state.schema import RunRef, TableSchema

OUTPUT_ROWS = 65_536
"""Rows of a batch handed back to Spark."""


class Task:
    """One task of one operator in one attempt at an epoch."""

    def __init__(self, operator: str, label: str):
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "operators run inside Spark tasks"
        text = context.getLocalProperty(PROPERTY)
        assert text is not None, "the epoch's parameters travel as a local property"
        self.params: EpochParams = decode(text)
        self.operator = operator
        self.label = label
        self.partition = int(context.partitionId())
        self.attempt_number = int(context.attemptNumber())
        self.rows_in = 0
        self.rows_out = 0
        self.row_errors: list[dict[str, Any]] = []
        self.row_error_count = 0
        self.refs: list[RunRef] = []

    def arrangement(self, name: str, schema: TableSchema) -> Arrangement:
        """The operator's state table as of the last committed epoch."""
        state = self.params.state[f"{self.operator}/{name}"]
        return Arrangement(schema, state.refs, self.params.root)

    def write(self, writes: list[tuple[str, TableSchema, pa.RecordBatch]]) -> None:
        """Write sorted, consolidated rows of one or more state tables as one object."""
        sections = [
            Section(self.params.state[f"{self.operator}/{name}"].table_id, schema, [batch], self.params.to_epoch)
            for name, schema, batch in writes
            if batch.num_rows
        ]
        if not sections:
            return
        fault_point("task.before_upload")
        path = f"{self.params.prefix}/{self.label}-{self.partition}.{self.attempt_number}.run"
        self.refs += write_run(self.params.root, path, sections, fsync=self.params.sync)
        fault_point("task.after_upload")

    def acknowledgement(self) -> dict[str, Any]:
        """What the coordinator learns of a finished task."""
        return {
            "attempt": self.params.attempt,
            "stage": self.label,
            "partition": self.partition,
            "task_attempt": self.attempt_number,
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "refs": [r.to_json() for r in self.refs],
            "row_errors": self.row_errors,
            "row_error_count": self.row_error_count,
        }


class Labelled:
    """A stage that is the only one of its operator."""

    operator: str

    @property
    def label(self) -> str:
        """Names the stage among those of its plan."""
        return self.operator


class Stage(Protocol):
    """An operator's work: constant for the life of a view, so that Spark can keep its plan."""

    operator: str
    """The plan's operator, which owns the state tables."""

    @property
    def label(self) -> str:
        """Names the stage among those of its plan."""
        ...

    def run(self, task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Consume the input, update state, put out the resulting delta."""
        ...


def run_stages(
    stages: Sequence[Stage], acknowledge: Any, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The function that `mapInArrow` calls: one stage, or several that follow each other without Spark in between."""
    tasks = [Task(stage.operator, stage.label) for stage in stages]
    for stage, task in zip(stages, tasks):
        batches = _leaving(task, stage.run(task, _counted(task, batches)))
    yield from batches
    acknowledge.add([task.acknowledgement() for task in tasks])


def _leaving(task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        task.rows_out += batch.num_rows
        yield batch


def _counted(task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        task.rows_in += batch.num_rows
        if batch.num_rows:
            yield batch


def collect(batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    """All input of a task as one batch; None where there was none."""
    found = list(batches)
    if not found:
        return None
    if len(found) == 1:
        return found[0]
    return pa.concat_batches(found)


def chunks(length: int, make: Callable[[slice], pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of bounded size for `length` rows."""
    for start in range(0, length, OUTPUT_ROWS):
        yield make(slice(start, min(start + OUTPUT_ROWS, length)))


def sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in pieces of bounded size."""
    return chunks(batch.num_rows, lambda s: batch.slice(s.start, s.stop - s.start))


def int64(array: pa.Array) -> np.ndarray:
    """An int64 column without nulls as numpy."""
    return np.asarray(array)


def state_batch(schema: TableSchema, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    """A batch in a state table's layout, from columns by name."""
    target = schema.arrow()
    return pa.RecordBatch.from_arrays([_as(columns[f.name], f.type) for f in target], schema=target)


def _as(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind)
