"""How wide rows are taken to be, and what is let in by that."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from headrace.connectors.base import Admission
from headrace.coordinator.decide.row_sizes import TRIED, UNTRIED_BYTES, Intake, RowSize
from headrace.coordinator.decide.steps import SourceRest, StepPosition, TableRest, advanced, plan_step
from headrace.state.schema import RunRef

MB = 1 << 20
READS = st.lists(st.tuples(st.integers(1, 1 << 20), st.integers(0, 1 << 20)), min_size=1, max_size=20)
"""Rows, and how wide each is."""


@given(READS)
def test_an_estimate_goes_up_at_once_and_down_by_halves(reads: list[tuple[int, int]]) -> None:
    size = RowSize()
    for rows, width in reads:
        before, size = size, size.seen(rows, rows * width)
        assert size.bytes >= max(width, before.bytes / 2)
        assert size.bytes <= max(width, before.bytes, 1)
    assert size.seen(0, 0) == size
    rows, width = reads[-1]
    for _ in range(64):
        size = size.seen(rows, rows * width)
    assert math.isclose(size.bytes, max(width, 1), rel_tol=0.01) and size.tried == rows


@given(READS, st.integers(1, 1024), st.integers(1, 1 << 20))
def test_a_limit_is_exceeded_by_what_was_not_foreseen_only(
    reads: list[tuple[int, int]], most_mb: int, width: int
) -> None:
    """Never more rows than the bytes allow if they are as wide as the widest that was just seen; always one row."""
    size, most = RowSize(), most_mb * MB
    for rows, seen in reads:
        size = size.seen(rows, rows * seen)
    rows = Admission(None, most, size.counted(most)).estimated_rows()
    assert rows is not None and rows >= 1
    assert rows == 1 or rows * reads[-1][1] <= most
    # Of rows of another width there are as many as have been tried often enough, or as count for the unknown.
    assert rows <= max(TRIED * size.tried, most / UNTRIED_BYTES, 1)
    assert rows * width <= max(most * max(width / size.bytes, 1), width)


def test_what_nobody_has_read_begins_small_and_grows_with_what_is_tried() -> None:
    most, size, taken = 512 * MB, RowSize(), []
    while not taken or taken[-1] < 1_000_000:
        taken.append(Admission(1_000_000, most, size.counted(most)).estimated_rows() or 0)
        size = size.seen(taken[-1], 100 * taken[-1])
    assert taken == [2048, 32 * 2048, 1_000_000]
    wide = RowSize().seen(2048, 2048 * 200_000)
    assert Admission(1_000_000, most, wide.counted(most)).estimated_rows() == most // 200_000
    told = RowSize.told(100)
    assert Admission(1_000_000, most, told.counted(most)).estimated_rows() == 1_000_000


def test_a_few_small_records_in_a_row_do_not_open_the_door_for_wide_ones() -> None:
    """A source with little traffic: what it tells of rows is not relied on for a million of them."""
    most, size = 512 * MB, RowSize().seen(5_000, 5_000 * 100)
    for _ in range(50):
        size = size.seen(1, 20)
    assert Admission(1_000_000, most, size.counted(most)).estimated_rows() == most // UNTRIED_BYTES


def test_without_limits_of_bytes_rows_alone_count() -> None:
    assert Admission(10).estimated_rows(7) == 7 and Admission(10, 5).estimated_rows() == 10
    assert Admission(None, 100, 30.0).estimated_rows() == 3 and Admission(2, 100, 30.0).estimated_rows(9) == 2
    assert Admission(5, 100, 30.0).rows() == 5, "who knows the bytes is not held to what is estimated"
    assert Intake(9).rows_of(50.0) == 9 and Intake(9, 100).rows_of(50.0) == 2 and Intake(9, 100).rows_of(0.0) == 9
    assert RowSize().counted(math.inf) == 0


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 10_000)), min_size=1, max_size=4),
    st.integers(1, 600), st.integers(1, 1_000_000),
)  # fmt: skip
@example([(214, 1), (1, 2)], 1, 1)
def test_steps_keep_within_bytes(inputs: list[tuple[int, int]], most_rows: int, most_bytes: int) -> None:
    """Each takes something in, and no more than is allowed but for the last read task or key of it.

    Or it is over with all those of which nothing is left.
    """
    limit, position = Intake(most_rows, most_bytes), StepPosition(9)
    for _ in range(1_300):
        rests: list[TableRest | SourceRest] = []
        for i, (rows, width) in enumerate(inputs):
            at = position.of(i)
            if not at.done and i % 2:
                rests.append(SourceRest(i, tuple(range(rows)), rows, 1, at.sequence, width))
            elif not at.done:
                ref = RunRef(1, "r", 0, rows * width, rows, 5, 5, 0, rows - 1)
                rests.append(TableRest.of(i, [ref], at.next_key, None))
        if not rests:
            break
        step = plan_step(rests, limit)
        widths = {rest.relation: rest.row_bytes for rest in rests}
        taken = [(s.rows, widths[i]) for i, s in step.slices.items()]
        over = [rest.relation for rest in rests if rest.rows == 0]
        assert any(rows for rows, _ in taken) or (over and all(advanced(position, step).of(i).done for i in over))
        rows, size = sum(r for r, _ in taken), sum(r * w for r, w in taken)
        assert rows <= max(most_rows, 1) + 1 and size <= max(most_bytes, 0) + 2 * max(w for _, w in taken)
        position = advanced(position, step)
    assert all(position.of(i).done for i in range(len(inputs)))
