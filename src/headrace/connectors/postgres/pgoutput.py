"""PostgreSQL's logical replication messages (`pgoutput`, version 1) as changes of one table. No I/O.

Rows are decoded column by column, those of many messages at once: where a value begins follows from where the one
before it ends, for all of them together.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import SourceError

UPSERT: Final = "upsert"
DELETE: Final = "delete"

Octets = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_INSERT, _UPDATE, _DELETE, _COMMIT, _RELATION, _TRUNCATE = b"IUDCRT"
_FULL, _OF_IDENTITY = ord("f"), 1
"""Of a table: changes tell rows as they were, all of them; of a column: it is of the key by which they tell them."""
_OLD = ord("O")
"""Stands before a row as it was, all of it; `K` before its key as it was, `N` before a row as it is now."""
_TEXT, _UNCHANGED = b"tu"
"""Stand before a value. Before NULL stands `n`."""
_PADDING = bytes(8)
"""Behind the last message: where a value has no length, something is looked at all the same."""


class Messages(NamedTuple):
    """Messages in the order of the log."""

    positions: Ints
    """Where each stands in the log."""
    data: Sequence[bytes]


@dataclass(frozen=True)
class RowEvents:
    """What became of rows, in the order of the log."""

    deletes: Mask
    """Which of them are deletions; all others say how a row is now."""
    positions: Ints
    """Where a change stands in the log: later changes of a row stand further behind."""
    values: Mapping[str, pa.Array]
    """Column -> texts; of a deletion at least those of the key."""
    unsaid: Mapping[str, Mask] = field(default_factory=dict)
    """Column -> where its value is as it was before and is left out; columns of which nothing is left out may lack."""
    moved: Mask | None = None
    """Which rows have got another key: the deletion of what they were stands right before. None: none of them."""

    def part(self, start: int, stop: int) -> RowEvents:
        """Those in a range."""
        return RowEvents(
            self.deletes[start:stop], self.positions[start:stop],
            {name: values.slice(start, stop - start) for name, values in self.values.items()},
            {name: mask[start:stop] for name, mask in self.unsaid.items()},
            None if self.moved is None else self.moved[start:stop],
        )  # fmt: skip


class _Table(NamedTuple):
    schema: str
    name: str
    columns: list[str]
    identity: frozenset[str] | None
    """The columns by which its changes tell a row; None where they tell all of it, as it was."""


class _Values(NamedTuple):
    """A column of several rows: what kind of value each has, and the range of its text."""

    kinds: Octets
    starts: Ints
    stops: Ints

    def part(self, rows: Ints) -> _Values:
        return _Values(self.kinds[rows], self.starts[rows], self.stops[rows])

    def beside(self, more: _Values) -> _Values:
        return _Values(
            np.concatenate((self.kinds, more.kinds)),
            np.concatenate((self.starts, more.starts)),
            np.concatenate((self.stops, more.stops)),
        )

    def replaced(self, rows: Ints, by: _Values) -> _Values:
        """With other values in some rows, where they have changed."""
        changed = by.kinds != _UNCHANGED
        kinds, starts, stops = self.kinds.copy(), self.starts.copy(), self.stops.copy()
        rows = rows[changed]
        kinds[rows], starts[rows], stops[rows] = by.kinds[changed], by.starts[changed], by.stops[changed]
        return _Values(kinds, starts, stops)


@dataclass
class Decoder:
    """Messages in, changes of whole transactions out."""

    number: int
    """The oid of the table, whatever its name is at the time."""
    key: Sequence[str]
    columns: Sequence[str]
    """Those that are asked for."""
    low: int
    high: int
    """Transactions that end in (low, high] are asked for,"""
    emptied: int = 0
    """and what came behind this place, at which the table was truncated last."""
    _tables: dict[int, _Table] = field(default_factory=dict)
    _open: list[RowEvents] = field(default_factory=list)
    """Those of a transaction whose end has not come yet,"""
    _truncated: bool = False
    """whether it has truncated the table behind `emptied`,"""
    _lacks: SourceError | None = None
    """and what is wrong if its rows lack a column that is asked for, or the key."""

    def changes(self, batches: Iterable[Messages]) -> Iterator[RowEvents]:
        """The changes, transactions in the order of their commits. Raises `SourceError`."""
        for messages in batches:
            if len(messages.data):
                yield from self._decoded(messages)

    def _decoded(self, messages: Messages) -> Iterator[RowEvents]:
        data = b"".join([*messages.data, _PADDING])
        octets = np.frombuffer(data, np.uint8)
        stops = np.cumsum(np.fromiter(map(len, messages.data), np.int64, len(messages.data)))
        starts = np.concatenate(([0], stops[:-1]))
        kinds = octets[starts]
        commits = np.flatnonzero(kinds == _COMMIT)
        ends = _numbers(octets, starts[commits] + 10, ">i8")
        asked = (self.low < ends) & (ends <= self.high)
        if len(commits):
            if asked[0]:
                self._check_emptied(self._truncated)
                if self._lacks is not None:
                    raise self._lacks
                yield from self._open
            self._open, self._truncated, self._lacks = [], False, None
        told = np.flatnonzero(np.isin(kinds, (_INSERT, _UPDATE, _DELETE)))
        told = told[_numbers(octets, starts[told] + 1, ">u4") == self.number]
        told = told[np.append(asked, True)[np.searchsorted(commits, told)]]
        told = told[messages.positions[told] > self.emptied]
        last = commits[-1] if len(commits) else -1
        # What a table looks like is told before its rows, and again when that has changed.
        for first, stop in _between(np.flatnonzero((kinds == _RELATION) | (kinds == _TRUNCATE)), len(kinds)):
            rows = told[(told >= first) & (told < stop)]
            for part in (rows[rows < last], rows[rows > last]):
                if not len(part):
                    continue
                lacks = self._lacking()
                if lacks is not None and part[0] < last:
                    raise lacks
                if lacks is not None:  # nobody may ask for it: the columns may be younger
                    self._lacks = lacks
                    continue
                found = self._changes(_Rows(data, octets, starts[part], stops[part]), messages.positions[part])
                if part[0] < last:
                    yield found
                else:
                    self._open.append(found)
            if stop < len(kinds) and kinds[stop] == _RELATION:
                self._relation(messages.data[stop])
            elif stop < len(kinds) and messages.positions[stop] > self.emptied:
                truncated = self.number in truncated_tables(messages.data[stop])
                self._truncated = self._truncated or (truncated and stop > last)
                self._check_emptied(truncated and stop < last and bool(asked[np.searchsorted(commits, stop)]))

    def _relation(self, data: bytes) -> None:
        (number,) = struct.unpack_from("!I", data, 1)
        schema, at = _text(data, 5)
        table, at = _text(data, at)
        whole = data[at] == _FULL
        (count,) = struct.unpack_from("!H", data, at + 1)
        at += 3
        names, identity = [], set[str]()
        for _ in range(count):
            told = data[at] & _OF_IDENTITY
            name, at = _text(data, at + 1)
            names.append(name)
            identity |= {name} if told else set()
            at += 8
        self._tables[number] = _Table(schema, table, names, None if whole else frozenset(identity))

    def _lacking(self) -> SourceError | None:
        """What is wrong where rows of the table, as it was told last, lack a column that is asked for, or the key."""
        table = self._tables[self.number]
        missing = sorted(set(self.columns) - set(table.columns))
        if not missing:
            return None if table.identity in (None, frozenset(self.key)) else self._without_key(table)
        return SourceError(
            f'the table {table.schema}.{table.name} in PostgreSQL has no column "{missing[0]}" any more',
            hint="drop the table here and create it again without the column",
        )

    def _without_key(self, table: _Table) -> SourceError:
        """The error where rows have changed while several may have had the same key, or changes did not tell it."""
        return SourceError(
            f"rows of the table {table.schema}.{table.name} in PostgreSQL have changed while ({', '.join(self.key)}) "
            "was no key of it that changes told",
            hint="make it the key again, drop the table here and create it again: it begins with the content of now",
        )

    def _check_emptied(self, truncated: bool) -> None:
        if truncated:
            table = self._tables[self.number]
            raise SourceError(
                f"the table {table.schema}.{table.name} in PostgreSQL was truncated, which was not seen when this "
                "stretch of its log was bound",
                hint="drop the table here and create it again: it begins with the content of now",
            )

    def _changes(self, rows: _Rows, positions: Ints) -> RowEvents:
        """The changes that messages of the table tell, at least one."""
        table = self._tables[self.number]
        deletes = rows.octets[rows.starts] == _DELETE
        # Of two rows the second is how it is now; of one it is this, or of a deletion how it was.
        old, ends = rows.values(rows.starts + 6, len(table.columns))
        two = np.flatnonzero(ends < rows.stops)
        new, _ = rows.values(ends[two] + 1, len(table.columns))
        places = {name: table.columns.index(name) for name in self.columns}
        unsaid = self._unsaid(table, rows, ~deletes, two, [(name, old[i], new[i]) for name, i in places.items()])
        now = {name: old[i].replaced(two, new[i]) for name, i in places.items()}
        before = {name: old[i].part(two) for name, i in places.items()}
        moved = np.zeros(len(two), bool)
        for name in self.key:
            moved |= _differ(rows.texts(before[name]), rows.texts(now[name].part(two)))
        if not moved.any():
            return RowEvents(deletes, positions, {name: rows.texts(values) for name, values in now.items()}, unsaid)
        # Where the key has changed, what it was goes first.
        count, gone = len(deletes), two[moved]
        order = np.argsort(np.concatenate((2 * np.arange(count) + 1, 2 * gone)), kind="stable")
        at = np.concatenate((np.arange(count), gone))[order]
        both = {name: values.beside(before[name].part(np.flatnonzero(moved))).part(order)
                for name, values in now.items()}  # fmt: skip
        texts = {name: rows.texts(values) for name, values in both.items()}
        said_before = order >= count
        return RowEvents(
            deletes[at] | said_before, positions[at], texts,
            {name: mask[at] & ~said_before for name, mask in unsaid.items()}, np.isin(at, gone) & ~said_before,
        )  # fmt: skip

    def _unsaid(
        self, table: _Table, rows: _Rows, updates: Mask, two: Ints, columns: Sequence[tuple[str, _Values, _Values]]
    ) -> dict[str, Mask]:
        """Where it is left out what a value is, for that has not changed. Raises `SourceError` for one of the key."""
        found: dict[str, Mask] = {}
        alone = updates.copy()
        alone[two] = False
        unsaid = two[rows.octets[rows.starts[two] + 5] != _OLD]
        for name, one, second in columns:
            missing = alone & (one.kinds == _UNCHANGED)
            if name not in self.key:  # what the key was is said where it is not in the row
                missing[unsaid] = (second.kinds == _UNCHANGED)[np.searchsorted(two, unsaid)]
            if missing.any():
                if name in self.key:
                    raise left_out(name, f"{table.schema}.{table.name}")
                found[name] = missing
        return found


def left_out(column: str, table: str) -> SourceError:
    """The error where nobody can tell what a value is."""
    return SourceError(
        f'PostgreSQL does not say what "{column}" of {table} is in a row that was updated',
        detail="values that are stored out of line are left out where they have not changed",
        hint=f"ALTER TABLE {table} REPLICA IDENTITY FULL, and create the table here again",
    )


class _Rows(NamedTuple):
    """Messages that tell of rows, as ranges of all that came."""

    data: bytes
    octets: Octets
    starts: Ints
    stops: Ints

    def values(self, at: Ints, width: int) -> tuple[list[_Values], Ints]:
        """The columns of rows that begin at these places with their number of columns, and where the rows end."""
        at, found = at + 2, []
        for _ in range(width):
            kinds = self.octets[at]
            there = kinds == _TEXT
            starts = np.where(there, at + 5, at + 1)
            at = starts + np.where(there, _numbers(self.octets, np.where(there, at + 1, 0), ">u4"), 0)
            found.append(_Values(kinds, starts, at))
        return found, at

    def texts(self, values: _Values) -> pa.Array:
        """The texts of a column."""
        ranges = zip((values.kinds == _TEXT).tolist(), values.starts.tolist(), values.stops.tolist())
        return _strings([self.data[start:stop] if there else None for there, start, stop in ranges])


def truncated_tables(data: bytes) -> tuple[int, ...]:
    """The oids of the tables that a message truncates."""
    (count,) = struct.unpack_from("!I", data, 1)
    return struct.unpack_from(f"!{count}I", data, 6)


def _strings(values: Sequence[bytes | None]) -> pa.Array:
    try:
        return pa.array(values, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise SourceError(f"a text of PostgreSQL is not UTF-8: {error}") from error


def _between(marks: Ints, end: int) -> Iterator[tuple[int, int]]:
    """The ranges before, between and behind some places."""
    stops = [*marks.tolist(), end]
    return zip([0, *(stop + 1 for stop in stops)], stops)


def _differ(left: pa.Array, right: pa.Array) -> Mask:
    """Where two columns differ; NULL is equal to NULL."""
    same = pc.if_else(pc.is_null(left), pc.is_null(right), pc.fill_null(pc.equal(left, right), False))
    return ~np.asarray(same)


def _numbers(octets: Octets, at: Ints, kind: str) -> Ints:
    """Big-endian numbers that stand in some places."""
    width = np.dtype(kind).itemsize
    found = np.ascontiguousarray(octets[at[:, None] + np.arange(width)]).view(kind)
    return found.reshape(len(at)).astype(np.int64)


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(b"\0", at)
    return data[at:end].decode(), end + 1
