"""The last operator of a sink's job: hands the changes of the epoch to the sink.

A sink's job is a view's plan with this end in place of the stage that writes the view's rows. There is no
`view/rows`, so nothing can read a sink; state, checkpoints, retries and recovery are those of a view. A sink that
wants nothing but the number of rows (`Sink.only_counts`) has no such stage where Spark computes the rows last: it
counts them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.columns import Column
from headrace.common.faults import fault_point
from headrace.connectors.confidential import hiding
from headrace.connectors.leaving import outside
from headrace.connectors.sinks import (
    WEIGHT_COLUMN,
    SinkPosition,
    drops_retractions,
    leaves_out_snapshot,
    open_sink,
)
from headrace.dataflow.operators.task import Labelled, Task, Unkeyed

OPERATOR = "sink"


@dataclass(frozen=True)
class DeliverStage(Labelled, Unkeyed):
    """Input rows have `__w` and, at the positions `places`, the sink's columns; no output, no state."""

    options: tuple[tuple[str, str], ...]
    columns: tuple[Column, ...]
    places: tuple[int, ...]
    operator: str = OPERATOR

    def run(self, task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the task's slice of the epoch."""
        params = task.params
        position = SinkPosition(params.delivery, params.from_epoch, params.to_epoch, task.partition, params.attempt)
        secrets = params.sink_secrets
        options = {**dict(self.options), **secrets}
        if drops_retractions(options):
            batches = (batch.filter(pc.greater(batch.column(WEIGHT_COLUMN), 0)) for batch in batches)
        with hiding([*secrets.values()]):
            sink = open_sink(options, self.columns)
            changes = (self._change(batch) for batch in batches if batch.num_rows)
            if leaves_out_snapshot(options) and params.snapshot:
                deque(changes, 0)
            first = next(changes, None)
            if first is not None:
                fault_point("sink.commit.before")
                task.rows_out = sink.write(position, chain([first], changes))
                fault_point("sink.commit.after")
            # A sink that has the epoch already reads nothing; what keeps state before it has to see all of it.
            deque(changes, 0)
        yield from ()

    def _change(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays, fields = outside([batch.column(i) for i in self.places], self.columns)
        weights = batch.column(WEIGHT_COLUMN)
        schema = pa.schema([*fields, pa.field(WEIGHT_COLUMN, weights.type)])
        return pa.RecordBatch.from_arrays([*arrays, weights], schema=schema)
