"""The memory controller: accounts for bytes in use against a budget, and decides who waits and who spills.

Pure accounting: it frees nothing and measures nothing by itself. A server process has one for what its threads write
and merge; a Python worker has one for each task, over the share of the budget that its epoch's parameters give it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from headrace.common.lazy_dataclass import dataclass

LEAST_SHARE_BYTES: Final = 8 << 20
"""No task is told to make do with less: below it the batches that Spark hands over would not fit."""
DERIVED_SHARE: Final = 4
"""Without a configured budget it is this fraction (one over it) of the machine's memory."""


def budget_bytes(budget_mb: int, machine_bytes: int) -> int:
    """The budget that a setting in MiB stands for; 0 derives it from the machine's memory."""
    return budget_mb << 20 if budget_mb else machine_bytes // DERIVED_SHARE


def task_share_bytes(budget: int, tasks: int) -> int:
    """What each of `tasks` that run side by side may use of a budget of so many bytes."""
    return max(LEAST_SHARE_BYTES, budget // max(1, tasks))


def machine_bytes() -> int:
    """Physical memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True)
class MemoryUse:
    """The figures of a memory controller: bytes in use, and how often it said no."""

    budget_bytes: int
    used_bytes: int
    peak_bytes: int
    waits: int
    """Reservations that had to wait for others to be released."""
    spills: int
    """Reservations that were refused, so that their owner spilled."""

    @property
    def pressure(self) -> float:
        """Share of the budget in use; above 1 only where something had to be taken in all the same."""
        return self.used_bytes / self.budget_bytes if self.budget_bytes else 0.0


class MemoryController:
    """Reservations against one budget. Thread-safe; those that wait are served in the order in which they came."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._used = self._peak = self._waits = self._spills = 0
        self._queue: deque[object] = deque()
        self._room = threading.Condition()

    def use(self) -> MemoryUse:
        """The figures as of this moment."""
        with self._room:
            return MemoryUse(self._budget, self._used, self._peak, self._waits, self._spills)

    def resize(self, budget: int) -> None:
        """A new budget; what is in use stays."""
        with self._room:
            self._budget = budget
            self._room.notify_all()

    def try_reserve(self, nbytes: int) -> bool:
        """Take so many bytes if they are free and nobody waits; False tells the caller to spill."""
        with self._room:
            if self._queue or self._used + nbytes > self._budget:
                self._spills += 1
                return False
            self._take(nbytes)
            return True

    def force(self, nbytes: int) -> None:
        """Take bytes that cannot be spilled, whether they fit or not."""
        with self._room:
            self._take(nbytes)

    def release(self, nbytes: int) -> None:
        """Give bytes back."""
        with self._room:
            assert 0 <= nbytes <= self._used, "more was released than reserved"
            self._used -= nbytes
            self._room.notify_all()

    @contextmanager
    def reserving(self, nbytes: int, give_up: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Hold bytes inside the block, waiting for them first.

        False, without waiting, for more than the whole budget: the caller is to spill. False too once `give_up` says
        so; it is asked whenever memory is released or `wake` is called.
        """
        granted = self._wait(nbytes, give_up)
        try:
            yield granted
        finally:
            if granted:
                self.release(nbytes)

    def wake(self) -> None:
        """Let those that wait ask whether to give up."""
        with self._room:
            self._room.notify_all()

    def _wait(self, nbytes: int, give_up: Callable[[], bool]) -> bool:
        with self._room:
            ticket = object()
            self._queue.append(ticket)

            def settled() -> bool:
                if nbytes > self._budget or give_up():
                    return True
                return self._queue[0] is ticket and self._used + nbytes <= self._budget

            try:
                if not settled():
                    self._waits += 1
                    self._room.wait_for(settled)
                granted = nbytes <= self._budget and not give_up()
                if granted:
                    self._take(nbytes)
                else:
                    self._spills += nbytes > self._budget
                return granted
            finally:
                self._queue.remove(ticket)
                self._room.notify_all()

    def _take(self, nbytes: int) -> None:
        self._used += nbytes
        self._peak = max(self._peak, self._used)
