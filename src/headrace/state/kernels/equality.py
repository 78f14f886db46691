"""Exact equality of rows, vectorised, for every Arrow type that Spark exchanges.

NULL equals NULL, NaN equals NaN whatever its bits, 0.0 differs from -0.0. Maps are equal when they hold equal
entries in the same order. Arrays may be sliced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Selector = npt.NDArray[np.generic] | slice
"""Rows of an array: integer positions, or a slice with both bounds given."""

_WORDS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def rows_equal(left: Sequence[pa.Array], li: Selector, right: Sequence[pa.Array], ri: Selector) -> Bools:
    """Whether row `li[i]` of the columns `left` equals row `ri[i]` of the columns `right`, for every i.

    Raises `TypeError` where the types of two columns differ.
    """
    result = np.ones(_count(li), dtype=np.bool_)
    for a, b in zip(left, right, strict=True):
        result &= _equal(a, li, b, ri)
    return result


def int64_values(array: pa.Array) -> Ints:
    """The values of an int64 array without nulls, as a view."""
    return fixed_width(array).view(np.int64)


def validity(array: pa.Array) -> Bools | None:
    """True where a value is present; None when all are."""
    if array.null_count == 0:
        return None
    if pa.types.is_null(array.type):
        return np.zeros(len(array), dtype=np.bool_)
    return _bits(array.buffers()[0], array.offset, len(array))


def fixed_width(array: pa.Array) -> npt.NDArray[Any]:
    """The values of a fixed-width array as unsigned words: a view of shape (n,), or (n, words) beyond 8 bytes.

    Booleans come back as a copy of one byte each. What stands in place of a null is undefined.
    """
    n, kind = len(array), array.type
    buffer = array.buffers()[1]
    if pa.types.is_boolean(kind):
        return _bits(buffer, array.offset, n).view(np.uint8)
    size = kind.bit_width // 8
    word = _WORDS.get(size, np.uint64)
    words = 1 if size in _WORDS else size // 8
    if n == 0 or buffer is None:
        values = np.zeros(n * words, dtype=word)
    else:
        values = np.frombuffer(buffer, dtype=word, count=n * words, offset=array.offset * size)
    return values if words == 1 else values.reshape(n, words)


def canonical_bits(array: pa.Array) -> npt.NDArray[Any]:
    """The bits of a float array, with one spelling of NaN."""
    bits = fixed_width(array)
    floats = bits.view(np.dtype(f"f{bits.itemsize}"))
    nan = np.isnan(floats)
    if not nan.any():
        return bits
    quiet = np.array(np.nan, dtype=floats.dtype).view(bits.dtype)
    return np.where(nan, quiet, bits)


def is_flat(kind: pa.DataType) -> bool:
    """Whether values of the type are held in place as whole words, or are strings or binaries."""
    t = pa.types
    return not (t.is_nested(kind) or t.is_dictionary(kind) or isinstance(kind, pa.ExtensionType))


def _bits(buffer: pa.Buffer | None, offset: int, n: int) -> Bools:
    if n == 0 or buffer is None:
        return np.zeros(n, dtype=np.bool_)
    start, end = offset // 8, (offset + n + 7) // 8
    packed = np.frombuffer(buffer, dtype=np.uint8, count=end - start, offset=start)
    skip = offset - start * 8
    return np.unpackbits(packed, bitorder="little")[skip : skip + n].view(np.bool_)


def _count(rows: Selector) -> int:
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def _positions(rows: Selector) -> npt.NDArray[np.generic]:
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows


def _gather(array: pa.Array, rows: Selector) -> pa.Array:
    if isinstance(rows, slice):
        return array.slice(rows.start, rows.stop - rows.start)
    return array.take(pa.array(rows))


def _equal(a: pa.Array, li: Selector, b: pa.Array, ri: Selector) -> Bools:
    if a.type.id != b.type.id:
        raise TypeError(f"cannot compare {a.type} with {b.type}")
    kind, t = a.type, pa.types
    if isinstance(kind, pa.ExtensionType):
        return _equal(a.storage, li, b.storage, ri)
    if t.is_dictionary(kind):
        return _equal(a.dictionary_decode(), li, b.dictionary_decode(), ri)
    if t.is_null(kind):
        return np.ones(_count(li), dtype=np.bool_)
    if t.is_struct(kind):
        equal = _struct_equal(a, li, b, ri)
    elif t.is_list(kind) or t.is_large_list(kind) or t.is_map(kind) or t.is_fixed_size_list(kind):
        return _list_equal(a, _positions(li), b, _positions(ri))
    elif t.is_floating(kind):
        equal = _float_equal(a, li, b, ri)
    elif _is_words(kind):
        equal = fixed_width(a)[li] == fixed_width(b)[ri]
        equal = equal if equal.ndim == 1 else equal.all(axis=1)
    else:
        equal = np.asarray(pc.fill_null(pc.equal(_gather(a, li), _gather(b, ri)), False))
    return _with_nulls(equal, validity(a), li, validity(b), ri)


def _is_words(kind: pa.DataType) -> bool:
    t = pa.types
    return t.is_primitive(kind) or t.is_decimal(kind)


def _with_nulls(equal: Bools, lv: Bools | None, li: Selector, rv: Bools | None, ri: Selector) -> Bools:
    if lv is None and rv is None:
        return equal
    left = np.ones(len(equal), dtype=np.bool_) if lv is None else lv[li]
    right = np.ones(len(equal), dtype=np.bool_) if rv is None else rv[ri]
    return (equal & left & right) | ~(left | right)


def _float_equal(a: pa.Array, li: Selector, b: pa.Array, ri: Selector) -> Bools:
    x, y = fixed_width(a)[li], fixed_width(b)[ri]
    equal: Bools = x == y
    if not equal.all():
        kind = np.dtype(f"f{x.itemsize}")
        equal |= np.isnan(x.view(kind)) & np.isnan(y.view(kind))
    return equal


def _struct_equal(a: pa.Array, li: Selector, b: pa.Array, ri: Selector) -> Bools:
    if a.type.num_fields != b.type.num_fields:
        raise TypeError(f"cannot compare {a.type} with {b.type}")
    fields = range(a.type.num_fields)
    return rows_equal([a.field(i) for i in fields], li, [b.field(i) for i in fields], ri)


def _list_equal(a: pa.Array, li: npt.NDArray[np.generic], b: pa.Array, ri: npt.NDArray[np.generic]) -> Bools:
    lv, rv = validity(a), validity(b)
    left = np.ones(len(li), dtype=np.bool_) if lv is None else lv[li]
    right = np.ones(len(ri), dtype=np.bool_) if rv is None else rv[ri]
    (a_start, a_length), (b_start, b_length) = list_layout(a), list_layout(b)
    equal = left & right & (a_length[li] == b_length[ri])
    rows = np.flatnonzero(equal & (a_length[li] > 0))
    if len(rows):
        lengths = a_length[li[rows]]
        ends = np.cumsum(lengths)
        within = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
        elements = rows_equal(
            list_children(a),
            np.repeat(a_start[li[rows]], lengths) + within,
            list_children(b),
            np.repeat(b_start[ri[rows]], lengths) + within,
        )
        equal[rows] = np.logical_and.reduceat(elements, ends - lengths)
    return equal | ~(left | right)


def list_layout(array: pa.Array) -> tuple[Ints, Ints]:
    """Start, in the child array, and length of every list."""
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        starts = (np.arange(len(array), dtype=np.int64) + array.offset) * size
        return starts, np.full(len(array), size, dtype=np.int64)
    offsets = np.asarray(array.offsets).astype(np.int64, copy=False)
    return offsets[:-1], np.diff(offsets)


def list_children(array: pa.Array) -> list[pa.Array]:
    """The arrays that hold the elements of lists or maps."""
    return [array.keys, array.items] if pa.types.is_map(array.type) else [array.values]
