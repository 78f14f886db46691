"""The rows that tables had before a group or a transaction: their newest runs, pinned, and look-ups of keys in them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.run.epochs import EpochClock
from headrace.coordinator.run.live_state import LiveRelation
from headrace.coordinator.run.storage import Storage
from headrace.coordinator.writes.group import find_rows
from headrace.coordinator.writes.holds import Holds
from headrace.coordinator.writes.layout import Key, Row, RowLayout, value_reader
from headrace.coordinator.writes.written_rows import FoundRow
from headrace.errors import CorruptObject
from headrace.state.arrangement import Arrangement
from headrace.state.run import OPEN_RUNS, Run
from headrace.state.schema import RunRef
from headrace.state.stores import Root

LOOKS = 500
"""Keys, times runs, up to which each key is looked for by itself: arrays of them cost as much as some hundred looks."""
_TRIES = 4
"""How often the moment is looked for at which a table's runs do not change."""
_VERSIONS_OF_KEY = 16
"""Stored rows of one key up to which it is looked for by itself."""


@dataclass(eq=False)
class TableVersion:
    """A table's runs at some moment; one pin for all that use it."""

    members: object
    """What the catalog had then: the same thing as long as the table has the same runs."""
    refs: tuple[RunRef, ...]
    token: int
    users: int = 0


class TableVersions:
    """The newest runs of tables, each pinned once until nobody uses them and there are newer ones. Thread-safe.

    `catalog.reading` is entered before the lock.
    """

    def __init__(self, storage: Storage, epochs: EpochClock) -> None:
        self._storage = storage
        self._epochs = epochs
        self._lock = threading.Lock()
        self._current: dict[int, TableVersion] = {}

    def hold(self, relation: LiveRelation, held: ExitStack | Holds) -> tuple[RunRef, ...]:
        """A table's newest runs, kept from vacuum until the stack ends."""
        version = self._unchanged(relation) or self._newest(relation)
        held.callback(self._release, relation.id, version)
        return version.refs

    def hold_now(self, relation: LiveRelation, held: ExitStack) -> tuple[tuple[RunRef, ...], int] | None:
        """A table's runs, and the newest complete epoch, which they hold as it is; kept until the stack ends.

        None where they change too often to find such a moment.
        """
        storage = self._storage
        for _ in range(_TRIES):
            version = self._unchanged(relation) or self._newest(relation)
            epoch = self._epochs.complete
            # What is complete is in the catalog: as long as that has these runs, they have all up to the epoch, and
            # nothing that the epoch tells from later ones has been merged.
            if storage.catalog.settled and storage.catalog.image.members(relation.state_table) is version.members:
                held.callback(self._release, relation.id, version)
                return version.refs, epoch
            self._release(relation.id, version)
        return None

    def _unchanged(self, relation: LiveRelation) -> TableVersion | None:
        """The version at hand, if the catalog is known to have no other."""
        catalog = self._storage.catalog
        if not catalog.settled:
            return None
        members = catalog.image.members(relation.state_table)
        with self._lock:
            version = self._current.get(relation.id)
            if version is None or version.members is not members:
                return None
            version.users += 1
            return version

    def _newest(self, relation: LiveRelation) -> TableVersion:
        storage = self._storage
        with storage.catalog.reading() as state, self._lock:
            members, old = state.members(relation.state_table), self._current.get(relation.id)
            if old is not None and old.members is members:
                old.users += 1
                return old
            refs = tuple([r.ref for r in state.runs_of(relation.state_table)])
            token = storage.pins.pin((), 0, {r.path for r in refs})
            self._current[relation.id] = new = TableVersion(members, refs, token, 1)
            if old is not None and not old.users:
                storage.pins.unpin(old.token)
            return new

    def _release(self, table_id: int, version: TableVersion) -> None:
        with self._lock:
            version.users -= 1
            if not version.users and self._current.get(table_id) is not version:
                self._storage.pins.unpin(version.token)

    def tidy(self) -> None:
        """Let go of what nobody uses at present."""
        with self._lock:
            for table_id, version in list(self._current.items()):
                if not version.users:
                    del self._current[table_id]
                    self._storage.pins.unpin(version.token)


class OpenRun:
    """An open run of a table, and what reads rows of it one by one. Made once for each run."""

    def __init__(self, run: Run, layout: RowLayout) -> None:
        self.run = run
        self.ref = run.ref
        self._layout = layout
        self._width = layout.schema.width
        self.has_epochs = len(run.arrow_schema) > self._width
        """Whether each row has an epoch of its own."""
        self._readers: dict[int, tuple[Callable[[int], Row], Callable[[int], int], Callable[[int], int] | None]] = {}
        """Of a batch: what reads its rows, their weights, and their epochs."""

    def _reader(self, i: int) -> Any:
        found = self._readers.get(i)
        if found is None:
            batch = self.run.batch(i)
            weight = value_reader(batch.column(self._width - 1))
            epoch = value_reader(batch.column(self._width)) if self.has_epochs else None
            found = self._readers[i] = self._layout.reader(batch), weight, epoch
        return found

    def rows(self, k: int, as_of: int | None) -> list[tuple[Row, int]] | None:
        """The rows with a `__k` and their weights, as of an epoch or all; None if they are many."""
        places = self.run.places(k, _VERSIONS_OF_KEY)
        if places is None:
            return None
        found: list[tuple[Row, int]] = []
        for i, at in places:
            row, weight, epoch = self._reader(i)
            if as_of is None or epoch is None or epoch(at) <= as_of:
                found.append((row(at), weight(at)))
        return found


class Points:
    """Looks few primary keys up in the runs of a table, without arrays."""

    def __init__(self, layout: RowLayout, refs: Sequence[RunRef], runs: Sequence[OpenRun]) -> None:
        self.layout = layout
        self.refs = refs
        self.runs = runs

    def find(self, key: Key, k: int, as_of: int | None) -> FoundRow | None:
        """The row of a key with its `__k`; None where that takes more than a look."""
        stored: list[tuple[Row, int]] = []
        for run in self.runs:
            ref = run.ref
            if ref.k_min <= k <= ref.k_max and (as_of is None or ref.epoch_lo <= as_of):
                found = run.rows(k, as_of)
                if found is None:
                    return None
                stored += found
        if not stored:
            return FoundRow(k, None)
        if any(self.layout.key_of(row) != key for row, _ in stored):
            return None  # another key of the same hash
        if len(stored) == 1:
            row, weight = stored[0]
            return FoundRow(k, row) if weight == 1 else None
        return _net(k, stored)


def _net(k: int, stored: Sequence[tuple[Row, int]]) -> FoundRow | None:
    """The row of a key that is left of several with weights; None where Python's equality may not tell them apart.

    A merge may raise the epoch of a row above that of a later change, so only the weights tell which row is left.
    """
    weights: dict[Row, int] = {}
    for row, weight in stored:
        if any(type(value) is float and (value == 0.0 or value != value) for value in row):
            return None  # 0.0 equals -0.0, and NaN nothing
        weights[row] = weights.get(row, 0) + weight
    left = [(row, weight) for row, weight in weights.items() if weight]
    if not left:
        return FoundRow(k, None)
    return FoundRow(k, left[0][0]) if len(left) == 1 and left[0][1] == 1 else None


def _place(ref: RunRef) -> tuple[str, int]:
    return ref.path, ref.offset


class StoredRows:
    """Look-ups of primary keys in tables' runs. Thread-safe, but for `forget` and `tidy`, which may come any time."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._points: dict[int, tuple[Points, ...]] = {}
        """Of each table what was used last, and before: keys that changed lately are looked for in more runs."""

    def find(
        self, table_id: int, layout: RowLayout, refs: Sequence[RunRef], keys: Sequence[tuple[Key, int]],
        as_of: int | None,
    ) -> dict[Key, FoundRow]:  # fmt: skip
        """The rows of keys, given with their `__k`, in these runs, as of an epoch or all that they hold.

        Raises `CorruptObject`.
        """
        if not keys:
            return {}
        if not refs:
            return {key: FoundRow(k, None) for key, k in keys}
        found: dict[Key, FoundRow] = {}
        if len(keys) * len(refs) <= LOOKS:
            try:
                points = self._points_of(table_id, layout, refs)
                for key, k in keys:
                    row = points.find(key, k, as_of)
                    if row is not None:
                        found[key] = row
            except CorruptObject:
                self.forget(table_id)  # there may be a better copy of the run
                raise
        left = [key for key, _ in keys if key not in found]
        if left:
            arrangement = Arrangement(layout.schema, refs, self._root, as_of=as_of)
            found |= find_rows(layout, arrangement.fetch, left)
        return found

    def _points_of(self, table_id: int, layout: RowLayout, refs: Sequence[RunRef]) -> Points:
        """These runs, opened: most of them are those of the look-up before."""
        wanted, before = list(refs), self._points.get(table_id, ())
        for points in before:
            if points.layout is layout and points.refs == wanted:
                return points
        known = {_place(run.ref): run for points in reversed(before) if points.layout is layout for run in points.runs}
        new = [ref for ref in wanted if (run := known.get(_place(ref))) is None or run.ref != ref or run.run.damaged]
        opened = zip(new, OPEN_RUNS.get_all(self._root, new))
        known |= {_place(ref): OpenRun(run, layout) for ref, run in opened}
        points = Points(layout, wanted, [known[_place(ref)] for ref in wanted])
        self._points[table_id] = (points, *before[:1])
        return points

    def forget(self, table_id: int) -> None:
        """Forgets a table that was dropped."""
        self._points.pop(table_id, None)

    def tidy(self) -> None:
        """Let go of runs that are open: they may have been merged away."""
        self._points.clear()
