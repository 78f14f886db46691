"""Epochs that fail because Spark has ended; with fakes in its place."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_database import Database

from headrace.common.clock import ManualClock
from headrace.coordinator.decide.job import PlanFacts
from headrace.coordinator.run.application import PLANNING_TRIES, SUSPECT_S
from headrace.errors import OperationalError, SparkLost, StorageError
from support import WAIT_S


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path)
    yield made
    made.close()


def lose(db: Database) -> None:
    """Let every epoch fail from now on as if Spark had ended."""

    def is_lost() -> bool:
        db.c.suspend(SparkLost("Spark has ended"))
        return True

    db.c.watch_spark(is_lost)
    for runner in db.runners:
        runner.error = SparkLost("Spark has ended")


def begin_again(db: Database) -> None:
    db.planner.defined.clear()
    db.planner.generation += 1


def lose_at(db: Database, table: int, value: int) -> None:
    """Let Spark end, so that it is noticed when views are to take in a row."""
    lose(db)
    db.insert(table, value)
    db.until(lambda: db.core.application.suspended is not None)


def test_a_view_goes_on_from_its_checkpoint_after_spark_was_lost(db: Database) -> None:
    """PC-42: the loss of Spark is no failure of a view; meanwhile all is readable, afterwards all is taken in."""
    t = db.table()
    v = db.view("v", t)
    w = db.view("w", v)
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    lose_at(db, t, 2)
    assert db.read(t) == [[1, 2]]
    assert db.read(v, w) == [[1], [1]]
    assert [db.status(i).waiting_for for i in (v, w)] == ["Spark: it has ended, and is being started again"] * 2
    flushing = threading.Thread(target=lambda: db.c.flush(WAIT_S))
    flushing.start()
    db.insert(t, 3)
    lost = db.runner_of(v), db.runner_of(w)
    db.c.renew(lambda: begin_again(db))
    flushing.join(WAIT_S)
    assert not flushing.is_alive()
    assert db.read(t, v, w) == [[1, 2, 3]] * 3
    assert (db.runner_of(v), db.runner_of(w)) != lost
    assert sorted(db.planner.defined) == [t, v, w]
    assert [db.status(i).failures for i in (v, w)] == [0, 0]
    assert db.events("job_failed") == []
    assert [len(db.events(kind)) for kind in ("spark_lost", "spark_restarted")] == [1, 1]


def test_a_view_that_is_no_longer_planned_as_before_is_quarantined_alone(db: Database) -> None:
    """PC-46: another Spark that plans a view otherwise stops that view only."""
    t, other = db.table("t"), db.table("other")
    v, good = db.view("v", t), db.view("good", other)
    lose_at(db, t, 1)
    plan = db.planner.plan

    def changed(sql: str, **_: bool) -> object:
        return plan("" if sql == str(t) else sql)

    db.planner.plan = changed  # type: ignore[assignment, method-assign]
    db.c.watch_spark(lambda: False)
    db.c.renew(lambda: begin_again(db))
    db.insert(other, 7)
    db.c.flush(WAIT_S)
    assert db.read(good) == [[7]]
    assert [db.status(i).status for i in (v, good)] == ["quarantined", "running"]


def test_spark_that_ends_again_while_views_are_planned_is_told(db: Database) -> None:
    """PC-44: no view is quarantined for it; the next application takes them all."""
    t = db.table()
    v = db.view("v", t)
    lose_at(db, t, 1)
    plan = db.planner.plan

    def fails(sql: str, **_: bool) -> object:
        raise SparkLost("Spark has ended")

    db.planner.plan = fails  # type: ignore[assignment, method-assign]
    with pytest.raises(SparkLost):
        db.c.renew(lambda: begin_again(db))
    assert db.core.application.suspended is not None
    db.planner.plan = plan  # type: ignore[method-assign]
    db.c.renew(lambda: begin_again(db))
    db.c.flush(WAIT_S)
    assert db.read(v) == [[1]]


def test_a_plan_made_before_is_refused(db: Database) -> None:
    """A view planned in an application that has ended is not created in the next one."""
    t = db.table()
    stale = db.planner.plan(str(t))
    db.c.renew(lambda: begin_again(db))
    db.planner.plan = lambda sql: stale  # type: ignore[assignment, method-assign]
    with pytest.raises(SparkLost, match="while the query was planned"):
        db.view("v", t)
    assert db.c.jobs() == []


def test_an_error_that_only_looks_like_it_is_the_views_own(db: Database) -> None:
    """With Spark alive, a broken connection to it counts as a failure and is retried."""
    t = db.table()
    v = db.view("v", t)
    db.runner_of(v).error = SparkLost("no answer")
    db.insert(t, 1)
    db.until(lambda: db.status(v).failures > 0)
    db.runner_of(v).error = None
    db.c.flush(WAIT_S)
    assert db.read(v) == [[1]]


def _ends(db: Database, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Spark end while the planner is told something."""

    def fails(*_: object) -> None:
        lose(db)
        raise SparkLost("Spark has ended")

    monkeypatch.setattr(db.planner, method, fails)


def test_what_is_created_while_spark_ends_is_there(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is durable before the planner is told of it: nobody hears of a failure, and the next Spark knows it."""
    t = db.table("t")
    with monkeypatch.context() as patched:
        _ends(db, "define", patched)
        late = db.table("late")
    db.c.renew(lambda: begin_again(db))
    assert {t, late} <= set(db.planner.defined)
    db.insert(late, 5)
    db.c.flush(WAIT_S)
    assert db.read(late) == [[5]]


def test_what_is_dropped_while_spark_ends_is_gone(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is gone from the catalog before the planner is told: nobody hears of a failure."""
    t, dropped = db.table("t"), db.table("dropped")
    with monkeypatch.context() as patched:
        _ends(db, "forget", patched)
        db.c.drop([dropped])
    db.c.renew(lambda: begin_again(db))
    assert t in db.planner.defined and dropped not in db.planner.defined


def test_a_planner_that_fails_for_itself_is_told(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Spark alive its failure is not passed over."""

    def fails(*_: object) -> None:
        raise ValueError("a fault")

    monkeypatch.setattr(db.planner, "define", fails)
    with pytest.raises(ValueError, match="a fault"):
        db.table("t")


def test_groups_are_shown_while_their_views_are_still_to_be_planned(db: Database) -> None:
    """Whoever looks at them at a start sees that they start; the worst of a group's views counts."""
    t = db.table()
    v, w = db.view("v", t), db.view("w", t)
    for view in (v, w):
        db.c.alter_job(view, options={"checkpoint_group": "g"})
    db.until(lambda: all(job.joined for job in db.core.live.graph.jobs.values()))
    with db.core.live.lock:
        db.core.live.graph.jobs[v].facts = PlanFacts(awaited=True)
    assert [g.status for g in db.c.groups()] == ["starting"]
    db.c.alter_job(w, paused=True)
    assert [g.status for g in db.c.groups()] == ["paused"]


def test_planning_that_fails_again_and_again_is_told_to_who_waits(db: Database) -> None:
    """What keeps views from being planned at all, here the catalog, holds up FLUSH for a bounded time only."""
    t = db.table()
    v = db.view("v", t)
    lose_at(db, t, 1)

    def broken() -> None:
        raise StorageError("the disk is full")

    for _ in range(PLANNING_TRIES - 1):
        with pytest.raises(StorageError):
            db.c.renew(broken)
    db.core.application.check_planning()  # it may be mended by the next try
    with pytest.raises(StorageError):
        db.c.renew(broken)
    with pytest.raises(OperationalError, match="views cannot be planned: the disk is full"):
        db.c.flush(WAIT_S)
    db.c.watch_spark(lambda: False)
    db.c.renew(lambda: begin_again(db))
    db.c.flush(WAIT_S)
    assert db.read(v) == [[1]]


def test_a_view_whose_planning_ends_spark_each_time_is_left_out(db: Database) -> None:
    """It is quarantined after some tries, and named before; the others go on."""
    t, other = db.table("t"), db.table("other")
    v, good = db.view("v", t), db.view("good", other)
    lose_at(db, t, 1)
    plan, lost = db.planner.plan, True

    def deadly(sql: str, **_: object) -> object:
        nonlocal lost
        lost = sql == str(t)
        if lost:
            raise RuntimeError("the answer of Java is empty")
        return plan(sql)

    db.planner.plan = deadly  # type: ignore[assignment, method-assign]
    db.c.watch_spark(lambda: lost)
    for _ in range(PLANNING_TRIES):
        with pytest.raises(SparkLost, match='materialized view "v" was planned'):
            db.c.renew(lambda: begin_again(db))
    lost = False
    db.c.renew(lambda: begin_again(db))
    db.insert(other, 7)
    db.c.flush(WAIT_S)
    assert db.read(good) == [[7]]
    assert [db.status(i).status for i in (v, good)] == ["quarantined", "running"]
    assert "3 times in a row" in db.status(v).error.message


def test_what_is_left_out_for_it_is_tried_again_beside_the_others(tmp_path: Path) -> None:
    """Spark may have ended for another reason: by and by it is planned again, ever later where it ends Spark again."""
    clock = ManualClock()
    db = Database(tmp_path, clock)
    try:
        _check_suspect(db, clock)
    finally:
        db.close()


def _check_suspect(db: Database, clock: ManualClock) -> None:
    t, other = db.table("t"), db.table("other")
    v, good = db.view("v", t), db.view("good", other)
    lose_at(db, t, 1)
    plan, lost, ends = db.planner.plan, False, True

    def deadly(sql: str, **_: object) -> object:
        nonlocal lost
        lost = ends and sql == str(t)
        if lost:
            raise RuntimeError("the answer of Java is empty")
        return plan(sql)

    db.planner.plan = deadly  # type: ignore[assignment, method-assign]
    db.c.watch_spark(lambda: lost)
    for _ in range(PLANNING_TRIES):
        with pytest.raises(SparkLost):
            db.c.renew(lambda: begin_again(db))
    lost = False
    db.c.renew(lambda: begin_again(db))
    clock.advance_ms(1000 * int(SUSPECT_S) - 1000)
    db.c.plan_suspect()
    assert db.status(v).status == "quarantined"
    clock.advance_ms(2000)
    with pytest.raises(SparkLost):
        db.c.plan_suspect()
    lost = False
    db.c.renew(lambda: begin_again(db))
    db.insert(other, 7)
    db.c.flush(WAIT_S)
    assert [db.status(i).status for i in (v, good)] == ["quarantined", "running"]
    ends = False
    clock.advance_ms(1000 * int(SUSPECT_S) + 2000)
    db.c.plan_suspect()
    assert db.status(v).status == "quarantined"
    clock.advance_ms(1000 * int(SUSPECT_S))
    db.c.plan_suspect()
    db.c.flush(WAIT_S)
    assert [db.status(i).status for i in (v, good)] == ["running", "running"]
    assert db.read(v, good) == [[1], [7]] and db.status(v).error is None
    db.c.plan_suspect()
