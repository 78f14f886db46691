"""What PostgreSQL's catalogs say of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.common.identifiers import quoted_name
from headrace.errors import SourceError


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


@dataclass(frozen=True)
class Published:
    """A table as PostgreSQL has it now, and what a publication has of it."""

    asked: str
    """Its name, as it was asked for."""
    name: str | None
    """As it is now; None where there is no such table."""
    kinds: bool
    """All kinds of changes are published."""
    listed: bool
    rows: str | None
    """Which of its rows are published; None for all."""

    def checked(self, publication: str) -> str:
        """The name. Raises `SourceError` for a table that is not there, or of which changes are left out."""
        again = "; then drop the table here, if it is there, and create it again"
        if self.name is None:
            raise SourceError(
                f"the table {self.asked} in PostgreSQL is not there, or cannot be seen",
                hint="drop the table here, if it is there: the others of its source wait for that",
            )
        if not self.listed:
            raise SourceError(
                f"the publication {publication} in PostgreSQL does not have the table {self.name}",
                hint=f"ALTER PUBLICATION {publication} ADD TABLE {self.name}" + again,
            )
        if not self.kinds or self.rows is not None:
            raise SourceError(
                f"the publication {publication} in PostgreSQL leaves out changes of {self.name}",
                hint="let it publish 'insert, update, delete, truncate' of all of its rows" + again,
            )
        return self.name


def published(c: Any, publication: str, tables: Mapping[int, tuple[int | None, str, str]]) -> dict[int, Published]:
    """What there is of tables, each by its oid, or where that is None by its schema and name."""
    numbers, wanted = list(tables), list(tables.values())
    names = [quoted_name(schema, name) for _, schema, name in wanted]
    found = c.execute(_PUBLISHED, [[oid for oid, _, _ in wanted], names, numbers, publication]).fetchall()
    plain = {number: f"{schema}.{name}" for number, (_, schema, name) in tables.items()}
    return {n: Published(plain[n], name, bool(kinds), listed, rows) for n, name, kinds, listed, rows in found}


def check_key(c: Any, table: str, key: Sequence[str]) -> None:
    """Raise `SourceError` for columns that are no key of a table, whose name is quoted, or none that changes tell."""
    if not has_key(keys(c, table), key, told=True):
        raise SourceError(
            f"({', '.join(key)}) is no key of the table {table} in PostgreSQL that changes tell",
            hint="it has to be its primary key, or the columns of a unique index, NOT NULL and not deferrable, "
            "that is its REPLICA IDENTITY (or that is FULL)",
        )


_PUBLISHED = """SELECT w.number, quote_ident(nspname) || '.' || quote_ident(relname),
                       pubinsert AND pubupdate AND pubdelete AND pubtruncate, t.tablename IS NOT NULL,
                       to_jsonb(t) ->> 'rowfilter'
                FROM unnest(%s::bigint[], %s::text[], %s::bigint[]) AS w (oid, name, number)
                LEFT JOIN pg_class c ON c.oid = coalesce(w.oid, to_regclass(w.name)::oid::bigint)
                LEFT JOIN pg_namespace n ON n.oid = relnamespace
                LEFT JOIN pg_publication p ON pubname = %s
                LEFT JOIN pg_publication_tables t ON t.pubname = p.pubname AND schemaname = nspname
                    AND tablename = relname"""
