"""Numbers of more than 64 bits: columns of int64 with 32 bits each, lowest first, the last one signed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import NumericOutOfRange
from headrace.state.accumulators.accumulator import nulled
from headrace.state.kernels import checked
from headrace.state.kernels.combination import LIMB_BITS, LIMB_MASK

DECIMAL_LIMBS = 4
"""Of a decimal of 128 bits."""


def normalized(limbs: list[np.ndarray]) -> list[np.ndarray]:
    """Carry upwards, until every limb but the last lies in [0, 2**32)."""
    out = []
    carry = np.zeros(len(limbs[0]), dtype=np.int64)
    for limb in limbs[:-1]:
        total = limb + carry
        out.append(total & LIMB_MASK)
        carry = total >> LIMB_BITS
    return [*out, checked.plus(limbs[-1], carry)]


def times(limbs: list[np.ndarray], weights: np.ndarray) -> list[np.ndarray]:
    """Numbers times integers of any size. Raises `NumericOutOfRange` where the last limb would not hold the product."""
    lower = ((weights & LIMB_MASK) ^ (1 << 31)) - (1 << 31)  # in [-2**31, 2**31), so that products with limbs fit
    upper = (weights >> LIMB_BITS) + (lower < 0)
    low = normalized([limb * lower for limb in limbs])
    if not upper.any():
        return low
    high = normalized([limb * upper for limb in limbs])
    found = normalized([low[0], *(a + b for a, b in zip(low[1:], high[:-1]))])
    # What is left of the highest limb belongs above the last one.
    if np.any(abs(high[-1]) >= 1 << (LIMB_BITS - 3)):
        raise NumericOutOfRange("[ARITHMETIC_OVERFLOW] a sum of decimals is out of range")
    return [*found[:-1], found[-1] + (high[-1] << LIMB_BITS)]


def of_decimals(values: pa.Array) -> list[np.ndarray]:
    """Unscaled decimal128 values; null is zero."""
    words = np.frombuffer(values.buffers()[1], dtype=np.uint32)
    words = words[values.offset * DECIMAL_LIMBS : (values.offset + len(values)) * DECIMAL_LIMBS]
    words = words.reshape(-1, DECIMAL_LIMBS)
    present = np.asarray(pc.is_valid(values))
    limbs = [np.where(present, words[:, i].astype(np.int64), 0) for i in range(DECIMAL_LIMBS - 1)]
    return [*limbs, np.where(present, words[:, -1].astype(np.int32).astype(np.int64), 0)]


def as_double(limbs: list[np.ndarray], count: np.ndarray) -> pa.Array:
    """Numbers of two limbs as the doubles that they are about; null where no row counts."""
    low, high = limbs
    return nulled(high.astype(np.float64) * float(1 << LIMB_BITS) + low, count)


def as_bigint(limbs: list[np.ndarray], count: np.ndarray) -> pa.Array:
    """Numbers of two limbs as int64; null where no row counts. Raises `NumericOutOfRange`."""
    low, high = limbs
    half = 1 << (LIMB_BITS - 1)
    if np.any((high < -half) | (high >= half)):
        raise NumericOutOfRange("[ARITHMETIC_OVERFLOW] a sum of bigint values is out of range")
    return nulled((high << LIMB_BITS) | low, count)


def as_decimal(limbs: list[np.ndarray], count: np.ndarray, result: pa.DataType) -> pa.Array:
    """Numbers of up to four limbs as decimal128; null where no row counts. Raises `NumericOutOfRange`."""
    words = np.zeros((len(limbs[0]), DECIMAL_LIMBS), dtype=np.int64)
    for i, limb in enumerate(limbs[:-1]):
        words[:, i] = limb
    top = limbs[-1]
    for i in range(len(limbs) - 1, DECIMAL_LIMBS - 1):  # sign extension
        words[:, i] = top & LIMB_MASK
        top = top >> LIMB_BITS
    words[:, -1] = top
    half = 1 << (LIMB_BITS - 1)
    if np.any((top < -half) | (top >= half)) or _beyond_decimal(words):
        raise NumericOutOfRange("[ARITHMETIC_OVERFLOW] a sum of decimals is out of range")
    packed = np.ascontiguousarray(words.astype(np.uint32, casting="unsafe"))
    valid = pa.array(count != 0)
    raw = pa.Array.from_buffers(result, len(count), [None, pa.py_buffer(packed)])
    return pc.if_else(valid, raw, pa.scalar(None, result))


def _beyond_decimal(words: np.ndarray) -> bool:
    """Whether a 128-bit number, as four limbs in a row, has more than 38 digits."""
    bound = 10**38
    low = (words[:, 0] | (words[:, 1] << LIMB_BITS)).astype(np.uint64)
    high = words[:, 2] | (words[:, 3] << LIMB_BITS)
    above = (high > bound >> 64) | ((high == bound >> 64) & (low >= np.uint64(bound & (2**64 - 1))))
    below = (high < -bound >> 64) | ((high == -bound >> 64) & (low <= np.uint64(-bound & (2**64 - 1))))
    return bool(np.any(above | below))


__all__ = ["DECIMAL_LIMBS", "as_bigint", "as_decimal", "as_double", "normalized", "of_decimals", "times"]
