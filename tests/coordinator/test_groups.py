"""Checkpoint groups: several jobs with one epoch and one commit, joining, moving, failing together."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_database import Database, FakePlan, FakePlanner, FakeRunner
from fake_groups import Groups

from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import CommitTable, RaiseSafe
from headrace.common.clock import ManualClock
from headrace.common.faults import arm, disarm_all
from headrace.coordinator.decide.membership import GroupPlace, Move
from headrace.coordinator.run.lane_failures import Failures
from headrace.dataflow.epoch_result import EpochResult
from headrace.dataflow.params import EpochParams
from headrace.errors import (
    CorruptObject,
    DivisionByZero,
    InvalidParameter,
    JobFailed,
    LogLost,
    SnapshotUnavailable,
    StorageError,
)
from support import WAIT_S


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Groups]:
    made = Groups(tmp_path)
    yield made
    disarm_all()
    made.close()


def test_a_group_commits_all_its_jobs_at_once(db: Groups) -> None:
    """PC-1, PC-2, CK-1: a chain, a diamond and a union in one group: one transaction, one epoch, exact contents."""
    t, u = db.table("t"), db.table("u")
    a = db.grouped("a", "g", t)
    b = db.grouped("b", "g", t, u)
    c = db.grouped("c", "g", a, b)
    other = db.view("other", t)
    db.c.flush(WAIT_S)
    for n in range(4):
        db.insert(t, n)
        db.insert(u, 10 + n)
        db.c.flush(WAIT_S)
        assert len(set(db.committed(a, b, c))) == 1
    for moved in db.commits_of(c)[-2:]:
        assert {a, b, c} <= moved and other not in moved
    expected = sorted([0, 1, 2, 3])
    assert db.read(a, b, other) == [expected, [*expected, 10, 11, 12, 13], expected]
    assert db.read(c) == [sorted([*expected, *expected, 10, 11, 12, 13])]


def test_the_global_checkpoint_is_one_group(tmp_path: Path) -> None:
    """PC-2: with default_checkpoint_group = 'shared' every view is in one group; the code is the same."""
    db = Groups(tmp_path, default_checkpoint_group="shared")
    try:
        t = db.table()
        a = db.view("a", t)
        b = db.view("b", a, t)
        own = db.grouped("own", "own", t)
        db.insert(t, 1)
        db.c.flush(WAIT_S)
        assert [db.status(v).group for v in (a, b, own)] == ["shared", "shared", f"job-{own}"]
        assert len(set(db.committed(a, b))) == 1
        assert db.read(a, b, own) == [[1], [1, 1], [1]]
    finally:
        db.close()


def test_nobody_sees_an_uncommitted_row_of_a_group(db: Groups) -> None:
    """I4, CK-6, CK-9, LS-12: a job reads what its input in the group has just written; nobody else does."""
    t = db.table()
    a = db.grouped("a", "g", t)
    b = db.grouped("b", "g", a)
    outside = db.view("outside", a)
    db.c.flush(WAIT_S)
    runner = db.runner_of(b)
    db.hold(b)
    db.insert(t, 1)
    db.until_held(b)
    assert any(ref.epoch_hi == runner.calls[-1].to_epoch for ref in runner.calls[-1].tables[a].refs)
    assert db.read(a) == db.read(outside) == db.read(b) == [[]], "the group has not committed"
    stored = db.catalog.state.runs_of(db.core.live.graph.jobs[a].tables["view/rows"])
    assert not any(r.ref.epoch_hi >= runner.calls[-1].to_epoch for r in stored)
    runner.gate.set()
    db.c.flush(WAIT_S)
    assert db.read(a, b, outside) == [[1], [1], [1]]


def test_a_failing_job_holds_up_its_group_and_nobody_else(tmp_path: Path) -> None:
    """PC-12, PC-41, PC-42, PC-43: the group abandons its epoch, others go on, recovery is exact."""
    db = Groups(tmp_path, group_retry_initial_ms=1, group_retry_max_ms=5)
    try:
        t = db.table()
        a = db.grouped("a", "g", t)
        bad = db.grouped("bad", "g", a)
        good, below = db.view("good", t), db.view("below", a)
        db.c.flush(WAIT_S)
        runner = db.runner_of(bad)
        runner.error = DivisionByZero("division by zero")
        db.insert(t, 1)
        db.until(lambda: db.status(bad).status == "failing")
        db.until(lambda: db.status(good).frontier >= db.c.current_epoch())
        assert db.read(good) == [[1]] and db.read(a) == [[]] and db.read(below) == [[]]
        assert db.status(a).progress == 'held up by "bad" of its checkpoint group'
        assert [db.status(v).status for v in (a, bad, good, below)] == ["held", "failing", "running", "running"]
        with pytest.raises(JobFailed, match='"bad" is failing'):
            db.c.flush(WAIT_S)
        runner.error = None
        db.c.flush(WAIT_S)
        assert db.read(a, bad, good, below) == [[1]] * 4
        assert db.events("job_recovered") and db.status(a).status == "running"
    finally:
        db.close()


def test_a_job_moves_between_groups_while_it_runs(db: Groups) -> None:
    """PC-26: moved, it goes on by itself until the new group's next checkpoint takes it in at one epoch."""
    t, u = db.table("t"), db.table("u")
    a, b = db.grouped("a", "x", t), db.grouped("b", "y", u)
    moving = db.grouped("moving", "x", t, u)
    stop = threading.Event()

    def write() -> None:
        n = 0
        while not stop.is_set():
            db.insert(t, n)
            db.insert(u, 1000 + n)
            n += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for group in ("y", "x", "own", "y", "z"):
            db.c.alter_job(moving, options={"checkpoint_group": group})
            db.until(
                lambda: (
                    db.core.live.graph.jobs[moving].joined and not db.core.live.graph.jobs[moving].membership.joining
                )
            )
            assert db.status(moving).group == (f"job-{moving}" if group == "own" else group)
    finally:
        stop.set()
        writer.join()
    db.c.alter_job(moving, options={"checkpoint_group": "y"})
    db.insert(u, 0)
    db.until(lambda: db.core.live.graph.jobs[moving].joined and not db.core.live.graph.jobs[moving].membership.joining)
    db.insert(u, 1)
    db.c.flush(WAIT_S)
    assert db.committed(b) == db.committed(moving)
    assert len(db.events("job_joined")) >= 4
    left, right, both = db.read(t, u, moving)
    assert both == sorted(left + right) and db.read(a, b) == [left, right]


def test_groups_that_would_wait_for_each_other_are_refused(db: Groups) -> None:
    """A circle of groups is refused at CREATE and at ALTER, with the groups that make it."""
    t = db.table()
    a = db.grouped("a", "x", t)
    b = db.grouped("b", "own", a)
    with pytest.raises(InvalidParameter, match=r'"c" cannot be in checkpoint group "x"') as caught:
        db.grouped("c", "x", b, wait=False)
    assert f'"x" -> "job-{b}" -> "x"' in (caught.value.detail or "")
    c = db.grouped("c", "own", b)
    with pytest.raises(InvalidParameter, match="groups would wait for each other"):
        db.c.alter_job(c, options={"checkpoint_group": "x"})
    db.c.alter_job(b, options={"checkpoint_group": "x"})
    db.c.alter_job(c, options={"checkpoint_group": "x"})
    with pytest.raises(InvalidParameter, match="groups would wait for each other"):
        db.c.alter_job(b, options={"checkpoint_group": "own"})
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    assert db.read(a, b, c) == [[1]] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [({"checkpoint_group": "job-1"}, "no name"), ({"checkpoint_group": ""}, "no name"),
     ({"paralelism": "2"}, "no option"), ({"parallelism": "0"}, "whole number"),
     ({"max_rows_per_epoch": "many"}, "whole number")],
)  # fmt: skip
def test_options_are_checked(db: Groups, options: dict[str, str], message: str) -> None:
    v = db.view("v", db.table())
    with pytest.raises(InvalidParameter, match=message):
        db.c.alter_job(v, options=options)


def test_a_job_is_dropped_out_of_a_group(db: Groups) -> None:
    """PC-27: its epoch is cancelled, it is gone with all it had, the others of the group go on."""
    t = db.table()
    a, b = db.grouped("a", "g", t), db.grouped("b", "g", t)
    db.c.flush(WAIT_S)
    runner = db.runner_of(b)
    db.hold(b)
    db.insert(t, 1)
    db.until_held(b)
    db.c.drop([b])
    assert runner.cancelled
    db.c.flush(WAIT_S)
    assert db.read(a) == [[1]] and [j.id for j in db.c.jobs()] == [a]
    assert not db.events("job_failed")
    db.c.drop([a])
    later = db.grouped("later", "g", t)
    assert db.read(later) == [[1]]


def test_a_paused_job_pauses_its_group(db: Groups) -> None:
    """The jobs of a group move in step: where one is paused, none moves. Other groups do."""
    t = db.table()
    a, b, other = db.grouped("a", "g", t), db.grouped("b", "g", t), db.view("other", t)
    db.c.flush(WAIT_S)
    db.c.alter_job(a, paused=True)
    db.insert(t, 1)
    db.until(lambda: db.status(other).frontier >= db.c.current_epoch())
    db.c.flush(WAIT_S)
    assert db.read(a) == db.read(b) == [[]] and db.read(other) == [[1]]
    with pytest.raises(SnapshotUnavailable):
        db.read(b, other)
    db.c.alter_job(a, paused=False)
    db.c.flush(WAIT_S)
    assert db.read(a, b) == [[1], [1]]


def test_a_cadence_of_a_group(tmp_path: Path) -> None:
    """CK-20: the shortest interval that a job of a group asks for is the group's."""
    clock = ManualClock()
    db = Groups(tmp_path, clock)
    try:
        t = db.table()
        a, b = db.grouped("a", "g", t), db.grouped("b", "g", t)
        db.c.alter_job(a, options={"checkpoint_interval_ms": "60000"})
        db.c.alter_job(b, options={"checkpoint_interval_ms": "90000"})
        assert [g.checkpoint_interval_ms for g in db.c.groups() if g.name == "g"] == [60_000]
        db.insert(t, 1)
        db.until(lambda: db.core.live.graph.job_frontier(db.core.live.graph.jobs[b]) >= db.c.current_epoch())
        before = db.status(a).epochs
        for i in range(2, 6):
            db.insert(t, i)
        assert db.status(a).epochs == before
        clock.advance_ms(60_000)
        db.core.live.notify()
        db.until(lambda: db.status(a).epochs == before + 1)
        assert db.read(a, b) == [[1, 2, 3, 4, 5]] * 2
    finally:
        db.close()


def test_an_idle_input_is_carried_along(db: Groups) -> None:
    """PC-16, PC-15: the checkpoints of idle tables and views move with those below them, without a job or a file."""
    t, idle = db.table("t"), db.table("idle")
    v = db.view("v", idle)
    w = db.view("w", v, t)
    db.insert(idle, 7)
    db.c.flush(WAIT_S)
    calls = len(db.runner_of(v).calls)
    for i in range(3):
        db.insert(t, i)
        db.c.flush(WAIT_S)
    assert len(db.runner_of(v).calls) == calls
    committed = db.committed(idle, v, w)
    assert min(committed[:2]) >= committed[2]
    at = db.committed(w)[0]
    db.insert(idle, 8)
    db.c.flush(WAIT_S)
    assert db.read(v, w) == [[7, 8], [0, 1, 2, 7, 8]]
    assert db.read(v, w, at=at) == [[7], [0, 1, 2, 7]]
    assert len(db.core.live.graph.jobs[v].exact) <= 3, "ranges that follow each other are one"


@pytest.mark.parametrize("point", ["commit.acked", "commit.before", "commit.after", "catalog.commit.before",
                                   "catalog.commit.after", "commit.notified"])  # fmt: skip
def test_a_fault_at_each_step_of_a_group(tmp_path: Path, point: str) -> None:
    """PC-5, PC-45, CK-10, CK-11: whatever step fails, all jobs of a group have the epoch once, or none has."""
    db = Groups(tmp_path, group_retry_initial_ms=1)
    try:
        t = db.table()
        a = db.grouped("a", "g", t)
        b = db.grouped("b", "g", a, t)
        db.c.flush(WAIT_S)
        arm(point, "fail", nth=1)
        for n in range(3):
            try:
                db.insert(t, n)
            except Exception:
                continue
        disarm_all()
        db.c.flush(WAIT_S)
        table, one, two = db.read(t, a, b)
        assert one == table and two == sorted(table * 2)
        assert len(set(db.committed(a, b))) == 1
    finally:
        db.close()


def test_a_group_resumes_after_a_restart(tmp_path: Path) -> None:
    """PC-46: a group goes on from its checkpoint; who cannot be planned is left out, and catches up once it can."""
    db = Groups(tmp_path)
    t = db.table()
    a = db.grouped("a", "g", t)
    b = db.grouped("b", "g", a)
    c = db.grouped("c", "g", t)
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    db.close()
    db = Groups(tmp_path)
    db.insert(t, 2)
    db.c.flush(WAIT_S)
    assert db.read(a, b, c) == [[1, 2]] * 3 and len(set(db.committed(a, b, c))) == 1
    db.close()

    prefix = FakePlanner.plan

    def other_plan(self: FakePlanner, sql: str, **options: bool) -> FakePlan:
        made = prefix(self, sql)
        return replace(made, name="other") if made.upstreams == (t,) and self.defined.get(c) is None else made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakePlanner, "plan", other_plan)
        patch.setattr(FakePlanner, "define", lambda self, relation, columns, name: None)
        db = Groups(tmp_path)
        assert [db.status(v).status for v in (a, b, c)] == ["quarantined", "running", "quarantined"]
        db.insert(t, 3)
        db.c.flush(WAIT_S)
        assert db.read(b) == [[1, 2]], "its input stands still"
        db.close()
    db = Groups(tmp_path)
    db.c.flush(WAIT_S)
    db.until(
        lambda: all(
            db.core.live.graph.jobs[v].joined and not db.core.live.graph.jobs[v].membership.joining for v in (a, b, c)
        )
    )
    db.insert(t, 4)
    db.c.flush(WAIT_S)
    assert db.read(a, b, c) == [[1, 2, 3, 4]] * 3 and len(set(db.committed(a, b, c))) == 1
    db.close()


def test_state_tables_at_different_epochs_are_corruption(tmp_path: Path) -> None:
    """PC-47: a job whose tables, or itself and they, differ in epoch is quarantined with the reason; no other."""
    db = Groups(tmp_path)
    t = db.table()
    broken, good = db.view("broken", t), db.view("good", t)
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    db.close()
    catalog = Catalog.open(db.settings.catalog_location, full_sync=False)
    table = catalog.state.tables_of(broken)[0]
    catalog.transact([CommitTable(table.id, table.committed_epoch + 7)])
    catalog.close()
    for n in (2, 3):  # it does not heal by a restart either
        opened = Database(tmp_path)
        try:
            assert [opened.status(v).status for v in (broken, good)] == ["quarantined", "running"]
            error = opened.status(broken).error
            assert isinstance(error, CorruptObject) and str(table.committed_epoch + 7) in error.message
            assert any('"broken"' in m for m in opened.events("job_quarantined"))
            opened.insert(t, n)
            opened.until(lambda n=n, opened=opened: n in opened.read(good)[0])
            assert opened.runner_of(broken) is None
        finally:
            opened.close()


def test_runs_of_another_attempt_are_refused(db: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """PC-6, PC-13, LS-11: what an attempt acknowledges must be its own: its folder, its epoch, its tables."""
    t = db.table()
    v = db.view("v", t)
    original, foreign = FakeRunner.run, iter(("path", "epoch_lo", "table_id"))

    def mixed(runner: FakeRunner, params: EpochParams, parallelism: int) -> EpochResult:
        result = original(runner, params, parallelism)
        field = next(foreign, None)
        if field is not None:
            ref = result.runs[0]
            other = {"path": "99/late.run", "epoch_lo": ref.epoch_lo - 1, "table_id": 999}[field]
            result.runs[0] = replace(ref, **{field: other})
        return result

    monkeypatch.setattr(FakeRunner, "run", mixed)
    db.c.configure(db.settings.replaced(group_retry_initial_ms=1))
    db.insert(t, 1)
    db.until(lambda: db.core.live.graph.jobs[v].trouble.failed_total == 3 and db.core.live.graph.jobs[v].error is None)
    assert db.read(v) == [[1]]
    assert "which is not of its epoch" in db.events("job_failed")[0]


def test_storage_that_fails_for_a_while(tmp_path: Path) -> None:
    """PC-44, PC-48, CK-18: commits are retried with back-off until they succeed; FLUSH says what is missing."""
    db = Groups(tmp_path, group_retry_initial_ms=1, group_retry_max_ms=2)
    try:
        t = db.table()
        a, b = db.grouped("a", "g", t), db.view("b", t)
        db.c.flush(WAIT_S)
        db.insert(t, 1)
        db.c.flush(WAIT_S)
        arm("commit.before", "fail")
        db.insert(t, 2)
        db.until(lambda: min(db.core.live.graph.jobs[v].failures for v in (a, b)) >= 3)
        with pytest.raises(JobFailed):
            db.c.flush(WAIT_S)
        assert db.read(a, b) == [[1], [1]]
        disarm_all()
        db.c.flush(WAIT_S)
        assert db.read(a, b) == [[1, 2], [1, 2]]
    finally:
        db.close()


def test_an_attempt_that_does_not_end_is_cancelled(tmp_path: Path) -> None:
    """CK-14: after the time-out the epoch is abandoned and run again."""
    clock = ManualClock()
    db = Groups(tmp_path, clock, epoch_timeout_ms=60_000, barrier_interval_ms=1000, group_retry_initial_ms=1)
    try:
        t = db.table()
        v = db.view("v", t)
        runner = db.runner_of(v)
        db.hold(v)
        db.insert(t, 1)
        db.until_held(v)
        clock.advance_ms(61_000)
        db.core.live.notify()
        db.until(lambda: bool(runner.cancelled) and db.core.live.graph.jobs[v].failures > 0)
        runner.error = None
        db.c.flush(WAIT_S)
        assert db.read(v) == [[1]]
    finally:
        db.close()


def test_a_slow_group_piles_up_no_barriers(db: Groups) -> None:
    """CK-23, PC-14, LS-3: while an epoch is under way frontiers of others go on; the next epoch takes in all of it."""
    t, idle = db.table("t"), db.table("idle")
    v, w = db.view("v", t), db.view("w", idle)
    runner = db.runner_of(v)
    db.hold(v)
    db.insert(t, 0)
    db.until_held(v)
    calls = len(runner.calls)
    for n in range(1, 20):
        db.insert(t, n)
        epoch = db.c.tick()
        assert db.status(w).frontier >= epoch
    runner.gate.set()
    db.c.flush(WAIT_S)
    assert len(runner.calls) == calls + 1 and db.read(v) == [list(range(20))]


def test_a_source_that_has_ended(db: Groups) -> None:
    """CK-4: it takes no more part: the other inputs of its views go on, and nothing waits for it."""
    t = db.table()
    s = db.source("s", connector="datagen", rows_per_second="unlimited", number_of_rows="10")
    v = db.grouped("v", "g", t, s)
    for n in range(3):
        db.insert(t, 1000 + n)
        db.c.flush(WAIT_S)
    assert len(db.read(v)[0]) == 13


def test_all_inputs_have_ended(tmp_path: Path) -> None:
    """CK-4: the last checkpoint holds all their rows; afterwards nothing runs, and a restart reads nothing again."""
    db = Groups(tmp_path)
    ends = {"connector": "datagen", "rows_per_second": "unlimited"}
    a = db.source("a", number_of_rows="10", **ends)
    b = db.source("b", number_of_rows="25", **ends)
    v = db.grouped("v", "g", a, b)
    w = db.grouped("w", "g", v)
    db.c.flush(WAIT_S)
    runners = [db.runner_of(i) for i in (v, w)]
    ran = [len(r.calls) for r in runners]
    last = db.committed(v, w)
    for _ in range(3):
        epoch = db.c.tick()
        db.until(
            lambda epoch=epoch: all(
                db.core.live.graph.job_frontier(db.core.live.graph.jobs[i]) >= epoch for i in (v, w)
            )
        )
    db.c.flush(WAIT_S)
    assert [len(r.calls) for r in runners] == ran, "the sources have ended: there is nothing to run for"
    before = db.read(v, w)
    assert [len(rows) for rows in before] == [35, 35]
    db.close()
    db = Groups(tmp_path)
    try:
        assert db.read(v, w) == before and all(now >= then for now, then in zip(db.committed(v, w), last))
        epoch = db.c.tick()
        db.until(lambda: all(db.core.live.graph.job_frontier(db.core.live.graph.jobs[i]) >= epoch for i in (v, w)))
        assert not any(db.runner_of(i).calls for i in (v, w))
    finally:
        db.close()


def test_an_interval_is_changed_while_it_runs(tmp_path: Path) -> None:
    """CK-23: the next checkpoint comes by the new interval, whether that is longer or shorter; nothing is restarted."""
    clock = ManualClock()
    db = Groups(tmp_path, clock)
    try:
        t = db.table()
        v, swift = db.view("v", t), db.view("swift", t)
        runner, version = db.runner_of(v), db.core.live.graph.jobs[v].version
        job = db.core.live.graph.jobs[v]
        for n, interval_ms in enumerate((60_000, 5_000, 90_000)):
            db.c.alter_job(v, options={"checkpoint_interval_ms": str(interval_ms)})
            db.insert(t, 2 * n)
            db.until(lambda: len(db.read(v)[0]) == 2 * n + 1 and not job.activity.epochs)  # noqa: B023
            left_ms = (job.pace.not_before_s - clock.monotonic_s()) * 1000
            assert 0.5 * interval_ms <= left_ms <= interval_ms
            before = db.status(v).epochs
            db.insert(t, 2 * n + 1)
            db.until(lambda: len(db.read(swift)[0]) == 2 * n + 2)  # noqa: B023
            assert db.status(v).epochs == before and len(db.read(v)[0]) == 2 * n + 1
            clock.advance_ms(interval_ms)
            db.core.live.notify()
            db.until(lambda: len(db.read(v)[0]) == 2 * n + 2)  # noqa: B023
            assert db.status(v).epochs == before + 1
        assert db.runner_of(v) is runner and db.core.live.graph.jobs[v].version == version
    finally:
        db.close()


def test_many_flushes_share_checkpoints(db: Groups) -> None:
    """CK-18, CK-19, PC-38: each returns when its own writes are in; there are no more checkpoints than flushes."""
    t = db.table()
    v = db.grouped("v", "g", t)
    db.c.flush(WAIT_S)
    before, missing = len(db.runner_of(v).calls), []

    def work(n: int) -> None:
        db.insert(t, n)
        epoch = db.c.flush(WAIT_S)
        if n not in db.read(v)[0] or db.status(v).frontier < epoch:
            missing.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not missing and len(db.runner_of(v).calls) - before <= 8
    db.c.flush(WAIT_S)
    assert len(db.runner_of(v).calls) - before <= 8, "nothing to do"


def test_parallelism_changes_within_an_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LS-22: positions are keys, which no parallelism moves."""
    db = Groups(tmp_path, backfill_slice_rows=10)
    try:
        t = db.table()
        db.insert(t, *range(100))
        original, count = FakeRunner.run, iter(range(1000))

        def run(runner: FakeRunner, params: EpochParams, parallelism: int) -> EpochResult:
            if next(count) == 3:
                db.c.alter_job(min(db.core.live.graph.jobs), options={"parallelism": "3"})
            return original(runner, params, parallelism)

        monkeypatch.setattr(FakeRunner, "run", run)
        v = db.view("v", t)
        assert db.read(v) == [list(range(100))]
    finally:
        db.close()


def test_an_input_that_ran_without_a_change(db: Groups) -> None:
    """CK-17, CK-18: a view over a view whose epoch came to nothing is as fresh as that one."""
    t = db.table()
    v = db.view("v", t)
    w = db.view("w", v)
    db.c.flush(WAIT_S)
    db.c.alter_job(v, paused=True)
    db.insert(t, 7)
    db.delete(t, 7)
    db.c.alter_job(v, paused=False)
    epoch = db.c.flush(WAIT_S)
    assert db.status(w).frontier >= epoch and db.read(v, w) == [[], []]


def test_a_reader_whose_log_is_gone(db: Groups) -> None:
    """PC-19: it is quarantined at once, with the epochs and what to do; it is not tried again, its group goes on."""
    t = db.table()
    a, b = db.grouped("a", "g", t), db.grouped("b", "g", t)
    below = db.view("below", a)
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    db.c.alter_job(a, options={"checkpoint_group": "own"})
    db.c.alter_job(a, paused=True)
    db.insert(t, 2)
    db.c.flush(WAIT_S)
    table = db.core.live.graph.relations[t].state_table
    db.catalog.transact([RaiseSafe(table, db.catalog.state.state_tables[table].committed_epoch)])
    calls = len(db.runner_of(a).calls)
    db.c.alter_job(a, paused=False)
    db.until(lambda: db.core.live.graph.jobs[a].error is not None)
    status = db.status(a)
    assert status.status == "quarantined" and status.error.sqlstate == "HR021"
    assert "are kept from" in status.error.detail and "create it again" in status.error.hint
    db.insert(t, 3)
    db.c.flush(WAIT_S)
    assert len(db.runner_of(a).calls) == calls and db.status(a).error is not None
    assert db.read(b) == [[1, 2, 3]] and db.read(a) == db.read(below) == [[1]]
    assert len(db.events("job_quarantined")) == 1


def test_a_quarantine_that_fails_leaves_who_has_joined_meanwhile(db: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is taken back is what it has changed itself: the lane of the other one has ended, it cannot be apart."""
    t = db.table()
    v, w, _ = (db.grouped(name, "g", t) for name in ("v", "w", "stays"))
    db.until(lambda: all(j.joined and not j.membership.joining for j in db.core.live.graph.jobs.values()))
    lost, other = db.core.live.graph.jobs[v], db.core.live.graph.jobs[w]
    with db.core.live.lock:
        other.membership = replace(other.membership, place=GroupPlace.APART)

    def transact(edits: Any) -> None:
        with db.core.live.lock:
            other.move(Move.ADMITTED)
        raise StorageError("the disk is full of holes")

    with monkeypatch.context() as broken:
        broken.setattr(db.catalog, "transact", transact)
        with pytest.raises(StorageError):
            core = db.core
            Failures(
                core.live, core.storage, core.runtime, core.locks, core.application, core.sparing, core.history,
                lane=lambda: [lost], launch=lambda job: None,
            )._quarantine(lost, LogLost("gone"))  # fmt: skip
    assert (lost.status, lost.joined) == ("created", True)
    assert other.joined, "it has joined, whatever became of that"
