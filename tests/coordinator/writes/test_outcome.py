"""What becomes of a request is told once, to everybody who asks, whenever they ask."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.coordinator.writes.holds import Holds
from headrace.coordinator.writes.outcome import Outcome
from support import WAIT_S


def test_who_asks_before_and_who_asks_afterwards_are_told_once() -> None:
    told: list[tuple[str, object]] = []
    outcome: Outcome[int] = Outcome()
    outcome.add_done_callback(lambda found: told.append(("before", found.result())))
    assert not outcome.done() and not told
    outcome.set_result(7)
    outcome.add_done_callback(lambda found: told.append(("after", found.result())))
    assert told == [("before", 7), ("after", 7)] and outcome.done()
    assert outcome.result() == 7 and outcome.exception() is None


def test_an_error_is_raised_by_whoever_wants_the_result() -> None:
    outcome: Outcome[int] = Outcome()
    error = ValueError("no")
    outcome.set_exception(error)
    assert outcome.exception() is error
    with pytest.raises(ValueError, match="no"):
        outcome.result()


def test_one_that_cannot_be_told_keeps_nobody_else_from_it() -> None:
    told: list[str] = []
    outcome: Outcome[int] = Outcome()
    outcome.add_done_callback(lambda _: 1 / 0)
    outcome.add_done_callback(lambda _: told.append("second"))
    outcome.set_result(1)
    assert told == ["second"]


def test_a_thread_waits_for_it() -> None:
    outcome: Outcome[int] = Outcome()
    with pytest.raises(TimeoutError):
        outcome.result(0.001)
    found: list[int] = []
    waiter = threading.Thread(target=lambda: found.append(outcome.result(WAIT_S)), daemon=True)
    waiter.start()
    outcome.set_result(3)
    waiter.join(WAIT_S)
    assert found == [3]


def test_each_of_many_that_ask_while_it_is_settled_is_told_once() -> None:
    for _ in range(200):
        outcome: Outcome[int] = Outcome()
        told: list[int] = []
        start = threading.Barrier(3)

        def ask(outcome: Outcome[int] = outcome, told: list[int] = told, start: threading.Barrier = start) -> None:
            start.wait(WAIT_S)
            for i in range(20):
                outcome.add_done_callback(lambda _, i=i: told.append(i))

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        start.wait(WAIT_S)
        outcome.set_result(0)
        for thread in threads:
            thread.join(WAIT_S)
        assert sorted(told) == sorted([*range(20), *range(20)])


def test_what_is_held_is_let_go_of_in_turn_and_once_whatever_fails() -> None:
    told: list[str] = []
    held = Holds()

    @contextmanager
    def block() -> Iterator[str]:
        yield "inside"
        told.append("block")

    def fail() -> None:
        told.append("fails")
        raise ValueError("no")

    held.callback(told.append, "first")
    assert held.enter_context(block()) == "inside"
    held.callback(fail)
    held.callback(told.append, "last")
    with pytest.raises(ValueError, match="no"):
        held.close()
    held.close()
    assert told == ["last", "fails", "block", "first"]
