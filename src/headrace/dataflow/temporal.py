"""The plan of filters by the current time: what is due comes out also when nothing comes in."""

from __future__ import annotations

from functools import reduce
from operator import and_

from pyspark.sql import functions as F

from headrace.dataflow.flow import Builder, Flow, arrow, struct
from headrace.dataflow.lowering import Lowering
from headrace.dataflow.operators.timed import KeepStage, PlaceStage, TimeBound
from headrace.plan.border_types import spark_of
from headrace.plan.temporal import TemporalFilter


def timed(plan: Builder, op: TemporalFilter) -> Flow:
    """Rows that enter and leave with time; what is due is harvested also when nothing comes in."""
    b, schema = plan.bridge, op.state()["rows"]
    flow = plan.noted(f"{op.id}!", plan.flow(op.child), [bound.row for bound in op.bounds], condition=True)
    times = [F.unix_micros(plan.column(bound.row, flow).cast("timestamp")) for bound in op.bounds]
    values = plan.columns(flow, op.output)
    columns = [F.lit(None).cast("bigint").alias("__s"), plan.hash(values).alias("__h")]
    columns += [b.column(flow.weight).alias("__w"), *(t.alias(f"b{i}") for i, t in enumerate(times))]
    columns += [v.alias(f"v{i}") for i, v in enumerate(values)]
    placed = reduce(and_, (F.col(f"b{i}").isNotNull() for i in range(len(times))))
    frame = plan.with_slices(b.frame(flow.node).select(*columns).where(placed), {"__s": F.col("id")})
    if plan.parallelism == 1:
        frame = frame.coalesce(1)
    bounds = tuple(TimeBound(f"b{i}", bound.shift, bound.late, bound.leaves) for i, bound in enumerate(op.bounds))
    output = struct([(f"o{i}", spark_of(a.handle)) for i, a in enumerate(op.output)], weight=True)
    place = PlaceStage(op.id, schema, bounds, plan.parallelism)
    made = plan.map(frame, [place, KeepStage(op.id, schema, arrow(output))], output)
    return plan.read_as(made, op.output)


LOWERINGS = (Lowering(TemporalFilter, flow=timed),)
