"""Running a stage in bounded memory: an input that outgrows its share goes to local disk, cut by key, and comes back
slice after slice.

Every stateful operator is keyed by `__k`: what it does for one key depends on no other, so that running it over one
range of keys after another does the same as running it over all of them, and what it writes comes in key order.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import OutOfBudget
from headrace.state.kernels import stable_order, take
from headrace.state.memory import MemoryController
from headrace.state.spool import RowsFile, read_rows

if TYPE_CHECKING:
    from headrace.dataflow.operators.task import Stage, Task

Ints = npt.NDArray[np.int64]

QUANTILES = 8
"""Places at which a spilled input is cut; each may become two cuts, around a key that has many rows."""
WORKING_FACTOR = 3
"""Bytes that a stage needs for each byte that it takes in: the rows, the same in order, and what comes of them."""


class Account:
    """What one stage holds of its task's memory."""

    def __init__(self, memory: MemoryController) -> None:
        self._memory = memory
        self._held = 0

    def take(self, batch: pa.RecordBatch) -> bool:
        """Reserve what the batch needs; False if there is no room."""
        need = batch.nbytes * WORKING_FACTOR
        if not self._memory.try_reserve(need):
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
    account = Account(task.memory)
    try:
        held: list[pa.RecordBatch] = []
        for batch in batches:
            held.append(batch)
            if not account.take(batch):
                break
        else:
            yield from stage.run(task, iter(held))
            return
        with Slices(task.spool.prepare(), _cuts(stage, held)) as slices:
            while held:
                slices.add(held[0], stage.keys(held[0]))
                del held[0]
            account.release()
            del batch
            for batch in batches:
                slices.add(batch, stage.keys(batch))
            slices.close()
            task.spilled_bytes += sum(slices.sizes)
            for i in slices.filled:
                yield from _run_slice(stage, task, slices, i)
    finally:
        account.release()


def _run_slice(stage: Stage, task: Task, slices: Slices, i: int) -> Iterator[pa.RecordBatch]:
    if not slices.single_key(i):
        yield from run_bounded(stage, task, slices.read(i))
        return
    need = slices.sizes[i] * WORKING_FACTOR
    if stage.reduces:
        need = 0
    elif need > task.params.budget_bytes:
        raise OutOfBudget(
            f"operator {stage.operator} has to hold {slices.sizes[i]} bytes of rows with the same key at once",
            hint="raise memory_budget_mb, or lower max_rows_per_epoch",
        )
    task.memory.force(need)
    try:
        yield from stage.run(task, slices.read(i))
    finally:
        task.memory.release(need)


def _cuts(stage: Stage, held: list[pa.RecordBatch]) -> Ints:
    """Where to cut, so that what has come so far falls into about equal parts and no key into two."""
    keys = np.sort(np.concatenate([stage.keys(b) for b in held]))
    at = keys[np.arange(1, QUANTILES) * len(keys) // QUANTILES]
    return np.unique(np.concatenate([at, np.minimum(at, np.iinfo(np.int64).max - 1) + 1]))


class Slices:
    """An input on local disk: slice i holds the rows whose keys lie from `cuts[i - 1]` up to `cuts[i]`, exclusive.

    A context manager that removes its files at the end.
    """

    def __init__(self, folder: Path, cuts: Ints) -> None:
        self._cuts = cuts
        self._folder = Path(tempfile.mkdtemp(prefix="spill-", dir=folder))
        count = len(cuts) + 1
        self._files: list[RowsFile | None] = [None] * count
        self.sizes = [0] * count
        """Bytes of rows by slice."""
        self._lowest: list[int | None] = [None] * count
        self._highest: list[int | None] = [None] * count

    def __enter__(self) -> Slices:
        return self

    def __exit__(self, *_: Any) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def filled(self) -> list[int]:
        """The slices that have rows, in order."""
        return [i for i, low in enumerate(self._lowest) if low is not None]

    def single_key(self, i: int) -> bool:
        """Whether all rows of a slice have one key, so that it cannot be cut any more."""
        return self._lowest[i] == self._highest[i]

    def add(self, batch: pa.RecordBatch, keys: Ints) -> None:
        """Append the rows to the slices that their keys lie in."""
        number = np.searchsorted(self._cuts, keys, side="right")
        order = stable_order([number])
        ends = np.searchsorted(number[order], np.arange(len(self.sizes)), side="right")
        rows, keys = take(batch, order), keys[order]
        for i, (start, end) in enumerate(itertools.pairwise([0, *ends.tolist()])):
            if start < end:
                self._append(i, rows.slice(start, end - start), keys[start:end])

    def _append(self, i: int, rows: pa.RecordBatch, keys: Ints) -> None:
        file = self._files[i]
        if file is None:
            file = self._files[i] = RowsFile(self._path(i), rows.schema)
        file.append(rows)
        self.sizes[i] += rows.nbytes
        low, high = self._lowest[i], self._highest[i]
        self._lowest[i] = int(keys.min()) if low is None else min(low, int(keys.min()))
        self._highest[i] = int(keys.max()) if high is None else max(high, int(keys.max()))

    def close(self) -> None:
        """No more rows."""
        for file in self._files:
            if file is not None:
                file.close()

    def read(self, i: int) -> Iterator[pa.RecordBatch]:
        """The rows of a slice."""
        return read_rows(self._path(i))

    def _path(self, i: int) -> Path:
        return self._folder / f"{i}.slice"
