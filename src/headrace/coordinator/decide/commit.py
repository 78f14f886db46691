"""The transactions of a group's epoch: what is bound, what is stored of it, the commit that makes it visible.

Pure: it looks at the graph and at the catalog's content, and returns edits. Whoever runs it does the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from headrace.catalog.edits import AddEvent, CarryAlong, CommitTable, Delete, Edit, Put
from headrace.catalog.records import JobRecord, RunRecord, run_id
from headrace.catalog.state import CatalogState
from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.decide.exact import Interval, after_commit
from headrace.coordinator.decide.graph import Graph, J, R
from headrace.coordinator.decide.group_epoch import GroupEpoch, JobPart, dues_after
from headrace.coordinator.decide.life import Turn, turned
from headrace.coordinator.decide.machine import outcome
from headrace.coordinator.decide.standing import JobAdvance
from headrace.coordinator.decide.steps import InputProgress, StepPosition, position_of
from headrace.coordinator.decide.watermarks import closes, mark_at
from headrace.state.schema import HANDED, ROWS, RunRef


@dataclass
class Commit:
    """A transaction, and what it makes of the graph once it is durable."""

    edits: list[Edit] = field(default_factory=list)
    moves: dict[int, JobAdvance] = field(default_factory=dict)
    positions: dict[int, StepPosition | None] = field(default_factory=dict)
    changes: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(View, epoch, rows, bytes) of what has become visible."""
    late: tuple[int, ...] = ()

    def apply(self, graph: Graph[R, J]) -> None:
        """Make it so in memory; harmless when repeated."""
        for job_id, position in self.positions.items():
            if job_id in graph.jobs:
                graph.jobs[job_id].at(position)
        for job_id, move in self.moves.items():
            if job_id in graph.jobs:
                graph.jobs[job_id].advance(move)
        for view, epoch, rows, size in self.changes:
            if view in graph.relations:
                graph.relations[view].changed(epoch, rows, size)

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
            delivered = [e.target for e in epochs for p in e.parts if p.job.id == job.id and p.delivered]
            _advance(graph, state, found, job, targets, job.id in result.created, dues.get(job.id), delivered)
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
    runs = [r for r in part.runs if r.table_id == own]
    if own is not None and first:
        runs += _runs_above(state, own, state.jobs[part.job.id].committed_epoch)
    rows = sum(r.rows for r in runs)
    if rows or closes(graph, state, part.job, part.committed, epoch):
        found.changes.append((part.job.id, epoch, rows, sum(r.length for r in runs)))


def _runs_above(state: CatalogState, table_id: int, committed: int) -> list[RunRef]:
    """The parts of the epoch that were committed before."""
    return [r.ref for r in state.runs_of(table_id) if r.ref.epoch_lo > committed]


def _commit_tables(graph: Graph[R, J], state: CatalogState, job: J, target: int) -> list[Edit]:
    edits: list[Edit] = []
    for t in state.tables_of(job.id):
        if t.committed_epoch < target:
            watermark = mark_at(graph, state, job.event_time.expiry.get(t.operator), target)
            edits.append(CommitTable(t.id, target, None if t.operator == ROWS else target, watermark))
    return edits


def _advance(
    graph: Graph[R, J], state: CatalogState, found: Commit, job: J, targets: Sequence[int], created: bool,
    due: int | None, delivered: Sequence[int],
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
        delivered_epoch=max([record.delivered_epoch, *delivered]),
    )  # fmt: skip
    found.edits.append(Put(moved))
    found.edits += [AddEvent(said, job.id, f"{job.in_words} is created") for said in effects]
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
