"""The simulation's scheduler: real code in tasks that are switched, failed and killed at every step, by a seed."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Condition
from typing import Any

from greenlet import greenlet

from headrace.catalog.records import RunRecord, StateTableRecord, decode, encode
from headrace.catalog.store import FORMAT_VERSION, OutcomeUnknown, SequenceConflict, StoredCatalog, Writes, fenced
from headrace.errors import StorageError

TRACE_LINES = 400


class Crash(BaseException):
    """The simulated process is dead: nothing that it still does has any effect."""


@dataclass(frozen=True)
class Odds:
    """Chances per step."""

    crash: float
    fail: float
    switch: float


CALM = Odds(0.0, 0.0, 0.0)


class Task:
    """Real code that runs until it is switched away."""

    def __init__(self, kernel: Kernel, name: str, work: Callable[[], None], *, lasting: bool = False):
        self.name, self.lasting = name, lasting
        self._kernel, self._work = kernel, work
        self._thread = greenlet(self._main)

    @property
    def done(self) -> bool:
        return bool(self._thread.dead)

    def _main(self) -> None:
        try:
            if not self._kernel.dead:
                self._work()
        except Crash:
            pass

    def resume(self) -> None:
        self._kernel.current = self
        try:
            self._thread.switch()
        finally:
            self._kernel.current = None

    def kill(self) -> None:
        with suppress(Crash):  # of a task that has not begun
            self._thread.throw(Crash)


class Kernel:
    """Decides at each step of a task what comes next. One real thread; everything follows from the seed."""

    def __init__(self, rng: random.Random, odds: Odds):
        self.rng, self.odds = rng, odds
        self.dead = False
        self.current: Task | None = None
        self.tasks: list[Task] = []
        self.trace: list[str] = []
        self.steps = 0
        self._main = greenlet.getcurrent()

    def note(self, text: str) -> None:
        self.trace.append(f"{self.steps:5d} {self.current.name if self.current else 'world'}: {text}")
        del self.trace[:-TRACE_LINES]

    def spawn(self, name: str, work: Callable[[], None], *, lasting: bool = False) -> None:
        self.tasks.append(Task(self, name, work, lasting=lasting))

    def step(self, point: str) -> None:
        """Between two actions of a task: it may be killed with its process, or others may run first."""
        if self.dead:
            raise Crash
        if self.current is None:
            return
        self.steps += 1
        roll = self.rng.random()
        if roll < self.odds.crash:
            self.note(f"crash at {point}")
            self.dead = True
            raise Crash
        if roll < self.odds.crash + self.odds.switch:
            self.note(point)
            self.switch()

    def switch(self) -> None:
        """Let others run."""
        if self.current is None:
            raise AssertionError("nothing else can run: a wait that does not end")
        self._main.switch()
        if self.dead:
            raise Crash

    def fails(self, point: str) -> bool:
        """Whether an I/O operation fails now."""
        if self.current is None or self.rng.random() >= self.odds.fail:
            return False
        self.note(f"failure at {point}")
        return True

    def run_some(self) -> None:
        """Let one task go on."""
        task = self.rng.choice(self.tasks)
        task.resume()
        self.reap()

    def reap(self) -> None:
        self.tasks = [t for t in self.tasks if not t.done]

    def bury(self) -> None:
        """End all tasks of a dead process."""
        self.dead = True
        for task in self.tasks:
            task.kill()
        self.tasks.clear()
        self.dead = False


class SwitchingCondition(Condition):
    """A condition whose waiters let other tasks run; they look again whenever they are resumed."""

    def __init__(self, kernel: Kernel, lock: Any):
        super().__init__(lock)
        self._kernel = kernel
        self._asleep: dict[object, Callable[[], bool]] = {}

    def wait(self, timeout: float | None = None) -> bool:
        saved = self._release_save()  # type: ignore[attr-defined]
        try:
            self._kernel.switch()
        finally:
            self._acquire_restore(saved)  # type: ignore[attr-defined]
        return True

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        while not predicate():
            self.wait()
        return True

    def sleep(self, idle: Callable[[], bool], timeout_s: float | None = None) -> None:
        """As of `Waiters`, where whoever has no time-out sleeps until it is woken."""
        me = object()
        self._asleep[me] = idle
        self.wait()
        while timeout_s is None and me in self._asleep:
            self.wait()
        self._asleep.pop(me, None)

    def advanced(self) -> None:
        for sleeper in [s for s, idle in self._asleep.items() if not idle()]:
            del self._asleep[sleeper]

    def notify_all(self) -> None:
        super().notify_all()
        self._asleep.clear()


class FaultyOs:
    """What the state's modules see as `os`: slow, failing and torn, and losing what was not forced to the disk."""

    def __init__(self, kernel: Kernel, now_ms: Callable[[], int], root: Path):
        self._kernel, self._now_ms, self._root = kernel, now_ms, root
        self._found_again: set[str] = {os.fspath(root)}
        """Directories that are still there after a power failure."""
        self._writing: dict[int, str] = {}
        self._reading: dict[int, str] = {}
        self._unsynced: set[str] = set()
        self._synced_bytes: dict[str, int] = {}
        """How long files were that more has been written to, when they were synced last."""
        self._renamed: dict[str, str] = {}
        self.deletes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def settle(self) -> None:
        """What is there now was made before anything could fail."""
        self._found_again |= {os.fspath(p) for p in self._root.rglob("*") if p.is_dir()}

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        self._step("open", path)
        fd = os.open(path, flags, mode)
        if flags & (os.O_CREAT | os.O_WRONLY):
            self._writing[fd] = os.fspath(path)
            self._unsynced.add(os.fspath(path))
        elif os.path.isdir(path):
            self._writing[fd] = os.fspath(path)
        else:
            self._reading[fd] = os.fspath(path)
        return fd

    def write(self, fd: int, data: memoryview) -> int:
        part = self._kernel.rng.randint(1, len(data)) if self._kernel.rng.random() < 0.1 else len(data)
        written = os.write(fd, data[:part])
        self._step("write", self._writing[fd])
        return written

    def fsync(self, fd: int) -> None:
        path = self._writing.get(fd) or self._reading[fd]
        self._step("fsync", path)
        if os.path.isdir(path):
            self._renamed = {new: old for new, old in self._renamed.items() if os.path.dirname(new) != path}
            self._found_again |= {entry.path for entry in os.scandir(path) if entry.is_dir()}
        else:
            self._synced_bytes[path] = os.path.getsize(path)
        self._unsynced.discard(path)

    def close(self, fd: int) -> None:
        path = self._writing.pop(fd, None)
        self._reading.pop(fd, None)
        os.close(fd)
        if path is not None and os.path.isfile(path):
            self._touch(path)

    def rename(self, old: Any, new: Any) -> None:
        self._step("rename", new)
        os.rename(old, new)
        self._renamed[os.fspath(new)] = os.fspath(old)
        if os.fspath(old) in self._unsynced:
            self._unsynced.remove(os.fspath(old))
            self._unsynced.add(os.fspath(new))
        self._touch(new)

    def link(self, old: Any, new: Any) -> None:
        self._step("link", new)
        os.link(old, new)
        self._renamed[os.fspath(new)] = os.fspath(old)
        if os.fspath(old) in self._unsynced:
            self._unsynced.add(os.fspath(new))
        self._touch(new)

    def unlink(self, path: Any) -> None:
        self._step("unlink", path)
        os.unlink(path)
        self.deletes += 1

    def die(self, *, power: bool) -> None:
        """The process has ended; with `power` the machine too: what was not synced may be gone, or in part."""
        for fd in list(self._writing):
            self.close(fd)
        rng = self._kernel.rng
        self.deletes += 1
        if power:
            for path in sorted(self._unsynced):
                if os.path.exists(path):
                    size = os.path.getsize(path)
                    os.truncate(path, rng.randint(min(self._synced_bytes.get(path, 0), size), size))
                    self._touch(path)
            for new, old in self._renamed.items():
                if os.path.exists(new) and rng.random() < 0.5:
                    if os.path.exists(old):  # a link whose first name has not been removed
                        os.unlink(new)
                    else:
                        os.rename(new, old)
            for folder in sorted(p for p in self._root.rglob("*") if p.is_dir()):
                if os.fspath(folder) not in self._found_again and rng.random() < 0.5:
                    shutil.rmtree(folder, ignore_errors=True)
        self._unsynced.clear()
        self._renamed.clear()

    def _touch(self, path: Any) -> None:
        seconds = self._now_ms() / 1000
        os.utime(path, (seconds, seconds))

    def _step(self, what: str, path: Any) -> None:
        point = f"{what} {Path(path).name}"
        self._kernel.step(point)
        if self._kernel.fails(point):
            import errno

            raise OSError(self._kernel.rng.choice([errno.EIO, errno.ENOSPC]), "injected")


class SwitchingLock:
    """A lock, waiting for which lets other tasks run. A task that is killed lets go of it on its way out."""

    def __init__(self, kernel: Kernel):
        self._kernel = kernel
        self._held = False

    def __enter__(self) -> None:
        while self._held:
            self._kernel.switch()
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False


class Durable:
    """What a catalog's backend has on its disk.

    `told` is called with the state tables of each transaction, and the epochs of the runs that they have got.
    """

    def __init__(self, told: Callable[[list[StateTableRecord], dict[int, set[int]]], None]):
        self.token = 0
        self.config: dict[str, int] = {}
        self.records: dict[tuple[str, str], str] = {}
        self.told = told

    def write(self, writes: Writes) -> None:
        for target in writes.deletes:
            self.records.pop(target, None)
        for collection, key, value in writes.puts:
            self.records[collection, key] = value
        self.config.update(writes.config or {})
        found = [decode(*put) for put in writes.puts if put[0] in ("state_table", "run")]
        written: dict[int, set[int]] = {}
        for r in found:
            if isinstance(r, RunRecord):
                written.setdefault(r.ref.table_id, set()).add(r.ref.epoch_hi)
        self.told([r for r in found if isinstance(r, StateTableRecord)], written)

    def check_encoding(self) -> None:
        for (collection, key), value in self.records.items():
            assert encode(decode(collection, key, value)) == value


class MemoryStore:
    """A `CatalogStore` over what is durable, with failures before, after and within a commit."""

    def __init__(self, durable: Durable, kernel: Kernel):
        self._durable, self._kernel = durable, kernel
        self._token: int | None = None

    @property
    def name(self) -> str:
        return "memory"

    @property
    def token(self) -> int | None:
        return self._token

    def place(self) -> str:
        return "in memory"

    def open(
        self, format_version: int, migrations: object, *, initialize: bool = True, succeeding: int | None = None
    ) -> StoredCatalog:
        self._durable.token += 1
        self._token = self._durable.token
        self._durable.config.setdefault("format_version", FORMAT_VERSION)
        return self.load(format_version)

    def load(self, format_version: int) -> StoredCatalog:
        rows = tuple((c, k, v) for (c, k), v in self._durable.records.items())
        return StoredCatalog(dict(self._durable.config), rows)

    def sequence(self) -> int:
        self.verify()
        return self._durable.config.get("sequence", 0)

    def verify(self) -> None:
        self._alive()
        if self._kernel.fails("catalog read"):
            raise StorageError("injected: the catalog does not answer")
        if self._token != self._durable.token:
            raise fenced(self._token or 0, self._durable.token)

    def append(self, writes: Writes, expected_sequence: int) -> None:
        self.verify()
        if self._durable.config.get("sequence", 0) != expected_sequence:
            raise SequenceConflict("the catalog has moved on")
        self._may_crash("catalog before commit")
        if self._kernel.fails("catalog commit"):
            if self._kernel.rng.random() < 0.5:
                raise StorageError("injected: nothing is written")
            if self._kernel.rng.random() < 0.5:
                self._write(writes, expected_sequence)
            raise OutcomeUnknown("injected: no answer")
        self._write(writes, expected_sequence)
        self._may_crash("catalog after commit")

    def _write(self, writes: Writes, expected_sequence: int) -> None:
        config = {**(writes.config or {}), "sequence": expected_sequence + 1}
        self._durable.write(Writes(writes.puts, writes.deletes, config))

    def peek(self) -> StoredCatalog:
        return StoredCatalog(dict(self._durable.config), ())

    def replace(self, content: StoredCatalog, token_floor: int) -> None:
        raise NotImplementedError("catalogs do not move in this simulation")

    def close(self) -> None:
        pass

    def _alive(self) -> None:
        if self._kernel.dead:
            raise Crash

    def _may_crash(self, point: str) -> None:
        """Like a step, but never switched: the catalog serialises its transactions under a lock."""
        odds = self._kernel.odds
        self._kernel.odds = Odds(odds.crash, odds.fail, 0.0)
        try:
            self._kernel.step(point)
        finally:
            self._kernel.odds = odds
