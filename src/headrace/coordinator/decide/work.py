"""What a job takes in next of a group's epoch: which runs and ranges of sources a step reads, and what it leaves.

Pure: it looks at the graph and at the catalog's content. Whoever runs the step does the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from headrace.catalog.state import CatalogState
from headrace.common.lazy_dataclass import dataclass
from headrace.common.shifts import epoch_reaching
from headrace.coordinator.decide.graph import Graph, J, R
from headrace.coordinator.decide.group_epoch import GroupEpoch, JobPart
from headrace.coordinator.decide.row_sizes import Intake
from headrace.coordinator.decide.source_ranges import lost, taken_at_once
from headrace.coordinator.decide.steps import (
    Rest,
    Slice,
    SourceRest,
    Step,
    TableRest,
    TaskSlice,
    advanced,
    plan_step,
)
from headrace.coordinator.decide.watermarks import closes
from headrace.dataflow.params import END_OF_KEYS
from headrace.state.schema import HANDED, RunRef


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
    limit: Intake,
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
    if not rests and not part.begun and closes(graph, state, part.job, part.committed, epoch.target):
        rests.append(_nothing_of(graph, part.job.upstreams[0], epoch.target))
    if not rests and not initial and not part.harvests(epoch.target):
        return None
    step = plan_step(rests, taken_at_once(part, limit))
    inputs = {i: _input(s, refs.get(i, ())) for i, s in step.slices.items()}
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
        raise lost(part.job, relation, oldest, record.safe_epoch)
    runs = [r.ref for r in state.runs_of(relation.state_table) if r.ref.epoch_lo <= epoch.target]
    return (*runs, *epoch.runs_of(state, relation_id, relation.state_table))


def _nothing_of(graph: Graph[R, J], upstream: int, target: int) -> Rest:
    """An input of which nothing is left: so that the step leaves a position behind, and is not taken twice."""
    source = graph.relation(upstream).external
    return SourceRest(upstream, (), 0, 1, to_epoch=target) if source else TableRest(upstream, ())


def _change_refs(
    graph: Graph[R, J], state: CatalogState, epoch: GroupEpoch[J], part: JobPart[J], upstream: int
) -> tuple[RunRef, ...]:
    """The runs that hold an input's change: committed ones, and what its job has written in this very epoch."""
    relation = graph.relation(upstream)
    record = state.state_tables[relation.state_table]
    oldest = part.committed or epoch.target
    if oldest < record.safe_epoch:
        raise lost(part.job, relation, oldest, record.safe_epoch)
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


def _input(s: Slice, refs: tuple[RunRef, ...]) -> InputRead:
    if isinstance(s, TaskSlice):
        return InputRead(tasks=s.tasks)
    if s.whole:
        return InputRead(refs)
    return InputRead(tuple(r for r in refs if r.k_max >= s.low and r.k_min < s.high), (s.low, s.high))


def note_left_out(part: JobPart[J], runs: Sequence[RunRef]) -> None:
    """A sink has told which rows are to be left out: the run with them is made durable, and the step run again."""
    part.runs += [ref for ref in runs if ref.table_id == part.job.tables[HANDED]]
    part.stored = False


def note_step(part: JobPart[J], work: Work, runs: Sequence[RunRef], due_us: int | None = None) -> None:
    """A step has been run: its runs wait for the next commit. `due_us` is when its state is next due, Unix us."""
    part.due = 0 if due_us is None else epoch_reaching(due_us)
    part.position = advanced(part.position, work.step)
    part.runs += runs
    part.begun = True
    part.stored = False
    part.finished = work.step.last
