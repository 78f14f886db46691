"""Snapshots: which epoch a read sees, and what it needs to read there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType

from headrace.common.columns import Column
from headrace.connectors.base import Offsets
from headrace.coordinator.core import Core, Job
from headrace.coordinator.exact import intersect_all, newest
from headrace.errors import EpochTooNew, EpochTooOld, SnapshotUnavailable, UndefinedTable
from headrace.state.schema import RunRef, TableSchema

DEFAULT_WAIT_S = 60.0
"""Most seconds that a read waits for a snapshot, where it gives no limit."""


@dataclass(frozen=True)
class SnapshotTable:
    """A table's or view's rows at a snapshot's epoch."""

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
    tables: dict[int, SnapshotTable]
    sources: dict[int, Offsets]
    """Offsets of the sources at the epoch: the rows before them are the source's content. `{}` is nothing."""
    notices: list[str] = field(default_factory=list)
    """Which relations are failing or paused, since when and why."""
    _core: Core | None = None
    _pin: int = 0

    def close(self) -> None:
        """Let go; harmless when repeated."""
        core, self._core = self._core, None
        if core is not None:
            core.pins.unpin(self._pin)

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Reads:
    """Chooses epochs for reads, never an earlier one of a relation than was served before."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._floor: dict[int, int] = {}

    def snapshot(
        self, relation_ids: Sequence[int], at: int | None, timeout_s: float | None, monotonic: bool
    ) -> Snapshot:
        """See `Coordinator.snapshot`."""
        core = self._core
        ids = list(dict.fromkeys(relation_ids))
        with core.changed:
            epoch = self._at(ids, at) if at is not None else self._newest(ids, timeout_s, monotonic)
            if at is None:
                for i in ids:
                    self._floor[i] = max(self._floor.get(i, 0), epoch)
            notices = [n for i in ids for n in _notices(core, i)]
            pin = core.pins.pin(ids, epoch)
        try:
            tables, sources = self._contents(ids, epoch, pin)
        except BaseException:
            core.pins.unpin(pin)
            raise
        return Snapshot(epoch, tables, sources, notices, core, pin)

    def state(self, table_ids: Sequence[int]) -> Snapshot:
        """State tables by id, each as of its committed epoch, at one moment: those of one job are of one epoch.

        Raises `UndefinedTable` for one that is not there.
        """
        core = self._core
        core.check()
        tables: dict[int, SnapshotTable] = {}
        with core.catalog.reading() as state:
            for i in table_ids:
                record = state.state_tables.get(i)
                if record is None:
                    raise UndefinedTable(f"there is no state table {i} any more", hint="it may have been dropped")
                refs = tuple(r.ref for r in state.runs_of(i))
                schema, at = record.to_table_schema(), record.committed_epoch
                tables[i] = SnapshotTable(schema, refs, at, (), record.watermark)
            pin = core.pins.pin((), 0, {ref.path for table in tables.values() for ref in table.refs})
        epoch = max((t.as_of for t in tables.values()), default=0)
        return Snapshot(epoch, tables, {}, [], core, pin)

    def forget(self, relation_id: int) -> None:
        """A relation is dropped."""
        self._floor.pop(relation_id, None)

    # ---- choosing; the caller holds the lock

    def _newest(self, ids: Sequence[int], timeout_s: float | None, monotonic: bool) -> int:
        core = self._core
        deadline_s = time.monotonic() + (DEFAULT_WAIT_S if timeout_s is None else timeout_s)
        # What was shown before this read began. Reads that come while it waits must not push it ever further away.
        floor = max((self._floor.get(i, 0) for i in ids), default=0) if monotonic else 0
        while True:
            core.check()
            if not ids:
                return core.epochs.complete
            found = newest(intersect_all([core.exact(i) for i in ids]))
            if found is not None and found >= floor:
                return found
            new = next((core.jobs[i] for i in ids if i in core.jobs and not core.jobs[i].committed), None)
            behind = new or self._behind(ids, floor)
            left_s = deadline_s - time.monotonic()
            if behind is None:
                self._refuse(ids, floor, found, None)
            if left_s <= 0 or new is not None or _stuck(core, behind):
                self._refuse(ids, floor, found, behind)
            core.changed.wait(left_s)

    def _behind(self, ids: Sequence[int], floor: int) -> Job | None:
        """The view that holds a read back most: without it there would be a newer snapshot."""
        jobs = [self._core.jobs[i] for i in ids if i in self._core.jobs]
        stuck = [j for j in jobs if _stuck(self._core, j) and self._core.job_frontier(j) < max(floor, 1)]
        return min(stuck or jobs, key=self._core.job_frontier, default=None)

    def _refuse(self, ids: Sequence[int], floor: int, found: int | None, behind: Job | None) -> None:
        core = self._core
        if behind is None:
            names = ", ".join(f'"{core.relation(i).name}"' for i in ids)
            raise SnapshotUnavailable(f"there is no epoch at which all of {names} can be read together")
        if behind.committed == 0:
            reason = f": {behind.error.message}" if behind.error is not None else ""
            raise SnapshotUnavailable(
                f'materialized view "{behind.name}" is still being created{reason}',
                detail=behind.progress or None,
                hint="SHOW JOBS shows its progress",
            )
        at = core.job_frontier(behind)
        shown = max(((self._floor.get(i, 0), i) for i in ids), default=(0, 0))
        other = core.relations[shown[1]].name if shown[1] in core.relations else ""
        raise SnapshotUnavailable(
            f'materialized view "{behind.name}" ({behind.shown_status}) is at epoch {at}, '
            f'but "{other}" was already shown at epoch {floor}',
            detail=f"newest common snapshot: {found or 'none'}; floor: {floor}"
            + (f"; {behind.error.message}" if behind.error is not None else ""),
            hint="SET monotonic_reads = 'off' accepts an older snapshot; each relation is readable by itself",
        )

    def _at(self, ids: Sequence[int], at: int) -> int:
        core = self._core
        core.check()
        if at > core.epochs.complete:
            raise EpochTooNew(f"epoch {at} is above the newest complete epoch {core.epochs.complete}")
        oldest = max((core.relation(i).safe for i in ids), default=0)
        if at < oldest:
            raise EpochTooOld(
                f"epoch {at} is below the oldest epoch that can be read, {oldest}",
                detail=f"readable are epochs from {oldest} to {core.epochs.complete}",
                hint="retention_ms says how long history is kept",
            )
        if not ids:
            return at
        found = newest(intersect_all([core.exact(i) for i in ids]), at)
        if found is None:
            raise SnapshotUnavailable(f"no epoch at or below {at} at which all relations of the statement can be read")
        return found

    # ---- contents

    def _contents(
        self, ids: Sequence[int], epoch: int, pin: int
    ) -> tuple[dict[int, SnapshotTable], dict[int, Offsets]]:
        core = self._core
        tables: dict[int, SnapshotTable] = {}
        sources: dict[int, Offsets] = {}
        with core.catalog.reading() as state:
            for i in ids:
                relation = core.relation(i)
                if relation.schema is None:
                    remap = state.offsets_at(i, epoch)
                    sources[i] = {} if remap is None else remap.offsets
                    continue
                refs = tuple(r.ref for r in state.runs_of(relation.state_table) if r.ref.epoch_lo <= epoch)
                tables[i] = SnapshotTable(relation.schema, refs, epoch, relation.columns)
            core.pins.hold(pin, {ref.path for table in tables.values() for ref in table.refs})
        return tables, sources


def _stuck(core: Core, job: Job | None) -> bool:
    """Whether a view, or one that it is built on, does not go on by itself."""
    if job is None:
        return False
    if job.error is not None or job.status in ("paused", "quarantined"):
        return True
    return any(_stuck(core, core.jobs.get(i)) for i in job.upstreams)


def _notices(core: Core, relation_id: int) -> list[str]:
    job = core.jobs.get(relation_id)
    if job is None:
        return []
    if job.error is not None:
        since = datetime.fromtimestamp(job.error_since_ms / 1000, UTC).isoformat(timespec="seconds")
        verb = "quarantined" if job.status == "quarantined" else "failing"
        return [f'materialized view "{job.name}" is {verb} since {since}: {job.error.message}']
    if job.status == "paused":
        return [f'materialized view "{job.name}" is paused']
    return []
