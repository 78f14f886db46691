"""The rules for `now()` in conditions.

`now()` must outlive Catalyst's optimizer, which would put the time of planning in its place. So before optimization
it is replaced by a scalar subquery over a relation of its own, the *clock*: the optimizer moves a condition with it as
it would any other, and knows no value of it. Afterwards every condition that has it in must be a comparison of the row
with the time, which becomes a bound of a `TemporalFilter`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import DateType, StructField, StructType, TimestampNTZType, TimestampType

from headrace.common.shifts import DAY, DAY_US, Shift
from headrace.errors import NotSupported
from headrace.plan.catalyst.bridge import Bridge, JExpr, JNode
from headrace.plan.tree import Bound, Operator, TemporalFilter

if TYPE_CHECKING:
    from headrace.plan.derive import Derivation

_TIMES_OF_QUERY = frozenset({"CurrentTimestamp", "Now", "CurrentDate", "LocalTimestamp", "CurrentTime"})
_TIME_OF_DAY = frozenset({"CurrentTime"})
_SUBQUERIES = frozenset({"ScalarSubquery", "Exists", "ListQuery", "LateralSubquery"})

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


class Clock:
    """What stands for `now()` in the plans of one planner."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        frame = bridge.relation(StructType([StructField("now", TimestampType())]))
        self._leaf = bridge.relation_id(bridge.analyzed(frame))
        frame.createOrReplaceTempView("__clock")
        (output,) = bridge.expressions_of(bridge.analyzed(bridge.spark.sql("SELECT (SELECT now FROM __clock) AS now")))
        (self._now,) = bridge.find(output, frozenset({"ScalarSubquery"}))

    def is_now(self, expression: JExpr) -> bool:
        """Whether an expression is the one that stands for `now()`."""
        if self._bridge.kind(expression) != "ScalarSubquery":
            return False
        node = expression.plan()
        while children := self._bridge.children(node):
            node = children[0]
        return self._bridge.relation_id(node) == self._leaf

    def within(self, expression: JExpr) -> bool:
        """Whether an expression has `now()` in it."""
        return any(self.is_now(e) for e in self._bridge.find(expression, frozenset({"ScalarSubquery"})))

    def marked(self, node: JNode) -> JNode:
        """The analyzed plan with the clock in place of `now()`, where the rules look for it.

        Raises `NotSupported` for the current time in anything but a condition.
        """
        b = self._bridge
        children = b.children(node)
        changed = [self.marked(c) for c in children]
        if any(new is not old for new, old in zip(changed, children)):
            node = b.with_children(node, changed)
        kind = b.kind(node)
        touched = [e for e in b.expressions_of(node) if self._touches(e)]
        if not touched:
            return node
        for e in touched:
            for found in b.find(e, _TIME_OF_DAY):
                raise refusal(b, found)
        if kind in ("Filter", "Join"):
            return b.with_expressions(node, self._replaced)
        if kind in ("Project", "Aggregate") and not any(True for e in touched for _ in b.find(e, _TIMES_OF_QUERY)):
            return b.with_expressions(node, self._replaced)
        raise refusal(b, touched[0])

    def _touches(self, expression: JExpr) -> bool:
        """Whether it has the current time in it, or a subquery of which the plan has."""
        b = self._bridge
        if any(True for _ in b.find(expression, _TIMES_OF_QUERY)):
            return True
        inner = (s.plan() for s in b.find(expression, _SUBQUERIES) if not self.is_now(s))
        return any(self._touches(e) for plan in inner for n in b.nodes(plan) for e in b.expressions_of(n))

    def _replaced(self, expression: JExpr) -> JExpr:
        return self._bridge.rewrite(expression, self._replacement)

    def _replacement(self, e: JExpr) -> JExpr | None:
        b, kind = self._bridge, self._bridge.kind(e)
        if kind in ("CurrentTimestamp", "Now"):
            return self._now
        if kind in ("CurrentDate", "LocalTimestamp"):
            return b.cast(self._now, e.dataType())
        if kind in _SUBQUERIES and self._touches(e) and not self.is_now(e):
            return e.withNewPlan(self.marked(e.plan()))
        return None


def refusal(b: Bridge, expression: JExpr) -> NotSupported:
    """The error for a current time that no rule covers."""
    found = next(b.find(expression, _TIMES_OF_QUERY), None)
    name = "now" if found is None else str(found.prettyName())
    return NotSupported(f"{name}() in a view other than in a comparison with its rows' times", hint=_HINT)


def split(d: Derivation, condition: JExpr) -> tuple[list[JExpr], list[JExpr]]:
    """The conjuncts of a condition without and with `now()`."""
    conjuncts = d.bridge.conjuncts(condition)
    timed = [c for c in conjuncts if d.clock.within(c)]
    return [c for c in conjuncts if not any(c is t for t in timed)], timed


def derive_timed_filter(d: Derivation, node: JNode, needed: set[int]) -> Operator | None:
    """A filter by time, over what the rest of the condition lets through; None if the condition has no `now()`."""
    b = d.bridge
    rest, timed = split(d, node.condition())
    if not timed:
        return None
    child = b.children(node)[0]
    return over(d, b.filter(b.all_of(rest), child) if rest else child, timed, needed)


def over(d: Derivation, node: JNode, timed: Sequence[JExpr], needed: set[int]) -> Operator:
    """A filter by time over a node."""
    bounds = [bound for c in timed for bound in _bounds(d, c)]
    child = d.derive(node, needed | d.references([bound.row for bound in bounds]))
    output = [a for a in child.output if a.id in needed]
    return TemporalFilter(output, child.append_only and not any(b.leaves for b in bounds), [child], bounds)


def _bounds(d: Derivation, condition: JExpr) -> list[Bound]:
    b, kind = d.bridge, d.bridge.kind(condition)
    if kind not in _FLIPPED:
        raise refusal(b, condition)
    left, right = b.children(condition)
    if d.clock.within(left):
        left, right, kind = right, left, _FLIPPED[kind]
    row, shift, kind = _sides(d, left, right, kind)
    # A row with a smaller time than now() has left: it is in while row > now().
    if kind == "EqualTo":
        return [Bound(row, shift, 0, False), Bound(row, shift, 1, True)]
    later = 1 if kind in ("GreaterThanOrEqual", "LessThan") else 0
    return [Bound(row, shift, later, kind.startswith("Greater"))]


def _sides(d: Derivation, row: JExpr, now: JExpr, kind: str) -> tuple[JExpr, Shift, str]:
    """A comparison as one of a row's time with a shift of the current time."""
    b = d.bridge
    if b.kind(now) == "SubtractTimestamps" and (size := b.literal_us(row)) is not None:
        end, start = b.children(now)[:2]
        if d.clock.within(end):  # size > now - t, so t > now - size
            row, now, moved = start, end, -size
        else:  # size > t - now, so t < now + size
            row, now, kind, moved = end, start, _FLIPPED[kind], size
        shift = _shift(d, now)
        shift = None if shift is None else (*shift, moved)
    else:
        shift = _shift(d, now)
    is_time = isinstance(b.spark_type(row), (TimestampType, TimestampNTZType, DateType))
    if shift is None or not is_time or d.clock.within(row):
        raise refusal(b, now)
    return row, shift, kind


def _shift(d: Derivation, e: JExpr) -> Shift | None:
    """The steps from the current time to an expression of it; None where it is something else."""
    b, kind = d.bridge, d.bridge.kind(e)
    if d.clock.is_now(e):
        return ()
    children = b.children(e)
    inner = _shift(d, children[0]) if children else None
    if inner is None:
        return None
    if kind == "Cast":
        to = b.spark_type(e)
        if isinstance(to, DateType):
            return (*inner, DAY)
        return inner if isinstance(to, (TimestampType, TimestampNTZType)) else None
    if kind in ("TimestampAddInterval", "TimestampAddYMInterval"):
        size = b.literal_us(children[1])
        if size is None:
            raise NotSupported(
                f"now() moved by {children[1].toString()} in a view",
                hint="give an interval of a fixed length, in days or less: months differ in length",
            )
        return (*inner, size)
    if kind in ("DateAdd", "DateSub") and b.kind(children[1]) == "Literal" and isinstance(children[1].value(), int):
        return (*inner, (DAY_US if kind == "DateAdd" else -DAY_US) * int(children[1].value()))
    return None
