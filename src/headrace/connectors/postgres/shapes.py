"""What has become of a table's columns in PostgreSQL since it began to be followed: added, made anew, of another type.

The log says of none of that what it has made of the rows that are there: columns that are added are told, and where
rows may have become others the table can be followed no further.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.postgres.slots import Connection
from headrace.errors import SourceError

Stored: TypeAlias = list[int | str]
"""In offsets: the number of the table's newest column, and the types of those that are declared, when it began."""


class AskedShape(NamedTuple):
    """A table that is asked for."""

    oid: int
    declared: Sequence[str]
    began: Stored | None
    """None where it begins now."""


@dataclass(frozen=True)
class TableShape:
    """The columns of a table as they are now."""

    newest: int
    declared: Sequence[str]
    """Those that are there, in their order,"""
    types: str
    """and their types."""
    added: tuple[str, ...]
    """What has come since the table began to be followed."""
    anew: Sequence[str]
    """The declared ones among these."""

    @property
    def stored(self) -> Stored:
        """As offsets have it."""
        return [self.newest, self.types]

    def check(self, began: Stored | None, table: str) -> None:
        """Raise `SourceError` where rows may have become others by what was done to the columns."""
        if began is None:
            return
        changed = [*self.anew, *_retyped(self.declared, str(began[1]).split(), self.types.split())]
        if changed:
            what = "was dropped and added again" if self.anew else "is of another type than before"
            raise SourceError(
                f'the column "{changed[0]}" of {table} in PostgreSQL {what}',
                detail="the log does not say what has become of the rows that are there",
                hint="drop the table here and create it again: it begins with the content of now",
            )


def shapes_of(c: Connection, tables: Mapping[int, AskedShape]) -> dict[int, TableShape]:
    """Those of the tables that are there."""
    asked = [[n, t.oid, t.began[0] if t.began else None, list(t.declared)] for n, t in tables.items()]
    found = c.execute(_SHAPES, [json.dumps(asked)]).fetchall()
    return {n: TableShape(newest, names or [], types or "", tuple(added or ()), anew or [])
            for n, newest, names, types, added, anew in found}  # fmt: skip


def _retyped(names: Sequence[str], before: Sequence[str], now: Sequence[str]) -> Iterator[str]:
    """The columns of which the values may be written in another way than before."""
    if len(before) == len(now):  # else one is gone, of which the log tells
        yield from (name for name, old, new in zip(names, before, now) if not _written_alike(old, new))


def _written_alike(before: str, now: str) -> bool:
    """Whether values keep their texts where a column of one type is given another."""
    old, _, old_modifier = before.partition(":")
    new, _, new_modifier = now.partition(":")
    if old == new == _NUMERIC and new_modifier and before != now:
        return bool(old_modifier) and _scale(old_modifier) == _scale(new_modifier)
    return before == now or new in _WIDER.get(old, ())


def _scale(modifier: str) -> int:
    return (int(modifier) - 4) & 0xFFFF


_INT2, _INT4, _INT8, _TEXT, _VARCHAR, _NUMERIC = "21", "23", "20", "25", "1043", "1700"
_TEXTS = (_TEXT, _VARCHAR)
_WIDER: Final[Mapping[str, tuple[str, ...]]] = {
    _INT2: (_INT4, _INT8, *_TEXTS), _INT4: (_INT2, _INT8, *_TEXTS), _INT8: (_INT2, _INT4, *_TEXTS),
    _TEXT: _TEXTS, _VARCHAR: _TEXTS, _NUMERIC: (_NUMERIC, *_TEXTS),
}  # fmt: skip
"""By the oids of types: those as which values are written as before."""
_SHAPES = """SELECT (asked ->> 0)::bigint, max(attnum)::int,
                    array_agg(attname::text ORDER BY attnum) FILTER (WHERE declared),
                    string_agg(atttypid::oid::text || CASE WHEN atttypmod >= 0 THEN ':' || atttypmod ELSE '' END,
                               ' ' ORDER BY attnum) FILTER (WHERE declared),
                    array_agg(attname::text ORDER BY attnum)
                        FILTER (WHERE attnum > since AND attgenerated = '' AND NOT declared),
                    array_agg(attname::text ORDER BY attnum) FILTER (WHERE attnum > since AND declared)
             FROM jsonb_array_elements(%s::jsonb) AS w (asked),
             LATERAL (SELECT *, (asked ->> 2)::int AS since, asked -> 3 ? attname::text AS declared FROM pg_attribute
                      WHERE attrelid = (asked ->> 1)::oid AND attnum > 0 AND NOT attisdropped) AS a
             GROUP BY asked"""
