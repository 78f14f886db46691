"""The bindings of a source: for whom they are kept, for how long, and what is known once they are gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_database import FakePlan, FakePlanner
from fake_groups import Groups

from headrace.catalog.edits import EditRejected, Put
from headrace.catalog.records import RemapRecord, SourceRecord
from headrace.common.clock import ManualClock
from headrace.common.epoch import TOLERATED_AHEAD_MS
from headrace.coordinator.decide.relation import NEVER
from headrace.coordinator.decide.watermarks import watermark_at
from headrace.coordinator.run import ticker
from headrace.coordinator.run.ticker import Ticker
from headrace.coordinator.upkeep import logs
from headrace.coordinator.upkeep.compaction import KEPT_STALE
from headrace.errors import EpochTooOld, LogLost, StorageError
from headrace.plan.watermark_rules import EventTime, of_column
from support import WAIT_S

TICKS = KEPT_STALE + 30
OPTIONS = {"connector": "datagen", "rows_per_second": "1000"}


class Bound(Groups):
    """A source that is bound to other offsets at each tick; no history is kept but what someone needs."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.clock = ManualClock()
        given = {
            "retention_ms": 0,
            "log_limit_mb": 1,
            "compaction_stall_runs": 1000,
            "group_retry_initial_ms": 1,
            **settings,
        }
        super().__init__(folder, self.clock, **given)

    def ticks(self, count: int = TICKS) -> None:
        for _ in range(count):
            self.clock.advance_ms(100)
            self.c.tick()
        self.c.flush(WAIT_S)

    def epochs(self, source: int) -> list[int]:
        return [r.epoch for r in self.catalog.state.all_remaps(source)]


@pytest.fixture
def open_db(tmp_path: Path) -> Iterator[Callable[..., Bound]]:
    made: list[Bound] = []

    def open_(**settings: Any) -> Bound:
        made.append(Bound(tmp_path, **settings))
        return made[-1]

    yield open_
    for db in made:
        db.close()


@pytest.fixture
def db(open_db: Callable[..., Bound]) -> Bound:
    return open_db()


def test_what_is_too_old_is_so_after_a_restart_too(open_db: Callable[..., Bound]) -> None:
    """PC-9, I5: an epoch whose binding is gone is refused; the source is never found empty there."""
    db = open_db()
    s = db.source("s", **OPTIONS)
    db.view("v", s)
    old = db.c.current_epoch()
    with db.c.snapshot([s], at=old) as snapshot:
        assert snapshot.sources[s]
    db.ticks()
    db.c.compact()
    assert len(db.epochs(s)) <= 2
    kept = db.core.live.graph.relations[s].safe
    with pytest.raises(EpochTooOld):
        db.c.snapshot([s], at=old)
    now = db.clock.now_ms()
    db.close()
    again = open_db()
    again.clock.set_now_ms(now)
    assert again.core.live.graph.relations[s].safe == kept
    with pytest.raises(EpochTooOld):
        again.c.snapshot([s], at=old)
    with again.c.snapshot([s], at=again.c.current_epoch()) as snapshot:
        assert snapshot.sources[s]
    again.c.drop(list(again.core.live.graph.jobs))
    again.c.drop([s])
    assert not again.catalog.state.sources


def test_a_source_stays_readable_at_the_newest_epoch(db: Bound) -> None:
    """PC-9: history that is not kept ends below the newest complete epoch, however far the clock is ahead of it."""
    s = db.source("s", **OPTIONS)
    v = db.view("v", s)
    db.ticks()
    db.c.drop([v])
    db.clock.advance_ms(60_000)
    db.c.compact()
    assert len(db.epochs(s)) <= 2 and db.core.live.graph.relations[s].safe <= db.c.current_epoch()
    with db.c.snapshot([s], timeout_s=0) as snapshot:
        assert snapshot.sources[s]


def test_the_oldest_epoch_of_a_source_never_goes_back(db: Bound) -> None:
    """I6."""
    s = db.source("s", **OPTIONS)
    db.catalog.transact([Put(SourceRecord(s, 7))])
    with pytest.raises(EditRejected):
        db.catalog.transact([Put(SourceRecord(s, 6))])
    with pytest.raises(EditRejected):
        db.catalog.transact([Put(SourceRecord(s + 1000, 6))])


@pytest.mark.parametrize("restart", [False, True])
def test_a_clock_that_was_ahead_once_is_told_and_keeps_nothing_for_ever(
    open_db: Callable[..., Bound], restart: bool
) -> None:
    """Epochs stay where it was: history is counted from there, and so is how late a view is."""
    db = open_db(retention_ms=2_000)
    s = db.source("s", connector="datagen", rows_per_second="unlimited", max_rows_per_epoch="3")
    v, late = db.view("v", s), db.view("late", s)
    now_ms = db.clock.now_ms()
    db.clock.advance_ms(86_400_000)
    db.ticks(1)
    db.clock.set_now_ms(now_ms)
    if restart:
        db.close()
        db = open_db(retention_ms=2_000)
        db.clock.set_now_ms(now_ms)
    for _ in range(2 * TICKS):
        db.clock.advance_ms(900)
        db.ticks(1)
    db.c.flush(WAIT_S)
    db.c.compact()
    kept = 4 * (2 + TOLERATED_AHEAD_MS // 1000)  # a second of epochs takes two by the clock, and each has two ticks
    assert kept <= len(db.epochs(s)) < kept + 10
    assert db.c._parts is not None
    for _ in range(2):
        db.c._parts.look()
    (event,) = db.events("clock_behind")
    ahead_s = next(m.value for m in db.c.metrics() if m.name == "epochs_ahead_seconds")
    assert 86_200 <= ahead_s <= 86_400 and "s behind the newest epoch" in event
    db.c.alter_job(late, paused=True)
    db.ticks(40)
    assert db.status(late).lag_ms > 1_000 > db.status(v).lag_ms
    db.clock.advance_ms(2 * 86_400_000)
    db.ticks(1)
    db.c._parts.look()
    assert next(m.value for m in db.c.metrics() if m.name == "epochs_ahead_seconds") == 0
    assert len(db.events("clock_behind")) == 1


# ---- watermarks


class Timed(FakePlanner):
    """Views of one input that close by its watermark."""

    def plan(self, sql: str, **more: Any) -> FakePlan:
        made = super().plan(sql, **more)
        mark = of_column(made.upstreams[0], "n")
        time = EventTime(frozenset(made.upstreams[:1]), {}, mark, "n")
        return FakePlan(made.name, made.upstreams, event_time=time, generation=made.generation)


@pytest.fixture
def timed(db: Bound, monkeypatch: pytest.MonkeyPatch) -> Bound:
    def watermark_us(ticker: Ticker, poll: Any, binding: Any, before: int | None) -> int:
        return int(binding.offsets["0"])

    monkeypatch.setattr(Ticker, "_watermark_us", watermark_us)
    db.planner = Timed()
    return db


def test_the_watermark_of_a_paused_view_on_a_view_is_kept(timed: Bound) -> None:
    """LS-24: bindings that only an indirect reader needs: what it holds was closed by them."""
    db = timed
    s = db.source("s", **OPTIONS)
    v = db.view("v", s)
    w = db.view("w", v)
    db.ticks(5)
    db.c.alter_job(w, paused=True)
    (at,) = db.committed(w)
    before = watermark_at(db.core.live.graph, db.catalog.state, v, at)
    assert before
    db.ticks()
    db.c.compact()
    assert watermark_at(db.core.live.graph, db.catalog.state, v, at) == before
    db.c.alter_job(w, paused=False)
    db.c.flush(WAIT_S)
    db.c.compact()
    assert db.read(v) == db.read(w) and len(db.epochs(s)) <= 2, "nothing is kept once it is read"


def test_bindings_are_not_kept_for_who_has_no_watermark(db: Bound) -> None:
    """A paused view on a view needs the log of that, and nothing of the source."""
    s = db.source("s", **OPTIONS)
    v = db.view("v", s)
    w = db.view("w", v)
    db.c.alter_job(w, paused=True)
    db.ticks()
    db.c.compact()
    assert len(db.epochs(s)) <= 2
    db.c.alter_job(w, paused=False)
    db.c.flush(WAIT_S)
    assert db.read(v) == db.read(w)


# ---- the limit


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each binding is as if it had 64 KiB: seventeen of them are more than a MiB."""
    monkeypatch.setattr(logs, "stored_bytes", lambda binding: 1 << 16)


@pytest.mark.usefixtures("large")
def test_a_backlog_of_bindings_is_told_once_and_kept(db: Bound) -> None:
    """LS-27: of a paused view, by default."""
    s = db.source("s", **OPTIONS)
    v, other = db.view("v", s), db.view("other", s)
    db.c.alter_job(v, paused=True)
    db.ticks(10)
    db.c.check_logs()
    assert not db.events("log_growing")
    db.ticks()
    for _ in range(3):
        db.c.check_logs()
        db.c.compact()
    (event,) = db.events("log_growing")
    assert 'the bindings of "s"' in event and "paused" in event and len(db.epochs(s)) > TICKS
    assert 'MiB of the bindings of "s"' in db.status(v).waiting_for and db.status(other).waiting_for == ""
    db.c.alter_job(v, paused=False)
    db.c.flush(WAIT_S)
    db.c.check_logs()
    db.c.compact()
    assert db.read(v) == db.read(other) and len(db.epochs(s)) <= 2 and not db.core.live.graph.jobs[v].growing


@pytest.mark.usefixtures("large")
def test_a_backlog_of_bindings_is_given_up_where_that_is_wanted(open_db: Callable[..., Bound]) -> None:
    """LS-27, PC-19: durably, with an event; others go on, the view stays readable and says what it has lost."""
    db = open_db()
    s = db.source("s", **OPTIONS)
    v, other = db.view("v", s), db.view("other", s)
    db.c.alter_job(v, options={"log_limit_policy": "drop"})
    db.ticks(3)
    db.c.alter_job(v, paused=True)
    (at,), was = db.committed(v), db.read(v)
    db.ticks()
    db.c.check_logs()
    db.c.check_logs()
    assert len(db.events("log_growing")) == len(db.events("log_dropped")) == 1
    assert 'loses the bindings of "s"' in db.events("log_dropped")[0]
    safe = db.catalog.state.sources[s].safe_epoch
    assert at < safe == db.core.live.graph.relations[s].safe
    db.c.compact()
    assert len(db.epochs(s)) <= 2
    now = db.clock.now_ms()
    db.close()
    db = open_db()
    db.clock.set_now_ms(now)
    db.ticks(1)
    db.c.alter_job(v, paused=False)
    db.until(lambda: isinstance(db.core.live.graph.jobs[v].error, LogLost))
    assert db.status(v).status == "quarantined" and db.committed(v) == [at]
    db.c.flush(WAIT_S)
    assert db.read(v) == was and len(db.read(other)[0]) > len(was[0])


@pytest.mark.usefixtures("large")
def test_bindings_that_only_tell_watermarks_have_the_limit_too(timed: Bound) -> None:
    """LS-27: the log of what the view reads may be short where the bindings below are many."""
    db = timed
    s = db.source("s", **OPTIONS)
    v = db.view("v", s)
    w = db.view("w", v)
    db.ticks(3)
    db.c.alter_job(w, paused=True, options={"log_limit_policy": "drop"})
    db.ticks()
    db.c.check_logs()
    assert len(db.events("log_dropped")) == 1 and db.core.live.graph.lost_logs(db.core.live.graph.jobs[w])
    db.c.compact()
    assert len(db.epochs(s)) <= 2
    db.c.alter_job(w, paused=False)
    db.until(lambda: isinstance(db.core.live.graph.jobs[w].error, LogLost))
    assert db.status(v).status == "running"


@pytest.mark.usefixtures("large")
def test_bindings_that_others_need_are_not_given_up(db: Bound, monkeypatch: pytest.MonkeyPatch) -> None:
    s = db.source("s", **OPTIONS)
    v, keeps = db.view("v", s), db.view("keeps", s)
    db.c.alter_job(v, paused=True, options={"log_limit_policy": "drop"})
    db.c.alter_job(keeps, paused=True)
    db.ticks()
    db.c.check_logs()
    db.c.compact()
    assert len(db.events("log_growing")) == 2 and not db.events("log_dropped") and len(db.epochs(s)) > TICKS
    db.c.alter_job(keeps, paused=False)
    db.c.flush(WAIT_S)
    # The catalog does not take it: then nothing is given up, in memory neither.
    safe, transact = db.core.live.graph.relations[s].safe, db.catalog.transact

    def fails(edits: Any) -> int:
        edits = list(edits)
        if any(isinstance(e, Put) and isinstance(e.record, SourceRecord) for e in edits):
            raise StorageError("no answer")
        return transact(edits)

    monkeypatch.setattr(db.catalog, "transact", fails)
    with pytest.raises(StorageError):
        db.c.check_logs()
    assert db.core.live.graph.relations[s].safe == safe and not db.core.live.graph.lost_logs(db.core.live.graph.jobs[v])
    monkeypatch.undo()
    db.c.alter_job(v, paused=False)
    db.c.flush(WAIT_S)
    assert db.read(v) == db.read(keeps)


def test_a_source_is_whole_by_what_is_durable(db: Bound, monkeypatch: pytest.MonkeyPatch) -> None:
    """I13: a binding without an answer makes nothing readable, and counts once it turns out to be durable."""
    lost, first = False, list[Any]()
    monkeypatch.setattr(ticker, "is_whole", lambda options, offsets: bool(first) and offsets != first[0])
    s = db.source("s", **OPTIONS)
    v = db.view("v", s, wait=False)
    relation, transact = db.core.live.graph.relations[s], db.catalog.transact

    def fails(edits: Any) -> int:
        edits = list(edits)
        if lost and any(isinstance(e, Put) and isinstance(e.record, RemapRecord) for e in edits):
            raise StorageError("no space left")
        return transact(edits)

    def tick() -> None:
        db.clock.advance_ms(100)
        db.c.tick()

    monkeypatch.setattr(db.catalog, "transact", fails)
    tick()
    assert relation.whole_from == NEVER
    first.append(db.catalog.state.all_remaps(s)[-1].offsets)
    lost = True
    with pytest.raises(StorageError):
        tick()
    assert relation.whole_from == NEVER
    lost = False
    tick()
    newest = db.epochs(s)[-1]
    assert relation.whole_from == newest
    relation.whole_from = NEVER  # as if its answer had been lost
    tick()
    assert relation.whole_from == newest
    db.c.wait_created(v, WAIT_S)


@pytest.mark.parametrize("hindrance", ["source", "paused"])
def test_a_view_that_cannot_begin_keeps_no_bindings(db: Bound, monkeypatch: pytest.MonkeyPatch, hindrance: str) -> None:
    """It begins at an epoch at which its inputs can be read: it needs none before that, however long it takes."""
    s, other = db.source("s", **OPTIONS), db.source("other", **OPTIONS)
    db.view("runs", s)
    poll = Ticker._ask
    silent = [other] if hindrance == "source" else []

    def asked(ticker: Ticker, relation: Any, reader: Any) -> Any:
        found = poll(ticker, relation, reader)
        if relation.id in silent:
            found.done.wait(WAIT_S)
            found.bindings, found.error = [], StorageError("no answer")
        return found

    monkeypatch.setattr(Ticker, "_ask", asked)
    if hindrance == "paused":
        above = db.view("above", other)
        db.c.alter_job(above, paused=True)
        db.ticks(2)
        v = db.view("v", s, above, wait=False)
        db.c.alter_job(v, paused=True)
    else:
        v = db.view("v", s, other, wait=False)
    db.ticks()
    db.c.compact()
    assert not db.core.live.graph.jobs[v].reads_from and len(db.epochs(s)) <= 2
    silent.clear()
    db.clock.advance_ms(600_000)  # what was tried in vain is tried again
    for job in [j for j in db.core.live.graph.jobs.values() if j.status == "paused"]:
        db.c.alter_job(job.id, paused=False)
    db.ticks(2)
    db.until(lambda: db.core.live.graph.jobs[v].created and db.core.live.graph.jobs[v].error is None)


def test_a_view_on_one_that_cannot_begin_keeps_no_bindings(timed: Bound, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor for its watermarks: it begins when the other one has, so no limit of a log is asked for."""
    db = timed
    s, other = db.source("s", **OPTIONS), db.source("other", **OPTIONS)
    poll, silent = Ticker._ask, [other]

    def asked(ticker: Ticker, relation: Any, reader: Any) -> Any:
        found = poll(ticker, relation, reader)
        if relation.id in silent:
            found.done.wait(WAIT_S)
            found.bindings, found.error = [], StorageError("no answer")
        return found

    monkeypatch.setattr(Ticker, "_ask", asked)
    v = db.view("v", s, other, wait=False)
    w = db.view("w", v, wait=False)
    x = db.view("x", w, wait=False)
    db.ticks()
    db.c.compact()
    assert not any(db.core.live.graph.jobs[j].reads_from for j in (v, w, x)) and len(db.epochs(s)) <= 2
    silent.clear()
    db.clock.advance_ms(600_000)  # what was tried in vain is tried again
    db.ticks(2)
    db.until(
        lambda: all(db.core.live.graph.jobs[j].created and db.core.live.graph.jobs[j].error is None for j in (v, w, x))
    )
    db.c.flush(WAIT_S)
    assert db.read(v) == db.read(w) == db.read(x)


def test_what_is_refused_of_one_source_keeps_no_other_from_being_pruned(db: Bound) -> None:
    """The answer of a transaction that gave up bindings was lost: the catalog is ahead of what is known here."""
    one, other = db.source("one", **OPTIONS), db.source("other", **OPTIONS)
    db.view("a", one)
    db.view("b", other)
    db.ticks()
    db.catalog.transact([Put(SourceRecord(other, db.c.current_epoch()))])
    with db.c.snapshot([other], at=db.catalog.state.all_remaps(other)[-5].epoch):
        db.c.compact()
    assert len(db.epochs(one)) <= 2 and len(db.epochs(other)) <= 6
    assert db.core.live.graph.relations[other].safe == db.catalog.state.sources[other].safe_epoch
