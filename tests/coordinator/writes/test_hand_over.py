"""Changes that a sink hands to a table, with the edits of its own commit: both, or neither, whatever fails."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from write_world import Tables, change

from headrace.catalog.edits import AddEvent
from headrace.common.faults import arm, disarm_all
from headrace.coordinator.writes.requests import Deferred, Part
from headrace.errors import HeadraceError, UniqueViolation
from headrace.state.table_changes import TableChange
from support import WAIT_S, eventually


def hand_over(db: Tables, table: int, *parts: Part) -> None:
    with db.writer.gate([table]):
        db.writer.hand_over(table, parts, [AddEvent("handed", table, "the sink has moved on")])


def moved(db: Tables) -> int:
    """How often the sink has moved on."""
    return sum(e.kind == "handed" for e in db.core.storage.catalog.state.newest_events(1000))


def upsert(rows: Sequence[tuple[int, int]], gone: Sequence[tuple[int, int]] = ()) -> Deferred:
    return Deferred(change(rows, gone))


def test_both_are_there(db: Tables) -> None:
    table = db.numbers("t")
    db.put(table, (1, 1), (2, 2))
    hand_over(db, table, upsert([(1, 10), (3, 30)], [(1, 5), (2, 2), (9, 9)]))
    assert db.content(table) == [(1, 10), (3, 30)] and moved(db) == 1
    hand_over(db, table, upsert([(4, 4)]), upsert([], [(4, 4)]), upsert([(5, 5)]))
    assert db.content(table) == [(1, 10), (3, 30), (5, 5)] and moved(db) == 2
    db.put(table, (5, 6))
    assert db.content(table) == [(1, 10), (3, 30), (5, 6)], "rows that were looked up before are the newest ones"


def test_what_leaves_the_table_as_it_is_moves_the_sink_on(db: Tables) -> None:
    table = db.numbers("t")
    db.put(table, (1, 1))
    hand_over(db, table, upsert([], [(7, 7)]))
    hand_over(db, table)
    assert db.content(table) == [(1, 1)] and moved(db) == 2


def test_what_cannot_be_applied_moves_nothing(db: Tables) -> None:
    table = db.numbers("t")
    db.put(table, (1, 1))
    refused = Deferred(TableChange(change([(1, 2)]).inserts, None, "refuse"))
    with pytest.raises(UniqueViolation):
        hand_over(db, table, upsert([(8, 8)]), refused)
    assert db.content(table) == [(1, 1)] and moved(db) == 0


@pytest.mark.parametrize(
    ("point", "there"),
    [("table.commit.before", False), ("catalog.commit.before", False), ("catalog.commit.after", True)],
)
def test_faults_leave_both_or_neither(db: Tables, point: str, there: bool) -> None:
    """An answer that is lost is read back: then it has happened, and nobody is told otherwise."""
    table = db.numbers("t")
    arm(point, "fail", nth=1)
    try:
        if there:
            hand_over(db, table, upsert([(1, 1)]))
        else:
            with pytest.raises(HeadraceError):
                hand_over(db, table, upsert([(1, 1)]))
    finally:
        disarm_all()
    assert db.content(table) == ([(1, 1)] if there else []) and moved(db) == int(there)
    hand_over(db, table, upsert([(1, 1), (2, 2)]))
    assert db.content(table) == [(1, 1), (2, 2)]


def test_others_wait_meanwhile_and_go_on(db: Tables) -> None:
    table, other = db.numbers("t"), db.numbers("u")
    done = threading.Event()

    def write() -> None:
        db.put(table, (1, 100))
        done.set()

    with db.writer.gate([table]):
        thread = threading.Thread(target=write)
        thread.start()
        db.put(other, (1, 1))
        db.writer.hand_over(table, [upsert([(1, 1), (2, 2)])], [])
        assert not done.is_set()
    thread.join(WAIT_S)
    eventually(done.is_set)
    assert db.content(table) == [(1, 100), (2, 2)]
