"""Operators that compute whole groups anew, or each row by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.plan.catalyst.expressions import Expr
from headrace.plan.catalyst.nodes import Node
from headrace.plan.tree import Attr, Operator, Recompute, Rowwise
from headrace.plan.types import arrow_of

if TYPE_CHECKING:
    from headrace.plan.derive import Derivation


def rowwise(
    d: Derivation, node: Node, needed: set[int], derive_child: Callable[[Node, set[int]], Operator]
) -> Operator:
    """A node that keeps its child's columns, over the operator that the child becomes."""
    child_node = node.child
    below = {a.id for a in child_node.output}
    wanted = (needed & below) | d.references(node.expressions)
    # Generate names the columns it drops by position, so everything below it is kept.
    child = derive_child(child_node, below if node.kind == "Generate" else wanted)
    kept = [a for a in d.attrs(node.output) if a.id in needed]
    return Rowwise(kept, child.append_only, [child], node, node.kind, node.detail)


def recompute(
    d: Derivation, node: Node, label: str, keys: Sequence[Expr], child_needed: set[int], output: list[Attr]
) -> Recompute:
    """Group recompute of a unary node by the given partition keys."""
    b = d.bridge
    child = d.derive(node.child, child_needed | d.references(keys))
    normal = [b.normalized(k) for k in keys]
    types = [arrow_of(k) for k in normal]
    return Recompute(output, False, [child], node, label, node.detail, normal, types, child.output)
