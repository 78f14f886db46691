"""User functions over many rows at once, called so that weights and sides survive them. Runs in Spark's workers.

A function over batches gets inserted rows first and then, in a second call, removed ones; what it makes of them carries
the sign. A function over groups gets each version of a group by itself; what it makes of it carries the side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from inspect import getfullargspec
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

WEIGHT, SIDE = "__w", "__side"


def loaded(command: bytes) -> Callable[..., Any]:
    """The user's function, from what Spark would have sent to its worker."""
    from pyspark import cloudpickle

    function: Callable[..., Any] = cloudpickle.loads(command)[0]
    return function


class _Signed:
    """Splits weighted batches by sign: an iterator over inserted rows, which sets removed ones aside."""

    def __init__(self, batches: Iterator[Any], split: Callable[[Any], tuple[Any, Any]]):
        self._batches = batches
        self._split = split
        self.removed: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            inserted, removed = self._split(batch)
            if len(removed):
                self.removed.append(removed)
            if len(inserted):
                yield inserted


def _run(function: Callable[..., Any], batches: Iterator[Any], split: Any, weigh: Any) -> Iterator[Any]:
    signed = _Signed(batches, split)
    inserted = iter(signed)
    first = next(inserted, None)
    if first is not None:
        for made in function(_chained(first, inserted)):
            yield from weigh(made, 1)
        for _ in inserted:  # a function that stops early must not hide what is removed
            pass
    if signed.removed:
        for made in function(iter(signed.removed)):
            yield from weigh(made, -1)


def _chained(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _positions(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which rows to insert and which to remove, each as often as its weight says."""
    rows = np.arange(len(weights))
    return np.repeat(rows, np.maximum(weights, 0)), np.repeat(rows, np.maximum(-weights, 0))


def map_frames(command: bytes, names: Sequence[str]) -> Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]]:
    """`mapInPandas` over rows whose last column is their weight; `names` are the columns of its result."""

    def split(batch: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
        inserted, removed = _positions(batch.iloc[:, -1].to_numpy())
        rows = batch.iloc[:, :-1]
        return rows.iloc[inserted].reset_index(drop=True), rows.iloc[removed].reset_index(drop=True)

    def weigh(made: pd.DataFrame, sign: int) -> Iterator[pd.DataFrame]:
        if len(made):
            yield _tagged(made, names, WEIGHT, sign)

    def run(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        yield from _run(loaded(command), batches, split, weigh)

    return run


def map_batches(command: bytes, names: Sequence[str]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """`mapInArrow` over rows whose last column is their weight; `names` are the columns of its result."""

    def split(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        inserted, removed = _positions(np.asarray(batch.column(batch.num_columns - 1)))
        rows = batch.select(list(range(batch.num_columns - 1)))
        return rows.take(pa.array(inserted)), rows.take(pa.array(removed))

    def weigh(made: pa.RecordBatch, sign: int) -> Iterator[pa.RecordBatch]:
        if made.num_rows:
            yield _tagged_arrow(made, names, WEIGHT, pa.array(np.full(made.num_rows, sign, dtype=np.int64)))

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _run(loaded(command), batches, split, weigh)

    return run


def apply_frame(command: bytes, width: int, names: Sequence[str]) -> Callable[[Any, pd.DataFrame], pd.DataFrame]:
    """`applyInPandas` for a version of a group: its first `width` columns are the user's, the last key is the side."""

    def run(key: Any, group: pd.DataFrame) -> pd.DataFrame:
        function = loaded(command)
        rows = group.iloc[:, :width]
        made = function(rows) if len(getfullargspec(function).args) == 1 else function(tuple(key[:-1]), rows)
        if not len(made):
            return pd.DataFrame({name: pd.Series([], dtype=object) for name in [*names, SIDE]})
        return _tagged(made, names, SIDE, np.int32(key[-1]))

    return run


def apply_table(command: bytes, width: int, names: Sequence[str]) -> Callable[[Any, pa.Table], pa.Table]:
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
        made.columns = pd.Index(list(names))
    made[tag] = value
    return made


def _tagged_arrow(made: Any, names: Sequence[str], tag: str, values: pa.Array) -> Any:
    missing = [name for name in names if name not in made.schema.names]
    if missing:
        raise ValueError(f"the function's result has no column {', '.join(missing)}; it has {made.schema.names}")
    columns = [*(made.column(name) for name in names), values]
    return type(made).from_arrays(columns, names=[*names, tag])
