"""Groups of rows, and what aggregates make of each: counts, exact sums, what is lowest or highest, all or any.

Without keys all rows are one group, also where there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.lazy_dataclass import dataclass
from headrace.dataflow.operators.exactness import ORDERED
from headrace.dataflow.operators.kernel_expressions import Expression, RowColumns, UncertainValue
from headrace.session.reading.twins import NoTwin, Twins
from headrace.sql.binder import bound_tree as bt
from headrace.state.kernels import checked

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_t = pa.types
_LARGE: Final = 1 << 62
_LONG_DIGITS: Final = 18
"""Digits of decimals that fit into 64 bits."""
_EXACTLY: Final = Context(prec=60)


@dataclass(frozen=True)
class Total:
    """An aggregate as kernels compute it."""

    form: str
    value: Expression | None
    """What it is over; None for whole rows."""
    where: Expression | None
    """Which rows count; None for all."""
    distinct: bool
    type: pa.DataType


@dataclass(frozen=True)
class RowGroups:
    """What each row belongs to."""

    ids: Ints
    """The number of its group."""
    count: int
    weights: Ints
    """How often each row is there, at least once."""


def group_key(at: Twins, expr: bt.Expr) -> Expression:
    """An expression that rows are grouped by. Raises `NoTwin` for one whose values Spark finds equal in other ways."""
    at.require(expr, *ORDERED, _t.is_decimal, _t.is_boolean)
    return at.of(expr)


def total(at: Twins, found: bt.BoundAggregate) -> Total:
    """An aggregate. Raises `NoTwin` for one that is Spark's."""
    if found.order or found.form not in _TOTALS:
        raise NoTwin(found.form)
    where = None if found.where is None else at.of(found.where)
    if not found.arguments:
        return Total(found.form, None, where, False, at.type(found))
    (argument,) = found.arguments
    if found.distinct and found.form in (_SUM, _LONG_SUM):
        raise NoTwin("a sum of different values")
    if found.form == _LONG_SUM:
        at.require(argument, _t.is_integer)
    elif found.form == _SUM:
        at.require(argument, _t.is_integer, _t.is_decimal)
    elif found.form in (_ALL, _ANY):
        at.require(argument, _t.is_boolean)
    elif found.form != _COUNT or found.distinct:
        at.require(argument, *ORDERED, _t.is_decimal, lambda kind: found.form == _COUNT and _t.is_boolean(kind))
    return Total(found.form, at.of(argument), where, found.distinct, at.type(found))


def grouped(
    keys: Sequence[Expression], totals: Sequence[Total], rows: Sequence[RowColumns], weight: Expression
) -> RowColumns:
    """A row for each group: its keys, then its totals.

    Raises `UncertainValue` for sums that may be too large, and what kernels raise.
    """
    wanted = [weight, *keys, *(e for each in totals for e in (each.value, each.where) if e is not None)]
    filled = [part for part in rows if part.length]
    if not filled:
        return _of_nothing(len(keys), totals)
    columns = {e: _together([part.array(e) for part in filled]) for e in wanted}
    weights = np.asarray(columns[weight])
    there = weights > 0
    if not there.all():
        kept = pa.array(there)
        weights, columns = weights[there], {e: column.filter(kept) for e, column in columns.items()}
    if not len(weights):
        return _of_nothing(len(keys), totals)
    ids, firsts = _numbered([columns[key] for key in keys], len(weights))
    groups = RowGroups(ids, len(firsts), weights)
    found = [columns[key].take(pa.array(firsts)) for key in keys]
    found += [_total(each, columns, groups) for each in totals]
    return RowColumns.of(found, len(firsts))


def _together(parts: Sequence[pa.Array]) -> pa.Array:
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _of_nothing(keys: int, totals: Sequence[Total]) -> RowColumns:
    if keys:
        return RowColumns.of([], 0)
    counts = (_COUNT, COUNT_ROWS)
    return RowColumns.of([pa.array([0 if each.form in counts else None], each.type) for each in totals], 1)


def _numbered(keys: Sequence[pa.Array], rows: int) -> tuple[Ints, Ints]:
    """The number of each row's group, in the order in which they come, and the place of the first row of each."""
    ids = np.zeros(rows, dtype=np.int64)
    for key in keys:
        own, count = _encoded(key)
        ids, _ = _encoded(pa.array(ids * count + own))
    count = int(ids.max()) + 1
    firsts = np.empty(count, dtype=np.int64)
    firsts[ids[::-1]] = np.arange(rows - 1, -1, -1)
    return ids, firsts


def _encoded(values: pa.Array) -> tuple[Ints, int]:
    """Numbers for different values, NULL among them, and how many there are."""
    found = values.dictionary_encode(null_encoding="encode")
    return np.asarray(found.indices).astype(np.int64), len(found.dictionary)


def _total(each: Total, columns: Mapping[Expression, pa.Array], groups: RowGroups) -> pa.Array:
    values = None if each.value is None else columns[each.value]
    counted = np.ones(len(groups.ids), dtype=np.bool_) if values is None else np.asarray(values.is_valid())
    if each.where is not None:
        counted = counted & np.asarray(pc.fill_null(columns[each.where], False))
    if not counted.all():
        groups = RowGroups(groups.ids[counted], groups.count, groups.weights[counted])
        values = None if values is None else values.filter(pa.array(counted))
    if each.distinct and each.form == _COUNT and values is not None:
        own, count = _encoded(values)
        pairs = np.unique(groups.ids * count + own)
        found = np.bincount(pairs // count, minlength=groups.count) if count else np.zeros(groups.count)
        return pa.array(found.astype(np.int64))
    made: pa.Array = _TOTALS[each.form](values, groups)
    return made if made.type == each.type else made.cast(each.type)


def _added(numbers: Ints, groups: RowGroups) -> Ints:
    if groups.count == 1:
        return np.array([numbers.sum()], dtype=np.int64)
    found = np.zeros(groups.count, dtype=np.int64)
    np.add.at(found, groups.ids, numbers)
    return found


def _count(values: pa.Array | None, groups: RowGroups) -> pa.Array:
    if checked.count(groups.weights) >= _LARGE:
        raise UncertainValue("a large count")
    return pa.array(_added(groups.weights, groups))


def _seen(groups: RowGroups) -> Bools:
    """The groups that have any value."""
    found = np.zeros(groups.count, dtype=np.bool_)
    found[groups.ids] = True
    return found


def _sum(values: pa.Array, groups: RowGroups) -> pa.Array:
    decimal = _t.is_decimal(values.type)
    numbers = _unscaled(values) if decimal else np.asarray(values).astype(np.int64)
    largest = max(abs(int(numbers.min())), abs(int(numbers.max()))) if len(numbers) else 0
    if largest * checked.count(groups.weights) >= _LARGE:
        raise UncertainValue("a large sum")
    found = pa.array(_added(numbers * groups.weights, groups), mask=~_seen(groups))
    if not decimal:
        return found
    scaled = [None if n is None else Decimal(n).scaleb(-values.type.scale, _EXACTLY) for n in found.to_pylist()]
    return pa.array(scaled, pa.decimal128(38, values.type.scale))


def _unscaled(values: pa.Array) -> Ints:
    """Decimals as whole numbers of their last digit."""
    if values.type.precision > _LONG_DIGITS:
        raise UncertainValue("a long decimal")
    if not len(values):
        return np.zeros(0, dtype=np.int64)
    words = np.frombuffer(values.buffers()[1], dtype=np.int64)
    return words[2 * values.offset : 2 * (values.offset + len(values)) : 2]  # the upper word only has the sign


def _numbers(values: pa.Array) -> Ints | None:
    """Values as whole numbers in the same order; None where they are none. There is no NULL among them."""
    kind = values.type
    if _t.is_date32(kind):
        values = values.cast(pa.int32())
    elif _t.is_timestamp(kind):
        values = values.cast(pa.int64())
    return np.asarray(values).astype(np.int64) if _t.is_signed_integer(values.type) else None


def _extreme_number(lowest: bool, numbers: Ints, groups: RowGroups) -> pa.Array:
    none = ~_seen(groups)
    start = np.iinfo(np.int64).max if lowest else np.iinfo(np.int64).min
    if groups.count == 1 and len(numbers):
        found = np.array([numbers.min() if lowest else numbers.max()])
    else:
        found = np.full(groups.count, start, dtype=np.int64)
        (np.minimum if lowest else np.maximum).at(found, groups.ids, numbers)
    found[none] = 0
    return pa.array(found, mask=none)


def _extreme(lowest: bool) -> Callable[[pa.Array, RowGroups], pa.Array]:
    def of(values: pa.Array, groups: RowGroups) -> pa.Array:
        numbers = _numbers(values)
        if numbers is not None:
            made = _extreme_number(lowest, numbers, groups)
            return (made.cast(pa.int32()) if _t.is_date32(values.type) else made).cast(values.type)
        bits = _t.is_boolean(values.type)
        encoded = (values.cast(pa.int8()) if bits else values).dictionary_encode()
        order = np.asarray(pc.array_sort_indices(encoded.dictionary))
        ranks = np.empty(len(order), dtype=np.int64)
        ranks[order] = np.arange(len(order))
        found = np.full(groups.count, len(order) if lowest else -1, dtype=np.int64)
        (np.minimum if lowest else np.maximum).at(found, groups.ids, ranks[np.asarray(encoded.indices)])
        none = ~_seen(groups)
        places = order[np.where(none, 0, found)] if len(order) else np.zeros(groups.count, dtype=np.int64)
        made = encoded.dictionary.take(pa.array(places, mask=none))
        return made.cast(pa.bool_()) if bits else made

    return of


COUNT_ROWS: Final = "count(1)"
_COUNT: Final = "count({d}{0})"
_SUM: Final = "sum({d}{0})"
_LONG_SUM: Final = "CAST(sum({d}{0}) {w} AS DECIMAL(19,0))"
_ALL, _ANY = "bool_and({0})", "bool_or({0})"
_TOTALS: Final[Mapping[str, Callable[[pa.Array, RowGroups], pa.Array]]] = {
    COUNT_ROWS: _count, _COUNT: _count, _SUM: _sum, _LONG_SUM: _sum,
    "min({0})": _extreme(True), "max({0})": _extreme(False), _ALL: _extreme(True), _ANY: _extreme(False),
}  # fmt: skip
