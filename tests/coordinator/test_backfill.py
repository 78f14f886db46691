"""Bounded work: epochs taken in by durable steps, and views created on a running system."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fake_database import FakeRunner
from fake_groups import Groups

from headrace.common.faults import arm, disarm_all
from headrace.coordinator.decide.machine import MAX_ROUNDS
from headrace.coordinator.run.capacity import PATIENCE_S, FairSlots
from headrace.coordinator.run.live_state import Job
from headrace.dataflow.epoch_result import EpochResult
from headrace.dataflow.params import EpochParams
from headrace.errors import (
    DependentObjectsExist,
    DivisionByZero,
    HeadraceError,
    JobFailed,
    QueryCanceled,
    SnapshotUnavailable,
)
from support import WAIT_S


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Groups]:
    made = Groups(tmp_path, backfill_slice_rows=10, group_retry_initial_ms=1)
    yield made
    disarm_all()
    made.close()


class Gate:
    """Lets a number of runs of the fake runner pass, and holds the next ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, passes: int) -> None:
        self.left = threading.Semaphore(passes)
        self.held = threading.Event()
        original = FakeRunner.run

        def run(runner: FakeRunner, params: EpochParams, parallelism: int) -> EpochResult:
            if not self.left.acquire(blocking=False):
                self.held.set()
                assert self.left.acquire(timeout=WAIT_S)
            return original(runner, params, parallelism)

        monkeypatch.setattr(FakeRunner, "run", run)

    def open(self) -> None:
        """Hold nothing any more."""
        for _ in range(10_000):
            self.left.release()


def ranges(runner: Any, table: int) -> list[tuple[int, int] | None]:
    """The key ranges of a table that a runner was given, one after another."""
    return [p.tables[table].keys for p in runner.calls if p.tables[table].refs]


def test_a_view_is_created_in_slices(db: Groups) -> None:
    """PC-21, PC-30, PC-33: the slices follow each other, all at one epoch; the view equals its query afterwards."""
    t, idle = db.table("t"), db.table("idle")
    db.insert(t, *range(100))
    v = db.view("v", t, idle)
    runner = db.runner_of(v)
    keys = [k for k in ranges(runner, t) if k is not None]
    assert len(keys) >= 5 and all(a[1] == b[0] for a, b in pairwise(keys))
    assert len({p.to_epoch for p in runner.calls}) == 1, "one snapshot epoch"
    assert [p.first for p in runner.calls] == [True, *[False] * (len(runner.calls) - 1)]
    assert db.read(v) == [list(range(100))]
    assert not db.catalog.state.positions
    db.delete(t, *range(50))
    db.c.flush(WAIT_S)
    assert db.read(v) == [list(range(50, 100))]
    assert db.status(v).rows_done is None


def test_a_backfill_goes_on_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PC-20, PC-23, LS-17: at the same snapshot epoch after the stored slices, whatever is written and compacted."""
    db = Groups(tmp_path, backfill_slice_rows=10, retention_ms=0, compaction_trigger_runs=2)
    t, u = db.table("t"), db.table("u")
    db.insert(t, *range(100))
    db.insert(u, *range(1000, 1050))
    gate = Gate(monkeypatch, 8)
    v = db.view("v", t, u, wait=False)
    assert gate.held.wait(WAIT_S)
    snapshot = {p.epoch for p in db.catalog.state.positions_of(v)}
    done = {p.upstream_id: p for p in db.catalog.state.positions_of(v)}
    assert len(snapshot) == 1 and sum(p.sequence for p in done.values()) == 8
    with pytest.raises(SnapshotUnavailable, match="still being created"):
        db.read(v)
    for n in range(5):
        db.delete(t, n)
        db.insert(u, n)
    db.c.compact()
    db.c.compact()
    assert db.core.live.graph.relations[t].safe <= min(snapshot), "the log is kept for it"
    db.catalog.close()
    monkeypatch.undo()
    gate.open()
    db.c.abort(RuntimeError("killed"))

    db = Groups(tmp_path, backfill_slice_rows=10, retention_ms=0, compaction_trigger_runs=2)
    try:
        db.c.compact()
        db.c.wait_created(v, WAIT_S)
        runner = db.runner_of(v)
        assert {p.to_epoch for p in runner.calls if p.snapshot} == snapshot
        assert not any(p.first for p in runner.calls)
        first = next(p for p in runner.calls)
        where = next(i for i in (t, u) if first.tables[i].refs)
        assert first.tables[where].keys is not None and first.tables[where].keys[0] >= done[where].next_key
        db.c.flush(WAIT_S)
        expected = sorted([*range(5, 100), *range(1000, 1050), *range(5)])
        assert db.read(v) == [expected]
    finally:
        db.close()


def test_a_large_epoch_is_taken_in_by_steps_that_nobody_sees(db: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """PC-40, I14, LS-5, LS-21: the parts are durable and invisible; the whole epoch appears at once."""
    t, small = db.table("t"), db.table("small")
    v = db.view("v", t)
    below, other = db.view("below", v), db.view("other", small)
    db.c.alter_job(v, options={"max_rows_per_epoch": "10"})
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    before = db.read(v)
    runner = db.runner_of(v)
    runner.entered.clear()
    steps = len(runner.calls)
    gate = Gate(monkeypatch, 3)
    db.insert(t, *range(100, 200))
    assert gate.held.wait(WAIT_S)
    gate.left.release()
    db.insert(small, 7)
    loose = [r.ref for r in db.catalog.state.runs_of(db.core.live.graph.jobs[v].tables["view/rows"])]
    at = db.catalog.state.jobs[v].committed_epoch
    assert any(ref.epoch_lo > at for ref in loose), "parts are in the catalog"
    assert db.read(v) == before == db.read(below)
    assert db.core.live.graph.frontier(v) < max(ref.epoch_hi for ref in loose)
    gate.open()
    db.c.flush(WAIT_S)
    assert len(runner.calls) - steps >= 5
    assert all(p.tables[t].keys is not None for p in runner.calls[steps:])
    assert db.read(v, below, other) == [[1, *range(100, 200)]] * 2 + [[7]]
    assert not db.catalog.state.positions


def test_small_epochs_are_one_step(db: Groups) -> None:
    """An epoch within the limit is one step and one transaction: bounded work costs it nothing."""
    t, u = db.table("t"), db.table("u")
    v = db.view("v", t, u)
    db.c.flush(WAIT_S)
    before, calls = len(db.seen), len(db.runner_of(v).calls)
    db.insert(t, 1, 2, 3)
    db.until(lambda: db.core.live.graph.job_frontier(db.core.live.graph.jobs[v]) >= db.c.current_epoch())
    assert len(db.runner_of(v).calls) == calls + 1
    own = db.core.live.graph.jobs[v].tables.values()
    assert sum(any(r.COLLECTION == "run" and r.ref.table_id in own for r in c.puts) for c in db.seen[before:]) == 1


@pytest.mark.parametrize("point", ["backfill.slice.before", "backfill.slice.after", "backfill.done.before",
                                   "catalog.commit.before", "catalog.commit.after", "commit.after"])  # fmt: skip
def test_a_fault_at_each_step_of_a_backfill(db: Groups, point: str) -> None:
    """PC-23, LS-16: no row twice or missing, whatever step fails."""
    t = db.table()
    db.insert(t, *range(60))
    for nth in (1, 3):
        arm(point, "fail", nth=nth)
        try:
            v = db.view(f"v{nth}", t, wait=False)
        except Exception:
            disarm_all()
            v = db.view(f"again{nth}", t, wait=False)
        db.until(lambda v=v: db.core.live.graph.jobs[v].created)
        disarm_all()
        db.c.flush(WAIT_S)
        assert db.read(v) == [list(range(60))]


def test_a_source_is_read_by_tasks(db: Groups) -> None:
    """PC-23: a source's range is cut into the same read tasks each time, and taken a prefix at a time."""
    s = db.source("s", connector="datagen", rows_per_second="unlimited", number_of_rows="95", max_rows_per_epoch="95")
    v = db.view("v", s)
    runner = db.runner_of(v)
    assert len([p for p in runner.calls if p.sources]) >= 8
    assert len(db.read(v)[0]) == 95
    assert len({len(p.sources[s].tasks) for p in runner.calls if p.sources}) <= 2


def test_a_step_that_fails_for_what_never_was_is_taken_back(db: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """An expression error in a step rewinds: the parts go in one transaction, and the epoch is taken whole.

    Compaction has merged the parts by then, but never with what was there before.
    """
    t = db.table()
    v = db.view("v", t)
    db.insert(t, 1000)
    db.c.flush(WAIT_S)
    db.c.configure(db.settings.replaced(compaction_trigger_runs=2))
    db.c.alter_job(v, options={"max_rows_per_epoch": "10"})
    db.c.flush(WAIT_S)
    original, steps, merged = FakeRunner.run, [], []

    def picky(runner: FakeRunner, params: EpochParams, parallelism: int) -> EpochResult:
        keys = params.tables[t].keys
        steps.append(keys)
        if keys is not None and len(steps) == 3:
            merged.append(db.c.compact())
            raise DivisionByZero("a state that never was")
        return original(runner, params, parallelism)

    monkeypatch.setattr(FakeRunner, "run", picky)
    db.insert(t, *range(80))
    db.c.flush(WAIT_S)
    assert steps[-1] is None and len(steps) == 4 and merged[0] >= 2
    assert db.read(v) == [[*range(80), 1000]]
    assert not db.events("job_failed") and not db.catalog.state.positions
    runs = [r.ref.path for r in db.catalog.state.runs_of(db.core.live.graph.jobs[v].tables["view/rows"])]
    assert len(runs) == 2, "the parts are gone"


def test_dropped_and_cancelled_while_being_created(db: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """PC-27: positions, runs, pins and metadata are gone at once, in each state of a creation."""
    t = db.table()
    db.insert(t, *range(100))
    for passes in (0, 3):
        gate = Gate(monkeypatch, passes)
        v = db.view(f"v{passes}", t, wait=False)
        assert gate.held.wait(WAIT_S)
        dropping = threading.Thread(target=db.c.drop, args=([v],))
        dropping.start()
        db.until(lambda v=v: db.core.live.graph.jobs[v].activity.withdrawn if v in db.core.live.graph.jobs else True)
        gate.open()
        dropping.join()
        monkeypatch.undo()
        state = db.catalog.state
        assert not state.positions and v not in state.jobs
        assert {r.ref.table_id for r in state.runs.values()} == {db.core.live.graph.relations[t].state_table}
        assert db.core.storage.pins.epochs(t) == [] and db.core.live.graph.log_readers(t) == []
    paused = db.view("paused", t, wait=False)
    db.c.alter_job(paused, paused=True)
    db.c.drop([paused])
    assert db.core.storage.pins.prefixes() == ()


def test_an_input_that_is_still_being_created(db: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """PC-31: a view over it waits and says for what; then both are there."""
    t = db.table()
    db.insert(t, *range(100))
    gate = Gate(monkeypatch, 2)
    below = db.view("below", t, wait=False)
    assert gate.held.wait(WAIT_S)
    above = db.view("above", below, wait=False)
    db.until(lambda: "below" in db.status(above).waiting_for)
    assert db.status(above).status == "creating" and not db.runner_of(above).calls
    with pytest.raises(QueryCanceled, match="still being created"):
        db.c.wait_created(above, 0)
    gate.open()
    db.c.wait_created(above, WAIT_S)
    assert db.read(below, above) == [list(range(100))] * 2


def _flushed(db: Groups) -> bool:
    try:
        db.c.flush(WAIT_S)
    except JobFailed:
        return False
    return True


def test_an_input_that_fails_while_a_view_over_it_is_created(db: Groups) -> None:
    """PC-31: the view is made of what the input has; it follows once that has recovered."""
    t = db.table()
    below = db.view("below", t)
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    db.runner_of(below).error = DivisionByZero("division by zero")
    db.insert(t, 2)
    db.until(lambda: db.status(below).status == "failing")
    above = db.view("above", below, wait=False)
    db.c.wait_created(above, WAIT_S)
    assert db.read(above) == [[1]]
    db.runner_of(below).error = None
    db.until(lambda: _flushed(db))  # an attempt that has failed already may still be told
    assert db.read(above) == [[1, 2]]


def test_an_input_that_is_dropped_while_a_view_over_it_is_created(db: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """PC-31: by itself it is not dropped; with the view it is, and whoever waits for that is told."""
    t = db.table()
    below = db.view("below", t)
    db.insert(t, *range(100))
    db.c.flush(WAIT_S)
    gate = Gate(monkeypatch, 2)
    above = db.view("above", below, wait=False)
    assert gate.held.wait(WAIT_S)
    told: list[BaseException] = []

    def wait() -> None:
        try:
            db.c.wait_created(above, WAIT_S)
        except HeadraceError as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    with pytest.raises(DependentObjectsExist, match="below"):
        db.c.drop([below])
    assert db.status(above).status == "creating"
    dropping = threading.Thread(target=db.c.drop, args=([below, above],))
    dropping.start()
    db.until(lambda: db.core.live.graph.jobs[above].activity.withdrawn if above in db.core.live.graph.jobs else True)
    gate.open()
    dropping.join(WAIT_S)
    waiting.join(WAIT_S)
    assert not dropping.is_alive() and not waiting.is_alive() and len(told) == 1
    assert set(db.catalog.state.objects) == {t} and db.core.storage.pins.prefixes() == ()


def test_progress_is_told(db: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """PC-28, PC-33: rows done of rows expected, the rate and what is left, for people only."""
    t = db.table()
    db.insert(t, *range(100))
    gate = Gate(monkeypatch, 4)
    v = db.view("v", t, wait=False)
    assert gate.held.wait(WAIT_S)
    status = db.status(v)
    assert status.status == "creating" and 20 <= status.rows_done < status.rows_expected <= 110
    assert status.rows_per_second > 0 and status.remaining_ms > 0
    assert f"{status.rows_done} of {status.rows_expected} rows" in status.progress
    assert not {p.epoch for p in db.catalog.state.positions.values()} & {status.rows_done, status.rows_expected}
    gate.open()
    db.c.wait_created(v, WAIT_S)
    assert db.status(v).rows_done is None


def test_a_creation_slows_nobody(db: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """PC-22, PC-35: while a creation stands still others commit, and reads of them are as fresh as ever."""
    t = db.table()
    other = db.view("other", t)
    db.insert(t, *range(100))
    db.c.flush(WAIT_S)
    gate = Gate(monkeypatch, 2)
    v = db.view("v", t, wait=False)
    assert gate.held.wait(WAIT_S)
    monkeypatch.undo()
    for n in range(3):
        db.insert(t, 1000 + n)
        db.c.flush(WAIT_S)
        assert db.read(other, t) == [[*range(100), *range(1000, 1001 + n)]] * 2
    gate.open()
    db.c.wait_created(v, WAIT_S)
    db.c.flush(WAIT_S)
    assert db.read(v) == db.read(other)


def test_a_step_gives_its_slot_back() -> None:
    """PC-22: a backfill of many steps takes turns with others for a slot: who waits longest goes first."""
    slots, order = FairSlots(1), []
    ready, done = threading.Barrier(2), threading.Event()

    def backfill() -> None:
        for n in range(3):
            with slots.slot(lambda: False):
                if n == 0:
                    ready.wait(WAIT_S)
                    assert done.wait(WAIT_S)
                order.append(f"step {n}")

    def other() -> None:
        ready.wait(WAIT_S)
        waiting.set()
        with slots.slot(lambda: False):
            order.append("other")

    waiting = threading.Event()
    threads = [threading.Thread(target=f) for f in (backfill, other)]
    for thread in threads:
        thread.start()
    assert waiting.wait(WAIT_S)
    while len(slots._queue) == 0:
        threading.Event().wait(0.001)
    done.set()
    for thread in threads:
        thread.join()
    assert order.index("other") == 1


def test_who_holds_a_slot_for_long_does_not_count() -> None:
    """PC-48: sleepers hold up others for a second, and only so many of them are looked past."""
    now_s = 0.0
    slots = FairSlots(2, spare=2, monotonic_s=lambda: now_s)
    with ExitStack() as sleepers:
        for _ in range(2):
            assert slots._free_in_s() == 0
            assert sleepers.enter_context(slots.slot(lambda: False))
        assert slots._free_in_s() == PATIENCE_S
        now_s = PATIENCE_S / 2
        assert slots._free_in_s() == PATIENCE_S / 2
        now_s = PATIENCE_S
        with slots.slot(lambda: False):
            assert slots._free_in_s() == 0  # both of them are late
            with slots.slot(lambda: False):
                assert slots._free_in_s() is None
            assert slots._free_in_s() == 0
        assert sleepers.enter_context(slots.slot(lambda: False)) and sleepers.enter_context(slots.slot(lambda: False))
        now_s += PATIENCE_S
        assert slots._free_in_s() is None
    assert slots._free_in_s() == 0


def test_a_new_view_joins_a_busy_group(tmp_path: Path) -> None:
    """PC-21, PC-25, PC-26, PC-29: created beside the group in slices, it joins at an epoch at which both are equal."""
    db = Groups(tmp_path, backfill_slice_rows=10)
    try:
        t = db.table()
        db.insert(t, *range(60))
        a = db.grouped("a", "g", t)
        stop = threading.Event()

        def write() -> None:
            n = 1000
            while not stop.is_set():
                db.insert(t, n)
                db.delete(t, n - 990)
                n += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            b = db.grouped("b", "g", t, a)
        finally:
            stop.set()
            writer.join()
        moved = [{r.id: r for r in c.puts if r.COLLECTION == "job" and r.id in (a, b)} for c in db.seen]
        at = next(n for n, m in enumerate(moved) if b in m and m[b].status == "created")
        last = next(m[a] for m in reversed(moved[: at + 1]) if a in m)
        assert last.committed_epoch == moved[at][b].committed_epoch
        db.c.flush(WAIT_S)
        table, one, two = db.read(t, a, b)
        assert one == table and two == sorted(table * 2) and len(set(db.committed(a, b))) == 1
    finally:
        db.close()


def test_catching_up_without_end_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PC-28: by itself the view is created and said to lag; one that was to join a group fails with a reason."""
    import headrace.coordinator.decide.machine as machine
    import headrace.coordinator.run.accounts as accounts

    monkeypatch.setattr(machine, "caught_up", lambda graph, job, target, within_ms: False)
    monkeypatch.setattr(machine, "MAX_ROUNDS", 3)
    monkeypatch.setattr(accounts, "MAX_ROUNDS", 3)
    db = Groups(tmp_path)
    try:
        t = db.table()
        alone = db.view("alone", t, wait=False)
        db.until(lambda: db.core.live.graph.jobs[alone].committed > 0)
        while not db.core.live.graph.jobs[alone].created:
            db.insert(t, 1)
        db.c.wait_created(alone, WAIT_S)
        a = db.grouped("a", "g", t, wait=False)
        db.until(lambda: db.core.live.graph.jobs[a].committed > 0)
        while not db.core.live.graph.jobs[a].created:
            db.insert(t, 1)
        b = db.grouped("b", "g", t, wait=False)
        job: Job = db.core.live.graph.jobs[b]
        db.until(lambda: job.committed > 0)
        while job.error is None:
            db.insert(t, 1)
        with pytest.raises(JobFailed, match="falls behind its inputs"):
            db.c.wait_created(b, WAIT_S)
        assert len(db.events("job_lagging")) >= 3 and "falls behind" in db.events("job_lagging")[0]
        db.c.drop([b])
    finally:
        db.close()
    assert MAX_ROUNDS > 3


def test_several_inputs_are_read_at_one_epoch_of_views(db: Groups) -> None:
    """PC-32: views at different checkpoints are snapshotted at one epoch, where both are exact."""
    t, u = db.table("t"), db.table("u")
    a, b = db.view("a", t), db.view("b", u)
    db.c.alter_job(a, paused=True)
    db.insert(u, *range(30))
    db.until(lambda: db.core.live.graph.job_frontier(db.core.live.graph.jobs[b]) >= db.c.current_epoch())
    db.insert(t, *range(30))
    both = db.view("both", a, b, wait=False)
    db.c.alter_job(a, paused=False)
    db.c.wait_created(both, WAIT_S)
    epochs = {p.to_epoch for p in db.runner_of(both).calls if p.snapshot}
    assert len(epochs) == 1
    db.c.flush(WAIT_S)
    assert db.read(both) == [sorted([*range(30), *range(30)])]
