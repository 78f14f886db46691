"""FLUSH: what it waits for, what it shares, what it says when it cannot."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_database import Database, FakeRunner

from headrace.common.faults import disarm_all
from headrace.errors import DivisionByZero, HeadraceError, JobFailed
from support import WAIT_S


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path, group_retry_initial_ms=3_600_000, group_retry_max_ms=3_600_000)
    yield made
    disarm_all()
    made.close()


def idle(db: Database, *views: int) -> None:
    db.until(lambda: all(db.core.live.graph.jobs[v].activity.attempt is None for v in views))


def test_after_it_every_session_sees_earlier_writes(db: Database) -> None:
    """CK-17, PC-38: without FLUSH a view may be stale; after it any read sees them, at any depth, whatever cadence."""
    t = db.table()
    v = db.view("v", t)
    w = db.view("w", v)
    idle(db, v, w)
    for view in (v, w):
        db.c.alter_job(view, options={"checkpoint_interval_ms": "3600000"})
    for i in range(4):
        db.insert(t, i)
        stale = db.read(v)[0]
        assert stale == list(range(i + 1)) or stale == list(range(i))
        epoch = db.c.flush(WAIT_S)
        for ids in ((v,), (w,), (t, v, w)):
            with db.c.snapshot(ids) as snapshot:
                assert snapshot.epoch >= epoch
                assert all(db.values(snapshot.tables[x]) == list(range(i + 1)) for x in ids)


def test_a_view_on_a_view_that_takes_in_more_than_one_epoch(db: Database) -> None:
    """CK-17, PC-38: the flushed epoch and a later one are one change of the view between; the writes are in it."""
    t = db.table()
    v = db.view("v", t)
    w = db.view("w", v)
    upper, lower = db.runner_of(v), db.runner_of(w)
    db.hold(v, w)
    db.insert(t, 0)
    db.until_held(v)
    db.insert(t, 1)
    seen: list[list[int]] = []
    before = db.core.live.graph.jobs[v].pace.forced

    def flush() -> None:
        db.c.flush(WAIT_S)
        seen.extend(db.read(w))

    thread = threading.Thread(target=flush)
    thread.start()
    db.until(lambda: db.core.live.graph.jobs[v].pace.forced > before)
    db.insert(t, 2)
    last = db.core.live.graph.relations[t].changes.in_range(0, 1 << 62)[-1][1]
    upper.gate.set()
    db.until(lambda: db.core.live.graph.jobs[v].committed >= last)
    # Nothing can be waited for here: it must not return, and does at once where it is wrong.
    thread.join(0.2)
    lower.gate.set()
    thread.join(WAIT_S)
    assert seen == [[0, 1, 2]]


def test_with_nothing_dirty_it_runs_nothing(db: Database) -> None:
    """CK-18: it returns at once, without an epoch of any view and without an object."""
    t = db.table()
    views = [db.view(f"v{i}", t) for i in range(3)]
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    idle(db, *views)
    calls = [len(r.calls) for r in db.runners]
    objects = len(list(Path(db.core.storage.root).rglob("*.run")))
    epochs = [db.c.flush(WAIT_S) for _ in range(20)]
    assert epochs == sorted(set(epochs))
    assert [len(r.calls) for r in db.runners] == calls
    assert len(list(Path(db.core.storage.root).rglob("*.run"))) == objects


def test_many_at_once_share_checkpoints(db: Database) -> None:
    """CK-19: flushes that come while an epoch runs are all served by the next one."""
    t = db.table()
    v = db.view("v", t)
    runner = db.runner_of(v)
    db.hold(v)
    db.insert(t, 0)
    db.until_held(v)
    before = len(runner.calls)
    seen: list[list[int]] = []

    def work(value: int) -> None:
        db.insert(t, value)
        db.c.flush(WAIT_S)
        (found,) = db.read(v)
        assert value in found
        seen.append(found)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 21)]
    for thread in threads:
        thread.start()
    db.until(lambda: db.core.live.graph.jobs[v].pace.forced > db.core.live.graph.jobs[v].committed)
    db.until(lambda: len(db.read(t)[0]) == 21)  # as many writes, in whatever groups they were committed
    runner.gate.set()
    for thread in threads:
        thread.join()
    assert len(seen) == 20
    # One epoch may begin before the last of them has come, so two; not one for each.
    assert len(runner.calls) - before <= 2


def test_ticks_go_on_beside_it(tmp_path: Path) -> None:
    """CK-19: flushes coexist with periodic checkpoints."""
    db = Database(tmp_path, barrier_interval_ms=10)
    try:
        t = db.table()
        v = db.view("v", t)

        def work(base: int) -> None:
            for i in range(5):
                db.insert(t, base + i)
                db.c.flush(WAIT_S)
                assert base + i in db.read(v)[0]

        threads = [threading.Thread(target=work, args=(b,)) for b in (100, 200, 300)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(db.read(v)[0]) == 15
    finally:
        db.close()


def test_a_failing_group_is_named_once_the_others_are_there(db: Database) -> None:
    """CK-18, PC-48: everything healthy has the writes when FLUSH fails; it never claims success without the data."""
    t = db.table()
    bad, good = db.view("bad", t), db.view("good", t)
    below, deep = db.view("below", bad), db.view("deep", good)
    idle(db, bad, good, below, deep)
    db.runner_of(bad).error = DivisionByZero("division by zero")
    slow = db.runner_of(deep)
    slow.gate.clear()
    db.insert(t, 1)
    failures: list[HeadraceError] = []

    def flush() -> None:
        try:
            db.c.flush(WAIT_S)
        except HeadraceError as error:
            failures.append(error)

    thread = threading.Thread(target=flush)
    thread.start()
    db.until(lambda: db.status(bad).status == "failing")
    assert not failures and thread.is_alive(), "the healthy ones are still waited for"
    slow.gate.set()
    thread.join(WAIT_S)
    (error,) = failures
    assert isinstance(error, JobFailed) and '"bad" is failing' in error.message and error.sqlstate == "22012"
    assert db.read(good, deep) == [[1], [1]] and db.read(below) == [[]]


def test_a_failing_group_is_tried_again_at_once(db: Database) -> None:
    """CK-18: with a group that recovers, FLUSH waits for it, although its next retry were an hour away."""
    t = db.table()
    v = db.view("v", t)
    idle(db, v)
    runner: FakeRunner = db.runner_of(v)
    runner.error = DivisionByZero("division by zero")
    db.insert(t, 1)
    db.until(lambda: db.status(v).status == "failing")
    runner.error = None
    db.c.flush(WAIT_S)
    assert db.read(v) == [[1]] and db.status(v).status == "running"


def test_what_stands_still_is_not_waited_for(db: Database) -> None:
    """CK-18: paused views, and those that are built on them, are no part of it."""
    t = db.table()
    v = db.view("v", t)
    w, other = db.view("w", v), db.view("other", t)
    db.c.alter_job(v, paused=True)
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    assert db.read(other) == [[1]] and db.read(w) == [[]]
