"""The plan of session windows: rows brought together by session key, in one stage."""

from __future__ import annotations

from pyspark.sql import functions as F

from headrace.dataflow.flow import Builder, StagePlan, arrow, struct
from headrace.dataflow.lowering import Lowering
from headrace.dataflow.operators.sessions import TIME, SessionStage
from headrace.plan.border_types import spark_of
from headrace.plan.catalyst.expressions import Attribute
from headrace.plan.sessions import Session


def sessions(plan: Builder, op: Session) -> StagePlan:
    """Its rows by the hash of the key, with their times as microseconds."""
    b, flow = plan.bridge, plan.flow(op.child)
    keys = [plan.column(k, flow) for k in op.keys]
    columns = [plan.hash(keys).alias("__k"), b.column(flow.weight).alias("__w")]
    columns += [k.alias(f"k{i}") for i, k in enumerate(keys)]
    columns.append(F.unix_micros(plan.column(op.time, flow).cast("timestamp")).alias(TIME))
    columns += [v.alias(f"v{i}") for i, v in enumerate(plan.columns(flow, op.values))]
    placed = flow.holds_together(k.id for k in op.keys if isinstance(k, Attribute))
    rows = b.frame(flow.node).select(*columns)
    frame, before = plan.collected(op.child, flow, rows, single=not keys, placed=placed)
    schema = struct([(f"o{i}", spark_of(a.handle)) for i, a in enumerate(op.output)], weight=True)
    stage = SessionStage(op.id, op.state()[Session.TABLE], op.gap_us, tuple(op.columns), arrow(schema))
    return StagePlan(frame, stage, op.output, schema, before)


LOWERINGS = (Lowering(Session, stage=sessions),)
