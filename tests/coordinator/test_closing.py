"""Watermarks as they drive views: steps without input, state that expires, views above, epochs that run ahead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fake_database import COLUMNS, SCHEMA, Database, FakePlan, rows
from fake_groups import InFlight

from headrace.catalog.contents import DeclaredWatermark, MaterializedViewContent, SourceContent, TableContent
from headrace.catalog.records import ObjectRecord
from headrace.common.faults import disarm_all
from headrace.coordinator.decide.split_times import SplitTimes
from headrace.plan.watermark_rules import EventTime, of_column
from headrace.state.schema import TableSchema
from headrace.state.table_changes import TableChange
from support import WAIT_S

WATERMARK = DeclaredWatermark(column="n", delay_ms=0, expression="n")
"""Event times are the rows themselves, in microseconds."""


@dataclass(frozen=True)
class ClosingPlan(FakePlan):
    """Holds back what its first input's watermark has not passed: says so, and leaves the rest to its runner."""

    def state_tables(self) -> dict[str, TableSchema]:
        return {"view/rows": SCHEMA, "0/state": replace(SCHEMA, expires="n")}


class Closing(Database):
    """Relations with watermarks and views that close by them."""

    def table(self, name: str = "t", key: bool = False) -> int:
        return self.c.create_relation(ObjectRecord(0, TableContent(watermark=WATERMARK), "public", name, COLUMNS))

    def source(self, name: str, **options: str) -> int:
        record = ObjectRecord(0, SourceContent(watermark=WATERMARK), "public", name, COLUMNS, options=options)
        return self.c.create_relation(record)

    def view(self, name: str, *inputs: int, wait: bool = True) -> int:
        mark = of_column(inputs[0], "n")
        event_time = EventTime(frozenset(inputs), {"0/state": mark}, mark, "n")
        record = ObjectRecord(0, MaterializedViewContent(spark_sql=str(inputs[0])), "public", name)
        plan = ClosingPlan(name, inputs, event_time=event_time)
        made = self.c.create_view(record, plan)  # type: ignore[arg-type]
        if wait:
            self.c.wait_created(made, WAIT_S)
        return made

    def watermark(self, view: int) -> int | None:
        state = self.catalog.state
        return next(t.watermark for t in state.tables_of(view) if t.operator == "0/state")


class ClosingInFlight(Closing, InFlight):
    """The same with one epoch that hangs before its commit."""


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Closing]:
    made = Closing(tmp_path)
    yield made
    disarm_all()
    made.close()


def test_a_watermark_that_rises_alone_is_a_step_without_input(db: Closing) -> None:
    """FS-21: what jobs have read of a source raises its watermark at the next binding, durably before it is used."""
    s = db.source("s", connector="datagen", rows_per_second="unlimited", number_of_rows="5")
    v = db.view("v", s)
    w = db.view("w", v)
    db.c.flush(WAIT_S)
    calls, above = db.runner_of(v).calls, db.runner_of(w).calls
    assert {p.closed_us for p in calls} == {None} and db.watermark(v) is None
    before = len(calls), len(above)
    db.core.live.graph.relations[s].times = SplitTimes({"": 30})
    epoch = db.c.flush(WAIT_S)
    assert (len(calls), len(above)) == (before[0] + 1, before[1] + 1), "the view above has something to close, too"
    remap = db.catalog.state.newest_remap(s)
    assert remap is not None and (remap.watermark_us, remap.epoch <= epoch) == (30, True)
    for call in (calls[-1], above[-1]):
        assert call.closed_us == 30 and call.state["0/state"].watermark is None
        assert not any(source.tasks for source in call.sources.values())
    assert db.watermark(v) == db.watermark(w) == 30
    for newest_us in (30, 20, None):
        db.core.live.graph.relations[s].times = SplitTimes({} if newest_us is None else {"": newest_us})
        db.c.flush(WAIT_S)
    assert len(calls) == before[0] + 1, "it never goes back, and where it stands there is nothing to do"
    db.core.live.graph.relations[s].times = SplitTimes({"": 31})
    db.c.flush(WAIT_S)
    assert (calls[-1].closed_us, calls[-1].state["0/state"].watermark) == (31, 30)


def test_late_rows_of_a_table_are_not_inserted(db: Closing) -> None:
    t = db.table()
    v = db.view("v", t)
    assert db.c.write(t, _change(5, 9)).late == 0
    written = db.c.write(t, _change(8, 9, 12))
    assert (written.inserted, written.late) == (2, 1)
    nothing = db.c.write(t, _change(3))
    assert (nothing.inserted, nothing.late, nothing.epoch >= written.epoch) == (0, 1, True)
    db.c.flush(WAIT_S)
    assert db.read(t, v) == [[5, 9, 9, 12]] * 2
    assert db.watermark(v) == 12
    assert next(m.value for m in db.c.metrics() if m.name == "late_rows") == 2


def test_what_was_late_stays_late_after_a_restart(tmp_path: Path) -> None:
    db = Closing(tmp_path)
    t = db.table()
    db.insert(t, 10)
    db.close()
    db = Closing(tmp_path)
    assert db.c.write(t, _change(9, 10)).late == 1
    assert db.read(t) == [[10, 10]]
    db.c.drop([t])
    assert db.catalog.state.all_remaps(t) == ()
    db.close()


def test_an_epoch_that_runs_ahead_reads_its_state_by_the_watermark_of_its_start(tmp_path: Path) -> None:
    """CK-7: what the uncommitted epoch before has put out is below it, and does not come out again."""
    db = ClosingInFlight(tmp_path)
    db.insert(db.t, 2)
    db.until(lambda: len(db.calls) == 2 and db.job.activity.epochs == 2 and db.job.activity.attempt is None)
    first, then = db.calls
    assert (first.state["0/state"].watermark, first.closed_us) == (0, 1)
    assert db.watermark(db.v) == 0, "the first one is not committed"
    assert (then.state["0/state"].watermark, then.closed_us) == (1, 2)
    db.release()
    db.c.flush(WAIT_S)
    assert db.watermark(db.v) == 2 and db.read(db.v) == [[0, 1, 2]]
    disarm_all()
    db.close()


def _change(*values: int) -> TableChange:
    return TableChange(rows(*values))
