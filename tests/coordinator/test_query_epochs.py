"""The choice of epochs against a model that looks at every epoch by itself."""

from __future__ import annotations

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.decide.exact import ChangeLog, after_commit, frontier, merged, newest, view_exact
from headrace.coordinator.decide.query_epochs import (
    Candidate,
    Consistency,
    Floors,
    choose,
    choose_at_most,
    restart_floor,
)

LAST = 40
EPOCHS = st.integers(1, LAST)
RANGES = st.lists(st.tuples(EPOCHS, EPOCHS).map(lambda p: (min(p), max(p))), max_size=6).map(merged)
READ = st.lists(st.tuples(RANGES, st.integers(0, LAST)), min_size=1, max_size=4).map(
    lambda found: [Candidate(i, exact, floor) for i, (exact, floor) in enumerate(found)]
)
POLICIES = st.sampled_from(get_args(Consistency))


def points(intervals: list[tuple[int, int]]) -> set[int]:
    return {e for low, high in intervals for e in range(low, high + 1)}


@given(POLICIES, READ, st.lists(RANGES, max_size=3))
def test_each_policy_picks_the_documented_epoch(
    policy: Consistency, read: list[Candidate], created: list[list[tuple[int, int]]]
) -> None:
    """PC-37: the newest epoch that the policy allows, exact for all that it counts; None if it is below a floor."""
    exact = [points(list(c.exact)) for c in read]
    found = choose(policy, read, created)
    if policy == "latest":
        best = [max(e, default=0) for e in exact]
        expected = dict(enumerate(best)) if all(b and b >= c.floor for b, c in zip(best, read)) else None
    else:
        common = set.intersection(*exact, *(points(c) for c in created if policy == "global"))
        top = max(common, default=0)
        expected = dict.fromkeys(range(len(read)), top) if top and top >= max(c.floor for c in read) else None
    assert found == expected


@given(READ, EPOCHS)
def test_time_travel_knows_no_floor(read: list[Candidate], at: int) -> None:
    """PC-37: the newest epoch up to the one asked for at which all relations are exact."""
    common = set.intersection(*(points(list(c.exact)) for c in read))
    assert choose_at_most(read, at) == max((e for e in common if e <= at), default=None)


class Model:
    """A table that changes, and views of it with checkpoints of their own: content at e = the changes up to e."""

    def __init__(self, views: int) -> None:
        self.now = 1
        self.changes = ChangeLog()
        self.at: set[int] = set()
        self.committed = [0] * views
        self.stored: list[tuple[tuple[int, int], ...]] = [()] * views
        self.written = [ChangeLog() for _ in range(views)]

    def write(self) -> None:
        self.now += 1
        self.at.add(self.now)
        self.changes.add(self.now)

    def commit(self, view: int, behind: int) -> None:
        target = max(self.now - behind, 1)
        done = self.committed[view]
        if target <= done:
            return
        first = self.changes.first_after(done) if done else None
        if done and (first is None or first > target):
            return
        self.stored[view] = after_commit(self.exact(view) if done else [], target, 0)
        self.committed[view] = target
        if any(done < c <= target for c in self.at):
            self.written[view].add(target)

    def exact(self, relation: int) -> list[tuple[int, int]]:
        if relation == len(self.committed):
            return [(0, self.now)]
        done = self.committed[relation]
        return view_exact(self.stored[relation], done, frontier(done, self.now, self.changes.first_after(done)))

    def content(self, epoch: int) -> set[int]:
        return {c for c in self.at if c <= epoch}

    def changes_of(self, relation: int) -> ChangeLog:
        return self.changes if relation == len(self.committed) else self.written[relation]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write")),
        st.tuples(st.just("commit"), st.integers(0, 2), st.integers(0, 3)),
        st.tuples(st.just("read"), st.sets(st.integers(0, 3), min_size=1), POLICIES),
        st.tuples(st.just("restart")),
    ),
    max_size=60,
)


@given(STEPS)
def test_no_schedule_makes_reads_go_back(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    """PC-36, PC-37, CK-15: whatever writes, checkpoints, reads of any policy and restarts come in whatever order, every
    read is a consistent cut, and no relation is ever shown with less than before, over restarts too."""
    model, floors = Model(3), Floors()
    shown: dict[int, set[int]] = {}
    epochs: dict[int, int] = {}
    for step in steps:
        if step[0] == "write":
            model.write()
        elif step[0] == "commit":
            model.commit(step[1], step[2])
        elif step[0] == "restart":
            floors, epochs = Floors(), {}
            floors.raise_to({i: restart_floor(model.changes_of(i), model.exact(i)) for i in range(4)})
        else:
            read = [Candidate(i, model.exact(i), floors.of(i)) for i in sorted(step[1])]
            created = [model.exact(i) for i in range(3) if model.committed[i]]
            found = choose(step[2], read, created)
            if found is None:
                continue
            floors.raise_to(found)
            for i, epoch in found.items():
                content = model.content(epoch)
                assert epoch in points(model.exact(i)), "read only where it is exact"
                assert content >= shown.get(i, set()) and epoch >= epochs.get(i, 0)
                shown[i], epochs[i] = content, epoch
            if step[2] != "latest":
                assert len(set(found.values())) == 1, "one cut for all"
            if step[2] == "global":
                assert all(epochs[i] in points(c) for i in found for c in created)


@given(STEPS, st.integers(0, 3))
def test_a_floor_after_a_restart_can_be_met(steps: list[tuple], relation: int) -> None:  # type: ignore[type-arg]
    """PC-36: the floor of a relation never keeps it from being read by itself."""
    model = Model(3)
    for step in steps:
        if step[0] == "write":
            model.write()
        elif step[0] == "commit":
            model.commit(step[1], step[2])
    exact = model.exact(relation)
    floor = restart_floor(model.changes_of(relation), exact)
    last = newest(exact)
    assert floor <= (last or 0)
    if last is not None:
        assert model.content(floor) == model.content(last)
