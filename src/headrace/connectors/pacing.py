"""When the rows of a source that is fed by the wall clock become due.

A schedule gives each position a time since the start. The start is kept in the offsets, so a restart goes on with
the schedule. A row that is overdue by more than `MAX_LAG_MS` (the process was down, or an admission limit held the
source back) moves the start forward, so that at most that much missed time is made up for at once.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headrace.common.lazy_dataclass import dataclass

MAX_LAG_MS = 60_000


class Schedule(Protocol):
    """Positions over time; both methods are non-decreasing and inverse to each other."""

    def due_ms(self, position: int) -> int:
        """Milliseconds after the start at which the row at `position` (0-based) is due, rounded up."""

    def due_rows(self, elapsed_ms: int) -> int:
        """How many rows are due `elapsed_ms` after the start."""


@dataclass(frozen=True)
class RateSchedule:
    """Row k is due k / rate seconds after the start."""

    rows_per_second: float

    def due_ms(self, position: int) -> int:
        """See `Schedule`."""
        return math.ceil(position * 1000 / self.rows_per_second)

    def due_rows(self, elapsed_ms: int) -> int:
        """See `Schedule`."""
        return max(0, math.floor(elapsed_ms * self.rows_per_second / 1000) + 1) if elapsed_ms >= 0 else 0


@dataclass(frozen=True)
class EventSchedule:
    """Rows are due in proportion to their event times, the first one at the start."""

    offsets_us: npt.NDArray[np.int64]
    """Event time of each row since the first one, ascending."""
    speed: float
    """Event time per wall-clock time."""

    def due_ms(self, position: int) -> int:
        """See `Schedule`."""
        return math.ceil(int(self.offsets_us[position]) / (1000 * self.speed))

    def due_rows(self, elapsed_ms: int) -> int:
        """See `Schedule`."""
        if elapsed_ms < 0:
            return 0
        limit = min(elapsed_ms * 1000 * self.speed, float(2**62))
        return int(np.searchsorted(self.offsets_us, np.int64(limit), side="right"))


def admit(
    schedule: Schedule, start_ms: int | None, position: int, end: int | None, limit: int | None, now_ms: int
) -> tuple[int, int, bool]:
    """The start, the new position, and whether `limit` held due rows back.

    `start_ms` is None at the very first binding; `end` is the number of rows there are, None if without end.
    """
    start = now_ms if start_ms is None else start_ms
    if end is not None and position >= end:
        return start, position, False
    lag_ms = now_ms - (start + schedule.due_ms(position))
    if lag_ms > MAX_LAG_MS:
        start += lag_ms - MAX_LAG_MS
    due = max(position, schedule.due_rows(now_ms - start))
    due = due if end is None else min(due, end)
    admitted = due if limit is None else min(due, position + limit)
    return start, admitted, admitted < due


def admit_rate(
    rows_per_second: float | None, start_ms: int | None, position: int, end: int | None, limit: int | None, now_ms: int
) -> tuple[int, int, bool]:
    """The same for a steady rate; without one all rows are due, and without end and limit none is admitted.

    Of rows without end that are all due no limit holds any back: there is no moment at which all are taken in.
    """
    if rows_per_second is not None:
        return admit(RateSchedule(rows_per_second), start_ms, position, end, limit, now_ms)
    bounds = [*([] if end is None else [end]), *([] if limit is None else [position + limit])]
    reachable = min(bounds, default=position)
    start = now_ms if start_ms is None else start_ms
    return start, max(position, reachable), end is not None and reachable < end
