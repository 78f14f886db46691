"""Watermarks as they move through a plan. Pure.

A column's *mark* is a promise about the changes of a relation, inserts and deletes alike: none that comes from now on
has a value below the mark. (A row whose value is NULL is not bound by it.) Marks are functions of the watermarks of the
relations that a view reads: monotone, so that they only ever rise as those do. All times are Unix microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from headrace.common.lazy_dataclass import dataclass

CalendarUnit = Literal["month", "quarter", "year"]
"""Units of calendar time that have no fixed length."""
WatermarkOf: TypeAlias = Callable[[int, str], "int | None"]
"""The watermark of a relation's column; None as long as there is none."""
_LOWEST_US, _HIGHEST_US = -(1 << 63), (1 << 63) - 1
"""The ends of the range of times: a mark that were to lie beyond is there, which promises no more than it may."""
_CALENDAR_US = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""The first and the last time that Python's calendar has."""
_MONTHS: dict[CalendarUnit, int] = {"month": 1, "quarter": 3, "year": 12}


@dataclass(frozen=True)
class Shift:
    """`t + us`."""

    us: int

    def __call__(self, t: int) -> int:
        return t + self.us


@dataclass(frozen=True)
class Floor:
    """The start of the interval of `width_us` in which t lies; one of them starts at `origin_us`."""

    width_us: int
    origin_us: int = 0

    def __call__(self, t: int) -> int:
        return t - (t - self.origin_us) % self.width_us


@dataclass(frozen=True)
class Truncate:
    """The start of the calendar's month, quarter or year, in UTC."""

    unit: CalendarUnit

    def __call__(self, t: int) -> int:
        if t < _CALENDAR_US[0]:
            return _LOWEST_US
        day = datetime.fromtimestamp(min(t, _CALENDAR_US[1]) // 1_000_000, UTC)
        months = _MONTHS[self.unit]
        start = datetime(day.year, (day.month - 1) // months * months + 1, 1, tzinfo=UTC)
        return int(start.timestamp()) * 1_000_000


Step: TypeAlias = Shift | Floor | Truncate


@dataclass(frozen=True)
class Chain:
    """The watermark of a relation's column, put through steps one after the other.

    Its `repr` stands in fingerprints of views, with the names of the class and of its fields: they stay as they are.
    """

    relation: int
    column: str
    steps: tuple[Step, ...] = ()

    def then(self, step: Step) -> Chain:
        """This, and then one more step."""
        if not isinstance(step, Shift):
            return replace(self, steps=(*self.steps, step))
        base, before = self.parts()
        us = before + step.us
        return replace(base, steps=(*base.steps, Shift(us))) if us else base

    def parts(self) -> tuple[Chain, int]:
        """The chain without the shift at its end, and that shift."""
        last = self.steps[-1] if self.steps else None
        return (replace(self, steps=self.steps[:-1]), last.us) if isinstance(last, Shift) else (self, 0)

    def value(self, watermark: WatermarkOf) -> int | None:
        """What it comes to; None as long as the relation has no watermark."""
        t = watermark(self.relation, self.column)
        if t is not None:
            for step in self.steps:
                t = min(max(step(t), _LOWEST_US), _HIGHEST_US)
        return t


@dataclass(frozen=True)
class LeastWatermark:
    """The least of several chains; there is none as long as one of them has no value."""

    chains: frozenset[Chain]

    def then(self, step: Step) -> LeastWatermark:
        """Each chain with one more step: which all are monotone, so that it is the step of the least."""
        return LeastWatermark(frozenset(c.then(step) for c in self.chains))

    def value(self, watermark: WatermarkOf) -> int | None:
        """The mark, given the watermarks of relations."""
        values = [c.value(watermark) for c in self.chains]
        found = [v for v in values if v is not None]
        return min(found) if len(found) == len(values) else None

    @property
    def relations(self) -> set[int]:
        """The relations that it depends on."""
        return {c.relation for c in self.chains}

    def text(self) -> str:
        """A canonical text, for fingerprints."""
        return "; ".join(sorted(repr(c) for c in self.chains))


def of_column(relation: int, column: str) -> LeastWatermark:
    """The mark of a relation's own column."""
    return LeastWatermark(frozenset({Chain(relation, column)}))


def least(marks: Iterable[LeastWatermark | None]) -> LeastWatermark | None:
    """The mark of a column into which several are put together: none where one of them has none."""
    chains: set[Chain] = set()
    for mark in marks:
        if mark is None:
            return None
        chains |= mark.chains
    return LeastWatermark(frozenset(chains)) if chains else None


@dataclass(frozen=True)
class Rest:
    """How far a time lies after the start of its interval of `width_us`, intervals starting at 0: t mod width."""

    of: LeastWatermark
    width_us: int


def minus_rest(mark: LeastWatermark, rest: Rest) -> LeastWatermark | None:
    """`(t + a) - (t + b) mod width`: what windows start at; None if the two are not of one t."""
    left, right = {c.parts() for c in mark.chains}, {c.parts() for c in rest.of.chains}
    (a, *others), (b, *more) = sorted({s for _, s in left}), sorted({s for _, s in right})
    if others or more or {c for c, _ in left} != {c for c, _ in right}:
        return None
    found = LeastWatermark(frozenset(c.then(Floor(rest.width_us, -b)) for c, _ in left))
    return found.then(Shift(a))


# ---- joins


@dataclass(frozen=True)
class Band:
    """What a join condition says of a time on the left and one on the right: `left - right` within bounds.

    `at_least_us` None: no lower bound; `at_most_us` None: no upper bound. Both 0: they are equal.
    """

    left: int
    right: int
    """Columns, by whatever names them."""
    at_least_us: int | None
    at_most_us: int | None


@dataclass(frozen=True)
class JoinMarks:
    """What the bands of a join make of the marks of its sides.

    A row of a side whose column is below its mark in `expires` meets nothing any more, and does not change.
    `output` are marks of the columns of the result.
    """

    left_expires: Mapping[int, LeastWatermark] = field(default_factory=dict)
    right_expires: Mapping[int, LeastWatermark] = field(default_factory=dict)
    output: Mapping[int, LeastWatermark] = field(default_factory=dict)


def through_join(
    bands: Sequence[Band], left: Mapping[int, LeastWatermark], right: Mapping[int, LeastWatermark]
) -> JoinMarks:
    """Marks through a join, whatever its type.

    A pair changes when one of its rows does. If the right one does, it is at its own mark or above, and then the band
    says from where on the left one is. Where a band bounds a left time from below, rows of the left that are further
    back can meet no right row that still comes.
    """
    expires: tuple[dict[int, LeastWatermark], dict[int, LeastWatermark]] = ({}, {})
    output: dict[int, LeastWatermark] = {}
    for band in bands:
        one, other = left.get(band.left), right.get(band.right)
        if one is None or other is None:
            continue
        if band.at_least_us is not None:
            reached = other.then(Shift(band.at_least_us))
            _note(band.left, one, reached, expires[0], output)
        if band.at_most_us is not None:
            reached = one.then(Shift(-band.at_most_us))
            _note(band.right, other, reached, expires[1], output)
    return JoinMarks(*expires, output)


def _note(
    column: int,
    own: LeastWatermark,
    reached: LeastWatermark,
    expires: dict[int, LeastWatermark],
    output: dict[int, LeastWatermark],
) -> None:
    """A column is bound from below by the other side's mark. The first band that does so counts."""
    both = least([own, reached])
    assert both is not None
    if column not in expires:
        expires[column], output[column] = both, both


# ---- what a view does with them


@dataclass(frozen=True)
class EventTime:
    """All that a view's plan has to do with event time."""

    relations: frozenset[int] = frozenset()
    """The relations whose watermarks count. Of sources among them, late rows are not taken in."""
    expiry: Mapping[str, LeastWatermark] = field(default_factory=dict)
    """By state table: rows below the mark are dropped."""
    closes: LeastWatermark | None = None
    """With EMIT ON WINDOW CLOSE: rows below the mark have been put out, and will not change."""
    column: str | None = None
    """The column of the view for which `closes` is the mark."""


NO_EVENT_TIME = EventTime()
