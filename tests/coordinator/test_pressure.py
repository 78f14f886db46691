"""Back-pressure: compaction behind, disks full, budgets exhausted; and recovery by itself when there is room again."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_database import Database

from headrace.common.faults import arm, disarm_all
from headrace.errors import DiskFull, HeadraceError, JobFailed, OutOfBudget, StorageError
from headrace.state.merge import MergePart, levels
from headrace.state.schema import RunRef
from support import WAIT_S, eventually


class Merges:
    """A merge runner in this process that can be held up, or fail."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.error: HeadraceError | None = None
        self.parts: list[int] = []

    def __call__(self, parts: Sequence[MergePart]) -> list[RunRef | None]:
        self.parts.append(len(parts))
        self.entered.set()
        assert self.gate.wait(WAIT_S)
        made = [parts[0].run()]
        if self.error is not None:
            raise self.error
        return made + [p.run() for p in parts[1:]]


class SplittingDatabase(Database):
    """Every merge, however small, is split over tasks of a fake runner."""

    def __init__(self, folder: Path, **settings: Any):
        self.merges = Merges()
        super().__init__(folder, merge_runner=self.merges, compaction_spark_mb=0, **settings)

    def close(self) -> None:
        self.merges.gate.set()
        super().close()


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., SplittingDatabase]]:
    monkeypatch.setattr("headrace.coordinator.run.readiness.STALL_LOOK_S", 0.02)
    made: list[SplittingDatabase] = []

    def open_(**settings: Any) -> SplittingDatabase:
        made.append(SplittingDatabase(tmp_path, **settings))
        return made[-1]

    yield open_
    disarm_all()
    for db in made:
        db.close()


def _runs(db: Database, table: int) -> list[RunRef]:
    return [r.ref for r in db.catalog.state.runs_of(table)]


def _files(db: Database) -> set[str]:
    return {p.relative_to(db.core.storage.root).as_posix() for p in Path(db.core.storage.root).rglob("*.run")}


def _referenced(db: Database) -> set[str]:
    return {r.ref.path for r in db.catalog.state.runs.values()}


def test_large_merges_are_split(make: Callable[..., SplittingDatabase]) -> None:
    """Runs are replaced by all new ones at once; views and reads of the past go on; parts are not merged again."""
    db = make(compaction_trigger_runs=4)
    t = db.table()
    v = db.view("v", t)
    epochs = []
    for i in range(4):
        epochs.append(db.insert(t, *range(i * 50, i * 50 + 50)))
        db.c.flush(WAIT_S)
    wanted = [db.read(v, at=e) for e in epochs]
    assert db.c.compact() >= 2 and max(db.merges.parts) > 1
    table = db.core.live.graph.relations[t].state_table
    assert len(_runs(db, table)) > 1 and len(levels(_runs(db, table))) == 1
    assert [db.read(v, at=e) for e in epochs] == wanted
    db.insert(t, 1000)
    db.delete(t, 7)
    db.c.flush(WAIT_S)
    assert db.read(v) == [sorted({*range(200), 1000} - {7})]
    assert db.c.compact() == 0, "what a merge made of ranges of keys counts as one run"


@pytest.mark.parametrize(("most", "parts"), [(0, 4), (3, 3), (1, 1), (99, 4)])
def test_the_tasks_of_a_merge_are_bounded(make: Callable[..., SplittingDatabase], most: int, parts: int) -> None:
    """By `compaction_max_tasks`, and by the number that runs side by side."""
    db = make(compaction_trigger_runs=2, compaction_max_tasks=most)
    t = db.table()
    for i in range(2):
        db.insert(t, *range(i * 1000, i * 1000 + 1000))
    assert db.c.compact() == 1
    assert db.merges.parts == [parts] and db.read(t) == [[*range(2000)]]


@pytest.mark.parametrize("error", [JobFailed("the executor is gone"), StorageError("no such bucket")])
def test_a_merge_that_fails_leaves_only_unreferenced_objects(
    make: Callable[..., SplittingDatabase], error: HeadraceError
) -> None:
    """FS-15, FS-16: some parts are written and the merge fails; vacuum removes them, the next merge succeeds."""
    db = make(compaction_trigger_runs=2, vacuum_grace_ms=0)
    t = db.table()
    for i in range(2):
        db.insert(t, *range(i * 50, i * 50 + 50))
    before, db.merges.error = _referenced(db), error
    if isinstance(error, JobFailed):
        assert db.c.compact() == 0
    else:
        with pytest.raises(StorageError):
            db.c.compact()
    assert _referenced(db) == before and _files(db) > before

    def cleared() -> bool:
        db.c.vacuum()  # the background may try the merge again meanwhile, and leave more
        return _files(db) == before

    eventually(cleared)
    db.merges.error = None
    assert db.c.compact() == 1 and db.read(t) == [[*range(100)]]


def test_a_merge_that_is_killed_between_its_steps(make: Callable[..., SplittingDatabase]) -> None:
    """FS-15: between the upload and the commit, and after it."""
    db = make(compaction_trigger_runs=2, vacuum_grace_ms=0)
    t = db.table()
    for point in ("compaction.merge.after", "compaction.commit.after"):
        for i in range(2):
            db.insert(t, *range(i * 50, i * 50 + 50))
        wanted = db.read(t)
        arm(point, "fail", nth=1)
        with pytest.raises(StorageError):
            db.c.compact()
        disarm_all()
        assert db.read(t) == wanted
        for _ in range(3):
            db.c.vacuum()
        assert _files(db) == _referenced(db)
        db.c.compact()
        assert db.read(t) == wanted


def test_a_split_merge_loses_cleanly_against_a_drop(make: Callable[..., SplittingDatabase]) -> None:
    db = make(compaction_trigger_runs=2)
    t = db.table()
    for i in range(2):
        db.insert(t, *range(i * 50, i * 50 + 50))
    before = _files(db)
    db.merges.gate.clear()
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(db.c.compact()))
    thread.start()
    assert db.merges.entered.wait(WAIT_S)
    db.c.drop([t])
    db.merges.gate.set()
    thread.join(WAIT_S)
    assert found == [0] and _files(db) <= before and not _referenced(db)


def test_a_group_waits_for_compaction_and_goes_on(make: Callable[..., SplittingDatabase]) -> None:
    """Runs at `compaction_stall_runs` hold a group's epochs back; once merges get through, it catches up by itself."""
    db = make(compaction_stall_runs=4, compaction_trigger_runs=2)
    t = db.table()
    v = db.view("v", t)
    rows = db.core.live.graph.jobs[v].tables["view/rows"]
    db.merges.gate.clear()
    for i in range(3):
        db.insert(t, i)
        eventually(lambda i=i: len(_runs(db, rows)) == i + 1)  # type: ignore[misc]
    db.insert(t, 3)
    eventually(lambda: len(_runs(db, rows)) == 4)
    calls = len(db.runner_of(v).calls)
    for i in range(4, 8):
        db.insert(t, i)
    assert db.merges.entered.wait(WAIT_S), "a stalled group asks for compaction"
    assert len(db.runner_of(v).calls) == calls and len(_runs(db, rows)) == 4
    assert db.status(v).error is None
    db.merges.gate.set()
    db.c.flush(WAIT_S)
    assert db.read(v) == [[*range(8)]]


@pytest.mark.parametrize("error", [DiskFull("no space left"), OutOfBudget("too many rows")])
def test_running_out_declines_and_takes_in_less(make: Callable[..., SplittingDatabase], error: HeadraceError) -> None:
    """FS-6, FS-17: the epoch is declined and tried with half the rows; once there is room it grows back by itself."""
    db = make(group_retry_initial_ms=1, group_retry_max_ms=5)
    t = db.table()
    v = db.view("v", t)
    runner, job = db.runner_of(v), db.core.live.graph.jobs[v]
    committed, runner.error = job.committed, error
    for i in range(16):
        db.insert(t, i)
    eventually(lambda: job.portion.most_rows == 1)
    assert job.committed == committed and db.status(v).error.sqlstate == error.sqlstate
    with pytest.raises(JobFailed):
        db.c.flush(WAIT_S)
    attempts, runner.error = len(runner.calls), None
    db.c.flush(WAIT_S)
    assert db.read(v) == [[*range(16)]]
    spans = [(p.from_epoch, p.to_epoch) for p in runner.calls[attempts:]]
    assert len(set(spans)) > 2, "the rest comes in several epochs"
    for i in range(30):
        db.insert(t, 100 + i)
        db.c.flush(WAIT_S)
    assert job.portion.most_rows == 0 or job.portion.most_rows > 1000
    assert db.status(v).error is None


def test_a_full_disk(make: Callable[..., SplittingDatabase], monkeypatch: pytest.MonkeyPatch) -> None:
    """XC-8, FS-16: writes and epochs are refused with 53100 while the device has no room, and go on when it has."""
    db = make(group_retry_initial_ms=1, group_retry_max_ms=5)
    t = db.table()
    v = db.view("v", t)
    db.insert(t, 1)
    db.c.flush(WAIT_S)
    runner = db.runner_of(v)
    runner.gate.clear()
    db.insert(t, 2)

    def full(fd: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("headrace.state.objects.os.write", full)
        runner.gate.set()
        eventually(lambda: db.status(v).error is not None)
        assert db.status(v).error.sqlstate == "53100"
        with pytest.raises(DiskFull):
            db.insert(t, 3)
        assert db.read(v) == [[1]]
    db.c.flush(WAIT_S)
    # not before: while the disk is full, the next attempt may be between making its file and giving it up
    assert not list(Path(db.core.storage.root).rglob("*.tmp"))
    assert db.read(v) == [[1, 2]] and db.status(v).error is None
    assert db.c.memory().used_bytes == 0


def test_leftover_spools_go_at_the_start(make: Callable[..., SplittingDatabase], tmp_path: Path) -> None:
    """FS-15: so do those of attempts that die while the server runs, after a while."""
    left = tmp_path / "cache" / "spool" / "9-9-9" / "4"
    left.mkdir(parents=True)
    (left / "0-1.rows").write_bytes(b"x")
    db = make()
    assert not left.parent.exists()
    old, fresh = left.parent.with_name("9-9-8"), left.parent.with_name("9-9-7")
    for folder in (old, fresh):
        folder.mkdir()
    os.utime(old, (1, 1))
    db.c._parts.maintenance._forget_spools()
    assert not old.exists() and fresh.exists()
