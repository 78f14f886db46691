"""Waiting for a turn: see `coordinator/decide/retry_turns.py`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

from headrace.common.clock import Clock
from headrace.coordinator.decide.retry_turns import RetryTurns

CHECK_S: Final = 0.1
"""How often it is asked whether anybody waits still."""


class TurnTaking:
    """Lets transactions that have been refused go one after another. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._turns = RetryTurns()

    @contextmanager
    def turn(self, tables: Collection[int], check: Callable[[], None]) -> Iterator[None]:
        """Wait for a turn over tables; it lasts until the block is left, or is over before.

        `check` raises if nobody waits any more.
        """
        with self._changed:
            turn = self._turns.ask(tables, self._clock.monotonic_s())
        try:
            with self._changed:
                while not self._turns.has_come(turn, self._clock.monotonic_s()):
                    check()
                    left_s = self._turns.left_s(turn, self._clock.monotonic_s())
                    self._changed.wait(max(0.0, min(left_s, CHECK_S)))
            yield
        finally:
            with self._changed:
                self._turns.end(turn)
                self._changed.notify_all()
