"""What writers hand over to be committed. Each is applied as a whole or fails by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Protocol, TypeAlias

import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.decide.relation import RelationState
from headrace.coordinator.writes.gates import Gate
from headrace.coordinator.writes.group import TableGroup
from headrace.coordinator.writes.history import ReadSet, WriteHistory, touches
from headrace.coordinator.writes.layout import Key, Row
from headrace.coordinator.writes.outcome import Outcome
from headrace.coordinator.writes.written_rows import Effect, RowChanges, RowOperation
from headrace.errors import SerializationFailure
from headrace.state.schema import RunRef
from headrace.state.table_changes import TableChange


@dataclass(slots=True)
class WriteResult:
    """The epoch from which on a write is visible, and what it did."""

    epoch: int
    inserted: int
    deleted: int
    late: int = 0
    """Rows that were not inserted, because the watermark of the table had passed them."""
    affected: Sequence[Row] = ()
    """Of an operation on single rows: those that a RETURNING list is about."""


@dataclass(frozen=True)
class Deferred:
    """A change that is planned at the commit: what it finds then counts.

    `delta` is what it came to when it was made.
    """

    change: TableChange
    delta: pa.RecordBatch | None = None


@dataclass(frozen=True)
class Written:
    """Runs that are written already and belong to nobody until they are committed."""

    runs: tuple[RunRef, ...]
    inserted: int = 0
    deleted: int = 0


Part: TypeAlias = RowChanges | pa.RecordBatch | Deferred | Written
"""What a statement does to one table: rows by key, rows with weights, a change, or runs."""


class Tables(Protocol):
    """The tables of a group, as requests see them."""

    def __call__(self, table_id: int) -> TableGroup:
        """The table. Raises `UndefinedTable`, `WrongObjectType`."""
        ...


@dataclass
class GroupContext:
    """What a request may ask when it is applied: the tables, their history, and what its group has looked at."""

    table: Tables
    history: WriteHistory
    changed: Callable[[], Mapping[int, TableGroup]]
    """The tables that the group has looked at so far."""


class Request(Protocol):
    """A change that a writer hands over to be committed. Applied as a whole, or failed by itself."""

    done: Outcome[WriteResult]
    gate: Gate | None

    @property
    def tables(self) -> frozenset[int]:
        """The tables that it writes to."""
        ...

    @property
    def looked_up(self) -> Mapping[int, Sequence[Key]]:
        """Primary keys that it is going to look up."""
        ...

    def apply(self, context: GroupContext) -> WriteResult:
        """Take the request's changes into the group; the epoch of what is returned is not known yet.

        Raises a `HeadraceError` with nothing changed.
        """
        ...


@dataclass(eq=False)
class TableWrite:
    """A change of one table, planned by what is there when it is committed."""

    table_id: int
    change: TableChange
    gate: Gate | None = None
    done: Outcome[WriteResult] = field(default_factory=Outcome)

    @property
    def tables(self) -> frozenset[int]:
        """The one table."""
        return frozenset((self.table_id,))

    @property
    def looked_up(self) -> Mapping[int, Sequence[Key]]:
        """Nothing beforehand."""
        return {}

    def apply(self, context: GroupContext) -> WriteResult:
        """See `Request`."""
        return _apply_change(context.table(self.table_id), self.change)


@dataclass(eq=False, slots=True)
class RowWrite:
    """A request: an operation on single rows of one table."""

    operation: RowOperation
    gate: Gate | None = None
    done: Outcome[WriteResult] = field(default_factory=Outcome)

    @property
    def tables(self) -> frozenset[int]:
        """The one table."""
        return frozenset((self.operation.table_id,))

    @property
    def looked_up(self) -> Mapping[int, Sequence[Key]]:
        """The operation's keys."""
        operation = self.operation
        return {operation.table_id: operation.keys} if operation.keys else {}

    def apply(self, context: GroupContext) -> WriteResult:
        """See `Request`."""
        table = context.table(self.operation.table_id)
        effect = self.operation.run(table.lookup)
        table.add_rows(effect)
        return WriteResult(0, effect.inserted, effect.deleted, 0, effect.affected)


@dataclass(eq=False)
class TransactionCommit:
    """All changes of a transaction, if nothing that it has read has changed since its snapshot."""

    since: int
    reads: ReadSet
    parts: Mapping[int, Sequence[Part]]
    gate: Gate | None = None
    done: Outcome[WriteResult] = field(default_factory=Outcome)

    @property
    def tables(self) -> frozenset[int]:
        """All tables that the transaction changes."""
        return frozenset(self.parts)

    @property
    def looked_up(self) -> Mapping[int, Sequence[Key]]:
        """Nothing: its rows were looked up when its statements ran."""
        return {}

    def apply(self, context: GroupContext) -> WriteResult:
        """See `Request`."""
        tables = {i: context.table(i) for i in sorted(self.parts)}
        self._check(context)
        # Only what is planned now can fail; then what the other parts have done is taken back.
        planned = any(isinstance(part, Deferred) for parts in self.parts.values() for part in parts)
        marks = {i: table.mark() for i, table in tables.items()} if planned else {}
        try:
            return self._applied(tables)
        except BaseException:
            for i, mark in marks.items():
                tables[i].go_back(mark)
            raise

    def _applied(self, tables: Mapping[int, TableGroup]) -> WriteResult:
        inserted = deleted = late = 0
        for i, table in tables.items():
            for part in self.parts[i]:
                result = _apply_part(table, part)
                inserted, deleted, late = inserted + result.inserted, deleted + result.deleted, late + result.late
        return WriteResult(0, inserted, deleted, late)

    def _check(self, context: GroupContext) -> None:
        changed = {i: table.touched for i, table in context.changed().items()}
        conflict = context.history.conflict(self.reads, self.since)
        if conflict is None:
            conflict = touches(self.reads, changed)
        if conflict is not None:
            raise serialization_failure(context.table(conflict).relation)


def serialization_failure(table: RelationState) -> SerializationFailure:
    """What a transaction is told whose reads of a table are not true any more."""
    found = SerializationFailure(
        f'could not serialize access: rows of "{table.name}" that the transaction has read were changed by another one',
        hint="run the transaction again from its beginning",
    )
    found.relation = table.id
    return found


def _apply_change(table: TableGroup, change: TableChange) -> WriteResult:
    timely = table.in_time(change)
    delta = table.plan(timely.change)
    table.watermark_us = timely.watermark_us
    table.add_delta(delta.rows)
    return WriteResult(0, delta.inserted, delta.deleted, timely.rows)


def _apply_part(table: TableGroup, part: Part) -> WriteResult:
    if isinstance(part, RowChanges):
        table.add_rows(Effect(part.changed, part.added))  # which are copied, entry by entry
    elif isinstance(part, Written):
        table.add_runs(part.runs)
        return WriteResult(0, part.inserted, part.deleted)
    elif isinstance(part, Deferred):
        return _apply_change(table, part.change)
    else:
        table.add_delta(part)
    return WriteResult(0, 0, 0)
