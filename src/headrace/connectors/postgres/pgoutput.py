"""PostgreSQL's logical replication messages (`pgoutput`, version 1) as changes of one table. No I/O."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.errors import SourceError

UPSERT: Final = "upsert"
DELETE: Final = "delete"
Values = dict[str, str | None]
"""Column -> its text."""


@dataclass(frozen=True)
class Change:
    """What became of one row."""

    operation: str
    position: int
    """Where the change stands in the log: later changes of a row stand further behind."""
    values: Values
    """Of a deletion at least those of the key."""


@dataclass
class Decoder:
    """Messages in, whole transactions out."""

    number: int
    """The oid of the table, whatever its name is at the time."""
    key: Sequence[str]
    columns: frozenset[str]
    """Those that are asked for."""
    _relations: dict[int, tuple[str, str, list[str]]] = field(default_factory=dict)

    def transactions(self, messages: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, list[Change]]]:
        """(end, changes) of each transaction, in the order of their commits. Raises `SourceError`.

        `messages` are (position, bytes).
        """
        changes: list[Change] = []
        for position, data in messages:
            kind = data[:1]
            if kind == b"B":
                changes = []
            elif kind == b"C":
                yield struct.unpack_from("!q", data, 10)[0], changes
                changes = []
            elif kind == b"R":
                self._relation(data)
            elif kind == b"T":
                self._truncated(data)
            elif kind in (b"I", b"U", b"D"):
                changes += self._change(kind, position, data)

    def _relation(self, data: bytes) -> None:
        (number,) = struct.unpack_from("!I", data, 1)
        schema, at = _text(data, 5)
        table, at = _text(data, at)
        (count,) = struct.unpack_from("!H", data, at + 1)
        at += 3
        names = []
        for _ in range(count):
            name, at = _text(data, at + 1)
            names.append(name)
            at += 8
        self._relations[number] = schema, table, names
        if number == self.number and (missing := sorted(self.columns - set(names))):
            raise SourceError(
                f'the table {schema}.{table} in PostgreSQL has no column "{missing[0]}" any more',
                hint="drop the table here and create it again without the column",
            )

    def _truncated(self, data: bytes) -> None:
        (count,) = struct.unpack_from("!I", data, 1)
        for number in struct.unpack_from(f"!{count}I", data, 6):
            if number == self.number:
                schema, table, _ = self._relations[number]
                raise SourceError(
                    f"the table {schema}.{table} in PostgreSQL was truncated, which is not supported",
                    hint="drop the table here and create it again; DELETE is followed",
                )

    def _change(self, kind: bytes, position: int, data: bytes) -> list[Change]:
        (number,) = struct.unpack_from("!I", data, 1)
        if number != self.number:
            return []
        schema, table, names = self._relations[number]
        tuples: dict[bytes, Mapping[str, str | None]] = {}
        unchanged: set[str] = set()
        at = 5
        while at < len(data):
            tag = data[at : at + 1]
            tuples[tag], missing, at = _row(data, at + 1, names)
            unchanged = missing if tag == b"N" else unchanged
        old = tuples.get(b"O") or tuples.get(b"K")
        if kind == b"D":
            assert old is not None, "a deletion says what of"
            return [Change(DELETE, position, self._picked(old))]
        new = dict(tuples[b"N"])
        for name in unchanged & self.columns:
            if b"O" not in tuples:
                raise SourceError(
                    f'PostgreSQL does not say what "{name}" of {schema}.{table} is in a row that was updated',
                    detail="values that are stored out of line are left out where they have not changed",
                    hint=f"ALTER TABLE {schema}.{table} REPLICA IDENTITY FULL, and create the table here again",
                )
            new[name] = tuples[b"O"][name]
        made = [Change(UPSERT, position, self._picked(new))]
        if old is not None and any(old[k] != new[k] for k in self.key):
            made.insert(0, Change(DELETE, position, self._picked(old)))
        return made

    def _picked(self, values: Mapping[str, str | None]) -> Values:
        return {name: value for name, value in values.items() if name in self.columns}


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(b"\0", at)
    return data[at:end].decode(), end + 1


def _row(data: bytes, at: int, names: Sequence[str]) -> tuple[Values, set[str], int]:
    """A row, the columns of it that are not told because they have not changed, and where it ends."""
    values: Values = {}
    unchanged: set[str] = set()
    at += 2
    for name in names:
        kind = data[at : at + 1]
        at += 1
        values[name] = None
        if kind == b"t":
            (length,) = struct.unpack_from("!I", data, at)
            values[name] = data[at + 4 : at + 4 + length].decode()
            at += 4 + length
        elif kind == b"u":
            unchanged.add(name)
    return values, unchanged, at
