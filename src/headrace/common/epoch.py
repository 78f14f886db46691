"""Epochs: the database's logical time, one int64 that only ever grows.

The high 48 bits are milliseconds since 2021-04-01 UTC, the low 16 a counter within the millisecond.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH_START_MS: Final = 1_617_235_200_000
"""Unix milliseconds of 2021-04-01T00:00:00Z, the physical time of epoch 0."""
COUNTER_BITS: Final = 16
"""Width of the counter within a millisecond."""
COUNTER_MASK: Final = (1 << COUNTER_BITS) - 1
"""The counter's bits in an epoch."""
INVALID_EPOCH: Final = 0
"""Before everything: no checkpoint ever has this epoch."""
MAX_EPOCH: Final = (1 << 63) - 1
"""The largest epoch that an int64 holds; no checkpoint ever reaches it."""
TOLERATED_AHEAD_MS: Final = 60_000
"""Epochs may be so far ahead of the clock, milliseconds: after a crash they are by some seconds. More is told."""

_UNIX_START: Final = datetime(1970, 1, 1, tzinfo=UTC)


def from_unix_ms(unix_ms: int) -> int:
    """The first epoch of a millisecond of Unix time; `INVALID_EPOCH` for times before 2021-04-01.

    To read "as of" a moment, use the last epoch of its millisecond: `from_unix_ms(ms + 1) - 1`.
    """
    return min(max(unix_ms - EPOCH_START_MS, 0) << COUNTER_BITS, MAX_EPOCH)


def epoch_ms(epoch: int) -> int:
    """The physical time of an epoch, in Unix milliseconds."""
    return (epoch >> COUNTER_BITS) + EPOCH_START_MS


def epoch_datetime(epoch: int) -> datetime:
    """The physical time of an epoch as a datetime in UTC; raises `OverflowError` past the year 9999."""
    return _UNIX_START + timedelta(milliseconds=epoch_ms(epoch))


class EpochAllocator:
    """Hands out strictly increasing epochs, close to the wall clock but never hostage to it.

    While epochs are ahead of the clock, for it was ahead itself once, they go on at half its pace: so time in views
    never stands still, history grows old, and the clock catches up.

    `last` is the newest epoch that may ever have been used, `now_ms` gives Unix milliseconds. Thread-safe.
    """

    def __init__(self, last: int, now_ms: Callable[[], int]):
        if last < 0:
            raise ValueError(f"an epoch is never negative: {last}")
        self._last = last
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._slowed: tuple[int, int] | None = None
        """Since when epochs are ahead of the clock: its time then, and that of the newest epoch; both Unix ms."""

    @property
    def last(self) -> int:
        """The newest epoch handed out, or the one it started from."""
        return self._last

    def next(self) -> int:
        """An epoch above all earlier ones; while the clock stands or goes back, the counter (then the ms) moves on."""
        with self._lock:
            epoch = max(from_unix_ms(self._moment_ms(self._now_ms())), self._last + 1)
            if epoch >= MAX_EPOCH:
                raise OverflowError("out of epochs")
            self._last = epoch
            return epoch

    def _moment_ms(self, now_ms: int) -> int:
        """Return the clock's time, or one behind which epochs are already and that goes on at half its pace."""
        if from_unix_ms(now_ms + 1) > self._last:
            self._slowed = None
            return now_ms
        if self._slowed is None or now_ms < self._slowed[0]:
            self._slowed = now_ms, epoch_ms(self._last)
        since_ms, reached_ms = self._slowed
        return reached_ms + (now_ms - since_ms) // 2
