"""What a job has under way, and how far it is on the way to its first checkpoint: frozen states. Pure.

Of each the methods give what it is from then on. Nothing of it is durable.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.common.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Activity:
    """The epochs and attempts of a job that have begun and are not over."""

    epochs: int = 0
    """Epochs that it is part of, that have begun and are neither committed nor given up."""
    attempt: str | None = None
    """The attempt that Spark runs at present."""
    since_s: float = 0.0
    """When that began, or the epoch; the monotonic clock's."""
    unsure: bool = False
    """What it has committed last may be durable without being known here: that is learned before it goes on."""
    withdrawn: bool = False
    """It is being dropped, or the server stops: nothing of it may begin or commit any more."""

    def opened(self) -> Activity:
        """An epoch has begun that it is part of."""
        return replace(self, epochs=self.epochs + 1)

    def ended(self) -> Activity:
        """One of them is committed or given up."""
        assert self.epochs, "an epoch ends once"
        return replace(self, epochs=self.epochs - 1)

    def began(self, now_s: float) -> Activity:
        """Its lane has begun an epoch."""
        return replace(self, since_s=now_s)

    def running(self, attempt: str, now_s: float) -> Activity:
        """Spark runs an attempt."""
        return replace(self, attempt=attempt, since_s=now_s)

    def doubted(self, unsure: bool) -> Activity:
        """It is not known, or known again, what has become of its last commit."""
        return replace(self, unsure=unsure)

    def withdrawing(self, withdrawn: bool) -> Activity:
        """It is to begin nothing any more, or may again."""
        return replace(self, withdrawn=withdrawn)

    def ran(self) -> Activity:
        """Spark runs nothing of it any more."""
        return replace(self, attempt=None)


@dataclass(frozen=True, slots=True)
class FillProgress:
    """How much a view that is being created has read of what its inputs hold. For people: nothing is decided by it."""

    rows_done: int
    rows_expected: int
    since_s: float

    def read(self, rows: int) -> FillProgress:
        """A step has read more."""
        done = self.rows_done + rows
        return replace(self, rows_done=done, rows_expected=max(self.rows_expected, done))

    def rate(self, now_s: float) -> float:
        """Rows per second."""
        return self.rows_done / max(now_s - self.since_s, 1e-3)

    def remaining_ms(self, now_s: float) -> int | None:
        """Milliseconds to go at the present rate; None if that cannot be told."""
        rate = self.rate(now_s)
        return round((self.rows_expected - self.rows_done) / rate * 1000) if rate > 0 else None


@dataclass(frozen=True, slots=True)
class CatchingUp:
    """How a job gets on that is being created, or has to catch up with its inputs."""

    rounds: int = 0
    """Checkpoints since it began to catch up."""
    reading: FillProgress | None = None
    """How much of its inputs' content it has read, while it is being created."""
    text: str = ""
    """What it is doing, for people."""

    def checkpoint(self, *, created: bool) -> CatchingUp:
        """It has been committed; once it is created it has caught up."""
        return replace(self, rounds=0 if created else self.rounds + 1)

    def anew(self) -> CatchingUp:
        """It has been said that it does not catch up: the count begins again."""
        return replace(self, rounds=0)

    def says(self, text: str) -> CatchingUp:
        """What it is doing now."""
        return replace(self, text=text)

    def read(self, rows: int, expected: int, since_s: float) -> CatchingUp:
        """A step has read rows of its inputs' content, of so many that are expected if it is the first."""
        first = FillProgress(rows, max(rows, expected), since_s)
        return replace(self, reading=first if self.reading is None else self.reading.read(rows))

    def read_all(self) -> CatchingUp:
        """It is created, or begins anew: nothing is being read."""
        return replace(self, reading=None)
