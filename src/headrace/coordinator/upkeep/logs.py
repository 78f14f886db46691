"""The logs that views have not read yet: how large they are, and what is done about one that outgrows its limit.

`log_limit_policy` may give a log up. That raises the input's safe epoch past the view, and is all that is noted of
it: a job below the safe epoch of an input has lost its log (`Graph.lost_logs`), nothing is kept for it any more, and
the input counts as changed right after its checkpoint, so that it runs into `LogLost` and never claims to be exact.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress

import numpy as np

from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import AddEvent, Edit, EditRejected, Put, RaiseSafe
from headrace.catalog.records import RemapRecord, SourceRecord, encode
from headrace.catalog.state import CatalogState
from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.decide.graph import Graph
from headrace.coordinator.decide.view_options import log_limit
from headrace.coordinator.observe.sparing import Sparing
from headrace.coordinator.observe.watchdog import Barriers
from headrace.coordinator.run.guard import PiecesOfWork
from headrace.coordinator.run.live_state import Job, LiveRelation, LiveState
from headrace.coordinator.run.locks import Locks
from headrace.coordinator.run.pins import Pins
from headrace.coordinator.run.runtime import Runtime
from headrace.coordinator.run.storage import Storage
from headrace.coordinator.upkeep.retention import Retention
from headrace.errors import CorruptObject, HeadraceError
from headrace.state.arrangement import Arrangement
from headrace.state.schema import E, RunRef
from headrace.state.stores import StoreRoot


@dataclass(frozen=True)
class UnreadLog:
    """The log of a table or view that a job has still to read, with its runs pinned."""

    relation: LiveRelation
    job: Job
    position: int
    """The log begins after this epoch."""
    complete: int
    refs: tuple[RunRef, ...]
    """The runs that have rows after it."""

    @property
    def most_bytes(self) -> int:
        """No less than what is unread: a merged run counts in full."""
        return sum(r.length for r in self.refs)


@dataclass(frozen=True)
class LogPart:
    """What one run holds of a log."""

    epochs: frozenset[int]
    rows: int
    bytes: int
    """The run's own bytes, in proportion to the rows."""


class UnreadLogs:
    """Finds what views have not read of their inputs. It changes nothing; `lock` guards the graph."""

    def __init__(
        self, graph: Graph[LiveRelation, Job], lock: AbstractContextManager[object], catalog: Catalog, pins: Pins
    ) -> None:  # fmt: skip
        self._graph = graph
        self._lock = lock
        self._catalog = catalog
        self._pins = pins

    @contextmanager
    def unread(self, upstream: int, downstream: int, *, kept: bool = False) -> Iterator[UnreadLog | None]:
        """The unread log of an edge, whose runs are not deleted meanwhile; None if there is no such edge (any more).

        All that the job has not taken in, or with `kept` what is kept for it: of a view that is being created the
        former is all that its input holds, the latter what has come since it began.
        """
        with self._catalog.reading() as state, self._lock:
            relation, job = self._graph.relations.get(upstream), self._graph.jobs.get(downstream)
            if relation is None or job is None:
                found, pin = None, None
            else:
                refs = [r.ref for r in state.runs_of(relation.state_table)] if relation.schema is not None else []
                position = self._graph.needs(job, upstream) if kept or upstream in job.lookups else job.committed
                complete = self._graph.complete
                refs = [r for r in refs if r.epoch_hi > position and r.epoch_lo <= complete]
                found = UnreadLog(relation, job, position, complete, tuple(refs))
                pin = self._pins.pin([], complete, (r.path for r in refs))
        try:
            yield found
        finally:
            if pin is not None:
                self._pins.unpin(pin)

    def edges(self) -> list[tuple[int, int]]:
        """Every pair of an input and a job that reads it, by id."""
        with self._lock:
            return sorted((u, j.id) for j in self._graph.jobs.values() for u in dict.fromkeys(j.upstreams))

    def with_log(self) -> list[tuple[int, int]]:
        """The edges whose job has something to read that it has not read."""
        with self._lock:
            return [
                (u, j)
                for u, j in self.edges()
                if self._graph.first_change(u, self._graph.needs(self._graph.jobs[j], u)) is not None
            ]


def log_part(root: StoreRoot, log: UnreadLog, ref: RunRef) -> LogPart:
    """What of an unread log is in one run; only a merged one has to be read. Raises `CorruptObject`, `StorageError`."""
    assert log.relation.schema is not None
    if ref.constant_epoch:
        return LogPart(frozenset((ref.epoch_lo,)), ref.rows, ref.length)
    epochs: set[int] = set()
    rows = 0
    for batch in Arrangement(log.relation.schema, (ref,), root).log(log.position, log.complete, with_epoch=True):
        rows += batch.num_rows
        epochs.update(np.unique(np.asarray(batch.column(E))).tolist())
    return LogPart(frozenset(epochs), rows, -(-ref.length * rows // max(ref.rows, 1)))


class BindingSizes:
    """The size of what is kept of sources' bindings: stored bytes, each binding measured once."""

    def __init__(self) -> None:
        self._known: dict[int, dict[int, int]] = {}
        """Source -> epoch -> bytes."""

    def keep(self, source_ids: Collection[int]) -> None:
        """Forgets what is known of all other sources."""
        self._known = {i: sizes for i, sizes in self._known.items() if i in source_ids}

    def after(self, state: CatalogState, source_id: int, positions: Mapping[int, int]) -> dict[int, int]:
        """Job -> bytes of the bindings after its position."""
        old, now = self._known.get(source_id, {}), {}
        for binding in state.all_remaps(source_id):
            size = old.get(binding.epoch)
            now[binding.epoch] = stored_bytes(binding) if size is None else size
        self._known[source_id] = now
        return {job: sum(size for e, size in now.items() if e > position) for job, position in positions.items()}


def stored_bytes(binding: RemapRecord) -> int:
    """What a binding takes in the catalog."""
    return len(encode(binding))


class LogKeeper:
    """Watches over the logs that views have not read, and the bindings of sources; by one thread at a time.

    Each time that one passes its limit that is an event. With the policy `drop` the safe epoch of the input passes
    the view then, in one transaction with an event, and its next epoch finds its log gone.
    """

    def __init__(
        self, live: LiveState, storage: Storage, runtime: Runtime, locks: Locks, sparing: Sparing, *,
        unread: UnreadLogs, barriers: Barriers, retention: Retention,
    ) -> None:  # fmt: skip
        self._live = live
        self._storage = storage
        self._runtime = runtime
        self._locks = locks
        self._sparing = sparing
        self._unread = unread
        self._barriers = barriers
        self._retention = retention
        self._looking = threading.Lock()
        self._over: set[tuple[int, int]] = set()
        self._known: dict[tuple[RunRef, int], int] = {}
        """(Merged run, position) -> bytes: of runs that are complete, so that each is read once."""
        self._bindings = BindingSizes()
        self._unsure: dict[int, int] = {}
        """Relation -> its safe epoch before it was raised, where it is not known whether that is durable."""

    def look(self) -> None:
        """Look at every edge: one that cannot be looked at hides no other.

        What failed first is raised in the end: `Fenced`, `StorageError`, `DiskFull`.
        """
        with self._looking:
            several = PiecesOfWork()
            self._look(several)
            several.end()

    def _look(self, several: PiecesOfWork) -> None:
        live = self._live
        if self._unsure:
            with several.one():
                self._settle()
        sizes: dict[tuple[int, int], int] = {}
        positions: dict[tuple[int, int], int] = {}
        known, self._known = self._known, {}
        for edge in self._unread.with_log():
            with several.one(), self._unread.unread(*edge, kept=True) as log, suppress(CorruptObject):
                if log is not None and log.position and log.relation.schema is not None:
                    size = self._size(log, log_limit(self._runtime.settings, log.job.options).bytes, known)
                    if size is not None:
                        sizes[edge], positions[edge] = size, log.position
        with several.one():
            self._look_at_bindings(sizes, positions)
        of_jobs: dict[int, dict[int, int]] = {}
        of_inputs: dict[int, dict[int, int]] = {}
        for (upstream, job_id), size in sizes.items():
            of_jobs.setdefault(job_id, {})[upstream] = size
            of_inputs.setdefault(upstream, {})[job_id] = positions[upstream, job_id]
        with live.changed:
            for job in live.graph.jobs.values():
                job.outgrow(of_jobs.get(job.id, {}))
        self._over &= sizes.keys()
        for edge in sizes.keys() - self._over:
            with several.one():
                self._say(*edge)
                self._over.add(edge)
        for relation_id, at in sorted(of_inputs.items()):
            with several.one():
                self._drop(relation_id, at)

    def _look_at_bindings(self, sizes: dict[tuple[int, int], int], positions: dict[tuple[int, int], int]) -> None:
        """Those of a source are kept for its readers, and for who needs its watermarks though it reads others."""
        live = self._live
        readers: dict[int, dict[int, int]] = {}
        with live.lock:
            limits = {j.id: log_limit(self._runtime.settings, j.options).bytes for j in live.graph.jobs.values()}
            for job in live.graph.jobs.values():
                for i in live.graph.bindings_for(job) if limits[job.id] else ():
                    if i in live.graph.relations and live.graph.relations[i].external and live.graph.needs(job, i):
                        readers.setdefault(i, {})[job.id] = live.graph.needs(job, i)
        state = self._storage.catalog.state
        self._bindings.keep(readers)
        for source_id, at in readers.items():
            for job_id, size in self._bindings.after(state, source_id, at).items():
                if size > limits[job_id]:
                    sizes[source_id, job_id], positions[source_id, job_id] = size, at[job_id]

    def _size(self, log: UnreadLog, limit: int, known: Mapping[tuple[RunRef, int], int]) -> int | None:
        """The bytes of a log that is beyond a limit; None for any other."""
        if not limit or log.most_bytes <= limit:
            return None
        size = 0
        for ref in log.refs:
            key = (ref, log.position)
            part = known.get(key)
            if part is None:
                part = log_part(self._storage.root, log, ref).bytes
            if not ref.constant_epoch and ref.epoch_hi <= log.complete:
                self._known[key] = part
            size += part
        return size if size > limit else None

    def _say(self, upstream: int, downstream: int) -> None:
        live = self._live
        with live.lock:
            relation, job = live.graph.relations.get(upstream), live.graph.jobs.get(downstream)
            if relation is None or job is None:
                return
            text = (
                f"{job.in_words} {self._barriers.growth(job, relation)}; it waits for {self._barriers.blocked_by(job)}"
            )
        event = self._sparing.thinned(AddEvent("log_growing", downstream, text), upstream)
        self._storage.catalog.transact([] if event is None else [event])

    def _drop(self, relation_id: int, positions: Mapping[int, int]) -> None:
        """Give up a log for those of the jobs that want it so and stand still, where nobody else needs it."""
        locks, storage, live = self._locks, self._storage, self._live
        with locks.raising, locks.committing:
            with storage.catalog.reading() as state, live.lock:
                relation = live.graph.relations.get(relation_id)
                found = None if relation is None else self._given_up(state, relation, positions)
                if relation is None or found is None:
                    return
                safe, edits = found
                # At once: whoever begins to read from now on begins above it.
                before, relation.safe = relation.safe, safe
            try:
                storage.catalog.transact(edits)
            except BaseException as error:
                self._put_back(relation, before)
                if not isinstance(error, EditRejected):
                    raise
            live.notify()

    def _put_back(self, relation: LiveRelation, before: int) -> None:
        """A log is not given up after all, unless that is durable already. The caller holds `raising`.

        Where the catalog does not tell, the safe epoch stays raised until it does.
        """
        try:
            with self._storage.catalog.reading() as state, self._live.lock:
                relation.safe = max(before, _durable_safe(state, relation))
                self._unsure.pop(relation.id, None)
        except HeadraceError:
            self._unsure.setdefault(relation.id, before)

    def _settle(self) -> None:
        """Learn of safe epochs that were raised whether they are durable."""
        with self._locks.raising:
            for relation_id, before in list(self._unsure.items()):
                relation = self._live.graph.relations.get(relation_id)
                if relation is None:
                    del self._unsure[relation_id]
                else:
                    self._put_back(relation, before)

    def _given_up(
        self, state: CatalogState, relation: LiveRelation, positions: Mapping[int, int]
    ) -> tuple[int, list[Edit]] | None:
        """The new safe epoch of a relation whose log is given up, and the transaction; None if it is not."""
        live = self._live
        jobs = [live.graph.jobs[i] for i in sorted(positions) if i in live.graph.jobs]
        # One that has gone on since may not be beyond its limit any more.
        jobs = [j for j in jobs if live.graph.needs(j, relation.id) == positions[j.id]]
        jobs = [j for j in jobs if log_limit(self._runtime.settings, j.options).drop and not live.graph.lost_logs(j)]
        if not jobs:
            return None
        ids = {j.id for j in jobs}
        if relation.external:
            safe = max(relation.safe, self._retention.oldest_needed(relation, without=ids))
            raised: Edit = Put(SourceRecord(relation.id, safe))
        else:
            record = state.state_tables[relation.state_table]
            safe = self._retention.releasable(relation, record, without=ids)
            raised = RaiseSafe(record.id, safe)
        firsts = [live.graph.first_change(relation.id, live.graph.needs(j, relation.id)) for j in jobs]
        if not any(first is not None and first <= safe for first in firsts):
            return None  # Others need all of it: giving it up would free nothing.
        return safe, [
            raised,
            *(
                _dropped(j, relation, safe, self._barriers.growth(j, relation))
                for j in jobs
                if live.graph.needs(j, relation.id) < safe
            ),
        ]


def _durable_safe(state: CatalogState, relation: LiveRelation) -> int:
    """The safe epoch of a relation as the catalog has it; 0 if it is not there any more."""
    if relation.external:
        source = state.sources.get(relation.id)
        return 0 if source is None else source.safe_epoch
    table = state.state_tables.get(relation.state_table)
    return 0 if table is None else table.safe_epoch


def _dropped(job: Job, relation: LiveRelation, safe: int, growth: str) -> AddEvent:
    what = "bindings" if relation.external else "log"
    text = f'{job.in_words} loses the {what} of "{relation.name}" and has to be created again'
    detail = f"it {growth}; it is at epoch {job.reads_from}, what follows {safe} is kept"
    return AddEvent("log_dropped", job.id, text, detail)
