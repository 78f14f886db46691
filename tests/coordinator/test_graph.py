"""The graph: who depends on whom, who steps together, who holds whom up."""

from __future__ import annotations

from collections import Counter

import pytest
from world import World, stand, stand_at

from headrace.coordinator.decide.graph import ANY_EPOCH
from headrace.coordinator.decide.group_epoch import GroupEpoch, ahead_of, dues_after, open_epoch
from headrace.coordinator.decide.job import PlanFacts
from headrace.coordinator.decide.life import NO_TROUBLE, Trouble
from headrace.coordinator.decide.machine import caught_up, may_join, next_epoch, outcome
from headrace.coordinator.decide.membership import Move
from headrace.coordinator.decide.relation import NEVER
from headrace.coordinator.decide.row_sizes import Intake
from headrace.coordinator.decide.steps import END_OF_KEYS, LOWEST_KEY
from headrace.coordinator.decide.work import lookup_refs, next_work, note_step


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
    world.jobs[c].move(Move.ADMITTED)
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


def test_whoever_is_being_created_in_a_group_keeps_its_inputs_out(world: World) -> None:
    """In the group an input would wait for the checkpoint of what waits for it."""
    a = view(world, None, 1)
    b = view(world, "g", a)
    assert world.filling(a, "g") is world.jobs[b] and world.filling(a, "h") is None and world.filling(1, "g") is None
    stand(world.jobs[b], exact=((65536, 65536),))
    assert world.filling(a, "g") is None


def test_what_is_left_out_after_a_restart(world: World) -> None:
    """PC-46: who cannot be planned, and whoever reads it in the group; the oldest begins the group anew."""
    a, b, c = view(world, "g", 1), view(world, "g", 1), view(world, "g", 1)
    below = view(world, "g", a)
    for i in (a, b, c, below):
        if not world.jobs[i].joined:
            world.jobs[i].move(Move.ADMITTED)
    stand(world.jobs[a], status="quarantined")
    assert {j.id for j in world.settle("g")} == {a, below}
    assert [j.id for j in world.lane("g")] == [b, c]
    for i in (b, c):
        stand(world.jobs[i], status="quarantined")
    world.settle("g")
    assert [j.id for j in world.lane("g")] == []


def test_joining(world: World) -> None:
    """PC-26, PC-30: a job that has caught up joins between two epochs; then a checkpoint is due without a change."""
    a, b = view(world, "g", 1), view(world, "g", 1)
    for i, committed in ((a, 9 << 16), (b, 5 << 16)):
        job = world.jobs[i]
        stand_at(job, committed)
    world.newest = 9 << 16
    job = world.jobs[b]
    assert caught_up(world, job, 5 << 16, 4)
    assert may_join(world, job, 4)
    world.jobs[a].trouble = Trouble(failures=1)
    assert not may_join(world, job, 4), "not a group that fails"
    world.jobs[a].trouble = NO_TROUBLE
    assert not next_epoch(world, world.lane("g"), Intake(10)).run
    job.move(Move.ADMITTED)
    found = next_epoch(world, world.lane("g"), Intake(10))
    assert found.run and found.target == 9 << 16


def test_one_that_waits_for_its_source_commits_nothing_meanwhile(world: World) -> None:
    """Its content is there, of several moments: until a binding makes it whole a checkpoint changes nothing."""
    source = world.create("source")
    made = view(world, None, source)
    job, relation = world.jobs[made], world.relations[source]
    epoch = world.begin()
    world.bind(source, 3, epoch)
    relation.whole_from = NEVER
    world.under_way.clear()
    assert next_epoch(world, [job], Intake(10)).run, "the content"
    stand(job, committed=epoch)
    assert job.pending and not next_epoch(world, [job], Intake(10)).run
    world.newest += 1 << 16
    assert not next_epoch(world, [job], Intake(10)).run, "nor as time goes by"
    epoch = world.begin()
    world.bind(source, 0, epoch)
    relation.whole_from = epoch
    world.under_way.clear()
    found = next_epoch(world, [job], Intake(10))
    assert found.run and found.target == epoch and outcome(world, [job], epoch, 0).created == (made,)
    stand(job, committed=epoch)
    assert next_epoch(world, [job], Intake(10)).run, "it is whole: a checkpoint makes it readable"


def test_the_log_is_kept_for_a_job_whose_first_parts_may_be_durable(world: World) -> None:
    """I14: until it is known what has become of their commit, nothing that it would go on with may go."""
    table = world.create("table")
    made = view(world, None, table)
    assert world.log_readers(table) == [] == world.binding_readers(table)
    world.jobs[made].doubt()
    assert world.log_readers(table) == [ANY_EPOCH] == world.binding_readers(table)


def test_what_is_looked_up_changes_nothing_and_is_kept_for_the_next_epoch(world: World) -> None:
    """A temporal join has work only for its left side, and needs the other one as it will be at its next epoch."""
    other = world.create("table")
    made = view(world, None, 1, other)
    job = world.jobs[made]
    job.lookups = frozenset((other,))
    stand_at(job, 1 << 16)
    world.newest = 1 << 16
    epoch = world.begin()
    world.write(other, Counter((1, 2)), epoch)
    world.under_way.clear()
    assert not next_epoch(world, [job], Intake(10)).run and world.job_frontier(job) == world.complete
    assert world.exact(made) == [(1 << 16, world.complete)], "later changes of the other side change nothing"
    assert world.needs(job, 1) == 1 << 16 and world.log_readers(other) == [world.complete]
    world.relations[other].safe = world.complete
    assert world.lost_logs(job) == []
    epoch = world.begin()
    world.write(1, Counter((3,)), epoch)
    world.under_way.clear()
    assert world.log_readers(other) == [epoch - 1]
    found = next_epoch(world, [job], Intake(10))
    assert found.run and found.target == epoch
    part = open_epoch([job], epoch).parts[0]
    work = next_work(world, world.state, GroupEpoch(epoch, [part]), part, [], Intake(10))
    assert work is not None and set(work.inputs) == {1} and work.step.last
    assert len(lookup_refs(world, world.state, GroupEpoch(epoch, [part]), part, other)) == 1


def test_a_shared_side_is_not_read_at_first_and_then_known_as_far_as_it_is_taken_in(world: World) -> None:
    """The content is looked up; of a change each step knows what those before it have taken."""
    other = world.create("table")
    job = world.jobs[view(world, None, 1, other)]
    job.facts = PlanFacts(changes_only=frozenset((other,)))
    for table, row in ((1, 1), (other, 2)):
        epoch = world.begin()
        world.write(table, Counter((row,)), epoch)
        world.under_way.clear()
    first = open_epoch([job], epoch)
    work = next_work(world, world.state, first, first.parts[0], [], Intake(10))
    assert work is not None and set(work.inputs) == {1} and work.step.last and not work.taken
    assert lookup_refs(world, world.state, first, first.parts[0], other)
    stand_at(job, epoch)
    epoch = world.begin()
    world.write(other, Counter(range(3, 9)), epoch)
    world.under_way.clear()
    later = open_epoch([job], epoch)
    until: list[int] = []
    while (work := next_work(world, world.state, later, later.parts[0], [], Intake(2))) is not None and len(until) < 9:
        until.append(work.taken.get(other, LOWEST_KEY))
        low, high = work.inputs[other].keys or (LOWEST_KEY, END_OF_KEYS)
        assert low == until[-1] < high
        note_step(later.parts[0], work, [], None)
    assert until == sorted(until) and len(until) >= 3


def test_a_view_of_the_time_has_work_when_something_is_due(world: World) -> None:
    """Until then it is exact without running; from then on it is not, and its next epoch has a step without input."""
    made = view(world, None, 1)
    job = world.jobs[made]
    job.facts = PlanFacts(temporal=True)
    stand_at(job, 1 << 16)
    stand(job, due=5 << 16)
    world.newest = 4 << 16
    assert not next_epoch(world, [job], Intake(10)).run and world.exact(made) == [(1 << 16, 4 << 16)]
    world.newest = 7 << 16
    assert world.exact(made) == [(1 << 16, (5 << 16) - 1)] and world.job_frontier(job) == (5 << 16) - 1
    found = next_epoch(world, [job], Intake(10))
    assert found.run and found.target == 7 << 16
    part = open_epoch([job], found.target).parts[0]
    epoch = GroupEpoch(found.target, [part])
    work = next_work(world, world.state, epoch, part, [], Intake(10))
    assert work is not None and not work.inputs and work.step.last
    note_step(part, work, [], None)
    assert part.due == 0 and part.finished
    stand(job, due=9 << 16)
    again = open_epoch([job], found.target).parts[0]
    again.begun = True  # A step before a restart has harvested; none has told when more is due.
    assert next_work(world, world.state, epoch, again, [], Intake(10)) is not None
    again.begun = False
    assert next_work(world, world.state, epoch, again, [], Intake(10)) is None
    ahead, dues = ahead_of([epoch]), dues_after([epoch])
    assert dues == {made: 0} and not next_epoch(world, [job], Intake(10), ahead, dues).run, "run, and not committed yet"
    after = open_epoch([job], 9 << 16, [epoch]).parts[0]
    assert (after.committed, after.due_before) == (7 << 16, 0), "it goes on from what has been run"
