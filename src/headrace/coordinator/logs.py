"""The logs that views have not read yet: how large they are, and what is done about one that outgrows its limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np

from headrace.catalog.edits import AddEvent, Edit, EditRejected, RaiseSafe
from headrace.coordinator.compaction import releasable
from headrace.coordinator.core import Core, Job, Relation
from headrace.coordinator.options import log_limit
from headrace.coordinator.watchdog import blocked_by, growth
from headrace.errors import CorruptObject
from headrace.state.arrangement import Arrangement
from headrace.state.schema import E, RunRef
from headrace.state.stores import StoreRoot


@dataclass(frozen=True)
class Unread:
    """The log of a table or view that a job has still to read, with its runs pinned."""

    relation: Relation
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
    """What of a log one run holds."""

    epochs: frozenset[int]
    rows: int
    bytes: int
    """The run's own bytes, in proportion to the rows."""


@contextmanager
def unread(core: Core, upstream: int, downstream: int, *, kept: bool = False) -> Iterator[Unread | None]:
    """The unread log of an edge, whose runs are not deleted meanwhile; None if there is no such edge (any more).

    All that the job has not taken in, or with `kept` what is kept for it: of a view that is being created the former is
    all that its input holds, the latter what has come since it began.
    """
    with core.catalog.reading() as state, core.lock:
        relation, job = core.relations.get(upstream), core.jobs.get(downstream)
        if relation is None or job is None:
            found, pin = None, None
        else:
            refs = [r.ref for r in state.runs_of(relation.state_table)] if relation.schema is not None else []
            position = core.needs(job, upstream) if kept or upstream in job.lookups else job.committed
            complete = core.complete
            refs = [r for r in refs if r.epoch_hi > position and r.epoch_lo <= complete]
            found = Unread(relation, job, position, complete, tuple(refs))
            pin = core.pins.pin([], complete, (r.path for r in refs))
    try:
        yield found
    finally:
        if pin is not None:
            core.pins.unpin(pin)


def edges(core: Core) -> list[tuple[int, int]]:
    """Every (input, job), by id."""
    with core.lock:
        return sorted((u, j.id) for j in core.jobs.values() for u in dict.fromkeys(j.upstreams))


def _with_log(core: Core) -> list[tuple[int, int]]:
    """The edges whose job has something to read that it has not read."""
    with core.lock:
        return [(u, j) for u, j in edges(core) if core.first_change(u, core.needs(core.jobs[j], u)) is not None]


def log_part(root: StoreRoot, log: Unread, ref: RunRef) -> LogPart:
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


class LogKeeper:
    """Watches over the logs that views have not read; called by one thread at a time.

    Each time that one passes its limit that is an event. With the policy `drop` the safe epoch of the input passes
    the view then, in one transaction with an event, and its next epoch finds its log gone.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._over: set[tuple[int, int]] = set()
        self._known: dict[tuple[RunRef, int], int] = {}
        """(Merged run, position) -> bytes: of runs that are complete, so that each is read once."""

    def look(self) -> None:
        """Look at every edge. Raises `Fenced`, `StorageError`, `DiskFull`."""
        core = self._core
        sizes: dict[tuple[int, int], int] = {}
        positions: dict[tuple[int, int], int] = {}
        known, self._known = self._known, {}
        for edge in _with_log(core):
            with unread(core, *edge, kept=True) as log, suppress(CorruptObject):
                if log is not None and log.position:
                    size = self._size(log, log_limit(core.settings, log.job.options).bytes, known)
                    if size is not None:
                        sizes[edge], positions[edge] = size, log.position
        with core.changed:
            for job in core.jobs.values():
                job.growing = {u: size for (u, j), size in sizes.items() if j == job.id}
        self._over &= sizes.keys()
        for edge in sizes.keys() - self._over:
            self._say(*edge)
            self._over.add(edge)
        for relation_id in sorted({u for u, _ in sizes}):
            self._drop(relation_id, {j: at for (u, j), at in positions.items() if u == relation_id})

    def _size(self, log: Unread, limit: int, known: Mapping[tuple[RunRef, int], int]) -> int | None:
        """The bytes of a log that is beyond a limit; None for any other."""
        if not limit or log.most_bytes <= limit:
            return None
        size = 0
        for ref in log.refs:
            key = (ref, log.position)
            part = known.get(key)
            if part is None:
                part = log_part(self._core.root, log, ref).bytes
            if not ref.constant_epoch and ref.epoch_hi <= log.complete:
                self._known[key] = part
            size += part
        return size if size > limit else None

    def _say(self, upstream: int, downstream: int) -> None:
        core = self._core
        with core.lock:
            relation, job = core.relations.get(upstream), core.jobs.get(downstream)
            if relation is None or job is None:
                return
            text = f'materialized view "{job.name}" {growth(core, job, relation)}; it waits for {blocked_by(core, job)}'
        core.catalog.transact([AddEvent("log_growing", downstream, text)])

    def _drop(self, relation_id: int, positions: Mapping[int, int]) -> None:
        """Give up a log for those of the jobs that want it so and stand still, where nobody else needs it."""
        core = self._core
        with core.committing:
            with core.catalog.reading() as state, core.lock:
                relation = core.relations.get(relation_id)
                jobs = [core.jobs[i] for i in sorted(positions) if i in core.jobs]
                # One that has gone on since may not be beyond its limit any more.
                jobs = [j for j in jobs if core.needs(j, relation_id) == positions[j.id]]
                jobs = [j for j in jobs if log_limit(core.settings, j.options).drop and not core.lost_logs(j)]
                if relation is None or not jobs:
                    return
                record = state.state_tables[relation.state_table]
                safe = releasable(core, relation, record, without={j.id for j in jobs})
                firsts = [core.first_change(relation_id, core.needs(j, relation_id)) for j in jobs]
                if not any(first is not None and first <= safe for first in firsts):
                    return  # Others need all of it: giving it up would free nothing.
                edits: list[Edit] = [RaiseSafe(record.id, safe)]
                edits += [_dropped(core, j, relation, safe) for j in jobs if core.needs(j, relation_id) < safe]
            with suppress(EditRejected):
                core.catalog.transact(edits)
                with core.changed:
                    relation.safe = max(relation.safe, safe)
                    core.changed.notify_all()


def _dropped(core: Core, job: Job, relation: Relation, safe: int) -> AddEvent:
    text = f'materialized view "{job.name}" loses the log of "{relation.name}" and has to be created again'
    detail = f"it {growth(core, job, relation)}; it is at epoch {job.reads_from}, the log is kept from {safe} on"
    return AddEvent("log_dropped", job.id, text, detail)
