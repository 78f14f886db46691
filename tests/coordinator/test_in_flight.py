"""A group runs its next epoch while the one before it is being committed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_database import Database
from fake_groups import InFlight

from headrace.common.clock import ManualClock
from headrace.common.faults import arm, disarm_all
from headrace.coordinator.decide import machine
from headrace.errors import StorageError
from headrace.state.arrangement import Arrangement
from support import WAIT_S


@pytest.fixture
def db(tmp_path: Path) -> Iterator[InFlight]:
    made = InFlight(tmp_path)
    yield made
    disarm_all()
    made.close()


def test_the_next_epoch_runs_over_what_is_not_committed(db: InFlight) -> None:
    """CK-7, CK-8, CK-9, PC-10: e+1 is run on the runs of e, nobody sees either, and both are committed in order."""
    second = db.insert(db.t, 2)
    db.until(lambda: len(db.calls) == 2 and db.job.activity.epochs == 2 and db.job.activity.attempt is None)
    first, then = db.calls
    assert (first.from_epoch, first.to_epoch) == (db.before, db.first)
    assert (then.from_epoch, then.to_epoch) == (db.first, second)
    made = {r.path for r in then.state["view/rows"].refs} - {r.path for r in first.state["view/rows"].refs}
    assert len(made) == 1 and made.pop().startswith(first.prefix), "e+1 sees the uncommitted run of e"
    assert db.job.committed == db.before and db.log() == [] and db.read(db.v, at=db.before) == [[0]]
    assert db.core.live.graph.job_frontier(db.job) < db.first, "readers and other groups know of none of it"
    db.release()
    db.c.flush(WAIT_S)
    assert db.read(db.t, db.v) == [[0, 1, 2]] * 2
    assert db.log() == [(db.first, 1), (second, 1)], "the checkpoint of e holds no row of e+1"


def test_no_more_epochs_are_in_flight_than_allowed(db: InFlight) -> None:
    """PC-14: at the limit no other epoch begins; FLUSH still passes as soon as the commits do."""
    db.insert(db.t, 2)
    db.until(lambda: len(db.calls) == 2 and db.job.activity.epochs == 2 and db.job.activity.attempt is None)
    db.insert(db.t, 3)
    time.sleep(0.05)  # It must not begin, and does at once where that is wrong.
    assert len(db.calls) == 2 == db.settings.max_in_flight_epochs
    db.release()
    db.c.flush(WAIT_S)
    assert db.read(db.v) == [[0, 1, 2, 3]]


def test_with_one_epoch_at_a_time_the_next_one_waits(tmp_path: Path) -> None:
    db = InFlight(tmp_path, max_in_flight_epochs=1)
    db.insert(db.t, 2)
    time.sleep(0.05)  # It must not begin, and does at once where that is wrong.
    assert len(db.calls) == 1
    db.release()
    db.c.flush(WAIT_S)
    assert db.read(db.v) == [[0, 1, 2]]
    db.close()


def test_what_is_built_on_a_failed_commit_is_given_up(db: InFlight) -> None:
    """CK-7, PC-12: if e is not committed, neither is e+1, and both are taken in again."""
    arm("commit.before", "fail", nth=1)
    db.run.gate.clear()
    db.run.entered.clear()
    db.insert(db.t, 2)
    db.until_held(db.v)
    db.release()
    db.until(lambda: db.job.trouble.failed_total > 0)
    assert db.run.cancelled == [db.calls[1].attempt], "the attempt that is built on it is stopped at once"
    db.run.error = None  # cancelled only once
    db.c.flush(WAIT_S)
    assert db.read(db.t, db.v) == [[0, 1, 2]] * 2
    assert db.calls[2].from_epoch == db.before and db.job.error is None and not db.job.activity.epochs
    assert any(StorageError.sqlstate in e.detail for e in db.catalog.state.newest_events(9) if e.kind == "job_failed")


def test_a_failure_of_the_next_epoch_leaves_the_commit_alone(db: InFlight) -> None:
    """CK-8: e is committed though e+1 fails, and that it is says nothing about e+1."""
    db.run.error = ValueError("poison")
    second = db.insert(db.t, 2)
    db.until(lambda: db.job.trouble.failed_total > 0)
    db.release()
    db.until(lambda: db.job.committed == db.first)
    assert db.job.failures and "poison" in str(db.job.error)
    assert db.read(db.v, at=db.first) == [[0, 1]] and db.events("job_recovered") == []
    db.run.error = None
    db.until(lambda: db.job.committed == second)
    db.until(lambda: not db.job.activity.epochs)
    assert db.read(db.v) == [[0, 1, 2]] and len(db.events("job_recovered")) == 1


@pytest.mark.parametrize("what", ["pause", "move", "drop"])
def test_what_changes_the_graph_gives_up_what_is_in_flight(db: InFlight, what: str) -> None:
    """CK-24, PC-27: nothing of a job's earlier place is committed after it was paused, moved or dropped."""
    db.insert(db.t, 2)
    db.until(lambda: len(db.calls) == 2 and db.job.activity.epochs == 2 and db.job.activity.attempt is None)
    if what == "pause":
        db.c.alter_job(db.v, paused=True)
    elif what == "move":
        db.c.alter_job(db.v, options={"checkpoint_group": "g"})
        db.until(lambda: db.job.committed > db.first)
    else:
        db.job.withdraw()
    db.release()
    db.until(lambda: not db.job.activity.epochs)
    if what == "pause":
        assert db.job.committed == db.before
        db.c.alter_job(db.v, paused=False)
    if what == "drop":
        db.c.drop([db.v])
        assert db.v not in db.core.live.graph.relations
    else:
        db.c.flush(WAIT_S)
        assert db.read(db.t, db.v) == [[0, 1, 2]] * 2
        assert db.job.trouble.failed_total == 0


# ---- barriers between two checkpoints


class Held(Database):
    """A view that runs an epoch for each write, and commits once a minute; another one reads it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.clock = ManualClock()
        super().__init__(folder, self.clock, progress_host="", **settings)
        self.t = self.table()
        self.v = self.view("v", self.t)
        self.w = self.view("w", self.v)
        self.c.alter_job(self.v, options={"checkpoint_interval_ms": "60000", "barrier_interval_ms": "0"})
        self.job = self.core.live.graph.jobs[self.v]
        first = self.insert(self.t, 0)
        self.until(lambda: self.core.live.graph.jobs[self.w].committed == first == self.job.committed)
        self.start = first

    def run(self, *values: int) -> int:
        """Write, and wait until the view has taken it in."""
        epoch = self.insert(self.t, *values)
        self.until(lambda: self.job.activity.attempt is None and self.runner_of(self.v).calls[-1].to_epoch == epoch)
        return epoch

    def log(self, view: int, after: int, up_to: int) -> list[int]:
        """The rows that a view has got."""
        relation = self.core.live.graph.relations[view]
        runs = [r.ref for r in self.catalog.state.runs_of(relation.state_table)]
        found = Arrangement(relation.schema, runs, self.core.storage.root).log(after, up_to)
        return sorted(n for batch in found for n in batch.column("n").to_pylist())

    def moves(self) -> int:
        """How often the view has been committed."""
        return int(self.core.live.graph.jobs[self.v].metrics.epochs)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    made = Held(tmp_path)
    yield made
    disarm_all()
    made.close()


@pytest.mark.parametrize("how", ["flush", "clock"])
def test_a_barrier_that_is_no_checkpoint_commits_nothing(held: Held, how: str) -> None:
    """PC-11, CK-20: it moves data; the next checkpoint commits all epochs since the last, and the log keeps them."""
    before = held.catalog.sequence
    first, second, third = held.run(1), held.run(2, 2), held.run(3)
    # Each write is a transaction of its own, and there is no other.
    assert held.catalog.sequence == before + 3 and held.job.committed == held.start
    assert held.read(held.v, at=held.start) == [[0]] and held.job.activity.epochs == 3
    assert "checkpoint_interval_ms" in held.status(held.v).waiting_for
    assert [p.from_epoch for p in held.runner_of(held.v).calls[-3:]] == [held.start, first, second]
    if how == "flush":
        held.c.flush(WAIT_S)
    else:
        held.clock.advance_ms(60_000)
        held.core.live.notify()
    held.until(lambda: held.core.live.graph.jobs[held.w].committed >= third)
    assert not held.job.activity.epochs
    for epoch, rows in ((first, [1]), (second, [2]), (third, [3])):
        assert held.log(held.v, epoch - 1, epoch) == rows
        assert any(low <= epoch <= high for low, high in held.core.live.graph.exact(held.v))
    assert held.read(held.v, at=second) == [[0, 1, 2, 2]]
    assert held.read(held.v, held.w) == [[0, 1, 2, 2, 3]] * 2


def test_epochs_that_are_held_are_bounded(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """PC-11, PC-14: with many of them the checkpoint comes early."""
    monkeypatch.setattr(machine, "MAX_HELD", 3)
    epochs = [held.run(n) for n in range(1, 4)]
    held.until(lambda: held.job.committed == epochs[-1])
    assert held.read(held.v) == [[0, 1, 2, 3]]


def test_what_is_held_is_taken_in_again_after_a_stop(tmp_path: Path) -> None:
    """PC-11, CK-10: a stop in good order commits it; a crash loses nothing but the work."""
    held = Held(tmp_path)
    last = held.run(1)
    held.close()
    assert held.job.committed == last
    again = Database(tmp_path)
    try:
        assert again.core.live.graph.jobs[held.v].committed >= last and again.read(held.v) == [[0, 1]]
    finally:
        again.close()


def test_a_failure_commits_what_is_held(held: Held) -> None:
    """PC-11: an epoch that fails takes nothing with it that has been run before."""
    last = held.run(1)
    held.runner_of(held.v).error = ValueError("poison")
    held.insert(held.t, 2)
    held.until(lambda: held.job.committed == last)
    held.runner_of(held.v).error = None
    held.c.flush(WAIT_S)
    assert held.read(held.v) == [[0, 1, 2]]


@pytest.mark.parametrize("what", ["pause", "move", "drop"])
def test_ddl_does_not_wait_for_the_checkpoint(held: Held, what: str) -> None:
    """CK-24, PC-11: what is held is given up with the job's place, and taken in again."""
    held.run(1)
    held.run(2)
    if what == "drop":
        held.c.drop([held.w])
        held.c.drop([held.v])
        assert held.v not in held.core.live.graph.relations and not held.job.activity.epochs
        return
    if what == "pause":
        held.c.alter_job(held.v, paused=True)
        held.until(lambda: not held.job.activity.epochs)
        assert held.job.committed == held.start
        held.c.alter_job(held.v, paused=False)
    else:
        held.c.alter_job(held.v, options={"checkpoint_group": "g"})
    held.c.flush(WAIT_S)
    assert held.read(held.v, held.w) == [[0, 1, 2]] * 2
