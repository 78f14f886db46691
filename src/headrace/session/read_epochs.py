"""Which epoch the reads of a session see, and snapshots of relations at that epoch.

A transaction reads one snapshot, fixed by its first read, with what it has written itself on top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, cast

from headrace.coordinator.decide.query_epochs import Consistency, Floors, Monotonic
from headrace.coordinator.reads import ReadOptions
from headrace.errors import SnapshotUnavailable
from headrace.session.coordination import Coordination
from headrace.session.transactions import Transaction
from headrace.session.variables import Variables

if TYPE_CHECKING:
    from headrace.coordinator.reads import Snapshot


class Reader(Protocol):
    """Of whom reads ask what decides their epochs: a session's `Context`."""

    coordinator: Coordination
    variables: Variables
    check: Callable[[], None]
    last_write: int
    """The epoch of its last write."""
    writing: Transaction | None
    """The transaction of the statement that runs, if that writes."""

    def may_know(self, object_id: int) -> bool:
        """Whether it may be told what failed in the job of an object."""
        ...

    @property
    def acting(self) -> Transaction | None:
        """The transaction in which the statement that runs reads."""
        ...


class SessionReads:
    """The reads of one session. Its settings, its transaction and its writes choose their epochs."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._newest = -1, False
        """For which version of the settings tables are read as of the newest epoch, and whether they are."""
        self._options: tuple[tuple[int, int], ReadOptions] | None = None
        self._floors = Floors()

    @property
    def newest(self) -> bool:
        """Whether a table is read as of the newest complete epoch: nothing asks for another one."""
        variables = self._reader.variables
        if self._newest[0] != variables.version:
            fits = not int(variables.get("query_epoch") or 0) and variables.get("query_consistency") != "global"
            self._newest = variables.version, fits
        return self._newest[1]

    def options(self) -> ReadOptions:
        """How a read outside of transactions chooses its epoch."""
        now = self._reader.variables.version, self._reader.last_write
        if self._options is None or self._options[0] != now:
            self._options = now, self._choose((), None)
        return self._options[1]

    def snapshot(
        self, relations: Sequence[int], at: int | None, point: tuple[int, tuple[object, ...]] | None = None
    ) -> AbstractContextManager[Snapshot]:
        """A snapshot of relations: at an epoch that is asked for, that of the transaction, or the newest.

        `point` is the table and the primary key of the one row that is read, where that is known.
        """
        return self._snapshot(relations, at, point)

    @contextmanager
    def _snapshot(
        self, relations: Sequence[int], at: int | None, point: tuple[int, tuple[object, ...]] | None
    ) -> Iterator[Snapshot]:
        transaction = self._reader.acting
        options = self._choose(relations, at)
        if transaction is None or options.at is not None:
            with self._reader.coordinator.snapshot(list(relations), options=options) as snapshot:
                yield snapshot
            return
        with ExitStack() as stack:
            snapshot = stack.enter_context(self._transaction_snapshot(transaction, relations, options))
            if transaction.work.epoch is None:
                transaction.shown = snapshot.shown
                transaction.behind = self._behind(relations, snapshot)
            transaction.work.fix(snapshot.epoch)
            if point is not None and transaction.work.can_look_up(point[0]):
                transaction.work.note_keys(point[0], [point[1]])
            else:
                transaction.work.note_tables(self._reader.coordinator.tables_read(relations))
            for i in snapshot.tables:
                if transaction.work.has_changed(i):
                    own = transaction.work.own_runs(i)
                    snapshot.tables[i] = replace(snapshot.tables[i], refs=(*snapshot.tables[i].refs, *own))
            yield snapshot

    def _behind(self, relations: Sequence[int], snapshot: Snapshot) -> str | None:
        """Why a snapshot is older than the tables that it is made of; None if it is not."""
        coordinator = self._reader.coordinator
        tables = coordinator.tables_read(relations)
        if tables.issuperset(relations) or coordinator.tables.last_change(tables) <= snapshot.epoch:
            return None
        return "; ".join(snapshot.notices) or "a view that it has read had not taken them in yet"

    def _transaction_snapshot(
        self, transaction: Transaction, relations: Sequence[int], options: ReadOptions
    ) -> AbstractContextManager[Snapshot]:
        """The first read waits for what the session has written; where that cannot be, only writing fails."""
        try:
            return self._reader.coordinator.snapshot(list(relations), options=options)
        except SnapshotUnavailable:
            if transaction.implicit or not options.at_least or self._reader.variables.is_on("read_your_writes"):
                raise
            return self._reader.coordinator.snapshot(list(relations), options=replace(options, at_least=0))

    def _choose(self, relations: Sequence[int], at: int | None) -> ReadOptions:
        """How the session's settings, its transaction and its writes let a read choose its epoch."""
        reader, v, transaction = self._reader, self._reader.variables, self._reader.acting
        if reader.writing is None:
            at = at or int(v.get("query_epoch") or 0) or None
        if at is not None:
            return ReadOptions(at=at, check=reader.check, may_know=reader.may_know)
        fixed = None if transaction is None else transaction.work.epoch
        consistency = cast(Consistency, v.get("query_consistency"))
        at_least = reader.last_write if v.is_on("read_your_writes") else 0
        if transaction is not None:
            # A transaction reads one snapshot.
            consistency = "snapshot" if consistency == "latest" or transaction.implicit else consistency
            if not transaction.read_only and fixed is None:
                at_least = self._needed(transaction, relations)
        return ReadOptions(
            consistency=consistency,
            monotonic=cast(Monotonic, v.get("monotonic_reads")),
            exactly=fixed,
            shown={} if transaction is None else transaction.shown,
            at_least=at_least,
            session=self._floors,
            align=transaction is not None and fixed is None,
            check=reader.check,
            may_know=reader.may_know,
        )

    def _needed(self, transaction: Transaction, relations: Sequence[int]) -> int:
        """The epoch that the snapshot of a transaction that may write must have reached, so that it can commit.

        Its own session's writes must be there; for a single statement, the newest change of any table that it reads.
        """
        if not transaction.implicit:
            return transaction.at_least
        coordinator = self._reader.coordinator
        tables = coordinator.tables_read(relations)
        return max(transaction.at_least, coordinator.tables.last_change(tables))
