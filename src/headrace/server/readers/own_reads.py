"""Reads of more than a single row in a reading process: by the plans, the steps and the kernels of the server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headrace.catalog.records import ObjectRecord
from headrace.common.lazy_dataclass import dataclass
from headrace.common.zones import Zone
from headrace.coordinator.reads import Snapshot, SnapshotTable
from headrace.dataflow.operators.inputs import SnapshotScan
from headrace.errors import SnapshotUnavailable
from headrace.server.readers.followed import Held
from headrace.session.reading.at_once import known_content
from headrace.session.reading.read_steps import READ_ROWS, content_rows, snapshot_rows
from headrace.session.scans import scan_of, slices_of
from headrace.session.shared_reads import SharedReads

if TYPE_CHECKING:
    from headrace.session.reading.read_plans import ReadPlan

_ROWS: Final = 10_000
"""Rows of a result up to which it is handed out here: there is no way to make a client wait for a part of it."""
_BYTES: Final = 1 << 20


class TooLarge(Exception):
    """Raised for a result that is for the server to hand out."""


@dataclass(eq=False)
class OwnRead:
    """One read of a relation. It has what `Surroundings` asks for."""

    plan: ReadPlan
    values: Sequence[object]
    """Those of the plan's parameters."""
    held: Held
    zone: Zone
    shared_reads: SharedReads
    rows_at_most: int
    """How many rows a result may have; 0: any number."""
    check: Callable[[], None]

    def has_changed(self, table_id: int) -> bool:
        """Transactions are the server's."""
        return False

    def scan(self, table: SnapshotTable, names: Sequence[str]) -> SnapshotScan:
        """See `Surroundings`."""
        return scan_of(table, names, self.held.root, slices_of(table.refs, 1))

    def indexes(self) -> Iterable[ObjectRecord]:
        """See `Surroundings`."""
        return [record for record, _ in self.held.indexes.values()]

    def index_snapshot(self, index_id: int, relation_id: int, at: int) -> AbstractContextManager[Snapshot]:
        """See `Surroundings`."""
        _, table = self.held.indexes[index_id]
        if table.as_of > at:
            raise SnapshotUnavailable("the index is ahead")
        return Snapshot(table.as_of, {index_id: table, relation_id: self.held.table}, {})

    @property
    def is_small(self) -> bool:
        """Whether so little is read that it is read here: what is looked up turns out to be."""
        return bool(self.plan.equal) or sum(ref.rows for ref in self.held.table.refs) <= READ_ROWS

    def at_once(self) -> list[pa.RecordBatch] | None:
        """The rows, if that takes no time; None if it does. Raises as `rows`."""
        content = known_content(self, self.plan)
        if content is None or not content.is_of(self.held.table):
            return None
        return self._bounded(content_rows(self, self.plan, self.values, content, waits=False))

    def rows(self) -> list[pa.RecordBatch]:
        """The rows. Raises `TooLarge`, and what `snapshot_rows` does."""
        record = self.plan.record
        assert record is not None
        snapshot = Snapshot(self.held.table.as_of, {record.id: self.held.table}, {})
        with ExitStack() as stack:
            return self._bounded(snapshot_rows(self, self.plan, self.values, snapshot, stack))

    def _bounded(self, batches: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
        found, rows, size = list[pa.RecordBatch](), 0, 0
        for batch in batches:
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows > min(_ROWS, self.rows_at_most or _ROWS) or size > _BYTES:
                raise TooLarge
            found.append(batch)
        return found
