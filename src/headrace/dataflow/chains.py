"""Operators that follow one another in one Python worker, without Spark in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StructType

from headrace.dataflow import joins
from headrace.dataflow.flow import Builder, Flow, InWorker, Placed, arrow, struct
from headrace.dataflow.operators.compute import ComputeStage, Multiply, Select, Step, Where
from headrace.dataflow.operators.expressions import Column, Expression
from headrace.dataflow.operators.lookup import LookupStage
from headrace.dataflow.vectors import vectorized
from headrace.plan.bridge import JExpr, JNode
from headrace.plan.tree import Aggregate, Attr, Constant, Input, Join, Lookup, Operator, Rowwise, Session, WindowClose
from headrace.plan.types import spark_of


@dataclass(frozen=True)
class Chain:
    """Stages over the rows of a frame; `schema` is what the last one puts out: columns, then the weight."""

    frame: DataFrame
    stages: tuple[Any, ...]
    schema: StructType
    places: Mapping[int, int]
    """Where each attribute of the query is in it."""
    placed: Placed = ()
    """See `Flow`."""

    @property
    def weight(self) -> int:
        """The position of the weight."""
        return len(self.schema) - 1

    def positions(self, attrs: Sequence[Attr]) -> tuple[int, ...]:
        """Where some attributes are."""
        return tuple(self.places[a.id] for a in attrs)

    def then(self, operator: str, step: Step, schema: StructType, places: Mapping[int, int], placed: Placed) -> Chain:
        """One step more, in the same stage as those before it if there are any."""
        *before, last = self.stages
        if isinstance(last, ComputeStage):
            stage = ComputeStage(last.operator, (*last.steps, step), arrow(schema))
            return Chain(self.frame, (*before, stage), schema, places, placed)
        stage = ComputeStage(operator, (step,), arrow(schema))
        return Chain(self.frame, (*self.stages, stage), schema, places, placed)


class Chains:
    """The chains of one plan, each made once."""

    def __init__(self, plan: Builder, vectorize: bool):
        self._plan = plan
        self._vectorize = vectorize
        """Whether expressions may be computed outside of Spark."""
        self._alone: dict[str, Chain] = {}
        self._found: dict[str, Chain | None] = {}

    def alone(self, op: Operator) -> Chain:
        """The stage of an operator that has one of its own, with what must follow it."""
        if op.id not in self._alone:
            made = self._plan.made(op)
            stages = (*made.before, made.stage, *self._plan.following.get(op.id, ()))
            places = {a.id: i for i, a in enumerate(made.attrs)}
            self._alone[op.id] = Chain(made.frame, stages, made.schema, places)
        return self._alone[op.id]

    def of(self, op: Operator) -> Chain | None:
        """The stages that make an operator's output; None where Spark has something to do after the last one."""
        if op.id not in self._found:
            self._found[op.id] = self._made(op)
        return self._found[op.id]

    def flow(self, chain: Chain) -> Flow:
        """What a chain puts out, for Spark to go on with."""
        b, frame = self._plan.bridge, self._plan.map(chain.frame, chain.stages, chain.schema)
        node = b.analyzed(frame)
        handles = b.output(node)
        named = {i: b.alias(handles[place], str(handles[place].name())) for i, place in chain.places.items()}
        weight = b.alias(handles[chain.weight], "__w")
        attrs = {i: n.toAttribute() for i, n in named.items()}
        return Flow(b.project([*named.values(), weight], node), weight.toAttribute(), attrs, chain.placed)

    def continued(self, op: Operator, flow: Flow, frame: DataFrame) -> InWorker | None:
        """See `Builder.in_worker`: for projections and filters over the flow of a chain."""
        b, chain = self._plan.bridge, self.of(op)
        if chain is None:
            return None
        places = {b.attribute_id(a): chain.places[i] for i, a in flow.attrs.items()}
        places[b.attribute_id(flow.weight)] = chain.weight
        todo, node = [], b.analyzed(frame)
        while not node.equals(flow.node):
            if b.kind(node) not in ("Project", "Filter", "Expand"):
                return None
            todo.append(node)
            node = b.children(node)[0]
        chain = replace(chain, places=places)
        for node in reversed(todo):
            found = self._wired(f"{op.id}.wire", chain, node)
            if found is None:
                return None
            chain = found
        return InWorker(chain.frame, chain.stages, chain.schema)

    def _wired(self, operator: str, below: Chain, node: JNode) -> Chain | None:
        """A projection, whose columns need not end with the weight, or a filter."""
        b = self._plan.bridge
        if b.kind(node) == "Filter":
            return self._filter(operator, node.condition(), below)
        if b.kind(node) == "Project":
            named, given = b.items(node.projectList()), [b.items(node.projectList())]
        else:
            named, given = b.items(node.output()), [b.items(p) for p in b.items(node.projections())]
        compiled = self._all_compiled(given, below)
        if compiled is None:
            return None
        step = Select(compiled[0]) if b.kind(node) == "Project" else Multiply(compiled)
        schema = struct([(str(e.name()), spark_of(e)) for e in named])
        return below.then(operator, step, schema, {b.attribute_id(e): i for i, e in enumerate(named)}, ())

    def _made(self, op: Operator) -> Chain | None:
        match op:
            case Rowwise(label="Project"):
                return self._project(op.id, op.expressions, self.of(op.children[0]))
            case Rowwise(label="Expand"):
                return self._expand(op, self.of(op.children[0]))
            case Rowwise(label="Filter"):
                return self._filter(op.id, op.node.condition(), self.of(op.children[0]))
            case Input() if not self._plan.changes(op):
                return None
            case Input() | Constant() | Session() | WindowClose():
                return self.alone(op)
            case Join(join_type="inner"):
                return self._join(op)
            case Aggregate():
                return self._project(op.id, op.results, self.alone(op))
            case Lookup():
                return self._lookup(op)
            case _:
                return None

    def _compiled(self, expressions: Sequence[JExpr], chain: Chain) -> list[Expression] | None:
        if not self._vectorize:
            return None
        found = []
        for e in expressions:
            compiled = vectorized(self._plan.bridge, e, chain.places)
            if compiled is None:
                return None
            found.append(compiled)
        return found

    def _all_compiled(
        self, projections: Sequence[Sequence[JExpr]], chain: Chain
    ) -> tuple[tuple[Expression, ...], ...] | None:
        found = [self._compiled(p, chain) for p in projections]
        return tuple(tuple(p) for p in found if p is not None) if all(p is not None for p in found) else None

    def _project(self, operator: str, named: Sequence[JExpr], below: Chain | None) -> Chain | None:
        if below is None:
            return None
        b, sources = self._plan.bridge, self._plan.sources(named)
        placed = self._plan.still_placed(named, below.placed)
        if all(old is not None for old in sources.values()):
            places = {new: below.places[old] for new, old in sources.items() if old is not None}
            return replace(below, places=places, placed=placed)
        compiled = self._compiled(named, below)
        if compiled is None:
            return None
        ids = [b.attribute_id(e) for e in named]
        return self._selected(operator, below, compiled, [spark_of(e) for e in named], ids, placed)

    def _expand(self, op: Rowwise, below: Chain | None) -> Chain | None:
        b = self._plan.bridge
        if below is None:
            return None
        compiled = self._all_compiled([b.items(p) for p in b.items(op.node.projections())], below)
        if compiled is None:
            return None
        step = Multiply(tuple((*p, Column(below.weight)) for p in compiled))
        attrs = b.items(op.node.output())
        schema = struct([(f"e{i}", spark_of(a)) for i, a in enumerate(attrs)], weight=True)
        places = {b.attribute_id(a): i for i, a in enumerate(attrs)}
        return below.then(op.id, step, schema, places, ())

    def _selected(
        self, operator: str, below: Chain, columns: Sequence[Expression], types: Sequence[DataType],
        ids: Sequence[int], placed: Placed,
    ) -> Chain:  # fmt: skip
        schema = struct([(f"e{i}", t) for i, t in enumerate(types)], weight=True)
        step = Select((*columns, Column(below.weight)))
        return below.then(operator, step, schema, {i: n for n, i in enumerate(ids)}, placed)

    def _filter(self, operator: str, condition: JExpr, below: Chain | None) -> Chain | None:
        compiled = None if below is None else self._compiled([condition], below)
        if below is None or compiled is None:
            return None
        return below.then(operator, Where(compiled[0]), below.schema, below.places, below.placed)

    def _join(self, op: Join) -> Chain | None:
        chain = replace(self.alone(op), placed=joins.placed(self._plan, op.left, op.right))
        return chain if op.residual is None else self._filter(op.id, op.residual, chain)

    def _lookup(self, op: Lookup) -> Chain | None:
        below = self.of(op.children[0])
        compiled = None if below is None else self._compiled(op.keys, below)
        table = self._plan.relations[op.relation]
        if below is None or compiled is None:
            return None
        assert table is not None
        own = [Column(p) for p in below.positions(op.own)]
        types = [*(spark_of(k) for k in op.keys), *(spark_of(a.handle) for a in op.own)]
        wire = self._selected(op.id, below, [*compiled, *own], types, range(len(types)), ())
        schema = struct([(f"o{i}", spark_of(a.handle)) for i, a in enumerate(op.output)], weight=True)
        stage = LookupStage(op.id, op.relation, table, tuple(op.columns), len(op.own), op.outer, arrow(schema))
        return Chain(wire.frame, (*wire.stages, stage), schema, {a.id: i for i, a in enumerate(op.output)})
