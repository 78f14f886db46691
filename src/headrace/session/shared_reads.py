"""What reads share that are answered here: small relations in memory, answers to equal questions, turns to compute.

A relation's runs are merged once for all reads of the same version, not once for each; a commit makes another version.
Python computes in one thread at a time: threads that take turns after every kernel spend their time waiting for each
other, so only a few compute at once, and the others stand aside.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from headrace.common.columns import Column
from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.reads import KnownRuns
from headrace.dataflow.operators.inputs import SnapshotScan
from headrace.state.kernels import checked, concat

if TYPE_CHECKING:
    from headrace.coordinator.reads import SnapshotTable

CONTENT_BYTES: Final = 32 << 20
"""Size of its runs up to which the rows of a relation are kept."""
KEPT_BYTES: Final = 128 << 20
"""Size in memory of all rows that are kept."""
ANSWERS: Final = 64
"""Answers that are kept of a relation."""
ANSWER_BYTES: Final = 64 << 10
_CHECK_S: Final = 0.2
_COMPUTING: Final = max(1, (os.cpu_count() or 1) // 2)


@dataclass(eq=False)
class KeptRows:
    """All rows of a relation as of a version of it, each once."""

    runs: KnownRuns
    of: tuple[Column, ...]
    """The relation's columns."""
    columns: Mapping[str, pa.Array]
    """With `__w`, how often each row is there."""
    rows: int
    count: int
    """Rows, as often as they are there."""
    bytes: int
    answers: OrderedDict[Hashable, Sequence[pa.RecordBatch]] = field(default_factory=OrderedDict)
    """What was found out about them."""

    def is_of(self, table: SnapshotTable) -> bool:
        """Whether a snapshot has just these rows."""
        return self.runs.are_those_of(table.refs, table.as_of) and self.of == table.columns

    def batch(self, names: Sequence[str]) -> pa.RecordBatch:
        """Some columns, and the weights."""
        return pa.RecordBatch.from_arrays([self.columns[n] for n in (*names, "__w")], names=[*names, "__w"])


class SharedReads:
    """See above. Thread-safe."""

    def __init__(self, kept_bytes: int = KEPT_BYTES, computing: int = _COMPUTING) -> None:
        """`kept_bytes` may be kept, and so many compute at a time."""
        self._kept_bytes = kept_bytes
        self._lock = threading.Lock()
        self._contents: OrderedDict[int, KeptRows] = OrderedDict()
        """By relation, the one that was loaded last at the end."""
        self._loading: dict[int, threading.Lock] = {}
        self._bytes = 0
        self._turns = threading.BoundedSemaphore(computing)

    @contextmanager
    def computing(self, check: Callable[[], None]) -> Iterator[None]:
        """Wait for a turn to compute, and have it inside the block. `check` is asked now and then, to give up."""
        while not self._turns.acquire(timeout=_CHECK_S):
            check()
        try:
            yield
        finally:
            self._turns.release()

    def known(self, relation_id: int) -> KeptRows | None:
        """The content of a relation as it was when it was read last."""
        return self._contents.get(relation_id)

    def content(
        self, relation_id: int, table: SnapshotTable, scan: Callable[[], SnapshotScan], check: Callable[[], None]
    ) -> KeptRows | None:
        """The content of a relation's snapshot, read at most once for all that ask at once.

        None for one that is not kept: it is too large, or an older one than is known.
        """
        if sum(ref.length for ref in table.refs) > CONTENT_BYTES:
            return None
        found = self._contents.get(relation_id)
        if found is not None and found.is_of(table):
            return found
        with self._lock:
            loading = self._loading.setdefault(relation_id, threading.Lock())
        while not loading.acquire(timeout=_CHECK_S):
            check()
        try:
            found = self._contents.get(relation_id)
            if found is not None and found.is_of(table):
                return found
            if found is not None and found.runs.as_of > table.as_of:
                return None  # those that read what was before are few
            made = _read(table, scan(), check)
            self._keep(relation_id, made)
            return made
        finally:
            loading.release()

    def _keep(self, relation_id: int, made: KeptRows) -> None:
        with self._lock:
            old = self._contents.pop(relation_id, None)
            self._bytes += made.bytes - (0 if old is None else old.bytes)
            self._contents[relation_id] = made
            while self._bytes > self._kept_bytes:
                gone, content = self._contents.popitem(last=False)
                self._loading.pop(gone, None)
                self._bytes -= content.bytes

    def answer(self, content: KeptRows, question: Hashable) -> Sequence[pa.RecordBatch] | None:
        """What a question was answered."""
        return content.answers.get(question)

    def keep_answer(self, content: KeptRows, question: Hashable, batches: Sequence[pa.RecordBatch]) -> None:
        """Remember an answer, if it is short."""
        if sum(b.nbytes for b in batches) > ANSWER_BYTES or len(str(question)) > ANSWER_BYTES:
            return
        with self._lock:
            content.answers[question] = batches
            while len(content.answers) > ANSWERS:
                content.answers.popitem(last=False)


def _read(table: SnapshotTable, scan: SnapshotScan, check: Callable[[], None]) -> KeptRows:
    """All that a scan finds."""
    found: list[pa.RecordBatch] = []
    for i in range(scan.parallelism):
        for batch in scan.stored(i):
            check()
            found.append(batch)
    rows = concat(found, pa.schema([*scan.output, pa.field("__w", pa.int64())]))
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    count = checked.count(np.asarray(columns["__w"]))
    return KeptRows(KnownRuns(table.refs, table.as_of), table.columns, columns, rows.num_rows, count, rows.nbytes)
