"""Renews the lease of the server that owns the catalog, by ordinary transactions, and gives it back at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import Put
from headrace.common.clock import Clock
from headrace.config import Settings
from headrace.coordinator.decide.lease import RENEWALS, Lease, lease_of, renewal_interval_s
from headrace.coordinator.run.epochs import EpochClock
from headrace.coordinator.run.guard import Guard
from headrace.coordinator.run.waiting import Waiters
from headrace.errors import Fenced, HeadraceError, ShuttingDown

NAME: Final = "the lease"
"""Of the thread, for people."""
_RETRIES: Final = 10
"""How often a renewal that fails is tried again within the lease's length."""


def kept_by(location: str) -> bool:
    """Whether another server may follow a catalog in this place: one in a SQLite file is for one process."""
    return "://" in location and not location.startswith("sqlite")


class LeaseKeeper:
    """Says in the catalog that this server lives, and up to which epoch all is complete."""

    def __init__(
        self, catalog: Catalog, epochs: EpochClock, guard: Guard, changed: Waiters, clock: Clock, *,
        settings: Callable[[], Settings], failed: Callable[[], bool],
    ) -> None:  # fmt: skip
        """The lock of `changed` guards what is announced; `failed` says whether this server has lost the database."""
        self._catalog = catalog
        self._epochs = epochs
        self._guard = guard
        self._changed = changed
        self._clock = clock
        self._settings = settings
        self._failed = failed
        self._lease: Lease | None = None
        self._trying_s: float | None = None
        """Since when a renewal is being tried; None if the last one has succeeded."""
        self._wanted = self._ended = False
        self._address = ""
        self._thread: threading.Thread | None = None

    @property
    def lease(self) -> Lease | None:
        """What was said last; None where none is kept."""
        return self._lease

    def announce(self, address: str) -> None:
        """Let the lease name where clients reach this server."""
        with self._changed:
            self._address, self._wanted = address, True
            self._changed.notify_all()

    def take(self) -> bool:
        """Begin to keep the lease; whether it is to be renewed. A server that keeps none says so where one was kept.

        Raises `Fenced`, `StorageError`.
        """
        length_ms = self._settings().lease_ms if kept_by(self._catalog.location) else 0
        before = lease_of(self._catalog.state)
        if not length_ms and (before is None or not before.length_ms):
            return False
        renewal = 1 if before is None else before.renewal + 1
        self._put(Lease(self._catalog.token or 0, renewal, length_ms, self._epochs.complete, self._address))
        return length_ms > 0

    def start(self) -> None:
        """Renew it until `end`: whoever is stopping, in good order, still owns the database."""
        self._thread = threading.Thread(
            target=self._guard.forever, args=(NAME, self._loop), name="headrace-lease", daemon=True
        )
        self._thread.start()

    def end(self, wait_s: float) -> None:
        """Renew no more, so that a standby takes over once the lease has run out. Harmless when repeated."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(wait_s)

    def _loop(self) -> None:
        assert self._lease is not None
        pause_s = renewal_interval_s(self._lease.length_ms)
        while self._pause(pause_s):
            renewed = self._guard.chore(NAME, self._renew)
            pause_s = renewal_interval_s(self._lease.length_ms) / (1 if renewed else _RETRIES / RENEWALS)

    def _renew(self) -> None:
        assert self._lease is not None
        self._put(self._lease.renewed(self._epochs.complete, self._address))

    def check(self) -> None:
        """Raise `ShuttingDown` (57P03) where the lease has run out: a standby has taken over, or is about to.

        Clients that know other servers are to go there instead of failing here.
        """
        lease, since_s = self._lease, self._trying_s
        if lease is None or since_s is None or not lease.length_ms:
            return
        silent_s = self._clock.monotonic_s() - since_s
        if silent_s > lease.length_ms / 1000:
            raise ShuttingDown(
                f"this server could not renew its lease for {silent_s:.0f} s, another one may have taken over",
                hint="try again, or connect to another server of this database; see background_failed in "
                "headrace_catalog.events",
                sqlstate="57P03",
            )

    def _put(self, lease: Lease) -> None:
        if self._trying_s is None:
            self._trying_s = self._clock.monotonic_s()
        # Whatever was written up to the complete epoch is in the catalog before this transaction.
        self._catalog.transact([Put(lease.record())])
        self._lease, self._trying_s = lease, None

    def _pause(self, seconds: float) -> bool:
        due_s = self._clock.monotonic_s() + seconds
        with self._changed:
            while not self._over and not self._wanted and (left_s := due_s - self._clock.monotonic_s()) > 0:
                self._changed.doze(left_s)
            self._wanted = False
            return not self._over

    @property
    def _over(self) -> bool:
        """Whether nothing is to be renewed any more. A server that has failed gives the database up at once."""
        return self._ended or self._failed()

    def release(self) -> None:
        """This server has stopped, and writes nothing any more: whoever waits may take over at once."""
        if self._lease is None or not self._lease.length_ms:
            return
        last = self._lease.renewed(self._epochs.complete, "")
        with suppress(Fenced, HeadraceError):
            self._put(Lease(last.token, last.renewal, last.length_ms, last.complete, "", released=True))
