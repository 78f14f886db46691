"""What is durable, when, and who learns of it: commits, stops, restarts, merges that run beside reads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from fake_database import Database

from headrace.catalog.catalog import Catalog
from headrace.common.faults import arm, disarm_all, passages
from headrace.errors import HeadraceError
from support import WAIT_S, eventually


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    disarm_all()


@pytest.fixture
def open_db(tmp_path: Path) -> Iterator[Callable[..., Database]]:
    """Databases in one folder, each a server that takes over from the one before."""
    opened: list[Database] = []

    def open_one(**settings: object) -> Database:
        opened.append(Database(tmp_path, **settings))
        return opened[-1]

    yield open_one
    disarm_all()
    for db in reversed(opened):
        db.close()


def start(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Run `call` in a thread; its result or error comes into the list."""
    outcomes: list[object] = []

    def run() -> None:
        try:
            outcomes.append(call())
        except HeadraceError as error:
            outcomes.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcomes


def durable_epoch(catalog: Catalog, view: int) -> int:
    """Return the epoch at which all state tables of a view are committed."""
    (epoch,) = {table.committed_epoch for table in catalog.state.tables_of(view)}
    return epoch


def test_nobody_is_told_of_an_epoch_before_it_is_durable(open_db: Callable[..., Database]) -> None:
    """FS-1: before the commit neither readers nor downstream views see it; they do only once the catalog has it."""
    db = open_db()
    table = db.table()
    view = db.view("v", table)
    below = db.view("w", view)
    calls_below = db.runner_of(below).calls
    for point, durable in (("commit.before", False), ("commit.after", True)):
        known, calls = db.status(view).committed_epoch, len(calls_below)
        arm(point, "hang", nth=1)
        epoch = db.insert(table, len(calls_below))
        waiting, _ = start(lambda: db.c.flush(WAIT_S))
        eventually(lambda point=point: passages(point), "the commit")
        with Catalog.open(db.settings.catalog_location, read_only=True) as other:
            assert (durable_epoch(other, view) >= epoch) is durable
        assert db.status(view).committed_epoch == known and len(calls_below) == calls and waiting.is_alive()
        assert db.read(view, at=known) is not None
        disarm_all()
        waiting.join(WAIT_S)
        assert not waiting.is_alive() and db.status(below).committed_epoch >= epoch and len(calls_below) > calls


@pytest.mark.parametrize("point", ["catalog.commit.before", "catalog.commit.after"])
def test_an_epoch_and_its_offsets_are_bound_by_one_write(open_db: Callable[..., Database], point: str) -> None:
    """FS-1, FS-22: both are there or neither, and a view holds exactly the rows before them."""
    db = open_db(group_retry_initial_ms=1)
    source = db.source(
        "s", connector="datagen", rows_per_second="unlimited", max_rows_per_epoch="5", **{"fields.n.kind": "sequence"}
    )
    view = db.view("v", source)
    db.c.flush(WAIT_S)
    before = db.catalog.state.newest_remap(source)
    arm(point, "fail", nth=1)
    try:
        db.c.tick()
    except HeadraceError:
        assert point == "catalog.commit.before", "an answer that is lost is looked for"
    with Catalog.open(db.settings.catalog_location, read_only=True) as other:
        newest = other.state.newest_remap(source)
    assert before is not None and newest is not None
    if point == "catalog.commit.before":
        assert newest == before
    else:
        assert newest.epoch > before.epoch and int(newest.offsets["0"]) == int(before.offsets["0"]) + 5
    disarm_all()
    db.c.tick()
    db.c.flush(WAIT_S)
    exact = db.core.live.graph.exact(view)
    remaps = [remap for remap in db.catalog.state.all_remaps(source) if remap.epoch >= before.epoch]
    for remap in remaps:  # a view that was busy has taken in several at one go: between them it is not exact
        if any(low <= remap.epoch <= high for low, high in exact):
            assert db.read(view, at=remap.epoch) == [list(range(int(remap.offsets["0"])))]
    assert db.read(view) == [list(range(int(remaps[-1].offsets["0"])))] and len(remaps) > 2


def test_an_interval_is_kept_over_a_restart(open_db: Callable[..., Database]) -> None:
    """FS-2: what is set holds after a restart; with 0 each barrier is a checkpoint."""
    db = open_db(checkpoint_interval_ms=3_600_000)
    table = db.table()
    view = db.view("v", table)
    db.c.alter_job(view, options={"checkpoint_interval_ms": "90000"})
    db.close()
    db = open_db(checkpoint_interval_ms=3_600_000)
    assert db.catalog.state.jobs[view].options["checkpoint_interval_ms"] == "90000"
    assert [group.checkpoint_interval_ms for group in db.c.groups()] == [90_000]
    epoch = db.insert(table, 1)
    db.until(lambda: "checkpoint_interval_ms" in db.status(view).waiting_for)
    assert db.status(view).committed_epoch < epoch
    db.c.alter_job(view, options={"checkpoint_interval_ms": "0"})
    db.until(lambda: db.status(view).committed_epoch >= epoch)


def test_a_stop_in_good_order_takes_a_last_checkpoint(open_db: Callable[..., Database]) -> None:
    """FS-9: rows that a view has taken in and not committed yet are committed by the stop."""
    db = open_db()
    table = db.table()
    view = db.view("v", table)
    db.c.alter_job(view, options={"checkpoint_interval_ms": "3600000", "barrier_interval_ms": "0"})
    db.insert(table, 0)
    db.c.flush(WAIT_S)
    epoch = db.insert(table, 1)
    db.until(lambda: db.runner_of(view).calls[-1].to_epoch == epoch and db.core.live.graph.jobs[view].activity.epochs)
    assert db.status(view).committed_epoch < epoch
    db.c.stop(WAIT_S)
    with Catalog.open(db.settings.catalog_location, read_only=True) as other:
        assert durable_epoch(other, view) == epoch


PROGRAM: Final = """
import sys
from pathlib import Path
from fake_database import Database
from headrace.common.faults import arm
db = Database(Path(sys.argv[1]), vacuum_grace_ms=0)
table = db.table()
db.insert(table, 1)
{before}
arm(sys.argv[2], "kill", nth=int(sys.argv[3]))
{statement}
"""


def kill_at(point: str, folder: Path, statement: str, before: str = "", nth: int = 1) -> None:
    """Run a server in another process that ends at the nth passage of a fault point in a statement."""
    program = PROGRAM.format(statement=statement, before=before)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-c", program, str(folder), point, str(nth)]
    assert subprocess.run(command, env=environment, timeout=WAIT_S).returncode == -signal.SIGKILL


def named(db: Database, name: str) -> int | None:
    record = db.catalog.state.object_named("public", name)
    return None if record is None else record.id


@pytest.mark.parametrize("point", ["catalog.commit.before", "catalog.commit.after"])
def test_a_drop_that_a_crash_cuts_off_is_whole_or_not_at_all(
    open_db: Callable[..., Database], tmp_path: Path, point: str
) -> None:
    """FS-9: after the restart the view is dropped with its state, or is there and follows; no file is left of it."""
    kill_at(point, tmp_path, "db.c.drop([view])", 'view = db.view("v", table)')
    db = open_db(vacuum_grace_ms=0)
    table, view = named(db, "t"), named(db, "v")
    assert table is not None
    db.insert(table, 2)
    db.c.flush(WAIT_S)
    if point == "catalog.commit.before":
        assert view is not None and db.read(view) == [[1, 2]]
    else:
        assert view is None and not db.c.jobs() and len(db.catalog.state.state_tables) == 1
    db.c.vacuum()
    db.c.vacuum()
    root = Path(db.core.storage.root)
    left = {file.relative_to(root).as_posix() for file in root.rglob("*.run")}
    assert left == {run.ref.path for run in db.catalog.state.runs.values()}


@pytest.mark.parametrize(
    ("point", "nth", "there"),
    [("catalog.commit.before", 2, False), ("catalog.commit.after", 2, True), ("backfill.done.before", 1, True)],
)
def test_a_creation_that_a_crash_cuts_off(
    open_db: Callable[..., Database], tmp_path: Path, point: str, nth: int, there: bool
) -> None:
    """FS-24: after the restart the view never was, or it runs and is exact. The first commit reserves epochs."""
    kill_at(point, tmp_path, 'db.view("v", table)', nth=nth)
    db = open_db()
    table, view = named(db, "t"), named(db, "v")
    assert table is not None
    db.insert(table, 2)
    assert (view is not None) is there and len(db.c.jobs()) == there
    if view is None:
        view = db.view("v", table)
    db.c.wait_created(view, WAIT_S)
    db.c.flush(WAIT_S)
    assert db.read(view) == [[1, 2]] and db.status(view).status == "running"


def test_an_epoch_of_deletions_alone_is_durable(open_db: Callable[..., Database]) -> None:
    """FS-11: they are there after a crash, in the table and in views; also where nothing is left."""
    db = open_db()
    table = db.table()
    view = db.view("v", table)
    db.insert(table, 1, 2)
    db.c.flush(WAIT_S)
    db.delete(table, 2)
    db.c.flush(WAIT_S)
    again = open_db()  # the server before is not stopped: it is cut off
    again.c.flush(WAIT_S)
    assert again.read(table, view) == [[1], [1]]
    again.delete(table, 1)
    again.c.flush(WAIT_S)
    last = open_db()
    last.c.flush(WAIT_S)
    assert last.read(table, view) == [[], []]


@pytest.mark.parametrize("point", ["compaction.merge.after", "compaction.commit.after"])
def test_reads_see_everything_while_runs_are_merged(open_db: Callable[..., Database], point: str) -> None:
    """FS-13: before and after the merge is committed; files go only once the reader has ended."""
    db = open_db(compaction_trigger_runs=2, retention_ms=0, vacuum_grace_ms=0)
    table = db.table()
    for n in range(6):
        db.insert(table, n)
    snapshot = db.c.snapshot([table])
    files = {Path(db.core.storage.root, ref.path) for ref in snapshot.tables[table].refs}
    arm(point, "hang", nth=1)
    merging, merged = start(db.c.compact)
    eventually(lambda: passages(point), "the merge")
    epoch = db.insert(table, 6)
    assert db.values(snapshot.tables[table]) == list(range(6))
    assert db.read(table) == [list(range(7))] and db.read(table, at=epoch) == [list(range(7))]
    disarm_all()
    merging.join(WAIT_S)
    assert merged and not isinstance(merged[0], HeadraceError)
    db.c.vacuum()
    db.c.vacuum()
    assert all(file.exists() for file in files) and db.values(snapshot.tables[table]) == list(range(6))
    snapshot.close()
    db.c.vacuum()
    db.c.vacuum()
    assert not any(file.exists() for file in files) and db.read(table) == [list(range(7))]
