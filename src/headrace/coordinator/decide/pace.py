"""When a job may run next, where it has to stop, and how much it takes in at once: frozen states. Pure.

Of each the methods give what it is from then on. Nothing of it is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headrace.common.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """When its next epoch may begin, and its next commit be made, by the cadence of its group."""

    not_before_s: float = 0.0
    """When its next epoch may begin; moments of the monotonic clock."""
    commit_after_s: float = 0.0
    """Until when its epochs are held."""
    forced: int = 0
    """An epoch that someone waits for: the cadence does not hold it back."""

    def begun(self, next_s: float) -> Pace:
        """An epoch has begun: the next one may begin at a moment."""
        return replace(self, not_before_s=next_s)

    def committing(self, next_s: float) -> Pace:
        """What was held is committed: the next commit may follow at a moment."""
        return replace(self, commit_after_s=next_s)

    def asked(self, epoch: int) -> Pace:
        """Someone waits for an epoch."""
        return self if epoch <= self.forced else replace(self, forced=epoch)

    def at_once(self) -> Pace:
        """The cadence is another one: it counts from now on."""
        return replace(self, not_before_s=0.0, commit_after_s=0.0)


@dataclass(frozen=True, slots=True)
class Stops:
    """Where a view is to be exact, together with others."""

    epochs: frozenset[int] = frozenset()
    """Epochs at which a view below, or a read, wants this one to be exact together with its other inputs."""
    for_reads: int = 0
    """The one that a waiting read has asked for last; it takes the place of the one before."""
    asking: int = 0
    """The epoch at which this view has last asked its inputs to be exact together."""

    def added(self, epoch: int) -> Stops:
        """A view below wants it to stop there."""
        return replace(self, epochs=self.epochs | {epoch})

    def added_for_reads(self, epoch: int) -> Stops:
        """A read does, instead of where reads wanted it to stop before; not at an earlier epoch than that."""
        if epoch <= self.for_reads:
            return self
        return replace(self, epochs=self.epochs - {self.for_reads} | {epoch}, for_reads=epoch)

    def asked(self, epoch: int) -> Stops:
        """It has asked its own inputs to stop at an epoch."""
        return replace(self, asking=epoch)

    def kept(self, ahead: Callable[[int], bool]) -> Stops:
        """Those only that can still be met."""
        left = frozenset(filter(ahead, self.epochs))
        return self if left == self.epochs else replace(self, epochs=left)


@dataclass(frozen=True, slots=True)
class Portion:
    """How much a job takes in at once."""

    whole: bool = False
    """Its next epoch is taken in at one go, whatever its size: a step of it failed."""
    most_rows: int = 0
    """Most input rows of its next epoch while memory or disk is short; 0 for no limit but the configured one."""

    def all_at_once(self) -> Portion:
        """Between two steps there was a state that never existed: the epoch is taken whole."""
        return replace(self, whole=True)

    def limited(self, rows: int) -> Portion:
        """At most so many rows; 0 for no limit of its own."""
        return replace(self, most_rows=rows)

    def committed(self) -> Portion:
        """The epoch is over."""
        return replace(self, whole=False)
