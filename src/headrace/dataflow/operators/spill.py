"""Running a stage in bounded memory: an input that outgrows its share goes to local disk, and comes back by key, slice
after slice.

Every stateful operator is keyed by `__k`: what it does for one key depends on no other, so that running it over one
range of keys after another does the same as running it over all of them, and what it writes comes in key order.

Each share of the input is sorted by key and written once, in whatever order the keys come. Where to cut is decided when
all is there, and a slice is read out of all shares.

`memory_budget_mb` divided by the tasks that run side by side is the share of a task. A stage takes in its whole input
before it starts; input that outgrows the share, at `WORKING_FACTOR` bytes of work for one of input, goes to the spool
sorted by `__k`, and is cut at quantiles of a sample of all keys once all is there. A range that is still too large is
cut again. Rows of one key cannot be cut: they may use the whole budget, and beyond that the epoch is declined with
53200. Grouped sums need no such bound, since they reduce their input as it comes. What an operator fetches of its
state is not bounded: a recomputed partition has to fit.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import OutOfBudget
from headrace.state.kernels import concat, int64_values, sizes, stable_order, take
from headrace.state.memory import MemoryController
from headrace.state.spool import RowsFile, read_rows

if TYPE_CHECKING:
    from headrace.dataflow.operators.task import Stage, Task

Ints = npt.NDArray[np.int64]

QUANTILES = 8
"""Slices of a spilled input, at least; a key with many rows gets one of its own."""
MOST_SLICES = 4096
SAMPLES = 128
"""Keys of each share by which it is decided where to cut."""
PIECE_ROWS = 65_536
_KEY = "__spilled_k"
WORKING_FACTOR = 3
"""Bytes that a stage needs for each byte that it takes in: the rows, the same in order, and what comes of them."""


class Account:
    """The memory that one stage has taken of its task's share."""

    def __init__(self, memory: MemoryController, make_room: Callable[[int], bool] = lambda nbytes: False) -> None:
        self._memory = memory
        self._make_room = make_room
        """Asked for so many bytes; whether it has freed any."""
        self._held = 0

    def take(self, batch: pa.RecordBatch) -> bool:
        """Reserve what the batch needs; False if there is no room, or no batch for it and those before."""
        need = batch.nbytes * WORKING_FACTOR
        if self._held + need > sizes.INPUT_BYTES * WORKING_FACTOR:
            return False
        if not self._memory.try_reserve(need) and not (self._make_room(need) and self._memory.try_reserve(need)):
            return False
        self._held += need
        return True

    def release(self) -> None:
        """Give everything back."""
        self._memory.release(self._held)
        self._held = 0


def run_bounded(stage: Stage, task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run a stage over its input, in slices if it does not fit.

    Raises `OutOfBudget` for rows of a single key that exceed the whole budget, `DiskFull`, and what the stage does.
    """
    if not task.params.memory_bytes or not stage.keyed:
        yield from stage.run(task, batches)
        return
    account = Account(task.memory, task.make_room)
    with ExitStack() as stack:
        stack.callback(account.release)
        held: list[pa.RecordBatch] = []
        spilled: Spilled | None = None
        for batch in batches:
            held.append(batch)
            if not account.take(batch):
                spilled = spilled or stack.enter_context(Spilled(task.spool.prepare(), stage.keys))
                spilled.add(held)
                held = []
                account.release()
        if spilled is None:
            yield from stage.run(task, iter(held))
            return
        if held:
            spilled.add(held)
        del held, batch
        account.release()
        task.spilled_bytes += spilled.nbytes
        most_bytes = min(task.params.memory_bytes // WORKING_FACTOR, sizes.INPUT_BYTES)
        for part in spilled.slices(most_bytes // 2):
            yield from _run_slice(stage, task, part)


def _run_slice(stage: Stage, task: Task, part: Slice) -> Iterator[pa.RecordBatch]:
    if not part.single_key:
        yield from run_bounded(stage, task, iter(part.batches))
        return
    need = part.nbytes * WORKING_FACTOR
    if stage.reduces:
        need = 0
    elif need > task.params.budget_bytes:
        raise OutOfBudget(
            f"operator {stage.operator} has to hold {part.nbytes} bytes of rows with the same key at once",
            hint="raise memory_budget_mb, or lower max_rows_per_epoch",
        )
    task.memory.force(need)
    try:
        yield from stage.run(task, iter(part.batches))
    finally:
        task.memory.release(need)


@dataclass(frozen=True)
class Slice:
    """The rows of a range of keys, as views of what is on the disk."""

    batches: list[pa.RecordBatch]
    single_key: bool
    """Whether all rows have one key, so that they cannot be cut any more."""

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return sum(b.nbytes for b in self.batches)


class Spilled:
    """An input on local disk: shares of it, each sorted by key. A context manager that removes its files at the end."""

    def __init__(self, folder: Path, keys: Callable[[pa.RecordBatch], Ints]) -> None:
        self._keys = keys
        self._folder = Path(tempfile.mkdtemp(prefix="spill-", dir=folder))
        self._shares: list[list[pa.RecordBatch]] = []
        """Mapped batches with their keys as the last column, in order of these."""
        self._samples: list[tuple[Ints, float]] = []
        """For each share some of its keys, and how many bytes each stands for."""
        self.nbytes = 0
        """Bytes of rows."""

    def __enter__(self) -> Spilled:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, batches: list[pa.RecordBatch]) -> None:
        """Write a share, which is no longer held by the caller."""
        rows = concat(batches, batches[0].schema)
        batches.clear()
        keys = self._keys(rows)
        order = stable_order([keys])
        keys = keys[order]
        rows = take(rows, order).append_column(_KEY, pa.array(keys))
        path = self._folder / f"{len(self._shares)}.rows"
        file = RowsFile(path, rows.schema)
        try:
            for piece in sizes.pieces(rows, PIECE_ROWS, sizes.CHUNK_BYTES):
                file.append(piece)
        finally:
            file.close()
        self.nbytes += rows.nbytes
        at = np.unique(np.linspace(0, len(keys) - 1, SAMPLES).astype(np.int64))
        self._samples.append((keys[at], rows.nbytes / len(at)))
        self._shares.append(list(read_rows(path)))

    def slices(self, most_bytes: int) -> Iterator[Slice]:
        """All rows, by ranges of keys that follow each other, each of about `most_bytes` where it has several keys."""
        cuts = self._cuts(min(max(QUANTILES, self.nbytes // max(most_bytes, 1)), MOST_SLICES))
        low: int | None = None
        for high in [*cuts.tolist(), None]:
            parts = [p for share in self._shares for p in _between(share, low, high)]
            if parts:
                ends = [k for p in parts for k in (int64_values(p.column(_KEY))[[0, -1]]).tolist()]
                yield Slice([p.select(p.schema.names[:-1]) for p in parts], min(ends) == max(ends))
            low = high

    def _cuts(self, count: int) -> Ints:
        """Where to cut into about equal parts. With several keys there are several parts."""
        keys = np.concatenate([k for k, _ in self._samples])
        weights = np.concatenate([np.full(len(k), weight) for k, weight in self._samples])
        order = stable_order([keys])
        ends = np.cumsum(weights[order])
        at = keys[order][np.searchsorted(ends, ends[-1] * np.arange(1, count) / count)]
        large = at[1:][at[1:] == at[:-1]]
        return np.unique(np.concatenate([at, np.minimum(large, np.iinfo(np.int64).max - 1) + 1]))


def _between(share: list[pa.RecordBatch], low: int | None, high: int | None) -> Iterator[pa.RecordBatch]:
    """The rows of sorted batches whose keys lie from `low` up to `high`, exclusive."""
    for batch in share:
        keys = int64_values(batch.column(_KEY))
        start = 0 if low is None else int(np.searchsorted(keys, low))
        stop = len(keys) if high is None else int(np.searchsorted(keys, high))
        if start < stop:
            yield batch.slice(start, stop - start)
