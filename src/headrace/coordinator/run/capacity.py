"""What may be used at once: slots of lanes, tasks, memory."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.coordinator.run.runtime import Runtime
from headrace.state.memory import MemoryController, budget_bytes, machine_bytes

PATIENCE_S = 1.0
"""Seconds that a group may hold a slot before it may not count any more."""


class FairSlots:
    """A limit on what runs at once; who waits longest goes first.

    Who has held a slot for `PATIENCE_S` may well be waiting itself, inside a slow function say. Up to `spare` such
    holders are not counted, so that they do not keep all others from running.
    """

    def __init__(self, slots: int, spare: int = 0, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Condition()
        self._slots, self._spare, self._monotonic_s = slots, spare, monotonic_s
        self._held: dict[object, float] = {}
        """Holder -> since when."""
        self._queue: deque[object] = deque()

    def _free_in_s(self) -> float | None:
        """Seconds until a slot is free if nobody gives one back; 0 or less for one that is free, None for never."""
        over = len(self._held) - self._slots
        if over < 0:
            return 0.0
        if over >= self._spare:
            return None
        # The one that has to have outstayed its time for one more to be let in.
        return sorted(self._held.values())[over] + PATIENCE_S - self._monotonic_s()

    @contextmanager
    def slot(self, give_up: Callable[[], bool]) -> Iterator[bool]:
        """Wait for a slot; False, without one, as soon as `give_up` says so (asked whenever `wake` is called)."""
        ticket = object()
        with self._lock:
            self._queue.append(ticket)
            try:
                while not give_up():
                    left_s = self._free_in_s() if self._queue[0] is ticket else None
                    if left_s is not None and left_s <= 0:
                        break
                    self._lock.wait(left_s)
                granted = not give_up()
            finally:
                self._queue.remove(ticket)
                self._lock.notify_all()
            if granted:
                self._held[ticket] = self._monotonic_s()
        try:
            yield granted
        finally:
            if granted:
                with self._lock:
                    del self._held[ticket]
                    self._lock.notify_all()

    def wake(self) -> None:
        """Let those that wait ask whether to give up."""
        with self._lock:
            self._lock.notify_all()


class Capacity:
    """The tasks that run side by side, and the memory that they and this process may take."""

    def __init__(self, tasks_at_once: int, runtime: Runtime) -> None:
        self._runtime = runtime
        self.tasks_at_once = tasks_at_once
        """Tasks of epochs that are taken to run side by side, which share the memory budget."""
        self.memory = MemoryController(self.budget_bytes())

    def budget_bytes(self) -> int:
        """The memory budget, as configured now."""
        return budget_bytes(self._runtime.settings.memory_budget_mb, machine_bytes())

    def resize(self) -> None:
        """The budget may have been configured anew."""
        self.memory.resize(self.budget_bytes())
