"""What a limit leaves of a binding, file by file. No I/O."""

from __future__ import annotations

from headrace.common.lazy_dataclass import dataclass


@dataclass
class Left:
    """What may still be taken in; None for no limit."""

    rows: int | None
    bytes: int | None
    taken_rows: int = 0
    _begun: bool = False

    @property
    def any(self) -> bool:
        """Whether there is anything."""
        return (self.rows is None or self.rows > 0) and (self.bytes is None or self.bytes > 0)

    def within(self, size: int, rows: int) -> int:
        """How many rows that are of a file of so many bytes and rows; at least one."""
        most = rows if self.rows is None else self.rows
        if self.bytes is not None and size > self.bytes:
            most = min(most, rows * self.bytes // size)
        return max(1, most)

    def take(self, rows: int, size: int) -> bool:
        """Take what was found, unless it is too much, and something has been taken: then it is the next one's."""
        if self._begun and self.bytes is not None and size > self.bytes:
            self.bytes = 0
            return False
        self._begun = self._begun or size > 0
        self.taken_rows += rows
        self.rows = None if self.rows is None else self.rows - rows
        self.bytes = None if self.bytes is None else self.bytes - size
        return True
