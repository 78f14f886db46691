"""When a lane may open its next epoch, when it has to wait, and when what it holds is to be committed."""

from __future__ import annotations

import math
from collections.abc import Callable

from headrace.catalog.catalog import Catalog
from headrace.config import Settings
from headrace.coordinator.decide import machine
from headrace.coordinator.decide.group_epoch import ahead_of, dues_after
from headrace.coordinator.decide.machine import MAX_HELD, checkpoint_due, may_join, may_run_ahead, next_epoch, pacing
from headrace.coordinator.decide.membership import Move
from headrace.coordinator.decide.row_sizes import Intake
from headrace.coordinator.decide.targets import Decision
from headrace.coordinator.decide.view_options import Cadence
from headrace.coordinator.decide.view_options import cadence as cadence_of
from headrace.coordinator.run.attempt import max_rows, most_bytes
from headrace.coordinator.run.committer import Committer
from headrace.coordinator.run.lane_failures import refused
from headrace.coordinator.run.live_state import Job, LiveState
from headrace.coordinator.run.runtime import Runtime
from headrace.state.merge import levels

STALL_LOOK_S = 1.0
"""Seconds between two looks whether compaction has caught up with a group that it holds back."""


class Readiness:
    """Asks the decisions on behalf of one lane, with what its committer holds. The caller holds the lock of `live`.

    `compact` is called where the lane waits for compaction; `launch` gives a job's lane a thread.
    """

    def __init__(
        self, live: LiveState, catalog: Catalog, runtime: Runtime, commits: Committer, *, alone: bool,
        compact: Callable[[], None], launch: Callable[[Job], None],
    ) -> None:  # fmt: skip
        self._live = live
        self._catalog = catalog
        self._runtime = runtime
        self._commits = commits
        self._alone = alone
        self._compact = compact
        self._launch = launch

    def idle(self, lane: list[Job]) -> bool:
        """Whether it goes on waiting, though epochs have become complete."""
        return not self._commits.waiting and machine.idle(self._live.graph, lane)

    def held_s(self, lane: list[Job], storing: bool) -> float | None:
        """Seconds until epochs that have been run are to be committed; None if there are none."""
        held = [now for now in self._commits.waiting if not now.wanted]
        if not held:
            return None
        left_s = max(j.pace.commit_after_s for j in lane) - self._runtime.clock.monotonic_s()
        overdue = left_s <= 0 or not self.cadence(lane).holds or any(now.outdated for now in held)
        return 0.0 if storing or checkpoint_due(self._live.graph, lane, len(held), overdue=overdue) else left_s

    def cadence(self, lane: list[Job]) -> Cadence:
        return cadence_of(self._runtime.settings, (j.options for j in pacing(lane)))

    def slack_ms(self, interval_ms: int) -> float:
        """Half a tick: a group of n ticks must not miss the n-th one by the width of a hair."""
        return min(interval_ms, self._runtime.settings.barrier_interval_ms) / 2

    def may_open(self, lane: list[Job]) -> bool:
        """Whether an epoch may begin over those that are not committed yet."""
        waiting = self._commits.waiting
        if any(now.outdated for now in waiting):
            return False
        most = MAX_HELD if self.cadence(lane).holds else self._runtime.settings.max_in_flight_epochs
        return may_run_ahead(self._live.graph, lane, len(waiting), most)

    def let_join(self, lane: list[Job]) -> None:
        """A job by itself that has caught up with its group joins it, where the group has nothing under way."""
        live = self._live
        if not self._alone or self._commits.waiting:
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
        """What the lane would do now."""
        live = self._live
        if any(j.runner is None for j in lane):
            return Decision(0, False)
        asked = [j.stops.asking for j in lane]
        if not self.may_open(lane):
            return Decision(0, False)
        waiting = [now.epoch for now in self._commits.waiting]
        settings = self._runtime.settings
        most = Intake(min(_most_rows(settings, j) for j in lane), min(_most_bytes(settings, j) for j in lane))
        found = next_epoch(live.graph, lane, most, ahead_of(waiting), dues_after(waiting))
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

    def delay_s(self, lane: list[Job], decision: Decision) -> float | None:
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
        image, most = self._catalog.image, self._runtime.settings.compaction_stall_runs
        return any(
            image.run_count(table) >= most and len(levels([r.ref for r in image.runs_of(table)])) >= most
            for j in lane
            for table in j.tables.values()
        )

    def _within_ms(self) -> int:
        settings = self._runtime.settings
        return settings.backfill_caught_up_ticks * settings.barrier_interval_ms


def _most_rows(settings: Settings, job: Job) -> float:
    """Rows that its next epoch may have: any number where that may be what mends the one before."""
    return math.inf if refused(job, job.error) else max_rows(settings, job)


def _most_bytes(settings: Settings, job: Job) -> float:
    return math.inf if refused(job, job.error) else most_bytes(settings, job)
