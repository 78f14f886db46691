"""Ticks: each allocates an epoch and binds the sources that somebody reads to their newest offsets.

A source is bound from the moment on that something reads it: a job, or a snapshot that names it. Before, nothing of
it is taken in. From its first binding on it keeps what was bound: a view that is created late sees all of it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from headrace.catalog.edits import AddEvent, Edit, EditRejected, Put
from headrace.catalog.records import RemapRecord
from headrace.common.faults import fault_point
from headrace.connectors.base import Admission, Binding, Offsets, Source
from headrace.coordinator.core import Core, Relation, as_headrace_error
from headrace.coordinator.targets import retry_delay_ms
from headrace.coordinator.watermarks import declared, raised
from headrace.errors import Fenced, HeadraceError

POLL_WAIT_S = 2.0
"""Most seconds that a tick waits for sources; one that answers later is bound by a later tick."""


@dataclass
class _Poll:
    """A question to a source that is under way in a thread of its own, so that none holds up the others."""

    relation: Relation
    after: Offsets | None
    done: threading.Event = field(default_factory=threading.Event)
    binding: Binding | None = None
    time_column: str | None = None
    """The column of which the binding's watermark speaks."""
    error: HeadraceError | None = None


@dataclass
class _Reader:
    source: Source | None = None
    poll: _Poll | None = None
    failures: int = 0
    retry_at_s: float = 0.0


class Ticker:
    """Makes ticks, periodically in a thread of its own and on demand. One at a time."""

    def __init__(self, core: Core, look: Callable[[], None] = lambda: None) -> None:
        self._core = core
        self._look = look
        """Called before each periodic tick."""
        self._ticking = threading.Lock()
        self._readers: dict[int, _Reader] = {}
        self.rounds = 0
        """Periodic ticks that are over, whatever came of them."""

    def run(self) -> None:
        """The thread's main function: a tick every interval while there are jobs."""
        core = self._core
        due_s = core.clock.monotonic_s()
        while True:
            with core.changed:
                while not core.stopping:
                    left_s = due_s - core.clock.monotonic_s()
                    if left_s <= 0:
                        break
                    core.changed.wait(left_s)
                if core.stopping:
                    return
                idle = not core.jobs
            due_s = core.clock.monotonic_s() + core.settings.barrier_interval_ms / 1000
            try:
                self.cancel_overdue()
                self._look()
                if idle:
                    core.check_fence()
                else:
                    self.tick()
            except Fenced as error:
                core.fatal(error)
                return
            except HeadraceError:
                pass
            self.rounds += 1

    def tick(self, also: Collection[int] = ()) -> int:
        """Make a tick that binds the sources with readers, and `also` others; returns its epoch.

        A source that fails or does not answer in time is not bound. Raises what the catalog does.
        """
        with self._ticking:
            polls = self._poll(also)
            with self._core.epochs.epoch() as epoch:
                self._bind(epoch, [p for p in polls if p.binding is not None])
            return epoch

    @property
    def lock(self) -> threading.Lock:
        """Held during a tick: objects are not dropped meanwhile."""
        return self._ticking

    def forget(self, source_id: int) -> None:
        """A source is dropped."""
        self._readers.pop(source_id, None)

    def cancel_overdue(self) -> None:
        """Stop attempts that have made no progress for the length of the time-out; they fail, and are retried."""
        core, limit_ms = self._core, self._core.settings.epoch_timeout_ms
        if not limit_ms:
            return
        with core.lock:
            late = core.progress.give_up_idle(limit_ms)
            overdue = [j for j in core.jobs.values() if j.attempt in late]
        for job in overdue:
            if job.attempt is not None and job.runner is not None:
                job.runner.cancel(job.attempt)

    # ---- asking

    def _poll(self, also: Collection[int]) -> list[_Poll]:
        core, now_s = self._core, self._core.clock.monotonic_s()
        with core.lock:
            read = {i for job in core.jobs.values() for i in job.upstreams} | set(also)
            sources = [r for r in core.relations.values() if r.kind == "source" and r.id in read]
        polls = []
        for relation in sources:
            reader = self._readers.setdefault(relation.id, _Reader())
            if reader.poll is None and (reader.retry_at_s <= now_s or relation.id in also):
                reader.poll = self._ask(relation, reader)
            if reader.poll is not None:
                polls.append(reader.poll)
        deadline_s = POLL_WAIT_S
        for poll in polls:
            poll.done.wait(deadline_s)
            if not poll.done.is_set():
                deadline_s = 0.0
        answered = [p for p in polls if p.done.is_set()]
        for poll in answered:
            self._readers[poll.relation.id].poll = None
            self._note(poll)
        return answered

    def _ask(self, relation: Relation, reader: _Reader) -> _Poll:
        newest = self._core.catalog.state.newest_remap(relation.id)
        poll = _Poll(relation, None if newest is None else newest.offsets)

        def ask() -> None:
            try:
                if reader.source is None:
                    reader.source = relation.open()
                after = reader.source.start_offsets() if poll.after is None else poll.after
                limit = Admission(self._core.settings.max_rows_per_epoch)
                poll.time_column = reader.source.time_column
                poll.binding = reader.source.latest_offsets(after, limit, self._core.clock.now_ms())
            except Exception as error:
                poll.error = as_headrace_error(error)
            finally:
                poll.done.set()

        threading.Thread(target=ask, name=f"headrace-source-{relation.id}", daemon=True).start()
        return poll

    def _note(self, poll: _Poll) -> None:
        """Keep what a source said of its state; its readers and its back-off."""
        core, relation, settings = self._core, poll.relation, self._core.settings
        reader = self._readers[relation.id]
        if poll.error is None:
            if relation.error is not None:
                self._event("source_recovered", relation, f'source "{relation.name}" can be read again')
            reader.failures, reader.retry_at_s, relation.error = 0, 0.0, None
            return
        reader.failures += 1
        reader.source = None
        delay_ms = retry_delay_ms(
            reader.failures, settings.group_retry_initial_ms, settings.group_retry_max_ms, random.random()
        )
        reader.retry_at_s = core.clock.monotonic_s() + delay_ms / 1000
        news = relation.error is None or relation.error.message != poll.error.message
        with core.changed:
            if relation.error is None:
                relation.error_since_ms = core.clock.now_ms()
            relation.error = poll.error
            core.changed.notify_all()
        if news:
            self._event("source_failed", relation, f'source "{relation.name}" failed: {poll.error.message}')

    def _event(self, kind: str, relation: Relation, message: str) -> None:
        try:
            self._core.catalog.transact([AddEvent(kind, relation.id, message)])
        except Fenced:
            raise
        except HeadraceError:
            self._core.check_fence()

    # ---- binding

    def _bind(self, epoch: int, polls: list[_Poll]) -> None:
        edits: list[Edit] = []
        bound: list[_Poll] = []
        state = self._core.catalog.state
        for poll in polls:
            binding = poll.binding
            assert binding is not None
            newest = state.newest_remap(poll.relation.id)
            before = None if newest is None else (newest.offsets, newest.watermark_us)
            watermark_us = self._watermark_us(poll, binding, None if newest is None else newest.watermark_us)
            if poll.relation.dropped or before == (binding.offsets, watermark_us):
                continue
            edits.append(Put(RemapRecord(poll.relation.id, epoch, binding.offsets, watermark_us)))
            bound.append(poll)
        if not edits:
            return
        try:
            self._core.catalog.transact(edits)
        except (Fenced, EditRejected):
            raise
        except HeadraceError:
            with self._core.lock:
                for poll in bound:
                    # Should it turn out to be durable, no view has passed it by.
                    poll.relation.changed(epoch)
            if not self._happened(bound, epoch):
                raise
        with self._core.lock:
            for poll in bound:
                assert poll.binding is not None
                poll.relation.changed(epoch, poll.binding.rows)
                poll.relation.bound = True
        fault_point("barrier.bind.after")

    def _watermark_us(self, poll: _Poll, binding: Binding, before: int | None) -> int | None:
        """By what the source says of its offsets, if it can; else by what jobs have read of it."""
        wanted = declared(poll.relation.record)
        if wanted is None:
            return binding.watermark_us
        told = poll.time_column == wanted.column
        return raised(before, binding.watermark_us if told else poll.relation.newest_us, wanted.delay_us)

    def _happened(self, bound: list[_Poll], epoch: int) -> bool:
        state = self._core.catalog.state
        return all(state.remap(p.relation.id, epoch) is not None for p in bound)
