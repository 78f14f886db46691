"""Plans of group recompute: the rows of changed groups before and after, and Spark's own operator over both.

A top-N (a limit with its order, or a window function below a filter like `rank <= N`) is group recompute of the first
N rows of a partition, with all that tie with the last: for window functions whose frames reach no further than the
current row. With `dense_rank` they are the rows of the first N codes. A partition whose first rows stay as they were
puts out nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from pyspark.sql import Column as SparkColumn
from pyspark.sql import Window as Over
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DataType, IntegerType

from headrace.common.lazy_dataclass import dataclass
from headrace.dataflow import python
from headrace.dataflow.flow import Builder, Flow, arrow, struct
from headrace.dataflow.lowering import Lowering
from headrace.dataflow.operators import calls
from headrace.dataflow.operators.held_rows import RowsByKey
from headrace.dataflow.operators.leading import FirstOfInputStage, LeadingStage
from headrace.dataflow.operators.recompute import FirstRows, RecomputeStage
from headrace.dataflow.operators.spark_hash import can_hash
from headrace.plan.border_types import spark_of
from headrace.plan.catalyst.bridge import Bridge
from headrace.plan.catalyst.expressions import Attribute, Expr, Named, named
from headrace.plan.catalyst.kinds import AggregateCall, SortOrder
from headrace.plan.catalyst.nodes import Node
from headrace.plan.guards import row_parts
from headrace.plan.recompute import Applied, Recompute, Regrouped, TopN, Windowed
from headrace.plan.tree import Operator
from headrace.state.kernels.order_code import OrderColumn


@dataclass(frozen=True)
class GroupVersions:
    """Rows of changed groups, before and after: `side` tells which, 0 is before.

    `is_row` is false for the row that keeps a group without rows alive, where there is one.
    """

    flow: Flow
    side: Attribute
    is_row: Attribute | None = None


Again: TypeAlias = Callable[[Builder, Any, GroupVersions], tuple[Node, Mapping[int, Attribute], Attribute]]
"""Spark's own operator over both versions: its node, where the operator's columns are in it, and the side."""


def recompute(again: Again, plan: Builder, op: Recompute) -> Flow:
    """Spark's own operator over both versions; then the side becomes the weight."""
    b, versions = plan.bridge, _versions(plan, op)
    node, mapping, side = again(plan, op, versions)
    weight = F.when(b.column(side) == 0, F.lit(-1)).otherwise(F.lit(1)).cast("bigint")
    kept = [b.alias(mapping[a.id], a.name) for a in op.output]
    node = b.analyzed(b.frame(node).select(*[b.column(k) for k in kept], weight.alias("__w")))
    *columns, out_weight = node.output
    return Flow(node, out_weight, {a.id: c for a, c in zip(op.output, columns)})


def _versions(plan: Builder, op: Recompute) -> GroupVersions:
    """The stage that finds both versions of the changed groups."""
    b = plan.bridge
    _reduce_at_leaf(plan, op)
    parts = [part for e in op.computed() for part in row_parts(e)]
    flow = plan.noted(f"{op.id}!", plan.flow(op.child), parts)
    keys = [plan.column(k, flow) for k in op.keys]
    values = plan.columns(flow, op.values)
    first, orders = _first_rows(plan, op, flow)
    columns = [plan.hash(keys).alias("__k"), b.column(flow.weight).alias("__w")]
    columns += [k.alias(f"k{i}") for i, k in enumerate(keys)]
    columns += [v.alias(f"v{i}") for i, v in enumerate(values)]
    columns += orders if first is not None and first.orders else [plan.hash([*keys, *values]).alias("__h")]
    placed = flow.holds_together(k.id for k in op.keys if isinstance(k, Attribute))
    frame = plan.together(b.frame(flow.node).select(*columns), single=not keys, placed=placed)
    phantom = op.never_empty
    fields: list[tuple[str, DataType]] = [(f"o{i}", spark_of(a.handle)) for i, a in enumerate(op.values)]
    extra: dict[str, DataType] = {"__side": IntegerType(), **({"__row": BooleanType()} if phantom else {})}
    schema = struct([*fields, *extra.items()])
    stage: RecomputeStage | LeadingStage
    if first is not None and op.first is not None and op.first.kept:
        stage = LeadingStage(op.id, op.state()["rows"], arrow(schema), first)
    else:
        stage = RecomputeStage(op.id, op.state()["rows"], phantom, arrow(schema), first)
    node, mapping, handles = plan.named(plan.map(frame, [stage], schema), op.values, list(extra))
    side, *is_row = handles
    return GroupVersions(Flow(node, side, mapping), side, is_row[0] if is_row else None)


def _first_rows(plan: Builder, op: Recompute, flow: Flow) -> tuple[FirstRows | None, list[SparkColumn]]:
    """What the stage is told of the order of rows, and the columns of it that it has not got as values."""
    if op.first is None:
        return None, []
    places = {a.id: f"v{i}" for i, a in enumerate(op.values)}
    orders, columns = [], []
    for i, order in enumerate(op.first.orders):
        by = order.child
        name = places.get(by.id) if isinstance(by, Attribute) else None
        if name is None:
            name = f"r{i}"
            columns.append(plan.column(by, flow).alias(name))
        orders.append((name, _sort_key(order)))
    return FirstRows(op.first.need, op.first.by_value, tuple(orders)), columns


def _reduce_at_leaf(plan: Builder, op: Recompute) -> None:
    """Where an input that only grows comes straight from a leaf, its tasks pass on only their own first rows."""
    if op.first is None or not op.first.kept or not op.first.orders:
        return
    wanted = [*op.keys, *(order.child for order in op.first.orders)]
    child = op.child
    ids = [e.id for e in wanted if isinstance(e, Attribute)]
    if len(ids) < len(wanted):
        return
    while (sources := child.renamed()) is not None:  # what is computed for a row may fail, and has to
        ids = [sources[i] for i in ids]
        child = child.child
    if child.children or child.reading() is None:
        return
    places = {a.id: f"c{i}" for i, a in enumerate(child.output)}
    keys, ordering = ids[: len(op.keys)], ids[len(op.keys) :]
    orders = tuple((places[i], _sort_key(order)) for i, order in zip(ordering, op.first.orders, strict=True))
    first = FirstRows(op.first.need, op.first.by_value, orders)
    stage = FirstOfInputStage(op.id, tuple(places[i] for i in keys), first, plan.weak_hash)
    plan.following[child.id] = [stage]
    _note_rows_by_key(plan, op, child, keys)


def _note_rows_by_key(plan: Builder, op: Recompute, leaf: Operator, keys: Sequence[int]) -> None:
    """Let a leaf find the rows that are kept of it by key, where they are all of its columns as they come."""
    columns, picked = [a.id for a in leaf.output], leaf.picked()
    schema = op.state()["rows"]
    if picked is None or [a.id for a in op.values] != columns or not all(can_hash(f.type) for f in schema.key):
        return
    names = picked.names
    plan.by_key[leaf.id] = RowsByKey(
        op.id, schema, tuple(names[i] for i in keys), tuple(names[i] for i in columns), plan.weak_hash
    )


def _sort_key(order: Expr) -> OrderColumn:
    """The direction of a sort order."""
    assert isinstance(order, SortOrder)
    return OrderColumn(order.falls, not order.nulls_last)


def _windowed(plan: Builder, op: Windowed, versions: GroupVersions) -> tuple[Node, Mapping[int, Attribute], Attribute]:
    flow, side = versions.flow, versions.side
    partition = [*(plan.at(e, flow) for e in op.node.partition), side]
    node, added = plan.bridge.window(op.node, lambda e: plan.at(e, flow), partition, flow.node)
    return node, {**flow.attrs, **added}, side


def _regrouped(
    plan: Builder, op: Regrouped, versions: GroupVersions
) -> tuple[Node, Mapping[int, Attribute], Attribute]:
    b, flow = plan.bridge, versions.flow
    results: list[Named] = [plan.fresh(e, flow) for e in op.node.results]
    if versions.is_row is not None:
        results = [named(r.rewritten(partial(_only_rows, b, versions.is_row))) for r in results]
    side = b.alias(versions.side, "__side")
    groups = [*(plan.at(e, flow) for e in op.node.groups), versions.side]
    node = b.aggregate(groups, [*results, side], flow.node)
    return node, {a.id: r.attribute for a, r in zip(op.output, results)}, side.attribute


def _applied(plan: Builder, op: Applied, versions: GroupVersions) -> tuple[Node, Mapping[int, Attribute], Attribute]:
    flow = versions.flow
    frame = python.applied(plan.bridge, op.node, flow.attrs, versions.side, flow.node)
    node, mapping, (side,) = plan.named(frame, op.output, [calls.SIDE])
    return node, mapping, side


def _top_n(plan: Builder, op: TopN, versions: GroupVersions) -> tuple[Node, Mapping[int, Attribute], Attribute]:
    b, flow = plan.bridge, versions.flow
    # Ties are broken by the row's hash, so that the same rows always give the same answer.
    order = [*(b.ordering(plan.at(o, flow)) for o in op.orders), plan.hash(plan.columns(flow, op.values))]
    position = F.row_number().over(Over.partitionBy(b.column(versions.side)).orderBy(*order))
    frame = b.frame(flow.node).withColumn("__position", position).where(F.col("__position") > op.low)
    if op.high is not None:
        frame = frame.where(F.col("__position") <= op.high)
    return b.analyzed(frame), flow.attrs, versions.side


def _only_rows(b: Bridge, is_row: Expr, e: Expr) -> Expr | None:
    """The aggregate call made blind to the phantom row."""
    if not isinstance(e, AggregateCall):
        return None
    condition = is_row if e.filter is None else b.and_(is_row, e.filter)
    return b.call(e, e.function, distinct=e.is_distinct, condition=condition)


LOWERINGS = (
    Lowering(Windowed, flow=partial(recompute, _windowed)),
    Lowering(Regrouped, flow=partial(recompute, _regrouped)),
    Lowering(Applied, flow=partial(recompute, _applied)),
    Lowering(TopN, flow=partial(recompute, _top_n)),
)
