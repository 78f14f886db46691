"""The commit of one group: all requests are applied, what they come to is written, and put into the catalog at once."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

import pyarrow as pa

from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import AdvanceJob, CommitTable, Edit, Put
from headrace.catalog.records import RemapRecord, RunRecord, run_id
from headrace.common.faults import fault_point
from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.decide.watermarks import declared
from headrace.coordinator.run.guard import as_headrace_error
from headrace.coordinator.run.live_state import LiveState, Metrics
from headrace.coordinator.run.runtime import Runtime
from headrace.coordinator.run.storage import Storage
from headrace.coordinator.writes.group import TableGroup
from headrace.coordinator.writes.layout import Key
from headrace.coordinator.writes.requests import GroupContext, Request, WriteResult
from headrace.coordinator.writes.settling import CONTENT_BYTES, Settling
from headrace.coordinator.writes.small_runs import SmallRuns
from headrace.coordinator.writes.table_rows import TableRows
from headrace.errors import Fenced, HeadraceError
from headrace.state.memory import MemoryController
from headrace.state.run import Section, write_run
from headrace.state.schema import RunRef


@dataclass(frozen=True)
class CommitParts:
    """What every group is committed by."""

    live: LiveState
    storage: Storage
    runtime: Runtime
    memory: MemoryController
    totals: Metrics
    """Of all jobs together."""
    tables: TableRows
    small_runs: SmallRuns
    settling: Settling
    compact: Callable[[], None]
    """Called when a table has many runs."""


class GroupCommit:
    """The commit of one group, by who leads. `held` keeps what it reads and writes from vacuum."""

    def __init__(self, parts: CommitParts, held: ExitStack, also: Sequence[Edit] = ()) -> None:
        self._parts = parts
        self._held = held
        self._also = also
        """What the transaction does beside; of one whose requests have all failed there is none."""
        self._tables: dict[int, TableGroup] = {}
        self._unreadable: dict[int, HeadraceError] = {}
        """Why the rows of a table could not be looked up."""
        self._contents: dict[str, str] = {}
        """The bytes of runs that are not forced to the disk, by their ids."""

    def run(self, requests: Sequence[Request]) -> list[tuple[Request, WriteResult]]:
        """Apply all requests, write what they come to, commit it; returns those that went well, with their results.

        The others have been told already. Raises what the commit does.
        """
        self._look_up(requests)
        applied: list[tuple[Request, WriteResult]] = []
        context = GroupContext(self._table, self._parts.tables.history, lambda: self._tables)
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
            self._parts.storage.catalog.transact(self._also)
            epoch = self._parts.live.epochs.complete
        else:
            self._parts.storage.catalog.verify()  # or what was looked at may be what another server has changed since
            epoch = self._parts.live.epochs.complete
        late = sum(result.late for _, result in applied)
        if late:
            with self._parts.live.lock:
                self._parts.totals.late_rows += late
        for _, result in applied:
            result.epoch = epoch
        return applied

    def _require_readable(self, request: Request) -> None:
        for table_id in request.looked_up:
            if table_id in self._unreadable:
                raise self._unreadable[table_id]

    def _table(self, table_id: int) -> TableGroup:
        found = self._tables.get(table_id)
        if found is None:
            tables, root = self._parts.tables, self._parts.storage.root
            relation = tables.table(table_id)
            watermark_us = None
            if declared(relation.record) is not None:
                with self._parts.storage.catalog.reading() as state:  # also what a commit without an answer has come to
                    newest = state.newest_remap(table_id)
                watermark_us = None if newest is None else newest.watermark_us
            found = self._tables[table_id] = TableGroup(
                relation, tables.layout(table_id), tables.pinned(relation, self._held), root, watermark_us, watermark_us
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
        for table_id, distinct in wanted.items():
            try:
                table = self._table(table_id)
            except Fenced:
                raise
            except HeadraceError:
                continue  # whoever asked for it is told when it is applied
            try:
                table.base = self._parts.tables.newest_rows(table_id, table.layout, table.refs, list(distinct))
            except Fenced:
                raise
            except HeadraceError as error:
                self._unreadable[table_id] = error

    # ---- storing

    def _store(self, tables: Sequence[TableGroup], deltas: Mapping[int, pa.RecordBatch]) -> int:
        live, runtime = self._parts.live, self._parts.runtime
        with live.epochs.epoch() as epoch:
            refs: dict[int, list[RunRef]] = {}
            size = sum(deltas[t.relation.id].nbytes for t in tables)
            # What exceeds the whole budget goes to the disk at once: there is no point in waiting for room.
            with self._parts.memory.reserving(size, lambda: runtime.stopping):
                for table in tables:
                    refs[table.relation.id] = self._write(table, deltas[table.relation.id], epoch)
            fault_point("table.commit.before")
            self._commit(tables, deltas, epoch, refs)
            fault_point("table.commit.after")
        if not self._also:  # else nobody waits for it who would read
            with live.changed:
                live.changed.wait_for(lambda: live.epochs.complete >= epoch or runtime.stopping)
        image = self._parts.storage.catalog.image
        if any(image.run_count(t.relation.state_table) >= runtime.settings.compaction_stall_runs for t in tables):
            self._parts.compact()
        return epoch

    def _write(self, table: TableGroup, delta: pa.RecordBatch, epoch: int) -> list[RunRef]:
        storage = self._parts.storage
        refs = [replace(ref, epoch_lo=epoch, epoch_hi=epoch) for ref in table.runs]
        if delta.num_rows:
            section = Section(table.relation.state_table, table.schema, [delta], epoch)
            settling = self._parts.settling
            if delta.nbytes <= CONTENT_BYTES and settling.has_room:
                new, content = self._parts.small_runs.write(table.relation.id, section, epoch, self._held)
                self._contents |= {run_id(ref): settling.held(content) for ref in new}
            else:
                prefix = f"{table.relation.id}/{epoch:016x}-{uuid.uuid4().hex[:12]}"
                self._held.enter_context(storage.pins.writing(prefix))
                new = write_run(storage.root, f"{prefix}.run", [section], fsync=self._parts.runtime.settings.run_fsync)
            refs += new
        return refs

    def _commit(
        self, tables: Sequence[TableGroup], deltas: Mapping[int, pa.RecordBatch], epoch: int,
        refs: Mapping[int, list[RunRef]],
    ) -> None:  # fmt: skip
        live = self._parts.live
        edits: list[Edit] = [*self._also]
        for table in tables:
            edits += _edits(table, epoch, refs[table.relation.id], self._contents, self._parts.runtime.clock.now_ms())
        sure = False
        try:
            self._parts.storage.catalog.transact(edits)
            sure = True
        except Fenced:
            raise
        except BaseException as error:
            with live.lock:
                for table in tables:
                    # Should it turn out to be durable, no view has passed it by.
                    table.relation.changed(epoch)
            if not isinstance(error, Exception) or not _happened(self._parts.storage.catalog, refs):
                raise
            sure = True
        finally:
            self._parts.tables.note(tables, deltas, epoch, refs if sure else None)
        with live.lock:
            for table in tables:
                runs = refs[table.relation.id]
                table.relation.changed(epoch, sum(r.rows for r in runs), sum(r.length for r in runs))


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
