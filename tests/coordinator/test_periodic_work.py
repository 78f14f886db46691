"""What is done again and again costs as much as there is, not its square: counted in calls, not in time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType

import pytest
from fake_database import Database

from support import WAIT_S

FEW, MANY = 25, 200
MOST_GROWTH = 1.5 * MANY / FEW


def calls_of(work: Callable[[], object]) -> int:
    """Return how many calls of Python functions some work makes, in this thread."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Database, Database]]:
    """One with few views, one with many: over tables, and over views of these."""
    made = []
    for count in (FEW, MANY):
        db = Database(tmp_path_factory.mktemp(f"views{count}"), compaction_trigger_runs=1_000)
        made.append(db)
        tables = [db.table(f"t{i}") for i in range(5)]
        views: list[int] = []
        for i in range(count):
            below = tables[i % 5] if i % 2 == 0 else views[i // 4]
            views.append(db.view(f"v{i}", below, wait=False))
        for view in views:
            db.c.wait_created(view, WAIT_S)
        for table in tables:
            db.insert(table, 1)
        db.c.flush(WAIT_S)
    yield made[0], made[1]
    for db in made:
        db.close()


PASSES: dict[str, Callable[[Database], object]] = {
    "ticker": lambda db: db.c.tick(),
    "merges": lambda db: db.c._parts.compactor.merge_due(patient=True),
    "pruning": lambda db: db.c._parts.compactor.prune(),
    "logs": lambda db: db.c._parts.logs.look(),
    "vacuum": lambda db: db.c._parts.vacuum.pass_once(),
    "barriers": lambda db: db.c._parts.barriers.all(),
    "watchdog": lambda db: db.c._parts._watchdog.look(),
    "tidying rows": lambda db: db.c._parts.writer.tidy(),
    "jobs": lambda db: db.c.jobs(),
    "groups": lambda db: db.c.groups(),
}


@pytest.mark.parametrize("name", PASSES)
def test_a_periodic_pass_grows_with_the_number_of_views(databases: tuple[Database, Database], name: str) -> None:
    few, many = (calls_of(lambda db=db: PASSES[name](db)) for db in databases)
    assert many <= MOST_GROWTH * max(few, 100)
