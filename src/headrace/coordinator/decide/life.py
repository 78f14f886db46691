"""A job's life: which status it has, and what may make another one of it; what keeps it from getting on. Pure.

```
 creating  --CAUGHT_UP-->  created        readable from now on
 creating, created  --PAUSE-->  paused  --RESUME-->  as it was
 creating, created, paused  --LOG_LOST, UNPLANNABLE-->  quarantined  --PLANNED-->  as it was
```

`step` is the only place that says so. Whoever makes a job's status another one asks it, for the record in the catalog
as for the job in memory: an ALTER (`lifecycle.py`), a commit (`commit.py`), a lost log (`settlement.py`), planning
after a start (`planning.py`), and the simulation. What nobody may do is an assertion; what may come late, or twice,
because the outcome of a transaction was not known, leaves the status as it is.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum, auto
from typing import Final, Literal

from headrace.catalog.records import JobRecord, JobStatus
from headrace.common.lazy_dataclass import dataclass
from headrace.errors import HeadraceError

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
    """After a start, or when an epoch first needs its plan, it cannot be planned as before; or its state does not fit
    together."""
    PLANNED = auto()
    """After a start it was planned as before, which it could not be once."""


RUNNING: Final[frozenset[JobStatus]] = frozenset(("creating", "created"))
"""The statuses with which a job takes in what changes."""


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
    def runs(self) -> bool:
        """Whether it takes in what changes."""
        return self.status in RUNNING

    @property
    def serves(self) -> bool:
        """Whether it is readable, and takes in what changes."""
        return self.status == "created"

    @property
    def creating(self) -> bool:
        """Whether it is on its way to its first checkpoint that is readable."""
        return self.status == "creating"

    @property
    def paused(self) -> bool:
        """Whether somebody has paused it."""
        return self.status == "paused"

    @property
    def quarantined(self) -> bool:
        """Whether it cannot go on."""
        return self.status == "quarantined"

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


@dataclass(frozen=True, slots=True)
class Trouble:
    """What keeps a running job from getting on, and how it is tried again. Nothing of it is durable.

    Each method gives what it is from then on.
    """

    error: HeadraceError | None = None
    since_ms: int = 0
    """Since when there has been an error, whichever it is."""
    failures: int = 0
    """Failed attempts since the last one that succeeded."""
    failed_total: int = 0
    """All that has failed since the server started: who waits for a job sees by it that it has failed anew."""
    retry_at_s: float = 0.0
    """Before this moment of the monotonic clock it is not tried again."""

    def began(self, now_ms: int) -> int:
        """Since when there is an error, if there is one now."""
        return now_ms if self.error is None else self.since_ms

    def told(self, error: HeadraceError, since_ms: int) -> Trouble:
        """An error in the place of the one before, which is no failed attempt."""
        return replace(self, error=error, since_ms=since_ms)

    def failed(self, error: HeadraceError, since_ms: int, *, attempt: bool = True) -> Trouble:
        """It has failed; with an attempt of its own unless `attempt` is false."""
        failures, total = self.failures + attempt, self.failed_total + 1
        return Trouble(error, since_ms, failures, total, self.retry_at_s)

    def retry(self, at_s: float) -> Trouble:
        """It is tried again at a moment; at 0, at once."""
        return replace(self, retry_at_s=at_s)

    def without(self, error: HeadraceError) -> Trouble:
        """That error is over, if it is the present one."""
        return replace(self, error=None) if self.error is error else self

    def over(self) -> Trouble:
        """An attempt has succeeded."""
        return Trouble(failed_total=self.failed_total)


NO_TROUBLE: Final = Trouble()
"""It gets on."""


def turned(record: JobRecord, turn: Turn) -> tuple[JobRecord, tuple[Effect, ...]]:
    """A job's record after a turn of its life, and what the history is told."""
    after, effects = step(Life.of(record), turn)
    return replace(record, status=after.status), effects
