"""Expressions over the columns of a batch, computed by Arrow's kernels: what `dataflow.vectors` makes of Catalyst's.

Each function gives exactly what Spark gives, or it raises: an overflow, a value it is not sure of. Then Spark computes
the epoch instead, so that errors and odd cases are always Spark's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from decimal import Context as Decimals
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.lazy_dataclass import dataclass
from headrace.dataflow.operators.spark_hash import spark_hash
from headrace.state.kernels.equality import fixed_width
from headrace.state.kernels.hashing import string_bytes

Ints = npt.NDArray[np.int64]

DAY_US = 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""Days from the epoch to 0001-01-01 and to 9999-12-31: outside of them calendars and formats differ."""
_FIRST_US = -(1 << 63)
_DIVIDING = Decimals(prec=120, rounding=ROUND_DOWN)
"""Digits enough that only the roundings to places count."""
_PLACES = Decimal(1).scaleb(-38)
_DIVISIONS = 10_000
_TABLE_AT_MOST = 100_000
"""Different texts of times that are made for one batch."""


class UncertainValue(Exception):
    """Raised for a value of which a kernel does not know what Spark makes of it: Spark is to compute the step."""


@dataclass(frozen=True)
class Column:
    """A column of the input, by its position."""

    index: int


@dataclass(frozen=True, eq=False)
class Literal:
    """A constant. Equal to another only if nothing tells them apart: 0.0 is not -0.0, and True is not 1."""

    value: object
    type: pa.DataType

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and (repr(self.value), self.type) == (repr(other.value), other.type)

    def __hash__(self) -> int:
        return hash((repr(self.value), self.type))


@dataclass(frozen=True)
class Call:
    """A function of `FUNCTIONS` over arguments, then options; `type` is what it gives."""

    function: str
    arguments: tuple[Expression, ...]
    type: pa.DataType
    options: tuple[object, ...] = ()
    """Texts, whole numbers and types, which are alike if they are equal."""


Expression: TypeAlias = Column | Literal | Call
Value: TypeAlias = Any
"""An array, or a scalar for what is the same in all rows."""


class RowColumns:
    """Columns of the same length, each made when it is first asked for; what is computed of them is kept."""

    def __init__(self, column: Callable[[int], pa.Array], length: int):
        self._column = column
        self._columns: dict[int, pa.Array] = {}
        self._computed: dict[Call, Value] = {}
        self.length = length

    @classmethod
    def of(cls, columns: Sequence[pa.Array], length: int) -> RowColumns:
        """Rows of columns that are there."""
        return cls(columns.__getitem__, length)

    def column(self, i: int) -> pa.Array:
        """The i-th column."""
        if i not in self._columns:
            self._columns[i] = self._column(i)
        return self._columns[i]

    def where(self, condition: Expression) -> RowColumns:
        """The rows for which a condition is true. Raises what `value` raises."""
        mask = self.array(condition)
        kept = mask.true_count
        if kept == self.length:
            return self
        return RowColumns(lambda i: self.column(i).filter(mask), kept)

    def select(self, expressions: Sequence[Expression]) -> RowColumns:
        """Other columns over the same rows. Raises what `value` raises."""
        return RowColumns.of([self.array(e) for e in expressions], self.length)

    def multiply(self, projections: Sequence[Sequence[Expression]]) -> RowColumns:
        """All rows with the columns of one list, then all with those of the next. Raises what `value` raises."""
        columns = [pa.concat_arrays([self.array(e) for e in same]) for same in zip(*projections, strict=True)]
        return RowColumns.of(columns, self.length * len(projections))

    def array(self, expression: Expression) -> pa.Array:
        """An expression's value in every row."""
        value = self.value(expression)
        return pa.repeat(value, self.length) if isinstance(value, pa.Scalar) else value

    def value(self, expression: Expression) -> Value:
        """An expression's value. Raises `UncertainValue`, and what Arrow raises for values that a function refuses."""
        if isinstance(expression, Column):
            return self.column(expression.index)
        if isinstance(expression, Literal):
            return pa.scalar(expression.value, expression.type)
        if expression not in self._computed:
            arguments = [self.value(a) for a in expression.arguments]
            found = FUNCTIONS[expression.function](*arguments, *expression.options)
            self._computed[expression] = found if found.type == expression.type else found.cast(expression.type)
        return self._computed[expression]


# -- logic ------------------------------------------------------------------------------------------------------------


def _equal_or_both_null(a: Value, b: Value) -> Value:
    return pc.coalesce(pc.equal(a, b), pc.and_(pc.is_null(a), pc.is_null(b)))


def _equal_float(a: Value, b: Value) -> Value:
    """As Spark has it, NaN equals itself, and -0.0 equals 0.0."""
    return pc.or_(pc.equal(a, b), pc.and_(pc.is_nan(a), pc.is_nan(b)))


def _less_float(a: Value, b: Value) -> Value:
    """As Spark has it, NaN is above all numbers."""
    return pc.or_(pc.less(a, b), pc.and_(pc.invert(pc.is_nan(a)), pc.is_nan(b)))


def _same_float(a: Value, b: Value) -> Value:
    return pc.coalesce(_equal_float(a, b), pc.and_(pc.is_null(a), pc.is_null(b)))


def _is_in(a: Value, *values: object) -> Value:
    found = pc.is_in(a, value_set=pa.array(values, a.type))
    return pc.if_else(pc.is_valid(a), found, pa.scalar(None, pa.bool_()))


def _case(*given: Value) -> Value:
    """Condition, value, condition, value, ..., and the value where no condition is true."""
    found = given[-1]
    for i in range(len(given) - 3, -1, -2):
        found = pc.if_else(pc.fill_null(given[i], False), given[i + 1], found)
    return found


# -- numbers ----------------------------------------------------------------------------------------------------------


def _to(a: Value, kind: pa.DataType) -> Value:
    if pa.types.is_date32(a.type):
        a = pc.cast(a, pa.timestamp("us"))
    # From integers to floating point both round to the nearest; Arrow's check would refuse those that do not fit.
    return pc.cast(a, kind, safe=not pa.types.is_floating(kind))


def _narrowed(a: Value, kind: pa.DataType) -> Value:
    """Whole numbers and decimals in a type that may be too narrow for them: Arrow raises if it is."""
    if pa.types.is_integer(a.type) and pa.types.is_decimal(kind):
        a = pc.cast(a, pa.decimal128(19, 0))
    return pc.cast(a, kind)


def _finite(a: Value) -> Value:
    if not pc.all(pc.is_finite(a)).as_py():
        raise UncertainValue("a result that is no finite number")
    return a


def _ratio(a: Value, b: Value) -> Value:
    if pc.any(pc.equal(b, 0.0)).as_py():
        raise UncertainValue("a division by zero")
    return pc.divide(a, b)


def _decimal_ratio(a: Value, b: Value, kind: pa.DataType) -> Value:
    """As Spark divides: to 38 places, and then to those of the type. Value by value, so of few.

    Raises `UncertainValue` for a division by zero, and for many.
    """
    if isinstance(a, pa.Scalar) and isinstance(b, pa.Scalar):
        return pa.scalar(_quotient(a.as_py(), b.as_py(), kind.scale), kind)
    rows = len(b) if isinstance(a, pa.Scalar) else len(a)
    if rows > _DIVISIONS:
        raise UncertainValue("many divisions")
    sides = [[v.as_py()] * rows if isinstance(v, pa.Scalar) else v.to_pylist() for v in (a, b)]
    return pa.array([_quotient(x, y, kind.scale) for x, y in zip(*sides, strict=True)], kind)


def _quotient(a: Decimal | None, b: Decimal | None, scale: int) -> Decimal | None:
    if a is None or b is None:
        return None
    if not b:
        raise UncertainValue("a division by zero")
    return (
        _DIVIDING.divide(a, b)
        .quantize(_PLACES, ROUND_HALF_UP, _DIVIDING)
        .quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _DIVIDING)
    )


def _ratio_or_null(a: Value, b: Value) -> Value:
    return pc.if_else(pc.equal(b, 0.0), pa.scalar(None, pa.float64()), pc.divide(a, b))


# -- texts ------------------------------------------------------------------------------------------------------------


def _ascii(a: Value) -> Value:
    """The strings, which have only ASCII characters: with others, letters' cases depend on Unicode's version."""
    if isinstance(a, pa.Array) and string_bytes(a)[1].max(initial=0) > 127:
        raise UncertainValue("letters beyond ASCII")
    return a


def _shifted_right(a: Value, by: Value) -> Value:
    """By the lowest bits of the number only, as Java does: by 65 is by 1, and by -1 is by 63.

    In two steps, since the kernel does nothing at all where it is to leave but the sign.
    """
    by = pc.bit_wise_and(by, pa.scalar(a.type.bit_width - 1, by.type)).cast(a.type)
    half = pc.divide(by, pa.scalar(2, a.type))
    return pc.shift_right(pc.shift_right(a, half), pc.subtract(by, half))


def _split(a: Value, delimiter: str) -> Value:
    return pc.split_pattern(a, delimiter)


def _element(lists: Value, n: int) -> Value:
    """The n-th string of each list, from 1; an empty one where there are not as many."""
    if not isinstance(lists, pa.Array):
        raise UncertainValue("a constant list")
    offsets = np.asarray(lists.offsets)
    at = offsets[:-1].astype(np.int64) + (n - 1)
    missing = at >= offsets[1:]
    found = lists.values.take(pa.array(at, mask=missing))
    if missing.any():
        found = pc.fill_null(found, "")
    return pc.if_else(lists.is_valid(), found, pa.scalar(None, found.type)) if lists.null_count else found


def _substring(a: Value, start: int, length: int) -> Value:
    return pc.utf8_slice_codeunits(a, start, start + length)


def _joined(*parts: Value) -> Value:
    return pc.binary_join_element_wise(*parts, "", null_handling="emit_null")


# -- times ------------------------------------------------------------------------------------------------------------


def _of_ints(a: Value, function: Callable[[Ints], object]) -> pa.Array:
    """What a function makes of integers, or of the integers that stand for times; null for null."""
    if not isinstance(a, pa.Array):
        raise UncertainValue("a constant time")
    if pa.types.is_date32(a.type):
        a = a.cast(pa.int32())
    numbers = pc.fill_null(a.cast(pa.int64()), 0)
    return pa.array(function(np.asarray(numbers)), mask=np.asarray(a.is_null()) if a.null_count else None)


def _part_of_day(a: Value, unit_us: int, units: int) -> pa.Array:
    """Which of a day's (an hour's, a minute's) units a time lies in."""
    return _of_ints(a, lambda us: us // unit_us % units)


def _truncated(a: Value, unit_us: int) -> pa.Array:
    def begun(us: Ints) -> Ints:
        if us.min(initial=0) < _FIRST_US + unit_us:
            raise UncertainValue("a unit that begins before all times")
        return us - us % unit_us

    return _of_ints(a, begun).cast(a.type)


def _shifted(a: Value, by_us: int) -> Value:
    return pc.add_checked(a.cast(pa.int64()), by_us).cast(a.type)


def _date(a: Value) -> pa.Array:
    return _of_ints(a, lambda us: (us // DAY_US).astype(np.int32)).cast(pa.date32())


def _of_calendar(a: Value, kernel: str) -> Value:
    days = _of_ints(a, lambda d: d)
    if len(days) - days.null_count:
        bounds = pc.min_max(days).as_py()
        if bounds["min"] < _FIRST_DAY or bounds["max"] > _LAST_DAY:
            raise UncertainValue("a date beyond the calendar")
    return getattr(pc, kernel)(a)


def _formatted(a: Value, fmt: str, unit_us: int) -> pa.Array:
    """Times as texts, where all times of one unit have the same text."""
    times = _of_ints(a, lambda us: us // unit_us)
    valid = times.drop_null()
    if not len(valid):
        return pa.nulls(len(times), pa.string())
    low, high = (int(v) for v in pc.min_max(valid).as_py().values())
    per_day = DAY_US // unit_us
    if low < _FIRST_DAY * per_day or high >= (_LAST_DAY + 1) * per_day:
        raise UncertainValue("a year that has not four digits")
    if high - low < min(_TABLE_AT_MOST, 4 * len(times) + 16):
        found = np.arange(low, high + 1)
        codes = pc.subtract(times, low)
    else:
        found = np.unique(np.asarray(valid))
        if len(found) > _TABLE_AT_MOST:
            raise UncertainValue("very many different texts of times")
        codes = pa.array(np.searchsorted(found, np.asarray(pc.fill_null(times, low))), mask=np.asarray(times.is_null()))
    return pa.array([_text(int(v), unit_us, fmt) for v in found], pa.string()).take(codes)


@lru_cache(maxsize=_TABLE_AT_MOST)
def _text(units: int, unit_us: int, fmt: str) -> str:
    at = _EPOCH + timedelta(microseconds=units * unit_us)
    return fmt.format(y=at.year, M=at.month, d=at.day, H=at.hour, m=at.minute, s=at.second)


# -- what rows send to an operator -------------------------------------------------------------------------------------


def _hash(*columns: Value) -> pa.Array:
    if any(isinstance(c, pa.Scalar) for c in columns):
        raise UncertainValue("a constant in a hash")
    return pa.array(spark_hash(columns))


def _unscaled(a: Value) -> Value:
    """The digits of decimals of at most 18, as int64."""
    if not isinstance(a, pa.Array):
        raise UncertainValue("a constant decimal")
    low = np.ascontiguousarray(fixed_width(a)[:, 0]).view(np.int64)
    return pa.array(low, mask=np.asarray(a.is_null()) if a.null_count else None)


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "equal": pc.equal,
    "less": pc.less,
    "less_equal": pc.less_equal,
    "greater": pc.greater,
    "greater_equal": pc.greater_equal,
    "equal_or_both_null": _equal_or_both_null,
    "equal_float": _equal_float,
    "less_float": _less_float,
    "less_equal_float": lambda a, b: pc.invert(_less_float(b, a)),
    "greater_float": lambda a, b: _less_float(b, a),
    "greater_equal_float": lambda a, b: pc.invert(_less_float(a, b)),
    "equal_or_both_null_float": _same_float,
    "and": pc.and_kleene,
    "or": pc.or_kleene,
    "not": pc.invert,
    "is_null": pc.is_null,
    "is_valid": pc.is_valid,
    "finite": _finite,
    "is_in": _is_in,
    "case": _case,
    "coalesce": pc.coalesce,
    "add": pc.add_checked,
    "subtract": pc.subtract_checked,
    "multiply": pc.multiply_checked,
    "negate": pc.negate_checked,
    "add_wrapped": pc.add,
    "subtract_wrapped": pc.subtract,
    "multiply_wrapped": pc.multiply,
    "remainder": pc.remainder,
    "quotient": pc.divide,
    "cast": _to,
    "narrowed": _narrowed,
    "length": pc.utf8_length,
    "lower": lambda a: pc.ascii_lower(_ascii(a)),
    "upper": lambda a: pc.ascii_upper(_ascii(a)),
    "replace": pc.replace_substring,
    "split": _split,
    "element": _element,
    "substring": _substring,
    "concat": _joined,
    "like": pc.match_like,
    "contains": pc.match_substring,
    "starts_with": pc.starts_with,
    "ends_with": pc.ends_with,
    "part_of_day": _part_of_day,
    "shifted": _shifted,
    "truncated": _truncated,
    "date": _date,
    "of_calendar": _of_calendar,
    "formatted": _formatted,
    "hash": _hash,
    "ratio": _ratio,
    "decimal_ratio": _decimal_ratio,
    "ratio_or_null": _ratio_or_null,
    "modulo": lambda a, by: _of_ints(a, lambda v: np.mod(v, by)),
    "unscaled": _unscaled,
    "bit_and": pc.bit_wise_and,
    "shift_right": _shifted_right,
    "struct": lambda *given: pa.StructArray.from_arrays(list(given[:-1]), names=list(given[-1])),
    "field": lambda a, i: pc.struct_field(a, [i]),
}
"""By name. Arguments are arrays or scalars; those after them are the call's options."""
