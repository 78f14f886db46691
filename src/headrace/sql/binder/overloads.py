"""Picking an overload from the catalogue, and casting the arguments to what it takes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal, NoReturn, Protocol

from headrace.errors import UndefinedFunction
from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import Expr
from headrace.sql.binder.catalogue.entries import Catalogue, Entry
from headrace.sql.binder.coerce import coerce
from headrace.sql.binder.parse_tree import Message, place, refuse
from headrace.sql.binder.resolve import Signature, choose, named
from headrace.sql.binder.scope import Wrong
from headrace.sql.binder.types import Type

FORBIDDEN: Final = frozenset(
    ("java_method", "reflect", "try_reflect", "assert_true", "raise_error", "spark_partition_id")
)
"""Functions of Spark's that reach out of the query, and that nobody can call."""
_COMPLETE = ("+", "-", "*", "/", "%", "=", "<>", "<", "<=", ">", ">=", "||")
"""Operators of which the catalogue has all that there are between the types that the binder knows."""


class _Overload(Protocol):
    @property
    def signature(self) -> Signature:
        """The types of its arguments."""
        ...


_Choice = tuple[int, tuple[str, ...]]
_CHOICES: Final[dict[tuple[int, tuple[Type, ...]], _Choice | Literal[False] | None]] = {}
"""What was found before, by the list of overloads, which the catalogue keeps for ever, and the types given."""
_MOST_CHOICES: Final = 20_000


def chosen(overloads: Sequence[_Overload], given: Sequence[Type], what: str, message: Message | None) -> _Choice | None:
    """Which of the overloads a call of `what` means, and the types of its arguments; None if none fits."""
    key = (id(overloads), tuple(given))
    if key not in _CHOICES:
        if len(_CHOICES) >= _MOST_CHOICES:
            _CHOICES.clear()
        _CHOICES[key] = _choice(overloads, given)
    found = _CHOICES[key]
    if found is False:
        hint = "Could not choose a best candidate. You might need to add explicit type casts."
        raise Wrong(f"{shown(what, given)} is not unique", "42725", place(message), hint)
    return found


def _choice(overloads: Sequence[_Overload], given: Sequence[Type]) -> _Choice | Literal[False] | None:
    expanded = [(i, e) for i, o in enumerate(overloads) if (e := o.signature.expanded(len(given))) is not None]
    found = choose([e for _, e in expanded], given) if expanded else None
    if found is None or isinstance(found, bool):
        return False if found is False else None
    return next((i, e) for i, e in expanded if e == found)


def shown(what: str, given: Sequence[Type]) -> str:
    """A call as messages spell it: an operator between its arguments, or a function with them."""
    if what[0].isalpha() or what[0] == "_":
        return f"function {what}({', '.join(map(str, given))})"
    return f"operator {what} {given[0]}" if len(given) == 1 else f"operator {given[0]} {what} {given[1]}"


def arguments_for(wanted: Sequence[str], given: Sequence[Expr]) -> list[Expr]:
    """The arguments as what a signature takes."""
    elements = [e.type.element if w == "anyarray" else e.type for e, w in zip(given, wanted, strict=True)
                if w in ("anyelement", "anyarray", "anynonarray") and e.type.name != "unknown"]  # fmt: skip
    element = elements[0] if elements else t.TEXT
    assert element is not None
    made = []
    for expr, name in zip(given, wanted, strict=True):
        kind = named(name)
        if kind is not None:
            made.append(_as(expr, kind))
        elif expr.type.name == "unknown":
            made.append(
                coerce(
                    expr,
                    t.array_of(element) if name == "anyarray" else element if name != "any" else t.TEXT,
                    "implicit",
                )
            )
        else:
            made.append(expr)
    return made


def _as(expr: Expr, kind: Type) -> Expr:
    if expr.type.name == kind.name:
        return expr
    if kind.name == "text" and expr.type.name == "varchar":
        return expr
    return coerce(expr, kind, "implicit")


def apply(catalogue: Catalogue, name: str, arguments: Sequence[Expr], message: Message) -> Expr:
    """A call of a function of the catalogue."""
    overloads = catalogue.get(name, ())
    given = [a.type for a in arguments]
    found = chosen(overloads, given, name, message) if overloads else None
    if found is None:
        undefined(name, given, [o.signature for o in overloads], message)
    return overloads[found[0]].make(arguments_for(found[1], arguments))


def undefined(name: str, given: Sequence[Type], known: Sequence[Signature], message: Message) -> NoReturn:
    """Raise the error for a function that there is not, or not for such arguments."""
    hint: str | None = None
    if known:
        listed = ", ".join(dict.fromkeys(f"{name}({_listed(s)})" for s in known))
        hint = f"There is {listed}. You might need to add explicit type casts."
    elif re.fullmatch("[a-z_][a-z_0-9]*", name) and name not in FORBIDDEN:
        hint = (
            f"headrace has no function of this name. If Spark has it, call it as spark.{name}(...) inside of a cast, "
            "with Spark's meaning."
        )
    raise Wrong(f"{shown(name, given)} does not exist", "42883", place(message), hint)


def _listed(signature: Signature) -> str:
    names = [t.SPELLED.get(a, a) for a in signature.arguments]
    return ", ".join([*names[:-1], f"{names[-1]}, ..."]) if signature.variadic else ", ".join(names)


def operator(catalogue: Catalogue, symbol: str, arguments: Sequence[Expr], message: Message | None) -> Expr:
    """An operator of the catalogue. Raises `UndefinedFunction` where there is none for such types."""
    overloads = catalogue.get(symbol)
    if overloads is None:
        refuse(f"the operator {symbol}", message)
    given = [a.type for a in arguments]
    entry = _same_types(overloads, given)
    if entry is None:
        found = chosen(overloads, given, symbol, message)
        if found is None:
            _none(symbol, given, message)
        entry = overloads[found[0]], found[1]
    return entry[0].make(arguments_for(entry[1], arguments))


def _same_types(overloads: Sequence[Entry], given: Sequence[Type]) -> tuple[Entry, tuple[str, ...]] | None:
    """A literal of unknown type is first tried as what the other side is."""
    known = [g for g in given if g.name != "unknown"]
    if len(given) != 2 or len(known) != 1:
        return None
    name = known[0].name if known[0].name != "varchar" else "text"
    wanted = (name, name)
    for entry in overloads:
        if entry.signature.arguments == wanted or (
            known[0].is_array and entry.signature.arguments == ("anyarray", "anyarray")
        ):
            return entry, entry.signature.arguments
    return None


def _none(symbol: str, given: Sequence[Type], message: Message | None) -> NoReturn:
    words = shown(symbol, given)
    if symbol not in _COMPLETE or any(g.is_array or g.category in "?P" for g in given):
        refuse(f"the {words}", message)
    raise UndefinedFunction(
        f"operator does not exist: {words.removeprefix('operator ')}",
        hint="No operator matches the given name and argument types. You might need to add explicit type casts.",
    )
