"""Bounds how many events tell of one thing: the catalog keeps a certain number, and a flood drives out all others.

Of a kind of event about one thing several are told at once, then one now and then, which says how many were left out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import replace

from headrace.catalog.edits import AddEvent
from headrace.common.lazy_dataclass import dataclass

BURST = 10
"""Events of a kind about one thing that are told however close they follow each other."""
PAUSE_S = 60.0
"""Seconds for each further one."""
_THINGS = 10_000
"""Things that are remembered: with more, those of which all would be told again are forgotten."""


@dataclass
class _Told:
    left: float
    """How many may be told now."""
    at_s: float
    kept_back: int = 0


class Sparing:
    """Decides which events are told and which are only counted. Thread-safe."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._lock = threading.Lock()
        self._monotonic_s = monotonic_s
        self._told: dict[Hashable, _Told] = {}

    def thinned(self, event: AddEvent, about: Hashable = None) -> AddEvent | None:
        """The event, with how many like it were left out before; None for one that is left out.

        `about` says what it is about, if that is not the event's object.
        """
        with self._lock:
            found = self._of((event.kind, event.object_id, about))
            if found.left < 1:
                found.kept_back += 1
                return None
            found.left -= 1
            kept_back, found.kept_back = found.kept_back, 0
        more = f" (and {kept_back} more like it since the last one that was told)" if kept_back else ""
        return replace(event, message=event.message + more)

    def not_told(self, event: AddEvent, about: Hashable = None) -> None:
        """The event could not be told after all: it does not count."""
        with self._lock:
            found = self._of((event.kind, event.object_id, about))
            found.left = min(BURST, found.left + 1)

    def _of(self, key: Hashable) -> _Told:
        now_s = self._monotonic_s()
        found = self._told.get(key)
        if found is None:
            if len(self._told) >= _THINGS:
                self._told = {k: t for k, t in self._told.items() if now_s - t.at_s < BURST * PAUSE_S}
            found = self._told[key] = _Told(BURST, now_s)
        found.left, found.at_s = min(BURST, found.left + (now_s - found.at_s) / PAUSE_S), now_s
        return found


__all__ = ["BURST", "PAUSE_S", "Sparing"]
