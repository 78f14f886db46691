"""When a table of a shared slot begins, what it is bound to next, and how far the slot may be moved on. No I/O.

All tables of a slot are bound to one place in the log by one tick, so no transaction is ever seen in one of them and
not in another. A table that has nothing new up to there keeps its binding: it says the same.

A table that is added reads its content with a plain query, whenever its reader comes to it, and as often as that
fails. For nothing to be lost, its changes are taken in from a place S in the log on, such that

- whatever commits behind S is published with all of its changes: no transaction that was under way when the table
  came into the publication ends behind S, and
- whatever has committed up to S is in the content: no transaction that was under way when S was chosen is still not
  over when the content is read, as one may be that waits for a synchronous standby.

So it waits twice until all transactions are over that were under way (`Joining`). What its content has that commits
behind S is said by its changes once more, and outranks it. So from the first binding that lies behind the reading of
its content the table is what it was at that place in the log, and until then nobody sees it (`Source.whole`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.base import EMPTIED, Binding, FollowingTable, Offsets
from headrace.connectors.postgres.stretch import Stretch

LSN, CAUGHT_UP, TABLE = "lsn", "caught_up", "table"
"""In offsets: the place in the log, whether it lies behind the reading of the content, and the oid of the table.

And `EMPTIED`, where the table was truncated: the place at which it was last.
"""
SETTLES: Final = "settles"
"""In offsets of content: whether it may lack rows that were there at one moment, for it is read in several parts, at
moments of their own, or rows with errors are left out of it. A value of such a row that its changes leave out is asked
for when they are read, and is of that moment. So it is in the offsets behind, too: nobody sees what is up to there
before the next binding, which lies behind all that was asked."""
COLUMNS = "columns"
"""In offsets, where they have it: the table's columns as they were when it began (`shapes.Stored`)."""
BLOCKS, FILE, ROWS, SIZE = "blocks", "file", "rows", "size"
"""In the offsets of content: of how many blocks it was, and of which file; rows and bytes (`TableFile`)."""
QUIET_BYTES: Final = 1 << 20
"""So much of the log without a change of any table moves the slot on, too."""


@dataclass(frozen=True)
class Transactions:
    """Those of a PostgreSQL server as they are now."""

    oldest: int
    """All that have a smaller number are over."""
    next: int
    """A number above those of all that are under way. It is one that was given out for this where a table waits: the
    end of a snapshot may lie below the number of a transaction that runs.
    """


@dataclass(frozen=True)
class Joining:
    """A table that waits for transactions to be over."""

    before: int
    """Those with smaller numbers are waited for."""
    since: int | None = None
    """The place in the log from which its changes are taken in, once that is chosen."""

    def step(self, now: Transactions, end: int, later: Transactions) -> Joining:
        """What becomes of it, where the log ended at `end` after `now` and before `later`."""
        if self.since is None and now.oldest >= self.before:
            return Joining(later.next, end)
        return self

    def is_over(self, now: Transactions) -> bool:
        """Whether its content may be read."""
        return self.since is not None and now.oldest >= self.before


@dataclass(frozen=True)
class SharedTables:
    """The tables of a slot that are being bound."""

    following: Mapping[int, FollowingTable]
    joining: Mapping[int, Joining]
    """Those that have no binding yet."""
    read: Mapping[int, int]
    """Of those that nobody may see yet, all of which has been taken in that is bound: a place behind its reading."""

    def holds(self, bound: int) -> int:
        """Up to where the slot may be moved, of which all is bound up to `bound`."""
        waiting = [j.since for j in self.joining.values() if j.since is not None]
        return min([bound, *waiting, *(_needed(f, bound) for f in self.following.values() if f.after)])

    def bindings(self, found: Stretch) -> dict[int, Binding]:
        """The new bindings of tables that have one, to the end of a stretch."""
        made: dict[int, Binding] = {}
        for number, follower in self.following.items():
            if not follower.after:
                continue
            low, table = follower.after[LSN], follower.after[TABLE]
            count = found.count(table, low)
            due = count > 0 if is_settled(follower.after) else found.high >= self.read.get(number, found.high + 1)
            if due:
                offsets = {LSN: found.high, TABLE: table, **carried(follower.after)}
                emptied = found.emptied(table, low)
                made[number] = Binding(offsets | since_emptied(follower.after, emptied), count, False)
        return made


def is_settled(after: Offsets) -> bool:
    """Whether all that is up to there is of that moment."""
    return bool(after.get(CAUGHT_UP, True)) and not after.get(SETTLES)


def carried(after: Offsets) -> Offsets:
    """What the next offsets say, wherever they are: the table's columns when it began, and what is left to settle."""
    began = {COLUMNS: after[COLUMNS]} if COLUMNS in after else {}
    settles = {SETTLES: True} if after.get(SETTLES) and not after[CAUGHT_UP] else {}
    return {CAUGHT_UP: True, **began, **settles}


def since_emptied(after: Offsets, emptied: int) -> Offsets:
    """What offsets say of truncations, after others, where there was one at a place, or none (0)."""
    last = max(emptied, int(after.get(EMPTIED, 0)))
    return {EMPTIED: last} if last else {}


def _needed(follower: FollowingTable, bound: int) -> int:
    """The place behind which a table still needs the log."""
    after, taken = follower.after, follower.taken
    if not after[CAUGHT_UP]:
        return int(after[LSN])
    if taken is None:  # one of its readers has not begun: nobody knows from where on it will need it
        return 0
    return bound if taken == after and is_settled(after) else int(taken[LSN])
