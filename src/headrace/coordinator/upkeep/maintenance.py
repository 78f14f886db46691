"""The background thread of a coordinator: compaction all the time, vacuum now and then."""

from __future__ import annotations

from collections.abc import Callable

from headrace.catalog.catalog import Catalog
from headrace.coordinator.run.guard import Guard
from headrace.coordinator.run.live_state import LiveState
from headrace.coordinator.run.runtime import Runtime
from headrace.coordinator.upkeep.compaction import Compactor
from headrace.coordinator.upkeep.logs import LogKeeper
from headrace.coordinator.upkeep.vacuum import Vacuum
from headrace.dataflow.params import AGAIN
from headrace.errors import DiskFull
from headrace.state.spool import forget_leftovers

NAME = "maintenance"
"""Of the thread, for people."""
SPOOL_GRACE_S = 60.0
"""Seconds that the spool of an attempt is left alone after its last change, though the attempt is not under way."""


class Maintenance:
    """The background thread: compaction, a look at the logs that are kept, and now and then vacuum."""

    def __init__(
        self, live: LiveState, catalog: Catalog, runtime: Runtime, guard: Guard, *,
        compactor: Compactor, logs: LogKeeper, vacuum: Vacuum, settle: Callable[[], object],
    ) -> None:  # fmt: skip
        self._live = live
        self._catalog = catalog
        self._runtime = runtime
        self._guard = guard
        self._compactor = compactor
        self._logs = logs
        self._vacuum = vacuum
        self._settle = settle
        self._wanted = False
        self._vacuumed_s: float | None = None
        """When vacuum has run last, or the thread begun, by the monotonic clock; None where it is due at once."""

    def request(self) -> None:
        """Wakes the thread to look for work at once."""
        with self._live.changed:
            self._wanted = True
            self._live.changed.notify_all()

    def run(self) -> None:
        """The thread's main function."""
        self._guard.forever(NAME, self._loop)

    def _loop(self) -> None:
        self._vacuumed_s = self._runtime.clock.monotonic_s()
        while self._pause():
            self._pass()
            self._guard.succeeded(NAME)

    def _vacuum_is_due(self) -> bool:
        """By the interval as it is now."""
        runtime = self._runtime
        last_s = self._vacuumed_s
        return last_s is None or runtime.clock.monotonic_s() - last_s >= runtime.settings.vacuum_interval_ms / 1000

    def _pass(self) -> None:
        """Each chore is done whatever becomes of the others: those that come last are the ones that free the disk."""
        chore = self._guard.chore
        chore("compaction", self._merge)
        chore("settling", self._settle)
        chore("the rollups of the catalog's log", self._catalog.check_background)
        chore("the look at the logs", self._logs.look)
        chore("pruning", self._compactor.prune)
        if self._vacuum_is_due():
            self._vacuumed_s = self._runtime.clock.monotonic_s()
            chore("vacuum", self._vacuum.pass_once)
            chore("tidying up the spool", self._forget_spools)

    def _merge(self) -> None:
        try:
            self._compactor.merge_due(patient=True)
        except DiskFull:
            self._vacuumed_s = None
            raise

    def _forget_spools(self) -> None:
        """Delete what attempts that have died have left on the local disk."""
        live = self._live
        with live.lock:
            alive = {a for job in live.graph.jobs.values() if (a := job.activity.attempt) is not None}
        alive |= {f"{attempt}{AGAIN}" for attempt in alive}
        forget_leftovers(self._runtime.settings.spool_location, alive, older_than_s=SPOOL_GRACE_S)

    def _pause(self) -> bool:
        runtime, live = self._runtime, self._live
        since_s = runtime.clock.monotonic_s()
        with live.changed:
            while not runtime.stopping and not self._wanted:
                left_s = since_s + runtime.settings.compaction_interval_ms / 1000 - runtime.clock.monotonic_s()
                if left_s <= 0:
                    break
                live.changed.doze(left_s)
            self._wanted = False
            return not runtime.stopping
