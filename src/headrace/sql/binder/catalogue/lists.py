"""Arrays that are put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import Call, Expr
from headrace.sql.binder.catalogue.entries import Entry, Make, made
from headrace.sql.binder.coerce import common_digits, plain

_FORMS: Final = {
    ("anyarray", "anyarray"): ("array_cat", "coalesce(concat({0}, {1}), {0}, {1})"),
    ("anyarray", "anyelement"): (
        "array_append", "CASE WHEN {0} IS NULL THEN array({1}) ELSE array_append({0}, {1}) END"
    ),
    ("anyelement", "anyarray"): (
        "array_prepend", "CASE WHEN {1} IS NULL THEN array({0}) ELSE array_prepend({1}, {0}) END"
    ),
}  # fmt: skip


def functions() -> list[Entry]:
    """As functions."""
    return [made(name, ", ".join(kinds), _made(form), _result(kinds)) for kinds, (name, form) in _FORMS.items()]


def operators() -> list[Entry]:
    """As `||`."""
    return [made("||", ", ".join(kinds), _made(form), _result(kinds)) for kinds, (_, form) in _FORMS.items()]


def _result(kinds: tuple[str, str]) -> str:
    return "*" if kinds[0] == "anyarray" else "*2"


def _made(form: str) -> Make:
    def make(arguments: Sequence[Expr]) -> Expr:
        values = _alike(arguments)
        kind = next(v.type for v in values if v.type.is_array)
        return Call(kind, form, values)

    return make


def _alike(arguments: Sequence[Expr]) -> tuple[Expr, ...]:
    """Arrays and elements whose numerics have the places of the one with most of them."""
    elements = [a.type.element or a.type for a in arguments]
    if elements[0].name != "numeric" or len({e.spark for e in elements}) == 1:
        return tuple(arguments)
    common = common_digits([Call(e, "?", ()) for e in elements])
    return tuple(plain(a, t.array_of(common) if a.type.is_array else common) for a in arguments)
