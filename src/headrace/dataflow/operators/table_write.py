"""Large writes to tables: Spark's tasks turn the rows of a query into runs, and the server only commits these.

    ToChanges     rows of the query -> rows with weights in the layout of the table's state, with their `__k`
    WriteChanges  rows with weights, all of one `__k` in one task -> runs, a bounded number of rows at a time

The runs belong to nobody until a transaction commits them; those of a task that failed never do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.lazy_dataclass import dataclass
from headrace.common.texts import text_of
from headrace.dataflow.operators.inputs import SnapshotScan
from headrace.dataflow.operators.task import leaving_a_task
from headrace.errors import NotNullViolation
from headrace.state.arrangement import Arrangement
from headrace.state.kernels import concat, conform, consolidate, int64_values
from headrace.state.run import Section, write_run
from headrace.state.schema import RunRef, TableSchema
from headrace.state.stores import Root
from headrace.state.table_changes import Delta, TableChange, plan_change, stored_rows

CHUNK_ROWS = 1_048_576
"""Rows that a task sorts and writes as one run, at most."""
CHUNK_BYTES = 128 << 20
"""Bytes of such rows, about."""
OUTCOME = pa.schema([pa.field("outcome", pa.string())])
"""What a task returns: a JSON text for each run."""


def null_in(relation: str, column: str, row: Sequence[object]) -> NotNullViolation:
    """What is said of a row, its values in the order of the table's columns, that lacks one which it must have."""
    values = ", ".join("null" if v is None else str(v) for v in row)
    error = NotNullViolation(
        f'null value in column "{column}" of relation "{relation}" violates not-null constraint',
        detail=f"Failing row contains ({values}).",
    )
    error.about = {"table": relation.rpartition(".")[2], "column": column}
    return error


@dataclass(frozen=True)
class WrittenRuns:
    """The runs that a task has written, and how many rows they insert and delete."""

    runs: tuple[RunRef, ...]
    inserted: int
    deleted: int

    def to_json(self) -> str:
        """As text."""
        refs = [ref.to_json() for ref in self.runs]
        return json.dumps({"runs": refs, "inserted": self.inserted, "deleted": self.deleted})

    @classmethod
    def from_json(cls, text: str) -> WrittenRuns:
        """The inverse of `to_json`."""
        data = json.loads(text)
        return cls(tuple(RunRef.from_json(r) for r in data["runs"]), data["inserted"], data["deleted"])


@dataclass(frozen=True)
class ToChanges:
    """Makes rows with weights of a query's rows, whose first column is the weight, 1 or -1. For `mapInArrow`."""

    relation: str
    """The table's name, for errors."""
    schema: TableSchema
    names: tuple[str, ...]
    """Columns of the table, in the order of the query's."""
    order: tuple[str, ...]
    """All columns, in the table's order."""
    required: tuple[str, ...]
    """Columns that may not be null."""
    defaults: Mapping[str, pa.Array]
    """The values, one each, of columns that the query does not have."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function that `mapInArrow` calls."""
        with leaving_a_task():
            yield from (self.converted(batch) for batch in batches if batch.num_rows)

    def converted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """One batch of rows as rows with weights. Raises `NotNullViolation`."""
        weights = batch.column(0).cast(pa.int64())
        count = batch.num_rows
        added = [pa.repeat(value[0], count) for value in self.defaults.values()]
        rows = pa.RecordBatch.from_arrays([*batch.columns[1:], *added], names=[*self.names, *self.defaults])
        for name in self.required:
            at = self._added_null(rows.column(name), weights)
            if at is not None:
                raise null_in(self.relation, name, [text_of(rows.column(c)[at]) for c in self.order])
        stored = stored_rows(self.schema, rows, 1)
        return stored.set_column(stored.num_columns - 1, stored.schema.field(-1), weights)

    def _added_null(self, column: pa.Array, weights: pa.Array) -> int | None:
        """The first row that is added and has no value there."""
        if not column.null_count:
            return None
        at = pc.index(pc.and_(pc.is_null(column), pc.greater(weights, 0)), True).as_py()
        return None if at < 0 else int(at)


@dataclass(frozen=True)
class WriteChanges:
    """Writes rows with weights as runs of a table. For `mapInArrow`; rows to take back come before others."""

    table_id: int
    """The state table."""
    schema: TableSchema
    root: Root
    prefix: str
    """What the names of its objects begin with."""
    fsync: bool
    refs: tuple[RunRef, ...]
    """The table's runs as the transaction sees them."""
    as_of: int
    looks_up: bool
    """Whether rows that are added may meet others with the same primary key, which they then replace or give way to."""
    on_conflict: str
    convert: ToChanges | None = None
    """What makes changes of its input, where no shuffle lies between."""
    chunk_rows: int = CHUNK_ROWS
    chunk_bytes: int = CHUNK_BYTES

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function that `mapInArrow` calls."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        # The task attempt's id is unique in the application; its number begins again when a stage is run again.
        with leaving_a_task():
            yield from self.run(f"{self.prefix}-{context.partitionId()}.{context.taskAttemptId()}", batches)

    def run(self, prefix: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of one task; the objects' names begin with `prefix`."""
        written: list[RunRef] = []
        for number, chunk in enumerate(self._chunks(batches)):
            outcome = self._write(f"{prefix}.{number}.run", chunk, written)
            written += outcome.runs
            yield pa.RecordBatch.from_arrays([pa.array([outcome.to_json()])], schema=OUTCOME)

    def _chunks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The input in pieces of bounded size, of which none has both rows to take back and rows to add."""
        held: list[pa.RecordBatch] = []
        count = size = 0
        stored = self.schema.arrow()
        for batch in batches:
            rows = conform(batch, stored) if self.convert is None else self.convert.converted(batch)
            for part in _by_sign(rows):
                mixed = bool(held) and _adds(held[0]) != _adds(part)
                if held and (mixed or count + part.num_rows > self.chunk_rows or size + part.nbytes > self.chunk_bytes):
                    yield concat(held, stored)
                    held, count, size = [], 0, 0
                held.append(part)
                count, size = count + part.num_rows, size + part.nbytes
        if held:
            yield concat(held, stored)

    def _write(self, path: str, chunk: pa.RecordBatch, written: Sequence[RunRef]) -> WrittenRuns:
        adds = _adds(chunk)
        if adds and self.looks_up:
            delta = self._planned(chunk, written)
            rows, deleted = delta.rows, 0
            inserted = delta.inserted if self.on_conflict == "ignore" else chunk.num_rows
        else:
            rows = consolidate(chunk, self.schema)
            inserted, deleted = (chunk.num_rows, 0) if adds else (0, chunk.num_rows)
        section = Section(self.table_id, self.schema, [rows], self.as_of)
        refs = write_run(self.root, path, [section], fsync=self.fsync) if rows.num_rows else []
        return WrittenRuns(tuple(refs), inserted, deleted)

    def _planned(self, chunk: pa.RecordBatch, written: Sequence[RunRef]) -> Delta:
        there = Arrangement(self.schema, [*self.refs, *written], self.root, as_of=self.as_of)
        names = [f.name for f in self.schema.data_fields]
        change = TableChange(inserts=chunk.select(names), on_conflict=self.on_conflict)  # type: ignore[arg-type]
        return plan_change(self.schema, change, there.fetch, unique=True)


@dataclass(frozen=True)
class ReadComputeWrite:
    """A table's rows, what kernels make of them, and runs of that: all in one task, past Java. For `mapInArrow`."""

    scan: SnapshotScan
    compute: Callable[[pa.RecordBatch], Iterable[pa.RecordBatch]]
    """Raises where it is not sure to do what Spark does."""
    write: WriteChanges

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function that `mapInArrow` calls."""
        yield from self.write(found for rows in self.scan(batches) for found in self.compute(rows) if found.num_rows)


def _adds(batch: pa.RecordBatch) -> bool:
    return bool(batch.column(batch.num_columns - 1)[0].as_py() > 0)


def _by_sign(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows to take back, then those to add."""
    weights = int64_values(batch.column(batch.num_columns - 1))
    for keep in (weights < 0, weights > 0):
        if keep.any():
            yield batch if keep.all() else batch.filter(pa.array(keep))
