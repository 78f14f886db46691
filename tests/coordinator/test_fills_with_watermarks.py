"""Views with a watermark that are filled step by step: no row is lost or read twice, whatever becomes of bindings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_database import FakePlan, FakePlanner
from fake_groups import Groups

from headrace.catalog.edits import Put
from headrace.catalog.records import PositionRecord
from headrace.common import faults
from headrace.common.clock import ManualClock
from headrace.common.faults import arm, disarm_all
from headrace.coordinator.decide.row_sizes import RowSize
from headrace.coordinator.decide.steps import position_of
from headrace.coordinator.run.ticker import Ticker
from headrace.coordinator.upkeep.compaction import KEPT_STALE
from headrace.plan.watermark_rules import EventTime, of_column
from support import WAIT_S

ROWS = 10
"""Rows of a binding."""
BINDINGS = KEPT_STALE + 30
OPTIONS = {"connector": "datagen", "rows_per_second": "100"}


class Timed(FakePlanner):
    """Views of one input that close by its watermark."""

    def plan(self, sql: str, **more: Any) -> FakePlan:
        made = super().plan(sql, **more)
        mark = of_column(made.upstreams[0], "n")
        time = EventTime(frozenset(made.upstreams[:1]), {}, mark, "n")
        return FakePlan(made.name, made.upstreams, event_time=time, generation=made.generation)


class Filled(Groups):
    """A source whose watermark rises with each binding, and no history but what somebody needs."""

    def __init__(self, folder: Path, now_ms: int | None = None, **settings: Any) -> None:
        self.clock = ManualClock()
        if now_ms is not None:
            self.clock.set_now_ms(now_ms)
        given = {"retention_ms": 0, "group_retry_initial_ms": 1, "group_retry_max_ms": 5, **settings}
        super().__init__(folder, self.clock, **given)
        self.planner = Timed()

    def ticks(self, count: int) -> None:
        for _ in range(count):
            self.clock.advance_ms(100)
            self.c.tick()

    def bindings(self, source: int) -> int:
        return len(self.catalog.state.all_remaps(source))


@pytest.fixture
def open_db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Filled]]:
    made: list[Filled] = []

    def open_(**given: Any) -> Filled:
        made.append(Filled(tmp_path, **given))
        return made[-1]

    monkeypatch.setattr(Ticker, "_watermark_us", lambda ticker, poll, binding, before: int(binding.offsets["0"]))
    yield open_
    disarm_all()
    for db in made:
        db.close()


def interrupted(db: Filled, slices: int = 3, *, prune: bool = False) -> tuple[int, int, int]:
    """A source, a view that has read it as it came, and one whose filling hangs before a slice.

    With `prune` most rows lie before the oldest binding.
    """
    s = db.source("s", **OPTIONS)
    early = db.view("early", s)
    db.ticks(BINDINGS)
    db.c.flush(WAIT_S)
    if prune:
        db.c.compact()
    arm("backfill.slice.before", "hang", nth=slices)
    later = db.view("later", s, wait=False)
    db.until(lambda: faults.passages("backfill.slice.before") == slices)
    return s, early, later


def paused(db: Filled, view: int, source: int) -> PositionRecord:
    """Pause a view that hangs before a slice; returns how far it is."""
    db.c.alter_job(view, paused=True)
    faults.release("backfill.slice.before")
    db.until(lambda: not db.core.live.graph.jobs[view].activity.epochs)
    taken = db.catalog.state.position(view, source)
    assert taken is not None and (taken.from_epoch or taken.to_epoch)
    return taken


def rows_of(params: Any, source: int) -> int:
    """How many rows a step reads of a source."""
    return sum(stop - start for task in params.sources[source].tasks for _, start, stop in task["ranges"])


def test_bindings_that_are_pruned_in_mid_fill_lose_no_row(open_db: Callable[..., Filled]) -> None:
    """The watermark cuts a source's range at bindings, and old ones go while a view is filled."""
    db = open_db(backfill_slice_rows=5 * ROWS)
    s, early, later = interrupted(db)
    db.ticks(BINDINGS)
    db.c.compact()
    faults.release("backfill.slice.before")
    db.c.wait_created(later, WAIT_S)
    db.c.flush(WAIT_S)
    db.c.compact()
    assert db.read(later) == db.read(early)
    assert db.bindings(s) <= 2, "nothing is kept once it is read"


def test_bindings_are_let_go_of_while_a_view_is_filled(open_db: Callable[..., Filled]) -> None:
    """A fill may take hours: what is bound meanwhile is kept from where it is on, and no more."""
    db = open_db(backfill_slice_rows=5 * ROWS)
    s, early, later = interrupted(db, 24)
    named = db.catalog.state.position(later, s)
    assert named is not None
    db.c.compact()
    assert db.catalog.state.all_remaps(s)[0].epoch <= (named.from_epoch or named.to_epoch)
    assert db.bindings(s) <= BINDINGS - KEPT_STALE + 1
    faults.release("backfill.slice.before")
    db.c.wait_created(later, WAIT_S)
    db.c.flush(WAIT_S)
    assert db.read(later) == db.read(early)


def test_a_fill_goes_on_after_a_restart(open_db: Callable[..., Filled]) -> None:
    """What its position names is kept from the start on, before the view is planned again."""
    db = open_db(backfill_slice_rows=5 * ROWS)
    s, early, later = interrupted(db)
    now_ms, taken = db.clock.now_ms(), paused(db, later, s)
    db.close()
    disarm_all()
    db = open_db(now_ms=now_ms, backfill_slice_rows=5 * ROWS)
    for _ in range(2):
        db.ticks(BINDINGS)
        db.c.compact()
    assert db.catalog.state.position(later, s) == taken
    db.c.alter_job(later, paused=False)
    db.c.wait_created(later, WAIT_S)
    db.c.flush(WAIT_S)
    db.c.compact()
    assert db.read(later) == db.read(early) and db.bindings(s) <= 2
    first = db.runner_of(later).calls[0]
    assert first.from_epoch == 0 and not first.first, "it went on where it was"


@pytest.mark.parametrize("limit", ["rows", "bytes"])
def test_steps_of_a_source_with_a_watermark_are_bounded(open_db: Callable[..., Filled], limit: str) -> None:
    """One range that is as long as history and many short ones: each step has about as many rows."""
    most = 5 * ROWS
    db = open_db(backfill_slice_rows=most if limit == "rows" else 1_000_000, max_mb_per_epoch=1)
    s = db.source("s", **OPTIONS)
    early = db.view("early", s)
    db.ticks(2 * BINDINGS)
    db.c.flush(WAIT_S)
    db.c.compact()  # most of it lies before all bindings that are left
    db.ticks(BINDINGS // 2)
    db.c.flush(WAIT_S)
    relation = db.core.live.graph.relations[s]
    relation.size = RowSize().told((1 << 20) / most if limit == "bytes" else 1)
    later = db.view("later", s)
    steps = [rows_of(call, s) for call in db.runner_of(later).calls]
    assert db.read(later) == db.read(early)
    assert sum(steps) == 2.5 * BINDINGS * ROWS + 1
    assert max(steps) <= 1.3 * most and len(steps) <= 2 * sum(steps) / most, "not too few, and not too many"
    tasks = [len(call.sources[s].tasks) for call in db.runner_of(later).calls]
    assert max(tasks) <= 3 * ROWS, "a short range is not cut as if it were all there is"


@pytest.mark.parametrize("change", [{"digest": "another rule"}, {"to_epoch": 0, "digest": ""}, {"parts": 1}])
def test_a_position_by_another_rule_is_begun_anew(open_db: Callable[..., Filled], change: dict[str, Any]) -> None:
    """One that another program has left, or a source that plans otherwise by now: told apart, and said."""
    db = open_db(backfill_slice_rows=5 * ROWS)
    s, early, later = interrupted(db, prune=True)
    job, kept = db.core.live.graph.jobs[later], paused(db, later, s)
    assert kept.sequence
    db.catalog.transact([Put(replace(kept, **change))])
    job.at(position_of(db.catalog.state.positions_of(later)))
    db.c.alter_job(later, paused=False)
    db.until(lambda: job.error is not None)
    assert not db.catalog.state.positions_of(later)
    db.ticks(2)  # what has failed is tried again after a pause
    db.until(lambda: job.created)
    db.c.flush(WAIT_S)
    assert db.read(later) == db.read(early)
    (event,) = db.events("job_failed")
    assert "cut differently now" in event and job.error is None
