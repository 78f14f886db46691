"""Reads of a coordinator over a fake dataflow: policies, floors over restarts, transactions, what is refused."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_database import Database

from headrace.catalog.contents import SourceContent
from headrace.catalog.records import ObjectRecord
from headrace.common.clock import ManualClock
from headrace.common.faults import disarm_all
from headrace.connectors.base import Admission, Binding, Source
from headrace.connectors.datagen import DatagenSource
from headrace.coordinator.decide.machine import align_for_reads
from headrace.coordinator.decide.query_epochs import Candidate, Floors
from headrace.coordinator.decide.relation import NEVER
from headrace.coordinator.observe.obstacles import refuse_behind
from headrace.coordinator.reads import ReadOptions, Snapshot
from headrace.coordinator.run import ticker
from headrace.dataflow.epoch_result import EpochResult
from headrace.dataflow.params import EpochParams
from headrace.errors import DivisionByZero, QueryCanceled, SnapshotUnavailable, SourceError, UndefinedTable
from support import WAIT_S


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path)
    yield made
    disarm_all()
    made.close()


def contents(db: Database, snapshot: Snapshot) -> dict[int, list[int]]:
    return {i: db.values(t) for i, t in snapshot.tables.items()}


def read(db: Database, *ids: int, **options: object) -> dict[int, list[int]]:
    with db.c.snapshot(ids, options=ReadOptions(**options)) as snapshot:  # type: ignore[arg-type]
        return contents(db, snapshot)


def test_the_policies_over_views_of_different_age(db: Database) -> None:
    """PC-35, PC-37: a paused view holds back `global`, said by name, `snapshot` only where it is read, `latest` never;
    one that is being created counts for none of them."""
    t = db.table()
    v, w = db.view("v", t), db.view("w", t)
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    db.c.alter_job(v, paused=True)
    epoch = db.insert(t, 2)
    db.until(lambda: db.status(w).frontier >= epoch)
    with db.c.snapshot([t, w], options=ReadOptions("global")) as snapshot:
        assert contents(db, snapshot) == {t: [1], w: [1]}
        assert snapshot.notices == ['materialized view "v" is paused; it holds back global reads']
    assert read(db, t, w) == {t: [1, 2], w: [1, 2]}
    with db.c.snapshot([t, v, w], options=ReadOptions("latest")) as snapshot:
        assert contents(db, snapshot) == {t: [1, 2], v: [1], w: [1, 2]}
        assert snapshot.epochs[v] < snapshot.epochs[t] and snapshot.epoch == snapshot.epochs[v]
    with pytest.raises(SnapshotUnavailable, match=r'"v" \(paused\) is at epoch') as caught:
        read(db, t, consistency="global")
    assert "query_consistency = 'snapshot'" in str(caught.value.hint) and caught.value.sqlstate == "40001"
    db.c.alter_job(v, paused=False)
    assert read(db, t, consistency="global") == {t: [1, 2]}


def test_a_view_that_is_being_created_ages_no_read(db: Database) -> None:
    """PC-35: `global` does not count it; nor one that is quarantined or paused before its first checkpoint."""
    t = db.table()
    db.insert(t, 1)
    entered, gate = threading.Event(), threading.Event()
    original = db.runner

    def held(plan: object, relations: object) -> object:
        runner = original(plan, relations)
        runner.gate, runner.entered = gate, entered
        return runner

    db.c._parts.planning._make_runner = held  # type: ignore[assignment]
    v = db.view("v", t, wait=False)
    assert entered.wait(WAIT_S)
    db.insert(t, 2)
    assert read(db, t, consistency="global") == {t: [1, 2]}
    with pytest.raises(SnapshotUnavailable, match="still being created"):
        read(db, v, consistency="latest")
    gate.set()
    db.c.wait_created(v, WAIT_S)


def test_what_catches_up_is_not_waited_for(db: Database) -> None:
    """Its rows are there, and its source does not say yet from which epoch on they are of one moment."""
    t = db.table()
    db.core.live.graph.relations[t].whole_from = NEVER
    db.insert(t, 1)
    v = db.view("v", t, wait=False)
    job = db.core.live.graph.jobs[v]
    db.until(lambda: bool(job.committed))
    with pytest.raises(SnapshotUnavailable, match=r'^materialized view "v" is still being created'):
        read(db, v, timeout_s=0.0)
    assert not job.created


def test_what_is_said_where_nothing_was_shown_or_written(db: Database) -> None:
    t = db.table()
    v = db.view("v", t)
    live = db.core.live
    with live.lock, pytest.raises(SnapshotUnavailable) as caught:
        refuse_behind(
            live.graph, [Candidate(v, [], 0)], live.graph.jobs[v], 0, "snapshot", exactly=False, written=0,
            may_know=lambda job: True,
        )  # fmt: skip
    assert "no epoch came in time" in str(caught.value) and "has written" not in str(caught.value)


def test_the_floor_of_a_session(db: Database) -> None:
    """PC-36: `session` looks only at what the session itself was shown, `off` at nothing, `strict` at all of it."""
    t = db.table()
    v = db.view("v", t)
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    db.c.alter_job(v, paused=True)
    db.insert(t, 2)
    mine, other = Floors(), Floors()
    assert read(db, t, session=other, monotonic="session") == {t: [1, 2]}
    assert read(db, t, v, session=mine, monotonic="session") == {t: [1], v: [1]}
    for floors in (other, mine):
        with pytest.raises(SnapshotUnavailable, match="already shown"):
            read(db, t, v, session=floors, monotonic="strict")
    with pytest.raises(SnapshotUnavailable, match="already shown"):
        read(db, t, v, session=other, monotonic="session")
    assert read(db, t, v, session=other, monotonic="off") == {t: [1], v: [1]}


def test_own_writes(db: Database) -> None:
    """CK-17: a read that asks for its own writes waits for the views that it reads, whatever their cadence, and for
    no others."""
    t = db.table()
    v, broken = db.view("v", t), db.view("broken", t)
    db.c.alter_job(v, options={"checkpoint_interval_ms": "3600000"})
    db.runner_of(broken).error = DivisionByZero("division by zero")
    for i in range(3):
        epoch = db.insert(t, i)
        assert read(db, v, at_least=epoch) == {v: list(range(i + 1))}
    db.until(lambda: db.status(broken).status == "failing")
    with pytest.raises(SnapshotUnavailable, match="has written at epoch") as caught:
        read(db, broken, at_least=epoch)
    assert "division by zero" in str(caught.value.detail) and "read_your_writes" in str(caught.value.hint)


def test_siblings_meet_while_writes_go_on(db: Database) -> None:
    """PC-34, CK-16: views that each take in writes at their own pace are asked to meet at one epoch for a read."""
    t = db.table()
    v, w = db.view("v", t), db.view("w", t)
    stop = threading.Event()

    def write() -> None:
        i = 0
        while not stop.is_set():
            i += 1
            db.insert(t, i)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        last = 0
        for ids in [(t,), (v,), (v, w), (t, v, w)] * 8:
            with db.c.snapshot(ids, timeout_s=WAIT_S) as snapshot:
                found = contents(db, snapshot)
            assert len({tuple(rows) for rows in found.values()}) == 1
            assert len(next(iter(found.values()))) >= last or ids in ((v,), (t,))
            last = len(next(iter(found.values()))) if len(ids) > 1 else last
    finally:
        stop.set()
        writer.join()
    assert all(len(j.stops.epochs) <= 2 for j in db.core.live.graph.jobs.values()), (
        "what readers ask for does not pile up"
    )


def test_a_stop_for_readers_keeps_no_failing_view_from_healing(db: Database) -> None:
    """PC-42: a view that fails at the epoch at which a read wants it goes on to where its input is mended."""
    t = db.table()
    v = db.view("v", t)
    runner = db.runner_of(v)
    db.until(lambda: db.core.live.graph.jobs[v].activity.attempt is None)
    db.c.alter_job(v, paused=True)
    bad = db.insert(t, 1)
    with db.core.live.lock:
        align_for_reads(db.core.live.graph, bad)
    mended = db.insert(t, 2)
    run = runner.run

    def failing(params: EpochParams, parallelism: int) -> EpochResult:
        if params.to_epoch < mended:
            raise DivisionByZero("division by zero")
        return run(params, parallelism)

    runner.run = failing  # type: ignore[method-assign]
    db.c.alter_job(v, paused=False)
    db.until(lambda: db.status(v).failures > 0)
    db.until(lambda: db.core.live.graph.jobs[v].activity.attempt is None)
    db.c.flush(WAIT_S)
    assert db.read(v) == [[1, 2]] and len(db.events("job_failed")) == 1


def test_a_transaction_has_one_epoch(db: Database) -> None:
    """PC-37: its reads are all at the epoch of the first, waiting for a view that is behind, and refused if that has
    passed the epoch in one step, or will not come to it."""
    t = db.table()
    v, w = db.view("v", t), db.view("w", t)
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    runner = db.runner_of(v)
    db.hold(v)
    db.insert(t, 2)
    with db.c.snapshot([t], options=ReadOptions(align=True)) as snapshot:
        epoch = snapshot.epoch
    release = db.c.hold(epoch)
    db.insert(t, 3)
    threading.Timer(0.05, runner.gate.set).start()
    assert read(db, v, exactly=epoch) == {v: [1, 2]}, "it was behind, and stops at the epoch"
    db.c.flush(WAIT_S)
    assert read(db, t, v, exactly=epoch) == {t: [1, 2], v: [1, 2]}
    release()
    db.c.alter_job(w, paused=True)
    db.insert(t, 4)
    with db.c.snapshot([t], options=ReadOptions(align=True)) as snapshot:
        epoch = snapshot.epoch
    with pytest.raises(SnapshotUnavailable, match=r'"w" \(paused\).* the transaction reads at') as caught:
        read(db, w, exactly=epoch)
    assert caught.value.sqlstate == "40001"


def test_a_transaction_does_not_go_back_either(db: Database) -> None:
    """PC-36: what was shown before it began is not shown older in it; what others are shown meanwhile does not
    count."""
    t = db.table()
    v = db.view("v", t)
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    db.c.alter_job(v, paused=True)
    with db.c.snapshot([v], options=ReadOptions(align=True)) as before:
        pass
    db.insert(t, 2)
    assert db.read(t) == [[1, 2]]
    assert read(db, t, exactly=before.epoch, shown=before.shown) == {t: [1]}
    with db.c.snapshot([v], options=ReadOptions(align=True)) as after:
        pass
    with pytest.raises(SnapshotUnavailable, match="before the transaction began") as caught:
        read(db, t, exactly=after.epoch, shown=after.shown)
    assert caught.value.sqlstate == "40001"
    with db.c.snapshot([v], options=ReadOptions(align=True, monotonic="off")) as free:
        pass
    assert read(db, t, exactly=free.epoch, shown=free.shown) == {t: [1]}


def test_a_transaction_that_a_view_has_passed_by(db: Database) -> None:
    """PC-40: content between two checkpoints of a view is never shown; the transaction is told to start again."""
    t = db.table()
    v = db.view("v", t)
    db.c.flush(WAIT_S)
    runner = db.runner_of(v)
    db.until(lambda: db.core.live.graph.jobs[v].activity.attempt is None)
    db.c.alter_job(v, paused=True)
    epochs = [db.insert(t, i) for i in range(3)]
    db.c.alter_job(v, paused=False)
    db.c.flush(WAIT_S)
    assert runner.calls[-1].to_epoch >= epochs[-1]
    with pytest.raises(SnapshotUnavailable, match="from before that epoch to after it") as caught:
        read(db, t, v, exactly=epochs[1])
    assert "start it again" in str(caught.value.hint)
    assert read(db, t, exactly=epochs[1]) == {t: [0, 1]}


def test_a_wait_can_be_cancelled(db: Database) -> None:
    """XC-6: a read that waits asks whether it was cancelled, and ends at its time limit with the reason."""
    t = db.table()
    v = db.view("v", t)
    runner = db.runner_of(v)
    db.hold(v)
    db.insert(t, 1)
    db.read(t)

    def check() -> None:
        raise QueryCanceled("canceling statement due to user request")

    with pytest.raises(QueryCanceled):
        read(db, t, v, check=check)
    with pytest.raises(SnapshotUnavailable, match=r'"v" .*running.* is at epoch') as caught:
        read(db, t, v, timeout_s=0.01)
    assert "floor" in str(caught.value.detail)
    runner.gate.set()
    assert read(db, t, v) == {t: [1], v: [1]}


def test_a_late_view_says_so(tmp_path: Path) -> None:
    """A view that is further behind than lag_notice_ms is read with a notice; one below a failing view too."""
    clock = ManualClock()
    db = Database(tmp_path, clock, lag_notice_ms=60_000)
    try:
        t = db.table()
        v = db.view("v", t)
        w = db.view("w", v)
        db.c.flush(WAIT_S)
        runner = db.runner_of(v)
        db.hold(v)
        db.insert(t, 1)
        clock.advance_ms(61_000)
        db.c.tick()
        with db.c.snapshot([v]) as snapshot:
            assert ["61 s behind" in n for n in snapshot.notices] == [True]
        with db.c.snapshot([t]) as snapshot:
            assert snapshot.notices == []
        runner.error = DivisionByZero("division by zero")
        runner.gate.set()
        db.until(lambda: db.status(v).status == "failing")
        with db.c.snapshot([w]) as snapshot:
            assert 'view "v" is failing since' in snapshot.notices[0]
    finally:
        db.close()


def test_no_restart_makes_reads_go_back(tmp_path: Path) -> None:
    """PC-36, CK-15: what was shown before a restart is the least that is shown after it, whichever relations are read
    together, with views that stand still at different epochs; each stays readable by itself."""
    rng = random.Random(7)
    db = Database(tmp_path)
    t = db.table()
    views = [db.view("a", t), db.view("b", t)]
    views.append(db.view("c", views[0], t))
    relations = [t, *views]
    shown: dict[int, list[int]] = {i: [] for i in relations}
    refused = written = 0
    try:
        for round_number in range(6):
            for _ in range(12):
                action = rng.random()
                if action < 0.35:
                    written += 1
                    db.insert(t, written)
                elif action < 0.45:
                    db.c.alter_job(rng.choice(views), paused=rng.random() < 0.5)
                elif action < 0.55:
                    db.c.flush(WAIT_S)
                else:
                    ids = rng.sample(relations, rng.randint(1, 3))
                    policy = rng.choice(["snapshot", "global", "latest"])
                    try:
                        found = read(db, *ids, consistency=policy)
                    except SnapshotUnavailable:
                        assert policy == "global" or (policy == "snapshot" and len(ids) > 1)
                        refused += 1
                        continue
                    for i, values in found.items():
                        assert set(shown[i]) <= set(values), (round_number, i)
                        shown[i] = values
            db.close()
            db = Database(tmp_path)
            for i in relations:
                (values,) = db.read(i)
                assert set(shown[i]) <= set(values), "readable by itself at once"
                shown[i] = values
        assert refused and written
    finally:
        db.close()


def test_a_restart_remembers_what_may_have_been_shown(tmp_path: Path) -> None:
    """PC-36: without any I/O per read, a read after the restart is refused if it would show a table before its newest
    change, which somebody may have seen."""
    db = Database(tmp_path)
    t = db.table()
    v = db.view("v", t)
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    db.c.alter_job(v, paused=True)
    db.insert(t, 2)
    assert db.read(t) == [[1, 2]]
    db.close()
    db = Database(tmp_path)
    try:
        with pytest.raises(SnapshotUnavailable, match=r'"v" .*paused'):
            read(db, t, v)
        assert read(db, v) == {v: [1]}
        db.c.alter_job(v, paused=False)
        assert read(db, t, v) == {t: [1, 2], v: [1, 2]}
    finally:
        db.close()


def test_a_restart_without_news_accepts_older_epochs_of_the_same_content(tmp_path: Path) -> None:
    """PC-36: a paused view whose inputs have not changed since can be read together with them after a restart."""
    db = Database(tmp_path)
    t = db.table()
    v = db.view("v", t)
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    db.c.alter_job(v, paused=True)
    db.c.tick()
    db.close()
    db = Database(tmp_path)
    try:
        assert read(db, t, v) == {t: [1], v: [1]}
    finally:
        db.close()


def test_a_source_that_answers_late_is_not_read_as_empty(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that is the first to read it waits until it is bound, or says which source does not answer."""
    monkeypatch.setattr(ticker, "POLL_WAIT_S", 0.001)
    answer, latest_offsets = threading.Event(), DatagenSource.latest_offsets

    def late(source: DatagenSource, *given: Any) -> Binding:
        assert answer.wait(WAIT_S)
        return latest_offsets(source, *given)

    monkeypatch.setattr(DatagenSource, "latest_offsets", late)
    s = db.source("s", connector="datagen", rows_per_second="unlimited", number_of_rows="5")
    with pytest.raises(SnapshotUnavailable, match=r'source "s" has not said'):
        db.c.snapshot([s], timeout_s=0.01)
    with db.c.snapshot([s], options=ReadOptions(check=answer.set)) as snapshot:
        assert snapshot.sources[s]["0"] == 5


MADE = {"connector": "datagen", "rows_per_second": "10"}


class Store:
    """What sources answer with: so many rows are there, of which each answer has some more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rows: int, at_once: int | None = None) -> None:
        self.rows, self.asked = rows, 0
        self.may_answer, self.error = threading.Event(), ""
        self.may_answer.set()

        def latest(source: DatagenSource, after: Any, *given: Any) -> Binding:
            self.asked += 1
            there, before = self.rows, int(after.get("0", 0))
            assert self.may_answer.wait(WAIT_S)
            if self.error:
                raise SourceError(self.error)
            reached = there if at_once is None else min(there, before + at_once)
            return Binding({"0": reached}, reached - before, False, left={"0": there - reached})

        monkeypatch.setattr(DatagenSource, "latest_offsets", latest)


def seen(db: Database, source: int, **options: Any) -> int:
    with db.c.snapshot([source], options=ReadOptions(**options)) as snapshot:
        return int(snapshot.sources[source]["0"])


def test_an_answer_to_an_older_question_is_not_what_there_is_by_now(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticker, "POLL_WAIT_S", 0.001)
    store = Store(monkeypatch, 5)
    s = db.source("s", **MADE)
    assert seen(db, s) == 5
    store.may_answer.clear()
    with pytest.raises(SnapshotUnavailable):
        seen(db, s, timeout_s=0.0)
    store.rows = 6
    assert seen(db, s, check=store.may_answer.set) == 6


@pytest.mark.parametrize("bound", [False, True])
def test_an_error_of_an_older_question_is_not_what_a_source_says_by_now(
    db: Database, monkeypatch: pytest.MonkeyPatch, bound: bool
) -> None:
    """Nobody has asked it since, and now it takes its time."""
    store = Store(monkeypatch, 5)
    s = db.source("s", **MADE)
    assert not bound or seen(db, s) == 5
    store.error = "no answer"
    with pytest.raises(SourceError, match="no answer"):
        seen(db, s)
    monkeypatch.setattr(ticker, "POLL_WAIT_S", 0.001)
    store.error, store.rows, before = "", 6, store.asked
    store.may_answer.clear()

    def waiting() -> None:
        if store.asked > before:
            store.may_answer.set()

    assert seen(db, s, check=waiting) == 6


def test_all_there_is_of_a_source_is_asked_for_until_nobody_waits(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(monkeypatch, 10, at_once=3)
    s = db.source("s", **MADE)
    assert seen(db, s) == 10

    def more() -> None:
        store.rows += 3
        if store.rows > 40:
            raise QueryCanceled("nobody waits")

    store.rows += 6
    with pytest.raises(QueryCanceled):
        seen(db, s, check=more)


def test_all_there_is_of_a_source_that_says_only_that_there_is_more(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of files and lakes do: how many rows are left they do not know."""

    def latest(source: DatagenSource, after: Any, *given: Any) -> Binding:
        before = int(after.get("0", 0))
        reached = min(10, before + 3)
        return Binding({"0": reached}, reached - before, False, behind=True)

    monkeypatch.setattr(DatagenSource, "latest_offsets", latest)
    assert seen(db, db.source("s", **MADE)) == 10


def test_all_there_is_of_a_source_that_answers_late(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by an answer that is not the first: what it has said of the rows before is not what there is."""
    monkeypatch.setattr(ticker, "POLL_WAIT_S", 0.001)
    asked, may_answer = threading.Event(), threading.Event()

    def latest(source: DatagenSource, after: Any, *given: Any) -> Binding:
        asked.set()
        assert may_answer.wait(WAIT_S)
        may_answer.clear()
        before = int(after.get("0", 0))
        reached = min(10, before + 3)
        return Binding({"0": reached}, reached - before, False, behind=reached < 10)

    def waiting() -> None:
        if asked.is_set():
            asked.clear()
            may_answer.set()

    monkeypatch.setattr(DatagenSource, "latest_offsets", latest)
    assert seen(db, db.source("s", **MADE), check=waiting) == 10


def test_of_rows_without_end_a_query_takes_what_one_epoch_takes(db: Database) -> None:
    s = db.source("s", connector="datagen", rows_per_second="unlimited", max_rows_per_epoch="50")
    assert (seen(db, s), seen(db, s)) == (50, 100)


def test_a_query_of_what_no_job_reads_heeds_no_limit_of_the_source(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, latest = list[Admission](), DatagenSource.latest_offsets

    def noted(source: DatagenSource, after: Any, limit: Admission, now_ms: int) -> Binding:
        limits.append(limit)
        return latest(source, after, limit, now_ms)

    monkeypatch.setattr(DatagenSource, "latest_offsets", noted)
    own = {"rows_per_second": "unlimited", "number_of_rows": "1000", "max_rows_per_epoch": "10"}
    s = db.source("s", connector="datagen", **own)
    assert seen(db, s) == 1000 and [limit.whole for limit in limits] == [True], "not by a hundred ticks"
    other = db.source("other", connector="datagen", **own)
    db.view("v", other)
    limits.clear()
    db.c.tick()
    assert [limit.whole for limit in limits] == [False], "what a job takes in is bounded as the source says"


def test_many_who_ask_at_once_are_answered_by_one_tick(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(monkeypatch, 5)
    s = db.source("s", **MADE)
    asks = db.c._parts.ticker
    asks.ask({s: -math.inf})
    assert store.asked == 1, "it is not bound"
    told_s = db.core.live.graph.relations[s].told_s
    asks.ask({s: told_s - 0.001})
    assert store.asked == 1, "another one has asked after this one began to wait"
    asks.ask({s: told_s})
    assert store.asked == 2, "what there was at the same moment may be older"
    asks.ask({s + 1000: told_s})
    assert store.asked == 2, "it is gone"


def test_a_flush_has_what_is_there_though_the_source_is_still_told_something(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was paused, and is told how far its readers are; then it goes on, and is told more after that."""
    store, told, begun, go_on = Store(monkeypatch, 5), list[bool](), threading.Event(), threading.Event()

    def acknowledge(source: DatagenSource, offsets: Any) -> None:
        paused = threading.current_thread().name.startswith("headrace-telling")
        if paused:
            begun.set()
            assert go_on.wait(WAIT_S)
        told.append(paused)

    monkeypatch.setattr(DatagenSource, "holds", True)
    monkeypatch.setattr(DatagenSource, "acknowledge", acknowledge)
    monkeypatch.setattr(ticker, "POLL_WAIT_S", WAIT_S)
    s = db.source("s", **MADE)
    db.view("v", s)
    db.c.flush(WAIT_S)
    db.c.alter_objects([s], lambda o: replace(o, content=SourceContent(paused=True)), "is paused")
    told.clear()
    db.c.tick()
    assert begun.wait(WAIT_S)
    store.rows = 6
    db.c.alter_objects([s], lambda o: replace(o, content=SourceContent()), "goes on")
    ask = ticker.Ticker._ask

    def asked(*given: Any) -> Any:
        found = ask(*given)
        go_on.set()
        return found

    monkeypatch.setattr(ticker.Ticker, "_ask", asked)
    db.c.flush(WAIT_S)
    go_on.set()
    assert db.catalog.state.all_remaps(s)[-1].offsets["0"] == 6
    assert told[:2] == [True, False], "in this order"


def test_a_source_that_is_slowed_down_is_asked_once(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a query would take as long as all of its rows are let in."""
    store = Store(monkeypatch, 1_000_000, at_once=1)
    s = db.source("s", **MADE, source_rate_limit="1000000")
    assert (seen(db, s), seen(db, s), store.asked) == (1, 2, 2)


def test_a_source_that_failed_and_was_paused_shows_what_it_had(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(monkeypatch, 5)
    s = db.source("s", **MADE)
    assert seen(db, s) == 5
    store.error = "no answer"
    with pytest.raises(SourceError, match="no answer"):
        seen(db, s)
    held = SourceContent(paused=True), SourceContent()
    db.c.alter_objects([s], lambda record: replace(record, content=held[0]), "paused")
    assert seen(db, s) == 5
    db.c.alter_objects([s], lambda record: replace(record, content=held[1]), "resumed")
    with pytest.raises(SourceError, match="no answer"):
        seen(db, s)


def test_a_source_that_is_altered_while_it_is_opened(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is opened again, by what it is then."""
    monkeypatch.setattr(ticker, "POLL_WAIT_S", 0.001)
    s = db.source("s", **MADE)
    asks = db.c._parts.ticker
    opened, may_open = asks._vault.open, threading.Event()

    def late(record: ObjectRecord) -> Source:
        assert may_open.wait(WAIT_S)
        return opened(record)

    monkeypatch.setattr(asks._vault, "open", late)
    asks.tick(also=[s])
    db.c.alter_objects([s], lambda r: replace(r, options={**r.options, "rows_per_second": "20"}), "altered")
    asks.tick(also=[s])
    seen(db, s, check=may_open.set)
    source = asks._readers[s].source
    assert isinstance(source, DatagenSource) and source.rate == 20


def test_a_source_that_is_dropped_while_it_is_asked(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticker, "POLL_WAIT_S", 0.001)
    store = Store(monkeypatch, 5)
    s = db.source("s", **MADE)
    store.may_answer.clear()
    dropped: list[None] = []

    def drop() -> None:
        if store.asked and not dropped:
            dropped.append(db.c.drop([s]))  # type: ignore[func-returns-value]
            store.may_answer.set()

    with pytest.raises(UndefinedTable):
        seen(db, s, timeout_s=5.0, check=drop)


def test_within_a_transaction_a_source_is_asked_once(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(monkeypatch, 5)
    s = db.source("s", **MADE)
    assert seen(db, s) == 5
    epoch = db.c.current_epoch()
    store.rows = 6
    assert (seen(db, s, exactly=epoch), store.asked, db.c.current_epoch()) == (5, 1, epoch)


def test_a_relation_that_is_dropped_between_a_query_and_its_reading(db: Database) -> None:
    """PC-39: what has its snapshot reads all of that, whatever is deleted meanwhile; what has none gets an error."""
    t = db.table()
    v = db.view("v", t)
    db.insert(t, 1, 2)
    db.c.flush(WAIT_S)
    db.insert(t, 3)
    db.c.flush(WAIT_S)
    with db.c.snapshot([t, v], timeout_s=WAIT_S) as held:
        db.c.drop([t, v])
        db.c.compact()
        db.c.vacuum()
        with pytest.raises(UndefinedTable), db.c.snapshot([t, v], timeout_s=WAIT_S):
            pass
        assert contents(db, held) == {t: [1, 2, 3], v: [1, 2, 3]}
    again = db.table()
    with pytest.raises(UndefinedTable), db.c.snapshot([v, again], timeout_s=WAIT_S):
        pass
    assert db.read(again) == [[]]
