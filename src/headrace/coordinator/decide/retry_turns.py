"""Who goes first of transactions that have been refused over the same tables: each by its turn, not all at once.

A transaction that is refused is run again from its beginning. Where many want the same rows they refuse each other
again and again, and each refused run costs as much as one that commits. So who has been refused over a table asks for a
turn before its next transaction, and waits for those who have asked before. Who has not been refused asks for none.

Nobody waits for long: a turn lasts `LASTS_S` from when it has come, whether its transaction has ended or not, so a
client that does nothing, or is gone, holds up each of the others for no longer; and after `WAITS_S` a turn comes
whoever is before it, so that many such clients do not add up. A turn is asked for all tables at once
and before the transaction holds anything, and waits for those only that were asked for before: there is no circle.
Pure: times are given.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import field
from typing import Final

from headrace.common.lazy_dataclass import dataclass

LASTS_S: Final = 0.5
"""How long a turn lasts at most."""
WAITS_S: Final = 5.0
"""How long one is waited for at most."""


@dataclass(eq=False)
class RetryTurn:
    """A transaction's place among those that want the same tables."""

    tables: frozenset[int]
    until_s: float
    """When it comes at the latest."""
    since_s: float | None = None
    """When it has come; None while it waits."""

    def blocks(self, other: RetryTurn, now_s: float) -> bool:
        """Whether one that was asked for later has to wait for it."""
        over = self.since_s is not None and now_s >= self.since_s + LASTS_S
        return not over and not self.tables.isdisjoint(other.tables)


@dataclass
class RetryTurns:
    """All turns that have been asked for and have not ended, in this order. Not thread-safe."""

    _all: list[RetryTurn] = field(default_factory=list)

    def ask(self, tables: Collection[int], now_s: float) -> RetryTurn:
        """Ask for a turn over some tables."""
        turn = RetryTurn(frozenset(tables), now_s + WAITS_S)
        self._all.append(turn)
        return turn

    def has_come(self, turn: RetryTurn, now_s: float) -> bool:
        """Whether its transaction may begin; from then on it lasts."""
        waits = now_s < turn.until_s and any(t.blocks(turn, now_s) for t in self._before(turn))
        if turn.since_s is None and not waits:
            turn.since_s = now_s
        return turn.since_s is not None

    def left_s(self, turn: RetryTurn, now_s: float) -> float:
        """After how long it is worth asking again, unless another one ends before."""
        known = [t.since_s for t in self._before(turn) if t.blocks(turn, now_s) and t.since_s is not None]
        return min([turn.until_s, *(since + LASTS_S for since in known)]) - now_s

    def end(self, turn: RetryTurn) -> None:
        """Its transaction has ended, or waits no more; harmless when repeated."""
        if turn in self._all:
            self._all.remove(turn)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._all)

    def _before(self, turn: RetryTurn) -> list[RetryTurn]:
        return self._all[: self._all.index(turn)]
