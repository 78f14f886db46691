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
            self.put(key, make())
        self._values.move_to_end(key)
        return self._values[key]

    def find(self, key: K) -> V | None:
        """The value of a key, if it is here."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key]

    def put(self, key: K, value: V) -> None:
        """Have a value at hand."""
        self._values[key] = value
        self._values.move_to_end(key)
        self.shrink(self._most)

    def shrink(self, most: int) -> None:
        """Let that many stay, also from now on."""
        self._most = most
        while len(self._values) > most:
            self._values.popitem(last=False)

    def clear(self) -> None:
        """Let none stay."""
        self._values.clear()
