"""Between values of which types Arrow's kernels compute exactly what Spark does, or raise."""

from __future__ import annotations

import pyarrow as pa

_t = pa.types
ORDERED = (_t.is_integer, _t.is_string, _t.is_date32, _t.is_timestamp)
"""Tests of types whose values are compared alike."""


def exact_decimal(function: str, left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type in which sums and products of decimals are exact; None if it would be too long."""
    if not (_t.is_decimal(left) and _t.is_decimal(right)):
        return None
    if function == "multiply":
        precision, scale = left.precision + right.precision + 1, left.scale + right.scale
    else:
        scale = max(left.scale, right.scale)
        precision = max(left.precision - left.scale, right.precision - right.scale) + scale + 1
    return pa.decimal128(precision, scale) if precision <= 38 else None


def always_casts(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a cast between different types is one that no value of the type fails, and Arrow does as Spark."""
    if _t.is_integer(source):
        digits = {8: 3, 16: 5, 32: 10, 64: 19}[source.bit_width]
        if _t.is_integer(target):
            return bool(target.bit_width > source.bit_width)
        if _t.is_decimal(target):
            return bool(target.precision - target.scale >= digits)
        return bool(_t.is_float64(target) or _t.is_string(target))
    if _t.is_decimal(source):
        wider = target.precision - target.scale >= source.precision - source.scale if _t.is_decimal(target) else False
        return bool(wider and target.scale >= source.scale)
    return (_t.is_timestamp(source) or _t.is_date32(source)) and _t.is_timestamp(target)


def narrows(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a cast keeps every digit of the values that fit, and fails on all others."""
    if _t.is_integer(source):
        return bool(_t.is_integer(target) or _t.is_decimal(target))
    return bool(_t.is_decimal(source) and _t.is_decimal(target) and target.scale >= source.scale)
