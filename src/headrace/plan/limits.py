"""The rule for LIMIT and OFFSET: group recompute of the first rows of one group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.plan import windows
from headrace.plan.catalyst.expressions import Expr
from headrace.plan.catalyst.nodes import Filter, GlobalLimit, Node, Offset, Project, Sort
from headrace.plan.recompute import TopN
from headrace.plan.tree import Operator

if TYPE_CHECKING:
    from headrace.plan.derive import Derivation


def derive_limit(d: Derivation, node: Node, needed: set[int]) -> Operator:
    """LIMIT and OFFSET, with the order below them, as one top-N over one group."""
    cuts: list[tuple[str, int]] = []
    inner = node
    while isinstance(inner, (GlobalLimit, Offset)) or inner.kind == "LocalLimit":
        if isinstance(inner, GlobalLimit):
            cuts.append(("limit", inner.count))
        elif isinstance(inner, Offset):
            cuts.append(("offset", inner.count))
        inner = inner.child
    offset, limit = _window_of(cuts)
    orders: Sequence[Expr] = ()
    if isinstance(inner, Project) and _sorts_below(inner):
        return _limit_below_project(d, node, inner, needed)
    if isinstance(inner, Sort):
        orders = inner.orders
        inner = inner.child
    return _top_n(d, node, inner, orders, offset, limit, needed)


def _window_of(cuts: list[tuple[str, int]]) -> tuple[int, int | None]:
    """Positions (from exclusive, to inclusive) that nested limits and offsets, given from the top, leave over."""
    low, high = 0, None
    for kind, n in reversed(cuts):
        if kind == "offset":
            low += n
        else:
            high = low + n if high is None else min(high, low + n)
    return low, high


def _sorts_below(node: Node) -> bool:
    while isinstance(node, (Project, Filter)):
        node = node.child
    return isinstance(node, Sort)


def _limit_below_project(d: Derivation, node: Node, project: Node, needed: set[int]) -> Operator:
    """Cut first, project afterwards: so that the order's columns are still there."""

    def lower(n: Node) -> Node:
        child = n.child
        return n.with_children([project.child if child.equals(project) else lower(child)])

    return d.derive(project.with_children([lower(node)]), needed)


def _top_n(
    d: Derivation, node: Node, inner: Node, orders: Sequence[Expr], low: int, high: int | None, needed: set[int]
) -> Operator:
    below = {a.id for a in inner.output}
    child = d.derive(inner, (needed & below) | d.references(orders))
    output = [a for a in child.output if a.id in needed]
    text = f"rows {low + 1} to {'end' if high is None else high} order by [{', '.join(o.text for o in orders)}]"
    first = None if high is None else windows.first_rows(orders, high)
    return TopN(output, False, [child], node, text, [], [], child.output, first, orders, low, high)
