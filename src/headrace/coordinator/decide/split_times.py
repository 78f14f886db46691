"""How far the times of a source are that jobs have read, split by split: by them its watermark rises. Pure.

What is read apart (a partition of a topic, a file) has times of its own, and one may be far behind the others: its rows
are no later than those before them where they stand. So the least of the newest times counts, and one of which nothing
has been read yet holds all. A split of which nothing is left counts no more once it has been so for a while: it is
idle. Where all are, the newest of all counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from headrace.common.lazy_dataclass import dataclass

OTHERS = ""
"""Stands for the splits that are over, and for rows of which nobody says where they were read."""


@dataclass(frozen=True)
class SplitTimes:
    """The newest times of a source's splits, and which of them have rest."""

    newest_us: Mapping[str, int] = field(default_factory=dict)
    """By split: the highest event time that jobs have read, Unix microseconds."""
    still_s: Mapping[str, float | None] | None = None
    """By split of which more may come: since when nothing is left of it to read, by the monotonic clock; None while
    something is. None for all: the source's splits do not count apart."""

    def read(self, newest_us: Mapping[str, int]) -> SplitTimes:
        """Return what it is once jobs have read these times."""
        merged = dict(self.newest_us)
        for split, time_us in newest_us.items():
            merged[split] = max(time_us, merged.get(split, time_us))
        return replace(self, newest_us=merged)

    def looked(self, busy: Mapping[str, bool] | None, now_s: float) -> SplitTimes:
        """Return what it is after a look at the source: the splits of which more may come, and whether any is left."""
        known = self.still_s or {}
        since = {s: known.get(s) for s in busy or {}}
        still = {s: None if b else now_s if (at := since[s]) is None else at for s, b in (busy or {}).items()}
        times = {s: t for s, t in self.newest_us.items() if s in still}
        over = [t for s, t in self.newest_us.items() if s not in still]
        return SplitTimes({**times, OTHERS: max(over)} if over else times, None if busy is None else still)

    def reached_us(self, idle_ms: int, now_s: float) -> int | None:
        """Return the time that all of the source has reached; None if that is not known."""
        still = self.still_s or {}
        counted = [s for s, at in still.items() if at is None or (now_s - at) * 1000 < idle_ms]
        if not counted:
            return max(self.newest_us.values(), default=None)
        times = [self.newest_us.get(s) for s in counted]
        known = [t for t in times if t is not None]
        return min(known) if len(known) == len(times) else None

    def ahead(self, drift_us: int) -> frozenset[str]:
        """Return the splits that are further than `drift_us` ahead of the slowest of which anything is left.

        There are none as long as one of these has not been read at all: it is not known how far it is.
        """
        busy = [s for s, at in (self.still_s or {}).items() if at is None]
        known = {s: self.newest_us[s] for s in busy if s in self.newest_us}
        if not known or len(known) < len(busy):
            return frozenset()
        slowest = min(known.values())
        return frozenset(s for s, t in known.items() if t - slowest > drift_us)
