"""Moving a catalog between any two kinds of places, and back; finding it; what each place says afterwards."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from backends import empty_place

from headrace.catalog.catalog import Catalog, read_config
from headrace.catalog.contents import TableContent
from headrace.catalog.edits import DATABASE_KEY, FENCING_KEY, SEQUENCE_KEY, TOMBSTONE_KEY, AddEvent, Put, SetConfig
from headrace.catalog.marks import NotTheTruth
from headrace.catalog.moving import Places, find_truth, make_true, move
from headrace.catalog.places import PlaceOptions, canonical, open_store, peek
from headrace.catalog.records import JobRecord, ObjectRecord, SettingRecord, StateTableRecord, encode
from headrace.catalog.store import FORMAT_VERSION
from headrace.common.faults import arm
from headrace.errors import Fenced, HeadraceError, InvalidParameter, OperationalError, StorageError

KINDS = ("sqlite", "postgres", "directory", "s3")
OPTIONS = PlaceOptions(full_sync=False, lease_ms=0)


@pytest.fixture(params=list(itertools.permutations(KINDS, 2)), ids=lambda p: f"{p[0]}-{p[1]}")
def pair(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    return tuple(canonical(empty_place(kind, request, tmp_path, monkeypatch)) for kind in request.param)  # type: ignore[return-value]


@pytest.fixture
def two(tmp_path: Path) -> tuple[str, str]:
    return canonical(tmp_path / "catalog.db"), f"file://{tmp_path}/log"


def opened(at: str, told: list[str] | None = None) -> Catalog:
    return Catalog.find(at, places(), told=(told if told is not None else []).append)


def places() -> Places:
    return Places(OPTIONS)


def fill(catalog: Catalog, name: str = "a") -> None:
    catalog.transact([
        Put(ObjectRecord(1, TableContent(), "public", "t")), Put(JobRecord(1, "g", "created")),
        Put(StateTableRecord(10, 1, "op", "", (), (), ())), Put(SettingRecord(name, "1")),
        AddEvent("k", None, name), SetConfig("big", (1 << 64) - 1),
    ])  # fmt: skip
    catalog.allocate_ids(3)


def content(catalog: Catalog) -> tuple[list[str], dict[str, int]]:
    hidden = (FENCING_KEY, TOMBSTONE_KEY, SEQUENCE_KEY)
    return sorted(map(encode, catalog.image.records())), {
        k: v for k, v in catalog.image.config.items() if k not in hidden
    }


def test_there_and_back_and_there_again(pair: tuple[str, str]) -> None:
    """CM-11, CM-12, CM-13, CM-20, CM-21: all of it is carried each time, tokens only rise, once is enough."""
    old, new = pair
    tokens = []
    with opened(old) as catalog:
        fill(catalog)
        expected = content(catalog)
        tokens.append(catalog.token or 0)
    zombie = opened(old)
    for source, target in (pair, (new, old), pair):
        report = move(source, target, places())
        assert (report.done, report.records) == (True, len(expected[0]))
        before = read_config(source), read_config(target)
        assert move(source, target, places()).done is False
        assert (read_config(source), read_config(target)) == before
        with pytest.raises(Fenced):
            zombie.state
        with pytest.raises(NotTheTruth, match=r"has moved to"):
            Catalog.open(source, options=OPTIONS)
        told: list[str] = []
        zombie = opened(source, told)
        assert told == [f"the catalog in {source} has moved to {target}, which is used"]
        assert content(zombie) == expected
        tokens.append(zombie.token or 0)
        zombie.transact([AddEvent("k", None, target), Put(SettingRecord(target, ""))])
        expected = content(zombie)
    assert tokens == sorted(set(tokens))
    zombie.close()
    with opened(new) as catalog:
        assert content(catalog) == expected


def test_many_records(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """More than are read and written at a time."""
    monkeypatch.setattr("headrace.catalog.stash._BLOCK_ROWS", 7)
    old, new = pair
    with opened(old) as catalog:
        catalog.transact([Put(SettingRecord(f"s{n}", "x'\"\\{},")) for n in range(50)])
        expected = content(catalog)
    move(old, new, places())
    with opened(new) as catalog:
        assert content(catalog) == expected


def test_an_empty_source_is_initialised_and_moved(pair: tuple[str, str]) -> None:
    """CM-10: and the new place works by itself."""
    old, new = pair
    move(old, new, places())
    with Catalog.open(new, options=OPTIONS) as catalog:
        fill(catalog)
    assert find_truth(old, places()) == new
    assert find_truth(new, places()) == new


def test_whatever_the_target_held_is_replaced(two: tuple[str, str]) -> None:
    """CM-14, CM-18: older content, other keys, its own tombstone."""
    old, new = two
    with opened(old) as catalog:
        fill(catalog, "first")
    move(old, new, places())
    with opened(new) as catalog:
        fill(catalog, "extra")
    move(new, old, places())
    with opened(old) as catalog:
        catalog.transact([Put(SettingRecord("second", ""))])
        expected = content(catalog)
    move(old, new, places())
    with Catalog.open(new, options=OPTIONS) as catalog:
        assert content(catalog) == expected
        assert catalog.image.config.get(TOMBSTONE_KEY) == 0
    assert peek(old).config[TOMBSTONE_KEY] == 1


def test_another_database_is_not_overwritten_unasked(two: tuple[str, str]) -> None:
    for at in two:
        with opened(at) as catalog:
            fill(catalog, at)
    before = [read_config(at) for at in two]
    with pytest.raises(InvalidParameter, match="another database"):
        move(*two, places())
    assert [read_config(at) for at in two] == before
    move(*two, places(), overwrite=True)
    with opened(two[1]) as catalog:
        assert two[0] in catalog.state.settings and two[1] not in catalog.state.settings


def test_a_dry_run_changes_nothing(pair: tuple[str, str]) -> None:
    """CM-8."""
    old, new = pair
    with opened(old) as owner:
        fill(owner)
        before = read_config(old)
        report = move(old, new, places(), dry_run=True)
        assert (report.source, report.target, report.done) == (old, new, True)
        assert report.records == len(content(owner)[0])
        assert read_config(old) == before
        assert read_config(new) == {}
        owner.transact([AddEvent("k", None, "still here")])


def test_questions_before_opening_are_answered_by_the_truth(pair: tuple[str, str]) -> None:
    """CM-23: and fence nobody."""
    old, new = pair
    with opened(old) as catalog:
        fill(catalog)
        database = catalog.image.config[DATABASE_KEY]
    move(old, new, places())
    with opened(new) as owner:
        place = places().peek(find_truth(old, places()))
        assert (place.name, place.database_id, place.token) == (new, database, owner.token)
        with Catalog.find(old, places(), read_only=True) as reader:
            assert content(reader) == content(owner)
        owner.transact([AddEvent("k", None, "still here")])


def test_fenced_between_the_copy_and_the_flag(two: tuple[str, str]) -> None:
    """CM-17: the flag stays as it was, and what the other opener did stands."""
    old, new = two
    with opened(old) as catalog:
        fill(catalog)
    others: list[Catalog] = []

    def told(text: str) -> None:
        if text.startswith("copying"):
            others.append(opened(old))

    with pytest.raises(Fenced):
        move(old, new, places(), told=told)
    others[0].transact([AddEvent("k", None, "stands")])
    assert read_config(old).get(TOMBSTONE_KEY, 0) == 0
    assert find_truth(old, places()) == find_truth(new, places()) == old
    move(old, new, places())
    with opened(new) as catalog:
        assert catalog.state.newest_events(1)[0].message == "stands"


def test_a_partial_copy_is_never_used(two: tuple[str, str]) -> None:
    """CM-16: whoever opens it gets the source."""
    old, new = two
    with opened(old) as catalog:
        fill(catalog)
    arm("catalog.move.copied", "fail")
    with pytest.raises(StorageError):
        move(old, new, places())
    with pytest.raises(NotTheTruth, match="copy"):
        Catalog.open(new, options=OPTIONS)
    told: list[str] = []
    with opened(new, told) as catalog:
        assert catalog.location == str(Path(old.removeprefix("sqlite:///")))
    assert told == [f"the catalog in {new} is an unfinished copy of the one in {old}, which is used"]


MOVING = """
import sys
from headrace.catalog.moving import Places, move
from headrace.catalog.places import PlaceOptions
move(sys.argv[1], sys.argv[2], Places(PlaceOptions(lease_ms=0)))
"""
POINTS = {
    "catalog.move.opened": False, "catalog.replace.before": False, "catalog.replace.after": False,
    "catalog.move.copied": False, "catalog.commit.before": False, "catalog.commit.after": True,
    "catalog.move.decided": True,
}  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
def test_a_move_that_is_killed(two: tuple[str, str], point: str) -> None:
    """CM-15, I11: there is one truth at once, and the same command again finishes the move or finds it done."""
    old, new = two
    with opened(old) as catalog:
        fill(catalog)
        expected = content(catalog)
    for source, target in (two, (new, old)):
        environment = {**os.environ, "HEADRACE_FAULTS": f"{point}=kill"}
        done = subprocess.run([sys.executable, "-c", MOVING, source, target], env=environment, capture_output=True)
        assert done.returncode == -signal.SIGKILL, done.stderr
        truth = target if POINTS[point] else source
        assert find_truth(source, places()) == truth
        # Before it is copied to for the first time a place is none.
        assert places().peek(target).is_empty or find_truth(target, places()) == truth
        move(source, target, places())
        assert find_truth(source, places()) == find_truth(target, places()) == target
        with opened(source) as catalog:
            assert content(catalog) == expected


def test_going_back_right_after_a_move_that_was_cut_short(two: tuple[str, str]) -> None:
    """What says that the target is the truth lies in the source, which is about to be replaced."""
    old, new = two
    with opened(old) as catalog:
        fill(catalog)
    arm("catalog.move.decided", "fail")
    with pytest.raises(StorageError):
        move(*two, places())
    arm("catalog.move.copied", "fail")
    with pytest.raises(StorageError):
        move(new, old, places())
    assert find_truth(old, places()) == find_truth(new, places()) == new
    with opened(old) as catalog:
        assert "a" in catalog.state.settings


def test_the_other_place_is_lost(two: tuple[str, str], tmp_path: Path) -> None:
    """CM-22: only when asked for, saying what it means; and a later move replaces what was lost if it turns up."""
    old, new = two
    with opened(old) as catalog:
        fill(catalog)
    move(*two, places())
    with opened(new) as catalog:
        catalog.transact([Put(SettingRecord("lost", ""))])
    (tmp_path / "log").rename(tmp_path / "elsewhere")
    with pytest.raises(OperationalError, match="there is none"):
        opened(old)
    told: list[str] = []
    make_true(old, places(), told.append)
    assert len(told) == 1 and "is lost" in told[0]
    with opened(old) as catalog:
        assert "lost" not in catalog.state.settings
        catalog.transact([Put(SettingRecord("kept", ""))])
    (tmp_path / "elsewhere").rename(tmp_path / "log")
    with pytest.raises(InvalidParameter, match="both are in use"):
        move(*two, places())
    move(*two, places(), overwrite=True)
    with opened(old) as catalog:
        assert "kept" in catalog.state.settings and "lost" not in catalog.state.settings


def test_a_place_that_cannot_be_asked_is_named(two: tuple[str, str], tmp_path: Path) -> None:
    move(*two, places())
    rolled = sorted((tmp_path / "log").rglob("*.batch"))[0]
    rolled.write_bytes(b"junk")
    with pytest.raises(HeadraceError, match=str(tmp_path / "log")):
        opened(two[0])


def test_a_newer_target_is_refused_before_anybody_is_fenced(two: tuple[str, str]) -> None:
    """CM-26."""
    old, new = two
    newer = Catalog.over(open_store(new, OPTIONS), format_version=FORMAT_VERSION + 1)
    with opened(old) as owner:
        with pytest.raises(OperationalError, match="format"):
            move(old, new, places())
        fill(owner)
    newer.transact([AddEvent("k", None, "still here")])
    newer.close()


def test_chains_of_moves(two: tuple[str, str], tmp_path: Path) -> None:
    """CM-20: every place that the catalog has left leads to where it is."""
    third = canonical(tmp_path / "other.db")
    with opened(two[0]) as catalog:
        fill(catalog)
    for source, target in ((two[0], two[1]), (two[1], third), (two[0], two[0]), (third, two[1])):
        move(source, target, places())
    for at in (*two, third):
        assert find_truth(at, places()) == two[1]
        with opened(at) as catalog:
            assert "a" in catalog.state.settings
