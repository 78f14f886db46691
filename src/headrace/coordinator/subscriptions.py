"""Following a relation's changes, and the subscriptions that keep its history for those who do.

A subscription is an object of the catalog with a promise: changes of a table or view stay readable for so long. It runs
nothing. Who reads has a position of his own, and needs nothing of the server between two pieces.

A subscription is an object without a job: `releasable` counts its retention, so the safe epoch stays behind it.
`Feed` reads for one client, in that client's thread: it takes the runs of the moment under the locks, pins them for
the length of a piece, and waits by asking `ChangeLog` (`Waiters.sleep`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from headrace.catalog.contents import SubscriptionContent
from headrace.catalog.state import CatalogState
from headrace.coordinator.run.live_state import LiveRelation, LiveState
from headrace.coordinator.run.runtime import Runtime
from headrace.coordinator.run.storage import Storage
from headrace.coordinator.run.waiting import CHECK_S
from headrace.errors import EpochTooNew, EpochTooOld, SnapshotUnavailable, UndefinedTable
from headrace.state.changelog import ChangePiece, ChangeReader, LogPosition, beginning_of
from headrace.state.schema import RunRef


def kept_ms(state: CatalogState, relation_id: int) -> int:
    """The longest time for which a subscription keeps the changes of a relation; 0 where there is none."""
    found = (state.objects[i].content for i in state.dependents(relation_id))
    return max((content.retention_ms for content in found if isinstance(content, SubscriptionContent)), default=0)


class Feed:
    """The changes of one relation, for one reader, by one thread at a time.

    With `holds` what the reader has not taken stays readable until `close`; else as long as history is kept anyway.
    """

    def __init__(
        self, live: LiveState, storage: Storage, runtime: Runtime, relation_id: int, *, holds: bool = False
    ) -> None:  # fmt: skip
        self._live = live
        self._storage = storage
        self._runtime = runtime
        self._id = relation_id
        self._holds = holds
        self._pin: int | None = None
        self._closed = False
        with live.lock:
            relation = self._relation()
            assert relation.schema is not None
            unique = relation.writable and bool(relation.record.primary_key)
            self._reader = ChangeReader(relation.schema, unique)
            self.columns = relation.columns
            if not live.graph.is_filled(relation_id):
                raise SnapshotUnavailable(
                    f"{relation.record.in_words} is still being created", hint="SHOW JOBS shows its progress"
                )

    # ---- where to begin

    def newest(self) -> LogPosition:
        """The position of who wants what changes from now on."""
        with self._live.lock:
            self._relation()
            return self._held(LogPosition(self._live.graph.frontier(self._id)))

    @property
    def newest_epoch(self) -> int:
        """The epoch up to which the relation will not change any more."""
        with self._live.lock:
            return self._live.graph.frontier(self._id)

    def oldest(self, since: int = 0) -> LogPosition:
        """The position of who wants all changes that are kept, or those after an epoch."""
        with self._live.lock:
            return self._held(LogPosition(max(self._relation().safe, since)))

    def whole(self) -> LogPosition:
        """The position of who wants all rows that there are, and then what changes."""
        with self._live.lock:
            self._relation()
            return self._held(beginning_of(self._live.graph.frontier(self._id)))

    def at(self, position: LogPosition) -> LogPosition:
        """A position that somebody was given before. Raises `EpochTooOld`, `EpochTooNew`."""
        with self._live.lock:
            self._check(self._relation(), position)
            return self._held(position)

    # ---- reading

    def read(self, position: LogPosition, at_most: int | None = None) -> ChangePiece:
        """What comes next, of epochs up to one, and from which position to go on; empty where there is nothing new.

        Raises `EpochTooOld` where it is not kept any more, `UndefinedTable` for a relation that was dropped.
        """
        storage, live = self._storage, self._live
        self._runtime.check()
        with storage.catalog.reading() as state, live.lock:
            relation = self._relation()
            self._check(relation, position)
            state = state if live.mirrored is None else live.mirrored
            newest = live.graph.frontier(self._id)
            up_to = max(newest if at_most is None else min(newest, at_most), position.epoch)
            refs = self._refs(state, relation, position, up_to)
            pin = storage.pins.pin([self._id], position.after, {r.path for r in refs})
            self._held(position)
        try:
            return self._reader.read(refs, storage.root, position, up_to)
        finally:
            storage.pins.unpin(pin)

    def wait(self, position: LogPosition, timeout_s: float | None, check: Callable[[], None] = lambda: None) -> bool:
        """Wait until there is something after a position; False where the time is over before.

        `check` is asked now and then, and raises if nobody waits any more.
        """
        live = self._live
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            check()
            with live.changed:
                if not self._is_idle(position):
                    return True
                left_s = CHECK_S if until_s is None else min(CHECK_S, until_s - time.monotonic())
                if left_s <= 0:
                    return False
                live.changed.sleep(lambda: self._is_idle(position), left_s)

    def close(self) -> None:
        """Hold nothing any more; harmless when repeated, and in any thread."""
        self._closed = True
        pin, self._pin = self._pin, None
        if pin is not None:
            self._storage.pins.unpin(pin)

    def __del__(self) -> None:
        with suppress(AttributeError):  # where it was never made
            self.close()

    # ---- the caller holds the lock

    def _is_idle(self, position: LogPosition) -> bool:
        live = self._live
        relation = live.graph.relations.get(self._id)
        if relation is None or self._runtime.stopping or position.within or self._closed:
            return False
        job = live.graph.jobs.get(self._id)
        first = relation.changes.first_after(position.epoch)
        return first is None or first > (live.graph.complete if job is None else job.committed)

    def _relation(self) -> LiveRelation:
        relation = self._live.graph.relations.get(self._id)
        if relation is None:
            raise UndefinedTable("what was followed here does not exist any more", hint="it was dropped")
        return relation

    def _check(self, relation: LiveRelation, position: LogPosition) -> None:
        if position.after < relation.safe:
            raise EpochTooOld(
                f'the changes of "{relation.name}" after epoch {position.after} are not kept any more',
                detail=f"kept is what has changed after epoch {relation.safe}",
                hint="Begin anew with FULL. A subscription with a longer retention keeps more.",
            )
        if position.after > self._live.graph.complete:
            raise EpochTooNew(f"epoch {position.epoch} is above the newest complete epoch {self._live.graph.complete}")

    def _refs(
        self, state: CatalogState, relation: LiveRelation, position: LogPosition, up_to: int
    ) -> tuple[RunRef, ...]:  # fmt: skip
        refs = (r.ref for r in state.runs_of(relation.state_table))
        if position.content:
            return tuple(r for r in refs if r.epoch_lo <= position.epoch)
        return tuple(r for r in refs if r.epoch_hi > position.after and r.epoch_lo <= up_to)

    def _held(self, position: LogPosition) -> LogPosition:
        """The position, which stays readable from now on if the reader is to be waited for."""
        if self._holds and not self._closed:
            pins, before = self._storage.pins, self._pin
            self._pin = pins.pin([self._id], position.after)
            if before is not None:
                pins.unpin(before)
        return position


__all__ = ["Feed", "kept_ms"]
