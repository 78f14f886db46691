"""Rows of a table of PostgreSQL as they are now, asked for by their keys, one by one: there are few such questions.

And what the log tells of them meanwhile, so that it is known of which moment the answers are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import NamedTuple

import pyarrow as pa

from headrace.common.identifiers import quoted_name
from headrace.connectors.postgres.fetching import content
from headrace.connectors.postgres.pgoutput import Decoder, Messages, truncated_tables
from headrace.connectors.postgres.row_chains import Texts
from headrace.connectors.postgres.slots import Connection, end_of_log
from headrace.errors import SourceError


class TableLog(NamedTuple):
    """What a table's log tells."""

    messages: Callable[[int], Iterator[Messages]]
    """Its messages up to a place."""
    table: int
    """The table's oid."""
    place: int
    """What is behind this is looked at."""


class ToldSince(NamedTuple):
    """What the log tells of a table behind some place."""

    told: frozenset[Texts]
    """The keys of rows of which it tells something,"""
    gone: frozenset[Texts]
    """those of rows that were deleted, or have got other keys,"""
    emptied: bool
    """and whether the table was truncated."""


class RowsThere:
    """Asks over one connection, which is opened with the first question."""

    def __init__(
        self, connect: Callable[[], AbstractContextManager[Connection]], table: Callable[[Connection], str],
        names: Sequence[str], key: Sequence[str],
    ) -> None:  # fmt: skip
        self._connect, self._table, self._names, self._key = connect, table, names, key
        self._held = ExitStack()
        self._connection: Connection | None = None

    def close(self) -> None:
        """Let go of the connection."""
        self._held.close()

    def texts(self, key: Sequence[str]) -> dict[str, pa.Array] | None:
        """The columns of the row with a key, as texts; None where there is none. Raises what the connection does.

        The key is as PostgreSQL writes it: a text is taken for a value of the column's type, whatever that is here.
        """
        c = self._open()
        table = _literal(self._table(c))
        same = " AND ".join(f"{_literal(quoted_name(name))} = %s" for name in self._key)
        found = [*content(c, table, [_literal(quoted_name(name)) for name in self._names], same, key)]
        c.rollback()  # the next question is about another moment
        return dict(zip(self._names, found[0])) if found else None

    def as_of(self, keys: Sequence[Texts], log: TableLog, settling: bool) -> list[dict[str, pa.Array] | None]:
        """The columns of rows that had these keys at a place in the log, as they were there.

        They are what they are now where the log tells nothing of them since. If `settling`, nobody sees them before
        what it tells is taken in, too, so that does not matter: of a row that is gone by then there is None.
        Raises `SourceError` where nobody can tell.
        """
        found = [self.texts(key) for key in keys]
        since = self._since(log)
        made: list[dict[str, pa.Array] | None] = []
        for key, texts in zip(keys, found):
            gone = since.emptied or key in since.gone
            if gone and settling:
                made.append(None)
            elif texts is None or gone or (key in since.told and not settling):
                raise SourceError(
                    "nobody knows any more what a row in PostgreSQL was: it is being changed, and values that are "
                    "stored out of line are left out of that",
                    hint="if this comes again, drop the table here and create it again; ALTER TABLE ... REPLICA "
                    "IDENTITY FULL has all values said",
                )
            else:
                made.append(texts)
        return made

    def _since(self, log: TableLog) -> ToldSince:
        """What the log tells up to now. All that answers of before have seen is in it."""
        end = end_of_log(self._open())
        self._open().rollback()
        told, gone = set[Texts](), set[Texts]()
        found = _Truncations(log.table, log.place)
        decoder = Decoder(log.table, self._key, self._key, log.place, end)
        for events in decoder.changes(found.without(log.messages(end))):
            keys = [*zip(*(events.values[name].to_pylist() for name in self._key))]
            told.update(keys)
            gone.update(key for key, deleted in zip(keys, events.deletes.tolist()) if deleted)
        return ToldSince(frozenset(told), frozenset(gone), found.seen)

    def _open(self) -> Connection:
        if self._connection is None:
            self._connection = self._held.enter_context(self._connect())
        return self._connection


class _Truncations:
    """Looks for those of a table in transactions that end behind a place."""

    def __init__(self, table: int, place: int) -> None:
        self._table, self._place = table, place
        self._open = False
        self.seen = False

    def without(self, batches: Iterator[Messages]) -> Iterator[Messages]:
        """All other messages."""
        for positions, data in batches:
            others = [i for i, message in enumerate(data) if not self._is_one(message)]
            yield Messages(positions[others], [data[i] for i in others])

    def _is_one(self, message: bytes) -> bool:
        if message[:1] == b"C":
            (end,) = struct.unpack_from("!q", message, 10)
            self.seen = self.seen or (self._open and end > self._place)
            self._open = False
        truncates = message[:1] == b"T"
        self._open = self._open or (truncates and self._table in truncated_tables(message))
        return truncates


def _literal(text: str) -> str:
    """A text in a query with parameters."""
    return text.replace("%", "%%")
