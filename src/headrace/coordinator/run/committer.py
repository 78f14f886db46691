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
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import takewhile
from typing import Protocol

from headrace.catalog.edits import Edit
from headrace.catalog.records import ObjectRecord
from headrace.common.faults import fault_point
from headrace.connectors.sinks import leaves_out_snapshot
from headrace.coordinator.decide.commit import Commit, handed_runs, plan_bound, plan_final, plan_partial
from headrace.coordinator.decide.group_epoch import JobPart, note_stored
from headrace.coordinator.decide.steps import InputProgress
from headrace.coordinator.run.accounts import Accounts
from headrace.coordinator.run.attempt import EpochInFlight
from headrace.coordinator.run.guard import Guard, as_headrace_error
from headrace.coordinator.run.live_state import Job, LiveState
from headrace.coordinator.run.locks import Locks
from headrace.coordinator.run.runtime import Runtime
from headrace.coordinator.run.storage import Storage
from headrace.errors import Fenced, HeadraceError
from headrace.state.schema import HANDED, RunRef

Spawn = Callable[[Callable[[], None]], None]
"""Starts something in a thread of its own."""


def spawn(work: Callable[[], None]) -> None:
    """In a thread of this process."""
    threading.Thread(target=work, name="headrace-commit", daemon=True).start()


class HandOver(Protocol):
    """See `Handing.prepared`."""

    def __call__(
        self, sink: ObjectRecord, runs: Sequence[RunRef], check: Callable[[], None]
    ) -> AbstractContextManager[Callable[[Sequence[Edit]], None]]: ...


class EpochAbandoned(Exception):
    """Raised where an epoch is given up without having failed: a job was dropped, or has left its group."""


class Committer:
    """The commits of one lane. `failed` is told of an epoch that could not be committed, with all after it given up."""

    def __init__(
        self, live: LiveState, storage: Storage, runtime: Runtime, locks: Locks, guard: Guard, accounts: Accounts,
        hand_over: HandOver, *,
        failed: Callable[[EpochInFlight, HeadraceError], None], spawn: Spawn,
    ) -> None:  # fmt: skip
        """`hand_over` is how what sinks have for tables gets there."""
        self._live = live
        self._storage = storage
        self._runtime = runtime
        self._locks = locks
        self._guard = guard
        self._accounts = accounts
        self._hand_over = hand_over
        self._failed = failed
        self._spawn = spawn
        self._working = False
        self.waiting: list[EpochInFlight] = []
        """Epochs that have been run and are neither committed nor given up, oldest first.

        The lock of `live` guards it.
        """

    def submit(self, now: EpochInFlight) -> None:
        """An epoch has been run: it waits until it is to be committed."""
        with self._live.lock:
            now.run_s = self._runtime.clock.monotonic_s()
            self.waiting.append(now)

    def commit(self) -> None:
        """Commit all that waits, in the background; at once where only one epoch may be under way."""
        with self._live.lock:
            for now in (now for now in self.waiting if not now.wanted):
                now.wanted = True
                # For how long it was held is no time that it took.
                now.since_s += self._runtime.clock.monotonic_s() - now.run_s
            if self._working or not self.waiting:
                return
            self._working = True
        if self._runtime.settings.max_in_flight_epochs > 1:
            try:
                self._spawn(self._work)
                return
            except RuntimeError:
                pass  # The process has no thread left: this one does it.
        self._work()

    def drain(self) -> None:
        """Wait until nothing is left to commit."""
        with self._live.changed:
            self._live.changed.wait_for(lambda: not self.waiting)

    def _work(self) -> None:
        while True:
            with self._live.lock:
                due = list(takewhile(lambda now: now.wanted, self.waiting))
                if not due:
                    self._working = False
                    return
            try:
                self._commit(due)
            except Fenced as error:
                self._runtime.fatal(error)
            except Exception as error:
                self._forget(error)

    def _forget(self, error: Exception) -> None:
        """Not even giving up went well: nothing of what waited may stay, or the lane would wait for it for ever."""
        with self._live.changed:
            for now in self.waiting:
                now.given_up = True
                with suppress(Exception):
                    now.holds.close()
                self._end(now)
            self._live.changed.notify_all()
        try:
            self._guard.note("giving up epochs whose commit had failed", error)
        except Fenced as fenced:
            self._runtime.fatal(fenced)

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
        with self._live.lock:
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
            with self._live.changed:
                self._end(now)
                self._live.changed.notify_all()

    def _end(self, now: EpochInFlight) -> None:
        """An epoch is no longer under way. The caller holds the lock."""
        now.before = now.epoch.before = ()
        self.waiting = [other for other in self.waiting if other is not now]
        for part in now.epoch.parts:
            part.job.end_epoch()

    def bind(self, now: EpochInFlight, part: JobPart[Job]) -> None:
        """Make durable which epoch a job that delivers takes in, before it does."""
        live = self._live
        with self._locks.committing:
            commit = plan_bound(part)
            self._transact([now], commit, [])
            with live.changed:
                commit.apply(live.graph)
        fault_point("sink.bind.after")

    def store(self, now: EpochInFlight) -> None:
        """Make the steps of an epoch up to here durable, with none before it: a restart goes on after them."""
        live = self._live
        assert not self.waiting, "what is durable is built on what is durable"
        if any(not p.committed for p in now.epoch.parts):
            fault_point("backfill.slice.after")
        with self._locks.committing:
            commit = plan_partial(now.epoch, self._runtime.clock.now_ms())
            self._transact([now], commit, [])
            note_stored(now.epoch)
            with live.changed:
                commit.apply(live.graph)
                self._accounts.count(now)
                for job in now.lane:
                    job.retry(0.0)
                live.changed.advanced()
        positions = {part.job.id: part.position for part in now.epoch.parts}
        for (job_id, source_id), pin in now.cuts.items():
            if positions[job_id].of(source_id) != InputProgress():
                self._storage.pins.unpin(pin)

    def _finish(self, due: Sequence[EpochInFlight]) -> None:
        """The commit that makes epochs visible."""
        runtime, live, last = self._runtime, self._live, due[-1]
        fault_point("commit.acked")
        if any(not p.committed for p in last.epoch.parts):
            fault_point("backfill.done.before")
        fault_point("commit.before")
        settings = runtime.settings
        within_ms = settings.backfill_caught_up_ticks * settings.barrier_interval_ms
        with self._handed(due) as transact, self._locks.committing:
            with self._storage.catalog.reading() as state, live.lock:
                if any(now.outdated for now in due):
                    raise EpochAbandoned
                epochs = [now.epoch for now in due]
                commit = plan_final(live.graph, state, last.lane, epochs, runtime.clock.now_ms(), within_ms)
            self._transact(due, commit, self._accounts.events(due), transact)
            # At once: who is told that it is committed finds it counted, and nothing held for it any more.
            with live.changed:
                commit.apply(live.graph)
                for now in due:
                    self._accounts.note(now)
                    now.holds.close()
                    self._end(now)
                live.changed.advanced()
        for job_id in commit.late:
            self._accounts.say_late(live.graph.jobs.get(job_id), last.epoch.target)

    @contextmanager
    def _handed(self, due: Sequence[EpochInFlight]) -> Iterator[Callable[[Sequence[Edit]], object]]:
        """What makes edits durable: with the changes that a sink has for its table, where there are any."""
        storage, part = self._storage, due[-1].epoch.parts[0] if due[-1].epoch.parts else None
        if part is None or HANDED not in part.job.tables:
            yield storage.catalog.transact
            return
        assert len(due) == 1 and len(due[0].epoch.parts) == 1, "a sink runs by itself, one epoch after the other"

        def check() -> None:
            if due[0].outdated:
                raise EpochAbandoned

        record = self._live.graph.relation(part.job.id).record
        with storage.catalog.reading() as state:
            runs = handed_runs(state, part)
            pin = storage.pins.pin((), 0)
            storage.pins.hold(pin, {ref.path for ref in runs})
        try:
            if not runs or (leaves_out_snapshot(record.options) and not part.committed):
                yield storage.catalog.transact
                return
            with self._hand_over(record, runs, check) as commit:
                yield commit
        finally:
            storage.pins.unpin(pin)

    def _transact(
        self, due: Sequence[EpochInFlight], commit: Commit, more: Sequence[Edit],
        transact: Callable[[Sequence[Edit]], object] | None = None,
    ) -> None:  # fmt: skip
        """Make it durable, unless a job has left the lane. The caller holds `committing`."""
        storage = self._storage
        with self._live.lock:
            if any(now.outdated for now in due):
                raise EpochAbandoned
        try:
            (transact or storage.catalog.transact)([*commit.edits, *more])
            fault_point("commit.after")
        except Fenced:
            raise
        except HeadraceError:
            if not commit.happened(storage.catalog.state):
                raise
