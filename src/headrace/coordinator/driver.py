"""A group's thread: waits for input, runs epochs, commits them, retries what fails."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

from headrace.catalog.edits import AddEvent
from headrace.common.faults import fault_point
from headrace.coordinator.attempt import Attempt, check_result, edits_of, exact_after, prefix_of, prepare
from headrace.coordinator.core import ROWS, Core, Job, as_headrace_error, option_int
from headrace.coordinator.history import Checkpoint
from headrace.coordinator.targets import (
    UNKNOWN_ROWS,
    Decision,
    aligned_target,
    bounded_target,
    decide,
    fewer_rows,
    more_rows,
    retry_delay_ms,
)
from headrace.dataflow.runner import EpochResult
from headrace.errors import DiskFull, Fenced, HeadraceError, JobFailed, OutOfBudget
from headrace.state.merge import levels

STALL_LOOK_S = 1.0
"""Seconds between two looks whether compaction has caught up with a group that it holds back."""


class Driver:
    """Runs one group of one job."""

    def __init__(self, core: Core, job: Job, compact: Callable[[], None]) -> None:
        self._core = core
        self._job = job
        self._compact = compact

    def run(self) -> None:
        """The thread's main function; returns when the job or the coordinator stops."""
        try:
            while self._wait():
                with self._core.slots.slot(lambda: self._stopped) as granted:
                    if granted:
                        self._step()
        except Fenced as error:
            self._core.fatal(error)

    @property
    def _stopped(self) -> bool:
        return self._core.stopping or self._job.stopping

    # ---- waiting

    def _wait(self) -> bool:
        """Until there is something to do; False when it is time to stop."""
        core = self._core
        with core.changed:
            while not self._stopped:
                decision = self.decision()
                delay_s = self._delay_s(decision)
                if decision.run and delay_s is not None and delay_s <= 0:
                    return True
                core.changed.wait(delay_s if decision.run else None)
        return False

    def decision(self) -> Decision:
        """What the job would do now. The caller holds the lock."""
        core, job = self._core, self._job
        if not job.runnable or job.runner is None:
            return Decision(0, False)
        upstreams = core.upstreams(job)
        found = decide(job.committed, upstreams, core.epochs.complete)
        if not found.run:
            self._note_wait(found)
            return found
        if not job.upstreams:
            return found
        first, most = self._range(found)
        common = core.common(job)
        target = aligned_target(common, first, most, self._limit(most))
        if target is None:
            if job.aligning <= found.target:
                core.align(job)
            return Decision(found.target, False, found.first_change)
        return Decision(target, True, found.first_change)

    def _range(self, decision: Decision) -> tuple[int, int]:
        """The lowest epoch that the next one may reach, and the highest: where a view below wants this one to stop."""
        job = self._job
        first = max(job.committed + 1, (decision.first_change or 0) if job.committed else 0)
        job.stops = {stop for stop in job.stops if stop >= first}
        return first, min([decision.target, *job.stops])

    def _limit(self, target: int) -> int:
        """The newest epoch up to `target` whose input is within bounds; a first epoch takes in everything."""
        job = self._job
        if job.committed == 0:
            return target
        return bounded_target(target, self._changes(target), job.row_limit or self._most_rows())

    def _most_rows(self) -> int:
        return option_int(self._job.options, "max_rows_per_epoch", self._core.settings.max_rows_per_epoch)

    def _changes(self, target: int) -> list[tuple[int, int | None]]:
        """The changes of all inputs up to `target`, each with its rows if they are known."""
        core, job = self._core, self._job
        changes: list[tuple[int, int | None]] = []
        for upstream in job.upstreams:
            relation = core.relation(upstream)
            for low, _ in relation.changes.in_range(job.committed, target):
                changes.append((low, relation.rows_by_epoch.get(low)))
        return changes

    def _note_wait(self, decision: Decision) -> None:
        """Say what a new job waits for; a source that cannot be read is its failure."""
        job = self._job
        if decision.waiting_for is None or job.committed:
            return
        relation = self._core.relations.get(decision.waiting_for)
        if relation is None:
            return
        job.progress = f'waiting for "{relation.name}"'
        if relation.error is not None and job.error is not relation.error:
            job.error, job.error_since_ms = relation.error, relation.error_since_ms
            job.failures += 1
            job.failed_total += 1
            self._core.changed.notify_all()

    def _delay_s(self, decision: Decision) -> float | None:
        """Seconds until the job may run: for a retry, for its cadence, or for compaction."""
        core, job = self._core, self._job
        if not decision.run:
            return None
        now = core.clock.monotonic_s()
        cadence = 0.0 if job.forced > job.committed else job.not_before_s - now
        delay_s = max(job.retry_at_s - now, cadence)
        if delay_s <= 0 and self._stalled():
            self._compact()
            return STALL_LOOK_S
        return delay_s

    def _stalled(self) -> bool:
        image, most = self._core.catalog.image, self._core.settings.compaction_stall_runs
        return any(
            image.run_count(table) >= most and len(levels([r.ref for r in image.runs_of(table)])) >= most
            for table in self._job.tables.values()
        )

    # ---- one epoch

    def _step(self) -> None:
        core, job = self._core, self._job
        try:
            if job.failures:
                self._resync()
        except Fenced:
            raise
        except HeadraceError as error:
            self._failed(job.committed, error)
            return
        with core.changed:
            decision = self.decision()
            if self._stopped or not decision.run:
                return
            attempt = Attempt(core.attempt_name(job.id), job.committed, decision.target, decision.first_change)
            pin = core.pins.pin(job.upstreams, attempt.target if attempt.first else attempt.committed)
            self._begin(attempt)
        started_s = core.clock.monotonic_s()
        try:
            with core.pins.writing(prefix_of(attempt, job)):
                params, parallelism = prepare(core, job, attempt, pin)
                assert job.runner is not None
                with core.progress.attempt(attempt.name, job.id, job.group, attempt.target):
                    result = job.runner.run(params, parallelism)
                fault_point("commit.acked")
                self._commit(attempt, result)
            job.metrics.last_epoch_ms = round((core.clock.monotonic_s() - started_s) * 1000)
            self._record(attempt, result)
            fault_point("commit.notified")
        except Fenced:
            raise
        except Exception as error:
            self._failed(attempt.target, as_headrace_error(error))
        finally:
            core.pins.unpin(pin)
            with core.changed:
                job.attempt = None
                core.changed.notify_all()

    def _begin(self, attempt: Attempt) -> None:
        core, job = self._core, self._job
        job.attempt, job.attempt_since_s = attempt.name, core.clock.monotonic_s()
        interval_ms = option_int(job.options, "checkpoint_interval_ms", core.settings.checkpoint_interval_ms)
        # Half a tick of slack: a group of n ticks must not miss the n-th one by the width of a hair.
        slack_ms = min(interval_ms, core.settings.barrier_interval_ms) / 2
        job.not_before_s = job.attempt_since_s + (interval_ms - slack_ms) / 1000
        if attempt.first:
            job.progress = f"reading what its inputs hold at epoch {attempt.target}"

    def _commit(self, attempt: Attempt, result: EpochResult) -> None:
        core, job = self._core, self._job
        check_result(job, attempt, result)
        with job.committing:
            if job.stopping:
                raise JobFailed(f'job "{job.name}" is being stopped')
            edits = edits_of(core, job, attempt, result, core.catalog.state)
            exact = exact_after(core, job, attempt)
            fault_point("backfill.done.before" if attempt.first else "commit.before")
            try:
                core.catalog.transact(edits)
                fault_point("commit.after")
            except Fenced:
                raise
            except HeadraceError:
                if not self._happened(attempt):
                    raise
            self._committed(attempt, result, exact)

    def _record(self, attempt: Attempt, result: EpochResult) -> None:
        """Keep for people what a checkpoint was like."""
        core, job = self._core, self._job
        done = Checkpoint(
            group=job.group,
            job_id=job.id,
            epoch=attempt.target,
            from_epoch=attempt.committed,
            at_ms=core.clock.now_ms(),
            duration_ms=job.metrics.last_epoch_ms,
            rows_in=result.rows_in,
            rows_out=result.rows_out,
            objects=len({ref.path for ref in result.runs}),
            bytes=sum(ref.length for ref in result.runs),
        )
        core.history.committed(done, result.rows_by_input)

    def _resync(self) -> None:
        """Take up a commit of which it was not known whether it had become durable."""
        core, job = self._core, self._job
        with core.catalog.reading() as state:
            record = state.jobs.get(job.id)
            own = job.tables.get(ROWS)
            runs = [r.ref for r in state.runs_of(own) if r.ref.epoch_hi > job.committed] if own else []
        if record is None or record.committed_epoch <= job.committed:
            return
        with core.changed:
            for ref in runs:
                core.relation(job.id).changed(ref.epoch_hi, ref.rows)
            job.committed, job.exact, job.status = record.committed_epoch, record.exact, record.status

    def _happened(self, attempt: Attempt) -> bool:
        """Whether a commit whose outcome was unknown is durable."""
        record = self._core.catalog.state.jobs.get(self._job.id)
        return record is not None and record.committed_epoch >= attempt.target

    def _committed(self, attempt: Attempt, result: EpochResult, exact: tuple[tuple[int, int], ...]) -> None:
        core, job = self._core, self._job
        with core.changed:
            job.committed, job.exact = attempt.target, exact
            if job.status == "creating":
                job.status = "created"
            job.failures, job.error, job.retry_at_s, job.progress = 0, None, 0.0, ""
            # Also where it wrote nothing: a view below is exact again only once it has taken this checkpoint in.
            if ROWS in job.tables:
                written = [r for r in result.runs if r.table_id == job.tables[ROWS]]
                core.relation(job.id).changed(attempt.target, sum(r.rows for r in written))
            m = job.metrics
            m.epochs += 1
            m.rows_in += result.rows_in
            m.rows_out += result.rows_out
            m.row_errors += result.row_error_count
            m.spilled_bytes += result.spilled_bytes
            job.row_limit = more_rows(job.row_limit, self._most_rows())
            core.changed.notify_all()

    # ---- failures

    def _failed(self, target: int, error: HeadraceError) -> None:
        core, job = self._core, self._job
        if self._stopped:
            return
        settings = core.settings
        with core.changed:
            news = job.error is None or job.error.message != error.message
            job.error_since_ms = core.clock.now_ms() if job.error is None else job.error_since_ms
            job.error = error
            job.failures += 1
            job.failed_total += 1
            if error.sqlstate in (DiskFull.sqlstate, OutOfBudget.sqlstate):
                taken = sum(UNKNOWN_ROWS if rows is None else rows for _, rows in self._changes(target))
                job.row_limit = fewer_rows(job.row_limit or self._most_rows(), taken)
            # Whoever wants it to stop somewhere asks again: what has failed there may succeed further on.
            job.stops.clear()
            jitter = random.random()
            delay_ms = retry_delay_ms(
                job.failures, settings.group_retry_initial_ms, settings.group_retry_max_ms, jitter
            )
            job.retry_at_s = core.clock.monotonic_s() + delay_ms / 1000
            core.changed.notify_all()
        if news:
            text = f'job "{job.name}" failed at epoch {target}: {error.message}'
            detail = f"SQLSTATE {error.sqlstate}" + (f"; {error.detail}" if error.detail else "")
            with suppress(HeadraceError):
                core.catalog.transact([AddEvent("job_failed", job.id, text, detail[:4000])])
            core.check_fence()
