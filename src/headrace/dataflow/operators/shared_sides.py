"""A side of a join that is looked up in the rows of a relation, which lie by the join's key, instead of being kept.

A join meets what the other side has *so far*: as of the epoch from which the job starts, and with what it has taken in
of the change since. A change is taken in by ranges of `__k`, and the relation's rows lie by the same `__k`. So of each
key either all of its change has been taken in, then its rows are those of the epoch under way, or nothing of it. Before
its first checkpoint a job reads nothing of such a relation: it is as if all of it had come before any row of the other
side.

The relation's hash is not that of the wire, so the stage computes it from the key columns, for both deltas, and finds
the pairs by it. docs/design/0009 says why sides are shared and what keeps the history readable.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.lazy_dataclass import dataclass
from headrace.dataflow.operators.task import Task, as_type, int64, state_batch
from headrace.dataflow.params import EpochParams
from headrace.state.arrangement import Arrangement
from headrace.state.kernels import concat, stable_order
from headrace.state.kernels.equality import Ints
from headrace.state.kernels.hashing import hash_columns
from headrace.state.schema import TableSchema


@dataclass(frozen=True)
class SharedRows:
    """Rows of a relation, stored as `schema` says, as a side of a join."""

    relation: int
    schema: TableSchema
    keys: tuple[str, ...]
    """For each key of the join (`k0` ...) the relation's column."""
    columns: tuple[str, ...]
    """The same for the columns beside the key."""
    present: tuple[str, ...] = ()
    """Columns that are not null in the rows of the side."""
    weak_hash: int | None = None
    """Only that many different hash values: for tests, that collisions change nothing."""

    def hashes(self, rows: pa.RecordBatch) -> Ints:
        """The relation's `__k` for rows with the keys of the join."""
        names = [f"k{self.keys.index(f.name)}" for f in self.schema.key]
        found = hash_columns([as_type(rows.column(n), f.type) for n, f in zip(names, self.schema.key)])
        return found if self.weak_hash is None else found % self.weak_hash

    def by_key(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows with the keys of the join by the relation's `__k` in place of their own, in order of it."""
        if not rows.num_rows:
            return rows
        found = self.hashes(rows)
        order = stable_order([found])
        place = rows.schema.get_field_index("__k")
        return rows.set_column(place, rows.schema.field(place), pa.array(found)).take(pa.array(order))

    def fetch(self, task: Task, keys: Ints, side: TableSchema) -> pa.RecordBatch:
        """The rows with these `__k` (sorted, unique) so far, laid out as a side, in order of `__k`."""
        rows = self._so_far(task.params, keys)
        for name in self.present:
            column = rows.column(name)
            rows = rows.filter(pc.is_valid(column)) if column.null_count else rows
        return self._laid_out(rows, side)

    def _so_far(self, params: EpochParams, keys: Ints) -> pa.RecordBatch:
        refs, until = params.lookups[self.relation], params.taken_until(self.relation)
        at = len(keys) if until is None else int(np.searchsorted(keys, until))
        parts = ((keys[:at], params.to_epoch), (keys[at:], params.from_epoch))
        found = [Arrangement(self.schema, refs, params.root, as_of=e).fetch(k) for k, e in parts if len(k)]
        return concat(found, self.schema.arrow())

    def _laid_out(self, rows: pa.RecordBatch, side: TableSchema) -> pa.RecordBatch:
        columns = {"__k": rows.column("__k"), "__w": rows.column("__w")}
        data = [as_type(rows.column(n), f.type) for n, f in zip((*self.keys, *self.columns), side.data_fields)]
        columns |= {f.name: column for f, column in zip(side.data_fields, data)}
        if side.has_row_hash:
            columns["__h"] = pa.array(hash_columns(data))
        return state_batch(side, columns)


def row_hashes(rows: pa.RecordBatch, side: TableSchema) -> pa.RecordBatch:
    """Rows of a side with the `__h` that those have which are looked up, in place of their own."""
    if not side.has_row_hash or not rows.num_rows:
        return rows
    place = rows.schema.get_field_index("__h")
    found = hash_columns([rows.column(f.name) for f in side.data_fields])
    return rows.set_column(place, rows.schema.field(place), pa.array(found))


def unique(rows: pa.RecordBatch) -> Ints:
    """The `__k` of rows, sorted, each once."""
    return np.unique(int64(rows.column("__k")))
