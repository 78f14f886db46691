"""The plan of EMIT ON WINDOW CLOSE: what the watermark has passed comes out also when nothing comes in."""

from __future__ import annotations

from pyspark.sql import functions as F

from headrace.dataflow.flow import Builder, StagePlan, arrow, struct
from headrace.dataflow.lowering import Lowering
from headrace.dataflow.operators.close import WindowCloseStage
from headrace.plan.border_types import spark_of
from headrace.plan.closing import WindowClose
from headrace.state.arrangement import slice_bounds


def window_close(plan: Builder, op: WindowClose) -> StagePlan:
    """Its rows, and one for each slice of the state: the watermark may pass what waits there without any row."""
    b, flow = plan.bridge, plan.flow(op.child)
    columns = plan.columns(flow, op.output)
    rows = b.frame(flow.node).select(
        plan.hash(columns).alias("__k"), b.column(flow.weight).alias("__w"),
        *(c.alias(f"c{i}") for i, c in enumerate(columns)), F.lit(None).cast("bigint").alias("__i"),
    )  # fmt: skip
    lows = F.array(*(F.lit(slice_bounds(i, plan.parallelism)[0]).cast("bigint") for i in range(plan.parallelism)))
    known = {"__k": lows[F.col("id")], "__w": F.lit(0).cast("bigint"), "__i": F.col("id")}
    schema = struct([(f"o{i}", spark_of(a.handle)) for i, a in enumerate(op.output)], weight=True)
    stage = WindowCloseStage(op.id, op.state()[WindowClose.TABLE], plan.parallelism, arrow(schema))
    return StagePlan(plan.together(plan.with_slices(rows, known)), stage, op.output, schema)


LOWERINGS = (Lowering(WindowClose, stage=window_close),)
