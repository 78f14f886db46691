"""The last operator of a sink's job: hands the changes of the epoch to the sink."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.columns import Column
from headrace.common.faults import fault_point
from headrace.connectors.confidential import hiding
from headrace.connectors.sinks import WEIGHT_COLUMN, SinkPosition, drops_retractions, open_sink
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
        position = SinkPosition(task.params.from_epoch, task.params.to_epoch, task.partition, task.params.attempt)
        secrets = task.params.sink_secrets
        options = {**dict(self.options), **secrets}
        if drops_retractions(options):
            batches = (batch.filter(pc.greater(batch.column(WEIGHT_COLUMN), 0)) for batch in batches)
        with hiding([*secrets.values()]):
            sink = open_sink(options, self.columns)
            fault_point("sink.commit.before")
            task.rows_out = sink.write(position, map(self._change, batches))
            fault_point("sink.commit.after")
        yield from ()

    def _change(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [*(batch.column(i) for i in self.places), batch.column(WEIGHT_COLUMN)]
        return pa.RecordBatch.from_arrays(arrays, names=[*(c.name for c in self.columns), WEIGHT_COLUMN])
