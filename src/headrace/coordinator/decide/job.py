"""A job as decisions see it: what it reads, and one frozen state for each thing that changes of it. Pure.

Whatever happens to a job is a method here, which steps one or several of these states. Nobody else assigns to them:
what may become of what is said by the states themselves (`life.py`, `membership.py`, `standing.py`, `pace.py`,
`under_way.py`), and stands in one place for the server and for the simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Final

from headrace.catalog.records import JobRecord, JobStatus
from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.decide.exact import Interval
from headrace.coordinator.decide.life import NO_TROUBLE, RUNNING, Life, Trouble, Turn
from headrace.coordinator.decide.membership import Membership, Move, step
from headrace.coordinator.decide.pace import Pace, Portion, Stops
from headrace.coordinator.decide.standing import JobAdvance, Standing
from headrace.coordinator.decide.steps import StepPosition
from headrace.coordinator.decide.under_way import Activity, CatchingUp
from headrace.errors import HeadraceError
from headrace.plan.watermark_rules import NO_EVENT_TIME, EventTime


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """What only the plan of a job tells."""

    event_time: EventTime = NO_EVENT_TIME
    temporal: bool = False
    """Its content changes as time passes, too."""
    changes_only: frozenset[int] = frozenset()
    """Inputs whose content it looks up and never reads: of them it takes in only what changes after its first epoch."""
    awaited: bool = False
    """The server has started and not planned it yet: none of this is known."""


NO_FACTS: Final = PlanFacts()
"""Nothing but rows moves it."""


@dataclass
class JobState:
    """A job as decisions see it. Who has it guards it with a lock of his own, held for each call that changes it."""

    id: int
    name: str
    upstreams: tuple[int, ...]
    tables: dict[str, int]
    """Name of a state table -> its id."""
    standing: Standing
    membership: Membership
    options: Mapping[str, str] = field(default_factory=dict)
    lookups: frozenset[int] = frozenset()
    """Inputs of which it takes in no changes: it looks up rows in them, as they are at its epochs."""
    kind_name: str = "materialized view"
    """Of what it keeps up to date, as messages spell it."""
    automatic: bool = False
    """An index that the system has made: the cadence of its group is that of the others."""
    delivers: bool = False
    """It writes whole epochs to a target outside: which epoch is next is settled before any row leaves."""
    facts: PlanFacts = NO_FACTS
    trouble: Trouble = NO_TROUBLE
    """What keeps it from getting on."""
    catching_up: CatchingUp = field(default_factory=CatchingUp)
    portion: Portion = field(default_factory=Portion)
    stops: Stops = field(default_factory=Stops)
    pace: Pace = field(default_factory=Pace)
    activity: Activity = field(default_factory=Activity)

    @property
    def in_words(self) -> str:
        """What messages call it: its kind and its name."""
        return f'{self.kind_name} "{self.name}"'

    # ---- where it stands

    @property
    def life(self) -> Life:
        """Where it stands in its life."""
        return self.standing.life

    @property
    def status(self) -> JobStatus:
        """As in the catalog."""
        return self.standing.status

    @property
    def created(self) -> bool:
        """Whether it has ever been readable."""
        return bool(self.standing.exact)

    @property
    def runnable(self) -> bool:
        """Whether its status lets it run."""
        return self.standing.status in RUNNING and not self.activity.withdrawn

    @property
    def creating(self) -> bool:
        """It is on its way to being readable."""
        return self.standing.life.creating

    @property
    def paused(self) -> bool:
        """Somebody has paused it."""
        return self.standing.life.paused

    @property
    def quarantined(self) -> bool:
        """It cannot go on."""
        return self.standing.life.quarantined

    @property
    def committed(self) -> int:
        """Its checkpoint; 0 for none."""
        return self.standing.committed

    @property
    def exact(self) -> tuple[Interval, ...]:
        """Where its checkpoints left it exact; empty until it is created."""
        return self.standing.exact

    @property
    def due(self) -> int:
        """The first epoch at which time may change its content; 0 for none."""
        return self.standing.due

    @property
    def position(self) -> StepPosition | None:
        """The durable position inside an epoch that is not taken in in full."""
        return self.standing.position

    @property
    def reads_from(self) -> int:
        """The epoch from which on it needs the logs of its inputs: 0 if it has not begun."""
        return self.standing.reads_from

    @property
    def group(self) -> str:
        """The checkpoint group: the jobs that commit together."""
        return self.membership.group

    @property
    def joined(self) -> bool:
        """It moves in step with its group. One that has not joined runs by itself until it has caught up."""
        return self.membership.joined

    @property
    def version(self) -> int:
        """An attempt that began at another one must not commit."""
        return self.membership.version

    @property
    def pending(self) -> bool:
        """It waits for a checkpoint of its lane, also without a change: to join its group, or to become readable."""
        return self.joined and bool(self.committed) and (self.membership.joining or not self.created)

    @property
    def failures(self) -> int:
        """Failed attempts since the last one that succeeded."""
        return self.trouble.failures

    @property
    def error(self) -> HeadraceError | None:
        """Why it does not get on."""
        return self.trouble.error

    @property
    def event_time(self) -> EventTime:
        """Its watermarks, as its plan says."""
        return self.facts.event_time

    @property
    def starting(self) -> bool:
        """The server has started and not planned it yet: what only its plan tells is not known."""
        return self.facts.awaited

    @property
    def whole(self) -> bool:
        """Its next epoch is taken in at one go, whatever its size."""
        return self.portion.whole

    # ---- its life, as the catalog has it by now

    def rename(self, name: str, *, automatic: bool) -> None:
        """It has another name; whether the system looks after it from now on."""
        self.name, self.automatic = name, automatic

    def turn(self, turn: Turn) -> None:
        """Take a turn in its life."""
        self.standing = self.standing.turned(turn)

    def move(self, move: Move) -> None:
        """Take another place in its group."""
        self.membership = step(self.membership, move)

    def void(self) -> None:
        """What it has begun must not be committed: it is planned anew."""
        self.membership = self.membership.replanned()

    def at(self, position: StepPosition | None) -> None:
        """Parts of an epoch are durable, or none any more."""
        self.standing = self.standing.at(position)

    def advance(self, move: JobAdvance) -> None:
        """A commit has moved it on."""
        self.standing = self.standing.advanced(move)
        self.catching_up = self.catching_up.checkpoint(created=move.created)
        self.portion = self.portion.committed()
        if move.joined:
            self.move(Move.TAKEN_ALONG)

    def learn(self, record: JobRecord, position: StepPosition | None) -> None:
        """It is known again what has become of its last commit.

        Where its checkpoint has not moved nothing is learned: the next one takes it along, be it once more.
        """
        if record.joined and self.membership.joining and record.committed_epoch > self.committed:
            self.move(Move.TAKEN_ALONG)
        self.standing = self.standing.learned(record, position)
        self.activity = self.activity.doubted(False)

    def alter(self, record: JobRecord) -> None:
        """Be as an ALTER has made its record: it is tried at once, at its new pace."""
        self.standing = self.standing.altered(record)
        self.membership = self.membership.altered(record)
        self.options = dict(record.options)
        self.retry(0.0)
        self.pace = self.pace.at_once()

    def take_back(self, standing: Standing, membership: Membership) -> None:
        """Be as before a transaction that has failed: as alive, and as far in its group."""
        self.standing = self.standing.taken_back(standing)
        self.membership = self.membership.taken_back(membership)

    # ---- trouble

    def fail(self, error: HeadraceError, since_ms: int, *, attempt: bool = True) -> None:
        """It has failed; with an attempt of its own unless `attempt` is false."""
        self.trouble = self.trouble.failed(error, since_ms, attempt=attempt)

    def tell(self, error: HeadraceError, since_ms: int) -> None:
        """There is an error, which is no failed attempt."""
        self.trouble = self.trouble.told(error, since_ms)

    def retry(self, at_s: float) -> None:
        """It is tried again at a moment; at 0, at once."""
        self.trouble = self.trouble.retry(at_s)

    def without(self, error: HeadraceError) -> None:
        """That error is over, if it is the present one."""
        self.trouble = self.trouble.without(error)

    def recover(self) -> None:
        """An attempt has succeeded."""
        self.trouble = self.trouble.over()

    # ---- when, where and how much

    def begin(self, now_s: float, next_s: float) -> None:
        """Its lane has begun an epoch; the next one may begin at a moment."""
        self.activity, self.pace = self.activity.began(now_s), self.pace.begun(next_s)

    def hold_until(self, next_s: float) -> None:
        """What was held is to be committed; the next commit may follow at a moment."""
        self.pace = self.pace.committing(next_s)

    def hurry(self, epoch: int) -> None:
        """Someone waits for it to reach an epoch."""
        self.pace = self.pace.asked(epoch)

    def repace(self) -> None:
        """The cadence is another one."""
        self.pace = self.pace.at_once()

    def stop_at(self, epoch: int) -> None:
        """A view below wants it to be exact there."""
        self.stops = self.stops.added(epoch)

    def stop_for_reads(self, epoch: int) -> None:
        """A read wants it to be exact there."""
        self.stops = self.stops.added_for_reads(epoch)

    def keep_stops(self, ahead: Callable[[int], bool]) -> None:
        """Forget where it was to stop, but for where it still can."""
        self.stops = self.stops.kept(ahead)

    def align(self, epoch: int) -> None:
        """It has asked its inputs to be exact together there."""
        self.stops = self.stops.asked(epoch)

    def take_whole(self) -> None:
        """Its next epoch is taken in at one go."""
        self.portion, self.catching_up = self.portion.all_at_once(), self.catching_up.read_all()

    def limit(self, most_rows: int) -> None:
        """Its next epoch has at most so many rows; 0 for as many as are configured."""
        self.portion = self.portion.limited(most_rows)

    # ---- what it has under way

    def begin_epoch(self) -> None:
        """An epoch has begun of which it is a part."""
        self.activity = self.activity.opened()

    def end_epoch(self) -> None:
        """That epoch is committed or given up."""
        self.activity = self.activity.ended()

    def begin_attempt(self, attempt: str, now_s: float) -> None:
        """Spark runs an attempt."""
        self.activity = self.activity.running(attempt, now_s)

    def end_attempt(self) -> None:
        """Spark runs nothing of it any more."""
        self.activity = self.activity.ran()

    def doubt(self) -> None:
        """What it was doing may have been a commit."""
        self.activity = self.activity.doubted(True)

    def withdraw(self) -> None:
        """Nothing of it may begin or commit any more."""
        self.activity = self.activity.withdrawing(True)

    def reinstate(self) -> None:
        """It is not dropped after all."""
        self.activity = self.activity.withdrawing(False)

    # ---- for people

    def says(self, text: str) -> None:
        """What it is doing now; empty for nothing in particular."""
        self.catching_up = self.catching_up.says(text)

    def read(self, rows: int, expected: int) -> None:
        """A step has read rows of its inputs' content, of so many that are expected."""
        self.catching_up = self.catching_up.read(rows, expected, self.activity.since_s)

    def read_all(self) -> None:
        """Its inputs' content has been read."""
        self.catching_up = self.catching_up.read_all()

    def count_anew(self) -> None:
        """It has been said that it does not catch up."""
        self.catching_up = self.catching_up.anew()
