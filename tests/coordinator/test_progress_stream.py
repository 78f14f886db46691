"""Progress of epochs: what is heard, what is ignored, time-outs, and what barriers wait for."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_database import Database, FakeRunner
from hypothesis import given
from hypothesis import strategies as st

from headrace.common.clock import ManualClock
from headrace.common.faults import disarm_all
from headrace.coordinator.observe.progress import MOST_TASKS, ProgressBook
from headrace.coordinator.observe.progress_server import MOST_LINE, ProgressServer
from headrace.dataflow.epoch_result import EpochResult
from headrace.dataflow.operators.task_progress import Reports
from headrace.dataflow.params import EpochParams
from headrace.errors import DivisionByZero, JobFailed
from support import eventually


def book(clock: ManualClock | None = None) -> ProgressBook:
    clock = clock or ManualClock()
    return ProgressBook(clock.monotonic_s, clock.now_ms)


def event(kind: str = "started", attempt: str = "5-1-9", epoch: int = 7, **also: Any) -> dict[str, Any]:
    return {"kind": kind, "attempt": attempt, "epoch": epoch, "operator": "0", "task": 0, "try": 0, "in": 0, "out": 0,
            **also}  # fmt: skip


def test_a_task_is_shown_as_last_reported() -> None:
    found = book()
    with found.attempt("5-1-9", 5, "job-5", 7):
        assert found.note(event()) and found.note(event(task=1))
        assert found.note(event("progress", **{"in": 10, "out": 4}))
        (attempt,) = found.live()
        assert attempt.unfinished() == {"0": (0, 2)}
        assert attempt.tasks["0", 0].rows_in == 10
        found.note(event("ack"))
        found.note(event("decline", task=1, reason="no"))
        (attempt,) = found.live()
        assert [t.state for t in attempt.tasks.values()] == ["done", "declined"]
    assert found.live() == []


KINDS = st.sampled_from(["started", "progress", "ack", "decline"])
ATTEMPTS = st.sampled_from(["5-1-1", "5-1-2", "5-0-1"])


@given(st.lists(st.tuples(KINDS, ATTEMPTS, st.integers(6, 8), st.integers(0, 3), st.integers(0, 2)), max_size=40))
def test_what_is_late_is_ignored_and_leaves_no_memory(events: list[tuple[str, str, int, int, int]]) -> None:
    """PC-13, FS-3: reports of other attempts, epochs, incarnations, and of earlier tries of a task change nothing."""
    found = book()
    newest: dict[int, int] = {}
    with found.attempt("5-1-2", 5, "job-5", 7):
        for kind, attempt, epoch, task, number in events:
            heard = found.note(event(kind, attempt, epoch, task=task, **{"try": number}))
            assert heard == (attempt == "5-1-2" and epoch == 7 and number >= newest.get(task, 0))
            if heard:
                newest[task] = number
        (live,) = found.live()
        assert {k[1]: t.attempt_number for k, t in live.tasks.items()} == newest
    for kind, attempt, epoch, task, number in events:
        assert not found.note(event(kind, attempt, epoch, task=task, **{"try": number}))
    assert found.live() == [] and found._attempts == {}


@pytest.mark.parametrize(
    "garbled",
    [{}, {"kind": "ack"}, event("no such"), event(task="x"), event(task=float("inf")), event(epoch=None),
     event(attempt=["5-1-9"])],
)  # fmt: skip
def test_what_cannot_be_understood_is_counted(garbled: dict[str, Any]) -> None:
    found = book()
    with found.attempt("5-1-9", 5, "job-5", 7):
        assert not found.note(garbled)
    assert found.ignored == 1


def test_memory_is_bounded() -> None:
    clock = ManualClock()
    found = book(clock)
    with found.attempt("5-1-9", 5, "job-5", 7):
        for task in range(MOST_TASKS + 10):
            found.note(event(task=task))
        clock.advance_ms(1000)
        assert found.note(event(task=MOST_TASKS + 5)), "still a sign of life"
        (live,) = found.live()
        assert len(live.tasks) == MOST_TASKS and live.heard_s == clock.monotonic_s()


def test_who_does_not_know_the_token_is_not_heard() -> None:
    """PC-13: nor one that goes on talking without an end of line; the listener stays there for the others."""
    found = book()
    server = ProgressServer(found, "127.0.0.1")
    server.start()
    place, _, token = found.address.partition("/")
    host, _, port = place.partition(":")
    try:
        with found.attempt("5-1-9", 5, "job-5", 7):
            for hello in (b'{"token": "guess"}\n', b"[]\n", b"\n", b"x" * (2 * MOST_LINE), b'{"token": 5}\n'):
                with socket.create_connection((host, int(port))) as peer:
                    try:
                        peer.sendall(hello + json.dumps(event()).encode() + b"\n")
                        peer.shutdown(socket.SHUT_WR)
                        assert peer.recv(1) == b"", "turned away"
                    except OSError:
                        continue
            assert found.live()[0].tasks == {}
            with socket.create_connection((host, int(port))) as peer:
                good = json.dumps({"token": token}) + "\n" + json.dumps(event()) + "\n"
                peer.sendall(good.encode() + b"[1]\n" + b"garbage\n")
                peer.shutdown(socket.SHUT_WR)
                assert peer.recv(1) == b""
            assert len(found.live()[0].tasks) == 1
    finally:
        server.stop()
        server.stop()
    assert found.address == ""


class Stage:
    """A task of a fake epoch."""

    def __init__(self, label: str, partition: int):
        self.label, self.partition, self.attempt_number = label, partition, 0
        self.rows_in = self.rows_out = 0


class ReportingRunner(FakeRunner):
    """Has two tasks that report as real ones do; the second one waits for the gate."""

    def run(self, params: EpochParams, parallelism: int) -> EpochResult:
        with Reports(params.progress, params.attempt, params.to_epoch, [Stage("0", 0)]) as reports:
            reports.acknowledged()
        with Reports(params.progress, params.attempt, params.to_epoch, [Stage("view", 0)]) as reports:
            result = super().run(params, parallelism)
            reports.acknowledged()
        return result


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def db(tmp_path: Path, clock: ManualClock) -> Iterator[Database]:
    made = Database(tmp_path, clock, epoch_timeout_ms=10_000, group_retry_initial_ms=1000, group_retry_max_ms=1000)
    made.c._parts.planning._make_runner = lambda plan, relations: _kept(made, ReportingRunner(plan, relations))  # type: ignore[arg-type]
    yield made
    disarm_all()
    made.close()


def _kept(db: Database, runner: FakeRunner) -> FakeRunner:
    db.runners.append(runner)
    return runner


def hold(db: Database, view: int) -> FakeRunner:
    db.hold(view)
    return db.runner_of(view)


def waits(db: Database, view: int) -> str:
    return next((b.waiting_for for b in db.c.barriers() if b.job_id == view), "")


def test_an_epoch_without_progress_is_given_up_and_tried_again(db: Database, clock: ManualClock) -> None:
    """CK-14, FS-5, PC-12: without any sign of life the attempt is cancelled and fails with what it waited for; it is
    tried again after the back-off. One that reports goes on however long it takes."""
    t = db.table()
    v = db.view("v", t)
    runner = hold(db, v)
    db.insert(t, 1)
    eventually(lambda: waits(db, v) == "operator view: 0 of 1 tasks done")
    (barrier,) = db.c.barriers()
    assert (barrier.tasks_done, barrier.tasks_known, barrier.state) == (1, 2, "running")
    params = runner.calls[-1]
    for _ in range(3):
        clock.advance_ms(8000)
        with Reports(params.progress, params.attempt, params.to_epoch, [Stage("view", 0)]):
            eventually(lambda: db.c.progress()[0].heard_s == clock.monotonic_s())
        db.c._parts.ticker.cancel_overdue()
        assert not runner.cancelled
    clock.advance_ms(10_001)
    db.c._parts.ticker.cancel_overdue()
    assert runner.cancelled == [params.attempt]
    db.until(lambda: db.status(v).status == "failing")
    error = db.status(v).error
    assert isinstance(error, JobFailed) and "made no progress" in error.message
    assert "operator view: 0 of 1" in str(error.detail)
    eventually(lambda: db.events("job_failed"))
    assert db.c.progress() == []
    assert waits(db, v).startswith("its retry in ")
    assert db.status(v).retry_in_ms > 0 and db.status(v).failures == 1
    runner.error = None
    clock.advance_ms(1000)
    db.core.live.notify()
    db.until(lambda: db.status(v).status == "running")
    assert db.read(v) == [[1]]
    with Reports(params.progress, params.attempt, params.to_epoch, [Stage("view", 0)]):
        pass
    assert db.c.progress() == [], "PC-13: the attempt is over"


def test_no_time_out(db: Database, clock: ManualClock) -> None:
    db.c.configure(db.settings.replaced(epoch_timeout_ms=0))
    t = db.table()
    v = db.view("v", t)
    runner = hold(db, v)
    db.insert(t, 1)
    eventually(lambda: waits(db, v).startswith("operator view"))
    clock.advance_ms(10**9)
    db.c._parts.ticker.cancel_overdue()
    assert not runner.cancelled
    runner.gate.set()


def test_every_barrier_says_what_it_waits_for(db: Database, clock: ManualClock) -> None:
    """XC-6: tasks, inputs, cadence, slots, compaction, retries, a pause: each wait has a reason that is shown."""
    t = db.table()
    v = db.view("v", t)
    w = db.view("w", v)
    assert [waits(db, i) for i in (v, w)] == ["", ""], "nothing to do, nothing to wait for"
    runner = hold(db, v)
    db.insert(t, 1)
    eventually(lambda: waits(db, v) == "operator view: 0 of 1 tasks done")
    assert waits(db, w).startswith('its input "v", which is at epoch ')
    runner.error = DivisionByZero("division by zero")
    runner.gate.set()
    db.until(lambda: db.status(v).status == "failing")
    assert "its retry in " in waits(db, v) and "division by zero" in waits(db, v)
    db.c.alter_job(v, paused=True)
    assert "paused" in waits(db, v) and "paused" in db.status(v).waiting_for
    runner.error = None
    db.c.alter_job(v, paused=False, options={"checkpoint_interval_ms": "60000"})
    # Both, and to the end: whatever still ends later would wake the view.
    db.until(
        lambda: all(
            db.status(i).frontier >= db.c.current_epoch() and not db.core.live.graph.jobs[i].activity.epochs
            for i in (v, w)
        )
    )
    assert db.status(v).status == "running"
    db.insert(t, 2)
    db.until(lambda: waits(db, v).startswith("its checkpoint_interval_ms, "))
    # Not by configure(), which would wake the view.
    db.core.runtime.settings = db.settings.replaced(compaction_stall_runs=0)
    clock.advance_ms(60_000)
    assert waits(db, v).startswith("compaction: a state table has ")
    db.core.runtime.settings = db.settings
    assert waits(db, v) == "a free slot among the groups that run at once"
    db.core.live.notify()
    db.until(lambda: db.status(w).frontier >= db.c.current_epoch())
    assert db.c.barriers() == []


def test_a_late_barrier_is_an_event_once(db: Database, clock: ManualClock) -> None:
    """XC-6, PC-28: the watchdog says once for each delay what the view waits for."""
    t = db.table()
    v = db.view("v", t)
    runner = hold(db, v)
    db.insert(t, 1)
    eventually(lambda: waits(db, v).startswith("operator view"))
    look = db.c._parts.ticker._look
    for _ in range(3):
        clock.advance_ms(40_000)
        db.c.tick()
        look()
    assert len(db.events("barrier_late")) == 1
    assert 'view "v" is 80 s behind; it waits for operator view: 0 of 1' in db.events("barrier_late")[0]
    runner.gate.set()
    db.until(lambda: db.status(v).frontier >= db.c.current_epoch())
    look()
    runner.gate.clear()
    db.insert(t, 2)
    clock.advance_ms(80_000)
    db.c.tick()
    look()
    assert len(db.events("barrier_late")) == 2
    runner.gate.set()
