"""Epochs of kept plans, run in processes of their own: what comes of them, and of all that cannot be done so."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.dataflow.kept_plans import Form, Kept, Outline, Stages
from headrace.dataflow.kept_runner import KeptRunner, StageProcesses
from headrace.dataflow.operators.inputs import InputStage
from headrace.dataflow.operators.materialize import MaterializeStage
from headrace.dataflow.params import EpochParams, StateInput, TableInput
from headrace.errors import JobFailed
from headrace.plan.tree import WEIGHT
from headrace.plan.watermark_rules import NO_EVENT_TIME
from headrace.state.arrangement import Arrangement
from headrace.state.run import Section, write_run
from headrace.state.schema import ROWS, RunRef, TableSchema
from support import WAIT_S, eventually

TABLE = TableSchema((pa.field("a", pa.int64()),), (), WEIGHT)
WIRE = pa.schema([("c0", pa.int64()), ("__w", pa.int64())])


def stages(tasks: int) -> Stages:
    return InputStage("0", 1, ("a",), TABLE, tasks, WIRE), MaterializeStage(TABLE, (0,), None)


def kept(*forms: Form) -> Kept:
    outline = Outline({"0": 1}, (1,), NO_EVENT_TIME, False, frozenset(), frozenset(), frozenset())
    return Kept(outline, {form: stages(form[0]) for form in forms})


@pytest.fixture
def processes() -> Iterator[StageProcesses]:
    made = StageProcesses(1)
    yield made
    made.close()


@pytest.fixture
def params(tmp_path: Path) -> EpochParams:
    """An epoch that takes in the numbers from 0 to 9."""
    keys, ones = [(n - 5) << 60 for n in range(10)], [1] * 10
    columns = [pa.array(values, pa.int64()) for values in (keys, range(10), ones)]
    batch = pa.RecordBatch.from_arrays(columns, schema=TABLE.arrow())
    refs = write_run(tmp_path, "in.run", [Section(1, TABLE, [batch], 1)], fsync=False)
    return EpochParams(
        attempt="7-1-1", from_epoch=0, to_epoch=1, first=True, root=str(tmp_path), prefix="7/1-1", sync=False,
        spool=str(tmp_path / "spool"), tables={1: TableInput(tuple(refs))}, state={ROWS: StateInput(7, ())},
    )  # fmt: skip


def content(params: EpochParams, refs: list[RunRef]) -> Counter[int]:
    batches = Arrangement(TABLE, tuple(refs), params.root, as_of=1).scan()
    return Counter(v for b in batches for v in b.column("a").to_pylist())


@pytest.mark.parametrize("tasks", [1, 3])
def test_an_epoch_is_run_as_a_spark_job_would(processes: StageProcesses, params: EpochParams, tasks: int) -> None:
    """Each attempt by itself: a process that has run one runs the next."""
    runner = KeptRunner(kept((tasks, None)), processes)
    first, second = runner.run_with(params, tasks, [(runner, replace(params, attempt="7-1-2", prefix="7/1-2"), tasks)])
    for result, prefix in ((first, "7/1-1"), (second, "7/1-2")):
        assert content(params, result.runs) == Counter(range(10))
        assert all(ref.path.startswith(prefix) for ref in result.runs)
        assert (result.rows_in, result.rows_by_input, result.rows_out) == (10, {1: 10}, 10)
        assert result.task_count == 2 * tasks
    assert not list((Path(str(params.root)) / "spool").glob("*"))


def test_what_is_not_kept_is_left_to_spark(processes: StageProcesses, params: EpochParams) -> None:
    runner = KeptRunner(kept((1, frozenset([2]))), processes)
    for tasks in (1, 2):
        with pytest.raises(JobFailed, match="no stages for this epoch"):
            runner.run(params, tasks)


def test_a_stage_that_fails_is_told_and_the_process_goes_on(processes: StageProcesses, params: EpochParams) -> None:
    """Here the rows of the table are gone."""
    runner = KeptRunner(kept((1, None)), processes)
    lost = TableInput(tuple(replace(ref, path="gone.run") for ref in params.tables[1].refs))
    with pytest.raises(JobFailed, match=r"gone\.run"):
        runner.run(replace(params, tables={1: lost}), 1)
    assert content(params, runner.run(params, 1).runs) == Counter(range(10))


def test_an_attempt_that_hangs_is_stopped(
    processes: StageProcesses, params: EpochParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name alone; another process takes the next one. Once all is closed nothing runs."""
    monkeypatch.setenv("HEADRACE_FAULTS", "task.before_upload=hang")
    runner = KeptRunner(kept((1, None)), processes)
    errors: list[Exception] = []

    def run() -> None:
        try:
            runner.run(params, 1)
        except JobFailed as error:
            errors.append(error)

    running = threading.Thread(target=run)
    running.start()
    eventually(lambda: processes._busy, "the attempt to run")
    runner.cancel("another")
    running.join(0.2)
    assert running.is_alive()
    runner.cancel("7-1-1")
    running.join(WAIT_S)
    assert [str(e) for e in errors] == ["a process that ran stages has ended"]
    monkeypatch.setenv("HEADRACE_FAULTS", "")
    assert content(params, runner.run(params, 1).runs) == Counter(range(10))
    processes.close()
    with pytest.raises(JobFailed, match="any more"):
        runner.run(params, 1)
