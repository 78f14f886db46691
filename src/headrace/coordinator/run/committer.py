"""Commits the epochs of a lane, in the order in which they were run, while the next one may be running already.

What there is to overlap: a Spark job has uploaded what it wrote when it ends, so an epoch that has been run waits for
one transaction of the catalog, and for telling readers. Spark works on the next epoch meanwhile, over runs that are
addressed by path and that nobody outside of the lane sees (I4). If a commit fails, so have all epochs after it: they
are built on it.

Each epoch keeps those below it that are not committed (`GroupEpoch.before`), and reads their runs by path as far as
the catalog does not have them yet (`runs_of`). Where anything but a commit is missing the lane waits until nothing is
in flight (`machine.may_run_ahead`). docs/design/0005 has the reasons and figures.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import takewhile

from headrace.catalog.edits import AddEvent, Edit
from headrace.common.faults import fault_point
from headrace.connectors.base import RowError
from headrace.connectors.sinks import leaves_out_snapshot
from headrace.coordinator.decide.commit import (
    Commit,
    JobPart,
    handed_runs,
    note_stored,
    plan_bound,
    plan_final,
    plan_partial,
)
from headrace.coordinator.decide.machine import MAX_ROUNDS
from headrace.coordinator.decide.targets import more_rows
from headrace.coordinator.observe.history import Checkpoint, EdgeReads
from headrace.coordinator.run.attempt import EpochInFlight, configured_rows
from headrace.coordinator.run.core import Core, Job, as_headrace_error
from headrace.dataflow.runner import EpochResult
from headrace.errors import Fenced, HeadraceError, JobFailed
from headrace.state.schema import HANDED

Spawn = Callable[[Callable[[], None]], None]
"""Starts something in a thread of its own."""


def spawn(work: Callable[[], None]) -> None:
    """In a thread of this process."""
    threading.Thread(target=work, name="headrace-commit", daemon=True).start()


class EpochAbandoned(Exception):
    """Raised where an epoch is given up without having failed: a job was dropped, or has left its group."""


class Committer:
    """The commits of one lane. `failed` is told of an epoch that could not be committed, with all after it given up."""

    def __init__(self, core: Core, failed: Callable[[EpochInFlight, HeadraceError], None], spawn: Spawn) -> None:
        self._core = core
        self._failed = failed
        self._spawn = spawn
        self._working = False
        self.waiting: list[EpochInFlight] = []
        """Epochs that have been run and are neither committed nor given up, oldest first. The core's lock guards it."""

    def submit(self, now: EpochInFlight) -> None:
        """An epoch has been run: it waits until it is to be committed."""
        with self._core.lock:
            now.run_s = self._core.clock.monotonic_s()
            self.waiting.append(now)

    def commit(self) -> None:
        """Commit all that waits, in the background; at once where only one epoch may be under way."""
        with self._core.lock:
            for now in (now for now in self.waiting if not now.wanted):
                now.wanted = True
                # For how long it was held is no time that it took.
                now.since_s += self._core.clock.monotonic_s() - now.run_s
            if self._working or not self.waiting:
                return
            self._working = True
        if self._core.settings.max_in_flight_epochs > 1:
            try:
                self._spawn(self._work)
                return
            except RuntimeError:
                pass  # The process has no thread left: this one does it.
        self._work()

    def drain(self) -> None:
        """Wait until nothing is left to commit."""
        with self._core.changed:
            self._core.changed.wait_for(lambda: not self.waiting)

    def _work(self) -> None:
        while True:
            with self._core.lock:
                due = list(takewhile(lambda now: now.wanted, self.waiting))
                if not due:
                    self._working = False
                    return
            try:
                self._commit(due)
            except Fenced as error:
                self._core.fatal(error)
            except Exception as error:
                self._forget(error)

    def _forget(self, error: Exception) -> None:
        """Not even giving up went well: nothing of what waited may stay, or the lane would wait for it for ever."""
        with self._core.changed:
            for now in self.waiting:
                now.given_up = True
                with suppress(Exception):
                    now.holds.close()
                self._end(now)
            self._core.changed.notify_all()
        try:
            self._core.guard.note("giving up epochs whose commit had failed", error)
        except Fenced as fenced:
            self._core.fatal(fenced)

    def _commit(self, due: Sequence[EpochInFlight]) -> None:
        try:
            self._finish(due)
            fault_point("commit.notified")
        except EpochAbandoned:
            self._give_up()
        except Fenced:
            self._give_up()
            raise
        except Exception as error:
            failure = as_headrace_error(error)
            self._give_up(lambda: self._failed(due[-1], failure))

    def _give_up(self, told: Callable[[], None] = lambda: None) -> None:
        """All that waits never happened; neither will what is being run on top of it.

        `told` is called before anything else of the lane can begin.
        """
        with self._core.lock:
            given_up = self.waiting
            parts = [p for now in given_up for p in now.epoch.parts]
            attempts = {(p.job.runner, p.job.activity.attempt) for p in parts if p.version == p.job.version}
            for now in given_up:
                now.given_up = True
        for runner, attempt in attempts:
            if runner is not None and attempt is not None:
                with suppress(Exception):
                    runner.cancel(attempt)
        try:
            told()
        finally:
            for now in given_up:
                self.close(now)

    def close(self, now: EpochInFlight) -> None:
        """Let go of an epoch: what is not committed of it never happened."""
        try:
            now.holds.close()
        finally:
            with self._core.changed:
                self._end(now)
                self._core.changed.notify_all()

    def _end(self, now: EpochInFlight) -> None:
        """An epoch is no longer under way. The caller holds the lock."""
        now.before = now.epoch.before = ()
        self.waiting = [other for other in self.waiting if other is not now]
        for part in now.epoch.parts:
            part.job.end_epoch()

    def bind(self, now: EpochInFlight, part: JobPart[Job]) -> None:
        """Make durable which epoch a job that delivers takes in, before it does."""
        core = self._core
        with core.committing:
            commit = plan_bound(part)
            self._transact([now], commit, [])
            with core.changed:
                commit.apply(core.graph)
        fault_point("sink.bind.after")

    def store(self, now: EpochInFlight) -> None:
        """Make the steps of an epoch up to here durable, with none before it: a restart goes on after them."""
        core = self._core
        assert not self.waiting, "what is durable is built on what is durable"
        if any(not p.committed for p in now.epoch.parts):
            fault_point("backfill.slice.after")
        with core.committing:
            commit = plan_partial(now.epoch, core.clock.now_ms())
            self._transact([now], commit, [])
            note_stored(now.epoch)
            with core.changed:
                commit.apply(core.graph)
                self._count(now)
                for job in now.lane:
                    job.retry(0.0)
                core.changed.advanced()

    def _finish(self, due: Sequence[EpochInFlight]) -> None:
        """The commit that makes epochs visible."""
        core, last = self._core, due[-1]
        fault_point("commit.acked")
        if any(not p.committed for p in last.epoch.parts):
            fault_point("backfill.done.before")
        fault_point("commit.before")
        settings = core.settings
        within_ms = settings.backfill_caught_up_ticks * settings.barrier_interval_ms
        with self._handed(due) as transact, core.committing:
            with core.catalog.reading() as state, core.lock:
                if any(now.outdated for now in due):
                    raise EpochAbandoned
                epochs = [now.epoch for now in due]
                commit = plan_final(core.graph, state, last.lane, epochs, core.clock.now_ms(), within_ms)
            self._transact(due, commit, self._events(due), transact)
            # At once: who is told that it is committed finds it counted, and nothing held for it any more.
            with core.changed:
                commit.apply(core.graph)
                for now in due:
                    self._note(now)
                    now.holds.close()
                    self._end(now)
                core.changed.advanced()
        for job_id in commit.late:
            self._say_late(core.graph.jobs.get(job_id), last.epoch.target)

    def _note(self, now: EpochInFlight) -> None:
        """Keep in memory, for decisions and for people, that an epoch is committed. The caller holds the lock."""
        core = self._core
        for job in now.lane:
            if job.trouble.failed_total == now.failures[job.id]:
                self._recovered(job)
            job.metrics.epochs += 1
            core.totals.epochs += 1
            job.metrics.last_epoch_ms = round((core.clock.monotonic_s() - now.since_s) * 1000)
            job.limit(more_rows(job.portion.most_rows, configured_rows(core.settings, job)))
        self._count(now)
        self._record(now)

    @contextmanager
    def _handed(self, due: Sequence[EpochInFlight]) -> Iterator[Callable[[Sequence[Edit]], object]]:
        """What makes edits durable: with the changes that a sink has for its table, where there are any."""
        core, part = self._core, due[-1].epoch.parts[0] if due[-1].epoch.parts else None
        if part is None or HANDED not in part.job.tables:
            yield core.catalog.transact
            return
        assert len(due) == 1 and len(due[0].epoch.parts) == 1, "a sink runs by itself, one epoch after the other"

        def check() -> None:
            if due[0].outdated:
                raise EpochAbandoned

        record = core.graph.relation(part.job.id).record
        with core.catalog.reading() as state:
            runs = handed_runs(state, part)
            pin = core.pins.pin((), 0)
            core.pins.hold(pin, {ref.path for ref in runs})
        try:
            if not runs or (leaves_out_snapshot(record.options) and not part.committed):
                yield core.catalog.transact
                return
            with core.hand_over(record, runs, check) as commit:
                yield commit
        finally:
            core.pins.unpin(pin)

    def _transact(
        self, due: Sequence[EpochInFlight], commit: Commit, more: Sequence[Edit],
        transact: Callable[[Sequence[Edit]], object] | None = None,
    ) -> None:  # fmt: skip
        """Make it durable, unless a job has left the lane. The caller holds `committing`."""
        core = self._core
        with core.lock:
            if any(now.outdated for now in due):
                raise EpochAbandoned
        try:
            (transact or core.catalog.transact)([*commit.edits, *more])
            fault_point("commit.after")
        except Fenced:
            raise
        except HeadraceError:
            if not commit.happened(core.catalog.state):
                raise

    def _events(self, due: Sequence[EpochInFlight]) -> list[AddEvent]:
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
        told = (self._core.sparing.thinned(edit) for edit in edits)
        return [edit for edit in told if edit is not None]

    def _count(self, now: EpochInFlight) -> None:
        for ran in now.results:
            ran.job.metrics.add(ran.result)
            self._core.totals.add(ran.result)
            self._note_times(ran.result)
            errors = ran.result.row_errors
            self._core.history.failed_on(ran.job.id, now.epoch.target, self._core.clock.now_ms(), errors)
        now.committed += now.results
        now.results.clear()

    def _note_times(self, result: EpochResult) -> None:
        """The next binding of a source raises its watermark by what has been read of it."""
        for source_id, newest_us in result.newest_us.items():
            source = self._core.graph.relations.get(source_id)
            if source is not None:
                source.newest_us = max(newest_us, newest_us if source.newest_us is None else source.newest_us)

    def _record(self, now: EpochInFlight) -> None:
        """Keep for people what a checkpoint was like."""
        core = self._core
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
                at_ms=core.clock.now_ms(),
                duration_ms=job.metrics.last_epoch_ms,
                rows_in=sum(ran.result.rows_in for ran in steps),
                rows_out=sum(ran.result.rows_out for ran in steps),
                objects=len({ref.path for ref in runs}),
                bytes=sum(ref.length for ref in runs),
            )
            core.history.committed(done, taken)

    def _recovered(self, job: Job) -> None:
        job.recover()
        job.says("")
        if job.created:
            job.read_all()
        elif not job.joined:
            job.says(f'catching up with checkpoint group "{job.group}"')

    def _say_late(self, job: Job | None, target: int) -> None:
        """A job that does not catch up: say so; one that was to join a group stays out of it, so as not to delay it."""
        if job is None:
            return
        core = self._core
        text = f'job "{job.name}" falls behind its inputs: after {MAX_ROUNDS} checkpoints it is at epoch {target}'
        event = core.sparing.thinned(AddEvent("job_lagging", job.id, text))
        with suppress(HeadraceError):
            core.catalog.transact([] if event is None else [event])
        with core.changed:
            job.count_anew()
            if not job.created:
                error = JobFailed(text, hint="raise its max_rows_per_epoch or parallelism, or leave out its group")
                job.fail(error, core.clock.now_ms(), attempt=False)
                job.says(text)
            core.changed.notify_all()


def _what_failed(result: EpochResult) -> str:
    of_expressions = any(not isinstance(e, RowError) for e in result.row_errors)
    return "rows on which an expression failed" if of_expressions else "rows that could not be understood"
