"""Who is woken when epochs become complete."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from world import World, stand_at

from headrace.coordinator.decide.life import Trouble, Turn
from headrace.coordinator.decide.machine import idle, next_epoch
from headrace.coordinator.decide.membership import GroupPlace, Membership
from headrace.coordinator.decide.row_sizes import Intake
from headrace.coordinator.run.waiting import Waiters
from support import WAIT_S


class Sleepers:
    """Threads that sleep, and count how often they were woken."""

    def __init__(self) -> None:
        self.waiters = Waiters(threading.RLock())
        self.woken: list[str] = []
        self._threads: list[threading.Thread] = []

    def sleep(self, name: str, idle: Callable[[], bool]) -> None:
        begun = threading.Event()

        def run() -> None:
            with self.waiters:
                begun.set()
                self.waiters.sleep(idle)
                self.woken.append(name)

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()
        assert begun.wait(WAIT_S)

    def act(self, what: Callable[[], None], thread: int) -> list[str]:
        """Who has been woken once a thread has."""
        with self.waiters:
            what()
        self._threads[thread].join(WAIT_S)
        return sorted(self.woken)


def test_who_is_idle_is_left_asleep() -> None:
    """Also by one that is woken often; what is not about epochs wakes everybody."""
    sleepers, asked = Sleepers(), []

    def yes() -> bool:
        asked.append(1)
        return True

    sleepers.sleep("idle", yes)
    sleepers.sleep("busy", lambda: False)
    assert sleepers.act(sleepers.waiters.advanced, 1) == ["busy"] and asked == [1]
    assert sleepers.act(sleepers.waiters.notify_all, 0) == ["busy", "idle"] and asked == [1]


def test_a_sleeper_wakes_by_itself_when_the_time_is_over() -> None:
    waiters = Waiters(threading.RLock())
    with waiters:
        waiters.sleep(lambda: True, 0.001)
        waiters.advanced()
        waiters.notify_all()


@pytest.fixture
def world() -> World:
    made = World()
    made.create("table")
    return made


def test_what_is_idle(world: World) -> None:
    """Until an input changes, whatever becomes complete; who waits for anything else is not."""
    made = world.create_view("union", [1], "g")
    assert made is not None
    job = world.jobs[made]
    assert not idle(world, [job]), "it has no checkpoint"
    world.newest = 3 << 16
    stand_at(job, world.complete)
    assert idle(world, [job]) and not next_epoch(world, [job], Intake(10)).run
    changes = {
        "standing": replace(job.standing, due=5), "trouble": Trouble(failures=1),
        "membership": Membership("g", GroupPlace.JOINING),
    }  # fmt: skip
    for name, value in [*changes.items(), ("membership", Membership("g", GroupPlace.APART))]:
        before = getattr(job, name)
        setattr(job, name, value)
        assert not idle(world, [job]), name
        setattr(job, name, before)
    world.newest = 4 << 16
    assert idle(world, [job]) and not next_epoch(world, [job], Intake(10)).run
    world.write(1, Counter((1, 2)), world.begin())
    world.under_way.clear()
    assert not idle(world, [job]) and next_epoch(world, [job], Intake(10)).run
    job.turn(Turn.PAUSE)
    assert idle(world, [job]) and not next_epoch(world, [job], Intake(10)).run


def test_epochs_becoming_complete_wake_nobody_who_dozes() -> None:
    """A group of writes completes an epoch: threads that wait for their time alone have nothing to do with it."""
    waiters = Waiters(threading.RLock())
    begun, woken = threading.Event(), threading.Event()

    def run() -> None:
        with waiters:
            begun.set()
            waiters.doze(WAIT_S)
            woken.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert begun.wait(WAIT_S)
    with waiters:
        waiters.advanced()
        assert len(waiters._asleep) == 1
    assert not woken.wait(0.05)
    with waiters:
        waiters.notify_all()
    thread.join(WAIT_S)
    assert woken.is_set()
