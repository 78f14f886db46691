"""From the tree of incremental operators to the Spark plan of one epoch.

Each stateful operator is a projection to its wire format, a distribution by `__k`, and a `mapInArrow` over a stage of
`dataflow.operators`. How that is made of an operator, its own module says (`lowering.py`); this one knows none of them.

Every stage renames its output to fresh expression ids and keeps a map from the query's ids to them, because Catalyst
renews ids that occur twice in a plan. Inputs without a change are planned as empty: one plan for each set of changed
inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType

from headrace.connectors.sinks import delivers, drops_retractions, only_counts
from headrace.dataflow import (
    aggregates,
    closing,
    inputs,
    joins,
    lookups,
    recompute,
    rowwise,
    sessions,
    temporal,
    unions,
)
from headrace.dataflow.chains import Chains, StageChain
from headrace.dataflow.flow import Builder, Flow, InWorker, StagePlan
from headrace.dataflow.lowering import by_node
from headrace.dataflow.operators import materialize
from headrace.dataflow.operators.deliver import DeliverStage
from headrace.dataflow.operators.materialize import MaterializeStage
from headrace.plan.planner import ViewPlan
from headrace.plan.tree import Operator, walk
from headrace.state.schema import ROWS

OPERATORS = (inputs, rowwise, unions, joins, lookups, aggregates, recompute, sessions, temporal, closing)
"""The modules of the operators: each declares how its own are executed."""
LOWERINGS = by_node(lowering for module in OPERATORS for lowering in module.LOWERINGS)
_NOTHING = StructType([StructField("done", LongType())])
"""The columns of an epoch's own rows, of which there are none."""


class EpochPlan(Builder):
    """Builds the plan of one view for one parallelism.

    With `vectorize` expressions are computed by Arrow's kernels where these do what Spark's do.
    """

    def __init__(self, *given: Any, vectorize: bool = True, **named: Any):
        super().__init__(*given, **named)
        self.chains = Chains(self, vectorize)
        self.only: tuple[object, ...] | None = None
        """After `build`: the stages, where all of the plan is stages of one worker over slices; else None."""

    def build(self, plan: ViewPlan) -> tuple[DataFrame, bool]:
        """The DataFrame whose execution is one epoch, and whether the number of its rows counts.

        It does where they are the changes for a sink that only counts them. Else there are none: results leave as
        runs, or into a sink.
        """
        root = plan.root
        self.on_error = plan.on_error
        self.rows = plan.state_tables().get(ROWS)
        self.names = {a.id: a.name for op in walk(root) for a in op.output}
        bridge = self.bridge
        alone = plan.sink is not None and delivers(plan.sink)
        chain = self.chains.of(root)
        if chain is not None and not (alone and self.parallelism > 1):
            stages = (*chain.stages, self._terminal(plan, chain.positions(root.output)))
            self.only = stages if self.is_slices(chain.frame) else None
            return self.map(chain.frame, stages, _NOTHING), False
        flow = self.flow(root)
        wire = [c.alias(f"c{i}") for i, c in enumerate(self.columns(flow, root.output))]
        frame = bridge.frame(flow.node).select(*wire, bridge.column(flow.weight).alias("__w"))
        if plan.sink is not None and only_counts(plan.sink):
            return frame.where("__w > 0") if drops_retractions(plan.sink) else frame, True
        if alone:  # one writer for all of an epoch, which is one transaction of its target
            frame = self.together(frame, single=True)
        return self.map(frame, [self._terminal(plan, tuple(range(len(wire))))], _NOTHING), False

    def build_only(self, stages: Sequence[object]) -> DataFrame:
        """The DataFrame of a plan that is nothing but these stages (`only`)."""
        return self.map(self.slices(), stages, _NOTHING)

    def _terminal(self, plan: ViewPlan, positions: tuple[int, ...]) -> MaterializeStage | DeliverStage:
        """Where the changes end up."""
        if plan.sink is None:
            operator = materialize.INTO if plan.hands_over else materialize.OPERATOR
            return MaterializeStage(plan.schema, positions, self.weak_hash, operator)
        return DeliverStage(tuple(plan.sink.items()), plan.columns, positions, plan.letters)

    def flow(self, op: Operator) -> Flow:
        chain = self.chains.of(op)
        if chain is not None:
            return self.chains.flow(chain)
        made = LOWERINGS[type(op)].flow
        assert made is not None, "an operator without a flow is a chain"
        return made(self, op)

    def staged(self, op: Operator) -> Flow:
        return self.chains.flow(self.chains.alone(op))

    def in_worker(self, op: Operator, flow: Flow, frame: DataFrame) -> InWorker | None:
        return self.chains.continued(op, flow, frame)

    def onward(self, worker: InWorker, rows: DataFrame, frame: DataFrame) -> InWorker | None:
        return self.chains.onward(worker, rows, frame)

    def made(self, op: Operator) -> StagePlan:
        """What an operator with a stage of its own is made of."""
        stage = LOWERINGS[type(op)].stage
        assert stage is not None, "only an operator with a stage of its own is asked for it"
        return stage(self, op)

    def chained(self, op: Operator, chains: Chains) -> StageChain | None:
        return LOWERINGS[type(op)].chained(chains, op)
