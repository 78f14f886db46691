"""Commits what is written to tables: whatever waits goes into one group, one run for each table, one transaction.

There is no thread of its own: whoever waits for its request may find itself leading, and commits the next group for
all that are in it (group commit: DeWitt et al., "Implementation Techniques for Main Memory Database Systems", 1984).
Who cannot wait asks for a thread that leads as long as there is anything to do.

Where several clients write, a group waits a fraction of a millisecond (`GATHER_S`) for those that the last one has
just answered; the last of them to come wakes it. Python's lock bounds all of this, so each request costs as little as
possible (`outcome.py` instead of a future with its condition), and a group wakes no thread that it does not concern.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from dataclasses import replace

import pyarrow as pa
from structlog import get_logger

from headrace.catalog.catalog import Catalog
from headrace.catalog.contents import TableContent
from headrace.catalog.edits import AdvanceJob, CommitTable, Edit, Put
from headrace.catalog.records import RemapRecord, RunRecord, run_id
from headrace.common.faults import fault_point
from headrace.coordinator.decide.watermarks import declared
from headrace.coordinator.run.guard import as_headrace_error
from headrace.coordinator.run.live_state import LiveRelation, LiveState, Metrics
from headrace.coordinator.run.runtime import Runtime
from headrace.coordinator.run.storage import Storage
from headrace.coordinator.writes.gates import Gate, Gates
from headrace.coordinator.writes.group import TableGroup
from headrace.coordinator.writes.history import KEYS_OF_CHANGE, ReadSet, WriteHistory
from headrace.coordinator.writes.holds import Holds
from headrace.coordinator.writes.layout import Key, RowLayout
from headrace.coordinator.writes.outcome import Outcome
from headrace.coordinator.writes.requests import (
    GroupContext,
    Part,
    Request,
    TransactionCommit,
    WriteResult,
    serialization_failure,
)
from headrace.coordinator.writes.row_cache import RowCache
from headrace.coordinator.writes.rows import FoundRow
from headrace.coordinator.writes.settling import CONTENT_BYTES, Settling
from headrace.coordinator.writes.small_runs import SmallRuns
from headrace.coordinator.writes.stored import StoredRows, TableVersions
from headrace.errors import (
    Fenced,
    HeadraceError,
    SerializationFailure,
    ShuttingDown,
    UndefinedTable,
    WrongObjectType,
)
from headrace.state.memory import MemoryController
from headrace.state.run import Section, write_run
from headrace.state.schema import RunRef

GROUP_REQUESTS = 1_000
"""Requests that are committed together, at most."""
CHECK_S = 0.2
"""Seconds between two looks whether a writer that waits was cancelled."""
IDLE_S = 5.0
"""Seconds without any request after which the thread that leads for others ends."""
DROPPED_KNOWN = 1_000
"""Dropped tables whose names are remembered."""
GATHER_S = 0.0003
"""Seconds between two looks whether further requests come, where there are several clients."""
GATHERED_AT_MOST = 10
"""Such looks before a group."""
MANY = 4
"""For so many requests that are expected one look may be in vain, while less than three quarters of them are there."""


class Writer:
    """The one way of changes into tables: forms groups, runs and commits them. Thread-safe."""

    def __init__(
        self, live: LiveState, storage: Storage, runtime: Runtime, memory: MemoryController, totals: Metrics,
        compact: Callable[[], None],
    ) -> None:  # fmt: skip
        """`compact` is called when a table has many runs. `totals` are those of all jobs together."""
        self._live = live
        self._storage = storage
        self._runtime = runtime
        self._memory = memory
        self._totals = totals
        self._compact = compact
        self._lock = threading.Lock()
        self._turn = threading.Condition(self._lock)
        """Notified when a group is over, a gate is opened, or the coordinator stops."""
        self._leading = threading.Lock()
        """Held while a group is committed: by one thread at a time."""
        self._queue: list[Request] = []
        self._gates = Gates()
        self._history = WriteHistory()
        self._rows = RowCache()
        self._versions = TableVersions(storage, live.epochs)
        self._stored = StoredRows(storage.root)
        self.settling = Settling(storage, runtime)
        self.small_runs = SmallRuns(storage, runtime)
        self._dropped: dict[int, str] = {}
        """The names of tables that were dropped lately, for those that still want to write to them."""
        self._layouts: dict[int, tuple[LiveRelation, RowLayout]] = {}
        self._thread: threading.Thread | None = None
        self._thread_waits_for = 0
        """How many requests have to be there for that thread to be notified; 0 where it does not wait for any."""
        self._expected = 0
        """Requests that may come: as many as were under way at the end of the last group."""
        self.groups = 0
        self.requests = 0
        """Groups that were committed, and the requests in them, since the start."""

    def recover(self) -> None:
        """Learn when tables have changed last: a view that stands still since lets transactions read at older epochs.

        To be called before anything is written.
        """
        with self._storage.catalog.reading() as state:
            tables = [(o.id, t.committed_epoch) for o in state.objects_of(TableContent) for t in state.tables_of(o.id)]
        with self._lock:
            for table_id, epoch in tables:
                self._history.note(table_id, epoch, None)

    # ---- writing

    def write(self, request: Request, check: Callable[[], None] = lambda: None) -> WriteResult:
        """Commit a request; durable, and visible to every later read, on return.

        `check` is asked now and then while the request waits for its turn, and raises if it was cancelled: then
        nothing is written. Raises what the request does, `DiskFull`, `StorageError`, `ShuttingDown`.
        """
        self._runtime.check()
        with self._lock:
            self._queue.append(request)
        while not request.done.done():
            if self._leading.acquire(blocking=False):
                try:
                    self._lead_once()
                finally:
                    self._leading.release()
                    self._wake()
            if not request.done.done():
                self._await_turn(request, check)
        return request.done.result()

    def submit(self, request: Request) -> Outcome[WriteResult]:
        """The same without waiting: a thread is there for it. The outcome is settled in that thread."""
        self._runtime.check()
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._lead, name="headrace-writer", daemon=True)
                thread.start()  # it comes for the request when the lock is free
                self._thread = thread
            self._queue.append(request)
            if 0 < self._thread_waits_for <= len(self._queue):
                self._thread_waits_for = 0
                self._turn.notify_all()
        return request.done

    def _await_turn(self, request: Request, check: Callable[[], None]) -> None:
        with self._lock:
            if not self._leading.locked() and self._admitted():
                return
            self._turn.wait(CHECK_S)
            if request.done.done():
                return
        try:
            check()
            self._runtime.check()
        except BaseException:
            if self._withdraw(request):
                raise

    def _withdraw(self, request: Request) -> bool:
        """Take a request back, unless it is being committed."""
        with self._lock:
            if request in self._queue:
                self._queue.remove(request)
                return True
            return False

    def cancel(self, request: Request, error: HeadraceError) -> None:
        """Let a request fail that was submitted, unless it is being committed."""
        if self._withdraw(request):
            request.done.set_exception(error)

    def _wake(self) -> None:
        with self._lock:
            self._turn.notify_all()

    def _lead(self) -> None:
        """The thread's main function: commits one group after another, and ends when nothing has come for a while."""
        while not self._runtime.stopping:
            try:
                self._gather()
                with self._leading:
                    self._lead_once()
            except BaseException as error:  # those of that group have been told; all others still wait for this thread
                _log_unexpected(error)
            with self._lock:
                self._turn.notify_all()
                if not self._admitted() and not self._told_in_time(1, IDLE_S) and not self._queue:
                    self._thread = None
                    return
        with self._lock:
            left, self._queue = self._queue, []
            self._thread = None  # whoever comes now gets one that tells it the same
        for request in left:
            request.done.set_exception(ShuttingDown("the server is shutting down"))

    def _told_in_time(self, requests: int, limit_s: float) -> bool:
        """Wait until so many requests are there, for a while; False if the time is over. The caller holds the lock."""
        self._thread_waits_for = requests
        try:
            return self._turn.wait(limit_s)
        finally:
            self._thread_waits_for = 0

    def _gather(self) -> None:
        """Let the clients of the last groups come back before the next one, while they do: larger groups cost less."""
        before, in_vain = 0, 0
        with self._lock:
            for _ in range(GATHERED_AT_MOST):
                there = len(self._queue)
                in_vain = in_vain + 1 if there == before else 0
                patience = self._expected // MANY if there * 4 < self._expected * 3 else 0
                if not there or there >= self._expected or in_vain > patience or self._runtime.stopping:
                    return
                before = there
                self._told_in_time(self._expected, GATHER_S)

    def hand_over(self, table_id: int, parts: Sequence[Part], edits: Sequence[Edit]) -> None:
        """Commit changes of a table and other edits in one transaction: a group by itself, so nobody else fails by it.

        The caller holds the table's gate. Durable on return; raises what `write` does.
        """
        request = TransactionCommit(0, ReadSet(), {table_id: parts})
        try:
            with self._leading, ExitStack() as held:
                self._runtime.check()
                _GroupCommit(self, held, edits).run([request])
        finally:
            self._wake()
        request.done.result()

    # ---- gates and what others need

    @contextmanager
    def gate(self, tables: Collection[int], check: Callable[[], None] = lambda: None) -> Iterator[Gate]:
        """Keep all others from writing to some tables inside the block. What waits for them goes on afterwards."""
        gate = Gate(frozenset(tables))
        while True:
            with self._lock:
                if self._gates.try_close(gate):
                    break
                self._turn.wait(CHECK_S)
            check()
            self._runtime.check()
        try:
            # A group that is being committed has been admitted before the gate was closed.
            with self._leading:
                pass
            yield gate
        finally:
            with self._lock:
                self._gates.open(gate)
                self._turn.notify_all()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Commit nothing inside the block: what waits stays waiting. For DDL, which must keep it short."""
        try:
            with self._leading:
                yield
        finally:
            self._wake()

    def forget(self, table_id: int) -> None:
        """Forgets a table that was dropped."""
        with self._lock:
            self._history.forget(table_id)
            self._rows.forget(table_id)
            known = self._layouts.pop(table_id, None)
            if known is not None:
                self._dropped[table_id] = known[0].name
            while len(self._dropped) > DROPPED_KNOWN:
                del self._dropped[next(iter(self._dropped))]
        self._stored.forget(table_id)
        self.small_runs.forget(table_id)

    def layout(self, table_id: int) -> RowLayout:
        """How a table's rows are laid out. Raises `UndefinedTable`, `WrongObjectType`."""
        return self.layout_of(self.table(table_id))

    def layout_of(self, relation: LiveRelation) -> RowLayout:
        """The same of a table that `table` has found."""
        with self._lock:
            return self._layout(relation)

    def _layout(self, relation: LiveRelation) -> RowLayout:
        known = self._layouts.get(relation.id)
        if known is None or known[0] is not relation:
            assert relation.schema is not None
            known = self._layouts[relation.id] = relation, RowLayout(relation.record, relation.schema)
        return known[1]

    def table(self, table_id: int) -> LiveRelation:
        """The table. Raises `UndefinedTable`, `WrongObjectType`."""
        live = self._live
        with live.lock:
            table = live.graph.relations.get(table_id)
        if table is None:
            name = self._dropped.get(table_id)
            raise UndefinedTable(
                f"relation {table_id} does not exist" if name is None else f'table "{name}" does not exist',
                hint="it was dropped meanwhile",
            )
        if not table.writable or table.schema is None:
            raise WrongObjectType(f'"{table.name}" is not a table', hint="only tables can be written to")
        if table.dropped:
            raise UndefinedTable(f'table "{table.name}" does not exist')
        return table

    def last_change(self, tables: Collection[int]) -> int:
        """The epoch of the last change of any of these tables."""
        with self._lock:
            return max((self._history.last_change(i) for i in tables), default=0)

    def rows_unchanged(
        self, relation: LiveRelation, layout: RowLayout, refs: Sequence[RunRef], keys: Sequence[Key], since: int
    ) -> dict[Key, FoundRow]:
        """The newest rows of these primary keys, which a snapshot of an epoch that is pinned has, too.

        `refs` are the table's runs at that snapshot, or newer ones; also pinned.
        Raises `SerializationFailure` if one of the rows has changed after it.
        """
        table_id = relation.id
        with self._lock:
            found, missing = self._rows.get(table_id, keys)
            if not missing:
                self._require_unchanged(relation, found, since)
                return found
        # As of the snapshot: the catalog knows of a commit a moment before the history does.
        looked_up = self.looked_up(table_id, layout, refs, missing, since)
        found |= looked_up
        with self._lock:
            self._require_unchanged(relation, found, since)
            self._rows.put(table_id, looked_up)
        return found

    def row_now(self, relation: LiveRelation, key: Key) -> tuple[FoundRow, int] | None:
        """The row with a primary key as of the newest complete epoch, and that epoch. Waits for nobody.

        None where that cannot be had at once, or keys are not found as Python objects.
        """
        layout = self.layout(relation.id)
        if not layout.keyed or layout.schema.expires is not None:
            return None
        with ExitStack() as held:
            now = self._versions.hold_now(relation, held)
            if now is None:
                return None
            refs, epoch = now
            try:
                found = self.rows_unchanged(relation, layout, refs, [key], epoch)
            except SerializationFailure:  # a commit that is not complete yet
                found = self.looked_up(relation.id, layout, refs, [key], epoch)
            return found[key], epoch

    def _require_unchanged(self, relation: LiveRelation, found: Mapping[Key, FoundRow], since: int) -> None:
        """Raise `SerializationFailure` if one of these rows has changed after an epoch. The caller holds the lock."""
        if not self._history.changed(relation.id, since):
            return
        for row in found.values():
            if self._history.key_changed(relation.id, row.k, since):
                raise serialization_failure(relation.name)

    def looked_up(
        self, i: int, layout: RowLayout, refs: Sequence[RunRef], keys: Sequence[Key], as_of: int | None = None
    ) -> dict[Key, FoundRow]:
        """The rows of primary keys in a table's runs, which are not older than the epoch."""
        hashes = layout.hash_list(keys)
        with self._lock:
            older = self._history.older(i, refs)
            knows = self._history.knows
            lately = [(key, k) for key, k in zip(keys, hashes) if knows(i, k)]
        if not lately:
            return self._stored.find(i, layout, older, list(zip(keys, hashes)), as_of)
        new = {key for key, _ in lately}
        found = self._stored.find(i, layout, older, [one for one in zip(keys, hashes) if one[0] not in new], as_of)
        return found | self._stored.find(i, layout, list(refs), lately, as_of)

    def merged(self, table_id: int, refs: Iterable[RunRef], into: Iterable[RunRef]) -> None:
        """Runs of a table have been merged into others."""
        with self._lock:
            self._history.merged(table_id, map(run_id, refs), map(run_id, into))

    def pinned(self, relation: LiveRelation, held: ExitStack | Holds) -> tuple[RunRef, ...]:
        """A table's newest runs, kept from vacuum until the stack ends."""
        return self._versions.hold(relation, held)

    def tidy(self) -> None:
        """Let go of pins and open runs that nobody needs at present."""
        self._versions.tidy()
        self._stored.tidy()
        self.small_runs.tidy()

    # ---- one group; the caller leads

    def _admitted(self) -> bool:
        if not self._gates:
            return bool(self._queue)
        return any(self._gates.admits(r.tables, r.gate) for r in self._queue)

    def _take(self) -> list[Request]:
        with self._lock:
            if not self._gates and len(self._queue) <= GROUP_REQUESTS:
                taken, self._queue = self._queue, []
                return taken
            taken = [r for r in self._queue if self._gates.admits(r.tables, r.gate)][:GROUP_REQUESTS]
            if taken:
                chosen = set(map(id, taken))
                self._queue = [r for r in self._queue if id(r) not in chosen]
            return taken

    def _lead_once(self) -> None:
        """Commit one group of what waits, if anything may go on."""
        taken = self._take()
        if not taken:
            return
        try:
            self._expected = 0  # nobody waits for those that fail
            with ExitStack() as held:
                _GroupCommit(self, held).run(taken)
        except BaseException as error:
            if isinstance(error, Fenced):
                self._runtime.fatal(error)
            for request in taken:
                if not request.done.done():
                    request.done.set_exception(_one_more(error))
            if not isinstance(error, Exception):
                raise
            if not isinstance(error, HeadraceError):
                _log_unexpected(error)


class _GroupCommit:
    """The commit of one group."""

    def __init__(self, writer: Writer, held: ExitStack, also: Sequence[Edit] = ()) -> None:
        self._writer = writer
        self._live = writer._live
        self._storage = writer._storage
        self._runtime = writer._runtime
        self._memory = writer._memory
        self._totals = writer._totals
        self._held = held
        self._also = also
        """What the transaction does beside; of one whose requests have all failed there is none."""
        self._tables: dict[int, TableGroup] = {}
        self._unreadable: dict[int, HeadraceError] = {}
        """Why the rows of a table could not be looked up."""
        self._contents: dict[str, str] = {}
        """The bytes of runs that are not forced to the disk, by their ids."""

    def run(self, requests: Sequence[Request]) -> None:
        """Apply all requests, write what they come to, commit it, tell everybody."""
        self._look_up(requests)
        applied: list[tuple[Request, WriteResult]] = []
        context = GroupContext(self._table, self._writer._history, lambda: self._tables)
        for request in requests:
            try:
                if self._unreadable:
                    self._require_readable(request)
                applied.append((request, request.apply(context)))
            except Fenced:
                raise
            except Exception as error:
                request.done.set_exception(as_headrace_error(error))
        deltas = {i: table.delta() for i, table in self._tables.items() if table.changed}
        # What leaves all rows as they are makes no epoch.
        changed = [self._tables[i] for i, delta in deltas.items() if delta.num_rows or self._tables[i].moved]
        if changed:
            epoch = self._store(changed, deltas)
        elif self._also and applied:
            self._storage.catalog.transact(self._also)
            epoch = self._live.epochs.complete
        else:
            self._storage.catalog.verify()  # or what was looked at may be what another server has changed since
            epoch = self._live.epochs.complete
        self._count(applied)
        for request, result in applied:
            result.epoch = epoch
            request.done.set_result(result)

    def _require_readable(self, request: Request) -> None:
        for table_id in request.looked_up:
            if table_id in self._unreadable:
                raise self._unreadable[table_id]

    def _count(self, applied: Sequence[tuple[Request, WriteResult]]) -> None:
        writer = self._writer
        writer.groups += 1
        writer._expected = len(applied) + len(writer._queue)
        writer.requests += len(applied)
        late = sum(result.late for _, result in applied)
        if late:
            with self._live.lock:
                self._totals.late_rows += late

    def _table(self, table_id: int) -> TableGroup:
        found = self._tables.get(table_id)
        if found is None:
            relation = self._writer.table(table_id)
            watermark_us = None
            if declared(relation.record) is not None:
                with self._storage.catalog.reading() as state:  # also what a commit without an answer has come to
                    newest = state.newest_remap(table_id)
                watermark_us = None if newest is None else newest.watermark_us
            found = self._tables[table_id] = TableGroup(
                relation, self._writer.layout(table_id), self._writer.pinned(relation, self._held), self._storage.root,
                watermark_us, watermark_us,
            )  # fmt: skip
        return found

    def _look_up(self, requests: Sequence[Request]) -> None:
        """Find all rows that the requests are going to ask for, those of a table in one go."""
        wanted: dict[int, dict[Key, None]] = {}
        for request in requests:
            for table_id, keys in request.looked_up.items():
                distinct = wanted.setdefault(table_id, {})
                for key in keys:
                    distinct[key] = None
        writer = self._writer
        for table_id, distinct in wanted.items():
            try:
                table = self._table(table_id)
            except Fenced:
                raise
            except HeadraceError:
                continue  # whoever asked for it is told when it is applied
            with writer._lock:
                found, missing = writer._rows.get(table_id, list(distinct))
            try:
                table.base = found | (writer.looked_up(table_id, table.layout, table.refs, missing) if missing else {})
            except Fenced:
                raise
            except HeadraceError as error:
                self._unreadable[table_id] = error

    # ---- storing

    def _store(self, tables: Sequence[TableGroup], deltas: Mapping[int, pa.RecordBatch]) -> int:
        live, runtime = self._live, self._runtime
        with live.epochs.epoch() as epoch:
            refs: dict[int, list[RunRef]] = {}
            size = sum(deltas[t.relation.id].nbytes for t in tables)
            # What exceeds the whole budget goes to the disk at once: there is no point in waiting for room.
            with self._memory.reserving(size, lambda: runtime.stopping):
                for table in tables:
                    refs[table.relation.id] = self._write(table, deltas[table.relation.id], epoch)
            fault_point("table.commit.before")
            self._commit(tables, deltas, epoch, refs)
            fault_point("table.commit.after")
        if not self._also:  # else nobody waits for it who would read
            with live.changed:
                live.changed.wait_for(lambda: live.epochs.complete >= epoch or runtime.stopping)
        image = self._storage.catalog.image
        if any(image.run_count(t.relation.state_table) >= runtime.settings.compaction_stall_runs for t in tables):
            self._writer._compact()
        return epoch

    def _write(self, table: TableGroup, delta: pa.RecordBatch, epoch: int) -> list[RunRef]:
        storage = self._storage
        refs = [replace(ref, epoch_lo=epoch, epoch_hi=epoch) for ref in table.runs]
        if delta.num_rows:
            section = Section(table.relation.state_table, table.schema, [delta], epoch)
            settling = self._writer.settling
            if delta.nbytes <= CONTENT_BYTES and settling.has_room:
                new, content = self._writer.small_runs.write(table.relation.id, section, epoch, self._held)
                self._contents |= {run_id(ref): settling.held(content) for ref in new}
            else:
                prefix = f"{table.relation.id}/{epoch:016x}-{uuid.uuid4().hex[:12]}"
                self._held.enter_context(storage.pins.writing(prefix))
                new = write_run(storage.root, f"{prefix}.run", [section], fsync=self._runtime.settings.run_fsync)
            refs += new
        return refs

    def _commit(
        self, tables: Sequence[TableGroup], deltas: Mapping[int, pa.RecordBatch], epoch: int,
        refs: Mapping[int, list[RunRef]],
    ) -> None:  # fmt: skip
        live = self._live
        edits: list[Edit] = [*self._also]
        for table in tables:
            edits += _edits(table, epoch, refs[table.relation.id], self._contents, self._runtime.clock.now_ms())
        sure = False
        try:
            self._storage.catalog.transact(edits)
            sure = True
        except Fenced:
            raise
        except BaseException as error:
            with live.lock:
                for table in tables:
                    # Should it turn out to be durable, no view has passed it by.
                    table.relation.changed(epoch)
            if not isinstance(error, Exception) or not _happened(self._storage.catalog, refs):
                raise
            sure = True
        finally:
            self._note(tables, deltas, epoch, refs if sure else None)
        with live.lock:
            for table in tables:
                table.relation.changed(epoch, sum(r.rows for r in refs[table.relation.id]))

    def _note(
        self, tables: Sequence[TableGroup], deltas: Mapping[int, pa.RecordBatch], epoch: int,
        refs: Mapping[int, list[RunRef]] | None,
    ) -> None:  # fmt: skip
        """Remember what has changed: first of all in the history, by which those that look into the cache check it.

        `refs` are the runs of the change, if it is known to be durable.
        """
        writer = self._writer
        for table in tables:
            i, delta = table.relation.id, deltas[table.relation.id]
            with writer._lock:
                if refs is None:
                    writer._history.note(i, epoch, None)
                else:
                    writer._history.note(i, epoch, table.hashes(delta), map(run_id, refs[i]))
                self._refresh_cache(table, delta, refs is not None)

    def _refresh_cache(self, table: TableGroup, delta: pa.RecordBatch, sure: bool) -> None:
        cache, i = self._writer._rows, table.relation.id
        rows = table.newest_rows() if sure else None
        if rows is not None:
            cache.put(i, rows)
        elif sure and not table.runs and table.layout.keyed and delta.num_rows <= KEYS_OF_CHANGE:
            cache.drop(i, table.layout.keys(delta))
        else:
            cache.forget(i)


def _log_unexpected(error: BaseException) -> None:
    with suppress(Exception):  # where it goes may be full, or gone
        get_logger("headrace").error("a group commit failed unexpectedly", exc_info=error)


def _one_more(error: BaseException) -> BaseException:
    """The same once more: whoever is told adds where in its statement it happened."""
    try:
        return copy(error)
    except Exception:  # not every exception can be made of its arguments alone
        return as_headrace_error(error)


def _edits(
    table: TableGroup, epoch: int, refs: Sequence[RunRef], contents: Mapping[str, str], now_ms: int
) -> list[Edit]:  # fmt: skip
    relation = table.relation
    edits: list[Edit] = [Put(RunRecord(ref, 0, now_ms, contents.get(run_id(ref)))) for ref in refs]
    edits += [CommitTable(relation.state_table, epoch), AdvanceJob(relation.id, epoch, epoch)]
    if table.watermark_us is not None and table.watermark_us != table.watermark_before_us:
        edits.append(Put(RemapRecord(relation.id, epoch, {}, table.watermark_us)))
    return edits


def _happened(catalog: Catalog, refs: Mapping[int, Sequence[RunRef]]) -> bool:
    """Whether a transaction whose outcome is unknown has put these runs into the catalog."""
    with catalog.reading() as state:
        return all(run_id(ref) in state.runs for of in refs.values() for ref in of)
