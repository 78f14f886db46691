"""Two databases with one catalog's copies on one prefix: neither ever deletes what the other needs."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fake_database import Database

from headrace import cli
from headrace.catalog.catalog import Catalog
from headrace.coordinator.upkeep import owner as owner_module
from headrace.coordinator.upkeep import vacuum as vacuum_module
from headrace.coordinator.upkeep.owner import OwnerMark, newest_mark, objection
from headrace.errors import Fenced, InvalidParameter, StorageError
from headrace.state.stores import LocalStore, ObjectStore, StoreRoot, store_of


def opened(data: Path, prefix: str, **settings: Any) -> Database:
    return Database(data, state_url=prefix, vacuum_grace_ms=0, **settings)


def copied(data: Path, name: str) -> Path:
    """A copy of a data directory, taken while it may be served."""
    copy = data.with_name(name)
    copy.mkdir()
    for file in data.glob("catalog.db*"):
        shutil.copy(file, copy / file.name)
    return copy


def left_over(prefix: Path) -> Path:
    path = prefix / "9" / "x.run"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"of somebody")
    os.utime(path, (time.time() - 10, time.time() - 10))
    return path


def vacuumed(db: Database) -> int:
    return sum(db.c._parts.vacuum.pass_once() for _ in range(2))


def as_if_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies look as if they were at the same place: a clone of a volume."""
    monkeypatch.setattr(Catalog, "place", property(lambda self: "/var/lib/headrace/catalog.db"))


def test_a_copy_of_the_catalog_is_refused(tmp_path: Path) -> None:
    """It names the other one, nothing is touched, and the original goes on."""
    shared = tmp_path / "shared"
    db = opened(tmp_path / "data", str(shared))
    t = db.table()
    db.insert(t, 1)
    copy = copied(tmp_path / "data", "copy")
    before = sorted(p for p in shared.rglob("*"))
    with pytest.raises(InvalidParameter, match="looks like a copy") as caught:
        opened(copy, str(shared))
    assert str(tmp_path / "data") in caught.value.message and "HEADRACE_STATE_MOVED=true" in (caught.value.hint or "")
    assert sorted(p for p in shared.rglob("*")) == before
    loose = left_over(shared)
    assert vacuumed(db) == 1 and not loose.exists() and db.read(t) == [[1]]
    db.close()
    again = opened(tmp_path / "data", str(shared))
    assert again.read(t) == [[1]] and again.events("state_adopted") == []
    again.close()


def test_another_database_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    opened(tmp_path / "data", str(shared)).close()
    with pytest.raises(InvalidParameter, match="belongs to the database whose catalog is"):
        opened(tmp_path / "other", str(shared))
    inside = Database(tmp_path / "third")
    inside.close()


def test_a_database_without_a_mark_gets_one(tmp_path: Path) -> None:
    """One that is older than the marks; of two copies of it the first to start."""
    shared = tmp_path / "shared"
    db = opened(tmp_path / "data", str(shared))
    db.close()
    shutil.rmtree(shared / "owner")
    with Catalog.open(db.settings.catalog_location) as catalog:
        catalog.transact([owner_module.Put(owner_module.SettingRecord(owner_module.OWNER, "{}"))])
    copy = copied(tmp_path / "data", "copy")
    opened(copy, str(shared)).close()
    with pytest.raises(InvalidParameter, match=str(copy)):
        opened(tmp_path / "data", str(shared))


def test_adopted_while_the_other_one_still_runs(tmp_path: Path) -> None:
    """Whoever says wrongly that the original is gone loses nothing by it either: both stop deleting."""
    shared = tmp_path / "shared"
    db = opened(tmp_path / "data", str(shared))
    t = db.table()
    db.insert(t, 1)
    other = opened(copied(tmp_path / "data", "copy"), str(shared), state_moved=True)
    assert len(other.events("state_adopted")) == 1
    loose = left_over(shared)
    assert vacuumed(db) == 0 and "taken by" in db.events("vacuum_halted")[0]
    assert vacuumed(other) == 0 and "its own" in other.events("vacuum_halted")[0] and loose.exists()
    db.insert(t, 2)
    assert vacuumed(other) == 0 and db.read(t) == [[1, 2]] and other.read(t) == [[1]]
    db.close()
    other.close()
    with pytest.raises(InvalidParameter, match="belongs to"):
        opened(tmp_path / "data", str(shared))
    again = opened(tmp_path / "copy", str(shared))
    assert vacuumed(again) == 0, "a restart decides nothing"
    again.close()
    decided = opened(tmp_path / "copy", str(shared), state_moved=True)
    assert vacuumed(decided) > 0 and not loose.exists() and decided.read(t) == [[1]]
    decided.close()


def test_copies_that_cannot_be_told_by_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_if_in_one_place(monkeypatch)
    shared = tmp_path / "shared"
    db = opened(tmp_path / "data", str(shared))
    t = db.table()
    db.insert(t, 1)
    other = opened(copied(tmp_path / "data", "copy"), str(shared))
    loose = left_over(shared)
    assert vacuumed(db) == 0 and vacuumed(other) == 0 and loose.exists()
    assert db.read(t) == other.read(t) == [[1]]
    db.close()
    other.close()


def test_of_two_copies_that_start_at_once_one_gets_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_if_in_one_place(monkeypatch)
    shared = tmp_path / "shared"
    opened(tmp_path / "data", str(shared)).close()
    copy = copied(tmp_path / "data", "copy")
    put = owner_module.Owner._put
    others: list[Database] = []

    def slow(self: owner_module.Owner, mark: OwnerMark) -> None:
        if not others:
            others.append(None)  # type: ignore[arg-type]
            others[0] = opened(copy, str(shared))
        put(self, mark)

    monkeypatch.setattr(owner_module.Owner, "_put", slow)
    with pytest.raises(InvalidParameter, match="has just taken it"):
        opened(tmp_path / "data", str(shared))
    assert vacuumed(others[0]) == 0 and others[0].events("vacuum_halted") == []
    others[0].close()


def test_a_server_that_was_shut_out_deletes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when that happens in the middle of its pass; and it contests nothing."""
    shared = tmp_path / "shared"
    db = opened(tmp_path / "data", str(shared))
    loose = left_over(shared)
    assert db.c._parts.vacuum.pass_once() == 0
    expired = vacuum_module.expired
    opened_again: list[Database] = []

    def slow(*arguments: Any) -> list[str]:
        found = expired(*arguments)
        opened_again.append(opened(tmp_path / "data", str(shared)))
        return found

    monkeypatch.setattr(vacuum_module, "expired", slow)
    with pytest.raises(Fenced):
        db.c._parts.vacuum.pass_once()
    monkeypatch.setattr(vacuum_module, "expired", expired)
    assert loose.exists() and not list(shared.glob("owner/*.contested"))
    assert vacuumed(opened_again[0]) == 1 and not loose.exists()
    opened_again[0].close()
    db.close()


def test_the_mark_is_gone(tmp_path: Path) -> None:
    """A bucket that was emptied, or another one of that name: nothing there is known to be ours."""
    shared = tmp_path / "shared"
    db = opened(tmp_path / "data", str(shared))
    loose = left_over(shared)
    shutil.rmtree(shared / "owner")
    assert vacuumed(db) == 0 and "is gone" in db.events("vacuum_halted")[0] and loose.exists()
    db.close()
    with pytest.raises(InvalidParameter, match="is gone"):
        opened(tmp_path / "data", str(shared))
    opened(tmp_path / "data", str(shared), state_moved=True).close()


def test_the_gc_command_asks_for_the_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = tmp_path / "shared"
    opened(tmp_path / "data", str(shared)).close()
    copy = copied(tmp_path / "data", "copy")
    loose = left_over(shared)
    os.utime(loose, (1, 1))

    def gc(data: Path) -> int:
        monkeypatch.setattr(sys, "argv", ["headrace", "state", "gc", "--data", str(data), "--state", str(shared)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0)

    assert gc(copy) == 1 and "looks like a copy" in capsys.readouterr().err and loose.exists()
    assert gc(tmp_path / "data") == 0 and "deleted 1 objects" in capsys.readouterr().out and not loose.exists()


def test_marks_do_not_pile_up(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    for _ in range(7):
        opened(tmp_path / "data", str(shared)).close()
    assert len(list(shared.glob("owner/*"))) == owner_module.KEPT_MARKS
    mark = newest_mark(store_of(shared))
    assert mark is not None and mark.number == 7


@pytest.mark.parametrize("kind", ["directory", "memory"])
def test_small_objects(tmp_path: Path, kind: str) -> None:
    root = str(tmp_path / "s") if kind == "directory" else "memory://small-objects"
    store: ObjectStore = store_of(StoreRoot(root, cache_dir=str(tmp_path / "cache")))
    assert store.get("owner/1.mark") is None
    store.put("owner/1.mark", b"one")
    with pytest.raises(owner_module.StorageError, match="exists already"):
        store.put("owner/1.mark", b"two")
    assert store.get("owner/1.mark") == b"one"


def test_who_may_take_the_state() -> None:
    mark = OwnerMark(3, "n", "/a", 0)
    assert objection(None, {}, "/a") is None and objection(mark, {3: "n"}, "/a") is None
    assert objection(mark, {2: "m", 3: "n"}, "/a") is None
    for known, place in (({}, "/a"), ({3: "m"}, "/a"), ({2: "n"}, "/a"), ({3: "n"}, "/b")):
        assert "/a" in (objection(mark, known, place) or "")
    assert "gone" in (objection(None, {3: "n"}, "/a") or "")


@pytest.mark.parametrize("lost", ["mark", "answer"])
@pytest.mark.parametrize("first", [True, False])
def test_starts_that_end_before_their_mark_is_known_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool, lost: str
) -> None:
    """A full disk, a store that does not answer, a process that is killed: the next start takes the state again."""
    shared = tmp_path / "shared"
    if not first:
        opened(tmp_path / "data", str(shared)).close()
    put = owner_module.Owner._put

    def fails(self: owner_module.Owner, mark: OwnerMark) -> None:
        if lost == "answer":
            put(self, mark)
        raise owner_module.StorageError("no answer")

    monkeypatch.setattr(owner_module.Owner, "_put", fails)
    for _ in range(owner_module.KEPT_MARKS + 2):
        with pytest.raises(owner_module.StorageError):
            opened(tmp_path / "data", str(shared))
    monkeypatch.setattr(owner_module.Owner, "_put", put)
    db = opened(tmp_path / "data", str(shared))
    assert vacuumed(db) == 0 and db.events("vacuum_halted") == db.events("state_adopted") == []
    assert owner_module.pending_marks(db.catalog.state) == {}
    db.close()
    shutil.rmtree(shared / "owner")
    with pytest.raises(InvalidParameter, match="is gone"):
        opened(tmp_path / "data", str(shared))


@pytest.mark.parametrize("failures", [1, 2, 3])
@pytest.mark.parametrize("fresh", [True, False])
def test_starts_whose_mark_was_not_put_do_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int, fresh: bool
) -> None:
    """However many they are, and also the very first: a store that can be read and not written to, a process killed."""
    shared = tmp_path / "shared"
    if not fresh:
        opened(tmp_path / "data", str(shared)).close()

    def put(self: LocalStore, path: str, data: bytes) -> None:
        raise StorageError(f"writing object {path} failed: access denied")

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "put", put)
        for _ in range(failures):
            with pytest.raises(StorageError, match="access denied"):
                opened(tmp_path / "data", str(shared))
    db = opened(tmp_path / "data", str(shared))
    mark = newest_mark(store_of(shared))
    assert mark is not None and mark.number == failures + 1 + (not fresh)
    assert db.c._parts.owner.may_delete()
    db.close()
    for found in shared.glob("owner/*"):
        found.unlink()
    with pytest.raises(InvalidParameter, match="gone"):
        opened(tmp_path / "data", str(shared))


def test_a_mark_whose_name_only_was_taken_counts_for_nothing(tmp_path: Path) -> None:
    """Where there are no links, whoever is killed while a mark is put leaves an empty object of its name."""
    shared = tmp_path / "shared"
    opened(tmp_path / "data", str(shared)).close()
    for number in (2, 3):
        (shared / f"owner/{number:010d}.mark").touch()
    mark = newest_mark(store_of(shared))
    assert mark is not None and mark.number == 1
    for _ in range(2):  # each of these takes a number of its own, in vain
        with pytest.raises(InvalidParameter, match="just taken it"):
            opened(tmp_path / "data", str(shared))
    opened(tmp_path / "data", str(shared)).close()
