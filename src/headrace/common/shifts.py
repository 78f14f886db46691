"""Times made of the current time, and when they reach a given one.

A *shift* is a function of the current time that never falls: a sequence of steps, each a number of microseconds to
add, or `DAY` to cut the time to midnight (UTC). Calendar months are no steps: a month before the 30th at noon may come
after a month before the 31st in the morning. Times are Unix microseconds.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.common.epoch import epoch_ms, from_unix_ms

Ints = npt.NDArray[np.int64]
Shift: TypeAlias = tuple[int | None, ...]
"""Steps, the first first."""

DAY: Final = None
"""The step that cuts a time to the beginning of its day."""
DAY_US: Final = 86_400_000_000
NEVER: Final = (1 << 63) - 1
"""Later than every time."""
ALWAYS: Final = -(1 << 63)
"""Earlier than every time."""
_FAR: Final = 1 << 61


def first_at_least(shift: Shift, times: Ints) -> Ints:
    """For each time the earliest current time of which the shift is at least that.

    Times of more than 70,000 years before or after 1970 are taken to be that far.
    """
    found = np.clip(times, -_FAR, _FAR)
    for step in reversed(shift):
        found = -(-found // DAY_US) * DAY_US if step is None else found - np.int64(step)
        found = np.clip(found, -_FAR, _FAR)
    return found


def describe(shift: Shift) -> str:
    """The shift as text, applied to `now()`."""
    text = "now()"
    for step in shift:
        if step is None:
            text = f"date({text})"
        elif step:
            text += f" {'+' if step > 0 else '-'} {abs(step) / 1e6:g} s"
    return text


def now_us(epoch: int) -> int:
    """What `now()` is in an epoch."""
    return epoch_ms(epoch) * 1000


def epoch_reaching(time_us: int) -> int:
    """The first epoch in which `now()` is at least a time."""
    return from_unix_ms(-(-time_us // 1000))
