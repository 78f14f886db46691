"""Which aggregate functions accumulate, and by which accumulator: one rule for each of Catalyst's functions.

What has no rule, or none for its argument's type, is group recompute.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.plan.border_types import arrow_of
from headrace.plan.catalyst.bridge import Bridge
from headrace.plan.catalyst.expressions import Expr
from headrace.plan.catalyst.kinds import AggregateCall, AggregateFunction
from headrace.plan.catalyst.made_nodes import mapped
from headrace.plan.tree import Attr
from headrace.state.accumulators import Accumulator
from headrace.state.accumulators.bits import BitAnd, BitOr, BitXor
from headrace.state.accumulators.counts import Count
from headrace.state.accumulators.doubles import DoubleSum
from headrace.state.accumulators.extremes import Extreme, FirstInOrder, Greatest, Least, Maximum, Minimum
from headrace.state.accumulators.sums import DecimalSum, SmallSum, WideSum

_SMALL = (pa.int8(), pa.int16(), pa.int32())
_BIGINT_DIGITS = 18
"""So many digits of a decimal fit 64 bits whatever they are."""


@dataclass
class Accumulation:
    """A call of an aggregate function whose value is accumulated, and by what."""

    accumulator: Accumulator
    argument: Expr | None
    """NULL where a row does not count (a filter is folded in); None of what is over distinct values."""
    result: Attr
    """What the operator hands to Spark: for sums the raw sum, which the result expressions then convert."""
    count: Attr | None = None
    """Where the number of counted rows is wanted too (averages)."""
    distinct: int | None = None
    """Which of the aggregate's distinct values it is over, instead of all."""
    filter: int = 0
    """Which of the filters of these values is its own."""

    @property
    def in_order(self) -> bool:
        """Whether its values are kept in order."""
        return self.accumulator.order is not None


class AccumulationRule(ABC):
    """How the calls of a function accumulate. None means that only a recomputation is exact."""

    ignores_distinct: ClassVar[bool] = False
    """Whether the result is the same however often a value is there."""

    @property
    def counts_once(self) -> bool:
        """Whether it says what values come to of which each counts once: `of_values`."""
        return type(self).of_values is not AccumulationRule.of_values

    @abstractmethod
    def of_rows(self, b: Bridge, call: AggregateCall, append_only: bool) -> Accumulation | None:
        """Over all rows that pass the call's filter; `append_only` if none of them is ever taken back."""

    def of_values(
        self, b: Bridge, function: Expr, values: Sequence[Expr]
    ) -> tuple[Accumulation, Sequence[Expr]] | None:
        """Over values of which each counts once, and which these are."""
        return None

    def result(self, b: Bridge, function: Expr, accumulated: Accumulation) -> Expr:
        """What the function makes of what is accumulated."""
        return accumulated.result.handle


class AsItIs(AccumulationRule):
    """A function of one argument, of which each row sends the value, and whose result has the argument's type."""

    def __init__(self, name: str, accumulator: Callable[[pa.DataType], Accumulator]):
        self._name = name
        self._accumulator = accumulator

    def of_rows(self, b: Bridge, call: AggregateCall, append_only: bool) -> Accumulation | None:
        argument = call.function.child
        result = _fresh(b, self._name, argument)
        return Accumulation(self._accumulator(arrow_of(argument)), b.filtered(call, argument), result)


class Extremum(AccumulationRule):
    """A minimum or maximum: in the diffs while rows only come, else the first of the values in order."""

    ignores_distinct = True

    def __init__(self, growing: type[Extreme], changing: type[FirstInOrder]):
        self._growing = growing
        self._changing = changing

    def of_rows(self, b: Bridge, call: AggregateCall, append_only: bool) -> Accumulation | None:
        argument = call.function.child
        kind = arrow_of(argument)
        if pa.types.is_nested(kind) or pa.types.is_null(kind) or argument.is_collated:
            return None
        accumulator = self._growing if append_only and self._growing.can_hold(kind) else self._changing
        result = _fresh(b, call.function.kind.lower(), argument)
        return Accumulation(accumulator(kind), b.filtered(call, argument), result)


class AnyValue(Extremum):
    """The first value that is not null, which may be any: the least."""

    def of_rows(self, b: Bridge, call: AggregateCall, append_only: bool) -> Accumulation | None:
        function = call.function
        assert isinstance(function, AggregateFunction)
        return super().of_rows(b, call, append_only) if function.ignores_nulls else None


class Counting(AccumulationRule):
    """`count` of any number of arguments: of rows in which none is null."""

    def of_rows(self, b: Bridge, call: AggregateCall, append_only: bool) -> Accumulation | None:
        return self._counted(b, b.filtered(call, b.all_not_null(call.function.children)))

    def of_values(
        self, b: Bridge, function: Expr, values: Sequence[Expr]
    ) -> tuple[Accumulation, Sequence[Expr]] | None:
        return self._counted(b, None), values

    @staticmethod
    def _counted(b: Bridge, argument: Expr | None) -> Accumulation:
        return Accumulation(Count(), argument, _fresh(b, "count", b.literal_long(0)))


class Summing(AccumulationRule):
    """`sum`: the raw sum, of the type that holds any, and Spark's own cast of it."""

    def of_rows(self, b: Bridge, call: AggregateCall, append_only: bool) -> Accumulation | None:
        function = self._exact(call.function)
        return None if function is None else self._summed(b, function, b.filtered(call, function.child))

    def of_values(
        self, b: Bridge, function: Expr, values: Sequence[Expr]
    ) -> tuple[Accumulation, Sequence[Expr]] | None:
        exact = self._exact(function)
        found = None if exact is None else self._summed(b, exact, values[0])
        if found is None:
            return None
        assert found.argument is not None
        return replace(found, argument=None), [found.argument]

    def result(self, b: Bridge, function: Expr, accumulated: Accumulation) -> Expr:
        return b.cast(accumulated.result.handle, function)

    @staticmethod
    def _exact(function: Expr) -> AggregateFunction | None:
        """The function, if a sum that does not fit is an error in it."""
        assert isinstance(function, AggregateFunction)
        return function if function.eval_mode == "ANSI" else None

    def _summed(self, b: Bridge, function: AggregateFunction, value: Expr) -> Accumulation | None:
        kind, buffer = arrow_of(value), function.buffers[0]
        if pa.types.is_floating(kind):
            return Accumulation(DoubleSum(), b.cast(value, buffer), _fresh(b, "sum", buffer))
        if kind in _SMALL:  # read as an integer for averages too: not every sum is a double, and Spark's cast rounds it
            return Accumulation(SmallSum(kind), value, _fresh(b, "sum", b.literal_long(0)))
        if kind == pa.int64():
            return Accumulation(self._wide(kind), value, _fresh(b, "sum", buffer))
        if pa.types.is_decimal(kind):
            accumulator = WideSum(kind) if kind.precision <= _BIGINT_DIGITS else DecimalSum(kind)
            return Accumulation(accumulator, value, _fresh(b, "sum", b.literal_decimal(kind.scale)))
        return None

    def _wide(self, kind: pa.DataType) -> WideSum:
        return WideSum(kind)


class Averaging(Summing):
    """`avg`: what Spark makes of a sum and a count."""

    def result(self, b: Bridge, function: Expr, accumulated: Accumulation) -> Expr:
        assert isinstance(function, AggregateFunction) and accumulated.count is not None
        sums, counts = function.buffers
        total = b.cast(accumulated.result.handle, sums)
        return mapped(function.result, {sums.id: total, counts.id: accumulated.count.handle})

    def _summed(self, b: Bridge, function: AggregateFunction, value: Expr) -> Accumulation | None:
        count = _fresh(b, "count", b.literal_long(0))
        found = super()._summed(b, function, value)
        return None if found is None else replace(found, count=count)

    def _wide(self, kind: pa.DataType) -> WideSum:
        return WideSum(kind, as_double=True)


def _fresh(b: Bridge, name: str, typed_like: Expr) -> Attr:
    handle = b.alias(typed_like, name).attribute.as_nullable
    return Attr(handle.id, name, handle.type, handle)


RULES: Mapping[str, AccumulationRule] = {
    "Count": Counting(),
    "Sum": Summing(),
    "Average": Averaging(),
    "Min": Extremum(Minimum, Least),
    "Max": Extremum(Maximum, Greatest),
    "First": AnyValue(Minimum, Least),
    "BitAndAgg": AsItIs("bit_and", BitAnd),
    "BitOrAgg": AsItIs("bit_or", BitOr),
    "BitXorAgg": AsItIs("bit_xor", BitXor),
}
"""By the kind of Catalyst's function."""

__all__ = ["RULES", "Accumulation", "AccumulationRule"]
