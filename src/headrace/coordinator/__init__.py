"""Epochs, barriers, checkpoint groups, writes, reads and recovery: what keeps a database running."""

from headrace.coordinator.coordinator import Coordinator, JobStatus
from headrace.coordinator.reads import Snapshot, SnapshotTable
from headrace.coordinator.writes.requests import WriteResult
from headrace.state.changes import TableChange

__all__ = ["Coordinator", "JobStatus", "Snapshot", "SnapshotTable", "TableChange", "WriteResult"]
