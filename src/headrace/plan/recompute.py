"""Operators that compute whole groups anew, or each row by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.plan.catalyst.bridge import JExpr, JNode
from headrace.plan.tree import Attr, Operator, Recompute, Rowwise
from headrace.plan.types import arrow_of

if TYPE_CHECKING:
    from headrace.plan.derive import Derivation


def rowwise(
    d: Derivation, node: JNode, needed: set[int], derive_child: Callable[[JNode, set[int]], Operator]
) -> Operator:
    """A node that keeps its child's columns, over the operator that the child becomes."""
    b = d.bridge
    child_node = b.children(node)[0]
    below = {b.attribute_id(a) for a in b.output(child_node)}
    wanted = (needed & below) | d.references(b.expressions_of(node))
    # Generate names the columns it drops by position, so everything below it is kept.
    child = derive_child(child_node, below if b.kind(node) == "Generate" else wanted)
    kept = [a for a in d.attrs(b.output(node)) if a.id in needed]
    text = str(node.simpleString(1000)).removeprefix(b.kind(node)).strip()
    return Rowwise(kept, child.append_only, [child], node, b.kind(node), text)


def recompute(
    d: Derivation, node: JNode, label: str, keys: list[JExpr], child_needed: set[int], output: list[Attr]
) -> Recompute:
    """Group recompute of a unary node by the given partition keys."""
    b = d.bridge
    child = d.derive(b.children(node)[0], child_needed | d.references(keys))
    normal = [b.normalized(k) for k in keys]
    text = str(node.simpleString(1000)).removeprefix(b.kind(node)).strip()
    return Recompute(output, False, [child], node, label, text, normal, [arrow_of(k) for k in normal], child.output)
