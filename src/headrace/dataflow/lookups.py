"""The plan of temporal joins: each row looks up its key in a relation, in one stage."""

from __future__ import annotations

from headrace.dataflow.flow import Builder, StagePlan, arrow, struct
from headrace.dataflow.lowering import Lowering
from headrace.dataflow.operators.lookups import LookupStage
from headrace.plan.border_types import spark_of
from headrace.plan.lookups import Lookup


def lookup(plan: Builder, op: Lookup) -> StagePlan:
    """Its keys beside its own columns. Rows stay where they are: any task can look up any key."""
    b, flow, table = plan.bridge, plan.flow(op.child), plan.relations[op.relation]
    assert table is not None
    flow = plan.noted(f"{op.id}!", flow, op.keys, condition=True)
    keys = [plan.column(k, flow).alias(f"k{i}") for i, k in enumerate(op.keys)]
    own = [c.alias(f"o{i}") for i, c in enumerate(plan.columns(flow, op.own))]
    frame = b.frame(flow.node).select(*keys, *own, b.column(flow.weight).alias("__w"))
    schema = struct([(f"o{i}", spark_of(a.handle)) for i, a in enumerate(op.output)], weight=True)
    names = tuple(op.columns)
    stage = LookupStage(op.id, op.relation, table, names, len(op.own), op.outer, arrow(schema))
    worker = plan.in_worker(op.child, flow, frame)
    if worker is not None:
        return StagePlan(worker.frame, stage, op.output, schema, worker.stages)
    return StagePlan(frame, stage, op.output, schema)


LOWERINGS = (Lowering(Lookup, stage=lookup),)
