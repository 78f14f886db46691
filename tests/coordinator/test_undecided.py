"""DDL whose transaction got no answer: it is learned later what became of it, and memory follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_database import Database
from silence import POINTS, silent

from headrace.catalog.edits import EditRejected
from headrace.common import faults
from headrace.common.faults import arm, disarm_all
from headrace.coordinator.ddl.undecided import Undecided
from headrace.errors import SparkLost, StorageError
from support import WAIT_S


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path, group_retry_initial_ms=1, group_retry_max_ms=5, progress_host="")
    yield made
    disarm_all()
    made.close()


def undecided(db: Database, point: str, statement: Callable[[], object], nth: int = 1) -> bool:
    """Whether the statement turns out to be durable."""
    with silent(db, point, nth), pytest.raises(StorageError):
        statement()
    db.c._parts.look()
    return point.endswith("after")


@pytest.mark.parametrize("point", POINTS)
def test_a_drop_is_finished_or_taken_back(db: Database, point: str) -> None:
    """CK-24, PC-27: a view whose DROP got no answer is gone, or goes on; it is never kept up by a job without state."""
    t = db.table()
    v, w = db.view("v", t), db.view("w", t)
    done = undecided(db, point, lambda: db.c.drop([v]))
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    assert db.read(t, w) == [[1], [1]]
    assert [j.error for j in db.c.jobs()] == [None] * (1 if done else 2)
    if done:
        assert v not in db.core.live.graph.relations and v not in db.planner.defined
        db.c.drop([w])
        db.c.drop([t])
    else:
        assert db.read(v) == [[1]]


@pytest.mark.parametrize("point", POINTS)
def test_a_table_that_takes_a_place_has_the_name_when_it_is_learned(db: Database, point: str) -> None:
    """CK-24: and so has its index, which is paused as the one before; else both are what they were, and go on."""
    old, new = db.table("t"), db.table("t$keyed")
    by, by_new = db.view("i", old), db.view("i$refreshed", new)
    filled = db.insert(new, 1)
    db.c.flush(WAIT_S)
    db.c.alter_job(by, paused=True)
    done = undecided(db, point, lambda: db.c.take_place(new, old, {by_new: by}, filled), nth=2)
    graph = db.core.live.graph
    named = [graph.relations[i].record.name for i in (new, by_new)]
    assert named == (["t", "i"] if done else ["t$keyed", "i$refreshed"])
    assert graph.jobs[by_new].name == named[1]
    assert (old in graph.relations, by in graph.jobs) == (not done, not done)
    assert db.status(by_new).status == ("paused" if done else "running")
    if done:
        db.c.alter_job(by_new, paused=False)
    db.insert(new, 2)
    db.c.flush(WAIT_S)
    assert db.read(new, by_new) == [[1, 2], [1, 2]]


@pytest.mark.parametrize("point", POINTS)
def test_what_was_not_said_to_be_created_is_not_there(db: Database, point: str) -> None:
    """CK-24: the name of a table or view whose CREATE got no answer is free again."""
    t = db.table()
    undecided(db, point, lambda: db.view("v", t))
    assert len(db.catalog.state.objects) == 1
    undecided(db, point, lambda: db.table("u"))
    u, v = db.table("u"), db.view("v", t)
    db.insert(u, 1)
    db.insert(t, 2)
    db.c.flush(WAIT_S)
    assert db.read(u, v) == [[1], [2]]


@pytest.mark.parametrize("point", POINTS)
def test_a_job_is_as_its_record_says(db: Database, point: str) -> None:
    """CK-24: a pause, and a move, that got no answer hold in memory if they do in the catalog."""
    t = db.table()
    v, _ = db.view("v", t), db.view("w", t)
    done = undecided(db, point, lambda: db.c.alter_job(v, paused=True))
    assert db.status(v).status == db.catalog.state.jobs[v].status.replace("created", "running")
    assert (db.status(v).status == "paused") is done
    done = undecided(db, point, lambda: db.c.alter_job(v, options={"checkpoint_group": "g", "parallelism": "2"}))
    job, record = db.core.live.graph.jobs[v], db.catalog.state.jobs[v]
    assert (job.group, job.options) == (record.group, record.options)
    assert (job.group == "g") is done
    db.c.alter_job(v, paused=False)
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    assert db.read(v) == [[1]]


@pytest.mark.parametrize("suspended", [False, True])
def test_a_commit_without_an_answer_is_learned_before_its_job_goes_on(db: Database, suspended: bool) -> None:
    """PC-45, CK-11: nothing is taken in twice, though the job itself has not failed where Spark has ended meanwhile."""
    t = db.table()
    v = db.view("v", t)
    job = db.core.live.graph.jobs[v]
    arm("commit.acked", "hang", nth=1)
    first = db.insert(t, 1)
    db.until(lambda: faults.passages("commit.acked") == 1)
    if suspended:
        db.c.suspend(SparkLost("Spark has ended"))
    with silent(db, "catalog.commit.after"):
        faults.release("commit.acked")
        db.until(lambda: not job.activity.epochs)
        # Still without an answer: as soon as there is one, the job knows better.
        assert job.committed < first and bool(job.failures) is not suspended
    db.core.application.suspended = None
    db.core.live.notify()
    db.insert(t, 2)
    db.c.flush(WAIT_S)
    assert db.read(t, v) == [[1, 2]] * 2
    assert db.runner_of(v).calls[-1].from_epoch >= first


class OneCatalog:
    """Answers, or does not."""

    def __init__(self) -> None:
        self.silent = False

    @property
    def state(self) -> object:
        if self.silent:
            raise StorageError("no answer")
        return object()

    def transact(self, edits: object) -> None:
        self.silent = True
        raise StorageError("no answer")


@pytest.mark.parametrize("error", [KeyError(7), EditRejected("no"), SparkLost("Spark has ended")])
def test_what_cannot_be_settled_keeps_no_other_from_it(error: Exception) -> None:
    """Nor does it keep statements from running: it is tried again, and told, by ticks."""
    catalog: Any = OneCatalog()
    some = Undecided(catalog)
    settled: list[str] = []
    failing = [error]

    def first(state: object) -> None:
        if failing:
            raise failing[0]
        settled.append("first")

    for settle in (first, lambda state: settled.append("second")):
        with pytest.raises(StorageError):
            some.transact([], lambda state: False, settle)
    with pytest.raises(StorageError):
        some.settle()
    catalog.silent = False
    assert some.settle() is error and some.settle() is error
    assert settled == ["second"] and len(some) == 1
    failing.clear()
    assert some.settle() is None and settled == ["second", "first"] and not some


def test_a_statement_that_cannot_be_settled_blocks_no_other(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    t = db.table()
    v, w = db.view("v", t), db.view("w", t)
    with silent(db, "catalog.commit.after"), pytest.raises(StorageError):
        db.c.drop([v])
    with monkeypatch.context() as broken:
        broken.setattr(db.planner, "forget", lambda i: {}[i])
        x = db.view("x", t)
        db.c._parts.look()
        assert "KeyError" in db.events("background_failed")[0]
        # A drop that fails is told apart from one whose outcome is not known.
        arm("catalog.commit.before", "fail", nth=1)
        with pytest.raises(StorageError):
            db.c.drop([w])
        assert not db.core.live.graph.jobs[w].activity.withdrawn
    db.c._parts.look()
    assert db.events("background_recovered") and v not in db.planner.defined
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    assert db.read(t, w, x) == [[1]] * 3
