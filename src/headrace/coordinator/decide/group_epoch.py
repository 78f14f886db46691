"""A group's epoch from its opening to its commit: which jobs take part, how far each is, what it has written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Generic, Literal

from headrace.catalog.state import CatalogState
from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.decide.graph import J
from headrace.coordinator.decide.steps import StepPosition
from headrace.state.schema import RunRef


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
    delivered: bool = False
    """Its changes are at the target of a sink, under the epoch's number."""
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


def note_stored(epoch: GroupEpoch[J]) -> None:
    """All steps so far have been committed."""
    for part in epoch.parts:
        part.runs, part.stored = [], True
