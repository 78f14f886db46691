"""DISTINCT aggregates: how they are kept from Spark's own rewriting, and found again.

Spark's optimizer turns several DISTINCT aggregates into one aggregate over another over an expansion of every row. The
rule cannot be switched off, so before optimization such calls are hidden: `count(DISTINCT x)` becomes `count(mark(x))`,
where the mark is an expression that changes nothing.
"""

from __future__ import annotations

from headrace.plan.alike import Alike
from headrace.plan.catalyst.bridge import Bridge, JExpr, JNode

_CALL = frozenset({"AggregateExpression"})
_MARK = frozenset({"KnownNullable"})
_KEPT = ("Count", "Sum", "Average")


def hidden(b: Bridge, node: JNode) -> JNode:
    """The analyzed plan, with the DISTINCT aggregates hidden that Spark would rewrite and that need no rewriting.

    Those inside subqueries stay.
    """
    children = b.children(node)
    changed = [hidden(b, c) for c in children]
    if any(new is not old for new, old in zip(changed, children)):
        node = b.with_children(node, changed)
    if b.kind(node) != "Aggregate":
        return node
    results = b.items(node.aggregateExpressions())
    calls = [e for r in results for e in b.find(r, _CALL) if e.isDistinct()]
    same = Alike()
    several = len({_numbers(b, c, same) for c in calls}) > 1 or any(not c.filter().isEmpty() for c in calls)
    if not several or any(b.kind(c.aggregateFunction()) not in _KEPT for c in calls):
        return node

    def hide(e: JExpr) -> JExpr | None:
        if b.kind(e) != "AggregateExpression" or not e.isDistinct():
            return None
        function = e.aggregateFunction()
        marked = b.with_children(function, [b.mark(a) for a in b.children(function)])
        return b.aggregate_expression(marked, e.mode(), False, e.filter(), e.resultId())

    return b.aggregate(b.items(node.groupingExpressions()), [b.rewrite(r, hide) for r in results], b.children(node)[0])


def revealed(b: Bridge, expression: JExpr) -> JExpr:
    """The expression with hidden DISTINCT aggregates as Spark knows them."""

    def reveal(e: JExpr) -> JExpr | None:
        if b.kind(e) != "AggregateExpression" or not any(True for _ in b.find(e.aggregateFunction(), _MARK)):
            return None
        function = _unmarked(b, e.aggregateFunction())
        return b.aggregate_expression(function, e.mode(), True, e.filter(), e.resultId())

    return b.rewrite(expression, reveal)


def plain_arguments(b: Bridge, call: JExpr) -> list[JExpr] | None:
    """The arguments of a DISTINCT aggregate, hidden or not; None if it is none."""
    function = call.aggregateFunction()
    if not call.isDistinct() and not any(True for _ in b.find(function, _MARK)):
        return None
    return [_unmarked(b, a) for a in b.children(function)]


def _unmarked(b: Bridge, expression: JExpr) -> JExpr:
    def strip(e: JExpr) -> JExpr | None:
        return b.children(e)[0] if b.kind(e) in _MARK else None

    return b.rewrite(expression, strip)


def _numbers(b: Bridge, call: JExpr, same: Alike) -> tuple[int, ...]:
    return tuple(same.number(a) for a in b.children(call.aggregateFunction()))


__all__ = ["hidden", "plain_arguments", "revealed"]
