"""How a job takes in an epoch that is too large for one go: bounded steps, cut by key or by read task. Pure.

A step takes in a part of the change of one or more inputs. What it makes of it is durable, and tagged with the epoch
that it belongs to, but nobody else sees it before the last step of that epoch has been committed.

Tables and views are cut by ranges of `__k`, so that both halves of an update stay together, sources by a prefix of
their read tasks, input by input. Operators keep what they have seen, so each step is an increment like any other.
docs/design/0005 tells what a crash or a failure between two steps comes to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Final, TypeAlias

from headrace.catalog.records import PositionRecord
from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.decide.row_sizes import Intake
from headrace.dataflow.params import END_OF_KEYS, LOWEST_KEY
from headrace.state.schema import RunRef

MOST_PARTS: Final = 1 << 16
"""Read tasks of a range: they are all made for each step."""


@dataclass(frozen=True)
class InputProgress:
    """How much of one input has been taken in of an epoch."""

    sequence: int = 0
    """Steps that have taken something of a table; read tasks that have been taken of a source."""
    next_key: int = LOWEST_KEY
    """The smallest `__k` of a table that has not been taken."""
    parts: int = 0
    """Into how many read tasks a source's range was to be cut: the same for every step of the epoch."""
    done: bool = False
    """All of the input's change has been taken."""


@dataclass(frozen=True)
class StepPosition:
    """How much of an epoch a job has taken in, input by input. Durable between steps."""

    epoch: int
    taken: Mapping[int, InputProgress] = field(default_factory=dict)
    """By input; one that is missing has not been touched."""

    def of(self, relation: int) -> InputProgress:
        """How much of an input has been taken."""
        return self.taken.get(relation, InputProgress())

    @property
    def touched(self) -> bool:
        """Whether anything has been taken; else nothing but the epoch is settled."""
        return any(t != InputProgress() for t in self.taken.values())

    def records(self, job_id: int) -> list[PositionRecord]:
        """The stored form."""
        return [
            PositionRecord(job_id, i, self.epoch, t.sequence, t.next_key, t.parts, t.done)
            for i, t in sorted(self.taken.items())
        ]


def position_of(records: Iterable[PositionRecord]) -> StepPosition | None:
    """The inverse of `Position.records`; None where there are none."""
    found = list(records)
    if not found:
        return None
    assert len({r.epoch for r in found}) == 1, "a job takes in one epoch at a time"
    taken = {r.upstream_id: InputProgress(r.sequence, r.next_key, r.parts, r.done) for r in found}
    return StepPosition(found[0].epoch, taken)


@dataclass(frozen=True)
class KeySlice:
    """The rows of a table with `low <= __k < high`, of about `rows` rows."""

    low: int
    high: int
    rows: float

    @property
    def last(self) -> bool:
        """Whether it reaches to the end."""
        return self.high >= END_OF_KEYS

    @property
    def whole(self) -> bool:
        """Whether it is all there is."""
        return self.last and self.low == LOWEST_KEY


@dataclass(frozen=True)
class TaskSlice:
    """The read tasks `[low, high)` of a source, of about `rows` rows."""

    low: int
    high: int
    rows: float
    parts: int
    last: bool


Slice: TypeAlias = KeySlice | TaskSlice


@dataclass(frozen=True)
class TableRest:
    """What is left of a table's change: the rows of `spans` (lowest key, highest key, rows) from `low` on."""

    relation: int
    spans: tuple[tuple[int, int, float], ...]
    low: int = LOWEST_KEY
    row_bytes: float = 0.0
    """Bytes of a row; 0 if that is not known."""

    @classmethod
    def of(cls, relation: int, refs: Sequence[RunRef], low: int, at_most: int | None) -> TableRest:
        """From the runs that hold the change; `at_most` is the number of its rows where that is known.

        Keys are hashes, so the rows of a run are taken to be spread evenly over its range of keys.
        """
        stored = sum(r.rows for r in refs)
        scale = 1.0 if at_most is None or at_most >= stored else at_most / max(stored, 1)
        spans = tuple((r.k_min, r.k_max, r.rows * scale) for r in refs)
        return cls(relation, spans, low, sum(r.length for r in refs) / max(stored, 1))

    @property
    def rows(self) -> float:
        """About how many rows are left."""
        return self._between(self.low, END_OF_KEYS)

    def take(self, limit: float) -> KeySlice:
        """The next slice, of about `limit` rows; always at least one key."""
        if self.rows <= limit:
            return KeySlice(self.low, END_OF_KEYS, self.rows)
        low = max(self.low, min(s[0] for s in self.spans)) + 1
        high = max(low, max(s[1] for s in self.spans) + 1)
        while low < high:
            middle = (low + high) // 2
            if self._between(self.low, middle) >= limit:
                high = middle
            else:
                low = middle + 1
        return KeySlice(self.low, low, self._between(self.low, low))

    def _between(self, low: int, high: int) -> float:
        total = 0.0
        for k_min, k_max, rows in self.spans:
            covered = min(k_max + 1, high) - max(k_min, low)
            if covered > 0:
                total += rows * (covered / (k_max + 1 - k_min))
        return total


@dataclass(frozen=True)
class SourceRest:
    """What is left of a source's range: the tasks from `low` on, out of `tasks` that hold `total` rows in all."""

    relation: int
    tasks: tuple[object, ...]
    total: float
    parts: int
    low: int = 0
    row_bytes: float = 0.0
    """What a row counts for, bytes; 0 if that is not known."""

    @property
    def rows(self) -> float:
        """About how many rows are left."""
        return self.total * (len(self.tasks) - self.low) / max(len(self.tasks), 1)

    def take(self, limit: float) -> TaskSlice:
        """The next tasks, of about `limit` rows; always at least one, if there are any."""
        left = len(self.tasks) - self.low
        each = self.total / max(len(self.tasks), 1)
        count = left if self.rows <= limit else max(1, min(left, int(limit / each)))
        return TaskSlice(self.low, self.low + count, each * count, self.parts, count == left)


Rest: TypeAlias = TableRest | SourceRest


@dataclass(frozen=True)
class Step:
    """What a job takes in at one go: a slice of each of some inputs."""

    slices: Mapping[int, Slice]
    last: bool
    """Nothing of the epoch is left after it."""

    @property
    def rows(self) -> float:
        """About how many rows it takes in."""
        return sum(s.rows for s in self.slices.values())


def plan_step(rests: Sequence[Rest], limit: Intake) -> Step:
    """The next step: input by input as much as `limit` allows. A relation that is read twice is named once."""
    slices: dict[int, Slice] = {}
    left = limit
    for rest in rests:
        rows = left.rows_of(rest.row_bytes)
        if rows < 1 and slices:
            return Step(slices, last=False)
        found = slices[rest.relation] = rest.take(max(rows, 1))
        left = left.without(found.rows, rest.row_bytes)
        if not found.last:
            return Step(slices, last=False)
    return Step(slices, last=True)


def advanced(position: StepPosition, step: Step) -> StepPosition:
    """Where a job is after a step."""
    taken = dict(position.taken)
    for relation, s in step.slices.items():
        before = position.of(relation)
        if isinstance(s, KeySlice):
            assert s.low == before.next_key, "a position only goes forward, without a gap"
            high = min(s.high, END_OF_KEYS - 1)
            taken[relation] = InputProgress(before.sequence + 1, high, 0, s.last)
        else:
            assert s.low == before.sequence, "a position only goes forward, without a gap"
            taken[relation] = InputProgress(s.high, LOWEST_KEY, s.parts, s.last)
    return StepPosition(position.epoch, taken)


def parts_for(rows: float, limit: float, parallelism: int) -> int:
    """Into how many read tasks to cut a source's range of that many rows: enough that a step can be within `limit`."""
    return min(MOST_PARTS, parallelism * max(1, math.ceil(rows / max(limit, 1))))
