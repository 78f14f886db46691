"""Order-preserving codes: the leading bits of a row's sort key as one int64.

A smaller code means an earlier row; rows that tie in the order have equal codes; rows that do not may share one,
because 64 bits hold only so much. So whoever needs the exact order compares the values of rows that share a code, and
only of these. (An abbreviated sort key: Graefe, "Implementing sorting in database systems", 2006.)

`__h` of a state table that is kept in order is this code instead of a hash, so the rows of one key lie in order in
every run. Strings give their first eight bytes. `Arrangement.first_rows` reads the first rows of each key from every
run, up to a horizon: the lowest code at which some run has more. What lies below it is complete; keys for which that
is not enough are read further.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.state.kernels import checked
from headrace.state.kernels.equality import Bools, Ints, canonical_bits, fixed_width, validity

CODE_BITS = 64
_SIGN = np.uint64(1 << 63)

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class OrderColumn:
    """One column of an order. `nulls_first` is None where the values are known to have no null."""

    descending: bool = False
    nulls_first: bool | None = True


def value_bits(kind: pa.DataType) -> int:
    """How many bits a value of the type adds to a code; 0 where it cannot be put into one."""
    t = pa.types
    if t.is_boolean(kind):
        return 1
    if t.is_decimal(kind):
        return int((10**kind.precision).bit_length() + 1) if kind.precision <= 18 else CODE_BITS
    if t.is_dictionary(kind) or t.is_null(kind) or t.is_nested(kind) or t.is_unsigned_integer(kind):
        return 0
    if t.is_primitive(kind):
        return int(kind.bit_width)
    return CODE_BITS if _is_text(kind) else 0


def useful(kinds: Sequence[pa.DataType]) -> int:
    """How many of an order's columns, from the first, have a part in its code."""
    used = 0
    for i, kind in enumerate(kinds):
        bits = value_bits(kind)
        used += 1 + bits
        if bits == 0 or used >= CODE_BITS:
            return i + 1
    return len(kinds)


def order_codes(columns: Sequence[pa.Array], keys: Sequence[OrderColumn]) -> Ints:
    """The code of every row. Doubles are ordered as in Spark: 0.0 and -0.0 tie, NaN is the greatest."""
    code = np.zeros(len(columns[0]), dtype=np.uint64)
    used = 0
    for column, key in zip(columns, keys, strict=True):
        present = validity(column)
        if key.nulls_first is not None:
            null = np.zeros(len(code), dtype=np.bool_) if present is None else ~present
            used = _append(code, used, (null != key.nulls_first).astype(np.uint64), 1)
        bits = value_bits(column.type)
        if bits == 0:
            break
        words = _words(column)
        if key.descending:
            words ^= np.uint64(2**bits - 1)
        if present is not None:
            words[~present] = 0
        used = _append(code, used, words, bits)
        if used == CODE_BITS:
            break
    return (code ^ _SIGN).view(np.int64)


def _append(code: Words, used: int, words: Words, bits: int) -> int:
    """Put as many of the words' leading bits as there is room for behind those in `code`; how many it has now."""
    room = CODE_BITS - used
    code |= words << np.uint64(room - bits) if bits <= room else words >> np.uint64(bits - room)
    return min(CODE_BITS, used + bits)


def _is_text(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_string(kind) or t.is_binary(kind) or t.is_large_string(kind) or t.is_large_binary(kind))


def _words(column: pa.Array) -> Words:
    """Unsigned numbers in the order of the values, in `value_bits` bits. Anything where the value is null."""
    kind, t = column.type, pa.types
    if _is_text(kind):
        return _first_bytes(column)
    if t.is_decimal(kind):
        return _decimals(column)
    if t.is_boolean(kind):
        return fixed_width(column).astype(np.uint64)
    size = kind.bit_width
    if t.is_floating(kind):
        return _floats(canonical_bits(column), size)
    return fixed_width(column).astype(np.uint64) ^ np.uint64(1 << (size - 1))


def _floats(bits: npt.NDArray[np.generic], size: int) -> Words:
    sign, full = np.uint64(1 << (size - 1)), np.uint64(2**size - 1)
    words = bits.astype(np.uint64)
    words[words == sign] = 0  # -0.0
    return np.where(words & sign != 0, words ^ full, words | sign)


def _decimals(column: pa.Array) -> Words:
    halves = fixed_width(column).reshape(len(column), column.type.bit_width // 64)
    low, high = halves[:, 0], halves[:, -1].view(np.int64)
    if column.type.precision <= 18:
        with np.errstate(over="ignore"):
            return low + np.uint64(1 << (value_bits(column.type) - 1))
    # As doubles, rounded. Where the low half is below what a double can tell, it is left out: to round twice could put
    # numbers out of order.
    near = np.abs(high.astype(np.float64)) < 2.0**52
    value = high.astype(np.float64) * 2.0**64 + np.where(near, low.astype(np.float64), 0.0)
    return _floats(value.view(np.uint64), CODE_BITS)


def _first_bytes(column: pa.Array) -> Words:
    """The first eight bytes of strings and binaries, zeros after the end."""
    n, kind, t = len(column), column.type, pa.types
    wide = t.is_large_string(kind) or t.is_large_binary(kind)
    _, offset_buffer, data_buffer = column.buffers()
    if n == 0 or offset_buffer is None or data_buffer is None or data_buffer.size == 0:
        return np.zeros(n, dtype=np.uint64)
    dtype = np.dtype(np.int64 if wide else np.int32)
    offsets = np.frombuffer(offset_buffer, dtype, count=n + 1, offset=column.offset * dtype.itemsize).astype(np.int64)
    data = np.frombuffer(data_buffer, dtype=np.uint8)
    words = np.zeros(n, dtype=np.uint64)
    length = np.diff(offsets)
    for i in range(8):
        inside = length > i
        byte = data[np.where(inside, offsets[:-1] + i, 0)]
        words |= np.where(inside, byte, 0).astype(np.uint64) << np.uint64(56 - 8 * i)
    return words


def leading(k: Ints, code: Ints, units: Ints, need: Ints) -> Bools:
    """Which rows are among the first of their key: those before `need` units are full, and all that tie with the last.

    Rows are sorted by `k`, `code`; `units` is what each row counts for, `need` what its key wants, both per row.
    """
    n = len(k)
    if n == 0:
        return np.zeros(0, dtype=np.bool_)
    new_key = np.concatenate(([True], k[1:] != k[:-1]))
    new_code = new_key | np.concatenate(([True], code[1:] != code[:-1]))
    before = np.cumsum(units) - units
    before -= before[np.flatnonzero(new_key)][np.cumsum(new_key) - 1]
    tie = np.flatnonzero(new_code)[np.cumsum(new_code) - 1]
    return before[tie] < need


def counted_units(k: Ints, code: Ints, weights: Ints, *, by_code: bool) -> Ints:
    """What every row counts for: its multiplicity, or with `by_code` 1 for the first live row of every code.

    Raises `NumericOutOfRange` where sums of multiplicities might not have 64 bits.
    """
    alive = weights > 0
    if not by_code:
        checked.as_bigint(4 * checked.count(weights), checked.ROWS)
        return np.where(alive, weights, 0)
    rows = np.flatnonzero(alive)
    first = np.ones(len(rows), dtype=np.bool_)
    first[1:] = (k[rows[1:]] != k[rows[:-1]]) | (code[rows[1:]] != code[rows[:-1]])
    units = np.zeros(len(k), dtype=np.int64)
    units[rows[first]] = 1
    return units


__all__ = ["CODE_BITS", "OrderColumn", "counted_units", "leading", "order_codes", "useful", "value_bits"]
