"""A lane's thread: waits for input, runs the steps of an epoch, commits it, retries what fails.

What to do is decided in `machine` and `commit`; here are the thread, the clock, Spark and the catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from headrace.coordinator.decide.graph import ANY_EPOCH
from headrace.coordinator.decide.group_epoch import GroupEpoch, JobPart, open_epoch
from headrace.coordinator.decide.targets import Decision
from headrace.coordinator.decide.together import next_steps
from headrace.coordinator.decide.work import Work
from headrace.coordinator.run.attempt import EpochInFlight
from headrace.coordinator.run.committer import Committer, EpochAbandoned, Spawn, spawn
from headrace.coordinator.run.core import Core
from headrace.coordinator.run.guard import as_headrace_error
from headrace.coordinator.run.lane_failures import Failures
from headrace.coordinator.run.live_state import Job
from headrace.coordinator.run.readiness import Readiness
from headrace.errors import (
    Fenced,
    HeadraceError,
    JobFailed,
    SparkLost,
)


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
        self._retire = retire
        self._commits = Committer(
            core.live, core.storage, core.runtime, core.locks, core.guard, core.accounts, core.hand_over,
            failed=self._commit_failed, spawn=spawn,
        )  # fmt: skip
        self._failures = Failures(
            core.live, core.storage, core.runtime, core.locks, core.application, core.sparing, core.history,
            lane=self.lane, launch=launch,
        )  # fmt: skip
        self._ready = Readiness(
            core.live, core.storage.catalog, core.runtime, self._commits, alone=alone is not None, compact=compact,
            launch=launch,
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
        live = self._live
        while not self._left:
            if self._now is not None and (self._now.outdated or self._held(self._now.lane)):
                self._close()
            self._checkpoint()
            with live.changed:
                lane = self.lane()
                if self._runtime.stopping or not lane:
                    self._leave()
                    return False
                if self._held(lane):
                    live.changed.wait()
                    continue
                if self._now is not None:
                    if self._now.epoch.due != "store" or not self._commits.waiting:
                        return True
                    live.changed.wait()
                    continue
                self._ready.let_join(lane)
                lane = self.lane()
                if not lane:
                    self._leave()
                    return False
                decision = self._ready.decision(lane)
                delay_s = self._ready.delay_s(lane, decision)
                if decision.run and delay_s is not None and delay_s <= 0:
                    return True
                held_s = self._ready.held_s(lane, self._storing)
                if held_s is None or held_s > 0:
                    self._well(lane)
                    wait_s = min((s for s in (delay_s, held_s) if s is not None), default=None)
                    live.changed.sleep(partial(self._ready.idle, lane), wait_s)
        return False

    def _held(self, lane: list[Job]) -> bool:
        """Whether it has to wait for Spark."""
        with self._live.lock:
            return self._application.holds(lane)

    @property
    def _storing(self) -> bool:
        """Whether the next thing to do is to make steps of the epoch durable: then none before it may be held."""
        return self._now is not None and self._now.epoch.due == "store"

    def _checkpoint(self) -> None:
        """Commit the epochs that are held, once that is due."""
        with self._live.lock:
            lane = self.lane()
            held_s = self._ready.held_s(lane, self._storing) if lane else None
            if held_s is None or held_s > 0:
                return
            checkpoint_ms = self._ready.cadence(lane).checkpoint_ms
            for job in lane:
                job.hold_until(
                    self._runtime.clock.monotonic_s() + (checkpoint_ms - self._ready.slack_ms(checkpoint_ms)) / 1000
                )
        self._commits.commit()

    def _close(self) -> None:
        """Let go of the epoch that is being run."""
        now, self._now = self._now, None
        if now is not None:
            self._commits.close(now)

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
            decision = self._ready.decision(lane) if lane else Decision(0, False)
            if runtime.stopping or self._held(lane) or not decision.run:
                return None
            before = tuple(self._commits.waiting)
            epoch = open_epoch(lane, decision.target, [b.epoch for b in before])
            self._now = now = EpochInFlight(epoch, lane, runtime.clock.monotonic_s(), before=before)
            now.failures = {j.id: j.trouble.failed_total for j in lane}
            for part in epoch.parts:
                read = {*part.job.upstreams, *live.graph.bindings_for(part.job)}
                now.holds.callback(storage.pins.unpin, storage.pins.pin(read, part.committed or epoch.target))
                for i in part.job.upstreams if not part.committed else ():
                    if live.graph.is_cut(part.job, i):
                        now.cuts[part.job.id, i] = pin = storage.pins.pin([i], ANY_EPOCH)
                        now.holds.callback(storage.pins.unpin, pin)
                part.job.begin_epoch()
            self._begin(lane, epoch)
        return now

    def _begin(self, lane: list[Job], epoch: GroupEpoch[Job]) -> None:
        now_s, interval_ms = self._runtime.clock.monotonic_s(), self._ready.cadence(lane).barrier_ms
        for job in lane:
            job.begin(now_s, now_s + (interval_ms - self._ready.slack_ms(interval_ms)) / 1000)
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
