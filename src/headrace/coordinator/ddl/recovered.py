"""Relations and jobs as the catalog has them, made at a start and on a standby: how far they are, and no plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from headrace.catalog.bindings import moves
from headrace.catalog.contents import PlannedContent, SinkContent
from headrace.catalog.records import JobRecord, ObjectRecord, RemapRecord
from headrace.catalog.state import CatalogState
from headrace.common.columns import arrow_type
from headrace.connectors.base import Source
from headrace.connectors.sinks import delivers
from headrace.connectors.sources import is_whole
from headrace.coordinator.ddl.secrets import Vault
from headrace.coordinator.decide import automatic
from headrace.coordinator.decide.exact import ChangeLog
from headrace.coordinator.decide.job import NO_FACTS, PlanFacts
from headrace.coordinator.decide.membership import Membership
from headrace.coordinator.decide.relation import NEVER
from headrace.coordinator.decide.row_sizes import RowSize
from headrace.coordinator.decide.standing import Standing
from headrace.coordinator.decide.steps import StepPosition
from headrace.coordinator.decide.watermarks import declared
from headrace.coordinator.run.live_state import Job, LiveRelation
from headrace.errors import CorruptObject, HeadraceError
from headrace.plan.tree import WEIGHT
from headrace.state.schema import ROWS, TableSchema


def rows_schema(record: ObjectRecord) -> TableSchema:
    """The layout of a table's rows: its primary key as the key, or else all columns."""
    fields = {c.name: pa.field(c.name, arrow_type(c.type)) for c in record.columns}
    key = record.primary_key or tuple(fields)
    value = tuple(f for name, f in fields.items() if name not in key)
    return TableSchema(key=tuple(fields[name] for name in key), value=value, diffs=WEIGHT)


def in_order(objects: Iterable[ObjectRecord]) -> list[ObjectRecord]:
    """Each after all that it is built on; ids only grow, so that is their order."""
    return sorted(objects, key=lambda o: o.id)


def recovered_job(
    record: ObjectRecord, job_record: JobRecord, tables: dict[str, int], position: StepPosition | None,
    facts: PlanFacts = NO_FACTS,
) -> Job:  # fmt: skip
    """A job as the catalog has it, without a plan."""
    return Job(
        id=record.id,
        name=record.name,
        kind_name=record.kind_name,
        upstreams=record.depends_on if job_record.plan.upstreams is None else job_record.plan.upstreams,
        tables=tables,
        standing=Standing.of(job_record, position),
        membership=Membership.of(job_record),
        options=dict(job_record.options),
        lookups=frozenset(job_record.plan.lookups or ()),
        automatic=automatic.is_automatic(record),
        delivers=_delivers(record),
        facts=facts,
    )


def _delivers(record: ObjectRecord) -> bool:
    return isinstance(record.content, SinkContent) and record.content.into is None and delivers(record.options)


def recovered_relation(record: ObjectRecord, state: CatalogState, vault: Vault | None) -> LiveRelation:
    """A relation as the catalog has it; of a source that is not opened, for want of a vault, it is not known how many
    rows were bound.
    """
    content = record.content
    if content.external:
        remaps = state.all_remaps(record.id)
        changes = ChangeLog((r.epoch, r.epoch) for r in remaps)
        source = None if vault is None else _opened(record, vault)
        rows_bound = {} if source is None else _rows_bound(source, remaps)
        in_order = source is not None and in_order_of_time(record, source)
        known = state.sources.get(record.id)
        return LiveRelation(
            record, changes=changes, rows_by_epoch=rows_bound, bound=bool(remaps), in_order=in_order,
            safe=0 if known is None else known.safe_epoch, whole_from=_whole_from(record, remaps),
        )  # fmt: skip
    if isinstance(content, SinkContent):
        return LiveRelation(record)
    table = next(t for t in state.tables_of(record.id) if t.operator == ROWS)
    # Above the committed epoch are parts of one that is not finished: nobody sees them yet.
    runs = [r.ref for r in state.runs_of(table.id) if r.ref.epoch_lo <= table.committed_epoch]
    changes = ChangeLog((r.epoch_lo, r.epoch_hi) for r in runs)
    if isinstance(content, PlannedContent) and content.watermark_column is not None and table.committed_epoch:
        changes.add(table.committed_epoch)  # its watermark may have risen then, without any row
    rows: dict[int, int] = {}
    for run in runs:
        if run.constant_epoch:
            rows[run.epoch_lo] = rows.get(run.epoch_lo, 0) + run.rows
    size = RowSize().seen(sum(run.rows for run in runs), sum(run.length for run in runs))
    return LiveRelation(record, table.to_table_schema(), table.id, changes, rows, table.safe_epoch, size=size)


def _opened(record: ObjectRecord, vault: Vault) -> Source | None:
    """The source, if it can be opened now."""
    try:
        return vault.open(record)
    except HeadraceError:
        return None


def in_order_of_time(record: ObjectRecord, source: Source) -> bool:
    """Whether a source's rows come in the order of the column that has the watermark."""
    watermark = declared(record)
    return watermark is not None and watermark.column == source.time_column


def _rows_bound(source: Source, remaps: Sequence[RemapRecord]) -> dict[int, int]:
    """Epoch -> rows that were bound at it, as far as the offsets tell."""
    try:
        start = source.start_offsets()
    except HeadraceError:
        return {}
    rows = ((epoch, source.rows_between(before, to)) for epoch, before, to in moves(remaps, start))
    return {epoch: count for epoch, count in rows if count is not None}


def _whole_from(record: ObjectRecord, remaps: Sequence[RemapRecord]) -> int:
    """The first epoch at which a source's content is of one moment, by its bindings, oldest first."""
    found = 0
    for binding in remaps:
        if not is_whole(record.options, binding.offsets):
            found = NEVER
        elif found == NEVER:
            found = binding.epoch
    return found


def disagreement(record: ObjectRecord, job: JobRecord, epochs: Mapping[str, int]) -> CorruptObject | None:
    """What is wrong if the state tables of a job are not all at its own checkpoint: no commit leaves them so."""
    apart = sorted(f"{name} at {epoch}" for name, epoch in epochs.items() if epoch != job.committed_epoch)
    if not apart:
        return None
    return CorruptObject(
        f"the state of {record.in_words} is not of one epoch: it is committed at "
        f"{job.committed_epoch}, but {', '.join(apart)}",
        hint="drop it and create it again; look at the storage of the catalog",
    )
