"""The newest rows of tables by primary key, as far as they were looked up or written lately."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from headrace.coordinator.writes.layout import Key
from headrace.coordinator.writes.written_rows import FoundRow

ROWS_KEPT = 200_000
"""Rows that are kept, of all tables together: of a few columns, less than 100 MiB."""


class RowCache:
    """Rows as of the newest commit; absent ones too. Not thread-safe.

    Whoever commits a change of a table puts the rows as they are then, or forgets the table.
    """

    def __init__(self, rows_kept: int = ROWS_KEPT) -> None:
        self._rows_kept = rows_kept
        self._rows: dict[int, OrderedDict[Key, FoundRow]] = {}
        self._count = 0

    def get(self, table_id: int, keys: Sequence[Key]) -> tuple[dict[Key, FoundRow], list[Key]]:
        """What is known of these keys, and the keys of which nothing is."""
        known = self._rows.get(table_id)
        if known is None:
            return {}, list(keys)
        found: dict[Key, FoundRow] = {}
        missing: list[Key] = []
        for key in keys:
            row = known.get(key)
            if row is None:
                missing.append(key)
            else:
                found[key] = row
        return found, missing

    def put(self, table_id: int, rows: Mapping[Key, FoundRow]) -> None:
        """Keep rows, in place of what was known of their keys; those that were put first go when there are too many."""
        known = self._rows.setdefault(table_id, OrderedDict())
        before = len(known)
        for key, found in rows.items():
            known[key] = found
        self._count += len(known) - before
        while self._count > self._rows_kept:
            largest = max(self._rows.values(), key=len)
            largest.popitem(last=False)
            self._count -= 1

    def drop(self, table_id: int, keys: Iterable[Key]) -> None:
        """Forget rows that have changed."""
        known = self._rows.get(table_id, OrderedDict())
        for key in keys:
            self._count -= known.pop(key, None) is not None

    def forget(self, table_id: int) -> None:
        """A table has changed in a way that is not known by rows, or is dropped."""
        self._count -= len(self._rows.pop(table_id, ()))
