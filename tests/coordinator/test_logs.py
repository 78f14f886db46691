"""The logs that views have not read: what is kept for whom, what is truncated when, and what a limit does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fake_groups import Logs
from silence import POINTS, silent

from headrace.catalog.edits import AddEvent, RaiseSafe
from headrace.common.faults import arm, disarm_all
from headrace.coordinator.observe.watchdog import MIB
from headrace.coordinator.upkeep.logs import LogKeeper
from headrace.errors import DivisionByZero, HeadraceError, InvalidParameter, LogLost, StorageError
from support import WAIT_S

MANY = range(1000, 61_000)
"""Rows that take more than a MiB."""


@pytest.fixture
def open_db(tmp_path: Path) -> Iterator[Callable[..., Logs]]:
    made: list[Logs] = []

    def open_(**settings: Any) -> Logs:
        made.append(Logs(tmp_path, **settings))
        return made[-1]

    yield open_
    disarm_all()
    for db in made:
        db.close()


@pytest.fixture
def db(open_db: Callable[..., Logs]) -> Logs:
    return open_db()


# ---- what is kept, and for how long


def test_a_log_is_truncated_by_the_commit_of_its_reader(db: Logs) -> None:
    """LS-15: never above what the reader has committed, and up to that at once: with its state."""
    t = db.table()
    v = db.view("v", t)
    db.c.alter_job(v, options={"max_rows_per_epoch": "7"})
    seen = len(db.seen)
    apply = db.catalog._apply

    def watched(change: Any, number: int) -> None:
        apply(change, number)
        job = db.catalog.state.jobs.get(v)
        assert job is not None and db.durable_safe(t) <= job.committed_epoch

    db.catalog._apply = watched  # type: ignore[method-assign]
    for n, point in enumerate(["commit.before", "commit.after", "catalog.commit.before", "catalog.commit.after"] * 2):
        arm(point, "fail", nth=1)
        with suppress(HeadraceError):
            db.insert(t, *range(100 * n, 100 * n + 5 * (n + 1)))
        db.c.compact()
        disarm_all()
        db.c.compact()
        db.c.flush(WAIT_S)
        (committed,) = db.committed(v)
        db.insert(t, -n)
        db.c.alter_job(v, paused=True)
        db.insert(t, -n, -n - 1)
        (now,) = db.committed(v)
        assert now >= committed
        db.settled()
        assert db.durable_safe(t) == now, "all that it has committed is truncated, and nothing else"
        db.c.alter_job(v, paused=False)
    db.c.flush(WAIT_S)
    assert db.read(t) == db.read(v)
    tables = set(db.core.live.graph.jobs[v].tables.values())
    steps, before = 0, dict.fromkeys(tables, 0)
    for change in db.seen[seen:]:
        moved = any(r.COLLECTION == "job" and r.id == v and r.committed_epoch for r in change.puts)
        states = {r.id: r.committed_epoch for r in change.puts if r.COLLECTION == "state_table" and r.id in tables}
        states = {i: epoch for i, epoch in states.items() if epoch > before[i]}
        before |= states
        positions = [r for r in change.puts if r.COLLECTION == "position"]
        written = {r.ref.table_id for r in change.puts if r.COLLECTION == "run"} & tables
        assert not states or (moved and set(states) == tables and len(set(states.values())) == 1)
        assert not positions or written, "a position within an epoch comes with the state of the step before it"
        steps += bool(positions)
    assert steps, "large epochs are taken in by steps"


def test_truncation_keeps_each_readers_log_and_nothing_else(db: Logs) -> None:
    """PC-17, PC-18: what lies at or below the slowest reader is one sum, what lies above is there epoch by epoch."""
    t = db.table()
    slow, fast = db.view("slow", t), db.view("fast", t)
    changes: dict[int, Counter[int]] = {}

    def change(n: int) -> None:
        if n % 3:
            changes[db.insert(t, n, n + 100)] = Counter((n, n + 100))
        else:
            changes[db.delete(t, n - 1)] = Counter({n - 1: -1})

    for n in range(1, 8):
        change(n)
    db.c.flush(WAIT_S)
    db.c.alter_job(slow, paused=True)
    for n in range(8, 16):
        change(n)
        db.c.flush(WAIT_S)
    db.settled()
    position, last = db.committed(slow)[0], max(changes)
    assert db.durable_safe(t) == position == min(db.committed(slow, fast))
    low = [n for epoch, rows in changes.items() if epoch <= position for n in rows.elements()]
    assert sum(r.rows for r in db.refs(t)) <= len(low) + sum(len(r) for e, r in changes.items() if e > position)
    for epoch in [position, *(e for e in changes if e > position)]:
        expected: Counter[int] = Counter()
        for other, rows in changes.items():
            if epoch < other <= last:
                expected.update(rows)
        assert db.log(t, epoch, last) == Counter({n: w for n, w in expected.items() if w})
    db.c.alter_job(slow, paused=False)
    db.c.flush(WAIT_S)
    db.insert(t, 1000)
    db.c.flush(WAIT_S)
    db.settled()
    (rest,) = db.read(t)
    assert sum(r.rows for r in db.refs(t)) == len(rest), "no log is left: each row is there once"


def test_nothing_is_left_of_a_log_that_has_been_read(open_db: Callable[..., Logs]) -> None:
    """LS-18: after the next compaction no row lies above the safe epoch, and a busy past takes no room."""
    db = open_db(vacuum_grace_ms=0)
    t = db.table()
    v = db.view("v", t)
    db.insert(t, 1, 2, 3)

    def idle() -> tuple[list[int], int, int]:
        """Rows of the runs, their bytes, and the objects of the store, once all is read, compacted and deleted."""
        db.c.flush(WAIT_S)
        db.insert(t, 9)
        db.c.flush(WAIT_S)
        db.delete(t, 9)
        db.c.flush(WAIT_S)
        db.settled()
        db.c.vacuum()
        db.c.vacuum()
        runs = list(db.catalog.state.runs.values())
        return (
            sorted(r.ref.rows for r in runs),
            sum(r.ref.length for r in runs),
            len(list(db.core.storage.store.list())),
        )

    base = idle()
    for n in range(100, 160):
        db.insert(t, *range(n, n + 20))
        db.delete(t, *range(n, n + 20))
        if n % 7 == 0:
            db.c.flush(WAIT_S)
    assert sum(r.ref.rows for r in db.catalog.state.runs.values()) > sum(base[0])
    assert idle() == base
    for relation in (t, v):
        assert all(ref.epoch_hi <= db.durable_safe(relation) for ref in db.refs(relation))
    transactions = len(db.seen)
    db.settled()
    assert len(db.seen) == transactions, "an idle database stays as it is"
    assert db.read(t, v) == [[1, 2, 3]] * 2


def test_a_view_is_dropped_with_a_backlog(db: Logs) -> None:
    """LS-25: what it runs is cancelled and nothing more of the backlog is run; its log goes."""
    t = db.table()
    v, other = db.view("v", t), db.view("other", t)
    db.c.alter_job(v, options={"max_rows_per_epoch": "10"})
    db.c.flush(WAIT_S)
    runner = db.runner_of(v)
    db.hold(v)
    db.insert(t, *range(500))
    db.until_held(v)
    for n in range(10):
        db.insert(t, n)
        db.delete(t, n)
    begun = len(runner.calls)
    db.c.drop([v])
    assert runner.cancelled and len(runner.calls) == begun
    state = db.catalog.state
    assert v not in state.jobs and not state.positions and not state.tables_of(v)
    db.c.flush(WAIT_S)
    assert db.core.live.graph.log_readers(t) == db.committed(other) and not db.core.storage.pins.epochs(t)
    db.insert(t, 1000)
    db.c.flush(WAIT_S)
    db.settled()
    assert db.durable_safe(t) == db.committed(other)[0]
    assert sum(r.rows for r in db.refs(t)) == len(set(db.read(t)[0]))
    assert db.read(t) == db.read(other)


# ---- limits


def test_a_log_at_its_limit_is_told_once_and_kept(db: Logs) -> None:
    """LS-27, LS-26, XC-6: an event each time that it passes the limit, a notice while it is beyond; nothing is lost."""
    t = db.table()
    v, other = db.view("v", t), db.view("other", t)
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    db.c.alter_job(v, paused=True)
    db.insert(t, 2)
    db.c.check_logs()
    assert not db.events("log_growing") and db.edge(t, v).log_state == "kept"
    for _ in range(2):
        db.insert(t, *MANY)
        db.c.flush(WAIT_S)
        for _ in range(3):
            db.c.check_logs()
            db.settled()
    (event,) = db.events("log_growing")
    assert 'view "v" has not read' in event and "log_limit_mb = 1;" in event and "paused" in event
    assert "RESUME" in db.status(v).waiting_for and 'MiB of the log of "t"' in db.status(v).waiting_for
    assert db.status(other).waiting_for == ""
    edge = db.edge(t, v)
    assert (edge.log_state, edge.limit_bytes, edge.backlog_rows) == ("growing", MIB, 1 + 2 * len(MANY))
    assert edge.backlog_bytes == db.core.live.graph.jobs[v].growing[t] > MIB
    assert db.edge(t, other).log_state == "kept" and db.edge(t, other).backlog_bytes == 0
    db.c.alter_job(v, paused=False)
    db.c.flush(WAIT_S)
    db.c.check_logs()
    assert db.status(v).waiting_for == "" and db.read(v) == db.read(t) and len(db.read(v)[0]) == 2 + 2 * len(MANY)
    db.c.alter_job(v, paused=True)
    db.delete(t, *MANY)
    db.c.flush(WAIT_S)
    db.c.check_logs()
    assert len(db.events("log_growing")) == 2 and not db.events("log_dropped")


def test_a_merged_run_counts_for_what_is_unread_of_it(open_db: Callable[..., Logs]) -> None:
    """LS-26, LS-27: a large table is not a large log."""
    db = open_db(log_limit_mb=2)
    t = db.table()
    v = db.view("v", t)
    db.insert(t, *MANY)
    db.c.flush(WAIT_S)
    db.c.alter_job(v, paused=True)
    unread = 50_000
    db.insert(t, *range(-unread, 0))
    db.settled()
    (ref,) = db.refs(t)
    assert ref.rows == len(MANY) + unread and ref.length > 2 * MIB
    db.c.check_logs()
    db.c.check_logs()
    assert not db.events("log_growing")
    edge = db.edge(t, v)
    assert (edge.backlog_rows, edge.backlog_epochs, edge.log_state) == (unread, 1, "kept")
    assert edge.backlog_bytes == -(-ref.length * unread // ref.rows)


@pytest.mark.parametrize("hindrance", ["paused", "failing"])
def test_a_log_beyond_its_limit_is_given_up_where_that_is_wanted(db: Logs, hindrance: str) -> None:
    """LS-27, PC-19: with an event in the same transaction; its view is quarantined and stays readable, others go on."""
    t = db.table()
    v, other = db.view("v", t), db.view("other", t)
    below = db.view("below", v)
    db.c.alter_job(v, options={"log_limit_policy": "drop"})
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    runner = db.runner_of(v)
    if hindrance == "paused":
        db.c.alter_job(v, paused=True)
    else:
        # It is not tried again by itself: an attempt that is under way keeps what it reads.
        later = {"group_retry_initial_ms": 3_600_000, "group_retry_max_ms": 3_600_000}
        db.c.configure(db.settings.replaced(**later))
        runner.error = DivisionByZero("division by zero")
    db.insert(t, *MANY)
    db.until(lambda: db.core.live.graph.job_frontier(db.core.live.graph.jobs[other]) >= db.c.current_epoch())
    if hindrance == "failing":
        db.until(lambda: db.core.live.graph.jobs[v].failures > 0)
    (position,) = db.committed(v)
    db.c.check_logs()
    assert db.durable_safe(t) > position and len(db.events("log_growing")) == len(db.events("log_dropped")) == 1
    (change,) = [c for c in db.seen if any(getattr(r, "kind", "") == "log_dropped" for r in c.puts)]
    assert any(r.COLLECTION == "state_table" and r.safe_epoch > position for r in change.puts)
    assert 'the log of "t" is gone' in db.status(v).waiting_for and db.edge(t, v).log_state == "lost"
    assert db.core.live.graph.log_readers(t) == db.committed(other)
    runner.error = None
    if hindrance == "paused":
        db.c.alter_job(v, paused=False)
    else:
        with db.core.live.changed:
            db.core.live.graph.jobs[v].retry(0.0)
            db.core.live.changed.notify_all()
    db.until(lambda: isinstance(db.core.live.graph.jobs[v].error, LogLost))
    assert db.status(v).status == "quarantined" and len(db.events("job_quarantined")) == 1
    db.delete(t, *MANY)
    db.c.flush(WAIT_S)
    db.settled()
    db.c.check_logs()
    assert sum(r.rows for r in db.refs(t)) == 1, "nothing is kept for it any more"
    assert db.read(other) == db.read(v) == db.read(below) == [[1]] and db.committed(v) == [position]
    assert len(db.events("log_dropped")) == 1
    db.c.drop([below])
    db.c.drop([v])
    assert db.read(db.view("again", t)) == [[1]]


def test_what_others_need_is_not_given_up(db: Logs) -> None:
    """LS-27, PC-8: a view that keeps its log, a query and history that can be asked for."""
    t = db.table()
    v, keeps = db.view("v", t), db.view("keeps", t)
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    db.c.alter_job(v, paused=True, options={"log_limit_policy": "drop"})
    db.c.alter_job(keeps, paused=True)
    snapshot = db.c.snapshot([t])
    db.insert(t, *MANY)
    db.c.check_logs()
    assert len(db.events("log_growing")) == 2
    db.c.alter_job(keeps, paused=False)
    db.c.flush(WAIT_S)
    db.c.check_logs()
    assert db.values(snapshot.tables[t]) == [1]
    snapshot.close()
    db.c.configure(db.settings.replaced(retention_ms=3_600_000))
    db.c.check_logs()
    db.c.configure(db.settings.replaced(log_limit_mb=0))
    db.c.check_logs()
    assert not db.events("log_dropped") and db.durable_safe(t) <= db.committed(v)[0]
    db.c.alter_job(v, paused=False)
    db.c.flush(WAIT_S)
    assert db.read(v) == db.read(t)


def test_a_view_that_has_gone_on_keeps_its_log(db: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """LS-27: what it reads between the look at its log and the decision counts."""
    t = db.table()
    v = db.view("v", t)
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    db.c.alter_job(v, paused=True, options={"log_limit_policy": "drop"})
    db.insert(t, *MANY)
    say = LogKeeper._say

    def catch_up(keeper: LogKeeper, upstream: int, downstream: int) -> None:
        say(keeper, upstream, downstream)
        db.c.alter_job(v, paused=False)
        db.c.flush(WAIT_S)
        db.c.alter_job(v, paused=True)
        db.insert(t, 2)

    monkeypatch.setattr(LogKeeper, "_say", catch_up)
    db.c.check_logs()
    assert db.events("log_growing") and not db.events("log_dropped")
    db.c.alter_job(v, paused=False)
    db.c.flush(WAIT_S)
    assert db.read(v) == db.read(t)


def dropping(db: Logs) -> tuple[int, int]:
    """A table, and a paused view whose log of it is to be dropped."""
    t = db.table()
    v = db.view("v", t)
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    db.c.alter_job(v, paused=True, options={"log_limit_policy": "drop"})
    db.insert(t, *MANY)
    return t, v


def test_a_safe_epoch_is_put_back_no_further_than_what_is_durable(db: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """I6: giving a log up is refused because the table has been merged further meanwhile."""
    t, _ = dropping(db)
    transact = db.catalog.transact

    def overtaken(edits: Any) -> int:
        edits = list(edits)
        if any(isinstance(e, AddEvent) and e.kind == "log_dropped" for e in edits):
            assert db.core.locks.raising.locked(), "nobody else raises it meanwhile"
            monkeypatch.setattr(db.catalog, "transact", transact)
            epoch = db.insert(t, 5)
            transact([RaiseSafe(db.core.live.graph.relations[t].state_table, epoch)])
        return transact(edits)

    monkeypatch.setattr(db.catalog, "transact", overtaken)
    db.c.check_logs()
    assert db.core.live.graph.relations[t].safe == db.durable_safe(t) > 0 and not db.events("log_dropped")


@pytest.mark.parametrize("point", POINTS)
def test_a_log_that_was_given_up_without_an_answer(db: Logs, point: str) -> None:
    """I6: it is learned later whether it has been; it does not go back before, and is given up once."""
    t, v = dropping(db)
    before = db.core.live.graph.relations[t].safe
    db.c._parts.logs._over.add((t, v))  # that it grows is told already
    with silent(db, point), pytest.raises(StorageError):
        db.c.check_logs()
    assert db.core.live.graph.relations[t].safe > before
    db.c.check_logs()
    db.c.check_logs()
    assert db.core.live.graph.relations[t].safe == db.durable_safe(t) > before
    assert len(db.events("log_dropped")) == 1 and not db.c._parts.logs._unsure


def test_a_lost_log_is_known_after_a_restart_whatever_is_left_of_it(open_db: Callable[..., Logs]) -> None:
    """LS-27: changes that came to nothing when they were merged are missed all the same: never a wrong claim."""
    db = open_db()
    t = db.table()
    db.insert(t, *MANY)
    v = db.view("v", t)
    w = db.view("w", v)
    db.c.flush(WAIT_S)
    db.c.alter_job(v, paused=True, options={"log_limit_policy": "drop"})
    (position,) = db.committed(v)
    db.delete(t, *MANY)
    db.c.check_logs()
    db.settled()
    assert not db.refs(t), "not a row of the table is left, nor of its log"
    db.close()
    db = open_db()
    assert db.core.live.graph.job_frontier(db.core.live.graph.jobs[v]) == position and db.edge(t, v).log_state == "lost"
    db.c.flush(WAIT_S)
    assert db.read(t) == [[]] and len(db.read(v)[0]) == len(db.read(w)[0]) == len(MANY)
    db.c.alter_job(v, paused=False)
    db.until(lambda: db.core.live.graph.jobs[v].status == "quarantined")
    assert db.core.live.graph.exact(v)[-1][1] == position and db.committed(v) == [position]


@pytest.mark.parametrize(("option", "value"), [("log_limit_mb", "-1"), ("log_limit_policy", "forget")])
def test_limits_are_checked(db: Logs, option: str, value: str) -> None:
    v = db.view("v", db.table())
    with pytest.raises(InvalidParameter, match=option):
        db.c.alter_job(v, options={option: value})
