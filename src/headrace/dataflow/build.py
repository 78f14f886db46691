"""From the tree of incremental operators to the Spark plan of one epoch.

Each stateful operator is a projection to its wire format, a distribution by `__k`, and a `mapInArrow` over a stage of
`dataflow.operators`. Those of joins, aggregates, group recompute and rows that wait have modules of their own.

Every stage renames its output to fresh expression ids and keeps a map from the query's ids to them, because Catalyst
renews ids that occur twice in a plan. Inputs without a change are planned as empty: one plan for each set of changed
inputs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType

from headrace.connectors.sinks import delivers, drops_retractions, only_counts
from headrace.dataflow import aggregates, joins, python, recompute, sessions, waiting
from headrace.dataflow.chains import Chains
from headrace.dataflow.flow import Builder, Flow, InWorker, StagePlan, arrow, struct
from headrace.dataflow.operators import materialize
from headrace.dataflow.operators.deliver import DeliverStage
from headrace.dataflow.operators.inputs import ConstantStage, InputStage
from headrace.dataflow.operators.lookup import LookupStage
from headrace.dataflow.operators.materialize import MaterializeStage
from headrace.plan.catalyst.nodes import Expand, Filter, Generate, PythonMap
from headrace.plan.planner import ViewPlan
from headrace.plan.tree import (
    Aggregate,
    Constant,
    Input,
    Join,
    Lookup,
    Operator,
    Recompute,
    Rowwise,
    Session,
    TemporalFilter,
    Union,
    WindowClose,
    walk,
)
from headrace.plan.types import spark_of


class EpochPlan(Builder):
    """Builds the plan of one view for one parallelism.

    With `vectorize` expressions are computed by Arrow's kernels where these do what Spark's do.
    """

    def __init__(self, *given: Any, vectorize: bool = True, **named: Any):
        super().__init__(*given, **named)
        self.chains = Chains(self, vectorize)

    def build(self, plan: ViewPlan) -> tuple[DataFrame, bool]:
        """The DataFrame whose execution is one epoch, and whether the number of its rows counts.

        It does where they are the changes for a sink that only counts them. Else there are none: results leave as
        runs, or into a sink.
        """
        root = plan.root
        self.on_error = plan.on_error
        self.names = {a.id: a.name for op in walk(root) for a in op.output}
        bridge = self.bridge
        nothing = StructType([StructField("done", LongType())])
        alone = plan.sink is not None and delivers(plan.sink)
        chain = self.chains.of(root)
        if chain is not None and not (alone and self.parallelism > 1):
            stages = [*chain.stages, self._terminal(plan, chain.positions(root.output))]
            return self.map(chain.frame, stages, nothing), False
        flow = self.flow(root)
        wire = [c.alias(f"c{i}") for i, c in enumerate(self.columns(flow, root.output))]
        frame = bridge.frame(flow.node).select(*wire, bridge.column(flow.weight).alias("__w"))
        if plan.sink is not None and only_counts(plan.sink):
            return frame.where("__w > 0") if drops_retractions(plan.sink) else frame, True
        if alone:  # one writer for all of an epoch, which is one transaction of its target
            frame = self.together(frame, single=True)
        return self.map(frame, [self._terminal(plan, tuple(range(len(wire))))], nothing), False

    def _terminal(self, plan: ViewPlan, positions: tuple[int, ...]) -> MaterializeStage | DeliverStage:
        """Where the changes end up."""
        if plan.sink is None:
            operator = materialize.INTO if plan.hands_over else materialize.OPERATOR
            return MaterializeStage(plan.schema, positions, self.weak_hash, operator)
        return DeliverStage(tuple(plan.sink.items()), plan.columns, positions)

    def flow(self, op: Operator) -> Flow:
        chain = self.chains.of(op)
        if chain is not None:
            return self.chains.flow(chain)
        makers: dict[type[Operator], Any] = {
            Input: self._unchanged,
            Rowwise: self._rowwise,
            Union: self._union,
            Join: partial(joins.joined, self),
            Aggregate: partial(aggregates.grouped, self),
            Recompute: partial(recompute.recompute, self),
            TemporalFilter: partial(waiting.timed, self),
        }
        flow: Flow = makers[type(op)](op)
        return flow

    def staged(self, op: Operator) -> Flow:
        return self.chains.flow(self.chains.alone(op))

    def in_worker(self, op: Operator, flow: Flow, frame: DataFrame) -> InWorker | None:
        return self.chains.continued(op, flow, frame)

    def onward(self, worker: InWorker, rows: DataFrame, frame: DataFrame) -> InWorker | None:
        return self.chains.onward(worker, rows, frame)

    def made(self, op: Operator) -> StagePlan:
        """What an operator with a stage of its own is made of."""
        makers: dict[type[Operator], Any] = {
            Input: self._input,
            Constant: self._constant,
            Join: partial(joins.join, self),
            Aggregate: partial(aggregates.aggregate, self),
            Lookup: self._lookup,
            Session: partial(sessions.sessions, self),
            WindowClose: partial(waiting.window_close, self),
        }
        made: StagePlan = makers[type(op)](op)
        return made

    def _input(self, op: Input) -> StagePlan:
        schema = struct([(f"c{i}", spark_of(a.handle)) for i, a in enumerate(op.output)], weight=True)
        table = self.relations[op.relation]
        stage = InputStage(
            op.id, op.relation, tuple(op.columns), table, self.parallelism, arrow(schema), op.late, op.changes_only
        )
        return StagePlan(self.slices(), stage, op.output, schema)

    def _unchanged(self, op: Input) -> Flow:
        fields = [(f"c{i}", spark_of(a.handle)) for i, a in enumerate(op.output)]
        empty = self.bridge.spark.createDataFrame([], struct(fields, weight=True))
        return self.read_as(empty, op.output)

    def _constant(self, op: Constant) -> StagePlan:
        names = [n for n in op.rows.schema.names if n != "__row"]
        schema = struct([(n, spark_of(a.handle)) for n, a in zip(names, op.output)], weight=True)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, op.rows.schema) as writer:
            writer.write_table(op.rows)
        stage = ConstantStage(op.id, sink.getvalue().to_pybytes(), arrow(schema))
        return StagePlan(self.slices(), stage, op.output, schema)

    def _rowwise(self, op: Rowwise) -> Flow:
        b, flow, node = self.bridge, self.flow(op.child), op.node
        if op.label == "Project":
            flow = self.noted(f"{op.id}!", flow, op.expressions)
            named = [self.fresh(e, flow) for e in op.expressions]
            mapping = {e.id: n.attribute for e, n in zip(op.expressions, named)}
            placed = self.still_placed(op.expressions, flow.placed)
            return Flow(b.project([*named, flow.weight], flow.node), flow.weight, mapping, placed)
        if isinstance(node, Filter):
            flow = self.noted(f"{op.id}!", flow, node.condition.conjuncts, condition=True)
            return replace(flow, node=b.filter(self.at(node.condition, flow), flow.node))
        if isinstance(node, Expand):
            expanded, output = b.expand(node, lambda e: self.at(e, flow), flow.weight, flow.node)
            return Flow(expanded, flow.weight, output)
        if isinstance(node, PythonMap):
            return self.read_as(python.mapped(b, node, flow.attrs, flow.weight, flow.node), op.output)
        child = flow.node
        if isinstance(node, Generate):  # it names the child's columns by position
            flow = self.noted(f"{op.id}!", flow, node.generator.children)
            child = b.project([*(flow.attrs[a.id] for a in node.child.output), flow.weight], flow.node)
        extended, added = b.extended(node, lambda e: self.at(e, flow), child)
        return Flow(extended, flow.weight, {**flow.attrs, **added})

    def _union(self, op: Union) -> Flow:
        b = self.bridge
        parts = []
        for child in op.children:
            flow = self.flow(child)
            columns = [b.alias(flow.attrs[a.id], f"u{i}") for i, a in enumerate(child.output)]
            parts.append(b.project([*columns, b.alias(flow.weight, "__w")], flow.node))
        frame = b.frame(b.union(parts))
        if self.parallelism == 1:
            frame = frame.coalesce(1)
        return self.read_as(frame, op.output)

    def _lookup(self, op: Lookup) -> StagePlan:
        b, flow, table = self.bridge, self.flow(op.child), self.relations[op.relation]
        assert table is not None
        flow = self.noted(f"{op.id}!", flow, op.keys, condition=True)
        keys = [self.column(k, flow).alias(f"k{i}") for i, k in enumerate(op.keys)]
        own = [c.alias(f"o{i}") for i, c in enumerate(self.columns(flow, op.own))]
        frame = b.frame(flow.node).select(*keys, *own, b.column(flow.weight).alias("__w"))
        schema = struct([(f"o{i}", spark_of(a.handle)) for i, a in enumerate(op.output)], weight=True)
        names = tuple(op.columns)
        stage = LookupStage(op.id, op.relation, table, names, len(op.own), op.outer, arrow(schema))
        worker = self.in_worker(op.child, flow, frame)
        if worker is not None:
            return StagePlan(worker.frame, stage, op.output, schema, worker.stages)
        return StagePlan(frame, stage, op.output, schema)
