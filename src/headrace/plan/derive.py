"""From Catalyst's optimized logical plan to the tree of incremental operators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F

from headrace.errors import NotSupported
from headrace.plan import aggregates, joins, lookups, python, sessions, temporal, windows
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
    PythonGroups,
    PythonMap,
    PythonTable,
    Sort,
    Subquery,
    Window,
)
from headrace.plan.recompute import rowwise
from headrace.plan.tree import Attr, Constant, Input, Operator, Recompute, Rowwise, Union
from headrace.plan.types import arrow_of

# Unary nodes that work row by row and keep their child's columns apart from what their expressions say.
_ROWWISE = frozenset({"Generate", "BatchEvalPython", "ArrowEvalPython"})
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
class Relation:
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
    relations: Mapping[int, Relation]
    clock: temporal.Clock
    arrangements: Collection[int] = ()
    """Relations and indexes whose rows joins may look up instead of keeping them."""

    def derive(self, node: Node, needed: set[int]) -> Operator:
        """The operator for a node, of whose output at least the attributes `needed` are used."""
        kind = node.kind
        if kind in _TRANSPARENT:
            return self.derive(node.child, needed)
        if kind in _CONSTANT:
            return _constant(self, node, needed)
        node = self.without_subqueries(node)
        kind = node.kind
        if not isinstance(node, (Filter, nodes.Join)):
            for e in node.expressions:
                if self.clock.within(e):
                    raise temporal.refusal(e)
        rule = _RULES.get(type(node))
        if rule is not None:
            return rule(self, node, needed)
        if kind in _ROWWISE:
            return rowwise(self, node, needed, self.derive)
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


def _input(d: Derivation, node: Leaf, needed: set[int]) -> Operator:
    return _read(d, node, needed, None if node.leaf_id is None else d.relations.get(node.leaf_id))


def _python_map(d: Derivation, node: PythonMap, needed: set[int]) -> Operator:
    """A user's function; what reads a snapshot of a relation stands for the relation itself."""
    windows_found = sessions.read(node)
    if windows_found is not None:
        return sessions.derive_session(d, node, windows_found, needed)
    if node.relation is None:
        return python.derive_map(d, node, needed)
    return _read(d, node, needed, {r.id: r for r in d.relations.values() if not r.lookup}.get(node.relation))


def _read(d: Derivation, node: Node, needed: set[int], relation: Relation | None) -> Operator:
    if relation is None:
        raise NotSupported(
            "a view can read only relations of this database",
            hint="create a source or table for the data, or build the DataFrame from db.table(...)",
        )
    if relation.lookup:
        raise lookups.refuse_lookup(relation)
    output = [a for a in d.attrs(node.output) if a.id in needed]
    columns = [a.name for a in output]
    return Input(output, relation.append_only, [], relation.id, relation.name, columns)


def _constant(d: Derivation, node: Node, needed: set[int]) -> Operator:
    attrs = d.attrs(node.output)
    names = [f"c{i}" for i in range(len(attrs))]
    # A relation of one row and no columns is a row all the same: the marker keeps it.
    rows = d.bridge.frame(node).toDF(*names).withColumn("__row", F.lit(True)).toArrow()
    kept = [i for i, a in enumerate(attrs) if a.id in needed]
    columns = [rows.column(i).cast(arrow_of(attrs[i].handle)) for i in kept]
    table = pa.table([*columns, rows.column("__row")], names=[*(names[i] for i in kept), "__row"])
    return Constant([attrs[i] for i in kept], True, [], table)


def _project(d: Derivation, node: Project, needed: set[int]) -> Operator:
    kept = [e for e in node.named if e.id in needed]
    child = d.derive(node.child, d.references(kept))
    text = "[" + ", ".join(e.text for e in kept) + "]"
    output = d.attrs([e.attribute for e in kept])
    return Rowwise(output, child.append_only, [child], node, "Project", text, kept)


def _filter(d: Derivation, node: Filter, needed: set[int]) -> Operator:
    below = node.child
    windows_found = sessions.read(below)
    if windows_found is not None:
        lowered = sessions.below_sessions(d.bridge, node.condition, below, windows_found)
        if lowered is not None:
            return d.derive(lowered, needed)
    return temporal.derive_timed_filter(d, node, needed) or windows.derive_filter(d, node, needed)


def _expand(d: Derivation, node: Expand, needed: set[int]) -> Operator:
    child = d.derive(node.child, d.references(node.expressions))
    return Rowwise(d.attrs(node.output), child.append_only, [child], node, "Expand", node.detail)


def _union(d: Derivation, node: Node, needed: set[int]) -> Operator:
    output = d.attrs(node.output)
    children = []
    for child_node in node.children:
        handles = child_node.output
        child = d.derive(child_node, {a.id for a in handles})
        by_id = {a.id: a for a in child.output}
        child.output = [by_id[h.id] for h in handles]
        children.append(child)
    return Union(output, all(c.append_only for c in children), children)


def _limit(d: Derivation, node: Node, needed: set[int]) -> Operator:
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
    return Recompute(output, False, [child], node, "TopN", text, [], [], child.output, (orders, low, high), first)


_RULES: Mapping[type[Node], Callable[[Derivation, Any, set[int]], Operator]] = {
    Leaf: _input,
    PythonMap: _python_map,
    PythonTable: python.derive_table_function,
    PythonGroups: python.derive_apply,
    PythonCoGroups: python.refuse_cogroup,
    Project: _project,
    Expand: _expand,
    nodes.Union: _union,
    nodes.Join: joins.derive_join,
    nodes.Aggregate: aggregates.derive_aggregate,
    Filter: _filter,
    Window: windows.derive_window,
    GlobalLimit: _limit,
    Offset: _limit,
}
"""Class of a node -> the rule for it."""
