"""From Catalyst's optimized logical plan to the tree of incremental operators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from pyspark.sql import functions as F

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import NotSupported
from headrace.plan import aggregates, inputs, joins, limits, python, rowwise, sessions, temporal, unions, windows
from headrace.plan.catalyst import nodes
from headrace.plan.catalyst.bridge import Bridge
from headrace.plan.catalyst.expressions import Attribute, Expr
from headrace.plan.catalyst.nodes import (
    Expand,
    Filter,
    GlobalLimit,
    Leaf,
    Node,
    Offset,
    Project,
    PythonCoGroups,
    PythonColumns,
    PythonGroups,
    PythonMap,
    PythonTable,
    Subquery,
    Window,
)
from headrace.plan.tree import Attr, Operator

# Nodes that change neither rows nor columns: hints, orderings and cuts that a node above makes exact.
_TRANSPARENT = frozenset(
    {"Sort", "LocalLimit", "ResolvedHint", "Repartition", "RepartitionByExpression", "RebalancePartitions",
     "SubqueryAlias", "View"}
)  # fmt: skip
_CONSTANT = frozenset({"LocalRelation", "OneRowRelation", "Range"})


@dataclass(frozen=True)
class Path:
    """Where the rows of a relation can be looked up by some of its columns: in its own rows, or in an index."""

    relation: int
    name: str
    key: tuple[str, ...]
    columns: frozenset[str]
    unique: bool
    """There is at most one row of each key, and none with a null in it."""
    general: bool = True
    """Temporal joins may use it, too; not so an index that goes as soon as no other join uses it any more."""


@dataclass(frozen=True)
class PlannedRelation:
    """What the planner must know of an input relation."""

    id: int
    name: str
    append_only: bool
    watermark: str | None = None
    """The column that has a watermark."""
    primary_key: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()
    """How its rows can be looked up."""
    lookup: bool = False
    """It stands for the relation in `FOR SYSTEM_TIME AS OF PROCTIME()`."""


@dataclass
class Derivation:
    """One pass over an optimized plan. `relations` maps the bridge's leaf ids to relations."""

    bridge: Bridge
    relations: Mapping[int, PlannedRelation]
    clock: temporal.ClockLiteral
    arrangements: Collection[int] = ()
    """Relations and indexes whose rows joins may look up instead of keeping them."""

    def derive(self, node: Node, needed: set[int]) -> Operator:
        """The operator for a node, of whose output at least the attributes `needed` are used."""
        kind = node.kind
        if kind in _TRANSPARENT:
            return self.derive(node.child, needed)
        if kind in _CONSTANT:
            return inputs.derive_constant(self, node, needed)
        node = self.without_subqueries(node)
        kind = node.kind
        if not isinstance(node, (Filter, nodes.Join)):
            for e in node.expressions:
                if self.clock.within(e):
                    raise temporal.refusal(e)
        rule = _RULES.get(type(node))
        if rule is not None:
            return rule(self, node, needed)
        written = "WITH RECURSIVE" if kind == "UnionLoop" else f"{kind}: {node.line(200)}"
        raise NotSupported(
            f"a view can't contain {written}",
            hint="there is no incremental rule for this plan node; compute it in a query over the view instead",
        )

    def paths(self, relation_id: int) -> tuple[Path, ...]:
        """How the rows of a relation can be looked up."""
        return next((r.paths for r in self.relations.values() if r.lookup and r.id == relation_id), ())

    def attrs(self, handles: Iterable[Attribute]) -> list[Attr]:
        """Columns of the tree for those of Catalyst's."""
        return [Attr(h.id, h.name, h.type, h) for h in handles]

    def references(self, expressions: Iterable[Expr]) -> set[int]:
        """Ids read by any of the expressions."""
        found: set[int] = set()
        for e in expressions:
            found |= e.references
        return found

    def without_subqueries(self, node: Node) -> Node:
        """The node with each scalar subquery of its expressions joined below it as a column."""
        b = self.bridge
        found = (s for e in node.expressions for s in e.every(Subquery) if s.kind == "ScalarSubquery")
        subqueries = [s for s in found if not self.clock.is_now(s)]
        if not subqueries:
            return node
        children = node.children
        if len(children) != 1:
            raise NotSupported(
                "a subquery inside a join condition", hint="move it to the WHERE clause or the SELECT list"
            )
        child, columns = children[0], dict[int, Expr]()
        for subquery in subqueries:
            plan, column = self._single_row(subquery.plan)
            child = b.left_join_single(child, plan)
            columns[subquery.id] = column

        def replace(e: Expr) -> Expr | None:
            return columns.get(e.id) if isinstance(e, Subquery) else None

        return _with_expressions(b, node, lambda e: e.rewritten(replace), child)

    def _single_row(self, plan: Node) -> tuple[Node, Expr]:
        """The subquery's plan, made to fail on a second row, and its one column under a name of its own."""
        b = self.bridge
        if not plan.has_one_row_at_most:
            value = b.column(plan.output[0])
            too_many = F.raise_error(F.lit("more than one row returned by a subquery used as an expression"))
            guarded = F.when(F.count(F.lit(1)) > 1, too_many.cast(plan.output[0].spark_type))
            plan = b.analyzed(b.frame(plan).agg(guarded.otherwise(F.first(value)).alias("value")))
        alias = b.alias(plan.output[0], "subquery")
        return b.project([alias], plan), alias.attribute


def _with_expressions(b: Bridge, node: Node, change: Callable[[Expr], Expr], child: Node) -> Node:
    """A Project, Filter or Aggregate with changed expressions over another child."""
    if not isinstance(node, (Filter, Project, nodes.Aggregate)):
        raise NotSupported(f"a subquery inside {node.kind}", hint="compute it in a view of its own and join that")
    made = b.with_expressions(node.with_children([child]), change)
    return b.project(node.output, made) if isinstance(node, Filter) else made


def _python_map(d: Derivation, node: PythonMap, needed: set[int]) -> Operator:
    """A user's function; what reads a snapshot of a relation stands for the relation itself."""
    windows_found = sessions.read(node)
    if windows_found is not None:
        return sessions.derive_session(d, node, windows_found, needed)
    if node.relation is None:
        return python.derive_map(d, node, needed)
    relations = {r.id: r for r in d.relations.values() if not r.lookup}
    return inputs.derive_input(d, node, needed, relations.get(node.relation))


def _filter(d: Derivation, node: Filter, needed: set[int]) -> Operator:
    below = node.child
    windows_found = sessions.read(below)
    if windows_found is not None:
        lowered = sessions.below_sessions(d.bridge, node.condition, below, windows_found)
        if lowered is not None:
            return d.derive(lowered, needed)
    return temporal.derive_timed_filter(d, node, needed) or windows.derive_filter(d, node, needed)


_RULES: Mapping[type[Node], Callable[[Derivation, Any, set[int]], Operator]] = {
    Leaf: inputs.derive_leaf,
    PythonMap: _python_map,
    PythonColumns: rowwise.derive_extension,
    PythonTable: python.derive_table_function,
    PythonGroups: python.derive_apply,
    PythonCoGroups: python.refuse_cogroup,
    Project: rowwise.derive_projection,
    Expand: rowwise.derive_expansion,
    nodes.Generate: rowwise.derive_generation,
    nodes.Union: unions.derive_union,
    nodes.Join: joins.derive_join,
    nodes.Aggregate: aggregates.derive_aggregate,
    Filter: _filter,
    Window: windows.derive_window,
    GlobalLimit: limits.derive_limit,
    Offset: limits.derive_limit,
}
"""Class of a node -> the rule for it."""
