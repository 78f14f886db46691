"""Who of a checkpoint group moves in step from now on: decided in memory, then made durable, or taken back. Pure.

In that order, since a commit that comes between must find what it began in another place void already. Who asks it:
planning after a start or a loss of Spark (`planning.py`), a job that cannot go on (`lane_failures.py`), and the
simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Generic

from headrace.catalog.edits import AddEvent, Edit, Put
from headrace.catalog.state import CatalogState
from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.decide.graph import Graph, J, R
from headrace.coordinator.decide.life import Turn, turned
from headrace.coordinator.decide.membership import Membership
from headrace.coordinator.decide.standing import Standing
from headrace.errors import HeadraceError, LogLost


@dataclass
class Settlement(Generic[J]):
    """What has become of a group in memory, and what makes it durable."""

    edits: Sequence[Edit] = ()
    members: Sequence[J] = ()
    """All jobs of the group. Whoever leaves, leads or is taken back may be the first of another lane: whatever becomes
    of the transaction, each of their lanes is to have a thread."""
    before: Sequence[tuple[J, Standing, Membership]] = ()
    """Those for which it has changed something, as they were."""

    def take_back(self) -> None:
        """The transaction has failed: be as if nothing had been tried. Others may have joined the group meanwhile.

        Should it be durable all the same, that changes nothing: who has lost a log fails again, who left is alone.
        """
        for job, standing, membership in self.before:
            job.take_back(standing, membership)


def settled(graph: Graph[R, J], state: CatalogState, group: str) -> Settlement[J]:
    """Find out who moves in step with a group whose jobs have been planned."""
    members = _members(graph, group)
    before = _as_they_are(members)
    left = graph.settle(group)
    return Settlement(_leave(state, left), members, _changed(before))


def quarantined(graph: Graph[R, J], state: CatalogState, job: J, error: HeadraceError) -> Settlement[J]:
    """Stop a job that has lost a log or its plan; the others of its group go on, but for those that read it."""
    if job.id not in state.jobs:
        return Settlement()  # it has been dropped
    members = _members(graph, job.group)
    before = _as_they_are(members)
    turn = Turn.LOG_LOST if isinstance(error, LogLost) else Turn.UNPLANNABLE
    job.turn(turn)
    left = graph.settle(job.group)
    record, effects = turned(state.jobs[job.id], turn)
    text = f"{job.in_words} is quarantined: {error.message}"
    edits = _leave(state, [j for j in left if j is not job])
    edits.append(Put(replace(record, joined=job.joined)))
    edits += [AddEvent(said, job.id, text, error.detail or "") for said in effects]
    return Settlement(edits, members, _changed(before))


def _members(graph: Graph[R, J], group: str) -> list[J]:
    return [j for j in graph.jobs.values() if j.group == group]


def _as_they_are(jobs: Sequence[J]) -> list[tuple[J, Standing, Membership]]:
    return [(j, j.standing, j.membership) for j in jobs]


def _changed(before: Sequence[tuple[J, Standing, Membership]]) -> list[tuple[J, Standing, Membership]]:
    return [(j, s, m) for j, s, m in before if (j.standing, j.membership) != (s, m)]


def _leave(state: CatalogState, left: Sequence[J]) -> list[Edit]:
    """Note who does not move in step any more. Who leads is noted by its next checkpoint."""
    records = [state.jobs[j.id] for j in left if j.id in state.jobs]
    return [Put(replace(record, joined=False)) for record in records if record.joined]
