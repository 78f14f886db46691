"""Deletes objects that nothing refers to: of abandoned epochs, dropped relations, merged runs."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

from headrace.catalog.catalog import Catalog
from headrace.common.clock import Clock
from headrace.common.faults import fault_point
from headrace.common.lazy_dataclass import dataclass
from headrace.config import Settings
from headrace.coordinator.run.guard import PiecesOfWork
from headrace.coordinator.run.pins import Pins
from headrace.coordinator.upkeep.owner import Owner
from headrace.state.objects import visible_name
from headrace.state.run import OPEN_RUNS
from headrace.state.schema import RunRef
from headrace.state.stores import ObjectStore, StoreRoot


@dataclass(frozen=True)
class VacuumCounts:
    """What vacuum has deleted and kept since the server started."""

    passes: int = 0
    deleted: int = 0


class Vacuum:
    """One pass after another over all objects of the state, one at a time.

    An object goes once nothing has referred to it for the grace period: no run of the catalog, no snapshot, no running
    epoch or merge. So a reader that took its runs from the catalog just before they were replaced has at least
    that long.
    """

    def __init__(
        self, catalog: Catalog, store: ObjectStore, root: StoreRoot, pins: Pins, owner: Owner, clock: Clock,
        settings: Callable[[], Settings],
    ) -> None:  # fmt: skip
        self._catalog = catalog
        self._store = store
        self._root = root
        self._pins = pins
        self._clock = clock
        self._settings = settings
        self._passing = threading.Lock()
        self._owner = owner
        self._unreferenced: dict[str, float] = {}
        self.counts = VacuumCounts()
        """Replaced as a whole, by one pass at a time."""

    def pass_once(self) -> int:
        """Look at all objects; returns how many were deleted.

        Always takes two passes: one that finds an object unreferenced, and a later one that deletes it. An object
        that cannot be deleted now is tried again by the next pass, and keeps no other from being deleted; the first
        such failure is raised in the end. Nothing is deleted where the state may be another database's as well.
        Raises `Fenced`, `StorageError`.
        """
        with self._passing:
            return self._pass()

    def _pass(self) -> int:
        self._owner.look_again()
        self._owner.may_delete()  # in every pass: whoever has taken the state learns of it in time
        grace_s = self._settings().vacuum_grace_ms / 1000
        found = {o.path: o.modified_s for o in self._store.list() if o.path.endswith((".run", ".tmp"))}
        # In this order: what is being written is either still so here, or in the catalog below.
        writing, pinned = self._pins.prefixes(), self._pins.paths()
        versions: defaultdict[int, list[RunRef]] = defaultdict(list)
        with self._catalog.reading() as state:
            for run in state.runs.values():
                versions[run.ref.table_id].append(run.ref)
        OPEN_RUNS.tidy(self._root, versions)
        referenced = {ref.path for refs in versions.values() for ref in refs}
        referenced |= pinned | self._pins.paths()
        now = Moment(self._clock.monotonic_s(), self._clock.now_ms() / 1000)
        before = self._unreferenced
        self._unreferenced = unreferenced(found, referenced, writing, before, now.monotonic_s)
        seen_again = {path: since_s for path, since_s in self._unreferenced.items() if path in before}
        several, deleted = PiecesOfWork(), 0
        for path in expired(found, seen_again, now, grace_s):
            if self._may_delete():
                with several.one():
                    self._store.delete(path)
                    deleted += 1
                    fault_point("vacuum.delete.after")
        self._store.tidy()
        self.counts = VacuumCounts(self.counts.passes + 1, self.counts.deleted + deleted)
        several.end()
        return deleted

    def _may_delete(self) -> bool:
        if not self._owner.may_delete():
            return False
        fault_point("vacuum.delete.before")
        self._catalog.verify()  # what another server owns by now is not this one's to delete
        return True


@dataclass(frozen=True)
class Moment:
    """A moment on both clocks: the monotonic one for lengths, Unix time for ages of objects."""

    monotonic_s: float
    unix_s: float


def unreferenced(
    found: Mapping[str, float],
    referenced: Collection[str],
    writing: tuple[str, ...],
    before: Mapping[str, float],
    monotonic_s: float,
) -> dict[str, float]:
    """The objects that nothing refers to, with the monotonic time at which that was first seen.

    `found` are all objects, `writing` the beginnings of names that are being written to, `before` the last result.
    """
    loose = (p for p in found if p not in referenced and not visible_name(p).startswith(writing))
    return {path: before.get(path, monotonic_s) for path in loose}


def expired(
    found: Mapping[str, float], unreferenced_since_s: Mapping[str, float], now: Moment, grace_s: float
) -> list[str]:
    """The unreferenced objects to delete: seen so for the grace period, and not changed within it either.

    The monotonic clock decides, so that a wall clock that jumps forward deletes nothing early.
    """
    return sorted(
        path
        for path, since_s in unreferenced_since_s.items()
        if now.monotonic_s - since_s >= grace_s and now.unix_s - found[path] >= grace_s
    )
