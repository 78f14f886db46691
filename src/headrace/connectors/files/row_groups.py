"""Row groups of Parquet files: the smallest parts of such a file that can be read apart.

To read rows from the middle of a row group means to decode it from its start. So read tasks begin and end with row
groups, and whoever stops in one decodes no more of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

import pyarrow as pa
import pyarrow.parquet as papq

BATCH_ROWS: Final = 65_536


def row_group_ends(file: papq.ParquetFile) -> tuple[int, ...]:
    """Return for each row group the number of rows up to its end."""
    metadata = file.metadata
    return tuple(accumulate(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)))


def nearest_end(ends: Sequence[int], row: int, low: int, high: int) -> int:
    """Return the end of a row group that is nearest to `row`, or `low` or `high` where one of these is nearer."""
    place = bisect_left(ends, row)
    candidates = (low, high, *(end for end in ends[max(place - 1, 0) : place + 1] if low < end < high))
    return min(candidates, key=lambda end: abs(end - row))


def read_rows(
    file: papq.ParquetFile, names: Sequence[str], start: int, stop: int | None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows [start, stop) of some columns, each batch with the number of rows before it in the file."""
    end = file.metadata.num_rows if stop is None else stop
    base = 0
    for group, group_end in enumerate(row_group_ends(file)):
        if base < end and group_end > start:
            # The tasks share the processors already.
            yield from _of_group(file.iter_batches(BATCH_ROWS, [group], names, use_threads=False), base, start, end)
        base = group_end


def _of_group(
    batches: Iterator[pa.RecordBatch], position: int, start: int, end: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield what lies in [start, end) of batches of which the first begins at `position`."""
    for batch in batches:
        low, high = max(start - position, 0), min(end - position, batch.num_rows)
        if low < high:
            yield position + low, batch.slice(low, high - low)
        position += batch.num_rows
        if position >= end:
            return
