"""Matching of rows by key: hashes first, then the real columns.

Hashes only propose pairs; the key columns decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.arrangement import Arrangement
from headrace.state.kernels import int64_values, rows_equal, sizes

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


def in_pieces(
    pairs: Iterator[tuple[Ints, Ints]], left: pa.RecordBatch, right: pa.RecordBatch
) -> Iterator[tuple[Ints, Ints]]:
    """Pairs of rows of two batches in pieces that take about `CHUNK_BYTES` when they are made; -1 for no row."""
    most = left.nbytes + right.nbytes
    each: tuple[Ints, Ints] | None = None
    for li, ri in pairs:
        if len(li) * most <= sizes.CHUNK_BYTES:  # no row takes more than all
            yield li, ri
            continue
        if each is None:
            each = sizes.row_bytes(left), np.append(sizes.row_bytes(right), 0)
        begin = 0
        for end in sizes.cut_rows(each[0][li] + each[1][ri], sizes.CHUNK_BYTES):
            yield li[begin:end], ri[begin:end]
            begin = end


def lookup(left_k: Ints, left_keys: Sequence[pa.Array], right_k: Ints, right_keys: Sequence[pa.Array]) -> Ints:
    """For each left row the position of the one right row with the same key, or -1. `right_k` must be sorted."""
    found = np.full(len(left_k), -1, dtype=np.int64)
    for li, ri in matching_pairs(left_k, left_keys, right_k, right_keys):
        found[li] = ri
    return found


def fetched(table: Arrangement, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, Ints]:
    """What a state table has of the keys of rows (sorted by `__k`), and for each row its position there, or -1.

    For tables that have no columns beside the key.
    """
    k = int64_values(rows.column("__k"))
    first = np.ones(len(k), dtype=np.bool_)
    first[1:] = k[1:] != k[:-1]
    old = table.fetch(k[first])
    keys, old_keys = ([b.column(f.name) for f in table.schema.key] for b in (rows, old))
    return old, lookup(k, keys, int64_values(old.column("__k")), old_keys)


def take_or_null(array: pa.Array, positions: Ints) -> pa.Array:
    """Values at the positions; null for -1."""
    return array.take(pa.array(positions, mask=positions < 0))
