"""A stable 64-bit hash of rows: a pure, vectorised function of their values.

The same values hash alike in every process and whatever the array's slicing, or the bytes that stand in place of a
null; all NaNs are one value. Collisions are harmless: readers compare the values themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.kernels.equality import Ints, canonical_bits, fixed_width, validity

Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]

_NULL = np.uint64(0x9E3779B97F4A7C15)
_SEED = np.uint64(0xA0761D6478BD642F)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_POSITION = np.uint64(0xD6E8FEB86659FD93)
_SEED_INT, _M1_INT, _M2_INT, _POSITION_INT = int(_SEED), int(_M1), int(_M2), int(_POSITION)


def hash_columns(columns: Sequence[pa.Array]) -> Ints:
    """One hash per row over all columns, as int64. Raises `TypeError` for a type without a hash."""
    if not columns:
        raise ValueError("a row without columns has no hash")
    with np.errstate(over="ignore"):
        result = np.full(len(columns[0]), _SEED, dtype=np.uint64)
        for column in columns:
            result = mix(result * _M1 + _values(column))
        return result.view(np.int64)


def mix(x: Words) -> Words:
    """A bijection of 64-bit words that spreads every bit over all others (the finalizer of SplitMix64)."""
    x = x ^ (x >> np.uint64(30))
    x = x * _M1
    x = x ^ (x >> np.uint64(27))
    x = x * _M2
    return x ^ (x >> np.uint64(31))


_WORD = (1 << 64) - 1


def hash_key(values: Sequence[int | str], masks: Sequence[int]) -> int:
    """`hash_columns` of one row of integers, booleans and strings: for few rows many times as fast.

    `masks` are what `key_mask` says of the columns.
    """
    result = _SEED_INT
    for value, mask in zip(values, masks):
        word = _hash_text(value) if isinstance(value, str) else _mix(value & mask)
        result = _mix(result * _M1_INT + word & _WORD)
    return result - (1 << 64) if result >> 63 else result


def key_mask(kind: pa.DataType) -> int | None:
    """As many bits as a column is wide, for `hash_key`; None for a type that it does not know."""
    t = pa.types
    if t.is_string(kind) or t.is_boolean(kind):
        return 0xFF
    return (1 << kind.bit_width) - 1 if t.is_signed_integer(kind) else None


def _mix(x: int) -> int:
    x ^= x >> 30
    x = x * _M1_INT & _WORD
    x ^= x >> 27
    x = x * _M2_INT & _WORD
    return x ^ (x >> 31)


def _hash_text(text: str) -> int:
    data = text.encode()
    total = len(data) * _M2_INT
    for i in range(0, len(data), 8):
        word = int.from_bytes(data[i : i + 8], "little")
        total += _mix(word + (i >> 3) * _POSITION_INT + _SEED_INT & _WORD)
    return _mix(total & _WORD)


def string_bytes(array: pa.Array) -> tuple[Ints, Bytes]:
    """Strings' offsets, from 0 and one more than there are strings, and the bytes (uint8) that they point to."""
    t, kind, buffers = pa.types, array.type, array.buffers()
    if len(array) == 0 or buffers[1] is None:
        return np.zeros(len(array) + 1, dtype=np.int64), np.zeros(0, dtype=np.uint8)
    wide = t.is_large_string(kind) or t.is_large_binary(kind)
    width = np.dtype(np.int64 if wide else np.int32)
    offsets = np.frombuffer(buffers[1], width, len(array) + 1, array.offset * width.itemsize).astype(np.int64)
    start, length = int(offsets[0]), int(offsets[-1] - offsets[0])
    data = np.frombuffer(buffers[2], np.uint8, length, start) if length else np.zeros(0, dtype=np.uint8)
    return offsets - start, data


def words_at(data: Bytes) -> Words:
    """The little-endian word that begins at each of the bytes, and at their end; beyond that all bytes are 0."""
    padded = np.zeros(len(data) + 8, dtype=np.uint8)
    padded[:-8] = data
    return np.ndarray((len(data) + 1,), dtype="<u8", buffer=padded, strides=(1,))


def _values(array: pa.Array) -> Words:
    """One hash per value."""
    kind, t = array.type, pa.types
    if t.is_null(kind):
        return np.full(len(array), _NULL, dtype=np.uint64)
    if t.is_dictionary(kind):
        return _values(array.dictionary_decode())
    if t.is_fixed_size_list(kind):
        return _values(array.cast(pa.list_(kind.value_type)))
    if t.is_struct(kind):
        result = np.full(len(array), _SEED, dtype=np.uint64)
        for i in range(kind.num_fields):
            result = mix(result * _M1 + _values(array.field(i)))
    elif t.is_map(kind):
        result = _segments(_offsets(array), mix(_values(array.keys) * _M2 + _values(array.items)))
    elif t.is_list(kind) or t.is_large_list(kind):
        result = _segments(_offsets(array), _values(array.values))
    elif t.is_string(kind) or t.is_binary(kind) or t.is_large_string(kind) or t.is_large_binary(kind):
        result = _bytes(array)
    elif t.is_floating(kind):
        result = mix(canonical_bits(array).astype(np.uint64))
    elif t.is_primitive(kind) or t.is_decimal(kind):
        result = _fixed(array)
    else:
        raise TypeError(f"no hash for values of type {kind}")
    present = validity(array)
    return result if present is None else np.where(present, result, _NULL)


def _fixed(array: pa.Array) -> Words:
    words = fixed_width(array)
    if words.ndim == 1:
        return mix(words.astype(np.uint64))
    result = np.full(len(array), _SEED, dtype=np.uint64)
    for i in range(words.shape[1]):
        result = mix(result * _M1 + words[:, i].astype(np.uint64))
    return result


def _offsets(array: pa.Array) -> Ints:
    return np.asarray(array.offsets).astype(np.int64, copy=False)


def _bytes(array: pa.Array) -> Words:
    """Strings of bytes, eight bytes at a time; what sticks out of the last word is masked off."""
    if len(array) == 0:
        return np.zeros(0, dtype=np.uint64)
    offsets, data = string_bytes(array)
    lengths = np.diff(offsets)
    counts = (lengths + 7) >> 3
    ends = np.cumsum(counts)
    within = np.arange(int(ends[-1]), dtype=np.int64) - np.repeat(ends - counts, counts)
    words = words_at(data)[np.repeat(offsets[:-1], counts) + 8 * within]
    spare_bits = np.maximum(64 - 8 * (np.repeat(lengths, counts) - 8 * within), 0).astype(np.uint64)
    words = (words << spare_bits) >> spare_bits
    return _combined(words, within, ends, counts, lengths)


def _segments(offsets: Ints, elements: npt.NDArray[np.generic]) -> Words:
    """One hash for each stretch of elements."""
    start, stop = int(offsets[0]), int(offsets[-1])
    lengths = np.diff(offsets)
    within = np.arange(start, stop, dtype=np.int64) - np.repeat(offsets[:-1], lengths)
    return _combined(elements[start:stop].astype(np.uint64), within, offsets[1:] - start, lengths, lengths)


def _combined(elements: Words, within: Ints, ends: Ints, counts: Ints, lengths: Ints) -> Words:
    """For each stretch, which ends before `ends`: a sum over elements mixed with their positions, and the length."""
    mixed = mix(elements + within.astype(np.uint64) * _POSITION + _SEED)
    sums = np.concatenate((np.zeros(1, dtype=np.uint64), np.cumsum(mixed, dtype=np.uint64)))
    total: Words = sums[ends] - sums[ends - counts]
    return mix(total + lengths.astype(np.uint64) * _M2)
