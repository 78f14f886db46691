"""The coordinator's epochs: who may still write at which one, and up to which all is complete."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import SetConfig
from headrace.common.clock import Clock
from headrace.common.epoch import COUNTER_BITS, EpochAllocator
from headrace.coordinator.waiting import Waiters

EPOCH_BOUND = "epoch_bound"
"""Config key: no epoch above it has been given out, by this process or an earlier one."""
RESERVE_MS = 10_000
"""How far ahead of the newest epoch the bound is set, milliseconds."""


class EpochClock:
    """Gives out epochs and knows which are complete: nothing will be written at or below them any more.

    A write or a binding *begins* an epoch and ends it when it is durable or given up. The newest complete epoch is
    the one below the oldest that is still under way. A bound that is made durable ahead keeps epochs strictly
    increasing over restarts, also where the clock goes back. `changed` is notified when more becomes complete.
    """

    def __init__(self, catalog: Catalog, clock: Clock, changed: Waiters) -> None:
        state = catalog.state
        self._catalog = catalog
        self._changed = changed
        self._reserved = state.config.get(EPOCH_BOUND, 0)
        start = max(state.last_epoch, self._reserved)
        self._allocator = EpochAllocator(start, clock.now_ms)
        self._under_way: set[int] = set()
        self._complete = start

    @property
    def complete(self) -> int:
        """The newest complete epoch."""
        return self._complete

    @property
    def last(self) -> int:
        """The newest epoch given out."""
        return self._allocator.last

    def begin(self) -> int:
        """A new epoch, above all others. Raises what the catalog does; then it is given up already."""
        with self._changed:
            epoch = self._allocator.next()
            self._under_way.add(epoch)
        try:
            if epoch > self._reserved:
                bound = epoch + (RESERVE_MS << COUNTER_BITS)
                self._catalog.transact([SetConfig(EPOCH_BOUND, bound)])
                self._reserved = max(self._reserved, bound)
        except BaseException:
            self.end(epoch)
            raise
        return epoch

    def end(self, epoch: int) -> None:
        """What was to be written at the epoch is durable and known, or will never be."""
        with self._changed:
            self._under_way.discard(epoch)
            complete = min(self._under_way) - 1 if self._under_way else self._allocator.last
            if complete > self._complete:
                self._complete = complete
                self._changed.advanced()

    @contextmanager
    def epoch(self) -> Iterator[int]:
        """`begin` and `end` around a block."""
        epoch = self.begin()
        try:
            yield epoch
        finally:
            self.end(epoch)

    def settle(self) -> None:
        """Make the bound exact, so that the next start goes on right after the last epoch."""
        self._catalog.transact([SetConfig(EPOCH_BOUND, self._allocator.last)])
        self._reserved = self._allocator.last
