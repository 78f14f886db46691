"""The first rows of partitions that only grow, as workers keep them, without Spark."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stage_task import MemoryTask
from top_rows import TOP, TOP_OUTPUT, all_tops, take_top, top_batch

from headrace.dataflow.operators.leading import FirstOfInputStage, LeadingStage
from headrace.dataflow.operators.recompute import FirstRows, RecomputeStage
from headrace.errors import HeadraceError
from headrace.state.kernels.order_code import OrderColumn
from headrace.state.memory import MemoryController
from support import examples

unhurried = settings(deadline=None, max_examples=examples(60))
_ROWS = st.tuples(st.integers(0, 2), st.integers(0, 3), st.sampled_from([None, 0, 1, 2, 5]))
_EPOCHS = st.lists(st.lists(_ROWS, max_size=9), min_size=1, max_size=5)


def _kept(task: MemoryTask) -> Counter[Any]:
    rows = task.arrangement("rows", TOP).fetch(np.arange(3)).to_pylist()
    return Counter({(r["v0"], r["v1"], r["v2"]): r["__w"] for r in rows})


@unhurried
@given(_EPOCHS, st.integers(1, 3), st.integers(1, 5), st.booleans(), st.integers(0, 3))
def test_the_first_rows(epochs: list[Any], weak: int, need: int, by_value: bool, former: int) -> None:
    """What comes out adds up to the ranks over everything, of which only the first rows are kept.

    In the first `former` epochs all rows are kept, as over an input that can shrink: more state changes nothing.
    """
    first = FirstRows(need, by_value, (("v2", OrderColumn(True, False)),))
    stages = [RecomputeStage("0", TOP, False, TOP_OUTPUT, first), LeadingStage("0", TOP, TOP_OUTPUT, first)]
    task, content, view = MemoryTask(), Counter[Any](), Counter[Any]()
    for i, rows in enumerate(epochs):
        content.update(rows)
        batch = top_batch([(*row, 1) for row in rows], weak)
        take_top(view, task.epoch(stages[i >= former], batch), need, by_value)
        wanted = all_tops(content, need, by_value)
        assert {r: n for r, n in view.items() if n} == wanted
        if weak == 3 and not former:
            assert _kept(task) == wanted


@unhurried
@given(st.lists(_ROWS, min_size=1, max_size=12), st.integers(1, 3), st.integers(1, 12))
def test_batches_of_any_size(rows: list[Any], weak: int, size: int) -> None:
    """How a task's input comes makes no difference."""
    first = FirstRows(2, False, (("v2", OrderColumn(True, False)),))
    stage, whole, parts = LeadingStage("0", TOP, TOP_OUTPUT, first), MemoryTask(), MemoryTask()
    batch = top_batch([(*row, 1) for row in rows], weak)
    assert batch is not None
    out = whole.epoch(stage, batch)
    pieces = [batch.slice(at, size) for at in range(0, batch.num_rows, size)]
    again = [b for b in stage.run(parts, iter(pieces)) if b.num_rows]  # type: ignore[arg-type]
    assert [b.to_pylist() for b in out] == [b.to_pylist() for b in again]
    assert [b.to_pylist() for *_, b in parts.pending] == [b.to_pylist() for b in whole.tables["rows"].batches]


def test_partitions_whose_first_rows_stay_say_nothing() -> None:
    first = FirstRows(1, False, (("v2", OrderColumn(True, False)),))
    stage, task = LeadingStage("0", TOP, TOP_OUTPUT, first), MemoryTask()

    def epoch(*rows: tuple[int, int, int, int]) -> list[tuple[Any, ...]]:
        out = task.epoch(stage, top_batch(list(rows), 3))
        return [tuple(r.values()) for b in out for r in b.to_pylist()]

    assert epoch((0, 1, 5, 1), (0, 2, 3, 1), (1, 1, 1, 1)) == [(0, 1, 5, 1), (1, 1, 1, 1)]
    assert epoch((0, 3, 4, 1)) == []
    assert epoch((0, 4, 6, 1), (1, 2, 0, 1)) == [(0, 1, 5, 0), (0, 4, 6, 1)]
    assert [b.num_rows for b in task.tables["rows"].batches] == [2, 0, 2]


def test_rows_that_tie_come_in_an_order_of_their_own() -> None:
    """Which of equal ranks is the first does not depend on when and in what order rows came."""
    first = FirstRows(1, False, (("v2", OrderColumn()),))
    rows = [(0, n, 7, 1) for n in range(9)]
    found = []
    for order in (rows, rows[::-1], rows[4:] + rows[:4]):
        stage, task = LeadingStage("0", TOP, TOP_OUTPUT, first), MemoryTask()
        task.epoch(stage, top_batch(order[:5], 3))
        (_, new) = task.epoch(stage, top_batch(order[5:], 3))
        found.append(new.column("v1").to_pylist())
    assert found[0] == found[1] == found[2]


def test_no_row_may_be_removed() -> None:
    stage = LeadingStage("0", TOP, TOP_OUTPUT, FirstRows(1, False, (("v2", OrderColumn()),)))
    with pytest.raises(HeadraceError, match="only grows"):
        MemoryTask().epoch(stage, top_batch([(0, 1, 1, -1)], 3))


def test_without_an_order_the_hash_is_one() -> None:
    stage, task = LeadingStage("0", TOP, TOP_OUTPUT, FirstRows(2, False, ())), MemoryTask()
    batch = top_batch([(0, n, n, 1) for n in range(5)], 3)
    assert batch is not None
    (out,) = task.epoch(stage, batch.append_column("__h", pa.array([4, 3, 2, 1, 0])))
    assert out.column("v1").to_pylist() == [4, 3]
    assert [b.num_rows for b in task.tables["rows"].batches] == [2]


@unhurried
@given(st.lists(_ROWS, min_size=1, max_size=12), st.sampled_from([None, 1, 2]), st.integers(1, 4), st.booleans())
def test_what_a_leaf_passes_on(rows: list[Any], weak: int | None, size: int, by_value: bool) -> None:
    """All that can be among the first is, whatever else; and without collisions little else, however input comes."""
    first = FirstRows(2, by_value, (("v2", OrderColumn(True, False)),))
    stage, task = FirstOfInputStage("0", ("k0",), first, weak), MemoryTask()
    task.memory, task.params.memory_bytes = MemoryController(1 << 30), 1 << 30
    batch = top_batch([(*row, 1) for row in rows], 3)
    assert batch is not None
    found = list(stage.run(task, (batch.slice(at, size) for at in range(0, batch.num_rows, size))))  # type: ignore[arg-type]
    passed = Counter((r["v0"], r["v1"], r["v2"]) for b in found for r in b.to_pylist())
    wanted = all_tops(Counter(rows), 2, by_value)
    assert wanted <= passed <= Counter(rows)
    assert weak is not None or passed == wanted
    assert task.memory.use().used_bytes == 0


def test_a_leaf_without_room_passes_on_what_it_has() -> None:
    first = FirstRows(1, False, (("v2", OrderColumn()),))
    stage, task = FirstOfInputStage("0", (), first), MemoryTask()
    task.memory, task.params.memory_bytes = MemoryController(1), 1
    batches = [top_batch([(0, n, n, 1), (0, n, n + 1, 1)], 3) for n in range(3)]
    found = [b.column("v2").to_pylist() for b in stage.run(task, iter(batches))]  # type: ignore[arg-type]
    assert found == [[0], [1], [2]]
