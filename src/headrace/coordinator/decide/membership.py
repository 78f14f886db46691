"""A job's place in its checkpoint group: by itself, about to join, or in step with the others. Pure.

```
 APART --ADMITTED--> JOINING --TAKEN_ALONG--> IN_STEP
 APART --LEADS--> IN_STEP
 JOINING, IN_STEP --LEFT--> APART
```

A job that is created into a group of others, or moved to one, is a lane of its own until it has caught up. `step` is
the only place that says what becomes of that. Who asks it: a lane's thread (`driver.py`: ADMITTED), a commit
(`commit.py`: TAKEN_ALONG), what is decided of a whole group (`Graph.settle`: LEFT, LEADS), and the simulation. What
cannot happen is an assertion. An ALTER puts a job into another group, at whatever place its record has there.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum, auto
from typing import Final

from headrace.catalog.records import JobRecord
from headrace.common.lazy_dataclass import dataclass


class GroupPlace(Enum):
    """Where a job stands to its group."""

    APART = auto()
    """It runs by itself until it has caught up."""
    JOINING = auto()
    """It has caught up: the group's next checkpoint is the first that it takes part in."""
    IN_STEP = auto()


class Move(Enum):
    """What happens to a job's place in its group."""

    ADMITTED = auto()
    """It has caught up with the group, which has nothing under way."""
    TAKEN_ALONG = auto()
    """A checkpoint of the group of which it was a part."""
    LEFT = auto()
    """It cannot move in step any more: it is quarantined, or within another epoch, or reads one that cannot."""
    LEADS = auto()
    """Nobody moves in step who can run: with it the group begins anew.

    It may have begun an epoch by itself. The group begins the next one at the same checkpoint: only one may commit.
    """


_AFTER: Final[dict[tuple[GroupPlace, Move], GroupPlace]] = {
    (GroupPlace.APART, Move.ADMITTED): GroupPlace.JOINING,
    (GroupPlace.APART, Move.LEADS): GroupPlace.IN_STEP,
    (GroupPlace.JOINING, Move.TAKEN_ALONG): GroupPlace.IN_STEP,
    (GroupPlace.JOINING, Move.LEFT): GroupPlace.APART,
    (GroupPlace.IN_STEP, Move.TAKEN_ALONG): GroupPlace.IN_STEP,
    (GroupPlace.IN_STEP, Move.LEFT): GroupPlace.APART,
}
_COUNTED: Final = (Move.ADMITTED, Move.LEADS, Move.LEFT)
"""After these another lane runs it: what was begun before must not be committed."""


@dataclass(frozen=True, slots=True)
class Membership:
    """A job's group and its place there. Each method gives what it is from then on."""

    group: str
    """The checkpoint group: the jobs that commit together."""
    place: GroupPlace = GroupPlace.IN_STEP
    version: int = 0
    """Counts the changes of its place and its plan: an attempt that began before one of them must not commit."""

    @classmethod
    def of(cls, record: JobRecord) -> Membership:
        """As the catalog has it."""
        return cls(record.group, GroupPlace.IN_STEP if record.joined else GroupPlace.APART)

    @property
    def joined(self) -> bool:
        """Whether it moves in step with its group."""
        return self.place is not GroupPlace.APART

    @property
    def joining(self) -> bool:
        """Whether the group's next checkpoint is its first."""
        return self.place is GroupPlace.JOINING

    def altered(self, record: JobRecord) -> Membership:
        """An ALTER has made its record so; nothing changes for who stays in the group."""
        if record.group == self.group:
            return self
        return replace(Membership.of(record), version=self.version + 1)

    def replanned(self) -> Membership:
        """It has another plan, or will get one: what the one before has begun is void."""
        return replace(self, version=self.version + 1)

    def taken_back(self, before: Membership) -> Membership:
        """It is as before, since a transaction has failed; what was begun before that, or meanwhile, is void."""
        return replace(before, version=self.version + 1)


def step(membership: Membership, move: Move) -> Membership:
    """What becomes of a job's place. An assertion fails for what cannot happen there."""
    after = _AFTER.get((membership.place, move))
    assert after is not None, f"a job that is {membership.place.name} cannot be {move.name}"
    return replace(membership, place=after, version=membership.version + (move in _COUNTED))
