"""What is said to a source that is paused: what its readers have taken in, once; later again where it fails."""

from __future__ import annotations

import threading
from typing import Any

from headrace.connectors.base import Offsets
from headrace.coordinator.run.telling import Teller


class Paused:
    """A source that is told something."""

    def __init__(self) -> None:
        self.told: list[Offsets] = []
        self.opened = 0
        self.fails = False
        self.go_on = threading.Event()
        self.go_on.set()

    def acknowledge(self, offsets: Offsets) -> None:
        self.go_on.wait(60)
        if self.fails:
            raise ValueError("away")
        self.told.append(offsets)


class World:
    """A teller, one source, and a clock."""

    def __init__(self) -> None:
        self.source, self.now_s = Paused(), 0.0
        self.teller = Teller(self._opened, lambda: self.now_s)

    def _opened(self, record: Any) -> Any:
        self.source.opened += 1
        return self.source

    def tell(self, taken: Offsets, record: Any = "made so", wait: bool = True) -> None:
        self.teller.tell(7, record, taken)
        thread = next((t for t in threading.enumerate() if t.name == "headrace-telling-7"), None)
        if wait and thread is not None:
            thread.join(60)


def test_it_is_told_once() -> None:
    world = World()
    world.tell({"0": 5})
    world.tell({"0": 5})
    world.tell({"0": 6})
    assert (world.source.told, world.source.opened) == ([{"0": 5}, {"0": 6}], 1)
    world.tell({"0": 7}, "altered")
    assert (world.source.told[-1], world.source.opened) == ({"0": 7}, 2)
    world.teller.leave(7)
    world.tell({"0": 7})
    assert len(world.source.told) == 4, "somebody else has told it since"


def test_one_that_is_away_is_told_later() -> None:
    world = World()
    world.source.fails = True
    world.tell({"0": 5})
    world.source.fails = False
    world.tell({"0": 5})
    assert world.source.told == [], "not at each tick"
    world.now_s = 1.0
    world.tell({"0": 5})
    assert (world.source.told, world.source.opened) == ([{"0": 5}], 2)


def test_two_things_are_said_in_order() -> None:
    world = World()
    world.source.go_on.clear()
    world.tell({"0": 5}, wait=False)
    world.tell({"0": 6}, wait=False)
    world.teller.leave(7)
    assert world.teller.telling(7) is not None and world.teller.telling(8) is None
    world.source.go_on.set()
    world.tell({"0": 5})
    world.tell({"0": 6})
    assert world.source.told == [{"0": 5}, {"0": 6}] and world.teller.telling(7) is None


def test_of_one_that_was_dropped_nothing_is_kept() -> None:
    world = World()
    world.source.go_on.clear()
    world.tell({"0": 5}, wait=False)
    thread = world.teller.telling(7)
    world.teller.forget(7)
    assert thread is not None and not world.teller._told, "though it is being told something"
    world.source.go_on.set()
    thread.join(60)
