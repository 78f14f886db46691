"""What the epochs of lanes are counted as and told by, once they are committed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict

from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import AddEvent
from headrace.connectors.base import RowError
from headrace.coordinator.decide.machine import MAX_ROUNDS
from headrace.coordinator.decide.targets import more_rows
from headrace.coordinator.observe.epoch_history import Checkpoint, EdgeReads, History
from headrace.coordinator.observe.sparing import Sparing
from headrace.coordinator.run.attempt import EpochInFlight, configured_rows
from headrace.coordinator.run.live_state import Job, LiveState, Metrics
from headrace.coordinator.run.runtime import Runtime
from headrace.dataflow.epoch_result import EpochResult
from headrace.errors import HeadraceError, JobFailed


class Accounts:
    """Keeps, for decisions and for people, what committed epochs were like. All lanes share it; `live` guards it."""

    def __init__(
        self, live: LiveState, catalog: Catalog, runtime: Runtime, sparing: Sparing, history: History
    ) -> None:  # fmt: skip
        self._live = live
        self._catalog = catalog
        self._runtime = runtime
        self._sparing = sparing
        self._history = history
        self.totals = Metrics()
        """Of all jobs together, dropped ones included. The lock of `live` guards it."""

    def events(self, due: Sequence[EpochInFlight]) -> list[AddEvent]:
        """What the commit of epochs tells: written together with it."""
        edits: list[AddEvent] = []
        for job in due[0].lane:
            if job.failures and job.trouble.failed_total == due[0].failures[job.id]:
                text = f'job "{job.name}" has recovered after {job.failures} failed attempts'
                edits.append(AddEvent("job_recovered", job.id, text))
        for ran in (ran for now in due for ran in now.results):
            if ran.result.row_error_count:
                text = f'job "{ran.job.name}" met {ran.result.row_error_count} {_what_failed(ran.result)}'
                edits.append(
                    AddEvent("row_errors", ran.job.id, text, repr([asdict(e) for e in ran.result.row_errors[:5]]))
                )
            if ran.result.remark and not ran.job.metrics.remark:
                text = f'sink "{ran.job.name}" has delivered an epoch, but {ran.result.remark}'
                edits.append(AddEvent("sink_remark", ran.job.id, text))
        told = (self._sparing.thinned(edit) for edit in edits)
        return [edit for edit in told if edit is not None]

    def note(self, now: EpochInFlight) -> None:
        """Keep in memory, for decisions and for people, that an epoch is committed. The caller holds the lock."""
        runtime = self._runtime
        for job in now.lane:
            if job.trouble.failed_total == now.failures[job.id]:
                self._recovered(job)
            job.metrics.epochs += 1
            self.totals.epochs += 1
            job.metrics.last_epoch_ms = round((runtime.clock.monotonic_s() - now.since_s) * 1000)
            job.limit(more_rows(job.portion.most_rows, configured_rows(runtime.settings, job)))
        self.count(now)
        self._record(now)

    def count(self, now: EpochInFlight) -> None:
        """Steps of an epoch are durable. The caller holds the lock."""
        for ran in now.results:
            ran.job.metrics.add(ran.result)
            self.totals.add(ran.result)
            self._note_times(ran.result)
            errors = ran.result.row_errors
            self._history.failed_on(ran.job.id, now.epoch.target, self._runtime.clock.now_ms(), errors)
        now.committed += now.results
        now.results.clear()

    def _note_times(self, result: EpochResult) -> None:
        """The next binding of a source raises its watermark by what has been read of it."""
        for source_id, newest_us in result.newest_us.items():
            source = self._live.graph.relations.get(source_id)
            if source is not None:
                source.times = source.times.read(newest_us)

    def _record(self, now: EpochInFlight) -> None:
        """Keep for people what a checkpoint was like."""
        for part in now.epoch.parts:
            job = part.job
            steps = [ran for ran in now.committed if ran.job is job]
            runs = [ref for ran in steps for ref in ran.result.runs]
            taken: defaultdict[int, EdgeReads] = defaultdict(EdgeReads)
            for relation, reads in (item for ran in steps for item in ran.reads.items()):
                taken[relation].add(reads)
            done = Checkpoint(
                group=job.group,
                job_id=job.id,
                epoch=now.epoch.target,
                from_epoch=part.committed,
                at_ms=self._runtime.clock.now_ms(),
                duration_ms=job.metrics.last_epoch_ms,
                rows_in=sum(ran.result.rows_in for ran in steps),
                rows_out=sum(ran.result.rows_out for ran in steps),
                objects=len({ref.path for ref in runs}),
                bytes=sum(ref.length for ref in runs),
            )
            self._history.committed(done, taken)

    def _recovered(self, job: Job) -> None:
        job.recover()
        job.says("")
        if job.created:
            job.read_all()
        elif not job.joined:
            job.says(f'catching up with checkpoint group "{job.group}"')

    def say_late(self, job: Job | None, target: int) -> None:
        """A job that does not catch up: say so; one that was to join a group stays out of it, so as not to delay it."""
        if job is None:
            return
        live = self._live
        text = f'job "{job.name}" falls behind its inputs: after {MAX_ROUNDS} checkpoints it is at epoch {target}'
        event = self._sparing.thinned(AddEvent("job_lagging", job.id, text))
        with suppress(HeadraceError):
            self._catalog.transact([] if event is None else [event])
        with live.changed:
            job.count_anew()
            if not job.created:
                error = JobFailed(text, hint="raise its max_rows_per_epoch or parallelism, or leave out its group")
                job.fail(error, self._runtime.clock.now_ms(), attempt=False)
                job.says(text)
            live.changed.notify_all()


def _what_failed(result: EpochResult) -> str:
    of_expressions = any(not isinstance(e, RowError) for e in result.row_errors)
    return "rows on which an expression failed" if of_expressions else "rows that could not be understood"
