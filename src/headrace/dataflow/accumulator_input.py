"""What rows send to accumulators, as Spark's expressions, and how Spark makes one of several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from headrace.common.lazy_dataclass import dataclass
from headrace.plan.catalyst.bridge import Bridge
from headrace.plan.catalyst.expressions import Expr
from headrace.state.accumulators import Accumulator, Sent

MERGED: Mapping[str, Callable[[SparkColumn], SparkColumn]] = {"sum": F.sum, "min": F.min, "max": F.max}
"""Spark's function for what `Wire.merged` says."""


def wire_columns(
    b: Bridge, accumulator: Accumulator, argument: Expr, weight: SparkColumn, prefix: str
) -> list[SparkColumn]:
    """The columns that rows send, by the argument and the weight of each."""
    row = _Row(b, argument, accumulator.argument, weight)
    return [_SENDERS[w.sent](row).alias(f"{prefix}_{w.suffix}") for w in accumulator.wire]


@dataclass(frozen=True)
class _Row:
    """A row with the argument of an accumulator, and with its weight; what it may send."""

    bridge: Bridge
    argument: Expr
    kind: pa.DataType
    weight: SparkColumn

    def value(self) -> SparkColumn:
        return self._value

    def count(self) -> SparkColumn:
        return F.when(self._value.isNotNull(), self.weight).otherwise(self._zero)

    def product(self) -> SparkColumn:
        return F.coalesce(self._value.cast("bigint") * self.weight, self._zero)

    def low(self) -> SparkColumn:
        return F.coalesce(self._product[0], self._zero)

    def high(self) -> SparkColumn:
        return F.coalesce(self._product[1], self._zero)

    # Each is made once, however many columns have it in them: all of it is asked of Java.

    @cached_property
    def _value(self) -> SparkColumn:
        return self.bridge.column(self.argument)

    @cached_property
    def _zero(self) -> SparkColumn:
        return _bigint(0)

    @cached_property
    def _product(self) -> tuple[SparkColumn, SparkColumn]:
        """The value without its decimal point times the weight."""
        b = self.bridge
        whole = b.column(b.unscaled(self.argument)) if pa.types.is_decimal(self.kind) else self._value
        return _limbs(whole, self.weight)


_SENDERS: Mapping[Sent, Callable[[_Row], SparkColumn]] = {
    Sent.VALUE: _Row.value,
    Sent.COUNT: _Row.count,
    Sent.PRODUCT: _Row.product,
    Sent.LOW: _Row.low,
    Sent.HIGH: _Row.high,
}


def _limbs(whole: SparkColumn, weight: SparkColumn) -> tuple[SparkColumn, SparkColumn]:
    """A number of 64 bits times a weight, as a lower limb of 32 bits and what is above it.

    Any weight will do: what is above fails only beyond 95 bits (of a single product, or of what Spark adds up).
    """
    mask, one = _bigint(0xFFFFFFFF), _bigint(1)
    low, high = whole.bitwiseAND(mask), F.shiftright(whole, 32)
    # The weight's lower half with a sign, so that its product with the number's lower half has 64 bits.
    w_low = weight.bitwiseAND(mask) - weight.bitwiseAND(_bigint(1 << 31)) * _bigint(2)
    w_high = F.shiftright(weight, 32) + F.shiftright(weight, 31).bitwiseAND(one)
    product = low * w_low
    above = F.shiftright(product, 32) + high * w_low + low * w_high + high * w_high * _bigint(1 << 32)
    return product.bitwiseAND(mask), above


def _bigint(value: int) -> SparkColumn:
    return F.lit(value).cast("bigint")


__all__ = ["MERGED", "wire_columns"]
