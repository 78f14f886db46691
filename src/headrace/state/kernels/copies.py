"""Rows as often as their weights say, in pieces of bounded size: a row may stand for a hundred million."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.state.kernels.equality import Ints
from headrace.state.kernels.order import take

PIECE_BYTES = 32 << 20
"""About how large a piece may be; one row may be larger."""


def copies(rows: pa.RecordBatch, counts: Ints, most_rows: int) -> Iterator[pa.RecordBatch]:
    """Each row as often as its count says, in order, at most so many at once; counts below one leave rows out."""
    if (counts == 1).all():
        for start in range(0, rows.num_rows, most_rows):
            yield rows.slice(start, most_rows)
        return
    for at in repeated(counts, piece_rows(rows, most_rows)):
        yield take(rows, at)


def repeated(counts: Ints, most: int) -> Iterator[Ints]:
    """Positions, each as often as its count says, at most so many at once."""
    if not len(counts):
        return
    counts = np.clip(counts, 0, (1 << 62) // len(counts))  # so that the sum fits: nobody reads as far as that
    ends = np.cumsum(counts)
    starts = ends - counts
    for low in range(0, int(ends[-1]), most):
        high = min(low + most, int(ends[-1]))
        first, last = np.searchsorted(ends, low, side="right"), np.searchsorted(starts, high, side="left")
        part = slice(int(first), int(last))
        yield np.repeat(np.arange(part.start, part.stop), np.minimum(ends[part], high) - np.maximum(starts[part], low))


def piece_rows(rows: pa.RecordBatch, most_rows: int) -> int:
    """How many copies of any of the rows make a piece; one at least."""
    width = sum(_widest(c) for c in rows.columns)
    return max(1, min(most_rows, PIECE_BYTES // max(width, 1)))


def _widest(column: pa.Array) -> int:
    """Bytes that the largest value of a column takes, or more."""
    kind, t = column.type, pa.types
    if t.is_struct(kind):
        return 1 + sum(_widest(column.field(i)) for i in range(kind.num_fields))
    if t.is_map(kind) or t.is_list(kind) or t.is_large_list(kind):
        longest = int(np.diff(np.asarray(column.offsets)).max(initial=0))
        values = [column.keys, column.items] if t.is_map(kind) else [column.values]
        return 8 + longest * sum(_widest(v) for v in values)
    if t.is_string(kind) or t.is_binary(kind) or t.is_large_string(kind) or t.is_large_binary(kind):
        return 8 + (pc.max(pc.binary_length(column)).as_py() or 0)
    if t.is_primitive(kind) or t.is_decimal(kind) or t.is_null(kind):
        return 1 + (0 if t.is_null(kind) else -(-kind.bit_width // 8))
    return int(column.nbytes)


__all__ = ["copies", "piece_rows", "repeated"]
