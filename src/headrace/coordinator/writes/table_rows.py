"""The rows of tables as writers see them: layouts, the newest rows by key, and what has changed when.

A group commit looks rows up here before it and notes its changes after it; transactions and reads by key look up
between. Rows that were looked up or written lately are in memory (`row_cache.py`), others in the runs (`stored.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack

import pyarrow as pa

from headrace.catalog.contents import TableContent
from headrace.catalog.records import ObjectRecord, run_id
from headrace.coordinator.run.live_state import LiveRelation, LiveState
from headrace.coordinator.run.storage import Storage
from headrace.coordinator.writes.group import TableGroup
from headrace.coordinator.writes.history import KEYS_OF_CHANGE, WriteHistory
from headrace.coordinator.writes.holds import Holds
from headrace.coordinator.writes.layout import Key, RowLayout
from headrace.coordinator.writes.requests import serialization_failure
from headrace.coordinator.writes.row_cache import RowCache
from headrace.coordinator.writes.stored import StoredRows, TableVersions
from headrace.coordinator.writes.written_rows import FoundRow
from headrace.errors import HeadraceError, SerializationFailure, UndefinedTable, WrongObjectType
from headrace.state.schema import RunRef

DROPPED_KNOWN = 1_000
"""Dropped tables whose names are remembered."""


class TableRows:
    """Looks rows of all tables up, and knows what has changed of them. Thread-safe."""

    def __init__(self, live: LiveState, storage: Storage) -> None:
        self._live = live
        self._catalog = storage.catalog
        self.lock = threading.Lock()
        """Guards what is known of rows; the writer's queue and gates, too."""
        self.history = WriteHistory()
        """`lock` guards it; who leads a group reads it without, since nobody else writes to it but who merges."""
        self._rows = RowCache()
        self._versions = TableVersions(storage, live.epochs)
        self._stored = StoredRows(storage.root)
        self._dropped: dict[int, ObjectRecord] = {}
        """Tables that were dropped lately, for those that still want to write to them."""
        self._layouts: dict[int, tuple[LiveRelation, RowLayout]] = {}

    def recover(self) -> None:
        """Learn when tables have changed last: a view that stands still since lets transactions read at older epochs.

        To be called before anything is written.
        """
        with self._catalog.reading() as state:
            tables = [(o.id, t.committed_epoch) for o in state.objects_of(TableContent) for t in state.tables_of(o.id)]
        with self.lock:
            for table_id, epoch in tables:
                self.history.note(table_id, epoch, None)

    def forget(self, table_id: int) -> None:
        """Forgets a table that was dropped."""
        with self.lock:
            self.history.forget(table_id)
            self._rows.forget(table_id)
            known = self._layouts.get(table_id)
            if (
                known is not None
            ):  # first the one, then the other: `_last_known` finds it in one of them, without a lock
                self._dropped[table_id] = known[0].record
                del self._layouts[table_id]
            while len(self._dropped) > DROPPED_KNOWN:
                del self._dropped[next(iter(self._dropped))]
        self._stored.forget(table_id)

    def tidy(self) -> None:
        """Let go of pins and open runs that nobody needs at present."""
        self._versions.tidy()
        self._stored.tidy()

    def layout(self, table_id: int) -> RowLayout:
        """How a table's rows are laid out. Raises `UndefinedTable`, `WrongObjectType`."""
        return self.layout_of(self.table(table_id))

    def layout_of(self, relation: LiveRelation) -> RowLayout:
        """The same of a table that `table` has found."""
        with self.lock:
            return self._layout(relation)

    def _layout(self, relation: LiveRelation) -> RowLayout:
        known = self._layouts.get(relation.id)
        if known is None or known[0] is not relation:
            assert relation.schema is not None
            known = self._layouts[relation.id] = relation, RowLayout(relation.record, relation.schema)
        return known[1]

    def table(self, table_id: int) -> LiveRelation:
        """The table. Raises `UndefinedTable`, `WrongObjectType`; `SerializationFailure` where another has its name."""
        with self._live.lock:
            table = self._live.graph.relations.get(table_id)
        if table is None:
            raise self._gone(table_id, self._last_known(table_id))
        if not table.writable or table.schema is None:
            raise WrongObjectType(f'"{table.name}" is not a table', hint="only tables can be written to")
        if table.dropped:
            raise self._gone(table_id, table.record)
        return table

    def _last_known(self, table_id: int) -> ObjectRecord | None:
        """Return the record of a table that is gone; None for one that nobody has written to lately."""
        known = self._layouts.get(table_id)  # it is gone, and `forget` has still to be called
        return self._dropped.get(table_id) if known is None else known[0].record

    def _gone(self, table_id: int, record: ObjectRecord | None) -> HeadraceError:
        """Why a table cannot be written to that was there when a statement was read."""
        if record is None:
            return UndefinedTable(f"relation {table_id} does not exist", hint="it was dropped meanwhile")
        name = record.schema, record.name
        with self._live.lock:
            others = (r for r in self._live.graph.relations.values() if r.id != table_id and not r.dropped)
            again = any((r.record.schema, r.record.name) == name for r in others)
        if again:  # after ALTER TABLE ... ADD, for which writes have waited
            return SerializationFailure(
                f'table "{record.name}" has got columns or a key, or was created again, meanwhile',
                hint="run the statement, or the transaction, again",
            )
        return UndefinedTable(f'table "{record.name}" does not exist', hint="it was dropped meanwhile")

    def last_change(self, tables: Collection[int]) -> int:
        """The epoch of the last change of any of these tables."""
        with self.lock:
            return max((self.history.last_change(i) for i in tables), default=0)

    def rows_unchanged(
        self, relation: LiveRelation, layout: RowLayout, refs: Sequence[RunRef], keys: Sequence[Key], since: int
    ) -> dict[Key, FoundRow]:
        """The newest rows of these primary keys, which a snapshot of an epoch that is pinned has, too.

        `refs` are the table's runs at that snapshot, or newer ones; also pinned.
        Raises `SerializationFailure` if one of the rows has changed after it.
        """
        table_id = relation.id
        with self.lock:
            found, missing = self._rows.get(table_id, keys)
            if not missing:
                self._require_unchanged(relation, found, since)
                return found
        # As of the snapshot: the catalog knows of a commit a moment before the history does.
        looked_up = self.looked_up(table_id, layout, refs, missing, since)
        found |= looked_up
        with self.lock:
            self._require_unchanged(relation, found, since)
            self._rows.put(table_id, looked_up)
        return found

    def rows_now(self, relation: LiveRelation, keys: Sequence[Key]) -> tuple[dict[Key, FoundRow], int] | None:
        """The rows with these primary keys as of the newest complete epoch, and that epoch. Waits for nobody.

        None where that cannot be had at once, or keys are not found as Python objects.
        """
        layout = self.layout(relation.id)
        if not layout.keyed or layout.schema.expires is not None:
            return None
        with ExitStack() as held:
            now = self._versions.hold_now(relation, held)
            if now is None:
                return None
            refs, epoch = now
            try:
                return self.rows_unchanged(relation, layout, refs, keys, epoch), epoch
            except SerializationFailure:  # a commit that is not complete yet
                return self.looked_up(relation.id, layout, refs, keys, epoch), epoch

    def _require_unchanged(self, relation: LiveRelation, found: Mapping[Key, FoundRow], since: int) -> None:
        """Raise `SerializationFailure` if one of these rows has changed after an epoch. The caller holds the lock."""
        if not self.history.changed(relation.id, since):
            return
        for row in found.values():
            if self.history.key_changed(relation.id, row.k, since):
                raise serialization_failure(relation)

    def looked_up(
        self, i: int, layout: RowLayout, refs: Sequence[RunRef], keys: Sequence[Key], as_of: int | None = None
    ) -> dict[Key, FoundRow]:
        """The rows of primary keys in a table's runs, which are not older than the epoch."""
        hashes = layout.hash_list(keys)
        with self.lock:
            older = self.history.older(i, refs)
            knows = self.history.knows
            lately = [(key, k) for key, k in zip(keys, hashes) if knows(i, k)]
        if not lately:
            return self._stored.find(i, layout, older, list(zip(keys, hashes)), as_of)
        new = {key for key, _ in lately}
        found = self._stored.find(i, layout, older, [one for one in zip(keys, hashes) if one[0] not in new], as_of)
        return found | self._stored.find(i, layout, list(refs), lately, as_of)

    def merged(self, table_id: int, refs: Iterable[RunRef], into: Iterable[RunRef]) -> None:
        """Runs of a table have been merged into others."""
        with self.lock:
            self.history.merged(table_id, map(run_id, refs), map(run_id, into))

    def pinned(self, relation: LiveRelation, held: ExitStack | Holds) -> tuple[RunRef, ...]:
        """A table's newest runs, kept from vacuum until the stack ends."""
        return self._versions.hold(relation, held)

    def newest_rows(
        self, table_id: int, layout: RowLayout, refs: Sequence[RunRef], keys: Sequence[Key]
    ) -> dict[Key, FoundRow]:
        """The newest rows of primary keys, for who leads; `refs` are the newest runs. Raises `CorruptObject`."""
        with self.lock:
            found, missing = self._rows.get(table_id, keys)
        return found | (self.looked_up(table_id, layout, refs, missing) if missing else {})

    def note(
        self, tables: Sequence[TableGroup], deltas: Mapping[int, pa.RecordBatch], epoch: int,
        refs: Mapping[int, list[RunRef]] | None,
    ) -> None:  # fmt: skip
        """Remember what has changed: first of all in the history, by which those that look into the cache check it.

        `refs` are the runs of the change, if it is known to be durable.
        """
        for table in tables:
            i, delta = table.relation.id, deltas[table.relation.id]
            with self.lock:
                if refs is None:
                    self.history.note(i, epoch, None)
                else:
                    self.history.note(i, epoch, table.hashes(delta), map(run_id, refs[i]))
                self._refresh_cache(table, delta, refs is not None)

    def _refresh_cache(self, table: TableGroup, delta: pa.RecordBatch, sure: bool) -> None:
        cache, i = self._rows, table.relation.id
        rows = table.newest_rows() if sure else None
        if rows is not None:
            cache.put(i, rows)
        elif sure and not table.runs and table.layout.keyed and delta.num_rows <= KEYS_OF_CHANGE:
            cache.drop(i, table.layout.keys(delta))
        else:
            cache.forget(i)
