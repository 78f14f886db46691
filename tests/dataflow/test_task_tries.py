"""Two tries at one task, as Spark makes them when it runs a stage again, are never taken for one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from headrace.dataflow.operators.task import Task, TaskWorker, _upload
from headrace.dataflow.params import EpochParams, StateInput, property_of
from headrace.plan.tree import WEIGHT
from headrace.state.arrangement import Arrangement
from headrace.state.schema import RunRef, TableSchema

I64 = pa.int64()
SCHEMA = TableSchema((pa.field("a", I64),), (), WEIGHT)


def _try(monkeypatch: pytest.MonkeyPatch, params: EpochParams, number: int, values: list[int]) -> list[RunRef]:
    """The first attempt at partition 0 of a stage, as Spark counts; `number` is that of the try itself."""
    import pyspark

    context = SimpleNamespace(
        getLocalProperty=lambda name: params.encode() if name == property_of(1) else None,
        partitionId=lambda: 0, attemptNumber=lambda: 0, taskAttemptId=lambda: number,
    )  # fmt: skip
    monkeypatch.setattr(pyspark.TaskContext, "get", lambda: context)
    worker = TaskWorker.in_spark(1, "0")
    task = Task("0", "0", worker)
    columns = [pa.array(values, I64), pa.array(values, I64), pa.array([1] * len(values), I64)]
    task.write([("groups", SCHEMA, pa.RecordBatch.from_arrays(columns, schema=SCHEMA.arrow()))])
    assert task.acknowledgement().task_attempt == number
    return _upload(worker, "0")


def test_a_stage_that_is_run_again_writes_objects_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A try of before ends late: what the new one has written stays as it is."""
    params = EpochParams(
        attempt="1-1-1", from_epoch=0, to_epoch=1, first=True, root=str(tmp_path), prefix="1/1-1",
        spool=str(tmp_path / "spool"), state={"0/groups": StateInput(7, ())},
    )  # fmt: skip
    (new,) = _try(monkeypatch, params, 12, [1, 2, 3])
    (late,) = _try(monkeypatch, params, 3, [3])
    assert new.path != late.path
    rows = list(Arrangement(SCHEMA, (new,), str(tmp_path), as_of=1).scan())
    assert [v for b in rows for v in b.column("a").to_pylist()] == [1, 2, 3]
