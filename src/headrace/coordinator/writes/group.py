"""What one group commit makes of the tables that it touches: the changes of several transactions, one after another."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import field

import numpy as np
import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.decide.watermarks import declared, in_time, raised
from headrace.coordinator.run.live_state import LiveRelation
from headrace.coordinator.writes.history import KEYS_OF_CHANGE, Touched
from headrace.coordinator.writes.layout import Key, Row, RowLayout, hashes_of
from headrace.coordinator.writes.written_rows import Effect, FoundRow, RowChanges
from headrace.state.arrangement import Arrangement
from headrace.state.kernels import concat, consolidate
from headrace.state.kernels.equality import Ints
from headrace.state.schema import RunRef, TableSchema
from headrace.state.stores import Root
from headrace.state.table_changes import Delta, Fetch, TableChange, plan_change


@dataclass
class Late:
    """A change and the number of its rows that the watermark has passed, which are left out."""

    change: TableChange
    rows: int = 0
    watermark_us: int | None = None


@dataclass(frozen=True)
class GroupSavepoint:
    """A savepoint of a group within one table: what it had changed up to there."""

    rows: RowChanges
    batches: int
    runs: int
    watermark_us: int | None


@dataclass
class TableGroup:
    """One table in a group: its newest committed runs, and what the group has changed so far."""

    relation: LiveRelation
    layout: RowLayout
    refs: Sequence[RunRef]
    root: Root
    watermark_us: int | None = None
    watermark_before_us: int | None = None
    base: dict[Key, FoundRow] = field(default_factory=dict)
    """Rows that were looked up beforehand, as they were before the group."""
    rows: RowChanges = field(default_factory=RowChanges)
    """What single-row operations have changed since the last batch."""
    batches: list[pa.RecordBatch] = field(default_factory=list)
    runs: list[RunRef] = field(default_factory=list)
    """Runs that large transactions have written already."""
    touched: Touched = field(default_factory=Touched)

    @property
    def schema(self) -> TableSchema:
        """The layout of the table's state."""
        return self.layout.schema

    @property
    def changed(self) -> bool:
        """Whether the group has changed anything."""
        return bool(self.rows or self.batches or self.runs)

    @property
    def moved(self) -> bool:
        """Whether the group has changed anything beside rows that are yet to be written."""
        return bool(self.runs) or (self.watermark_us is not None and self.watermark_us != self.watermark_before_us)

    # ---- what is there

    def fetch(self, keys: Ints) -> pa.RecordBatch:
        """The rows with these `__k` (sorted, unique) as they are after the group's changes so far, consolidated."""
        self._seal()
        stored = Arrangement(self.schema, [*self.refs, *self.runs], self.root).fetch(keys)
        own = [with_hashes(batch, keys) for batch in self.batches]
        if not any(b.num_rows for b in own):
            return stored
        return consolidate(concat([stored, *own], self.schema.arrow()), self.schema)

    def lookup(self, key: Key) -> FoundRow:
        """The row of a primary key, as it is after the group's changes so far."""
        net = self.rows.changed.get(key)
        if net is not None:
            return FoundRow(net.k, net.new)
        if self.batches or self.runs:
            return self.found([key])[key]
        return self.base[key]

    def found(self, keys: Sequence[Key]) -> dict[Key, FoundRow]:
        """The rows of these primary keys."""
        return find_rows(self.layout, self.fetch, keys)

    # ---- changes

    def in_time(self, change: TableChange) -> Late:
        """The change without rows that are late by the table's watermark."""
        wanted = declared(self.relation.record)
        if wanted is None or change.inserts is None:
            return Late(change, 0, self.watermark_us)
        kept, newest_us = in_time(change.inserts, wanted.column, self.watermark_before_us)
        watermark_us = raised(self.watermark_us, newest_us, wanted.delay_us)
        left = TableChange(kept, change.deletes, change.on_conflict)
        return Late(left, change.inserts.num_rows - kept.num_rows, watermark_us)

    def plan(self, change: TableChange) -> Delta:
        """What a change comes to now."""
        return plan_change(self.schema, change, self.fetch, unique=bool(self.relation.record.primary_key))

    def add_delta(self, rows: pa.RecordBatch) -> None:
        """Take in rows with weights, consolidated."""
        if rows.num_rows:
            self._seal()
            self.batches.append(rows)
            self.touched.add(hashes_of(rows).tolist() if rows.num_rows <= KEYS_OF_CHANGE else (), rows.num_rows)

    def add_rows(self, effect: Effect) -> None:
        """Take in what an operation on single rows does."""
        changed = effect.changed
        if not changed and not effect.added:
            return
        self.rows.add(effect)
        if len(changed) == 1:  # what nearly all of them do
            (net,) = changed.values()
            self.touched.keys.add(net.k)
        else:
            self.touched.add([net.k for net in changed.values()], len(changed))
        if effect.added:
            self.touched.everything = True

    def add_runs(self, runs: Iterable[RunRef]) -> None:
        """Take in runs that have been written already."""
        found = list(runs)
        if found:
            self._seal()
            self.runs += found
            self.touched.everything = True

    def mark(self) -> GroupSavepoint:
        """What `go_back` takes to undo all that comes after."""
        rows = RowChanges()
        rows.changed, rows.added = dict(self.rows.changed), list(self.rows.added)
        return GroupSavepoint(rows, len(self.batches), len(self.runs), self.watermark_us)

    def go_back(self, mark: GroupSavepoint) -> None:
        """Take back what has come since a mark; `touched` goes on to count it, which refuses rather too much."""
        self.rows, self.watermark_us = mark.rows, mark.watermark_us
        del self.batches[mark.batches :], self.runs[mark.runs :]

    def _seal(self) -> None:
        """Turn the changes of single rows into a batch, because something else comes after them."""
        if self.rows:
            self.batches.append(row_delta(self.layout, self.rows))
            self.rows = RowChanges()

    def delta(self) -> pa.RecordBatch:
        """All that the group has changed and that no run holds yet."""
        batches = [*self.batches, row_delta(self.layout, self.rows)] if self.rows else self.batches
        if len(batches) == 1:
            return batches[0]
        return consolidate(concat(batches, self.schema.arrow()), self.schema)

    def newest_rows(self) -> dict[Key, FoundRow] | None:
        """The rows that were looked up or changed, as they are after the group; None where that is not known."""
        if self.batches or self.runs:
            return None
        return self.base | {key: FoundRow(net.k, net.new) for key, net in self.rows.changed.items()}

    def hashes(self, delta: pa.RecordBatch) -> Collection[int] | None:
        """The `__k` of what has changed, and maybe of what was as before in the end; None where they are too many."""
        if self.runs or delta.num_rows > KEYS_OF_CHANGE:
            return None
        if not self.touched.everything:
            return self.touched.keys
        return [int(k) for k in np.unique(hashes_of(delta))]


def row_delta(layout: RowLayout, changes: RowChanges) -> pa.RecordBatch:
    """Changes of rows in the layout of the state, consolidated."""
    return consolidate(layout.batch(*changes.weighted()), layout.schema)


def with_hashes(batch: pa.RecordBatch, keys: Ints) -> pa.RecordBatch:
    """The rows whose `__k` is among some (sorted, unique)."""
    k = hashes_of(batch)
    if not len(k) or not len(keys):
        return batch.slice(0, 0)
    place = np.minimum(np.searchsorted(keys, k), len(keys) - 1)
    keep = keys[place] == k
    return batch if keep.all() else batch.filter(pa.array(keep))


def find_rows(layout: RowLayout, fetch: Fetch, keys: Sequence[Key]) -> dict[Key, FoundRow]:
    """Look primary keys up through what fetches stored rows by their `__k`."""
    hashes = layout.hashes(keys)
    stored = fetch(np.unique(hashes))
    there: dict[Key, Row] = {}
    if stored.num_rows:
        weights = np.asarray(stored.column(stored.num_columns - 1))
        live = stored if (weights > 0).all() else stored.filter(pa.array(weights > 0))
        there = {layout.key_of(row): row for row in layout.rows(live)}
    return {key: FoundRow(int(k), there.get(key)) for key, k in zip(keys, hashes)}
