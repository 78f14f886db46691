"""Plans of leaves: relations of the database, and rows that the query itself states."""

from __future__ import annotations

import pyarrow as pa

from headrace.dataflow.chains import Chains, StageChain
from headrace.dataflow.flow import Builder, Flow, StagePlan, arrow, struct
from headrace.dataflow.lowering import Lowering
from headrace.dataflow.operators.inputs import ConstantStage, InputStage
from headrace.plan.border_types import spark_of
from headrace.plan.inputs import Constant, Input


def read(plan: Builder, op: Input) -> StagePlan:
    """The stage that reads a relation's change, or its content."""
    schema = struct([(f"c{i}", spark_of(a.handle)) for i, a in enumerate(op.output)], weight=True)
    table = plan.relations[op.relation]
    stage = InputStage(
        op.id, op.relation, tuple(op.columns), table, plan.parallelism, arrow(schema), op.late, op.changes_only,
        plan.rows if table is None else None, plan.by_key.get(op.id) if table is None else None,
    )  # fmt: skip
    return StagePlan(plan.slices(), stage, op.output, schema)


def chained(chains: Chains, op: Input) -> StageChain | None:
    """The stage, if the relation may have changed."""
    return None if op.is_idle(chains.plan.active) else chains.alone(op)


def unchanged(plan: Builder, op: Input) -> Flow:
    """A relation that has not changed: no rows, which costs no task."""
    fields = [(f"c{i}", spark_of(a.handle)) for i, a in enumerate(op.output)]
    empty = plan.bridge.spark.createDataFrame([], struct(fields, weight=True))
    return plan.read_as(empty, op.output)


def constant(plan: Builder, op: Constant) -> StagePlan:
    """The stage that puts out the rows, which it carries along."""
    names = [n for n in op.rows.schema.names if n != "__row"]
    schema = struct([(n, spark_of(a.handle)) for n, a in zip(names, op.output)], weight=True)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, op.rows.schema) as writer:
        writer.write_table(op.rows)
    stage = ConstantStage(op.id, sink.getvalue().to_pybytes(), arrow(schema))
    return StagePlan(plan.slices(), stage, op.output, schema)


LOWERINGS = (Lowering(Input, stage=read, chain=chained, flow=unchanged), Lowering(Constant, stage=constant))
