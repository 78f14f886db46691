"""Leaves of the epoch's plan: the change of a table, the new rows of a source, constant rows, a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.columns import Column
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.base import EMPTIED, PART, ReadBatch, ReadTask, Source
from headrace.connectors.sources import open_source
from headrace.dataflow.operators.held_rows import RowsByKey
from headrace.dataflow.operators.spill import WORKING_FACTOR
from headrace.dataflow.operators.task import OUTPUT_ROWS, Labelled, Task, Unkeyed
from headrace.dataflow.params import END_OF_KEYS, SourceInput, TableInput
from headrace.state.arrangement import Arrangement, slice_bounds
from headrace.state.kernels import concat, consolidate, sizes
from headrace.state.kernels.copies import copies
from headrace.state.schema import ROWS, RunRef, TableSchema
from headrace.state.stores import Root
from headrace.state.watermark import not_below, times_us

ERROR_SAMPLES = 20
"""Row errors that a task reports in full; all are counted."""
PIECES_AT_MOST = 256
"""Ranges of keys in which a task reads its slice of a change."""


def slice_numbers(batches: Iterator[pa.RecordBatch]) -> list[int]:
    """The slices that a task is to read: the rows of the range that the leaf stands on.

    A task's own partition number would not do: below a union it counts the partitions of all branches.
    """
    return [i for batch in batches for i in batch.column(0).to_pylist()]


def _part(keys: tuple[int, int], i: int, p: int) -> tuple[int, int | None]:
    """The i-th (from 0) of p parts of a range of keys, [low, high); None where it reaches to the end of all keys."""
    low, high = (keys[0] + (n * (keys[1] - keys[0])) // p for n in (i, i + 1))
    return low, None if high >= END_OF_KEYS else high


@dataclass(frozen=True)
class InputStage(Labelled, Unkeyed):
    """The rows of one relation that an epoch takes in: its columns `names`, stored (for a table) as `schema` says."""

    operator: str
    relation: int
    names: tuple[str, ...]
    schema: TableSchema | None
    parallelism: int
    output: pa.Schema
    """Columns as `c0`, `c1` ..., then `__w`."""
    late: str | None = None
    """Of a source: the column with the event times by which rows are late, and are not taken in."""
    changes_only: bool = False
    """The content before the first checkpoint is not read."""
    held: TableSchema | None = None
    """Of a source: the layout of the view's own rows, which are gone where all of the source is."""
    by_key: RowsByKey | None = None
    """Of a source: where its rows are found by key, if the view keeps the newest of each."""

    def run(self, task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The relation's change in the slices that the input names."""
        table = task.params.tables.get(self.relation)
        for i in slice_numbers(batches):
            if table is not None:
                yield from self._table(task, table, i)
            elif self.relation in task.params.sources:
                yield from self._source(task, task.params.sources[self.relation], i)

    def _table(self, task: Task, table: TableInput, i: int) -> Iterator[pa.RecordBatch]:
        assert self.schema is not None
        params = task.params
        if params.snapshot and self.changes_only:
            return
        arrangement = Arrangement(self.schema, table.refs, params.root, as_of=params.to_epoch)
        if params.snapshot:
            for rows in arrangement.scan(*self._bounds(table, i, self.parallelism)):
                yield self._batch([rows.column(n) for n in self.names], rows.column("__w"))
            return
        pieces = self._pieces(table, params.memory_bytes)
        for piece in range(i * pieces, (i + 1) * pieces):
            # Combined over the epochs: a row that came and went in between is no part of the change, and must not be
            # computed with. A piece of it is held in memory.
            bounds = self._bounds(table, piece, self.parallelism * pieces)
            log = list(arrangement.log(params.from_epoch, params.to_epoch, *bounds))
            if log:
                rows = consolidate(concat(log, self.schema.arrow()), self.schema)
                yield self._batch([rows.column(n) for n in self.names], rows.column("__w"))

    def _bounds(self, table: TableInput, i: int, p: int) -> tuple[int, int | None]:
        """The i-th of p ranges of the keys that the epoch takes in."""
        return slice_bounds(i, p) if table.keys is None else _part(table.keys, i, p)

    def _pieces(self, table: TableInput, memory_bytes: int) -> int:
        """In how many ranges of keys to read a slice of the change, so that each fits into the memory of a task."""
        size = sum(r.length for r in table.refs) // self.parallelism
        by_memory = size * WORKING_FACTOR // memory_bytes if memory_bytes else 0
        return min(1 + max(by_memory, size // sizes.INPUT_BYTES), PIECES_AT_MOST)

    def _source(self, task: Task, source: SourceInput, i: int) -> Iterator[pa.RecordBatch]:
        columns = [Column(name, kind, nullable) for name, kind, nullable in source.columns]
        wanted = self.names if self.late is None or self.late in self.names else (*self.names, self.late)
        secrets = (lambda: source.secrets) if source.secrets else None
        reader = open_source(source.options, columns, secrets).only(wanted)
        below_us = source.below_us or (None,) * len(source.tasks)
        for n in range(i, len(source.tasks), self.parallelism):
            for found in self._read(task, reader, source.tasks[n]):
                task.row_error_count += found.error_count
                task.rows_read += found.batch.num_rows or found.error_count
                task.bytes_read += found.read_bytes
                room = ERROR_SAMPLES - len(task.row_errors)
                task.row_errors += found.errors[:room]
                batch = found.batch if self.late is None else self._in_time(task, found, below_us[n])
                if batch.num_rows:
                    weights = found.weights
                    if weights is None:
                        weights = pa.array(np.ones(batch.num_rows, dtype=np.int64))
                    yield self._batch([batch.column(n) for n in self.names], weights)

    def _read(self, task: Task, reader: Source, part: ReadTask) -> Iterator[ReadBatch]:
        if EMPTIED not in part:
            if self.by_key is not None:
                reader.held = partial(self.by_key.find, task)
            yield from reader.read(part)
            return
        assert self.held is not None
        held = Arrangement(self.held, task.params.state[ROWS].refs, task.params.root)
        names = [f.name for f in self.held.data_fields]
        for rows in held.scan(*slice_bounds(*part[PART])):
            yield reader.gone(rows.select(names), part)

    def _in_time(self, task: Task, found: ReadBatch, below_us: int | None) -> pa.RecordBatch:
        """The rows that are not late; counts those that are, and notes the newest time seen."""
        assert self.late is not None
        batch, split = found.batch, found.split or ""
        times = times_us(batch.column(self.late))
        newest_us = pc.max(times).as_py()
        if newest_us is not None:
            task.newest_us[split] = max(newest_us, task.newest_us.get(split, newest_us))
        if below_us is None:
            return batch
        kept = batch.filter(not_below(times, below_us))
        task.late_rows += batch.num_rows - kept.num_rows
        return kept

    def _batch(self, columns: list[pa.Array], weights: pa.Array) -> pa.RecordBatch:
        arrays = [c if c.type == f.type else c.cast(f.type) for c, f in zip([*columns, weights], self.output)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.output)


@dataclass(frozen=True)
class ConstantStage(Labelled, Unkeyed):
    """Rows that the query itself states, in the first epoch only. `rows` is an Arrow IPC stream."""

    operator: str
    rows: bytes
    output: pa.Schema

    def run(self, task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All rows, in the first slice."""
        if task.params.first and 0 in slice_numbers(batches):
            for batch in pa.ipc.open_stream(self.rows):
                ones = pa.array(np.ones(batch.num_rows, dtype=np.int64))
                columns = [batch.column(f.name) for f in self.output if f.name != "__w"]
                yield pa.RecordBatch.from_arrays([*columns, ones], schema=self.output)


@dataclass(frozen=True)
class SnapshotScan:
    """A table's content at an epoch, for queries: a task for each slice of the key space, rows by multiplicity."""

    schema: TableSchema
    refs: tuple[RunRef, ...]
    root: Root
    as_of: int
    names: tuple[str, ...]
    parallelism: int
    output: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function that `mapInArrow` calls."""
        for i in slice_numbers(batches):
            yield from self.slice(i)

    def slice(self, i: int) -> Iterator[pa.RecordBatch]:
        """The rows of slice `i`, in batches of bounded size."""
        for rows in self.stored(i):
            yield from self.expanded(rows)

    def stored(self, i: int) -> Iterator[pa.RecordBatch]:
        """Slice `i` as it is stored: each row once, and in the last column how often it is there."""
        arrangement = Arrangement(self.schema, self.refs, self.root, as_of=self.as_of)
        for rows in arrangement.scan(*slice_bounds(i, self.parallelism)):
            yield self.named(rows)

    def unsorted(self, i: int) -> Iterator[pa.RecordBatch]:
        """The same for whom neither order matters nor that equal rows may come several times."""
        arrangement = Arrangement(self.schema, self.refs, self.root, as_of=self.as_of)
        for rows in arrangement.scan_unsorted(*slice_bounds(i, self.parallelism)):
            yield self.named(rows)

    def named(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of stored rows, and their weights."""
        return rows.select([*self.names, "__w"])

    def expanded(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Each row as often as it is there, in batches of bounded size."""
        width = rows.num_columns - 1
        for part in copies(rows, np.asarray(rows.column(width)), OUTPUT_ROWS):
            yield pa.RecordBatch.from_arrays(part.columns[:width], schema=self.output)
