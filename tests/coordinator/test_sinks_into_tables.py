"""Sinks into tables over the real coordinator: steps, restarts, rows that are refused, and what is left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_database import Database

from headrace.common.faults import arm, disarm_all
from headrace.errors import DependentObjectsExist, InvalidParameter, SinkError, StatementError


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Database]]:
    made: list[Database] = []

    def open_(**settings: Any) -> Database:
        if made:
            made[-1].close()
        quick = {"group_retry_initial_ms": 10, "group_retry_max_ms": 50, "barrier_interval_ms": 20}
        made.append(Database(tmp_path, **{**quick, **settings}))
        return made[-1]

    yield open_
    disarm_all()
    if made:
        made[-1].close()


def left(db: Database, sink: int) -> int:
    """Runs of what the sink has for its table."""
    state = db.catalog.state
    return sum(len(state.runs_of(t.id)) for t in state.tables_of(sink) if t.operator == "into/rows")


def test_changes_arrive_and_nothing_is_left(make: Callable[..., Database]) -> None:
    db = make()
    source, target = db.table("a", key=True), db.table("b", key=True)
    db.insert(source, 1, 2)
    db.insert(target, 9)
    sink = db.sink_into("s", target, source)
    assert db.read(target) == [[1, 2, 9]]
    over = db.view("v", target)
    db.insert(source, 3)
    db.delete(source, 1)
    db.until(lambda: db.read(over) == [[2, 3, 9]])
    db.delete(target, 2)  # it is gone there, and so it stays
    db.delete(source, 2)
    db.until(lambda: db.read(over) == [[3, 9]])
    db.until(lambda: left(db, sink) == 0)
    with pytest.raises(DependentObjectsExist):
        db.c.drop([target])
    db.c.drop([sink, over, target])
    assert [o.name for o in db.catalog.state.objects.values()] == ["a"]


def test_a_large_change_comes_in_steps_and_is_seen_at_once(make: Callable[..., Database]) -> None:
    """Its parts are durable, over a restart too, and nobody sees any of them before the last one is there."""
    db = make(max_rows_per_epoch=10, backfill_slice_rows=10)
    source, target = db.table("a", key=True), db.table("b", key=True)
    db.insert(source, *range(100))
    sink = db.sink_into("s", target, source)
    assert db.read(target) == [list(range(100))] and left(db, sink) == 0
    db.insert(target, -1)
    db.hold(sink)
    db.insert(source, *range(100, 200))
    db.until_held(sink)
    assert db.read(target) == [[-1, *range(100)]]
    assert db.runner_of(sink).calls[-1].to_epoch
    db.runner_of(sink).gate.set()
    db.until(lambda: db.read(target) == [[-1, *range(200)]])
    assert len(db.runner_of(sink).calls) > 10 and left(db, sink) == 0
    db = make(max_rows_per_epoch=10)
    assert db.read(target) == [[-1, *range(200)]]
    db.delete(source, 5)
    db.until(lambda: db.read(target) == [[-1, *(i for i in range(200) if i != 5)]])


@pytest.mark.parametrize(
    "point", ["table.commit.before", "catalog.commit.before", "catalog.commit.after", "commit.after"]
)
def test_a_commit_that_fails_is_made_again_or_found(make: Callable[..., Database], point: str) -> None:
    db = make()
    source, target = db.table("a"), db.table("b")
    db.sink_into("s", target, source, type="append-only", force_append_only="true")
    for n in range(1, 6):
        db.insert(source, n)
        arm(point, "fail", nth=1 + n % 2)
        try:
            db.until(lambda n=n: db.read(target) == [list(range(1, n + 1))])
        finally:
            disarm_all()
    db = make()
    assert db.read(target) == [[1, 2, 3, 4, 5]]


@pytest.mark.parametrize("limit", [1_000, 3])
def test_rows_that_are_refused_stop_it_until_they_are_mended(make: Callable[..., Database], limit: int) -> None:
    """Also where a change is larger than an epoch may be: what mends it comes after it."""
    db = make(max_rows_per_epoch=limit)
    source, target = db.table("a"), db.table("b", key=True)
    sink = db.sink_into("s", target, source)
    db.insert(source, 1, 2, 2, 3, 4, 5, 6, 7)
    db.until(lambda: isinstance(db.status(sink).error, SinkError))
    assert "(n) does not tell the rows of the sink apart: 2" in db.status(sink).error.message
    assert db.read(target) == [[]]
    db.delete(source, 2)
    db.until(lambda: db.read(target) == [[1, 2, 3, 4, 5, 6, 7]])
    db.until(lambda: db.status(sink).error is None)
    assert left(db, sink) == 0


def test_refused_at_its_creation(make: Callable[..., Database]) -> None:
    db = make()
    source, target = db.table("a"), db.table("b", key=True)
    db.insert(source, 2, 2)
    sink = db.sink_into("s", target, source, wait=False)
    db.until(lambda: db.status(sink).error is not None)
    db.c.drop([sink])
    assert db.read(target) == [[]]


def test_only_what_comes_later(make: Callable[..., Database]) -> None:
    db = make(backfill_slice_rows=2)
    source, target = db.table("a"), db.table("b")
    db.insert(source, 1, 2, 3, 4, 5)
    sink = db.sink_into("s", target, source, type="append-only", snapshot="false")
    db.insert(source, 6, 6)
    db.until(lambda: db.read(target) == [[6, 6]])
    assert left(db, sink) == 0


def test_it_feeds_neither_itself_nor_another_group(make: Callable[..., Database]) -> None:
    db = make()
    one, two = db.table("one", key=True), db.table("two", key=True)
    view = db.view("v", one)
    sink = db.sink_into("s", two, view)
    for table, read in ((one, one), (one, two), (two, two)):
        with pytest.raises(StatementError, match="would feed itself") as caught:
            db.sink_into("no", table, read)
        assert caught.value.sqlstate == "42P17"
    with pytest.raises(InvalidParameter, match="keeps a checkpoint group of its own"):
        db.c.alter_job(sink, options={"checkpoint_group": "g"})


def test_a_drop_does_not_wait_for_who_keeps_the_table(make: Callable[..., Database]) -> None:
    db = make()
    source, target = db.table("a"), db.table("b")
    sink = db.sink_into("s", target, source, type="append-only")
    with db.c.writer.gate([target]):
        db.insert(source, 1)
        db.until(lambda: db.core.live.graph.jobs[sink].activity.epochs)
        db.c.drop([sink])
    assert db.read(target) == [[]]
    db.insert(target, 7)
    assert db.read(target) == [[7]]
