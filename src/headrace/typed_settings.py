"""Settings as a frozen class of typed fields, read from arguments, environment variables and texts.

A class of `Typed` declares its fields as a dataclass does, with `declared(...)` as their values. headrace has a hundred
of them and one such class: a library that builds validators for any type takes a seventh of the processor time until a
server accepts connections, so the few types that settings have are read here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Final, Literal, Self, dataclass_transform, get_args, get_origin, get_type_hints

from headrace.errors import InvalidParameter

HIDDEN: Final = "**********"
"""Stands for a value that must not be shown."""
_WORDS: Final = {
    **dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True),
    **dict.fromkeys(("0", "off", "f", "false", "n", "no"), False),
}


class UnfitValue(ValueError):
    """What is wrong with a value, in words that follow a colon."""


@dataclass(frozen=True)
class Declared:
    """A setting as it is declared."""

    default: object
    meaning: str
    runtime: bool = False
    """Whether SQL may change it while the server runs."""
    least: int | None = None
    most: int | None = None
    secret: bool = False
    """Whether its value is never shown."""
    annotation: object = None
    """Its type, as `typing` has it."""

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that there are; empty where there are any others."""
        return get_args(self.annotation) if get_origin(self.annotation) is Literal else ()

    def checked(self, value: object) -> object:
        """A value of the setting's type, from one or from its text. Raises `UnfitValue`."""
        types = get_args(self.annotation)
        if value is None and NoneType in types:
            return None
        if self.choices:
            if value not in self.choices:
                raise UnfitValue(f"it has to be one of {', '.join(self.choices)}")
            return value
        if self.secret and not isinstance(value, str):
            raise UnfitValue("it has to be a text")
        found = _READERS[_kind(self.annotation)](value)
        if isinstance(found, int) and self.least is not None and found < self.least:
            raise UnfitValue(f"it has to be at least {self.least}")
        if isinstance(found, int) and self.most is not None and found > self.most:
            raise UnfitValue(f"it may be at most {self.most}")
        return found


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Typed:
    """Values of declared fields: what an argument says, else an environment variable, else the default.

    Raises `InvalidParameter` for a name that is not declared and for a value that does not fit.
    """

    FIELDS: ClassVar[Mapping[str, Declared]] = {}
    """In the order of their declaration."""
    ENV_PREFIX: ClassVar[str]

    def __init_subclass__(cls) -> None:
        """Take the declarations from the class: its instances have the values."""
        hints = get_type_hints(cls)
        declared = {name: value for name, value in vars(cls).items() if isinstance(value, Declared)}
        for name in declared:
            delattr(cls, name)
        found = {name: replace(value, annotation=hints[name]) for name, value in declared.items()}
        cls.FIELDS = {**cls.FIELDS, **found}

    def __init__(self, **given: object) -> None:
        self._check_names(given)
        found = self._environment() | given
        self._fill({name: self._checked(name, value) for name, value in found.items()})

    @classmethod
    def _check_names(cls, given: Mapping[str, object]) -> None:
        for name in given:
            if name not in cls.FIELDS:
                raise InvalidParameter(f'there is no setting "{name}"')

    @classmethod
    def defaults(cls) -> Self:
        """Nothing but defaults, whatever the environment says."""
        made = object.__new__(cls)
        made._fill({})
        return made

    def _fill(self, values: Mapping[str, object]) -> None:
        defaults = {name: _default(field) for name, field in self.FIELDS.items()}
        self.__dict__.update(defaults, **values, _given=frozenset(values))

    @classmethod
    def _environment(cls) -> dict[str, object]:
        """What environment variables say, whose names may be in small letters, too."""
        named = {f"{cls.ENV_PREFIX}{name}".upper(): name for name in cls.FIELDS}
        return {named[key.upper()]: text for key, text in os.environ.items() if key.upper() in named}

    def _checked(self, name: str, value: object) -> object:
        try:
            return self.FIELDS[name].checked(value)
        except UnfitValue as error:
            raise InvalidParameter(f"invalid value for the setting {name}: {error}") from None

    def is_given(self, name: str) -> bool:
        """Whether a setting is not just its default."""
        return name in self.__dict__["_given"]

    def replaced(self, **values: object) -> Self:
        """The same with other values, which are taken as they are. Raises `InvalidParameter` for an unknown name."""
        self._check_names(values)
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, **values, _given=self.__dict__["_given"] | values.keys())
        return made

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"settings are not changed: {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"settings are not changed: {name}")

    def _values(self) -> Iterator[tuple[str, object]]:
        return ((name, self.__dict__[name]) for name in self.FIELDS)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and dict(self._values()) == dict(other._values())

    __hash__ = None  # type: ignore[assignment]  # some values are dictionaries

    def __repr__(self) -> str:
        shown = (f"{n}={HIDDEN if self.FIELDS[n].secret and v is not None else repr(v)}" for n, v in self._values())
        return f"{type(self).__name__}({', '.join(shown)})"


def declared(
    default: object,
    meaning: str,
    *,
    runtime: bool = False,
    least: int | None = None,
    most: int | None = None,
    secret: bool = False,
) -> Any:
    """A field's declaration; to type checkers its value."""
    return Declared(default, meaning, runtime, least, most, secret)


def _default(field: Declared) -> object:
    return dict(field.default) if isinstance(field.default, dict) else field.default


def _kind(annotation: object) -> object:
    """The one type of an annotation beside None."""
    types = [one for one in get_args(annotation) if one is not NoneType]
    return annotation if get_origin(annotation) is dict or not types else types[0]


def _whole(value: object) -> int:
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            raise UnfitValue(f'"{value}" is no whole number') from None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise UnfitValue(f"{value!r} is no whole number")


def _truth(value: object) -> bool:
    if isinstance(value, bool):
        return value
    found = _WORDS.get(str(value).strip().lower())
    if found is None:
        raise UnfitValue(f'"{value}" is neither true nor false')
    return found


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise UnfitValue(f"{value!r} is no text")


def _path(value: object) -> Path:
    if isinstance(value, (str, os.PathLike)):
        return Path(value)
    raise UnfitValue(f"{value!r} is no path")


def _texts(value: object) -> dict[str, str]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise UnfitValue("it has to be a JSON object") from None
    if isinstance(value, Mapping) and all(isinstance(part, str) for item in value.items() for part in item):
        return dict(value)
    raise UnfitValue("it has to be an object of texts")


_READERS: Final[Mapping[object, Callable[[object], object]]] = {
    int: _whole,
    bool: _truth,
    str: _text,
    Path: _path,
    dict[str, str]: _texts,
}
