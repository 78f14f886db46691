"""Marks: steps, their order, the least of several, windows, joins."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.plan.watermark_rules import (
    Band,
    CalendarUnit,
    Chain,
    Floor,
    LeastWatermark,
    Rest,
    Shift,
    Step,
    Truncate,
    least,
    minus_rest,
    of_column,
    through_join,
)

A, B = of_column(1, "t"), of_column(2, "t")
TIMES = st.integers(-(10**15), 10**16)
FAR = st.one_of(TIMES, st.integers(-(1 << 63), (1 << 63) - 1))
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.integers(-(10**9), 10**9).map(Shift),
    st.builds(Floor, st.integers(1, 10**9), st.integers(-(10**9), 10**9)),
    st.sampled_from([Truncate("month"), Truncate("quarter"), Truncate("year")]),
)


def at(mark: LeastWatermark | None, **watermarks: int | None) -> int | None:
    assert mark is not None
    return mark.value(lambda i, _: watermarks["a" if i == 1 else "b"])


@given(STEPS, FAR, FAR)
def test_steps_are_monotone(step: Step, one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert step(low) <= step(high)


@given(st.lists(STEPS, max_size=5), FAR)
def test_marks_stay_in_the_range_of_times(steps: list[Step], t: int) -> None:
    """Also where the calendar has no such year, and where a shift leads beyond the first or last time."""
    mark = A
    for step in steps:
        mark = mark.then(step)
    found = at(mark, a=t)
    assert found is not None and -(1 << 63) <= found < 1 << 63
    if all(not isinstance(step, Shift) or step.us <= 0 for step in steps):
        assert found <= t, "the start of a unit is not after what lies in it"


@given(st.lists(STEPS, max_size=5), TIMES)
def test_a_chain_does_its_steps_one_after_the_other(steps: list[Step], t: int) -> None:
    mark, expected = A, t
    for step in steps:
        mark, expected = mark.then(step), step(expected)
    assert at(mark, a=t) == expected


@pytest.mark.parametrize(
    ("steps", "stored"),
    [
        ([Shift(3), Shift(-3)], ()),
        ([Shift(3), Shift(4)], (Shift(7),)),
        ([Floor(10), Shift(4), Shift(1)], (Floor(10), Shift(5))),
        ([Shift(4), Floor(10)], (Shift(4), Floor(10))),
        ([Floor(10), Shift(0)], (Floor(10),)),
    ],
)
def test_equal_chains_look_alike(steps: list[Step], stored: tuple[Step, ...]) -> None:
    mark = A
    for step in steps:
        mark = mark.then(step)
    assert mark == LeastWatermark(frozenset({Chain(1, "t", stored)}))


@pytest.mark.parametrize(
    ("width", "origin", "t", "start"),
    [(10, 0, 0, 0), (10, 0, 9, 0), (10, 0, 10, 10), (10, 0, -1, -10), (10, 3, 12, 3), (10, 3, 13, 13), (10, 13, 2, -7)],
)
def test_floor(width: int, origin: int, t: int, start: int) -> None:
    assert Floor(width, origin)(t) == start


@pytest.mark.parametrize(
    ("unit", "moment", "start"),
    [
        ("month", (2024, 2, 29, 23, 59), (2024, 2, 1)),
        ("quarter", (2024, 12, 31), (2024, 10, 1)),
        ("quarter", (2024, 4, 1), (2024, 4, 1)),
        ("year", (1969, 12, 31, 1), (1969, 1, 1)),
    ],
)
def test_calendar_units(unit: CalendarUnit, moment: tuple[int, ...], start: tuple[int, ...]) -> None:
    def us(parts: tuple[int, ...]) -> int:
        return int(datetime(*parts, tzinfo=UTC).timestamp()) * 1_000_000  # type: ignore[arg-type,misc]

    assert Truncate(unit)(us(moment) + 7) == us(start)


def test_the_least_needs_all() -> None:
    both = least([A, B.then(Shift(-5))])
    assert at(both, a=10, b=12) == 7
    assert at(both, a=10, b=None) is None
    assert least([A, None]) is None
    assert least([]) is None
    assert least([A, A]) == A
    assert both is not None and both.relations == {1, 2}


@given(TIMES, st.integers(-50, 50), st.integers(-50, 50), st.integers(1, 40))
def test_a_time_less_its_rest_is_its_window(t: int, a: int, b: int, width: int) -> None:
    mark = minus_rest(A.then(Shift(a)), Rest(A.then(Shift(b)), width))
    assert at(mark, a=t) == t + a - (t + b) % width


@pytest.mark.parametrize("other", [B, A.then(Floor(3)), least([A, B])])
def test_rests_of_another_time_make_no_window(other: LeastWatermark) -> None:
    assert minus_rest(A, Rest(other, 10)) is None


def test_windows_of_a_union() -> None:
    both = least([A, B])
    assert both is not None
    assert at(minus_rest(both, Rest(both, 10)), a=25, b=31) == 20


# ---- joins

LEFT, RIGHT = 1, 2


@pytest.mark.parametrize(
    ("band", "left", "right", "output"),
    [
        (Band(LEFT, RIGHT, 0, 0), 70, 70, {LEFT: 70, RIGHT: 70}),  # windows
        (Band(LEFT, RIGHT, -10, 5), 60, 70, {LEFT: 60, RIGHT: 70}),  # left BETWEEN right - 10 AND right + 5
        (Band(LEFT, RIGHT, 10, 20), 80, 70, {LEFT: 80, RIGHT: 70}),
        (Band(LEFT, RIGHT, -10, None), 60, None, {LEFT: 60}),
        (Band(LEFT, RIGHT, None, 5), None, 70, {RIGHT: 70}),
        (Band(LEFT, RIGHT, None, None), None, None, {}),
        (Band(LEFT, 9, 0, 0), None, None, {}),  # the other side has no watermark
    ],
)
def test_bands(band: Band, left: int | None, right: int | None, output: dict[int, int]) -> None:
    found = through_join([band], {LEFT: A}, {RIGHT: B})
    known = {"a": 100, "b": 70}
    assert (at(found.left_expires[LEFT], **known) if found.left_expires else None) == left
    assert (at(found.right_expires[RIGHT], **known) if found.right_expires else None) == right
    assert {column: at(mark, **known) for column, mark in found.output.items()} == output


SMALL = st.integers(0, 20)
BOUND = st.one_of(st.none(), st.integers(-6, 6))


@given(BOUND, BOUND, SMALL, SMALL, st.lists(SMALL, max_size=8), st.lists(SMALL, max_size=8))
def test_what_expires_meets_nothing_that_still_comes(
    low: int | None, high: int | None, a: int, b: int, left: list[int], right: list[int]
) -> None:
    """By the meaning of it: rows to come are at their marks or above, on either side."""
    found = through_join([Band(LEFT, RIGHT, low, high)], {LEFT: A}, {RIGHT: B})

    def fits(one: int, other: int) -> bool:
        return (low is None or one - other >= low) and (high is None or one - other <= high)

    gone_left = at(found.left_expires[LEFT], a=a, b=b) if found.left_expires else None
    gone_right = at(found.right_expires[RIGHT], a=a, b=b) if found.right_expires else None
    for one in left:
        for other in right:
            changes = one >= a or other >= b  # at least one of the pair comes, or goes, from now on
            if not (changes and fits(one, other)):
                continue
            assert gone_left is None or one >= gone_left or other < b
            assert gone_right is None or other >= gone_right or one < a
            for column, value in ((LEFT, one), (RIGHT, other)):
                mark = found.output.get(column)
                assert mark is None or value >= (at(mark, a=a, b=b) or 0)
            # Both rows are still there when one of them changes.
            assert gone_left is None or one >= gone_left
            assert gone_right is None or other >= gone_right


def test_the_first_of_several_bands_counts() -> None:
    bands = [Band(LEFT, RIGHT, -10, 10), Band(LEFT, RIGHT, -99, 99)]
    assert through_join(bands, {LEFT: A}, {RIGHT: B}) == through_join(bands[:1], {LEFT: A}, {RIGHT: B})
