"""Pins: what is let go of at a moment that nobody chooses."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from headrace.coordinator.run.pins import Pins
from support import WAIT_S


def test_a_reader_that_is_collected_in_the_midst_of_it_lets_go() -> None:
    """Garbage may be collected while the thread that abandoned a reader is in a method of the pins itself."""
    pins = Pins()
    kept, abandoned = pins.pin([1], 5), pins.pin([1], 3)

    def paths() -> Iterator[str]:
        pins.unpin(abandoned)
        yield "a"

    thread = threading.Thread(target=lambda: pins.hold(kept, paths()), daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert pins.epochs(1) == [5] and pins.paths() == {"a"}
    pins.unpin(kept)
    pins.unpin(kept)
    assert pins.epochs(1) == [] and pins.paths() == set()
