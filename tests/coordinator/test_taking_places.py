"""Tables that have been filled take the place of others: what their readers need, and what is seen of before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_database import Database

from headrace.coordinator.run.live_state import LiveRelation
from headrace.errors import EpochTooOld, HeadraceError
from support import WAIT_S


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path)
    yield made
    made.close()


def test_all_that_reads_it_already_goes_on(db: Database) -> None:
    """One that came later has taken the table along to an epoch which the first has not come to."""
    old, new = db.table("t"), db.table("filled")
    filled = db.insert(new, 1)
    first = db.view("first", new)
    db.c.flush(WAIT_S)
    db.insert(old, 2)  # another epoch
    second = db.view("second", new)
    assert db.status(first).committed_epoch < db.status(second).committed_epoch
    db.c.take_place(new, old, {}, filled)
    with db.core.live.lock:
        assert not any(db.core.live.graph.lost_logs(job) for job in db.core.live.graph.jobs.values())
    db.insert(new, 3)
    db.c.flush(WAIT_S)
    assert [db.status(view).status for view in (first, second)] == ["running", "running"]
    assert db.read(new, first, second) == [[1, 3]] * 3


def test_one_without_rows_is_not_seen_as_of_before(db: Database) -> None:
    old, new = db.table("t"), db.table("filled")
    before = db.insert(old, 1)
    db.c.take_place(new, old, {}, filled := db.delete(old, 1))
    with pytest.raises(EpochTooOld):
        db.read(new, at=before)
    assert db.read(new, at=filled) == [[]]
    db.insert(new, 2)
    assert db.read(new) == [[2]]


def test_whoever_writes_to_the_old_one_may_write_again(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the moment on at which it is gone another table has its name: it is never told that there is none."""
    old, new = db.table("t"), db.table("filled")
    told: list[HeadraceError] = []
    pop = dict.pop

    class Watched(dict[int, LiveRelation]):
        def pop(self, key: int, *default: object) -> object:  # type: ignore[override]
            gone = pop(self, key, *default)
            with pytest.raises(HeadraceError) as refused:
                db.c.tables.table(key)
            told.append(refused.value)
            return gone

    db.insert(old, 1)
    graph = db.core.live.graph
    monkeypatch.setattr(graph, "relations", Watched(graph.relations))
    db.c.take_place(new, old, {}, db.insert(new, 1))
    assert [error.sqlstate for error in told] == ["40001"]
