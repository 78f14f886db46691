"""Floats that are checked: as in PostgreSQL it is an error where the result of finite numbers is too large.

One test at the top of an expression is enough: what overflows in a sum, a difference, a product or a dividend stays
infinite, or becomes no number, up to there. Only where the result is no finite number each step is looked at. What is
too small to be told from zero becomes zero.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from headrace.sql.binder import types as t
from headrace.sql.binder.spans import let
from headrace.sql.binder.tree import Call, Expr, Nested, Over, conjunction, walk
from headrace.sql.binder.types import Type

_HOLE: Final = re.compile(r"\{(\d+)\}")
_MOST: Final = 400
"""How many names and operators a checked expression may be written with, before its operands are computed first."""
_OVERFLOWS: Final = "abs({0}) = CAST('Infinity' AS DOUBLE)"
_FINITE: Final = " AND abs(#) < CAST('Infinity' AS DOUBLE)"


def checked(value: Expr, made: Expr) -> Expr:
    """What is made of a float, which is an error where it is too large and the float was not."""
    return _checked(made, _too_large(made, (value,)))


def arithmetic(symbol: str, form: str, parts: tuple[Expr, Expr]) -> Expr:
    """An operator between two floats of one type; `form` is Spark's text of it."""
    found = _operation(symbol, form, parts)
    if _weight(found) <= _MOST and not any(map(_must_be_once, parts)):
        return found
    kind = parts[0].type
    named = _operation(symbol, form, (Call(kind, "`__f`.a", ()), Call(kind, "`__f`.b", ())))
    return Call(kind, let("__f", "named_struct('a', {0}, 'b', {1})", "{2}"), (*parts, named))


def _operation(symbol: str, form: str, parts: tuple[Expr, Expr]) -> Expr:
    left, within = _opened(parts[0])
    right, more = (parts[1], ()) if symbol == "/" else _opened(parts[1])
    made = Call(left.type, form, (left, right))
    own = _too_large(made, (left,) if symbol == "/" else (left, right))
    return _checked(made, conjunction("OR", [*within, *more, own]))


def _opened(expr: Expr) -> tuple[Expr, tuple[Expr, ...]]:
    """A checked expression without its check, and the condition of that."""
    if isinstance(expr, Call) and expr.form == _form(expr.type):
        return expr.arguments[0], (expr.arguments[1],)
    return expr, ()


def _checked(value: Expr, overflows: Expr) -> Expr:
    return Call(value.type, _form(value.type), (value, overflows))


@lru_cache
def _form(kind: Type) -> str:
    """A value, and the condition on which it is too large if it is no finite number."""
    raised = f"CAST(raise_error('headrace.errors.NumericOutOfRange: value out of range: overflow') AS {kind.spark})"
    slowly = f"CASE WHEN {{1}} THEN {raised} ELSE {{0}} END"
    return f"CASE WHEN isnan({{0}} * CAST(0 AS {kind.spark})) THEN {slowly} ELSE {{0}} END"


def _too_large(made: Expr, operands: Sequence[Expr]) -> Expr:
    finite = "".join(_FINITE.replace("#", f"{{{i + 1}}}") for i in range(len(operands)))
    return Call(t.BOOL, f"({_OVERFLOWS}{finite})", (made, *operands))


def _weight(expr: Expr) -> int:
    """How many names and operators an expression is written with; some number beyond the most for a long one."""
    total = 1
    if isinstance(expr, Call):
        for hole in _HOLE.findall(expr.form):
            total += _weight(expr.arguments[int(hole)])
            if total > _MOST:
                break
    return total


def _must_be_once(expr: Expr) -> bool:
    """Whether it is dear, or another value each time, to write an expression several times."""
    return any(isinstance(p, (Nested, Over)) or (isinstance(p, Call) and p.volatile) for p in walk(expr))
