"""Group commit: many writers at once, each applied as a whole or failing by itself, all of a group at one epoch."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from silence import POINTS, silent
from write_world import Tables, appends, change, failing, in_threads, inserts, sets, until_queued

from headrace.catalog.catalog import Catalog
from headrace.common.faults import arm, disarm_all
from headrace.coordinator.writes import writer as writer_module
from headrace.coordinator.writes.group import TableGroup
from headrace.coordinator.writes.group_commit import GroupCommit
from headrace.coordinator.writes.history import ReadSet
from headrace.coordinator.writes.requests import Deferred, RowWrite, TableWrite, TransactionCommit, WriteResult
from headrace.coordinator.writes.table_rows import TableRows
from headrace.errors import (
    Fenced,
    HeadraceError,
    NumericOutOfRange,
    QueryCanceled,
    SerializationFailure,
    ShuttingDown,
    StorageError,
    UndefinedTable,
)
from support import WAIT_S, eventually

# ---- what a group comes to


NAMES = itertools.count()
ROWS = some.lists(some.tuples(some.integers(0, 3), some.integers(0, 5)), min_size=1, max_size=3)
STEPS = some.lists(
    some.one_of(
        some.tuples(some.just("insert"), ROWS, some.booleans()), some.tuples(some.just("batch"), ROWS, some.booleans()),
        some.tuples(some.just("add"), some.integers(0, 3), some.integers(0, 2)),
        some.tuples(some.just("deletes"), ROWS, some.just(False)),
    ),
    min_size=1, max_size=8,
)  # fmt: skip


def request(table: int, step: Any) -> RowWrite | TableWrite:
    kind, what, how = step
    if kind == "insert":
        return RowWrite(inserts(table, *what, ignore=how))
    if kind == "batch":
        return TableWrite(table, change(what, ignore=how))
    if kind == "deletes":
        return TableWrite(table, change(deletes=what))
    return RowWrite(sets(table, what, lambda v: None if how == 0 else v + how))


def apply(model: dict[int, int], step: Any) -> tuple[int, int]:
    kind, what, how = step
    before = dict(model)
    if kind in ("insert", "batch"):
        new = {}
        for key, value in what:
            if not (how and (key in before or key in new)):
                new[key] = value
        model |= new
        return len(new), sum(key in before for key in new) if kind == "insert" else 0
    if kind == "deletes":
        gone = {key for key, _ in what} & set(model)
        for key in gone:
            del model[key]
        return 0, len(gone)
    if what not in model:
        return 0, 0
    if how == 0:
        del model[what]
        return 0, 1
    model[what] += how
    return 1, 1


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(some.dictionaries(some.integers(0, 3), some.integers(0, 5)), some.lists(STEPS, min_size=1, max_size=3))
def test_a_group_is_its_requests_one_after_another(shared: Tables, start: dict[int, int], groups: list[Any]) -> None:
    """Operations by key, batches and deletes mixed, over rows of the state, of the cache and of the group itself."""
    table = shared.numbers(f"g{next(NAMES)}")
    model = dict(start)
    if start:
        shared.c.write(table, change(list(start.items())))
    for steps in groups:
        wanted = [apply(model, step) for step in steps]
        found = shared.together(*(request(table, step) for step in steps))
        assert all(isinstance(f, WriteResult) for f in found), found
        assert [(f.inserted, f.deleted) for f in found if isinstance(f, WriteResult)] == wanted
        assert len({f.epoch for f in found if isinstance(f, WriteResult)}) == 1
        assert shared.content(table) == sorted(model.items())


def test_writers_share_runs_and_lose_nothing(db: Tables) -> None:
    """Sixteen threads at once: every increment counts, every row is there, in fewer commits than there were writers."""
    counters, log = db.numbers("counters"), db.numbers("log", key=False)
    db.put(counters, *((i, 0) for i in range(4)))
    start, groups = threading.Barrier(16), db.writer.groups

    def work(number: int) -> None:
        pick = random.Random(number)
        start.wait(WAIT_S)
        for step in range(10):
            key = pick.randrange(4)
            if number % 2:
                db.c.commit(RowWrite(sets(counters, key, lambda v: v + 1)))
            else:
                db.writer.submit(RowWrite(sets(counters, key, lambda v: v + 1))).result(WAIT_S)
            db.c.write(log, change([(number, step)])) if step % 2 else db.c.commit(
                RowWrite(appends(log, (number, step)))
            )

    in_threads(16, work)
    assert sum(v for _, v in db.content(counters)) == 160
    assert db.content(log) == [(i, s) for i in range(16) for s in range(10)]
    assert db.writer.groups - groups < 320


def test_a_group_writes_one_run_for_each_table(db: Tables) -> None:
    a, b = db.numbers("a"), db.numbers("b", key=False)
    found = db.together(
        *(RowWrite(inserts(a, (i, i))) for i in range(20)), *(RowWrite(appends(b, (i, i))) for i in range(20))
    )
    assert len({f.epoch for f in found if isinstance(f, WriteResult)}) == 1
    for table in (a, b):
        assert len(db.content(table)) == 20
        assert len(list(db.catalog.state.runs_of(db.core.live.graph.relations[table].state_table))) == 1


def test_a_failing_request_fails_alone(db: Tables) -> None:
    t, gone = db.numbers("t"), db.numbers("gone")
    db.put(t, (1, 1))
    with db.held_back():
        futures = db.start(
            RowWrite(inserts(t, (2, 2))), RowWrite(failing(t, 1, NumericOutOfRange("too much"))),
            RowWrite(failing(t, 1, RuntimeError("a fault"))), RowWrite(inserts(gone, (1, 1))),
            RowWrite(sets(t, 1, lambda v: v + 1)), TransactionCommit(0, ReadSet({t}), {t: [change]}),  # type: ignore[list-item]
        )  # fmt: skip
        # As if it had been dropped while the request waited.
        db.core.live.graph.relations[gone].dropped = True
    kinds = [type(f.exception(WAIT_S)) for f in futures]
    assert kinds[0] is kinds[4] is type(None)
    assert kinds[1] is NumericOutOfRange and issubclass(kinds[2], HeadraceError) and kinds[3] is UndefinedTable
    assert kinds[5] is SerializationFailure, "something of the table has changed"
    assert db.content(t) == [(1, 2), (2, 2)]
    db.core.live.graph.relations[gone].dropped = False
    assert db.content(gone) == []


def test_rows_that_cannot_be_read_fail_those_who_want_them(db: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged object of one table is no reason to refuse writes to others."""
    bad, good = db.numbers("bad"), db.numbers("good")
    db.put(bad, (1, 1))
    db.writer.tables._rows.forget(bad)
    found_in = TableRows.looked_up

    def found_or_not(self: TableRows, table_id: int, *rest: Any) -> Any:
        if table_id == bad:
            raise StorageError("a damaged object")
        return found_in(self, table_id, *rest)

    monkeypatch.setattr(TableRows, "looked_up", found_or_not)
    found = db.together(RowWrite(sets(bad, 1, lambda v: v + 1)), RowWrite(inserts(good, (1, 1))))
    assert isinstance(found[0], StorageError) and isinstance(found[1], WriteResult)
    monkeypatch.undo()
    assert (db.content(bad), db.content(good)) == ([(1, 1)], [(1, 1)])


def test_a_transaction_that_fails_halfway_leaves_nothing(db: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning what was deferred reads the table: if that fails, what came before it is not committed either."""
    a, b = db.numbers("a"), db.numbers("b")
    planned = TableGroup.plan

    def plan(self: Any, wanted: Any) -> Any:
        if self.relation.id == b:
            raise StorageError("no answer")
        return planned(self, wanted)

    monkeypatch.setattr(TableGroup, "plan", plan)
    parts = {a: [Deferred(change([(1, 1)]))], b: [Deferred(change([(1, 1)]))]}
    found = db.together(
        RowWrite(inserts(a, (7, 7))), TransactionCommit(0, ReadSet(), parts), RowWrite(inserts(a, (8, 8)))
    )
    assert isinstance(found[1], StorageError)
    assert (db.content(a), db.content(b)) == ([(7, 7), (8, 8)], [])


# ---- whoever waits


def test_what_waits_behind_a_gate(db: Tables) -> None:
    """Others' writes to the gate's tables wait, those of its holder and to other tables do not."""
    t, other = db.numbers("t"), db.numbers("other")
    with db.writer.gate([t]) as gate:
        waits = db.writer.submit(RowWrite(inserts(t, (1, 1))))
        db.put(other, (1, 1))
        db.c.commit(RowWrite(inserts(t, (1, 5)), gate))
        assert db.content(t) == [(1, 5)] and not waits.done()
        with pytest.raises(QueryCanceled), db.writer.gate([t, other], canceled):
            raise AssertionError("it is taken")
    assert waits.result(WAIT_S) and db.content(t) == [(1, 1)]


def canceled() -> None:
    raise QueryCanceled("enough")


def test_who_waits_can_be_cancelled(db: Tables) -> None:
    t = db.numbers("t")
    with db.writer.gate([t]):
        with pytest.raises(QueryCanceled):
            db.c.commit(RowWrite(inserts(t, (1, 1))), canceled)
        submitted = RowWrite(inserts(t, (2, 2)))
        future = db.writer.submit(submitted)
        db.writer.cancel(submitted, QueryCanceled("enough"))
        assert isinstance(future.exception(WAIT_S), QueryCanceled)
        db.writer.cancel(submitted, QueryCanceled("again"))
        until_queued(db, 0)
    assert db.content(t) == []


def test_a_cancel_that_comes_too_late_changes_nothing(db: Tables) -> None:
    t = db.numbers("t")
    arm("table.commit.before", "hang")
    request = RowWrite(inserts(t, (1, 1)))
    future = db.writer.submit(request)
    eventually(lambda: not db.writer._queue and db.writer._leading.locked(), "it to be under way")
    db.writer.cancel(request, QueryCanceled("too late"))
    disarm_all()
    assert future.result(WAIT_S).inserted == 1 and db.content(t) == [(1, 1)]


def test_stopping_tells_all_who_wait(tmp_path: Path) -> None:
    db = Tables(tmp_path)
    t = db.numbers("t")
    errors: list[BaseException] = []

    def blocked() -> None:
        try:
            db.c.commit(RowWrite(inserts(t, (1, 1))))
        except HeadraceError as error:
            errors.append(error)

    with db.writer.gate([t]):
        future = db.writer.submit(RowWrite(inserts(t, (2, 2))))
        thread = threading.Thread(target=blocked)
        thread.start()
        until_queued(db, 2)
        db.close()
        assert isinstance(future.exception(WAIT_S), ShuttingDown)
        thread.join(WAIT_S)
    assert [type(e) for e in errors] == [ShuttingDown]
    with pytest.raises(HeadraceError):
        db.writer.submit(RowWrite(inserts(t, (3, 3))))
    again = Tables(tmp_path)
    assert again.content(t) == []
    again.close()


def test_the_thread_ends_and_another_takes_its_place(db: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.coordinator.writes.writer.IDLE_S", 0.01)
    t = db.numbers("t")
    for i in range(3):
        db.writer.submit(RowWrite(inserts(t, (i, i)))).result(WAIT_S)
        eventually(lambda: db.writer._thread is None, "the thread to end")
    assert len(db.content(t)) == 3


def test_nobody_is_forgotten_when_the_thread_dies(db: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    t = db.numbers("t")
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    assert isinstance(db.together(RowWrite(failing(t, 1, SystemExit())))[0], SystemExit | HeadraceError)  # type: ignore[arg-type]
    assert db.writer.submit(RowWrite(inserts(t, (1, 1)))).result(WAIT_S).inserted == 1


# ---- what breaks


@pytest.mark.parametrize("point", ["table.commit.before", "catalog.commit.before"])
def test_a_commit_that_fails_leaves_nothing(db: Tables, point: str) -> None:
    a, b = db.numbers("a"), db.numbers("b")
    db.put(a, (1, 1))
    arm(point, "fail", nth=1)
    found = db.together(RowWrite(sets(a, 1, lambda v: v + 1)), RowWrite(inserts(b, (1, 1))))
    assert [type(f) for f in found] == [StorageError] * 2
    assert (db.content(a), db.content(b)) == ([(1, 1)], [])
    db.c.commit(RowWrite(sets(a, 1, lambda v: v + 1)))
    assert db.content(a) == [(1, 2)], "the cache does not hold what was never committed"


def test_an_answer_that_is_lost_is_read_back(db: Tables) -> None:
    t = db.numbers("t")
    arm("catalog.commit.after", "fail", nth=1)
    assert db.put(t, (1, 1)).inserted == 1
    assert db.content(t) == [(1, 1)]


@pytest.mark.parametrize("point", POINTS)
def test_a_commit_whose_outcome_is_unknown(db: Tables, point: str) -> None:
    """It is told as failed; what comes after it finds it done or not, and never overwrites it by an older row."""
    t = db.numbers("t")
    db.put(t, (1, 1))
    with db.transaction() as work:
        work.fix()
        with silent(db, point), pytest.raises(StorageError):
            db.c.commit(RowWrite(sets(t, 1, lambda value: value + 10)))
        done = point.endswith("after")
        if done:
            with pytest.raises(SerializationFailure):
                work.run(sets(t, 1, lambda value: value + 1))
                work.commit()
    db.c.commit(RowWrite(sets(t, 1, lambda value: value + 1)))
    assert db.content(t) == [(1, 12 if done else 2)]


def test_a_server_that_was_replaced_writes_nothing(tmp_path: Path) -> None:
    db = Tables(tmp_path)
    t = db.numbers("t")
    other = Catalog.open(db.settings.catalog_location, full_sync=False)
    found = db.together(RowWrite(inserts(t, (1, 1))))
    assert isinstance(found[0], Fenced) and isinstance(db.core.runtime.failure, Fenced)
    assert not other.state.runs
    other.close()
    db.close()


def test_equal_rows_without_a_key_are_counted(db: Tables) -> None:
    t = db.numbers("t", key=False)
    db.together(
        RowWrite(appends(t, (1, 1), (1, 1))), TableWrite(t, change(deletes=[(1, 1)])), RowWrite(appends(t, (1, 1))),
        TableWrite(t, change(deletes=[(1, 1), (2, 2)])), TableWrite(t, change([(1, 1)])),
    )  # fmt: skip
    assert Counter(db.content(t)) == {(1, 1): 2}


# ---- what nobody expects


class Panic(BaseException):
    """As those of native libraries are: not an `Exception`."""


class Odd(Exception):
    """Cannot be made of its arguments alone, so not be copied."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"odd: {a} {b}")


@pytest.mark.parametrize("error", [Panic("out of a library"), Odd(1, 2)])
def test_whoever_waits_is_told_whatever_happens(
    db: Tables, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """All of the group in which it happened, and the groups after it go on."""
    t = db.numbers("t")
    monkeypatch.setattr(writer_module, "GROUP_REQUESTS", 2)
    store, left = GroupCommit._store, [error]

    def fails(commit: GroupCommit, *rest: Any) -> int:
        if left:
            raise left.pop()
        return store(commit, *rest)

    monkeypatch.setattr(GroupCommit, "_store", fails)
    with db.writer.paused():
        done = [db.writer.submit(RowWrite(inserts(t, (n, n)))) for n in range(4)]
    for n, future in enumerate(done):
        if n < 2:
            found = future.exception(WAIT_S)
            assert str(error) in str(found)
        else:
            assert future.result(WAIT_S).inserted == 1
    assert db.content(t) == [(2, 2), (3, 3)]


def test_a_failing_pause_wakes_who_waits(db: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    woken = []
    monkeypatch.setattr(db.writer, "_wake", lambda: woken.append(1))
    with pytest.raises(KeyError), db.writer.paused():
        raise KeyError
    assert woken


# ---- what costs nothing


def test_a_change_that_leaves_all_as_it_is_makes_no_epoch(db: Tables) -> None:
    t = db.numbers("t")
    db.put(t, (1, 1))
    before = db.catalog.sequence, db.core.live.epochs.last
    result = db.c.commit(RowWrite(sets(t, 1, lambda v: v)))
    assert (result.inserted, result.deleted) == (1, 1)
    with db.transaction() as work:
        work.run(sets(t, 1, lambda v: v + 1))
        work.run(sets(t, 1, lambda v: v - 1))
        work.commit()
    assert (db.catalog.sequence, db.core.live.epochs.last) == before
    assert db.content(t) == [(1, 1)]


def test_a_dropped_table_is_named(db: Tables) -> None:
    t = db.numbers("gone_by_now")
    db.put(t, (1, 1))
    db.c.drop([t])
    with pytest.raises(UndefinedTable, match='table "gone_by_now" does not exist'):
        db.put(t, (2, 2))


@pytest.mark.parametrize("forgotten", [False, True])
def test_keys_are_found_whichever_run_they_are_in(db: Tables, forgotten: bool) -> None:
    """Only runs that may have a key are looked into: also after merges, and when the history has forgotten changes."""
    t, drawn = db.numbers("t"), random.Random(7)
    db.writer.tables.history._keys_kept = 12 if forgotten else 1_000_000
    wanted: dict[int, int] = {}
    for step in range(120):
        db.writer.tables._rows.forget(t)
        key = drawn.randrange(20)
        if drawn.random() < 0.2:
            db.c.commit(RowWrite(sets(t, key, lambda v: None)))
            wanted.pop(key, None)
        elif drawn.random() < 0.5:
            with db.transaction() as work:
                work.fix()
                work.run(sets(t, key, lambda v: v + 1))
                work.commit()
            wanted = {k: v + (k == key) for k, v in wanted.items()}
        else:
            db.put(t, (key, step))
            wanted[key] = step
        if step % 9 == 0:
            db.c._parts.compactor.pass_once()
        if step % 25 == 0:
            db.writer.tidy()
        assert db.content(t) == sorted(wanted.items()), step
    assert len(list(db.catalog.state.runs_of(db.core.live.graph.relations[t].state_table))) < 60, "some were merged"


def test_one_pin_serves_all_who_read_the_same_runs(db: Tables) -> None:
    t = db.numbers("t")
    db.put(t, (1, 1))
    pins = db.core.storage.pins
    with db.transaction() as one, db.transaction() as two:
        one.run(sets(t, 1, lambda v: v + 1))
        held = pins.paths()
        two.run(sets(t, 1, lambda v: v + 1))
        assert pins.paths() == held
        db.put(t, (2, 2))
        assert held <= pins.paths(), "what a transaction reads stays"
    db.writer.tidy()
    assert pins.paths() == set() and not pins.epochs(t)
