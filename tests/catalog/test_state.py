from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.catalog.contents import MaterializedViewContent, SchemaContent, SourceContent, TableContent
from headrace.catalog.edits import AddEvent, AdvanceJob, CommitTable, Delete, Edit, EditRejected, Put, plan_change
from headrace.catalog.records import (
    JobRecord,
    ObjectRecord,
    PositionRecord,
    RemapRecord,
    RunRecord,
    SettingRecord,
    StateTableRecord,
)
from headrace.catalog.state import CatalogState
from headrace.state.schema import RunRef


def built(*edits: Edit, state: CatalogState | None = None) -> CatalogState:
    state = state or CatalogState()
    state.apply(plan_change(state, edits, 1))
    return state


def table(id: int, job_id: int, **more: Any) -> StateTableRecord:
    return StateTableRecord(id, job_id, "op", "", (), (), (), **more)


def run(table_id: int, path: str, epoch: int = 1, level: int = 0) -> RunRecord:
    return RunRecord(RunRef(table_id, path, 0, 1, 1, epoch, epoch, 0, 0), level, 0)


def test_objects_are_found_by_name_and_by_what_they_are_built_on() -> None:
    state = built(
        Put(ObjectRecord(1, SchemaContent(), "", "public")),
        Put(ObjectRecord(2, TableContent(), "public", "t")),
        Put(ObjectRecord(3, MaterializedViewContent(), "public", "v", depends_on=(2,))),
    )
    assert state.object_named("", "public") == state.objects[1]
    assert state.object_named("public", "v") == state.objects[3]
    assert state.object_named("public", "w") is None
    assert state.dependents(2) == (3,)
    assert [o.id for o in state.objects_of(TableContent, MaterializedViewContent)] == [2, 3]
    built(Put(ObjectRecord(3, MaterializedViewContent(), "public", "w")), state=state)
    assert state.object_named("public", "v") is None and state.object_named("public", "w") is not None
    assert state.dependents(2) == ()


def test_names_can_be_swapped_in_one_transaction() -> None:
    state = built(Put(ObjectRecord(1, TableContent(), "s", "a")), Put(ObjectRecord(2, TableContent(), "s", "b")))
    built(Put(ObjectRecord(1, TableContent(), "s", "b")), Put(ObjectRecord(2, TableContent(), "s", "a")), state=state)
    a, b = state.object_named("s", "a"), state.object_named("s", "b")
    assert a is not None and b is not None and (a.id, b.id) == (2, 1)


def test_jobs_tables_runs_positions() -> None:
    state = built(
        Put(ObjectRecord(1, TableContent(), "s", "t")),
        Put(ObjectRecord(2, MaterializedViewContent(), "s", "v", depends_on=(1,))),
        Put(JobRecord(1, "g", "created")),
        Put(JobRecord(2, "g", "creating")),
        Put(table(11, 2)),
        Put(table(10, 2)),
        Put(run(10, "b", 2)),
        Put(run(10, "a", 1)),
        Put(run(10, "c", 1, level=1)),
        Put(PositionRecord(2, 1, 5)),
    )
    assert [j.id for j in state.jobs_in("g")] == [1, 2]
    assert [t.id for t in state.tables_of(2)] == [10, 11]
    assert [r.id for r in state.runs_of(10)] == ["a:0", "b:0", "c:0"]
    assert (state.run_count(10), state.run_count(11), state.runs_of(11)) == (3, 0, ())
    assert state.positions_of(2) == state.readers_of(1) == (PositionRecord(2, 1, 5),)
    assert state.position(2, 1) == PositionRecord(2, 1, 5) and state.position(1, 2) is None
    built(Put(JobRecord(2, "own", "created")), state=state)
    assert [j.id for j in state.jobs_in("g")] == [1]


def test_dropping_an_object_drops_what_belongs_to_it() -> None:
    """PC-27: DROP leaves no metadata behind."""
    state = built(
        Put(ObjectRecord(1, SourceContent(), "s", "t")),
        Put(JobRecord(1, "g", "created")),
        Put(table(10, 1)),
        Put(run(10, "a")),
        Put(PositionRecord(1, 9, 5)),
        Put(RemapRecord(1, 5, {"0": 1})),
    )
    built(Delete("object", 1), state=state)
    assert list(state.records()) == []
    assert not any((state.runs_of(10), state.tables_of(1), state.jobs_in("g"), state.readers_of(9)))
    assert state.last_epoch == 5


bindings = st.dictionaries(st.integers(1, 30), st.integers(0, 2), max_size=12)


@given(bindings, st.integers(0, 31), st.integers(0, 31))
def test_remap_lookups_agree_with_a_scan(bound: dict[int, int], low: int, high: int) -> None:
    state = CatalogState(RemapRecord(1, e, {"p": o}) for e, o in bound.items())
    at = max((e for e in bound if e <= high), default=None)
    found = state.offsets_at(1, high)
    assert (found.epoch if found else None) == at
    inside = sorted(e for e in bound if low < e <= high)
    assert [r.epoch for r in state.remaps_in(1, low, high)] == inside
    chain = [bound[e] for e in sorted(e for e in bound if e <= low)[-1:] + inside]
    expected = len(set(pairwise(chain)) - {(o, o) for o in range(3)}) > 0
    first_unknown = bool(inside) and not any(e <= low for e in bound)
    assert state.changes_in(1, low, high) == (expected or first_unknown)
    kept = set(bound) - {r.epoch for r in state.stale_remaps(1, high)}
    assert kept == {e for e in bound if e > high} | ({at} if at is not None else set())
    newest = state.newest_remap(1)
    assert (newest.epoch if newest else None) == max(bound, default=None)


def test_a_moved_watermark_is_a_change() -> None:
    state = CatalogState([RemapRecord(1, 1, {"p": 1}, 5), RemapRecord(1, 2, {"p": 1}, 6)])
    assert state.changes_in(1, 1, 2)
    assert not state.changes_in(2, 0, 9)


def test_last_epoch_is_the_newest_that_any_record_named() -> None:
    state = built(
        Put(ObjectRecord(1, SourceContent(), "s", "t")), Put(JobRecord(1, "g", "created", 3, 7)), Put(table(10, 1)),
        Put(RemapRecord(1, 5, {}))
    )  # fmt: skip
    assert state.last_epoch == 7
    built(CommitTable(10, 9), state=state)
    built(AdvanceJob(1, 8, 8), state=state)
    assert state.last_epoch == 9


def test_newest_events_first() -> None:
    state = built(*(AddEvent("k", None, str(i)) for i in range(3)))
    assert [e.message for e in state.newest_events(2)] == ["2", "1"]
    assert list(state.events) == [1, 2, 3]


edit_lists = st.lists(
    st.one_of(
        st.builds(
            lambda i, n: Put(ObjectRecord(i, TableContent(), "s", n)), st.integers(1, 4), st.sampled_from("abcd")
        ),
        st.builds(lambda i, g: Put(JobRecord(i, g, "created")), st.integers(1, 4), st.sampled_from("gh")),
        st.builds(lambda i, j: Put(table(i, j)), st.integers(1, 4), st.integers(1, 4)),
        st.builds(lambda i, p: Put(run(i, p)), st.integers(1, 4), st.sampled_from("pqrs")),
        st.builds(lambda i, e: Put(RemapRecord(i, e, {})), st.integers(1, 4), st.integers(1, 9)),
        st.builds(lambda j, u: Put(PositionRecord(j, u, 1)), st.integers(1, 4), st.integers(1, 4)),
        st.builds(lambda n, v: Put(SettingRecord(n, v)), st.sampled_from("ab"), st.sampled_from("xy")),
        st.builds(Delete, st.sampled_from(["object", "job", "state_table"]), st.integers(1, 4)),
        st.builds(lambda m: AddEvent("k", None, m), st.sampled_from("xy")),
    ),
    max_size=4,
)


@given(st.lists(edit_lists, max_size=12))
def test_an_image_changed_in_place_equals_one_loaded_afresh(transactions: list[list[Edit]]) -> None:
    """CM-29: replay equals state; every secondary look-up stays in step with the records."""
    state = CatalogState()
    for edits in transactions:
        try:
            built(*edits, state=state)
        except EditRejected:
            continue
    fresh = CatalogState(list(state.records()), state.config)
    for i in range(5):
        assert state.tables_of(i) == fresh.tables_of(i)
        assert state.runs_of(i) == fresh.runs_of(i)
        assert state.positions_of(i) == fresh.positions_of(i)
        assert state.readers_of(i) == fresh.readers_of(i)
        assert state.all_remaps(i) == fresh.all_remaps(i)
        assert state.dependents(i) == fresh.dependents(i)
    for name in "abcd":
        assert state.object_named("s", name) == fresh.object_named("s", name)
    assert [state.jobs_in(g) for g in "gh"] == [fresh.jobs_in(g) for g in "gh"]
    assert (state.settings, state.newest_events(99)) == (fresh.settings, fresh.newest_events(99))
