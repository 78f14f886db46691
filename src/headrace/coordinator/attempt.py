"""One step of a job as Spark runs it: its parameters, the run itself, and what may come back."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from headrace.catalog.state import CatalogState
from headrace.common.faults import fault_point
from headrace.connectors.base import Offsets, Source
from headrace.coordinator.commit import GroupEpoch, Part, Work, lookup_refs, next_work, note_step, source_rests
from headrace.coordinator.core import Core, Job, Progress
from headrace.coordinator.history import EdgeReads
from headrace.coordinator.targets import choose_parallelism
from headrace.coordinator.watermarks import mark_at
from headrace.dataflow.params import EpochParams, ReadPart, SourceInput, StateInput, TableInput
from headrace.dataflow.runner import EpochResult
from headrace.errors import JobFailed
from headrace.state.memory import task_share_bytes


@dataclass(frozen=True)
class Ran:
    """A step that has been run."""

    job: Job
    result: EpochResult
    reads: Mapping[int, EdgeReads]
    """Rows that it has read, by relation."""


@dataclass
class UnderWay:
    """An epoch from its opening to its commit, with what it holds meanwhile."""

    epoch: GroupEpoch[Job]
    lane: list[Job]
    since_s: float
    results: list[Ran] = field(default_factory=list)
    """What has been run and not committed yet."""
    committed: list[Ran] = field(default_factory=list)
    """What has been committed of the epoch."""
    holds: ExitStack = field(default_factory=ExitStack)
    current: Job | None = None
    stepwise: bool = False
    """Some step of it takes in only a part of the epoch."""
    before: tuple[UnderWay, ...] = ()
    """Epochs of the lane that had been run and not committed when it was opened."""
    run_s: float = 0.0
    """When it had been run."""
    wanted: bool = False
    """It has been run and is to be committed now."""
    given_up: bool = False
    failures: dict[int, int] = field(default_factory=dict)
    """Job -> how often it had failed when the epoch was opened."""

    @property
    def outdated(self) -> bool:
        """It must not commit: it or one before it is given up, or a job has left the lane or must not run any more."""
        gone = any(p.job.stopping or p.version != p.job.version or not p.job.runnable for p in self.epoch.parts)
        return gone or self.given_up or any(b.given_up for b in self.before)


class _Ranges:
    """A job's sources, opened once."""

    def __init__(self, core: Core, job: Job) -> None:
        self._core, self._job = core, job

    def _open(self, source_id: int) -> Source:
        source = self._job.sources.get(source_id)
        if source is None:
            source = self._job.sources[source_id] = self._core.relation(source_id).open()
        return source

    def rows(self, source_id: int, after: Offsets | None, to: Offsets) -> int | None:
        """See `SourceRanges`."""
        source = self._open(source_id)
        return source.rows_between(source.start_offsets() if after is None else after, to)

    def tasks(self, source_id: int, after: Offsets | None, to: Offsets, parts: int) -> Sequence[Any]:
        """See `SourceRanges`."""
        source = self._open(source_id)
        return source.plan(source.start_offsets() if after is None else after, to, parts)


def work_of(core: Core, epoch: GroupEpoch[Job], part: Part[Job]) -> Work | None:
    """What a part of an epoch does next; None if nothing is left. Raises `LogLost`, and the errors of sources."""
    job, limit_rows = part.job, step_rows(core, part)
    ranges, state = _Ranges(core, job), core.catalog.state
    sources = source_rests(core, state, epoch, part, ranges, limit_rows, most_tasks(core, job.options))
    with core.catalog.reading() as state:
        return next_work(core, state, epoch, part, sources, limit_rows)


def step_rows(core: Core, part: Part[Job]) -> int:
    """Most rows that a step of a job takes in."""
    if part.committed:
        return max_rows(core, part.job)
    most = core.settings.backfill_slice_rows
    return min(most, part.job.row_limit or most)


def max_rows(core: Core, job: Job) -> int:
    """Most rows that an epoch of a job takes in, if it has the choice: fewer while memory or disk is short."""
    return job.row_limit or configured_rows(core, job)


def configured_rows(core: Core, job: Job) -> int:
    """The same when nothing is short: its option, else the setting."""
    chosen = job.options.get("max_rows_per_epoch")
    return int(chosen) if chosen else core.settings.max_rows_per_epoch


def most_tasks(core: Core, options: Mapping[str, str]) -> int:
    """Tasks per operator that a job may use: its option, else the setting, else the number of cores."""
    chosen = options.get("parallelism")
    return int(chosen) if chosen else core.settings.parallelism or os.cpu_count() or 1


def prefix_of(attempt: str, job: Job, target: int) -> str:
    """The folder for the objects of an attempt."""
    return f"{job.id}/{target:016x}-{attempt}"


def params_of(
    core: Core, state: CatalogState, epoch: GroupEpoch[Job], part: Part[Job], work: Work, attempt: str
) -> tuple[EpochParams, int]:
    """The parameters of a step, and its parallelism."""
    job = part.job
    tables = {
        i: TableInput(work.inputs[i].refs, work.inputs[i].keys) if i in work.inputs else TableInput(())
        for i in job.upstreams
        if core.relation(i).kind != "source"
    }
    own = {
        name: StateInput(
            table,
            (*(r.ref for r in state.runs_of(table)), *epoch.runs_of(state, job.id, table)),
            # Of the epoch from which it starts: that may be ahead of what the catalog knows.
            mark_at(core, state, job.event_time.expiry.get(name), part.committed),
        )
        for name, table in job.tables.items()
    }
    # Before the last step rows may come that are below it.
    closed_us = mark_at(core, state, job.event_time.closes, epoch.target) if work.step.last else None
    looked_up = frozenset[int]() if job.plan is None else job.plan.lookups | job.plan.arrangements
    params = EpochParams(
        attempt=attempt,
        from_epoch=part.committed,
        to_epoch=epoch.target,
        first=work.initial,
        root=core.root,
        prefix=prefix_of(attempt, job, epoch.target),
        sync=core.settings.run_fsync,
        spool=str(core.settings.spool_location),
        memory_bytes=task_share_bytes(core.budget_bytes(), core.tasks_at_once),
        budget_bytes=core.budget_bytes(),
        progress=core.progress.address,
        tables=tables,
        lookups={i: lookup_refs(core, state, epoch, part, i) for i in looked_up},
        taken={i: until for i, until in work.taken.items() if i in looked_up},
        sources={i: _source_input(core, i, found.tasks) for i, found in work.inputs.items() if i not in tables},
        state=own,
        closed_us=closed_us,
    )
    return params, choose_parallelism(round(work.step.rows), most_tasks(core, job.options))


def _source_input(core: Core, source_id: int, tasks: tuple[ReadPart, ...]) -> SourceInput:
    relation = core.relation(source_id)
    columns = tuple((c.name, c.type) for c in relation.columns)
    read = tuple(part.task for part in tasks)
    return SourceInput(read, dict(relation.record.options), columns, tuple(part.below_us for part in tasks))


def check_result(job: Job, params: EpochParams, result: EpochResult) -> None:
    """Refuse runs that are not this attempt's: of other tables, other epochs, other folders. Raises `JobFailed`."""
    own = set(job.tables.values())
    for ref in result.runs:
        in_epoch = ref.epoch_lo == ref.epoch_hi == params.to_epoch
        if ref.table_id not in own or not in_epoch or not ref.path.startswith(params.prefix + "/"):
            raise JobFailed(f'a task of job "{job.name}" acknowledged the object {ref.path}, which is not of its epoch')


def run_step(core: Core, now: UnderWay, part: Part[Job], work: Work) -> None:
    """Run one step on Spark. What it writes is kept from vacuum until it is committed or given up."""
    job, epoch = part.job, now.epoch
    attempt = core.attempt_name(job.id)
    now.stepwise = now.stepwise or part.begun or not work.step.last
    pin = core.pins.pin((), 0)
    now.holds.enter_context(core.pins.writing(prefix_of(attempt, job, epoch.target)))
    try:
        with core.catalog.reading() as state:
            params, parallelism = params_of(core, state, epoch, part, work, attempt)
            used = [*(t.refs for t in params.tables.values()), *(s.refs for s in params.state.values())]
            used += params.lookups.values()
            core.pins.hold(pin, {ref.path for refs in used for ref in refs})
        at_hand = {i for i, t in params.tables.items() if all(core.store.copied(ref) for ref in t.refs)}
        with core.changed:
            job.attempt, job.attempt_since_s = attempt, core.clock.monotonic_s()
        if not part.committed:
            fault_point("backfill.slice.before")
        assert job.runner is not None
        with core.progress.attempt(attempt, job.id, job.group, epoch.target):
            result = job.runner.run(params, parallelism)
        check_result(job, params, result)
    finally:
        core.pins.unpin(pin)
        with core.changed:
            job.attempt = None
            core.changed.advanced()
    note_step(part, work, result.runs, result.due_us)
    rows = result.rows_by_input.items()
    now.results.append(
        Ran(job, result, {i: reads_of(n, first=not part.committed, at_hand=i in at_hand) for i, n in rows})
    )
    _note_progress(core, now, part, work)


def reads_of(rows: int, *, first: bool, at_hand: bool) -> EdgeReads:
    """Rows that a step has read of an input, by where they came from."""
    if first:
        return EdgeReads(historical=rows)
    return EdgeReads(buffered=rows) if at_hand else EdgeReads(flushed=rows)


def _note_progress(core: Core, now: UnderWay, part: Part[Job], work: Work) -> None:
    job, now_s = part.job, core.clock.monotonic_s()
    if part.committed:
        return
    done = round(work.step.rows)
    if job.reading is None:
        job.reading = Progress(done, max(done, round(sum(r.rows for r in work.rests))), job.attempt_since_s)
    else:
        job.reading.rows_done += done
        job.reading.rows_expected = max(job.reading.rows_expected, job.reading.rows_done)
    seen, left_ms = job.reading, job.reading.remaining_ms(now_s)
    job.progress = (
        f"reading what its inputs hold at epoch {now.epoch.target}: about {seen.rows_done} of {seen.rows_expected} "
        f"rows, {seen.rate(now_s):.0f} rows/s" + ("" if left_ms is None else f", {left_ms / 1000:.0f} s to go")
    )  # fmt: skip
