"""Where a view's plan is cut so that its joins become jobs of their own."""

from __future__ import annotations

from collections.abc import Callable

from headrace.plan.catalyst.bridge import Bridge
from headrace.plan.catalyst.nodes import Join, Node

_ROW_BY_ROW = ("Project", "Filter", "Generate", "Expand", "BatchEvalPython", "ArrowEvalPython")
_AMPLIFYING = ("Inner", "Cross", "LeftOuter", "RightOuter", "FullOuter")


def cut_joins(bridge: Bridge, optimized: Node, make: Callable[[Node], Node]) -> Node:
    """The plan with `make(join)` in place of each join that something with state reads, inner ones first.

    What `make` returns must put out the join's attributes. A join whose rows the view only picks and computes with, one
    by one, is the view, and stays; so do semi and anti joins, which put out no more rows than they take in.
    """
    return _cut(bridge, optimized, make, read_by_state=False)


def _cut(b: Bridge, node: Node, make: Callable[[Node], Node], *, read_by_state: bool) -> Node:
    below = read_by_state or node.kind not in _ROW_BY_ROW
    children = node.children
    changed = [_cut(b, child, make, read_by_state=below) for child in children]
    if any(new is not old for new, old in zip(changed, children)):
        node = node.with_children(changed)
    if read_by_state and isinstance(node, Join) and node.join_type in _AMPLIFYING:
        return make(node)
    return node


def named(bridge: Bridge, node: Node) -> Node:
    """A node's attributes under names that are unique, as a view has to have them."""
    output = node.output
    return bridge.project([bridge.alias(a, f"c{i}_{a.name}") for i, a in enumerate(output)], node)


def in_place_of(bridge: Bridge, node: Node, leaf: Node) -> Node:
    """A leaf with the columns of `named(node)`, putting out the attributes of `node`."""
    pairs = zip(leaf.output, node.output, strict=True)
    return bridge.project([bridge.alias(new, old.name, old) for new, old in pairs], leaf)
