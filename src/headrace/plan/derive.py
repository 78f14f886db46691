"""From Catalyst's optimized logical plan to the tree of incremental operators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import functions as F

from headrace.errors import NotSupported
from headrace.plan import aggregates, joins, lookups, python, sessions, temporal, windows
from headrace.plan.catalyst.bridge import Bridge, JExpr, JNode
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
SNAPSHOT_PREFIX = "headrace_relation_"
"""What the name of a function that reads a snapshot of a relation begins with; the relation's id follows."""


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
    rules: dict[str, Callable[[Derivation, JNode, set[int]], Operator]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rules = {
            "LogicalRDD": _input,
            "MapInArrow": _map_in_arrow,
            "MapInPandas": python.derive_map,
            "BatchEvalPythonUDTF": python.derive_table_function,
            "ArrowEvalPythonUDTF": python.derive_table_function,
            "FlatMapGroupsInPandas": python.derive_apply,
            "FlatMapGroupsInArrow": python.derive_apply,
            "FlatMapCoGroupsInPandas": python.refuse_cogroup,
            "FlatMapCoGroupsInArrow": python.refuse_cogroup,
            "Project": _project,
            "Expand": _expand,
            "Union": _union,
            "Join": joins.derive_join,
            "Aggregate": aggregates.derive_aggregate,
            "Filter": _filter,
            "Window": windows.derive_window,
            "GlobalLimit": _limit,
            "Offset": _limit,
        }

    def derive(self, node: JNode, needed: set[int]) -> Operator:
        """The operator for a node, of whose output at least the attributes `needed` are used."""
        kind = self.bridge.kind(node)
        if kind in _TRANSPARENT:
            return self.derive(self.bridge.children(node)[0], needed)
        if kind in _CONSTANT:
            return _constant(self, node, needed)
        node = self.without_subqueries(node)
        kind = self.bridge.kind(node)
        if kind not in ("Filter", "Join"):
            for e in self.bridge.expressions_of(node):
                if self.clock.within(e):
                    raise temporal.refusal(self.bridge, e)
        if kind in self.rules:
            return self.rules[kind](self, node, needed)
        if kind in _ROWWISE:
            return rowwise(self, node, needed, self.derive)
        written = "WITH RECURSIVE" if kind == "UnionLoop" else f"{kind}: {node.simpleString(200)!s}"
        raise NotSupported(
            f"a view can't contain {written}",
            hint="there is no incremental rule for this plan node; compute it in a query over the view instead",
        )

    def paths(self, relation_id: int) -> tuple[Path, ...]:
        """How the rows of a relation can be looked up."""
        return next((r.paths for r in self.relations.values() if r.lookup and r.id == relation_id), ())

    def attrs(self, handles: list[JExpr]) -> list[Attr]:
        """Attributes of Catalyst attribute handles."""
        b = self.bridge
        return [Attr(b.attribute_id(h), str(h.name()), b.simple_type(h), h) for h in handles]

    def references(self, expressions: list[JExpr]) -> set[int]:
        """Ids read by any of the expressions."""
        found: set[int] = set()
        for e in expressions:
            found |= self.bridge.references(e)
        return found

    def without_subqueries(self, node: JNode) -> JNode:
        """The node with each scalar subquery of its expressions joined below it as a column."""
        b = self.bridge
        kinds = frozenset({"ScalarSubquery"})
        subqueries = [s for e in b.expressions_of(node) for s in b.find(e, kinds) if not self.clock.is_now(s)]
        if not subqueries:
            return node
        children = b.children(node)
        if len(children) != 1:
            raise NotSupported(
                "a subquery inside a join condition", hint="move it to the WHERE clause or the SELECT list"
            )
        child, columns = children[0], {}
        for subquery in subqueries:
            plan, column = self._single_row(subquery.plan())
            child = b.left_join_single(child, plan)
            columns[int(subquery.exprId().id())] = column

        def replace(e: JExpr) -> JExpr | None:
            return columns.get(int(e.exprId().id())) if b.kind(e) == "ScalarSubquery" else None

        return _with_expressions(b, node, lambda e: b.rewrite(e, replace), child)

    def _single_row(self, plan: JNode) -> tuple[JNode, JExpr]:
        """The subquery's plan, made to fail on a second row, and its one column under a name of its own."""
        b = self.bridge
        bound = plan.maxRows()
        if bound.isEmpty() or int(bound.get()) > 1:
            value = b.column(b.output(plan)[0])
            too_many = F.raise_error(F.lit("more than one row returned by a subquery used as an expression"))
            guarded = F.when(F.count(F.lit(1)) > 1, too_many.cast(b.spark_type(b.output(plan)[0])))
            plan = b.analyzed(b.frame(plan).agg(guarded.otherwise(F.first(value)).alias("value")))
        alias = b.alias(b.output(plan)[0], "subquery")
        return b.project([alias], plan), alias.toAttribute()


def _with_expressions(b: Bridge, node: JNode, change: Callable[[JExpr], JExpr], child: JNode) -> JNode:
    """A Project, Filter or Aggregate with changed expressions over another child."""
    kind = b.kind(node)
    if kind not in ("Filter", "Project", "Aggregate"):
        raise NotSupported(f"a subquery inside {kind}", hint="compute it in a view of its own and join that")
    made = b.with_expressions(b.with_children(node, [child]), change)
    return b.project(b.output(node), made) if kind == "Filter" else made


def _input(d: Derivation, node: JNode, needed: set[int]) -> Operator:
    leaf = d.bridge.relation_id(node)
    return _read(d, node, needed, None if leaf is None else d.relations.get(leaf))


def _map_in_arrow(d: Derivation, node: JNode, needed: set[int]) -> Operator:
    """A leaf that reads a snapshot of a relation stands for the relation itself; its function's name says which."""
    if sessions.is_session(d.bridge, node):
        return sessions.derive_session(d, node, needed)
    name = str(node.functionExpr().name())
    wanted = name.removeprefix(SNAPSHOT_PREFIX)
    if name == wanted:
        return python.derive_map(d, node, needed)
    return _read(d, node, needed, {str(r.id): r for r in d.relations.values() if not r.lookup}.get(wanted))


def _read(d: Derivation, node: JNode, needed: set[int], relation: Relation | None) -> Operator:
    if relation is None:
        raise NotSupported(
            "a view can read only relations of this database",
            hint="create a source or table for the data, or build the DataFrame from db.table(...)",
        )
    if relation.lookup:
        raise lookups.refuse_lookup(relation)
    output = [a for a in d.attrs(d.bridge.output(node)) if a.id in needed]
    columns = [a.name for a in output]
    return Input(output, relation.append_only, [], relation.id, relation.name, columns)


def _constant(d: Derivation, node: JNode, needed: set[int]) -> Operator:
    attrs = d.attrs(d.bridge.output(node))
    names = [f"c{i}" for i in range(len(attrs))]
    # A relation of one row and no columns is a row all the same: the marker keeps it.
    rows = d.bridge.frame(node).toDF(*names).withColumn("__row", F.lit(True)).toArrow()
    kept = [i for i, a in enumerate(attrs) if a.id in needed]
    columns = [rows.column(i).cast(arrow_of(attrs[i].handle)) for i in kept]
    table = pa.table([*columns, rows.column("__row")], names=[*(names[i] for i in kept), "__row"])
    return Constant([attrs[i] for i in kept], True, [], table)


def _project(d: Derivation, node: JNode, needed: set[int]) -> Operator:
    b = d.bridge
    kept = [e for e in b.items(node.projectList()) if b.attribute_id(e) in needed]
    child = d.derive(b.children(node)[0], d.references(kept))
    text = "[" + ", ".join(str(e.toString()) for e in kept) + "]"
    output = d.attrs([e.toAttribute() for e in kept])
    return Rowwise(output, child.append_only, [child], node, "Project", text, kept)


def _filter(d: Derivation, node: JNode, needed: set[int]) -> Operator:
    below = d.bridge.children(node)[0]
    if sessions.is_session(d.bridge, below):
        lowered = sessions.below_sessions(d.bridge, node.condition(), below)
        if lowered is not None:
            return d.derive(lowered, needed)
    return temporal.derive_timed_filter(d, node, needed) or windows.derive_filter(d, node, needed)


def _expand(d: Derivation, node: JNode, needed: set[int]) -> Operator:
    b = d.bridge
    child = d.derive(b.children(node)[0], d.references(b.expressions_of(node)))
    text = str(node.simpleString(1000)).removeprefix("Expand").strip()
    return Rowwise(d.attrs(b.output(node)), child.append_only, [child], node, "Expand", text)


def _union(d: Derivation, node: JNode, needed: set[int]) -> Operator:
    b = d.bridge
    output = d.attrs(b.output(node))
    children = []
    for child_node in b.children(node):
        handles = b.output(child_node)
        child = d.derive(child_node, {b.attribute_id(a) for a in handles})
        by_id = {a.id: a for a in child.output}
        child.output = [by_id[b.attribute_id(h)] for h in handles]
        children.append(child)
    return Union(output, all(c.append_only for c in children), children)


def _limit(d: Derivation, node: JNode, needed: set[int]) -> Operator:
    """LIMIT and OFFSET, with the order below them, as one top-N over one group."""
    b = d.bridge
    cuts: list[tuple[str, int]] = []
    inner = node
    while (kind := b.kind(inner)) in ("GlobalLimit", "LocalLimit", "Offset"):
        if kind == "GlobalLimit":
            cuts.append(("limit", int(inner.limitExpr().eval(None))))
        elif kind == "Offset":
            cuts.append(("offset", int(inner.offsetExpr().eval(None))))
        inner = b.children(inner)[0]
    offset, limit = _window_of(cuts)
    orders: list[JExpr] = []
    if b.kind(inner) == "Project" and _sorts_below(b, inner):
        return _limit_below_project(d, node, inner, needed)
    if b.kind(inner) == "Sort":
        orders = b.items(inner.order())
        inner = b.children(inner)[0]
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


def _sorts_below(b: Bridge, node: JNode) -> bool:
    while b.kind(node) in ("Project", "Filter"):
        node = b.children(node)[0]
    return b.kind(node) == "Sort"


def _limit_below_project(d: Derivation, node: JNode, project: JNode, needed: set[int]) -> Operator:
    """Cut first, project afterwards: so that the order's columns are still there."""
    b = d.bridge

    def lower(n: JNode) -> JNode:
        child = b.children(n)[0]
        return b.with_children(n, [b.children(project)[0] if child.equals(project) else lower(child)])

    return d.derive(b.with_children(project, [lower(node)]), needed)


def _top_n(
    d: Derivation, node: JNode, inner: JNode, orders: list[JExpr], low: int, high: int | None, needed: set[int]
) -> Operator:
    b = d.bridge
    below = {b.attribute_id(a) for a in b.output(inner)}
    child = d.derive(inner, (needed & below) | d.references(orders))
    output = [a for a in child.output if a.id in needed]
    text = (
        f"rows {low + 1} to {'end' if high is None else high} order by [{', '.join(str(o.toString()) for o in orders)}]"
    )
    first = None if high is None else windows.first_rows(b, orders, high)
    return Recompute(output, False, [child], node, "TopN", text, [], [], child.output, (orders, low, high), first)
