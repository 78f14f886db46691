"""The plan of UNION ALL."""

from __future__ import annotations

from headrace.dataflow.flow import Builder, Flow
from headrace.dataflow.lowering import Lowering
from headrace.plan.unions import Union


def union(plan: Builder, op: Union) -> Flow:
    """The rows of all children, column by column."""
    b = plan.bridge
    parts = []
    for child in op.children:
        flow = plan.flow(child)
        columns = [b.alias(flow.attrs[a.id], f"u{i}") for i, a in enumerate(child.output)]
        parts.append(b.project([*columns, b.alias(flow.weight, "__w")], flow.node))
    frame = b.frame(b.union(parts))
    if plan.parallelism == 1:
        frame = frame.coalesce(1)
    return plan.read_as(frame, op.output)


LOWERINGS = (Lowering(Union, flow=union),)
