"""Order and grouping of stored rows, matching of keys, gathering and concatenation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.state.kernels.equality import Bools, Ints, canonical_bits, int64_values, is_flat, rows_equal, validity
from headrace.state.kernels.hashing import hash_columns
from headrace.state.kernels.sizes import check_column, overflows_named, varies
from headrace.state.kernels.sorting import stable_order, stretches
from headrace.state.schema import TableSchema


@dataclass(frozen=True)
class Groups:
    """Groups of equal rows: group i is `order[starts[i]:starts[i + 1]]` (positions themselves if order is None)."""

    order: Ints | None
    starts: Ints
    rows: int

    @property
    def firsts(self) -> Ints:
        """Position of the first row of every group."""
        return self.starts if self.order is None else self.order[self.starts]


def sort_order(batch: pa.RecordBatch, schema: TableSchema) -> Ints:
    """Positions that sort a batch by `__k`, `__h`, `__e` (those it has), stably."""
    return stable_order(_sort_keys(batch, schema))


def sort_rows(batch: pa.RecordBatch, schema: TableSchema) -> pa.RecordBatch:
    """The batch sorted by `__k`, `__h`, `__e` (those it has), stably; itself if it is sorted already."""
    keys = _sort_keys(batch, schema)
    return batch if _is_sorted(keys) else take(batch, stable_order(keys))


def _sort_keys(batch: pa.RecordBatch, schema: TableSchema) -> list[Ints]:
    keys = [int64_values(batch.column(0))]
    if schema.has_row_hash:
        keys.append(int64_values(batch.column(1)))
    if batch.num_columns > schema.width:
        keys.append(int64_values(batch.column(schema.width)))
    return keys


def _is_sorted(keys: Sequence[Ints]) -> bool:
    tied: Bools | None = None
    for key in keys:
        falls = key[1:] < key[:-1]
        if tied is not None:
            falls &= tied
        if falls.any():
            return False
        same = key[1:] == key[:-1]
        tied = same if tied is None else tied & same
    return True


def group_rows(batch: pa.RecordBatch, schema: TableSchema, *, by_epoch: bool = False) -> Groups:
    """Exact groups of rows that are equal in all key and value columns, of a batch sorted as `sort_order` does.

    With `by_epoch`, rows of different epochs are different. Rows that share `__k` and `__h` without being equal
    (hash collisions) are told apart exactly; only then is the order changed, within one (`__k`, `__h`).
    """
    n = batch.num_rows
    keys = _sort_keys(batch, schema)
    epoch = keys[-1] if by_epoch and batch.num_columns > schema.width else None
    k = keys[0]
    same = k[1:] == k[:-1]
    if schema.has_row_hash:
        same &= keys[1][1:] == keys[1][:-1]
    pairs = np.flatnonzero(same)
    order: Ints | None = None
    if len(pairs):
        columns = batch.columns[schema.data_start : schema.diff_start]
        equal = _neighbours_equal(columns, pairs, n)
        if not equal.all():
            order, same = _regroup(columns, same, pairs[~equal])
    if epoch is not None and len(pairs):
        epoch = epoch if order is None else epoch[order]
        same &= epoch[1:] == epoch[:-1]
    starts = np.concatenate(([0], np.flatnonzero(~same) + 1)) if n else np.zeros(0, dtype=np.int64)
    return Groups(order, starts, n)


def _neighbours_equal(columns: Sequence[pa.Array], pairs: Ints, n: int) -> Bools:
    if len(pairs) * 2 > n:
        return rows_equal(columns, slice(0, n - 1), columns, slice(1, n))[pairs]
    return rows_equal(columns, pairs, columns, pairs + 1)


def _regroup(columns: Sequence[pa.Array], same: Bools, unequal: Ints) -> tuple[Ints, Bools]:
    """Make equal rows adjacent within the clusters that hold the unequal neighbours.

    `same` says for each neighbouring pair whether they share (k, h). Returns the new order and the like of `same`
    for true equality.
    """
    n = len(same) + 1
    cluster = np.concatenate(([0], np.cumsum(~same)))
    colliding = np.zeros(cluster[-1] + 1, dtype=np.bool_)
    colliding[cluster[unequal]] = True
    rows = np.flatnonzero(colliding[cluster])
    ids = _exact_ids(columns, rows, cluster[rows])
    order = np.arange(n)
    by_group = stable_order([ids])
    order[rows] = rows[by_group]
    group = np.zeros(n, dtype=np.int64)
    group[rows] = ids[by_group]
    return order, same & (group[1:] == group[:-1])


def _exact_ids(columns: Sequence[pa.Array], rows: Ints, ids: Ints) -> Ints:
    """Refine the group numbers `ids` of `rows`, keeping their order, until only equal rows share one."""
    for column in columns:
        if is_flat(column.type):
            ids = _dense(ids, _codes(column.take(pa.array(rows))))
    nested = [c for c in columns if not is_flat(c.type)]
    if not nested:
        return ids
    where = pa.array(rows)
    hashes = np.unique(hash_columns([c.take(where) for c in nested]), return_inverse=True)[1].astype(np.int64)
    return _split_by_comparison(nested, rows, _dense(ids, hashes))


def _codes(column: pa.Array) -> Ints:
    """A small number per row, equal where the values are equal; nulls have -1."""
    if pa.types.is_null(column.type):
        return np.zeros(len(column), dtype=np.int64)
    if pa.types.is_floating(column.type):
        present = validity(column)
        column = pa.array(canonical_bits(column), mask=None if present is None else ~present)
    return np.asarray(column.dictionary_encode().indices.fill_null(-1)).astype(np.int64)


def _dense(major: Ints, minor: Ints) -> Ints:
    """Dense numbers for pairs, in the order of the pairs."""
    _, first = np.unique(major, return_inverse=True)
    return np.unique(first * (len(minor) + 1) + minor + 1, return_inverse=True)[1].astype(np.int64)


def _split_by_comparison(columns: Sequence[pa.Array], rows: Ints, ids: Ints) -> Ints:
    """Compare every row with its group's first, split those off that differ, until none does.

    Takes as many rounds as a group has different rows: one, unless 64-bit hashes collide.
    """
    result = np.zeros(len(rows), dtype=np.int64)
    left = np.arange(len(rows))
    turn = 0
    while len(left):
        _, first, member = np.unique(ids[left], return_index=True, return_inverse=True)
        equal = rows_equal(columns, rows[left], columns, rows[left[first]][member])
        result[left[equal]] = turn
        left = left[~equal]
        turn += 1
    return _dense(ids, result)


def in_row_order(batch: pa.RecordBatch, places: Ints, schema: TableSchema) -> Ints:
    """Places of a batch whose rows are sorted by `__k`, `__h` there, with those that tie in both in an order that
    depends on nothing but the rows: that of a hash of their values."""
    if not schema.value or len(places) < 2:
        return places
    keys = [key[places] for key in _sort_keys(batch.select(range(schema.width)), schema)]
    found, stretch = stretches(np.logical_and.reduce([key[1:] == key[:-1] for key in keys]))
    if not len(found):
        return places
    at = pa.array(places[found])
    hashes = hash_columns([batch.column(f.name).take(at) for f in schema.value])
    result = places.copy()
    result[found] = places[found][stable_order([stretch, hashes])]
    return result


def match(left_k: Ints, right_k_sorted: Ints) -> tuple[Ints, Ints]:
    """All pairs (i, j) with `left_k[i] == right_k_sorted[j]`, ordered by i, then j; the right side is sorted."""
    start = np.searchsorted(right_k_sorted, left_k, side="left")
    count = np.searchsorted(right_k_sorted, left_k, side="right") - start
    return np.repeat(np.arange(len(left_k)), count), expand_ranges(start, count)


def expand_ranges(start: Ints, count: Ints) -> Ints:
    """The numbers `start[i], start[i] + 1, ... start[i] + count[i] - 1` for every i, one after another."""
    ends = np.cumsum(count)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(start - (ends - count), count)


def take(batch: pa.RecordBatch, rows: npt.NDArray[np.integer]) -> pa.RecordBatch:
    """The rows at these positions. Raises `OutOfBudget` where they are too large for one batch."""
    with overflows_named("rows of a batch"):
        return batch.take(pa.array(rows.astype(np.int64, copy=False)))


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch under this schema, column by column; types that differ in spelling only are cast.

    Raises `ValueError` (`pa.ArrowInvalid` among them) where the columns do not fit.
    """
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    if batch.num_columns != len(schema):
        raise ValueError(f"{batch.num_columns} columns where {len(schema)} are needed")
    columns = zip(batch.columns, schema, strict=True)
    arrays = [column if column.type == field.type else column.cast(field.type) for column, field in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def concat(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """One batch of the rows of all. Raises `OutOfBudget` where a column of texts passes 2 GiB."""
    filled = [b for b in batches if b.num_rows]
    if len(filled) == 1:
        return filled[0]
    if not filled:
        return empty(schema)
    arrays = [joined([b.column(i) for b in filled], field.name) for i, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def joined(columns: Sequence[pa.Array], name: str) -> pa.Array:
    """The values of several arrays of one type, one after another. Raises `OutOfBudget` where they are too large."""
    if len(columns) == 1:
        return columns[0]
    if varies(columns[0].type):
        check_column(sum(c.nbytes for c in columns), name)
    with overflows_named(f'column "{name}"'):
        return pa.concat_arrays(columns)


def empty(schema: pa.Schema) -> pa.RecordBatch:
    """A batch without rows."""
    return pa.RecordBatch.from_arrays([pa.array([], type=f.type) for f in schema], schema=schema)
