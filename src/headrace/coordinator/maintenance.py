"""The background thread of a coordinator: compaction all the time, vacuum now and then."""

from __future__ import annotations

from headrace.coordinator.compaction import Compactor
from headrace.coordinator.core import Core
from headrace.coordinator.logs import LogKeeper
from headrace.coordinator.vacuum import Vacuum
from headrace.errors import Fenced, HeadraceError
from headrace.state.spool import forget_leftovers

SPOOL_GRACE_S = 60.0
"""Seconds that the spool of an attempt is left alone after its last change, though the attempt is not under way."""


class Maintenance:
    """The background thread: compaction, a look at the logs that are kept, and now and then vacuum."""

    def __init__(self, core: Core, compactor: Compactor, logs: LogKeeper, vacuum: Vacuum) -> None:
        self._core = core
        self._compactor = compactor
        self._logs = logs
        self._vacuum = vacuum
        self._wanted = False

    def request(self) -> None:
        """Look for work at once."""
        with self._core.changed:
            self._wanted = True
            self._core.changed.notify_all()

    def run(self) -> None:
        """The thread's main function."""
        core = self._core
        vacuum_s = core.clock.monotonic_s() + core.settings.vacuum_interval_ms / 1000
        while self._pause():
            try:
                self._compactor.pass_once()
                self._logs.look()
                if core.clock.monotonic_s() >= vacuum_s:
                    vacuum_s = core.clock.monotonic_s() + core.settings.vacuum_interval_ms / 1000
                    self._vacuum.pass_once()
                    self._forget_spools()
            except Fenced as error:
                core.fatal(error)
                return
            except (HeadraceError, OSError):
                continue

    def _forget_spools(self) -> None:
        """Delete what attempts that have died have left on the local disk."""
        core = self._core
        with core.lock:
            alive = {job.attempt for job in core.jobs.values() if job.attempt is not None}
        forget_leftovers(core.settings.spool_location, alive, older_than_s=SPOOL_GRACE_S)

    def _pause(self) -> bool:
        core = self._core
        due_s = core.clock.monotonic_s() + core.settings.compaction_interval_ms / 1000
        with core.changed:
            while not core.stopping and not self._wanted:
                left_s = due_s - core.clock.monotonic_s()
                if left_s <= 0:
                    break
                core.changed.wait(left_s)
            self._wanted = False
            return not core.stopping
