"""Catalyst's expressions as calls of Arrow's kernels, as far as these do exactly the same (or raise).

A kernel that meets a value of which it is not sure (an overflow, the lower case of a letter beyond ASCII, a date
without a calendar) raises: the step runs again at once with Spark's own expressions, and the view stays with these
until it is loaded anew (`EpochRunner.run_with`). So errors are always Spark's own, and exactness does not rest on how
far a kernel has been thought through. `tests/dataflow/test_vectors.py` compares every function, and random nestings
of them, with Spark over values that are drawn to be difficult.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headrace.dataflow.operators.exactness import ORDERED, always_casts, exact_decimal, narrows
from headrace.dataflow.operators.kernel_expressions import DAY_US, Call, Column, Expression, Literal
from headrace.dataflow.operators.spark_hash import can_hash
from headrace.errors import NotSupported
from headrace.plan.border_types import arrow_of
from headrace.plan.catalyst import expressions as catalyst
from headrace.plan.catalyst import kinds
from headrace.plan.catalyst.expressions import Expr
from headrace.plan.guards import soundness, unguarded

_t = pa.types
_SECOND_US = 1_000_000
_FIELDS = {"yyyy": "{y:04d}", "MM": "{M:02d}", "dd": "{d:02d}", "HH": "{H:02d}", "mm": "{m:02d}", "ss": "{s:02d}"}
_FIELD_UNITS_US = {"dd": DAY_US, "HH": 3600 * _SECOND_US, "mm": 60 * _SECOND_US, "ss": _SECOND_US}
_FORMAT = re.compile(r"([A-Za-z])\1*|[^A-Za-z'\[\]{}#]")
"""The parts of a pattern: a letter as often as it stands in a row, which is one field; a character that is itself."""
_LETTERS = re.compile("[A-Za-z]")
_UNITS_US = {"day": DAY_US, "hour": 3600 * _SECOND_US, "minute": 60 * _SECOND_US, "second": _SECOND_US}
_COMPARED = {
    "EqualTo": "equal", "LessThan": "less", "LessThanOrEqual": "less_equal", "GreaterThan": "greater",
    "GreaterThanOrEqual": "greater_equal", "EqualNullSafe": "equal_or_both_null",
}  # fmt: skip
_ARITHMETIC = {"Add": "add", "Subtract": "subtract", "Multiply": "multiply"}
# A kernel raises where Spark's expression fails, upon which Spark computes it: so what is tried is taken as it is.
_TRANSPARENT = ("Alias", "KnownNullable", "KnownNotNull", "TryEval")


class _NotThis(Exception):
    """There is no kernel that does the same."""


def vectorized(expression: Expr, places: Mapping[int, int]) -> Expression | None:
    """The expression over columns at `places` (by attribute id); None for what only Spark computes."""
    try:
        return _Compiler(places).of(expression)
    except (_NotThis, NotSupported):
        return None


class _Compiler:
    """One expression on its way."""

    def __init__(self, places: Mapping[int, int]):
        self.places = places
        self.rules: dict[str, Callable[[Any], Expression]] = {
            **dict.fromkeys(_TRANSPARENT, lambda e: self.of(e.child)),
            **dict.fromkeys(_COMPARED, self._compared),
            **dict.fromkeys(_ARITHMETIC, self._arithmetic),
            **dict.fromkeys(("Hour", "Minute", "Second"), self._part_of_day),
            **dict.fromkeys(("Year", "Month", "DayOfMonth", "Quarter"), self._of_calendar),
            "AttributeReference": self._attribute,
            "Literal": self._literal,
            "And": lambda e: self._call("and", e),
            "Or": lambda e: self._call("or", e),
            "Not": lambda e: self._call("not", e),
            "IsNull": lambda e: self._call("is_null", e),
            "IsNotNull": lambda e: self._call("is_valid", e),
            "In": self._in,
            "InSet": self._in_set,
            "If": self._case,
            "CaseWhen": self._case,
            "Coalesce": self._coalesce,
            "UnaryMinus": self._negate,
            "Remainder": lambda e: self._divided("remainder", e),
            "Pmod": self._pmod,
            "Divide": self._ratio,
            "IntegralDivide": lambda e: self._divided("quotient", e),
            "BitwiseAnd": lambda e: self._of_ints("bit_and", e),
            "ShiftRight": lambda e: self._of_ints("shift_right", e),
            "UnscaledValue": lambda e: self._call("unscaled", e),
            "Cast": self._cast,
            "PreciseTimestampConversion": lambda e: self._call("cast", e, self._type(e)),
            "UnixMicros": lambda e: self._call("cast", e, self._type(e)),
            "Length": self._length,
            "Lower": lambda e: self._text("lower", e),
            "Upper": lambda e: self._text("upper", e),
            "StringReplace": self._replace,
            "ElementAt": self._element,
            "Substring": self._substring,
            "Concat": self._concat,
            "Like": self._like,
            "Contains": lambda e: self._with_pattern("contains", e),
            "StartsWith": lambda e: self._with_pattern("starts_with", e),
            "EndsWith": lambda e: self._with_pattern("ends_with", e),
            "TimestampAddInterval": self._shifted,
            "TruncTimestamp": self._truncated,
            "DateFormatClass": self._formatted,
            "XxHash64": self._hash,
            "CreateNamedStruct": self._struct,
            "GetStructField": self._field,
        }

    def of(self, e: Expr) -> Expression:
        """The expression. Raises `_NotThis`."""
        rule = self.rules.get(e.kind)
        if rule is None:
            raise _NotThis
        return rule(e)

    def _call(self, function: str, e: Expr, *options: object) -> Call:
        """A function of all children, with the type that Spark says."""
        return Call(function, tuple(self.of(c) for c in e.children), self._type(e), options)

    def _type(self, e: Expr) -> pa.DataType:
        if e.is_collated:
            raise _NotThis
        return arrow_of(e)

    def _require(self, e: Expr, *tests: Callable[[pa.DataType], bool]) -> None:
        kind = self._type(e)
        if not any(test(kind) for test in tests):
            raise _NotThis

    def _given(self, e: Expr) -> Any:
        """The value of a literal that is not null; also of an integer in a wider type."""
        if e.kind == "Cast" and _t.is_integer(self._type(e)):
            e = e.child
            self._require(e, _t.is_integer)
        if not isinstance(e, catalyst.Literal):
            raise _NotThis
        found = self._literal(e).value
        if found is None:
            raise _NotThis
        return found

    # -- leaves -----------------------------------------------------------------------------------------------

    def _attribute(self, e: catalyst.Attribute) -> Expression:
        place = self.places.get(e.id)
        if place is None:
            raise _NotThis
        return Column(place)

    def _literal(self, e: catalyst.Literal) -> Literal:
        kind, value = self._type(e), e.value
        if value is None:
            return Literal(None, kind)
        if _t.is_boolean(kind):
            return Literal(bool(value), kind)
        if _t.is_integer(kind) or _t.is_date32(kind) or _t.is_timestamp(kind):
            return Literal(int(value), kind)
        if _t.is_floating(kind):
            return Literal(float(value), kind)
        if _t.is_string(kind):
            return Literal(value, kind)
        if _t.is_decimal(kind):
            return Literal(Decimal(str(value)), kind)
        raise _NotThis

    # -- logic ------------------------------------------------------------------------------------------------

    def _compared(self, e: Expr) -> Expression:
        equality = e.kind in ("EqualTo", "EqualNullSafe")
        for side in e.children:
            self._require(side, *ORDERED, _t.is_decimal, _t.is_floating, lambda t: equality and _t.is_boolean(t))
        left, right = (self._type(c) for c in e.children)
        if left != right:
            raise _NotThis
        return self._call(_COMPARED[e.kind] + ("_float" if _t.is_floating(left) else ""), e)

    def _in(self, e: Expr) -> Expression:
        first, *others = e.children
        return self._one_of(e, first, [self._given(o) for o in others])

    def _in_set(self, e: kinds.InSet) -> Expression:
        first = e.child
        self._require(first, _t.is_integer, _t.is_string)
        values = e.values
        if None in values:
            raise _NotThis
        found: list[Any] = list(values)
        return self._one_of(e, first, sorted(found))

    def _one_of(self, e: Expr, first: Expr, values: list[object]) -> Expression:
        self._require(first, *ORDERED)
        return Call("is_in", (self.of(first),), self._type(e), tuple(values))

    def _coalesce(self, e: Expr) -> Expression:
        self._require(e, *ORDERED, _t.is_decimal, _t.is_boolean, _t.is_floating)
        return self._call("coalesce", e)

    def _case(self, e: Expr) -> Expression:
        tried = soundness(e)
        if tried is not None:
            return Call("is_valid", (self.of(tried),), pa.bool_())
        checked = self._if_finite(e)
        if checked is not None:
            return Call("finite", (self.of(checked),), self._type(e))
        self._require(e, *ORDERED, _t.is_decimal, _t.is_boolean, _t.is_floating)
        given = [self.of(c) for c in e.children]
        if len(given) % 2 == 0:
            given.append(Literal(None, self._type(e)))
        return Call("case", tuple(given), self._type(e))

    def _if_finite(self, e: Expr) -> Expr | None:
        """What `CASE WHEN isnan(x * 0) THEN ... ELSE x END` gives where it is a finite number; None for other forms."""
        given = e.children
        test = self._inside(given[0])
        if len(given) != 3 or test.kind != "IsNaN":
            return None
        product = self._inside(test.child)
        if product.kind != "Multiply" or not given[2].does_as(product.child):
            return None
        by = product.children[1]
        return given[2] if isinstance(by, catalyst.Literal) and self._literal(by).value == 0 else None

    def _inside(self, e: Expr) -> Expr:
        """What a guard is around, or the expression itself."""
        inner = unguarded(e)
        return e if inner is None else inner

    # -- numbers ----------------------------------------------------------------------------------------------

    def _arithmetic(self, e: Expr) -> Expression:
        function, kind = _ARITHMETIC[e.kind], self._type(e)
        types = [self._type(c) for c in e.children]
        if _t.is_decimal(kind):
            if kind != exact_decimal(function, *types):
                raise _NotThis
            return self._call(function, e)
        if _t.is_float64(kind) and all(t == kind for t in types):
            return self._call(f"{function}_wrapped", e)
        if not _t.is_integer(kind) or any(t != kind for t in types):
            raise _NotThis
        mode = e.eval_mode
        if mode not in ("ANSI", "LEGACY"):
            raise _NotThis
        return self._call(function if mode == "ANSI" else f"{function}_wrapped", e)

    def _negate(self, e: kinds.UnaryMinus) -> Expression:
        self._require(e, _t.is_integer)
        if not e.fails_on_error:
            raise _NotThis
        return self._call("negate", e)

    def _divided(self, function: str, e: Expr) -> Expression:
        """By a positive constant, so that nothing can go wrong."""
        value, by = e.children
        self._require(value, _t.is_integer)
        if self._given(by) <= 0 or self._type(by) != self._type(value):
            raise _NotThis
        return self._call(function, e)

    def _ratio(self, e: Expr) -> Expression:
        for c in e.children:
            self._require(c, _t.is_float64)
        function = {"ANSI": "ratio", "LEGACY": "ratio_or_null"}.get(e.eval_mode)
        if function is None:
            raise _NotThis
        return self._call(function, e)

    def _pmod(self, e: Expr) -> Expression:
        value, by = e.children
        self._require(value, _t.is_integer)
        if self._given(by) <= 0:
            raise _NotThis
        return Call("modulo", (self.of(value),), self._type(e), (self._given(by),))

    def _of_ints(self, function: str, e: Expr) -> Expression:
        for c in e.children:
            self._require(c, _t.is_integer)
        return self._call(function, e)

    def _cast(self, e: Expr) -> Expression:
        source, target = self._type(e.child), self._type(e)
        if source == target:
            return self.of(e.child)
        if _t.is_null(source):
            return Literal(None, target)
        if _t.is_timestamp(source) and _t.is_date32(target):
            return self._call("date", e)
        if always_casts(source, target):
            return self._call("cast", e, target)
        if not narrows(source, target) or e.eval_mode != "ANSI":
            raise _NotThis
        return self._call("narrowed", e, target)

    # -- texts ------------------------------------------------------------------------------------------------

    def _text(self, function: str, e: Expr) -> Expression:
        self._require(e, _t.is_string)
        return self._call(function, e)

    def _length(self, e: Expr) -> Expression:
        self._require(e.child, _t.is_string)
        return self._call("length", e)

    def _replace(self, e: Expr) -> Expression:
        text, search, by = e.children
        if not self._given(search):
            raise _NotThis
        return Call("replace", (self.of(text),), self._type(e), (self._given(search), self._given(by)))

    def _element(self, e: kinds.ElementAt) -> Expression:
        """`split_part`: an element of a text that is split."""
        lists, n = e.children
        if lists.kind != "StringSplitSQL" or e.default is None or self._given(e.default) != "":
            raise _NotThis
        text, delimiter = lists.children
        if self._given(n) <= 0 or not self._given(delimiter):
            raise _NotThis
        parts = Call("split", (self.of(text),), pa.list_(pa.string()), (self._given(delimiter),))
        return Call("element", (parts,), self._type(e), (self._given(n),))

    def _substring(self, e: Expr) -> Expression:
        text, start, length = e.children
        self._require(text, _t.is_string)
        if self._given(start) <= 0 or self._given(length) < 0:
            raise _NotThis
        return Call("substring", (self.of(text),), self._type(e), (self._given(start) - 1, self._given(length)))

    def _concat(self, e: Expr) -> Expression:
        self._require(e, _t.is_string)
        return self._call("concat", e)

    def _with_pattern(self, function: str, e: Expr) -> Expression:
        text, pattern = e.children
        self._require(text, _t.is_string)
        return Call(function, (self.of(text),), self._type(e), (self._given(pattern),))

    def _like(self, e: kinds.Like) -> Expression:
        if "\\" in self._given(e.children[1]) or e.escape != "\\":
            raise _NotThis
        return self._with_pattern("like", e)

    # -- times ------------------------------------------------------------------------------------------------

    def _part_of_day(self, e: Expr) -> Expression:
        self._require(e.child, _t.is_timestamp)
        unit = e.kind.lower()
        return self._call("part_of_day", e, _UNITS_US[unit], 24 if unit == "hour" else 60)

    def _of_calendar(self, e: Expr) -> Expression:
        self._require(e.child, _t.is_date32)
        kernel = {"DayOfMonth": "day"}.get(e.kind, e.kind.lower())
        return self._call("of_calendar", e, kernel)

    def _shifted(self, e: Expr) -> Expression:
        time, interval = e.children
        by_us = interval.interval_us
        self._require(time, _t.is_timestamp)
        if by_us is None:
            raise _NotThis
        return Call("shifted", (self.of(time),), self._type(e), (by_us,))

    def _truncated(self, e: Expr) -> Expression:
        unit, time = e.children
        unit_us = _UNITS_US.get(self._given(unit).lower())
        if unit_us is None:
            raise _NotThis
        return Call("truncated", (self.of(time),), self._type(e), (unit_us,))

    def _formatted(self, e: Expr) -> Expression:
        time, fmt = e.children
        found = [m.group() for m in _FORMAT.finditer(self._given(fmt))]
        unknown = [f for f in found if f not in _FIELDS and _LETTERS.match(f)]
        if "".join(found) != self._given(fmt) or unknown:
            raise _NotThis
        template = "".join(_FIELDS.get(f, f) for f in found)
        unit_us = min((_FIELD_UNITS_US.get(f, DAY_US) for f in found), default=DAY_US)
        return Call("formatted", (self.of(time),), self._type(e), (template, unit_us))

    # -- structs ----------------------------------------------------------------------------------------------

    def _struct(self, e: Expr) -> Expression:
        children = e.children
        names = tuple(self._given(n) for n in children[::2])
        return Call("struct", tuple(self.of(v) for v in children[1::2]), self._type(e), (names,))

    def _hash(self, e: kinds.XxHash64) -> Expression:
        columns = e.children
        if e.seed != 42 or not columns or any(c.kind == "Literal" for c in columns):
            raise _NotThis
        for c in columns:
            self._require(c, can_hash)
        return self._call("hash", e)

    def _field(self, e: kinds.GetStructField) -> Expression:
        return self._call("field", e, e.ordinal)
