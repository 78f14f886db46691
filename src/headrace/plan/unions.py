"""UNION ALL. (UNION is DISTINCT over it: an aggregate.)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.common.lazy_dataclass import dataclass
from headrace.plan.catalyst.nodes import Node
from headrace.plan.mark_rules import Marks, in_all, moved
from headrace.plan.tree import Operator

if TYPE_CHECKING:
    from headrace.plan.derive import Derivation


@dataclass
class Union(Operator):
    """All rows of all children."""

    kind = "union"

    def marks(self, below: Sequence[Marks], watermarks: Mapping[int, str]) -> Marks:
        renamed = []
        for child, marks in zip(self.children, below):
            renamed.append(moved(marks, {a.id: out.id for a, out in zip(child.output, self.output)}))
        return in_all(renamed)


def derive_union(d: Derivation, node: Node, needed: set[int]) -> Operator:
    """All columns of all children, in the same order."""
    output = d.attrs(node.output)
    children = []
    for child_node in node.children:
        handles = child_node.output
        child = d.derive(child_node, {a.id for a in handles})
        by_id = {a.id: a for a in child.output}
        child.output = [by_id[h.id] for h in handles]
        children.append(child)
    return Union(output, all(c.append_only for c in children), children)
