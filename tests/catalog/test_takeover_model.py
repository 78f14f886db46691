"""Followers that take a catalog over, stopped at every step of theirs, beside the server that they follow."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

from opener_model import Handle, Task, World, quietly, started

from headrace.catalog.catalog import Catalog
from headrace.catalog.following import FollowedCatalog, Refreshed
from headrace.catalog.state import CatalogState
from headrace.catalog.store import Overtaken
from headrace.errors import Fenced, StorageError

TRIES = 10


def taken(found: Refreshed, state: CatalogState) -> None:
    """Nobody is to be told."""


class Standby:
    """What a standby does once it has decided: take over, unless another one was first."""

    def __init__(self, *, persistent: bool = False) -> None:
        self._persistent = persistent
        self.outcome = ""

    def __call__(self, task: Task) -> None:
        world = task.world
        with quietly():
            catalog = FollowedCatalog.begin(world.names[0], world.places(task))
            for _ in range(TRIES if self._persistent else 1):
                self.outcome = "began"
                try:
                    catalog.refresh(taken)
                    catalog.take_over()
                except Overtaken:
                    self.outcome = "overtaken"
                    continue
                except StorageError:
                    self.outcome = "failed"
                    continue
                _ = catalog.state  # another one may have opened it while this one had still to return
                self.outcome = "took over"
                world.newest += 1
                handle = Handle(catalog, world.newest)
                world.check_content(catalog, f"taken over by {handle.serial}")
                world.transact(handle)
                world.read(handle)
                return


def active(handle: Handle) -> object:
    def run(task: Task) -> None:
        for _ in range(3):
            task.world.transact(handle)
            task.world.read(handle)

    return run


def followed(folder: Path) -> tuple[World, Handle]:
    """A catalog that a server has open."""
    world = started(folder, "l")
    catalog = Catalog.find(world.names[0], world.places(None))
    world.newest += 1
    return world, Handle(catalog, world.newest)


def length(folder: Path) -> int:
    world, _ = followed(folder)
    task = Task(world, Standby())
    task.go()
    return task.steps


def test_of_two_that_decide_at_once_exactly_one_takes_over(tmp_path: Path) -> None:
    """At every step of one, and every third of the other; the server that they follow writes on in between."""
    steps = length(tmp_path)
    outcomes = []
    for first, second in itertools.product(range(steps + 1), range(0, steps + 1, 3)):
        world, handle = followed(tmp_path)
        standbys = [Standby(), Standby()]
        tasks = [Task(world, s) for s in standbys]
        tasks[0].go(first)
        with quietly():
            world.transact(handle)
        tasks[1].go(second)
        tasks[0].go()
        tasks[1].go()
        with quietly():
            world.transact(handle)
        found = sorted(s.outcome for s in standbys)
        # One that begins to follow when the other has taken over succeeds that one in turn.
        assert found in (["overtaken", "took over"], ["took over", "took over"]), (first, second)
        outcomes.append(found[0])
        world.check()
    assert "overtaken" in outcomes


def test_one_that_ends_at_any_step_leaves_it_to_the_other(tmp_path: Path) -> None:
    steps = length(tmp_path)
    for step, after in itertools.product(range(steps), (False, True)):
        world, handle = followed(tmp_path)
        dying, other = Task(world, Standby()), Standby(persistent=True)
        dying.crash_at = (step, after)
        waiting = Task(world, other)
        waiting.go(3)
        dying.go()
        with quietly():
            world.transact(handle)
        waiting.go()
        assert other.outcome == "took over", (step, after)
        world.check()


def test_lost_requests_and_answers_at_every_step(tmp_path: Path) -> None:
    """A fence without an answer may have shut the other one out: whoever asks again succeeds itself."""
    steps = length(tmp_path)
    for step, after in itertools.product(range(steps), (False, True)):
        world, handle = followed(tmp_path)
        standby = Standby(persistent=True)
        task = Task(world, standby)
        task.lose_at = (step, after)
        task.go()
        with quietly():
            world.transact(handle)
        if standby.outcome != "took over":  # it could not even begin to follow
            Task(world, standby).go()
        assert standby.outcome == "took over", (step, after)
        world.check()


def test_two_and_three_in_random_order(tmp_path: Path) -> None:
    taken_over = 0
    for seed in range(150):
        rng = random.Random(seed)
        world, handle = followed(tmp_path)
        standbys = [Standby(persistent=rng.random() < 0.5) for _ in range(rng.choice((2, 3)))]
        tasks = [Task(world, s) for s in standbys] + [Task(world, active(handle))]  # type: ignore[arg-type]
        for task in tasks[:-1]:
            if rng.random() < 0.2:
                task.crash_at = (rng.randrange(25), rng.random() < 0.5)
            elif rng.random() < 0.2:
                task.lose_at = (rng.randrange(25), rng.random() < 0.5)
        while left := [t for t in tasks if not t.done]:
            rng.choice(left).go(rng.randint(1, 4))
        taken_over += sum(s.outcome == "took over" for s in standbys)
        world.check()
    assert taken_over > 100


def test_who_was_shut_out_reads_and_writes_nothing(tmp_path: Path) -> None:
    world, handle = followed(tmp_path)
    Task(world, Standby()).go()
    for call in (lambda: handle.catalog.state, lambda: handle.catalog.transact([]), handle.catalog.verify):
        try:
            call()
        except Fenced:
            continue
        raise AssertionError("it was let in")
