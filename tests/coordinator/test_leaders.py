"""Who leads a checkpoint group anew, when nobody is left in it that moves in step and can run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_groups import Groups

from headrace.errors import LogLost
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
    db.until(lambda: db.core.graph.jobs[view].failures > 0)


def filled_apart(db: Groups, name: str, table: int) -> int:
    """A view that is being created in the group, which fails: it has a checkpoint, and goes on by itself."""
    made = db.grouped(name, "g", table, wait=False)
    db.until(lambda: db.core.graph.jobs[made].committed > 0)
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
    job = db.core.graph.jobs[b]
    begins(db, b, u)
    db.runner_of(a).error = LogLost("the log is gone")
    db.until(lambda: job.joined and job.activity.epochs == 2)
    db.insert(u, 3)
    db.runner_of(b).gate.set()
    db.c.flush(WAIT_S)
    db.until(lambda: not job.activity.epochs)
    assert db.read(b, u) == [[1, 2, 3], [1, 2, 3]]
    assert db.status(a).status == "quarantined" and db.status(b).status == "running"
