"""The `postgres-cdc` source: what is in a table of PostgreSQL, and then what changes in it.

The first binding is the table's content, a later one the transactions that have committed up to a place in
PostgreSQL's log, whole. They are peeked at through a replication slot, as often as it takes, and the slot is moved on
only when the one reader has durably taken them in. So the slot holds what may have to be read again.

Content and changes need not fit together seamlessly: a change that the content has already says again what is there,
and every change of a row outranks its content. What they need is that the second binding reaches beyond the moment of
the content that has been taken in: so it is made only after that, and up to the end of the log, whatever there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.columns import Column, arrow_schema
from headrace.common.identifiers import quoted_name
from headrace.connectors.base import (
    Admission,
    Binding,
    Offsets,
    ReadBatch,
    ReadTask,
    RowError,
    Source,
    common_options,
)
from headrace.connectors.option_reader import COMMON_OPTIONS, OptionReader, without_included
from headrace.connectors.parsed_values import strings_to_array
from headrace.connectors.policy import ParsedRows, apply_policy, sample
from headrace.connectors.postgres import slots
from headrace.connectors.postgres.fetching import content, declare, fetched
from headrace.connectors.postgres.options import CDC, cdc_server, connection, with_slot
from headrace.connectors.postgres.pgoutput import DELETE, UPSERT, Decoder, Messages, RowEvents
from headrace.connectors.postgres.slot_sharing import CAUGHT_UP, LSN, TABLE
from headrace.connectors.postgres.tables import check_key
from headrace.errors import InvalidParameter, NotSupported, SourceError

QUIET_BYTES = 16 << 20
"""So much of the log without a change of the table moves the slot on, too."""


class PostgresCdcSource(Source):
    """See the module."""

    feeds = True
    holds = True

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
    def settled(cls, options: Mapping[str, str]) -> dict[str, str]:
        """With a slot and a publication of its own."""
        return with_slot(options)

    def __init__(self, options: Mapping[str, str], columns: Sequence[Column]):
        super().__init__(options, columns)
        values = CDC.read(without_included(options), COMMON_OPTIONS)
        self._server = cdc_server(values)
        self._schema_name, self._table = values["schema.name"], values["table.name"]
        self._slot, self._publication = values["slot.name"], values["publication.name"]
        self._on_error, self._max_rows = common_options(OptionReader(options))
        self._beside = {options.get("include.operation"), options.get("include.position")}
        self._operation = options.get("include.operation")
        self._own = [c for c in self.columns if c.name not in self._beside]
        self._key = [c.name for c in self._own if not c.nullable]
        nested = next((c for c in self._own if pa.types.is_nested(self.schema.field(c.name).type)), None)
        if nested is not None:
            raise NotSupported(f'the column "{nested.name}" of type {nested.type} of a postgres-cdc table')
        self._taken: Offsets = {}
        self._quiet: tuple[int, int] | None = None
        """What was bound and the end of the log, where nothing was found between them."""

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        with connection(self._server, SourceError) as c:
            c.execute(slots.TEXT)
            c.commit()
            yield c

    @property
    def _name(self) -> str:
        return f"{self._schema_name}.{self._table}"

    # ---- binding, in the server

    def claim(self) -> None:
        """See `Source`: the key has to be one there, and the slot not there yet."""
        with self._connection() as c:
            self._check_key(c)
            slots.check_free(
                c, self._slot,
                "each table needs a slot of its own, which it makes itself: leave slot.name out, or drop that",
            )  # fmt: skip

    def start_offsets(self) -> Offsets:
        """Before the table's content. Raises `SourceError` where there is no such table, or a column is missing."""
        with self._connection() as c:
            names = {r[0] for r in c.execute(_COLUMNS, [quoted_name(self._schema_name, self._table)])}
        if not names:
            raise SourceError(f"there is no table {self._name} in PostgreSQL, or it cannot be seen")
        missing = next((column.name for column in self._own if column.name not in names), None)
        if missing is not None:
            raise SourceError(f'the table {self._name} in PostgreSQL has no column "{missing}"')
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
            if not self._taken:
                return Binding(after, 0, False)  # first its content has to be taken in
            slots.advance(c, self._slot, self._taken[LSN])
            end = slots.end_of_log(c)
            if after.get(CAUGHT_UP) and self._quiet == (after[LSN], end):
                return Binding(after, 0, False)
            room = limit.rows(self._max_rows) if after.get(CAUGHT_UP) else None
            asked = [self._slot, None if room else slots.lsn_text(end), room, quoted_name(self._publication)]
            position, rows = slots.in_turn(lambda: c.execute(_REACHED, asked).fetchone())
        to = end if not after.get(CAUGHT_UP) else position if rows else after[LSN]
        if not rows and end - after[LSN] > QUIET_BYTES:
            to = end
        reached = {LSN: max(to, after[LSN]), CAUGHT_UP: True, TABLE: oid}
        self._quiet = None if rows else (reached[LSN], end)
        return Binding(reached, rows, False, None, bool(room and rows >= room))

    def _begin(self, c: Any) -> Binding:
        if c.execute("SELECT FROM pg_publication WHERE pubname = %s", [self._publication]).fetchone() is None:
            name, table = quoted_name(self._publication), quoted_name(self._schema_name, self._table)
            c.execute(f"CREATE PUBLICATION {name} FOR TABLE {table}")
        oid = self._check_table(c, None)
        c.execute(slots.NEW, [self._slot, self._slot])
        (lsn,) = c.execute(_CONFIRMED, [self._slot]).fetchone()
        (rows,) = c.execute(_ESTIMATE, [quoted_name(self._schema_name, self._table)]).fetchone()
        return Binding({LSN: int(lsn), CAUGHT_UP: False, TABLE: oid}, max(int(rows), 1), False)

    def _check_slot(self, c: Any, after: Offsets) -> None:
        found = c.execute(slots.FOUND, [self._slot]).fetchone()
        hint = "drop the table and create it again: it begins with the content of now"
        if found is None or found[1] == "lost":
            raise SourceError(f"PostgreSQL does not have the replication slot {self._slot} any more", hint=hint)
        if int(found[0]) > after[LSN]:
            raise SourceError(f"somebody else has read from the replication slot {self._slot}", hint=hint)

    def discard(self) -> None:
        """Drop the slot, and the publication if it was made for it."""
        with self._connection() as c:
            c.autocommit = True
            slots.drop(c, self._slot)
            if self._publication == self._slot:
                c.execute(f"DROP PUBLICATION IF EXISTS {quoted_name(self._publication)}")

    # ---- reading

    def plan(self, from_: Offsets, to: Offsets, parallelism: int) -> list[ReadTask]:
        """See `Source`: a slot is read by one task."""
        if not from_:
            first: list[ReadTask] = [{"content": True}]
            return first + ([{"from": 0, "to": to[LSN], TABLE: to[TABLE]}] if to[CAUGHT_UP] else [])
        return [] if from_[LSN] == to[LSN] else [{"from": from_[LSN], "to": to[LSN], TABLE: to[TABLE]}]

    def read(self, task: ReadTask) -> Iterator[ReadBatch]:
        """See `Source`."""
        with self._connection() as c:
            if task.get("content"):
                yield from self._content(c, self._content_of(c, task))
            else:
                yield from self._changes(self._messages(c, task["to"]), task)

    def _content_of(self, c: Any, task: ReadTask) -> str:
        """The table whose content is read, quoted."""
        return quoted_name(self._schema_name, self._table)

    def _content(self, c: Any, table: str) -> Iterator[ReadBatch]:
        names = [column.name for column in self._own]
        for columns in content(c, table, [quoted_name(name) for name in names]):
            count = len(columns[0])
            yield self._batch(RowEvents(np.zeros(count, bool), np.zeros(count, np.int64), dict(zip(names, columns))))

    def _changes(self, messages: Iterable[Messages], task: ReadTask) -> Iterator[ReadBatch]:
        columns = [column.name for column in self._own]
        decoder = Decoder(task[TABLE], self._key, columns, task["from"], task["to"])
        for changes in decoder.changes(messages):
            yield self._batch(changes)

    def _messages(self, c: Any, high: int) -> Iterator[Messages]:
        def begun() -> tuple[Iterator[list[list[bytes]]], list[list[bytes]] | None]:
            c.rollback()
            declare(c, _CHANGES, [self._slot, slots.lsn_text(high), quoted_name(self._publication)])
            more = fetched(c, 2, binary=True)
            return more, next(more, None)  # only then the slot is looked at

        more, found = slots.in_turn(begun)
        while found is not None:
            positions, data = found
            yield Messages(np.frombuffer(b"".join(positions), ">i8").astype(np.int64), data)
            found = next(more, None)

    def _batch(self, changes: RowEvents) -> ReadBatch:
        made: dict[str, pa.Array] = {}
        errors: list[tuple[int, RowError]] = []
        schema = arrow_schema([Column(c.name, c.type) for c in self.columns])
        for column in self._own:
            texts, kind = changes.values[column.name], schema.field(column.name).type
            array, bad = strings_to_array(_readable(texts, kind), kind)
            made[column.name] = array
            errors += [
                (i, RowError(self._name, int(changes.positions[i]), column.name, sample(texts[i]), message))
                for i, message in bad
            ]
        for field in schema:
            if field.name == self._operation:
                made[field.name] = pa.array(np.where(changes.deletes, DELETE, UPSERT), pa.string())
            elif field.name in self._beside:
                made[field.name] = pa.array(changes.positions)
        rows = pa.RecordBatch.from_arrays([made[c.name] for c in self.columns], schema=schema)
        parsed = ParsedRows(rows, changes.positions, [self._name], None, errors)
        return apply_policy(parsed, self.columns, self._on_error)


def _readable(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """PostgreSQL's spellings as those that Arrow reads at one go."""
    if pa.types.is_boolean(kind):
        for short, long in (("t", "true"), ("f", "false")):
            texts = pc.if_else(pc.fill_null(pc.equal(texts, short), False), long, texts)
    if pa.types.is_timestamp(kind) and kind.tz:
        return pc.replace_substring_regex(texts, r"\+00$", "Z")
    return texts


_COLUMNS = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
_ESTIMATE = "SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass(%s)"
_FOLLOWED = """SELECT c.oid::oid::bigint, pubinsert AND pubupdate AND pubdelete AND pubtruncate, tablename IS NOT NULL,
                      to_jsonb(t) ->> 'rowfilter'
               FROM (SELECT to_regclass(%s) AS oid) c LEFT JOIN pg_publication ON pubname = %s
               LEFT JOIN pg_publication_tables t ON t.pubname = pg_publication.pubname
                   AND schemaname = %s AND tablename = %s"""
_CONFIRMED = "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
# Commits (C); inserts, updates, deletes, truncations.
_REACHED = f"""SELECT (max(lsn) FILTER (WHERE get_byte(data, 0) = 67) - '0/0'::pg_lsn)::bigint,
               count(*) FILTER (WHERE get_byte(data, 0) IN (73, 85, 68, 84))
               FROM {slots.PEEK.format(limit="%s::int")}"""
_CHANGES = f"SELECT (lsn - '0/0'::pg_lsn)::bigint, data FROM {slots.PEEK.format(limit='NULL')}"
