"""What an epoch takes in of a table: its content at first, then what changed since, and nothing else."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.dataflow.operators.inputs import InputStage
from headrace.dataflow.params import TableInput
from headrace.plan.tree import WEIGHT
from headrace.state.kernels import consolidate
from headrace.state.run import Section, write_run
from headrace.state.schema import RunRef, TableSchema
from support import examples

SCHEMA = TableSchema((pa.field("a", pa.int64()),), (), WEIGHT)
OUTPUT = pa.schema([("c0", pa.int64()), ("__w", pa.int64())])


def _write(root: Path, epoch: int, delta: list[int]) -> list[RunRef]:
    """One run; a negative number takes its absolute value away."""
    rows = [pa.array([(abs(a) - 5) << 60 for a in delta], pa.int64()), pa.array([abs(a) for a in delta], pa.int64())]
    rows.append(pa.array([1 if a > 0 else -1 for a in delta], pa.int64()))
    batch = consolidate(pa.RecordBatch.from_arrays(rows, schema=SCHEMA.arrow()), SCHEMA)
    return write_run(root, f"{epoch}.run", [Section(1, SCHEMA, [batch], epoch)], fsync=False) if batch.num_rows else []


def _taken(
    root: Path, refs: list[RunRef], parallelism: int, first: bool, span: tuple[int, int], memory_bytes: int = 0
) -> list[Any]:
    params = SimpleNamespace(
        tables={1: TableInput(tuple(refs))},
        sources={},
        root=str(root),
        first=first,
        snapshot=first,
        from_epoch=span[0],
        to_epoch=span[1],
        memory_bytes=memory_bytes,
    )
    task: Any = SimpleNamespace(params=params)
    stage = InputStage("0", 1, ("a",), SCHEMA, parallelism, OUTPUT)
    found = []
    for i in range(parallelism):
        numbers = iter([pa.RecordBatch.from_pydict({"id": [i]})])
        for batch in stage.run(task, numbers):
            found += list(zip(*(c.to_pylist() for c in batch.columns)))
    return found


@settings(deadline=None, max_examples=examples(40))
@given(st.lists(st.lists(st.integers(1, 9), max_size=4), min_size=1, max_size=5), st.integers(1, 4), st.data())
def test_changes(
    tmp_path_factory: pytest.TempPathFactory, inserts: list[list[int]], parallelism: int, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("input")
    refs: list[RunRef] = []
    content = [Counter[int]()]
    for epoch, added in enumerate(inserts, 1):
        there = sorted(content[-1].elements())
        removed = data.draw(st.lists(st.sampled_from(there), unique=True)) if there else []
        delta = [*added, *(-a for a in removed)]
        refs += _write(root, epoch, delta)
        content.append(content[-1] + Counter(added) - Counter(removed))
    last = len(inserts)
    start = data.draw(st.integers(0, last))
    stop = data.draw(st.integers(start, last))
    whole = Counter(dict(_taken(root, refs, parallelism, True, (0, stop))))
    assert whole == content[stop]
    rows = _taken(root, refs, parallelism, False, (start, stop))
    change = dict(rows)
    assert rows == _taken(root, refs, parallelism, False, (start, stop), data.draw(st.sampled_from([1, 10_000])))
    assert len(rows) == len(change), "a row that is there twice"
    assert {
        a: content[stop][a] - content[start][a] for a in range(1, 10) if content[stop][a] != content[start][a]
    } == change
