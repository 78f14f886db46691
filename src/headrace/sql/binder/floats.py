"""Floats that are checked: as in PostgreSQL it is an error where the result of finite numbers is too large.

One test at the top of an expression is enough: what overflows in a sum, a difference, a product or a dividend stays
infinite, or becomes no number, up to there. Only where the result is no finite number each step is looked at. What is
too small to be told from zero becomes zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import Call, Expr, Nested, Over, conjunction, walk
from headrace.sql.binder.spans import let
from headrace.sql.binder.types import Type

_HOLE: Final = re.compile(r"\{(\d+)\}")
_MOST: Final = 400
"""How many names and operators may tell which step of an expression is too large."""
_DEAR: Final = 100
"""How many there may be in an operand that is written several times."""
_OVERFLOWS: Final = "abs({0}) = CAST('Infinity' AS DOUBLE)"
_FINITE: Final = "abs({0}) < CAST('Infinity' AS DOUBLE)"
_FORMS: Final = {symbol: f"({{0}} {symbol} {{1}})" for symbol in "+-*/"}
_REAL_QUOTIENT: Final = "CAST((CAST({0} AS DOUBLE) / CAST({1} AS DOUBLE)) AS FLOAT)"
_STEPS: Final = frozenset((*_FORMS.values(), _REAL_QUOTIENT))


def checked(value: Expr, made: Expr) -> Expr:
    """What is made of a float, which is an error where it is too large and the float was not."""
    return _checked(made, _too_large(made, (value,)))


def arithmetic(symbol: str, parts: tuple[Expr, Expr]) -> Expr:
    """`+`, `-`, `*` or `/` of two floats of one type."""
    if not any(map(_must_be_once, parts)):
        return _operation(symbol, parts)
    kind = parts[0].type
    named = _operation(symbol, (Call(kind, "`__f`.a", ()), Call(kind, "`__f`.b", ())))
    return Call(kind, let("__f", "named_struct('a', {0}, 'b', {1})", "{2}"), (*parts, named))


def _operation(symbol: str, parts: tuple[Expr, Expr]) -> Expr:
    left, within = _opened(parts[0])
    right, more = (parts[1], ()) if symbol == "/" else _opened(parts[1])
    form = _REAL_QUOTIENT if symbol == "/" and left.type == t.FLOAT4 else _FORMS[symbol]
    made = Call(left.type, form, (left, right))
    own = _too_large(made, (left,) if symbol == "/" else (left, right))
    found = _checked(made, conjunction("OR", [*within, *more, own]))
    # In a long expression over an operand that is infinite itself the steps are not told apart.
    return found if _weight(found, _MOST) <= _MOST else _checked(made, _all_finite(made))


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
    parts = [Call(t.BOOL, _OVERFLOWS, (made,)), *(Call(t.BOOL, _FINITE, (o,)) for o in operands)]
    return conjunction("AND", parts)


def _all_finite(made: Expr) -> Expr:
    """Whether all that steps are computed of are finite numbers: then one of them has been too large."""
    return conjunction("AND", [Call(t.BOOL, _FINITE, (o,)) for o in dict.fromkeys(_operands(made))])


def _operands(expr: Expr) -> Iterator[Expr]:
    stack = [expr]
    while stack:
        found = stack.pop()
        if isinstance(found, Call) and found.form in _STEPS:
            stack.extend(found.arguments)
        else:
            yield found


def _weight(expr: Expr, most: int) -> int:
    """How many names and operators an expression is written with; some number beyond the most for a long one."""
    total = 1
    if isinstance(expr, Call):
        for hole in _HOLE.findall(expr.form):
            total += _weight(expr.arguments[int(hole)], most)
            if total > most:
                break
    return total


def _must_be_once(expr: Expr) -> bool:
    """Whether it is dear, or another value each time, to write an operand several times."""
    parts = list(walk(expr))
    if any(isinstance(p, Nested) for p in parts):
        return False  # Spark takes no query in what gets a name, and reads equal ones once
    once = any(isinstance(p, Over) or (isinstance(p, Call) and p.volatile) for p in parts)
    return once or any(_weight(o, _DEAR) > _DEAR for o in _operands(_opened(expr)[0]))
