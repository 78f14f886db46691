"""What one transaction has read and wants to write: on one snapshot, statement by statement.

A transaction reads as of its epoch, and its own parts on top of it. For reads these become runs of that very epoch,
which nobody else knows; what has changed since the last read is a further run, and small ones are put together.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TypeAlias

import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.decide.watermarks import declared
from headrace.coordinator.run.live_state import LiveRelation, LiveState
from headrace.coordinator.run.storage import Storage
from headrace.coordinator.writes.gates import Gate
from headrace.coordinator.writes.group import find_rows, row_delta, with_hashes
from headrace.coordinator.writes.history import ReadSet
from headrace.coordinator.writes.holds import Holds
from headrace.coordinator.writes.layout import Key, RowLayout
from headrace.coordinator.writes.outcome import Outcome
from headrace.coordinator.writes.requests import Deferred, Part, TransactionCommit, WriteResult, Written
from headrace.coordinator.writes.writer import Writer
from headrace.coordinator.writes.written_rows import Effect, FoundRow, Net, RowChanges, RowOperation, chained
from headrace.state.arrangement import Arrangement
from headrace.state.kernels import concat, consolidate
from headrace.state.kernels.equality import Ints
from headrace.state.run import Section, write_run
from headrace.state.schema import RunRef, TableSchema
from headrace.state.table_changes import Delta, Encounters, TableChange, encounters, plan_change

Mark: TypeAlias = Mapping[int, int]
"""A savepoint: how many parts each table had."""


@dataclass
class _Own:
    """What the transaction has done to one table."""

    relation: LiveRelation
    layout: RowLayout
    refs: Sequence[RunRef]
    """The table's runs at the snapshot."""
    parts: list[Part] = field(default_factory=list)
    sealed: int = 0
    """Parts that are not added to any more: a savepoint came after them."""
    shown: list[tuple[pa.RecordBatch, list[RunRef]]] | None = None
    """Runs that hold changes for reads of the transaction, with their rows, the largest first; None before any read."""
    unseen: list[pa.RecordBatch] = field(default_factory=list)
    unseen_rows: RowChanges = field(default_factory=RowChanges)
    """What has changed since, if there are such runs."""
    _below: list[pa.RecordBatch] | None = None

    @property
    def schema(self) -> TableSchema:
        return self.layout.schema

    def add(self, part: Part) -> None:
        self.parts.append(part)
        self._below = None
        if self.shown is not None:
            self.unseen += _as_batches(self.layout, [part])

    def add_rows(self, effect: Effect) -> None:
        """Take in changes of single rows."""
        self._rows().add(effect)
        if self.shown is not None:
            self.unseen_rows.add(effect)

    def _rows(self) -> RowChanges:
        """The part that takes in changes of single rows: the last one, or a new one."""
        last = self.parts[-1] if len(self.parts) > self.sealed else None
        if not isinstance(last, RowChanges):
            last = RowChanges()
            self.parts.append(last)
        return last

    def layers(self) -> list[Mapping[Key, Net]]:
        """The changes by key after the last change of another kind, oldest first."""
        found: list[Mapping[Key, Net]] = []
        for part in reversed(self.parts):
            if not isinstance(part, RowChanges):
                break
            found.append(part.changed)
        return found[::-1]

    def batches_below(self) -> list[pa.RecordBatch]:
        """The changes below the layers, as rows with weights: made once, for a transaction may look up very often."""
        if self._below is None:
            self._below = self.batches(len(self.parts) - len(self.layers()))
        return self._below

    def take_back(self, kept: int) -> None:
        """Forget all parts but the first ones."""
        del self.parts[kept:]
        self.sealed, self.shown, self._below = kept, None, None
        self._forget_unseen()

    def _forget_unseen(self) -> None:
        self.unseen, self.unseen_rows = [], RowChanges()

    def show(self, write: Callable[[pa.RecordBatch], list[RunRef]]) -> list[RunRef]:
        """Runs with all changes that no other run holds; `write` is asked for those that are missing.

        A change is written again only together with at least half as many others: so all reads of a transaction
        together write little more than a few times what it changes.
        """
        if self.shown is None:
            new, self.shown = self.batches(), []
        else:
            new = [*self.unseen, *_as_batches(self.layout, [self.unseen_rows] if self.unseen_rows else [])]
        self._forget_unseen()
        shown, self.shown = self.shown, None  # should it fail, the next read begins anew
        if new:
            delta = _combined(self.schema, new)
            while shown and shown[-1][0].num_rows <= 2 * delta.num_rows:
                delta = _combined(self.schema, [shown.pop()[0], delta])
            if delta.num_rows:
                shown.append((delta, write(delta)))
        self.shown = shown
        return [run for _, runs in shown for run in runs]

    def batches(self, first: int | None = None) -> list[pa.RecordBatch]:
        """All changes that are not in runs, or those of the first parts, as rows with weights."""
        return _as_batches(self.layout, self.parts[:first])

    def runs(self, epoch: int) -> list[RunRef]:
        """The runs that it has written already, as if they were of an epoch."""
        own = [run for part in self.parts if isinstance(part, Written) for run in part.runs]
        return [replace(run, epoch_lo=epoch, epoch_hi=epoch) for run in own]


@dataclass(frozen=True)
class TableView:
    """A table as a transaction sees it, for those that write to it elsewhere."""

    table_id: int
    """Its state table."""
    schema: TableSchema
    refs: tuple[RunRef, ...]
    epoch: int
    prefix: str
    """What the names of objects may begin with that are written for the transaction."""


class WriteTransaction:
    """One transaction's snapshot, reads and changes. One thread at a time.

    Its snapshot is fixed by `fix`, or by its first change. `commit` makes all changes visible at one epoch, or raises
    `SerializationFailure`; `close` lets go of everything in any case.
    """

    def __init__(self, live: LiveState, storage: Storage, writer: Writer, gate: Gate | None = None) -> None:
        self._live = live
        self._storage = storage
        self._writer = writer
        self._tables = writer.tables
        self._gate = gate
        self._own: dict[int, _Own] = {}
        self._held = Holds()
        self.reads = ReadSet()
        self.epoch: int | None = None
        """The epoch of its snapshot; None before its first look at anything."""
        self._submitted: Outcome[WriteResult] | None = None

    # ---- the snapshot

    def fix(self, epoch: int | None = None) -> int:
        """Fix the snapshot, at an epoch or at the newest complete one, unless that is done; returns its epoch."""
        if self.epoch is None:
            live, storage = self._live, self._storage
            with live.lock:
                self.epoch = live.epochs.complete if epoch is None else epoch
                pin = storage.pins.pin(None, self.epoch)
            self._held.callback(storage.pins.unpin, pin)
        return self.epoch

    @property
    def changed(self) -> bool:
        """Whether it wants to write anything."""
        return any(own.parts for own in self._own.values())

    def has_changed(self, table_id: int) -> bool:
        """Whether it wants to write anything to a table."""
        return table_id in self._own and bool(self._own[table_id].parts)

    @property
    def tables(self) -> frozenset[int]:
        """The tables that it has read or wants to write to."""
        return frozenset((*self.reads.tables, *self.reads.keys, *self._own))

    def can_look_up(self, table_id: int) -> bool:
        """Whether rows of a table can be found by their primary keys as Python objects."""
        return self._tables.layout(table_id).keyed

    def note_tables(self, table_ids: Iterable[int]) -> None:
        """Note that it has read tables as a whole."""
        self.reads.tables.update(table_ids)

    def note_keys(self, table_id: int, keys: Sequence[Key]) -> None:
        """Note that it has looked up primary keys."""
        self.reads.add_keys(table_id, self._tables.layout(table_id).hashes(keys).tolist())

    def own_runs(self, table_id: int) -> tuple[RunRef, ...]:
        """Runs with its own changes of a table, for reads at its snapshot."""
        own = self._own.get(table_id)
        if own is None or not own.parts:
            return ()
        epoch = self.fix()

        def write(delta: pa.RecordBatch) -> list[RunRef]:
            section = Section(own.relation.state_table, own.schema, [delta], epoch)
            return write_run(self._storage.root, f"{self._prefix(table_id)}.run", [section], fsync=False)

        return (*own.runs(epoch), *own.show(write))

    def _prefix(self, table_id: int) -> str:
        """The name of an object that vacuum leaves alone as long as the transaction lives."""
        prefix = f"{table_id}/t{uuid.uuid4().hex[:20]}"
        self._held.enter_context(self._storage.pins.writing(prefix))
        return prefix

    # ---- changes

    def change(self, table_id: int, change: TableChange) -> Delta:
        """Change a table, whose rows are as the transaction sees them. Raises `WrongObjectType`, `UndefinedTable`."""
        own = self._table(table_id)
        keyed = bool(own.relation.record.primary_key)
        looked_up: list[Ints] = []

        def fetch(keys: Ints) -> pa.RecordBatch:
            looked_up.append(keys)
            return self._fetch(own, keys, own.batches())

        delta = plan_change(own.schema, change, fetch, unique=keyed)
        for keys in looked_up:
            self._note_hashes(table_id, keys)
        if declared(own.relation.record) is not None:
            own.add(Deferred(change, delta.rows))
        elif delta.rows.num_rows:
            own.add(delta.rows)
        return delta

    def encounters(self, table_id: int, rows: pa.RecordBatch) -> Encounters:
        """What rows that are to be inserted meet in a table with a primary key, as the transaction sees it."""
        own = self._table(table_id)

        def fetch(keys: Ints) -> pa.RecordBatch:
            self._note_hashes(table_id, keys)
            return self._fetch(own, keys, own.batches())

        return encounters(own.schema, rows, fetch)

    def defer(self, table_id: int, change: TableChange) -> None:
        """Change a table by what is there at the commit: for a transaction that does not read the table."""
        self.fix()
        self._table(table_id).add(Deferred(change))

    def run(self, operation: RowOperation) -> Effect:
        """Do an operation on single rows, which are as the transaction sees them.

        Raises `SerializationFailure` if another transaction has changed one of them since the snapshot.
        """
        own = self._table(operation.table_id)
        layers = own.layers()
        base = self._base(own, layers, operation.keys)
        effect = operation.run(chained(layers, base.__getitem__))
        if effect.changed or effect.added:
            own.add_rows(effect)
        return effect

    def add_runs(self, table_id: int, written: Written) -> None:
        """Add runs that were written for the transaction, over the rows that it sees."""
        if written.runs:
            self._table(table_id).add(written)

    def schema(self, table_id: int) -> TableSchema:
        """The layout of a table's state. Fixes no snapshot."""
        return self._tables.layout(table_id).schema

    def stored_rows(self, table_id: int) -> int:
        """Rows in a table's newest runs: about as many as it has. Fixes no snapshot."""
        state_table = self._tables.table(table_id).state_table
        with self._storage.catalog.reading() as state:
            return sum(run.ref.rows for run in state.runs_of(state_table))

    def view(self, table_id: int) -> TableView:
        """A table with the transaction's own changes."""
        own = self._table(table_id)
        refs = (*own.refs, *self.own_runs(table_id))
        return TableView(own.relation.state_table, own.schema, refs, self.fix(), self._prefix(table_id))

    def _base(self, own: _Own, layers: Sequence[Mapping[Key, Net]], keys: Sequence[Key]) -> dict[Key, FoundRow]:
        """The rows of keys as they are below the layers of changes by key."""
        epoch, table_id = self.fix(), own.relation.id
        if not keys:
            return {}
        if len(layers) < len(own.parts):
            left = [key for key in keys if not any(key in layer for layer in layers)]
            below = own.batches_below()
            found = find_rows(own.layout, lambda hashes: self._fetch(own, hashes, below), left) if left else {}
        else:
            found = self._tables.rows_unchanged(own.relation, own.layout, own.refs, keys, epoch)
        self.reads.add_keys(table_id, [row.k for row in found.values()])
        return found

    def _note_hashes(self, table_id: int, keys: Ints) -> None:
        if len(keys) > _KEYS_NOTED:
            self.reads.tables.add(table_id)
        else:
            self.reads.add_keys(table_id, keys.tolist())

    def _table(self, table_id: int) -> _Own:
        own = self._own.get(table_id)
        relation = self._tables.table(table_id)
        if own is None:
            self.fix()
            refs = self._tables.pinned(relation, self._held)
            own = self._own[table_id] = _Own(relation, self._tables.layout_of(relation), refs)
        return own

    def _fetch(self, own: _Own, keys: Ints, changes: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        epoch = self.fix()
        refs = [*own.refs, *own.runs(epoch)]
        stored = Arrangement(own.schema, refs, self._storage.root, as_of=epoch).fetch(keys)
        batches = [with_hashes(batch, keys) for batch in changes]
        return _combined(own.schema, [stored, *batches]) if batches else stored

    # ---- savepoints and the end

    def mark(self) -> Mark:
        """A savepoint: what has been changed so far."""
        for own in self._own.values():
            own.sealed = len(own.parts)
        return {i: len(own.parts) for i, own in self._own.items()}

    def go_back(self, mark: Mark) -> None:
        """Take back what was changed since a savepoint. What was read stays read."""
        for i, own in self._own.items():
            kept = mark.get(i, 0)
            if kept < len(own.parts):
                own.take_back(kept)

    def commit(self, check: Callable[[], None] = lambda: None) -> WriteResult | None:
        """Make all changes visible at one epoch; None if there are none. Raises `SerializationFailure`."""
        request = self.request()
        return None if request is None else self._writer.write(request, check)

    def request(self) -> TransactionCommit | None:
        """What is to be committed; None if it has changed nothing."""
        parts = {i: own.parts for i, own in self._own.items() if own.parts}
        return TransactionCommit(self.fix(), self.reads, parts, self._gate) if parts else None

    def submit(self) -> TransactionCommit | None:
        """The same, handed over without waiting for it: what it needs is kept until it has been committed."""
        request = self.request()
        if request is not None:
            self._submitted = self._writer.submit(request)
        return request

    def close(self) -> None:
        """Let go of the snapshot, and leave what was written for it to vacuum; harmless when repeated."""
        self._own.clear()
        if self._submitted is None:
            self._held.close()
        else:
            self._submitted.add_done_callback(lambda _: self._held.close())


_KEYS_NOTED = 100_000
"""Keys that a transaction remembers of what it has read; of more, only the table."""


def _as_batches(layout: RowLayout, parts: Iterable[Part]) -> list[pa.RecordBatch]:
    """Changes as rows with weights, without those that are in runs already."""
    found = []
    for part in parts:
        if isinstance(part, RowChanges):
            found.append(row_delta(layout, part))
        elif isinstance(part, Deferred):
            found += [] if part.delta is None else [part.delta]
        elif isinstance(part, pa.RecordBatch):
            found.append(part)
    return found


def _combined(schema: TableSchema, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return consolidate(concat(list(batches), schema.arrow()), schema)
