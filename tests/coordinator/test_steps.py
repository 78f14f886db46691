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
    digest_of,
    parts_for,
    plan_step,
    position_of,
)
from headrace.state.schema import RunRef

KEYS = st.integers(LOWEST_KEY, END_OF_KEYS - 1)
EPOCHS = st.integers(0, (1 << 63) - 1)
TAKEN = st.builds(
    InputProgress,
    st.integers(0, 1 << 62),
    KEYS,
    st.integers(0, 100),
    st.booleans(),
    EPOCHS,
    EPOCHS,
    st.text("0a", max_size=4),
)


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
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 500)), max_size=6), st.integers(1, 400), st.integers(0, 3),
)  # fmt: skip
def test_steps_cover_everything_once_within_bounds(
    spans: list[tuple[int, int, int]], ranges: list[tuple[int, int]], limit: int, known: int
) -> None:
    """LS-2, LS-5, LS-13, PC-33: slices of keys follow each other without gap or overlap from the first to the last.

    All rows of one key are in one slice, so both halves of an update are. So do the read tasks of a source, range by
    range, of which no more are known than a step gets to. A step stays within the limit but for the rows of one key or
    one read task.
    """
    refs = [run_of(*span) for span in spans]
    position, seen, taken = StepPosition(9), [], list[object]()
    every = [(n, i) for n, (tasks, _) in enumerate(ranges, start=1) for i in range(tasks)]
    one_key = sum(r.rows / (r.k_max + 1 - r.k_min) for r in refs)
    largest = max([one_key, *(total / tasks for tasks, total in ranges)])
    for _ in range(10_000):
        rests: list[Rest] = []
        if refs and not position.of(1).done:
            rests.append(TableRest.of(1, refs, position.of(1).next_key, None))
        at = position.of(2)
        left = [n for n in range(1, len(ranges) + 1) if n > at.from_epoch and not at.done]
        for n in left[: 1 + known]:
            tasks, total = ranges[n - 1]
            low = at.sequence if n == at.to_epoch else 0
            named = tuple((n, i) for i in range(tasks))
            rests.append(SourceRest(2, named, total, 4, low, 0.0, n - 1, n, n == len(ranges)))
        if left[1 + known :]:
            rests.append(SourceRest(2, (), 1000, 0, cut=False))
        if not rests:
            break
        step = plan_step(rests, Intake(limit))
        assert step.slices and step.rows <= (limit + largest) * (1 + 1e-9)
        for s in step.slices.values():
            if isinstance(s, KeySlice):
                assert s.low == (seen[-1] if seen else LOWEST_KEY) and s.high > s.low
                seen.append(s.high)
            else:
                assert isinstance(s, TaskSlice) and s.tasks and s.reached.parts in (0, 4)
                taken += s.tasks
        position = advanced(position, step)
        assert step.last == (not refs or position.of(1).done) * (not ranges or position.of(2).done)
    assert taken == every and (not refs or seen[-1] == END_OF_KEYS)
    assert all(t.done for t in position.taken.values())


def test_a_position_names_the_range_that_is_begun_and_what_was_read_of_it() -> None:
    """Neither how many ranges there were before nor how often a step was taken counts."""
    first = SourceRest(2, ("a", "b"), 20, 2, 0, 0.0, 0, 5, final=False)
    second = SourceRest(2, ("c", "d", "e"), 30, 3, 0, 0.0, 5, 9)
    position = advanced(StepPosition(9), plan_step([first, second], Intake(30)))
    assert position.of(2) == InputProgress(1, LOWEST_KEY, 3, False, 5, 9, digest_of(["c"]))
    assert position.of(2).needs == 5
    over = advanced(StepPosition(9), plan_step([first, second], Intake(20)))
    assert over.of(2) == InputProgress(from_epoch=5) and over.of(2).needs == 5
    begun = advanced(StepPosition(9), plan_step([first], Intake(10)))
    assert (begun.of(2).from_epoch, begun.of(2).needs) == (0, 5), "what is before the first range nobody needs"
    whole = advanced(StepPosition(9), plan_step([first, second], Intake(50)))
    assert whole.of(2).done and whole.of(2).needs == 0


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
