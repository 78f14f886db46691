"""What PostgreSQL's catalogs say of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


def keys(connection: Any, table: str) -> Iterator[tuple[list[str], bool]]:
    """The columns, in order of their names, of which any two rows differ at any time; and whether changes tell them.

    Those of an index that is unique, checked at once, valid, and of all rows. Changes tell those of the replica
    identity; a column that may be NULL is none that tells rows apart then.
    """
    for names, told in connection.execute(_KEYS, [table]):
        yield sorted(names), told


def has_key(found: Iterator[tuple[list[str], bool]], key: Sequence[str], told: bool = False) -> bool:
    """Whether one of the keys is `key`, and, where asked, changes tell it."""
    return any(names == sorted(key) and (tells or not told) for names, tells in found)


_KEYS = """SELECT array_agg(attname::text), bool_and(attnotnull) AND
               (indisreplident OR relreplident = 'f' OR (relreplident = 'd' AND indisprimary))
           FROM pg_index JOIN pg_class ON pg_class.oid = indrelid,
           LATERAL unnest(indkey::int2[]) WITH ORDINALITY AS k (number, place)
           JOIN pg_attribute ON attnum = k.number
           WHERE indrelid = to_regclass(%s) AND attrelid = indrelid AND place <= indnkeyatts
               AND indisunique AND indimmediate AND indisvalid AND indpred IS NULL AND indexprs IS NULL
           GROUP BY indexrelid, indisreplident, indisprimary, relreplident"""
