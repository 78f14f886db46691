"""Tables that got columns: what has which name then, and when what was there before goes."""

from __future__ import annotations

from dataclasses import replace

from headrace.catalog.contents import (
    Content,
    IndexContent,
    MadeBy,
    MaterializedViewContent,
    SourceContent,
    ViewContent,
)
from headrace.catalog.edits import Delete, Edit, Put
from headrace.catalog.records import JobRecord, ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.common.columns import Column
from headrace.coordinator.decide.automatic import is_automatic
from headrace.coordinator.decide.former import formers_of, is_former, source_of, succession, table_of
from headrace.coordinator.decide.unused import abandoned, unused

ID, AMOUNT, KIND, NOTE = (Column(name, "string") for name in ("id", "amount", "kind", "note"))


class World:
    """A catalog of tables that connectors feed, and what reads them."""

    def __init__(self) -> None:
        self.objects: dict[int, ObjectRecord] = {}
        self.last = 0

    def add(self, content: Content, name: str, *depends_on: int, columns: tuple[Column, ...] = ()) -> int:
        self.last += 1
        self.objects[self.last] = ObjectRecord(
            self.last, content, "public", name, columns, f"CREATE {name}", depends_on=depends_on
        )
        return self.last

    def table(self, name: str, *columns: Column) -> int:
        source = self.add(SourceContent(part=name), f"{name}$changes", columns=columns)
        return self.add(MaterializedViewContent(spark_sql="", pipeline=MadeBy("d")), name, source, columns=columns)

    def view(self, name: str, *depends_on: int) -> int:
        return self.add(MaterializedViewContent(), name, *depends_on)

    def index(self, name: str, on: int) -> int:
        return self.add(IndexContent(on=on, key=("id",)), name, on)

    @property
    def state(self) -> CatalogState:
        jobs = [JobRecord(i, "g", "created") for i, o in self.objects.items() if o.content.has_job]
        return CatalogState([*self.objects.values(), *jobs])

    def apply(self, edits: list[Edit]) -> None:
        for edit in edits:
            if isinstance(edit, Put) and isinstance(edit.record, ObjectRecord):
                self.objects[edit.record.id] = edit.record
            elif isinstance(edit, Delete):
                del self.objects[int(str(edit.key))]

    def widen(self, old: int, *columns: Column, indexes: dict[int, int] | None = None) -> int:
        new = self.table(f"{self.objects[old].name}$refreshed", *columns)
        self.last += 1
        self.apply(succession(self.state, new, old, indexes or {}, self.last))
        return new

    def drop(self, *ids: int) -> list[str]:
        gone = [*ids, *unused(self.state, ids)]
        names = [self.objects[i].name for i in gone]
        for i in gone:
            assert set(self.state.dependents(i)) <= set(gone)
        for i in gone:
            del self.objects[i]
        return sorted(names)


def test_names_go_to_the_new_table_and_what_belongs_to_them() -> None:
    world = World()
    old = world.table("t", ID, AMOUNT)
    world.objects[old] = replace(world.objects[old], owner=7, grants={"0": "r"}, comments={"": "mine"})
    reader = world.view("reader", old)
    new = world.widen(old, ID, AMOUNT, KIND)
    state = world.state
    found = state.object_named("public", "t")
    assert (
        found is not None
        and found.id == new
        and (found.owner, found.grants, found.comments) == (7, {"0": "r"}, {"": "mine"})
    )
    assert found.content.pipeline == MadeBy("d") and state.objects[old].content.pipeline is None
    assert is_former(state.objects[old]) and table_of(state, state.objects[old]) == found
    assert not is_former(found) and table_of(state, state.objects[reader]).id == reader
    assert [o.id for o in formers_of(state, new)] == [old]
    sources = [source_of(state, state.objects[i]) for i in (old, new)]
    assert [s and s.name for s in sources] == [f"t${old}$changes", "t$changes"]
    calls = [o.content.called for o in (state.objects[old], sources[0], found, sources[1]) if o is not None]
    assert calls == ["t", "t$changes", None, None], "plans tell what they read by its name"
    assert state.dependents(old) == (reader,)


def test_plain_views_read_the_new_table_in_the_width_that_they_know() -> None:
    world = World()
    old = world.table("t", ID, AMOUNT)
    first = world.add(ViewContent(query="SELECT * FROM t"), "first", old)
    new = world.widen(old, ID, AMOUNT, KIND)
    second = world.add(ViewContent(query="SELECT * FROM t"), "second", new)
    newest = world.widen(new, ID, AMOUNT, KIND, NOTE)
    third = world.add(ViewContent(query="SELECT * FROM t"), "third", newest)
    state = world.state
    assert state.dependents(newest) == (first, second, third)
    widths = [state.objects[newest].content.width_before(view) for view in (first, second, third)]
    assert widths == [2, 3, None]
    assert sorted(abandoned(state)) == [old - 1, old, new - 1, new], "nothing reads them"


def test_a_former_table_goes_with_its_last_reader() -> None:
    world = World()
    old = world.table("t", ID)
    a, b = world.view("a", old), world.view("b", old)
    new = world.widen(old, ID, KIND)
    c = world.view("c", new)
    newest = world.widen(new, ID, KIND, NOTE)
    assert [o.id for o in formers_of(world.state, newest)] == [old, new]
    assert world.drop(a) == ["a"]
    assert abandoned(world.state) == []
    assert world.drop(b) == ["b", f"t${old}", f"t${old}$changes"]
    assert world.drop(c) == ["c", f"t${new}", f"t${new}$changes"]
    assert {o.name for o in world.objects.values()} == {"t", "t$changes"}


def test_a_start_drops_what_nothing_reads_with_its_indexes() -> None:
    """A crash came between the change of names and the drop."""
    world = World()
    old = world.table("t", ID)
    index = world.index("i", old)
    made = world.table("t$refreshed", ID, KIND)
    other = world.index("i$refreshed", made)
    world.last += 1
    world.apply(succession(world.state, made, old, {other: index}, world.last))
    assert sorted(abandoned(world.state)) == [old - 1, old, index]
    reader = world.view("reader", old)
    assert abandoned(world.state) == [index]
    assert reader in world.objects


def test_an_index_that_joins_look_rows_up_in_goes_with_the_last_of_them() -> None:
    world = World()
    old = world.table("t", ID)
    index = world.index("i", old)
    joined = world.view("joined", old, index)
    made = world.table("t$refreshed", ID, KIND)
    other = world.index("i$refreshed", made)
    world.last += 1
    world.apply(succession(world.state, made, old, {other: index}, world.last))
    state = world.state
    assert state.objects[other].name == "i" and not is_automatic(state.objects[other])
    assert is_automatic(state.objects[index]) and state.objects[index].schema == "headrace_internal"
    assert world.drop(joined) == [f"former i ({index})", "joined", f"t${old}", f"t${old}$changes"]
