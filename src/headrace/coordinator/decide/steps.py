"""How a job takes in an epoch that is too large for one go: bounded steps, cut by key or by read task. Pure.

A step takes in a part of the change of one or more inputs. What it makes of it is durable, and tagged with the epoch
that it belongs to, but nobody else sees it before the last step of that epoch has been committed.

Tables and views are cut by ranges of `__k`, so that both halves of an update stay together, sources by ranges between
two bindings and by a prefix of a range's read tasks, input by input. Operators keep what they have seen, so each step
is an increment like any other. docs/design/0005 tells what a crash or a failure between two steps comes to.

A position in a source names what has been read: the binding up to which all is taken, the one at which the range ends
that is begun, and how many read tasks of that range. A digest of these tasks tells whether they are still cut so.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
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
    """Steps that have taken something of a table; read tasks that have been taken of a source's range."""
    next_key: int = LOWEST_KEY
    """The smallest `__k` of a table that has not been taken."""
    parts: int = 0
    """Into how many read tasks a source's range was to be cut: the same for every step of it."""
    done: bool = False
    """All of the input's change has been taken."""
    from_epoch: int = 0
    """All of a source up to its offsets at this epoch has been taken; 0 if it was not said."""
    to_epoch: int = 0
    """The epoch at whose offsets the range ends of which some has been taken; 0 if there is none."""
    digest: str = ""
    """Of the read tasks of that range that have been taken."""

    @property
    def needs(self) -> int:
        """The oldest epoch whose offsets it names, and whoever goes on needs; 0 if it names none."""
        return 0 if self.done else self.from_epoch or self.to_epoch


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
            PositionRecord(
                job_id, i, self.epoch, t.sequence, t.next_key, t.parts, t.done, t.from_epoch, t.to_epoch, t.digest
            )
            for i, t in sorted(self.taken.items())
        ]


def position_of(records: Iterable[PositionRecord]) -> StepPosition | None:
    """The inverse of `Position.records`; None where there are none."""
    found = list(records)
    if not found:
        return None
    assert len({r.epoch for r in found}) == 1, "a job takes in one epoch at a time"
    taken = {
        r.upstream_id: InputProgress(r.sequence, r.next_key, r.parts, r.done, r.from_epoch, r.to_epoch, r.digest)
        for r in found
    }
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
    def ended(self) -> bool:
        """Whether the rest that it was taken from is over with it."""
        return self.last

    @property
    def whole(self) -> bool:
        """Whether it is all there is."""
        return self.last and self.low == LOWEST_KEY


@dataclass(frozen=True)
class TaskSlice:
    """Read tasks of a source that follow each other, of about `rows` rows."""

    tasks: tuple[object, ...]
    rows: float
    start: tuple[int, int]
    """Where it begins: the epoch up to whose offsets all has been taken, and how many tasks of the range behind it."""
    reached: InputProgress
    """How far the source is after it."""

    @property
    def last(self) -> bool:
        """Whether it reaches to the end of the source's change."""
        return self.reached.done

    @property
    def ended(self) -> bool:
        """Whether the rest that it was taken from is over with it: a range, of which there may be more."""
        return not self.reached.sequence

    def then(self, later: TaskSlice) -> TaskSlice:
        """Return this slice and the one that begins where it ends as one."""
        return replace(later, tasks=self.tasks + later.tasks, rows=self.rows + later.rows, start=self.start)


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
    """What is left of a range of a source: the tasks from `low` on, out of `tasks` that hold `total` rows in all."""

    relation: int
    tasks: tuple[object, ...]
    total: float
    parts: int
    low: int = 0
    row_bytes: float = 0.0
    """What a row counts for, bytes; 0 if that is not known."""
    from_epoch: int = 0
    """The range begins at the source's offsets at this epoch; 0 for its first row."""
    to_epoch: int = 0
    """It ends at the offsets at this one."""
    final: bool = True
    """No other range of the source follows."""
    cut: bool = True
    """Its tasks are known; else it is behind what a step takes, and nobody has asked for them."""

    @property
    def rows(self) -> float:
        """About how many rows are left."""
        return self.total * (len(self.tasks) - self.low) / max(len(self.tasks), 1) if self.cut else self.total

    def take(self, limit: float) -> TaskSlice:
        """The next tasks, of about `limit` rows; always at least one, if there are any."""
        left = len(self.tasks) - self.low
        each = self.total / max(len(self.tasks), 1)
        count = left if self.rows <= limit else max(1, min(left, int(limit / each)))
        high = self.low + count
        if count == left:
            reached = InputProgress(done=self.final, from_epoch=self.to_epoch)
        else:
            digest = digest_of(self.tasks[:high])
            reached = InputProgress(high, LOWEST_KEY, self.parts, False, self.from_epoch, self.to_epoch, digest)
        return TaskSlice(self.tasks[self.low : high], each * count, (self.from_epoch, self.low), reached)


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
    """The next step: input by input, range by range, as much as `limit` allows.

    A relation that is read twice is named once, and the ranges of a source follow each other.
    """
    slices: dict[int, Slice] = {}
    left = limit
    for rest in rests:
        rows = left.rows_of(rest.row_bytes)
        if (rows < 1 and slices) or (isinstance(rest, SourceRest) and not rest.cut):
            return Step(slices, last=False)
        found = rest.take(max(rows, 1))
        left = left.without(found.rows, rest.row_bytes)
        before = slices.get(rest.relation)
        if isinstance(before, TaskSlice) and isinstance(found, TaskSlice):
            slices[rest.relation] = before.then(found)
        else:
            slices[rest.relation] = found
        if not found.ended:
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
            from_epoch, low = s.start
            assert low == before.sequence, "a position only goes forward, without a gap"
            assert before.from_epoch <= from_epoch, "a range begins where the one before has ended, or behind it"
            taken[relation] = s.reached
    return StepPosition(position.epoch, taken)


def digest_of(tasks: Sequence[object]) -> str:
    """Return what tells read tasks from any others."""
    return hashlib.sha256(json.dumps(tasks, sort_keys=True).encode()).hexdigest()[:32]


def parts_for(rows: float, limit: float, parallelism: int) -> int:
    """Into how many read tasks to cut a source's range of that many rows: enough that a step can be within `limit`."""
    return min(MOST_PARTS, parallelism * max(1, math.ceil(rows / max(limit, 1))))
