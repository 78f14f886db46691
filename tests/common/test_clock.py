import pytest

from headrace.common.clock import Clock, ManualClock, SystemClock


def test_manual_clock_moves_only_by_hand() -> None:
    clock: Clock = ManualClock(1000)
    assert (clock.now_ms(), clock.monotonic_s()) == (1000, 0.0)
    clock.sleep_s(1.5)
    assert (clock.now_ms(), clock.monotonic_s()) == (2500, 1.5)


def test_turning_back_the_wall_clock_leaves_monotonic_time() -> None:
    clock = ManualClock(1000)
    clock.advance_ms(10)
    clock.set_now_ms(5)
    assert (clock.now_ms(), clock.monotonic_s()) == (5, 0.01)
    with pytest.raises(ValueError):
        clock.advance_ms(-1)


def test_system_clock() -> None:
    clock: Clock = SystemClock()
    before = clock.monotonic_s()
    clock.sleep_s(-1)
    assert clock.monotonic_s() >= before
    assert clock.now_ms() > 1_600_000_000_000
