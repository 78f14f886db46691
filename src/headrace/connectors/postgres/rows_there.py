"""Rows of a table of PostgreSQL as they are now, asked for by their keys, one by one: there are few such questions.

And what the log tells of them meanwhile, so that it is known of which moment the answers are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Final, NamedTuple

import pyarrow as pa

from headrace.common.identifiers import quoted_name
from headrace.connectors.postgres.fetching import content
from headrace.connectors.postgres.pgoutput import Decoder, Messages, truncated_tables
from headrace.connectors.postgres.row_chains import Key, RowChains, Texts
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

    now: Mapping[Key, Texts | None]
    """The keys that rows had there of which it tells something, and those that they have now; None where deleted,"""
    gone: frozenset[Texts]
    """all keys that a row had and has got rid of, or was deleted with,"""
    emptied: bool
    """and whether the table was truncated."""
    unseen: bool
    """Whether a transaction up to there was still under way for whoever asked."""
    end: int
    """Up to where it was looked at."""


class UnderWay(NamedTuple):
    """The transactions of a server that somebody does not see, by their numbers as the log has them.

    One that waits for a synchronous standby is in the log already.
    """

    running: frozenset[int]
    next: int
    """This and later ones have not ended, either."""

    def has(self, number: int) -> bool:
        """Whether a transaction is among them: numbers go round."""
        return number in self.running or (number - self.next) % _NUMBERS < _NUMBERS // 2


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

    def as_of(self, keys: Sequence[Texts], log: TableLog) -> list[dict[str, pa.Array]]:
        """The columns of rows that had these keys at a place in the log, as they were there.

        They are what they are now where the log tells nothing of them since. Raises `SourceError` where nobody knows.
        """
        found, since = self._asked(keys, log)
        made: list[dict[str, pa.Array]] = []
        for key, texts in zip(keys, found):
            if texts is None or since.emptied or key in since.now:
                raise SourceError(
                    "nobody knows any more what a row in PostgreSQL was: it is being changed, and values that are "
                    "stored out of line are left out of that",
                    hint="if this comes again, drop the table here and create it again; ALTER TABLE ... REPLICA "
                    "IDENTITY FULL has all values said",
                )
            made.append(texts)
        return made

    def of_later(self, keys: Sequence[Texts], log: TableLog) -> list[dict[str, pa.Array] | None]:
        """The columns of rows that had these keys at a place in the log, as they are now; None of one that is gone.

        For who sees nothing of it before what the log tells meanwhile. A row is asked for by the key that it has got
        meanwhile, and again where it has just got another one.
        """
        made: dict[Texts, dict[str, pa.Array] | None] = {}
        named = {key: key for key in keys}
        for _ in range(_ASKED_AGAIN):
            found, since = self._asked([*named.values()], log)
            moved: dict[Texts, Texts] = {}
            for (key, asked), texts in zip(named.items(), found):
                now = since.now.get(asked, asked)
                if since.emptied or now is None:
                    made[key] = None
                elif asked in since.gone:
                    moved[key] = now
                elif texts is None:
                    raise SourceError(
                        "a row that PostgreSQL's log tells of cannot be seen by who is asked for it",
                        hint="row security may hide it from the role: let that be none for it",
                    )
                else:
                    made[key] = texts
            if not moved:
                return [made[key] for key in keys]
            named, log = moved, log._replace(place=since.end)
        raise SourceError(
            "a row in PostgreSQL gets another key whenever it is asked for", hint="when it keeps one, this goes on"
        )

    def _asked(
        self, keys: Sequence[Texts], log: TableLog
    ) -> tuple[list[dict[str, pa.Array] | None], ToldSince]:  # fmt: skip
        """What there is under keys now, and what the log tells up to then. Raises `SourceError` if that is not seen."""
        under_way = self._under_way()
        found = [self.texts(key) for key in keys]
        since = self._since(log, under_way)
        if since.unseen:
            raise SourceError(
                "a change of PostgreSQL is in its log and cannot be seen by those who ask for a row",
                hint="its transaction is about to end, or waits for a synchronous standby; then this goes on",
            )
        return found, since

    def _under_way(self) -> UnderWay:
        """Those that are not seen now; by later questions no others of which the log has told by now."""
        following, running = self._open().execute(_UNDER_WAY).fetchone()
        self._open().rollback()
        return UnderWay(frozenset(int(number) % _NUMBERS for number in running), int(following) % _NUMBERS)

    def _since(self, log: TableLog, under_way: UnderWay) -> ToldSince:
        """What the log tells up to now. All that answers of before have seen is in it."""
        end = end_of_log(self._open())
        self._open().rollback()
        gone, chains = set[Texts](), RowChains()
        found = _Transactions(log.table, log.place, under_way)
        decoder = Decoder(log.table, self._key, self._key, log.place, end)
        for events in decoder.changes(found.without(log.messages(end))):
            keys: list[Texts] = [*zip(*(events.values[name].to_pylist() for name in self._key))]
            deletes = events.deletes.tolist()
            chains.add(keys, keys, deletes, None if events.moved is None else events.moved.tolist())
            gone.update(key for key, deleted in zip(keys, deletes) if deleted)
        return ToldSince(chains.now(), frozenset(gone), found.emptied, found.unseen, end)

    def _open(self) -> Connection:
        if self._connection is None:
            self._connection = self._held.enter_context(self._connect())
        return self._connection


class _Transactions:
    """Looks for those of a table that truncate it and end behind a place, and for those before that are not seen."""

    def __init__(self, table: int, place: int, under_way: UnderWay) -> None:
        self._table, self._place, self._under_way = table, place, under_way
        self._number = 0
        """Of the transaction whose end has not come yet,"""
        self._touches = self._truncates = False
        """whether it changes rows of the table, and whether it truncates it."""
        self.emptied = self.unseen = False

    def without(self, batches: Iterator[Messages]) -> Iterator[Messages]:
        """All messages but truncations."""
        for positions, data in batches:
            others = [i for i, message in enumerate(data) if not self._truncation(message)]
            yield Messages(positions[others], [data[i] for i in others])

    def _truncation(self, message: bytes) -> bool:
        kind = message[:1]
        if kind == b"B":
            (self._number,) = struct.unpack_from("!I", message, 17)
        elif kind == b"C":
            (end,) = struct.unpack_from("!q", message, 10)
            self.emptied = self.emptied or (self._truncates and end > self._place)
            unseen = self._touches and end <= self._place and self._under_way.has(self._number)
            self.unseen = self.unseen or unseen
            self._truncates = self._touches = False
        elif kind == b"T":
            self._truncates = self._truncates or self._table in truncated_tables(message)
            self._touches = self._touches or self._truncates
        elif kind in (b"I", b"U", b"D"):
            self._touches = self._touches or struct.unpack_from("!I", message, 1) == (self._table,)
        return kind == b"T"


def _literal(text: str) -> str:
    """A text in a query with parameters."""
    return text.replace("%", "%%")


_ASKED_AGAIN: Final = 10
"""So often a row is followed to another key: each time it must have got that since the last."""
_NUMBERS: Final = 1 << 32
"""So many numbers of transactions there are before they begin anew."""
_UNDER_WAY: Final = """SELECT pg_snapshot_xmax(s)::text, ARRAY(SELECT pg_snapshot_xip(s)::text)
                       FROM pg_current_snapshot() AS s"""
