"""A job's life: which status it has, and what may make another one of it. Pure.

```
 creating  --CAUGHT_UP-->  created        readable from now on
 creating, created  --PAUSE-->  paused  --RESUME-->  as it was
 creating, created, paused  --LOG_LOST, UNPLANNABLE-->  quarantined  --PLANNED-->  as it was
```

`step` is the only place that says so. Whoever makes a job's status another one asks it, for the record in the catalog
as for the job in memory: an ALTER (`lifecycle.py`), a commit (`commit.py`), a lost log (`driver.py`), planning after a
start (`lifecycle.py`), and the simulation. What nobody may do is an assertion; what may come late, or twice, because
the outcome of a transaction was not known, leaves the status as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final, Literal

from headrace.catalog.records import JobRecord, JobStatus

Effect = Literal["job_created", "job_paused", "job_resumed", "job_quarantined"]
"""The kind of an event that the transaction adds to the history."""


class Turn(Enum):
    """What happens to a job that may make its status another one."""

    CAUGHT_UP = auto()
    """A commit at which it has caught up with its inputs, and its group joined: it is readable."""
    PAUSE = auto()
    RESUME = auto()
    """`ALTER ... PAUSE` and `ALTER ... RESUME`."""
    LOG_LOST = auto()
    """The log of an input does not reach back to where it stands: it cannot go on."""
    UNPLANNABLE = auto()
    """After a start it cannot be planned as before, or its state does not fit together."""
    PLANNED = auto()
    """After a start it was planned as before, which it could not be once."""


@dataclass(frozen=True, slots=True)
class Life:
    """Where a job stands in its life."""

    status: JobStatus
    filled: bool
    """It has been readable once, and stays so whatever becomes of it."""

    @classmethod
    def of(cls, record: JobRecord) -> Life:
        """As the catalog has it."""
        return cls(record.status, bool(record.exact))

    @property
    def running(self) -> JobStatus:
        """The status with which it goes on, or would."""
        return "created" if self.filled else "creating"


_STAYS: Final = {
    "paused": (Turn.PAUSE, Turn.CAUGHT_UP),
    "quarantined": (Turn.PAUSE, Turn.RESUME, Turn.CAUGHT_UP, Turn.LOG_LOST, Turn.UNPLANNABLE),
}
"""What leaves a status as it is. A commit may have been on its way when the job was stopped: its rows count."""
_SAID: Final[dict[Turn, Effect]] = {
    Turn.PAUSE: "job_paused", Turn.RESUME: "job_resumed", Turn.LOG_LOST: "job_quarantined",
}  # fmt: skip
"""What is said whether or not it changes anything: somebody has asked for it, or tries it again."""
_SAID_ONCE: Final[dict[Turn, Effect]] = {Turn.CAUGHT_UP: "job_created", Turn.UNPLANNABLE: "job_quarantined"}
"""What is said only if the status becomes another one."""


def step(life: Life, turn: Turn) -> tuple[Life, tuple[Effect, ...]]:
    """What becomes of a job, and what the history is told. An assertion fails for what cannot happen to it."""
    after = Life(_status(life, turn), life.filled or turn is Turn.CAUGHT_UP)
    said = _SAID.get(turn) or (_SAID_ONCE.get(turn) if after.status != life.status else None)
    return after, () if said is None else (said,)


def _status(life: Life, turn: Turn) -> JobStatus:
    if turn in _STAYS.get(life.status, ()):
        return life.status
    match turn:
        case Turn.CAUGHT_UP:
            return "created"
        case Turn.PAUSE:
            return "paused"
        case Turn.LOG_LOST | Turn.UNPLANNABLE:
            return "quarantined"
        case Turn.PLANNED:
            assert life.status == "quarantined", f"a job that is {life.status} needs no other plan"
    return life.running


def turned(record: JobRecord, turn: Turn) -> tuple[JobRecord, tuple[Effect, ...]]:
    """A job's record after a turn of its life, and what the history is told."""
    after, effects = step(Life.of(record), turn)
    return replace(record, status=after.status), effects
