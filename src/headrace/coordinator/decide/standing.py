"""How far a job is, as its last commit has left it: what the catalog says of it, as decisions see it. Pure."""

from __future__ import annotations

from dataclasses import replace

from headrace.catalog.records import JobRecord, JobStatus
from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.decide.exact import Interval
from headrace.coordinator.decide.life import Life, Turn, step
from headrace.coordinator.decide.steps import StepPosition


@dataclass(frozen=True)
class JobAdvance:
    """How far one job is after a commit, and what has become of it by that."""

    committed: int
    exact: tuple[Interval, ...]
    created: bool = False
    joined: bool = False
    due: int | None = None
    """Its `due` from now on; None if that stays as it was."""

    def has_happened(self, record: JobRecord) -> bool:
        """Whether the catalog has it. A job may be created, or join its group, without another checkpoint."""
        there = record.committed_epoch >= self.committed
        return there and (record.joined or not self.joined) and (bool(record.exact) or not self.created)


@dataclass(frozen=True, slots=True)
class Standing:
    """A job's status, checkpoint and position. Each method gives what it is from then on."""

    status: JobStatus
    """As in the catalog; `life.py` says what makes another one of it."""
    committed: int = 0
    exact: tuple[Interval, ...] = ()
    """Empty until it is created."""
    due: int = 0
    """The first epoch at which time may change its content, as of its checkpoint; 0 for none."""
    position: StepPosition | None = None
    """The durable position inside an epoch that is not taken in in full."""

    @classmethod
    def of(cls, record: JobRecord, position: StepPosition | None = None) -> Standing:
        """As the catalog has it."""
        return cls(record.status, record.committed_epoch, record.exact, record.due_epoch, position)

    @property
    def life(self) -> Life:
        """Where it stands in its life."""
        return Life(self.status, bool(self.exact))

    @property
    def reads_from(self) -> int:
        """The epoch from which on it needs the logs of its inputs: 0 if it has not begun."""
        if self.committed or self.position is None:
            return self.committed
        return self.position.epoch

    def turned(self, turn: Turn) -> Standing:
        """It has taken a turn in its life."""
        return replace(self, status=step(self.life, turn)[0].status)

    def at(self, position: StepPosition | None) -> Standing:
        """A commit of parts of an epoch, or of the end of it."""
        return replace(self, position=position)

    def advanced(self, move: JobAdvance) -> Standing:
        """A commit has moved it on."""
        after = self.turned(Turn.CAUGHT_UP) if move.created else self
        due = self.due if move.due is None else move.due
        return replace(after, committed=max(self.committed, move.committed), exact=move.exact, due=due)

    def altered(self, record: JobRecord) -> Standing:
        """An ALTER has made its record so."""
        return replace(self, status=record.status)

    def taken_back(self, before: Standing) -> Standing:
        """A transaction that was to turn its life has failed."""
        return replace(self, status=before.status)

    def learned(self, record: JobRecord, position: StepPosition | None) -> Standing:
        """What the catalog says after a commit of which it was not known whether it had become durable."""
        if record.committed_epoch <= self.committed:
            return self.at(position)
        return Standing.of(record, position)
