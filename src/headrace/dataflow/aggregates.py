"""Plans of grouped aggregates: what each row sends for the sums, combined by Spark as far as that is exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import LongType

from headrace.dataflow.accumulator_input import MERGED, wire_columns
from headrace.dataflow.chains import Chains, StageChain
from headrace.dataflow.flow import Builder, Flow, InWorker, StagePlan, arrow, struct
from headrace.dataflow.lowering import Lowering
from headrace.dataflow.operators.aggregate import AggregateStage
from headrace.dataflow.operators.combine import CombineStage
from headrace.dataflow.operators.group_changes import DistinctStage, GroupChanges, Sum
from headrace.dataflow.operators.kept_values import Distinct, Ordered
from headrace.plan.aggregates import Aggregate, DistinctValues
from headrace.plan.border_types import spark_of
from headrace.plan.catalyst.expressions import Expr
from headrace.state.accumulators import WireColumn


def aggregate(plan: Builder, op: Aggregate) -> StagePlan:
    """The stage that keeps the sums: rows together by group."""
    flow = plan.noted(f"{op.id}!", plan.flow(op.child), _computed(op))
    rows, names = _rows(plan, op, flow), [f"g{i}" for i in range(len(op.groups))]
    distincts = () if op.by_value else _distincts(plan, op, None)
    frame, before = (_by_value if op.by_value else _by_group)(plan, op, names, flow, rows)
    types = [spark_of(a.handle) for a in op.group_attrs]
    for a in op.accumulators:
        types += [from_arrow_type(a.accumulator.result), *([LongType()] if a.count is not None else [])]
    schema = struct([(f"o{i}", t) for i, t in enumerate(types)], weight=True)
    groups = op.state()["groups"]
    stage = AggregateStage(op.id, groups, _sums(plan, op), arrow(schema), distincts, changed=op.by_value)
    sums = [a for s in op.accumulators for a in (s.result, s.count) if a is not None]
    return StagePlan(frame, stage, [*op.group_attrs, *sums], schema, before)


def grouped(plan: Builder, op: Aggregate) -> Flow:
    """The aggregate, and what the query computes of its groups and sums."""
    b, flow = plan.bridge, plan.noted(f"{op.id}!results", plan.staged(op), op.results)
    results = [plan.fresh(e, flow) for e in op.results]
    found = {a.id: r.attribute for a, r in zip(op.output, results)}
    return Flow(b.project([*results, flow.weight], flow.node), flow.weight, found)


def chained(chains: Chains, op: Aggregate) -> StageChain | None:
    """The stage that keeps the sums, and what the query computes of them if kernels do."""
    return chains.projected(op.id, op.results, chains.alone(op))


def _computed(op: Aggregate) -> list[Expr]:
    """All that is computed of a row before it comes to the aggregate."""
    found = [*op.groups, *(a.argument for a in op.accumulators if a.argument is not None)]
    return found + [e for d in op.distincts for e in (*d.arguments, *d.filters) if e is not None]


def _rows(plan: Builder, op: Aggregate, flow: Flow) -> DataFrame:
    """What each row sends: its weight, its group, and for the sums and the distinct values."""
    b = plan.bridge
    groups = [plan.column(b.normalized(g), flow).alias(f"g{i}") for i, g in enumerate(op.groups)]
    wire, weight = [], b.column(flow.weight)
    for i, a in enumerate(op.accumulators):
        if a.argument is not None:
            wire += wire_columns(b, a.accumulator, plan.at(a.argument, flow), weight, f"a{i}")
    for i, d in enumerate(op.distincts):
        wire += _values(plan, d, f"d{i}", flow)
    return b.frame(flow.node).select(weight.alias("__w"), *groups, *wire)


def _with_hash(plan: Builder, rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """The rows with the `__k` of some of their columns."""
    return rows.select(plan.hash([F.col(n) for n in names]).alias("__k"), *rows.columns)


def _combined(plan: Builder, op: Aggregate, flow: Flow, rows: DataFrame, names: Sequence[str]) -> InWorker | None:
    """The rows as they are made and combined by name in one worker.

    None where Spark has something to compute or to compare for it.
    """
    worker = plan.in_worker(op.child, flow, rows)
    if worker is None or not all(_combinable(f.type) for f in arrow(worker.schema)):
        return None
    extremes = {n: w.merged for n, w in _wires(op).items() if w.merged is not None and not w.adds}
    sums = tuple(n for n in rows.columns if n not in names and n not in extremes)
    stage = CombineStage(op.id, tuple(names), sums, tuple(extremes.items()), arrow(worker.schema))
    return replace(worker, stages=(*worker.stages, stage))


def _combinable(kind: pa.DataType) -> bool:
    """Whether Arrow groups by values of a type, and finds the least of them, as Spark does."""
    t = pa.types
    flat = t.is_boolean(kind) or t.is_integer(kind) or t.is_string(kind) or t.is_decimal128(kind)
    return flat or t.is_date32(kind) or t.is_timestamp(kind)


def _values(plan: Builder, d: DistinctValues, prefix: str, flow: Flow) -> list[SparkColumn]:
    """The values of a row, null if it passes no filter; and its weight for each filter that has one of its own."""
    values = [plan.column(e, flow) for e in d.arguments]
    conditions = {i: plan.column(f, flow) for i, f in enumerate(d.filters) if f is not None}
    if len(conditions) == len(d.filters):
        passes = reduce(SparkColumn.__or__, conditions.values())
        values = [F.when(passes, v) for v in values]
    weight, zero = plan.bridge.column(flow.weight), F.lit(0).cast("bigint")
    own = [F.when(conditions[i], weight).otherwise(zero).alias(f"{prefix}_{name}") for name, i in d.weights.items()]
    return [*(v.alias(f"{prefix}_{n}") for n, v in enumerate(values)), *own]


def _sums(plan: Builder, op: Aggregate) -> tuple[Sum, ...]:
    tables, found = op.state(), []
    for i, a in enumerate(op.accumulators):
        made, order = Sum(a.accumulator, f"a{i}", a.count is not None), a.accumulator.order
        if order is not None:
            (wire,) = a.accumulator.wire
            name = f"ordered{i}"
            made = replace(made, ordered=Ordered(name, tables[name], f"a{i}_{wire.suffix}", order == "descending"))
        if a.distinct is not None:
            weight = op.distincts[a.distinct].weight(a.filter)
            made = replace(made, distinct=a.distinct, value="v0", weight=weight)
        found.append(made)
    return tuple(found)


def _distincts(plan: Builder, op: Aggregate, shared: str | None) -> tuple[Distinct, ...]:
    """The tables of distinct values, each fed from its own weights; or all from columns that begin with `shared`."""
    tables, found = op.state(), []
    for i, d in enumerate(op.distincts):
        weights = ["__w", *(f"d{i}_{name}" for name in d.weights)]
        if shared is not None:
            weights = [f"{shared}{n}" for n in range(len(weights))]
        values = tuple(f"d{i}_{n}" for n in range(len(d.types)))
        found.append(Distinct(f"distinct{i}", tables[f"distinct{i}"], values, tuple(weights), plan.weak_hash))
    return tuple(found)


def _by_group(
    plan: Builder, op: Aggregate, names: list[str], flow: Flow, rows: DataFrame
) -> tuple[DataFrame, Sequence[object]]:
    """Rows that have come together by group, combined before if they can be; stages that run before."""
    hashed = _with_hash(plan, rows, names)
    if op.distincts or not all(a.accumulator.merges for a in op.accumulators):
        return plan.collected(op.child, flow, hashed, single=op.is_global)
    sent = _combined(plan, op, flow, rows, names)
    worker = _onward(plan, op, flow, sent, rows, hashed)
    if worker is not None:
        return worker.frame, worker.stages
    if sent is None:
        return _preaggregated(plan, op, hashed, ["__k", *names]), ()
    return plan.together(_with_hash(plan, _sent(plan, sent), names), single=op.is_global), ()


def _sent(plan: Builder, worker: InWorker) -> DataFrame:
    """What comes out of a worker, for Spark."""
    return plan.map(worker.frame, worker.stages, worker.schema)


def _onward(
    plan: Builder, op: Aggregate, flow: Flow, sent: InWorker | None, rows: DataFrame, hashed: DataFrame
) -> InWorker | None:
    """The worker that makes `rows`, combined if they are `sent` so, and goes on to `hashed`.

    Only in a plan of one task, which distributes nothing; None where Spark has something to compute.
    """
    if plan.parallelism > 1:
        return None
    worker = sent or plan.in_worker(op.child, flow, rows)
    return None if worker is None else plan.onward(worker, rows, hashed)


def _by_value(
    plan: Builder, op: Aggregate, names: list[str], flow: Flow, frame: DataFrame
) -> tuple[DataFrame, Sequence[object]]:
    """Changes of groups, from rows that have come together by group and distinct value; stages that run before."""
    extrema = _kept_apart(op) if _combines(op) else []
    several = len(op.distincts) > 1 or bool(extrema)
    distincts = _distincts(plan, op, "u" if several else None)
    frame = _one_value_each(plan, op, distincts, bool(extrema), frame) if several else frame
    values = [n for d in distincts for n in d.wire]
    schema = op.state()["groups"]
    stage = DistinctStage(op.id, GroupChanges(schema, _sums(plan, op), distincts, keeps_values=True))
    sent = _combined(plan, op, flow, frame, [*names, *values]) if _combines(op) else None
    worker = _onward(plan, op, flow, sent, frame, _with_hash(plan, frame, names))
    if worker is not None:
        return worker.frame, (*worker.stages, stage)
    if sent is None and _combines(op):
        weights = [n for d in distincts for n in d.weights]
        frame = _preaggregated(plan, op, frame, [*names, *values, *extrema], weights)
    else:
        frame = frame if sent is None else _sent(plan, sent)
        frame = plan.together(_with_hash(plan, frame, [*names, *values])).drop("__k")
    frame = _with_hash(plan, frame, names)
    own = [from_arrow_type(f.type) for f, _ in schema.diffs]
    types = [LongType(), *(spark_of(a.handle) for a in op.group_attrs), *own]
    changed = plan.map(frame, [stage], struct(list(zip(schema.arrow().names, types))))
    return plan.together(changed, single=op.is_global), ()


def _one_value_each(
    plan: Builder, op: Aggregate, distincts: Sequence[Distinct], apart: bool, frame: DataFrame
) -> DataFrame:
    """Each row once for each kind of distinct values, with the weights of that.

    All else it has the first time; with `apart`, in a row without values: then rows with the same values come together
    whatever else is a key.
    """
    b = plan.bridge
    node = b.analyzed(frame)
    of = {a.name: a for a in node.output}
    zero = b.literal_long(0)
    everywhere = [f"g{i}" for i in range(len(op.groups))]
    wires = _wires(op)
    once = [n for n in of if n == "__w" or n in wires]
    most = max(len(d.weights) for d in distincts)
    projections: list[list[Expr]] = []
    for i in range(-1 if apart else 0, len(distincts)):
        row: list[Expr] = [of[n] for n in everywhere]
        row += [of[n] if not projections else zero if n == "__w" or wires[n].adds else b.null_of(of[n]) for n in once]
        row += [of[n] if i == k else b.null_of(of[n]) for k, d in enumerate(distincts) for n in d.wire]
        weights = ["__w", *(f"d{i}_{name}" for name in op.distincts[i].weights)] if i >= 0 else []
        row += [of[n] for n in weights] + [zero] * (most - len(weights))
        projections.append(row)
    names = [*everywhere, *once, *(n for d in distincts for n in d.wire), *(f"u{n}" for n in range(most))]
    return b.frame(b.multiplied(projections, names, node))


def _combines(op: Aggregate) -> bool:
    """Whether Spark may combine rows of a group and value before they are looked up."""
    flat = not any(pa.types.is_nested(t) for d in op.distincts for t in d.types)
    return flat and all(a.distinct is not None or a.accumulator.merges for a in op.accumulators)


def _kept_apart(op: Aggregate) -> list[str]:
    """Columns that are keys, too, when rows are combined: extrema that Spark would have to sort rows for."""
    found = []
    for i, a in enumerate(op.accumulators):
        kind = a.accumulator.argument
        if a.distinct is None and (pa.types.is_string(kind) or pa.types.is_binary(kind)):
            found += [f"a{i}_{w.suffix}" for w in a.accumulator.wire if not w.adds]
    return found


def _wires(op: Aggregate) -> dict[str, WireColumn]:
    """What rows send for accumulators, by name."""
    plain = ((i, a) for i, a in enumerate(op.accumulators) if a.distinct is None)
    return {f"a{i}_{w.suffix}": w for i, a in plain for w in a.accumulator.wire}


def _preaggregated(
    plan: Builder, op: Aggregate, frame: DataFrame, keys: Sequence[str], weights: Sequence[str] = ()
) -> DataFrame:  # fmt: skip
    """Let Spark combine the epoch's rows by the keys first, on both sides of its own shuffle."""
    combined = [F.sum(n).alias(n) for n in dict.fromkeys(["__w", *weights])]
    ways = {n: w.merged for n, w in _wires(op).items() if w.merged is not None and n not in keys}
    combined += [MERGED[how](F.col(n)).alias(n) for n, how in ways.items()]
    out = frame.groupBy(*keys).agg(*combined)
    single = op.is_global and not op.by_value
    return out.coalesce(1) if single or plan.parallelism == 1 else out


LOWERINGS = (Lowering(Aggregate, stage=aggregate, chain=chained, flow=grouped),)
