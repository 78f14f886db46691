"""The rules for `now()` in conditions.

`now()` must outlive Catalyst's optimizer, which would put the time of planning in its place. So before optimization
it is replaced by a scalar subquery over a relation of its own, the *clock*: the optimizer moves a condition with it as
it would any other, and knows no value of it. Afterwards every condition that has it in must be a comparison of the row
with the time, which becomes a bound of a `TemporalFilter`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import DateType, StructField, StructType, TimestampNTZType, TimestampType

from headrace.common.lazy_dataclass import dataclass
from headrace.common.shifts import DAY, DAY_US, Shift, describe
from headrace.errors import NotSupported
from headrace.plan.catalyst.bridge import Bridge
from headrace.plan.catalyst.expressions import Expr, Literal
from headrace.plan.catalyst.nodes import Aggregate, Filter, Join, Node, Project, Subquery
from headrace.plan.tree import WEIGHT, Operator, attr_arrow
from headrace.state.schema import TableSchema

if TYPE_CHECKING:
    from headrace.plan.derive import Derivation

_TIMES_OF_QUERY = frozenset({"CurrentTimestamp", "Now", "CurrentDate", "LocalTimestamp", "CurrentTime"})
_TIME_OF_DAY = frozenset({"CurrentTime"})

# What `row OP now` says for a comparison, and the comparison with its sides changed.
_FLIPPED = {
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
    "EqualTo": "EqualTo",
}
_HINT = (
    "a view can compare a time of its rows with it, all on one side, in conditions that are joined by AND: "
    "WHERE ts > now() - INTERVAL '1 hour'; compute anything else from now() in a query over the view"
)


@dataclass
class ClockBound:
    """One end of the time in which a row passes a filter: `row` against a shift of the current time."""

    row: Expr
    """A time of the row."""
    shift: Shift
    late: int
    """Microseconds (0 or 1) by which the shifted time must have passed the row's."""
    leaves: bool
    """The row passes until then; else from then on."""

    def text(self) -> str:
        """As a condition."""
        sign = (">", ">=") if self.leaves else ("<=", "<")
        return f"{self.row.text} {sign[self.late]} {describe(self.shift)}"


@dataclass
class TemporalFilter(Operator):
    """A filter that compares times of the rows with the current time, which is the time of the epoch.

    State table `rows` has each row by the time at which it is next to enter or to leave.
    """

    bounds: list[ClockBound]
    kind = "temporal filter"
    by_clock = True

    def detail(self) -> str:
        return " and ".join(b.text() for b in self.bounds)

    def state(self) -> dict[str, TableSchema]:
        values = [pa.field(f"v{i}", attr_arrow(a)) for i, a in enumerate(self.output)]
        due, leaves = (pa.field(name, pa.int64(), nullable=False) for name in ("due", "leaves"))
        return {"rows": TableSchema(key=(due,), value=(leaves, *values), diffs=WEIGHT)}


class ClockLiteral:
    """What stands for `now()` in the plans of one planner."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        frame = bridge.relation(StructType([StructField("now", TimestampType())]))
        self._leaf = bridge.analyzed(frame).leaf_id
        frame.createOrReplaceTempView("__clock")
        (output,) = bridge.analyzed(bridge.spark.sql("SELECT (SELECT now FROM __clock) AS now")).expressions
        (self._now,) = output.every(Subquery)

    def is_now(self, expression: Expr) -> bool:
        """Whether an expression is the one that stands for `now()`."""
        if not isinstance(expression, Subquery) or expression.kind != "ScalarSubquery":
            return False
        node = expression.plan
        while children := node.children:
            node = children[0]
        return node.leaf_id == self._leaf

    def within(self, expression: Expr) -> bool:
        """Whether an expression has `now()` in it."""
        return any(self.is_now(e) for e in expression.every(Subquery))

    def marked(self, node: Node) -> Node:
        """The analyzed plan with the clock in place of `now()`, where the rules look for it.

        Raises `NotSupported` for the current time in anything but a condition.
        """
        b = self._bridge
        children = node.children
        changed = [self.marked(c) for c in children]
        if any(new is not old for new, old in zip(changed, children)):
            node = node.with_children(changed)
        touched = [e for e in node.expressions if self._touches(e)]
        if not touched:
            return node
        for e in touched:
            for found in e.find(_TIME_OF_DAY):
                raise refusal(found)
        if isinstance(node, (Filter, Join)):
            return b.with_expressions(node, self._replaced)
        if isinstance(node, (Project, Aggregate)) and not any(e.has(_TIMES_OF_QUERY) for e in touched):
            return b.with_expressions(node, self._replaced)
        raise refusal(touched[0])

    def _touches(self, expression: Expr) -> bool:
        """Whether it has the current time in it, or a subquery of which the plan has."""
        if expression.has(_TIMES_OF_QUERY):
            return True
        inner = (s.plan for s in expression.every(Subquery) if not self.is_now(s))
        return any(self._touches(e) for plan in inner for n in plan.walk() for e in n.expressions)

    def _replaced(self, expression: Expr) -> Expr:
        return expression.rewritten(self._replacement)

    def _replacement(self, e: Expr) -> Expr | None:
        b, kind = self._bridge, e.kind
        if kind in ("CurrentTimestamp", "Now"):
            return self._now
        if kind in ("CurrentDate", "LocalTimestamp"):
            return b.cast(self._now, e)
        if isinstance(e, Subquery) and self._touches(e) and not self.is_now(e):
            return e.over(self.marked(e.plan))
        return None


def refusal(expression: Expr) -> NotSupported:
    """The error for a current time that no rule covers."""
    found = next(expression.find(_TIMES_OF_QUERY), None)
    name = "now" if found is None else found.pretty_name
    return NotSupported(f"{name}() in a view other than in a comparison with its rows' times", hint=_HINT)


def split(d: Derivation, condition: Expr) -> tuple[list[Expr], list[Expr]]:
    """The conjuncts of a condition without and with `now()`."""
    conjuncts = condition.conjuncts
    timed = [c for c in conjuncts if d.clock.within(c)]
    return [c for c in conjuncts if not any(c is t for t in timed)], timed


def derive_timed_filter(d: Derivation, node: Filter, needed: set[int]) -> Operator | None:
    """A filter by time, over what the rest of the condition lets through; None if the condition has no `now()`."""
    b = d.bridge
    rest, timed = split(d, node.condition)
    if not timed:
        return None
    child = node.child
    return over(d, b.filter(b.all_of(rest), child) if rest else child, timed, needed)


def over(d: Derivation, node: Node, timed: Sequence[Expr], needed: set[int]) -> Operator:
    """A filter by time over a node."""
    bounds = [bound for c in timed for bound in _bounds(d, c)]
    child = d.derive(node, needed | d.references([bound.row for bound in bounds]))
    output = [a for a in child.output if a.id in needed]
    return TemporalFilter(output, child.append_only and not any(b.leaves for b in bounds), [child], bounds)


def _bounds(d: Derivation, condition: Expr) -> list[ClockBound]:
    kind = condition.kind
    if kind not in _FLIPPED:
        raise refusal(condition)
    left, right = condition.children
    if d.clock.within(left):
        left, right, kind = right, left, _FLIPPED[kind]
    row, shift, kind = _sides(d, left, right, kind)
    # A row with a smaller time than now() has left: it is in while row > now().
    if kind == "EqualTo":
        return [ClockBound(row, shift, 0, False), ClockBound(row, shift, 1, True)]
    later = 1 if kind in ("GreaterThanOrEqual", "LessThan") else 0
    return [ClockBound(row, shift, later, kind.startswith("Greater"))]


def _sides(d: Derivation, row: Expr, now: Expr, kind: str) -> tuple[Expr, Shift, str]:
    """A comparison as one of a row's time with a shift of the current time."""
    if now.kind == "SubtractTimestamps" and (size := row.interval_us) is not None:
        end, start = now.children[:2]
        if d.clock.within(end):  # size > now - t, so t > now - size
            row, now, moved = start, end, -size
        else:  # size > t - now, so t < now + size
            row, now, kind, moved = end, start, _FLIPPED[kind], size
        shift = _shift(d, now)
        shift = None if shift is None else (*shift, moved)
    else:
        shift = _shift(d, now)
    is_time = isinstance(row.spark_type, (TimestampType, TimestampNTZType, DateType))
    if shift is None or not is_time or d.clock.within(row):
        raise refusal(now)
    return row, shift, kind


def _shift(d: Derivation, e: Expr) -> Shift | None:
    """The steps from the current time to an expression of it; None where it is something else."""
    kind = e.kind
    if d.clock.is_now(e):
        return ()
    children = e.children
    inner = _shift(d, children[0]) if children else None
    if inner is None:
        return None
    if kind == "Cast":
        to = e.spark_type
        if isinstance(to, DateType):
            return (*inner, DAY)
        return inner if isinstance(to, (TimestampType, TimestampNTZType)) else None
    if kind in ("TimestampAddInterval", "TimestampAddYMInterval"):
        size = children[1].interval_us
        if size is None:
            raise NotSupported(
                f"now() moved by {children[1].text} in a view",
                hint="give an interval of a fixed length, in days or less: months differ in length",
            )
        return (*inner, size)
    days = children[1].value if kind in ("DateAdd", "DateSub") and isinstance(children[1], Literal) else None
    if isinstance(days, int):
        return (*inner, (DAY_US if kind == "DateAdd" else -DAY_US) * days)
    return None
