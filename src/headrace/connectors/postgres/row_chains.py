"""Which changes of a range are of one row, whatever keys it had, and which keys no other row had. No I/O."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TypeAlias

Key: TypeAlias = tuple[object, ...]
Texts: TypeAlias = tuple[str, ...]
"""A key as PostgreSQL writes it."""


class RowChains:
    """Takes in the changes of a range in their order, all of them before anything is asked."""

    def __init__(self) -> None:
        self._of = array("q")
        """The row of each change."""
        self._keys: list[list[Key]] = []
        """Of each row the keys that it had."""
        self._last: list[Texts | None] = []
        self._now: dict[Key, int | None] = {}
        """Of each key the row that has it; None where it has been deleted."""
        self._shared: set[Key] = set()
        self._before = 0

    def add(
        self, keys: Sequence[Key], texts: Sequence[Texts], deletes: Sequence[bool], moved: Sequence[bool] | None
    ) -> None:  # fmt: skip
        """Take in changes: their keys, which are deletions, and which say the key that the row right before got."""
        for at, (key, deleted) in enumerate(zip(keys, deletes)):
            row = self._row(key, moved is not None and moved[at])
            if key not in self._keys[row]:
                self._keys[row].append(key)
                if key in self._now:
                    self._shared.add(key)
            self._of.append(row)
            self._now[key] = None if deleted else row
            self._last[row] = None if deleted else texts[at]
            self._before = row

    def _row(self, key: Key, moved: bool) -> int:
        known = self._before if moved else self._now.get(key)
        if known is not None:
            return known
        self._keys.append([])
        self._last.append(None)
        return len(self._keys) - 1

    def of(self, change: int) -> int:
        """The row of a change, which are counted from 0."""
        return self._of[change]

    def first(self, row: int) -> Key:
        """The key that a row had first."""
        return self._keys[row][0]

    def last(self, row: int) -> Texts | None:
        """The key that a row has in the end; None where it was deleted."""
        return self._last[row]

    def now(self) -> dict[Key, Texts | None]:
        """The keys that rows had before all changes, and those that they have in the end; None where deleted."""
        found: dict[Key, Texts | None] = {}
        for keys, last in zip(self._keys, self._last):
            found.setdefault(keys[0], last)  # who got the key later stands behind
        return found

    def alone(self, row: int) -> list[Key]:
        """The keys that a row had and no other one."""
        return [key for key in self._keys[row] if key not in self._shared]
