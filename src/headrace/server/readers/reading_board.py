"""Memory that the server and its reading processes share: the newest version of the tables, and what was shown.

The server alone writes the version. It is odd while a change is becoming visible. So a reading process that finds an
even one which it has news of knows exactly what the server itself would read at that moment.

Of views the server notes from time to time up to which epoch they are exact, and until when that may be relied on:
where it has something to tell who reads a view, it does not.

Each reading process notes for a table the newest epoch at which it has shown it, before it does; counts what it
answers; and tells now and then that it goes on.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from typing import Final

import numpy as np
import numpy.typing as npt

TABLES: Final = 2048
"""Tables that reading processes know at once."""
_WORD: Final = 8
_BEATS: Final = TABLES // 2
"""Where the processes tell that they go on; what they have answered stands before it, and the version first."""


class ReadingBoard:
    """The shared memory, as a file that is nowhere but in memory."""

    def __init__(self, descriptor: int, processes: int) -> None:
        """`descriptor` is that of the file, which is closed by `close`."""
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, _size(processes))
        self._words = memoryview(self._map).cast("q")
        self._vouched = TABLES * (processes + 1)
        shown = np.frombuffer(self._map, np.int64, processes * TABLES, _WORD * TABLES)
        self._shown: npt.NDArray[np.int64] = shown.reshape(processes, TABLES)

    @classmethod
    def create(cls, processes: int) -> ReadingBoard:
        """A new one, for so many reading processes. Raises `OSError`."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("headrace-readers")
        else:
            descriptor, name = tempfile.mkstemp(prefix="headrace-readers")
            os.unlink(name)
        os.ftruncate(descriptor, _size(processes))
        return cls(descriptor, processes)

    @property
    def version(self) -> int:
        """The newest version; odd while it is being left."""
        return self._words[0]

    @version.setter
    def version(self, version: int) -> None:
        self._words[0] = version

    def count(self, process: int) -> None:
        """Count a read that a process answers."""
        self._words[1 + process] += 1

    def answered(self, process: int) -> int:
        """How many reads a process, and those before it in its place, have answered."""
        return self._words[1 + process]

    def beat(self, process: int) -> None:
        """Tell that a process goes on."""
        self._words[_BEATS + process] += 1

    def beats(self, process: int) -> int:
        """Another number whenever a process has told that."""
        return self._words[_BEATS + process]

    def newest(self, process: int) -> int:
        """The newest epoch at which a process, or one before it in its place, has shown anything."""
        return int(self._shown[process].max())

    def vouch(self, slot: int, epoch: int, until_ms: int) -> None:
        """Note that the newest version of a view is exact up to an epoch; up to a moment (`now_ms`) there is nothing
        to tell who reads it."""
        at = self._vouched + 2 * slot
        self._words[at], self._words[at + 1] = epoch, until_ms

    def vouched(self, slot: int) -> tuple[int, int]:
        """What was noted last of a view: an epoch and a moment."""
        at = self._vouched + 2 * slot
        return self._words[at], self._words[at + 1]

    def clear(self, slot: int) -> int:
        """Take a place for another table; return the newest epoch at which the one before was shown."""
        newest = int(self._shown[:, slot].max())
        self._shown[:, slot] = 0
        self.vouch(slot, 0, 0)
        return newest

    def show(self, process: int, slot: int, epoch: int) -> None:
        """Note that a process shows a table at an epoch."""
        at = TABLES * (process + 1) + slot
        if self._words[at] < epoch:
            self._words[at] = epoch

    def shown(self) -> npt.NDArray[np.int64]:
        """For each place of a table the newest epoch at which any process has shown it."""
        found: npt.NDArray[np.int64] = self._shown.max(axis=0)
        return found


def _size(processes: int) -> int:
    return _WORD * TABLES * (processes + 3)


def now_ms() -> int:
    """Milliseconds of a clock that all processes of the machine share, and that nobody sets."""
    return time.monotonic_ns() // 1_000_000
