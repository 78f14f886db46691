import threading
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.common.clock import ManualClock
from headrace.common.epoch import (
    COUNTER_BITS,
    COUNTER_MASK,
    EPOCH_START_MS,
    INVALID_EPOCH,
    MAX_EPOCH,
    EpochAllocator,
    epoch_datetime,
    epoch_ms,
    from_unix_ms,
)

unix_ms = st.integers(min_value=EPOCH_START_MS, max_value=EPOCH_START_MS + (1 << 46))


def test_starts_in_april_2021() -> None:
    assert epoch_datetime(0) == datetime(2021, 4, 1, tzinfo=UTC)
    assert from_unix_ms(EPOCH_START_MS) == 0


@given(unix_ms)
def test_physical_time_round_trips(ms: int) -> None:
    assert epoch_ms(from_unix_ms(ms)) == ms
    assert epoch_ms(from_unix_ms(ms) + COUNTER_MASK) == ms
    assert epoch_ms(from_unix_ms(ms) + COUNTER_MASK + 1) == ms + 1


@given(st.integers())
def test_any_time_gives_an_int64(ms: int) -> None:
    assert INVALID_EPOCH <= from_unix_ms(ms) <= MAX_EPOCH


@given(st.integers(0, 1 << 60), st.lists(st.integers(0, EPOCH_START_MS + (1 << 42)), min_size=1, max_size=50))
def test_strictly_increasing_whatever_the_clock_does(last: int, times_ms: list[int]) -> None:
    readings = iter(times_ms)
    allocator = EpochAllocator(last, lambda: next(readings))
    given_out = [last, *(allocator.next() for _ in times_ms)]
    assert all(a < b for a, b in pairwise(given_out))
    assert allocator.last == given_out[-1]


def test_follows_the_clock_when_it_can() -> None:
    clock = ManualClock()
    allocator = EpochAllocator(0, clock.now_ms)
    first, second = allocator.next(), allocator.next()
    assert (first, second) == (from_unix_ms(clock.now_ms()), from_unix_ms(clock.now_ms()) + 1)
    clock.advance_ms(5)
    assert allocator.next() == from_unix_ms(clock.now_ms())


def test_ahead_of_the_clock_epochs_go_on_at_half_its_pace() -> None:
    """Time does not stand still, however far a clock has been ahead, and the clock catches up."""
    clock = ManualClock()
    start_ms = clock.now_ms()
    allocator = EpochAllocator(0, clock.now_ms)
    clock.advance_ms(10_000)
    allocator.next()
    clock.set_now_ms(start_ms)
    reached = []
    for _ in range(300):  # short waits add up
        clock.advance_ms(1)
        reached.append(epoch_ms(allocator.next()) - start_ms)
    assert reached[::100] == [10_000, 10_050, 10_100] and reached[-1] == 10_149
    clock.set_now_ms(start_ms - 50_000)  # once more
    assert epoch_ms(allocator.next()) - start_ms == 10_149
    clock.advance_ms(1_000)
    assert epoch_ms(allocator.next()) - start_ms == 10_649
    clock.set_now_ms(start_ms + 10_649)
    assert epoch_ms(allocator.next()) - start_ms == 10_649
    clock.advance_ms(1)
    assert allocator.next() == from_unix_ms(clock.now_ms())
    clock.advance_ms(500)
    assert allocator.next() == from_unix_ms(clock.now_ms()), "and is followed again"


@given(st.lists(st.integers(-100_000, 100_000), max_size=40))
def test_epochs_are_no_further_ahead_than_the_clock_has_been(steps_ms: list[int]) -> None:
    clock, most_ms, ahead_ms = ManualClock(), 0, 0
    allocator = EpochAllocator(0, clock.now_ms)
    for step_ms in steps_ms:
        clock.set_now_ms(clock.now_ms() + step_ms)
        most_ms = max(most_ms, clock.now_ms())
        reached_ms = epoch_ms(allocator.next())
        assert clock.now_ms() <= reached_ms <= most_ms + sum(max(0, s) for s in steps_ms) // 2
        if step_ms > 0:
            assert reached_ms - clock.now_ms() <= max(0, ahead_ms - step_ms // 2)
        ahead_ms = reached_ms - clock.now_ms()


def test_a_full_counter_rolls_into_the_next_millisecond() -> None:
    clock = ManualClock()
    full = from_unix_ms(clock.now_ms()) + COUNTER_MASK
    epoch = EpochAllocator(full, clock.now_ms).next()
    assert epoch_ms(epoch) == clock.now_ms() + 1
    assert epoch & ((1 << COUNTER_BITS) - 1) == 0


def test_a_clock_before_the_start_still_moves_on() -> None:
    allocator = EpochAllocator(0, lambda: 0)
    assert [allocator.next(), allocator.next()] == [1, 2]


def test_bounds() -> None:
    with pytest.raises(ValueError):
        EpochAllocator(-1, lambda: 0)
    with pytest.raises(OverflowError):
        EpochAllocator(MAX_EPOCH - 1, lambda: 0).next()


def test_threads_never_share_an_epoch() -> None:
    allocator = EpochAllocator(0, lambda: 0)
    taken: list[list[int]] = [[] for _ in range(4)]
    threads = [
        threading.Thread(target=lambda own=own: own.extend(allocator.next() for _ in range(500)))  # type: ignore[misc]
        for own in taken
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(e for own in taken for e in own) == list(range(1, 2001))
