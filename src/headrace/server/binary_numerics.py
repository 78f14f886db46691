"""Decimals in PostgreSQL's binary format, many at once: groups of four digits, without the zero ones at both ends."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_GROUP: Final = 10_000
_GROUP_DIGITS: Final = 4
_MOST_DIGITS: Final = 18
"""Digits after the point of which a word of 64 bits holds the power of ten."""
_NEGATIVE: Final = 0x4000
_HEAD_CELLS: Final = 4
"""Words of 16 bits before the groups."""

Counts: TypeAlias = npt.NDArray[np.int16]


def numerics_binary(array: pa.Array, *, bare: bool) -> pa.Array | None:
    """The values of a column of decimals; None where one of them does not fit into 64 bits.

    `bare` leaves out zeros at the end of the fraction. What is null is as zero is.
    """
    scale = array.type.scale
    words = _words(array)
    if words is None or not 0 <= scale <= _MOST_DIGITS:
        return None
    negative = words < 0
    size = np.where(negative, ~words.view(np.uint64) + np.uint64(1), words.view(np.uint64))
    groups, before = _groups(size, scale)
    first, counts, kept = _kept(groups)
    cells = np.empty((len(words), _HEAD_CELLS + len(groups)), ">i2")
    cells[:, 0] = counts
    cells[:, 1] = np.where(counts > 0, before - 1 - first, 0)
    cells[:, 2] = negative * np.int16(_NEGATIVE)
    cells[:, 3] = scale - _zeros_at_end(size, scale) if bare else scale
    mask = np.ones(cells.shape, np.bool_)
    for i, (group, is_kept) in enumerate(zip(groups, kept, strict=True), _HEAD_CELLS):
        cells[:, i], mask[:, i] = group, is_kept
    offsets = np.zeros(len(words) + 1, np.int32)
    np.cumsum(2 * (_HEAD_CELLS + counts), out=offsets[1:])
    data = cells if mask.all() else cells[mask]
    return pa.Array.from_buffers(pa.binary(), len(words), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _kept(groups: Sequence[npt.NDArray[np.uint64]]) -> tuple[Counts, Counts, list[npt.NDArray[np.bool_]]]:
    """The first group of each value that is not zero, how many there are from it to the last such, and which these are.

    Group by group: numpy is slow along an axis of a few.
    """
    there = [group != 0 for group in groups]
    begun, ended = list(accumulate(there, np.logical_or)), list(accumulate(reversed(there), np.logical_or))
    kept = [a & b for a, b in zip(begun, reversed(ended), strict=True)]
    first, counts = (sum((m.astype(np.int16) for m in masks), np.zeros(len(there[0]), np.int16))
                     for masks in ([~b for b in begun], kept))  # fmt: skip
    return first, counts, kept


def _words(array: pa.Array) -> npt.NDArray[np.int64] | None:
    """The values without their points, as whole numbers; None where one is too large."""
    both = np.frombuffer(array.buffers()[1], np.int64).reshape(-1, 2)[array.offset : array.offset + len(array)]
    low, high = both[:, 0].copy(), both[:, 1].copy()
    if array.null_count:
        gone = np.asarray(array.is_null())
        low[gone] = high[gone] = 0
    return low if (high == low >> 63).all() else None


def _groups(size: npt.NDArray[np.uint64], scale: int) -> tuple[list[npt.NDArray[np.uint64]], int]:
    """The groups of digits of all values, from the first on, and how many of them stand before the point."""
    point = np.uint64(10**scale)
    whole, fraction = size // point, size % point
    most = int(whole.max(initial=0))
    before = -(-len(str(most)) // _GROUP_DIGITS) if most else 0
    groups = [whole // np.uint64(_GROUP**i) % np.uint64(_GROUP) for i in reversed(range(before))]
    for done in range(_GROUP_DIGITS, scale + _GROUP_DIGITS, _GROUP_DIGITS):
        rest = scale - done
        if rest >= 0:
            groups.append(fraction // np.uint64(10**rest) % np.uint64(_GROUP))
        else:
            groups.append(fraction % np.uint64(10 ** (_GROUP_DIGITS + rest)) * np.uint64(10**-rest))
    return groups or [np.zeros(len(size), np.uint64)], before


def _zeros_at_end(size: npt.NDArray[np.uint64], scale: int) -> npt.NDArray[np.int64]:
    """How many digits at the end of each fraction are zeros."""
    zeros = np.zeros(len(size), np.int64)
    for digits in range(1, scale + 1):
        zeros += size % np.uint64(10**digits) == 0
    return zeros
