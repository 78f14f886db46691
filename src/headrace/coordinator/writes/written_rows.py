"""Changes of single rows: operations that look rows up by key, and what they come to."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple, TypeAlias

from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.writes.layout import Key, Row
from headrace.errors import StatementError


class FoundRow(NamedTuple):
    """The outcome of looking a key up: its `__k`, and its row if there is one."""

    k: int
    """The key's `__k`."""
    row: Row | None


class Net(NamedTuple):
    """The net change of one row: before and after, None where there is none."""

    k: int
    old: Row | None
    new: Row | None


_K = operator.itemgetter(0)
Lookup: TypeAlias = Callable[[Key], "FoundRow"]
"""The row of a key as the operation finds it. Raises `KeyError` for a key that was not announced."""


@dataclass(slots=True)
class Effect:
    """What an operation does: rows by key, rows of a table without one, and what its client learns."""

    changed: dict[Key, Net] = field(default_factory=dict)
    added: list[Row] = field(default_factory=list)
    inserted: int = 0
    deleted: int = 0
    affected: list[Row] = field(default_factory=list)
    """The rows of a RETURNING list."""


class RowOperation(NamedTuple):
    """A change of rows whose keys are known beforehand; `run` decides by the rows that are there. Pure.

    `run` raises a `DataError` where a value does not fit: then nothing of the operation happens.
    """

    table_id: int
    keys: tuple[Key, ...]
    run: Callable[[Lookup], Effect]


class RowChanges:
    """The net change of a table's rows, one operation after another."""

    __slots__ = ("added", "changed")

    def __init__(self) -> None:
        self.changed: dict[Key, Net] = {}
        self.added: list[Row] = []

    def __bool__(self) -> bool:
        return bool(self.changed or self.added)

    def add(self, effect: Effect) -> None:
        """Take in one more operation, which saw the rows as they are after those before."""
        changed = self.changed
        for key, net in effect.changed.items():
            before = changed.get(key)
            changed[key] = net if before is None else Net(net.k, before.old, net.new)
        if effect.added:
            self.added += effect.added

    def weighted(self) -> tuple[list[Row], list[int], list[int] | None]:
        """The change as rows with weights, which have to be consolidated; first those by key, ordered by `__k`.

        With the `__k` of each row; None where it is not known of all.
        """
        rows: list[Row] = []
        weights: list[int] = []
        hashes: list[int] = []
        for k, old, new in sorted(self.changed.values(), key=_K):
            # What is equal is for the state to say: to Python 0.0 and -0.0 are, and what it left out would be lost.
            if old is not new:
                if old is not None:
                    rows.append(old)
                    weights.append(-1)
                    hashes.append(k)
                if new is not None:
                    rows.append(new)
                    weights.append(1)
                    hashes.append(k)
        if not self.added:
            return rows, weights, hashes
        return rows + self.added, weights + [1] * len(self.added), None

    def __len__(self) -> int:
        return len(self.changed) + len(self.added)


def insert_rows(
    rows: Sequence[Row], keys: Sequence[Key], *, ignore: bool
) -> Callable[[Lookup], Effect]:  # fmt: skip
    """Insert rows of a table with a primary key: over a row with the same key, or with `ignore` beside it."""

    def run(lookup: Lookup) -> Effect:
        changed: dict[Key, Net] = {}
        affected: list[Row] = []
        deleted = 0
        for key, row in zip(keys, rows):
            before = changed.get(key)
            if before is not None:
                k, old, there = before
            else:
                k, old = lookup(key)
                there = old
            if there is None or not ignore:
                changed[key] = Net(k, old, row)
                affected.append(row)
                deleted += before is None and old is not None
        return Effect(changed, [], len(changed), deleted, affected)

    return run


def upsert_rows(
    rows: Sequence[Row], keys: Sequence[Key], changed: Callable[[Row, Row], Row | None]
) -> Callable[[Lookup], Effect]:  # fmt: skip
    """Insert rows of a table with a primary key; a row that is there becomes what `changed` makes of both, or stays."""

    def run(lookup: Lookup) -> Effect:
        changes: dict[Key, Net] = {}
        deleted = 0
        for key, row in zip(keys, rows):
            if key in changes:
                raise affected_twice()
            k, old = lookup(key)
            new = row if old is None else changed(old, row)
            if new is not None:
                changes[key] = Net(k, old, new)
                deleted += old is not None
        affected = [net.new for net in changes.values() if net.new is not None]
        return Effect(changes, [], len(changes), deleted, affected)

    return run


def affected_twice() -> StatementError:
    """The error for a row that one INSERT would insert or change twice."""
    return StatementError(
        "ON CONFLICT DO UPDATE command cannot affect row a second time", sqlstate="21000",
        hint="Ensure that no rows proposed for insertion within the same command have duplicate constrained values.",
    )  # fmt: skip


def append_rows(rows: Sequence[Row]) -> Callable[[Lookup], Effect]:
    """Insert rows of a table without a primary key."""

    def run(_: Lookup) -> Effect:
        return Effect(added=list(rows), inserted=len(rows), affected=list(rows))

    return run


def change_row(
    key: Key, matches: Callable[[Row], bool], changed: Callable[[Row], Row | None]
) -> Callable[[Lookup], Effect]:  # fmt: skip
    """Replace or remove the row with a key, if there is one and it matches. The key itself stays as it is."""

    def run(lookup: Lookup) -> Effect:
        found = lookup(key)
        if found.row is None or not matches(found.row):
            return Effect()
        new = changed(found.row)
        return Effect(
            {key: Net(found.k, found.row, new)}, [], 0 if new is None else 1, 1, [found.row if new is None else new]
        )

    return run


def chained(layers: Sequence[Mapping[Key, Net]], base: Lookup) -> Lookup:
    """Look a key up in the newest of several layers of changes that has it, or else in what they are made to."""

    def lookup(key: Key) -> FoundRow:
        for layer in reversed(layers):
            net = layer.get(key)
            if net is not None:
                return FoundRow(net.k, net.new)
        return base(key)

    return lookup
