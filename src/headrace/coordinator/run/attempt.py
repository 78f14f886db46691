"""One step of a job as Spark runs it: its parameters, the run itself, and what may come back."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field
from itertools import groupby
from operator import attrgetter

from headrace.catalog.edits import DATABASE_KEY
from headrace.catalog.state import CatalogState
from headrace.common.faults import fault_point
from headrace.common.lazy_dataclass import dataclass
from headrace.config import Settings
from headrace.connectors.base import Offsets, Source
from headrace.connectors.confidential import hiding
from headrace.connectors.job_options import MAX_MB, MAX_ROWS, PARALLELISM
from headrace.connectors.sinks import open_sink
from headrace.coordinator.ddl.secrets import Vault
from headrace.coordinator.decide.group_epoch import GroupEpoch, JobPart
from headrace.coordinator.decide.row_sizes import Intake
from headrace.coordinator.decide.source_ranges import source_rests
from headrace.coordinator.decide.targets import choose_parallelism
from headrace.coordinator.decide.watermarks import mark_at
from headrace.coordinator.decide.work import Work, lookup_refs, next_work, note_left_out, note_step
from headrace.coordinator.observe.epoch_history import EdgeReads
from headrace.coordinator.observe.progress import ProgressBook
from headrace.coordinator.run.capacity import Capacity
from headrace.coordinator.run.live_state import Job, LiveState, Runner
from headrace.coordinator.run.runtime import Runtime
from headrace.coordinator.run.storage import Storage
from headrace.dataflow.epoch_result import EpochResult
from headrace.dataflow.params import EpochParams, ReadPart, SourceInput, StateInput, TableInput
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
    cuts: dict[tuple[int, int], int] = field(default_factory=dict)
    """(Job, source) -> the pin that keeps all bindings of a source until a durable position names those it needs."""
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


def step_intake(settings: Settings, part: JobPart[Job]) -> Intake:
    """Most that a step of a job takes in."""
    return Intake(step_rows(settings, part), most_bytes(settings, part.job))


def most_bytes(settings: Settings, job: Job) -> int:
    """Most bytes that a job takes in at one go, if it has the choice: its option, else the setting."""
    chosen = job.options.get(MAX_MB)
    return (int(chosen) if chosen else settings.max_mb_per_epoch) << 20


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


def reads_of(rows: int, *, first: bool, at_hand: bool) -> EdgeReads:
    """Rows that a step has read of an input, by where they came from."""
    if first:
        return EdgeReads(historical=rows)
    return EdgeReads(buffered=rows) if at_hand else EdgeReads(flushed=rows)


class _Ranges:
    """A job's sources, opened once."""

    def __init__(self, live: LiveState, vault: Vault, job: Job) -> None:
        self._live, self._vault, self._job = live, vault, job

    def _open(self, source_id: int) -> Source:
        source = self._job.sources.get(source_id)
        if source is None:
            source = self._job.sources[source_id] = self._vault.open(self._live.graph.relation(source_id).record)
        return source

    def rows(self, source_id: int, after: Offsets | None, to: Offsets) -> int | None:
        """See `SourceRanges`."""
        source = self._open(source_id)
        return source.rows_between(source.start_offsets() if after is None else after, to)

    def bytes(self, source_id: int, after: Offsets | None, to: Offsets) -> int | None:
        """See `SourceRanges`."""
        source = self._open(source_id)
        return source.bytes_between(source.start_offsets() if after is None else after, to)

    def tasks(self, source_id: int, after: Offsets | None, to: Offsets, parts: int) -> Sequence[dict[str, object]]:
        """See `SourceRanges`."""
        source = self._open(source_id)
        return source.plan(source.start_offsets() if after is None else after, to, parts)

    def joined(self, source_id: int, parts: Sequence[ReadPart], parallelism: int) -> list[ReadPart]:
        """Parts that follow each other as fewer ones, where that is cheaper; none that differ in what is late."""
        source = self._open(source_id)
        return [
            ReadPart(task, below_us)
            for below_us, found in groupby(parts, attrgetter("below_us"))
            for task in source.joined([part.task for part in found], parallelism)
        ]


class Attempts:
    """Runs steps of epochs, each attempt under a name of its own. Thread-safe: all lanes share it."""

    def __init__(
        self, live: LiveState, storage: Storage, runtime: Runtime, capacity: Capacity, vault: Vault,
        progress: ProgressBook,
    ) -> None:  # fmt: skip
        self._live = live
        self._storage = storage
        self._runtime = runtime
        self._capacity = capacity
        self._vault = vault
        self._progress = progress
        self._numbers = itertools.count(1)

    def _name(self, job_id: int) -> str:
        """A name for an attempt, unique over all processes that ever open this database."""
        return f"{job_id}-{self._storage.catalog.token or 0}-{next(self._numbers)}"

    def work_of(self, epoch: GroupEpoch[Job], part: JobPart[Job]) -> Work | None:
        """What a part of an epoch does next; None if nothing is left. Raises `LogLost`, and the errors of sources."""
        job, graph, catalog, settings = part.job, self._live.graph, self._storage.catalog, self._runtime.settings
        ranges, limit = _Ranges(self._live, self._vault, job), step_intake(settings, part)
        tasks = most_tasks(settings, job.options)
        sources = source_rests(graph, catalog.state, epoch, part, ranges, limit, tasks)
        with catalog.reading() as state:
            return next_work(graph, state, epoch, part, sources, limit)

    def reach_target(self, job: Job) -> None:
        """Look whether a sink's target can be written to. Raises `SinkError`, and what is wrong with its options."""
        record = self._live.graph.relation(job.id).record
        secrets = self._vault.values(record.secrets)
        with hiding([*secrets.values()]):
            open_sink({**record.options, **secrets}, record.columns).reach()

    def _params(
        self, state: CatalogState, epoch: GroupEpoch[Job], part: JobPart[Job], work: Work, attempt: str,
        together: int = 1,
    ) -> tuple[EpochParams, int]:  # fmt: skip
        """The parameters of a step, and its parallelism. `together` is how many steps run as one Spark job with it."""
        job, graph, settings, capacity = part.job, self._live.graph, self._runtime.settings, self._capacity
        root = self._storage.root
        tables = {
            i: TableInput(work.inputs[i].refs, work.inputs[i].keys) if i in work.inputs else TableInput(())
            for i in job.upstreams
            if not graph.relation(i).external
        }
        own = {
            name: StateInput(
                table,
                (*(r.ref for r in state.runs_of(table)), *epoch.runs_of(state, job.id, table)),
                # Of the epoch from which it starts: that may be ahead of what the catalog knows.
                mark_at(graph, state, job.event_time.expiry.get(name), part.committed),
            )
            for name, table in job.tables.items()
        }
        # Before the last step rows may come that are below it.
        closed_us = mark_at(graph, state, job.event_time.closes, epoch.target) if work.step.last else None
        parallelism = choose_parallelism(round(work.step.rows), most_tasks(settings, job.options))
        looked_up = frozenset[int]() if job.plan is None else job.plan.lookups | job.plan.arrangements
        params = EpochParams(
            attempt=attempt,
            from_epoch=part.committed,
            to_epoch=epoch.target,
            first=work.initial,
            root=root,
            prefix=prefix_of(attempt, job, epoch.target),
            sync=settings.run_fsync,
            spool=str(settings.spool_dir or "") if root.proof else str(settings.spool_location),
            memory_bytes=task_share_bytes(capacity.budget_bytes(), max(capacity.tasks_at_once, together)),
            budget_bytes=capacity.budget_bytes(),
            progress=self._progress.address,
            tables=tables,
            lookups={i: lookup_refs(graph, state, epoch, part, i) for i in looked_up},
            taken={i: until for i, until in work.taken.items() if i in looked_up},
            sources={
                i: self._source_input(job, i, found.tasks, parallelism)
                for i, found in work.inputs.items()
                if i not in tables
            },
            state=own,
            closed_us=closed_us,
            delivery=f"{state.config.get(DATABASE_KEY, 0):x}-{job.id}" if job.delivers else "",
            delivered=state.jobs[job.id].delivered_epoch if job.delivers else 0,
            sink_name=job.name if job.delivers else "",
            sink_secrets=self._vault.values(graph.relation(job.id).record.secrets),
        )
        return params, parallelism

    def _source_input(
        self, job: Job, source_id: int, tasks: Sequence[ReadPart], parallelism: int
    ) -> SourceInput:  # fmt: skip
        """What is read of a source: a value at fault in a column that came later is none of the job's."""
        record = self._live.graph.relation(source_id).record
        if len(tasks) > parallelism:
            tasks = _Ranges(self._live, self._vault, job).joined(source_id, tasks, parallelism)
        secrets = self._vault.values(record.secrets)
        known = record.columns[: record.content.width_before(job.id)]
        columns = tuple((c.name, c.type, c.nullable) for c in known)
        read = tuple(part.task for part in tasks)
        return SourceInput(read, dict(record.options), columns, tuple(part.below_us for part in tasks), secrets)

    def run_steps(self, now: EpochInFlight, steps: Sequence[tuple[JobPart[Job], Work]]) -> None:
        """Run steps of several parts as one Spark job.

        What they write is kept from vacuum until it is committed or not. Raises the error of the first that failed;
        then none of them counts.
        """
        with ExitStack() as ends:
            ends.callback(self._ended)
            names = [self._name(part.job.id) for part, _ in steps]
            attempts = [
                ends.enter_context(self._attempt(now, part, work, name, names))
                for (part, work), name in zip(steps, names, strict=True)
            ]
            results = _run(attempts)
            for a, result in zip(attempts, results, strict=True):
                check_result(a.part.job, a.params, result)
        for a, result in zip(attempts, results, strict=True):
            self._note(now, a, result)

    def _ended(self) -> None:
        """Nothing of a Spark job is under way any more: once for all of its attempts."""
        with self._live.changed:
            self._live.changed.advanced()

    @contextmanager
    def _attempt(
        self, now: EpochInFlight, part: JobPart[Job], work: Work, name: str, beside: Sequence[str]
    ) -> Iterator[_Attempt]:
        """An attempt at a step, with all that it reads pinned while it runs.

        `beside` are those of the same Spark job.
        """
        job, epoch, storage = part.job, now.epoch, self._storage
        now.stepwise = now.stepwise or part.begun or not work.step.last
        pin = storage.pins.pin((), 0)
        now.holds.enter_context(storage.pins.writing(prefix_of(name, job, epoch.target)))
        try:
            with storage.catalog.reading() as state:
                params, parallelism = self._params(state, epoch, part, work, name, len(beside))
                used = [*(t.refs for t in params.tables.values()), *(s.refs for s in params.state.values())]
                used += params.lookups.values()
                storage.pins.hold(pin, {ref.path for refs in used for ref in refs})
            at_hand = frozenset(i for i, t in params.tables.items() if all(storage.store.copied(ref) for ref in t.refs))
            with self._live.lock:
                job.begin_attempt(name, self._runtime.clock.monotonic_s())
            if not part.committed:
                fault_point("backfill.slice.before")
            assert job.runner is not None
            with self._progress.attempt(name, job.id, job.group, epoch.target, beside):
                yield _Attempt(part, work, job.runner, params, parallelism, at_hand)
        finally:
            storage.pins.unpin(pin)
            with self._live.lock:
                job.end_attempt()

    def _note(self, now: EpochInFlight, attempt: _Attempt, result: EpochResult) -> None:
        """A step has been run."""
        part, work = attempt.part, attempt.work
        if result.undelivered:
            note_left_out(part, result.runs)
            return
        note_step(part, work, result.runs, result.due_us)
        self._note_sizes(result)
        part.delivered = part.delivered or (part.job.delivers and bool(result.rows_out))
        reads = {
            i: reads_of(rows, first=not part.committed, at_hand=i in attempt.at_hand)
            for i, rows in result.rows_by_input.items()
        }
        now.results.append(FinishedStep(part.job, result, reads))
        self._note_progress(now, part, work)

    def _note_sizes(self, result: EpochResult) -> None:
        """How wide rows are of sources: the next step, and the next binding, go by that."""
        live = self._live
        with live.lock:
            for source_id, (rows, size) in result.read_of_sources.items():
                source = live.graph.relations.get(source_id)
                if source is not None:
                    source.size = source.size.seen(rows, size)

    def _note_progress(self, now: EpochInFlight, part: JobPart[Job], work: Work) -> None:
        job, now_s = part.job, self._runtime.clock.monotonic_s()
        if part.committed:
            return
        with self._live.lock:
            job.read(round(work.step.rows), round(sum(r.rows for r in work.rests)))
            seen = job.catching_up.reading
            assert seen is not None
            left_ms = seen.remaining_ms(now_s)
            job.says(
                f"reading what its inputs hold at epoch {now.epoch.target}: about {seen.rows_done} of "
                f"{seen.rows_expected} rows, {seen.rate(now_s):.0f} rows/s"
                + ("" if left_ms is None else f", {left_ms / 1000:.0f} s to go")
            )


def _run(attempts: Sequence[_Attempt]) -> list[EpochResult]:
    first, *others = attempts
    if not others:
        return [first.runner.run(first.params, first.parallelism)]
    return first.runner.run_with(first.params, first.parallelism, [(a.runner, a.params, a.parallelism) for a in others])
