"""Time as a dependency: the real clock, and one that tests move by hand."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """A source of time and of sleep. Whoever needs either is given one, so that tests can move it."""

    def now_ms(self) -> int:
        """Wall-clock time, Unix milliseconds; may jump either way."""
        ...

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...

    def sleep_s(self, seconds: float) -> None:
        """Return after that many seconds."""
        ...


class SystemClock:
    """The real clock of this machine."""

    def now_ms(self) -> int:
        """Wall-clock time, Unix milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start."""
        return time.monotonic()

    def sleep_s(self, seconds: float) -> None:
        """Block the thread."""
        time.sleep(max(seconds, 0.0))


class ManualClock:
    """A clock that stands still until it is moved; sleeping moves it. Thread-safe."""

    def __init__(self, now_ms: int = 1_700_000_000_000):
        self._now_ms = now_ms
        self._elapsed_s = 0.0
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        """Wall-clock time, Unix milliseconds."""
        with self._lock:
            return self._now_ms

    def monotonic_s(self) -> float:
        """Seconds advanced so far; `set_now_ms` leaves it alone."""
        with self._lock:
            return self._elapsed_s

    def sleep_s(self, seconds: float) -> None:
        """Advance by that much and return at once."""
        self.advance_ms(round(max(seconds, 0.0) * 1000))

    def advance_ms(self, by_ms: int) -> None:
        """Move both times forward; raises `ValueError` when negative."""
        if by_ms < 0:
            raise ValueError("advance_ms moves forward only; use set_now_ms to turn the wall clock back")
        with self._lock:
            self._now_ms += by_ms
            self._elapsed_s += by_ms / 1000

    def set_now_ms(self, now_ms: int) -> None:
        """Set the wall clock, back or forth, as an operator or NTP would."""
        with self._lock:
            self._now_ms = now_ms
