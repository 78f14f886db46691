"""Analyzed plans of DataFrames as text, so that a view made of one can be planned again after a restart."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from headrace.catalog.contents import MaterializedViewContent, PlannedContent
from headrace.errors import NotSupported
from headrace.plan.catalyst.answers import CallFailed, first_line
from headrace.plan.catalyst.bridge import Bridge, JNode
from headrace.plan.derive import SNAPSHOT_PREFIX
from headrace.plan.python import CALLS

if TYPE_CHECKING:
    from headrace.plan.planner import Planner

_MAPS = ("MapInPandas", "MapInArrow")
_GROUPS = ("FlatMapGroupsInPandas", "FlatMapGroupsInArrow")
_MARK = "headrace stands for "
"""Marks a projection that is stored in place of another node."""

IdOfLeaf = Callable[[JNode], int | None]
"""The id of the relation that a leaf of a plan stands for, if it stands for one."""


def snapshot_relation(bridge: Bridge, node: JNode) -> int | None:
    """The id of the relation whose snapshot a node reads."""
    if bridge.kind(node) != "MapInArrow":
        return None
    name = str(node.functionExpr().name())
    number = name.removeprefix(SNAPSHOT_PREFIX)
    return int(number) if name != number and number.isdigit() else None


def stored_query(planner: Planner, content: PlannedContent) -> str | DataFrame:
    """The query of a view as `Planner.plan` takes it, from what the catalog holds of it.

    Raises `NotSupported` where the catalog holds none, or one that this version of Spark cannot read.
    """
    if content.spark_sql is not None:
        return content.spark_sql
    if content.plan is None:
        raise NotSupported("the view's definition was not stored", hint="drop the view and create it again")
    bridge = planner.bridge
    try:
        return bridge.frame(from_content(bridge, content, lambda i: bridge.analyzed(planner.relation_frame(i))))
    except (CallFailed, ValueError, KeyError) as error:
        raise NotSupported(
            f"the stored plan of the DataFrame cannot be read: {first_line(error)}",
            hint="its rows stay readable; drop the view and create it again to have it kept up to date",
        ) from error


def leaf_ids(bridge: Bridge, node: JNode) -> list[int]:
    """What identifies the relation leaves below a node."""
    found = bridge.relation_id(node)
    return ([] if found is None else [found]) + [i for c in bridge.children(node) for i in leaf_ids(bridge, c)]


def to_content(bridge: Bridge, analyzed: JNode, id_of: IdOfLeaf) -> MaterializedViewContent:
    """What is stored of a view with this plan.

    Raises `NotSupported` for leaves that are no relations, and where Java cannot write the plan.
    """
    ids: list[int] = []

    def visit(node: JNode) -> JNode:
        if bridge.kind(node) in _MAPS + _GROUPS and snapshot_relation(bridge, node) is None:
            return _stand_in(bridge, node, visit(bridge.children(node)[0]))
        found = id_of(node)
        if found is None:
            found = snapshot_relation(bridge, node)
        if found is not None:
            ids.append(found)
            return bridge.local_leaf(bridge.output(node))
        children = bridge.children(node)
        if not children:
            if bridge.kind(node) == "LogicalRDD":
                raise NotSupported("a view can read only relations of this database")
            ids.append(0)
            return node
        return bridge.with_children(node, [visit(c) for c in children])

    plain = visit(_without_views(bridge, analyzed))
    return MaterializedViewContent(plan=bridge.serialize(plain), leaves=tuple(ids), last_id=_last_id(plain))


def _without_views(bridge: Bridge, node: JNode) -> JNode:
    """The plan without the names of temporary views, which hold their session's catalog entries."""
    if bridge.kind(node) in ("View", "SubqueryAlias"):
        return _without_views(bridge, bridge.children(node)[0])
    children = bridge.children(node)
    return bridge.with_children(node, [_without_views(bridge, c) for c in children]) if children else node


def from_content(bridge: Bridge, content: PlannedContent, leaf_of: Callable[[int], JNode]) -> JNode:
    """A stored plan, over the leaves that `leaf_of` gives for ids. Raises `ValueError` if it is not all there."""
    if content.plan is None or content.leaves is None or content.last_id is None:
        raise ValueError("a part of it is missing")
    _skip_ids(bridge, content.last_id)
    ids = iter(content.leaves)

    def visit(node: JNode) -> JNode:
        children = bridge.children(node)
        for expression in bridge.expressions_of(node):
            for call in bridge.find(expression, CALLS):
                bridge.renew_function(call.func())
        if _stands_in(bridge, node):
            return _original(bridge, node, visit(children[0]))
        if children:
            return bridge.with_children(node, [visit(c) for c in children])
        found = next(ids)
        if not found:
            return node
        leaf = leaf_of(found)
        pairs = zip(bridge.output(leaf), bridge.output(node), strict=True)
        return bridge.project([bridge.alias(new, str(old.name()), old.exprId()) for new, old in pairs], leaf)

    return visit(bridge.deserialize(content.plan))


def _stand_in(bridge: Bridge, node: JNode, child: JNode) -> JNode:
    """A projection that holds all of a node that Java cannot write: its function, its keys, its output."""
    kind = bridge.kind(node)
    if kind in _MAPS and bool(node.isBarrier()):
        raise NotSupported("a barrier stage in a view", hint="leave barrier=True out")
    keys = bridge.items(node.groupingAttributes()) if kind in _GROUPS else []
    output = [
        bridge.alias(bridge.cast(bridge.literal(None), a.dataType()), str(a.name()), a.exprId())
        for a in bridge.output(node)
    ]
    function = bridge.alias(node.functionExpr(), f"{_MARK}{kind} {len(keys)}")
    return bridge.project([function, *keys, *output], child)


def _stands_in(bridge: Bridge, node: JNode) -> bool:
    if bridge.kind(node) != "Project" or node.projectList().isEmpty():
        return False
    return str(node.projectList().apply(0).name()).startswith(_MARK)


def _original(bridge: Bridge, node: JNode, child: JNode) -> JNode:
    """The node that a projection stands in for."""
    first, *rest = bridge.items(node.projectList())
    kind, _, count = str(first.name()).removeprefix(_MARK).partition(" ")
    keys, output = rest[: int(count)], [e.toAttribute() for e in rest[int(count) :]]
    function = bridge.children(first)[0]
    if kind in _MAPS:
        return bridge.map_in(kind, function, output, child)
    return bridge.flat_map_groups(kind, keys, function, output, child)


_IDS_AT_ONCE = 20_000


def _last_id(node: JNode) -> int:
    """The highest expression id in a plan."""
    return max((int(text) for text in re.findall(r"#(\d+)", str(node.toString()))), default=0)


def _skip_ids(bridge: Bridge, last: int) -> None:
    """See to it that this process gives out none of the expression ids up to `last`."""
    utils = bridge.module(bridge.jvm.org.apache.spark.sql.catalyst.types, "DataTypeUtils")
    fields = [{"name": "c", "type": "integer", "nullable": True, "metadata": {}}] * _IDS_AT_ONCE
    wide = None
    newest = bridge.jvm.org.apache.spark.sql.catalyst.expressions.NamedExpression.newExprId
    while int(newest().id()) <= last:
        if wide is None:
            text = json.dumps({"type": "struct", "fields": fields})
            wide = bridge.spark._jsparkSession.parseDataType(text)
        utils.toAttributes(wide)
