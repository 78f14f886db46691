"""Runs to write and read in tests of remote stores; imported by the processes that those start."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.state.run import Run, Section, write_run
from headrace.state.schema import RunRef, TableSchema
from headrace.state.stores import StoreRoot

SCHEMA = TableSchema((pa.field("id", pa.int64()),), (), ((pa.field("n", pa.int64()), "add"),))


def batch(rows: int, seed: int = 0) -> pa.RecordBatch:
    """Rows that do not compress to nothing."""
    rng = np.random.default_rng(seed)
    keys = np.sort(rng.integers(-(2**63), 2**63 - 1, rows))
    columns = [pa.array(keys), pa.array(rng.integers(0, 2**62, rows)), pa.array(rng.integers(1, 100, rows))]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA.arrow())


def write(root: StoreRoot, path: str, rows: int = 1000, seed: int = 0) -> RunRef:
    """One run in an object of its own."""
    return write_run(root, path, [Section(1, SCHEMA, [batch(rows, seed)], 1)])[0]


def rows_of(root: StoreRoot, ref: RunRef) -> pa.Table:
    """All rows of a run, opened anew."""
    return pa.Table.from_batches(Run.open(root, ref).batches)


def elsewhere(root: StoreRoot, folder: Path) -> StoreRoot:
    """The same objects as another host sees them: with an empty cache."""
    return StoreRoot(root.url, root.options, str(folder), root.cache_bytes)


def read_all(root: StoreRoot, refs: list[RunRef], rounds: int) -> list[int]:
    """In another process: open the runs over and over; returns the rows of each."""
    counts = []
    for i in range(rounds):
        ref = refs[(i * 7) % len(refs)]
        counts.append(rows_of(root, ref).num_rows)
    return counts
