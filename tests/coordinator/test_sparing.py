"""How many events tell of one thing that goes wrong again and again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_database import Database

from headrace.catalog.edits import AddEvent
from headrace.common.clock import ManualClock
from headrace.common.faults import disarm_all
from headrace.connectors.base import RowError
from headrace.coordinator.observe import sparing
from headrace.coordinator.observe.sparing import BURST, PAUSE_S, Sparing
from headrace.coordinator.run import ticker
from headrace.errors import DivisionByZero, SourceError
from support import WAIT_S


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path, group_retry_initial_ms=1, group_retry_max_ms=1, progress_host="")
    yield made
    disarm_all()
    made.close()


def event(n: int, kind: str = "job_failed", about: int = 1) -> AddEvent:
    return AddEvent(kind, about, f"number {n}")


def test_what_is_left_out_is_counted() -> None:
    clock = ManualClock()
    some = Sparing(clock.monotonic_s)
    told = [some.thinned(event(n)) for n in range(BURST + 5)]
    assert [e.message for e in told if e is not None] == [f"number {n}" for n in range(BURST)]
    assert some.thinned(event(0, about=2)) and some.thinned(event(0, kind="job_recovered")), "other things are told"
    assert some.thinned(event(0), "another name")
    clock.advance_ms(round(PAUSE_S * 1000))
    found = some.thinned(event(99))
    assert found is not None
    assert found.message == "number 99 (and 5 more like it since the last one that was told)"
    assert some.thinned(event(100)) is None
    clock.advance_ms(round(PAUSE_S * 1000) * 10 * BURST)
    assert sum(some.thinned(event(n)) is not None for n in range(100)) == BURST


def test_what_could_not_be_told_does_not_count() -> None:
    some = Sparing(ManualClock().monotonic_s)
    for n in range(3 * BURST):
        assert some.thinned(event(n)) == event(n)
        some.not_told(event(n))
    for n in range(BURST):
        assert some.thinned(event(n)) == event(n)


def test_things_of_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparing, "_THINGS", 10)
    clock = ManualClock()
    some = Sparing(clock.monotonic_s)
    for n in range(1000):
        assert some.thinned(event(n, about=n))
        clock.advance_ms(round(BURST * PAUSE_S * 1000))
    assert len(some._told) <= 10


def fails(n: int) -> None:
    raise RuntimeError(f"attempt {n} of many")


def test_failures_that_all_say_something_else_are_no_flood(db: Database) -> None:
    """Each names an attempt, an object, a time: 10,000 of them would drive out all other events."""
    for n in range(300):
        assert not db.core.guard.chore("a chore", lambda n=n: fails(n))
    assert len(db.events("background_failed")) == BURST and db.core.guard.failures["a chore"] == 300
    assert db.core.guard.chore("a chore", lambda: None)


def test_failures_that_come_and_go_are_no_flood(db: Database) -> None:
    for _ in range(300):
        db.core.guard.chore("a chore", lambda: fails(0))
        db.core.guard.chore("a chore", lambda: None)
    assert len(db.events("background_failed")) == len(db.events("background_recovered")) == BURST
    assert not db.core.guard.chore("another chore", lambda: fails(0)), "of others it is told"
    assert len(db.events("background_failed")) == BURST + 1


def test_rows_that_fail_in_every_epoch_are_no_flood(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    t = db.table()
    v = db.view("v", t)
    runner = db.runner_of(v)
    run = runner.run
    error = RowError("f", 1, "c", "x", "no number")

    def with_errors(params: Any, parallelism: int) -> Any:
        return dataclasses.replace(run(params, parallelism), row_errors=[error], row_error_count=1)

    monkeypatch.setattr(runner, "run", with_errors)
    for n in range(BURST + 10):
        db.insert(t, n)
        db.c.flush(WAIT_S)
    assert len(db.events("row_errors")) == BURST and db.status(v).row_errors == BURST + 10


def test_a_view_and_a_source_that_fail_differently_each_time_are_no_flood(db: Database) -> None:
    t, s = db.table(), db.source("s", connector="datagen", rows_per_second="1", seed="1")
    v = db.view("v", t)
    driver = db.core.live.graph.relations[s]
    for n in range(BURST + 10):
        db.c._parts.ticker._failing(ticker._Poll(driver, (), None, {}, 0.0), SourceError(f"no answer, {n}"))
    driver.error = None
    assert len(db.events("source_failed")) == BURST
    runner = db.runner_of(v)

    def run(params: Any, parallelism: int) -> Any:
        raise DivisionByZero(f"division by zero in {params.attempt}")

    runner.run = run  # type: ignore[method-assign]
    db.insert(t, 1)
    db.until(lambda: db.core.live.graph.jobs[v].failures > BURST + 10)
    assert len(db.events("job_failed")) == BURST
