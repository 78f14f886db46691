"""Writes to tables: the server process itself writes the rows, each write at an epoch of its own."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

from headrace.catalog.edits import AdvanceJob, CommitTable, Edit, Put
from headrace.catalog.records import RemapRecord, RunRecord, run_id
from headrace.common.faults import fault_point
from headrace.coordinator.changes import Delta, TableChange, plan_change
from headrace.coordinator.core import Core, Relation
from headrace.coordinator.watermarks import declared, in_time, raised
from headrace.errors import Fenced, HeadraceError, UndefinedTable, WrongObjectType
from headrace.state.arrangement import Arrangement
from headrace.state.run import Section, write_run
from headrace.state.schema import RunRef


@dataclass(frozen=True)
class WriteResult:
    """The epoch from which on a write is visible, and what it did."""

    epoch: int
    inserted: int
    deleted: int
    late: int = 0
    """Rows that were not inserted, because the watermark of the table had passed them."""


def write(core: Core, table_id: int, change: TableChange) -> WriteResult:
    """Apply a change to a table; durable, and visible to every later read, on return.

    Raises `WrongObjectType`, `UndefinedTable`, `DiskFull`, `StorageError`; then nothing is written.
    """
    core.check()
    with core.lock:
        table = core.relation(table_id)
    if table.kind != "table" or table.schema is None:
        raise WrongObjectType(f'"{table.name}" is not a table', hint="only tables can be written to")
    with table.writing:
        if table.dropped:
            raise UndefinedTable(f'table "{table.name}" does not exist')
        change, late, watermark_us = _in_time(core, table, change)
        delta = _plan(core, table, change)
        with core.lock:
            core.totals.late_rows += late
        if not delta.rows.num_rows:
            return WriteResult(core.epochs.complete, delta.inserted, delta.deleted, late)
        epoch = _store(core, table, delta, watermark_us)
    with core.changed:
        core.changed.wait_for(lambda: core.epochs.complete >= epoch or core.stopping)
    return WriteResult(epoch, delta.inserted, delta.deleted, late)


def _in_time(core: Core, table: Relation, change: TableChange) -> tuple[TableChange, int, int | None]:
    """The change without rows that are late, how many there were, and the watermark after it."""
    wanted = declared(table.record)
    if wanted is None or change.inserts is None:
        return change, 0, None
    newest = core.catalog.state.newest_remap(table.id)
    before = None if newest is None else newest.watermark_us
    kept, newest_us = in_time(change.inserts, wanted.column, before)
    watermark_us = raised(before, newest_us, wanted.delay_us)
    return replace(change, inserts=kept), change.inserts.num_rows - kept.num_rows, watermark_us


def _plan(core: Core, table: Relation, change: TableChange) -> Delta:
    assert table.schema is not None
    with core.catalog.reading() as state:
        refs = [r.ref for r in state.runs_of(table.state_table)]
    token = core.pins.pin((), 0, {r.path for r in refs})
    try:
        arrangement = Arrangement(table.schema, refs, core.root)
        return plan_change(table.schema, change, arrangement.fetch, unique=bool(table.record.primary_key))
    finally:
        core.pins.unpin(token)


def _store(core: Core, table: Relation, delta: Delta, watermark_us: int | None) -> int:
    assert table.schema is not None
    settings = core.settings
    with core.epochs.epoch() as epoch:
        prefix = f"{table.id}/{epoch:016x}-{uuid.uuid4().hex[:12]}"
        with core.pins.writing(prefix):
            section = Section(table.state_table, table.schema, [delta.rows], epoch)
            # What exceeds the whole budget goes to the disk at once: there is no point in waiting for room.
            with core.memory.reserving(delta.rows.nbytes, lambda: core.stopping):
                refs = write_run(core.root, f"{prefix}.run", [section], fsync=settings.run_fsync)
            fault_point("table.commit.before")
            _commit(core, table, epoch, refs, delta.rows.num_rows, watermark_us)
            fault_point("table.commit.after")
    return epoch


def _commit(
    core: Core, table: Relation, epoch: int, refs: list[RunRef], rows: int, watermark_us: int | None
) -> None:  # fmt: skip
    now_ms = core.clock.now_ms()
    edits: list[Edit] = [Put(RunRecord(ref, 0, now_ms)) for ref in refs]
    edits += [CommitTable(table.state_table, epoch), AdvanceJob(table.id, epoch, epoch)]
    newest = core.catalog.state.newest_remap(table.id)
    if watermark_us is not None and (newest is None or newest.watermark_us != watermark_us):
        edits.append(Put(RemapRecord(table.id, epoch, {}, watermark_us)))
    try:
        core.catalog.transact(edits)
    except Fenced:
        raise
    except HeadraceError:
        with core.lock:
            # Should it turn out to be durable, no view has passed it by.
            table.changed(epoch)
        if not _happened(core, refs):
            raise
    with core.lock:
        table.changed(epoch, rows)


def _happened(core: Core, refs: list[RunRef]) -> bool:
    """Whether a transaction whose outcome is unknown has put these runs into the catalog."""
    return all(run_id(ref) in core.catalog.state.runs for ref in refs)
