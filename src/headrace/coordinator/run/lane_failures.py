"""What becomes of a lane's jobs when an epoch fails: doubt, retries, epochs taken whole, quarantine."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

from headrace.catalog.edits import AddEvent
from headrace.common.loggers import get_logger
from headrace.coordinator.decide.commit import plan_rewind
from headrace.coordinator.decide.settlement import quarantined
from headrace.coordinator.decide.steps import position_of
from headrace.coordinator.decide.targets import fewer_rows, retry_delay_ms
from headrace.coordinator.observe.epoch_history import History
from headrace.coordinator.observe.sparing import Sparing
from headrace.coordinator.run.application import Application
from headrace.coordinator.run.attempt import EpochInFlight, max_rows, step_rows
from headrace.coordinator.run.live_state import Job, LiveState
from headrace.coordinator.run.locks import Locks
from headrace.coordinator.run.regroup import regroup
from headrace.coordinator.run.runtime import Runtime
from headrace.coordinator.run.storage import Storage
from headrace.errors import (
    DiskFull,
    HeadraceError,
    LogLost,
    NotNullViolation,
    NotPlannable,
    OutOfBudget,
    SinkError,
    SparkLost,
    TasksChanged,
)
from headrace.state.schema import HANDED

EXPRESSION_ERRORS = ("21", "22")
"""Classes of SQLSTATEs of expressions that met values they cannot be computed with."""


class Failures:
    """Notes the failures of one lane, for its thread and for the one that commits; both may at once.

    It keeps nothing itself: all that comes of a failure is in the jobs, under the lock of `live`. `lane` gives the jobs
    that step together now, to who holds that lock; `launch` gives a job's lane a thread.
    """

    def __init__(
        self, live: LiveState, storage: Storage, runtime: Runtime, locks: Locks, application: Application,
        sparing: Sparing, history: History, *, lane: Callable[[], list[Job]], launch: Callable[[Job], None],
    ) -> None:  # fmt: skip
        self._live = live
        self._storage = storage
        self._runtime = runtime
        self._locks = locks
        self._application = application
        self._sparing = sparing
        self._history = history
        self._lane = lane
        self._launch = launch

    def resync(self, lane: list[Job]) -> None:
        """Take up a commit of which it was not known whether it had become durable."""
        live = self._live
        with self._locks.committing, self._storage.catalog.reading() as state, live.changed:
            for job in lane:
                record = state.jobs.get(job.id)
                if record is None:
                    continue
                if record.committed_epoch > job.committed:
                    for ref in (r.ref for r in state.runs_of(live.graph.relation(job.id).state_table)):
                        if job.committed < ref.epoch_hi <= record.committed_epoch:
                            live.graph.relation(job.id).changed(ref.epoch_hi, ref.rows, ref.length)
                job.learn(record, position_of(state.positions_of(job.id)))

    def doubt(self, now: EpochInFlight | None) -> None:
        """What it was doing may have been a commit."""
        with self._live.lock:
            for job in self._lane() if now is None else now.lane:
                job.doubt()

    def note(self, now: EpochInFlight | None, error: HeadraceError) -> None:
        """An epoch has failed, or the look for what to do next: the job to blame is tried again later, or never."""
        live, runtime, application, storage = self._live, self._runtime, self._application, self._storage
        with live.lock:
            lane = now.lane if now is not None else self._lane()
            job = (now.current if now is not None else None) or (lane[0] if lane else None)
        target = now.epoch.target if now is not None else 0
        if runtime.stopping or job is None:
            return
        if application.starts:  # whatever it is, Spark may do it: if not, that is a failure
            with live.changed:
                for other in lane:
                    other.await_plan()
                live.changed.notify_all()
            get_logger("headrace").info("a view waits for Spark", view=job.name, why=error.message)
            return
        if application.suspended is not None or (isinstance(error, SparkLost) and application.is_lost()):
            return  # no fault of the job: it goes on from its checkpoint as soon as there is another Spark
        if now is not None and (error.sqlstate[:2] in EXPRESSION_ERRORS or refused(job, error)) and self._rewound(now):
            return
        settings = runtime.settings
        if isinstance(error, TasksChanged):
            with suppress(HeadraceError):
                self._rewind(lane, whole=False)
            storage.check_fence()
        if isinstance(error, (LogLost, NotPlannable)):
            with suppress(HeadraceError):
                self._quarantine(job, error)
            storage.check_fence()
        with live.changed:
            news = job.error is None or job.error.message != error.message
            job.fail(error, job.trouble.began(runtime.clock.now_ms()))
            if error.sqlstate in (DiskFull.sqlstate, OutOfBudget.sqlstate):
                part = now.epoch.current if now is not None else None
                allowed = max_rows(settings, job) if part is None else step_rows(settings, part)
                job.limit(fewer_rows(allowed, 0))
            # Whoever wants it to stop somewhere asks again: what has failed there may succeed further on.
            for other in lane:
                other.keep_stops(lambda epoch: False)
            delay_ms = retry_delay_ms(
                job.failures, settings.group_retry_initial_ms, settings.group_retry_max_ms, random.random()
            )
            job.retry(runtime.clock.monotonic_s() + delay_ms / 1000)
            live.changed.notify_all()
        if news:
            text = f'job "{job.name}" failed at epoch {target}: {error.message}'
            detail = f"SQLSTATE {error.sqlstate}" + (f"; {error.detail}" if error.detail else "")
            event = self._sparing.thinned(AddEvent("job_failed", job.id, text, detail[:4000]))
            with suppress(HeadraceError):
                storage.catalog.transact([] if event is None else [event])
            storage.check_fence()

    def _quarantine(self, job: Job, error: HeadraceError) -> None:
        """Stop a job that cannot go on for good; the others of its group do, but for those that read it."""
        live = self._live
        regroup(
            self._storage.catalog, self._locks.committing, live.lock, self._launch,
            lambda state: quarantined(live.graph, state, job, error),
        )  # fmt: skip

    def _rewound(self, now: EpochInFlight) -> bool:
        """Take an epoch whole after a step of it failed: between two steps there are states that never existed."""
        if not now.stepwise or all(j.whole for j in now.lane):
            return False
        with suppress(HeadraceError):
            self._rewind(now.lane, whole=True)
            return True
        return False

    def _rewind(self, lane: list[Job], *, whole: bool) -> None:
        """Give up what is durable of an epoch that is not committed; it is taken again, at one go if it is `whole`."""
        storage, live = self._storage, self._live
        with self._locks.committing:
            with storage.catalog.reading() as state:
                commit = plan_rewind(state, lane)
            storage.catalog.transact(commit.edits)
            with live.changed:
                commit.apply(live.graph)
                self._history.taken_back({job.id: job.committed for job in lane})
                for job in lane if whole else ():
                    job.take_whole()
                live.changed.notify_all()


def refused(job: Job, error: HeadraceError | None) -> bool:
    """Whether a table does not take what a sink has for it: a later epoch, with the rows mended, may be taken."""
    return HANDED in job.tables and not job.delivers and isinstance(error, (NotNullViolation, SinkError))
