"""Merges as Spark jobs: the same runs as in this process, and errors by their names."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace.dataflow.merging import SparkMerger
from headrace.errors import CorruptObject
from headrace.state.arrangement import Arrangement
from headrace.state.merge import MergePart
from headrace.state.run import Section, write_run
from headrace.state.schema import RunRef, TableSchema

SCHEMA = TableSchema((pa.field("a", pa.int64()),), (), ((pa.field("__w", pa.int64(), nullable=False), "add"),))


def _run(root: Path, epoch: int, keys: np.ndarray) -> RunRef:
    keys = np.unique(keys)
    rows = [pa.array(keys), pa.array(keys), pa.array(np.ones(len(keys), dtype=np.int64))]
    batch = pa.RecordBatch.from_arrays(rows, schema=SCHEMA.arrow())
    return write_run(root, f"{epoch}.run", [Section(1, SCHEMA, [batch], epoch)], fsync=False)[0]


def _rows(root: Path, refs: list[RunRef], as_of: int | None = None) -> pa.Table:
    return pa.Table.from_batches(Arrangement(SCHEMA, refs, root, as_of=as_of).scan(), schema=SCHEMA.arrow())


def test_a_merge_over_tasks(spark: SparkSession, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    refs = [_run(tmp_path, e, rng.integers(0, 10**6, 50_000)) for e in (1, 2, 3)]
    merger = SparkMerger(spark)
    whole = MergePart(tuple(refs), SCHEMA, tmp_path, "whole.run", 2, fsync=False)
    made = [r for r in merger(whole.split("t/m", 3)) if r is not None]
    assert len(made) == 3 and len({r.path for r in made}) == 3
    assert all(a.k_max < b.k_min for a, b in itertools.pairwise(made))
    assert max(r.length for r in made) <= 1.5 * min(r.length for r in made)
    for as_of in (2, 3, None):
        assert _rows(tmp_path, made, as_of).equals(_rows(tmp_path, refs, as_of))
    assert spark.sparkContext.getLocalProperty("spark.scheduler.pool") is None
    (tmp_path / "2.run").unlink()
    with pytest.raises(CorruptObject, match=r"object 2\.run is missing"):
        merger([MergePart((refs[1],), SCHEMA, tmp_path, "again.run", 2, fsync=False)])
