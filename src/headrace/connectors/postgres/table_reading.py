"""How tasks read rows of a table of PostgreSQL: its content as it is there, and its changes as the log tells them.

What a range of the log leaves out, for it has not changed, is looked up: in what is held here, in other changes of the
range, or in the table as it is now. Which of these may be asked a task says, by when its range was bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.common.columns import Column, arrow_schema
from headrace.common.identifiers import quoted_name
from headrace.connectors.base import EMPTIED, PART, Offsets, ReadBatch, ReadTask, RowError, Source, common_options
from headrace.connectors.option_reader import COMMON_OPTIONS, OptionReader, without_included
from headrace.connectors.policy import ParsedRows, apply_policy, sample
from headrace.connectors.postgres import slots
from headrace.connectors.postgres.content_parts import content_tasks, part_of
from headrace.connectors.postgres.fetching import content, declare, fetched
from headrace.connectors.postgres.options import CDC, cdc_server, connection
from headrace.connectors.postgres.pgoutput import DELETE, UPSERT, Decoder, Messages, RowEvents, left_out
from headrace.connectors.postgres.row_chains import RowChains, Texts
from headrace.connectors.postgres.rows_there import RowsThere, TableLog
from headrace.connectors.postgres.slot_sharing import CAUGHT_UP, LSN, ROWS, SETTLES, SIZE, TABLE
from headrace.connectors.postgres.unchanged import EventColumns, Unchanged
from headrace.connectors.postgres.value_texts import innermost, values_of
from headrace.errors import NotSupported, SourceError

BEHIND_CONTENT = "behind_content"
"""In a task: the range begins before the content was read that the reader holds."""
SETTLING = "settling"
"""In a task: nobody sees what it reads before the next range is read, too (`SETTLES`)."""
SETTLED = "settled"
"""In a task: it is that next range, which begins before all was read that the reader holds."""
SINCE = "since"
"""In a task: what comes before this place in the log does not matter any more, for the table was truncated there."""


class TableReading(Source):
    """See the module. What is to be read, `cdc.py` and `slot_table.py` bind."""

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

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        with connection(self._server, SourceError) as c:
            slots.spell(c)
            c.commit()
            yield c

    @property
    def _name(self) -> str:
        return f"{self._schema_name}.{self._table}"

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
            return TableReading._messages(self, {**task, "to": end})

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


_AS_TEXT = "declared as text the column has it as it is there"
_UNKNOWN = "PostgreSQL leaves out what has not changed, and the row is not here (REPLICA IDENTITY FULL has it said)"
_CHANGES = f"SELECT (lsn - '0/0'::pg_lsn)::bigint, data FROM {slots.PEEK.format(limit='NULL')}"
