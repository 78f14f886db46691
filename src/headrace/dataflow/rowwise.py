"""Plans of operators that work row by row: Spark's own nodes with the weight as one more column, or Arrow's kernels."""

from __future__ import annotations

from dataclasses import replace

from headrace.dataflow import python
from headrace.dataflow.chains import Chains, StageChain
from headrace.dataflow.flow import Builder, Flow
from headrace.dataflow.lowering import Lowering
from headrace.plan.catalyst.nodes import Node
from headrace.plan.python import PythonRows, TableFunction
from headrace.plan.rowwise import Expansion, Extension, Generation, Projection, Rowwise, Selection


def project(plan: Builder, op: Projection) -> Flow:
    """The columns of a projection."""
    flow = plan.noted(f"{op.id}!", plan.flow(op.child), op.expressions)
    named = [plan.fresh(e, flow) for e in op.expressions]
    mapping = {e.id: n.attribute for e, n in zip(op.expressions, named)}
    placed = plan.still_placed(op.expressions, flow.placed)
    return Flow(plan.bridge.project([*named, flow.weight], flow.node), flow.weight, mapping, placed)


def chained_project(chains: Chains, op: Projection) -> StageChain | None:
    """The columns of a projection, computed by kernels; None where only Spark can."""
    return chains.projected(op.id, op.expressions, chains.of(op.child))


def select(plan: Builder, op: Selection) -> Flow:
    """The rows that a condition lets through."""
    condition = op.node.condition
    flow = plan.noted(f"{op.id}!", plan.flow(op.child), condition.conjuncts, condition=True)
    return replace(flow, node=plan.bridge.filter(plan.at(condition, flow), flow.node))


def chained_select(chains: Chains, op: Selection) -> StageChain | None:
    """The rows that a condition lets through, as kernels decide it; None where only Spark can."""
    return chains.filtered(op.id, op.node.condition, chains.of(op.child))


def expand(plan: Builder, op: Expansion) -> Flow:
    """Each row once for each projection."""
    flow = plan.flow(op.child)
    expanded, output = plan.bridge.expand(op.node, lambda e: plan.at(e, flow), flow.weight, flow.node)
    return Flow(expanded, flow.weight, output)


def chained_expand(chains: Chains, op: Expansion) -> StageChain | None:
    """Each row once for each projection, computed by kernels; None where only Spark can."""
    return chains.computed(op.id, chains.of(op.child), op.node.output, op.node.projections)


def extend(plan: Builder, op: Rowwise) -> Flow:
    """Each row with the columns that a node adds."""
    flow = plan.flow(op.child)
    return _extended(plan, op, flow, flow.node)


def generate(plan: Builder, op: Generation) -> Flow:
    """Each row with those that its generator makes of it. The node names the child's columns by position."""
    flow, node = plan.flow(op.child), op.node
    flow = plan.noted(f"{op.id}!", flow, node.generator.children)
    child = plan.bridge.project([*(flow.attrs[a.id] for a in node.child.output), flow.weight], flow.node)
    return _extended(plan, op, flow, child)


def _extended(plan: Builder, op: Rowwise, flow: Flow, child: Node) -> Flow:
    extended, added = plan.bridge.extended(op.node, lambda e: plan.at(e, flow), child)
    return Flow(extended, flow.weight, {**flow.attrs, **added})


def map_rows(plan: Builder, op: PythonRows) -> Flow:
    """What a Python function makes of the rows."""
    flow = plan.flow(op.child)
    return plan.read_as(python.mapped(plan.bridge, op.node, flow.attrs, flow.weight, flow.node), op.output)


LOWERINGS = (
    Lowering(Projection, chain=chained_project, flow=project),
    Lowering(Selection, chain=chained_select, flow=select),
    Lowering(Expansion, chain=chained_expand, flow=expand),
    Lowering(Extension, flow=extend),
    Lowering(Generation, flow=generate),
    Lowering(TableFunction, flow=extend),
    Lowering(PythonRows, flow=map_rows),
)
