"""A stretch of PostgreSQL's log, looked through once for all tables of a slot: what changed where. No I/O.

A short one is kept as it came, by slot, in the process that has looked: who reads a table's share of it shortly
afterwards takes it from here, and PostgreSQL need not decode its log again. It is nothing but a shortcut: what is not
here any more is read through the slot.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Final

import numpy as np

from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.postgres.pgoutput import Ints, Messages, truncated_tables

KEPT_BYTES: Final = 1 << 20
"""Longer stretches are not kept: then it does not matter much that they are decoded again."""
HEAD: Final = 5
"""So many bytes of a message say what it is, and of which table."""
_COMMIT, _RELATION, _TRUNCATE = b"CRT"
_ROWS: Final = tuple(b"IUD")


@dataclass(frozen=True)
class Stretch:
    """Whole transactions, in the order of their commits."""

    low: int
    """All that was committed behind this is in it, up to `high`."""
    high: int
    tables: Ints
    """Of each change of a row, and each table that was truncated: its oid,"""
    ends: Ints
    """and where its transaction ends."""
    commits: Ints
    """Where each transaction ends,"""
    counts: Ints
    """how many messages there are up to there,"""
    sizes: Ints
    """and of how many bytes."""
    messages: Messages | None = None
    """All of it, where it is short."""
    truncations: Sequence[tuple[int, int, int]] = ()
    """Each table that was truncated: its oid, where the transaction ends, and where this stands in the log."""

    def emptied(self, table: int, low: int) -> int:
        """Where a table was truncated last by what was committed in (low, high]; 0 where it was not."""
        return max((at for oid, end, at in self.truncations if oid == table and low < end <= self.high), default=0)

    def count(self, table: int, low: int) -> int:
        """How many changes of a table were committed in (low, high]."""
        return int(np.count_nonzero((self.tables == table) & (low < self.ends) & (self.ends <= self.high)))

    def within(self, low: int, most_bytes: int | None) -> Stretch:
        """As much of it as has so many bytes behind `low`, but at least one transaction there, if there is any."""
        begun = int(self.sizes[self.commits <= low].max(initial=0))
        behind = np.flatnonzero(self.commits > low)
        if most_bytes is None or not len(behind) or self.sizes[-1] - begun <= most_bytes:
            return self
        fit = behind[self.sizes[behind] - begun <= most_bytes]
        return replace(self, high=int(self.commits[fit[-1] if len(fit) else behind[0]]))

    def pending(self, low: int) -> int:
        """How many messages there are of transactions that were committed up to `low`."""
        return int(self.counts[self.commits <= low].max(initial=0))

    def share(self, table: int, low: int, high: int) -> Messages | None:
        """What tells the changes of one table in (low, high]; None where it is not all here."""
        if self.messages is None or low < self.low or self.high < high:
            return None
        positions, data = self.messages
        kept: list[int] = []
        open_: list[int] = []
        for i, message in enumerate(data):
            if message[0] == _COMMIT:
                asked = low < positions[i] <= high
                told = [k for k in open_ if asked or data[k][0] == _RELATION]
                kept += [*told, i] if any(data[k][0] != _RELATION for k in told) else told
                open_ = []
            elif table in (_number(message),) if message[0] == _RELATION else table in _tables(message):
                open_.append(i)
        return Messages(positions[np.array(kept, np.int64)], [data[i] for i in kept])


@dataclass
class Collector:
    """Messages in, a stretch out. Of those that are not kept the heads are enough, but for truncations."""

    _positions: list[Ints] = field(default_factory=list)
    _data: list[bytes] = field(default_factory=list)
    _tables: list[int] = field(default_factory=list)
    _ends: list[int] = field(default_factory=list)
    _commits: list[int] = field(default_factory=list)
    _counts: list[int] = field(default_factory=list)
    _sizes: list[int] = field(default_factory=list)
    _truncations: list[tuple[int, int, int]] = field(default_factory=list)
    _open: list[tuple[int, int]] = field(default_factory=list)
    """Tables that were truncated by what has not ended yet, and where."""
    count: int = 0
    """Messages so far."""
    _whole: bool = True

    def add(self, positions: Ints, data: Sequence[bytes], sizes: Ints) -> None:
        """Take in what comes next; `sizes` are bytes up to each message, which is cut behind `KEPT_BYTES`."""
        for i, (place, message) in enumerate(zip(positions.tolist(), data), self.count + 1):
            if message[0] == _COMMIT:
                self._ends += [place] * (len(self._tables) - len(self._ends))
                self._commits.append(place)
                self._counts.append(i)
                self._sizes.append(int(sizes[i - self.count - 1]))
                self._truncations += [(oid, place, at) for oid, at in self._open]
                self._open = []
            else:
                found = _tables(message)
                self._tables += found
                self._open += [(oid, place) for oid in found] if message[0] == _TRUNCATE else []
        self.count += len(data)
        self._whole = self._whole and int(sizes[-1]) <= KEPT_BYTES
        if self._whole:
            self._positions.append(positions)
            self._data += data

    def stretch(self, low: int, end: int | None) -> Stretch:
        """All of it, up to `end`, or if that is None, up to the last transaction that has come whole."""
        messages = Messages(np.concatenate([_ints([]), *self._positions]), self._data) if self._whole else None
        high = max(self._commits, default=low) if end is None else end
        tables = _ints(self._tables[: len(self._ends)])
        return Stretch(
            low, max(low, high), tables, _ints(self._ends), _ints(self._commits), _ints(self._counts),
            _ints(self._sizes), messages, self._truncations,
        )  # fmt: skip


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, np.int64)


class Recent:
    """The newest stretch of each slot. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stretches: dict[str, Stretch] = {}

    def keep(self, slot: str, stretch: Stretch) -> None:
        """Keep a stretch in place of the one before."""
        with self._lock:
            self._stretches[slot] = stretch

    def forget(self, slot: str) -> None:
        """The slot is gone."""
        with self._lock:
            self._stretches.pop(slot, None)

    def share(self, slot: str, table: int, low: int, high: int) -> Messages | None:
        """See `Stretch.share`."""
        with self._lock:
            found = self._stretches.get(slot)
        return None if found is None else found.share(table, low, high)


def _number(message: bytes) -> int:
    return int.from_bytes(message[1:HEAD], "big")


def _tables(message: bytes) -> list[int]:
    """The oids of the tables that a message changes."""
    if message[0] in _ROWS:
        return [_number(message)]
    return list(truncated_tables(message)) if message[0] == _TRUNCATE else []
