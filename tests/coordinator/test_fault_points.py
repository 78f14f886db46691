"""Every named fault point is fired: a process ends there, and whatever comes next finds all that was acknowledged."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from fake_database import Database

from headrace.catalog.state import CatalogState
from headrace.common.faults import KNOWN, arm, disarm_all
from headrace.errors import HeadraceError
from support import WAIT_S

TESTS: Final = Path(__file__).parents[1]
SETTINGS: Final = {
    "compaction_trigger_runs": 3, "retention_ms": 0, "vacuum_grace_ms": 0, "group_retry_initial_ms": 1,
    "backfill_slice_rows": 10,
}  # fmt: skip

SOURCE_FIRST: Final = 1_000_000
"""The first number of the source; the table's are smaller."""

COUNTING: Final = {
    "rows_per_second": "unlimited", "max_rows_per_epoch": "5", "fields.n.kind": "sequence",
    "fields.n.start": str(SOURCE_FIRST),
}  # fmt: skip

PASSED_HERE: Final = (
    "barrier.bind.after", "catalog.commit.before", "catalog.commit.after", "commit.acked", "commit.before",
    "commit.after", "commit.notified", "table.commit.before", "table.commit.after", "compaction.merge.after",
    "compaction.commit.after", "vacuum.delete.before", "vacuum.delete.after", "backfill.slice.before",
    "backfill.slice.after", "backfill.done.before", "rename.before", "rename.after",
)  # fmt: skip

KILLED_ELSEWHERE: Final = {
    "catalog.fence.before": "catalog/test_catalog.py",
    "catalog.fence.after": "catalog/test_catalog.py",
    "catalog.initialize.before": "catalog/test_catalog.py",
    "catalog.migrate.step": "catalog/test_catalog.py",
    "catalog.replace.before": "catalog/test_moving.py",
    "catalog.replace.after": "catalog/test_moving.py",
    "catalog.move.opened": "catalog/test_moving.py",
    "catalog.move.copied": "catalog/test_moving.py",
    "catalog.move.decided": "catalog/test_moving.py",
    "catalog.rollup.before": "catalog/test_log_store.py",
    "catalog.rollup.after": "catalog/test_log_store.py",
    "task.spool.before": "e2e/test_crash.py",
    "task.before_upload": "e2e/test_crash.py",
    "task.after_upload": "e2e/test_crash.py",
    "table.fed.after": "e2e/test_refreshing_crash.py",
    "source.dropped.after": "e2e/test_refreshing_crash.py",
    "table.undo.before": "session/test_left_behind.py",
    "columns.commit.before": "e2e/test_refreshing_crash.py",
    "columns.commit.after": "e2e/test_refreshing_crash.py",
    "columns.slot.after": "e2e/test_refreshing_crash.py",
    "columns.wider.after": "e2e/test_widening_crash.py",
    "copy.commit.before": "e2e/test_copy_crash.py",
    "sink.bind.after": "e2e/test_delivery_crash.py",
    "sink.commit.before": "e2e/test_delivery_crash.py",
    "sink.commit.after": "e2e/test_delivery_crash.py",
    "lake.compact.before": "e2e/test_lake_compaction_crash.py",
    "lake.compact.written": "e2e/test_lake_compaction_crash.py",
    "lake.compact.after": "e2e/test_lake_compaction_crash.py",
}
"""Points that need Spark, a target or another backend of the catalog, with the test that ends a process there."""


def test_every_point_is_fired_by_a_test() -> None:
    """XC-2: a new point needs a place in one of the two lists; a file that is listed names its points."""
    assert sorted([*PASSED_HERE, *KILLED_ELSEWHERE]) == sorted(KNOWN)
    unnamed = {point: file for point, file in KILLED_ELSEWHERE.items() if point not in (TESTS / file).read_text()}
    assert not unnamed


def every_kind_of_work(db: Database, first: int) -> None:
    """Pass every point of `PASSED_HERE`, and print each value of the table once it is acknowledged."""
    ids = {record.name: record.id for record in db.catalog.state.objects.values()}
    table = ids.get("t") or db.table()
    source = ids.get("s") or db.source("s", connector="datagen", **COUNTING)
    if "v" not in ids:
        db.view("v", table, source)
    numbers = itertools.count(first)
    for name in ("a", "b"):
        db.c.tick()
        for _ in range(12):
            number = next(numbers)
            db.insert(table, number)
            print(number, flush=True)
        db.c.flush(WAIT_S)
        db.c.compact()
        db.c.vacuum()
        db.c.vacuum()
        made = db.view(f"{name}{first}", table)
        db.c.flush(WAIT_S)
        _rename(db, made, f"renamed_{name}{first}")
        db.c.drop([made])


def _rename(db: Database, made: int, name: str) -> None:
    def renamed(state: CatalogState) -> Sequence[object]:
        return [replace(state.objects[made], name=name)]

    db.c.rename(renamed)  # type: ignore[arg-type]


def killed(folder: Path, point: str, nth: int, first: int) -> set[int]:
    """Run the work until it ends itself at a point; return what was acknowledged before."""
    program = (
        "import sys; from pathlib import Path; from fake_database import Database; import test_fault_points as t; "
        "from headrace.common.faults import arm; db = Database(Path(sys.argv[1]), **t.SETTINGS); "
        "arm(sys.argv[2], 'kill', nth=int(sys.argv[3])); t.every_kind_of_work(db, int(sys.argv[4]))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-c", program, str(folder), point, str(nth), str(first)]
    done = subprocess.run(command, env=environment, timeout=WAIT_S, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return {int(line) for line in re.findall(r"^\d+$", done.stdout, re.MULTILINE)}


def check(db: Database, acknowledged: set[int]) -> None:
    """Raise unless all that was acknowledged is there once, views equal what they read, and no file is left over."""
    ids = {record.name: record.id for record in db.catalog.state.objects.values()}
    if "t" not in ids:
        assert not acknowledged
        return
    (rows,) = db.read(ids["t"])
    assert acknowledged <= set(rows) and len(rows) == len(set(rows))
    jobs = {job.id for job in db.c.jobs()}
    db.until(lambda: all(job.status == "running" for job in db.c.jobs()))  # what has failed is tried again
    db.c.flush(WAIT_S)
    for job in jobs:
        table, view = db.read(ids["t"], job)
        assert table == [number for number in view if number < SOURCE_FIRST]
    db.c.vacuum()
    db.c.vacuum()
    root = Path(db.core.storage.root)
    left = {file.relative_to(root).as_posix() for file in root.rglob("*.run")}
    assert left == {run.ref.path for run in db.catalog.state.runs.values()}


@pytest.mark.parametrize("point", PASSED_HERE)
def test_a_process_that_ends_at_a_point_loses_nothing(tmp_path: Path, point: str) -> None:
    """XC-2: it is restarted, ends there again under the new server, and is restarted to go on and to drop."""
    acknowledged = killed(tmp_path, point, 2, 0)
    acknowledged |= killed(tmp_path, point, 1, 1000)
    db = Database(tmp_path, **SETTINGS)
    try:
        check(db, acknowledged)
        every_kind_of_work(db, 2000)
        acknowledged |= set(range(2000, 2024))
        check(db, acknowledged)
        views = [job.id for job in db.c.jobs()]
        db.c.drop(views)
        check(db, acknowledged)
        assert not db.c.jobs()
    finally:
        db.close()


@pytest.mark.parametrize("action", ["fail", "full"])
@pytest.mark.parametrize("point", PASSED_HERE)
def test_a_step_that_fails_at_a_point_loses_nothing(tmp_path: Path, point: str, action: str) -> None:
    """XC-2: a failure of storage, and a full disk: whoever waits is told or gets its result, and all goes on."""
    db = Database(tmp_path, **SETTINGS)
    try:
        arm(point, action, nth=2)
        with suppress(HeadraceError):
            every_kind_of_work(db, 0)
        disarm_all()
        check(db, set())
        every_kind_of_work(db, 1000)
        check(db, set(range(1000, 1024)))
    finally:
        disarm_all()
        db.close()
