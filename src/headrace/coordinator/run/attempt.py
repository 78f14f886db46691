"""One step of a job as Spark runs it: its parameters, the run itself, and what may come back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from headrace.catalog.edits import DATABASE_KEY
from headrace.catalog.state import CatalogState
from headrace.common.faults import fault_point
from headrace.config import Settings
from headrace.connectors.base import Offsets, Source
from headrace.connectors.confidential import hiding
from headrace.connectors.job_options import MAX_ROWS, PARALLELISM
from headrace.connectors.sinks import open_sink
from headrace.coordinator.decide.commit import (
    GroupEpoch,
    JobPart,
    Work,
    lookup_refs,
    next_work,
    note_step,
    source_rests,
)
from headrace.coordinator.decide.targets import choose_parallelism
from headrace.coordinator.decide.watermarks import mark_at
from headrace.coordinator.observe.history import EdgeReads
from headrace.coordinator.run.core import Core, Job, Runner
from headrace.dataflow.params import EpochParams, ReadPart, SourceInput, StateInput, TableInput
from headrace.dataflow.runner import EpochResult
from headrace.errors import JobFailed
from headrace.state.memory import task_share_bytes


@dataclass(frozen=True)
class FinishedStep:
    """A step that has been run: its result, and the rows that it read over each edge. It waits for the commit."""

    job: Job
    result: EpochResult
    reads: Mapping[int, EdgeReads]
    """Rows that it has read, by relation."""


@dataclass
class EpochInFlight:
    """An epoch of a lane from its opening to its commit: what is run of it, and what it holds meanwhile."""

    epoch: GroupEpoch[Job]
    lane: list[Job]
    since_s: float
    results: list[FinishedStep] = field(default_factory=list)
    """What has been run and not committed yet."""
    committed: list[FinishedStep] = field(default_factory=list)
    """What has been committed of the epoch."""
    holds: ExitStack = field(default_factory=ExitStack)
    current: Job | None = None
    apart: bool = False
    """Parts that were run as one Spark job have failed: each is run by itself, which tells the one that is to blame."""
    stepwise: bool = False
    """Some step of it takes in only a part of the epoch."""
    before: tuple[EpochInFlight, ...] = ()
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
        gone = any(
            p.job.activity.withdrawn or p.version != p.job.version or not p.job.runnable for p in self.epoch.parts
        )
        return gone or self.given_up or any(b.given_up for b in self.before)


class _Ranges:
    """A job's sources, opened once."""

    def __init__(self, core: Core, job: Job) -> None:
        self._core, self._job = core, job

    def _open(self, source_id: int) -> Source:
        source = self._job.sources.get(source_id)
        if source is None:
            source = self._job.sources[source_id] = self._core.vault.open(self._core.graph.relation(source_id).record)
        return source

    def rows(self, source_id: int, after: Offsets | None, to: Offsets) -> int | None:
        """See `SourceRanges`."""
        source = self._open(source_id)
        return source.rows_between(source.start_offsets() if after is None else after, to)

    def tasks(self, source_id: int, after: Offsets | None, to: Offsets, parts: int) -> Sequence[object]:
        """See `SourceRanges`."""
        source = self._open(source_id)
        return source.plan(source.start_offsets() if after is None else after, to, parts)


def work_of(core: Core, epoch: GroupEpoch[Job], part: JobPart[Job]) -> Work | None:
    """What a part of an epoch does next; None if nothing is left. Raises `LogLost`, and the errors of sources."""
    job, limit_rows = part.job, step_rows(core.settings, part)
    ranges, state = _Ranges(core, job), core.catalog.state
    sources = source_rests(core.graph, state, epoch, part, ranges, limit_rows, most_tasks(core.settings, job.options))
    with core.catalog.reading() as state:
        return next_work(core.graph, state, epoch, part, sources, limit_rows)


def reach_target(core: Core, job: Job) -> None:
    """Look whether a sink's target can be written to. Raises `SinkError`, and what is wrong with its options."""
    record = core.graph.relation(job.id).record
    secrets = core.vault.values(record.secrets)
    with hiding([*secrets.values()]):
        open_sink({**record.options, **secrets}, record.columns).reach()


def step_rows(settings: Settings, part: JobPart[Job]) -> int:
    """Most rows that a step of a job takes in."""
    if part.committed:
        return max_rows(settings, part.job)
    most = settings.backfill_slice_rows
    return min(most, part.job.portion.most_rows or most)


def max_rows(settings: Settings, job: Job) -> int:
    """Most rows that an epoch of a job takes in, if it has the choice: fewer while memory or disk is short."""
    return job.portion.most_rows or configured_rows(settings, job)


def configured_rows(settings: Settings, job: Job) -> int:
    """The same when nothing is short: its option, else the setting."""
    chosen = job.options.get(MAX_ROWS)
    return int(chosen) if chosen else settings.max_rows_per_epoch


def most_tasks(settings: Settings, options: Mapping[str, str]) -> int:
    """Tasks per operator that a job may use: its option, else the setting, else the number of cores."""
    chosen = options.get(PARALLELISM)
    return int(chosen) if chosen else settings.parallelism or os.cpu_count() or 1


def prefix_of(attempt: str, job: Job, target: int) -> str:
    """The folder for the objects of an attempt."""
    return f"{job.id}/{target:016x}-{attempt}"


def params_of(
    core: Core, state: CatalogState, epoch: GroupEpoch[Job], part: JobPart[Job], work: Work, attempt: str,
    together: int = 1,
) -> tuple[EpochParams, int]:  # fmt: skip
    """The parameters of a step, and its parallelism. `together` is how many steps run as one Spark job with it."""
    job = part.job
    tables = {
        i: TableInput(work.inputs[i].refs, work.inputs[i].keys) if i in work.inputs else TableInput(())
        for i in job.upstreams
        if not core.graph.relation(i).external
    }
    own = {
        name: StateInput(
            table,
            (*(r.ref for r in state.runs_of(table)), *epoch.runs_of(state, job.id, table)),
            # Of the epoch from which it starts: that may be ahead of what the catalog knows.
            mark_at(core.graph, state, job.event_time.expiry.get(name), part.committed),
        )
        for name, table in job.tables.items()
    }
    # Before the last step rows may come that are below it.
    closed_us = mark_at(core.graph, state, job.event_time.closes, epoch.target) if work.step.last else None
    looked_up = frozenset[int]() if job.plan is None else job.plan.lookups | job.plan.arrangements
    params = EpochParams(
        attempt=attempt,
        from_epoch=part.committed,
        to_epoch=epoch.target,
        first=work.initial,
        root=core.root,
        prefix=prefix_of(attempt, job, epoch.target),
        sync=core.settings.run_fsync,
        spool=str(core.settings.spool_dir or "") if core.root.proof else str(core.settings.spool_location),
        memory_bytes=task_share_bytes(core.budget_bytes(), max(core.tasks_at_once, together)),
        budget_bytes=core.budget_bytes(),
        progress=core.progress.address,
        tables=tables,
        lookups={i: lookup_refs(core.graph, state, epoch, part, i) for i in looked_up},
        taken={i: until for i, until in work.taken.items() if i in looked_up},
        sources={i: _source_input(core, i, found.tasks) for i, found in work.inputs.items() if i not in tables},
        state=own,
        closed_us=closed_us,
        delivery=f"{state.config.get(DATABASE_KEY, 0):x}-{job.id}" if job.delivers else "",
        sink_secrets=core.vault.values(core.graph.relation(job.id).record.secrets),
    )
    return params, choose_parallelism(round(work.step.rows), most_tasks(core.settings, job.options))


def _source_input(core: Core, source_id: int, tasks: tuple[ReadPart, ...]) -> SourceInput:
    relation = core.graph.relation(source_id)
    secrets = core.vault.values(relation.record.secrets)
    columns = tuple((c.name, c.type, c.nullable) for c in relation.columns)
    read = tuple(part.task for part in tasks)
    return SourceInput(read, dict(relation.record.options), columns, tuple(part.below_us for part in tasks), secrets)


def check_result(job: Job, params: EpochParams, result: EpochResult) -> None:
    """Refuse runs that are not this attempt's: of other tables, other epochs, other folders. Raises `JobFailed`."""
    own = set(job.tables.values())
    for ref in result.runs:
        in_epoch = ref.epoch_lo == ref.epoch_hi == params.to_epoch
        if ref.table_id not in own or not in_epoch or not ref.path.startswith(params.prefix + "/"):
            raise JobFailed(f'a task of job "{job.name}" acknowledged the object {ref.path}, which is not of its epoch')


@dataclass(frozen=True)
class _Attempt:
    """An attempt at a step that is about to run, or runs."""

    part: JobPart[Job]
    work: Work
    runner: Runner
    params: EpochParams
    parallelism: int
    at_hand: frozenset[int]
    """Inputs of which all that it reads is in this host's cache."""


def run_steps(core: Core, now: EpochInFlight, steps: Sequence[tuple[JobPart[Job], Work]]) -> None:
    """Run steps of several parts as one Spark job. What they write is kept from vacuum until it is committed or not.

    Raises the error of the first that failed; then none of them counts.
    """
    with ExitStack() as ends:
        ends.callback(_ended, core)
        names = [core.attempt_name(part.job.id) for part, _ in steps]
        attempts = [
            ends.enter_context(_attempt(core, now, part, work, name, names))
            for (part, work), name in zip(steps, names, strict=True)
        ]
        results = _run(attempts)
        for a, result in zip(attempts, results, strict=True):
            check_result(a.part.job, a.params, result)
    for a, result in zip(attempts, results, strict=True):
        _note(core, now, a, result)


def _ended(core: Core) -> None:
    """Nothing of a Spark job is under way any more: once for all of its attempts."""
    with core.changed:
        core.changed.advanced()


def _run(attempts: Sequence[_Attempt]) -> list[EpochResult]:
    first, *others = attempts
    if not others:
        return [first.runner.run(first.params, first.parallelism)]
    return first.runner.run_with(first.params, first.parallelism, [(a.runner, a.params, a.parallelism) for a in others])


@contextmanager
def _attempt(
    core: Core, now: EpochInFlight, part: JobPart[Job], work: Work, name: str, beside: Sequence[str]
) -> Iterator[_Attempt]:
    """An attempt at a step, with all that it reads pinned while it runs; `beside` are those of the same Spark job."""
    job, epoch = part.job, now.epoch
    now.stepwise = now.stepwise or part.begun or not work.step.last
    pin = core.pins.pin((), 0)
    now.holds.enter_context(core.pins.writing(prefix_of(name, job, epoch.target)))
    try:
        with core.catalog.reading() as state:
            params, parallelism = params_of(core, state, epoch, part, work, name, len(beside))
            used = [*(t.refs for t in params.tables.values()), *(s.refs for s in params.state.values())]
            used += params.lookups.values()
            core.pins.hold(pin, {ref.path for refs in used for ref in refs})
        at_hand = frozenset(i for i, t in params.tables.items() if all(core.store.copied(ref) for ref in t.refs))
        with core.lock:
            job.begin_attempt(name, core.clock.monotonic_s())
        if not part.committed:
            fault_point("backfill.slice.before")
        assert job.runner is not None
        with core.progress.attempt(name, job.id, job.group, epoch.target, beside):
            yield _Attempt(part, work, job.runner, params, parallelism, at_hand)
    finally:
        core.pins.unpin(pin)
        with core.lock:
            job.end_attempt()


def _note(core: Core, now: EpochInFlight, attempt: _Attempt, result: EpochResult) -> None:
    """A step has been run."""
    part, work = attempt.part, attempt.work
    note_step(part, work, result.runs, result.due_us)
    reads = {
        i: reads_of(rows, first=not part.committed, at_hand=i in attempt.at_hand)
        for i, rows in result.rows_by_input.items()
    }
    now.results.append(FinishedStep(part.job, result, reads))
    _note_progress(core, now, part, work)


def reads_of(rows: int, *, first: bool, at_hand: bool) -> EdgeReads:
    """Rows that a step has read of an input, by where they came from."""
    if first:
        return EdgeReads(historical=rows)
    return EdgeReads(buffered=rows) if at_hand else EdgeReads(flushed=rows)


def _note_progress(core: Core, now: EpochInFlight, part: JobPart[Job], work: Work) -> None:
    job, now_s = part.job, core.clock.monotonic_s()
    if part.committed:
        return
    with core.lock:
        job.read(round(work.step.rows), round(sum(r.rows for r in work.rests)))
        seen = job.catching_up.reading
        assert seen is not None
        left_ms = seen.remaining_ms(now_s)
        job.says(
            f"reading what its inputs hold at epoch {now.epoch.target}: about {seen.rows_done} of {seen.rows_expected} "
            f"rows, {seen.rate(now_s):.0f} rows/s" + ("" if left_ms is None else f", {left_ms / 1000:.0f} s to go")
        )
