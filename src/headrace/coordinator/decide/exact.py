"""Which epochs a relation is exact at: pure functions over closed ranges of epochs, and the log of changes.

A relation is exact at an epoch if its content is known to equal its definition over its inputs there. Tables and
sources are exact at every complete epoch. A view is exact at each of its checkpoints, and after it, up to the epoch
before the first later change of any of its inputs, wherever the views among those are exact.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from headrace.errors import LogLost

Interval: TypeAlias = tuple[int, int]
"""A closed range of epochs."""

MAX_INTERVALS = 256
"""Ranges that are kept of one view; older ones are forgotten."""


class ChangeLog:
    """The epochs at which a relation changed, as disjoint ascending ranges of epochs.

    A range longer than one epoch says that it may have changed at any of them: what a merged run tells.
    Not thread-safe.
    """

    __slots__ = ("_ranges",)

    def __init__(self, ranges: Iterable[Interval] = ()) -> None:
        self._ranges: list[Interval] = merged(ranges)

    def add(self, low: int, high: int | None = None) -> None:
        """Note a change at `low`, or anywhere from `low` to `high`."""
        high = low if high is None else high
        if not self._ranges or self._ranges[-1][1] < low:
            self._ranges.append((low, high))
        else:
            self._ranges = merged([*self._ranges, (low, high)])

    def first_after(self, epoch: int) -> int | None:
        """The earliest epoch above `epoch` at which there may be a change; None if there is none."""
        at = bisect_right(self._ranges, epoch, key=_high)
        return max(self._ranges[at][0], epoch + 1) if at < len(self._ranges) else None

    def last_up_to(self, epoch: int) -> int | None:
        """The latest epoch, `epoch` at most, at which there may be a change; None if there is none."""
        at = bisect_right(self._ranges, epoch, key=_low)
        return min(self._ranges[at - 1][1], epoch) if at else None

    def in_range(self, from_exclusive: int, to_inclusive: int) -> tuple[Interval, ...]:
        """The ranges that reach into (from, to]."""
        low = bisect_right(self._ranges, from_exclusive, key=_high)
        high = bisect_right(self._ranges, to_inclusive, key=_low)
        return tuple(self._ranges[low:high])

    def prune(self, epoch: int) -> None:
        """Forget what lies at or below `epoch`, but for the newest change."""
        del self._ranges[: min(bisect_right(self._ranges, epoch, key=_high), max(len(self._ranges) - 1, 0))]

    def __len__(self) -> int:
        return len(self._ranges)


def next_epoch_after(changes: ChangeLog, epoch: int, *, kept_from: int, newest: int) -> int | None:
    """The epoch after `epoch` of a log that is truncated below `kept_from` and whose newest epoch is `newest`.

    None if there is none yet. Raises `LogLost` where what followed `epoch` may have been truncated, `ValueError` for an
    epoch that the log never had.
    """
    if epoch > newest:
        raise ValueError(f"the log is at epoch {newest}, it never had an epoch {epoch}")
    if epoch < kept_from:
        raise LogLost(f"the changes after epoch {epoch} are gone, they are kept from {kept_from} on")
    return changes.first_after(epoch)


def _low(interval: Interval) -> int:
    return interval[0]


def _high(interval: Interval) -> int:
    return interval[1]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Disjoint ascending ranges that cover the same epochs; only overlapping ones are joined."""
    result: list[Interval] = []
    for low, high in sorted(intervals):
        if result and low <= result[-1][1]:
            result[-1] = (result[-1][0], max(high, result[-1][1]))
        else:
            result.append((low, high))
    return result


def intersect(left: Sequence[Interval], right: Sequence[Interval]) -> list[Interval]:
    """The epochs in both of two lists of disjoint ascending ranges."""
    result: list[Interval] = []
    i = j = 0
    while i < len(left) and j < len(right):
        low, high = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if low <= high:
            result.append((low, high))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return result


def intersect_all(all_intervals: Sequence[Sequence[Interval]]) -> list[Interval]:
    """The epochs in every one of the lists; of no list, none."""
    if not all_intervals:
        return []
    result = list(all_intervals[0])
    for other in all_intervals[1:]:
        result = intersect(result, other)
    return result


def newest(intervals: Sequence[Interval], at_most: int | None = None) -> int | None:
    """The newest epoch in the ranges, not above `at_most` if that is given."""
    if at_most is None:
        return intervals[-1][1] if intervals else None
    at = bisect_right(intervals, at_most, key=_low)
    return min(intervals[at - 1][1], at_most) if at else None


def clipped(intervals: Sequence[Interval], low: int) -> list[Interval]:
    """The part of the ranges that is not below `low`."""
    at = bisect_left(intervals, low, key=_high)
    return [(max(a, low), b) for a, b in intervals[at:]]


def frontier(committed: int, upper: int, first_change: int | None) -> int:
    """The newest epoch up to which a view committed at `committed` will not change any more.

    `upper` is the smallest frontier of its inputs, `first_change` the first change of any of them after
    `committed`. 0 for a view that has no checkpoint yet.
    """
    if committed == 0:
        return 0
    if first_change is None or first_change > upper:
        return max(committed, upper)
    return max(committed, first_change - 1)


def view_exact(
    stored: Sequence[Interval], committed: int, frontier_epoch: int, inputs: Sequence[Interval] | None = None
) -> list[Interval]:
    """Where a view is exact: its closed history, and from its newest checkpoint on where its inputs are.

    `inputs` are the epochs at which the views that it reads are exact together; None if it reads none.
    """
    if committed == 0:
        return []
    closed = [i for i in stored if i[1] < committed]
    ahead = [(committed, max(committed, frontier_epoch))]
    if inputs is not None:
        ahead = intersect(ahead, inputs)
        if not ahead or ahead[0][0] > committed:
            ahead.insert(0, (committed, committed))
    return coalesced([*closed, *ahead])


def coalesced(intervals: Sequence[Interval]) -> list[Interval]:
    """Disjoint ascending ranges, of which those that follow each other without a gap are one."""
    result: list[Interval] = []
    for low, high in intervals:
        if result and low == result[-1][1] + 1:
            result[-1] = (result[-1][0], high)
        else:
            result.append((low, high))
    return result


def after_commit(known: Sequence[Interval], target: int, safe: int) -> tuple[Interval, ...]:
    """The ranges to store with a checkpoint at `target`, for a view that is exact at `known` before it.

    What lies below `safe` cannot be read any more and is left out.
    """
    before = [(low, min(high, target - 1)) for low, high in known if low < target]
    return (*clipped(before, safe)[-(MAX_INTERVALS - 1) :], (target, target))
