"""Aggregates over all rows that a query reads: counts, sums of whole numbers, and what is lowest or highest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.dataflow.operators.exactness import ORDERED
from headrace.dataflow.operators.kernel_expressions import Expression, RowColumns, UncertainValue
from headrace.session.reading.twins import NoTwin, Twins
from headrace.sql.binder import bound_tree as bt
from headrace.state.kernels import checked

Ints = npt.NDArray[np.int64]
_LARGE: Final = 1 << 62


def total(at: Twins, found: bt.BoundAggregate) -> Expression | None:
    """What an aggregate is over; None for one of rows. Raises `NoTwin` for one that is Spark's."""
    if found.distinct or found.order or found.where is not None or found.form not in _TOTALS:
        raise NoTwin(found.form)
    if not found.arguments:
        return None
    (argument,) = found.arguments
    if found.form in (_SUM, _LONG_SUM):
        at.require(argument, pa.types.is_integer)
    elif found.form != _COUNT:
        at.require(argument, *ORDERED)
    return at.of(argument)


def totals(
    aggregates: Sequence[bt.BoundAggregate],
    over: Sequence[Expression | None],
    rows: Iterable[RowColumns],
    weight: Expression,
) -> list[object]:
    """The value of each aggregate. Raises `UncertainValue` for sums that may be too large, and what kernels raise."""
    kept: list[list[tuple[pa.Array | None, Ints]]] = [[] for _ in aggregates]
    for part in rows:
        weights = np.asarray(part.array(weight))
        for found, expression in zip(kept, over, strict=True):
            found.append((None if expression is None else part.array(expression), weights))
    return [_TOTALS[a.form](found) for a, found in zip(aggregates, kept, strict=True)]


_Parts = Sequence[tuple[pa.Array | None, Ints]]


def _count(parts: _Parts) -> int:
    counted = (w if a is None or not a.null_count else w[np.asarray(a.is_valid())] for a, w in parts)
    return checked.as_bigint(sum(checked.count(weights) for weights in counted))


def _sum(parts: _Parts) -> int | None:
    found, bound, any_value = 0, 0, False
    for array, weights in parts:
        assert array is not None
        valid = np.asarray(array.is_valid()) & (weights > 0)
        values, times = np.asarray(pc.fill_null(array, 0)).astype(np.int64)[valid], weights[valid]
        if not len(values):
            continue
        any_value = True
        largest = max(abs(int(values.min())), abs(int(values.max())))
        bound += largest * checked.count(times)
        if bound >= _LARGE:
            raise UncertainValue("a large sum")
        found += int(np.dot(values, times))
    return found if any_value else None


def _extreme(which: str) -> Callable[[_Parts], object]:
    def of(parts: _Parts) -> object:
        arrays = [array.filter(pa.array(weights > 0)) for array, weights in parts if array is not None]
        return pc.min_max(pa.chunked_array(arrays))[which] if arrays else None

    return of


COUNT_ROWS: Final = "count(1)"
_COUNT: Final = "count({d}{0})"
_SUM: Final = "sum({d}{0})"
_LONG_SUM: Final = "CAST(sum({d}{0}) {w} AS DECIMAL(19,0))"
_TOTALS: Final[Mapping[str, Callable[[_Parts], object]]] = {
    COUNT_ROWS: _count, _COUNT: _count, _SUM: _sum, _LONG_SUM: _sum,
    "min({0})": _extreme("min"), "max({0})": _extreme("max"),
}  # fmt: skip
