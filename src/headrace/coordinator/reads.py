"""Snapshots: which epoch a read sees, and what it needs to read there.

A read takes the newest epoch at which all its relations are exact, pins it, and gets the runs as of that epoch.
`query_epochs.py` chooses; here reads wait, are refused, and pin. docs/design/0007 says why, and what follows after a
restart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from types import TracebackType
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from headrace.catalog.state import CatalogState, Change
from headrace.common.columns import Column
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.base import Offsets
from headrace.coordinator.decide.exact import newest
from headrace.coordinator.decide.former import earlier_ids
from headrace.coordinator.decide.machine import align_for_reads
from headrace.coordinator.decide.query_epochs import (
    Candidate,
    Consistency,
    Floors,
    Monotonic,
    choose,
    choose_at_most,
    restart_floor,
)
from headrace.coordinator.observe.obstacles import (
    MayKnow,
    created_views,
    notices,
    refuse_behind,
    refuse_new,
    refuse_passed,
    refuse_shown,
    stuck_jobs,
)
from headrace.coordinator.run.live_state import Job, LiveState
from headrace.coordinator.run.pins import Pins
from headrace.coordinator.run.runtime import Runtime
from headrace.coordinator.run.storage import Storage
from headrace.errors import EpochTooNew, EpochTooOld, SnapshotUnavailable, UndefinedTable
from headrace.state.schema import RunRef, TableSchema

if TYPE_CHECKING:
    from headrace.coordinator.writes.layout import Key, Row
    from headrace.coordinator.writes.table_rows import TableRows

DEFAULT_WAIT_S = 60.0
"""Most seconds that a read waits for a snapshot, where it gives no limit."""
CHECK_S = 0.2
"""Seconds between two looks whether a read that waits was cancelled."""


@dataclass(frozen=True)
class ReadOptions:
    """The wishes of a read: consistency, time travel, floors, and whom to ask whether it still waits."""

    consistency: Consistency = "snapshot"
    monotonic: Monotonic = "strict"
    at: int | None = None
    """Time travel: the newest epoch up to this one, whatever was shown before."""
    exactly: int | None = None
    """The epoch of the transaction: this one and no other."""
    shown: Mapping[int, int] = field(default_factory=dict)
    """Beside `exactly`: what was shown before the transaction began to read."""
    at_least: int = 0
    """A floor of the reader's own: the epoch of its last write. Views that are behind are hurried."""
    session: Floors | None = None
    """What the session was shown."""
    align: bool = False
    """Ask all other views to be exact at the epoch that is chosen: reads of the same transaction may follow."""
    timeout_s: float | None = None
    check: Callable[[], None] | None = None
    """Asked now and then while the read waits: raises if it was cancelled."""
    may_know: MayKnow = lambda job_id: True
    """Whether the reader may be told what failed in a job, which may have values of rows in it."""


NEWEST = ReadOptions()
"""The newest snapshot, never one before what was shown."""


@dataclass(frozen=True)
class SnapshotTable:
    """A table's or view's runs as of a snapshot's epoch."""

    schema: TableSchema
    refs: tuple[RunRef, ...]
    as_of: int
    columns: tuple[Column, ...]
    watermark: int | None = None
    """Event time below which its rows have expired."""


@dataclass
class Snapshot:
    """One consistent state of some relations. A context manager: leaving it lets go of what it holds."""

    epoch: int
    """The epoch of all relations, or with `latest` the oldest of theirs."""
    tables: dict[int, SnapshotTable]
    sources: dict[int, Offsets]
    """Offsets of the sources at the epoch: the rows before them are the source's content. `{}` is nothing."""
    notices: list[str] = field(default_factory=list)
    """Which relations are failing, paused or late, since when and why."""
    epochs: dict[int, int] = field(default_factory=dict)
    """Relation -> the epoch that it is shown at."""
    shown: dict[int, int] = field(default_factory=dict)
    """With `align`: the floors when the read began, for those that follow."""
    _pins: Pins | None = None
    _pin: int = 0

    def close(self) -> None:
        """Let go; harmless when repeated."""
        pins, self._pins = self._pins, None
        if pins is not None:
            pins.unpin(self._pin)

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(eq=False)
class KnownRuns:
    """The runs of a relation that somebody has read as of an epoch, and keeps what was in them."""

    refs: tuple[RunRef, ...]
    as_of: int
    members: object = None
    """What the catalog had when it was seen last to have just these runs."""

    def are_those_of(self, refs: tuple[RunRef, ...], as_of: int) -> bool:
        """Whether runs as of an epoch hold the same rows."""
        if refs != self.refs:
            return False
        return as_of == self.as_of or all(r.epoch_hi <= min(as_of, self.as_of) for r in refs)


class Beside(Protocol):
    """Shows tables to others on behalf of the coordinator. It must know what becomes visible before anybody sees it."""

    def begin(self, complete: int) -> None:
        """The newest complete epoch, before anything is told of."""
        ...

    def completing(self, epoch: int) -> AbstractContextManager[object]:
        """Around the moment from which on an epoch counts as complete."""
        ...

    def showing(self, change: Change, state: CatalogState) -> AbstractContextManager[object]:
        """Around the moment from which on everybody sees a change of the catalog."""
        ...

    def shown(self) -> Mapping[int, int]:
        """Table -> the newest epoch at which it was shown."""
        ...


class Later:
    """Says that a read has to be done where it may be waited for."""


LATER: Final = Later()


class Reads:
    """Chooses epochs for reads, never an earlier one of a relation than was served before. Thread-safe.

    The lock of `LiveState` guards the floors.
    """

    def __init__(self, live: LiveState, storage: Storage, runtime: Runtime) -> None:
        self._live = live
        self._storage = storage
        self._runtime = runtime
        self._floors = Floors()
        self.shown_beside: Callable[[], Mapping[int, int]] = dict
        """Table -> the newest epoch at which other processes have shown it on behalf of this one."""

    def recover(self) -> None:
        """Set floors below what anybody may have been shown before the server started."""
        live = self._live
        with live.lock:
            found = {i: restart_floor(r.changes, live.graph.exact(i)) for i, r in live.graph.relations.items()}
            self._floors.raise_to(found)

    def snapshot(self, relation_ids: Sequence[int], options: ReadOptions) -> Snapshot:
        """See `Coordinator.snapshot`."""
        live, storage = self._live, self._storage
        ids = list(dict.fromkeys(relation_ids))
        with live.changed:
            self._note_beside(options)
            shown = self._shown(options).copy() if options.align else {}
            if options.at is not None:
                epochs = self._at(ids, options.at)
            else:
                epochs = self._newest(ids, options)
                self._floors.raise_to(epochs)
                if options.session is not None:
                    options.session.raise_to(epochs)
            epoch = min(epochs.values(), default=options.at or live.epochs.complete)
            told = self._notices(ids, epochs, options) if options.at is None else []
            # A transaction goes on with reads of other relations at this epoch.
            pin = storage.pins.pin(None if options.align else ids, epoch)
            if options.align:
                align_for_reads(live.graph, epoch)
            mirrored = live.mirrored
        try:
            tables, sources = self._contents(epochs, pin, mirrored)
        except BaseException:
            storage.pins.unpin(pin)
            raise
        return Snapshot(epoch, tables, sources, told, epochs, shown, storage.pins, pin)

    def rows_now(
        self, tables: TableRows, table_id: int, asked: Sequence[tuple[Key, ReadOptions]]
    ) -> list[Row | Later | None]:
        """Rows of a table by primary key, at the epoch that `snapshot` would choose for each reader, without waiting.

        A table is exact at every complete epoch: it is the newest one. `LATER` where something is to be waited for.
        What has to be done for a read of one row is done once for all of them.
        """
        live = self._live
        self._runtime.check()
        if live.mirrored is not None or not self._storage.answers_at_once:
            return [LATER] * len(asked)
        self._storage.catalog.verify()
        now = tables.rows_now(tables.table(table_id), [key for key, _ in asked])
        if now is None:
            return [LATER] * len(asked)
        rows, epoch = now
        shown = {table_id: epoch}
        with live.lock:
            self._floors.raise_to(shown)
            for _, options in asked:
                if options.session is not None:
                    options.session.raise_to(shown)
        return [rows[key].row if options.at_least <= epoch else LATER for key, options in asked]

    def shows_now(self, relation_id: int, known: KnownRuns, options: ReadOptions) -> bool:
        """Whether `snapshot` would find just these rows of a relation now, without waiting and with nothing to tell.

        Then they count as shown.
        """
        live, storage = self._live, self._storage
        self._runtime.check()
        if live.mirrored is not None or not storage.answers_at_once:
            return False
        storage.catalog.verify()
        with live.lock:
            relation = live.graph.relations.get(relation_id)
            if relation is None or relation.schema is None:
                return False
            self._note_beside(options)
            ids = (relation_id,)
            read = [Candidate(relation_id, live.graph.exact(relation_id), self._floors_of(ids, options)[relation_id])]
            epochs = self._choose(read, options)
            if epochs is None or self._notices(ids, epochs, options):
                return False
        # What is exact at an epoch is in the catalog: as long as that has these runs, they have all up to the epoch.
        members = storage.catalog.image.members(relation.state_table)
        if members is not known.members:
            refs = tuple([r.ref for r in storage.catalog.image.runs_of(relation.state_table)])
            if not known.are_those_of(refs, epochs[relation_id]):
                return False
            known.members = members
        elif not known.are_those_of(known.refs, epochs[relation_id]):
            return False
        if not storage.answers_at_once:
            return False
        with live.lock:
            self._floors.raise_to(epochs)
            if options.session is not None:
                options.session.raise_to(epochs)
        return True

    def _note_beside(self, options: ReadOptions) -> None:
        """Raise the floors to what other processes have shown; for a session as if it had seen all of it."""
        relations = self._live.graph.relations
        beside = {i: epoch for i, epoch in self.shown_beside().items() if i in relations}
        if beside:
            self._floors.raise_to(beside)
            if options.session is not None:
                options.session.raise_to(beside)

    def floor(self, relation_id: int) -> int:
        """The newest epoch at which a relation was shown. The caller holds the lock."""
        return max(self._floors.of(relation_id), self.shown_beside().get(relation_id, 0))

    def undisturbed(self, relation_ids: Sequence[int]) -> dict[int, int]:
        """Of these relations those of which there is nothing to tell who reads them, each with the newest epoch at
        which it is exact."""
        live, found = self._live, dict[int, int]()
        with live.lock:
            for i in relation_ids if live.mirrored is None else ():
                epoch = newest(live.graph.exact(i)) if i in live.graph.relations else None
                if epoch is not None and not self._notices((i,), {i: epoch}, NEWEST):
                    found[i] = epoch
        return found

    def state(self, table_ids: Sequence[int]) -> Snapshot:
        """State tables by id, each as of its committed epoch, at one moment: those of one job are of one epoch.

        Raises `UndefinedTable` for one that is not there.
        """
        storage = self._storage
        self._runtime.check()
        tables: dict[int, SnapshotTable] = {}
        with storage.catalog.reading() as state:
            for i in table_ids:
                record = state.state_tables.get(i)
                if record is None:
                    raise UndefinedTable(f"there is no state table {i} any more", hint="it may have been dropped")
                refs = tuple(r.ref for r in state.runs_of(i))
                schema, at = record.to_table_schema(), record.committed_epoch
                tables[i] = SnapshotTable(schema, refs, at, (), record.watermark)
            pin = storage.pins.pin((), 0, {ref.path for table in tables.values() for ref in table.refs})
        epoch = max((t.as_of for t in tables.values()), default=0)
        return Snapshot(epoch, tables, {}, _pins=storage.pins, _pin=pin)

    def forget(self, relation_id: int) -> None:
        """Forgets a relation that was dropped; what has its name is not seen as of less than that was."""
        with self._live.lock:
            for relation in self._live.graph.relations.values():
                if relation_id in earlier_ids(relation.record):
                    self._floors.raise_to({relation.id: self.floor(relation_id)})
            self._floors.forget(relation_id)

    # ---- choosing; the caller holds the lock

    def _newest(self, ids: Sequence[int], options: ReadOptions) -> dict[int, int]:
        runtime, live = self._runtime, self._live
        if not ids:
            runtime.check()
            return {}
        deadline_s = time.monotonic() + (DEFAULT_WAIT_S if options.timeout_s is None else options.timeout_s)
        # What was shown before this read began. Reads that come while it waits must not push it ever further away.
        floors = self._floors_of(ids, options)
        self._hurry(ids, options.at_least)
        while True:
            runtime.check()
            if options.check is not None:
                options.check()
            read = [Candidate(i, live.graph.exact(i), floors[i]) for i in ids]
            found = self._choose(read, options)
            if found is not None:
                return found
            self._go_on_or_refuse(read, options, time.monotonic() >= deadline_s)
            live.changed.wait(min(CHECK_S, max(0.0, deadline_s - time.monotonic())))

    def _floors_of(self, ids: Sequence[int], options: ReadOptions) -> dict[int, int]:
        if options.exactly is not None:
            return {i: max(options.shown.get(name, 0) for name in self._named(i)) for i in ids}
        shown = self._shown(options)
        return {i: max(options.at_least, *(shown.of(name) for name in self._named(i))) for i in ids}

    def _named(self, relation_id: int) -> tuple[int, ...]:
        """A relation, and what had its name before: whoever has seen that must not see less of this one."""
        relation = self._live.graph.relations.get(relation_id)
        return (relation_id,) if relation is None else (relation_id, *earlier_ids(relation.record))

    def _shown(self, options: ReadOptions) -> Floors:
        return {"strict": self._floors, "session": options.session or Floors(), "off": Floors()}[options.monotonic]

    def _hurry(self, ids: Sequence[int], epoch: int) -> None:
        """Let no cadence hold back views on their way to an epoch."""
        if not epoch:
            return
        for job in self._live.graph.jobs_above(ids):
            job.hurry(epoch)
        self._live.changed.notify_all()

    def _choose(self, read: Sequence[Candidate], options: ReadOptions) -> dict[int, int] | None:
        live = self._live
        if options.exactly is not None:
            for c in read:
                if c.floor > options.exactly:
                    refuse_shown(live.graph.relation(c.relation).name, options.exactly, c.floor)
            self._check_range([c.relation for c in read], options.exactly)
            found = choose_at_most(read, options.exactly)
            return dict.fromkeys((c.relation for c in read), options.exactly) if found == options.exactly else None
        created = [live.graph.exact(j.id) for j in created_views(live.graph)] if options.consistency == "global" else []
        return choose(options.consistency, read, created)

    def _go_on_or_refuse(self, read: Sequence[Candidate], options: ReadOptions, late: bool) -> None:
        """Return if the read may wait for its epoch; raise `SnapshotUnavailable` if that will not come."""
        live = self._live
        jobs = [live.graph.jobs[c.relation] for c in read if c.relation in live.graph.jobs]
        for job in jobs:
            if not job.created:  # also where its rows are there, and not all of one moment yet: nobody knows when
                refuse_new(job, options.may_know)
        if options.consistency == "global" and options.exactly is None:
            jobs = list({j.id: j for j in [*jobs, *created_views(live.graph)]}.values())
        wanted = options.exactly or max((c.floor for c in read), default=0)
        behind = [j for j in jobs if live.graph.job_frontier(j) < max(wanted, 1)]
        stuck = [j for j in behind if stuck_jobs(live.graph, j.id)]
        if stuck:
            self._refuse(read, min(stuck, key=live.graph.job_frontier), wanted, options)
        if options.exactly is not None:
            passed = [c.relation for c in read if newest(c.exact, wanted) != wanted and (newest(c.exact) or 0) > wanted]
            if passed:
                refuse_passed(live.graph.relation(passed[0]).name, wanted)
        if not jobs and not late and live.mirrored is None and live.epochs.complete < wanted <= live.epochs.last:
            return  # a change of a table is known a moment before its epoch is complete
        if not jobs and (live.mirrored is None or late):
            names = ", ".join(f'"{live.graph.relation(c.relation).name}"' for c in read)
            raise SnapshotUnavailable(f"there is no epoch at which all of {names} can be read together")
        if late and jobs:
            self._refuse(read, min(jobs, key=live.graph.job_frontier), wanted, options)
        running = [j for j in jobs if not stuck_jobs(live.graph, j.id)]
        if options.exactly is None and not self._promised(running, wanted):
            align_for_reads(live.graph, live.epochs.complete)
            live.changed.notify_all()

    def _promised(self, jobs: Sequence[Job], wanted: int) -> bool:
        """Whether the views are about to be exact together at an epoch that is new enough."""
        live = self._live
        stop = max((j.stops.for_reads for j in jobs), default=0)
        if stop < wanted or not stop:
            return False
        return all(
            (stop in j.stops.epochs and live.graph.job_frontier(j) < stop)
            or newest(live.graph.exact(j.id), stop) == stop
            for j in jobs
        )

    def _refuse(self, read: Sequence[Candidate], behind: Job, wanted: int, options: ReadOptions) -> NoReturn:
        refuse_behind(
            self._live.graph, read, behind, wanted, options.consistency, exactly=options.exactly is not None,
            written=options.at_least, may_know=options.may_know,
        )  # fmt: skip

    def _notices(self, ids: Sequence[int], epochs: Mapping[int, int], options: ReadOptions) -> list[str]:
        others = options.consistency == "global" and options.exactly is None
        limit_ms, may_know = self._runtime.settings.lag_notice_ms, options.may_know
        return notices(self._live.graph, ids, epochs, limit_ms, others=others, may_know=may_know)

    def _check_range(self, ids: Sequence[int], at: int) -> None:
        live = self._live
        if at > live.epochs.complete:
            raise EpochTooNew(f"epoch {at} is above the newest complete epoch {live.epochs.complete}")
        oldest = max((live.graph.relation(i).safe for i in ids), default=0)
        if at < oldest:
            raise EpochTooOld(
                f"epoch {at} is below the oldest epoch that can be read, {oldest}",
                detail=f"readable are epochs from {oldest} to {live.epochs.complete}",
                hint="retention_ms says how long history is kept",
            )

    def _at(self, ids: Sequence[int], at: int) -> dict[int, int]:
        self._runtime.check()
        self._check_range(ids, at)
        if not ids:
            return {}
        found = choose_at_most([Candidate(i, self._live.graph.exact(i)) for i in ids], at)
        if found is None:
            raise SnapshotUnavailable(f"no epoch at or below {at} at which all relations of the statement can be read")
        return dict.fromkeys(ids, found)

    # ---- contents

    def _contents(
        self, epochs: Mapping[int, int], pin: int, mirrored: CatalogState | None
    ) -> tuple[dict[int, SnapshotTable], dict[int, Offsets]]:
        storage = self._storage
        tables: dict[int, SnapshotTable] = {}
        sources: dict[int, Offsets] = {}
        with storage.catalog.reading() as state:
            if mirrored is not None:
                state = mirrored
            for i, epoch in epochs.items():
                relation = self._live.graph.relation(i)
                if relation.schema is None:
                    binding = state.offsets_at(i, epoch)
                    sources[i] = {} if binding is None else binding.offsets
                    continue
                refs = tuple(r.ref for r in state.runs_of(relation.state_table) if r.ref.epoch_lo <= epoch)
                tables[i] = SnapshotTable(relation.schema, refs, epoch, relation.columns)
            storage.pins.hold(pin, {ref.path for table in tables.values() for ref in table.refs})
        return tables, sources
