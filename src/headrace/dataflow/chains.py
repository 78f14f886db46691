"""Operators that follow one another in one Python worker, without Spark in between.

Python stages are what a small epoch mostly pays for, so there are as few as possible. What stands between two
operators are filters, projections and the columns that rows send to the next one; `vectors.py` translates those that
have an exact twin among Arrow's kernels, and then they are computed in the worker:

- A query that only filters and projects has one Python stage, and no row ever goes to Java.
- With several tasks rows still go through Spark's shuffle to the tasks of their keys.
- Rows on their way to an aggregate are combined in the worker that made them (`operators/combine.py`), unless a
  sample shows that keys hardly repeat: fewer are shuffled, or sorted in the same worker.
- With one task, as for any small epoch, there is nothing to distribute: the whole way from the input through joins of
  which one side has changed and aggregates to the view is one worker's. Rows get the `__k` that Spark would give them
  (`operators/spark_hash.py`), since epochs of any parallelism read the same state.

What has no exact twin stays Spark's: the chain ends below it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from headrace.common.lazy_dataclass import dataclass
from headrace.dataflow.flow import Builder, Flow, InWorker, Placed, arrow, struct
from headrace.dataflow.operators.compute import ComputeStage, Multiply, Select, Step, Where
from headrace.dataflow.operators.kernel_expressions import Column, Expression
from headrace.dataflow.vectors import vectorized
from headrace.plan.border_types import spark_of
from headrace.plan.catalyst.expressions import Expr, Named, all_renamed
from headrace.plan.catalyst.nodes import Expand, Filter, Node, Project
from headrace.plan.tree import Attr, Operator


@dataclass(frozen=True)
class StageChain(InWorker):
    """Stages of operators one after the other: the columns that the last one puts out, then the weight."""

    places: Mapping[int, int]
    """Where each attribute of the query is in it."""
    placed: Placed = ()
    """See `Flow`."""

    @property
    def weight(self) -> int:
        """The position of the weight."""
        return len(self.schema) - 1

    def positions(self, attrs: Sequence[Attr]) -> tuple[int, ...]:
        """The positions of some attributes in a batch."""
        return tuple(self.places[a.id] for a in attrs)

    def then(
        self, operator: str, step: Step, schema: StructType, places: Mapping[int, int], placed: Placed
    ) -> StageChain:
        """One step more, in the same stage as those before it if there are any."""
        *before, last = self.stages
        if isinstance(last, ComputeStage):
            stage = ComputeStage(last.operator, (*last.steps, step), arrow(schema))
            return StageChain(self.frame, (*before, stage), schema, places, placed)
        stage = ComputeStage(operator, (step,), arrow(schema))
        return StageChain(self.frame, (*self.stages, stage), schema, places, placed)


class Chains:
    """The chains of one plan, each made once."""

    def __init__(self, plan: Builder, vectorize: bool):
        self.plan = plan
        self._vectorize = vectorize
        """Whether expressions may be computed outside of Spark."""
        self._alone: dict[str, StageChain] = {}
        self._found: dict[str, StageChain | None] = {}

    def alone(self, op: Operator) -> StageChain:
        """The stage of an operator that has one of its own, with what must follow it."""
        if op.id not in self._alone:
            made = self.plan.made(op)
            stages = (*made.before, made.stage, *self.plan.following.get(op.id, ()))
            places = {a.id: i for i, a in enumerate(made.attrs)}
            self._alone[op.id] = StageChain(made.frame, stages, made.schema, places)
        return self._alone[op.id]

    def of(self, op: Operator) -> StageChain | None:
        """The stages that make an operator's output; None where Spark has something to do after the last one."""
        if op.id not in self._found:
            self._found[op.id] = self.plan.chained(op, self)
        return self._found[op.id]

    def flow(self, chain: StageChain) -> Flow:
        """What a chain puts out, for Spark to go on with."""
        b, frame = self.plan.bridge, self.plan.map(chain.frame, chain.stages, chain.schema)
        node = b.analyzed(frame)
        handles = node.output
        named = {i: b.alias(handles[place], handles[place].name) for i, place in chain.places.items()}
        weight = b.alias(handles[chain.weight], "__w")
        attrs = {i: n.attribute for i, n in named.items()}
        return Flow(b.project([*named.values(), weight], node), weight.attribute, attrs, chain.placed)

    def continued(self, op: Operator, flow: Flow, frame: DataFrame) -> InWorker | None:
        """See `Builder.in_worker`: for projections and filters over the flow of a chain."""
        chain = self.of(op)
        if chain is None:
            return None
        places = {a.id: chain.places[i] for i, a in flow.attrs.items()}
        places[flow.weight.id] = chain.weight
        return self._through(f"{op.id}.wire", replace(chain, places=places), flow.node, frame)

    def onward(self, worker: InWorker, rows: DataFrame, frame: DataFrame) -> InWorker | None:
        """See `Builder.onward`."""
        b = self.plan.bridge
        node, last = b.analyzed(rows), worker.stages[-1]
        places = {a.id: i for i, a in enumerate(node.output)}
        chain = StageChain(worker.frame, worker.stages, worker.schema, places)
        return self._through(f"{last.label}.wire", chain, node, frame)

    def _through(self, operator: str, chain: StageChain, below: Node, frame: DataFrame) -> StageChain | None:
        """What a frame makes of the output of one of its nodes, which is that of a chain."""
        b = self.plan.bridge
        todo, node = [], b.analyzed(frame)
        while not node.equals(below):
            if not isinstance(node, (Project, Filter, Expand)):
                return None
            todo.append(node)
            node = node.child
        for node in reversed(todo):
            found = self._wired(operator, chain, node)
            if found is None:
                return None
            chain = found
        return chain

    def _wired(self, operator: str, below: StageChain, node: Node) -> StageChain | None:
        """A projection or expansion, whose columns need not end with the weight, or a filter."""
        if isinstance(node, Filter):
            return self.filtered(operator, node.condition, below)
        if isinstance(node, Expand):
            return self.computed(operator, below, node.output, node.projections, weighted=False)
        assert isinstance(node, Project)
        return self.computed(operator, below, node.named, [node.named], weighted=False)

    def _compiled(self, expressions: Sequence[Expr], chain: StageChain) -> list[Expression] | None:
        if not self._vectorize:
            return None
        found = []
        for e in expressions:
            compiled = vectorized(e, chain.places)
            if compiled is None:
                return None
            found.append(compiled)
        return found

    def projected(self, operator: str, named: Sequence[Named], below: StageChain | None) -> StageChain | None:
        """A chain (None for none) and then a projection; None where a kernel does not do what Spark does."""
        if below is None:
            return None
        placed = self.plan.still_placed(named, below.placed)
        if (renamed := all_renamed(named)) is not None:
            places = {new: below.places[old] for new, old in renamed.items()}
            return replace(below, places=places, placed=placed)
        return self.computed(operator, below, named, [named], placed)

    def computed(
        self, operator: str, below: StageChain | None, output: Sequence[Named], projections: Sequence[Sequence[Expr]],
        placed: Placed = (), *, weighted: bool = True,
    ) -> StageChain | None:  # fmt: skip
        """A chain and then each row once for each projection; None as for `projected`.

        The weight passes through if it is none of its columns.
        """
        if below is None:
            return None
        weight = [Column(below.weight)] if weighted else []
        lists = []
        for projection in projections:
            compiled = self._compiled(projection, below)
            if compiled is None:
                return None
            lists.append((*compiled, *weight))
        step = Select(lists[0]) if len(lists) == 1 else Multiply(tuple(lists))
        names = [f"e{i}" if weighted else e.name for i, e in enumerate(output)]
        schema = struct(list(zip(names, map(spark_of, output))), weight=weighted)
        return below.then(operator, step, schema, {e.id: i for i, e in enumerate(output)}, placed)

    def filtered(self, operator: str, condition: Expr, below: StageChain | None) -> StageChain | None:
        """A chain and then a filter; None as for `projected`."""
        compiled = None if below is None else self._compiled([condition], below)
        if below is None or compiled is None:
            return None
        return below.then(operator, Where(compiled[0]), below.schema, below.places, below.placed)
