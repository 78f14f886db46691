"""A read that must hold a change which is committed and whose epoch is not complete yet: it waits for a moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_database import Database

from headrace.coordinator.reads import ReadOptions
from support import eventually


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path)
    yield made
    made.close()


def test_a_table_read_waits_for_a_change_whose_epoch_is_not_complete(db: Database) -> None:
    """The history of writes knows a change before its epoch is complete: `last_change` is a floor that will come."""
    t = db.table()
    db.insert(t, 1)
    core = db.c._core
    older = core.live.epochs.begin()  # a binding, say, that is under way
    writing = threading.Thread(target=db.insert, args=(t, 2))
    writing.start()
    try:
        eventually(lambda: db.c.writer.tables.last_change([t]) > core.live.epochs.complete, "the change to be noted")
        threading.Timer(0.3, core.live.epochs.end, [older]).start()
        options = ReadOptions(at_least=db.c.writer.tables.last_change([t]))
        with db.c.snapshot([t], options=options) as snapshot:
            assert db.values(snapshot.tables[t]) == [1, 2]
    finally:
        core.live.epochs.end(older)
        writing.join()
