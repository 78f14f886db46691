"""A snapshot from before the server's start: what has changed between the two is in the way of who reads by it."""

from __future__ import annotations

from pathlib import Path

import pytest
from write_world import Tables, change, sets

from headrace.errors import SerializationFailure


@pytest.mark.parametrize("noted", ["row", "key", "table"])
def test_what_changed_before_the_start_but_after_the_snapshot_is_in_the_way(tmp_path: Path, noted: str) -> None:
    db = Tables(tmp_path)
    table = db.numbers("t")
    db.put(table, (1, 10))
    old = db.c.current_epoch()
    db.put(table, (1, 20))
    db.close()
    db = Tables(tmp_path)
    try:
        with db.transaction() as work, pytest.raises(SerializationFailure):
            work.fix(old)  # as by a view that stands still since
            if noted == "row":
                work.run(sets(table, 1, lambda v: v + 1))
            elif noted == "key":
                work.note_keys(table, [(1,)])
                work.change(table, change([(2, 2)]))
            else:
                work.note_tables([table])
                work.change(table, change([(2, 2)]))
            work.commit()
        assert db.content(table) == [(1, 20)]
    finally:
        db.close()
