"""Where a view's plan is cut so that its joins become jobs of their own."""

from __future__ import annotations

from collections.abc import Callable

from headrace.plan.catalyst.bridge import Bridge, JNode

_ROW_BY_ROW = ("Project", "Filter", "Generate", "Expand", "BatchEvalPython", "ArrowEvalPython")
_AMPLIFYING = ("Inner", "Cross", "LeftOuter", "RightOuter", "FullOuter")


def cut_joins(bridge: Bridge, optimized: JNode, make: Callable[[JNode], JNode]) -> JNode:
    """The plan with `make(join)` in place of each join that something with state reads, inner ones first.

    What `make` returns must put out the join's attributes. A join whose rows the view only picks and computes with, one
    by one, is the view, and stays; so do semi and anti joins, which put out no more rows than they take in.
    """
    return _cut(bridge, optimized, make, read_by_state=False)


def _cut(b: Bridge, node: JNode, make: Callable[[JNode], JNode], *, read_by_state: bool) -> JNode:
    below = read_by_state or b.kind(node) not in _ROW_BY_ROW
    children = b.children(node)
    changed = [_cut(b, child, make, read_by_state=below) for child in children]
    if any(new is not old for new, old in zip(changed, children)):
        node = b.with_children(node, changed)
    if read_by_state and b.kind(node) == "Join" and b.kind(node.joinType()) in _AMPLIFYING:
        return make(node)
    return node


def named(bridge: Bridge, node: JNode) -> JNode:
    """A node's attributes under names that are unique, as a view has to have them."""
    output = bridge.output(node)
    return bridge.project([bridge.alias(a, f"c{i}_{a.name()}") for i, a in enumerate(output)], node)


def in_place_of(bridge: Bridge, node: JNode, leaf: JNode) -> JNode:
    """A leaf with the columns of `named(node)`, putting out the attributes of `node`."""
    pairs = zip(bridge.output(leaf), bridge.output(node), strict=True)
    return bridge.project([bridge.alias(new, str(old.name()), old.exprId()) for new, old in pairs], leaf)
