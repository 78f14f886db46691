"""What a write does to a table's rows: from inserts and deletes to rows with weights. Pure, apart from a look-up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import UniqueViolation
from headrace.state.kernels import (
    concat,
    consolidate,
    empty,
    group_rows,
    int64_values,
    match,
    negated,
    rows_equal,
    stable_order,
    take,
)
from headrace.state.kernels.equality import Bools, Ints
from headrace.state.kernels.hashing import hash_columns
from headrace.state.kernels.order import Groups
from headrace.state.schema import TableSchema

Fetch = Callable[[Ints], pa.RecordBatch]
"""The stored, consolidated rows whose `__k` is among the given ones (sorted, unique)."""


@dataclass(frozen=True)
class TableChange:
    """What to change in a table: batches in the table's columns. Deletes happen before inserts.

    With a primary key an insert whose key is there replaces that row (`overwrite`) or is left out (`ignore`); of
    several inserts of one key the last one counts, for `ignore` the first; with `refuse` there may be neither. A delete
    takes back the row with its key.
    Without one, equal rows are counted, and a delete takes back one equal row, if there is any.
    """

    inserts: pa.RecordBatch | None = None
    deletes: pa.RecordBatch | None = None
    on_conflict: Literal["overwrite", "ignore", "refuse"] = "overwrite"


@dataclass(frozen=True)
class Delta:
    """The rows to write, sorted and consolidated, and how many were inserted and deleted."""

    rows: pa.RecordBatch
    inserted: int
    deleted: int


def stored_rows(schema: TableSchema, batch: pa.RecordBatch, weight: int) -> pa.RecordBatch:
    """Rows of a table in the layout of its state, each with a weight; not sorted."""
    data = []
    for field in schema.data_fields:
        column = batch.column(field.name)
        data.append(column if column.type == field.type else column.cast(field.type))
    columns: list[pa.Array] = [pa.array(hash_columns(data[: len(schema.key)]))]
    if schema.has_row_hash:
        columns.append(pa.array(hash_columns(data)))
    columns += data
    columns.append(pa.array(np.full(batch.num_rows, weight, dtype=np.int64)))
    return pa.RecordBatch.from_arrays(columns, schema=schema.arrow())


def plan_change(schema: TableSchema, change: TableChange, fetch: Fetch, *, unique: bool) -> Delta:
    """The delta of a change to a table with this layout, whose rows `fetch` finds.

    `unique` says that the key columns are a primary key.
    """
    nothing = empty(schema.arrow())
    inserts = nothing if change.inserts is None else stored_rows(schema, change.inserts, 1)
    deletes = nothing if change.deletes is None else stored_rows(schema, change.deletes, -1)
    if unique:
        return _keyed(schema, inserts, deletes, change.on_conflict, fetch)
    return _counted(schema, inserts, deletes, fetch)


def _counted(schema: TableSchema, inserts: pa.RecordBatch, deletes: pa.RecordBatch, fetch: Fetch) -> Delta:
    """Without a primary key: equal rows are counted, and none is taken back that is not there."""
    deleted = 0
    if deletes.num_rows:
        wanted = consolidate(deletes, schema)
        there = _weights_there(schema, wanted, fetch)
        taken = np.minimum(-_weights(wanted), there)
        deleted = int(taken.sum())
        wanted = wanted.set_column(wanted.num_columns - 1, wanted.schema.field(-1), pa.array(-taken))
        deletes = take(wanted, np.flatnonzero(taken))
    rows = consolidate(concat([deletes, inserts], schema.arrow()), schema)
    return Delta(rows, inserts.num_rows, deleted)


def _weights_there(schema: TableSchema, rows: pa.RecordBatch, fetch: Fetch) -> Ints:
    stored = fetch(np.unique(int64_values(rows.column(0))))
    left, right = _pairs(schema, rows, stored)
    there = np.zeros(rows.num_rows, dtype=np.int64)
    there[left] = np.maximum(_weights(stored)[right], 0)
    return there


@dataclass(frozen=True)
class Encounters:
    """Rows that are to be inserted into a table with a primary key, and what they meet there."""

    stored: pa.RecordBatch
    """The stored rows with their keys, in the layout of the state."""
    there: Ints
    """For each row to insert the place of the one with its key among these; -1 where there is none."""
    keys: Ints
    """For each row to insert a number, equal for those with equal keys."""


def encounters(schema: TableSchema, rows: pa.RecordBatch, fetch: Fetch) -> Encounters:
    """What rows in a table's columns meet there."""
    inserts = stored_rows(schema, rows, 1)
    stored = fetch(np.unique(int64_values(inserts.column(0))))
    stored = take(stored, np.flatnonzero(_weights(stored) > 0))
    left, right = _pairs(schema, inserts, stored)
    there = np.full(inserts.num_rows, -1, dtype=np.int64)
    there[left] = right
    return Encounters(stored, there, _key_numbers(schema, inserts))


def _key_numbers(schema: TableSchema, rows: pa.RecordBatch) -> Ints:
    order, groups = _grouped(schema, rows)
    places = np.arange(rows.num_rows) if groups.order is None else groups.order
    numbers = np.empty(rows.num_rows, dtype=np.int64)
    numbers[order[places]] = np.searchsorted(groups.starts, np.arange(rows.num_rows), side="right") - 1
    return numbers


def _keyed(
    schema: TableSchema, inserts: pa.RecordBatch, deletes: pa.RecordBatch, on_conflict: str, fetch: Fetch
) -> Delta:
    """With a primary key: at most one row for each key. Raises `UniqueViolation` where there would be more."""
    given = inserts.num_rows
    inserts = one_per_key(schema, inserts, last=on_conflict == "overwrite")
    keys = np.unique(np.concatenate([int64_values(b.column(0)) for b in (inserts, deletes)]))
    stored = fetch(keys) if len(keys) else inserts.slice(0, 0)
    stored = take(stored, np.flatnonzero(_weights(stored) > 0))
    gone = np.zeros(stored.num_rows, dtype=np.bool_)
    gone[_pairs(schema, deletes, stored)[1]] = True
    deleted = int(gone.sum())
    left, right = _pairs(schema, inserts, stored)
    conflict = ~gone[right]
    if on_conflict == "refuse" and (inserts.num_rows < given or conflict.any()):
        raise UniqueViolation("duplicate key value violates the primary key: two rows would have the same one")
    if on_conflict == "ignore":
        keep: Bools = np.ones(inserts.num_rows, dtype=np.bool_)
        keep[left[conflict]] = False
        inserts = take(inserts, np.flatnonzero(keep))
    else:
        gone[right[conflict]] = True
    retracted = take(stored, np.flatnonzero(gone))
    rows = consolidate(concat([negated(retracted, schema), inserts], schema.arrow()), schema)
    return Delta(rows, inserts.num_rows, deleted)


def one_per_key(schema: TableSchema, rows: pa.RecordBatch, *, last: bool) -> pa.RecordBatch:
    """The first or the last row of each primary key; rows are in the layout of the table's state."""
    if rows.num_rows < 2:
        return rows
    order, groups = _grouped(schema, rows)
    at: Ints = groups.firsts
    if last:
        ends = np.append(groups.starts[1:], groups.rows) - 1
        at = ends if groups.order is None else groups.order[ends]
    return take(rows, np.sort(order[at]))


def _grouped(schema: TableSchema, rows: pa.RecordBatch) -> tuple[Ints, Groups]:
    """An order of rows by their `__k`, and the groups of equal keys in it."""
    order = stable_order([int64_values(rows.column(0))])
    positions = [0, *range(schema.data_start, schema.data_start + len(schema.key)), schema.diff_start]
    keys_only = TableSchema(key=schema.key, value=(), diffs=schema.diffs)
    return order, group_rows(take(rows.select(positions), order), keys_only)


def _pairs(schema: TableSchema, rows: pa.RecordBatch, stored: pa.RecordBatch) -> tuple[Ints, Ints]:
    """Which rows and which stored rows have equal keys."""
    left, right = match(int64_values(rows.column(0)), int64_values(stored.column(0)))
    same = rows_equal(_key_columns(schema, rows), left, _key_columns(schema, stored), right)
    return left[same], right[same]


def _key_columns(schema: TableSchema, rows: pa.RecordBatch) -> Sequence[pa.Array]:
    columns: Sequence[pa.Array] = rows.columns[schema.data_start : schema.data_start + len(schema.key)]
    return columns


def _weights(rows: pa.RecordBatch) -> Ints:
    return int64_values(rows.column(rows.num_columns - 1))
