"""What an entry of the catalogue is, and how entries are written down.

A line is `name(argument types) -> result : Spark's text`, with `{0}`, `{1}`, ... in it for the arguments. `...` behind the
last type lets it be repeated; `*` as the result is the type of the first argument, `*2` that of the second,
and `*[]` an array of the first one's.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from headrace.common.lazy_dataclass import dataclass
from headrace.sql.binder.bound_tree import Call, Expr
from headrace.sql.binder.resolve import Signature, named
from headrace.sql.binder.types import Type, array_of

Make = Callable[[Sequence[Expr]], Expr]


@dataclass(frozen=True, slots=True)
class Entry:
    """An overload of a function or an operator."""

    name: str
    signature: Signature
    make: Make
    result: str = ""


Catalogue = dict[str, list[Entry]]
_LINE: Final = re.compile(r"\s*(\S+?)\(([^)]*)\)\s*->\s*(\S+)\s*:\s*(.+?)\s*")


def entries(text: str, volatile: bool = False) -> list[Entry]:
    """The entries that lines describe."""
    return [_entry(line, volatile) for line in text.strip().splitlines() if line.strip()]


def _entry(line: str, volatile: bool) -> Entry:
    match = _LINE.fullmatch(line)
    assert match is not None, line
    name, listed, result, form = match.groups()
    return Entry(name, signature(listed), _maker(result, form, volatile), result)


def signature(listed: str) -> Signature:
    """The types that a line lists."""
    names = [part.strip() for part in listed.split(",") if part.strip()]
    variadic = bool(names) and names[-1].endswith("...")
    return Signature(tuple(n.removesuffix("...") for n in names), variadic)


def result_type(result: str, arguments: Sequence[Expr]) -> Type:
    """The type that a line's result is for some arguments."""
    if result == "*":
        return arguments[0].type
    if result == "*2":
        return arguments[1].type
    if result == "*[]":
        return array_of(arguments[0].type)
    if result == "*.":
        element = arguments[0].type.element
        assert element is not None
        return element
    kind = named(result)
    assert kind is not None, result
    return kind


def _maker(result: str, form: str, volatile: bool) -> Make:
    def make(arguments: Sequence[Expr]) -> Expr:
        filled = form
        if "{...}" in form:
            filled = form.replace("{...}", ", ".join(f"{{{i}}}" for i in range(len(arguments))))
        return Call(result_type(result, arguments), filled, tuple(arguments), volatile)

    return make


def made(name: str, listed: str, make: Make, result: str = "") -> Entry:
    """An entry that a function makes the expression of."""
    return Entry(name, signature(listed), make, result)


def catalogue(found: Iterable[Entry]) -> Catalogue:
    """The entries by name."""
    by_name: Catalogue = defaultdict(list)
    for entry in found:
        by_name[entry.name].append(entry)
    return dict(by_name)
