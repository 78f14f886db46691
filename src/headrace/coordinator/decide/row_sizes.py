"""How wide the rows of a relation are, as far as is known, and how much is taken in at one go: rows and bytes. Pure.

Of a source that cannot tell how many bytes lie between two offsets it is estimated by what has been read. Who relies on
an estimate is wrong where rows become wider, so it goes up at once, comes down by halves only, and counts for no more
than `TRIED` times the rows that it has been made of. As long as nothing has been read rows count for `UNTRIED_BYTES`.
"""

from __future__ import annotations

import math
from typing import Final

from headrace.common.lazy_dataclass import dataclass

UNTRIED_BYTES: Final = 256 << 10
"""What a row counts for of which nothing is known."""
TRIED: Final = 32
"""An estimate is relied on for so many times the rows that it was made of."""


@dataclass(frozen=True)
class Intake:
    """Most that is taken in at one go."""

    rows: float
    bytes: float = math.inf

    def rows_of(self, row_bytes: float) -> float:
        """How many rows that are, of so many bytes each."""
        return min(self.rows, self.bytes / row_bytes) if row_bytes else self.rows

    @property
    def is_exceeded(self) -> bool:
        """Whether more has been taken."""
        return self.rows < 0 or self.bytes < 0

    def without(self, rows: float, row_bytes: float) -> Intake:
        """What is left of it."""
        return Intake(self.rows - rows, self.bytes - rows * row_bytes)


@dataclass(frozen=True)
class RowSize:
    """An estimate of how many bytes a row has."""

    bytes: float = 0.0
    """0 as long as that is not known."""
    tried: float = 0.0
    """Of about how many rows it has been made lately."""

    @classmethod
    def told(cls, row_bytes: float) -> RowSize:
        """By what whoever makes the rows says: it is relied on."""
        return cls(max(row_bytes, 1.0), math.inf)

    def seen(self, rows: int, size: int) -> RowSize:
        """What it is after so many rows more, of so many bytes in all."""
        if rows <= 0:
            return self
        each = max(size / rows, 1.0)
        return RowSize(max(each, (self.bytes + each) / 2), max(float(rows), self.tried / 2))

    def counted(self, most_bytes: float) -> float:
        """What a row counts for where `most_bytes` are taken in: more than the estimate where that is little tried."""
        if math.isinf(most_bytes):
            return self.bytes
        untried = min(UNTRIED_BYTES, most_bytes / (TRIED * self.tried)) if self.tried else UNTRIED_BYTES
        return max(self.bytes, untried)
