"""The coordinator's epochs: who may still write at which one, and up to which all is complete."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import SetConfig
from headrace.catalog.state import CatalogState
from headrace.common.clock import Clock
from headrace.common.epoch import COUNTER_BITS, EpochAllocator, epoch_ms
from headrace.coordinator.run.waiting import Waiters
from headrace.errors import ReadOnlyTransaction

EPOCH_BOUND = "epoch_bound"
"""Config key: no epoch above it has been given out, by this process or an earlier one."""
RESERVE_MS = 10_000
"""How far ahead of the newest epoch the bound is set, milliseconds."""


class EpochClock:
    """Gives out epochs and knows which are complete: nothing will be written at or below them any more.

    A write or a binding *begins* an epoch and ends it when it is durable or given up. The newest complete epoch is
    the one below the oldest that is still under way. A bound that is made durable ahead keeps epochs strictly
    increasing over restarts, also where the clock goes back: no epoch above it is complete, or used for anything.
    `changed` is notified when more becomes complete.
    """

    def __init__(self, catalog: Catalog, clock: Clock, changed: Waiters, *, following: bool = False) -> None:
        """`following` another server's epochs, it gives out none, until `lead`."""
        self._catalog = catalog
        self._clock = clock
        self._changed = changed
        self._following = following
        self._reserving = threading.Lock()
        """Held while the bound is moved: it must not go back because an older transaction comes later."""
        self._reserved = 0
        """The bound as far as it is durable, or lower; guarded by the lock of `changed`."""
        self._under_way: set[int] = set()
        self._complete = 0
        self.completing: Callable[[int], AbstractContextManager[object]] = lambda epoch: nullcontext()
        """Around the moment from which on an epoch counts as complete, under the lock of `changed`."""
        self._allocator = EpochAllocator(0, clock.now_ms)
        if not following:
            self.lead(catalog.state)

    def lead(self, state: CatalogState) -> None:
        """Give out epochs from now on, above all that the catalog knows of: what is not there will never be."""
        with self._changed:
            self._reserved = state.config.get(EPOCH_BOUND, 0)
            start = max(state.last_epoch, self._reserved, self._complete)
            self._allocator = EpochAllocator(start, self._clock.now_ms)
            self._following = False
            self._completed(start)

    def follow(self, complete: int) -> None:
        """The other server says that an epoch is complete."""
        with self._changed:
            if complete > self._complete:
                self._completed(complete)

    def _completed(self, epoch: int) -> None:
        with self.completing(epoch):
            self._complete = epoch
        self._changed.advanced()

    @property
    def complete(self) -> int:
        """The newest complete epoch."""
        return self._complete

    @property
    def last(self) -> int:
        """The newest epoch given out."""
        return self._allocator.last

    @property
    def ahead_ms(self) -> int:
        """How far the newest epoch is ahead of the wall clock, milliseconds; 0 if it is not."""
        return max(0, epoch_ms(max(self._allocator.last, self._complete)) - self._clock.now_ms())

    def begin(self) -> int:
        """A new epoch, above all others. Raises what the catalog does; then it is given up already."""
        with self._changed:
            if self._following:
                raise ReadOnlyTransaction("a standby gives out no epochs")
            epoch = self._allocator.next()
            self._under_way.add(epoch)
            reserved = epoch <= self._reserved
        try:
            if not reserved:
                self._reserve(epoch)
        except BaseException:
            self.end(epoch)
            raise
        return epoch

    def _reserve(self, epoch: int) -> None:
        """See to it that the durable bound is no lower than an epoch."""
        with self._reserving:
            with self._changed:
                if epoch <= self._reserved:
                    return
                bound = self._allocator.last + (RESERVE_MS << COUNTER_BITS)
            self._catalog.transact([SetConfig(EPOCH_BOUND, bound)])
            with self._changed:
                self._reserved = bound

    def end(self, epoch: int) -> None:
        """What was to be written at the epoch is durable and known, or will never be."""
        with self._changed:
            self._under_way.discard(epoch)
            complete = min(self._under_way) - 1 if self._under_way else self._allocator.last
            # One that was given up before the bound was durable might be given out again after a restart.
            complete = min(complete, self._reserved)
            if complete > self._complete:
                self._completed(complete)

    @contextmanager
    def epoch(self) -> Iterator[int]:
        """`begin` and `end` around a block."""
        epoch = self.begin()
        try:
            yield epoch
        finally:
            self.end(epoch)

    def settle(self) -> None:
        """Make the bound exact, so that the next start goes on right after the last epoch.

        Who begins another one meanwhile moves the bound again, after this.
        """
        with self._reserving:
            with self._changed:
                self._reserved = last = self._allocator.last
            self._catalog.transact([SetConfig(EPOCH_BOUND, last)])
