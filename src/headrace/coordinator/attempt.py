"""One attempt at one epoch of one job: what it reads, and what it commits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from headrace.catalog.edits import AddEvent, AdvanceJob, CommitTable, Edit, Put
from headrace.catalog.records import RunRecord
from headrace.catalog.state import CatalogState
from headrace.connectors.base import Offsets
from headrace.coordinator.core import ROWS, Core, Job
from headrace.coordinator.exact import after_commit
from headrace.coordinator.targets import choose_parallelism
from headrace.dataflow.params import EpochParams, SourceInput, StateInput, TableInput
from headrace.dataflow.runner import EpochResult
from headrace.errors import JobFailed
from headrace.state.memory import task_share_bytes
from headrace.state.schema import RunRef


@dataclass(frozen=True)
class Attempt:
    """What is fixed before an epoch runs."""

    name: str
    committed: int
    target: int
    first_change: int | None

    @property
    def first(self) -> bool:
        """Whether the job has no checkpoint yet."""
        return self.committed == 0


@dataclass(frozen=True)
class _Gathered:
    tables: dict[int, tuple[RunRef, ...]]
    offsets: dict[int, tuple[Offsets | None, Offsets]]
    state: dict[str, StateInput]


def prepare(core: Core, job: Job, attempt: Attempt, pin: int) -> tuple[EpochParams, int]:
    """The parameters of the epoch, and its parallelism; keeps what it reads from vacuum under `pin`.

    Raises `JobFailed` where the log that the job needs is gone, and the errors of sources.
    """
    with core.catalog.reading() as state:
        found = _gather(core, job, attempt, state)
        used = [*found.tables.values(), *(s.refs for s in found.state.values())]
        core.pins.hold(pin, {ref.path for refs in used for ref in refs})
    parallelism = choose_parallelism(estimated_rows(core, job, attempt, found.tables), most_tasks(core, job.options))
    sources = {i: _source_input(core, job, i, *offsets, parallelism) for i, offsets in found.offsets.items()}
    params = EpochParams(
        attempt=attempt.name,
        from_epoch=attempt.committed,
        to_epoch=attempt.target,
        first=attempt.first,
        root=core.root,
        prefix=prefix_of(attempt, job),
        sync=core.settings.run_fsync,
        spool=str(core.settings.spool_location),
        memory_bytes=task_share_bytes(core.budget_bytes(), core.tasks_at_once),
        budget_bytes=core.budget_bytes(),
        tables={i: TableInput(refs) for i, refs in found.tables.items()},
        sources=sources,
        state=found.state,
        progress=core.progress.address,
    )
    return params, parallelism


def prefix_of(attempt: Attempt, job: Job) -> str:
    """The folder for the objects of an attempt."""
    return f"{job.id}/{attempt.target:016x}-{attempt.name}"


def most_tasks(core: Core, options: Mapping[str, str]) -> int:
    """Tasks per operator that a job may use: its option, else the setting, else the number of cores."""
    chosen = options.get("parallelism")
    return int(chosen) if chosen else core.settings.parallelism or os.cpu_count() or 1


def _gather(core: Core, job: Job, attempt: Attempt, state: CatalogState) -> _Gathered:
    tables: dict[int, tuple[RunRef, ...]] = {}
    offsets: dict[int, tuple[Offsets | None, Offsets]] = {}
    for upstream in job.upstreams:
        relation = core.relation(upstream)
        if relation.kind == "source":
            after, to = state.offsets_at(upstream, attempt.committed), state.offsets_at(upstream, attempt.target)
            if to is not None:
                offsets[upstream] = (None if after is None or attempt.first else after.offsets, to.offsets)
            continue
        record = state.state_tables[relation.state_table]
        oldest = attempt.target if attempt.first else attempt.committed
        if oldest < record.safe_epoch:
            raise JobFailed(
                f'job "{job.name}" has lost the log of "{relation.name}"',
                detail=f"it needs the changes after epoch {oldest}, they are kept from {record.safe_epoch} on",
                hint="drop the view and create it again",
            )
        runs = [r.ref for r in state.runs_of(relation.state_table) if r.ref.epoch_lo <= attempt.target]
        tables[upstream] = tuple(r for r in runs if attempt.first or r.epoch_hi > attempt.committed)
    own = {
        name: StateInput(table, tuple(r.ref for r in state.runs_of(table)), state.state_tables[table].watermark)
        for name, table in job.tables.items()
    }  # fmt: skip
    return _Gathered(tables, offsets, own)


def _source_input(
    core: Core, job: Job, source_id: int, after: Offsets | None, to: Offsets, parallelism: int
) -> SourceInput:
    relation = core.relation(source_id)
    source = job.sources.get(source_id)
    if source is None:
        source = job.sources[source_id] = relation.open()
    tasks = source.plan(source.start_offsets() if after is None else after, to, parallelism)
    columns = tuple((c.name, c.type) for c in relation.columns)
    return SourceInput(tuple(tasks), dict(relation.record.options), columns)


def estimated_rows(core: Core, job: Job, attempt: Attempt, tables: Mapping[int, tuple[RunRef, ...]]) -> int | None:
    """About how many rows the epoch takes in; None if an input does not tell."""
    total = 0
    for upstream in job.upstreams:
        if upstream in tables:
            total += sum(r.rows for r in tables[upstream])
            continue
        relation = core.relation(upstream)
        with core.lock:
            changes = relation.changes.in_range(attempt.committed, attempt.target)
            known = [relation.rows_by_epoch.get(low) for low, _ in changes]
        rows = [r for r in known if r is not None]
        if len(rows) < len(known):
            return None
        total += sum(rows)
    return total


def check_result(job: Job, attempt: Attempt, result: EpochResult) -> None:
    """Refuse runs that are not this attempt's: of other tables, other epochs, other folders. Raises `JobFailed`."""
    own = set(job.tables.values())
    prefix = prefix_of(attempt, job) + "/"
    for ref in result.runs:
        in_epoch = ref.epoch_lo == ref.epoch_hi == attempt.target
        if ref.table_id not in own or not in_epoch or not ref.path.startswith(prefix):
            raise JobFailed(f'a task of job "{job.name}" acknowledged the object {ref.path}, which is not of its epoch')


def edits_of(core: Core, job: Job, attempt: Attempt, result: EpochResult, state: CatalogState) -> list[Edit]:
    """The one transaction that makes an epoch visible: runs, versions, the job's progress, events."""
    now_ms, target = core.clock.now_ms(), attempt.target
    edits: list[Edit] = [Put(RunRecord(ref, 0, now_ms)) for ref in result.runs]
    for name, table in job.tables.items():
        edits.append(CommitTable(table, target, None if name == ROWS else target))
    exact = exact_after(core, job, attempt)
    record = state.jobs[job.id]
    if record.status == "creating":
        done = replace(record, status="created", committed_epoch=target, frontier=target, exact=exact)
        kind = "materialized view" if ROWS in job.tables else "sink"
        edits += [Put(done), AddEvent("job_created", job.id, f'{kind} "{job.name}" is created')]
    else:
        edits.append(AdvanceJob(job.id, target, target, exact))
    if job.failures:
        message = f'job "{job.name}" has recovered after {job.failures} failed attempts'
        edits.append(AddEvent("job_recovered", job.id, message))
    if result.row_error_count:
        message = f'job "{job.name}" met {result.row_error_count} rows that could not be understood'
        edits.append(AddEvent("row_errors", job.id, message, repr(result.row_errors[:5])))
    return edits


def exact_after(core: Core, job: Job, attempt: Attempt) -> tuple[tuple[int, int], ...]:
    """The job's exact ranges once the attempt is committed."""
    with core.lock:
        safe = core.relation(job.id).safe
        changed = core.job_frontier(job) + 1 if attempt.committed else attempt.first_change
        return after_commit(job.exact, attempt.committed, changed, attempt.target, safe)
