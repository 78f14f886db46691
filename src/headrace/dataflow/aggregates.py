"""Plans of grouped aggregates: what each row sends for the sums, combined by Spark as far as that is exact."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import LongType

from headrace.dataflow.flow import Builder, Flow, Made, arrow, stage_output, struct
from headrace.dataflow.operators.aggregate import AggregateStage, Sum
from headrace.dataflow.operators.values import Distinct, Ordered
from headrace.plan.tree import Accumulator, Aggregate
from headrace.plan.types import spark_of
from headrace.state import accumulators


def aggregate(plan: Builder, op: Aggregate) -> Made:
    """The stage that keeps the sums: rows together by group."""
    b, flow = plan.bridge, plan.flow(op.children[0])
    weight = b.column(flow.weight)
    groups = [plan.column(b.normalized(g), flow).alias(f"g{i}") for i, g in enumerate(op.groups)]
    wire = [c for i, a in enumerate(op.accumulators) if a.distinct is None for c in _wire(plan, a, f"a{i}", flow)]
    for i, d in enumerate(op.distincts):
        wire += [plan.column(e, flow).alias(f"d{i}_{n}") for n, e in enumerate(d.arguments)]
    frame = b.frame(flow.node).select(weight.alias("__w"), *groups, *wire)
    names = [f"g{i}" for i in range(len(groups))]
    frame = frame.select(plan.hash([F.col(n) for n in names]).alias("__k"), *frame.columns)
    if not op.distincts and all(accumulators.can_preaggregate(a.kind) for a in op.accumulators):
        frame = _preaggregated(plan, frame, names, op)
    else:
        frame = plan.together(frame, single=op.is_global)
    types = [spark_of(a.handle) for a in op.group_attrs]
    for a in op.accumulators:
        types += [from_arrow_type(a.result_type), *([LongType()] if a.count is not None else [])]
    schema = struct([(f"o{i}", t) for i, t in enumerate(types)], weight=True)
    stage = AggregateStage(op.id, op.state()["groups"], _sums(plan, op), arrow(schema), _distincts(plan, op))
    return Made(frame, stage, stage_output(op), schema)


def grouped(plan: Builder, op: Aggregate) -> Flow:
    """The aggregate, and what the query computes of its groups and sums."""
    b, flow = plan.bridge, plan.staged(op)
    results = [plan.fresh(e, flow) for e in op.results]
    found = {a.id: r.toAttribute() for a, r in zip(op.output, results)}
    return Flow(b.project([*results, flow.weight], flow.node), flow.weight, found)


def _sums(plan: Builder, op: Aggregate) -> tuple[Sum, ...]:
    tables, found = op.state(), []
    for i, a in enumerate(op.accumulators):
        made = Sum(a.kind, f"a{i}", a.argument_type, a.result_type, a.count is not None)
        if a.in_order:
            name = f"ordered{i}"
            made = replace(made, ordered=Ordered(name, tables[name], f"a{i}_raw", a.kind == "greatest"))
        if a.distinct is not None:
            made = replace(made, distinct=a.distinct, value="v0")
        found.append(made)
    return tuple(found)


def _distincts(plan: Builder, op: Aggregate) -> tuple[Distinct, ...]:
    tables = op.state()
    return tuple(
        Distinct(
            f"distinct{i}",
            tables[f"distinct{i}"],
            tuple(f"d{i}_{n}" for n in range(len(d.types))),
            plan.weak_hash,
        )
        for i, d in enumerate(op.distincts)
    )


def _wire(plan: Builder, a: Accumulator, prefix: str, flow: Flow) -> list[SparkColumn]:
    """What each row sends for an accumulator."""
    b = plan.bridge
    argument, weight = plan.at(a.argument, flow), b.column(flow.weight)
    value = b.column(argument)
    if accumulators.wire_columns(a.kind) == ("raw",):
        return [value.alias(f"{prefix}_raw")]
    zero = F.lit(0).cast("bigint")
    columns = {"n": F.when(value.isNotNull(), weight).otherwise(zero)}
    if a.kind == "sum_small":
        columns["s"] = F.coalesce(value.cast("bigint") * weight, zero)
    elif a.kind == "sum_wide":
        decimal = pa.types.is_decimal(a.argument_type)
        whole = b.column(b.unscaled(argument)) if decimal else value
        low = whole.bitwiseAND(F.lit(0xFFFFFFFF).cast("bigint"))
        columns["0"] = F.coalesce(low * weight, zero)
        columns["1"] = F.coalesce(F.shiftright(whole, 32) * weight, zero)
    return [c.alias(f"{prefix}_{suffix}") for suffix, c in columns.items()]


def _preaggregated(plan: Builder, frame: DataFrame, names: list[str], op: Aggregate) -> DataFrame:
    """Let Spark combine the epoch's rows by group first, on both sides of its own shuffle."""
    combined = [F.sum("__w").alias("__w")]
    for i, a in enumerate(op.accumulators):
        for suffix in accumulators.wire_columns(a.kind):
            name = f"a{i}_{suffix}"
            how = {"min": F.min, "max": F.max}.get(a.kind, F.sum)
            combined.append(how(name).alias(name))
    out = frame.groupBy("__k", *names).agg(*combined)
    return out.coalesce(1) if op.is_global or plan.parallelism == 1 else out
