"""What sinks have for tables: from the changes of an epoch of a query to those of the table, in the sink's transaction.

The changes are there as runs in the layout of the table's rows, so a range of keys of them meets the same range of the
table. While they are worked out and committed nobody else writes to the table. A small change is planned in the group
that commits it; of a large one each piece is written as a run, so that no more than a piece is held in memory.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.catalog.contents import TableContent
from headrace.catalog.edits import Edit
from headrace.catalog.records import ObjectRecord
from headrace.common.lazy_dataclass import dataclass
from headrace.common.texts import text_of
from headrace.connectors.refusals import collects
from headrace.connectors.sinks import not_told_apart
from headrace.coordinator.decide.into import target_of
from headrace.coordinator.decide.watermarks import declared
from headrace.coordinator.run.epochs import EpochClock
from headrace.coordinator.run.live_state import LiveRelation
from headrace.coordinator.run.runtime import Runtime
from headrace.coordinator.run.storage import Storage
from headrace.coordinator.writes.requests import Deferred, Part, Written
from headrace.coordinator.writes.writer import Writer
from headrace.dataflow.operators.table_write import null_in
from headrace.state.arrangement import Arrangement
from headrace.state.kernels import concat, int64_values, take
from headrace.state.run import Section, write_run
from headrace.state.schema import RunRef, TableSchema
from headrace.state.table_changes import TableChange, one_per_key, plan_change, stored_rows

HELD_ROWS: Final = 100_000
"""Rows of a change that is planned as a whole in memory, at most."""
HELD_BYTES: Final = 64 << 20
"""Bytes of such a change's runs, at most."""


@dataclass(frozen=True)
class Handing:
    """The way of sinks into tables."""

    storage: Storage
    epochs: EpochClock
    runtime: Runtime
    writer: Writer

    @contextmanager
    def prepared(
        self, sink: ObjectRecord, runs: Sequence[RunRef], check: Callable[[], None]
    ) -> Iterator[Callable[[Sequence[Edit]], None]]:
        """What commits edits together with the changes in a sink's runs, which the caller keeps from vacuum.

        Nobody else writes to the table inside the block; `check` raises if that is not to be waited for any more.
        Raises `UndefinedTable`, `NotNullViolation`, `SinkError` for rows that the primary key does not tell apart.
        """
        target = target_of(sink)
        assert target is not None
        table = self.writer.tables.table(target)
        with self.writer.gate([table.id], check), ExitStack() as held:
            size, rows = sum(ref.length for ref in runs), sum(ref.rows for ref in runs)
            large = (rows > HELD_ROWS or size > HELD_BYTES) and declared(table.record) is None
            newest = self.writer.tables.pinned(table, held) if large else ()
            parts: list[Part] = []
            for change in self._changes(sink, table, runs):
                check()
                parts.append(self._written(table, change, newest, held) if large else Deferred(change))
            yield partial(self.writer.hand_over, table.id, parts)

    def _changes(self, sink: ObjectRecord, table: LiveRelation, runs: Sequence[RunRef]) -> Iterator[TableChange]:
        schema = table.schema
        assert schema is not None
        upserts = sink.options.get("type") == "upsert" and not collects(sink.options)  # what is refused is only added
        for rows in whole_keys(Arrangement(schema, list(runs), self.storage.root).scan()):
            yield change_of(table.record, schema, rows, upserts=upserts)

    def _written(self, table: LiveRelation, change: TableChange, newest: Sequence[RunRef], held: ExitStack) -> Written:
        storage, schema = self.storage, table.schema
        assert schema is not None
        there = Arrangement(schema, list(newest), storage.root)
        delta = plan_change(schema, change, there.fetch, unique=bool(table.record.primary_key))
        if not delta.rows.num_rows:
            return Written(())
        prefix = f"{table.id}/{self.epochs.complete:016x}-{uuid.uuid4().hex[:12]}"
        held.enter_context(storage.pins.writing(prefix))
        section = Section(table.state_table, schema, [delta.rows], self.epochs.complete)
        refs = write_run(storage.root, f"{prefix}.run", [section], fsync=self.runtime.settings.run_fsync)
        return Written(tuple(refs), delta.inserted, delta.deleted)


def whole_keys(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, sorted by `__k`, cut so that none of the pieces ends within a key."""
    left: pa.RecordBatch | None = None
    for batch in batches:
        rows = batch if left is None else concat([left, batch], batch.schema)
        keys = int64_values(rows.column(0))
        cut = int(np.searchsorted(keys, keys[-1]))
        if cut:
            yield rows.slice(0, cut)
        left = rows.slice(cut)
    if left is not None:
        yield left


def change_of(table: ObjectRecord, schema: TableSchema, rows: pa.RecordBatch, *, upserts: bool) -> TableChange:
    """What rows with weights, in the layout of a table, do to it: they replace and delete by its key, or are added.

    Raises `NotNullViolation`, and `SinkError` where several are to be the row of one key.
    """
    weights = int64_values(rows.column(rows.num_columns - 1))
    data = rows.select([f.name for f in schema.data_fields])
    added = np.flatnonzero(weights > 0)
    inserts = take(data, np.repeat(added, weights[added]))
    _check_not_null(table, inserts)
    ignores = not upserts and table.content_as(TableContent).on_conflict == "ignore"
    if table.primary_key and not ignores and inserts.num_rows > 1:
        _check_apart(table, schema, inserts)
    gone = take(data, np.flatnonzero(weights < 0)) if upserts else None
    return TableChange(inserts, gone, "ignore" if ignores else "overwrite")


def _check_not_null(table: ObjectRecord, rows: pa.RecordBatch) -> None:
    for column in table.columns:
        values = rows.column(column.name)
        if values.null_count and (not column.nullable or column.name in table.primary_key):
            at = pc.index(pc.is_null(values), True).as_py()
            raise null_in(table.name, column.name, [text_of(rows.column(c.name)[at]) for c in table.columns])


def _check_apart(table: ObjectRecord, schema: TableSchema, inserts: pa.RecordBatch) -> None:
    stored = stored_rows(schema, inserts, 1)
    kept = one_per_key(schema, stored, last=False)
    if kept.num_rows == stored.num_rows:
        return
    keys = Counter(tuple(map(str, row.values())) for row in inserts.select(list(table.primary_key)).to_pylist())
    doubled, _ = keys.most_common(1)[0]
    raise not_told_apart(table.primary_key, ", ".join(doubled))
