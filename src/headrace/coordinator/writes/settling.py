"""Small runs of tables whose bytes lie in the catalog's transaction, until their objects are durable by themselves.

A write then forces the disk once: with the catalog's transaction. The run is written to an object, too, for all that
read runs, but left to the operating system (`small_runs.py`). After a power failure that may be missing or damaged, and
is made again from the catalog before anything is read; in the meantime it is forced to the disk, many runs at a time,
and the catalog lets go of its copies. Most are merged before that.

The catalog's copy of the bytes is `RunRecord.content_b64`. A start compares such runs with their records before it
reads anything, and writes again, at their places, what a power failure has taken (event `objects_restored`).
"""

from __future__ import annotations

import base64
from collections.abc import Iterable

from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import SettleRun
from headrace.catalog.records import RunRecord
from headrace.coordinator.run.runtime import Runtime
from headrace.coordinator.run.storage import Storage
from headrace.errors import CorruptObject
from headrace.state.objects import restore_object, sync_object
from headrace.state.stores import StoreRoot

CONTENT_BYTES = 32 << 10
"""Size of a run up to which its bytes go into the catalog."""
HELD_BYTES = 16 << 20
"""Bytes of all such runs together, from which on further ones are forced to the disk at once."""
SETTLE_AFTER_MS = 5_000
"""Age from which on they are forced to the disk."""
SETTLED_AT_ONCE = 1_000
"""Runs of which one transaction tells that they are durable."""


class Settling:
    """What the catalog holds of runs that are not durable by themselves. One thread writes, one settles."""

    def __init__(self, storage: Storage, runtime: Runtime) -> None:
        self._catalog = storage.catalog
        self._root = storage.root
        self._runtime = runtime
        self._enabled = storage.root.is_local
        self._held_bytes = 0

    @property
    def has_room(self) -> bool:
        """Whether a small run need not be forced to the disk: the catalog takes its bytes."""
        settings = self._runtime.settings
        return self._enabled and settings.run_fsync and self._held_bytes < HELD_BYTES

    def held(self, content: bytes) -> str:
        """The bytes of a run as the catalog keeps them."""
        self._held_bytes += len(content)
        return base64.b64encode(content).decode()

    def pass_once(self) -> int:
        """Force to the disk what has not been merged for a while; returns how many runs. Raises `StorageError`."""
        if not self._enabled:
            return 0
        before_ms = self._runtime.clock.now_ms() - SETTLE_AFTER_MS
        with self._catalog.reading() as state:
            held = [r for r in state.runs.values() if r.content_b64 is not None]
        self._held_bytes = sum(len(r.content_b64 or "") * 3 // 4 for r in held)
        due = [r for r in held if r.created_ms <= before_ms]
        for start in range(0, len(due), SETTLED_AT_ONCE):
            part = due[start : start + SETTLED_AT_ONCE]
            _settle(self._catalog, self._root, part)
        return len(due)


def _settle(catalog: Catalog, root: StoreRoot, records: Iterable[RunRecord]) -> None:
    settled = []
    for path, of in _by_path(records).items():
        try:
            sync_object(root, path)
        except CorruptObject:
            continue  # merged and gone since
        settled += [SettleRun(record.id) for record in of]
    if settled:
        catalog.transact(settled)


def _by_path(records: Iterable[RunRecord]) -> dict[str, list[RunRecord]]:
    found: dict[str, list[RunRecord]] = {}
    for record in records:
        found.setdefault(record.ref.path, []).append(record)
    return found


def restore(catalog: Catalog, root: StoreRoot) -> int:
    """Make objects again that a power failure has taken; returns how many. To be called before anything is read.

    Raises `DiskFull`, `StorageError`.
    """
    if not root.is_local:
        return 0
    with catalog.reading() as state:
        held = [r for r in state.runs.values() if r.content_b64 is not None]
    lost = 0
    for path, records in _by_path(held).items():
        pieces = [(r.ref.offset, base64.b64decode(r.content_b64 or "")) for r in records]
        lost += restore_object(root, path, pieces)
    if held:
        _settle(catalog, root, held)
    return lost
