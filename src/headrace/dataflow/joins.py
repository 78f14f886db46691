"""Plans of joins: the stage that joins, and those that count matches for the sides that are preserved.

The pairs of an inner join pass the residual condition as a plain filter afterwards. For an outer join they go on to a
second stage, keyed by the whole row of the preserved side, which counts the pairs that each distinct row has after
the residual condition: a row is put out (padded, or as a semi, anti or existence join wants it) when its count passes
between zero and more. A full join has one such stage for each side.

Both sides travel in one stream; columns of equal types share *slots*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from headrace.dataflow.chains import Chains, StageChain
from headrace.dataflow.flow import Builder, Flow, Placed, StagePlan, arrow, struct
from headrace.dataflow.lowering import Lowering
from headrace.dataflow.operators import preserve
from headrace.dataflow.operators.join import JoinStage, Side
from headrace.dataflow.operators.shared_sides import SharedRows
from headrace.plan.border_types import spark_of
from headrace.plan.catalyst.expressions import Attribute
from headrace.plan.joins import Join, JoinSide
from headrace.plan.tree import Attr


def join(plan: Builder, op: Join) -> StagePlan:
    """The stage that joins: rows of both sides on one wire, together by their key."""
    slots = _Slots()
    sides = [_side(plan, op, i, slots) for i in (0, 1)]
    flows = [
        plan.noted(f"{op.id}!{side.name}", plan.flow(child), spec.keys, condition=True)
        for child, spec, side in zip(op.children, (op.left, op.right), sides)
    ]
    wire = [_side_rows(plan, op, i, flows[i], sides[i], slots) for i in (0, 1)]
    attrs = [*op.left.values, *op.right.values]
    tagged = op.left.preserved or op.right.preserved
    schema = struct([(f"o{i}", spark_of(a.handle)) for i, a in enumerate(attrs)], weight=True, tag=tagged)
    stage = JoinStage(op.id, sides[0], sides[1], arrow(schema))
    busy = [i for i, child in enumerate(op.children) if not child.is_idle(plan.active)]
    if len(busy) == 1:
        (i,) = busy
        frame, before = plan.collected(op.children[i], flows[i], wire[i], single=not op.left.keys)
        return StagePlan(frame, stage, attrs, schema, before)
    return StagePlan(plan.together(wire[0].unionByName(wire[1]), single=not op.left.keys), stage, attrs, schema)


def joined(plan: Builder, op: Join) -> Flow:
    """The join, with its residual condition and what its preserved sides need."""
    if op.left.preserved or op.right.preserved:
        made = plan.made(op)
        return _preserved(plan, op, made.attrs, plan.map(made.frame, [*made.before, made.stage], made.schema))
    flow = replace(plan.staged(op), placed=placed(op.left, op.right))
    if op.residual is not None:
        flow = plan.noted(f"{op.id}!", flow, op.residual.conjuncts, condition=True)
        flow = replace(flow, node=plan.bridge.filter(plan.at(op.residual, flow), flow.node))
    return flow


def chained(chains: Chains, op: Join) -> StageChain | None:
    """The stage of an inner join, and its residual condition if a kernel computes that."""
    if op.join_type != "inner":
        return None
    chain = replace(chains.alone(op), placed=placed(op.left, op.right))
    return chain if op.residual is None else chains.filtered(op.id, op.residual, chain)


def placed(*sides: JoinSide) -> Placed:
    """What the hash of the key was made of that rows were brought together by: columns that the sides still have.

    Nothing where a part of the key is no column of any of them.
    """
    found = [frozenset(k.id for k in same if isinstance(k, Attribute)) for same in zip(*(s.keys for s in sides))]
    columns = {a.id for s in sides for a in s.values}
    kept = [same & columns for same in found]
    return tuple(kept) if all(kept) else ()


def _side(plan: Builder, op: Join, i: int, slots: _Slots) -> Side:
    side = (op.left, op.right)[i]
    name = ("left", "right")[i]
    taken = slots.assign([spark_of(a.handle) for a in side.values])
    if side.shared is None:
        return Side(name, op.state()[name], tuple(taken), side.preserved)
    found, layout = side.shared, plan.relations[side.shared.relation]
    assert layout is not None, "only what is stored is looked up"
    rows = SharedRows(found.relation, layout, found.keys, found.columns, found.present, plan.weak_hash)
    return Side(name, side.schema(), tuple(taken), side.preserved, rows)


def _side_rows(plan: Builder, op: Join, i: int, flow: Flow, side: Side, slots: _Slots) -> DataFrame:
    b = plan.bridge
    spec: JoinSide = (op.left, op.right)[i]
    keys = [plan.column(k, flow) for k in spec.keys]
    values = plan.columns(flow, spec.values)
    placed = dict(zip(side.slots, values))
    columns = [F.lit(i).alias("__s"), plan.hash(keys).alias("__k"), plan.hash([*keys, *values]).alias("__h")]
    columns.append(b.column(flow.weight).alias("__w"))
    columns += [k.alias(f"k{n}") for n, k in enumerate(keys)]
    for n, kind in enumerate(slots.types):
        value = placed.get(n)
        columns.append((F.lit(None).cast(kind) if value is None else value).alias(f"s{n}"))
    frame = b.frame(flow.node)
    if not spec.preserved:
        for k in keys:
            frame = frame.where(k.isNotNull())
    return frame.select(*columns)


def _preserved(plan: Builder, op: Join, attrs: list[Attr], frame: DataFrame) -> Flow:
    """The counting stages of an outer, semi, anti or existence join."""
    b = plan.bridge
    node, mapping, (weight, tag) = plan.named(frame, attrs, ["__w", "__t"])
    flow = Flow(node, weight, mapping)
    if op.residual is not None:
        pairs = F.when(b.column(tag) == preserve.PAIR, b.column(flow.weight)).otherwise(F.lit(0).cast("bigint"))
        parts = op.residual.conjuncts
        flow, (tag,) = plan.noted_beside(f"{op.id}!", flow, parts, [tag], b.expression(pairs), condition=True)
        counted = b.column(tag) != preserve.PAIR
        flow = replace(flow, node=b.analyzed(b.frame(flow.node).where(counted | plan.column(op.residual, flow))))
    if op.join_type not in ("left", "full"):
        return _matched(plan, op, flow, tag)
    flow, tag = _count(plan, op, op.left, preserve.LEFT, attrs, flow, tag)
    if op.join_type == "full":
        return _count(plan, op, op.right, preserve.RIGHT, attrs, flow, tag)[0]
    return replace(flow, placed=placed(op.left))


def _count_input(plan: Builder, side: JoinSide, columns: Sequence[Attr], flow: Flow, tag: Attribute) -> DataFrame:
    b = plan.bridge
    # Its rows are still where the hash of the side's key has brought them: equal rows together.
    own = plan.columns(flow, side.values)
    wire = [c.alias(f"o{i}") for i, c in enumerate(plan.columns(flow, columns))]
    fixed = [plan.hash(own).alias("__k"), b.column(flow.weight).alias("__w"), b.column(tag).alias("__t")]
    return plan.together(b.frame(flow.node).select(*fixed, *wire), placed=bool(placed(side)))


def _count(
    plan: Builder, op: Join, side: JoinSide, tag_value: int, attrs: list[Attr], flow: Flow, tag: Attribute
) -> tuple[Flow, Attribute]:
    frame = _count_input(plan, side, attrs, flow, tag)
    schema = struct([(f"o{i}", spark_of(a.handle)) for i, a in enumerate(attrs)], weight=True, tag=True)
    split = len(op.left.values)
    names = [f"o{i}" for i in range(len(attrs))]
    left, right = tuple(names[:split]), tuple(names[split:])
    table, own = ("left_matches", left) if side is op.left else ("right_matches", right)
    stage = preserve.PreserveStage(op.id, table, op.state()[table], own, tag_value, "outer", arrow(schema))
    node, mapping, (weight, tag) = plan.named(plan.map(frame, [stage], schema), attrs, ["__w", "__t"])
    return Flow(node, weight, mapping), tag


def _matched(plan: Builder, op: Join, flow: Flow, tag: Attribute) -> Flow:
    attrs = list(op.left.values)
    frame = _count_input(plan, op.left, attrs, flow, tag)
    fields = [(f"o{i}", spark_of(a.handle)) for i, a in enumerate(attrs)]
    if op.exists is not None:
        fields.append(("exists", spark_of(op.exists.handle)))
    schema = struct(fields, weight=True)
    own = tuple(f"o{i}" for i in range(len(attrs)))
    mode: Any = op.join_type
    identity = op.state()["left_matches"]
    stage = preserve.PreserveStage(op.id, "left_matches", identity, own, preserve.LEFT, mode, arrow(schema))
    return replace(plan.read_as(plan.map(frame, [stage], schema), op.output), placed=placed(op.left))


class _Slots:
    """Columns that both sides of a join share on the wire, one for each type in turn."""

    def __init__(self) -> None:
        self.types: list[DataType] = []

    def assign(self, types: Sequence[DataType]) -> list[int]:
        """A slot of the right type for each column; no slot twice."""
        taken: list[int] = []
        for kind in types:
            free = next((i for i, t in enumerate(self.types) if t == kind and i not in taken), None)
            if free is None:
                self.types.append(kind)
                free = len(self.types) - 1
            taken.append(free)
        return taken


LOWERINGS = (Lowering(Join, stage=join, chain=chained, flow=joined),)
