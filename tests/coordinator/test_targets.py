"""Decisions of groups: targets, parallelism, bounded epochs, retries, safe epochs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.decide.row_sizes import Intake
from headrace.coordinator.decide.targets import (
    ROWS_PER_TASK,
    UNKNOWN_ROWS,
    Upstream,
    aligned_target,
    bounded_target,
    choose_parallelism,
    decide,
    fewer_rows,
    more_rows,
    retry_delay_ms,
    safe_epoch,
)

EPOCHS = st.integers(1, 50)


@given(EPOCHS, st.lists(st.tuples(EPOCHS, st.none() | EPOCHS), min_size=1, max_size=4), EPOCHS)
def test_a_target_is_never_above_an_upstream(committed: int, ups: list[tuple[int, int | None]], now: int) -> None:
    """PC-16: a job never runs past the frontier of an input, and only where an input has changed."""
    upstreams = [Upstream(i, f, max(c, committed + 1) if c else None) for i, (f, c) in enumerate(ups)]
    found = decide(committed, upstreams, now)
    assert found.target <= min([now, *(u.frontier for u in upstreams)])
    changed = any(u.first_change is not None and u.first_change <= found.target for u in upstreams)
    assert found.run == (found.target > committed and changed)


def test_a_new_job_waits_for_every_input_and_then_runs_in_any_case() -> None:
    """PC-30: an idle input delays no creation; one that is still being created does."""
    assert decide(0, [Upstream(1, 9, None), Upstream(2, 0, None)], 9).waiting_for == 2
    assert decide(0, [Upstream(1, 9, None), Upstream(2, 7, None)], 9) == decide(0, [Upstream(2, 7, None)], 9)
    assert decide(0, [], 5).run and decide(0, [], 5).target == 5
    assert not decide(5, [], 9).run


@given(
    EPOCHS, st.lists(st.tuples(EPOCHS, st.none() | st.integers(0, 1000), st.integers(0, 50)), max_size=8),
    st.integers(1, 2000), st.integers(1, 100_000),
)  # fmt: skip
def test_a_bounded_epoch_takes_whole_epochs(
    target: int, changes: list[tuple[int, int | None, float]], rows: int, size: int
) -> None:
    """PC-40: an epoch is cut between the epochs of its inputs, never within one; it always takes in something."""
    found = bounded_target(target, changes, Intake(rows, size))
    assert found <= target
    inside = sorted(e for e, _, _ in changes if e <= target)
    if inside:
        assert found >= inside[0]
    taken = [(e, UNKNOWN_ROWS if r is None else r, w) for e, r, w in changes if e <= found]
    if len({e for e, _, _ in taken}) > 1:
        within = sum(r for _, r, _ in taken) <= rows and sum(r * w for _, r, w in taken) <= size
        assert within or found == target or found + 1 in inside


def test_parallelism_and_retries() -> None:
    assert choose_parallelism(5, 8) == 1
    assert choose_parallelism(ROWS_PER_TASK + 1, 8) == 8
    assert choose_parallelism(None, 8) == 8
    assert [retry_delay_ms(n, 100, 1000, 0.0) for n in (1, 2, 3, 4, 5, 6, 1000)] == [
        100,
        200,
        400,
        800,
        1000,
        1000,
        1000,
    ]
    assert retry_delay_ms(3, 100, 1000, 0.999) >= 200


@given(EPOCHS, EPOCHS, EPOCHS, st.lists(EPOCHS), st.lists(EPOCHS))
def test_the_safe_epoch(current: int, committed: int, kept: int, pins: list[int], readers: list[int]) -> None:
    """PC-8: it never goes back, and is never raised past a pin, a reader, retention or the commit."""
    found = safe_epoch(current, committed, kept, pins, readers)
    assert found >= current
    assert found == current or found <= min([committed, kept, *pins, *readers])


@pytest.mark.parametrize(
    ("common", "first", "most", "limit", "target"),
    [
        ([(1, 9)], 3, 9, 9, 9),
        ([(1, 9)], 3, 9, 5, 5),
        ([(1, 4), (7, 7)], 3, 9, 9, 7),
        ([(1, 4), (7, 7)], 5, 9, 6, 7),
        ([(1, 4), (7, 9)], 8, 9, 7, 8),
        ([(1, 4), (7, 7)], 5, 6, 6, None),
        ([(1, 4)], 5, 9, 9, None),
        ([], 1, 9, 9, None),
    ],
)
def test_a_job_runs_to_an_epoch_at_which_all_inputs_are_exact(
    common: list[tuple[int, int]], first: int, most: int, limit: int, target: int | None
) -> None:
    assert aligned_target(common, first, most, limit) == target


@given(st.integers(1, 10**9), st.integers(0, 10**9), st.integers(0, 40))
def test_a_row_limit_halves_and_grows_back(limit: int, taken: int, failures: int) -> None:
    """FS-17: each failure takes in at most half as much, never nothing; successes bring the configured limit back."""
    current = limit
    for _ in range(failures):
        smaller = fewer_rows(current, taken)
        assert 1 <= smaller <= max(1, current // 2) and (not taken or smaller <= max(1, taken // 2))
        current = smaller
    steps = 0
    while current and steps < 64:
        current, steps = more_rows(current, limit), steps + 1
    assert current == 0 and steps <= 32
