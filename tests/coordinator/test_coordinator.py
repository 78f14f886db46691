"""The coordinator without Spark: a runner in memory stands for the dataflow, everything else is real."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_database import Database, FakePlan, FakeRunner, rows

from headrace.catalog.catalog import Catalog
from headrace.common.clock import ManualClock
from headrace.common.faults import arm, disarm_all, passages
from headrace.config import Settings
from headrace.coordinator import TableChange
from headrace.coordinator.decide.view_options import Cadence, cadence
from headrace.coordinator.reads import ReadOptions
from headrace.dataflow.epoch_result import EpochResult
from headrace.dataflow.params import EpochParams
from headrace.errors import (
    CorruptObject,
    DependentObjectsExist,
    DivisionByZero,
    DuplicateTable,
    EpochTooNew,
    EpochTooOld,
    Fenced,
    JobFailed,
    SnapshotUnavailable,
    UndefinedTable,
)
from headrace.state.run import OPEN_RUNS
from headrace.state.schema import TableSchema
from support import WAIT_S, eventually


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path)
    yield made
    disarm_all()
    made.close()


def test_views_follow_writes_without_a_tick(db: Database) -> None:
    """PC-16, PC-38: a write wakes its dependents; after FLUSH every view of any depth holds it."""
    t = db.table()
    v = db.view("v", t)
    w = db.view("w", v, t)
    db.insert(t, 1, 2, 2)
    db.until(lambda: db.status(v).rows_out == 2)
    db.c.flush(WAIT_S)
    db.delete(t, 2, 7)
    db.c.flush(WAIT_S)
    assert db.read(t, v, w) == [[1, 2], [1, 2], [1, 1, 2, 2]]
    db.check_edges()


def test_an_epoch_without_rows_holds_up_nobody(db: Database) -> None:
    """XC-6: a checkpoint that changes no row of a view still lets the views on it go on."""
    t = db.table()
    v = db.view("v", t)
    w = db.view("w", v)
    db.c.flush(WAIT_S)
    db.c.alter_job(v, paused=True)
    db.insert(t, 5)
    db.delete(t, 5)
    db.c.alter_job(v, paused=False)
    db.c.flush(WAIT_S)
    assert db.read(t, v, w) == [[], [], []]


@pytest.mark.parametrize("damage", ["flip", "cut", "delete", "swap"])
def test_damage_stops_only_what_needs_the_object(db: Database, damage: str) -> None:
    """FS-12, XC-4: a damaged object is named by whoever needs it, and is never read as empty or as other rows."""
    t, other = db.table("t"), db.table("other")
    db.insert(t, 1, 2, 3)
    db.insert(other, 7)
    good = db.view("good", other)
    runs = {r.ref.table_id: r.ref for r in db.catalog.state.runs.values()}
    ref = runs[db.core.live.graph.relations[t].state_table]
    path = Path(db.core.storage.root) / ref.path
    data = bytearray(path.read_bytes())
    path.unlink()
    if damage == "flip":
        data[ref.offset + 700] ^= 4
        path.write_bytes(data)
    elif damage == "cut":
        path.write_bytes(data[:-9])
    elif damage == "swap":
        path.write_bytes(
            (Path(db.core.storage.root) / runs[db.core.live.graph.relations[other].state_table].path).read_bytes()
        )
    OPEN_RUNS.clear()
    for read in (lambda: db.read(t), lambda: db.delete(t, 1)):
        with pytest.raises(CorruptObject, match=ref.path):
            read()
    bad = db.view("bad", t, wait=False)
    with pytest.raises(JobFailed, match=f'"bad" is failing: object {ref.path}'):
        db.c.wait_created(bad, WAIT_S)
    db.insert(other, 8)
    db.until(lambda: db.status(good).rows_out == 2)
    assert db.read(good, other) == [[7, 8], [7, 8]]
    assert db.c.compact() == 0


def test_a_view_without_input_runs_no_epoch(db: Database) -> None:
    """PC-15: ticks move the frontier of an idle view, run nothing and write nothing."""
    t, other = db.table("t"), db.table("other")
    v = db.view("v", t)
    calls, files = len(db.runner_of(v).calls), len(list(Path(db.core.storage.root).rglob("*.run")))
    for _ in range(3):
        epoch = db.c.flush(WAIT_S)
        assert db.status(v).frontier >= epoch
    db.insert(other, 1)
    db.c.flush(WAIT_S)
    assert len(db.runner_of(v).calls) == calls
    assert len(list(Path(db.core.storage.root).rglob("*.run"))) == files + 1


def test_a_stuck_group_delays_no_other(db: Database) -> None:
    """PC-9, PC-35: a view whose epoch does not end holds up no other view, no write and no read of its input."""
    t = db.table()
    slow, fast = db.view("slow", t), db.view("fast", t)
    runner = db.runner_of(slow)
    runner.gate.clear()
    for i in range(3):
        epoch = db.insert(t, i)
        db.until(lambda e=epoch: db.status(fast).frontier >= e)
    assert db.read(fast, t) == [[0, 1, 2], [0, 1, 2]]
    assert db.read(slow) == [[]]
    runner.gate.set()
    db.c.flush(WAIT_S)
    assert db.read(slow) == [[0, 1, 2]]


def test_a_failing_group_retries_with_back_off(tmp_path: Path) -> None:
    """PC-41, PC-42, FS-7: retries are spaced, the status says why, the others go on, recovery is exact."""
    clock = ManualClock()
    db = Database(tmp_path, clock, group_retry_initial_ms=1000, group_retry_max_ms=4000)
    try:
        t = db.table()
        bad, good = db.view("bad", t), db.view("good", t)
        down = db.view("down", bad)
        runner = db.runner_of(bad)
        runner.error = DivisionByZero("division by zero")
        db.insert(t, 1)
        db.until(lambda: db.status(bad).status == "failing")
        calls = len(runner.calls)
        for failures in (2, 3, 4):
            clock.advance_ms(400)
            db.core.live.notify()
            assert len(runner.calls) == calls + failures - 2
            clock.advance_ms(4000)
            db.core.live.notify()
            db.until(lambda f=failures: db.core.live.graph.jobs[bad].failures == f)
        status = db.status(bad)
        assert status.error is not None and status.error.sqlstate == "22012" and status.error_since_ms > 0
        assert db.events("job_failed") and len(db.events("job_failed")) == 1
        with pytest.raises(JobFailed, match='"bad" is failing'):
            db.c.flush(WAIT_S)
        db.until(lambda: db.status(good).frontier >= db.c.current_epoch())
        assert db.read(good) == [[1]]
        with db.c.snapshot([bad]) as snapshot:
            assert db.values(snapshot.tables[bad]) == [] and "failing since" in snapshot.notices[0]
        runner.error = None
        db.c.flush(WAIT_S)
        assert db.read(bad, good, down) == [[1], [1], [1]]
        assert db.events("job_recovered") and db.status(bad).status == "running"
    finally:
        db.close()


def test_reads_never_go_back(db: Database) -> None:
    """CK-15, PC-36: with a view that stands still a common snapshot would lie in the past, so it is refused."""
    t = db.table()
    v = db.view("v", t)
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    assert db.read(t, v) == [[1], [1]]
    db.c.alter_job(v, paused=True)
    db.insert(t, 2)
    with db.c.snapshot([t, v]) as snapshot:
        assert db.values(snapshot.tables[t]) == [1], "both at one epoch, before the second write"
    assert db.read(t) == [[1, 2]]
    with pytest.raises(SnapshotUnavailable, match=r'"v" \(paused\) is at epoch') as caught:
        db.read(t, v)
    assert caught.value.sqlstate == "40001"
    assert db.read(v) == [[1]]
    with db.c.snapshot([t, v], options=ReadOptions(monotonic="off")) as snapshot:
        assert [db.values(snapshot.tables[i]) for i in (t, v)] == [[1], [1]]
        assert snapshot.notices == ['materialized view "v" is paused']
    db.c.alter_job(v, paused=False)
    assert db.read(t, v) == [[1, 2], [1, 2]]


def test_state_of_another_version_is_not_merged(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merged as something else, it would be lost to the version that wrote it, too."""
    t = db.table()
    for i in range(30):
        db.insert(t, i)
    with monkeypatch.context() as patched:
        patched.setattr(TableSchema, "combinable", property(lambda _: False))
        assert db.c.compact() == 0
    assert db.c.compact() >= 1


def test_reads_of_the_past(db: Database) -> None:
    """PC-7, PC-37: every epoch keeps its content, also through compaction; outside of the range distinct errors."""
    t = db.table()
    v = db.view("v", t)
    epochs = []
    for i in range(30):
        epochs.append(db.insert(t, i))
        if i % 3 == 0:
            db.c.flush(WAIT_S)
    db.c.flush(WAIT_S)
    before = [db.read(t, at=e) for e in epochs]
    assert before == [[list(range(i + 1))] for i in range(30)]
    assert db.c.compact() >= 2
    assert [db.read(t, at=e) for e in epochs] == before
    at_views = [db.read(t, v, at=e) for e in epochs]
    assert all(a == b for a, b in at_views), "the newest epoch at or below, at which both are exact"
    assert db.read(t, v) == [list(range(30)), list(range(30))]
    with pytest.raises(EpochTooNew):
        db.read(t, at=db.c.current_epoch() + (1 << 40))
    db.c.configure(db.settings.replaced(retention_ms=0))
    for i in range(30, 40):
        epochs.append(db.insert(t, i))
    db.c.flush(WAIT_S)
    assert db.c.compact() >= 1
    with pytest.raises(EpochTooOld):
        db.read(t, at=epochs[0])
    assert db.read(t, v) == [list(range(40)), list(range(40))]
    db.insert(t, 40)
    db.c.flush(WAIT_S)
    assert db.read(v) == [list(range(41))]


def test_pins_and_lagging_readers_hold_the_safe_epoch(tmp_path: Path) -> None:
    """PC-8, PC-17: what a snapshot or a slow reader still needs is not merged away."""
    db = Database(tmp_path, retention_ms=0, compaction_trigger_runs=2)
    try:
        t = db.table()
        db.insert(t, 1)
        v = db.view("v", t)
        db.c.alter_job(v, paused=True)
        snapshot = db.c.snapshot([t])
        for i in range(2, 12):
            db.insert(t, i)
        assert db.c.compact() >= 1
        table = db.core.live.graph.relations[t]
        assert table.safe <= min(snapshot.epoch, db.status(v).committed_epoch)
        assert db.values(snapshot.tables[t]) == [1] == db.read(t, at=snapshot.epoch)[0]
        snapshot.close()
        db.c.alter_job(v, paused=False)
        db.c.flush(WAIT_S)
        assert db.read(v) == [list(range(1, 12))]
        db.insert(t, 12)
        db.insert(t, 13)
        db.c.flush(WAIT_S)
        db.c.compact()
        assert table.safe > snapshot.epoch
    finally:
        db.close()


def test_vacuum_deletes_what_nothing_refers_to(tmp_path: Path) -> None:
    """XC-5, CK-12: orphans, merged and dropped runs go; what the catalog, a snapshot or a writer needs stays."""
    db = Database(tmp_path, vacuum_grace_ms=0, compaction_trigger_runs=2, retention_ms=0)
    try:
        t, gone = db.table(), db.table("gone")
        for i in range(6):
            db.insert(t, i)
        db.insert(gone, 1)
        snapshot = db.c.snapshot([t])
        root = Path(db.core.storage.root)
        orphan = root / "99" / "orphan.run"
        orphan.parent.mkdir()
        orphan.write_bytes(b"x")
        (root / "99" / ".half.run.01234567.tmp").write_bytes(b"x")
        writing = root / "98" / "abc-1.run"
        writing.parent.mkdir()
        writing.write_bytes(b"x")
        db.c.drop([gone])
        db.c.compact()
        with db.core.storage.pins.writing("98/abc"):
            assert db.c.vacuum() == 0, "the first pass only looks"
            assert db.c.vacuum() == 3
        assert not orphan.exists() and writing.exists()
        assert db.values(snapshot.tables[t]) == list(range(6))
        snapshot.close()
        db.c.vacuum()
        db.c.vacuum()
        left = {p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file() and p.parent.name != "owner"}
        assert left == {r.ref.path for r in db.catalog.state.runs.values()}
        assert db.read(t) == [list(range(6))]
    finally:
        db.close()


def test_a_restart_resumes_every_job(tmp_path: Path) -> None:
    """PC-24, XC-7, CK-10, CK-21: epochs go on, views go on from their checkpoint, sources from their binding."""
    db = Database(tmp_path)
    t = db.table()
    s = db.source("s", connector="datagen", rows_per_second="unlimited", number_of_rows="50")
    v = db.view("v", t, s)
    w = db.view("w", v)
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    before, read = db.c.current_epoch(), db.read(v, w)
    remaps = db.catalog.state.all_remaps(s)
    runner = db.runner_of(v)
    db.hold(v)
    db.insert(t, 2)
    db.until_held(v)
    db.c.stop(0.01)
    assert runner.cancelled
    db.catalog.close()
    db = Database(tmp_path, ManualClock(1_700_000_000_000))
    try:
        assert db.c.current_epoch() >= before, "although the clock has gone back"
        assert db.insert(t, 3) > before
        db.c.flush(WAIT_S)
        assert db.catalog.state.all_remaps(s)[: len(remaps)] == remaps
        assert all(not p.first for p in db.runner_of(v).calls)
        expected = sorted([*read[0], 2, 3])
        assert db.read(v, w) == [expected, expected] and len(expected) == 53
    finally:
        db.close()


def test_another_plan_quarantines_its_view_only(tmp_path: Path) -> None:
    """A view that would be planned otherwise stays readable and is not run; with its old plan it goes on."""
    db = Database(tmp_path)
    t = db.table()
    v = db.view("v", t)
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    db.close()
    db = Database(tmp_path, prefix="changed:")
    w = db.view("w", t)
    db.insert(t, 2)
    db.c.flush(WAIT_S)
    assert db.status(v).status == "quarantined" and db.events("job_quarantined")
    assert db.read(v) == [[1]] and db.read(w) == [[1, 2]]
    db.c.drop([w])
    db.close()
    db = Database(tmp_path)
    db.c.flush(WAIT_S)
    assert db.status(v).status == "running"
    assert db.read(v) == [[1, 2]]
    db.close()


@pytest.mark.parametrize("point", ["commit.acked", "commit.before", "commit.after", "catalog.commit.before",
                                   "catalog.commit.after", "commit.notified", "barrier.bind.after"])  # fmt: skip
def test_a_fault_at_each_step_loses_and_doubles_nothing(tmp_path: Path, point: str) -> None:
    """PC-5, CK-11, CK-13: whatever step fails, the epoch is there once, now or after the retry."""
    db = Database(tmp_path, group_retry_initial_ms=1)
    try:
        t = db.table()
        s = db.source("s", connector="datagen", rows_per_second="unlimited", max_rows_per_epoch="5")
        v = db.view("v", t, s)
        db.insert(t, -1)
        arm(point, "fail", nth=1)
        for _ in range(4):
            try:
                db.c.tick()
            except Exception:
                continue
        disarm_all()
        db.until(lambda: db.status(v).frontier >= db.c.current_epoch())
        db.c.flush(WAIT_S)
        remap = db.catalog.state.newest_remap(s)
        assert remap is not None
        assert len(db.read(v)[0]) == 1 + remap.offsets["0"]
    finally:
        db.close()


def test_a_failing_source_is_not_bound_and_stops_nobody_else(tmp_path: Path) -> None:
    """XC-4: its readers keep what they have; a view created over it fails with its error."""
    db = Database(tmp_path, group_retry_initial_ms=1)
    try:
        t = db.table()
        v = db.view("v", t)
        s = db.source("s", connector="files", path=str(tmp_path / "missing" / "x.csv"), format="csv")
        made = db.view("broken", s, wait=False)
        db.insert(t, 1)
        db.c.flush(WAIT_S)
        assert db.read(v) == [[1]]
        if s in db.c.source_errors():
            with pytest.raises(JobFailed, match='"broken"'):
                db.c.wait_created(made, WAIT_S)
        db.c.drop([made, s])
        assert made not in {j.id for j in db.c.jobs()}
    finally:
        db.close()


def test_concurrent_writers_lose_nothing(db: Database) -> None:
    """PC-2: every write is visible when it returns; a key that many write holds one row."""
    t, k = db.table(), db.table("k", key=True)
    v = db.view("v", t, k)

    def work(base: int) -> None:
        for i in range(10):
            epoch = db.insert(t, base + i)
            assert db.c.current_epoch() >= epoch
            db.insert(k, i)

    threads = [threading.Thread(target=work, args=(b * 100,)) for b in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    db.c.flush(WAIT_S)
    everything = sorted(b * 100 + i for b in range(4) for i in range(10))
    assert db.read(t, k, v) == [everything, list(range(10)), sorted([*everything, *range(10)])]


def test_ddl_is_refused_where_it_would_break_something(db: Database) -> None:
    """PC-27, CK-24: names, dependents, dropped relations."""
    t = db.table()
    v = db.view("v", t)
    with pytest.raises(DuplicateTable):
        db.table()
    with pytest.raises(DependentObjectsExist, match="depend"):
        db.c.drop([t])
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    db.c.drop([t, v])
    assert not db.catalog.state.objects and not db.catalog.state.runs and db.planner.defined == {}
    for action in (lambda: db.insert(t, 1), lambda: db.read(v)):
        with pytest.raises(UndefinedTable):
            action()


def test_a_view_being_created_says_so(db: Database) -> None:
    """PC-22, PC-35: it can be neither read nor does it age or delay anything else."""
    t = db.table()
    plan = FakePlan(f"{t}", (t,))
    db.insert(t, 1)
    original, gate = FakeRunner.run, threading.Event()

    def held(self: FakeRunner, params: EpochParams, parallelism: int) -> EpochResult:
        assert gate.wait(WAIT_S)
        return original(self, params, parallelism)

    FakeRunner.run = held  # type: ignore[method-assign]
    try:
        v = db.view("v", *plan.upstreams, wait=False)
        with pytest.raises(SnapshotUnavailable, match="still being created"):
            db.read(v)
        db.insert(t, 2)
        db.c.flush(WAIT_S)
        assert db.read(t) == [[1, 2]]
    finally:
        FakeRunner.run = original  # type: ignore[method-assign]
        gate.set()
    db.c.wait_created(v, WAIT_S)
    db.c.flush(WAIT_S)
    assert db.read(v) == [[1, 2]]


def test_a_second_server_stops_the_first(tmp_path: Path) -> None:
    """PC-6, FS-8, CM-30: the deposed one writes nothing any more and says why it has stopped."""
    db = Database(tmp_path)
    t = db.table()
    db.insert(t, 1)
    second = Catalog.open(db.settings.catalog_location, full_sync=False)
    with pytest.raises(Fenced):
        db.insert(t, 2)
    assert db.c.failed.wait(WAIT_S) and isinstance(db.c.failure, Fenced)
    with pytest.raises(Fenced):
        db.c.snapshot([t])
    db.close()
    second.close()
    db = Database(tmp_path)
    assert db.read(t) == [[1]]
    db.close()


def test_a_fenced_server_cancels_what_runs_at_once(tmp_path: Path) -> None:
    """PC-6: it does not wait for the epoch that is under way, which could not commit."""
    db = Database(tmp_path)
    t = db.table()
    v = db.view("v", t)
    runner = db.runner_of(v)
    runner.gate.clear()
    runner.entered.clear()
    db.insert(t, 1)
    assert runner.entered.wait(WAIT_S)
    second = Catalog.open(db.settings.catalog_location, full_sync=False)
    with pytest.raises(Fenced) as fenced:
        db.insert(t, 2)
    assert "It was taken over by headrace" in (fenced.value.detail or "")
    eventually(lambda: runner.cancelled, "the running epoch to be cancelled")
    assert db.c.failed.is_set()
    db.close()
    second.close()


def test_a_fenced_server_deletes_nothing(tmp_path: Path) -> None:
    """CM-2: not even what it has found unreferenced while the database was its own."""
    db = Database(tmp_path, vacuum_grace_ms=0)
    t = db.table()
    db.insert(t, 1)
    orphan = Path(db.core.storage.root) / "99" / "orphan.run"
    orphan.parent.mkdir()
    orphan.write_bytes(b"x")
    assert db.c.vacuum() == 0
    arm("vacuum.delete.before", "hang")
    outcome: list[object] = []

    def vacuum() -> None:
        try:
            outcome.append(db.c.vacuum())
        except Fenced as error:
            outcome.append(error)

    thread = threading.Thread(target=vacuum)
    thread.start()
    eventually(lambda: passages("vacuum.delete.before"), "vacuum to be about to delete")
    second = Catalog.open(db.settings.catalog_location, full_sync=False)
    disarm_all()
    thread.join(WAIT_S)
    assert isinstance(outcome[0], Fenced) and orphan.exists()
    db.close()
    second.close()


def test_a_cadence_of_its_own(tmp_path: Path) -> None:
    """CK-20: a group with an interval takes in several writes at once; FLUSH does not wait for it."""
    clock = ManualClock()
    db = Database(tmp_path, clock)
    try:
        t = db.table()
        v = db.view("v", t)
        db.c.alter_job(v, options={"checkpoint_interval_ms": "60000"})
        db.insert(t, 1)
        db.until(lambda: db.status(v).epochs == 2)
        for i in range(2, 6):
            db.insert(t, i)
        assert db.status(v).epochs == 2
        db.c.flush(WAIT_S)
        assert db.status(v).epochs == 3 and db.read(v) == [[1, 2, 3, 4, 5]]
    finally:
        db.close()


def test_every_so_many_checkpoints(tmp_path: Path) -> None:
    """The same, told in checkpoints: of the setting's interval, or of ticks."""
    base = {"commit_checkpoint_interval": "60"}
    for interval_ms, wanted in ((0, 60_000), (2000, 120_000)):
        settings = Settings(data_dir=tmp_path, barrier_interval_ms=1000, checkpoint_interval_ms=interval_ms)
        assert cadence(settings, [base]) == Cadence(wanted, wanted)
        assert cadence(settings, [base, {}]).checkpoint_ms == interval_ms, "the smallest one of a group"


def test_everything_at_once(tmp_path: Path) -> None:
    """PC-7, PC-16, PC-36, CK-16, XC-5: writes, ticks, compaction and vacuum under reads of consistent snapshots."""
    db = Database(
        tmp_path, barrier_interval_ms=10, compaction_interval_ms=10, compaction_trigger_runs=2, retention_ms=0,
        vacuum_interval_ms=100, vacuum_grace_ms=0,
    )  # fmt: skip
    try:
        t, u = db.table("t"), db.table("u")
        v = db.view("v", t, u)
        w = db.view("w", v, t)

        def work(table: int, base: int) -> None:
            for i in range(25):
                db.c.write(table, TableChange(rows(base + i, -base - i), rows(base + i - 3, 3 - base - i)))

        threads = [threading.Thread(target=work, args=(x, b)) for x, b in ((t, 1000), (u, 2000), (t, 3000))]
        for thread in threads:
            thread.start()
        seen = {t: 0, v: 0, w: 0}
        while any(thread.is_alive() for thread in threads):
            for ids in ((t,), (t, u, v, w), (v,), (w, v)):
                with db.c.snapshot(ids, timeout_s=WAIT_S) as snapshot:
                    found = {i: db.values(snapshot.tables[i]) for i in ids}
                    assert all(sum(f) == 0 for f in found.values())
                    assert all(snapshot.epoch >= seen.get(i, 0) for i in ids)
                    seen |= dict.fromkeys(ids, snapshot.epoch)
                    if len(ids) == 4:
                        assert found[v] == sorted(found[t] + found[u])
                        assert found[w] == sorted(found[v] + found[t])
            with db.core.live.lock:
                db.check_edges()
        db.c.flush(WAIT_S)
        found = dict(zip((t, u, v, w), db.read(t, u, v, w)))
        assert len(found[t]) == 12 and found[w] == sorted(found[t] * 2 + found[u])
        assert not db.events("job_failed") and db.c.failure is None
    finally:
        db.close()
