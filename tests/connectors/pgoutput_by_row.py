"""Logical replication messages decoded one by one: what the decoder by columns is compared with."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

Change = tuple[str, int, dict[str, Any]]
"""What is done, where it stands in the log, and the values; `...` is one that is not told."""


class Untold(Exception):
    """A value of the key that has not changed is not told."""


def changes(
    number: int, key: Sequence[str], columns: Sequence[str], low: int, high: int, messages: Iterable[tuple[int, bytes]]
) -> Iterator[Change]:
    """The changes of the table of that oid, of transactions that end in (low, high]."""
    names: list[str] = []
    waiting: list[Change] = []
    for position, data in messages:
        kind = data[:1]
        if kind == b"C":
            if low < struct.unpack_from("!q", data, 10)[0] <= high:
                yield from waiting
            waiting = []
        elif kind == b"R" and struct.unpack_from("!I", data, 1)[0] == number:
            names = _names(data)
        elif kind in (b"I", b"U", b"D") and struct.unpack_from("!I", data, 1)[0] == number:
            waiting += _of_row(kind, position, _tuples(data, names), key, columns)


def _names(data: bytes) -> list[str]:
    at = data.index(b"\0", data.index(b"\0", 5) + 1) + 4
    found = []
    for _ in range(struct.unpack_from("!H", data, at - 2)[0]):
        end = data.index(b"\0", at + 1)
        found.append(data[at + 1 : end].decode())
        at = end + 9
    return found


def _tuples(data: bytes, names: Sequence[str]) -> dict[bytes, dict[str, Any]]:
    """By what stands before them; `...` is a value that is not told."""
    found: dict[bytes, dict[str, Any]] = {}
    at = 5
    while at < len(data):
        row = found[data[at : at + 1]] = {}
        at += 3
        for name in names:
            kind, row[name] = data[at : at + 1], None
            at += 1
            if kind == b"t":
                (length,) = struct.unpack_from("!I", data, at)
                row[name] = data[at + 4 : at + 4 + length].decode()
                at += 4 + length
            elif kind == b"u":
                row[name] = ...
    return found


def _of_row(
    kind: bytes, position: int, tuples: dict[bytes, dict[str, Any]], key: Sequence[str], columns: Sequence[str]
) -> Iterator[Change]:
    old = tuples.get(b"O") or tuples.get(b"K")
    if kind == b"D":
        assert old is not None
        yield "delete", position, {c: None if old[c] is ... else old[c] for c in columns}
        return
    new = dict(tuples[b"N"])
    for name in columns:
        if new[name] is ...:
            if b"O" in tuples or (name in key and b"K" in tuples):
                assert old is not None
                new[name] = old[name]
            elif name in key:
                raise Untold(name)
    if old is not None and any(old[k] != new[k] for k in key):
        yield "delete", position, {c: old[c] for c in columns}
    yield "upsert", position, {c: new[c] for c in columns}
