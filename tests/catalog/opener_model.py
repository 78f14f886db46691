"""Openers of one database as tasks that a test lets go on step by step, against what a single copy would have done.

The backends are the real ones: SQLite files, and logs of objects in memory. A task stops before every request to an
object store and every transaction on a file; there the schedule may let another one go on, or end it: what it was
about to do never happens, or happens without its knowing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import greenlet

from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import AddEvent, Put
from headrace.catalog.journal import RollupPolicy
from headrace.catalog.log_store import LogOptions, LogStore
from headrace.catalog.marks import CatalogPlace, Copy, was_moved_by
from headrace.catalog.moving import Places, move
from headrace.catalog.places import PlaceOptions, open_store
from headrace.catalog.records import SettingRecord
from headrace.catalog.store import CatalogStore, StoredCatalog
from headrace.errors import HeadraceError, StorageError
from headrace.state.objects import StoredObject

FAST = PlaceOptions(full_sync=False, lease_ms=0)
OFTEN = LogOptions(policy=RollupPolicy(4, 4), background=False)


class Crash(BaseException):
    """The process of a task ends."""


class Memory:
    """An object store in memory."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.changes = 0

    def put(self, path: str, data: Any, *, create: bool) -> None:
        if path in self.objects:
            raise FileExistsError(path)
        self.objects[path] = bytes(data)
        self.changes += 1

    def get(self, path: str, offset: int, length: int) -> Any:
        if path not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[path][offset : offset + length]

    def head(self, path: str) -> StoredObject:
        return StoredObject(path, len(self.get(path, 0, 1 << 40)), 0.0)

    def list(self, prefix: str) -> list[StoredObject]:
        return [StoredObject(p, len(d), 0.0) for p, d in self.objects.items() if p.startswith(f"{prefix}/")]

    def delete(self, path: str) -> None:
        self.objects.pop(path, None)
        self.changes += 1


class Stepping:
    """Calls of an object, each of which is a step."""

    def __init__(self, inner: Any, step: Callable[[Callable[[], Any]], Any]) -> None:
        self._inner, self._step = inner, step

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found) or name in ("close", "_check_open"):
            return found
        return lambda *a, **k: self._step(lambda: found(*a, **k))


class Task:
    """What one process does, from step to step."""

    def __init__(self, world: World, work: Callable[[Task], None]) -> None:
        self.world = world
        self.steps = 0
        self.done = False
        self.crash_at: tuple[int, bool] | None = None
        """The step before which, or right after which if true, the process ends."""
        self.lose_at: tuple[int, bool] | None = None
        """The step whose request fails before or after it took effect."""
        self._green = greenlet.greenlet(lambda: self._run(work))

    def _run(self, work: Callable[[Task], None]) -> None:
        try:
            work(self)
        except Crash:
            pass
        finally:
            self.done = True

    def go(self, steps: int | None = None) -> None:
        """Let it do so many steps, or all that it has to do."""
        left = steps
        while not self.done and (left is None or left > 0):
            self._green.switch()
            self.world.check_truth()
            left = None if left is None else left - 1

    def step(self, call: Callable[[], Any]) -> Any:
        """Called within the task: one step."""
        parent = self._green.parent
        assert parent is not None
        parent.switch()
        number, self.steps = self.steps, self.steps + 1
        if self.crash_at == (number, False):
            raise Crash
        if self.lose_at == (number, False):
            raise OSError("the request was lost")
        result = call()
        if self.crash_at == (number, True):
            raise Crash
        if self.lose_at == (number, True):
            raise OSError("the answer was lost")
        return result


class Handle:
    """An open catalog, and which of all it is."""

    def __init__(self, catalog: Catalog, serial: int) -> None:
        self.catalog, self.serial = catalog, serial


class World:
    """Places, tasks, and what a single copy would hold."""

    def __init__(self, folder: Path, kinds: str) -> None:
        self.raw: dict[str, Any] = {}
        self.names = [self._make(folder, kind, n) for n, kind in enumerate(kinds)]
        self.acknowledged: list[str] = []
        self.possible: set[str] = set()
        """Of which nobody was told what became of them."""
        self.refused: set[str] = set()
        self.newest = 0
        self.shut_out = 0
        """No handle up to this one may do anything any more: the catalog has moved since."""
        self._count = 0
        self._checked: list[int] | None = None
        self.log: list[str] = []

    def _make(self, folder: Path, kind: str, n: int) -> str:
        if kind == "s":
            return f"sqlite:///{folder}/{n}.db"
        name = f"file:///memory/{n}"
        self.raw[name] = Memory()
        return name

    def _store(self, location: str, task: Task | None) -> CatalogStore:
        if location in self.raw:
            transport = self.raw[location] if task is None else Stepping(self.raw[location], task.step)
            return LogStore(transport, location, None, OFTEN)
        store = open_store(location, FAST)
        # A transaction on a file holds its lock: a task may not stop within one.
        return store if task is None else Stepping(store, lambda call: _storage(lambda: task.step(call)))  # type: ignore[return-value]

    def places(self, task: Task | None) -> Places:
        return Places(open_store=lambda location: self._store(location, task))

    # ---- what tasks do

    def open(self, task: Task, at: int) -> Handle:
        catalog = Catalog.find(self.names[at], self.places(task))
        catalog.state  # another one may have opened it while this one had still to return
        self.newest += 1
        handle = Handle(catalog, self.newest)
        self.check_content(catalog, f"opened by {handle.serial}")
        return handle

    def transact(self, handle: Handle) -> None:
        self._count += 1
        name, newest, gone = f"t{self._count}", self.newest, self.shut_out
        self.possible.add(name)
        try:
            handle.catalog.transact([AddEvent("k", None, name), Put(SettingRecord(name, ""))])
        except HeadraceError as error:
            self.log.append(f"{name} of {handle.serial}: {error.message}")
            return
        assert gone < handle.serial == newest, f"{name}: handle {handle.serial} wrote after {newest} had been opened"
        self.possible.discard(name)
        self.acknowledged.append(name)

    def read(self, handle: Handle) -> None:
        newest, gone = self.newest, self.shut_out
        try:
            state = handle.catalog.state
        except HeadraceError:
            return
        assert gone < handle.serial == newest, f"handle {handle.serial} read after {newest} had been opened"
        del state

    def move(self, task: Task, source: int, target: int) -> None:
        if self.is_empty(source):
            return  # it would be initialised, as a database of its own
        before = self.newest
        report = move(self.names[source], self.names[target], self.places(task))
        if report.done:  # whoever opened it while it was moved may have come after the last step
            self.shut_out = max(self.shut_out, before)

    def is_empty(self, at: int) -> bool:
        return not self._exists(self.names[at]) or self.places(None).peek(self.names[at]).is_empty

    # ---- what must hold

    def check_content(self, catalog: Catalog, who: str) -> None:
        """Everything that was acknowledged, once; of the rest at most what nobody was told about."""
        found = [e.message for e in reversed(catalog.image.newest_events(10_000))]
        assert len(set(found)) == len(found), f"{who}: twice: {found}"
        known = [name for name in found if name not in self.possible]
        assert sorted(known) == sorted(self.acknowledged), f"{who}: {found} instead of {self.acknowledged}; {self.log}"
        assert set(found) == set(catalog.image.settings), f"{who}: torn"

    def truths(self) -> list[str]:
        """The places that are the truth by what is in them."""
        seen = {name: CatalogPlace.of(name, self._glance(name)) for name in self.names if self._exists(name)}
        return [
            name
            for name, place in seen.items()
            if not place.is_empty and place.moved is None and (place.copy is None or _decided(place.copy, seen))
        ]

    def _glance(self, name: str) -> StoredCatalog:
        if name in self.raw:
            return self._store(name, None).peek()
        with closing(sqlite3.connect(name.removeprefix("sqlite:///"))) as file:
            if not file.execute("SELECT 1 FROM sqlite_master WHERE name = 'config'").fetchall():
                return StoredCatalog({}, ())
            rows = file.execute("SELECT collection, key, value FROM record WHERE collection = 'place'").fetchall()
            return StoredCatalog(dict(file.execute("SELECT key, value FROM config").fetchall()), tuple(rows))

    def _exists(self, name: str) -> bool:
        return name in self.raw or Path(name.removeprefix("sqlite:///")).exists()

    def check_truth(self) -> None:
        """After a step that has changed nothing, the truth is where it was; of a file nobody counts the changes."""
        changes = [place.changes for place in self.raw.values()] if len(self.raw) == len(self.names) else None
        if changes is not None and changes == self._checked:
            return
        found = self.truths()
        assert len(found) == 1, f"the truth is in {found}"
        self._checked = changes

    def check(self) -> None:
        """Whoever opens any of the places finds exactly what was acknowledged."""
        self.check_truth()
        (truth,) = self.truths()
        for at, name in enumerate(self.names):
            if not self._exists(name) or self.places(None).peek(name).is_empty:
                continue
            catalog = Catalog.find(name, self.places(None), read_only=True)
            self.check_content(catalog, f"in the end from {at}")
            catalog.close()
        with Catalog.find(truth, self.places(None)) as catalog:
            self.check_content(catalog, "in the end")
            catalog.transact([AddEvent("k", None, "end"), Put(SettingRecord("end", ""))])


def _decided(copy: Copy, seen: dict[str, CatalogPlace]) -> bool:
    return copy.source in seen and was_moved_by(copy, seen[copy.source])


def _storage(step: Callable[[], Any]) -> Any:
    try:
        return step()
    except OSError as error:
        raise StorageError(str(error)) from error


@contextmanager
def quietly() -> Iterator[None]:
    """What is refused or fenced is an outcome like others."""
    with suppress(HeadraceError):
        yield


def started(folder: Path, kinds: str, at: int = 0) -> World:
    """A world with a catalog that holds something."""
    world = World(folder, kinds)
    with Catalog.find(world.names[at], world.places(None)) as catalog:
        for _ in range(2):
            world.newest += 1
            world.transact(Handle(catalog, world.newest))
    world.check_truth()
    return world
