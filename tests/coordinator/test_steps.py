"""Steps of an epoch: key ranges and read tasks, positions, bounds."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.decide.row_sizes import Intake
from headrace.coordinator.decide.steps import (
    END_OF_KEYS,
    LOWEST_KEY,
    MOST_PARTS,
    InputProgress,
    KeySlice,
    Rest,
    SourceRest,
    StepPosition,
    TableRest,
    TaskSlice,
    advanced,
    parts_for,
    plan_step,
    position_of,
)
from headrace.state.schema import RunRef

KEYS = st.integers(LOWEST_KEY, END_OF_KEYS - 1)
TAKEN = st.builds(InputProgress, st.integers(0, 1 << 62), KEYS, st.integers(0, 100), st.booleans())


def run_of(low: int, high: int, rows: int) -> RunRef:
    return RunRef(1, f"{low}.run", 0, 1, rows, 5, 5, min(low, high), max(low, high))


@given(st.integers(1, (1 << 63) - 1), st.dictionaries(st.integers(1, 9), TAKEN, min_size=1))
def test_a_position_is_stored_and_read_back(epoch: int, taken: dict[int, InputProgress]) -> None:
    """LS-13: over the whole range of 64 bits."""
    position = StepPosition(epoch, taken)
    assert position_of(position.records(7)) == position
    assert position_of([]) is None


@given(
    st.lists(st.tuples(KEYS, KEYS, st.integers(1, 1000)), max_size=5),
    st.integers(0, 40), st.integers(0, 500), st.integers(1, 400),
)  # fmt: skip
def test_steps_cover_everything_once_within_bounds(
    spans: list[tuple[int, int, int]], tasks: int, total: int, limit: int
) -> None:
    """LS-2, LS-5, LS-13, PC-33: slices of keys follow each other without gap or overlap from the first to the last.

    All rows of one key are in one slice, so both halves of an update are. A step stays within the limit but for the
    rows of one key or one read task.
    """
    refs = [run_of(*span) for span in spans]
    position, seen, taken = StepPosition(9), [], 0
    one_key = sum(r.rows / (r.k_max + 1 - r.k_min) for r in refs)
    largest = max(total / max(tasks, 1), one_key)
    for _ in range(10_000):
        rests: list[Rest] = []
        if refs and not position.of(1).done:
            rests.append(TableRest.of(1, refs, position.of(1).next_key, None))
        if tasks and not position.of(2).done:
            rests.append(SourceRest(2, tuple(range(tasks)), total, 4, position.of(2).sequence))
        if not rests:
            break
        step = plan_step(rests, Intake(limit))
        assert step.slices and step.rows <= (limit + largest) * (1 + 1e-9)
        for s in step.slices.values():
            if isinstance(s, KeySlice):
                assert s.low == (seen[-1] if seen else LOWEST_KEY) and s.high > s.low
                seen.append(s.high)
            else:
                assert isinstance(s, TaskSlice) and s.low == taken and s.parts == 4
                taken = s.high
        position = advanced(position, step)
    assert taken == tasks and (not refs or seen[-1] == END_OF_KEYS)
    assert all(t.done for t in position.taken.values())


def test_a_small_change_is_one_whole_step() -> None:
    rests: list[Rest] = [TableRest.of(1, [run_of(-5, 5, 10)], LOWEST_KEY, None), SourceRest(2, ("a", "b"), 5, 2)]
    step = plan_step(rests, Intake(100))
    assert step.last and step.rows == 15
    first = step.slices[1]
    assert isinstance(first, KeySlice) and first.whole
    assert not plan_step(rests, Intake(12)).last


def test_what_is_known_of_merged_history_counts() -> None:
    """A merged run holds old rows too: where the number of new ones is known, a small change stays one step."""
    assert TableRest.of(1, [run_of(0, 9, 1_000_000)], LOWEST_KEY, 10).rows == 10
    assert TableRest.of(1, [run_of(0, 9, 10)], LOWEST_KEY, 1_000_000).rows == 10
    assert [parts_for(n, 10, 2) for n in (0, 10, 11, 95)] == [2, 2, 4, 20]


def test_a_long_range_is_not_cut_into_any_number_of_tasks() -> None:
    """They are all made anew for each step: of rows of unknown width there are few in a task."""
    assert parts_for(10**9, 2048, 8) == MOST_PARTS


def test_a_position_that_only_settles_the_epoch_is_not_touched() -> None:
    settled = StepPosition(7, {1: InputProgress(), 2: InputProgress()})
    assert not StepPosition(7).touched and not settled.touched
    assert position_of(settled.records(3)) == settled
    step = plan_step([TableRest(1, ((0, 9, 10.0),))], Intake(math.inf))
    assert advanced(settled, step).touched
