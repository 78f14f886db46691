"""A second backend that is written to as well: equal, told of where it is not, and never in the way."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from faulty_transport import FaultyTransport
from opener_model import Memory

from headrace.catalog import shadow as shadow_module
from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import AddEvent, Delete, Put
from headrace.catalog.log_store import LogStore
from headrace.catalog.marks import NotTheTruth
from headrace.catalog.moving import Places, find_truth, move
from headrace.catalog.places import PlaceOptions, canonical, open_store
from headrace.catalog.records import SettingRecord
from headrace.catalog.shadow import ShadowStore, differences
from headrace.catalog.store import FORMAT_VERSION, StoredCatalog, Writes
from headrace.errors import StorageError
from support import WAIT_S, eventually

OPTIONS = PlaceOptions(full_sync=False, lease_ms=0)
Told = list[str]


class World:
    def __init__(self, folder: Path) -> None:
        self.at = canonical(folder / "catalog.db")
        self.transport = FaultyTransport(Memory())
        self.told: Told = []
        self.shadow: ShadowStore | None = None

    def open(self, *, threaded: bool = False) -> Catalog:
        live, shadow = open_store(self.at, OPTIONS), LogStore(self.transport, "s", None)
        self.shadow = ShadowStore(live, shadow, self.at, self.told.append, threaded=threaded)
        return Catalog.over(self.shadow)

    def contents(self) -> tuple[StoredCatalog, StoredCatalog]:
        return open_store(self.at, OPTIONS).load(FORMAT_VERSION), LogStore(self.transport, "s", None).load(
            FORMAT_VERSION
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("threaded", [False, True])
def test_every_transaction_goes_to_both(world: World, threaded: bool) -> None:
    for _ in range(2):
        with world.open(threaded=threaded) as catalog:
            for n in range(30):
                catalog.transact([Put(SettingRecord(f"s{n}", "x")), AddEvent("k", None, f"{n}")])
            catalog.transact([Delete("setting", "s3")])
            catalog.allocate_ids(2)
        live, shadow = world.contents()
        assert differences(live, shadow) == [] and len(live.rows) > 30
    assert world.told == []
    assert world.shadow is not None and world.shadow.report.refilled == 0
    assert world.shadow.report.written == 32


def test_a_difference_is_told_with_its_records_and_mended(world: World) -> None:
    with world.open() as catalog:
        catalog.transact([Put(SettingRecord("a", "1"))])
        assert world.shadow is not None
        inner = world.shadow._shadow
        inner.append(Writes(puts=(("setting", "a", '{"v":1,"name":"a","value":"wrong"}'),)), 1)
        inner.append(Writes(config={"sequence": 1}), 2)
        inner._log.config["sequence"] = 1  # type: ignore[attr-defined]  # as if it had happened unnoticed
        world.shadow.append(Writes(config={"more": 1}), 1)
        world.shadow._take(None)
        assert len(world.told) == 1
        assert 'setting/a: {"v":1,"name":"a","value":"1"} in the catalog' in world.told[0]
        assert '"wrong"} in its shadow' in world.told[0]
        world.shadow._take(None)
        assert len(world.told) == 1


def test_the_live_side_does_not_notice_a_shadow_that_fails(world: World) -> None:
    """It is told once, and the shadow gets all that it missed when it is back."""
    with world.open() as catalog:
        catalog.transact([AddEvent("k", None, "a")])
        world.transport.fail("put", *[OSError("no route")] * 3)
        for n in range(6):
            catalog.transact([AddEvent("k", None, f"{n}")])
        assert len(world.told) == 1 and "no route" in world.told[0]
        assert catalog.sequence == 7
    assert world.shadow is not None and world.shadow.report.error == ""
    assert differences(*world.contents()) == []


def test_a_shadow_that_cannot_be_reached_at_the_start(world: World) -> None:
    world.transport.fail("list", *[OSError("no route")] * 2)
    with world.open() as catalog:
        assert "no route" in world.told[0]
        catalog.transact([AddEvent("k", None, "a")])
    assert differences(*world.contents()) == []


def test_a_place_that_is_in_use_is_no_shadow(world: World) -> None:
    with Catalog.over(LogStore(world.transport, "s", None)) as other:
        other.transact([Put(SettingRecord("mine", ""))])
    with world.open() as catalog:
        assert "in use" in world.told[0]
        catalog.transact([AddEvent("k", None, "a")])
    with Catalog.over(LogStore(world.transport, "s", None)) as other:
        assert "mine" in other.state.settings


def test_a_shadow_is_not_the_truth_and_can_become_it(tmp_path: Path) -> None:
    live, shadow, places = canonical(tmp_path / "catalog.db"), f"file://{tmp_path}/log", Places(OPTIONS)
    told: Told = []
    with Catalog.find(live, places, told=told.append, shadow=shadow) as catalog:
        catalog.transact([Put(SettingRecord("a", ""))])
    assert told == []
    with pytest.raises(NotTheTruth):
        Catalog.open(shadow, options=OPTIONS)
    assert find_truth(shadow, places) == live
    move(live, shadow, places)
    with Catalog.open(shadow, options=OPTIONS) as catalog:
        assert "a" in catalog.state.settings


def test_a_live_side_that_fails_is_not_shadowed(world: World) -> None:
    catalog = world.open()
    assert world.shadow is not None
    with pytest.raises(StorageError):
        world.shadow.append(Writes(config={"x": 1}), 99)
    assert differences(*world.contents()) == []
    catalog.close()


class Held:
    """A shadow's transport that waits, and then fails each time."""

    def __init__(self) -> None:
        self.go, self.entered, self.failed = threading.Event(), threading.Event(), 0

    def __call__(self, *given: object, **more: object) -> None:
        self.entered.set()
        assert self.go.wait(WAIT_S)
        self.failed += 1
        raise StorageError("no answer")


def test_closing_does_not_wait_for_all_that_a_silent_shadow_has_missed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request to it takes as long as its time-out: with a thousand in the queue the server would never end."""
    monkeypatch.setattr(shadow_module, "_BEHIND", 20)
    catalog = world.open(threaded=True)
    assert world.shadow is not None
    held = Held()
    for name in ("append", "replace", "open", "load"):
        monkeypatch.setattr(world.shadow._shadow, name, held)
    for n in range(30):
        catalog.transact([Put(SettingRecord(f"s{n}", "x"))])
    assert held.entered.wait(WAIT_S)
    closing = threading.Thread(target=catalog.close, daemon=True)
    closing.start()
    eventually(lambda: world.shadow is not None and world.shadow._stopping)
    held.go.set()
    closing.join(WAIT_S)
    assert not closing.is_alive() and held.failed <= 2


def test_a_shadow_outlives_whoever_hears_of_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def deaf(text: str) -> None:
        raise OSError("no space left")

    catalog = world.open(threaded=True)
    assert world.shadow is not None and world.shadow._thread is not None
    thread = world.shadow._thread
    world.shadow._told = deaf
    with monkeypatch.context() as broken:
        broken.setattr(world.shadow._shadow, "append", lambda *given: {}["no such"])
        catalog.transact([Put(SettingRecord("a", "x"))])
        eventually(lambda: world.shadow is not None and world.shadow.report.error)
    catalog.transact([Put(SettingRecord("b", "x"))])
    eventually(lambda: world.shadow is not None and not world.shadow.report.error)
    assert thread.is_alive()
    catalog.close()
    live, shadow = world.contents()
    assert differences(live, shadow) == []
