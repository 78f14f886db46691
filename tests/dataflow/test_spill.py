"""Stages whose input outgrows their memory: in slices from disk they put out and write what they do in one go."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stage_cases import (
    SIDE,
    aggregate_batch,
    aggregate_stage,
    join_batch,
    preserve_stage,
    recompute_batch,
    sides,
)
from stage_task import MemoryTask

from headrace.common.faults import arm, disarm_all
from headrace.dataflow.operators.join import LEFT, PAIR
from headrace.dataflow.operators.materialize import MaterializeStage
from headrace.dataflow.operators.recompute import RecomputeStage
from headrace.dataflow.operators.spill import WORKING_FACTOR, Account, Spilled, run_bounded
from headrace.dataflow.operators.task import Buffer, Keyed
from headrace.errors import DiskFull, OutOfBudget
from headrace.plan.tree import WEIGHT
from headrace.state.accumulators.doubles import DoubleSum
from headrace.state.accumulators.sums import SmallSum
from headrace.state.kernels import concat
from headrace.state.memory import MemoryController
from headrace.state.schema import TableSchema
from headrace.state.spool import TaskSpool

I32, I64 = pa.int32(), pa.int64()
VIEW = TableSchema((pa.field("a", I32), pa.field("b", I32)), (), WEIGHT)


class BoundedTask(MemoryTask):
    """A `MemoryTask` with a budget."""

    def __init__(self, folder: Path, memory_bytes: int, budget_bytes: int = 1 << 40):
        super().__init__()
        self.memory = MemoryController(memory_bytes)
        self.spool = TaskSpool(folder, "attempt", 1)
        self.spilled_bytes = 0
        self.bounds = {"memory_bytes": memory_bytes, "budget_bytes": budget_bytes}
        self.written: dict[str, list[pa.RecordBatch]] = {}

    def bounded_epoch(self, stage: Any, batches: list[pa.RecordBatch], first: bool) -> list[pa.RecordBatch]:
        """Run the stage as `run_stages` does, and commit what it wrote."""
        self.params = SimpleNamespace(first=first, **self.bounds)
        out = [b for b in run_bounded(stage, self, iter(batches)) if b.num_rows]  # type: ignore[arg-type]
        self.written = {}
        for name, schema, rows in self.pending:
            self.arrangement(name, schema).batches.append(rows)
            self.written.setdefault(name, []).append(rows)
        self.pending = []
        assert self.memory.use().used_bytes == 0, "accounting returns to zero"
        assert not any(p.name.startswith("spill-") for p in self.spool.folder.glob("*")), "spilled files are removed"
        return out


def _bag(batches: list[pa.RecordBatch]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for b in batches:
        names = [n for n in b.schema.names if n != "__w"]
        weights = b.column("__w").to_pylist() if "__w" in b.schema.names else [1] * b.num_rows
        for row, w in zip(zip(*(b.column(n).to_pylist() for n in names)), weights):
            found[row] += w
    return Counter({r: w for r, w in found.items() if w})


def _split(batch: pa.RecordBatch, at: int) -> list[pa.RecordBatch]:
    return [batch.slice(i, at) for i in range(0, batch.num_rows, at)]


def _compare(
    tmp: Path, stage: Any, epochs: list[pa.RecordBatch], memory_bytes: int, piece: int
) -> tuple[BoundedTask, BoundedTask]:
    """Run epochs with and without a bound; outputs and written rows must agree, and written rows be in order."""
    free, bound = BoundedTask(tmp / "free", 0), BoundedTask(tmp / "bound", memory_bytes)
    for i, batch in enumerate(epochs):
        pieces = _split(batch, piece)
        plain, sliced = (t.bounded_epoch(stage, pieces, i == 0) for t in (free, bound))
        assert _bag(plain) == _bag(sliced)
        assert sorted(free.written) == sorted(bound.written)
        for name, rows in bound.written.items():
            whole = concat(rows, rows[0].schema)
            assert whole.equals(concat(free.written[name], whole.schema)), "the same rows in the same order"
            assert (np.diff(np.asarray(whole.column("__k"))) >= 0).all()
    return free, bound


Maker = Callable[[random.Random], tuple[Any, list[pa.RecordBatch]]]


def _aggregate(choice: random.Random, is_global: bool = False) -> tuple[Any, list[pa.RecordBatch]]:
    stage = aggregate_stage(SmallSum(I32), is_global)
    rows = [[(choice.randrange(40), choice.choice([None, 1, 2, 3]), 1) for _ in range(60)] for _ in range(3)]
    return stage, [aggregate_batch(r, False, 1000, is_global) for r in rows]


def _global_aggregate(choice: random.Random) -> tuple[Any, list[pa.RecordBatch]]:
    return _aggregate(choice, is_global=True)


def _float_sums(choice: random.Random) -> tuple[Any, list[pa.RecordBatch]]:
    stage = aggregate_stage(DoubleSum())
    rows = [[(choice.randrange(9), choice.choice([None, 0.1, 1e20, -3.3]), 1) for _ in range(60)] for _ in range(3)]
    return stage, [aggregate_batch(r, True, 1000) for r in rows]


def _join(choice: random.Random, preserved: tuple[bool, bool] = (False, False)) -> tuple[Any, list[pa.RecordBatch]]:
    def rows() -> list[tuple[int, Any, int, int]]:
        return [(choice.randrange(2), choice.choice([None, *range(20)]), choice.randrange(9), 1) for _ in range(60)]

    return sides(preserved), [join_batch(rows(), 1000) for _ in range(3)]


def _outer_join(choice: random.Random) -> tuple[Any, list[pa.RecordBatch]]:
    return _join(choice, (True, True))


def _preserve(mode: str) -> Maker:
    def make(choice: random.Random) -> tuple[Any, list[pa.RecordBatch]]:
        stage = preserve_stage(mode, "left_matches", "o0", LEFT)
        batches = []
        for _ in range(3):
            values = [choice.randrange(30) for _ in range(60)]
            columns = {
                "__k": pa.array(values, I64),
                "__w": pa.array([1] * 60, I64),
                "__t": pa.array([choice.choice([PAIR, LEFT]) for _ in values], I32),
                "o0": pa.array(values, I32),
                "o1": pa.array([choice.randrange(3) for _ in values], I32),
            }
            batches.append(pa.RecordBatch.from_pydict(columns))
        return stage, batches

    return make


def _recompute(choice: random.Random, phantom: bool = False) -> tuple[Any, list[pa.RecordBatch]]:
    fields = [("v0", I32), ("__side", I32), *([("__row", pa.bool_())] if phantom else [])]
    stage = RecomputeStage("0", SIDE, phantom, pa.schema(fields))
    weak = 1 if phantom else 1000
    rows = [[(choice.randrange(30), choice.randrange(5), 1) for _ in range(60)] for _ in range(3)]
    return stage, [recompute_batch(r, weak) for r in rows]


def _phantom(choice: random.Random) -> tuple[Any, list[pa.RecordBatch]]:
    return _recompute(choice, phantom=True)


def _materialize(choice: random.Random) -> tuple[Any, list[pa.RecordBatch]]:
    def batch() -> pa.RecordBatch:
        columns = {n: pa.array([choice.randrange(9) for _ in range(60)], I32) for n in ("x", "y")}
        return pa.RecordBatch.from_pydict({**columns, "__w": pa.array([1] * 60, I64)})

    return MaterializeStage(VIEW, (1, 0)), [batch() for _ in range(3)]


STAGES: dict[str, Maker] = {
    "aggregate": _aggregate,
    "global aggregate": _global_aggregate,
    "sums of doubles": _float_sums,
    "join": _join,
    "outer join": _outer_join,
    **{mode: _preserve(mode) for mode in ("outer", "semi", "anti", "existence")},
    "recompute": _recompute,
    "recompute of one group": _phantom,
    "materialize": _materialize,
}


@pytest.mark.parametrize("kind", STAGES)
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**32), memory_bytes=st.sampled_from([1, 2000, 9000]), piece=st.integers(1, 60))
def test_slices_make_no_difference(
    tmp_path_factory: pytest.TempPathFactory, kind: str, seed: int, memory_bytes: int, piece: int
) -> None:
    """FS-17: a batch larger than the budget spills at once; results and state are the same, accounting ends at zero."""
    stage, epochs = STAGES[kind](random.Random(seed))
    _, bound = _compare(tmp_path_factory.mktemp("spill"), stage, epochs, memory_bytes, piece)
    assert (bound.spilled_bytes > 0) == (memory_bytes < 9000) or memory_bytes == 9000


@pytest.mark.parametrize("kind", ["aggregate", "global aggregate"])
def test_an_aggregate_reduces_its_input_as_it_comes(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, epochs = STAGES[kind](random.Random(5))
    whole, parts = BoundedTask(tmp_path, 0), BoundedTask(tmp_path, 0)
    for i, batch in enumerate(epochs):
        pieces = _split(batch, 3)
        wanted = whole.bounded_epoch(stage, pieces, i == 0)
        with monkeypatch.context() as patch:
            patch.setattr("headrace.dataflow.operators.task.GATHER_ROWS", 10)
            assert _bag(parts.bounded_epoch(stage, pieces, i == 0)) == _bag(wanted)
        assert parts.written == whole.written


@pytest.mark.parametrize("kind", ["global aggregate", "recompute of one group"])
def test_a_global_row_comes_once(tmp_path: Path, kind: str) -> None:
    """Without any rows, and with an input that was spilled: the first epoch puts out exactly one row."""
    stage, epochs = STAGES[kind](random.Random(1))
    empty = BoundedTask(tmp_path / "empty", 1)
    assert sum(b.num_rows for b in empty.bounded_epoch(stage, [], True)) == 1
    assert empty.bounded_epoch(stage, [], False) == []
    spilled = BoundedTask(tmp_path / "spilled", 1)
    rows = _bag(spilled.bounded_epoch(stage, _split(epochs[0], 7), True))
    ghosts = [r for r in rows.elements() if r[-1] is False] if "recompute" in kind else list(rows.elements())
    assert spilled.spilled_bytes and len(ghosts) == 1


def test_rows_of_one_key_beyond_the_budget_are_declined(tmp_path: Path) -> None:
    """SQLSTATE 53200, and nothing stays reserved or on the disk; an operator that can reduce its input goes on."""
    stage, epochs = _phantom(random.Random(3))
    task = BoundedTask(tmp_path, 1, budget_bytes=100)
    with pytest.raises(OutOfBudget) as caught:
        task.bounded_epoch(stage, epochs[:1], True)
    assert caught.value.sqlstate == "53200" and "memory_budget_mb" in (caught.value.hint or "")
    assert task.memory.use().used_bytes == 0 and not list(task.spool.folder.glob("spill-*"))
    stage, epochs = _global_aggregate(random.Random(3))
    assert BoundedTask(tmp_path, 1, budget_bytes=100).bounded_epoch(stage, epochs[:1], True)


def test_a_full_disk_while_spilling(tmp_path: Path) -> None:
    """FS-16: SQLSTATE 53100; the stage can be run again once there is room."""
    stage, epochs = _join(random.Random(4))
    task = BoundedTask(tmp_path, 1)
    arm("task.spool.before", "full", nth=5)
    try:
        with pytest.raises(DiskFull):
            task.bounded_epoch(stage, _split(epochs[0], 9), True)
    finally:
        disarm_all()
    assert task.memory.use().used_bytes == 0 and not list(task.spool.folder.glob("spill-*"))
    task.pending = []
    free = BoundedTask(tmp_path / "free", 0)
    assert _bag(task.bounded_epoch(stage, epochs[:1], True)) == _bag(free.bounded_epoch(stage, epochs[:1], True))


LONGS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([-(2**63), 0, 2**63 - 1]))


@given(st.lists(st.lists(LONGS, min_size=1, max_size=80), min_size=1, max_size=5), st.integers(0, 2000))
def test_slices_partition_by_key(
    tmp_path_factory: pytest.TempPathFactory, shares: list[list[int]], most_bytes: int
) -> None:
    """Every row comes once, slices follow each other, and what has several keys has been cut."""
    with Spilled(tmp_path_factory.mktemp("slices"), lambda b: np.asarray(b.column(0))) as spilled:
        for values in shares:
            spilled.add(_split(pa.RecordBatch.from_pydict({"__k": pa.array(values, I64)}), 7))
        slices = list(spilled.slices(most_bytes))
        found = [[k for b in part.batches for k in b.column(0).to_pylist()] for part in slices]
        assert all(b.schema.names == ["__k"] for part in slices for b in part.batches)
    values = [k for share in shares for k in share]
    assert spilled.nbytes >= len(values) * 8
    assert all(part.single_key == (len(set(keys)) == 1) for part, keys in zip(slices, found))
    assert sorted(k for part in found for k in part) == sorted(values)
    assert all(max(a) < min(b) for a, b in itertools.pairwise(found))
    assert len(slices) > 1 or len(set(values)) == 1


@pytest.mark.parametrize("order", ["of the keys", "against the keys", "any", "of the keys, one of them large"])
@pytest.mark.parametrize("shares", [25, 100])
def test_what_is_spilled_is_written_about_once(tmp_path: Path, shares: int, order: str) -> None:
    """However large the input is, and in whatever order its keys come."""
    choice = random.Random(6)
    rows = 40 * shares
    keys = [choice.randrange(2**62) for _ in range(rows)]
    if order != "any":
        keys.sort(reverse=order.startswith("against"))
    if "large" in order:
        keys[rows // 2 : rows // 2 + 30] = [keys[rows // 2]] * 30
    batch = pa.RecordBatch.from_pydict({"__k": pa.array(keys, I64), "v": pa.array(range(rows), I64)})
    task = BoundedTask(tmp_path, batch.nbytes * WORKING_FACTOR // shares)
    seen: list[int] = []

    class Seen(Keyed):
        operator = "0"

        def run(self, task: Any, batches: Any) -> Any:
            seen.extend(k for b in batches for k in b.column("__k").to_pylist())
            yield from ()

    task.bounded_epoch(Seen(), _split(batch, 10), True)
    assert Counter(seen) == Counter(keys)
    assert task.spilled_bytes < 2.5 * batch.nbytes, f"{task.spilled_bytes / batch.nbytes:.1f} times the input"


def test_rows_that_wait_for_the_end_of_the_task_make_room(tmp_path: Path) -> None:
    """Otherwise slices that would fit are spilled again because of what the ones before them have written."""
    memory = MemoryController(1000)
    buffer = Buffer(TaskSpool(tmp_path, "1-1-1", 1), memory)
    rows = pa.RecordBatch.from_pydict({"a": pa.array(range(50), I32), "b": pa.array(range(50), I32)})
    stored = pa.RecordBatch.from_arrays([pa.array(range(50), I64), *rows.columns, pa.array([1] * 50, I64)],
                                        schema=VIEW.arrow())  # fmt: skip
    buffer.add("0", 3, VIEW, stored.slice(0, 30))
    account = Account(memory, buffer.make_room)
    assert memory.use().used_bytes > 500 and account.take(rows.slice(0, 30))
    account.release()
    assert memory.use().used_bytes == 0 and buffer.sections(1)[0].schema == VIEW
    assert not buffer.make_room(1), "there is nothing more"
