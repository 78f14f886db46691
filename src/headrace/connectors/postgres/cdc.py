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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.common.columns import Column, arrow_schema
from headrace.common.identifiers import quoted_name
from headrace.connectors.base import (
    EMPTIED,
    PART,
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
from headrace.connectors.policy import ParsedRows, apply_policy, sample
from headrace.connectors.postgres import slots
from headrace.connectors.postgres.content_parts import content_of, content_tasks, part_of
from headrace.connectors.postgres.fetching import content, declare, fetched
from headrace.connectors.postgres.options import CDC, SHARED, cdc_server, connection, with_slot
from headrace.connectors.postgres.pgoutput import (
    DELETE,
    UPSERT,
    Decoder,
    Messages,
    RowEvents,
    left_out,
    truncated_tables,
)
from headrace.connectors.postgres.row_chains import RowChains, Texts
from headrace.connectors.postgres.rows_there import RowsThere, TableLog
from headrace.connectors.postgres.shapes import AskedShape, Stored, TableShape, shapes_of
from headrace.connectors.postgres.slot_sharing import (
    CAUGHT_UP,
    COLUMNS,
    LSN,
    ROWS,
    SETTLES,
    SIZE,
    TABLE,
    carried,
    is_settled,
    since_emptied,
)
from headrace.connectors.postgres.tables import check_alone, check_key, columns, table_file
from headrace.connectors.postgres.unchanged import EventColumns, Unchanged
from headrace.connectors.postgres.value_texts import innermost, values_of
from headrace.errors import InvalidParameter, NotSupported, SourceError

QUIET_BYTES = 16 << 20
"""So much of the log without a change of the table moves the slot on, too."""
BEHIND_CONTENT = "behind_content"
"""In a task: the range begins before the content was read that the reader holds."""
SETTLING = "settling"
"""In a task: nobody sees what it reads before the next range is read, too (`SETTLES`)."""
SETTLED = "settled"
"""In a task: it is that next range, which begins before all was read that the reader holds."""
SINCE = "since"
"""In a task: what comes before this place in the log does not matter any more, for the table was truncated there."""


class PostgresCdcSource(Source):
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
        values = CDC.read(without_included(options), COMMON_OPTIONS)
        self._server = cdc_server(values)
        self._schema_name, self._table = values["schema.name"], values["table.name"]
        self._slot, self._publication = values["slot.name"], values["publication.name"]
        self._on_error, self._max_rows = common_options(OptionReader(options))
        self._beside = {options.get("include.operation"), options.get("include.position")}
        self._operation = options.get("include.operation")
        self._own = [c for c in self.columns if c.name not in self._beside]
        self._key = [c.name for c in self._own if not c.nullable]
        nested = next((c for c in self._own if pa.types.is_nested(innermost(self.schema.field(c.name).type))), None)
        if nested is not None:
            raise NotSupported(
                f'the column "{nested.name}" of type {nested.type} of a postgres-cdc table', hint="declare it as text"
            )
        self._taken: Offsets = {}
        self._quiet: tuple[int, int] | None = None
        """What was bound and the end of the log, where nothing was found between them."""

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        with connection(self._server, SourceError) as c:
            slots.spell(c)
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

    # ---- reading

    def plan(self, from_: Offsets, to: Offsets, parallelism: int) -> list[ReadTask]:
        """See `Source`: a table's content is read by several tasks, a slot by one."""
        tasks: list[ReadTask] = [] if from_ else content_tasks(to, parallelism)
        low = from_[LSN] if from_ else 0
        if to[CAUGHT_UP] and low < to[LSN]:
            since = {SINCE: to[EMPTIED]} if EMPTIED in to else {}
            behind = {}
            if from_ and not from_[CAUGHT_UP]:
                behind = {BEHIND_CONTENT: True, SETTLING: bool(from_.get(SETTLES, True))}
            elif from_.get(SETTLES):
                behind = {SETTLED: True}
            seen = self._seen(to[TABLE], low, to[LSN])
            tasks.append({"from": low, "to": to[LSN], TABLE: to[TABLE], **since, **behind, **seen})
        if from_ and to.get(EMPTIED, 0) > from_.get(EMPTIED, 0):
            tasks += [{EMPTIED: to[EMPTIED], PART: [i, parallelism]} for i in range(parallelism)]
        return tasks

    def rows_between(self, from_: Offsets, to: Offsets) -> int | None:
        """See `Source`: of content as PostgreSQL guesses."""
        return None if from_ else to.get(ROWS)

    def bytes_between(self, from_: Offsets, to: Offsets) -> int | None:
        """See `Source`: of content what the table takes there."""
        return None if from_ else to.get(SIZE)

    def _seen(self, table: int, low: int, high: int) -> ReadTask:
        """What a task gets along of the log, if it is at hand."""
        return {}

    def gone(self, held: pa.RecordBatch, task: ReadTask) -> ReadBatch:
        """See `Source`: a truncation deletes them all, at its place in the log."""
        count = held.num_rows
        made: dict[str | None, pa.Array] = {name: held.column(name) for name in self._key}
        made |= {self._operation: pa.array([DELETE] * count, pa.string())}
        made |= {name: pa.array([task[EMPTIED]] * count, pa.int64()) for name in self._beside - {self._operation}}
        schema = arrow_schema([Column(c.name, c.type) for c in self.columns])
        rows = [made[f.name].cast(f.type) if f.name in made else pa.nulls(count, f.type) for f in schema]
        return ReadBatch(pa.RecordBatch.from_arrays(rows, schema=schema))

    def read(self, task: ReadTask) -> Iterator[ReadBatch]:
        """See `Source`."""
        if not task.get("content"):
            yield from self._changes(task)
            return
        with self._connection() as c:
            yield from self._content(c, self._content_of(c, task), task)

    def _content_of(self, c: Any, task: ReadTask) -> str:
        """The table whose content is read, quoted."""
        return quoted_name(self._schema_name, self._table)

    def _content(self, c: Any, table: str, task: ReadTask) -> Iterator[ReadBatch]:
        names = [column.name for column in self._own]
        for texts in content(c, table, [quoted_name(name) for name in names], part_of(c, table, task)):
            count = len(texts[0])
            rows = RowEvents(np.zeros(count, bool), np.zeros(count, np.int64), dict(zip(names, texts)))
            yield self._batch(rows, *self._parsed(rows))

    def _changes(self, task: ReadTask) -> Iterator[ReadBatch]:
        """The changes with what they leave out."""
        with closing(self._there(task)) as there:
            unchanged: Unchanged | None = None
            for count, changes in enumerate(self._decoded(task)):
                if unchanged is None and changes.unsaid:
                    unchanged = self._unchanged(next(iter(changes.unsaid)), there, task)
                    for earlier in islice(self._decoded(task), count):
                        unchanged.fill(earlier, self._parsed(earlier)[0])
                if unchanged is None:
                    yield self._batch(changes, *self._parsed(changes))
                    continue
                for part in unchanged.parts(changes):
                    made, errors = self._parsed(part)
                    made, unknown = unchanged.fill(part, made)
                    part.deletes[unknown.gone] = True
                    if task.get(BEHIND_CONTENT):
                        # By the time when it was asked for it was deleted, or had another key: the next range says so.
                        part.deletes[[row for row, _ in unknown.values]] = True
                    else:
                        errors += [(i, self._error(part, i, name, "", _UNKNOWN)) for i, name in unknown.values]
                    yield self._batch(part, made, errors)

    def _decoded(self, task: ReadTask) -> Iterator[RowEvents]:
        names = [column.name for column in self._own]
        decoder = Decoder(task[TABLE], self._key, names, task["from"], task["to"], task.get(SINCE, 0))
        return decoder.changes(self._messages(task))

    def _unchanged(self, column: str, there: RowsThere, task: ReadTask) -> Unchanged:
        if self.held is None or self._operation is None:
            raise left_out(column, self._name)
        (position,) = self._beside - {self._operation}
        assert position is not None
        beside = EventColumns(self._operation, position)
        names = [column.name for column in self._own]
        if not (task.get(BEHIND_CONTENT) or task.get(SETTLED)):
            return Unchanged(self._key, names, beside, self.held)
        # Behind that all rows are here but those that were left out for their errors.
        behind = bool(task.get(BEHIND_CONTENT))
        asks = partial(self._known_there, there, task) if behind else None
        return Unchanged(self._key, names, beside, self.held, self._chains(task), asks, behind)

    def _chains(self, task: ReadTask) -> RowChains:
        """Which changes of a range are of one row."""
        found = RowChains()
        for events in self._decoded(task):
            made = self._parsed(events)[0]
            keys, texts = ([*zip(*(of[name].to_pylist() for name in self._key))] for of in (made, events.values))
            moved = None if events.moved is None else events.moved.tolist()
            found.add(keys, texts, events.deletes.tolist(), moved)
        return found

    def _there(self, task: ReadTask) -> RowsThere:
        """Who knows the table's rows as they are now."""
        names = [column.name for column in self._own]
        return RowsThere(self._connection, lambda c: self._content_of(c, task), names, self._key)

    def _known_there(
        self, there: RowsThere, task: ReadTask, keys: Sequence[Texts]
    ) -> list[dict[str, pa.Array] | None]:  # fmt: skip
        """The values of rows as `RowsThere` has them; None of one that is left out for its errors, too."""

        def messages(end: int) -> Iterator[Messages]:
            return PostgresCdcSource._messages(self, {**task, "to": end})

        ask = there.of_later if task.get(SETTLING) else there.as_of
        found = ask(keys, TableLog(messages, task[TABLE], task["to"]))
        return [None if texts is None else self._made_there(texts) for texts in found]

    def _made_there(self, texts: Mapping[str, pa.Array]) -> dict[str, pa.Array] | None:
        """The values of a row; None where it is left out for its errors."""
        found = RowEvents(np.zeros(1, bool), np.zeros(1, np.int64), texts)
        made, errors = self._parsed(found)
        return made if self._batch(found, made, errors).batch.num_rows else None

    def _messages(self, task: ReadTask) -> Iterator[Messages]:
        """What the log tells up to the end of a task's range, the same each time."""
        asked = [self._slot, slots.lsn_text(task["to"]), quoted_name(self._publication)]
        with self._connection() as c:

            def begun() -> tuple[Iterator[list[list[bytes]]], list[list[bytes]] | None]:
                c.rollback()
                declare(c, _CHANGES, asked)
                more = fetched(c, 2, binary=True)
                return more, next(more, None)  # only then the slot is looked at

            more, found = slots.in_turn(begun)
            while found is not None:
                positions, data = found
                yield Messages(np.frombuffer(b"".join(positions), ">i8").astype(np.int64), data)
                found = next(more, None)

    def _error(self, changes: RowEvents, row: int, column: str, value: object, message: str) -> RowError:
        key = " and ".join(f"{name} = {sample(changes.values[name][row])}" for name in self._key)
        return RowError(self._name, int(changes.positions[row]), column, sample(value), message, "lsn", key)

    def _parsed(self, changes: RowEvents) -> tuple[dict[str, pa.Array], list[tuple[int, RowError]]]:
        """The table's own columns, and what is at fault in them."""
        made: dict[str, pa.Array] = {}
        errors: list[tuple[int, RowError]] = []
        schema = arrow_schema([Column(c.name, c.type) for c in self._own])
        for name, kind in zip(schema.names, schema.types):
            texts = changes.values[name]
            made[name], bad = values_of(texts, kind)
            errors += [(i, self._error(changes, i, name, texts[i], f"{message} ({_AS_TEXT})")) for i, message in bad]
        return made, errors

    def _batch(self, changes: RowEvents, made: dict[str, pa.Array], errors: list[tuple[int, RowError]]) -> ReadBatch:
        made = dict(made)
        schema = arrow_schema([Column(c.name, c.type) for c in self.columns])
        for field in schema:
            if field.name == self._operation:
                made[field.name] = pa.array(np.where(changes.deletes, DELETE, UPSERT), pa.string())
            elif field.name in self._beside:
                made[field.name] = pa.array(changes.positions)
        rows = pa.RecordBatch.from_arrays([made[c.name] for c in self.columns], schema=schema)
        parsed = ParsedRows(rows, changes.positions, [self._name], None, errors, "lsn")
        return apply_policy(parsed, self.columns, self._on_error)


def _called_there(names: Iterable[str], wanted: str) -> str:
    """What to do for a column that is not there by its name."""
    alike = [f'"{name}"' for name in names if name.lower() == wanted.lower()]
    if alike:
        return f"it has {' and '.join(alike)}: declare it as it is spelled there, in quotes"
    return f"it has {', '.join(quoted_name(name) for name in names)}"


_AS_TEXT = "declared as text the column has it as it is there"
_UNKNOWN = "PostgreSQL leaves out what has not changed, and the row is not here (REPLICA IDENTITY FULL has it said)"
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
_CHANGES = f"SELECT (lsn - '0/0'::pg_lsn)::bigint, data FROM {slots.PEEK.format(limit='NULL')}"
