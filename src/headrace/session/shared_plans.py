"""Plans of reads by what they were made of, for all sessions: planning one takes milliseconds, and many clients ask the
same."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

_T = TypeVar("_T")
KEPT: Final = 2_000


class SharedPlans(Generic[_T]):
    """The plans that were made last, each good as long as the catalog's objects are the same. Thread-safe.

    A key says all else that a plan follows from. Whether a session may run it is for that to find out.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._objects: object = None
        self._known: OrderedDict[Hashable, _T] = OrderedDict()

    def find(self, key: Hashable, objects: object) -> _T | None:
        """What was planned of a key with these objects."""
        with self._lock:
            if objects is not self._objects:
                return None
            found = self._known.get(key)
            if found is not None:
                self._known.move_to_end(key)
            return found

    def keep(self, key: Hashable, objects: object, plan: _T) -> None:
        """Remember a plan; those that were made with other objects are of no use any more."""
        with self._lock:
            if objects is not self._objects:
                self._known.clear()
                self._objects = objects
            self._known[key] = plan
            if len(self._known) > self._kept:
                self._known.popitem(last=False)
