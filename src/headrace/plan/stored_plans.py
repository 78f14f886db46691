"""Analyzed plans of DataFrames as text, so that a view made of one can be planned again after a restart."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from headrace.catalog.contents import MaterializedViewContent, PlannedContent
from headrace.errors import NotSupported
from headrace.plan.catalyst.answers import CallFailed, first_line
from headrace.plan.catalyst.bridge import Bridge
from headrace.plan.catalyst.kinds import PythonCall
from headrace.plan.catalyst.nodes import Leaf, Node, Project, PythonGroups, PythonMap

if TYPE_CHECKING:
    from headrace.plan.planner import Planner

_MARK = "headrace stands for "
"""Marks a projection that is stored in place of another node."""

IdOfLeaf = Callable[[Node], int | None]
"""The id of the relation that a leaf of a plan stands for, if it stands for one."""


def snapshot_relation(node: Node) -> int | None:
    """The id of the relation whose snapshot a node reads."""
    return node.relation if isinstance(node, PythonMap) else None


def stored_query(
    planner: Planner, content: PlannedContent, others: Mapping[str, tuple[int, str]] | None = None
) -> str | DataFrame:
    """The query of a view as `Planner.plan` takes it, from what the catalog holds of it.

    `others` says of names of relations, with their ids, under which other names they are to be read.
    Raises `NotSupported` where the catalog holds none, or one that this version of Spark cannot read.
    """
    if content.spark_sql is not None:
        text = content.spark_sql
        for name, (_, other) in (others or {}).items():
            text = text.replace(f"`{name}`", f"`{other}`")
        return text
    if content.plan is None:
        raise NotSupported("the view's definition was not stored", hint="drop the view and create it again")
    bridge, names = planner.bridge, dict((others or {}).values())

    def relation(relation_id: int) -> Node:
        return bridge.analyzed(planner.relation_frame(relation_id, names.get(relation_id)))

    try:
        return bridge.frame(from_content(bridge, content, relation))
    except (CallFailed, ValueError, KeyError) as error:
        raise NotSupported(
            f"the stored plan of the DataFrame cannot be read: {first_line(error)}",
            hint="its rows stay readable; drop the view and create it again to have it kept up to date",
        ) from error


def leaf_ids(node: Node) -> list[int]:
    """What identifies the relation leaves below a node."""
    found = node.leaf_id
    return ([] if found is None else [found]) + [i for c in node.children for i in leaf_ids(c)]


def to_content(bridge: Bridge, analyzed: Node, id_of: IdOfLeaf) -> MaterializedViewContent:
    """What is stored of a view with this plan.

    Raises `NotSupported` for leaves that are no relations, and where Java cannot write the plan.
    """
    ids: list[int] = []

    def visit(node: Node) -> Node:
        read = snapshot_relation(node)
        if isinstance(node, (PythonMap, PythonGroups)) and read is None:
            return _stand_in(bridge, node, visit(node.child))
        found = id_of(node)
        if found is None:
            found = read
        if found is not None:
            ids.append(found)
            return bridge.local_leaf(node.output)
        children = node.children
        if not children:
            if isinstance(node, Leaf):
                raise NotSupported("a view can read only relations of this database")
            ids.append(0)
            return node
        return node.with_children([visit(c) for c in children])

    plain = visit(_without_views(analyzed))
    return MaterializedViewContent(plan=bridge.serialize(plain), leaves=tuple(ids), last_id=_last_id(plain))


def _without_views(node: Node) -> Node:
    """The plan without the names of temporary views, which hold their session's catalog entries."""
    if node.kind in ("View", "SubqueryAlias"):
        return _without_views(node.child)
    children = node.children
    return node.with_children([_without_views(c) for c in children]) if children else node


def from_content(bridge: Bridge, content: PlannedContent, leaf_of: Callable[[int], Node]) -> Node:
    """A stored plan, over the leaves that `leaf_of` gives for ids. Raises `ValueError` if it is not all there."""
    if content.plan is None or content.leaves is None or content.last_id is None:
        raise ValueError("a part of it is missing")
    bridge.skip_ids(content.last_id)
    ids = iter(content.leaves)

    def visit(node: Node) -> Node:
        children = node.children
        for expression in node.expressions:
            for call in expression.every(PythonCall):
                bridge.renew_function(call)
        if isinstance(node, Project) and _stands_in(node):
            return _original(bridge, node, visit(children[0]))
        if children:
            return node.with_children([visit(c) for c in children])
        found = next(ids)
        if not found:
            return node
        leaf = leaf_of(found)
        pairs = zip(leaf.output, node.output, strict=True)
        return bridge.project([bridge.alias(new, old.name, old) for new, old in pairs], leaf)

    return visit(bridge.deserialize(content.plan))


def _stand_in(bridge: Bridge, node: PythonMap | PythonGroups, child: Node) -> Node:
    """A projection that holds all of a node that Java cannot write: its function, its keys, its output."""
    if isinstance(node, PythonMap) and node.is_barrier:
        raise NotSupported("a barrier stage in a view", hint="leave barrier=True out")
    keys = node.keys if isinstance(node, PythonGroups) else ()
    output = [bridge.alias(bridge.null_of(a), a.name, a) for a in node.output]
    function = bridge.alias(node.call, f"{_MARK}{node.kind} {len(keys)}")
    return bridge.project([function, *keys, *output], child)


def _stands_in(node: Project) -> bool:
    return bool(node.named) and node.named[0].name.startswith(_MARK)


def _original(bridge: Bridge, node: Project, child: Node) -> Node:
    """The node that a projection stands in for."""
    first, *rest = node.named
    kind, _, count = first.name.removeprefix(_MARK).partition(" ")
    keys, output = [e.attribute for e in rest[: int(count)]], [e.attribute for e in rest[int(count) :]]
    call = first.value
    assert isinstance(call, PythonCall)
    if kind.startswith("FlatMap"):
        return bridge.flat_map_groups(kind, keys, call, output, child)
    return bridge.map_in(kind, call, output, child)


def _last_id(node: Node) -> int:
    """The highest expression id in a plan."""
    return max((int(text) for text in re.findall(r"#(\d+)", node.text)), default=0)
