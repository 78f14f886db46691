"""Prepared statements and portals go by names that a client chooses.

They belong to the session, whether a message of the protocol or `PREPARE` has made them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from headrace.errors import HeadraceError

_T = TypeVar("_T")


class ByName(Generic[_T]):
    """Objects by name, where the empty name may be taken again and others may not."""

    def __init__(self, kind: str, missing_sqlstate: str, duplicate_sqlstate: str):
        self._kind = kind
        self._missing = missing_sqlstate
        self._duplicate = duplicate_sqlstate
        self._items: dict[str, _T] = {}
        self.version = 0
        """Another one whenever a name comes to stand for something else."""

    def require_free(self, name: str) -> None:
        """Raise `HeadraceError` if a name other than the empty one is taken."""
        if name and name in self._items:
            raise HeadraceError(f'{self._kind} "{name}" already exists', sqlstate=self._duplicate)

    def put(self, name: str, item: _T) -> None:
        """Add, or replace."""
        self.version += 1
        self._items[name] = item

    def get(self, name: str) -> _T:
        """The object; raises `HeadraceError` if there is none."""
        if name not in self._items:
            raise HeadraceError(f'{self._kind} "{name}" does not exist', sqlstate=self._missing)
        return self._items[name]

    def has(self, name: str) -> bool:
        """Whether there is one of that name."""
        return name in self._items

    def pop(self, name: str) -> _T | None:
        """Remove; None if there was none."""
        self.version += 1
        return self._items.pop(name, None)

    def __len__(self) -> int:
        return len(self._items)

    def all(self) -> list[_T]:
        """All of them."""
        return list(self._items.values())

    def pop_those(self, wanted: Callable[[_T], bool]) -> list[_T]:
        """Remove some and return them."""
        self.version += 1
        found = {name: item for name, item in self._items.items() if wanted(item)}
        for name in found:
            del self._items[name]
        return list(found.values())

    def clear(self) -> list[_T]:
        """Remove all and return them."""
        self.version += 1
        items, self._items = list(self._items.values()), {}
        return items
