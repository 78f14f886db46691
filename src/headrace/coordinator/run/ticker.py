"""Ticks: each allocates an epoch and binds the sources that somebody reads to their newest offsets.

A source is bound from the moment on that something reads it: a job, or a snapshot that names it. Before, nothing of
it is taken in. From its first binding on it keeps what was bound: a view that is created late sees all of it.

A shared source is asked for itself and for all of its tables that are read, at once, and bound with them by one
transaction: so at each epoch they are of one moment. It is asked whether it is read or not, for it holds something.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field

from headrace.catalog.contents import SourceContent
from headrace.catalog.edits import AddEvent, Edit, EditRejected, Put
from headrace.catalog.records import ObjectRecord, RemapRecord
from headrace.catalog.state import CatalogState
from headrace.common.faults import fault_point
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.base import (
    DRIFT,
    IDLE,
    MAX_MB,
    RATE,
    Admission,
    Binding,
    FollowingTable,
    Offsets,
    SlotStanding,
    Source,
)
from headrace.connectors.option_reader import OptionReader
from headrace.connectors.sources import holds, is_whole
from headrace.coordinator.ddl.secrets import Vault
from headrace.coordinator.decide.allowance import Allowance
from headrace.coordinator.decide.relation import NEVER
from headrace.coordinator.decide.row_sizes import RowSize
from headrace.coordinator.decide.targets import retry_delay_ms
from headrace.coordinator.decide.watermarks import declared, newest_checkpoints, raised
from headrace.coordinator.observe.progress import ProgressBook
from headrace.coordinator.observe.sparing import Sparing
from headrace.coordinator.run.guard import Guard, as_headrace_error, without_frames
from headrace.coordinator.run.live_state import LiveRelation, LiveState
from headrace.coordinator.run.runtime import Runtime
from headrace.coordinator.run.storage import Storage
from headrace.coordinator.run.telling import Teller
from headrace.errors import Fenced, HeadraceError, SourceError

NAME = "the ticker"
"""Of the thread, for people."""
POLL_WAIT_S = 2.0
"""Most seconds that a tick waits for sources; one that answers later is bound by a later tick."""


class SourceSilent(SourceError):
    """Raised where a source does not answer in time."""


@dataclass
class _Poll:
    """A question to a source that is under way in a thread of its own, so that none holds up the others."""

    relation: LiveRelation
    tables: tuple[LiveRelation, ...]
    """Those of a shared source that are asked for with it."""
    after: Offsets | None
    options: Mapping[str, str]
    """The source's, as they are stored now."""
    since_s: float
    late: bool = False
    """A tick has waited for it in vain: it is taken when it comes, and no other tick waits for it."""
    took_s: float = 0.0
    done: threading.Event = field(default_factory=threading.Event)
    bindings: list[tuple[LiveRelation, Binding]] = field(default_factory=list)
    slot: SlotStanding | None = None
    added: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Columns that tables of a shared source have got where it reads."""
    allowed: Allowance | None = None
    """What the source's rate lets in."""
    unread: bool = False
    """No job takes it in, by whose steps its bytes would be bounded: a query asks for all there is."""
    nothing: bool = False
    """The source is held: it is bound to what is before its first row."""
    time_column: str | None = None
    """The column of which the binding's watermark speaks."""
    error: HeadraceError | None = None

    @property
    def relations(self) -> tuple[LiveRelation, ...]:
        """All that it asks for."""
        return (self.relation, *self.tables)


@dataclass
class _Reader:
    source: Source | None = None
    followers: tuple[LiveRelation, ...] = ()
    """Of a shared source: those that are asked for with it."""
    poll: _Poll | None = None
    slow: bool = False
    """It has answered too late the last time: it is not waited for until it answers in time."""
    failures: int = 0
    retry_at_s: float = 0.0
    record: ObjectRecord | None = None
    """What it was opened by: it is opened again when that has changed."""
    allowance: Allowance | None = None
    """How many rows its rate lets in; None where it has none."""
    unread: bool = False
    """No job reads the source: a query has it asked."""
    held: bool = False
    """It is paused, or its rate is 0: nothing of it is taken in."""
    declined: bool = False
    """The last tick did not ask it: it is held, or its rate lets in nothing more for now."""


class Ticker:
    """Makes ticks, periodically in a thread of its own and on demand. One at a time.

    `lock` is held over each: who makes it alone changes what is known of a source's reader. Others look one up, or
    take one out. What a source answers comes from a thread of its own, into a poll that is read once it is done.
    """

    def __init__(
        self, live: LiveState, storage: Storage, runtime: Runtime, guard: Guard, sparing: Sparing, *,
        vault: Vault, progress: ProgressBook, look: Callable[[], None],
    ) -> None:  # fmt: skip
        self._live = live
        self._storage = storage
        self._runtime = runtime
        self._guard = guard
        self._sparing = sparing
        self._vault = vault
        self._progress = progress
        self._look = look
        """Called before each periodic tick; raises `Fenced` at most."""
        self._ticking = threading.Lock()
        self._readers: dict[int, _Reader] = {}
        self._timed_to: dict[int, int] = {}
        """Relation -> the newest checkpoint of the jobs that tell of its times, as of this tick."""
        self._teller = Teller(vault.open, runtime.clock.monotonic_s)
        self.rounds = 0
        """Periodic ticks that are over, whatever came of them."""

    def run(self) -> None:
        """The thread's main function: a tick every interval while there are jobs."""
        self._guard.forever(NAME, self._loop)

    def _loop(self) -> None:
        live, runtime = self._live, self._runtime
        last_s: float | None = None
        while True:
            with live.changed:
                while not runtime.stopping and last_s is not None:
                    # By the interval as it is now: who changes it wakes this thread.
                    left_s = last_s + runtime.settings.barrier_interval_ms / 1000 - runtime.clock.monotonic_s()
                    if left_s <= 0:
                        break
                    live.changed.doze(left_s)
                if runtime.stopping:
                    return
                idle = not live.graph.jobs and not any(_is_shared(r) for r in live.graph.relations.values())
            last_s = runtime.clock.monotonic_s()
            self._guard.chore("cancelling overdue attempts", self.cancel_overdue)
            self._look()
            self._guard.chore("a tick", self._storage.check_fence if idle else self.tick)
            self.rounds += 1
            self._guard.succeeded(NAME)

    def tick(self, also: Collection[int] = ()) -> int:
        """Make a tick that binds the sources with readers, and `also` others; returns its epoch.

        A source that fails or does not answer in time is not bound. Raises what the catalog does.
        """
        with self._ticking:
            return self._made(also)

    def ask(self, since_s: Mapping[int, float]) -> None:
        """Make a tick that asks these sources; many who want to know the same at once are answered by one.

        None is made if each has been asked after the time that is given, by a tick that was waited for.
        """
        with self._ticking:
            known = self._live.graph.relations
            if any((r := known.get(i)) is not None and (not r.bound or r.told_s <= at) for i, at in since_s.items()):
                self._made(since_s.keys())

    def _made(self, also: Collection[int]) -> int:
        polls = self._poll(also)
        with self._live.epochs.epoch() as epoch:
            self._bind(epoch, polls)
        for poll in polls:  # whoever sees that finds what is bound by it, or the error
            for each in poll.relations:
                each.told_s = poll.since_s
        return epoch

    def answered(self, source_ids: Sequence[int], wait_s: float) -> bool:
        """Whether none of these sources owes an answer, after waiting a while for them. Holds up no tick."""
        polls = [r.poll for r in map(self._reader_of, source_ids) if r is not None and r.poll is not None]
        until_s = time.monotonic() + wait_s
        return all(p.done.wait(max(0.0, until_s - time.monotonic())) for p in polls)

    def owes(self, relation: LiveRelation, since_s: float) -> bool:
        """Whether a source has not answered yet a question what there is that was asked after this time.

        After a tick that was to ask it: one that was not asked, for it is held or slowed down, owes nothing.
        """
        reader = self._reader_of(relation.id)
        declined = reader is not None and reader.poll is None and reader.declined
        return relation.told_s < since_s and not declined

    def slowed(self, source_id: int) -> bool:
        """Whether a rate says how much of a source is taken in, or nothing of it is."""
        reader = self._reader_of(source_id)
        return reader is not None and (reader.held or reader.allowance is not None)

    def _reader_of(self, source_id: int) -> _Reader | None:
        """Of a table of a shared source it is that one's."""
        relation = self._live.graph.relations.get(source_id)
        origin = None if relation is None else _origin(relation)
        return self._readers.get(source_id if origin is None else origin)

    @property
    def lock(self) -> threading.Lock:
        """Held during a tick: objects are not dropped meanwhile."""
        return self._ticking

    def forget(self, source_id: int) -> None:
        """Forgets a source that was dropped."""
        self._readers.pop(source_id, None)
        self._teller.forget(source_id)

    def cancel_overdue(self) -> None:
        """Stop attempts that have made no progress for the length of the time-out; they fail, and are retried."""
        live, limit_ms = self._live, self._runtime.settings.epoch_timeout_ms
        if not limit_ms:
            return
        with live.lock:
            late = self._progress.give_up_idle(limit_ms)
            overdue = [j for j in live.graph.jobs.values() if j.activity.attempt in late]
        for job in overdue:
            if job.activity.attempt is not None and job.runner is not None:
                job.runner.cancel(job.activity.attempt)

    # ---- asking

    def _poll(self, also: Collection[int]) -> list[_Poll]:
        live, now_s = self._live, self._runtime.clock.monotonic_s()
        with live.lock:
            read = {i for job in live.graph.jobs.values() for i in job.upstreams}
            wanted_ids = read | set(also)
            found = [r for r in live.graph.relations.values() if r.external and (r.id in wanted_ids or _is_shared(r))]
        tables: dict[int, list[LiveRelation]] = {}
        for relation in found:
            if (origin := _origin(relation)) is not None:
                tables.setdefault(origin, []).append(relation)
        polls = []
        for relation in (r for r in found if _origin(r) is None):
            reader = self._readers.setdefault(relation.id, _Reader())
            own = tuple(tables.get(relation.id, ()))
            wanted = any(r.id in also for r in (relation, *own))
            due = reader.retry_at_s <= now_s or wanted
            lets_in = self._lets_in(relation, reader, now_s)
            reader.declined = not lets_in
            if reader.held:
                self._hold((relation, *own), reader, lets_in)
            else:
                self._teller.leave(relation.id)
            if reader.poll is None and lets_in and due:
                reader.followers = own
                reader.unread = relation.id not in read and not _is_shared(relation)
                reader.poll = self._ask(relation, reader)
            if reader.poll is not None:
                polls.append(reader.poll)
        self._wait([p for p in polls if not p.late])
        answered = [p for p in polls if p.done.is_set()]
        for poll in answered:
            known = self._readers.get(poll.relation.id)
            if known is not None:  # else it has been dropped meanwhile
                known.poll, known.slow = None, poll.took_s >= POLL_WAIT_S
                self._note(poll, known)
        for poll in polls:
            self._note_late(poll)
        return answered

    def _lets_in(self, relation: LiveRelation, reader: _Reader, now_s: float) -> bool:
        """Whether a source is to be asked now, as it is stored now: it may have been altered."""
        record = self._storage.catalog.state.objects.get(relation.id, relation.record)
        if reader.poll is None and reader.record != record:  # else it is being opened by what it was
            reader.record, reader.source = record, None
        rate = RATE.read(OptionReader(record.options))
        burst_s = max(1.0, self._runtime.settings.barrier_interval_ms / 1000)
        reader.allowance = None if rate is None else Allowance.grown(reader.allowance, rate, now_s, burst_s)
        reader.held = rate == 0 or (isinstance(record.content, SourceContent) and record.content.paused)
        if reader.held:  # what is built on it begins all the same, with nothing
            return not _is_shared(relation) and self._storage.catalog.state.newest_remap(relation.id) is None
        return reader.allowance is None or reader.allowance.rows > 0

    def _hold(self, relations: Sequence[LiveRelation], reader: _Reader, lets_in: bool) -> None:
        """Nobody asks a source that is held, the first of these; it is told how far its readers are all the same."""
        relation, held = relations[0], reader.poll is None and not lets_in
        self._not_looked_at(relations, held=held)
        told = held and not _is_shared(relation) and holds(relation.record.options)
        if told and (taken := self._taken(relation.id)) is not None:
            self._teller.tell(relation.id, reader.record or relation.record, taken)

    def _wait(self, polls: Sequence[_Poll]) -> None:
        """For all of them together: one that has not answered then is not waited for again."""
        until_s = time.monotonic() + POLL_WAIT_S
        for poll in polls:
            poll.late = not poll.done.wait(max(0.0, until_s - time.monotonic()))

    def _note_late(self, poll: _Poll) -> None:
        """A source that owes an answer for long is shown as failing. When it answers all is well again."""
        runtime = self._runtime
        relation, limit_ms = poll.relation, runtime.settings.epoch_timeout_ms
        silent_s = runtime.clock.monotonic_s() - poll.since_s
        if not poll.late or poll.done.is_set() or not limit_ms or silent_s * 1000 < limit_ms:
            return
        if not isinstance(relation.error, SourceSilent):
            self._failing(poll, SourceSilent(f"it has not answered for {silent_s:.0f} s"))

    def _ask(self, relation: LiveRelation, reader: _Reader) -> _Poll:
        newest = self._storage.catalog.state.newest_remap(relation.id)
        after = None if newest is None else newest.offsets
        record = reader.record or relation.record
        poll = _Poll(relation, reader.followers, after, record.options, self._runtime.clock.monotonic_s())
        poll.late, poll.allowed, poll.nothing = reader.slow, reader.allowance, reader.held
        poll.unread, telling = reader.unread, self._teller.telling(relation.id)

        def ask() -> None:
            since_s = time.monotonic()
            try:
                if telling is not None:  # since it was paused: what it is told next is to come later
                    telling.join()
                if reader.source is None:
                    reader.source = self._vault.open(record)
                poll.time_column = reader.source.time_column
                self._answer(poll, reader.source)
            except Exception as error:
                poll.error, poll.bindings = without_frames(as_headrace_error(error)), []
            finally:
                poll.took_s = time.monotonic() - since_s
                poll.done.set()

        try:
            threading.Thread(target=ask, name=f"headrace-source-{relation.id}", daemon=True).start()
        except RuntimeError as error:  # the process has no thread left: the others are asked all the same
            poll.error = as_headrace_error(error)
            poll.done.set()
        return poll

    def _answer(self, poll: _Poll, source: Source) -> None:
        relation = poll.relation
        limit = self._limit(poll, source)
        after = source.start_offsets() if poll.after is None else poll.after
        if poll.nothing:
            poll.bindings = [(relation, Binding(after, 0, False))]
            return
        if _is_shared(relation):
            found = source.latest_together(after, {r.id: self._follower(r) for r in poll.tables}, limit)
            poll.slot, poll.added = found.standing, found.added
            poll.bindings = [(relation, Binding(found.offsets, None, False))]
            poll.bindings += [(r, found.tables[r.id]) for r in poll.tables if r.id in found.tables]
            return
        if holds(relation.record.options) and (taken := self._taken(relation.id)) is not None:
            source.acknowledge(taken)
        binding = source.latest_offsets(after, limit, self._runtime.clock.now_ms())
        poll.bindings = [(relation, binding)]
        if binding.row_bytes and binding.rows:
            with self._live.lock:
                relation.size = relation.size.seen(binding.rows, round(binding.rows * binding.row_bytes))

    def _limit(self, poll: _Poll, source: Source) -> Admission:
        """How much the next binding of a source may take in."""
        settings, relation = self._runtime.settings, poll.relation
        own_mb = MAX_MB.read(OptionReader(poll.options))
        most_bytes = min(settings.max_mb_per_epoch, own_mb or settings.max_mb_per_epoch) << 20
        if not relation.size.bytes and not poll.tables and (told := source.row_bytes) is not None:
            with self._live.lock:
                relation.size = RowSize.told(told)
        # Those of its tables of which something has been read say more of a shared source than the others.
        read = [r for r in poll.tables if r.size.bytes] or [relation]
        rows = Admission(settings.max_rows_per_epoch).rows(None if poll.allowed is None else poll.allowed.rows)
        if poll.unread:
            return Admission(rows, whole=True)
        drift_ms = DRIFT.read(OptionReader(poll.options))
        held = frozenset[str]() if drift_ms is None else relation.times.ahead(drift_ms * 1000)
        row_bytes = max(r.counted_bytes(most_bytes) for r in read)
        return Admission(rows, most_bytes, row_bytes, not read[0].size.bytes, held)

    def _follower(self, relation: LiveRelation) -> FollowingTable:
        newest = self._storage.catalog.state.newest_remap(relation.id)
        after = {} if newest is None else newest.offsets
        key = tuple(c.name for c in relation.columns if not c.nullable)
        names = tuple(c.name for c in relation.columns)
        return FollowingTable(relation.record.options, key, after, self._taken(relation.id), names)

    def _taken(self, source_id: int) -> Offsets | None:
        """Up to where all of a source's readers have durably taken it in; None if one has not begun."""
        live = self._live
        with self._storage.catalog.reading() as state, live.lock:
            reached = [job.committed for job in live.graph.jobs.values() if source_id in job.upstreams]
            least = min(reached, default=0)
            binding = state.offsets_at(source_id, least) if least else None
        return None if binding is None else binding.offsets

    def _note(self, poll: _Poll, reader: _Reader) -> None:
        """Keep what a source said of its state; its readers and its back-off."""
        runtime = self._runtime
        relation, settings = poll.relation, runtime.settings
        if poll.error is None:
            if relation.error is not None:
                self._event("source_recovered", relation, f"{relation.record.in_words} can be read again")
            reader.failures, reader.retry_at_s, relation.slot = 0, 0.0, poll.slot
            if reader.allowance is not None:
                reader.allowance = reader.allowance.spent(sum(binding.rows or 0 for _, binding in poll.bindings))
            for each in poll.relations:
                each.error = None
            for each, binding in poll.bindings:
                each.left, each.added, each.behind = binding.left, binding.added, binding.behind
            for each in poll.tables:
                each.added = poll.added.get(each.id, ())
            return
        reader.failures += 1
        reader.source = None
        delay_ms = retry_delay_ms(
            reader.failures, settings.group_retry_initial_ms, settings.group_retry_max_ms, random.random()
        )
        reader.retry_at_s = runtime.clock.monotonic_s() + delay_ms / 1000
        self._failing(poll, poll.error)

    def _not_looked_at(self, relations: Sequence[LiveRelation], *, held: bool) -> None:
        """Nobody knows by now how much of a source, the first of these, and of its tables is there and not bound.

        Nor, while it is held, whether it could be read.
        """
        with self._live.lock:
            relations[0].slot = None
            for each in relations:
                each.left, each.error = None, None if held else each.error

    def _failing(self, poll: _Poll, error: HeadraceError) -> None:
        """Say that a source, and the tables that are read through it, cannot be asked since it was tried first."""
        live, clock, relation = self._live, self._runtime.clock, poll.relation
        since_ms = clock.now_ms() - round((clock.monotonic_s() - poll.since_s) * 1000)
        news = relation.error is None or relation.error.message != error.message
        with live.changed:
            for each in poll.relations:
                if each.error is None:
                    each.error_since_ms = since_ms
                each.error = error
            self._not_looked_at(poll.relations, held=False)
            live.changed.notify_all()
        if news:
            self._event("source_failed", relation, f"{relation.record.in_words} failed: {error.message}")

    def _event(self, kind: str, relation: LiveRelation, message: str) -> None:
        event = self._sparing.thinned(AddEvent(kind, relation.id, message))
        try:
            self._storage.catalog.transact([] if event is None else [event])
        except Fenced:
            raise
        except HeadraceError:
            self._storage.check_fence()

    # ---- binding

    def _bind(self, epoch: int, polls: list[_Poll]) -> None:
        edits: list[Edit] = []
        bound: list[tuple[LiveRelation, Binding]] = []
        state = self._storage.catalog.state
        with self._live.lock:
            self._timed_to = newest_checkpoints(self._live.graph.jobs.values())
        for poll in polls:
            for relation, binding in poll.bindings:
                newest = state.newest_remap(relation.id)
                before = None if newest is None else (newest.offsets, newest.watermark_us)
                watermark_us = self._watermark_us(poll, binding, None if newest is None else newest.watermark_us)
                if newest is not None:
                    self._settle_whole(relation, newest)
                if relation.dropped or before == (binding.offsets, watermark_us):
                    continue
                edits.append(Put(RemapRecord(relation.id, epoch, binding.offsets, watermark_us)))
                bound.append((relation, binding))
        if not edits:
            return
        try:
            self._storage.catalog.transact(edits)
        except (Fenced, EditRejected):
            raise
        except HeadraceError:
            with self._live.lock:
                for relation, binding in bound:
                    # Should it turn out to be durable, no view has passed it by; should it not, none is whole by it.
                    _note_bound(relation, binding, epoch, None)
            if not self._happened(bound, epoch):
                raise
        with self._live.lock:
            for relation, binding in bound:
                _note_bound(relation, binding, epoch, binding.rows)
                _note_whole(relation, binding.offsets, epoch)
                relation.bound = True
        fault_point("barrier.bind.after")

    def _settle_whole(self, relation: LiveRelation, newest: RemapRecord) -> None:
        """A binding that made a source whole and had no answer turns out to be durable."""
        with self._live.lock:
            _note_whole(relation, newest.offsets, newest.epoch)

    def _watermark_us(self, poll: _Poll, binding: Binding, before: int | None) -> int | None:
        """By what the source says of its offsets, if it can; else by what jobs have read of it."""
        relation, now_s = poll.relation, self._runtime.clock.monotonic_s()
        wanted = declared(relation.record)
        if wanted is None:
            return binding.watermark_us
        if poll.time_column == wanted.column:
            return raised(before, binding.watermark_us, wanted.delay_us)
        idle_ms, state = IDLE.read(OptionReader(poll.options)), self._storage.catalog.state
        with self._live.lock:
            busy = self._busy(state, relation, binding)
            relation.times = relation.times.looked(busy, now_s)
            return raised(before, relation.times.reached_us(idle_ms, now_s), wanted.delay_us)

    def _busy(self, state: CatalogState, relation: LiveRelation, binding: Binding) -> dict[str, bool] | None:
        """Whether anything is left to read of each split that counts apart: not bound, or bound and not read by those
        jobs that tell of times. The caller holds the lock."""
        if binding.apart is None:
            return None
        reached = self._timed_to.get(relation.id, 0)
        read = state.offsets_at(relation.id, reached) if reached else None
        taken = {} if read is None else read.offsets
        return {s: more or taken.get(s) != binding.offsets.get(s) for s, more in binding.apart.items()}

    def _happened(self, bound: list[tuple[LiveRelation, Binding]], epoch: int) -> bool:
        state = self._storage.catalog.state
        return all(state.remap(relation.id, epoch) is not None for relation, _ in bound)


def _is_shared(relation: LiveRelation) -> bool:
    content = relation.record.content
    return isinstance(content, SourceContent) and content.shared


def _origin(relation: LiveRelation) -> int | None:
    """The shared source that a source is one of the tables of."""
    content = relation.record.content
    return content.origin if isinstance(content, SourceContent) else None


def _note_bound(relation: LiveRelation, binding: Binding, epoch: int, rows: int | None) -> None:
    relation.changed(epoch, rows)
    if not is_whole(relation.record.options, binding.offsets):
        relation.whole_from = NEVER


def _note_whole(relation: LiveRelation, offsets: Offsets, epoch: int) -> None:
    """A durable binding may make a source whole that was not."""
    if relation.whole_from == NEVER and is_whole(relation.record.options, offsets):
        relation.whole_from = epoch
