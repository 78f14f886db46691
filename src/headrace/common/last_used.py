"""A cache of bounded size: what was asked for last stays."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LastUsed(Generic[K, V]):
    """Values by their keys, `most` of them: one more takes the place of that which was not used for the longest time.

    Not thread-safe.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def of(self, key: K, make: Callable[[], V]) -> V:
        """The value of a key, made if it is not here. Raises what `make` does; nothing is kept then."""
        if key not in self._values:
            self._values[key] = make()
            if len(self._values) > self._most:
                self._values.popitem(last=False)
        self._values.move_to_end(key)
        return self._values[key]
