"""Who leads a checkpoint group anew, when nobody is left in it that moves in step and can run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_groups import Groups

from headrace.catalog.edits import CarryAlong
from headrace.catalog.records import JobRecord
from headrace.coordinator.ddl import planning as planning_module
from headrace.coordinator.decide.life import Turn, turned
from headrace.errors import LogLost, SparkLost, StorageError
from support import WAIT_S


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Groups]:
    made = Groups(tmp_path, barrier_interval_ms=20, group_retry_initial_ms=20, group_retry_max_ms=50)
    yield made
    made.close()


def fails(db: Groups, view: int, table: int) -> None:
    """Let a view fail from its next epoch on, and have that."""
    db.runner_of(view).error = RuntimeError("no")
    db.insert(table, 2)
    db.until(lambda: db.core.live.graph.jobs[view].failures > 0)


def filled_apart(db: Groups, name: str, table: int) -> int:
    """A view that is being created in the group, which fails: it has a checkpoint, and goes on by itself."""
    made = db.grouped(name, "g", table, wait=False)
    db.until(lambda: db.core.live.graph.jobs[made].committed > 0)
    return made


def begins(db: Groups, view: int, table: int) -> None:
    """Let a view begin an epoch which does not end."""
    db.runner_of(view).gate.clear()
    db.runner_of(view).entered.clear()
    db.insert(table, 2)
    db.until_held(view)


def test_who_leads_commits_nothing_that_it_has_begun_by_itself(db: Groups) -> None:
    """I1, I13: the group's thread begins at the checkpoint at which its own had begun: one of the two commits."""
    t, u = db.table("t"), db.table("u")
    db.insert(t, 1)
    db.insert(u, 1)
    a = db.grouped("a", "g", t)
    fails(db, a, t)
    b = filled_apart(db, "b", u)
    job = db.core.live.graph.jobs[b]
    begins(db, b, u)
    db.runner_of(a).error = LogLost("the log is gone")
    db.until(lambda: job.joined and job.activity.epochs == 2)
    epoch = db.insert(u, 3)
    db.runner_of(b).gate.set()
    db.until(lambda: job.committed >= epoch and not job.activity.epochs)
    assert db.read(b, u) == [[1, 2, 3], [1, 2, 3]]
    assert db.status(a).status == "quarantined" and db.status(b).status == "running"


def test_who_leads_has_a_thread(db: Groups) -> None:
    """Its own one ends with its lane, and that of the group has ended with the last who was in step."""
    tables = [db.table(name) for name in ("t", "u", "w")]
    for t in tables:
        db.insert(t, 1)
    x = db.grouped("x", "g", tables[0])
    fails(db, x, tables[0])
    lost, leads = filled_apart(db, "lost", tables[1]), filled_apart(db, "leads", tables[2])
    begins(db, leads, tables[2])
    fails(db, lost, tables[1])
    db.c.drop([x])
    db.runner_of(lost).error = LogLost("the log is gone")
    db.until(lambda: db.core.live.graph.jobs[lost].quarantined and db.core.live.graph.jobs[leads].joined)
    db.runner_of(leads).gate.set()
    epoch = db.insert(tables[2], 3)
    db.until(lambda: db.core.live.graph.jobs[leads].committed >= epoch)
    assert db.read(leads) == [[1, 2, 3]] and db.core.live.graph.jobs[leads].joined


def test_who_is_created_while_its_group_is_planned_leads_it(db: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is none of those that are planned, yet all that are left of the group if they cannot be."""
    t, u = db.table("t"), db.table("u")
    db.insert(t, 1)
    db.insert(u, 1)
    x = db.grouped("x", "g", t)
    fails(db, x, t)
    a = filled_apart(db, "a", u)
    fails(db, a, u)
    db.c.drop([x])
    planning, made = db.c._parts.planning, []
    planned = planning._plan_job

    def plan(job: Any) -> None:
        db.planner.prefix = "another " if job.id == a else ""
        if job.id == a:
            made.append(db.grouped("b", "g", u, wait=False))
        planned(job)
        db.planner.prefix = ""

    monkeypatch.setattr(planning, "_plan_job", plan)
    db.c.suspend(SparkLost("Spark has ended"))
    db.c.renew(lambda: None)
    (b,) = made
    epoch = db.insert(u, 3)
    db.until(lambda: db.core.live.graph.jobs[b].committed >= epoch)
    assert [db.status(i).status for i in (a, b)] == ["quarantined", "running"]


def test_a_commit_that_takes_a_view_along_is_not_written_over_by_its_turn(
    db: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6: views above commit while others are planned; between the look at a record and its transaction none does."""
    t = db.table("t")
    db.insert(t, 1)
    view = db.grouped("v", "g", t)
    further = db.core.live.graph.jobs[view].committed + 1

    def takes_along() -> None:
        with db.core.locks.committing:
            db.catalog.transact([CarryAlong(i, further) for i in (t, view)])

    above = threading.Thread(target=takes_along)

    def looked_at(record: JobRecord, turn: Turn) -> Any:
        above.start()
        above.join(0.2)  # if nothing keeps it from committing, it has
        return turned(record, turn)

    monkeypatch.setattr(planning_module, "turned", looked_at)
    db.c._parts.planning._turn(db.core.live.graph.jobs[view], Turn.UNPLANNABLE, "cannot be planned")
    above.join(WAIT_S)
    stored = db.catalog.state.jobs[view]
    assert (stored.status, stored.committed_epoch) == ("quarantined", further)


def fails_once(db: Groups, monkeypatch: pytest.MonkeyPatch, lost: int, meanwhile: Callable[[], None]) -> None:
    """Let a view lose its log and not be quarantined: the transaction fails, once something has happened meanwhile."""
    transact, failed = db.catalog.transact, []

    def broken(edits: Any) -> Any:
        if not failed and any("is quarantined" in str(edit) for edit in edits):
            meanwhile()
            db.runner_of(lost).error = None
            failed.append(True)
            raise StorageError("the disk is full of holes")
        return transact(edits)

    monkeypatch.setattr(db.catalog, "transact", broken)
    db.runner_of(lost).error = LogLost("the log is gone")
    db.until(lambda: bool(failed))


def test_who_is_taken_back_has_a_thread(db: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it was to lead its group its own one has ended."""
    t, u = db.table("t"), db.table("u")
    db.insert(t, 1)
    db.insert(u, 1)
    a = db.grouped("a", "g", t)
    fails(db, a, t)
    b = filled_apart(db, "b", u)
    fails_once(db, monkeypatch, a, lambda: db.until(lambda: ("g", b) not in db.c._parts.life.lanes._threads))
    db.c.wait_created(b, WAIT_S)
    assert db.read(a, b) == [[1, 2], [1]] and db.status(a).status == "running"
