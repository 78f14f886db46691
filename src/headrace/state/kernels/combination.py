"""Combination of equal rows: each diff column in its own way. What these ways (`Combine`) are is known here alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import NotSupported
from headrace.state.kernels import checked, exact_sum
from headrace.state.kernels.equality import Bools, Ints, canonical_bits, fixed_width, int64_values, validity
from headrace.state.kernels.order import Groups, concat, expand_ranges, group_rows, sort_rows, take
from headrace.state.kernels.sorting import stable_order
from headrace.state.schema import Combine, TableSchema

_MANY = 4
"""Which part of some rows takes others back, at least, where it is quicker to combine all of them."""
LIMB_BITS, LIMB_MASK = checked.LIMB_BITS, checked.LIMB_MASK


def negated(batch: pa.RecordBatch, schema: TableSchema) -> pa.RecordBatch:
    """The rows with the opposite of their first diff, which is their weight: what takes them back."""
    at = schema.diff_start
    return batch.set_column(at, batch.schema.field(at), pa.array(-int64_values(batch.column(at))))


def consolidate(
    batch: pa.RecordBatch, schema: TableSchema, *, by_epoch: bool = False, keep_zeros: bool = False
) -> pa.RecordBatch:
    """Sort rows and combine those that are equal; rows whose sums are all zero are left out, but for `keep_zeros`.

    A sum is an "add" or an "exact" diff: a change that leaves a count as it was can still move a sum of
    doubles. In a schema without "add" diffs no row is ever left out.

    Without `by_epoch` rows are combined over all epochs and the result has no `__e`. With it, only rows of one
    epoch are combined and `__e` stays (a batch that has none is taken as being of one epoch).
    """
    if not by_epoch and batch.num_columns > schema.width:
        batch = batch.select(range(schema.width))
    batch = sort_rows(batch, schema)
    return combine_groups(batch, schema, group_rows(batch, schema, by_epoch=by_epoch), keep_zeros=keep_zeros)


def combine_groups(
    batch: pa.RecordBatch, schema: TableSchema, groups: Groups, *, keep_zeros: bool = False
) -> pa.RecordBatch:
    """One row per group: its first row with the diffs of all, left out if its sums are all zero.

    `__e`, where the batch has it, is that of the group's first row.
    """
    single = len(groups.starts) == groups.rows
    if not schema.combinable:
        raise NotSupported(
            "state that an earlier version of headrace wrote in another form",
            hint="drop the view and create it again",
        )
    diffs = None if single else _combined(batch, schema, groups)
    alive = None if keep_zeros else _alive(batch, schema, groups, diffs)
    if alive is None:
        if single:
            return batch  # where it does not bring equal rows together, the order within one hash says nothing
        rows = groups.firsts
    else:
        rows = groups.firsts[alive]
    if diffs is None:
        return take(batch, rows)
    index = pa.array(rows)
    kept = None if alive is None else pa.array(alive)
    arrays = [c.take(index) for c in batch.columns]
    for i, diff in enumerate(diffs):
        arrays[schema.diff_start + i] = diff if kept is None else diff.filter(kept)
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def remaining(parts: Sequence[pa.RecordBatch], schema: TableSchema) -> Iterator[pa.RecordBatch]:
    """What is left of rows once some of them take others back: in no order, and equal rows not combined.

    Each part is sorted, and has all rows of its `__k` that are not in another one. Only rows that share their `__k`
    with one that takes back are sorted and combined, which is to gather all of their columns.
    """
    keys = [int64_values(part.column(0)) for part in parts]
    back = [k[int64_values(p.column(schema.diff_start)) <= 0] for k, p in zip(keys, parts, strict=True)]
    if [how for _, how in schema.diffs] != ["add"] or sum(map(len, back)) * _MANY > sum(map(len, keys)):
        yield consolidate(concat(parts, schema.arrow()), schema)
        return
    back_keys = np.unique(np.concatenate(back)) if back else np.zeros(0, np.int64)
    touched: list[pa.RecordBatch] = []
    for k, part in zip(keys, parts, strict=True):
        start = np.searchsorted(k, back_keys)
        rows = expand_ranges(start, np.searchsorted(k, back_keys, side="right") - start)
        if len(rows):
            kept = np.ones(len(k), np.bool_)
            kept[rows] = False
            touched.append(take(part, rows))
            part = part.filter(pa.array(kept))
        yield part
    if touched:
        yield consolidate(concat(touched, schema.arrow()), schema)


def neutral(how: Combine, kind: pa.DataType, n: int) -> pa.Array:
    """Values of a diff that change nothing."""
    return pa.array(np.zeros(n, dtype=np.int64)) if how == "add" else pa.nulls(n, kind)


def or_neutral(how: Combine, values: pa.Array) -> pa.Array:
    """Values of a diff, of which null is what changes nothing."""
    return pc.fill_null(values, 0) if how == "add" else values


def totals(how: Combine, before: pa.Array, change: pa.Array, what: str) -> pa.Array:
    """What a diff of each row is after a change; of "exact" ones the doubles nearest to the sums.

    Sums that do not fit raise an error which says `what` they are.
    """
    if how == "add":
        return pa.array(checked.plus(int64_values(before), int64_values(change), what))
    if how == "exact":
        return pa.array(exact_sum.rounded_totals(before, change))
    kind = before.type
    plain = pa.timestamp(kind.unit) if pa.types.is_timestamp(kind) else kind  # the kernels know no zones
    pick = pc.min_element_wise if how == "min" else pc.max_element_wise
    return pick(before.cast(plain), change.cast(plain)).cast(kind)


def _alive(batch: pa.RecordBatch, schema: TableSchema, groups: Groups, diffs: list[pa.Array] | None) -> Bools | None:
    """Which groups stay; None when all do."""
    hows = [how for _, how in schema.diffs]
    if "add" not in hows or not len(groups.starts):
        return None
    alive = np.zeros(len(groups.starts), dtype=np.bool_)
    for i, how in enumerate(hows):
        if how in ("min", "max"):
            continue
        column = batch.column(schema.diff_start + i) if diffs is None else diffs[i]
        moved = _add_values(column) != 0 if how == "add" else exact_sum.not_zero(column)
        alive |= moved[groups.firsts] if diffs is None else moved
        if alive.all():
            return None
    return alive


def _combined(batch: pa.RecordBatch, schema: TableSchema, groups: Groups) -> list[pa.Array]:
    result: list[pa.Array] = []
    columns = batch.columns[schema.diff_start : schema.width]
    carry: Ints | None = None
    for i, (field, how) in enumerate(schema.diffs):
        if how == "add":
            what = checked.ROWS if field.name == "__w" else checked.SUMS
            total = checked.sums(_ordered(_add_values(columns[i]), groups), groups.starts, carry, what)
            carry = total >> LIMB_BITS if i in schema.carries else None
            result.append(pa.array(total if carry is None else total & LIMB_MASK))
        elif how == "exact":
            column = columns[i] if groups.order is None else columns[i].take(pa.array(groups.order))
            result.append(exact_sum.sums(column, groups.starts))
        else:
            result.append(_extremum(columns[i], groups, largest=how == "max"))
    return result


def _ordered(values: npt.NDArray[Any], groups: Groups) -> npt.NDArray[Any]:
    return values if groups.order is None else values[groups.order]


def _add_values(column: pa.Array) -> Ints:
    present = validity(column)
    values = int64_values(column)
    return values if present is None else np.where(present, values, 0)


def extrema(column: pa.Array, group: Ints, count: int, *, largest: bool) -> pa.Array:
    """The smallest or largest value of every group from 0 to `count`, given the group of every value; else null."""
    if not len(column):
        return pa.nulls(count, column.type)
    order = stable_order([group])
    starts = np.concatenate(([0], np.flatnonzero(np.diff(group[order])) + 1))
    found = _extremum(column, Groups(order, starts, len(column)), largest=largest)
    place = np.full(count, -1, dtype=np.int64)
    place[group[order[starts]]] = np.arange(len(starts))
    return found.take(pa.array(place, mask=place < 0))


def _extremum(column: pa.Array, groups: Groups, *, largest: bool) -> pa.Array:
    """The smallest or largest value per group; null only where all are null. NaN is above every number."""
    order = np.arange(groups.rows) if groups.order is None else groups.order
    present = validity(column)
    rank = _ranks(column)
    if present is not None:
        lowest, highest = np.iinfo(rank.dtype).min, np.iinfo(rank.dtype).max
        rank = np.where(present, rank, lowest if largest else highest)
    reduce = np.maximum.reduceat if largest else np.minimum.reduceat
    best = reduce(rank[order], groups.starts)
    counts = np.diff(np.append(groups.starts, groups.rows))
    hit = rank[order] == np.repeat(best, counts)
    if present is not None:
        hit &= present[order]
    where = np.where(hit, np.arange(groups.rows), groups.rows)
    first = np.minimum.reduceat(where, groups.starts)
    found = first < groups.rows
    winner = order[np.where(found, first, 0)]
    return column.take(pa.array(winner, mask=None if found.all() else ~found))


def _ranks(column: pa.Array) -> npt.NDArray[Any]:
    """Integers ordered as the values are. Undefined for nulls."""
    kind, t = column.type, pa.types
    if t.is_floating(kind):
        bits = canonical_bits(column)
        signed = bits.view(np.dtype(f"i{bits.itemsize}"))
        return np.where(signed < 0, signed ^ np.iinfo(signed.dtype).max, signed)
    if t.is_boolean(kind) or t.is_unsigned_integer(kind):
        return fixed_width(column)
    if t.is_primitive(kind):
        words = fixed_width(column)
        return words.view(np.dtype(f"i{words.itemsize}"))
    if t.is_null(kind):
        return np.zeros(len(column), dtype=np.int64)
    order = _nested_order(column) if t.is_nested(kind) else np.asarray(pc.sort_indices(column))
    rank = np.empty(len(column), dtype=np.int64)
    rank[order] = np.arange(len(column))
    return rank


def _nested_order(column: pa.Array) -> Ints:
    """Positions in order of nested values: lexicographic, null first. One row at a time."""
    key = _python_key(column.type)
    values = column.to_pylist()
    return np.array(sorted(range(len(values)), key=lambda i: key(values[i])), dtype=np.int64)


def _python_key(kind: pa.DataType) -> Callable[[Any], Any]:
    t = pa.types
    inner: Callable[[object], object]
    if t.is_struct(kind):
        fields = [(kind.field(i).name, _python_key(kind.field(i).type)) for i in range(kind.num_fields)]

        def inner(value: Any) -> Any:
            return tuple(key(value[name]) for name, key in fields)
    elif t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        element = _python_key(kind.value_type)

        def inner(value: Any) -> Any:
            return tuple(element(v) for v in value)
    elif t.is_nested(kind):
        raise TypeError(f"values of type {kind} have no order")
    elif t.is_floating(kind):

        def inner(value: Any) -> Any:
            return (value != value, 0.0 if value != value else value)
    else:

        def inner(value: object) -> object:
            return value

    return lambda value: (0,) if value is None else (1, inner(value))
