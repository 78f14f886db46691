"""Queries that run at once, and those that wait their turn."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_CHECK_S = 0.2


class Turns:
    """Lets so many in at once, first come first served. Safe to use from several threads."""

    def __init__(self, limit: int):
        self._changed = threading.Condition()
        self._limit = limit
        self._inside = 0
        self._queue: deque[object] = deque()

    @property
    def waiting(self) -> int:
        """How many queries wait for their turn."""
        return len(self._queue)

    def resize(self, limit: int) -> None:
        """Let another number in at once; whoever is inside stays."""
        with self._changed:
            self._limit = limit
            self._changed.notify_all()

    @contextmanager
    def one(self, check: Callable[[], None]) -> Iterator[None]:
        """Wait for a turn, and have it inside the block. `check` is asked now and then, and raises to give up."""
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            try:
                while self._queue[0] is not ticket or self._inside >= self._limit:
                    check()
                    self._changed.wait(_CHECK_S)
                self._inside += 1
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()
