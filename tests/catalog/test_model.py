"""I9, I10, I11 by exhaustion and by chance: openers of one database in all orders, ended at every step."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from opener_model import Handle, Task, World, quietly, started

from headrace.errors import HeadraceError

Work = Callable[[Task], None]
THOROUGH = bool(os.environ.get("HEADRACE_TEST_THOROUGH"))
STRIDE = 1 if THOROUGH else 5
"""Of all pairs of steps at which two openers may stop, one in so many squared."""
SEEDS = 20_000 if THOROUGH else 150


def migrate(task: Task) -> None:
    task.world.move(task, 0, 1)


def roll_back(task: Task) -> None:
    task.world.move(task, 1, 0)


def open_old(task: Task) -> None:
    use(task, 0)


def open_new(task: Task) -> None:
    if not task.world.is_empty(1):  # else it would be a database of its own
        use(task, 1)


def use(task: Task, at: int) -> None:
    handle = task.world.open(task, at)
    task.world.transact(handle)
    task.world.read(handle)


def migrate_twice(task: Task) -> None:
    migrate(task)
    migrate(task)


ACTIONS: dict[str, Work] = {
    "migrate": migrate, "roll back": roll_back, "open the old": open_old, "open the new": open_new,
    "migrate twice": migrate_twice,
}  # fmt: skip
KINDS = ["ll", *(pytest.param(kinds, marks=pytest.mark.soak) for kinds in ("sl", "ls", "ss"))]
"""Of the places: s is a SQLite file, l a log of objects in memory, which is much quicker to make."""


def careful(work: Work) -> Work:
    def run(task: Task) -> None:
        with quietly():
            work(task)

    return run


def moved_world(folder: Path, kinds: str, back: bool) -> World:
    """With the catalog in the first place, or in the second after a move."""
    world = started(folder, kinds)
    if back:
        Task(world, migrate).go()
    return world


def steps_of(folder: Path, kinds: str, work: Work, back: bool) -> int:
    task = Task(moved_world(folder, kinds, back), work)
    task.go()
    return task.steps


class Folders:
    def __init__(self, base: Path) -> None:
        self._base, self._numbers = base, itertools.count()

    def new(self) -> Path:
        made = self._base / str(next(self._numbers))
        made.mkdir()
        return made


@pytest.mark.parametrize("back", [False, True], ids=["migrate", "roll back"])
@pytest.mark.parametrize("kinds", KINDS)
def test_every_crash_point_of_a_move(tmp_path: Path, kinds: str, back: bool) -> None:
    """CM-15, CM-16: at each step it ends, before or after its effect; then every action, then all places are read."""
    folders, work = Folders(tmp_path), roll_back if back else migrate
    total = steps_of(folders.new(), kinds, work, back)
    assert total >= 8
    for step, after in itertools.product(range(total), (False, True)):
        for action in ACTIONS.values():
            world = moved_world(folders.new(), kinds, back)
            task = Task(world, work)
            task.crash_at = (step, after)
            task.go()
            Task(world, careful(action)).go()
            world.check()


@pytest.mark.parametrize("back", [False, True], ids=["migrate", "roll back"])
def test_crash_points_with_a_file(tmp_path: Path, back: bool) -> None:
    """CM-15: the way back after each step; a call of this backend is one step, so before the next is after this one."""
    folders, work = Folders(tmp_path), roll_back if back else migrate
    for step in range(steps_of(folders.new(), "sl", work, back)):
        world = moved_world(folders.new(), "sl", back)
        task = Task(world, work)
        task.crash_at = (step, False)
        task.go()
        Task(world, careful(migrate if back else roll_back)).go()
        world.check()


@pytest.mark.parametrize("back", [False, True], ids=["migrate", "roll back"])
@pytest.mark.parametrize("kinds", KINDS)
def test_another_opener_at_every_step_of_a_move(tmp_path: Path, kinds: str, back: bool) -> None:
    """CM-17: it does all that it does between two steps; then the move goes on, or ends there."""
    folders, work = Folders(tmp_path), roll_back if back else migrate
    total = steps_of(folders.new(), kinds, work, back)
    for step, crash, action in itertools.product(range(total), (False, True), ACTIONS.values()):
        world = moved_world(folders.new(), kinds, back)
        mover = Task(world, careful(work))
        mover.go(step)
        Task(world, careful(action)).go()
        if not crash:
            mover.go()
        world.check()


@pytest.mark.parametrize("actions", itertools.combinations_with_replacement(ACTIONS, 2), ids="/".join)
def test_two_openers_that_take_turns(tmp_path: Path, actions: tuple[str, str]) -> None:
    """CM-3, CM-7, CM-17: each stops once, at any step, while the other one goes on from any step of its own.

    HEADRACE_TEST_THOROUGH takes all pairs of steps.
    """
    folders = Folders(tmp_path)
    first, second = (ACTIONS[a] for a in actions)
    for back in (False, True):
        lengths = [steps_of(folders.new(), "ll", careful(a), back) for a in (first, second)]
        for at, other in itertools.product(range(0, lengths[0] + 1, STRIDE), range(0, lengths[1] + 1, STRIDE)):
            world = moved_world(folders.new(), "ll", back)
            tasks = [Task(world, careful(first)), Task(world, careful(second))]
            tasks[0].go(at)
            tasks[1].go(other)
            tasks[0].go()
            tasks[1].go()
            world.check()


@pytest.mark.parametrize("kinds", KINDS)
def test_lost_requests_and_answers_at_every_step(tmp_path: Path, kinds: str) -> None:
    """I10: a failed move is done again; nothing is lost or doubled."""
    folders = Folders(tmp_path)
    for work, back in ((migrate, False), (roll_back, True), (open_old, False), (open_new, True)):
        total = steps_of(folders.new(), kinds, work, back)
        for step, after in itertools.product(range(total), (False, True)):
            world = moved_world(folders.new(), kinds, back)
            task = Task(world, careful(work))
            task.lose_at = (step, after)
            task.go()
            Task(world, careful(work)).go()
            world.check()


def random_work(world: World, rng: random.Random) -> Work:
    def run(task: Task) -> None:
        handle: Handle | None = None
        for _ in range(rng.randint(1, 8)):
            with quietly():
                choice = rng.random()
                if choice < 0.25 or handle is None:
                    at = rng.randrange(len(world.names))
                    if not world.is_empty(at):
                        handle = world.open(task, at)
                elif choice < 0.65:
                    world.transact(handle)
                elif choice < 0.75:
                    world.read(handle)
                else:
                    source, target = rng.sample(range(len(world.names)), 2)
                    world.move(task, source, target)

    return run


def run_schedule(folder: Path, seed: int) -> None:
    """A random history: two or three openers, at two or three places."""
    rng = random.Random(seed)
    kinds = "".join(rng.choice("slllllll") for _ in range(rng.choice((2, 2, 3))))
    world = started(folder, kinds)
    tasks = [Task(world, random_work(world, rng)) for _ in range(rng.choice((2, 3)))]
    for _ in range(400):
        alive = [task for task in tasks if not task.done]
        if not alive:
            break
        task = rng.choice(alive)
        if rng.random() < 0.02:
            task.crash_at = (task.steps, rng.random() < 0.5)
        elif rng.random() < 0.03:
            task.lose_at = (task.steps, rng.random() < 0.5)
        task.go(rng.choice((1, 1, 1, 2, 5, 20)))
    world.check()


@pytest.mark.parametrize("block", range(10))
def test_random_histories(tmp_path: Path, block: int) -> None:
    """I9, I10, I11: a failing seed is named."""
    folders = Folders(tmp_path)
    for seed in range(block * SEEDS // 10, (block + 1) * SEEDS // 10):
        try:
            run_schedule(folders.new(), seed)
        except (AssertionError, HeadraceError) as error:
            raise AssertionError(f"seed {seed}: {error}") from error
