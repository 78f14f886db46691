"""Queries over one relation, or over none, as calls of Arrow's kernels: those that need neither join nor aggregate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.dataflow.operators.compute import Select, Step, Where, computed
from headrace.dataflow.operators.kernel_expressions import Expression, RowColumns
from headrace.dataflow.vectors import vectorized
from headrace.errors import NotSupported
from headrace.plan.border_types import arrow_of
from headrace.plan.catalyst.expressions import Named
from headrace.plan.catalyst.nodes import Filter, Leaf, Node, Project, Union


@dataclass(frozen=True)
class Branch:
    """One input of a query's UNION ALL, or all of a query that has none."""

    reads: bool
    """Whether it computes with the relation's rows; else with one row that has no columns."""
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class KernelQuery:
    """A query whose every expression has an exact twin among the kernels. Needs no Spark, and may be kept."""

    branches: tuple[Branch, ...]
    output: pa.Schema

    @property
    def reads(self) -> bool:
        """Whether it reads the relation at all."""
        return any(branch.reads for branch in self.branches)

    def run(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """The result over the relation's rows, whose columns are all there, in order.

        Raises `UncertainValue`, or what Arrow raises, for values of which a kernel is not sure: Spark is to give the
        verdict.
        """
        found = [computed(b.steps, RowColumns.of([], 1), self.output) for b in self.branches if not b.reads]
        if self.reads:
            for batch in batches:
                found += self.of(batch)
        return pa.Table.from_batches([batch for batch in found if batch.num_rows], self.output)

    def of(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """What the branches that read make of one batch of the relation. Raises the same."""
        rows = RowColumns.of(batch.columns, batch.num_rows)
        return [computed(branch.steps, rows, self.output) for branch in self.branches if branch.reads]


def kernel_query(node: Node, leaf: int | None) -> KernelQuery | None:
    """An optimized plan over the leaf with that id, as one of kernels; None where any of it is for Spark alone."""
    try:
        output = pa.schema([pa.field(f"c{i}", arrow_of(e)) for i, e in enumerate(node.output)])
        branches = _branches(node, leaf)
    except NotSupported:
        return None
    if branches is None:
        return None
    return KernelQuery(tuple(Branch(found.reads, found.steps) for found in branches), output)


@dataclass(frozen=True)
class _Open:
    """A branch on its way, and where it has its attributes, by id."""

    reads: bool
    steps: tuple[Step, ...]
    places: Mapping[int, int]


def _branches(node: Node, leaf: int | None) -> list[_Open] | None:
    if node.kind == "OneRowRelation":
        return [_Open(False, (), {})]
    if node.is_empty:
        return []
    if isinstance(node, Leaf):
        return [_Open(True, (), _places(node.output))] if node.leaf_id == leaf else None
    if isinstance(node, Union):
        return _united(node, leaf)
    if not isinstance(node, (Project, Filter)):
        return None
    below = _branches(node.child, leaf)
    if below is None:
        return None
    found = [_filtered(node, one) if isinstance(node, Filter) else _projected(node, one) for one in below]
    return None if None in found else [one for one in found if one is not None]


def _united(node: Node, leaf: int | None) -> list[_Open] | None:
    found: list[_Open] = []
    for child in node.children:
        below = _branches(child, leaf)
        if below is None:
            return None
        by_place = [a.id for a in child.output]
        places = {a.id: i for i, a in enumerate(node.output)}
        for one in below:
            if [one.places.get(i) for i in by_place] != list(range(len(by_place))):
                return None
            found.append(_Open(one.reads, one.steps, places))
    return found


def _filtered(node: Filter, below: _Open) -> _Open | None:
    condition = vectorized(node.condition, below.places)
    if condition is None:
        return None
    return _Open(below.reads, (*below.steps, Where(condition)), below.places)


def _projected(node: Project, below: _Open) -> _Open | None:
    columns: list[Expression] = []
    for expression in node.named:
        found = vectorized(expression, below.places)
        if found is None:
            return None
        columns.append(found)
    return _Open(below.reads, (*below.steps, Select(tuple(columns))), _places(node.named))


def _places(attributes: Sequence[Named]) -> dict[int, int]:
    return {a.id: i for i, a in enumerate(attributes)}
