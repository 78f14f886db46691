"""Which of the names that are there a column stands for: its own, or the only one that differs in capitals alone.

Names without quotes have small letters in SQL, whatever they have where the rows come from. No table has two columns
that differ in capitals alone, so a name that is there stands for one column at most. Fields of a struct may: of these a
name that is there stands for its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from string import ascii_uppercase
from typing import Final, TypeVar

V = TypeVar("V")

_ESCAPED: Final = re.compile(rb'\\u[0-9a-fA-F]{4}[^"]*(?:"\s*(:)?)?')
"""A letter that is written as a number, with all up to the next quote: what has a colon there may be a key of JSON.

It matches whatever stands there, so that each letter is looked at once: a long text may have nothing else.
"""
_CAPITALS: Final = bytes.maketrans(ascii_uppercase.encode(), b"A" * 26)
_BUT_KEYS: Final = bytes(c for c in range(256) if chr(c) not in ascii_uppercase + '":')
"""What is left out of a text so that a key with a capital in it, be there blanks behind it, ends with `A":`."""
_WITH_CAPITALS: Final = re.compile(rb'"([^"A-Z]*+[A-Z][^"]*+)"[ \t\r\n]*+:')
_KELVIN: Final = "\N{KELVIN SIGN}".encode()
"""The only letter outside of ASCII that has a small one within."""


class SeveralSpellings(ValueError):
    """Several names differ from a column's in capitals alone, and none is the same."""

    def __init__(self, wanted: str, found: Iterable[str]):
        super().__init__(f"{' and '.join(sorted(found))} differ from {wanted} in capitals alone")


def place_of(names: Iterable[str], wanted: str) -> int | None:
    """Where a column is among names, if it is there; blanks around them do not count. Raises `SeveralSpellings`."""
    there = list(names)
    if wanted in there:
        return there.index(wanted)
    low = wanted.lower()
    found = [place for place, name in enumerate(there) if name.strip().lower() == low]
    if len(found) > 1:
        raise SeveralSpellings(wanted, (there[place] for place in found))
    return found[0] if found else None


def is_there(names: Iterable[str], wanted: str) -> bool:
    """Whether a column may be among names, perhaps more than once."""
    return wanted.lower() in {name.strip().lower() for name in names}


def spelled(found: Mapping[str, V], names: tuple[str, ...]) -> Mapping[str, V]:
    """An object by the names of columns, as far as it has these. Raises `SeveralSpellings`."""
    if all(name in found for name in names):
        return found
    by_low = _by_low(names)
    more: dict[str, list[str]] = {}
    for key in found:
        name = by_low.get(key.lower())
        if name is not None and name not in found and key not in names:
            more.setdefault(name, []).append(key)
    for name, keys in more.items():
        if len(keys) > 1:
            raise SeveralSpellings(name, keys)
    return {**found, **{name: found[keys[0]] for name, keys in more.items()}} if more else found


@lru_cache(maxsize=256)
def _by_low(names: tuple[str, ...]) -> Mapping[str, str]:
    return {name.lower(): name for name in names}


class SpelledKeys:
    """How the keys in a text of JSON are spelled that stand for columns, of which there may be many."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def of(self, name: str) -> str | None:
        """How all keys are spelled that stand for a column; None where that is not plain to see."""
        if json.dumps(name, ensure_ascii=False)[1:-1] != name or "/" in name or not self._plain:
            return None
        if name.isascii() and name == name.lower() and ":" not in name and name not in self._with_capitals:
            return name
        same, low = f'"{name}"'.encode(), f'"{name.lower()}"'.encode()
        lowered = self._lowered if name.isascii() else self._data.decode().lower().encode()
        if lowered.count(low) == self._data.count(same):
            return name
        if not name.isascii():
            return None
        found = set(re.findall(b'"(' + re.escape(name.encode()) + b')"', self._data, re.IGNORECASE))
        return found.pop().decode() if len(found) == 1 else None

    @cached_property
    def _plain(self) -> bool:
        """Whether the letters of keys are those that stand there."""
        escaped = any(found[1] for found in _ESCAPED.finditer(self._data))
        return not escaped and _KELVIN not in self._data

    @cached_property
    def _with_capitals(self) -> frozenset[str]:
        """Keys that have capitals of ASCII, in small letters: what is not among them and has none is no other key."""
        if b'A":' not in self._data.translate(_CAPITALS, _BUT_KEYS):
            return frozenset()
        return frozenset(key.decode(errors="replace").lower() for key in set(_WITH_CAPITALS.findall(self._data)))

    @cached_property
    def _lowered(self) -> bytes:
        return self._data.lower()
