"""Event time in a plan: where watermarks go, what state they bound, what EMIT ON WINDOW CLOSE waits for.

The marks themselves and what operators do to them are in `watermarks`; here Catalyst's expressions are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from headrace.errors import NotSupported
from headrace.plan import tree
from headrace.plan.catalyst import nodes
from headrace.plan.catalyst.expressions import Attribute, Expr, Literal, Named
from headrace.plan.catalyst.kinds import GetStructField
from headrace.plan.catalyst.nodes import Expand
from headrace.plan.guards import bare
from headrace.plan.tree import (
    Aggregate,
    Input,
    Join,
    JoinSide,
    Lookup,
    Operator,
    Recompute,
    Rowwise,
    Session,
    Union,
    WindowClose,
)
from headrace.plan.watermarks import (
    NO_EVENT_TIME,
    Band,
    EventTime,
    Floor,
    Mark,
    Rest,
    Shift,
    Step,
    Truncate,
    least,
    minus_rest,
    of_column,
    through_join,
)

Place: TypeAlias = int | tuple[int, int]
"""A column by its expression id, or one field of a struct column: id and position."""
Marks: TypeAlias = dict[Place, Mark]

_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
_STEPS: dict[str, Step] = {
    "millisecond": Floor(1000), "second": Floor(_SECOND), "minute": Floor(60 * _SECOND), "hour": Floor(3600 * _SECOND),
    "day": Floor(_DAY), "dd": Floor(_DAY), "week": Floor(7 * _DAY, 4 * _DAY), "month": Truncate("month"),
    "mon": Truncate("month"), "mm": Truncate("month"), "quarter": Truncate("quarter"), "year": Truncate("year"),
    "yyyy": Truncate("year"), "yy": Truncate("year"),
}  # fmt: skip
_SAME = frozenset({"Alias", "KnownNullable", "KnownNotNull", "KnownNotContainsNull", "PreciseTimestampConversion"})
_TIMES = ("timestamp", "timestamp_ntz")
_FLIPPED = {"LessThan": "GreaterThan", "LessThanOrEqual": "GreaterThanOrEqual"}
_NODES_THAT_KEEP = ("Filter", "Generate", "BatchEvalPython", "ArrowEvalPython")


def with_event_time(root: Operator, watermarks: Mapping[int, str], on_window_close: bool) -> tuple[Operator, EventTime]:
    """The plan, bounded by the watermarks of the relations that have one (id to column).

    Only a plan with an operator that needs a watermark has to do with event time: then rows that are late at a source
    that bounds it are not taken in, and every state that can be bounded is. Raises `NotSupported` where
    `on_window_close` is asked for and no column of the result has a watermark.
    """
    found = _Pass(watermarks)
    marks = found.visit(root)
    if on_window_close:
        root = _closing(root, marks)
    joins = [mark for op in tree.walk(root) if isinstance(op, Join) for mark in op.expiry.values()]
    closes = root.mark if isinstance(root, WindowClose) else None
    needed = {i for mark in [*joins, *([closes] if closes else [])] for i in mark.relations}
    for op in tree.walk(root):
        op.forget_event_time()
    if not needed:
        return root, NO_EVENT_TIME
    final = _Pass({i: column for i, column in watermarks.items() if i in needed}, bound=True)
    final.visit(root)
    if isinstance(root, WindowClose):
        root.expire(WindowClose.TABLE, f"c{root.position}", root.mark)
    tree.number(root)
    expiry = {f"{op.id}/{name}": mark for op in tree.walk(root) for name, mark in op.expiry.items()}
    return root, EventTime(frozenset(needed), expiry, closes)


def _closing(root: Operator, marks: Marks) -> WindowClose:
    for i, a in enumerate(root.output):
        if a.id in marks and a.type in _TIMES:
            return WindowClose(root.output, True, [root], i, marks[a.id])
    raise NotSupported(
        "EMIT ON WINDOW CLOSE of a query without a watermarked time among its columns",
        hint="declare WATERMARK FOR a time column of every input that can change old rows of the result, group by a "
        "window of it (TUMBLE, HOP, date_trunc), and have the window's start or end in the SELECT list",
    )


@dataclass
class _Pass:
    """One way through a plan, from the leaves to the root. With `bound`, operators note what to do."""

    watermarks: Mapping[int, str]
    bound: bool = False

    def visit(self, op: Operator) -> Marks:
        """The marks of an operator's output; notes on operators what expires."""
        below = [self.visit(child) for child in op.children]
        if isinstance(op, Input):
            return self._input(op)
        if isinstance(op, Rowwise):
            return self._rowwise(op, below[0])
        if isinstance(op, Union):
            return self._union(op, below)
        if isinstance(op, Aggregate):
            return self._aggregate(op, below[0])
        if isinstance(op, Recompute):
            return self._recompute(op, below[0])
        if isinstance(op, Session):
            return self._session(op, below[0])
        if isinstance(op, Join):
            return self._join(op, below[0], below[1])
        if isinstance(op, Lookup):
            own = {a.id for a in op.own}
            return {place: mark for place, mark in below[0].items() if _id(place) in own}
        return {}  # as of a filter by now(), whose rows enter and leave late

    def _input(self, op: Input) -> Marks:
        column = self.watermarks.get(op.relation)
        if column is None:
            return {}
        if self.bound:
            op.late = column
        return {a.id: of_column(op.relation, column) for a in op.output if a.name == column}

    def _rowwise(self, op: Rowwise, below: Marks) -> Marks:
        reader = Reader(below)
        if op.label == "Project":
            return _named(op.expressions, reader)
        if isinstance(op.node, Expand):
            rows = (zip(row, op.output, strict=True) for row in op.node.projections)
            return _in_all([_merged([reader.marks_of(e, a.id) for e, a in row]) for row in rows])
        return dict(below) if op.label in _NODES_THAT_KEEP else {}

    def _union(self, op: Union, below: list[Marks]) -> Marks:
        renamed = []
        for child, marks in zip(op.children, below):
            ids = {a.id: out.id for a, out in zip(child.output, op.output)}
            renamed.append({_moved(place, ids): m for place, m in marks.items() if _id(place) in ids})
        return _in_all(renamed)

    def _aggregate(self, op: Aggregate, below: Marks) -> Marks:
        reader = Reader(below)
        keys: Marks = {}
        for i, (group, attr) in enumerate(zip(op.groups, op.group_attrs, strict=True)):
            found = reader.marks_of(group, attr.id)
            keys |= found
            for place, mark in found.items():
                column = f"g{i}" if isinstance(place, int) else f"g{i}.{tree.attr_arrow(attr).field(place[1]).name}"
                for name in op.state() if not op.expires else ():
                    op.expire(name, column, mark)
        return _named(op.results, Reader(keys))

    def _recompute(self, op: Recompute, below: Marks) -> Marks:
        reader = Reader(below)
        keys: Marks = {}
        for i, key in enumerate(op.keys):
            found = reader.mark(key)
            if found is None:
                continue
            if key.type in _TIMES and not op.expires:
                op.expire("rows", f"k{i}", found)
            if isinstance(key, Attribute):
                keys[key.id] = found
        if isinstance(op.node, nodes.Aggregate):
            return _named(op.node.results, Reader(keys))
        return {p: m for p, m in keys.items() if op.label == "Window" and p in {a.id for a in op.output}}

    def _session(self, op: Session, below: Marks) -> Marks:
        """Rows of a session change with one that is less than the gap before its end: later than the mark.

        So sessions that end at the mark or before are closed. Of a start, and of a row's own time, nothing is known: a
        session may have gone on for long. What changes has the key of the row that changed.
        """
        reader = Reader(below)
        places = dict(zip(op.columns, op.output))
        found = {f"k{i}": reader.mark(key) for i, key in enumerate(op.keys)}
        marks: Marks = {places[name].id: mark for name, mark in found.items() if mark is not None and name in places}
        mark = reader.mark(op.time)
        if mark is not None:
            op.expire(op.TABLE, "until", mark)
            marks[op.output[-1].id] = mark.then(Shift(1))
        return marks

    def _join(self, op: Join, left: Marks, right: Marks) -> Marks:
        marks = [{p: m for p, m in side.items() if isinstance(p, int)} for side in (left, right)]
        bands: list[Band] = []
        places: list[dict[int, str]] = [{}, {}]
        for i, keys in enumerate(zip(op.left.keys, op.right.keys, strict=True)):
            ids = [k.id if isinstance(k, Attribute) else -1 - i for k in keys]
            for n, (key, below) in enumerate(zip(keys, (left, right))):
                found = Reader(below).mark(key)
                if found is not None and key.type in _TIMES:
                    marks[n][ids[n]] = found
                    places[n][ids[n]] = f"k{i}"
            bands.append(Band(ids[0], ids[1], 0, 0))
        if op.residual is not None:
            bands += _bands(bare(op.residual), {a.id for a in op.left.values}, {a.id for a in op.right.values})
        found_marks = through_join(bands, marks[0], marks[1])
        sides = (("left", op.left, found_marks.left_expires), ("right", op.right, found_marks.right_expires))
        for n, (name, side, expires) in enumerate(sides):
            self._expire_side(op, name, side, places[n], expires)
        visible = {a.id for a in op.output}
        return {p: m for p, m in found_marks.output.items() if p in visible}

    def _expire_side(
        self, op: Join, name: str, side: JoinSide, keys: Mapping[int, str], expires: Mapping[int, Mark]
    ) -> None:
        if side.shared is not None:  # what it looks up is not its own to forget
            return
        values = {a.id: f"v{i}" for i, a in enumerate(side.values) if a.type in _TIMES}
        for column, mark in expires.items():
            place = values.get(column) or keys.get(column)
            if place is not None and name not in op.expires:
                op.expire(name, place, mark)
            if side.preserved and column in values and f"{name}_matches" not in op.expires:
                op.expire(f"{name}_matches", values[column], mark)


def _id(place: Place) -> int:
    return place if isinstance(place, int) else place[0]


def _moved(place: Place, ids: Mapping[int, int]) -> Place:
    return ids[place] if isinstance(place, int) else (ids[place[0]], place[1])


def _merged(parts: Iterable[Marks]) -> Marks:
    return {place: mark for part in parts for place, mark in part.items()}


def _in_all(branches: list[Marks]) -> Marks:
    """Marks of what comes from several branches: the least, where all have one."""
    found = {place: least(branch.get(place) for branch in branches) for place in branches[0]}
    return {place: mark for place, mark in found.items() if mark is not None}


def _named(named: Iterable[Named], reader: Reader) -> Marks:
    """The marks of named expressions."""
    return _merged(reader.marks_of(e, e.id) for e in named)


@dataclass
class Reader:
    """Reads what expressions make of the marks of the columns below."""

    marks: Marks = field(default_factory=dict)

    def marks_of(self, e: Expr, out: int) -> Marks:
        """The marks of an expression that becomes the column `out`: its own, or those of its fields."""
        if e.type.startswith("struct<"):
            return {(out, i): mark for i, mark in self._fields(e).items()}
        mark = self.mark(e)
        return {} if mark is None else {out: mark}

    def mark(self, e: Expr) -> Mark | None:
        """The mark of an expression, where it is a monotone function of a column that has one."""
        found = self._time(bare(e))  # where it fails it is NULL, of which nothing is promised
        return found if isinstance(found, Mark) else None

    def _fields(self, e: Expr) -> dict[int, Mark]:
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

    def _time(self, e: Expr) -> Mark | Rest | None:
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
            return Rest(inner, width) if isinstance(inner, Mark) and width else None
        return None

    def _added(self, kind: str, children: Sequence[Expr]) -> Mark | None:
        left = self._time(children[0])
        if not isinstance(left, Mark):
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

    def _truncated(self, e: Expr) -> Mark | None:
        unit, time = e.children
        inner = self._time(time)
        if not isinstance(inner, Mark) or not isinstance(unit, Literal):
            return None
        step = _STEPS.get(str(unit.value).lower())
        return None if step is None else inner.then(step)


def _keeps_time(cast: Expr) -> bool:
    """Between times with and without a zone: views run in UTC."""
    return cast.type in _TIMES and cast.child.type in _TIMES


def _micros(e: Expr) -> int | None:
    """A literal of microseconds, or of an interval of fixed length."""
    if not isinstance(e, Literal):
        return None
    kind, value = e.type, e.value
    fixed = kind == "bigint" or (kind.startswith("interval") and "year" not in kind and "month" not in kind)
    return int(value) if fixed and isinstance(value, int) else None


# ---- join conditions


def _bands(condition: Expr, left: set[int], right: set[int]) -> Iterator[Band]:
    """What the conjuncts of a condition say of times on both sides."""
    kind, children = condition.kind, condition.children
    if kind == "And":
        for child in children:
            yield from _bands(child, left, right)
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
        return (e.id, 0) if e.type in _TIMES else None
    children = e.children
    if kind in _SAME or (kind == "Cast" and _keeps_time(e)):
        return _shifted(children[0])
    us = _micros(children[1]) if kind == "TimestampAddInterval" else None
    inner = _shifted(children[0]) if us is not None else None
    return None if inner is None or us is None else (inner[0], inner[1] + us)
