"""What every operator's task does: learn of its epoch, read and write state, acknowledge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa

from headrace.common.faults import fault_point
from headrace.dataflow.acknowledgements import Acknowledgement, NotedFailure
from headrace.dataflow.operators.spill import run_bounded
from headrace.dataflow.operators.task_progress import Reports
from headrace.dataflow.params import EpochParams, decode, property_of, secrets_property_of
from headrace.errors import HeadraceError, OutOfBudget
from headrace.state.arrangement import Arrangement
from headrace.state.kernels import concat, sizes
from headrace.state.memory import MemoryController
from headrace.state.run import OPEN_RUNS, Section, write_run
from headrace.state.schema import RunRef, TableSchema
from headrace.state.spool import TaskSpool, forget_earlier
from headrace.state.stores import store_of

if TYPE_CHECKING:
    from headrace.connectors.base import RowError

OUTPUT_ROWS = 65_536
"""Rows of a batch handed back to Spark."""
GATHER_ROWS = 1_048_576
"""Rows that a stage which can reduce its input takes in before it does."""


_WORTH_SPOOLING = 8
"""Rows that wait for the end of their task give way to input of so many times their size, and no more."""


class TaskWorker:
    """What the stages share that run in one Python process for one task: the epoch, its spool, its memory."""

    def __init__(self, params: EpochParams, partition: int, attempt_number: int) -> None:
        """`attempt_number` is of this try alone, and higher than that of any before.

        Two tries at one task, of which the first may still be at work, must not write one object.
        """
        self.params = params
        self.partition = partition
        self.attempt_number = attempt_number
        if self.params.on_other_hosts:
            _forget_earlier(self.params.spool_root, self.params.attempt)
        self.spool = TaskSpool(self.params.spool_root, self.params.attempt, self.attempt_number)
        self.memory = MemoryController(self.params.memory_bytes)
        self.buffer = Buffer(self.spool, self.memory if self.params.memory_bytes else None)
        OPEN_RUNS.tidy(self.params.root, {s.table_id: s.refs for s in self.params.state.values()})
        self._io = store_of(self.params.root).metrics
        self._io_before = self._io.as_dict()

    @classmethod
    def in_spark(cls, view: int, stage: str, key: bytes = b"") -> TaskWorker:
        """That of the Spark task that runs. `key` opens what is sent of secrets."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "operators run inside Spark tasks"
        text = context.getLocalProperty(property_of(view))
        assert text is not None, "the epoch's parameters travel as a local property"
        params = decode(text).with_secrets(context.getLocalProperty(secrets_property_of(view)), key)
        # All Python workers of the Spark task see the same number. Spark's attemptNumber would not do: it starts again
        # at 0 when a stage is retried.
        return cls(params, params.partition_of(stage, int(context.partitionId())), int(context.taskAttemptId()))

    def io(self) -> dict[str, int]:
        """What this process has read and written for the task: counts that are not zero, by fields of `IoMetrics`."""
        return self._io.since(self._io_before)


class Buffer:
    """Rows of state tables on their way into the task's object: in memory, or in the spool once that is full.

    Writes never wait: what finds no room is spooled at once. Without a controller there is no bound.
    """

    def __init__(self, spool: TaskSpool, memory: MemoryController | None) -> None:
        self._spool = spool
        self._memory = memory
        self._held: dict[tuple[str, int], tuple[TableSchema, list[pa.RecordBatch]]] = {}
        self._bytes = 0
        self._flushed = False

    def add(self, stage: str, table_id: int, schema: TableSchema, batch: pa.RecordBatch) -> None:
        """Add rows, which must come after those of the table that are there already."""
        self._held.setdefault((stage, table_id), (schema, []))[1].append(batch)
        if self._memory is None:
            return
        if self._memory.try_reserve(batch.nbytes):
            self._bytes += batch.nbytes
        else:
            self.flush()

    def flush(self) -> None:
        """Move everything to the spool."""
        for (stage, table_id), (schema, batches) in self._held.items():
            for batch in batches:
                self._spool.append(stage, table_id, schema, batch)
        self._flushed = self._flushed or bool(self._held)
        self.clear()

    def make_room(self, nbytes: int) -> bool:
        """Spool what is held if that helps somebody who needs so many bytes of the task's memory; whether it has."""
        if not self._bytes or self._bytes * _WORTH_SPOOLING < nbytes:
            return False
        self.flush()
        return True

    def clear(self) -> None:
        """Let go of what is held."""
        self._held.clear()
        if self._memory is not None:
            self._memory.release(self._bytes)
        self._bytes = 0

    def sections(self, epoch: int) -> list[Section]:
        """Everything that the task has written: by other workers, by this one to the spool, and what is held."""
        if self._flushed:
            self.flush()
        spooled = self._spool.sections(epoch)
        return spooled + [Section(table, schema, rows, epoch) for (_, table), (schema, rows) in self._held.items()]


class Task:
    """One task of one operator in one attempt at an epoch."""

    def __init__(self, operator: str, label: str, worker: TaskWorker):
        self.params = worker.params
        self.memory = worker.memory
        self.spool = worker.spool
        self.operator = operator
        self.label = label
        self.partition = worker.partition
        self.attempt_number = worker.attempt_number
        self._worker = worker
        self.rows_in = 0
        self.rows_out = 0
        self.rows_written = 0
        """Rows of state tables; the attempt's objects must hold exactly these."""
        self.spilled_bytes = 0
        self.row_errors: list[NotedFailure | RowError] = []
        self.row_error_count = 0
        self.due_us: int | None = None
        """No row of the stage's state is due before this time; None if none ever is."""
        self.late_rows = 0
        """Rows of a source that were not taken in because the watermark had passed them."""
        self.newest_us: dict[str, int] = {}
        """The highest event time that was read of a source, by split; "" where nobody says of which."""
        self.rows_read = 0
        """Rows that were read of a source, late ones among them."""
        self.bytes_read = 0
        """And how many bytes these were, see `ReadBatch.size`."""
        self.undelivered = False
        """See `Acknowledgement`."""
        self.remark = ""
        """See `Acknowledgement`."""

    def next_due(self, time_us: int | None) -> None:
        """Note that a row is due at a time, Unix microseconds."""
        if time_us is not None:
            self.due_us = time_us if self.due_us is None else min(self.due_us, time_us)

    def arrangement(self, name: str, schema: TableSchema) -> Arrangement:
        """The operator's state table as of the last committed epoch."""
        state = self.params.state[f"{self.operator}/{name}"]
        return Arrangement(schema, state.refs, self.params.root, watermark=state.watermark)

    def write(self, writes: list[tuple[str, TableSchema, pa.RecordBatch]], operator: str = "") -> None:
        """Write sorted, consolidated rows of state tables; called again, it is with rows of higher keys.

        `operator` owns the tables where the task's own does not.
        """
        for name, schema, batch in writes:
            if batch.num_rows:
                table_id = self.params.state[f"{operator or self.operator}/{name}"].table_id
                self._worker.buffer.add(self.label, table_id, schema, batch)
                self.rows_written += batch.num_rows

    def make_room(self, nbytes: int) -> bool:
        """Let go of memory that rows on their way to the spool hold; whether there is more of it now."""
        return self._worker.buffer.make_room(nbytes)

    def acknowledgement(self) -> Acknowledgement:
        """What the coordinator learns of a stage that has come to its end in one task."""
        return Acknowledgement(
            self.params.attempt, self.label, self.partition, self.attempt_number, self.rows_in, self.rows_out,
            self.rows_written, self.spilled_bytes, tuple(self.row_errors), self.row_error_count, self.due_us,
            self.late_rows, self.newest_us, undelivered=self.undelivered, rows_read=self.rows_read,
            bytes_read=self.bytes_read, remark=self.remark,
        )  # fmt: skip


class Labelled:
    """A stage that its operator has once."""

    operator: str
    role: ClassVar[str] = ""
    """Tells it from its operator's other stages; empty for the one that the operator is named for."""

    @property
    def label(self) -> str:
        """Names the stage among those of its plan."""
        return f"{self.operator}.{self.role}" if self.role else self.operator


class Keyed:
    """A stage that treats every `__k` of its input by itself."""

    writes = True
    """Whether it writes state."""
    reduces = False
    """Whether it takes in rows of one key in bounded memory, however many there are."""

    @property
    def keyed(self) -> bool:
        """Whether its input can be taken in one range of keys after another."""
        return True

    def keys(self, batch: pa.RecordBatch) -> np.ndarray:
        """The int64 key of every input row."""
        return int64(batch.column("__k"))


class Unkeyed:
    """A stage that takes its input as it comes and writes no state."""

    keyed = False
    writes = False
    reduces = False

    def keys(self, batch: pa.RecordBatch) -> np.ndarray:
        """Not to be called."""
        raise AssertionError("this input has no keys")


class Stage(Protocol):
    """An operator's work: constant for the life of a view, so that Spark can keep its plan."""

    operator: str
    """The plan's operator, which owns the state tables."""

    @property
    def label(self) -> str:
        """Names the stage among those of its plan."""
        ...

    @property
    def keyed(self) -> bool:
        """Whether its input can be taken in one range of keys after another."""
        ...

    @property
    def writes(self) -> bool:
        """Whether it writes state."""
        ...

    @property
    def reduces(self) -> bool:
        """Whether it takes in rows of one key in bounded memory, however many there are."""
        ...

    def keys(self, batch: pa.RecordBatch) -> np.ndarray:
        """The int64 key of every input row."""
        ...

    def run(self, task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Consume the input, update state, put out the resulting delta.

        Called once for all input of a task, or for one range of keys after another.
        """
        ...


@lru_cache(maxsize=16)
def _forget_earlier(spool: Path, attempt: str) -> None:
    """Once for each attempt that a process works for."""
    forget_earlier(spool, attempt)


def run_stages(
    view: int, key: bytes, stages: Sequence[Stage], acknowledge: Any, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The function that `mapInArrow` calls: one stage, or several that follow each other without Spark in between.

    The epoch's parameters are those of `view` (see `property_of`), with the values of secrets under `key`. What the
    stages write goes into one object together with what earlier Python workers of the same Spark task have spooled. If
    there is a later one it is spooled for that one: `EpochParams.inner` tells.
    """
    with leaving_a_task():
        yield from work(TaskWorker.in_spark(view, stages[-1].label, key), stages, acknowledge.add, batches)


@contextmanager
def leaving_a_task() -> Iterator[None]:
    """Errors of the block with their details and hints in their texts: that is all of them that leaves a task."""
    try:
        yield
    except HeadraceError as error:
        for name, said in (("DETAIL", error.detail), ("HINT", error.hint)):
            if said:
                error.add_note(f"{name}: {' '.join(said.split())}")
        raise


def work(
    worker: TaskWorker, stages: Sequence[Stage], acknowledge: Callable[[list[Acknowledgement]], object],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """What the stages of one Python process do in one task. In the end `acknowledge` is told what they have written."""
    last, params = stages[-1].label, worker.params
    inner = last in params.inner and any(stage.writes for stage in stages)
    if inner:
        worker.spool.begin(last)
    tasks = [Task(stage.operator, stage.label, worker) for stage in stages]
    with Reports(params.progress, params.known_as, params.to_epoch, tasks) as reports:
        for stage, task in zip(stages, tasks):
            found = named(task.operator, run_bounded(stage, task, _counted(task, batches, reports.look)))
            batches = _leaving(task, found)
        yield from batches
        *first, end = [task.acknowledgement() for task in tasks]
        if inner:
            worker.buffer.flush()
            worker.spool.end(last)
        elif last not in params.inner:
            # The workers before this one have come to their ends before this one saw the end of its input.
            end = replace(end, refs=tuple(_upload(worker, last)))
        acknowledge([*first, replace(end, io=worker.io())])
        reports.acknowledged()


def _upload(worker: TaskWorker, label: str) -> list[RunRef]:
    """Make one object of what the task has written; none if it has written nothing."""
    params = worker.params
    sections = worker.buffer.sections(params.to_epoch)
    refs: list[RunRef] = []
    if sections:
        fault_point("task.before_upload")
        path = f"{params.prefix}/{label}-{worker.partition}.{worker.attempt_number}.run"
        refs = write_run(params.root, path, sections, fsync=params.sync)
        fault_point("task.after_upload")
    worker.buffer.clear()
    worker.spool.remove()
    return refs


def named(operator: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What an operator puts out; what is too large for it is an `OutOfBudget` that names it."""
    try:
        with sizes.overflows_named(f"operator {operator}"):
            yield from batches
    except OutOfBudget as error:
        # Errors of the stages below pass through here as well, with the names of theirs.
        while isinstance(error.__cause__, OutOfBudget) and error.__cause__.message.startswith("operator "):
            error = error.__cause__
        raise error from error.__cause__


def _leaving(task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        task.rows_out += batch.num_rows
        yield batch


def _counted(task: Task, batches: Iterator[pa.RecordBatch], look: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        task.rows_in += batch.num_rows
        look()
        if batch.num_rows:
            yield batch


def collect(batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    """All input of a task as one batch; None where there was none. Raises `OutOfBudget` where it is too large."""
    found = list(batches)
    return concat(found, found[0].schema) if found else None


def gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All input of a task as batches of about `GATHER_ROWS`, or `CHUNK_BYTES`; none empty, and one in most epochs."""
    held: list[pa.RecordBatch] = []
    rows = nbytes = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        nbytes += batch.nbytes
        if rows >= GATHER_ROWS or nbytes >= sizes.CHUNK_BYTES:
            yield concat(held, batch.schema)
            held, rows, nbytes = [], 0, 0
    if held:
        yield concat(held, held[0].schema)


def chunks(
    length: int, make: Callable[[slice], pa.RecordBatch], each_bytes: np.ndarray | None = None
) -> Iterator[pa.RecordBatch]:
    """Batches of bounded size for `length` rows; `each_bytes` says how large each is, where some may be large."""
    for start in range(0, length, OUTPUT_ROWS):
        stop = min(start + OUTPUT_ROWS, length)
        if each_bytes is None:
            yield make(slice(start, stop))
            continue
        begin = start
        for n in sizes.cut_rows(each_bytes[start:stop], sizes.CHUNK_BYTES):
            yield make(slice(begin, start + n))
            begin = start + n


def sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in pieces of bounded size."""
    return sizes.pieces(batch, OUTPUT_ROWS, sizes.CHUNK_BYTES)


def int64(array: pa.Array) -> np.ndarray:
    """An int64 column without nulls as numpy."""
    return np.asarray(array)


def state_batch(schema: TableSchema, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    """A batch in a state table's layout, from columns by name."""
    target = schema.arrow()
    return pa.RecordBatch.from_arrays([as_type(columns[f.name], f.type) for f in target], schema=target)


def as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array in that type; itself if it has it."""
    return array if array.type == kind else array.cast(kind)
