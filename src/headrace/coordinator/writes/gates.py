"""Tables that a statement keeps for itself until it has committed, so that it need not be run again for ever."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import field

from headrace.common.lazy_dataclass import dataclass


@dataclass(eq=False)
class Gate:
    """Who holds some tables: others may read them, and what they write to them waits."""

    tables: frozenset[int]


@dataclass
class Gates:
    """The gates that are closed: tables that nobody but their holder writes. Not thread-safe.

    A gate is taken as a whole or not at all, and nobody who waits for one holds another, so there is no deadlock.
    """

    _holders: dict[int, Gate] = field(default_factory=dict)

    def try_close(self, gate: Gate) -> bool:
        """Take all tables of a gate, if all of them are free."""
        if any(t in self._holders for t in gate.tables):
            return False
        self._holders.update(dict.fromkeys(gate.tables, gate))
        return True

    def open(self, gate: Gate) -> None:
        """Give them back; harmless when repeated."""
        for table in [t for t, holder in self._holders.items() if holder is gate]:
            del self._holders[table]

    def admits(self, tables: Collection[int], gate: Gate | None) -> bool:
        """Whether somebody, who may hold a gate, can write to these tables now."""
        return not self._holders or all(self._holders.get(t, gate) is gate for t in tables)

    def __bool__(self) -> bool:
        """Whether any is closed."""
        return bool(self._holders)
