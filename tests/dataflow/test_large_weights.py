"""A row that is there a hundred million times is read, counted, sorted and handed on in pieces of bounded size."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark import cloudpickle

from headrace.catalog.contents import TableContent
from headrace.common.columns import Column
from headrace.dataflow.operators import calls
from headrace.dataflow.operators.inputs import SnapshotScan
from headrace.dataflow.operators.recompute import NEW, versions
from headrace.dataflow.operators.task import OUTPUT_ROWS
from headrace.plan.tree import WEIGHT
from headrace.session.reading.read_plans import read_plan
from headrace.session.reading.read_steps import answered
from headrace.sql.binder.way import bound_query
from headrace.sql.binder.world import NOTHING
from headrace.sql.statements import TableName
from headrace.state.run import Section, write_run
from headrace.state.schema import TableSchema

I64 = pa.int64()
SCHEMA = TableSchema((pa.field("a", I64),), (), WEIGHT)
MANY = 10**8


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
        assert pa.total_allocated_bytes() - before < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.fixture
def scan(tmp_path: Path) -> SnapshotScan:
    """Rows 1, 2, 3; of the second there are very many, of the last there is none."""
    rows = [pa.array(v, I64) for v in ([10, 20, 30], [1, 2, 3], [1, MANY, -5])]
    batch = pa.RecordBatch.from_arrays(rows, schema=SCHEMA.arrow())
    refs = write_run(str(tmp_path), "1.run", [Section(1, SCHEMA, [batch], 1)], fsync=False)
    return SnapshotScan(SCHEMA, tuple(refs), str(tmp_path), 1, ("a",), 1, pa.schema([("a", I64)]))


def answer(sql: str, scan: SnapshotScan) -> list[Any]:
    """The first column of a query over the rows as `t (a)`."""
    query, types = bound_query(sql, {TableName(None, "t"): {"a": "bigint"}}, NOTHING)
    record: Any = SimpleNamespace(content=TableContent(), primary_key=(), columns=(Column("a", "bigint"),), id=1)
    plan = read_plan(query, types, record)
    steps = plan.steps(())
    return [v for b in answered(plan, steps, scan.stored(0), steps.where) for v in b.column(0).to_pylist()]


def test_a_scan(scan: SnapshotScan) -> None:
    with little_memory():
        first = list(itertools.islice(scan.slice(0), 3))
        assert [b.num_rows for b in first] == [OUTPUT_ROWS] * 3
        assert first[0].column(0).to_pylist()[:2] == [1, 2] and first[2].column(0)[-1].as_py() == 2


def test_a_count(scan: SnapshotScan) -> None:
    with little_memory():
        assert answer("SELECT count(*) FROM t", scan) == [MANY + 1]
        assert answer("SELECT count(*) FROM t WHERE a > 1", scan) == [MANY]
        assert answer("SELECT sum(a) + count(*) FROM t", scan) == [3 * MANY + 2]
        assert answer("SELECT max(a) FROM t", scan) == [2]


@pytest.mark.parametrize("falls", [False, True])
def test_a_sorted_read(scan: SnapshotScan, falls: bool) -> None:
    with little_memory():
        order = f"a {'DESC' if falls else 'ASC'} LIMIT 2 OFFSET {int(not falls)}"
        assert answer(f"SELECT a FROM t ORDER BY {order}", scan) == [2, 2]
        assert answer("SELECT a + 1 FROM t LIMIT 3", scan) == answer("SELECT 1 + a FROM t WHERE a > 0 LIMIT 3", scan)


def test_a_sorted_read_to_its_end(tmp_path: Path) -> None:
    rows = [pa.array(v, I64) for v in ([10, 20, 30], [1, 2, 3], [2, 3, -5])]
    batch = pa.RecordBatch.from_arrays(rows, schema=SCHEMA.arrow())
    refs = write_run(str(tmp_path), "1.run", [Section(1, SCHEMA, [batch], 1)], fsync=False)
    small = SnapshotScan(SCHEMA, tuple(refs), str(tmp_path), 1, ("a",), 1, pa.schema([("a", I64)]))
    assert answer("SELECT a FROM t ORDER BY a DESC", small) == [2, 2, 2, 1, 1]
    assert answer("SELECT count(*) FROM t", small) == [5]


def test_a_version_of_a_partition() -> None:
    schema = TableSchema((pa.field("k", I64),), (pa.field("v", I64),), WEIGHT)
    rows = pa.RecordBatch.from_arrays([pa.array(v, I64) for v in ([0], [0], [0], [7], [MANY])], schema=schema.arrow())
    output = pa.schema([("v", I64), ("__side", pa.int32())])
    with little_memory():
        first = next(versions(rows, np.array([0]), NEW, schema, output))
        assert first.num_rows == OUTPUT_ROWS and first.column(0)[0].as_py() == 7


@pytest.mark.parametrize("sign", [1, -1])
def test_functions_over_batches(sign: int) -> None:
    def heads(frames: Iterator[Any]) -> Iterator[Any]:
        for frame in itertools.islice(frames, 2):
            yield frame[:3]

    command = cloudpickle.dumps((heads, None))
    with little_memory():
        frames = calls.map_frames(command, ["a"])(iter([pd.DataFrame({"a": [7], "__w": [sign * MANY]})]))
        assert next(frames).values.tolist() == [[7, sign]] * 3
        batch = pa.record_batch([pa.array([7], I64), pa.array([sign * MANY], I64)], ["a", "__w"])
        batches = calls.map_batches(command, ["a"])(iter([batch]))
        assert next(batches).to_pydict() == {"a": [7] * 3, "__w": [sign] * 3}


def test_a_function_that_stops_early_is_told_what_is_removed() -> None:
    """And what it does not want is not made for it."""

    def first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches)[:1]

    weights = [MANY, 1, -MANY]
    given = (pa.record_batch([pa.array([i], I64), pa.array([w], I64)], ["a", "__w"]) for i, w in enumerate(weights))
    with little_memory():
        found = list(calls.map_batches(cloudpickle.dumps((first, None)), ["a"])(given))
    assert [b.to_pydict() for b in found] == [{"a": [0], "__w": [1]}, {"a": [2], "__w": [-1]}]
