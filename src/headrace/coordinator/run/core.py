"""What the parts of a running coordinator are made of. Nobody but who starts them and the run loop gets all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import Edit
from headrace.catalog.records import ObjectRecord
from headrace.common.clock import Clock
from headrace.config import Settings
from headrace.coordinator.ddl.secrets import Vault
from headrace.coordinator.observe.epoch_history import History
from headrace.coordinator.observe.progress import ProgressBook
from headrace.coordinator.observe.sparing import Sparing
from headrace.coordinator.run.accounts import Accounts
from headrace.coordinator.run.application import Application
from headrace.coordinator.run.attempt import Attempts
from headrace.coordinator.run.capacity import Capacity, FairSlots
from headrace.coordinator.run.committer import HandOver
from headrace.coordinator.run.guard import Guard
from headrace.coordinator.run.live_state import LiveState
from headrace.coordinator.run.locks import Locks
from headrace.coordinator.run.runtime import Runtime
from headrace.coordinator.run.storage import Storage, state_root
from headrace.state.schema import RunRef
from headrace.state.stores import StoreRoot


def _no_tables(
    sink: ObjectRecord, runs: Sequence[RunRef], check: Callable[[], None]
) -> AbstractContextManager[Callable[[Sequence[Edit]], None]]:
    raise NotImplementedError("nobody writes to tables here")


class Core:
    """Makes what the parts share. Each part is given those pieces by its constructor that it works with."""

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        clock: Clock,
        slots: int,
        root: StoreRoot | None = None,
        *,
        following: bool = False,
    ) -> None:
        self.slots = FairSlots(slots, max(slots, 2), clock.monotonic_s)
        """For lanes: each step of one takes a slot."""
        self.storage = Storage(catalog, root or state_root(settings))
        self.live = LiveState(catalog, clock, self.slots.wake, following=following)
        self.runtime = runtime = Runtime(settings, clock, self.live.changed, self.slots.wake)
        self.locks = Locks()
        self.application = Application(self.live.lock)
        self.capacity = Capacity(slots, runtime)
        self.vault = Vault(catalog, settings)
        self.sparing = Sparing(clock.monotonic_s)
        self.guard = Guard(
            self.live.changed, clock, catalog, self.sparing, settings=lambda: runtime.settings,
            stopping=lambda: runtime.stopping, fatal=runtime.fatal,
        )  # fmt: skip
        self.history = History()
        self.progress = ProgressBook(clock.monotonic_s, clock.now_ms)
        self.attempts = Attempts(self.live, self.storage, runtime, self.capacity, self.vault, self.progress)
        self.accounts = Accounts(self.live, catalog, runtime, self.sparing, self.history)
        self.hand_over: HandOver = _no_tables
        """How what sinks have for tables gets there."""
