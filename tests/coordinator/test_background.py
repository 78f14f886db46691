"""What runs in the background goes on whatever fails there: threads, the chores of maintenance, silent sources."""

from __future__ import annotations

import errno
import json
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_database import Database
from fake_groups import Groups

from headrace.catalog.edits import AddEvent, EditRejected, RaiseSafe
from headrace.common.clock import ManualClock
from headrace.common.faults import arm, disarm_all
from headrace.connectors.base import Binding
from headrace.connectors.datagen import DatagenSource
from headrace.coordinator.observe import status
from headrace.coordinator.observe.watchdog import Watchdog
from headrace.coordinator.run import guard, ticker
from headrace.coordinator.run.committer import Committer
from headrace.coordinator.run.lane_failures import Failures
from headrace.coordinator.run.readiness import Readiness
from headrace.coordinator.run.ticker import Ticker
from headrace.coordinator.upkeep.compaction import Compactor
from headrace.coordinator.upkeep.logs import LogKeeper
from headrace.errors import SourceError, StorageError
from support import WAIT_S, eventually

FAST: dict[str, Any] = {"group_retry_initial_ms": 1, "group_retry_max_ms": 10}


@pytest.fixture
def open_db(tmp_path: Path) -> Iterator[Callable[..., Database]]:
    made: list[Database] = []

    def open_(**settings: Any) -> Database:
        made.append(Database(tmp_path, **{**FAST, **settings}))
        return made[-1]

    yield open_
    disarm_all()
    for db in made:
        db.close()


@pytest.fixture
def db(open_db: Callable[..., Database]) -> Database:
    return open_db()


class Broken:
    """In the place of a function: raises until it is mended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: Exception) -> None:
        self.mended, self.calls, self._error = False, 0, error
        works = getattr(owner, name)

        def called(*given: Any, **more: Any) -> Any:
            if self.mended:
                return works(*given, **more)
            self.calls += 1
            raise self._error

        monkeypatch.setattr(owner, name, called)


def background(db: Database) -> list[str]:
    return [*db.events("background_failed"), *db.events("background_recovered")]


def count(db: Database) -> float:
    return next(m.value for m in db.c.metrics() if m.name == "background_failures")


# ---- maintenance


def test_a_full_disk_does_not_keep_maintenance_from_freeing_it(open_db: Callable[..., Database]) -> None:
    """Every merge fails; logs are looked at, bindings pruned and objects deleted all the same."""
    arm("compaction.merge.after", "full")
    db = open_db(
        compaction_interval_ms=10, vacuum_interval_ms=3_600_000, vacuum_grace_ms=0, compaction_trigger_runs=2,
        retention_ms=0,
    )  # fmt: skip
    stray = Path(db.core.storage.root) / "1" / "left-over.run"
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.write_bytes(b"nobody refers to it")
    t = db.table()
    for n in range(4):
        db.insert(t, n)
    eventually(lambda: not stray.exists(), "vacuum, which does not wait for its time while the disk is full")
    failed = db.events("background_failed")
    assert failed and failed[0].startswith("compaction failed") and len(failed) == 1
    assert count(db) >= 1
    disarm_all()
    eventually(lambda: db.events("background_recovered"))
    assert db.events("background_recovered") == ["compaction works again"]
    assert db.read(t) == [[0, 1, 2, 3]]


@pytest.mark.parametrize("error", [StorageError("no answer"), KeyError("of nobody knows what")])
def test_a_table_that_cannot_be_merged_keeps_no_other_from_it(
    open_db: Callable[..., Database], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    db = open_db(compaction_trigger_runs=2, retention_ms=0)
    bad, good = db.table("bad"), db.table("good")
    for n in range(4):
        db.insert(bad, n)
        db.insert(good, n)
    compact, rows_of_bad = Compactor.compact, db.core.live.graph.relations[bad].state_table

    def fails(compactor: Compactor, table_id: int) -> int:
        if table_id == rows_of_bad:
            raise error
        return compact(compactor, table_id)

    monkeypatch.setattr(Compactor, "compact", fails)
    with pytest.raises(type(error)):
        db.c.compact()
    state = db.catalog.state
    assert state.run_count(rows_of_bad) == 4 and state.run_count(db.core.live.graph.relations[good].state_table) < 4


def test_a_table_whose_merge_failed_is_left_alone_for_a_while(
    open_db: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What reads and writes megabytes in vain is not done again every two seconds."""
    db = open_db(compaction_trigger_runs=2, retention_ms=0)
    t = db.table()
    for n in range(4):
        db.insert(t, n)
    arm("compaction.merge.after", "fail")
    compactor = db.c._parts.compactor
    with pytest.raises(StorageError):
        compactor.merge_due(patient=True)
    assert compactor.merge_due(patient=True) == 0 and compactor.counts.failures == 1
    with pytest.raises(StorageError):
        compactor.merge_due()
    assert compactor.counts.failures == 2
    disarm_all()
    assert compactor.merge_due() > 0 and not compactor._resting


def test_one_log_that_cannot_be_looked_at_hides_no_other(
    open_db: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    db = open_db(log_limit_mb=1, retention_ms=0)
    tables = [db.table("a"), db.table("b")]
    views = [db.view("v", tables[0]), db.view("w", tables[1])]
    for t, v in zip(tables, views, strict=True):
        db.insert(t, 1)
        db.c.flush(WAIT_S)
        db.c.alter_job(v, paused=True)
        db.insert(t, *range(60_000))
    size = LogKeeper._size

    def fails(keeper: LogKeeper, log: Any, *more: Any) -> Any:
        if log.relation.id == tables[0]:
            raise StorageError("no answer")
        return size(keeper, log, *more)

    monkeypatch.setattr(LogKeeper, "_size", fails)
    with pytest.raises(StorageError):
        db.c.check_logs()
    assert len(db.events("log_growing")) == 1


# ---- threads


def test_ticks_go_on_whatever_fails_between_them(
    open_db: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Broken(monkeypatch, Watchdog, "look", KeyError("nobody expected that"))
    db = open_db(barrier_interval_ms=10)
    eventually(lambda: watch.calls >= 3 and db.c._parts.ticker.rounds >= 3)
    assert len(db.events("background_failed")) == 1
    assert "the watchdog failed" in db.events("background_failed")[0] and count(db) >= 3
    watch.mended = True
    eventually(lambda: db.events("background_recovered"))


@pytest.mark.parametrize("owner", ["ticker", "maintenance"])
def test_a_thread_whose_loop_fails_is_begun_again(
    open_db: Callable[..., Database], monkeypatch: pytest.MonkeyPatch, owner: str
) -> None:
    db = open_db(barrier_interval_ms=10, compaction_interval_ms=10)
    part = getattr(db.c._parts, owner)
    loop = "_look" if owner == "ticker" else "_pass"
    broken = Broken(monkeypatch, part, loop, RuntimeError("out of its mind"))
    eventually(lambda: broken.calls >= 3)
    eventually(lambda: any("out of its mind" in e for e in db.events("background_failed")))
    calls = broken.calls
    broken.mended = True
    rounds = db.c._parts.ticker.rounds
    db.c._parts.maintenance.request()
    eventually(lambda: db.c._parts.ticker.rounds > rounds)
    assert count(db) >= calls
    name = "the ticker" if owner == "ticker" else "maintenance"
    eventually(lambda: db.events("background_recovered") == [f"{name} works again"])


def test_a_lane_whose_loop_fails_says_so_and_goes_on(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not an epoch fails, but what decides about epochs: SHOW JOBS has it, and it is tried again."""
    t = db.table()
    v, other = db.view("v", t), db.view("other", t)
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    may_open = Readiness.may_open
    broken = threading.Event()
    broken.set()

    def fails(ready: Readiness, lane: Any) -> bool:
        if broken.is_set() and lane[0].id == v:
            raise ZeroDivisionError("no one is perfect")
        return may_open(ready, lane)

    monkeypatch.setattr(Readiness, "may_open", fails)
    db.insert(t, 2)
    db.until(lambda: db.core.live.graph.jobs[v].error is not None)
    shown = db.status(v)
    assert shown.status == "failing" and "no one is perfect" in shown.error.message
    db.until(lambda: db.core.live.graph.job_frontier(db.core.live.graph.jobs[other]) >= db.c.current_epoch())
    eventually(lambda: db.events("background_failed"))
    broken.clear()
    db.until(lambda: db.core.live.graph.jobs[v].error is None)
    db.c.flush(WAIT_S)
    assert db.read(v) == db.read(other) == [[1, 2]] and db.status(v).status == "running"
    eventually(lambda: [e for e in db.events("background_recovered") if e.startswith("the lane of")])


def test_a_lane_is_not_stuck_where_giving_up_fails(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit fails, and then what takes note of that."""
    t = db.table()
    v = db.view("v", t)
    db.c.flush(WAIT_S)
    broken = Broken(monkeypatch, Failures, "note", RuntimeError("out of its mind"))
    arm("commit.before", "fail", nth=1)
    db.insert(t, 1)
    eventually(lambda: broken.calls)
    broken.mended = True
    db.c.flush(WAIT_S)
    assert db.read(v) == [[1]] and "out of its mind" in background(db)[0]


@pytest.mark.parametrize("kind", ["headrace-commit", "headrace-group"])
def test_a_process_that_can_start_no_thread_goes_on(db: Database, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The commit is done by the lane itself; a lane without a thread gets one as soon as there is one."""
    t = db.table()
    start, none_left = threading.Thread.start, threading.Event()
    none_left.set()

    def fails(thread: threading.Thread) -> None:
        if none_left.is_set() and thread.name.startswith(kind):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fails)
    v = db.view("v", t, wait=kind == "headrace-commit")
    db.insert(t, 1)
    if kind == "headrace-group":
        db.c._parts.look()
        assert "no thread could be started" in db.events("background_failed")[0]
        none_left.clear()
        db.c._parts.look()
        db.c.wait_created(v, WAIT_S)
    db.c.flush(WAIT_S)
    assert db.read(v) == [[1]]


def test_a_lane_that_never_got_a_thread_does_not_keep_the_server_from_stopping(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def fails(thread: threading.Thread) -> None:
        if thread.name.startswith("headrace-group"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fails)
    db.view("v", db.table(), wait=False)
    db.c.stop()


def test_the_listener_to_tasks_is_begun_again(
    open_db: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Broken(monkeypatch, socketserver.BaseServer, "serve_forever", OSError("no file left"))
    db = open_db()
    eventually(lambda: broken.calls >= 2 and db.events("background_failed"))
    broken.mended = True
    host, _, rest = db.core.progress.address.partition(":")
    port, _, token = rest.partition("/")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as task:
        task.sendall(json.dumps({"token": token}).encode() + b"\n{}\n")
        eventually(lambda: db.core.progress.ignored, "a report to be heard")
    assert "the listener to tasks failed" in db.events("background_failed")[0]


# ---- sources


def test_a_silent_source_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ticks, FLUSH and CREATE after the first that asked it go on at once; it is bound when it answers."""
    clock = ManualClock()
    db = Database(tmp_path, clock)
    rows: dict[str, str] = {"connector": "datagen", "rows_per_second": "unlimited", "number_of_rows": "4"}
    silent, good = db.source("silent", splits="2", **rows), db.source("good", **rows)
    answer, silenced = threading.Event(), threading.Event()
    latest = DatagenSource.latest_offsets

    def late(source: DatagenSource, *given: Any) -> Binding:
        if source.splits == 2 and silenced.is_set():
            answer.wait(WAIT_S)
        return latest(source, *given)

    monkeypatch.setattr(DatagenSource, "latest_offsets", late)
    try:
        db.view("v", silent)
        db.view("w", good)
        monkeypatch.setattr(ticker, "POLL_WAIT_S", 0.01)
        silenced.set()
        db.c.tick()
        poll = db.c._parts.ticker._readers[silent].poll
        assert poll is not None and not poll.done.is_set()
        monkeypatch.setattr(poll.done, "wait", lambda timeout: pytest.fail("it is waited for again"))
        db.c.tick()
        db.c.flush(WAIT_S)
        db.view("x", good, silent)
        assert not db.events("source_failed")
        clock.advance_ms(db.settings.epoch_timeout_ms)
        db.c.tick()
        db.c.tick()
        assert db.events("source_failed") == ['source "silent" failed: it has not answered for 600 s']
        assert db.c._parts.ticker._readers[silent].poll is poll, "it is not asked twice"
        answer.set()
        eventually(poll.done.is_set)
        db.c.tick()
        assert db.events("source_recovered") and db.core.live.graph.relations[silent].error is None
        # It was slow: the next question is not waited for either, until it answers in time.
        reader = db.c._parts.ticker._readers[silent]
        assert reader.slow
        db.c.tick()
        eventually(lambda: reader.poll is None or reader.poll.done.is_set())
        monkeypatch.setattr(ticker, "POLL_WAIT_S", WAIT_S)
        db.c.tick()
        assert not reader.slow
    finally:
        answer.set()
        db.close()


def _told_while_it_recovers(db: Database, view: int, source: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick, which takes the error away, comes between finding it and telling it."""
    found, relation = status.unread_sources, db.core.live.graph.relations[source]
    error = relation.error

    def recovered(graph: Any) -> Any:
        unread = found(graph)
        relation.error = None
        return unread

    with monkeypatch.context() as patched:
        patched.setattr(status, "unread_sources", recovered)
        told = {job.id: job.error for job in db.c.jobs()}
    assert "the broker is gone" in str(told[view])
    relation.error = error


def test_the_jobs_that_are_built_on_a_source_that_cannot_be_read_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Theirs is the source's error, since it began, and a lag that is true; the jobs themselves run."""
    clock = ManualClock()
    db = Database(tmp_path, clock)
    rows: dict[str, str] = {"connector": "datagen", "rows_per_second": "unlimited", "number_of_rows": "4"}
    away, good = db.source("away", splits="2", **rows), db.source("good", **rows)
    latest, gone = DatagenSource.latest_offsets, threading.Event()

    def failing(source: DatagenSource, *given: Any) -> Binding:
        if source.splits == 2 and gone.is_set():
            raise SourceError("the broker is gone", hint="wait", detail="refused")
        return latest(source, *given)

    monkeypatch.setattr(DatagenSource, "latest_offsets", failing)
    try:
        v = db.view("v", away)
        w, x = db.view("w", v, good), db.view("x", good)
        assert all(job.error is None and job.unread is None for job in db.c.jobs())
        gone.set()
        since_ms = clock.now_ms()
        db.c.tick()
        clock.advance_ms(5_000_000)
        db.c.flush(WAIT_S)
        jobs = {job.id: job for job in db.c.jobs()}
        for job in (jobs[v], jobs[w]):
            assert isinstance(job.error, SourceError) and job.unread == (away, 'source "away"')
            assert job.error.message == 'source "away": the broker is gone'
            assert (job.error.hint, job.error.detail) == ("wait", "refused")
            assert (job.status, job.failures, job.error_since_ms) == ("running", 0, since_ms)
            assert job.lag_ms >= 5_000_000
        assert jobs[x].error is None and jobs[x].lag_ms < 5_000_000
        _told_while_it_recovers(db, v, away, monkeypatch)
        gone.clear()
        clock.advance_ms(db.settings.group_retry_max_ms)
        db.c.flush(WAIT_S)
        assert all(job.error is None and job.lag_ms < 5_000_000 for job in db.c.jobs())
    finally:
        db.close()


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), StorageError("no answer")])
def test_a_view_whose_first_tick_fails_runs_all_the_same(
    db: Database, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It is durable by then: whoever created it is not told that it is not, and it does not wait for a restart."""
    t = db.table()
    broken = Broken(monkeypatch, Ticker, "tick", error)
    v = db.view("v", t, wait=False)
    assert broken.calls
    broken.mended = True
    db.insert(t, 1)
    db.c.wait_created(v, WAIT_S)
    db.c.flush(WAIT_S)
    assert db.read(v) == [[1]]


def test_an_epoch_that_could_not_even_be_given_up_holds_nothing(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had pinned would be kept from vacuum and from being merged until the next start."""
    t = db.table()
    v = db.view("v", t)
    db.c.flush(WAIT_S)
    broken = Broken(monkeypatch, Committer, "close", RuntimeError("out of its mind"))
    arm("commit.before", "fail", nth=1)
    db.insert(t, 1)
    eventually(lambda: broken.calls)
    broken.mended = True
    db.c.wait_created(v, WAIT_S)
    with db.core.live.changed:
        db.core.live.graph.jobs[v].retry_at_s = 0.0
    db.c.flush(WAIT_S)
    assert db.read(v) == [[1]]
    # The writer keeps runs of its own, and no epoch of anything.
    pins = db.core.storage.pins
    eventually(lambda: not pins.epochs(t) and not pins.epochs(v) and not pins.prefixes())


@pytest.mark.parametrize("error", [EditRejected("no"), StorageError("no answer"), KeyError("job")])
def test_a_quarantine_that_the_catalog_refuses_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It is not only in memory meanwhile, is told in the end, and keeps none of its group from going on."""
    db = Groups(tmp_path, **FAST)
    try:
        t = db.table()
        a, b = db.grouped("a", "g", t), db.grouped("b", "h", t)
        c = db.grouped("c", "g", a)
        db.insert(t, 1)
        db.c.flush(WAIT_S)
        db.c.alter_job(a, paused=True)
        db.insert(t, 2)
        db.c.flush(WAIT_S)
        table = db.core.live.graph.relations[t].state_table
        db.catalog.transact([RaiseSafe(table, db.catalog.state.state_tables[table].committed_epoch)])
        transact, refused = db.catalog.transact, []

        def refuse(edits: Any) -> int:
            edits = list(edits)
            if len(refused) < 3 and any(isinstance(e, AddEvent) and e.kind == "job_quarantined" for e in edits):
                refused.append(error)
                raise error
            return transact(edits)

        monkeypatch.setattr(db.catalog, "transact", refuse)
        db.c.alter_job(a, paused=False)
        eventually(lambda: db.catalog.state.jobs[a].status == "quarantined")
        db.until(lambda: db.core.live.graph.jobs[a].status == "quarantined")
        assert len(refused) == 3
        assert len(db.events("job_quarantined")) == 1
        assert {i: db.catalog.state.jobs[i].joined for i in (a, b, c)} == {
            i: db.core.live.graph.jobs[i].joined for i in (a, b, c)
        }
        db.insert(t, 3)
        db.c.flush(WAIT_S)
        assert db.read(b) == [[1, 2, 3]]
    finally:
        db.close()


def test_an_object_that_cannot_be_deleted_is_told_and_keeps_no_other(
    open_db: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    db = open_db(vacuum_grace_ms=0)
    folder = Path(db.core.storage.root) / "99"
    folder.mkdir()
    for name in ("a.run", "b.run", "c.run"):
        (folder / name).write_bytes(b"x")
        os.utime(folder / name, (0, 0))
    delete = db.core.storage.store.delete

    def refused(path: str) -> None:
        if path.endswith("a.run"):
            raise StorageError("permission denied")
        delete(path)

    with monkeypatch.context() as broken:
        broken.setattr(type(db.core.storage.store), "delete", lambda store, path: refused(path))
        db.c.vacuum()
        with pytest.raises(StorageError, match="permission denied"):
            db.c.vacuum()
    assert [p.name for p in folder.iterdir()] == ["a.run"] and _vacuumed(db) == (2, 2)
    assert db.c.vacuum() == 1


def _vacuumed(db: Database) -> tuple[int, int]:
    return db.c._parts.vacuum.counts.passes, db.c._parts.vacuum.counts.deleted


def test_a_source_that_gets_no_thread_keeps_no_other_from_being_bound(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = (db.source(name, connector="datagen", rows_per_second="1", seed="1") for name in "ab")
    db.view("v", a, wait=False)
    db.view("w", b, wait=False)
    start = threading.Thread.start

    def fails(thread: threading.Thread) -> None:
        if thread.name == f"headrace-source-{a}":
            raise RuntimeError("can't start new thread")
        start(thread)

    db.core.live.graph.relations[a].error = None
    newest = db.catalog.state.newest_remap(b)
    with monkeypatch.context() as broken:
        broken.setattr(threading.Thread, "start", fails)
        epoch = db.c.tick()
    assert db.core.live.epochs.complete >= epoch and newest is not None
    assert "can't start new thread" in db.core.live.graph.relations[a].error.message
    db.c._parts.ticker._readers[a].retry_at_s = 0.0
    db.c.tick()
    assert db.core.live.graph.relations[a].error is None


def test_a_failure_that_cannot_be_logged_is_told_all_the_same(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk may be what has failed, and where the log is: the thread that says so must not die of that."""

    def full(name: str) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(guard, "get_logger", full)
    assert not db.core.guard.chore("a chore", lambda: json.loads("x"))
    assert "a chore failed" in db.events("background_failed")[0]


HOUR_MS = 3_600_000


def test_changed_intervals_hold_at_once(open_db: Callable[..., Database]) -> None:
    """`ALTER SYSTEM SET` does not wait for what is waited for by the old ones: an hour here."""
    db = open_db(vacuum_interval_ms=HOUR_MS, vacuum_grace_ms=0)
    stray = Path(db.core.storage.root) / "99" / "left-over.run"
    stray.parent.mkdir()
    stray.write_bytes(b"nobody refers to it")
    os.utime(stray, (0, 0))
    db.view("v", db.table())
    rounds = db.c._parts.ticker.rounds
    db.c.configure(db.settings.replaced(barrier_interval_ms=10))
    eventually(lambda: db.c._parts.ticker.rounds > rounds + 1, "a tick by the new interval")
    passes = db.c._parts.vacuum.counts.passes
    db.c.configure(db.settings.replaced(compaction_interval_ms=10, vacuum_interval_ms=10))
    eventually(lambda: db.c._parts.vacuum.counts.passes > passes and not stray.exists(), "vacuum by the new interval")


def test_a_changed_cadence_holds_at_once(open_db: Callable[..., Database]) -> None:
    db = open_db(checkpoint_interval_ms=HOUR_MS)
    t = db.table()
    v = db.view("v", t)
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    db.insert(t, 2)
    db.until(lambda: db.status(v).waiting_for.startswith("its checkpoint_interval_ms"))
    db.c.configure(db.settings.replaced(checkpoint_interval_ms=0, barrier_interval_ms=10))
    eventually(lambda: db.read(v) == [[1, 2]])


def test_a_changed_pause_between_retries_holds_at_once(open_db: Callable[..., Database]) -> None:
    db = open_db(group_retry_initial_ms=HOUR_MS, group_retry_max_ms=HOUR_MS)
    t = db.table()
    v = db.view("v", t)
    db.runner_of(v).error = StorageError("no answer")
    db.insert(t, 1)
    db.until(lambda: db.core.live.graph.jobs[v].failures == 1)
    db.runner_of(v).error = None
    db.c.configure(db.settings.replaced(group_retry_initial_ms=1, group_retry_max_ms=1))
    eventually(lambda: db.read(v) == [[1]])


def test_the_spool_of_a_second_try_under_way_is_left_alone(db: Database) -> None:
    """An attempt whose values need Spark's own expressions is run again under a name of its own."""
    v = db.view("v", db.table())
    spool = Path(db.settings.spool_location)
    for name in ("1-1-1", "1-1-1again", "1-1-0again"):
        (spool / name).mkdir(parents=True)
        os.utime(spool / name, (0, 0))
    with db.core.live.lock:
        db.core.live.graph.jobs[v].begin_attempt("1-1-1", 0.0)
    db.c._parts.maintenance._forget_spools()
    assert sorted(p.name for p in spool.iterdir()) == ["1-1-1", "1-1-1again"]


def test_rollups_of_the_catalog_that_fail_are_told(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(db.catalog._store, "rollup_error", StorageError("no permission"), raising=False)
    db.c._parts.maintenance._pass()
    assert db.events("background_failed") == [
        "the rollups of the catalog's log failed, and is tried again: no permission"
    ]
    db.catalog._store.rollup_error = None  # type: ignore[attr-defined]
    db.c._parts.maintenance._pass()
    assert db.events("background_recovered")
