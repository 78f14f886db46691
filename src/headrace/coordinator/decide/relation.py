"""A table, source or materialized view as decisions see it: what is stored of it, when it has changed. Pure."""

from __future__ import annotations

from dataclasses import field
from typing import Final

from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column
from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.decide.exact import ChangeLog
from headrace.coordinator.decide.row_sizes import RowSize
from headrace.state.schema import TableSchema

NEVER: Final = 1 << 62
"""An epoch that does not come."""


@dataclass
class RelationState:
    """A table, source or materialized view as decisions see it."""

    record: ObjectRecord
    schema: TableSchema | None = None
    """Layout of its rows; None for a source."""
    state_table: int = 0
    """Id of the state table that holds its rows; 0 for a source."""
    changes: ChangeLog = field(default_factory=ChangeLog)
    rows_by_epoch: dict[int, int] = field(default_factory=dict)
    """Rows that its newest changes have, where they are known."""
    safe: int = 0
    """Oldest epoch at which it may be read; never below what the catalog says."""
    bound: bool = False
    """A source that has offsets."""
    whole_from: int = 0
    """The first epoch at which a source's content is of one moment; `NEVER` while that is not known."""
    in_order: bool = False
    """A source whose rows come in the order of the time that has the watermark: none is late."""
    size: RowSize = field(default_factory=RowSize)
    """How wide its rows are: of a table or view those that have changed lately."""

    @property
    def id(self) -> int:
        """The object's id."""
        return self.record.id

    @property
    def external(self) -> bool:
        """It is a source: see `Content`."""
        return self.record.content.external

    @property
    def writable(self) -> bool:
        """It is a table: see `Content`."""
        return self.record.content.writable

    @property
    def name(self) -> str:
        """The name as SQL knows it."""
        return self.record.name

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns."""
        return self.record.columns

    def changed(self, epoch: int, rows: int | None = None, size: int | None = None) -> None:
        """Note a change, of so many rows and bytes where they are known."""
        self.changes.add(epoch)
        if rows is not None:
            self.rows_by_epoch[epoch] = rows
            self.size = self.size if size is None else self.size.seen(rows, size)

    def counted_bytes(self, most_bytes: float) -> float:
        """What a row of it counts for where `most_bytes` are taken in at one go."""
        return self.size.counted(most_bytes) if self.external else self.size.bytes

    def rows_in(self, from_exclusive: int, to_inclusive: int) -> int | None:
        """How many rows changed in a range of epochs; None if that is not known."""
        known = [self.rows_by_epoch.get(low) for low, _ in self.changes.in_range(from_exclusive, to_inclusive)]
        rows = [r for r in known if r is not None]
        return None if len(rows) < len(known) else sum(rows)
