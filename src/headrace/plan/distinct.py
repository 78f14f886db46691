"""DISTINCT aggregates: how they are kept from Spark's own rewriting, and found again.

Spark's optimizer turns several DISTINCT aggregates into one aggregate over another over an expansion of every row. The
rule cannot be switched off, so before optimization such calls are hidden: `count(DISTINCT x)` becomes `count(mark(x))`,
where the mark is an expression that changes nothing.
"""

from __future__ import annotations

from headrace.plan.accumulable import RULES
from headrace.plan.alike import Alike
from headrace.plan.catalyst.bridge import Bridge
from headrace.plan.catalyst.expressions import Expr
from headrace.plan.catalyst.kinds import AggregateCall
from headrace.plan.catalyst.nodes import Aggregate, Node

_MARK = frozenset({"KnownNullable"})


def hidden(b: Bridge, node: Node) -> Node:
    """The analyzed plan, with the DISTINCT aggregates hidden that Spark would rewrite and that need no rewriting.

    Those inside subqueries stay.
    """
    children = node.children
    changed = [hidden(b, c) for c in children]
    if any(new is not old for new, old in zip(changed, children)):
        node = node.with_children(changed)
    if not isinstance(node, Aggregate):
        return node
    results = node.results
    calls = [e for r in results for e in r.every(AggregateCall) if e.is_distinct]
    same = Alike()
    several = len({_numbers(c, same) for c in calls}) > 1 or any(c.filter is not None for c in calls)
    if not several or not all(_counts_once(c) for c in calls):
        return node

    def hide(e: Expr) -> Expr | None:
        if not isinstance(e, AggregateCall) or not e.is_distinct:
            return None
        function = e.function
        marked = function.with_children([b.mark(a) for a in function.children])
        return b.call(e, marked, distinct=False, condition=e.filter)

    return b.aggregate(node.groups, [r.rewritten(hide) for r in results], node.child)


def revealed(b: Bridge, expression: Expr) -> Expr:
    """The expression with hidden DISTINCT aggregates as Spark knows them."""

    def reveal(e: Expr) -> Expr | None:
        if not isinstance(e, AggregateCall) or not e.function.has(_MARK):
            return None
        return b.call(e, _unmarked(e.function), distinct=True, condition=e.filter)

    return expression.rewritten(reveal)


def plain_arguments(call: AggregateCall) -> list[Expr] | None:
    """The arguments of a DISTINCT aggregate, hidden or not; None if it is none."""
    function = call.function
    if not call.is_distinct and not function.has(_MARK):
        return None
    return [_unmarked(a) for a in function.children]


def _counts_once(call: AggregateCall) -> bool:
    rule = RULES.get(call.function.kind)
    return rule is not None and rule.counts_once


def _unmarked(expression: Expr) -> Expr:
    def strip(e: Expr) -> Expr | None:
        return e.child if e.kind in _MARK else None

    return expression.rewritten(strip)


def _numbers(call: AggregateCall, same: Alike) -> tuple[int, ...]:
    return tuple(same.number(a) for a in call.function.children)


__all__ = ["hidden", "plain_arguments", "revealed"]
