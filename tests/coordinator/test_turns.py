"""RetryTurns of transactions that were refused: one after another, in order, and nobody waits for ever."""

from __future__ import annotations

import random
import threading

import pytest

from headrace.common.clock import SystemClock
from headrace.coordinator.decide.retry_turns import LASTS_S, WAITS_S, RetryTurn, RetryTurns
from headrace.coordinator.writes.turn_taking import TurnTaking
from support import eventually


def test_who_asked_first_goes_first() -> None:
    turns = RetryTurns()
    first, second, other = turns.ask([1], 0.0), turns.ask([1, 2], 0.0), turns.ask([3], 0.0)
    assert turns.has_come(first, 0.0) and not turns.has_come(second, 0.0) and turns.has_come(other, 0.0)
    assert turns.left_s(second, 0.0) == LASTS_S
    turns.end(first)
    assert turns.has_come(second, 0.1)
    turns.end(first)
    turns.end(second)
    turns.end(other)
    assert not len(turns)


def test_a_turn_is_over_after_its_time_though_nobody_ends_it() -> None:
    turns = RetryTurns()
    idle, second, third = turns.ask([1], 0.0), turns.ask([1], 0.0), turns.ask([1], 0.0)
    assert turns.has_come(idle, 0.0)
    assert not turns.has_come(second, LASTS_S / 2) and turns.has_come(second, LASTS_S)
    assert not turns.has_come(third, LASTS_S) and turns.has_come(third, 2 * LASTS_S)


def test_one_that_waits_itself_is_waited_for() -> None:
    """Else a later one over fewer tables would pass it again and again."""
    turns = RetryTurns()
    first, both, second = turns.ask([1], 0.0), turns.ask([1, 2], 0.0), turns.ask([2], 0.0)
    assert turns.has_come(first, 0.0) and not turns.has_come(second, 0.0)
    assert turns.left_s(second, 0.0) == WAITS_S, "nothing else that is known helps"
    turns.end(first)
    assert turns.has_come(both, 0.1) and not turns.has_come(second, 0.1)


def test_many_that_do_nothing_do_not_add_up() -> None:
    turns, now = RetryTurns(), 0.0
    idle, last = [turns.ask([1], now) for _ in range(100)], turns.ask([1], now)
    while now < WAITS_S:
        assert sum([turns.has_come(turn, now) for turn in idle]) == now // LASTS_S + 1
        assert not turns.has_come(last, now)
        now += LASTS_S
    assert turns.has_come(last, now)


@pytest.mark.parametrize("seed", range(60))
def test_schedules(seed: int) -> None:
    """Of two over one table at most one has a turn that lasts; all turns come, each after at most so many others."""
    rng = random.Random(seed)
    turns, now = RetryTurns(), 0.0
    open_ones: dict[RetryTurn, tuple[float, int]] = {}
    for _ in range(300):
        now += rng.choice([0.0, 0.01, 0.2])
        action = rng.random()
        if action < 0.4:
            turn = turns.ask(rng.sample(range(4), rng.randint(1, 3)), now)
            open_ones[turn] = now, len(open_ones)
        elif action < 0.6 and open_ones:  # it commits, is cancelled while it waits, or its client is gone
            gone = rng.choice(list(open_ones))
            turns.end(gone)
            del open_ones[gone]
        for turn, (asked, before) in open_ones.items():
            had_come = turn.since_s is not None
            came = turns.has_come(turn, now)
            assert came or now < asked + min(WAITS_S, (before + 1) * LASTS_S + 0.2 * (before + 1))
            if came and not had_come:
                lasting = [t for t in open_ones if t is not turn and t.since_s is not None and t.blocks(turn, now)]
                assert now >= turn.until_s or all(
                    list(open_ones).index(t) > list(open_ones).index(turn) for t in lasting
                )
            left = turns.left_s(turn, now)
            assert came or 0 < left <= WAITS_S + 1e-9
        assert len(turns) == len(open_ones)


def test_a_waiting_session_that_is_cancelled_leaves_no_turn_behind() -> None:
    taking, entered, asked = TurnTaking(SystemClock()), threading.Event(), threading.Event()

    def cancelled() -> None:
        asked.set()
        raise InterruptedError

    def other() -> None:
        with pytest.raises(InterruptedError), taking.turn([1], cancelled):
            entered.set()

    with taking.turn([1], lambda: None):
        thread = threading.Thread(target=other)
        thread.start()
        assert asked.wait(30)
        thread.join()
    assert not entered.is_set()
    with taking.turn([1], lambda: None):
        pass
    eventually(lambda: len(taking._turns) == 0)
