"""The Spark application that epochs run in: whether there is one, and what has come of planning views in it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final

from headrace.coordinator.run.live_state import Job
from headrace.errors import HeadraceError, OperationalError, SparkLost

SPARK_STARTS: Final = SparkLost("Spark is starting")
"""Why no epoch runs at the start of a server that Spark has not started for yet, but for those of jobs that have a
runner already, which does without it."""
PLANNING_TRIES: Final = 3
"""Failures in a row after which who waits for views to be planned is told why, and a view of which the planning has
ended Spark each time is left out."""
SUSPECT_S: Final = 600.0
"""After which such a view is planned again, beside all others that run: Spark may have ended for another reason. Twice
as long after each time that it has ended again."""
SUSPECT_MOST_S: Final = 86400.0


class Application:
    """What is known of the Spark application. `lock`, which guards relations and jobs, guards this, too."""

    def __init__(self, lock: threading.RLock) -> None:  # type: ignore[valid-type]
        self._lock = lock
        self.suspended: HeadraceError | None = None
        """Why no epoch runs at present: Spark is starting, or has ended and is being started again."""
        self.is_lost: Callable[[], bool] = lambda: False
        """Asked by who met `SparkLost`: whether all of Spark has ended. If so, `suspended` is set on return."""
        self.merge_waits = False
        """Whether there was a merge that is too large to be done without it."""
        self._unplanned: list[HeadraceError] = []
        """Why views could not be planned, each time since they last were."""

    @property
    def starts(self) -> bool:
        """Whether the first application is still to come. The caller holds the lock."""
        return self.suspended is SPARK_STARTS

    def holds(self, jobs: Iterable[Job]) -> bool:
        """Whether jobs have to wait for an application. The caller holds the lock."""
        return self.suspended is not None and not (self.starts and all(job.runner is not None for job in jobs))

    def planning_failed(self, error: HeadraceError) -> None:
        """Views could not be planned; that is tried again. The caller holds the lock."""
        self._unplanned.append(error)

    def planned(self) -> None:
        """All views are planned."""
        with self._lock:
            self._unplanned.clear()

    def check_planning(self) -> None:
        """Raises if planning has failed so often in a row that nobody should wait for it. It goes on being tried."""
        with self._lock:
            failures = len(self._unplanned)
            if failures >= PLANNING_TRIES:
                error = self._unplanned[-1]
                raise OperationalError(
                    f"views cannot be planned: {error.message}", detail=error.detail,
                    hint=f"it has failed {failures} times in a row and is tried again; tables can be read and written",
                )  # fmt: skip
