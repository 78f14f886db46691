"""What dropped sources hold where they read is let go of in the end: later and later, never twice at once; or told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_database import Database

from headrace.catalog.contents import SourceContent
from headrace.catalog.edits import Put
from headrace.catalog.records import LeavingRecord, ObjectRecord
from headrace.coordinator.ddl import letting_go
from headrace.coordinator.upkeep import leftovers
from headrace.errors import SourceError
from support import WAIT_S, eventually

OPTIONS = {"connector": "postgres-cdc", "slot.name": "ours", "table.name": "t"}
TOLD = "source_left"


class There:
    """What the sources hold there: answers, or does not."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.answers = False
        self.alone: str | None = None
        self.entered, self.goes_on = threading.Event(), threading.Event()
        self.goes_on.set()

    def open(self, *_: Any) -> Any:
        return SimpleNamespace(discard=self.discard)

    def discard(self, last: Any) -> str | None:
        self.asked.append(last)
        self.entered.set()
        assert self.goes_on.wait(WAIT_S)
        if not self.answers:
            raise SourceError("nobody answers")
        return self.alone


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> There:
    found = There()
    monkeypatch.setattr(letting_go, "open_source", found.open)
    return found


@pytest.fixture
def open_db(tmp_path: Path, there: There, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Database]]:
    """With pauses of a millisecond, of ten at most."""
    monkeypatch.setattr(leftovers, "FIRST_MS", 1)
    monkeypatch.setattr(leftovers, "LONGEST_MS", 10)
    made: list[Database] = []

    def open_() -> Database:
        made.append(Database(tmp_path))
        return made[-1]

    yield open_
    there.goes_on.set()
    for db in made:
        db.close()


def dropped(db: Database, number: int = 900, *, options: dict[str, str] = OPTIONS, **more: Any) -> LeavingRecord:
    """A note, as the drop of a source leaves one."""
    source = ObjectRecord(number, SourceContent(), "public", f"s{number}", options=options)
    note = LeavingRecord(source, offsets={"lsn": 7}, **{"dropped_ms": db.core.runtime.clock.now_ms(), **more})
    db.catalog.transact([Put(note)])
    db.core.live.notify()
    return note


def left(db: Database) -> list[int]:
    return [*db.catalog.state.leaving]


def test_it_is_asked_again_until_it_answers(open_db: Callable[[], Database], there: There) -> None:
    db = open_db()
    dropped(db)
    eventually(lambda: len(there.asked) >= 3)
    (shown,) = db.c.leftovers()
    assert (shown.source.name, shown.error) == ("s900", "nobody answers") and shown.failures >= 2
    assert shown.retry_in_ms <= 10
    there.answers = True
    eventually(lambda: left(db) == [])
    assert {str(last) for last in there.asked} == {"{'lsn': 7}"}, "others may have made the same again"
    (text,) = db.events(TOLD)
    assert "holds where it reads is still there: nobody answers; it is tried again" in text
    eventually(lambda: len(db.events("source_let_go")) == 1)
    assert db.c.leftovers() == []


def test_the_statement_tries_first_and_the_thread_goes_on(open_db: Callable[[], Database], there: There) -> None:
    db = open_db()
    with db.core.live.lock:  # the thread sees the note when the statement has tried
        dropped(db)
        (told,) = db.c.let_go([900])
    assert "nobody answers; it is tried again (headrace_catalog.dropped_sources)" in told
    assert there.asked[0] is None, "nobody had the time to make it again"
    there.answers = True
    eventually(lambda: left(db) == [])
    assert db.c.let_go([900]) == []


def test_another_server_goes_on(open_db: Callable[[], Database], there: There) -> None:
    db = open_db()
    dropped(db)
    eventually(lambda: len(there.asked) >= 1)
    db.close()
    count = len(there.asked)
    assert count and not [t for t in threading.enumerate() if t.name == "headrace-letting-go"]
    there.answers = True
    db = open_db()
    eventually(lambda: left(db) == [])
    assert len(there.asked) == count + 1
    assert len(db.events("source_let_go")) == 1, "the server before it has said that it is there still"


def test_what_may_be_of_others_is_left_alone_and_told(open_db: Callable[[], Database], there: There) -> None:
    there.answers, there.alone = True, "the slot may be another one"
    db = open_db()
    dropped(db)
    eventually(lambda: left(db) == [])
    (text,) = db.events(TOLD)
    assert text == 'source "s900" was dropped: the slot may be another one'


def test_after_a_week_it_is_given_up(open_db: Callable[[], Database], there: There) -> None:
    db = open_db()
    dropped(db, dropped_ms=db.core.runtime.clock.now_ms() - leftovers.GIVEN_UP_MS)
    eventually(lambda: left(db) == [])
    assert [text.endswith("it is given up") for text in db.events(TOLD)] == [True] and len(there.asked) == 1


def test_a_source_of_its_name_is_made_behind_that(open_db: Callable[[], Database], there: There) -> None:
    """Nobody lets go of what has just been made: neither the thread, nor a statement."""
    db = open_db()
    there.goes_on.clear()
    dropped(db)
    assert there.entered.wait(WAIT_S)
    made: list[int] = []

    def make() -> None:
        with db.c.holding({**OPTIONS, "table.name": "other"}):
            made.append(len(there.asked))

    with db.c.holding({**OPTIONS, "slot.name": "theirs"}):
        pass  # another slot is nothing to wait for
    maker = threading.Thread(target=make)
    maker.start()
    assert not made
    there.answers = True
    there.goes_on.set()
    maker.join(WAIT_S)
    assert made == [1] and left(db) == []


def test_who_makes_it_lets_go_of_what_is_left_first(open_db: Callable[[], Database], there: There) -> None:
    db = open_db()
    with db.core.live.lock:  # before the thread has seen it
        dropped(db)
        there.answers = True
        with db.c.holding(OPTIONS):
            assert left(db) == [] and len(there.asked) == 1
        with db.c.holding({"connector": "datagen"}):
            pass
    assert db.events("source_let_go") == [], "it was never said not to be"


def test_a_statement_waits_once_for_a_server_that_does_not_answer(
    open_db: Callable[[], Database], there: There
) -> None:
    """Not for each of the sources that are dropped together, nor for all that is left of a shared slot."""
    db = open_db()
    elsewhere = {**OPTIONS, "hostname": "elsewhere"}
    with db.core.live.lock:  # before the thread has seen them
        for number, options in enumerate([*[{**OPTIONS, "slot.name": f"of_{i}"} for i in range(3)], elsewhere], 900):
            dropped(db, number, options=options)
        told = db.c.let_go([900, 901, 902, 903])
        assert len(there.asked) == 2 and left(db) == [900, 901, 902, 903]
        assert ["nobody answers; it is tried again" in text for text in told] == [True, False, False, True]
        assert "is still there: it is asked later (headrace_catalog.dropped_sources)" in told[1]
    there.answers = True
    eventually(lambda: left(db) == [])
    there.answers = False
    with db.core.live.lock:
        for number in (910, 911, 912):
            dropped(db, number)
        there.asked.clear()
        with db.c.holding(OPTIONS):
            assert len(there.asked) == 1
        there.answers = True
        with db.c.holding(OPTIONS):
            assert left(db) == [] and len(there.asked) == 4


def test_what_cannot_be_noted_as_done_is_done_again(
    open_db: Callable[[], Database], there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.answers = True
    db = open_db()
    real, failed = db.catalog.transact, []

    def once(edits: Any, **kwargs: Any) -> Any:
        if not failed and any(getattr(e, "collection", "") == "leaving" for e in edits):
            failed.append(1)
            raise OSError("no space left")
        return real(edits, **kwargs)

    monkeypatch.setattr(db.catalog, "transact", once)
    dropped(db)
    eventually(lambda: left(db) == [])
    assert len(there.asked) == 2
