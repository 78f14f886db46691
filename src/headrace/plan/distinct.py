"""DISTINCT aggregates: how they are kept from Spark's own rewriting, and found again.

Spark's optimizer turns several DISTINCT aggregates into one aggregate over another over an expansion of every row. The
rule cannot be switched off, so before optimization such calls are hidden: `count(DISTINCT x)` becomes `count(mark(x))`,
in the mode of a partial aggregate. By the mode it is found again, also where `x` turns out to be a constant and the
mark is folded away. The mark says that `x` may be NULL: otherwise `count(x)` would be made a count of rows.
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
        return b.hidden_distinct(e, e.function.with_children([b.mark(a) for a in e.function.children]))

    return b.aggregate(node.groups, [r.rewritten(hide) for r in results], node.child)


def revealed(b: Bridge, expression: Expr) -> Expr:
    """The expression with hidden DISTINCT aggregates as Spark knows them."""

    def reveal(e: Expr) -> Expr | None:
        if not isinstance(e, AggregateCall) or not e.hides_distinct:
            return None
        return b.shown_distinct(e, _unmarked(e.function))

    return expression.rewritten(reveal)


def plain_arguments(call: AggregateCall) -> list[Expr] | None:
    """The arguments of a DISTINCT aggregate, hidden or not; None if it is none."""
    return [_unmarked(a) for a in call.function.children] if call.is_distinct or call.hides_distinct else None


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
