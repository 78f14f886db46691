"""A group's epoch from its opening to its commit: what each job takes in next, and the transactions.

Pure: it looks at the graph and at the catalog's content, and returns edits. Whoever runs it does the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, Protocol

from headrace.catalog.edits import AddEvent, CarryAlong, CommitTable, Delete, Edit, Put
from headrace.catalog.records import JobRecord, RunRecord, run_id
from headrace.catalog.state import CatalogState
from headrace.common.shifts import epoch_reaching
from headrace.connectors.base import Offsets
from headrace.coordinator.decide.exact import Interval, after_commit
from headrace.coordinator.decide.graph import Graph, J, R, RelationState
from headrace.coordinator.decide.job import JobState
from headrace.coordinator.decide.life import Turn, turned
from headrace.coordinator.decide.machine import outcome
from headrace.coordinator.decide.standing import JobAdvance
from headrace.coordinator.decide.steps import (
    InputProgress,
    Rest,
    Slice,
    SourceRest,
    Step,
    StepPosition,
    TableRest,
    TaskSlice,
    advanced,
    parts_for,
    plan_step,
    position_of,
)
from headrace.coordinator.decide.targets import UNKNOWN_ROWS
from headrace.coordinator.decide.watermarks import Cut, cuts, mark_at
from headrace.dataflow.params import END_OF_KEYS, ReadPart
from headrace.errors import LogLost
from headrace.state.schema import HANDED, ROWS, RunRef


class SourceRanges(Protocol):
    """Answers questions about ranges of sources' offsets; opening sources is not pure, so this is passed in."""

    def rows(self, source_id: int, after: Offsets | None, to: Offsets) -> int | None:
        """How many rows it has; None if that is not known. Without `after`, from the beginning."""
        ...

    def tasks(self, source_id: int, after: Offsets | None, to: Offsets, parts: int) -> Sequence[Any]:
        """The range as about `parts` read tasks; the same ones each time."""
        ...


@dataclass
class JobPart(Generic[J]):
    """One job's share of a group's epoch: how far it has come, and what it has written."""

    job: J
    committed: int
    """The epoch from which it starts: its checkpoint, or what is about to become that; 0 for none."""
    version: int
    position: StepPosition
    """How far it is, with what is not durable yet."""
    runs: list[RunRef] = field(default_factory=list)
    """What it has written and not committed."""
    begun: bool = False
    finished: bool = False
    stored: bool = True
    """Every step of it is durable."""
    due_before: int = 0
    """When the passing of time next changes its content as it was before: an epoch, 0 for never."""
    due: int | None = None
    """The same as it is after the epoch; None if no step has told yet."""

    def harvests(self, target: int) -> bool:
        """Whether time alone gives it a step in this epoch: rows are due, or a step before a restart has not told."""
        if not self.job.facts.temporal or self.due is not None:
            return False
        return self.begun or 0 < self.due_before <= target


@dataclass
class GroupEpoch(Generic[J]):
    """An epoch of a lane from its opening to its commit, as pure decisions see it."""

    target: int
    parts: list[JobPart[J]]
    """In the order in which they run."""
    before: tuple[GroupEpoch[J], ...] = ()
    """Epochs of the lane that had been run and not committed when this one was opened, oldest first."""

    @property
    def current(self) -> JobPart[J] | None:
        """The part that is not finished; None once all are."""
        return next((p for p in self.parts if not p.finished), None)

    @property
    def due(self) -> Literal["step", "store", "finish"]:
        """What comes next: a step of the current part, a commit of its steps so far, or the commit of the epoch."""
        part = self.current
        if part is None:
            return "finish"
        return "step" if part.stored else "store"

    def runs_of(self, state: CatalogState, relation_id: int, table_id: int) -> list[RunRef]:
        """Rows that a view has written in this epoch and earlier ones and that `state` has not: for its group only."""
        record = state.jobs.get(relation_id)
        earlier = () if record is None else (e for e in self.before if e.target > record.committed_epoch)
        parts = (p for e in (*earlier, self) for p in e.parts if p.job.id == relation_id)
        return [r for p in parts for r in p.runs if r.table_id == table_id]

    def holds(self, relation_id: int) -> bool:
        """Whether a view takes part in the epoch."""
        return any(p.job.id == relation_id for p in self.parts)


def open_epoch(lane: Sequence[J], target: int, before: Sequence[GroupEpoch[J]] = ()) -> GroupEpoch[J]:
    """The epoch `target` of a lane, as far as it is not taken in yet; `before` are those that are not committed yet."""
    assert all(e.target < target for e in before), "epochs of a group follow one another"
    ahead = ahead_of(before)
    reached = {j.id: max(j.committed, ahead.get(j.id, 0)) for j in lane}
    dues = dues_after(before)
    touched = {j.id: j.position is not None and j.position.touched for j in lane}
    parts = [
        JobPart(
            j, reached[j.id], j.version, j.position or StepPosition(target), begun=touched[j.id],
            finished=reached[j.id] >= target, due_before=dues.get(j.id, j.due),
        )
        for j in lane
        if reached[j.id] < target or j.pending
    ]  # fmt: skip
    assert all(p.position.epoch == target for p in parts)
    return GroupEpoch(target, parts, tuple(before))


def ahead_of(epochs: Iterable[GroupEpoch[J]]) -> dict[int, int]:
    """Job -> the epoch to which it has been run, by epochs that are not committed yet, oldest first."""
    return {p.job.id: e.target for e in epochs for p in e.parts}


def dues_after(epochs: Iterable[GroupEpoch[J]]) -> dict[int, int]:
    """Job -> the epoch at which time changes it next (0 for never), after epochs that are not committed yet."""
    return {p.job.id: p.due for e in epochs for p in e.parts if p.due is not None}


@dataclass(frozen=True)
class InputRead:
    """What one step reads of one input of its job."""

    refs: tuple[RunRef, ...] = ()
    keys: tuple[int, int] | None = None
    """The range [low, high) of `__k`; None for all."""
    tasks: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Work:
    """One step of a job in full: what Spark has to do for it."""

    step: Step
    inputs: dict[int, InputRead]
    rests: tuple[Rest, ...]
    """What was left before it."""
    initial: bool
    """Operators put out the rows that are there without any input."""
    taken: Mapping[int, int] = field(default_factory=dict)
    """Table or view -> a `__k`: the epoch's change of rows with a smaller one has been taken in by earlier steps."""


def next_work(
    graph: Graph[R, J], state: CatalogState, epoch: GroupEpoch[J], part: JobPart[J], sources: Sequence[SourceRest],
    limit_rows: int,
) -> Work | None:  # fmt: skip
    """What a job does next in an epoch, given what is left of its sources; None if nothing of it is left.

    Raises `LogLost` where the log that it needs is gone.
    """
    initial = part.committed == 0 and not part.begun
    rests: list[Rest] = []
    refs: dict[int, tuple[RunRef, ...]] = {}
    for upstream in part.job.upstreams:
        looked_up = upstream in part.job.lookups or (not part.committed and upstream in part.job.facts.changes_only)
        if not graph.relation(upstream).external and not looked_up and not part.position.of(upstream).done:
            refs[upstream] = _change_refs(graph, state, epoch, part, upstream)
            rest = _table_rest(graph, epoch, part, upstream, refs[upstream])
            rests += [] if rest is None else [rest]
    rests += sources
    if not rests and not part.begun and _closes(graph, state, part, epoch.target):
        rests.append(_nothing_of(graph, part.job.upstreams[0]))
    if not rests and not initial and not part.harvests(epoch.target):
        return None
    step = plan_step(rests, float("inf") if part.job.whole or part.job.delivers else limit_rows)
    tasks = {r.relation: r.tasks for r in rests if isinstance(r, SourceRest)}
    inputs = {i: _input(s, refs.get(i, ()), tasks.get(i, ())) for i, s in step.slices.items()}
    taken = {i: END_OF_KEYS if t.done else t.next_key for i, t in part.position.taken.items()}
    return Work(step, inputs, tuple(rests), initial, taken)


def lookup_refs(
    graph: Graph[R, J], state: CatalogState, epoch: GroupEpoch[J], part: JobPart[J], relation_id: int
) -> tuple[RunRef, ...]:
    """The runs in which rows of a relation are looked up: as of the epoch, and as of the one from which the job starts.

    The latter only if the job takes in the relation's changes, too. Raises `LogLost` where they are gone.
    """
    relation = graph.relation(relation_id)
    record = state.state_tables[relation.state_table]
    oldest = epoch.target if relation_id in part.job.lookups else part.committed or epoch.target
    if oldest < record.safe_epoch:
        raise _lost(part.job, relation, oldest, record.safe_epoch)
    runs = [r.ref for r in state.runs_of(relation.state_table) if r.ref.epoch_lo <= epoch.target]
    return (*runs, *epoch.runs_of(state, relation_id, relation.state_table))


def _lost(job: JobState, relation: RelationState, needed: int, safe: int) -> LogLost:
    return LogLost(
        f'job "{job.name}" has lost the log of "{relation.name}"',
        detail=f"it needs the changes after epoch {needed}, they are kept from {safe} on",
        hint="drop the view and create it again",
    )


def _closes(graph: Graph[R, J], state: CatalogState, part: JobPart[J], target: int) -> bool:
    """Whether the watermark passes what a job holds back: then there is something to do without any input."""
    mark = part.job.event_time.closes
    now = mark_at(graph, state, mark, target)
    return now is not None and now != mark_at(graph, state, mark, part.committed)


def _nothing_of(graph: Graph[R, J], upstream: int) -> Rest:
    """An input of which nothing is left: so that the step leaves a position behind, and is not taken twice."""
    source = graph.relation(upstream).external
    return SourceRest(upstream, (), 0, 1) if source else TableRest(upstream, ())


def _change_refs(
    graph: Graph[R, J], state: CatalogState, epoch: GroupEpoch[J], part: JobPart[J], upstream: int
) -> tuple[RunRef, ...]:
    """The runs that hold an input's change: committed ones, and what its job has written in this very epoch."""
    relation = graph.relation(upstream)
    record = state.state_tables[relation.state_table]
    oldest = part.committed or epoch.target
    if oldest < record.safe_epoch:
        raise _lost(part.job, relation, oldest, record.safe_epoch)
    # Above its committed epoch an input has parts of an epoch that is not finished: those of this very one are the
    # group's own, any others begin above the target.
    runs = [r.ref for r in state.runs_of(relation.state_table) if r.ref.epoch_lo <= epoch.target]
    runs += epoch.runs_of(state, upstream, relation.state_table)
    return tuple(r for r in runs if r.epoch_hi > part.committed)


def _table_rest(
    graph: Graph[R, J], epoch: GroupEpoch[J], part: JobPart[J], upstream: int, refs: tuple[RunRef, ...]
) -> TableRest | None:
    relation = graph.relation(upstream)
    low = part.position.of(upstream).next_key
    known = relation.rows_in(part.committed, epoch.target) if part.committed else None
    if epoch.holds(upstream):
        known = None
    elif part.committed and not relation.changes.in_range(part.committed, epoch.target):
        return None
    return TableRest.of(upstream, refs, low, known) if refs else None


def source_rests(
    graph: Graph[R, J], state: CatalogState, epoch: GroupEpoch[J], part: JobPart[J], ranges: SourceRanges,
    limit_rows: int, parallelism: int,
) -> list[SourceRest]:  # fmt: skip
    """What is left of the ranges of a job's sources in an epoch. Raises the errors of sources, and `LogLost`."""
    found: list[SourceRest] = []
    _check_bindings(graph, state, part, epoch.target)
    for upstream in part.job.upstreams:
        taken = part.position.of(upstream)
        if not graph.relation(upstream).external or taken.done:
            continue
        to = state.offsets_at(upstream, epoch.target)
        after = state.offsets_at(upstream, part.committed) if part.committed else None
        if to is None or (after is not None and after.offsets == to.offsets):
            continue
        before = None if after is None else after.offsets
        counted = ranges.rows(upstream, before, to.offsets)
        rows = UNKNOWN_ROWS if counted is None else counted
        parts = taken.parts or parts_for(rows, limit_rows, parallelism)
        if upstream in part.job.event_time.relations and not graph.relation(upstream).in_order:
            ranges_cut = list(cuts(state, upstream, part.committed, epoch.target))
        else:
            ranges_cut = [Cut(before, to.offsets, None)]
        each = max(1, parts // len(ranges_cut))
        tasks = tuple(
            ReadPart(task, c.below_us) for c in ranges_cut for task in ranges.tasks(upstream, c.after, c.to, each)
        )
        if tasks:
            found.append(SourceRest(upstream, tasks, rows, parts, taken.sequence))
    return found


def _check_bindings(graph: Graph[R, J], state: CatalogState, part: JobPart[J], target: int) -> None:
    """Raises `LogLost` where bindings that the job needs are gone."""
    for source_id in graph.bindings_for(part.job):
        known = state.sources.get(source_id)
        oldest = target if source_id in part.job.lookups else part.committed or target
        if known is not None and oldest < known.safe_epoch:
            raise _lost(part.job, graph.relation(source_id), oldest, known.safe_epoch)


def _input(s: Slice, refs: tuple[RunRef, ...], tasks: tuple[object, ...]) -> InputRead:
    if isinstance(s, TaskSlice):
        return InputRead(tasks=tasks[s.low : s.high])
    if s.whole:
        return InputRead(refs)
    return InputRead(tuple(r for r in refs if r.k_max >= s.low and r.k_min < s.high), (s.low, s.high))


def note_step(part: JobPart[J], work: Work, runs: Sequence[RunRef], due_us: int | None = None) -> None:
    """A step has been run: its runs wait for the next commit. `due_us` is when its state is next due, Unix us."""
    part.due = 0 if due_us is None else epoch_reaching(due_us)
    part.position = advanced(part.position, work.step)
    part.runs += runs
    part.begun = True
    part.stored = False
    part.finished = work.step.last


def note_stored(epoch: GroupEpoch[J]) -> None:
    """All steps so far have been committed."""
    for part in epoch.parts:
        part.runs, part.stored = [], True


# ---- transactions


@dataclass
class Commit:
    """A transaction, and what it makes of the graph once it is durable."""

    edits: list[Edit] = field(default_factory=list)
    moves: dict[int, JobAdvance] = field(default_factory=dict)
    positions: dict[int, StepPosition | None] = field(default_factory=dict)
    changes: list[tuple[int, int, int]] = field(default_factory=list)
    """(View, epoch, rows) of what has become visible."""
    late: tuple[int, ...] = ()

    def apply(self, graph: Graph[R, J]) -> None:
        """Make it so in memory; harmless when repeated."""
        for job_id, position in self.positions.items():
            if job_id in graph.jobs:
                graph.jobs[job_id].at(position)
        for job_id, move in self.moves.items():
            if job_id in graph.jobs:
                graph.jobs[job_id].advance(move)
        for view, epoch, rows in self.changes:
            if view in graph.relations:
                graph.relations[view].changed(epoch, rows)

    def happened(self, state: CatalogState) -> bool:
        """Whether a transaction of which the outcome was unknown is durable."""
        moved = all(i in state.jobs and m.has_happened(state.jobs[i]) for i, m in self.moves.items())
        placed = all(position_of(state.positions_of(i)) == p for i, p in self.positions.items())
        return moved and placed


def plan_bound(part: JobPart[J]) -> Commit:
    """Settle which epoch a job takes in before anything of it leaves the database: after a crash it is the same."""
    position = StepPosition(part.position.epoch, {i: InputProgress() for i in part.job.upstreams})
    edits: list[Edit] = [Put(record) for record in position.records(part.job.id)]
    return Commit(edits, positions={part.job.id: position})


def plan_partial(epoch: GroupEpoch[J], now_ms: int) -> Commit:
    """Make the steps up to here durable, and nothing of them visible."""
    found = Commit()
    for part in epoch.parts:
        found.edits += [Put(RunRecord(ref, 0, now_ms)) for ref in part.runs]
        if part.position.taken:
            found.edits += [Put(r) for r in part.position.records(part.job.id)]
            found.positions[part.job.id] = part.position
    return found


def plan_final(
    graph: Graph[R, J], state: CatalogState, lane: Sequence[J], epochs: Sequence[GroupEpoch[J]], now_ms: int,
    within_ms: int,
) -> Commit:  # fmt: skip
    """The one transaction that makes epochs of a lane visible, each under its own number: one, or several in order.

    It takes along the idle inputs of its jobs, so that none is ever at a later checkpoint than what it is built on.
    """
    found = Commit()
    target = epochs[-1].target
    result = outcome(graph, lane, target, within_ms)
    found.late = result.late
    jobs: dict[int, tuple[J, list[int]]] = {}
    dues = dues_after(epochs)
    for epoch in epochs:
        for part in epoch.parts:
            _, before = jobs.setdefault(part.job.id, (part.job, []))
            _add_runs(graph, state, found, part, epoch.target, first=not before, now_ms=now_ms)
            before.append(epoch.target)
    for job, targets in jobs.values():
        found.edits += [Delete("position", p.key) for p in state.positions_of(job.id)]
        found.positions[job.id] = None
        if state.jobs[job.id].committed_epoch < targets[-1] or job.pending:
            _advance(graph, state, found, job, targets, job.id in result.created, dues.get(job.id))
    for i in graph.above(j.id for j in lane):
        if i in state.jobs and state.jobs[i].committed_epoch < target and i not in found.moves:
            assert graph.frontier(i) >= target, "an input that still changes is never passed by"
            _carry_along(graph, found, i, target)
    return found


def _add_runs(
    graph: Graph[R, J], state: CatalogState, found: Commit, part: JobPart[J], epoch: int, *, first: bool, now_ms: int
) -> None:  # fmt: skip
    """What a job has written in an epoch. In the first of several it may have committed parts before."""
    handed = part.job.tables.get(HANDED)
    found.edits += [Put(RunRecord(ref, 0, now_ms)) for ref in part.runs if ref.table_id != handed]
    if handed is not None:  # the table has them now
        found.edits += [Delete("run", run_id(r.ref)) for r in state.runs_of(handed)]
    own = part.job.tables.get(ROWS)
    rows = sum(r.rows for r in part.runs if r.table_id == own)
    if own is not None and first:
        rows += _rows_above(state, own, state.jobs[part.job.id].committed_epoch)
    if rows or _closes(graph, state, part, epoch):
        found.changes.append((part.job.id, epoch, rows))


def _rows_above(state: CatalogState, table_id: int, committed: int) -> int:
    """Rows of the parts of the epoch that were committed before."""
    return sum(r.ref.rows for r in state.runs_of(table_id) if r.ref.epoch_lo > committed)


def _commit_tables(graph: Graph[R, J], state: CatalogState, job: J, target: int) -> list[Edit]:
    edits: list[Edit] = []
    for t in state.tables_of(job.id):
        if t.committed_epoch < target:
            watermark = mark_at(graph, state, job.event_time.expiry.get(t.operator), target)
            edits.append(CommitTable(t.id, target, None if t.operator == ROWS else target, watermark))
    return edits


def _advance(
    graph: Graph[R, J], state: CatalogState, found: Commit, job: J, targets: Sequence[int], created: bool,
    due: int | None,
) -> None:  # fmt: skip
    record, target = state.jobs[job.id], targets[-1]
    exact: tuple[Interval, ...] = ()
    if job.created and job.committed >= target:
        exact = job.exact
    elif job.created:
        exact = tuple(graph.exact(job.id))
        for each in targets:
            exact = after_commit(exact, each, graph.relation(job.id).safe)
    elif created:
        exact = ((target, target),)
    joined = job.joined and (job.membership.joining or not record.joined)
    # One that only joins may have been taken along beyond this epoch by views of another group.
    reached = max(record.committed_epoch, target)
    found.moves[job.id] = JobAdvance(reached, exact, created, joined, due)
    found.edits += _commit_tables(graph, state, job, target)
    turned_to, effects = turned(record, Turn.CAUGHT_UP) if created else (record, ())
    moved: JobRecord = replace(
        turned_to, committed_epoch=reached, frontier=max(record.frontier, reached), exact=exact,
        joined=record.joined or joined, due_epoch=record.due_epoch if due is None else due,
    )  # fmt: skip
    found.edits.append(Put(moved))
    found.edits += [AddEvent(said, job.id, f'materialized view "{job.name}" is created') for said in effects]
    if joined and not effects:
        text = f'job "{job.name}" moves in step with checkpoint group "{job.group}"'
        found.edits.append(AddEvent("job_joined", job.id, text))


def _carry_along(graph: Graph[R, J], found: Commit, relation_id: int, target: int) -> None:
    """A relation without a change up to `target`: nothing but its checkpoint moves."""
    job = graph.jobs.get(relation_id)
    exact: tuple[Interval, ...] | None = None
    if job is not None:
        exact = after_commit(graph.exact(relation_id), target, graph.relation(relation_id).safe)
        found.moves[relation_id] = JobAdvance(target, exact)
    found.edits.append(CarryAlong(relation_id, target, exact))


def handed_runs(state: CatalogState, part: JobPart[J]) -> tuple[RunRef, ...]:
    """The runs with what a job has for its table in an epoch, those of parts that are durable among them."""
    table = part.job.tables[HANDED]
    return (*(r.ref for r in state.runs_of(table)), *(r for r in part.runs if r.table_id == table))


def plan_rewind(state: CatalogState, lane: Sequence[J]) -> Commit:
    """Give up the parts of an epoch that are durable, of all jobs of a lane."""
    found = Commit()
    for job in lane:
        positions = state.positions_of(job.id)
        if not positions:
            continue
        found.edits += [Delete("position", p.key) for p in positions]
        found.positions[job.id] = None
        for table in state.tables_of(job.id):
            loose = [r.ref for r in state.runs_of(table.id) if r.ref.epoch_lo > table.committed_epoch]
            found.edits += [Delete("run", run_id(ref)) for ref in loose]
    return found
