"""The `postgres-cdc` source: what is in a table of PostgreSQL, and then what changes in it.

The first binding is the table's content, a later one the transactions that have committed up to a place in
PostgreSQL's log, whole. They are peeked at through a replication slot, as often as it takes, and the slot is moved on
only when the one reader has durably taken them in. So the slot holds what may have to be read again.

Content and changes need not fit together seamlessly: a change that the content has already says again what is there,
and every change of a row outranks its content. So tasks may read parts of the content at moments of their own. What
they need is that the second binding reaches beyond the moments of the content that has been taken in: so it is made
only after that, and up to the end of the log, whatever there is; until then nobody sees the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.common.columns import Column
from headrace.common.identifiers import quoted_name
from headrace.connectors.base import Admission, Binding, Offsets
from headrace.connectors.option_reader import COMMON_OPTIONS
from headrace.connectors.postgres import slots
from headrace.connectors.postgres.content_parts import content_of
from headrace.connectors.postgres.options import CDC, SHARED, with_slot
from headrace.connectors.postgres.pgoutput import truncated_tables
from headrace.connectors.postgres.shapes import AskedShape, Stored, TableShape, shapes_of
from headrace.connectors.postgres.slot_sharing import CAUGHT_UP, COLUMNS, LSN, TABLE, carried, is_settled, since_emptied
from headrace.connectors.postgres.table_reading import TableReading
from headrace.connectors.postgres.tables import check_alone, check_key, columns, table_file
from headrace.errors import InvalidParameter, NotSupported, SourceError

QUIET_BYTES = 16 << 20
"""So much of the log without a change of the table moves the slot on, too."""


class PostgresCdcSource(TableReading):
    """See the module."""

    feeds = True
    holds = True
    renews = True

    declared = CDC

    @classmethod
    def infer_columns(cls, options: Mapping[str, str]) -> list[Column]:
        """They are declared, with the primary key."""
        raise InvalidParameter("a table that follows one of PostgreSQL needs its columns and primary key declared")

    @classmethod
    def added_columns(cls, options: Mapping[str, str]) -> list[Column]:
        """What a table that is fed asks for."""
        if "include.operation" not in options:
            raise NotSupported(
                "connector postgres-cdc in CREATE SOURCE, or in CREATE TABLE without a primary key",
                hint="CREATE TABLE t (id int PRIMARY KEY, ...) WITH (connector = 'postgres-cdc', ...)",
            )
        return [Column(options["include.operation"], "string"), Column(options["include.position"], "bigint")]

    @classmethod
    def whole(cls, offsets: Offsets) -> bool:
        """Content alone is of several moments, and of later ones than other tables are bound to."""
        return is_settled(offsets)

    @classmethod
    def as_shared(cls, options: Mapping[str, str]) -> dict[str, str]:
        """See `Source`: what is wrong with values is the table's to say."""
        names = {*(option.name for option in SHARED.options), *COMMON_OPTIONS} - {"on_error"}
        return {name: value for name, value in options.items() if name in names}

    @classmethod
    def settled(cls, options: Mapping[str, str]) -> dict[str, str]:
        """With a slot and a publication of its own."""
        return with_slot(options)

    def __init__(self, options: Mapping[str, str], columns: Sequence[Column]):
        super().__init__(options, columns)
        self._taken: Offsets = {}
        self._quiet: tuple[int, int] | None = None
        """What was bound and the end of the log, where nothing was found between them."""

    # ---- binding, in the server

    def claim(self) -> None:
        """See `Source`: the key has to be one there, and the slot not there yet."""
        with self._connection() as c:
            self._check_key(c)
            check_alone(c, quoted_name(self._schema_name, self._table))
            slots.check_free(
                c, self._slot,
                "each table needs a slot of its own, which it makes itself: leave slot.name out, or drop that",
            )  # fmt: skip

    def start_offsets(self) -> Offsets:
        """Before the table's content. Raises `SourceError` where there is no such table, or a column is missing."""
        with self._connection() as c:
            found = {known.name: known for known in columns(c, quoted_name(self._schema_name, self._table))}
        if not found:
            raise SourceError(f"there is no table {self._name} in PostgreSQL, or it cannot be seen")
        for column in self._own:
            if column.name not in found:
                raise SourceError(
                    f'the table {self._name} in PostgreSQL has no column "{column.name}"',
                    hint=_called_there(found, column.name),
                )
            kind = self.schema.field(column.name).type
            problem = found[column.name].unlike(is_array=pa.types.is_list(kind), is_text=pa.types.is_string(kind))
            if problem is not None:
                raise SourceError(
                    f'the column "{column.name}" of {self._name} in PostgreSQL {problem}',
                    hint="declare it as text, as an array of the type of its elements, or leave it out",
                )
        return {}

    def _check_key(self, c: Any) -> None:
        check_key(c, quoted_name(self._schema_name, self._table), self._key)

    def _check_table(self, c: Any, oid: int | None) -> int:
        """The table's oid, if it is still the one that is followed, and all of its changes are published."""
        found, all_kinds, listed, only = c.execute(
            _FOLLOWED, [quoted_name(self._schema_name, self._table), self._publication, self._schema_name, self._table]
        ).fetchone()
        again = "; then drop the table here, if it is there, and create it again"
        if found is None or (oid is not None and found != oid):
            raise SourceError(
                f"the table {self._name} in PostgreSQL is not the one any more that is followed: it was renamed or "
                "dropped",
                hint="give it its name back, or drop the table here and create it again",
            )
        if not listed:
            raise SourceError(
                f"the publication {self._publication} in PostgreSQL does not have the table {self._name}",
                hint="ALTER PUBLICATION ... ADD TABLE ..." + again,
            )
        if not all_kinds or only is not None:
            raise SourceError(
                f"the publication {self._publication} in PostgreSQL leaves out changes of {self._name}",
                hint="let it publish 'insert, update, delete, truncate' of all of its rows" + again,
            )
        self._check_key(c)
        return int(found)

    def acknowledge(self, offsets: Offsets) -> None:
        """See `Source`: the slot is moved on with the next look."""
        self._taken = offsets

    def latest_offsets(self, after: Offsets, limit: Admission, now_ms: int) -> Binding:
        """See `Source`."""
        with self._connection() as c:
            c.autocommit = True
            if not after:
                return self._begin(c)
            self._check_slot(c, after)
            oid = self._check_table(c, after.get(TABLE))
            shape = self._shape(c, oid, after.get(COLUMNS))
            shape.check(after.get(COLUMNS), self._name)
            if self._taken:
                slots.advance(c, self._slot, self._taken[LSN])
            if self._taken != after:
                # First its content has to be taken in. And who reads the log needs the slot for himself, which would
                # be looked through from its beginning again and again meanwhile.
                return Binding(after, 0, False, added=shape.added)
            end = slots.end_of_log(c)
            settled = is_settled(after)
            if settled and self._quiet == (after[LSN], end):
                return Binding(after, 0, False, added=shape.added)
            room = limit.estimated_rows(self._max_rows) if settled else None
            most_bytes = limit.max_bytes if settled else None
            asked = [self._slot, None if room else slots.lsn_text(end), room, quoted_name(self._publication)]
            position, rows, truncations, more = slots.in_turn(
                lambda: c.execute(_REACHED, [*asked, most_bytes, room]).fetchone()
            )
        to = end if not settled else position if rows or more else after[LSN]
        if not (rows or more) and end - after[LSN] > QUIET_BYTES:
            to = end
        emptied = max((at for at, data in truncations or () if oid in truncated_tables(bytes.fromhex(data))), default=0)
        kept = {**carried(after), **since_emptied(after, emptied)}
        reached = {LSN: max(to, after[LSN]), TABLE: oid, **kept}
        self._quiet = None if rows or more else (reached[LSN], end)
        return Binding(reached, rows, False, None, bool(more), added=shape.added)

    def _begin(self, c: Any) -> Binding:
        if c.execute("SELECT FROM pg_publication WHERE pubname = %s", [self._publication]).fetchone() is None:
            name, table = quoted_name(self._publication), quoted_name(self._schema_name, self._table)
            c.execute(f"CREATE PUBLICATION {name} FOR TABLE {table}")
        oid = self._check_table(c, None)
        c.execute(slots.NEW, [self._slot, self._slot])
        (lsn,) = c.execute(_CONFIRMED, [self._slot]).fetchone()
        file = table_file(c, quoted_name(self._schema_name, self._table))
        began = {COLUMNS: self._shape(c, oid, None).stored, **content_of(file, self._on_error != "fail")}
        at = {LSN: int(lsn), CAUGHT_UP: False, TABLE: oid, **began}
        return Binding(at, file.rows, False)

    def _shape(self, c: Any, oid: int, began: Stored | None) -> TableShape:
        return shapes_of(c, {0: AskedShape(oid, [column.name for column in self._own], began)})[0]

    def _check_slot(self, c: Any, after: Offsets) -> None:
        found = c.execute(slots.FOUND, [self._slot]).fetchone()
        hint = "drop the table and create it again: it begins with the content of now"
        if found is None or found[1] == "lost":
            raise SourceError(f"PostgreSQL does not have the replication slot {self._slot} any more", hint=hint)
        if int(found[0]) > after[LSN]:
            raise SourceError(f"somebody else has read from the replication slot {self._slot}", hint=hint)

    def discard(self, last: Offsets | None = None) -> str | None:
        """Drop the slot, and the publication if it was made for it."""
        with self._connection() as c:
            c.autocommit = True
            left = slots.discard(c, self._slot, last)
            if left is None and self._publication == self._slot:
                c.execute(f"DROP PUBLICATION IF EXISTS {quoted_name(self._publication)}")
            return left


def _called_there(names: Iterable[str], wanted: str) -> str:
    """What to do for a column that is not there by its name."""
    alike = [f'"{name}"' for name in names if name.lower() == wanted.lower()]
    if alike:
        return f"it has {' and '.join(alike)}: declare it as it is spelled there, in quotes"
    return f"it has {', '.join(quoted_name(name) for name in names)}"


_FOLLOWED = """SELECT c.oid::oid::bigint, pubinsert AND pubupdate AND pubdelete AND pubtruncate, tablename IS NOT NULL,
                      to_jsonb(t) ->> 'rowfilter'
               FROM (SELECT to_regclass(%s) AS oid) c LEFT JOIN pg_publication ON pubname = %s
               LEFT JOIN pg_publication_tables t ON t.pubname = pg_publication.pubname
                   AND schemaname = %s AND tablename = %s"""
_CONFIRMED = "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
# Commits (C); inserts, updates, deletes, truncations; these themselves; whether there may be more. All of it up to the
# last commit before which there are no more bytes than wanted, or the first one.
_REACHED = f"""WITH m AS MATERIALIZED (
                   SELECT row_number() OVER () AS n, lsn - '0/0'::pg_lsn AS lsn, get_byte(data, 0) AS kind,
                          sum(octet_length(data)) OVER (ROWS UNBOUNDED PRECEDING) AS size,
                          CASE get_byte(data, 0) WHEN 84 THEN encode(data, 'hex') END AS data
                   FROM {slots.PEEK.format(limit="%s::int")}),
               reached AS (SELECT coalesce(max(n) FILTER (WHERE size <= coalesce(%s, size)), min(n)) AS n
                           FROM m WHERE kind = 67)
               SELECT max(lsn) FILTER (WHERE kind = 67)::bigint, count(*) FILTER (WHERE kind IN (73, 85, 68, 84)),
                      jsonb_agg(jsonb_build_array(lsn::bigint, data)) FILTER (WHERE kind = 84),
                      (SELECT max(m.n) > min(reached.n) OR max(m.n) >= %s FROM m, reached)
               FROM m, reached WHERE m.n <= reached.n"""
