"""Numerics: Spark's decimals have a fixed number of digits, so each operation says how many its result has.

Results are exact, or as PostgreSQL rounds them, or an error for too many digits; the one exception are products and quotients
of two numerics that both may have very many digits, which Spark rounds to the places that are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Final

from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import Call, Constant, Expr
from headrace.sql.binder.coerce import plain
from headrace.sql.binder.types import Type

_FINITE = "abs({0}) < CAST('Infinity' AS DOUBLE) AND abs({1}) < CAST('Infinity' AS DOUBLE)"
POWER = (
    "CASE WHEN {0} = 0D AND {1} < 0D THEN "
    "CAST(raise_error('headrace.errors.DataError: [2201F] zero raised to a negative power is undefined') AS DOUBLE) "
    f"WHEN {{0}} < 0D AND {_FINITE} AND {{1}} <> rint({{1}}) THEN "
    "CAST(raise_error('headrace.errors.DataError: [2201F] a negative number raised to a non-integer power yields a "
    "complex result') AS DOUBLE) "
    f"WHEN {_FINITE} AND abs(power({{0}}, {{1}})) = CAST('Infinity' AS DOUBLE) THEN "
    "CAST(raise_error('headrace.errors.NumericOutOfRange: value out of range: overflow') AS DOUBLE) "
    f"WHEN {{0}} <> 0D AND {_FINITE} AND power({{0}}, {{1}}) = 0D THEN "
    "CAST(raise_error('headrace.errors.NumericOutOfRange: value out of range: underflow') AS DOUBLE) "
    "ELSE power({0}, {1}) END"
)
"""`power(float8, float8)`, with PostgreSQL's errors."""
_PLACES = 20
"""Places of a quotient behind the point; PostgreSQL gives at least 16 significant digits."""
_WHOLE = 15
"""Digits before the point that are kept in any case."""


def _decimal(expr: Expr) -> Expr:
    """A whole number or a numeric as a decimal."""
    if expr.type.name == "numeric":
        return expr
    if isinstance(expr, Constant) and expr.text is not None:
        return Constant(t.decimal(len(expr.text.lstrip("-").lstrip("0")) or 1, 0), expr.text)
    return plain(expr, t.decimal(*t.digits(expr.type)))


def _limited(expr: Expr, precision: int, scale: int) -> Expr:
    same = expr.type.name == "numeric" and t.digits(expr.type) == (precision, scale)
    return expr if same else plain(expr, t.decimal(precision, scale))


def adjusted(precision: int, scale: int) -> Type:
    """What Spark makes of a result that has too many digits."""
    if precision <= t.DIGITS:
        return t.decimal(precision, scale)
    return t.decimal(t.DIGITS, max(t.DIGITS - (precision - scale), min(scale, 6)))


def add(sign: str) -> object:
    """`+` or `-`."""

    def make(arguments: Sequence[Expr]) -> Expr:
        left, right = map(_decimal, arguments)
        (p1, s1), (p2, s2) = t.digits(left.type), t.digits(right.type)
        scale = max(s1, s2)
        precision = max(p1 - s1, p2 - s2) + scale + 1
        if precision > t.DIGITS:
            left, right = (_limited(e, t.DIGITS - 1, scale) for e in (left, right))
            precision = t.DIGITS
        return Call(t.decimal(precision, scale), f"({{0}} {sign} {{1}})", (left, right))

    return make


def multiply(arguments: Sequence[Expr]) -> Expr:
    """`*`."""
    left, right = map(_decimal, arguments)
    (p1, s1), (p2, s2) = t.digits(left.type), t.digits(right.type)
    room = t.DIGITS - 1 - min(p1, p2)
    if p1 + p2 >= t.DIGITS and room - (s1 if p1 >= p2 else s2) >= _WHOLE:
        if p1 >= p2:
            left, p1 = _limited(left, room, s1), room
        else:
            right, p2 = _limited(right, room, s2), room
    return Call(adjusted(p1 + p2 + 1, s1 + s2), "({0} * {1})", (left, right))


def divide(arguments: Sequence[Expr]) -> Expr:
    """`/`: rounded to 20 places; of two literals to those that PostgreSQL gives them, which depend on their values."""
    left, right = map(_decimal, arguments)
    known = _of_literals(left, right)
    if known is not None:
        return known
    (p1, s1), (p2, s2) = t.digits(left.type), t.digits(right.type)
    whole, scale = p1 - s1, max(s1, _PLACES - 1 - p2)
    places = scale + p2 + 1
    room = t.DIGITS - places - s2
    if room >= min(whole, _WHOLE):
        whole = min(whole, room)
        quotient = Call(
            t.decimal(whole + s2 + places, places), "({0} / {1})", (_limited(left, whole + scale, scale), right)
        )
        kept = max(_PLACES, s1, s2)
        return plain(quotient, t.decimal(min(whole + s2 + kept, t.DIGITS), kept)) if places > kept else quotient
    places = max(6, s1 + p2 + 1)
    return Call(adjusted(p1 - s1 + s2 + places, places), "({0} / {1})", (left, right))


def _of_literals(left: Expr, right: Expr) -> Expr | None:
    """The quotient of two literals; None if one of them is none, or there is no quotient of at most 38 digits."""
    if not (isinstance(left, Constant) and isinstance(right, Constant) and left.text and right.text):
        return None
    a, b = Decimal(left.text), Decimal(right.text)
    if not b:
        return None
    places = _places(a, b, max(t.digits(left.type)[1], t.digits(right.type)[1]))
    with localcontext() as exact:
        exact.prec = 200
        quotient = (a / b).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
    precision = max(len(quotient.as_tuple().digits), places + 1)
    return Constant(t.decimal(precision, places), f"{quotient:f}") if precision <= t.DIGITS else None


def _places(a: Decimal, b: Decimal, least: int) -> int:
    """How many places PostgreSQL gives to `a / b`: 16 significant digits at least, counted in groups of four."""
    (weight_a, first_a), (weight_b, first_b) = map(_leading, (a, b))
    weight = weight_a - weight_b - (first_a <= first_b)
    return max(16 - 4 * weight, least, 0)


def _leading(value: Decimal) -> tuple[int, int]:
    """The place of the first group of four digits that is not zero, from the point, and that group."""
    if not value:
        return 0, 0
    weight = value.adjusted() // 4
    return weight, int(abs(value).scaleb(-4 * weight))


def modulo(arguments: Sequence[Expr]) -> Expr:
    """`%`."""
    left, right = map(_decimal, arguments)
    (p1, s1), (p2, s2) = t.digits(left.type), t.digits(right.type)
    return Call(adjusted(min(p1 - s1, p2 - s2) + max(s1, s2), max(s1, s2)), "({0} % {1})", (left, right))


_DIGITS_OF_BIGINT: Final = 18
_NEARLY_BIGINT: Final = "9.22337203685477E18D"
_TOO_LARGE: Final = "raise_error('headrace.errors.NumericOutOfRange: value out of range: numeric field overflow')"


def quotient(arguments: Sequence[Expr]) -> Expr:
    """`div`: the whole number of times that one number is in the other."""
    left, right = map(_decimal, arguments)
    (p1, s1), (p2, s2) = t.digits(left.type), t.digits(right.type)
    whole = min(p1 - s1 + s2, t.DIGITS)
    kind = t.decimal(whole, 0)
    form = f"CAST(({{0}} div {{1}}) AS {kind.spark.upper()})"
    if whole > _DIGITS_OF_BIGINT:  # Spark computes it as a bigint, and forgets what is beyond
        form = f"CASE WHEN {_beyond(p2)} THEN CAST({_TOO_LARGE} AS {kind.spark.upper()}) ELSE {form} END"
    return Call(kind, form, (left, right))


def _beyond(digits: int) -> str:
    """Whether a quotient is beyond a bigint: exact where the divisor has few digits, else close to the end of it."""
    if digits <= t.DIGITS - _DIGITS_OF_BIGINT - 1:
        return f"({{1}} <> 0 AND abs({{0}}) >= abs({{1}}) * {1 << 63}BD)"
    return f"(abs(CAST({{0}} AS DOUBLE) / CAST({{1}} AS DOUBLE)) >= {_NEARLY_BIGINT})"


def same(form: str) -> object:
    """A function whose result has the digits of its argument."""

    def make(arguments: Sequence[Expr]) -> Expr:
        found = _decimal(arguments[0])
        return plain(Call(found.type, form, (found,)), found.type)

    return make


def whole(form: str) -> object:
    """`ceil` and its like: a numeric without places."""

    def make(arguments: Sequence[Expr]) -> Expr:
        found = _decimal(arguments[0])
        precision, scale = t.digits(found.type)
        kind = t.decimal(min(precision - scale + 1, t.DIGITS), 0)
        return plain(Call(kind, form, (found,)), kind)

    return make


def round_to(function: str) -> object:
    """`round(numeric, n)` and `trunc(numeric, n)` to a literal number of places."""

    def make(arguments: Sequence[Expr]) -> Expr:
        from headrace.sql.binder.parse_tree import NotBound

        found, places = _decimal(arguments[0]), arguments[1]
        if not isinstance(places, Constant) or places.text is None:
            raise NotBound(f"{function} to a number of places that is no literal")
        count = int(places.text)
        precision, scale = t.digits(found.type)
        kept = min(max(count, 0), t.DIGITS - 1)
        kind = t.decimal(min(precision - scale + 1 + kept, t.DIGITS), kept)
        if function == "trunc":
            return plain(Call(kind, _TRUNC.replace("{n}", str(count)), (found,)), kind)
        return plain(Call(kind, f"ROUND({{0}}, {count})", (found,)), kind)

    return make


_TRUNC = "CASE WHEN {0} < 0 THEN CEIL({0}, {n}) ELSE FLOOR({0}, {n}) END"


def average_of(form_of_sum: Expr, form_of_count: Expr) -> Expr:
    """A sum divided by a count, to 16 places at least where there is room for them beside the digits of the sum."""
    precision, scale = t.digits(form_of_sum.type)
    counted = plain(form_of_count, t.decimal(15, 0))
    places = max(4, min(16, t.DIGITS - (precision - scale)))
    whole_digits = min(precision - scale, t.DIGITS - max(scale, places))
    summed = _limited(form_of_sum, whole_digits + scale, scale)
    kind = adjusted(whole_digits + scale + 16, scale + 16)
    return Call(kind, "({0} / {1})", (summed, counted))
