"""What PostgreSQL's catalogs say of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.common.identifiers import quoted_name
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.postgres.slots import Connection
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
class TableFile:
    """Where the rows of a table lie."""

    rows: int
    """About how many there are, at least 1."""
    blocks: int
    """Of how many blocks its file is; 0 where that is not to be read in parts."""
    size: int
    """Bytes that all of it takes, with what is stored out of line."""
    node: int
    """Tells the file from the one that it has when all rows have been written anew."""


def table_file(c: Connection, table: str) -> TableFile:
    """That of a table, whose name is quoted."""
    rows, blocks, size, node = c.execute(_FILE, [table]).fetchone()
    return TableFile(max(int(rows), 1), int(blocks), int(size), int(node))


# Rows as PostgreSQL's planner guesses: by how many a block had when they were counted, or as if they were of middling
# length.
_FILE = """SELECT (blocks * CASE WHEN reltuples > 0 AND relpages > 0 THEN reltuples / relpages ELSE 64 END)::bigint,
                  CASE WHEN relkind = 'r' AND current_setting('server_version_num')::int >= 140000
                      THEN blocks ELSE 0 END,
                  coalesce(pg_table_size(oid), 0)::bigint, coalesce(pg_relation_filenode(oid), 0)::bigint
           FROM pg_class, LATERAL (SELECT coalesce(pg_relation_size(oid), 0)
                                          / current_setting('block_size')::int AS blocks) AS f
           WHERE oid = to_regclass(%s)"""


@dataclass(frozen=True)
class TableColumn:
    """A column as PostgreSQL has it; of a domain, what that is made of."""

    name: str
    kind: str
    """The name of its type, of an array that of its elements' type."""
    modifier: int
    dimensions: int
    """Of an array as it was declared, at least one; 0 for what is none."""
    separator: str
    """What stands between the elements of an array of the type."""
    generated: bool

    def unlike(self, *, is_array: bool, is_text: bool) -> str | None:
        """What is wrong where it is read as an array, as text, or as neither; None if nothing is."""
        if self.generated:
            return "is generated, and changes do not tell it"
        if is_array and not self.dimensions:
            return f"is no array: its type is {self.kind}"
        if is_array and self.separator != ",":
            return f"is an array of {self.kind}, between whose elements no comma stands"
        return f"is an array of {self.kind}" if self.dimensions and not (is_array or is_text) else None


def columns(c: Connection, table: str) -> list[TableColumn]:
    """Those of a table, whose name is quoted, in order; none where there is no such table."""
    return [TableColumn(*found) for found in c.execute(_COLUMNS, [table])]


_COLUMNS = """WITH RECURSIVE base (number, name, type, modifier, dimensions, generated) AS (
                  SELECT attnum, attname::text, atttypid, atttypmod, attndims, attgenerated <> '' FROM pg_attribute
                  WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
                  UNION ALL
                  SELECT number, name, typbasetype, typtypmod, typndims, generated
                  FROM base JOIN pg_type ON oid = type WHERE typtype = 'd')
              SELECT b.name, coalesce(e.typname, t.typname)::text, modifier,
                     CASE WHEN e.oid IS NULL THEN 0 ELSE greatest(dimensions, 1) END,
                     coalesce(e.typdelim, t.typdelim)::text, generated
              FROM base b JOIN pg_type t ON t.oid = type
              LEFT JOIN pg_type e ON e.oid = t.typelem AND e.typarray = t.oid
              WHERE t.typtype <> 'd' ORDER BY number"""


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


def check_alone(c: Connection, table: str) -> None:
    """Raise `SourceError` for a table, whose name is quoted, with rows of others: the log does not tell all of those.

    It says nothing where a partition is truncated, detached or dropped, or comes with rows in it.
    """
    found = c.execute(_CHILDREN, [table]).fetchone()
    if found is None:
        return
    what = (
        f"the table {table} in PostgreSQL is partitioned, and what is done to a partition as a whole is not told"
        if found[0]
        else f"other tables inherit from {table} in PostgreSQL, and what changes in those is not its own"
    )
    raise SourceError(what, hint="follow each of them, and UNION ALL what is wanted together")


_CHILDREN = """SELECT relkind = 'p' FROM pg_class c WHERE c.oid = to_regclass(%s)
               AND (relkind = 'p' OR EXISTS (SELECT FROM pg_inherits WHERE inhparent = c.oid))"""
_PUBLISHED = """SELECT w.number, quote_ident(nspname) || '.' || quote_ident(relname),
                       pubinsert AND pubupdate AND pubdelete AND pubtruncate, t.tablename IS NOT NULL,
                       to_jsonb(t) ->> 'rowfilter'
                FROM unnest(%s::bigint[], %s::text[], %s::bigint[]) AS w (oid, name, number)
                LEFT JOIN pg_class c ON c.oid = coalesce(w.oid, to_regclass(w.name)::oid::bigint)
                LEFT JOIN pg_namespace n ON n.oid = relnamespace
                LEFT JOIN pg_publication p ON pubname = %s
                LEFT JOIN pg_publication_tables t ON t.pubname = p.pubname AND schemaname = nspname
                    AND tablename = relname"""
