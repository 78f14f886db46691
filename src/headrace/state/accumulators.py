"""How accumulable aggregates are kept: what a row sends, which diff columns store it, and how the sums read.

Every layout is exact under retraction: integers and decimals as limbs of 32 bits, which carry where they are combined
(`TableSchema.carries`), so that they add without overflow however many rows there are; doubles as
numbers with as many bits as they need (`kernels.exact_sum`) beside separate counts of NaN, +Inf and -Inf. Minima and
maxima accumulate only over input that is never retracted; otherwise ("least", "greatest") the values themselves are
kept in order beside the sums, see `dataflow.operators.values`. `bit_and`, `bit_or` and `bit_xor` count for each bit how
many rows have it set: all, any, or an odd number of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import NumericOutOfRange
from headrace.state.kernels import checked, exact_sum
from headrace.state.kernels.combine import LIMB_BITS, LIMB_MASK
from headrace.state.kernels.equality import fixed_width, int64_values
from headrace.state.schema import Combine

_DECIMAL_LIMBS = 4

_WIRE: dict[str, tuple[str, ...]] = {
    "count": ("n",),
    "sum_small": ("n", "s"),
    "sum_wide": ("n", "0", "1"),
    "sum_decimal": ("raw",),
    "sum_float": ("raw",),
    "min": ("raw",),
    "max": ("raw",),
    "least": ("raw",),
    "greatest": ("raw",),
    "bit_and": ("raw",),
    "bit_or": ("raw",),
    "bit_xor": ("raw",),
}
_BITWISE = ("bit_and", "bit_or", "bit_xor")


def wire_columns(kind: str) -> tuple[str, ...]:
    """Suffixes of the columns that a row sends; all but `raw` are int64 and may be summed before they are sent."""
    return _WIRE[kind]


def can_preaggregate(kind: str) -> bool:
    """Whether Spark may combine the columns of many rows before the shuffle without losing exactness."""
    return kind not in ("sum_decimal", "sum_float", "least", "greatest", *_BITWISE)


def state_diffs(kind: str, argument: pa.DataType, prefix: str) -> list[tuple[pa.Field, Combine]]:
    """The diff columns that hold one accumulator."""

    def add(suffix: str) -> tuple[pa.Field, Combine]:
        return pa.field(f"{prefix}_{suffix}", pa.int64()), "add"

    if kind in ("count", "sum_small", "sum_wide"):
        return [add(s) for s in _WIRE[kind]]
    if kind == "sum_decimal":
        return [add("n"), *(add(str(i)) for i in range(_DECIMAL_LIMBS))]
    if kind == "sum_float":
        total = pa.field(f"{prefix}_x", exact_sum.EXACT_TYPE)
        return [*(add(s) for s in ("n", "nan", "pinf", "ninf")), (total, "exact")]
    if kind in ("least", "greatest"):
        return []
    if kind in _BITWISE:
        return [add("n"), *(add(f"b{i}") for i in range(argument.bit_width))]
    if pa.types.is_floating(argument):  # Arrow's kernels pass over NaN, which is Spark's greatest number
        raise ValueError(f"{kind} of {argument} cannot be accumulated; its values are kept in order")
    combine: Combine = "min" if kind == "min" else "max"
    return [(pa.field(f"{prefix}_m", argument), combine)]


def to_diffs(kind: str, wire: Sequence[pa.Array], weights: np.ndarray) -> list[pa.Array]:
    """Diff columns of rows, from what they sent and their int64 weights."""
    if kind == "sum_float":
        return _float_diffs(wire[0], weights)
    if kind in _BITWISE:
        return _bit_diffs(wire[0], weights)
    if kind == "sum_decimal":
        present = np.asarray(pc.is_valid(wire[0]))
        limbs = _times(_decimal_limbs(wire[0]), weights)
        return [pa.array(np.where(present, weights, 0)), *map(pa.array, limbs)]
    if kind == "sum_wide":
        return [wire[0], *map(pa.array, _normalized([int64_values(limb) for limb in wire[1:]]))]
    return list(wire)


def _times(limbs: list[np.ndarray], weights: np.ndarray) -> list[np.ndarray]:
    """Numbers times integers of any size. Raises `NumericOutOfRange` where the last limb would not hold the product."""
    lower = ((weights & LIMB_MASK) ^ (1 << 31)) - (1 << 31)  # in [-2**31, 2**31), so that products with limbs fit
    upper = (weights >> LIMB_BITS) + (lower < 0)
    low = _normalized([limb * lower for limb in limbs])
    if not upper.any():
        return low
    high = _normalized([limb * upper for limb in limbs])
    found = _normalized([low[0], *(a + b for a, b in zip(low[1:], high[:-1]))])
    # What is left of the highest limb belongs above the last one.
    if np.any(abs(high[-1]) >= 1 << (LIMB_BITS - 3)):
        raise NumericOutOfRange("[ARITHMETIC_OVERFLOW] a sum of decimals is out of range")
    return [*found[:-1], found[-1] + (high[-1] << LIMB_BITS)]


def from_values(kind: str, values: pa.Array, weights: np.ndarray) -> list[pa.Array]:
    """Diff columns of rows whose values, none of them null, are at hand. Decimals must fit their type."""
    if kind in ("sum_decimal", "sum_float"):
        return to_diffs(kind, [values], weights)
    n = pa.array(weights)
    if kind == "count":
        return [n]
    if kind == "sum_small":
        return [n, pa.array(np.asarray(values).astype(np.int64) * weights)]
    words = fixed_width(values).reshape(len(values), values.type.bit_width // 64)[:, 0].view(np.int64)
    return [n, pa.array((words & LIMB_MASK) * weights), pa.array((words >> LIMB_BITS) * weights)]


def _float_diffs(values: pa.Array, weights: np.ndarray) -> list[pa.Array]:
    present = np.asarray(pc.is_valid(values))
    x = np.asarray(pc.fill_null(values, 0.0), dtype=np.float64)
    finite = np.isfinite(x)
    counts = [
        np.where(present, weights, 0),
        np.where(np.isnan(x), weights, 0),
        np.where(np.isposinf(x), weights, 0),
        np.where(np.isneginf(x), weights, 0),
    ]
    total = exact_sum.products(np.where(present & finite, x, 0.0), weights)
    return [*(pa.array(c.astype(np.int64)) for c in counts), total]


def _bit_diffs(values: pa.Array, weights: np.ndarray) -> list[pa.Array]:
    """How many rows there are, and how many of them have each bit of their value set, the lowest first."""
    counts = np.where(np.asarray(pc.is_valid(values)), weights, 0)
    bits = np.asarray(pc.fill_null(values, 0)).view(f"u{values.type.bit_width // 8}")
    one = bits.dtype.type(1)
    found = [np.where((bits >> bits.dtype.type(i)) & one, counts, 0) for i in range(values.type.bit_width)]
    return [pa.array(counts), *map(pa.array, found)]


def _decimal_limbs(values: pa.Array) -> list[np.ndarray]:
    """Unscaled decimal128 values as int64 limbs of 32 bits, lowest first, the last one signed; null is zero."""
    words = np.frombuffer(values.buffers()[1], dtype=np.uint32)
    words = words[values.offset * _DECIMAL_LIMBS : (values.offset + len(values)) * _DECIMAL_LIMBS]
    words = words.reshape(-1, _DECIMAL_LIMBS)
    present = np.asarray(pc.is_valid(values))
    limbs = [np.where(present, words[:, i].astype(np.int64), 0) for i in range(_DECIMAL_LIMBS - 1)]
    return [*limbs, np.where(present, words[:, -1].astype(np.int32).astype(np.int64), 0)]


def counted(kind: str, diffs: Sequence[pa.Array]) -> pa.Array:
    """How many rows the accumulator has counted."""
    return diffs[0]


def read(kind: str, diffs: Sequence[pa.Array], result: pa.DataType) -> pa.Array:
    """The accumulated value of every row in the type asked for; null where no row counted.

    A sum of doubles is the double nearest to the exact sum: it does not depend on the order of addition. In its place
    `diffs` may have what it was rounded to already.

    Raises `NumericOutOfRange` where a sum does not fit the type.
    """
    if kind == "count":
        return diffs[0]
    if kind in ("min", "max"):
        return diffs[0]
    count = np.asarray(diffs[0])
    if kind == "sum_float":
        return _read_float(diffs, count)
    if kind == "sum_small":
        return _nulled(np.asarray(diffs[1]), count).cast(result)
    if kind in _BITWISE:
        return _read_bits(kind, [np.asarray(d) for d in diffs[1:]], count, result)
    limbs = _normalized([np.asarray(d) for d in diffs[1:]])
    if pa.types.is_decimal(result):
        return _read_decimal(limbs, count, result)
    return _read_long(limbs, count, result)


def _nulled(values: np.ndarray, count: np.ndarray) -> pa.Array:
    return pa.array(values, mask=count == 0)


def _read_float(diffs: Sequence[pa.Array], count: np.ndarray) -> pa.Array:
    nan, pinf, ninf = (np.asarray(d) for d in diffs[1:4])
    total = np.asarray(diffs[4]) if pa.types.is_float64(diffs[4].type) else exact_sum.rounded(diffs[4])
    total = np.where(pinf > 0, np.inf, np.where(ninf > 0, -np.inf, total))
    total = np.where((nan > 0) | ((pinf > 0) & (ninf > 0)), np.nan, total)
    return _nulled(total, count)


def _normalized(limbs: list[np.ndarray]) -> list[np.ndarray]:
    """Carry upwards, until every limb but the last lies in [0, 2**32)."""
    out = []
    carry = np.zeros(len(limbs[0]), dtype=np.int64)
    for limb in limbs[:-1]:
        total = limb + carry
        out.append(total & LIMB_MASK)
        carry = total >> LIMB_BITS
    return [*out, checked.plus(limbs[-1], carry)]


def _read_long(limbs: list[np.ndarray], count: np.ndarray, result: pa.DataType) -> pa.Array:
    low, high = limbs
    if pa.types.is_floating(result):
        return _nulled(high.astype(np.float64) * float(1 << LIMB_BITS) + low, count)
    half = 1 << (LIMB_BITS - 1)
    if np.any((high < -half) | (high >= half)):
        raise NumericOutOfRange("[ARITHMETIC_OVERFLOW] a sum of bigint values is out of range")
    return _nulled((high << LIMB_BITS) | low, count)


def _read_decimal(limbs: list[np.ndarray], count: np.ndarray, result: pa.DataType) -> pa.Array:
    words = np.zeros((len(limbs[0]), _DECIMAL_LIMBS), dtype=np.int64)
    for i, limb in enumerate(limbs[:-1]):
        words[:, i] = limb
    top = limbs[-1]
    for i in range(len(limbs) - 1, _DECIMAL_LIMBS - 1):  # sign extension
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


def _read_bits(kind: str, counts: list[np.ndarray], count: np.ndarray, result: pa.DataType) -> pa.Array:
    unsigned = np.dtype(f"u{result.bit_width // 8}")
    found = np.zeros(len(count), dtype=unsigned)
    for i, rows in enumerate(counts):
        is_set = rows == count if kind == "bit_and" else rows > 0 if kind == "bit_or" else rows % 2 != 0
        found |= is_set.astype(unsigned) << unsigned.type(i)
    return _nulled(found.view(f"i{unsigned.itemsize}"), count)


def _beyond_decimal(words: np.ndarray) -> bool:
    """Whether a 128-bit number, as four limbs in a row, has more than 38 digits."""
    bound = 10**38
    low = (words[:, 0] | (words[:, 1] << LIMB_BITS)).astype(np.uint64)
    high = words[:, 2] | (words[:, 3] << LIMB_BITS)
    above = (high > bound >> 64) | ((high == bound >> 64) & (low >= np.uint64(bound & (2**64 - 1))))
    below = (high < -bound >> 64) | ((high == -bound >> 64) & (low <= np.uint64(-bound & (2**64 - 1))))
    return bool(np.any(above | below))
