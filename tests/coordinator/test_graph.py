"""The graph: who depends on whom, who steps together, who holds whom up."""

from __future__ import annotations

import pytest
from world import World

from headrace.coordinator.machine import caught_up, may_join, next_epoch


@pytest.fixture
def world() -> World:
    made = World()
    made.create("table")
    return made


def view(world: World, group: str | None, *inputs: int) -> int:
    made = world.create_view("union", inputs, group)
    assert made is not None
    return made


def test_who_depends_on_whom(world: World) -> None:
    a = view(world, "x", 1)
    b = view(world, "y", a)
    c = view(world, "x", 1)
    world.jobs[c].joined = True
    d = view(world, None, c)
    assert world.above([b]) == [1, a] and world.jobs_below([a]) == {a, b}
    assert [j.id for j in world.lane("x")] == [a, c] and world.external(world.lane("x")) == [1]
    assert world.held_up([a]) == {a, b, c, d}, "those in step with it, and those below them"
    assert world.held_up([b]) == {b}


def test_groups_must_not_read_one_another_in_a_circle(world: World) -> None:
    """A longer way round counts as well."""
    a = view(world, "x", 1)
    b = view(world, "y", a)
    c = view(world, "z", b)
    assert world.cycle_of(99, "x", (c,)) == ["x", "z", "y", "x"]
    assert world.cycle_of(99, "z", (c, a)) is None and world.cycle_of(b, "x", (a,)) is None
    assert world.cycle_of(b, "z", (a,)) is None and world.cycle_of(c, "x", (b,)) == ["x", "y", "x"]


def test_what_is_left_out_after_a_restart(world: World) -> None:
    """PC-46: who cannot be planned, and whoever reads it in the group; the oldest begins the group anew."""
    a, b, c = view(world, "g", 1), view(world, "g", 1), view(world, "g", 1)
    below = view(world, "g", a)
    for i in (a, b, c, below):
        world.alter(i, joined=True)
    world.jobs[a].status = "quarantined"
    assert {j.id for j in world.settle("g")} == {a, below}
    assert [j.id for j in world.lane("g")] == [b, c]
    for i in (b, c):
        world.jobs[i].status = "quarantined"
    world.settle("g")
    assert [j.id for j in world.lane("g")] == []


def test_joining(world: World) -> None:
    """PC-26, PC-30: a job that has caught up joins between two epochs; then a checkpoint is due without a change."""
    a, b = view(world, "g", 1), view(world, "g", 1)
    for i, committed in ((a, 9 << 16), (b, 5 << 16)):
        job = world.jobs[i]
        job.committed, job.exact = committed, ((committed, committed),)
    world.newest = 9 << 16
    job = world.jobs[b]
    assert caught_up(world, job, 5 << 16, 4)
    assert may_join(world, job, 4)
    world.jobs[a].failures = 1
    assert not may_join(world, job, 4), "not a group that fails"
    world.jobs[a].failures = 0
    assert not next_epoch(world, world.lane("g"), 10).run
    job.joined = job.joining = True
    found = next_epoch(world, world.lane("g"), 10)
    assert found.run and found.target == 9 << 16
