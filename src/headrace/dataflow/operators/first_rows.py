"""The first rows of every group that changed, before and after: as much as its minimum or its top N needs.

Groups that happen to share a `__k` are read whole. So a minimum after a delete, or the first N rows of a partition,
cost what is read and not what the group holds; rows that were taken back in front of the first live one are read over
until a merge drops them, and rows that share a code are read together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headrace.dataflow.operators.task import int64
from headrace.state.arrangement import Arrangement
from headrace.state.kernels import checked, concat, consolidate, joined, rows_equal, sort_rows, stable_order
from headrace.state.kernels.equality import Ints
from headrace.state.kernels.order_code import counted_units, leading
from headrace.state.schema import TableSchema

_ALL = np.iinfo(np.int64).max
_MOST = 1 << 61
"""More rows than `counted_units` lets a group have."""


def first_versions(
    table: Arrangement, owners: pa.RecordBatch, delta: pa.RecordBatch, need: int, *, by_code: bool = False
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """The first `need` rows of every group in `owners` as they were, and as they are with the table's `delta`.

    `owners` has `__k` and the key columns of all groups in question, those of the delta among them. Rows that tie with
    the last come as well (they share its `__h`), so what stands behind is later than all. With `by_code` the first
    `need` different `__h` are taken. Groups that happen to share a `__k` come whole. Both batches are sorted.
    """
    schema = table.schema
    owner_k = int64(owners.column("__k"))
    keys = np.unique(owner_k)
    removed = np.zeros(len(keys), dtype=np.int64)
    weights = int64(delta.column("__w"))
    checked.as_bigint(4 * checked.count(-weights), checked.ROWS)  # so that no sum below wraps
    need = min(need, _MOST)
    np.add.at(removed, np.searchsorted(keys, int64(delta.column("__k"))), np.maximum(-weights, 0))
    wanted = need + removed
    rows = table.first_rows(keys, wanted, by_code=by_code)
    shared = shared_keys([rows, owners], schema)
    if len(shared):
        others = rows.filter(pa.array(~np.isin(int64(rows.column("__k")), shared)))
        rows = sort_rows(concat([others, table.fetch(shared)], rows.schema), schema)
        wanted[np.searchsorted(keys, shared)] = _ALL
    k, code = int64(rows.column("__k")), row_codes(rows, schema)
    place = np.searchsorted(keys, k)
    have = np.zeros(len(keys), dtype=np.int64)
    np.add.at(have, place, counted_units(k, code, int64(rows.column("__w")), by_code=by_code))
    bound = np.full(len(keys), _ALL)
    bound[place] = code  # of several the last: the highest
    bound[have < wanted] = _ALL
    near = row_codes(delta, schema) <= bound[np.searchsorted(keys, int64(delta.column("__k")))]
    after = consolidate(concat([rows, delta.filter(pa.array(near))], rows.schema), schema)
    enough = np.where(wanted == _ALL, _ALL, need)
    return tuple(_leading(version, keys, enough, schema, by_code) for version in (rows, after))  # type: ignore[return-value]


def row_codes(rows: pa.RecordBatch, schema: TableSchema) -> Ints:
    """The order code of every row: its `__h`; 0 where a table has none, since its rows have nothing but their key."""
    return int64(rows.column("__h")) if schema.has_row_hash else np.zeros(rows.num_rows, dtype=np.int64)


def _leading(rows: pa.RecordBatch, keys: Ints, need: Ints, schema: TableSchema, by_code: bool) -> pa.RecordBatch:
    k, code = int64(rows.column("__k")), row_codes(rows, schema)
    units = counted_units(k, code, int64(rows.column("__w")), by_code=by_code)
    keep = leading(k, code, units, need[np.searchsorted(keys, k)])
    return rows if keep.all() else rows.filter(pa.array(keep))


def shared_keys(batches: Sequence[pa.RecordBatch], schema: TableSchema) -> Ints:
    """Every `__k` under which the batches have rows of different keys."""
    k = np.concatenate([int64(b.column("__k")) for b in batches])
    columns = [joined([b.column(f.name) for b in batches], f.name) for f in schema.key]
    order = stable_order([k])
    return np.unique(keys_shared(k[order], order, columns))


def keys_shared(k: Ints, order: Ints, columns: Sequence[pa.Array]) -> Ints:
    """Sorted `__k` under which neighbours have different keys, some repeatedly; `order` says where rows' keys are."""
    pairs = np.flatnonzero(k[1:] == k[:-1])
    equal = rows_equal(columns, order[pairs], columns, order[pairs + 1])
    return k[pairs[~equal]]


__all__ = ["first_versions", "keys_shared", "row_codes", "shared_keys"]
