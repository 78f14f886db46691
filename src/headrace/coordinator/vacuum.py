"""Deletes objects that nothing refers to: of abandoned epochs, dropped relations, merged runs."""

from __future__ import annotations

from headrace.common.faults import fault_point
from headrace.coordinator.core import Core


class Vacuum:
    """One pass after another over all objects of the state; called by one thread at a time.

    An object goes once nothing has referred to it for the grace period: no run of the catalog, no snapshot, no running
    epoch or merge. So a reader that took its runs from the catalog just before they were replaced has at least
    that long.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._unreferenced: dict[str, float] = {}

    def pass_once(self) -> int:
        """Look at all objects; returns how many were deleted.

        Always takes two passes: one that finds an object unreferenced, and a later one that deletes it.
        Raises `Fenced`, `StorageError`.
        """
        core, grace_s = self._core, self._core.settings.vacuum_grace_ms / 1000
        now_s = core.clock.monotonic_s()
        found = {o.path: o.modified_s for o in core.store.list() if o.path.endswith((".run", ".tmp"))}
        # In this order: what is being written is either still so here, or in the catalog below.
        writing, pinned = core.pins.prefixes(), core.pins.paths()
        with core.catalog.reading() as state:
            referenced = {run.ref.path for run in state.runs.values()}
        referenced |= pinned | core.pins.paths()
        loose = {p for p in found if p not in referenced and not _visible_name(p).startswith(writing)}
        deleted = 0
        for path in sorted(loose):
            since_s = self._unreferenced.get(path)
            old = core.clock.now_ms() / 1000 - found[path] >= grace_s
            if since_s is not None and now_s - since_s >= grace_s and old:
                fault_point("vacuum.delete.before")
                core.store.delete(path)
                fault_point("vacuum.delete.after")
                deleted += 1
        self._unreferenced = {p: self._unreferenced.get(p, now_s) for p in loose}
        core.store.tidy()
        return deleted


def _visible_name(path: str) -> str:
    """The name that a temporary file, `.name.xxxxxxxx.tmp`, is to get."""
    folder, _, name = path.rpartition("/")
    if name.startswith(".") and name.endswith(".tmp"):
        name = name[1:].removesuffix(".tmp").rpartition(".")[0]
    return f"{folder}/{name}" if folder else name
