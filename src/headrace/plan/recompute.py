"""Group recompute: Spark's own operator over the old and the new rows of every group that changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.plan.border_types import arrow_of
from headrace.plan.catalyst.expressions import Attribute, Expr
from headrace.plan.catalyst.nodes import Aggregate, Node, PythonGroups, Window
from headrace.plan.mark_rules import TIMES, MarkReader, Marks
from headrace.plan.tree import WEIGHT, Attr, Operator, attr_arrow
from headrace.state.schema import TableSchema

if TYPE_CHECKING:
    from headrace.plan.derive import Derivation

_PYTHON = frozenset({"PythonUDAF"})


@dataclass
class First:
    """How much of each partition decides an operator's result: the first `need` rows, or the first `need` values."""

    orders: Sequence[Expr]
    """Sort orders of which the rows' order code is made; empty where the rows' hash is the order."""
    need: int
    by_value: bool = False
    kept: bool = False
    """The input only grows, so that no others are kept."""

    def text(self) -> str:
        """For people, and for the fingerprint; empty if all rows are kept, in the order of their hash."""
        if not self.orders and not self.kept:
            return ""
        what = "values" if self.by_value else "rows"
        order = f" by [{', '.join(o.text for o in self.orders)}]" if self.orders else ""
        return f" {'keeps' if self.kept else 'from'} the first {self.need} {what}{order}"


@dataclass
class Recompute(Operator):
    """Group recompute: Spark's own operator over the old and the new rows of every partition that changed.

    With `first`, the state is kept in order, and only the first rows of a partition are read; over an input that only
    grows, they are all that is kept.
    """

    node: Node
    text: str
    keys: Sequence[Expr]
    key_types: list[pa.DataType]
    values: list[Attr]
    first: First | None = None
    kind = "recompute"
    label = ""
    """What is computed, for EXPLAIN and the fingerprint."""

    def __post_init__(self) -> None:
        if self.first is not None:
            self.first = replace(self.first, kept=self.child.append_only)

    def detail(self) -> str:
        return f"{self.label} {self.text}{'' if self.first is None else self.first.text()}"

    def distribution(self) -> str | None:
        return ", ".join(k.text for k in self.keys) or "(one group)"

    def tables(self) -> dict[str, TableSchema]:
        return {
            "rows": TableSchema(
                key=tuple(pa.field(f"k{i}", t) for i, t in enumerate(self.key_types)),
                value=tuple(pa.field(f"v{i}", attr_arrow(a)) for i, a in enumerate(self.values)),
                diffs=WEIGHT,
            )
        }

    @property
    def never_empty(self) -> bool:
        """Whether it puts out a row even of no rows."""
        return False

    def computed(self) -> list[Expr]:
        """The expressions of which parts may be computed of a row by itself."""
        return list(self.node.expressions)

    def marks(self, below: Sequence[Marks], watermarks: Mapping[int, str]) -> Marks:
        reader = MarkReader(below[0])
        keys: Marks = {}
        for i, key in enumerate(self.keys):
            found = reader.mark(key)
            if found is None:
                continue
            if key.type in TIMES and not self.expires:
                self.expire("rows", f"k{i}", found)
            if isinstance(key, Attribute):
                keys[key.id] = found
        return self.marks_of_keys(keys)

    def marks_of_keys(self, keys: Marks) -> Marks:
        """What becomes of the marks of partition keys."""
        return {}


@dataclass
class Regrouped(Recompute):
    """Aggregates that are no sums."""

    node: Aggregate
    label = "Aggregate"

    @property
    def never_empty(self) -> bool:
        """Not so for Python's aggregates: for those over nothing Spark gives no row."""
        return not self.keys and not any(e.has(_PYTHON) for e in self.node.expressions)

    def marks_of_keys(self, keys: Marks) -> Marks:
        return MarkReader(keys).marks_of_all(self.node.results)


@dataclass
class Windowed(Recompute):
    """Window functions."""

    node: Window
    label = "Window"

    def marks_of_keys(self, keys: Marks) -> Marks:
        return {place: mark for place, mark in keys.items() if place in {a.id for a in self.output}}


@dataclass
class Applied(Recompute):
    """A Python function of whole groups: `applyInPandas`, `applyInArrow`."""

    node: PythonGroups
    label = "Apply"

    def computed(self) -> list[Expr]:
        return []


@dataclass
class TopN(Recompute):
    """The rows between two positions of an order, from exclusive, to inclusive; all rows are one group."""

    orders: Sequence[Expr] = ()
    low: int = 0
    high: int | None = None
    label = "TopN"

    def computed(self) -> list[Expr]:
        return [*super().computed(), *self.orders]


R = TypeVar("R", bound=Recompute)


def recompute(
    made: type[R], d: Derivation, node: Node, keys: Sequence[Expr], child_needed: set[int], output: list[Attr]
) -> R:
    """Group recompute of a unary node by the given partition keys."""
    b = d.bridge
    child = d.derive(node.child, child_needed | d.references(keys))
    normal = [b.normalized(k) for k in keys]
    types = [arrow_of(k) for k in normal]
    return made(output, False, [child], node, node.detail, normal, types, child.output)
