"""Integer arithmetic that does not wrap: of weights, counts and sums. Results beyond 64 bits are an error (22003)."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import NumericOutOfRange
from headrace.state.kernels.equality import Ints

LIMB_BITS = 32
LIMB_MASK = (1 << LIMB_BITS) - 1
_LIMIT = 1 << 63

ROWS = "a row is there"
"""What a weight is."""
SUMS = "a sum or count is"
"""What the columns of accumulators are."""


def plus(a: Ints, b: Ints, what: str = SUMS) -> Ints:
    """Element by element. Raises `NumericOutOfRange`."""
    try:
        return np.asarray(pc.add_checked(pa.array(a), pa.array(b)))
    except pa.ArrowInvalid:
        _refuse(what)


def times(a: Ints, b: Ints, what: str = ROWS) -> Ints:
    """Element by element. Raises `NumericOutOfRange`."""
    try:
        return np.asarray(pc.multiply_checked(pa.array(a), pa.array(b)))
    except pa.ArrowInvalid:
        _refuse(what)


def sums(values: Ints, starts: Ints, carry: Ints | None = None, what: str = SUMS) -> Ints:
    """The sum of every group, which begins at `starts[i]` and ends where the next begins, and what is carried to it.

    Exact whatever the numbers come to on the way. Raises `NumericOutOfRange`.
    """
    if not len(starts):
        return np.zeros(0, dtype=np.int64)
    largest = max(int(values.max()), -int(values.min()))
    carried = 0 if carry is None else max(int(carry.max()), -int(carry.min()))
    if largest * len(values) + carried < _LIMIT:
        total = np.add.reduceat(values, starts)
        return total if carry is None else total + carry
    low, high = np.add.reduceat(values & LIMB_MASK, starts), np.add.reduceat(values >> LIMB_BITS, starts)
    if carry is not None:
        low, high = low + (carry & LIMB_MASK), high + (carry >> LIMB_BITS)
    high += low >> LIMB_BITS
    if np.any((high < -(1 << 31)) | (high >= 1 << 31)):
        _refuse(what)
    return (high << LIMB_BITS) | (low & LIMB_MASK)


def count(weights: Ints) -> int:
    """How many rows there are where weights are above zero, of any size."""
    there = np.maximum(weights, 0)
    return (int((there >> LIMB_BITS).sum()) << LIMB_BITS) + int((there & LIMB_MASK).sum())


def as_bigint(value: int, what: str = SUMS) -> int:
    """The number itself. Raises `NumericOutOfRange`."""
    if not -_LIMIT <= value < _LIMIT:
        _refuse(what)
    return value


def _refuse(what: str) -> NoReturn:
    times = f" more often than {_LIMIT - 1} times" if what == ROWS else " out of the range of bigint"
    raise NumericOutOfRange(f"[ARITHMETIC_OVERFLOW] {what}{times}")
