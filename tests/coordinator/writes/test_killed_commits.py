"""A process that is killed around the commit of a transaction over several tables: all of it is there, or nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from write_world import Tables, change, inserts, sets

from headrace.common.faults import arm
from support import WAIT_S

NAMES = ("rows", "batches", "both", "bag")
LARGE = 5_000
"""Rows whose object is forced to the disk by itself: it is too large for the catalog."""
POINTS = {
    "table.commit.before": False, "catalog.commit.before": False, "catalog.commit.after": True,
    "table.commit.after": True,
}  # fmt: skip


def tables(db: Tables) -> dict[str, int]:
    return {r.name: r.id for r in db.core.live.graph.relations.values()}


def write_to_all(db: Tables) -> None:
    """One transaction: rows by key, many rows at once, both with a savepoint between, and rows without a key."""
    at = tables(db)
    with db.transaction() as work:
        work.run(sets(at["rows"], 1, lambda v: v + 1))
        work.run(inserts(at["rows"], (2, 2)))
        work.change(at["batches"], change([(i, i) for i in range(LARGE)]))
        work.run(inserts(at["both"], (2, 2)))
        mark = work.mark()
        work.run(inserts(at["both"], (3, 3)))
        work.go_back(mark)
        work.change(at["both"], change([(4, 4)], [(1, 1)]))
        work.own_runs(at["both"])
        work.change(at["bag"], change([(1, 1), (1, 1)]))
        work.commit()


BEFORE = {name: [(1, 1)] for name in NAMES}
AFTER = {
    "rows": [(1, 2), (2, 2)],
    "batches": [(0, 0), *((i, i) for i in range(1, LARGE))],
    "both": [(2, 2), (4, 4)],
    "bag": [(1, 1)] * 3,
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    db = Tables(tmp_path, run_fsync=True)
    for name in NAMES:
        db.c.write(db.numbers(name, key=name != "bag"), change([(1, 1)]))
    db.close()
    yield tmp_path


@pytest.mark.parametrize("point", POINTS)
def test_a_transaction_over_several_tables_is_all_there_or_not_at_all(folder: Path, point: str) -> None:
    paths = [*sys.path, str(Path(__file__).parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    child = subprocess.run(
        [sys.executable, __file__, str(folder), point],
        env=environment,
        timeout=WAIT_S,
        capture_output=True,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr.decode()[-2000:]
    db = Tables(folder, run_fsync=True)
    try:
        found = {name: db.content(i) for name, i in tables(db).items()}
        assert found == (AFTER if POINTS[point] else BEFORE)
        if not POINTS[point]:
            write_to_all(db)
            assert {name: db.content(i) for name, i in tables(db).items()} == AFTER
    finally:
        db.close()


if __name__ == "__main__":
    world = Tables(Path(sys.argv[1]), run_fsync=True)
    with world.core.live.epochs.epoch():
        pass  # epochs are reserved in the catalog: the next transaction there is that of the commit
    arm(sys.argv[2], "kill")
    write_to_all(world)
