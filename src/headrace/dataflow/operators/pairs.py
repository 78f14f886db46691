"""Matching of rows by key: hashes first, then the real columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.kernels import rows_equal

Ints = npt.NDArray[np.int64]

PAIRS_AT_ONCE = 262_144
"""Pairs that a join holds in memory at a time."""


def matching_pairs(
    left_k: Ints, left_keys: Sequence[pa.Array], right_k: Ints, right_keys: Sequence[pa.Array]
) -> Iterator[tuple[Ints, Ints]]:
    """All pairs of rows with equal keys as index arrays, in bounded pieces. `right_k` must be sorted.

    Hashes only propose pairs; the key columns decide.
    """
    low = np.searchsorted(right_k, left_k, side="left")
    count = np.searchsorted(right_k, left_k, side="right") - low
    ends = np.cumsum(count)
    total = int(ends[-1]) if len(ends) else 0
    starts = ends - count
    for begin in range(0, total, PAIRS_AT_ONCE):
        flat = np.arange(begin, min(begin + PAIRS_AT_ONCE, total), dtype=np.int64)
        li = np.searchsorted(ends, flat, side="right")
        ri = low[li] + flat - starts[li]
        if left_keys:
            equal = rows_equal(left_keys, li, right_keys, ri)
            if not equal.all():
                li, ri = li[equal], ri[equal]
        if len(li):
            yield li, ri


def lookup(left_k: Ints, left_keys: Sequence[pa.Array], right_k: Ints, right_keys: Sequence[pa.Array]) -> Ints:
    """For each left row the position of the one right row with the same key, or -1. `right_k` must be sorted."""
    found = np.full(len(left_k), -1, dtype=np.int64)
    for li, ri in matching_pairs(left_k, left_keys, right_k, right_keys):
        found[li] = ri
    return found


def take_or_null(array: pa.Array, positions: Ints) -> pa.Array:
    """Values at the positions; null for -1."""
    return array.take(pa.array(positions, mask=positions < 0))
