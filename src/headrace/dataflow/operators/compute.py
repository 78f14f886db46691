"""Filters and projections that need not go to Spark: they run in the worker of the operator below them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.dataflow.operators.kernel_expressions import Expression, RowColumns
from headrace.dataflow.operators.task import Labelled, Task, Unkeyed
from headrace.errors import NotVectorized


@dataclass(frozen=True)
class Where:
    """Rows for which a condition is true."""

    condition: Expression


@dataclass(frozen=True)
class Select:
    """Other columns, the weight among them."""

    columns: tuple[Expression, ...]


@dataclass(frozen=True)
class Multiply:
    """Each row several times, with the columns of one list after the other."""

    projections: tuple[tuple[Expression, ...], ...]


Step: TypeAlias = Where | Select | Multiply


@dataclass(frozen=True)
class ComputeStage(Unkeyed, Labelled):
    """Steps one after the other over each batch as it comes; no state. Output are the columns of `output`."""

    operator: str
    steps: tuple[Step, ...]
    output: pa.Schema
    role = "compute"

    def run(self, task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Compute every batch. Raises `NotVectorized` where it is not sure to do what Spark does."""
        for batch in batches:
            try:
                found = computed(self.steps, RowColumns.of(batch.columns, batch.num_rows), self.output)
            except Exception as error:  # of whatever kind: Spark gives the verdict
                raise NotVectorized(f"{type(error).__name__}: {error}".splitlines()[0]) from error
            if found.num_rows:
                yield found


def computed(steps: Sequence[Step], rows: RowColumns, output: pa.Schema) -> pa.RecordBatch:
    """What steps, one after the other, make of rows: columns as `output` says.

    Raises what is raised for values of which a kernel is not sure.
    """
    for step in steps:
        match step:
            case Where(condition):
                rows = rows.where(condition)
            case Select(columns):
                rows = rows.select(columns)
            case Multiply(projections):
                rows = rows.multiply(projections)
        if not rows.length:
            return pa.RecordBatch.from_pylist([], output)
    found = [rows.column(i) for i in range(len(output))]
    return pa.RecordBatch.from_arrays(found, schema=output)
