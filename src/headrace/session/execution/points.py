"""Reads of the rows that have a key: looked up by a primary key or an index, without Spark and without a scan.

An index is read at the newest epoch at which it is exact, and the relation's changes since then are added: so a point
read shows what a scan would.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.catalog.contents import IndexContent
from headrace.catalog.records import ObjectRecord
from headrace.common.lazy_dataclass import dataclass
from headrace.dataflow.operators.inputs import SnapshotScan
from headrace.errors import EpochTooOld, SnapshotUnavailable
from headrace.session.reading.surroundings import Surroundings
from headrace.state.arrangement import Arrangement
from headrace.state.kernels import concat, consolidate
from headrace.state.kernels.hashing import hash_columns

if TYPE_CHECKING:
    from headrace.coordinator.reads import Snapshot, SnapshotTable


@dataclass(frozen=True)
class KeyScan:
    """Stands for a `SnapshotScan` of the rows that have certain values.

    `table` holds them by the columns of its key, all of which have a value. It may be behind: then `later` are the
    runs of the relation that it is made of, of which the changes after its epoch are added.
    """

    scan: SnapshotScan
    table: SnapshotTable
    equal: Mapping[str, object]
    later: SnapshotTable | None = None
    parallelism = 1

    @property
    def output(self) -> pa.Schema:
        """Columns of the rows."""
        return self.scan.output

    def stored(self, i: int) -> Iterator[pa.RecordBatch]:
        """The rows, each once, and in the last column how often it is there."""
        schema, root = self.table.schema, self.scan.root
        key = [pa.array([self.equal[f.name]], f.type) for f in schema.key]
        found = Arrangement(schema, self.table.refs, root, as_of=self.table.as_of).fetch(hash_columns(key))
        parts = [self._equal(found)]
        if self.later is not None and self.later.as_of > self.table.as_of:
            log = Arrangement(self.later.schema, self.later.refs, root, as_of=self.later.as_of)
            for batch in log.log(self.table.as_of, self.later.as_of):
                parts.append(self._kept(self._equal(batch)))
        yield self.scan.named(consolidate(concat(parts, found.schema), schema))

    def expanded(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Each row as often as it is there, in batches of bounded size."""
        return self.scan.expanded(rows)

    def _equal(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Those rows that have the values."""
        keep = np.ones(rows.num_rows, dtype=np.bool_)
        for name, value in self.equal.items():
            column = rows.column(name)
            keep &= np.asarray(pc.fill_null(pc.equal(column, pa.scalar(value, column.type)), False))
        return rows.filter(pa.array(keep))

    def _kept(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the relation as the index keeps them."""
        schema = self.table.schema
        columns = {f.name: rows.column(f.name) for f in schema.data_fields} | {"__w": rows.column("__w")}
        columns["__k"] = pa.array(hash_columns([columns[f.name] for f in schema.key]))
        if schema.has_row_hash:
            columns["__h"] = pa.array(hash_columns([columns[f.name] for f in schema.data_fields]))
        return pa.RecordBatch.from_arrays([columns[f.name] for f in schema.arrow()], schema=schema.arrow())


def key_scan(
    context: Surroundings, target: ObjectRecord, names: Sequence[str], equal: Mapping[str, object], snapshot: Snapshot,
    stack: ExitStack,
) -> KeyScan | None:  # fmt: skip
    """What reads the rows of a table or view with these values; None where no key or index has them.

    The stack holds what is read of an index.
    """
    own = snapshot.tables[target.id]
    scan = context.scan(own, names)
    if target.primary_key and set(target.primary_key) <= set(equal):
        return KeyScan(scan, own, equal)
    if context.has_changed(target.id):
        return None  # an index does not know what the transaction has written
    for index in context.indexes():
        if is_found_by(index, target, names, equal):
            try:
                found = stack.enter_context(context.index_snapshot(index.id, target.id, own.as_of))
            except (EpochTooOld, SnapshotUnavailable):  # it is being created, or far behind
                continue
            return KeyScan(scan, found.tables[index.id], equal, own)
    return None


def is_found_by(index: ObjectRecord, target: ObjectRecord, names: Sequence[str], equal: Collection[str]) -> bool:
    """Whether an index has the columns `names` of those rows of a relation that have values in the columns `equal`."""
    content = index.content_as(IndexContent)
    wanted = {*names, *equal}
    return content.on == target.id and set(content.key) <= set(equal) and wanted <= {c.name for c in index.columns}
