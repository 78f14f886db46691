"""Spark's 64-bit hash of rows, as `xxhash64` computes it, over columns of Arrow.

The algorithm is XXH64 (Yann Collet, https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md) with Spark's
conventions: the seed of a row's first column is 42, that of each other one the hash so far, and a null changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.kernels.equality import canonical_bits, fixed_width, validity
from headrace.state.kernels.hashing import string_bytes, words_at

Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]

_SEED = 42
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(p)
    for p in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)


def can_hash(kind: pa.DataType) -> bool:
    """Whether columns of a type can be hashed here."""
    t = pa.types
    known = t.is_boolean(kind) or t.is_integer(kind) or t.is_string(kind) or t.is_date32(kind) or t.is_timestamp(kind)
    known = known or t.is_float32(kind) or t.is_float64(kind)
    return known or (t.is_decimal128(kind) and kind.precision <= 18)


def spark_hash(columns: Sequence[pa.Array]) -> Ints:
    """One hash per row over all columns, which are of types that `can_hash` knows."""
    result = np.full(len(columns[0]), _SEED, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            found = _hashed(column, result)
            present = validity(column)
            result = found if present is None else np.where(present, found, result)
    return result.view(np.int64)


def _hashed(column: pa.Array, seeds: Words) -> Words:
    kind = column.type
    if pa.types.is_string(kind):
        return _bytes(column, seeds)
    if pa.types.is_boolean(kind):
        return _int(np.asarray(column.cast(pa.uint8()).fill_null(0)).astype(np.uint64), seeds)
    if pa.types.is_floating(kind):
        words = canonical_bits(column)
        words = np.where(words << words.dtype.type(1) == 0, words.dtype.type(0), words)  # -0.0 is 0.0
    else:
        words = fixed_width(column)
    if pa.types.is_decimal(kind):
        words = words[:, 0]
    # As signed numbers of their own width, so that the sign is carried into the word.
    signed = words.view(words.dtype.str.replace("u", "i")).astype(np.int64).view(np.uint64)
    if kind.bit_width < 64:
        return _int(signed & np.uint64(0xFFFFFFFF), seeds)
    return _mixed(_word(seeds + _P5 + np.uint64(8), signed))


def _int(values: Words, seeds: Words) -> Words:
    return _mixed(_half(seeds + _P5 + np.uint64(4), values))


def _rotated(x: Words, bits: int) -> Words:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


def _round(accumulated: Words, word: Words) -> Words:
    return _rotated(accumulated + word * _P2, 31) * _P1


def _word(h: Words, word: Words) -> Words:
    return _rotated(h ^ (_rotated(word * _P2, 31) * _P1), 27) * _P1 + _P4


def _half(h: Words, value: Words) -> Words:
    return _rotated(h ^ (value * _P1), 23) * _P2 + _P3


def _mixed(h: Words) -> Words:
    h = (h ^ (h >> np.uint64(33))) * _P2
    h = (h ^ (h >> np.uint64(29))) * _P3
    return h ^ (h >> np.uint64(32))


def _bytes(column: pa.Array, seeds: Words) -> Words:
    """Strings: stripes of 32 bytes, then words, a half word and single bytes, each over the rows that have as many."""
    offsets, data = string_bytes(column)
    words = words_at(data)
    at, lengths = offsets[:-1], np.diff(offsets)
    h = seeds + _P5
    h[lengths >= 32] = _stripes(words, at, lengths, seeds)
    h += lengths.astype(np.uint64)
    at, left = at + (lengths & ~31), lengths & 31
    for _ in range(3):
        rows = np.flatnonzero(left >= 8)
        h[rows] = _word(h[rows], words[at[rows]])
        at[rows] += 8
        left[rows] -= 8
    rows = np.flatnonzero(left >= 4)
    h[rows] = _half(h[rows], words[at[rows]] & np.uint64(0xFFFFFFFF))
    at[rows] += 4
    left[rows] -= 4
    for _ in range(3):
        rows = np.flatnonzero(left > 0)
        h[rows] = _rotated(h[rows] ^ (data[at[rows]].astype(np.uint64) * _P5), 11) * _P1
        at[rows] += 1
        left[rows] -= 1
    return _mixed(h)


def _stripes(words: Words, at: Ints, lengths: Ints, seeds: Words) -> Words:
    """What the whole stripes of the strings with at least one come to."""
    long = lengths >= 32
    at, stripes, seeds = at[long], lengths[long] >> 5, seeds[long]
    lanes = [seeds + _P1 + _P2, seeds + _P2, seeds.copy(), seeds - _P1]
    for stripe in range(int(stripes.max(initial=0))):
        rows = np.flatnonzero(stripes > stripe)
        for i, lane in enumerate(lanes):
            lane[rows] = _round(lane[rows], words[at[rows] + (32 * stripe + 8 * i)])
    h = _rotated(lanes[0], 1) + _rotated(lanes[1], 7) + _rotated(lanes[2], 12) + _rotated(lanes[3], 18)
    for lane in lanes:
        h = (h ^ _round(np.zeros_like(lane), lane)) * _P1 + _P4
    return h
