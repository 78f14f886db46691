"""How the coordinator runs: by which settings and which clock, and whether it goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.common.clock import Clock
from headrace.config import Settings
from headrace.coordinator.run.waiting import Waiters
from headrace.errors import Fenced, ShuttingDown


class Runtime:
    """The settings and the clock of all parts, and whether these are to go on. Thread-safe."""

    def __init__(
        self, settings: Settings, clock: Clock, changed: Waiters, wake_others: Callable[[], None]
    ) -> None:  # fmt: skip
        """`changed` is notified, and `wake_others` called, when it is time to stop."""
        self.settings = settings
        """As they are now. Whoever changes them does so under the lock of `changed`."""
        self.clock = clock
        self.stopping = False
        """The lock of `changed` guards it."""
        self.failure: BaseException | None = None
        """Why the coordinator has stopped by itself."""
        self.failed = threading.Event()
        self.on_fatal: Callable[[], None] = lambda: None
        """Called once `failure` is set: what still runs is to be cancelled. Must not wait."""
        self._changed = changed
        self._wake_others = wake_others

    def fatal(self, error: BaseException) -> None:
        """Stop for good: the database belongs to another process."""
        with self._changed:
            if self.failure is None:
                self.failure = error
            self.stopping = True
            self._changed.notify_all()
        self.failed.set()
        self._wake_others()
        self.on_fatal()

    def check(self) -> None:
        """Raises if the coordinator has stopped: its fatal error, or `ShuttingDown`."""
        if self.failure is not None:
            if isinstance(self.failure, Fenced):
                raise Fenced(self.failure.message, hint=self.failure.hint, detail=self.failure.detail)
            raise ShuttingDown(f"the coordinator has stopped: {self.failure}")
        if self.stopping:
            raise ShuttingDown("the server is shutting down")
