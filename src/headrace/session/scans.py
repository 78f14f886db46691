"""Scans of stored relations, sliced by how much there is to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headrace.common.columns import arrow_type
from headrace.dataflow.operators.inputs import SnapshotScan
from headrace.state.schema import RunRef
from headrace.state.stores import Root

if TYPE_CHECKING:
    from headrace.coordinator.reads import SnapshotTable

_ONE_SLICE_ROWS: Final = 20_000
"""Stored rows up to which a scan is one slice."""
_SLICE_ROWS: Final = 1_000_000
"""Stored rows for which a further slice is made."""


def slices_of(refs: Sequence[RunRef], parallelism: int) -> int:
    """Into how many slices a scan of runs is cut, where so many are read at a time."""
    rows = sum(ref.rows for ref in refs)
    return 1 if rows < _ONE_SLICE_ROWS else max(parallelism, -(-rows // _SLICE_ROWS))


def scan_of(table: SnapshotTable, names: Sequence[str], root: Root, slices: int) -> SnapshotScan:
    """What reads a stored relation's columns `names`, in so many slices."""
    types = {c.name: c.type for c in table.columns}
    output = pa.schema([pa.field(n, arrow_type(types[n])) for n in names])
    return SnapshotScan(table.schema, table.refs, root, table.as_of, tuple(names), slices, output)
