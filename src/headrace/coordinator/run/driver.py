"""A lane's thread: waits for input, runs the steps of an epoch, commits it, retries what fails.

What to do is decided in `machine` and `commit`; here are the thread, the clock, Spark and the catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from headrace.config import Settings
from headrace.coordinator.decide.group_epoch import GroupEpoch, JobPart, ahead_of, dues_after, open_epoch
from headrace.coordinator.decide.machine import (
    MAX_HELD,
    checkpoint_due,
    idle,
    may_join,
    may_run_ahead,
    next_epoch,
    pacing,
)
from headrace.coordinator.decide.membership import Move
from headrace.coordinator.decide.options import Cadence, cadence
from headrace.coordinator.decide.targets import Decision
from headrace.coordinator.decide.together import next_steps
from headrace.coordinator.decide.work import Work
from headrace.coordinator.run.attempt import EpochInFlight, max_rows
from headrace.coordinator.run.committer import Committer, EpochAbandoned, Spawn, spawn
from headrace.coordinator.run.core import Core
from headrace.coordinator.run.guard import as_headrace_error
from headrace.coordinator.run.lane_failures import Failures, refused
from headrace.coordinator.run.live_state import Job
from headrace.errors import (
    Fenced,
    HeadraceError,
    JobFailed,
    SparkLost,
)
from headrace.state.merge import levels

STALL_LOOK_S = 1.0
"""Seconds between two looks whether compaction has caught up with a group that it holds back."""
ANY_ROWS = 1 << 62


class Driver:
    """Runs one lane: the jobs of a group that move in step, or one job that has not joined its group.

    Its own thread alone uses its fields. The thread that commits calls `_commit_failed`, which changes none of them;
    what both use, the epochs that wait for their commit, the committer keeps under the lock of `LiveState`.
    """

    def __init__(
        self, core: Core, group: str, alone: int | None, *, compact: Callable[[], None],
        launch: Callable[[Job], None], retire: Callable[[], None], spawn: Spawn = spawn,
    ) -> None:  # fmt: skip
        self._live = core.live
        self._storage = core.storage
        self._runtime = core.runtime
        self._application = core.application
        self._slots = core.slots
        self._guard = core.guard
        self._attempts = core.attempts
        self._group = group
        self._alone = alone
        self._compact = compact
        self._launch = launch
        self._retire = retire
        self._commits = Committer(
            core.live, core.storage, core.runtime, core.locks, core.guard, core.sparing, core.history, core.totals,
            core.hand_over, failed=self._commit_failed, spawn=spawn,
        )  # fmt: skip
        self._failures = Failures(
            core.live, core.storage, core.runtime, core.locks, core.application, core.sparing, core.history,
            lane=self.lane, launch=launch,
        )  # fmt: skip
        self._now: EpochInFlight | None = None
        """The epoch that is being run."""
        self._left = False
        """The lane is not this thread's any more: it only ends what it has begun."""
        self._fault: HeadraceError | None = None
        """Why the loop was begun again."""

    def run(self) -> None:
        """The thread's main function; returns when there is no job left in the lane, or the coordinator stops."""
        try:
            self._guard.forever(self._title, self._loop, self._broken)
        finally:
            self._close()
            self._leave()

    @property
    def name(self) -> str:
        """The lane's name in messages."""
        return f'of checkpoint group "{self._group}"' if self._alone is None else f"of job {self._alone}"

    @property
    def _title(self) -> str:
        return f"the lane {self.name}"

    def _loop(self) -> None:
        while self._wait():
            if not self._reached():
                continue
            with self._slots.slot(self._give_up) as granted:
                if granted:
                    self._step()
            self._guard.succeeded(self._title)
        self._close()
        self._commits.commit()
        self._commits.drain()

    def _leave(self) -> None:
        """From here on another thread may serve the lane."""
        self._left = True
        self._retire()

    def _broken(self, error: Exception) -> None:
        """The loop itself has failed, not an epoch: its jobs say so until it has got on."""
        live = self._live
        found = JobFailed(f"the lane {self.name} failed, and is begun again: {as_headrace_error(error).message}")
        try:
            self._failures.doubt(self._now)
        finally:
            self._close()
        with live.changed:
            self._fault = found
            for job in [] if self._left else self.lane():
                job.fail(found, job.trouble.began(self._runtime.clock.now_ms()), attempt=False)
            live.changed.notify_all()

    def _well(self, lane: list[Job]) -> None:
        """It has got on after a fault, to where it waits for input. The caller holds the lock."""
        fault, self._fault = self._fault, None
        for job in lane:
            if fault is not None:
                job.without(fault)

    def lane(self) -> list[Job]:
        """The jobs that step together now. The caller holds the lock."""
        if self._alone is None:
            return self._live.graph.lane(self._group)
        job = self._live.graph.jobs.get(self._alone)
        return [] if job is None or job.joined or job.activity.withdrawn or job.group != self._group else [job]

    def _give_up(self) -> bool:
        now = self._now
        return self._runtime.stopping or (now is not None and now.outdated)

    # ---- waiting

    def _wait(self) -> bool:
        """Until there is something to do; False when it is time to stop."""
        application, live = self._application, self._live
        while not self._left:
            if self._now is not None and (self._now.outdated or application.suspended is not None):
                self._close()
            self._checkpoint()
            with live.changed:
                lane = self.lane()
                if self._runtime.stopping or not lane:
                    self._leave()
                    return False
                if application.suspended is not None:
                    live.changed.wait()
                    continue
                if self._now is not None:
                    if self._now.epoch.due != "store" or not self._commits.waiting:
                        return True
                    live.changed.wait()
                    continue
                self._let_join(lane)
                lane = self.lane()
                if not lane:
                    self._leave()
                    return False
                decision = self.decision(lane)
                delay_s = self._delay_s(lane, decision)
                if decision.run and delay_s is not None and delay_s <= 0:
                    return True
                held_s = self._held_s(lane)
                if held_s is None or held_s > 0:
                    self._well(lane)
                    wait_s = min((s for s in (delay_s, held_s) if s is not None), default=None)
                    live.changed.sleep(partial(self._idle, lane), wait_s)
        return False

    def _idle(self, lane: list[Job]) -> bool:
        """Whether it goes on waiting, though epochs have become complete. The caller holds the lock."""
        return not self._commits.waiting and idle(self._live.graph, lane)

    def _checkpoint(self) -> None:
        """Commit the epochs that are held, once that is due."""
        with self._live.lock:
            lane = self.lane()
            held_s = self._held_s(lane) if lane else None
            if held_s is None or held_s > 0:
                return
            checkpoint_ms = self._cadence(lane).checkpoint_ms
            for job in lane:
                job.hold_until(
                    self._runtime.clock.monotonic_s() + (checkpoint_ms - self._slack_ms(checkpoint_ms)) / 1000
                )
        self._commits.commit()

    def _held_s(self, lane: list[Job]) -> float | None:
        """Seconds until epochs that have been run are to be committed; None if there are none. Under the lock."""
        held = [now for now in self._commits.waiting if not now.wanted]
        if not held:
            return None
        left_s = max(j.pace.commit_after_s for j in lane) - self._runtime.clock.monotonic_s()
        overdue = left_s <= 0 or not self._cadence(lane).holds or any(now.outdated for now in held)
        storing = self._now is not None and self._now.epoch.due == "store"
        return 0.0 if storing or checkpoint_due(self._live.graph, lane, len(held), overdue=overdue) else left_s

    def _cadence(self, lane: list[Job]) -> Cadence:
        return cadence(self._runtime.settings, (j.options for j in pacing(lane)))

    def _slack_ms(self, interval_ms: int) -> float:
        """Half a tick: a group of n ticks must not miss the n-th one by the width of a hair."""
        return min(interval_ms, self._runtime.settings.barrier_interval_ms) / 2

    def _may_open(self, lane: list[Job]) -> bool:
        """Whether an epoch may begin over those that are not committed yet. The caller holds the lock."""
        waiting = self._commits.waiting
        if any(now.outdated for now in waiting):
            return False
        most = MAX_HELD if self._cadence(lane).holds else self._runtime.settings.max_in_flight_epochs
        return may_run_ahead(self._live.graph, lane, len(waiting), most)

    def _let_join(self, lane: list[Job]) -> None:
        """A job by itself that has caught up with its group joins it, where the group has nothing under way."""
        live = self._live
        if self._alone is None or self._commits.waiting:
            return
        (job,) = lane
        members = live.graph.lane(job.group)
        if any(j.activity.epochs for j in members) or not may_join(live.graph, job, self._within_ms()):
            if job.creating and job.committed and any(j.failures for j in members):
                job.says(f'waiting for checkpoint group "{job.group}", which is failing')
            return
        job.move(Move.ADMITTED)
        self._launch(job)
        live.changed.notify_all()

    def decision(self, lane: list[Job]) -> Decision:
        """What the lane would do now. The caller holds the lock."""
        live = self._live
        if any(j.runner is None for j in lane):
            return Decision(0, False)
        asked = [j.stops.asking for j in lane]
        if not self._may_open(lane):
            return Decision(0, False)
        waiting = [now.epoch for now in self._commits.waiting]
        limit_rows = min(_most_rows(self._runtime.settings, j) for j in lane)
        found = next_epoch(live.graph, lane, limit_rows, ahead_of(waiting), dues_after(waiting))
        if not found.run:
            self._note_wait(lane, found)
            if asked != [j.stops.asking for j in lane]:
                live.changed.notify_all()
        return found

    def _note_wait(self, lane: list[Job], decision: Decision) -> None:
        """Say what a new job waits for; a source that cannot be read is its failure."""
        job = lane[0]
        if decision.waiting_for is None or job.committed:
            return
        relation = self._live.graph.relations.get(decision.waiting_for)
        if relation is None:
            return
        job.says(f'waiting for "{relation.name}"')
        if relation.error is not None and job.error is not relation.error:
            job.fail(relation.error, relation.error_since_ms)
            self._live.changed.notify_all()

    def _delay_s(self, lane: list[Job], decision: Decision) -> float | None:
        """Seconds until the lane may run: for a retry, for its cadence, or for compaction."""
        if not decision.run:
            return None
        now_s = self._runtime.clock.monotonic_s()
        ahead = ahead_of(now.epoch for now in self._commits.waiting)
        forced = any(j.pace.forced > max(j.committed, ahead.get(j.id, 0)) or j.position is not None for j in lane)
        cadence_s = 0.0 if forced else max(j.pace.not_before_s for j in lane) - now_s
        delay_s = max(max(j.trouble.retry_at_s for j in lane) - now_s, cadence_s)
        if delay_s <= 0 and self._stalled(lane):
            self._compact()
            return STALL_LOOK_S
        return delay_s

    def _stalled(self, lane: list[Job]) -> bool:
        image, most = self._storage.catalog.image, self._runtime.settings.compaction_stall_runs
        return any(
            image.run_count(table) >= most and len(levels([r.ref for r in image.runs_of(table)])) >= most
            for j in lane
            for table in j.tables.values()
        )

    def _close(self) -> None:
        """Let go of the epoch that is being run."""
        now, self._now = self._now, None
        if now is not None:
            self._commits.close(now)

    def _within_ms(self) -> int:
        settings = self._runtime.settings
        return settings.backfill_caught_up_ticks * settings.barrier_interval_ms

    # ---- one epoch, step by step

    def _step(self) -> None:
        try:
            now = self._now or self._open()
            if now is None:
                return
            if now.epoch.due == "step":
                self._advance(now)
            if now.epoch.due == "finish":
                self._now = None
                self._commits.submit(now)
            elif now.epoch.due == "store" and not self._commits.waiting:
                self._commits.store(now)
        except Fenced:
            raise
        except EpochAbandoned:
            self._close()
        except Exception as error:
            self._failed(as_headrace_error(error))

    def _reached(self) -> bool:
        """Whether the targets of sinks that have failed are there again: one that is not takes no slot of others."""
        with self._live.lock:
            failing = [job for job in self.lane() if job.delivers and job.failures]
        try:
            for job in failing:
                self._attempts.reach_target(job)
        except Exception as error:
            self._failed(as_headrace_error(error))
            return False
        return True

    def _advance(self, now: EpochInFlight) -> None:
        """Run what is next of the epoch, if there is anything left to run."""

        def work(part: JobPart[Job]) -> Work | None:
            now.current = part.job
            return self._attempts.work_of(now.epoch, part)

        while now.epoch.current is not None:
            steps = next_steps(now.epoch, work, apart=now.apart)
            if steps:
                self._run(now, steps)
                return

    def _run(self, now: EpochInFlight, steps: Sequence[tuple[JobPart[Job], Work]]) -> None:
        now.current = steps[0][0].job
        for part, _ in steps:
            if part.job.delivers and part.job.position is None:
                self._commits.bind(now, part)
        try:
            self._attempts.run_steps(now, steps)
        except (Fenced, SparkLost):
            raise
        except Exception:
            if len(steps) == 1:
                raise
            now.apart = True  # whoever is to blame will fail by itself

    def _open(self) -> EpochInFlight | None:
        live, runtime, storage = self._live, self._runtime, self._storage
        with live.lock:
            lane = self.lane()
        if any(j.activity.unsure for j in lane):
            self._failures.resync(lane)
        with live.changed:
            lane = self.lane()
            decision = self.decision(lane) if lane else Decision(0, False)
            if runtime.stopping or self._application.suspended is not None or not decision.run:
                return None
            before = tuple(self._commits.waiting)
            epoch = open_epoch(lane, decision.target, [b.epoch for b in before])
            self._now = now = EpochInFlight(epoch, lane, runtime.clock.monotonic_s(), before=before)
            now.failures = {j.id: j.trouble.failed_total for j in lane}
            for part in epoch.parts:
                pin = storage.pins.pin(
                    {*part.job.upstreams, *live.graph.bindings_for(part.job)}, part.committed or epoch.target
                )
                now.holds.callback(storage.pins.unpin, pin)
                part.job.begin_epoch()
            self._begin(lane, epoch)
        return now

    def _begin(self, lane: list[Job], epoch: GroupEpoch[Job]) -> None:
        now_s, interval_ms = self._runtime.clock.monotonic_s(), self._cadence(lane).barrier_ms
        for job in lane:
            job.begin(now_s, now_s + (interval_ms - self._slack_ms(interval_ms)) / 1000)
        for part in epoch.parts:
            if not part.committed:
                part.job.says(f"reading what its inputs hold at epoch {epoch.target}")
            elif not part.job.created:
                part.job.says(f"catching up: taking in the changes up to epoch {epoch.target}")

    # ---- failures

    def _failed(self, error: HeadraceError) -> None:
        """The epoch that was being run is given up; those before it are committed all the same."""
        now = self._now
        outdated = now is not None and now.outdated
        self._failures.doubt(now)
        self._close()
        if not outdated:
            self._failures.note(now, error)

    def _commit_failed(self, now: EpochInFlight, error: HeadraceError) -> None:
        self._failures.doubt(now)
        if not any(p.job.activity.withdrawn or p.version != p.job.version for p in now.epoch.parts):
            self._failures.note(now, error)


def _most_rows(settings: Settings, job: Job) -> int:
    """Rows that its next epoch may have: any number where that may be what mends the one before."""
    return ANY_ROWS if refused(job, job.error) else max_rows(settings, job)
