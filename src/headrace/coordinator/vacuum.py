"""Deletes objects that nothing refers to: of abandoned epochs, dropped relations, merged runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from headrace.common.faults import fault_point
from headrace.coordinator.core import Core


class Vacuum:
    """One pass after another over the state's folder; called by one thread at a time.

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
        found = dict(_objects(core.root))
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
                (core.root / path).unlink(missing_ok=True)
                fault_point("vacuum.delete.after")
                deleted += 1
        self._unreferenced = {p: self._unreferenced.get(p, now_s) for p in loose}
        _remove_empty_folders(core.root)
        return deleted


def _visible_name(path: str) -> str:
    """The name that a temporary file, `.name.xxxxxxxx.tmp`, is to get."""
    folder, _, name = path.rpartition("/")
    if name.startswith(".") and name.endswith(".tmp"):
        name = name[1:].removesuffix(".tmp").rpartition(".")[0]
    return f"{folder}/{name}" if folder else name


def _objects(root: Path) -> Iterator[tuple[str, float]]:
    """Every object below the root, by its name, with the time of its last change, Unix seconds."""
    for folder, _, names in os.walk(root):
        for name in names:
            if name.endswith((".run", ".tmp")):
                path = Path(folder) / name
                try:
                    changed = path.stat().st_mtime
                except FileNotFoundError:
                    continue
                yield path.relative_to(root).as_posix(), changed


def _remove_empty_folders(root: Path) -> None:
    """Folders of attempts, `<job>/<epoch>-<attempt>`, that have become empty and are a minute old."""
    for job in _subfolders(root):
        for folder in _subfolders(job):
            try:
                if _age_s(folder) > 60 and not any(folder.iterdir()):
                    folder.rmdir()
            except OSError:
                continue


def _age_s(path: Path) -> float:
    import time

    return time.time() - path.stat().st_mtime


def _subfolders(path: Path) -> list[Path]:
    try:
        return [p for p in path.iterdir() if p.is_dir()]
    except OSError:
        return []
