"""Plans of operators whose rows wait for a time: what is due comes out also when nothing comes in."""

from __future__ import annotations

from functools import reduce
from operator import and_

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.dataflow.flow import Builder, Flow, StagePlan, arrow, struct
from headrace.dataflow.operators.close import WindowCloseStage
from headrace.dataflow.operators.timed import KeepStage, PlaceStage, TimeBound
from headrace.plan.tree import TemporalFilter, WindowClose
from headrace.plan.types import spark_of
from headrace.state.arrangement import slice_bounds


def _with_slices(plan: Builder, rows: DataFrame, known: dict[str, SparkColumn]) -> DataFrame:
    """The rows, and one more for each slice of the state: its columns are null but for those that are known."""
    columns = (known.get(f.name, F.lit(None).cast(f.dataType)).alias(f.name) for f in rows.schema)
    return rows.unionAll(plan.slices().select(*columns))


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
    frame = _with_slices(plan, b.frame(flow.node).select(*columns).where(placed), {"__s": F.col("id")})
    if plan.parallelism == 1:
        frame = frame.coalesce(1)
    bounds = tuple(TimeBound(f"b{i}", bound.shift, bound.late, bound.leaves) for i, bound in enumerate(op.bounds))
    output = struct([(f"o{i}", spark_of(a.handle)) for i, a in enumerate(op.output)], weight=True)
    place = PlaceStage(op.id, schema, bounds, plan.parallelism)
    made = plan.map(frame, [place, KeepStage(op.id, schema, arrow(output))], output)
    return plan.read_as(made, op.output)


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
    return StagePlan(plan.together(_with_slices(plan, rows, known)), stage, op.output, schema)
