"""What Catalyst's expressions make of marks, and what join conditions say of times on both sides.

The marks themselves, and what joins do to them, are in `watermarks`; what an operator does to the marks of its input
is said by its node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TypeAlias

from headrace.common.lazy_dataclass import dataclass
from headrace.plan.catalyst.expressions import Attribute, Expr, Literal, Named
from headrace.plan.catalyst.kinds import GetStructField
from headrace.plan.guards import bare
from headrace.plan.watermark_rules import Band, Floor, LeastWatermark, Rest, Shift, Step, Truncate, least, minus_rest

Place: TypeAlias = int | tuple[int, int]
"""A column by its expression id, or one field of a struct column: id and position."""
Marks: TypeAlias = dict[Place, LeastWatermark]

TIMES = ("timestamp", "timestamp_ntz")
"""Types of columns that can have a mark."""

_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
_STEPS: dict[str, Step] = {
    "millisecond": Floor(1000), "second": Floor(_SECOND), "minute": Floor(60 * _SECOND), "hour": Floor(3600 * _SECOND),
    "day": Floor(_DAY), "dd": Floor(_DAY), "week": Floor(7 * _DAY, 4 * _DAY), "month": Truncate("month"),
    "mon": Truncate("month"), "mm": Truncate("month"), "quarter": Truncate("quarter"), "year": Truncate("year"),
    "yyyy": Truncate("year"), "yy": Truncate("year"),
}  # fmt: skip
_SAME = frozenset({"Alias", "KnownNullable", "KnownNotNull", "KnownNotContainsNull", "PreciseTimestampConversion"})
_FLIPPED = {"LessThan": "GreaterThan", "LessThanOrEqual": "GreaterThanOrEqual"}


def column_of(place: Place) -> int:
    """The column that a place is, or is a field of."""
    return place if isinstance(place, int) else place[0]


def moved(marks: Marks, ids: Mapping[int, int]) -> Marks:
    """Marks of columns under other ids; those of columns that get none are left out."""

    def place_of(place: Place) -> Place:
        return ids[place] if isinstance(place, int) else (ids[place[0]], place[1])

    return {place_of(place): mark for place, mark in marks.items() if column_of(place) in ids}


def merged(parts: Iterable[Marks]) -> Marks:
    """The marks of different columns, put together."""
    return {place: mark for part in parts for place, mark in part.items()}


def in_all(branches: list[Marks]) -> Marks:
    """Marks of what comes from several branches: the least, where all have one."""
    found = {place: least(branch.get(place) for branch in branches) for place in branches[0]}
    return {place: mark for place, mark in found.items() if mark is not None}


@dataclass
class MarkReader:
    """Reads what expressions make of the marks of the columns below."""

    marks: Marks = field(default_factory=dict)

    def marks_of(self, e: Expr, out: int) -> Marks:
        """The marks of an expression that becomes the column `out`: its own, or those of its fields."""
        if e.type.startswith("struct<"):
            return {(out, i): mark for i, mark in self._fields(e).items()}
        mark = self.mark(e)
        return {} if mark is None else {out: mark}

    def marks_of_all(self, named: Iterable[Named]) -> Marks:
        """The marks of named expressions."""
        return merged(self.marks_of(e, e.id) for e in named)

    def mark(self, e: Expr) -> LeastWatermark | None:
        """The mark of an expression, where it is a monotone function of a column that has one."""
        found = self._time(bare(e))  # where it fails it is NULL, of which nothing is promised
        return found if isinstance(found, LeastWatermark) else None

    def _fields(self, e: Expr) -> dict[int, LeastWatermark]:
        e = bare(e)
        kind = e.kind
        if kind in _SAME:
            return self._fields(e.child)
        if isinstance(e, Attribute):
            own = e.id
            return {p[1]: m for p, m in self.marks.items() if isinstance(p, tuple) and p[0] == own}
        if kind != "CreateNamedStruct":
            return {}
        found = {i: self.mark(value) for i, value in enumerate(e.children[1::2])}
        return {i: mark for i, mark in found.items() if mark is not None}

    def _time(self, e: Expr) -> LeastWatermark | Rest | None:
        kind = e.kind
        if isinstance(e, Attribute):
            return self.marks.get(e.id)
        children = e.children
        if kind in _SAME or (kind == "Cast" and _keeps_time(e)):
            return self._time(children[0])
        if isinstance(e, GetStructField):
            return self._fields(children[0]).get(e.ordinal)
        if kind == "CaseWhen":
            return self._wrapped_rest(e)
        if kind == "TruncTimestamp":
            return self._truncated(e)
        if kind in ("TimestampAddInterval", "Add", "Subtract"):
            return self._added(kind, children)
        if kind == "Remainder":
            inner, width = self._time(children[0]), _micros(children[1])
            return Rest(inner, width) if isinstance(inner, LeastWatermark) and width else None
        return None

    def _added(self, kind: str, children: Sequence[Expr]) -> LeastWatermark | None:
        left = self._time(children[0])
        if not isinstance(left, LeastWatermark):
            return None
        us = _micros(children[1])
        if us is not None:
            return left.then(Shift(-us if kind == "Subtract" else us))
        rest = self._time(children[1]) if kind == "Subtract" else None
        return minus_rest(left, rest) if isinstance(rest, Rest) else None

    def _wrapped_rest(self, e: Expr) -> Rest | None:
        """`CASE WHEN r < 0 THEN r + width ELSE r END`, r being a remainder: what is never negative."""
        parts = e.children
        if len(parts) != 3 or parts[0].kind != "LessThan" or parts[1].kind != "Add":
            return None
        rest = parts[2]
        (tested, zero), (added, width) = parts[0].children, parts[1].children
        found = self._time(rest) if rest.kind == "Remainder" else None
        same = rest.equals(tested) and rest.equals(added) and _micros(zero) == 0
        return found if same and isinstance(found, Rest) and _micros(width) == found.width_us else None

    def _truncated(self, e: Expr) -> LeastWatermark | None:
        unit, time = e.children
        inner = self._time(time)
        if not isinstance(inner, LeastWatermark) or not isinstance(unit, Literal):
            return None
        step = _STEPS.get(str(unit.value).lower())
        return None if step is None else inner.then(step)


def _keeps_time(cast: Expr) -> bool:
    """Between times with and without a zone: views run in UTC."""
    return cast.type in TIMES and cast.child.type in TIMES


def _micros(e: Expr) -> int | None:
    """A literal of microseconds, or of an interval of fixed length."""
    if not isinstance(e, Literal):
        return None
    kind, value = e.type, e.value
    fixed = kind == "bigint" or (kind.startswith("interval") and "year" not in kind and "month" not in kind)
    return int(value) if fixed and isinstance(value, int) else None


# ---- join conditions


def bands(condition: Expr, left: set[int], right: set[int]) -> Iterator[Band]:
    """What the conjuncts of a condition say of times on both sides."""
    kind, children = condition.kind, condition.children
    if kind == "And":
        for child in children:
            yield from bands(child, left, right)
        return
    flipped = {**_FLIPPED, **{v: k for k, v in _FLIPPED.items()}}
    if kind not in flipped:
        return
    less = kind in _FLIPPED
    found = _difference(children[0], children[1])
    if found is None:
        return
    first, second, us = found  # first - second <= us, or >= us
    if first in right and second in left:
        first, second, us, less = second, first, -us, not less
    if first in left and second in right:
        yield Band(first, second, None if less else us, us if less else None)


def _difference(left: Expr, right: Expr) -> tuple[int, int, int] | None:
    """Two columns and microseconds d for which `left <= right` says that the first minus the second is at most d."""
    us = _micros(right)
    if left.kind == "SubtractTimestamps" and us is not None:
        (one, other), shift = [_shifted(c) for c in left.children], us
    else:
        (one, other), shift = (_shifted(left), _shifted(right)), 0
    if one is None or other is None:
        return None
    return one[0], other[0], shift + other[1] - one[1]


def _shifted(e: Expr) -> tuple[int, int] | None:
    """A column and the microseconds that are added to it."""
    kind = e.kind
    if isinstance(e, Attribute):
        return (e.id, 0) if e.type in TIMES else None
    children = e.children
    if kind in _SAME or (kind == "Cast" and _keeps_time(e)):
        return _shifted(children[0])
    us = _micros(children[1]) if kind == "TimestampAddInterval" else None
    inner = _shifted(children[0]) if us is not None else None
    return None if inner is None or us is None else (inner[0], inner[1] + us)
