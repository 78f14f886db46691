"""Small runs that share an object: where they lie, what a power failure leaves of them, and how long they stay."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from write_world import Tables

from headrace.catalog.edits import Delete
from headrace.catalog.records import RunRecord, decode, encode, run_id
from headrace.common.clock import ManualClock
from headrace.common.epoch import epoch_ms
from headrace.coordinator.writes import small_runs
from headrace.coordinator.writes.history import WriteHistory
from headrace.coordinator.writes.settling import SETTLE_AFTER_MS
from headrace.errors import DiskFull, StorageError
from headrace.state import objects
from headrace.state.objects import append_unsynced, restore_object
from headrace.state.schema import RunRef


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(epoch_ms(1 << 40))


@pytest.fixture
def db(tmp_path: Path, clock: ManualClock) -> Iterator[Tables]:
    made = Tables(tmp_path, clock, run_fsync=True, vacuum_grace_ms=0, compaction_interval_ms=3_600_000)
    yield made
    made.close()


def records(db: Tables) -> list[RunRecord]:
    return sorted(db.catalog.state.runs.values(), key=lambda r: r.ref.epoch_lo)


def paths(db: Tables) -> list[str]:
    return [r.ref.path for r in records(db)]


def test_small_runs_of_a_table_share_an_object(db: Tables) -> None:
    t, u = db.numbers("t"), db.numbers("u")
    for i in range(3):
        db.put(t, (i, i))
    db.put(u, (7, 7))
    found = records(db)
    assert len({r.ref.path for r in found}) == 2
    assert [r.ref.offset > 0 for r in found] == [False, True, True, False]
    assert all(r.ref.offset % objects.ALIGNMENT == 0 for r in found)
    assert (db.content(t), db.content(u)) == ([(0, 0), (1, 1), (2, 2)], [(7, 7)])


def test_an_object_takes_no_more_when_it_is_large_or_old(
    db: Tables, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = db.numbers("t")
    for i in range(2):
        db.put(t, (i, i))
        clock.advance_ms(int(small_runs.OBJECT_AGE_S * 1000) + 1)
    db.put(t, (2, 2))  # it was written to once more before anybody looked at its age
    assert len(set(paths(db))) == 2
    monkeypatch.setattr(small_runs, "OBJECT_BYTES", 1)
    for i in range(3, 6):
        db.put(t, (i, i))
    assert len(set(paths(db))) == 4
    assert db.content(t) == [(i, i) for i in range(6)]


def damaged(at: Path, kind: str, kept: int) -> None:
    """Let a power failure take what comes after the first bytes, which were forced to the disk."""
    content = at.read_bytes()
    left = {
        "cut": content[: kept + 100], "zeros": content[:kept] + bytes(len(content) - kept), "short": content[:kept],
        "none": content, "longer": content + b"x" * 100, "lost": b"",
    }[kind]  # fmt: skip
    at.write_bytes(left)
    if kind == "lost":
        at.unlink()


@pytest.mark.parametrize("kind", ["cut", "zeros", "short", "none", "longer", "lost"])
@pytest.mark.parametrize("merged_away", [False, True])
def test_what_a_power_failure_takes_of_an_object_is_written_again(
    tmp_path: Path, clock: ManualClock, kind: str, merged_away: bool
) -> None:
    """Also around a run that nothing refers to any more, whose bytes nobody has."""
    first = Tables(tmp_path, clock, run_fsync=True, compaction_interval_ms=3_600_000)
    t = first.numbers("t")
    first.put(t, (0, 0))
    clock.advance_ms(SETTLE_AFTER_MS + 1)
    if kind != "lost":
        assert first.writer.settling.pass_once() == 1
    for i in range(1, 5):
        first.put(t, (i, i))
    (path,) = set(paths(first))
    if merged_away:
        first.catalog.transact([Delete("run", records(first)[2].id)])
    kept = records(first)[0].ref.length
    first.close()
    damaged(Path(first.core.storage.root) / path, kind, kept)
    second = Tables(tmp_path, clock, run_fsync=True, compaction_interval_ms=3_600_000)
    assert second.content(t) == [(i, i) for i in range(5) if not (merged_away and i == 2)]
    assert not any(r.content_b64 for r in records(second))
    second.put(t, (9, 9))
    assert records(second)[-1].ref.path != path, "what another process has written is never added to"
    second.close()


def test_what_is_restored_leaves_the_rest_as_it_is(tmp_path: Path) -> None:
    append_unsynced(tmp_path, "a/x", b"one---", 0)
    append_unsynced(tmp_path, "a/x", b"two---", 6)
    append_unsynced(tmp_path, "a/x", b"three", 12)
    assert not restore_object(tmp_path, "a/x", [(6, b"two---")])
    assert restore_object(tmp_path, "a/x", [(6, b"TWO---")])
    assert (tmp_path / "a/x").read_bytes() == b"one---TWO---three"


def test_an_object_that_could_not_be_written_takes_no_more(db: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    t = db.numbers("t")
    db.put(t, (1, 1))
    real = objects.os.write

    def full(fd: int, data: memoryview) -> int:
        real(fd, data[:100])
        raise OSError(28, "full")

    with monkeypatch.context() as patch, pytest.raises(DiskFull):
        patch.setattr(objects.os, "write", full)
        db.put(t, (2, 2))
    db.put(t, (3, 3))
    assert len(set(paths(db))) == 2
    assert db.content(t) == [(1, 1), (3, 3)]


def test_nothing_is_added_to_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        append_unsynced(tmp_path, "x", b"more", 64)
    assert not (tmp_path / "x").exists()


def test_vacuum_leaves_an_object_that_takes_more(db: Tables, clock: ManualClock) -> None:
    t = db.numbers("t")
    db.put(t, (1, 1))
    (path,) = paths(db)
    file = Path(db.core.storage.root) / path

    def passes() -> None:
        for _ in range(3):
            if file.exists():
                os.utime(file, (0, 0))  # the clock of the disk is another one
            clock.advance_ms(1)
            db.writer.tidy()
            db.c.vacuum()

    db.catalog.transact([Delete("run", records(db)[0].id)])  # as if it had been merged
    passes()
    assert file.exists(), "the next run goes into it"
    db.put(t, (2, 2))
    assert paths(db) == [path] and db.content(t) == [(2, 2)]
    clock.advance_ms(int(small_runs.OBJECT_AGE_S * 1000) + 1)
    passes()
    assert file.exists(), "a run of it is still there"
    db.catalog.transact([Delete("run", records(db)[0].id)])
    passes()
    assert not file.exists()


def test_the_object_of_a_dropped_table_takes_no_more(db: Tables) -> None:
    t = db.numbers("t")
    db.put(t, (1, 1))
    (path,) = paths(db)
    assert path in db.core.storage.pins.paths()
    db.c.drop([t])
    db.writer.tidy()  # whoever has looked rows up keeps the runs a while
    assert path not in db.core.storage.pins.paths()


def test_programs_that_take_a_run_for_its_object_refuse_one_that_is_not() -> None:
    """They would write its bytes over the whole object."""
    ref = RunRef(1, "1/x.run", 0, 10, 1, 5, 5, 0, 9)
    later = RunRef(1, "1/x.run", 64, 10, 1, 6, 6, 0, 9)
    content = base64.b64encode(b"0123456789").decode()
    stored = [RunRecord(ref, 0, 1, content), RunRecord(later, 0, 1), RunRecord(later, 0, 1, content)]
    assert [json.loads(encode(r))["v"] for r in stored] == [3, 3, 4]
    assert [decode("run", run_id(r.ref), encode(r)) for r in stored] == stored


def test_a_run_is_not_taken_for_a_newer_one_of_its_object() -> None:
    """Of the older one it is not known any more which keys it has; so it has to be looked into."""
    old, new = (RunRef(1, "1/x.run", at, 10, 1, e, e, 0, 9) for at, e in ((0, 4), (64, 6)))
    history = WriteHistory()
    history.note(1, 4, [1], [run_id(old)])
    history.note(1, 5, None)
    history.note(1, 6, [2], [run_id(new)])
    assert history.older(1, [old, new]) == [old]
