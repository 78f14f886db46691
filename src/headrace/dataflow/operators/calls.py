"""User functions over many rows at once, called so that weights and sides survive them. Runs in Spark's workers.

A function over batches gets inserted rows first and then, in a second call, removed ones; what it makes of them carries
the sign. A function over groups gets each version of a group by itself; what it makes of it carries the side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from inspect import getfullargspec
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.dataflow.operators.task import OUTPUT_ROWS
from headrace.state.kernels.copies import piece_rows, repeated

if TYPE_CHECKING:
    import pandas as pd

WEIGHT, SIDE = "__w", "__side"
Split = Callable[[Any], tuple[Any, np.ndarray]]
"""From a batch to its rows and their weights."""
Take = Callable[[Any, np.ndarray], Any]
"""The rows at some positions."""


def loaded(command: bytes) -> Callable[..., Any]:
    """The user's function, from what Spark would have sent to its worker."""
    from pyspark import cloudpickle

    function: Callable[..., object] = cloudpickle.loads(command)[0]
    return function


class _Signed:
    """Splits weighted batches by sign: an iterator over inserted rows, which sets removed ones aside."""

    def __init__(self, batches: Iterator[object], split: Split, take: Take):
        self._batches = batches
        self._split = split
        self._take = take
        self._removed: list[tuple[object, np.ndarray]] = []
        self.stopped = False
        """Nobody wants more of the inserted rows."""

    def __iter__(self) -> Iterator[object]:
        for batch in self._batches:
            rows, weights = self._split(batch)
            if (weights < 0).any():
                gone = np.flatnonzero(weights < 0)
                self._removed.append((self._take(rows, gone), -weights[gone]))
            if not self.stopped:
                yield from self._copies(rows, weights)

    def removed(self) -> Iterator[object]:
        """The rows that were set aside."""
        for rows, counts in self._removed:
            yield from self._copies(rows, counts)

    def _copies(self, rows: object, counts: np.ndarray) -> Iterator[object]:
        """Each row as often as its count says, some at a time."""
        arrow = isinstance(rows, pa.RecordBatch)  # frames hold long values once, however many rows have them
        for at in repeated(counts, piece_rows(rows, OUTPUT_ROWS) if arrow else OUTPUT_ROWS):
            yield self._take(rows, at)
            if self.stopped:
                return


def _run(function: Callable[..., Any], batches: Iterator[Any], split: Split, take: Take, weigh: Any) -> Iterator[Any]:
    signed = _Signed(batches, split, take)
    inserted = iter(signed)
    first = next(inserted, None)
    if first is not None:
        for made in function(_chained(first, inserted)):
            yield from weigh(made, 1)
        signed.stopped = True
        for _ in inserted:  # a function that stops early must not hide what is removed
            pass
        signed.stopped = False
    removed = signed.removed()
    first = next(removed, None)
    if first is not None:
        for made in function(_chained(first, removed)):
            yield from weigh(made, -1)


def _chained(first: object, rest: Iterator[object]) -> Iterator[object]:
    yield first
    yield from rest


def map_frames(command: bytes, names: Sequence[str]) -> Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]]:
    """`mapInPandas` over rows whose last column is their weight; `names` are the columns of its result."""

    def split(batch: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
        return batch.iloc[:, :-1], batch.iloc[:, -1].to_numpy()

    def take(rows: pd.DataFrame, at: np.ndarray) -> pd.DataFrame:
        return rows.iloc[at].reset_index(drop=True)

    def weigh(made: pd.DataFrame, sign: int) -> Iterator[pd.DataFrame]:
        if len(made):
            yield _tagged(made, names, WEIGHT, sign)

    def run(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        yield from _run(loaded(command), batches, split, take, weigh)

    return run


def map_batches(command: bytes, names: Sequence[str]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """`mapInArrow` over rows whose last column is their weight; `names` are the columns of its result."""

    def split(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, np.ndarray]:
        rows = batch.select(list(range(batch.num_columns - 1)))
        return rows, np.asarray(batch.column(batch.num_columns - 1))

    def take(rows: pa.RecordBatch, at: np.ndarray) -> pa.RecordBatch:
        return rows.take(pa.array(at))

    def weigh(made: pa.RecordBatch, sign: int) -> Iterator[pa.RecordBatch]:
        if made.num_rows:
            yield _tagged_arrow(made, names, WEIGHT, pa.array(np.full(made.num_rows, sign, dtype=np.int64)))

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _run(loaded(command), batches, split, take, weigh)

    return run


def apply_frame(command: bytes, width: int, names: Sequence[str]) -> Callable[[object, pd.DataFrame], pd.DataFrame]:
    """`applyInPandas` for a version of a group: its first `width` columns are the user's, the last key is the side."""

    def run(key: Any, group: Any) -> Any:
        function = loaded(command)
        rows = group.iloc[:, :width]
        made = function(rows) if len(getfullargspec(function).args) == 1 else function(tuple(key[:-1]), rows)
        if not len(made):
            import pandas as pd

            return pd.DataFrame({name: pd.Series([], dtype=object) for name in [*names, SIDE]})
        return _tagged(made, names, SIDE, np.int32(key[-1]))

    return run


def apply_table(command: bytes, width: int, names: Sequence[str]) -> Callable[[object, pa.Table], pa.Table]:
    """`applyInArrow` for one version of a group, as `apply_frame`."""

    def run(key: Any, group: pa.Table) -> pa.Table:
        function = loaded(command)
        rows = group.select(list(range(width)))
        made = function(rows) if len(getfullargspec(function).args) == 1 else function(tuple(key[:-1]), rows)
        side = pa.array(np.full(made.num_rows, key[-1].as_py(), dtype=np.int32))
        return _tagged_arrow(made, names, SIDE, side)

    return run


def _tagged(made: pd.DataFrame, names: Sequence[str], tag: str, value: Any) -> pd.DataFrame:
    """A result with one more column; columns go by name where they have names, else by position, as in Spark."""
    if any(isinstance(label, str) for label in made.columns):
        missing = [name for name in names if name not in made.columns]
        if missing:
            raise ValueError(f"the function's result has no column {', '.join(missing)}; it has {list(made.columns)}")
        made = made[list(names)].copy(deep=False)
    elif made.shape[1] != len(names):
        raise ValueError(f"the function's result has {made.shape[1]} columns; {len(names)} are declared")
    else:
        made = made.copy(deep=False)
        made.columns = list(names)
    made[tag] = value
    return made


def _tagged_arrow(made: Any, names: Sequence[str], tag: str, values: pa.Array) -> Any:
    missing = [name for name in names if name not in made.schema.names]
    if missing:
        raise ValueError(f"the function's result has no column {', '.join(missing)}; it has {made.schema.names}")
    columns = [*(made.column(name) for name in names), values]
    return type(made).from_arrays(columns, names=[*names, tag])
