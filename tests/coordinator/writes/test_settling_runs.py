"""Small runs whose bytes lie in the catalog: a power failure may take their objects, never their rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from write_world import Tables, change

from headrace.catalog.edits import Delete, SettleRun
from headrace.common.clock import ManualClock
from headrace.common.epoch import epoch_ms
from headrace.coordinator.writes import settling
from headrace.coordinator.writes.settling import SETTLE_AFTER_MS, restore
from headrace.errors import CorruptObject
from headrace.state.merge import SMALL_BYTES, SMALL_RUNS, first_levels
from headrace.state.objects import delete_object
from headrace.state.schema import RunRef
from support import eventually


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(epoch_ms(1 << 40))


@pytest.fixture
def db(tmp_path: Path, clock: ManualClock) -> Iterator[Tables]:
    made = Tables(tmp_path, clock, run_fsync=True)
    yield made
    made.close()


def held(db: Tables) -> list[str]:
    return [i for i, r in db.catalog.state.runs.items() if r.content_b64 is not None]


def paths(db: Tables) -> list[str]:
    return [r.ref.path for r in db.catalog.state.runs.values()]


@pytest.mark.parametrize("damage", ["lost", "empty", "zeros", "longer", "none"])
def test_what_a_power_failure_takes_is_made_again(tmp_path: Path, damage: str) -> None:
    first = Tables(tmp_path, run_fsync=True)
    t = first.numbers("t")
    for i in range(3):
        first.put(t, (i, i))
        first.writer.small_runs.forget(t)  # so that each has an object of its own, as earlier versions gave it
    root = Path(first.core.storage.root)
    objects = [root / p for p in paths(first)]
    assert len(held(first)) == len(set(objects)) == 3
    first.close()
    for at in objects[:2]:
        content = at.read_bytes()
        if damage == "lost":
            at.unlink()
        elif damage != "none":
            at.write_bytes({"empty": b"", "zeros": bytes(len(content)), "longer": content + b"x"}[damage])
    second = Tables(tmp_path, run_fsync=True)
    assert second.content(t) == [(0, 0), (1, 1), (2, 2)]
    assert not held(second), "they are durable now"
    second.close()


def test_restore_says_how_many_were_lost(db: Tables) -> None:
    t = db.numbers("t")
    db.put(t, (1, 1))
    assert restore(db.catalog, db.core.storage.root) == 0 and not held(db)
    db.writer.small_runs.forget(t)
    db.put(t, (2, 2))
    delete_object(db.core.storage.root, next(p for i, p in zip(db.catalog.state.runs, paths(db)) if i in held(db)))
    assert restore(db.catalog, db.core.storage.root) == 1
    assert db.content(t) == [(1, 1), (2, 2)]


def test_after_a_while_they_are_settled(db: Tables, clock: ManualClock) -> None:
    t = db.numbers("t")
    db.put(t, (1, 1))
    assert db.writer.settling.pass_once() == 0 and held(db), "it is too young"
    clock.advance_ms(SETTLE_AFTER_MS + 1)
    db.put(t, (2, 2))
    eventually(lambda: (db.writer.settling.pass_once(), len(held(db)) == 1)[1], "the older one to be settled")
    assert db.content(t) == [(1, 1), (2, 2)]


def test_what_has_been_merged_meanwhile_stays_away(db: Tables, clock: ManualClock) -> None:
    """Its object is gone, its record, too: neither comes back."""
    t = db.numbers("t")
    db.put(t, (1, 1))
    db.writer.small_runs.forget(t)
    db.put(t, (2, 2))
    records = [r for r in db.catalog.state.runs.values() if r.content_b64]
    db.catalog.transact([Delete("run", records[0].id)])
    delete_object(db.core.storage.root, records[0].ref.path)
    settling._settle(db.catalog, db.core.storage.root, records)
    db.catalog.transact([SettleRun(records[0].id), SettleRun("never there")])
    assert set(db.catalog.state.runs) == {records[1].id} and not held(db)
    with pytest.raises(CorruptObject):
        from headrace.state.objects import sync_object

        sync_object(db.core.storage.root, records[0].ref.path)


def test_large_ones_and_many_are_durable_at_once(db: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    t = db.numbers("t")
    db.c.write(t, change([(i, i * i) for i in range(5000)]))
    assert not held(db)
    monkeypatch.setattr(settling, "HELD_BYTES", 1)
    db.put(t, (1, 1))
    db.put(t, (2, 2))
    assert len(held(db)) == 1


def test_without_forced_writes_nothing_is_kept_twice(tmp_path: Path) -> None:
    db = Tables(tmp_path)
    t = db.numbers("t")
    db.put(t, (1, 1))
    assert not held(db) and not db.writer.settling.has_room
    db.close()


def test_many_small_runs_are_merged_at_once() -> None:
    """More than the fan-in where they are small, but never too many; only the fan-in where they are not."""

    def refs(count: int, length: int) -> list[RunRef]:
        return [RunRef(1, f"{i}.run", 0, length, 1, i, i, 0, 9) for i in range(count)]

    assert len(first_levels(refs(200, 100), 8)) == 200
    assert len(first_levels(refs(SMALL_RUNS + 50, 100), 8)) == SMALL_RUNS
    assert len(first_levels(refs(50, SMALL_BYTES), 8)) == 8
    assert len(first_levels(refs(50, SMALL_BYTES // 20), 8)) == 20
    assert first_levels([], 8) == [] and len(first_levels(refs(3, SMALL_BYTES), 8)) == 3
