"""The order of rows by several keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.session.reading.read_plans import ReadOrder

Ints = npt.NDArray[np.int64]


def sorted_places(columns: Sequence[pa.Array], keys: Sequence[ReadOrder], most: int | None = None) -> pa.Array:
    """The places of the rows, sorted by the columns of the keys, nulls where each wants them; the first `most` of them.

    Stable.
    """
    ranks = [_ranks(column, key) for column, key in zip(columns, keys, strict=True)]
    places = np.arange(len(ranks[0]))
    if most is not None and most < len(places) // 4:
        # Those that cannot be among the first by the first key alone take no part.
        bound = np.partition(ranks[0], most)[most] if most else ranks[0].min(initial=0)
        places = places[ranks[0] <= bound]
    # A stable sort by one key after the other, the last key first.
    for rank in reversed(ranks):
        places = places[np.argsort(rank[places], kind="stable")]
    return pa.array(places[:most])


def _ranks(column: pa.Array, key: ReadOrder) -> Ints:
    """A number for each value of a column, in the order wanted."""
    column = column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column
    if pa.types.is_string(column.type):
        different = column.unique().drop_null()
        ordered = different.take(pc.array_sort_indices(different))
        column = pc.index_in(column, value_set=ordered)
    elif pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    numbers = np.asarray(pc.fill_null(column.cast(pa.int64()), 0))
    missing = np.asarray(column.is_null())
    if key.descending:
        numbers = ~numbers  # which is the same order backwards, also for the lowest number
    if not missing.any():
        return numbers
    present = numbers[~missing]
    low, high = (int(present.min()), int(present.max())) if len(present) else (0, 0)
    bound = low - 1 if key.nulls_first else high + 1
    if not np.iinfo(np.int64).min <= bound <= np.iinfo(np.int64).max:
        numbers = np.unique(numbers, return_inverse=True)[1].astype(np.int64)
        bound = -1 if key.nulls_first else len(numbers)
    return np.where(missing, bound, numbers)
