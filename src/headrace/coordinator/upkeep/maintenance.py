"""The background thread of a coordinator: compaction all the time, vacuum now and then."""

from __future__ import annotations

from collections.abc import Callable

from headrace.coordinator.run.core import Core
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
        self, core: Core, compactor: Compactor, logs: LogKeeper, vacuum: Vacuum, settle: Callable[[], object]
    ) -> None:  # fmt: skip
        self._core = core
        self._compactor = compactor
        self._logs = logs
        self._vacuum = vacuum
        self._settle = settle
        self._wanted = False
        self._vacuumed_s: float | None = None
        """When vacuum has run last, or the thread begun, by the monotonic clock; None where it is due at once."""

    def request(self) -> None:
        """Wakes the thread to look for work at once."""
        with self._core.changed:
            self._wanted = True
            self._core.changed.notify_all()

    def run(self) -> None:
        """The thread's main function."""
        self._core.guard.forever(NAME, self._loop)

    def _loop(self) -> None:
        self._vacuumed_s = self._core.clock.monotonic_s()
        while self._pause():
            self._pass()
            self._core.guard.succeeded(NAME)

    def _vacuum_is_due(self) -> bool:
        """By the interval as it is now."""
        core, last_s = self._core, self._vacuumed_s
        return last_s is None or core.clock.monotonic_s() - last_s >= core.settings.vacuum_interval_ms / 1000

    def _pass(self) -> None:
        """Each chore is done whatever becomes of the others: those that come last are the ones that free the disk."""
        chore = self._core.guard.chore
        chore("compaction", self._merge)
        chore("settling", self._settle)
        chore("the rollups of the catalog's log", self._core.catalog.check_background)
        chore("the look at the logs", self._logs.look)
        chore("pruning", self._compactor.prune)
        if self._vacuum_is_due():
            self._vacuumed_s = self._core.clock.monotonic_s()
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
        core = self._core
        with core.lock:
            alive = {a for job in core.graph.jobs.values() if (a := job.activity.attempt) is not None}
        alive |= {f"{attempt}{AGAIN}" for attempt in alive}
        forget_leftovers(core.settings.spool_location, alive, older_than_s=SPOOL_GRACE_S)

    def _pause(self) -> bool:
        core = self._core
        since_s = core.clock.monotonic_s()
        with core.changed:
            while not core.stopping and not self._wanted:
                left_s = since_s + core.settings.compaction_interval_ms / 1000 - core.clock.monotonic_s()
                if left_s <= 0:
                    break
                core.changed.doze(left_s)
            self._wanted = False
            return not core.stopping
