"""Automatic indexes: when there is to be one, and when one goes."""

from __future__ import annotations

import random
from collections.abc import Sequence

from headrace.catalog.contents import Content, IndexContent, MaterializedViewContent, TableContent
from headrace.catalog.records import JobPlan, JobRecord, ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.coordinator.decide.automatic import (
    SCHEMA,
    WantedIndex,
    index_of,
    is_automatic,
    name_of,
    stored,
    wanted,
)
from headrace.coordinator.decide.job import JobState
from headrace.coordinator.decide.machine import pacing
from headrace.coordinator.decide.membership import Membership
from headrace.coordinator.decide.standing import Standing
from headrace.coordinator.decide.unused import abandoned, unused
from headrace.plan.tree import Sharable

P_BY_K, P_BY_A_B = Sharable(1, ("k",)), Sharable(1, ("a", "b"))


class World:
    """A catalog of tables, views and indexes."""

    def __init__(self) -> None:
        self.objects: dict[int, ObjectRecord] = {}
        self.jobs: dict[int, JobRecord] = {}
        self.table()

    def table(self) -> int:
        return self._add(TableContent())

    def view(self, *depends_on: int, group: str = "g", keeps: Sequence[Sharable] = ()) -> int:
        made = self._add(MaterializedViewContent(), *depends_on)
        self.jobs[made] = JobRecord(made, group, "created", plan=JobPlan(fingerprint="f", sharable=stored(keeps)))
        return made

    def index(self, side: Sharable, group: str = "g", status: str = "created", by_hand: bool = False) -> int:
        made = self._add(IndexContent(on=side.relation, key=side.key, automatic=not by_hand), side.relation)
        self.jobs[made] = JobRecord(made, group, status)  # type: ignore[arg-type]
        return made

    def _add(self, content: Content, *depends_on: int) -> int:
        made = len(self.objects) + 1
        self.objects[made] = ObjectRecord(made, content, "public", f"o{made}", depends_on=depends_on)
        return made

    @property
    def state(self) -> CatalogState:
        return CatalogState([*self.objects.values(), *self.jobs.values()])


def test_the_first_view_keeps_its_rows_itself() -> None:
    """An index is made for the second one of a group, or for one that would keep the same twice."""
    world = World()
    assert wanted(world.state, "g", [P_BY_K, P_BY_A_B]) == []
    assert wanted(world.state, "g", [P_BY_K, P_BY_A_B, P_BY_K]) == [WantedIndex(P_BY_K, None)]
    world.view(1, group="h", keeps=[P_BY_K])
    assert wanted(world.state, "g", [P_BY_K]) == []
    world.view(1, keeps=[P_BY_A_B, P_BY_K, P_BY_K])
    assert wanted(world.state, "g", [P_BY_K]) == [WantedIndex(P_BY_K, None)]
    assert wanted(world.state, "g", [P_BY_K, P_BY_A_B]) == [WantedIndex(P_BY_A_B, None), WantedIndex(P_BY_K, None)]
    assert wanted(world.state, "g", [Sharable(2, ("k",)), Sharable(1, ("a",))]) == []


def test_one_that_is_there_is_used() -> None:
    """Also while it is being filled; none is made beside one that is not kept up to date."""
    for status, found in (("created", [2]), ("creating", [2]), ("quarantined", []), ("paused", [])):
        world = World()
        world.index(P_BY_K, status=status)
        world.view(1, keeps=[P_BY_K])
        assert [w.index for w in wanted(world.state, "g", [P_BY_K])] == found
        assert wanted(world.state, "h", [P_BY_K]) == []


def test_an_index_made_by_hand_is_no_automatic_one() -> None:
    world = World()
    by_hand, other, made = world.index(P_BY_K, by_hand=True), world.index(P_BY_K, "h"), world.index(P_BY_K)
    found = index_of(world.state, "g", P_BY_K)
    assert found is not None and found.id == made and is_automatic(found)
    assert not is_automatic(world.objects[by_hand]) and abandoned(world.state) == [other, made]
    assert name_of(world.objects[1], "g", P_BY_A_B) == "automatic o1(a, b) in g" and SCHEMA != "public"


def test_it_does_not_set_the_pace_of_its_group() -> None:
    jobs = [JobState(i, f"v{i}", (), {}, Standing("created"), Membership("g"), automatic=i < 3) for i in range(1, 5)]
    assert [j.id for j in pacing(jobs)] == [3, 4]
    assert [j.id for j in pacing(jobs[:2])] == [1, 2]


def test_it_goes_with_the_last_view_that_uses_it() -> None:
    world = World()
    index, by_hand = world.index(P_BY_K), world.index(P_BY_K, by_hand=True)
    a, b = world.view(1, index, by_hand), world.view(index, by_hand)
    assert abandoned(world.state) == []
    assert unused(world.state, [a]) == [] == unused(world.state, [b])
    assert unused(world.state, [b, a]) == [index]
    assert unused(world.state, [index]) == [] == unused(world.state, [99])
    over = world.index(Sharable(a, ("k",)))
    c = world.view(a, over)
    assert unused(world.state, [c]) == [over]
    assert unused(world.state, [c, a, b]) == [over, index]


def test_nothing_that_is_used_goes_and_nothing_unused_stays() -> None:
    """1,000 random histories: what is left after each drop is what some view uses."""
    for seed in range(1000):
        choice = random.Random(seed)
        world = World()
        for _ in range(choice.randint(1, 12)):
            below = choice.sample(sorted(world.objects), min(len(world.objects), choice.randint(1, 3)))
            if choice.random() < 0.4:
                on = choice.choice([i for i in world.objects if not isinstance(world.objects[i].content, IndexContent)])
                world.view(world.index(Sharable(on, ("k",))), *below)
            else:
                world.view(*below)
        while world.jobs:
            state = world.state
            views = [i for i in world.jobs if not isinstance(world.objects[i].content, IndexContent)]
            going = {choice.choice(views)}
            while more := {d for i in going for d in state.dependents(i)} - going:
                going |= more
            for i in [*going, *unused(state, sorted(going))]:
                assert set(state.dependents(i)) <= {*going, *unused(state, sorted(going))}, seed
                del world.objects[i]
                world.jobs.pop(i, None)
            assert abandoned(world.state) == [], seed
