"""Which rows of a file come or go: those that are kept now and were not before, or the other way round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass


@dataclass(frozen=True)
class FileChanges:
    """Rows of a file that come or go."""

    columns: Sequence[pa.Array]
    positions: np.ndarray[Any, Any]
    """Where they are in the file, from 0."""
    weights: np.ndarray[Any, Any]
    """1 for a row that comes, -1 for one that goes."""


Kept = Callable[[pa.RecordBatch, int], np.ndarray[Any, Any]]
"""Whether each row of a batch, of which the first is at a place in its file, is kept."""


def changed_part(
    batch: pa.RecordBatch, position: int, was: Kept | None, now: Kept | None, width: int
) -> FileChanges | None:  # fmt: skip
    """The rows of a batch that come or go, None if there are none; its first columns are those that are wanted."""
    weights = np.zeros(batch.num_rows, np.int64)
    if now is not None:
        weights += now(batch, position)
    if was is not None:
        weights -= was(batch, position)
    found = np.flatnonzero(weights)
    if not len(found):
        return None
    whole = len(found) == batch.num_rows
    columns = [batch.column(i) if whole else batch.column(i).take(pa.array(found)) for i in range(width)]
    return FileChanges(columns, found + position, weights[found])
