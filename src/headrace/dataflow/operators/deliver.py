"""The last operator of a sink's job: hands the changes of the epoch to the sink.

A sink's job is a view's plan with this end in place of the stage that writes the view's rows. There is no
`view/rows`, so nothing can read a sink; state, checkpoints, retries and recovery are those of a view. A sink that
wants nothing but the number of rows (`Sink.only_counts`) has no such stage where Spark computes the rows last: it
counts them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.columns import Column
from headrace.common.faults import fault_point
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.confidential import hiding
from headrace.connectors.leaving import outside
from headrace.connectors.refusals import RowsRefused, letters, without
from headrace.connectors.sinks import (
    WEIGHT_COLUMN,
    Sink,
    SinkPosition,
    drops_retractions,
    leaves_out_snapshot,
    open_sink,
)
from headrace.dataflow.operators import materialize
from headrace.dataflow.operators.task import Labelled, Task, Unkeyed
from headrace.errors import HeadraceError
from headrace.state.arrangement import Arrangement
from headrace.state.kernels import consolidate
from headrace.state.schema import HANDED, TableSchema
from headrace.state.table_changes import stored_rows

OPERATOR = "sink"


@dataclass(frozen=True)
class DeliverStage(Labelled, Unkeyed):
    """Input rows have `__w` and, at the positions `places`, the sink's columns; no output, no state."""

    options: tuple[tuple[str, str], ...]
    columns: tuple[Column, ...]
    places: tuple[int, ...]
    letters: TableSchema | None = None
    """The layout of the table for rows that the target refuses; None where there is none."""
    operator: str = OPERATOR

    @property
    def writes(self) -> bool:  # type: ignore[override]
        """See `Stage`."""
        return self.letters is not None

    def run(self, task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the task's slice of the epoch."""
        params = task.params
        position = SinkPosition(
            params.delivery, params.from_epoch, params.to_epoch, task.partition, params.attempt, params.delivered
        )
        secrets = params.sink_secrets
        options = {**dict(self.options), **secrets}
        if drops_retractions(options):
            batches = (batch.filter(pc.greater(batch.column(WEIGHT_COLUMN), 0)) for batch in batches)
        with hiding([*secrets.values()]):
            sink = open_sink(options, self.columns)
            sink.scratch = task.spool.folder
            changes: Iterator[pa.RecordBatch] = (self._change(batch) for batch in batches if batch.num_rows)
            if leaves_out_snapshot(options) and params.snapshot:
                deque(changes, 0)
            changes = self._without_refused(task, changes)
            first = next(changes, None)
            if first is not None:
                fault_point("sink.commit.before")
                try:
                    task.rows_out = sink.write(position, chain([first], changes))
                except RowsRefused as refused:
                    if self.letters is None:
                        raise refused.failure() from refused
                    self._set_aside(task, self.letters, refused)
                task.remark = _remark(sink, [*secrets.values()])
                fault_point("sink.commit.after")
            # A sink that has the epoch already reads nothing; what keeps state before it has to see all of it.
            deque(changes, 0)
        yield from ()

    def _without_refused(self, task: Task, changes: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The changes but for those that earlier steps of the epoch have set aside."""
        if self.letters is None or not (refs := task.params.state[HANDED].refs):
            return changes
        left_out: Counter[tuple[str, str]] = Counter()
        for batch in Arrangement(self.letters, refs, task.params.root).scan():
            ops, rows, weights = (batch.column(name).to_pylist() for name in ("op", "row", WEIGHT_COLUMN))
            for op, row, weight in zip(ops, rows, weights, strict=True):
                left_out[op, row] += weight
        return without(changes, len(self.columns), left_out)

    def _set_aside(self, task: Task, schema: TableSchema, refused: RowsRefused) -> None:
        """Write the rows that the target has refused as rows of their table."""
        letter = letters(task.params.sink_name, task.params.to_epoch, refused.refusals)
        number = len(refused.refusals)
        arrays = [letter.get(f.name, pa.nulls(number, f.type)) for f in schema.data_fields]
        batch = pa.RecordBatch.from_arrays(arrays, names=[f.name for f in schema.data_fields])
        rows = consolidate(stored_rows(schema, batch, 1), schema)
        task.write([(materialize.TABLE, schema, rows)], materialize.INTO)
        task.undelivered = refused.delivered is None
        task.rows_out = refused.delivered or 0

    def _change(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays, fields = outside([batch.column(i) for i in self.places], self.columns)
        weights = batch.column(WEIGHT_COLUMN)
        schema = pa.schema([*fields, pa.field(WEIGHT_COLUMN, weights.type)])
        return pa.RecordBatch.from_arrays([*arrays, weights], schema=schema)


def _remark(sink: Sink, hidden: Sequence[str]) -> str:
    """What a sink has left undone, for people: nothing in it is a secret's value."""
    try:
        with hiding(hidden):
            if sink.undone is not None:
                raise sink.undone
    except HeadraceError as undone:
        return undone.message
    return ""
