"""Shifts of the current time, and the first moment at which they reach a time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.common.epoch import epoch_ms
from headrace.common.shifts import DAY, DAY_US, describe, epoch_reaching, first_at_least, now_us

STEPS = st.lists(st.one_of(st.just(DAY), st.integers(-3 * DAY_US, 3 * DAY_US)), max_size=4)
TIMES = st.integers(-(10**16), 10**16)


def shifted(shift: list[int | None], time: int) -> int:
    for step in shift:
        time = time // DAY_US * DAY_US if step is None else time + step
    return time


@given(STEPS, TIMES)
def test_the_first_time_that_reaches_another(shift: list[int | None], time: int) -> None:
    (found,) = first_at_least(tuple(shift), np.array([time])).tolist()
    assert shifted(shift, found) >= time > shifted(shift, found - 1)


def test_times_beyond_all_calendars_do_not_overflow() -> None:
    ends = np.array([-(2**63), 2**63 - 1])
    low, high = first_at_least((-DAY_US, DAY, 10**18), ends).tolist()
    assert low < -(10**18) and high > 10**18


@given(st.integers(1_700_000_000_000_000, 4_000_000_000_000_000))
def test_the_first_epoch_that_reaches_a_time(time: int) -> None:
    epoch = epoch_reaching(time)
    assert now_us(epoch) >= time > now_us(epoch - 1)
    assert now_us(epoch) == epoch_ms(epoch) * 1000


def test_text() -> None:
    assert describe((-90_000_000, DAY, DAY_US)) == "date(now() - 90 s) + 86400 s"
