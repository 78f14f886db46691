"""Typed expressions as calls of Arrow's kernels, as far as these do exactly what Spark's text of them does, or raise.

The rules go by that text: the catalogue writes the same form for the same meaning. What has no rule is Spark's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from headrace.common.columns import arrow_type
from headrace.dataflow.operators.exactness import ORDERED, always_casts, exact_decimal, narrows
from headrace.dataflow.operators.kernel_expressions import Call, Column, Expression, Literal
from headrace.errors import HeadraceError
from headrace.sql.binder import bound_tree as bt
from headrace.sql.binder.moments import TIMES, place_of
from headrace.sql.binder.types import Type
from headrace.sql.text_values import parse_text

_t = pa.types
Values: TypeAlias = Sequence[object] | None
"""The values of the parameters, and behind them those of `Times` for a query that asks for them; None before they are
known."""


class NoTwin(Exception):
    """Raised for an expression that only Spark computes."""


class Twins:
    """Makes kernels of the expressions of one query, over columns at `places` (by their names)."""

    def __init__(self, places: Mapping[str, int], values: Values, *, few: bool = False) -> None:
        """`few` says that rows are few enough to compute with their values one by one."""
        self._places = places
        self._values = values
        self.few = few

    def of(self, expr: bt.Expr) -> Expression:
        """The expression. Raises `NoTwin`."""
        if isinstance(expr, bt.BoundColumn):
            place = self._places.get(expr.name)
            if place is None:
                raise NoTwin(expr.name)
            return Column(place)
        if isinstance(expr, bt.Constant):
            return Literal(value_of(expr), self.type(expr))
        if isinstance(expr, bt.Parameter):
            value = _sample(expr.type) if self._values is None else self._values[expr.number - 1]
            return Literal(value, self.type(expr))
        if (place := place_of(expr)) is not None:
            value = None if self._values is None else self._values[place - TIMES]
            return Literal(value, self.type(expr))
        if isinstance(expr, bt.Call) and not expr.volatile:
            rule = _FORMS.get(expr.form) or _pattern_rule(expr)
            if rule is not None:
                return rule(self, expr)
        raise NoTwin(getattr(expr, "form", type(expr).__name__))

    def type(self, expr: bt.Expr) -> pa.DataType:
        """The type of its values."""
        if expr.type.name == "interval" or expr.type.category in ("?", "P", "A", "X"):
            raise NoTwin(expr.type.spark)
        return arrow_type(expr.type.spark)

    def call(self, function: str, expr: bt.Call, *options: object) -> Call:
        """A function of all arguments."""
        return Call(function, tuple(self.of(a) for a in expr.arguments), self.type(expr), options)

    def require(self, expr: bt.Expr, *tests: Callable[[pa.DataType], bool]) -> pa.DataType:
        """Raise `NoTwin` for a value that is of none of these types."""
        kind = self.type(expr)
        if not any(test(kind) for test in tests):
            raise NoTwin(str(kind))
        return kind

    def given(self, expr: bt.Expr) -> Any:
        """The value of what is no column, and not null; also of a whole number in a wider type."""
        if isinstance(expr, bt.Call) and _CAST.fullmatch(expr.form) and _t.is_integer(self.type(expr)):
            self.require(expr.arguments[0], _t.is_integer)
            expr = expr.arguments[0]
        found = self.of(expr) if isinstance(expr, (bt.Constant, bt.Parameter)) else None
        if not isinstance(found, Literal) or found.value is None:
            raise NoTwin("a value that is not given")
        return found.value


def value_of(constant: bt.Constant) -> object:
    """The value that a literal spells. Raises `NoTwin` for what is none here."""
    if constant.text is None:
        return None
    try:
        return parse_text(constant.text, constant.type.spark)
    except HeadraceError as error:
        raise NoTwin(error.message) from None


def _sample(kind: Type) -> object:
    """Some value of a type, by which to find out what has a twin before values are known."""
    if kind.category == "N" or kind.name == "bool":
        return parse_text("1", kind.spark)
    return "x" if kind.category == "S" else None


_Rule: TypeAlias = Callable[[Twins, bt.Call], Expression]


def _pattern_rule(expr: bt.Call) -> _Rule | None:
    """The rule of a form for any number of arguments, which stand in their order."""
    if [int(n) for n in _HOLES.findall(expr.form)] != list(range(len(expr.arguments))):
        return None
    return next((rule for pattern, rule in _PATTERNS if pattern.fullmatch(expr.form)), None)


def _alike(at: Twins, expr: bt.Call) -> pa.DataType:
    left, right = (at.type(a) for a in expr.arguments)
    if left != right:
        raise NoTwin(f"{left} and {right}")
    return left


def _compared(function: str) -> _Rule:
    equality = function in ("equal", "equal_or_both_null")

    def rule(at: Twins, expr: bt.Call) -> Expression:
        kind = _alike(at, expr)
        at.require(expr.arguments[0], *ORDERED, _t.is_decimal, _t.is_floating, lambda t: equality and _t.is_boolean(t))
        return at.call(f"{function}_float" if _t.is_floating(kind) else function, expr)

    return rule


def _different(at: Twins, expr: bt.Call) -> Expression:
    return Call("not", (_compared("equal")(at, expr),), pa.bool_())


def _distinct(at: Twins, expr: bt.Call) -> Expression:
    return Call("not", (_compared("equal_or_both_null")(at, expr),), pa.bool_())


def _arithmetic(function: str) -> _Rule:
    def rule(at: Twins, expr: bt.Call) -> Expression:
        kind, types = at.type(expr), [at.type(a) for a in expr.arguments]
        if _t.is_decimal(kind):
            if kind != exact_decimal(function, *types):
                raise NoTwin(str(kind))
            return at.call(function, expr)
        if any(t != kind for t in types):
            raise NoTwin(str(types))
        if _t.is_float64(kind):
            return at.call(f"{function}_wrapped", expr)
        at.require(expr, _t.is_integer)
        return at.call(function, expr)

    return rule


def _negated(at: Twins, expr: bt.Call) -> Expression:
    at.require(expr, _t.is_integer)
    return at.call("negate", expr)


def _divided(function: str) -> _Rule:
    """By a positive value, so that nothing can go wrong."""

    def rule(at: Twins, expr: bt.Call) -> Expression:
        value, by = expr.arguments
        kind = at.require(value, _t.is_integer)
        if at.type(by) != kind or at.given(by) <= 0:
            raise NoTwin("a divisor")
        return at.call(function, expr)

    return rule


def _ratio(at: Twins, expr: bt.Call) -> Expression:
    if at.few and all(_t.is_decimal(at.type(part)) for part in (expr, *expr.arguments)):
        return at.call("decimal_ratio", expr, at.type(expr))
    for part in (expr, *expr.arguments):
        at.require(part, _t.is_float64)
    return at.call("ratio", expr)


def _cast(at: Twins, expr: bt.Call) -> Expression:
    (inner,) = expr.arguments
    source, target = at.type(inner), at.type(expr)
    match = _CAST.fullmatch(expr.form)
    if match is None or match[1].lower() != expr.type.spark:
        raise NoTwin(expr.form)
    if source == target:
        return at.of(inner)
    if _t.is_timestamp(source) and _t.is_date32(target):
        return at.call("date", expr)
    if always_casts(source, target):
        return at.call("cast", expr, target)
    if not narrows(source, target):
        raise NoTwin(expr.form)
    return at.call("narrowed", expr, target)


def _logic(function: str) -> _Rule:
    def rule(at: Twins, expr: bt.Call) -> Expression:
        found, *others = (at.of(a) for a in expr.arguments)
        for other in others:
            found = Call(function, (found, other), pa.bool_())
        return found

    return rule


def _named(function: str, *tests: Callable[[pa.DataType], bool]) -> _Rule:
    """A function whose arguments are all of certain types."""

    def rule(at: Twins, expr: bt.Call) -> Expression:
        for argument in expr.arguments if tests else ():
            at.require(argument, *tests)
        return at.call(function, expr)

    return rule


def _one_of(at: Twins, expr: bt.Call) -> Expression:
    first, *others = expr.arguments
    kind = at.require(first, *ORDERED)
    if any(at.type(o) != kind for o in others):
        raise NoTwin("values of other types")
    return Call("is_in", (at.of(first),), pa.bool_(), tuple(at.given(o) for o in others))


def _case(at: Twins, expr: bt.Call) -> Expression:
    at.require(expr, *ORDERED, _t.is_decimal, _t.is_boolean, _t.is_floating)
    given = [at.of(a) for a in expr.arguments]
    if any(at.type(a) != at.type(expr) for a in [*expr.arguments[1::2], *expr.arguments[-1:]]):
        raise NoTwin("branches of other types")
    if len(given) % 2 == 0:
        given.append(Literal(None, at.type(expr)))
    return Call("case", tuple(given), at.type(expr))


def _coalesced(at: Twins, expr: bt.Call) -> Expression:
    kind = at.require(expr, *ORDERED, _t.is_decimal, _t.is_boolean, _t.is_floating)
    if any(at.type(a) != kind for a in expr.arguments):
        raise NoTwin("arguments of other types")
    return at.call("coalesce", expr)


def _like(at: Twins, expr: bt.Call) -> Expression:
    text, pattern = expr.arguments
    at.require(text, _t.is_string)
    if "\\" in at.given(pattern):
        raise NoTwin("an escape")
    return Call("like", (at.of(text),), pa.bool_(), (at.given(pattern),))


def _unlike(at: Twins, expr: bt.Call) -> Expression:
    return Call("not", (_like(at, expr),), pa.bool_())


_HOLES: Final = re.compile(r"\{(\d+)\}")
_CAST: Final = re.compile(r"CAST\(\{0\} AS ([A-Z_]+(?:\(\d+,\d+\))?)\)")
_FORMS: Final[Mapping[str, _Rule]] = {
    "({0} = {1})": _compared("equal"),
    "({0} <> {1})": _different,
    "({0} < {1})": _compared("less"),
    "({0} <= {1})": _compared("less_equal"),
    "({0} > {1})": _compared("greater"),
    "({0} >= {1})": _compared("greater_equal"),
    "({0} <=> {1})": _compared("equal_or_both_null"),
    "(NOT {0} <=> {1})": _distinct,
    "({0} + {1})": _arithmetic("add"),
    "({0} - {1})": _arithmetic("subtract"),
    "({0} * {1})": _arithmetic("multiply"),
    "({0} / {1})": _ratio,
    "({0} div {1})": _divided("quotient"),
    "({0} % {1})": _divided("remainder"),
    "(- {0})": _negated,
    "(NOT {0})": _named("not", _t.is_boolean),
    "({0} IS NULL)": _named("is_null"),
    "({0} IS NOT NULL)": _named("is_valid"),
    "({0} LIKE {1})": _like,
    "(NOT {0} LIKE {1})": _unlike,
    "lower({0})": _named("lower", _t.is_string),
    "upper({0})": _named("upper", _t.is_string),
    "char_length({0})": _named("length", _t.is_string),
    "concat({0}, {1})": _named("concat", _t.is_string),
}
_PATTERNS: Final[Sequence[tuple[re.Pattern[str], _Rule]]] = (
    (_CAST, _cast),
    (re.compile(r"\(\{0\}(?: AND \{\d+\})+\)"), _logic("and")),
    (re.compile(r"\(\{0\}(?: OR \{\d+\})+\)"), _logic("or")),
    (re.compile(r"\(\{0\} IN \(\{1\}(?:, \{\d+\})*\)\)"), _one_of),
    (re.compile(r"coalesce\(\{0\}(?:, \{\d+\})*\)"), _coalesced),
    (re.compile(r"CASE(?: WHEN \{\d+\} THEN \{\d+\})+(?: ELSE \{\d+\})? END"), _case),
)
