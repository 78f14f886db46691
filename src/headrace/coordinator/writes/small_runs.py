"""Where small runs of a table go: many into one object, one after another, since a file for each costs more than rows.

A file system takes a quarter of a millisecond to make a file where many others are being deleted, and each has to be
synced, opened and deleted in its turn. So each table has an object of this process's own that takes what comes until it
is large or old. What has been written never changes, as in any object; only its end moves.

An object gets its name at once, not by a link (`append_unsynced`): what a file system has to say about names would be
forced to the disk together with the commit. It goes when none of its runs is left and no more come.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import field

from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.run.runtime import Runtime
from headrace.coordinator.run.storage import Storage
from headrace.state.objects import ALIGNMENT
from headrace.state.run import Section, write_small_run
from headrace.state.schema import RunRef

OBJECT_BYTES = 4 << 20
"""Size of an object from which on it takes no more."""
OBJECT_AGE_S = 10.0
"""Seconds for which it takes more: it stays on the disk as long as one of its runs does."""


@dataclass
class _Tail:
    """An object that takes more, and what keeps it from vacuum meanwhile."""

    path: str
    since_s: float
    at: int = 0
    """How long it is, as a multiple of `ALIGNMENT`."""
    held: ExitStack = field(default_factory=ExitStack)


class SmallRuns:
    """The objects that take small runs. One thread writes to a table at a time; any may call the other methods."""

    def __init__(self, storage: Storage, runtime: Runtime) -> None:
        self._storage = storage
        self._runtime = runtime
        self._lock = threading.Lock()
        self._tails: dict[int, _Tail] = {}

    def write(self, table_id: int, section: Section, epoch: int, held: ExitStack) -> tuple[list[RunRef], bytes]:
        """Write a run that is not durable by itself; also its bytes. Vacuum leaves it alone until the stack ends.

        Raises `DiskFull`, `StorageError`.
        """
        with self._taken(table_id, epoch) as tail:
            held.enter_context(self._storage.pins.writing(tail.path))
            refs, content = write_small_run(self._storage.root, tail.path, section, tail.at)
            tail.at += -(-len(content) // ALIGNMENT) * ALIGNMENT
        return refs, content

    @contextmanager
    def _taken(self, table_id: int, epoch: int) -> Iterator[_Tail]:
        """The table's object, for this call alone. One with which anything goes wrong takes no more."""
        storage = self._storage
        with self._lock:
            tail = self._tails.pop(table_id, None)
        if tail is None:
            tail = _Tail(f"{table_id}/{epoch:016x}-{uuid.uuid4().hex[:12]}.run", self._runtime.clock.monotonic_s())
            tail.held.callback(storage.pins.unpin, storage.pins.pin((), 0, {tail.path}))
        try:
            yield tail
        except BaseException:
            tail.held.close()
            raise
        with self._lock:
            self._tails[table_id] = tail
        if self._is_over(tail):
            self.forget(table_id)

    def _is_over(self, tail: _Tail) -> bool:
        return tail.at >= OBJECT_BYTES or self._runtime.clock.monotonic_s() - tail.since_s >= OBJECT_AGE_S

    def forget(self, table_id: int) -> None:
        """A table's object takes no more."""
        with self._lock:
            tail = self._tails.pop(table_id, None)
        if tail is not None:
            tail.held.close()

    def tidy(self) -> None:
        """Let go of objects that are old."""
        with self._lock:
            old = [i for i, tail in self._tails.items() if self._is_over(tail)]
        for table_id in old:
            self.forget(table_id)
