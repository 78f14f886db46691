"""An allowance: how many rows the rate of a source lets in now. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

from headrace.common.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Allowance:
    """Rows that may be taken in, which become more by the clock and less by what is taken."""

    per_s: int
    at_s: float
    """When it was last looked at."""
    left: float

    @property
    def rows(self) -> int:
        """Whole rows."""
        return int(self.left)

    @classmethod
    def grown(cls, before: Self | None, per_s: int, now_s: float, burst_s: float) -> Self:
        """As of now: what has grown since, and no more than what grows in `burst_s`, however long nothing was taken.

        One that is new, or has another rate, begins with what grows in a second.
        """
        if before is None or before.per_s != per_s:
            return cls(per_s, now_s, float(per_s))
        return cls(per_s, now_s, min(before.left + per_s * (now_s - before.at_s), per_s * burst_s))

    def spent(self, rows: int) -> Self:
        """Without rows that were taken. A source that had to take more owes nothing."""
        return replace(self, left=max(0.0, self.left - rows))
