"""What plans of reads are run with: a session's context, or what a reading process has in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from headrace.catalog.records import ObjectRecord
from headrace.common.zones import Zone
from headrace.dataflow.operators.inputs import SnapshotScan
from headrace.session.shared_reads import SharedReads

if TYPE_CHECKING:
    from headrace.coordinator.reads import Snapshot, SnapshotTable


class Surroundings(Protocol):
    """See above."""

    @property
    def zone(self) -> Zone:
        """The time zone in which values are read and shown."""
        ...

    @property
    def shared_reads(self) -> SharedReads:
        """What reads share."""
        ...

    @property
    def check(self) -> Callable[[], None]:
        """Raises if nobody waits for the read any more."""
        ...

    def has_changed(self, table_id: int) -> bool:
        """Whether the transaction that is open wants to write to a table."""
        ...

    def scan(self, table: SnapshotTable, names: Sequence[str]) -> SnapshotScan:
        """What reads a stored relation's columns `names` slice by slice."""
        ...

    def indexes(self) -> Iterable[ObjectRecord]:
        """The indexes that there are."""
        ...

    def index_snapshot(self, index_id: int, relation_id: int, at: int) -> AbstractContextManager[Snapshot]:
        """An index at the newest epoch up to `at` at which it has what its relation had.

        Raises `EpochTooOld`, `SnapshotUnavailable` where there is none.
        """
        ...
