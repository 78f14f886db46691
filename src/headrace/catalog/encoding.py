"""Typed records inside of a catalog record: JSON objects that encode to the very bytes that they were read from.

Several programs write a catalog, one after the other, and none may lose what a newer one has said. So what was read
keeps which names were stored, in which order, and the names that this program does not know. What is made now stores
its fields in the order of their declaration; a field that is `rare` only where it says something.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields
from functools import cache
from typing import Any, Final, Self

from headrace.common.lazy_dataclass import dataclass

_OF_READING: Final = ("more", "stored_as")


def rare(*, late: int = 0, read: Callable[[Any], Any] | None = None) -> Mapping[str, Any]:
    """The metadata of a field that a new record does not store as long as it has its default; else as `always`."""
    return {**always(late=late, read=read), "rare": True}


def always(*, late: int = 0, read: Callable[[object], object] | None = None) -> Mapping[str, object]:
    """The metadata of a field with needs of its own.

    Fields with a higher `late` are stored behind the others. `read` makes the value of what was stored, unless that is
    null; without it lists become tuples.
    """
    return {"late": late, "read": read}


def _frozen(value: object) -> object:
    """A JSON value with tuples for its lists."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


@cache
def _fields(kind: type[Stored]) -> dict[str, Field[object]]:
    """The fields that are stored, in the order in which a new record stores them."""
    own = [f for f in fields(kind) if f.name not in _OF_READING]
    return {f.name: f for f in sorted(own, key=lambda f: int(f.metadata.get("late", 0)))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Base of the typed records that are stored as a JSON object inside of another one."""

    more: Mapping[str, object] = field(default_factory=dict, repr=False)
    """What was stored under names that this program does not know."""
    stored_as: tuple[str, ...] | None = field(default=None, repr=False, compare=False)
    """The names that were stored, in their order; None if the record was not read."""

    def to_json(self) -> dict[str, object]:
        """The stored form: names that were read where they stood, then the others that say something."""
        names = dict.fromkeys((*(self.stored_as or ()), *self._said(), *self.more))
        return {name: self.more[name] if name in self.more else _written(getattr(self, name)) for name in names}

    def _said(self) -> list[str]:
        """The fields that are stored though none of them was read."""
        kind: object = type(self)
        return [f.name for f in _fields(kind).values() if self._says(f)]

    def _says(self, f: Field[object]) -> bool:
        quiet = f.metadata.get("rare", False) or self.stored_as is not None
        default = f.default if f.default_factory is MISSING else f.default_factory()
        return not quiet or bool(getattr(self, f.name) != default)

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Self:
        """The inverse of `to_json`. Raises `TypeError` or `ValueError` for what cannot be such a record."""
        kind: object = cls
        known = _fields(kind)
        values = {name: _read(known[name], value) for name, value in data.items() if name in known}
        more = {name: value for name, value in data.items() if name not in known}
        return cls(**values, more=more, stored_as=tuple(data))


def _read(f: Field[object], value: object) -> object:
    read = f.metadata.get("read")
    return _frozen(value) if read is None or value is None else read(value)


def _written(value: object) -> object:
    return value.to_json() if isinstance(value, Stored) else value
