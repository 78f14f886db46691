"""A reading process's knowledge of tables follows the coordinator's, in one process and without Spark."""

from __future__ import annotations

import random
import socket
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_database import Database

from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import Put
from headrace.coordinator.reads import LATER, NEWEST, ReadOptions
from headrace.errors import SnapshotUnavailable
from headrace.server.readers.followed import Followed
from headrace.server.readers.publisher import NewsLine, Publisher
from headrace.server.readers.reading_board import ReadingBoard, now_ms
from support import WAIT_S, eventually


class Beside:
    """A publisher over a coordinator, and what one reading process makes of its news."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.board = ReadingBoard.create(1)
        self.ends = socket.socketpair()
        for end in self.ends:
            end.setblocking(False)
        self.publisher = Publisher(db.c, db.catalog, self.board)
        self.line = NewsLine(self.ends[0], lambda: None, lambda: None)
        self.publisher.join(self.line)
        self.followed = Followed(self.board, 0, self.ends[1])

    def grant(self, table: int) -> int | None:
        state = self.db.catalog.state
        return self.publisher.grant([state.objects[table]], state.objects)

    def close(self) -> None:
        for end in self.ends:
            end.close()


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path, retention_ms=0, compaction_trigger_runs=2)
    yield made
    made.close()


@pytest.fixture
def beside(db: Database) -> Iterator[Beside]:
    made = Beside(db)
    yield made
    made.close()


def changed(db: Database, table: int, there: set[int], chosen: random.Random, step: int) -> bool:
    """Whether the step of a random walk was to write to a table, which has been done."""
    if step < 3 and len(there) < 8:
        new = chosen.choice([i for i in range(9) if i not in there])
        db.insert(table, new)
        there.add(new)
        return True
    if step < 5 and there:
        old = chosen.choice(sorted(there))
        db.delete(table, old)
        there.remove(old)
        return True
    return False


@pytest.mark.parametrize("seed", range(6))
def test_it_reads_what_the_coordinator_reads(db: Database, beside: Beside, seed: int) -> None:
    """Whatever is written, merged, deleted, under way: either it knows that it does not know, or it is equal."""
    chosen = random.Random(seed)
    table = db.table(key=True)
    there: set[int] = set()
    assert beside.grant(table) is not None
    under_way: list[int] = []
    epochs = db.c._core.live.epochs
    known = 0
    for _ in range(60):
        step = chosen.randrange(8)
        if not under_way and changed(db, table, there, chosen, step):
            pass
        elif step == 5:
            db.c.compact()
            db.c._parts.vacuum.pass_once()
        elif step == 6 and not under_way:
            under_way.append(epochs.begin())
        elif under_way:
            epochs.end(under_way.pop())
        if chosen.random() < 0.1:
            beside.followed.tidy()
        for key in range(9):
            expected = db.c.rows_now(table, [((key,), NEWEST)])[0]
            assert beside.followed.current()
            found = beside.followed.row_now(table, (key,), 0)
            if found is not LATER:
                known += 1
                assert found == expected
    for epoch in under_way:
        epochs.end(epoch)
    assert known > 300


def test_news_that_has_not_come_is_no_news(db: Database, beside: Beside) -> None:
    """A process whose line is behind knows that it is; one that has taken it in goes on."""
    table = db.table(key=True)
    beside.grant(table)
    assert beside.followed.current()
    beside.publisher.leave(beside.line)
    db.insert(table, 1)
    assert not beside.followed.current()


def test_nothing_is_known_while_a_change_becomes_visible(db: Database, beside: Beside) -> None:
    """Between the news and the moment from which on the server reads it, neither the old nor the new is read."""
    table = db.table(key=True)
    db.insert(table, 1)
    beside.grant(table)
    assert beside.followed.current()
    with beside.publisher.completing(db.c._core.live.epochs.complete + 1):
        assert not beside.followed.current()
    assert beside.followed.current()


def test_a_change_of_objects_changes_what_texts_mean(db: Database, beside: Beside) -> None:
    table = db.table(key=True)
    meaning = beside.grant(table)
    db.insert(table, 1)
    assert beside.followed.current() and beside.followed.meaning == meaning
    db.insert(table, 2)
    assert beside.grant(table) == meaning, "rows are none of it"
    old = db.catalog.state
    other = db.table("other", key=True)
    assert beside.followed.current() and beside.followed.meaning != meaning
    assert beside.publisher.grant([old.objects[table]], old.objects) is None, "what was planned before is not told of"
    assert beside.grant(table) == beside.followed.meaning
    db.c.drop([table])
    assert beside.followed.current()
    assert beside.followed.row_now(table, (1,), 0) is LATER
    assert beside.followed.row_now(other, (1,), 0) is LATER


def test_another_opener_ends_it(db: Database, beside: Beside) -> None:
    table = db.table(key=True)
    db.insert(table, 1)
    beside.grant(table)
    assert beside.followed.current() and beside.followed.row_now(table, (1,), 0) == (1,)
    assert db.catalog.file is not None
    Catalog.open(db.catalog.file).close()
    assert beside.followed.current()
    assert beside.followed.row_now(table, (1,), 0) is LATER


def test_what_a_process_has_shown_is_a_floor(db: Database, beside: Beside) -> None:
    """PC-36: a read of the table with a view that is behind does not show what was before; `off` does."""
    table = db.table(key=True)
    view = db.view("v", table)
    db.insert(table, 1)
    db.c.flush(WAIT_S)
    db.c.alter_job(view, paused=True)
    db.insert(table, 2)
    with db.c.snapshot([table, view], options=ReadOptions()) as snapshot:
        assert db.values(snapshot.tables[table]) == [1], "nobody has seen more yet"
    beside.grant(table)
    assert beside.followed.current() and beside.followed.row_now(table, (2,), 0) == (2,)
    with pytest.raises(SnapshotUnavailable, match="already shown"):
        db.c.snapshot([table, view], options=ReadOptions())
    with db.c.snapshot([table, view], options=ReadOptions(monotonic="off")) as snapshot:
        assert db.values(snapshot.tables[table]) == [1]


def commented(db: Database, table: int, text: str) -> None:
    """Change the record of a table, as COMMENT, GRANT and ALTER do."""
    db.catalog.transact([Put(replace(db.catalog.state.objects[table], comments={"": text}))])


def shown_ahead_of_a_view(db: Database, beside: Beside) -> tuple[int, int]:
    """Return a table that a process has shown at an epoch which a paused view over it has not reached, and the view."""
    table = db.table(key=True)
    view = db.view("v", table)
    db.insert(table, 1)
    db.c.flush(WAIT_S)
    db.c.alter_job(view, paused=True)
    db.insert(table, 2)
    beside.grant(table)
    assert beside.followed.current() and beside.followed.row_now(table, (2,), 0) == (2,)
    return table, view


@pytest.mark.parametrize("known_again", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_a_floor_outlives_a_change_of_the_record(db: Database, beside: Beside, known_again: bool, late: bool) -> None:
    """I15: also where the process shows the table once more before it has the news of the change."""
    table, view = shown_ahead_of_a_view(db, beside)
    if late:
        beside.board.clear(beside.publisher._tables[table].news.slot)
    commented(db, table, "new")
    if late:
        assert beside.followed.row_now(table, (2,), 0) == (2,), "it has not looked at the board since"
    if known_again:
        assert beside.grant(table) is not None
    with pytest.raises(SnapshotUnavailable, match="already shown"):
        db.c.snapshot([table, view], options=ReadOptions())


def test_a_place_that_is_used_again_has_no_floor(db: Database, beside: Beside) -> None:
    """Of the table that was dropped; what was shown of one that is still there goes on being a floor."""
    beside.publisher._free = deque([0])  # there is one place only
    table, view = shown_ahead_of_a_view(db, beside)
    other, gone = db.table("other", key=True), db.table("gone", key=True)
    over = db.view("w", other)
    db.insert(other, 1)
    db.c.flush(WAIT_S)
    db.c.alter_job(over, paused=True)
    commented(db, table, "its place is free")
    db.insert(gone, 1)
    assert beside.grant(gone) is not None and beside.followed.current()
    assert beside.followed.row_now(gone, (1,), 0) == (1,)
    db.c.drop([gone])
    db.insert(other, 2)
    assert beside.grant(other) is not None
    with db.c.snapshot([other, over], options=ReadOptions()) as snapshot:
        assert db.values(snapshot.tables[other]) == [1], "nobody has seen more of it"
    with pytest.raises(SnapshotUnavailable, match="already shown"):
        db.c.snapshot([table, view], options=ReadOptions())


@pytest.mark.parametrize("seed", range(4))
def test_whole_relations_are_as_the_coordinator_has_them(db: Database, beside: Beside, seed: int) -> None:
    """Tables and views, beside writes, merges, vacuum and views that stand still: exact at the epoch that is said, no
    earlier than anybody has seen, and the other way round."""
    chosen = random.Random(seed)
    table = db.table(key=True)
    view = db.view("v", table)
    db.insert(table, 100)
    db.c.flush(WAIT_S)
    for relation in (table, view):
        assert beside.grant(relation) is not None
    there: set[int] = set()
    paused, known = False, {table: 0, view: 0}
    for _ in range(60):
        step = chosen.randrange(9)
        if changed(db, table, there, chosen, step):
            pass
        elif step == 5:
            db.c.compact()
            db.c._parts.vacuum.pass_once()
        elif paused or (step == 6 and chosen.random() < 0.5):
            paused = not paused
            db.c.alter_job(view, paused=paused)
            beside.grant(view)
        else:
            db.c.flush(WAIT_S)
        beside.publisher.vouch()
        for relation in (table, view):
            with db.c.snapshot([relation], options=NEWEST) as before:
                pass
            # A thread of the coordinator may be about to show something more: then it is not known for a moment.
            eventually(beside.followed.current)
            held = beside.followed.held_now(relation, 0)
            if held is None:
                continue
            known[relation] += 1
            assert held.table.as_of >= before.epochs[relation] or relation == view
            with db.c.snapshot([relation], options=NEWEST) as after:
                assert after.epochs[relation] >= held.table.as_of
            with db.c.snapshot([relation], at=held.table.as_of) as same:
                assert same.epochs[relation] == held.table.as_of
                assert db.values(held.table) == db.values(same.tables[relation])
            assert not before.notices or paused
    assert known[table] == 60 and known[view] > 10


def test_a_view_is_shown_as_long_as_there_is_nothing_to_tell(db: Database, beside: Beside) -> None:
    """Only what was vouched for, of the version that it was vouched for, and as long as it is said to hold."""
    table = db.table(key=True)
    view = db.view("v", table)
    db.insert(table, 1)
    db.c.flush(WAIT_S)
    beside.grant(view)
    assert beside.followed.current() and beside.followed.held_now(view, 0) is None, "nobody has vouched for it"
    beside.publisher.vouch()
    held = beside.followed.held_now(view, 0)
    assert held is not None and db.values(held.table) == [1]
    assert beside.followed.held_now(view, held.table.as_of + 1) is None, "a session that has written later waits"
    slot = beside.publisher._tables[view].news.slot
    beside.board.vouch(slot, held.table.as_of, now_ms() - 1)
    assert beside.followed.held_now(view, 0) is None, "it has been too long"
    beside.board.vouch(slot, held.table.as_of, now_ms() + 60_000)
    beside.board.version += 2
    assert beside.followed.held_now(view, 0) is None, "a later version may be meant"
    beside.board.version -= 2
    db.runner_of(view).error = ValueError("no")
    db.insert(table, 2)
    eventually(lambda: db.core.live.graph.jobs[view].error is not None, "the view to fail")
    beside.publisher.vouch()
    eventually(beside.followed.current)
    assert beside.followed.held_now(view, 0) is None, "the server tells that it fails"


def test_writers_and_readers_at_once(db: Database, beside: Beside) -> None:
    """What is acknowledged before a read begins is in it, from any thread."""
    table = db.table(key=True)
    beside.grant(table)
    newest, over, failures = [0], threading.Event(), []

    def write() -> None:
        try:
            for i in range(1, 200):
                db.insert(table, i)
                newest[0] = i
        finally:
            over.set()

    writer = threading.Thread(target=write)
    writer.start()
    answered = 0
    while not over.is_set() or not answered:
        least = newest[0]
        if least and beside.followed.current():
            found = beside.followed.row_now(table, (least,), 0)
            answered += found is not LATER
            if found is not LATER and found != (least,):
                failures.append((least, found))
    writer.join()
    assert failures == [] and answered


def test_a_fault_in_telling_loses_no_commit(db: Database, beside: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is durable is seen all the same; nobody reads beside the server any more."""
    table = db.table(key=True)
    beside.grant(table)
    monkeypatch.setattr("headrace.server.readers.publisher.packed", lambda message: 1 / 0)
    db.insert(table, 1)
    assert db.c.rows_now(table, [((1,), NEWEST)])[0] == (1,)
    monkeypatch.undo()
    db.insert(table, 2)
    assert db.c.rows_now(table, [((2,), NEWEST)])[0] == (2,)
    assert not beside.followed.current()
