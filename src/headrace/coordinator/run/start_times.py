"""How long the steps of a server's start take: a start that takes long is an event."""

from __future__ import annotations

from collections.abc import Callable

from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import AddEvent
from headrace.common.clock import Clock

SLOW_START_S = 10.0
"""A start that takes this long is an event, with its steps."""


class StartTimes:
    """The steps of the start, each timed; used by the thread that starts the server, read by any."""

    def __init__(self, clock: Clock, catalog: Catalog) -> None:
        self._clock = clock
        self._catalog = catalog
        self.steps: dict[str, float] = {}
        """Seconds by the name of the step."""

    def step(self, name: str, work: Callable[[], None]) -> None:
        """Do a step of the start and note how long it took."""
        since_s = self._clock.monotonic_s()
        work()
        self.steps[name] = self._clock.monotonic_s() - since_s

    def tell_if_slow(self) -> None:
        """Make an event of a start that took long. Raises what the catalog does."""
        if sum(self.steps.values()) >= SLOW_START_S:
            text = ", ".join(f"{step} {seconds:.1f} s" for step, seconds in self.steps.items())
            self._catalog.transact([AddEvent("slow_start", None, f"the start took long: {text}")])
