"""Operators that work row by row: weights pass through, and nothing is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

from headrace.common.lazy_dataclass import dataclass
from headrace.plan.catalyst.expressions import Attribute, Expr, Named, all_renamed
from headrace.plan.catalyst.nodes import Expand, Filter, Generate, Node, Project
from headrace.plan.mark_rules import MarkReader, Marks, in_all, merged
from headrace.plan.tree import Operator

if TYPE_CHECKING:
    from headrace.plan.derive import Derivation
    from headrace.plan.inputs import Picked


@dataclass
class Rowwise(Operator):
    """A node that Spark runs row by row; weights pass through."""

    node: Node
    text: str
    kind = "rowwise"

    @property
    def label(self) -> str:
        """What is done, for EXPLAIN and the fingerprint."""
        return self.node.kind

    def detail(self) -> str:
        return f"{self.label} {self.text}"


@dataclass
class Projection(Rowwise):
    """Columns that are computed of each row."""

    expressions: Sequence[Named] = field(default_factory=list)
    label = "Project"

    def picked(self) -> Picked | None:
        below = self.child.picked()
        if below is None:
            return None
        inner = {e.id: _column(e.value, below.names) for e in self.expressions}
        return replace(below, names={i: name for i, name in inner.items() if name is not None})

    def renamed(self) -> Mapping[int, int] | None:
        return all_renamed(self.expressions)

    def marks(self, below: Sequence[Marks], watermarks: Mapping[int, str]) -> Marks:
        return MarkReader(below[0]).marks_of_all(self.expressions)


@dataclass
class Selection(Rowwise):
    """The rows for which a condition is true."""

    node: Filter

    def picked(self) -> Picked | None:
        below = self.child.picked()
        if below is None:
            return None
        present = below.present
        for condition in self.node.condition.conjuncts:
            name = _column(condition.child, below.names) if condition.kind == "IsNotNull" else None
            if name is None:
                return None
            present = (*present, name)
        return replace(below, present=present)

    def marks(self, below: Sequence[Marks], watermarks: Mapping[int, str]) -> Marks:
        return dict(below[0])


@dataclass
class Expansion(Rowwise):
    """Each row once for each of several projections."""

    node: Expand

    def marks(self, below: Sequence[Marks], watermarks: Mapping[int, str]) -> Marks:
        reader = MarkReader(below[0])
        rows = (zip(row, self.output, strict=True) for row in self.node.projections)
        return in_all([merged([reader.marks_of(e, a.id) for e, a in row]) for row in rows])


@dataclass
class Extension(Rowwise):
    """Each row with columns that functions make of it, beside its own."""

    def marks(self, below: Sequence[Marks], watermarks: Mapping[int, str]) -> Marks:
        return dict(below[0])


@dataclass
class Generation(Extension):
    """Each row once for each row that a function makes of it, with the columns of that beside its own."""

    node: Generate


def derive_projection(d: Derivation, node: Project, needed: set[int]) -> Operator:
    """The columns that are needed."""
    kept = [e for e in node.named if e.id in needed]
    child = d.derive(node.child, d.references(kept))
    text = "[" + ", ".join(e.text for e in kept) + "]"
    output = d.attrs([e.attribute for e in kept])
    return Projection(output, child.append_only, [child], node, text, kept)


def derive_selection(
    d: Derivation, node: Filter, needed: set[int], derive_child: Callable[[Node, set[int]], Operator]
) -> Operator:
    """A filter over the operator that its child becomes."""
    return _over(d, node, needed, derive_child(node.child, _wanted(d, node, needed)), Selection)


def derive_expansion(d: Derivation, node: Expand, needed: set[int]) -> Operator:
    """All columns of each projection."""
    child = d.derive(node.child, d.references(node.expressions))
    return Expansion(d.attrs(node.output), child.append_only, [child], node, node.detail)


def derive_extension(d: Derivation, node: Node, needed: set[int]) -> Operator:
    """A node that keeps its child's columns, and adds some."""
    return _over(d, node, needed, d.derive(node.child, _wanted(d, node, needed)), Extension)


def derive_generation(d: Derivation, node: Generate, needed: set[int]) -> Operator:
    """Generate names the columns that it drops by position, so everything below it is kept."""
    child = d.derive(node.child, {a.id for a in node.child.output})
    return _over(d, node, needed, child, Generation)


def _wanted(d: Derivation, node: Node, needed: set[int]) -> set[int]:
    below = {a.id for a in node.child.output}
    return (needed & below) | d.references(node.expressions)


def _over(d: Derivation, node: Node, needed: set[int], child: Operator, made: type[Rowwise]) -> Operator:
    kept = [a for a in d.attrs(node.output) if a.id in needed]
    return made(kept, child.append_only, [child], node, node.detail)


def _column(e: Expr, names: Mapping[int, str]) -> str | None:
    return names.get(e.id) if isinstance(e, Attribute) else None
