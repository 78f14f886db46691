"""The memory controller: who waits, who spills, and that accounting returns to zero."""

from __future__ import annotations

import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.state.memory import LEAST_SHARE_BYTES, MemoryController, budget_bytes, task_share_bytes


def test_writers_wait_and_go_on() -> None:
    """FS-17: writers wait for room in their order and go on; accounting returns to zero."""
    memory, order, inside = MemoryController(100), [], threading.Event()
    first = memory.reserving(80)
    assert first.__enter__()

    def write(name: str, nbytes: int) -> None:
        inside.set()
        with memory.reserving(nbytes) as granted:
            assert granted and memory.use().used_bytes <= 100
            order.append(name)

    threads = []
    for name, nbytes in (("large", 90), ("small", 10)):
        waits = memory.use().waits
        threads.append(threading.Thread(target=write, args=(name, nbytes)))
        threads[-1].start()
        while memory.use().waits == waits:
            inside.wait(0.001)
    assert order == [], "the small one does not overtake the large one"
    assert not memory.try_reserve(1), "nobody overtakes those that wait"
    first.__exit__(None, None, None)
    for thread in threads:
        thread.join()
    assert order == ["large", "small"]
    use = memory.use()
    assert (use.used_bytes, use.waits, use.pressure) == (0, 2, 0.0) and use.peak_bytes >= 90


def test_more_than_the_budget_spills_at_once() -> None:
    """FS-17: a batch larger than the budget does not wait, also while others hold memory."""
    memory = MemoryController(100)
    assert memory.try_reserve(60)
    with memory.reserving(101) as granted:
        assert not granted
    assert not memory.try_reserve(50)
    assert memory.use().spills == 2
    memory.release(60)
    assert memory.use().used_bytes == 0


def test_a_wait_can_be_given_up_or_ended_by_a_larger_budget() -> None:
    memory, stop, outcome = MemoryController(10), threading.Event(), []
    memory.force(10)

    def write(nbytes: int) -> None:
        with memory.reserving(nbytes, stop.is_set) as granted:
            outcome.append(granted)

    for act in (lambda: memory.resize(20), stop.set):
        thread = threading.Thread(target=write, args=(8,))
        waits = memory.use().waits
        thread.start()
        while memory.use().waits == waits and thread.is_alive():
            thread.join(0.001)
        act()
        memory.wake()
        thread.join()
        memory.resize(10)
    assert outcome == [True, False] and memory.use().used_bytes == 10


@pytest.mark.parametrize("seed", range(5))
def test_many_writers(seed: int) -> None:
    memory, most = MemoryController(50), []

    def write(choice: random.Random) -> None:
        for _ in range(200):
            with memory.reserving(choice.randint(1, 60)) as granted:
                if granted:
                    most.append(memory.use().used_bytes)

    threads = [threading.Thread(target=write, args=(random.Random(seed * 10 + i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) <= 50 and memory.use().used_bytes == 0


@given(st.integers(0, 2**40), st.integers(0, 64), st.integers(0, 2**44))
def test_shares(budget_mb: int, tasks: int, machine: int) -> None:
    budget = budget_bytes(budget_mb, machine)
    assert budget == (budget_mb << 20 or machine // 4)
    share = task_share_bytes(budget, tasks)
    assert share >= LEAST_SHARE_BYTES and (share == LEAST_SHARE_BYTES or share * max(1, tasks) <= budget)
