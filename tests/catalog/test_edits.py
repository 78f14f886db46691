import pytest

from headrace.catalog.contents import MaterializedViewContent, SourceContent, TableContent, ViewContent
from headrace.catalog.edits import (
    MAX_EVENTS,
    NEXT_ID_KEY,
    AddEvent,
    AdvanceJob,
    CarryAlong,
    CommitTable,
    Delete,
    Edit,
    EditRejected,
    Put,
    RaiseSafe,
    RaiseWatermark,
    SetConfig,
    plan_change,
)
from headrace.catalog.records import (
    EventRecord,
    JobRecord,
    ObjectRecord,
    PositionRecord,
    RemapRecord,
    RunRecord,
    StateTableRecord,
)
from headrace.catalog.state import CatalogState
from headrace.state.schema import RunRef


def run(table_id: int, path: str = "p", rows: int = 1) -> RunRecord:
    return RunRecord(RunRef(table_id, path, 0, 1, rows, 1, 1, 0, 0), 0, 0)


@pytest.fixture
def state() -> CatalogState:
    return CatalogState(
        [
            ObjectRecord(1, SourceContent(), "s", "t"),
            ObjectRecord(2, MaterializedViewContent(), "s", "v", depends_on=(1,)),
            JobRecord(2, "g", "created", committed_epoch=10, frontier=10),
            StateTableRecord(20, 2, "op", "", (), (), (), committed_epoch=10, safe_epoch=5),
            StateTableRecord(21, 2, "op", "", (), (), (), committed_epoch=10, safe_epoch=5),
            run(20),
            RemapRecord(1, 10, {"p": 1}),
            PositionRecord(2, 1, 10),
        ]
    )


def test_a_commit_moves_the_tables_it_names_and_no_others(state: CatalogState) -> None:
    """PC-1."""
    state.apply(plan_change(state, [CommitTable(20, 12, 6)], 0))
    assert (state.state_tables[20].committed_epoch, state.state_tables[20].safe_epoch) == (12, 6)
    assert (state.state_tables[21].committed_epoch, state.state_tables[21].safe_epoch) == (10, 5)


def refused(state: CatalogState, *edits: Edit, match: str) -> None:
    before = list(state.records()), dict(state.config)
    with pytest.raises(EditRejected, match=match):
        plan_change(state, edits, 0)
    assert (list(state.records()), dict(state.config)) == before


@pytest.mark.parametrize("epoch", [0, 9, 10])
def test_a_commit_at_or_below_the_committed_epoch_is_refused_whole(state: CatalogState, epoch: int) -> None:
    """PC-3."""
    refused(state, CommitTable(21, 11), CommitTable(20, epoch), match="20 is committed at epoch 10")


def test_a_commit_that_names_a_table_twice_is_refused_whole(state: CatalogState) -> None:
    """PC-4."""
    refused(state, CommitTable(20, 11), CommitTable(20, 12), match="twice")
    refused(state, CommitTable(20, 11), RaiseSafe(20, 6), match="twice")
    refused(state, CommitTable(20, 11), Delete("state_table", 20), match="twice")


def test_a_commit_of_an_unknown_or_dropped_table_is_refused_whole(state: CatalogState) -> None:
    """PC-4."""
    refused(state, CommitTable(20, 11), CommitTable(99, 11), match="no state table 99")
    refused(state, CommitTable(20, 11), Put(run(99, "q")), match="needs state_table 99")
    state.apply(plan_change(state, [Delete("state_table", 21)], 0))
    refused(state, CommitTable(20, 11), CommitTable(21, 11), match="no state table 21")
    refused(state, Delete("job", 2), Put(run(20, "q")), match="needs state_table 20")


def test_committed_and_safe_epochs_never_go_back(state: CatalogState) -> None:
    """PC-3, PC-8."""
    old = state.state_tables[20]
    refused(state, Put(StateTableRecord(20, 2, "op", "", (), (), (), 9, 5)), match="committed epoch cannot go back")
    refused(state, Put(StateTableRecord(20, 2, "op", "", (), (), (), 10, 4)), match="safe epoch cannot go back")
    refused(state, RaiseSafe(20, 4), match="safe epoch cannot go back")
    refused(state, RaiseSafe(20, 11), match="above its committed epoch")
    refused(state, CommitTable(20, 11, 12), match="above its committed epoch")
    assert plan_change(state, [RaiseSafe(20, 5)], 0).puts == (old,)


def test_jobs_and_positions_never_go_back(state: CatalogState) -> None:
    """PC-33: what a job has committed stays committed."""
    refused(state, AdvanceJob(2, 9, 10), match="committed epoch cannot go back")
    refused(state, AdvanceJob(2, 10, 9), match="frontier cannot go back")
    refused(state, AdvanceJob(7, 11, 11), match="no job 7")
    refused(state, Put(PositionRecord(2, 1, 9)), match="position cannot go back")
    state.apply(plan_change(state, [AdvanceJob(2, 12, 13, ((12, 13),)), Put(PositionRecord(2, 1, 10, 500))], 0))
    assert state.jobs[2].exact == ((12, 13),) and state.positions[2, 1].sequence == 500


def test_a_position_within_an_epoch_never_goes_back(state: CatalogState) -> None:
    """LS-19: also where the epoch is the same; a new epoch begins at its start."""
    state.apply(plan_change(state, [Put(PositionRecord(2, 1, 12, 5, 70))], 0))
    refused(state, Put(PositionRecord(2, 1, 12, 4, 60)), match="position in the epoch cannot go back")
    state.apply(plan_change(state, [Put(PositionRecord(2, 1, 13, 1, -9))], 0))
    state.apply(plan_change(state, [Put(PositionRecord(2, 1, 13, 0, -9, from_epoch=4))], 0))
    refused(state, Put(PositionRecord(2, 1, 13, 9, -9, from_epoch=3)), match="position in the epoch cannot go back")
    assert state.positions_of(2)[0].next_key == -9


def test_an_idle_job_is_carried_along(state: CatalogState) -> None:
    """PC-16: it and its tables move forward; where they are there already nothing changes, and nothing goes back."""
    state.apply(plan_change(state, [CarryAlong(2, 12, ((10, 11), (12, 12)))], 0))
    assert state.jobs[2].committed_epoch == state.jobs[2].frontier == 12
    assert state.jobs[2].exact == ((10, 11), (12, 12))
    assert {t.committed_epoch for t in state.tables_of(2)} == {12} and state.state_tables[20].safe_epoch == 5
    for epoch in (12, 11):
        assert plan_change(state, [CarryAlong(2, epoch)], 0).empty
    refused(state, CarryAlong(9, 12), match="there is no job 9")


def test_a_binding_is_fixed_for_ever(state: CatalogState) -> None:
    """I12."""
    refused(state, Put(RemapRecord(1, 10, {"p": 2})), match="bound up to epoch 10")
    refused(state, Put(RemapRecord(1, 9, {"p": 2})), match="bound up to epoch 10")
    refused(state, Put(RemapRecord(3, 11, {"p": 2})), match="needs object 3")


def test_runs_are_never_overwritten(state: CatalogState) -> None:
    refused(state, Put(run(20, rows=2)), match="never overwritten")


def test_a_compaction_loses_cleanly_against_a_drop(state: CatalogState) -> None:
    merge: list[Edit] = [Delete("run", "p:0"), Put(run(20, "merged"))]
    state.apply(plan_change(state, [Delete("object", 2)], 0))
    refused(state, *merge, match="no run p:0")


def test_names_are_unique(state: CatalogState) -> None:
    refused(state, Put(ObjectRecord(3, TableContent(), "s", "t")), match=r'"s\.t" is taken by object 1')
    refused(state, *(Put(ObjectRecord(i, TableContent(), "s", "x")) for i in (3, 4)), match="twice")
    plan_change(state, [Delete("object", 2), Put(ObjectRecord(3, TableContent(), "s", "v"))], 0)


def test_an_object_that_others_need_stays(state: CatalogState) -> None:
    refused(state, Delete("object", 1), match="object 2 is built on it")
    view = ObjectRecord(5, ViewContent(query="SELECT 1"), "s", "w", depends_on=(77,))
    refused(state, Put(view), match="needs object 77")
    plan_change(state, [Delete("object", 1), Delete("object", 2)], 0)


def test_deleting_what_is_not_there(state: CatalogState) -> None:
    refused(state, Delete("object", 99), match="no object 99")
    refused(state, Delete("remap", (1, 9)), match="no remap 1:9")
    assert plan_change(state, [Delete("remap", (1, 10))], 0).deletes == (("remap", (1, 10)),)


def test_config_belongs_partly_to_the_catalog(state: CatalogState) -> None:
    refused(state, SetConfig(NEXT_ID_KEY, 1), match="belongs to the catalog")
    refused(state, SetConfig("x", -1), match="unsigned")
    refused(state, SetConfig("x", 1 << 64), match="unsigned")
    refused(state, SetConfig("x", 1), SetConfig("x", 1), match="twice")
    assert plan_change(state, [SetConfig("x", (1 << 64) - 1)], 0).config == {"x": (1 << 64) - 1}


def test_events_are_numbered_dated_and_bounded() -> None:
    state = CatalogState(EventRecord(n, 0, "k", None, "") for n in range(1, MAX_EVENTS + 1))
    change = plan_change(state, [AddEvent("k", 3, "a"), AddEvent("k", None, "b", "why")], 77)
    state.apply(change)
    assert change.deletes == (("event", 1), ("event", 2))
    assert len(state.events) == MAX_EVENTS
    assert state.newest_events(1) == (EventRecord(MAX_EVENTS + 2, 77, "k", None, "b", "why"),)
    refused(state, Put(EventRecord(1, 0, "k", None, "")), match="AddEvent")


def test_a_watermark_only_rises(state: CatalogState) -> None:
    """FS-19: by itself or with a commit, and never for a table whose rows do not expire."""
    expiring = StateTableRecord(22, 2, "op", "", (), (), (), committed_epoch=10, safe_epoch=5, expires="at")
    state.apply(plan_change(state, [Put(expiring)], 0))
    state.apply(plan_change(state, [RaiseWatermark(22, -5)], 0))
    state.apply(plan_change(state, [CommitTable(22, 12, watermark=7)], 0))
    assert state.state_tables[22].watermark == 7
    state.apply(plan_change(state, [RaiseWatermark(22, 7)], 0))
    for edit in (RaiseWatermark(22, 6), CommitTable(22, 13, watermark=6), Put(expiring)):
        if isinstance(edit, Put):
            edit = Put(StateTableRecord(22, 2, "op", "", (), (), (), 12, 5, expires="at"))
        refused(state, edit, match="state_table 22: the watermark cannot go back from 7")
    refused(state, RaiseWatermark(20, 1), match="state table 20 has no column by which its rows expire")
    assert StateTableRecord.from_json({k: v for k, v in expiring.to_json().items() if k not in ("v", "watermark")})
