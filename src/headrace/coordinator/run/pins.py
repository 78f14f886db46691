"""What is in use: epochs that must stay readable, and objects that must stay on the disk."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from headrace.common.lazy_dataclass import dataclass


@dataclass(frozen=True)
class _Pin:
    relations: frozenset[int] | None
    """None for all that there are."""
    epoch: int
    paths: frozenset[str]


class Pins:
    """Pins of snapshots and running epochs, and the folders that are being written to. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tokens = itertools.count(1)
        self._pins: dict[int, _Pin] = {}
        self._gone: deque[int] = deque()
        """Pins that were let go of, and are still among those."""
        self._prefixes: dict[str, int] = {}

    def pin(self, relations: Iterable[int] | None, epoch: int, paths: Iterable[str] = ()) -> int:
        """Keep relations, or with None all of them, readable at an epoch, and objects from vacuum.

        Returns what `unpin` takes.
        """
        pin = _Pin(None if relations is None else frozenset(relations), epoch, frozenset(paths))
        with self._lock:
            token = next(self._tokens)
            self._current()[token] = pin
            return token

    def hold(self, token: int, paths: Iterable[str]) -> None:
        """Add objects to a pin."""
        with self._lock:
            pins = self._current()
            old = pins[token]
            pins[token] = _Pin(old.relations, old.epoch, old.paths | frozenset(paths))

    def unpin(self, token: int) -> None:
        """Let go; harmless when repeated.

        It takes no lock: an abandoned reader lets go when garbage is collected, which may be while its thread holds it.
        """
        self._gone.append(token)

    def _current(self) -> dict[int, _Pin]:
        """The pins without those that were let go of. The caller holds the lock."""
        while self._gone:
            self._pins.pop(self._gone.popleft(), None)
        return self._pins

    def __len__(self) -> int:
        with self._lock:
            return len(self._current())

    def epochs(self, relation: int) -> list[int]:
        """The epochs that are pinned of a relation."""
        with self._lock:
            return [p.epoch for p in self._current().values() if p.relations is None or relation in p.relations]

    def oldest(self) -> tuple[int | None, dict[int, int]]:
        """Return the oldest epoch that is pinned of all relations, and those of single ones that are pinned, by id."""
        of_all: int | None = None
        of_one: dict[int, int] = {}
        with self._lock:
            for pin in self._current().values():
                if pin.relations is None:
                    of_all = pin.epoch if of_all is None else min(of_all, pin.epoch)
                for relation in pin.relations or ():
                    of_one[relation] = min(pin.epoch, of_one.get(relation, pin.epoch))
        return of_all, of_one

    def paths(self) -> set[str]:
        """All objects that are pinned."""
        with self._lock:
            return set().union(*(p.paths for p in self._current().values()))

    def prefixes(self) -> tuple[str, ...]:
        """Beginnings of the names of objects that are being written and not committed yet."""
        with self._lock:
            return tuple(self._prefixes)

    @contextmanager
    def writing(self, prefix: str) -> Iterator[None]:
        """Keep objects whose names begin so from vacuum, until what they hold is committed or given up."""
        with self._lock:
            self._prefixes[prefix] = self._prefixes.get(prefix, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                self._prefixes[prefix] -= 1
                if not self._prefixes[prefix]:
                    del self._prefixes[prefix]
