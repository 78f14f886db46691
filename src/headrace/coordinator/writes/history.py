"""Which keys of which tables changed when: what the reads of a transaction are checked against before it commits.

Optimistic concurrency control with backward validation (Kung and Robinson, "On Optimistic Methods for Concurrency
Control", 1981): a transaction may commit if nothing that it has read has changed since its snapshot. Then it is as if
it had run as a whole at the moment of its commit, so the order of commits is a serial order.

It remembers the newest keys one by one, and of larger changes only that there were some: it errs towards refusing. It
also knows the runs that hold nothing but changes of keys that it remembers, also through merges: a key that it does
not know is looked up without them, which with many small runs a second is nearly all of them (`stored.py`). A single
statement that was refused is run again behind a gate (`gates.py`): others' writes to its tables wait until it has
committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from headrace.catalog.records import run_id
from headrace.common.lazy_dataclass import dataclass
from headrace.state.schema import RunRef

KEYS_KEPT = 200_000
"""Changed keys that are remembered one by one, of all tables together."""
KEYS_OF_CHANGE = 10_000
"""Keys of one change that are remembered one by one; of a larger change only that there was one."""


@dataclass
class ReadSet:
    """What a transaction has read of tables: some as a whole, of others the rows with some keys, by their `__k`."""

    tables: set[int] = field(default_factory=set)
    keys: dict[int, set[int]] = field(default_factory=dict)

    def add_keys(self, table_id: int, hashes: Iterable[int]) -> None:
        """Note rows that were looked up, also where there was none."""
        self.keys.setdefault(table_id, set()).update(hashes)


class WriteHistory:
    """The newest changes of all tables, by key as far as they are remembered so. Not thread-safe.

    It may say that a key has changed which has not, where too much has changed to know; never the other way round.
    """

    def __init__(self, keys_kept: int = KEYS_KEPT) -> None:
        self._keys_kept = keys_kept
        self._last: dict[int, int] = {}
        """Table -> the epoch of its last change."""
        self._unknown: dict[int, int] = {}
        """Table -> the epoch of its last change whose keys are not known (any more)."""
        self._keys: dict[int, dict[int, int]] = {}
        """Table -> `__k` -> the epoch of the last change of a row with that key."""
        self._fresh: dict[int, dict[str, int]] = {}
        """Table -> id of a run -> the lowest epoch of a change in it; all keys in it were known when it was noted."""
        self._older: dict[int, tuple[Sequence[RunRef], int, list[RunRef]]] = {}
        """Table -> what `older` was asked last, as of which unknown change, and what it said."""
        self._order: deque[tuple[int, int, tuple[int, ...]]] = deque()
        self._count = 0

    def note(self, table_id: int, epoch: int, hashes: Iterable[int] | None, runs: Iterable[str] = ()) -> None:
        """A table has changed at an epoch, above all before: rows with these `__k`, or None if that is not known.

        `runs` are the ids of the runs that hold the change and nothing else.
        """
        self._last[table_id] = max(epoch, self._last.get(table_id, 0))
        keys = None if hashes is None else tuple(hashes)
        if keys is None or len(keys) > KEYS_OF_CHANGE:
            self._unknown[table_id] = max(epoch, self._unknown.get(table_id, 0))
            return
        self._keys.setdefault(table_id, {}).update(dict.fromkeys(keys, epoch))
        self._fresh.setdefault(table_id, {}).update(dict.fromkeys(runs, epoch))
        self._order.append((epoch, table_id, keys))
        self._count += len(keys)
        while self._count > self._keys_kept:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        epoch, table_id, keys = self._order.popleft()
        self._count -= len(keys)
        known = self._keys.get(table_id, {})
        for key in keys:
            if known.get(key) == epoch:
                del known[key]
        self._unknown[table_id] = max(epoch, self._unknown.get(table_id, 0))

    def forget(self, table_id: int) -> None:
        """Forgets a table that was dropped."""
        for of in (self._last, self._unknown, self._keys, self._fresh, self._older):
            of.pop(table_id, None)  # type: ignore[attr-defined]

    def merged(self, table_id: int, runs: Iterable[str], into: Iterable[str]) -> None:
        """Runs of a table, by their ids, have been merged into others, which hold nothing else."""
        fresh = self._fresh.get(table_id, {})
        lowest = min((fresh.pop(run, 0) for run in runs), default=0)
        if lowest:
            fresh.update(dict.fromkeys(into, lowest))

    def older(self, table_id: int, refs: Sequence[RunRef]) -> list[RunRef]:
        """The runs without those that hold nothing but changes of keys that `knows` knows."""
        unknown = self._unknown.get(table_id, 0)
        last = self._older.get(table_id)
        if last is not None and last[0] is refs and last[1] == unknown:
            return last[2]  # of what has come since, these runs hold nothing
        fresh = self._fresh.get(table_id, {})
        found = [r for r in refs if fresh.get(run_id(r), 0) <= unknown]
        self._older[table_id] = refs, unknown, found
        return found

    def knows(self, table_id: int, k: int) -> bool:
        """Whether a row with this `__k` is among the newest changes that are remembered one by one."""
        known = self._keys.get(table_id)
        return known is not None and k in known

    def last_change(self, table_id: int) -> int:
        """The epoch of a table's last change; 0 if none was noted."""
        return self._last.get(table_id, 0)

    def changed(self, table_id: int, since: int) -> bool:
        """Whether anything of a table has changed after an epoch."""
        return self._last.get(table_id, 0) > since

    def key_changed(self, table_id: int, k: int, since: int) -> bool:
        """Whether a row with this `__k` has changed after an epoch."""
        if self._last.get(table_id, 0) <= since:
            return False
        return self._unknown.get(table_id, 0) > since or self._keys.get(table_id, {}).get(k, 0) > since

    def conflict(self, reads: ReadSet, since: int) -> int | None:
        """A table of which something that was read has changed after an epoch; None if there is none."""
        for table_id in reads.tables:
            if self.changed(table_id, since):
                return table_id
        return next((t for t, keys in reads.keys.items() if self._any_changed(t, keys, since)), None)

    def _any_changed(self, table_id: int, keys: Iterable[int], since: int) -> bool:
        return self.changed(table_id, since) and any(self.key_changed(table_id, k, since) for k in keys)


def touches(reads: ReadSet, changed: Mapping[int, Touched]) -> int | None:
    """A table of which something that was read is among the changes of others; None if there is none."""
    for table_id in reads.tables:
        if table_id in changed and changed[table_id].anything:
            return table_id
    for table_id, keys in reads.keys.items():
        touched = changed.get(table_id)
        if touched is not None and touched.anything and (touched.everything or not keys.isdisjoint(touched.keys)):
            return table_id
    return None


@dataclass
class Touched:
    """What the transactions of a group have changed of a table so far."""

    keys: set[int] = field(default_factory=set)
    everything: bool = False
    """Whether any key may have changed."""

    @property
    def anything(self) -> bool:
        """Whether there is a change at all."""
        return self.everything or bool(self.keys)

    def add(self, hashes: Iterable[int], count: int) -> None:
        """Note `count` keys; too many to remember count for all."""
        if count > KEYS_OF_CHANGE:
            self.everything = True
        else:
            self.keys.update(hashes)
