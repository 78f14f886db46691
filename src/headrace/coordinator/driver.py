"""A lane's thread: waits for input, runs the steps of an epoch, commits it, retries what fails.

What to do is decided in `machine` and `commit`; here are the thread, the clock, Spark and the catalog.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from headrace.catalog.edits import AddEvent, Edit, Put
from headrace.common.faults import fault_point
from headrace.coordinator.attempt import UnderWay, configured_rows, max_rows, run_step, step_rows, work_of
from headrace.coordinator.commit import (
    Commit,
    GroupEpoch,
    note_stored,
    open_epoch,
    plan_final,
    plan_partial,
    plan_rewind,
)
from headrace.coordinator.core import Core, Job, as_headrace_error, option_int
from headrace.coordinator.history import Checkpoint
from headrace.coordinator.machine import MAX_ROUNDS, may_join, next_epoch
from headrace.coordinator.steps import position_of
from headrace.coordinator.targets import Decision, fewer_rows, more_rows, retry_delay_ms
from headrace.dataflow.runner import EpochResult
from headrace.errors import DiskFull, Fenced, HeadraceError, JobFailed, LogLost, OutOfBudget
from headrace.state.merge import levels

STALL_LOOK_S = 1.0
"""Seconds between two looks whether compaction has caught up with a group that it holds back."""
EXPRESSION_ERRORS = ("21", "22")
"""Classes of SQLSTATEs of expressions that met values they cannot be computed with."""


class Abandoned(Exception):
    """The epoch is given up without being a failure: a job was dropped, or has left its group."""


class Driver:
    """Runs one lane: the jobs of a group that move in step, or one job that has not joined its group."""

    def __init__(
        self, core: Core, group: str, alone: int | None, *, compact: Callable[[], None],
        launch: Callable[[Job], None], retire: Callable[[], None],
    ) -> None:  # fmt: skip
        self._core = core
        self._group = group
        self._alone = alone
        self._compact = compact
        self._launch = launch
        self._retire = retire
        self._now: UnderWay | None = None

    def run(self) -> None:
        """The thread's main function; returns when there is no job left in the lane, or the coordinator stops."""
        try:
            while self._wait():
                with self._core.slots.slot(self._give_up) as granted:
                    if granted:
                        self._step()
        except Fenced as error:
            self._core.fatal(error)
        finally:
            self._close()
            self._retire()

    def lane(self) -> list[Job]:
        """The jobs that step together now. The caller holds the lock."""
        if self._alone is None:
            return self._core.lane(self._group)
        job = self._core.jobs.get(self._alone)
        return [] if job is None or job.joined or job.stopping or job.group != self._group else [job]

    def _give_up(self) -> bool:
        now = self._now
        return self._core.stopping or (now is not None and self._outdated(now))

    def _outdated(self, now: UnderWay) -> bool:
        """Whether a job has left the lane since the epoch was opened, or must not run any more."""
        return any(p.job.stopping or p.version != p.job.version or not p.job.runnable for p in now.epoch.parts)

    # ---- waiting

    def _wait(self) -> bool:
        """Until there is something to do; False when it is time to stop."""
        core = self._core
        while True:
            if self._now is not None and self._outdated(self._now):
                self._close()
            with core.changed:
                lane = self.lane()
                if core.stopping or not lane:
                    self._retire()
                    return False
                if self._now is not None:
                    return True
                self._let_join(lane)
                lane = self.lane()
                if not lane:
                    self._retire()
                    return False
                decision = self.decision(lane)
                delay_s = self._delay_s(lane, decision)
                if decision.run and delay_s is not None and delay_s <= 0:
                    return True
                core.changed.wait(delay_s if decision.run else None)

    def _let_join(self, lane: list[Job]) -> None:
        """A job by itself that has caught up with its group joins it, where the group has nothing under way."""
        core = self._core
        if self._alone is None:
            return
        (job,) = lane
        members = core.lane(job.group)
        if any(j.busy for j in members) or not may_join(core, job, self._within_ms()):
            if job.status == "creating" and job.committed and any(j.failures for j in members):
                job.progress = f'waiting for checkpoint group "{job.group}", which is failing'
            return
        job.joined = job.joining = True
        job.version += 1
        self._launch(job)
        core.changed.notify_all()

    def decision(self, lane: list[Job]) -> Decision:
        """What the lane would do now. The caller holds the lock."""
        core = self._core
        if any(j.runner is None for j in lane):
            return Decision(0, False)
        asked = [j.aligning for j in lane]
        found = next_epoch(core, lane, min(max_rows(core, j) for j in lane))
        if not found.run:
            self._note_wait(lane, found)
            if asked != [j.aligning for j in lane]:
                core.changed.notify_all()
        return found

    def _note_wait(self, lane: list[Job], decision: Decision) -> None:
        """Say what a new job waits for; a source that cannot be read is its failure."""
        job = lane[0]
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

    def _delay_s(self, lane: list[Job], decision: Decision) -> float | None:
        """Seconds until the lane may run: for a retry, for its cadence, or for compaction."""
        if not decision.run:
            return None
        now_s = self._core.clock.monotonic_s()
        forced = any(j.forced > j.committed or j.position is not None for j in lane)
        cadence_s = 0.0 if forced else max(j.not_before_s for j in lane) - now_s
        delay_s = max(max(j.retry_at_s for j in lane) - now_s, cadence_s)
        if delay_s <= 0 and self._stalled(lane):
            self._compact()
            return STALL_LOOK_S
        return delay_s

    def _stalled(self, lane: list[Job]) -> bool:
        image, most = self._core.catalog.image, self._core.settings.compaction_stall_runs
        return any(
            image.run_count(table) >= most and len(levels([r.ref for r in image.runs_of(table)])) >= most
            for j in lane
            for table in j.tables.values()
        )

    def _within_ms(self) -> int:
        settings = self._core.settings
        return settings.backfill_caught_up_ticks * settings.barrier_interval_ms

    # ---- one epoch, step by step

    def _step(self) -> None:
        try:
            now = self._now or self._open()
            if now is None:
                return
            self._advance(now)
            if now.epoch.due == "store":
                self._store(now)
            elif now.epoch.due == "finish":
                self._finish(now)
                fault_point("commit.notified")
        except Fenced:
            raise
        except Abandoned:
            self._close()
        except Exception as error:
            self._failed(as_headrace_error(error))

    def _advance(self, now: UnderWay) -> None:
        """Run the next step of the epoch, if there is any left to run."""
        while (part := now.epoch.current) is not None:
            now.current = part.job
            work = work_of(self._core, now.epoch, part)
            if work is not None:
                run_step(self._core, now, part, work)
                return
            part.finished = True

    def _open(self) -> UnderWay | None:
        core = self._core
        with core.lock:
            lane = self.lane()
        if any(j.failures for j in lane):
            self._resync(lane)
        with core.changed:
            lane = self.lane()
            decision = self.decision(lane) if lane else Decision(0, False)
            if core.stopping or not decision.run:
                return None
            epoch = open_epoch(lane, decision.target)
            self._now = now = UnderWay(epoch, lane, core.clock.monotonic_s())
            for part in epoch.parts:
                pin = core.pins.pin(part.job.upstreams, part.committed or epoch.target)
                now.holds.callback(core.pins.unpin, pin)
                part.job.busy = True
            self._begin(lane, epoch)
        return now

    def _begin(self, lane: list[Job], epoch: GroupEpoch[Job]) -> None:
        core, now_s = self._core, self._core.clock.monotonic_s()
        interval_ms = min(
            option_int(j.options, "checkpoint_interval_ms", core.settings.checkpoint_interval_ms) for j in lane
        )  # fmt: skip
        # Half a tick of slack: a group of n ticks must not miss the n-th one by the width of a hair.
        slack_ms = min(interval_ms, core.settings.barrier_interval_ms) / 2
        for job in lane:
            job.attempt_since_s = now_s
            job.not_before_s = now_s + (interval_ms - slack_ms) / 1000
        for part in epoch.parts:
            if not part.committed:
                part.job.progress = f"reading what its inputs hold at epoch {epoch.target}"
            elif not part.job.created:
                part.job.progress = f"catching up: taking in the changes up to epoch {epoch.target}"

    # ---- commits

    def _store(self, now: UnderWay) -> None:
        """Make the steps up to here durable: a restart goes on after them."""
        core = self._core
        if any(not p.committed for p in now.epoch.parts):
            fault_point("backfill.slice.after")
        with core.committing:
            self._transact(now, plan_partial(now.epoch, core.clock.now_ms()), [])
        note_stored(now.epoch)
        with core.changed:
            self._count(now)
            for job in now.lane:
                job.retry_at_s = 0.0

    def _finish(self, now: UnderWay) -> None:
        """The commit that makes the epoch visible."""
        core, target = self._core, now.epoch.target
        fault_point("commit.acked")
        if any(not p.committed for p in now.epoch.parts):
            fault_point("backfill.done.before")
        fault_point("commit.before")
        with core.committing:
            with core.catalog.reading() as state, core.lock:
                commit = plan_final(core, state, now.lane, now.epoch, core.clock.now_ms(), self._within_ms())
            self._transact(now, commit, self._events(now))
        with core.changed:
            for job in now.lane:
                self._recovered(job, commit)
                job.metrics.epochs += 1
                core.totals.epochs += 1
                job.metrics.last_epoch_ms = round((core.clock.monotonic_s() - now.since_s) * 1000)
                job.row_limit = more_rows(job.row_limit, configured_rows(core, job))
            self._count(now)
        self._record(now)
        self._close()
        for job_id in commit.late:
            self._say_late(core.jobs.get(job_id), target)

    def _transact(self, now: UnderWay, commit: Commit, more: list[Edit]) -> None:
        """Commit and, once it is durable, change what is in memory. The caller holds `committing`."""
        core = self._core
        with core.lock:
            if self._outdated(now):
                raise Abandoned
        try:
            core.catalog.transact([*commit.edits, *more])
            fault_point("commit.after")
        except Fenced:
            raise
        except HeadraceError:
            if not commit.happened(core.catalog.state):
                raise
        with core.changed:
            commit.apply(core)
            core.changed.notify_all()

    def _events(self, now: UnderWay) -> list[Edit]:
        edits: list[Edit] = []
        for job in now.lane:
            if job.failures:
                text = f'job "{job.name}" has recovered after {job.failures} failed attempts'
                edits.append(AddEvent("job_recovered", job.id, text))
        for job, result in now.results:
            if result.row_error_count:
                text = f'job "{job.name}" met {result.row_error_count} rows that could not be understood'
                edits.append(AddEvent("row_errors", job.id, text, repr(result.row_errors[:5])))
        return edits

    def _count(self, now: UnderWay) -> None:
        for job, result in now.results:
            job.metrics.add(result)
            self._core.totals.add(result)
            self._note_times(result)
        now.committed += now.results
        now.results.clear()
        self._core.changed.notify_all()

    def _note_times(self, result: EpochResult) -> None:
        """The next binding of a source raises its watermark by what has been read of it."""
        for source_id, newest_us in result.newest_us.items():
            source = self._core.relations.get(source_id)
            if source is not None:
                source.newest_us = max(newest_us, newest_us if source.newest_us is None else source.newest_us)

    def _record(self, now: UnderWay) -> None:
        """Keep for people what a checkpoint was like."""
        core = self._core
        for part in now.epoch.parts:
            job = part.job
            results = [result for other, result in now.committed if other is job]
            runs = [ref for result in results for ref in result.runs]
            taken: dict[int, int] = {}
            for result in results:
                for relation, rows in result.rows_by_input.items():
                    taken[relation] = taken.get(relation, 0) + rows
            done = Checkpoint(
                group=job.group,
                job_id=job.id,
                epoch=now.epoch.target,
                from_epoch=part.committed,
                at_ms=core.clock.now_ms(),
                duration_ms=job.metrics.last_epoch_ms,
                rows_in=sum(result.rows_in for result in results),
                rows_out=sum(result.rows_out for result in results),
                objects=len({ref.path for ref in runs}),
                bytes=sum(ref.length for ref in runs),
            )
            core.history.committed(done, taken)

    def _recovered(self, job: Job, commit: Commit) -> None:
        job.failures, job.error, job.retry_at_s, job.progress = 0, None, 0.0, ""
        if job.created:
            job.reading = None
        elif not job.joined:
            job.progress = f'catching up with checkpoint group "{job.group}"'

    def _say_late(self, job: Job | None, target: int) -> None:
        """A job that does not catch up: say so; one that was to join a group stays out of it, so as not to delay it."""
        if job is None:
            return
        core = self._core
        text = f'job "{job.name}" falls behind its inputs: after {MAX_ROUNDS} checkpoints it is at epoch {target}'
        with suppress(HeadraceError):
            core.catalog.transact([AddEvent("job_lagging", job.id, text)])
        with core.changed:
            job.rounds = 0
            if not job.created:
                job.error = JobFailed(text, hint="raise its max_rows_per_epoch or parallelism, or leave out its group")
                job.error_since_ms = core.clock.now_ms()
                job.failed_total += 1
                job.progress = text
            core.changed.notify_all()

    def _close(self) -> None:
        """Let go of an epoch: what is not committed of it never happened."""
        now, self._now = self._now, None
        if now is None:
            return
        now.holds.close()
        with self._core.changed:
            for part in now.epoch.parts:
                part.job.busy = False
            self._core.changed.notify_all()

    # ---- failures

    def _resync(self, lane: list[Job]) -> None:
        """Take up a commit of which it was not known whether it had become durable."""
        core = self._core
        with core.committing, core.catalog.reading() as state, core.changed:
            for job in lane:
                record = state.jobs.get(job.id)
                if record is None:
                    continue
                if record.committed_epoch > job.committed:
                    for ref in (r.ref for r in state.runs_of(core.relation(job.id).state_table)):
                        if job.committed < ref.epoch_hi <= record.committed_epoch:
                            core.relation(job.id).changed(ref.epoch_hi, ref.rows)
                    job.committed, job.exact, job.status = record.committed_epoch, record.exact, record.status
                job.position = position_of(state.positions_of(job.id))

    def _failed(self, error: HeadraceError) -> None:
        core, now = self._core, self._now
        with core.lock:
            lane = now.lane if now is not None else self.lane()
            job = (now.current if now is not None else None) or (lane[0] if lane else None)
        outdated = now is not None and self._outdated(now)
        target = now.epoch.target if now is not None else 0
        self._close()
        if core.stopping or outdated or job is None:
            return
        if now is not None and error.sqlstate[:2] in EXPRESSION_ERRORS and self._rewound(now):
            return
        settings = core.settings
        if isinstance(error, LogLost):
            with suppress(HeadraceError):
                self._quarantine(job, error)
            core.check_fence()
        with core.changed:
            news = job.error is None or job.error.message != error.message
            job.error_since_ms = core.clock.now_ms() if job.error is None else job.error_since_ms
            job.error = error
            job.failures += 1
            job.failed_total += 1
            if error.sqlstate in (DiskFull.sqlstate, OutOfBudget.sqlstate):
                part = now.epoch.current if now is not None else None
                allowed = max_rows(core, job) if part is None else step_rows(core, part)
                job.row_limit = fewer_rows(allowed, 0)
            # Whoever wants it to stop somewhere asks again: what has failed there may succeed further on.
            for other in lane:
                other.stops.clear()
            delay_ms = retry_delay_ms(
                job.failures, settings.group_retry_initial_ms, settings.group_retry_max_ms, random.random()
            )
            job.retry_at_s = core.clock.monotonic_s() + delay_ms / 1000
            core.changed.notify_all()
        if news:
            text = f'job "{job.name}" failed at epoch {target}: {error.message}'
            detail = f"SQLSTATE {error.sqlstate}" + (f"; {error.detail}" if error.detail else "")
            with suppress(HeadraceError):
                core.catalog.transact([AddEvent("job_failed", job.id, text, detail[:4000])])
            core.check_fence()

    def _quarantine(self, job: Job, error: HeadraceError) -> None:
        """Stop a job that cannot go on for good; the others of its group do, but for those that read it."""
        core = self._core
        with core.committing:
            with core.changed:
                job.status = "quarantined"
                apart = core.settle(job.group)
                for each in apart:
                    each.version += 1
            records = core.catalog.state.jobs
            edits: list[Edit] = [Put(replace(records[j.id], joined=False)) for j in apart if j is not job]
            edits.append(Put(replace(records[job.id], joined=job.joined, status="quarantined")))
            text = f'materialized view "{job.name}" is quarantined: {error.message}'
            core.catalog.transact([*edits, AddEvent("job_quarantined", job.id, text, error.detail or "")])
        for each in apart:
            self._launch(each)

    def _rewound(self, now: UnderWay) -> bool:
        """Take an epoch whole after a step of it failed: between two steps there are states that never existed."""
        core = self._core
        if not now.stepwise or all(j.whole for j in now.lane):
            return False
        with suppress(HeadraceError), core.committing:
            with core.catalog.reading() as state:
                commit = plan_rewind(state, now.lane)
            core.catalog.transact(commit.edits)
            with core.changed:
                commit.apply(core)
                for job in now.lane:
                    job.whole, job.reading = True, None
                core.changed.notify_all()
            return True
        return False
