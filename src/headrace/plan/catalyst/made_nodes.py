"""Nodes that are made, not read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from py4j.java_gateway import JavaObject, JVMView

from headrace.plan.catalyst.expressions import Attribute, Expr, named
from headrace.plan.catalyst.kinds import PythonCall, WindowSpec
from headrace.plan.catalyst.making import ExpressionMaker
from headrace.plan.catalyst.nodes import (
    Aggregate,
    Expand,
    Filter,
    Generate,
    Join,
    Node,
    Project,
    PythonColumns,
    PythonTable,
    Sort,
    Window,
)
from headrace.plan.catalyst.typed_nodes import Package, PartReader

Change: TypeAlias = Callable[[Expr], Expr]


class PlanMaker(ExpressionMaker):
    """Makes nodes, and their expressions."""

    def __init__(self, reader: PartReader, session: JavaObject, jvm: JVMView) -> None:
        super().__init__(reader, session, jvm)
        catalyst = jvm.org.apache.spark.sql.catalyst
        self._logical = Package(catalyst.plans.logical)
        self._plans = Package(catalyst.plans)
        self._equi_keys = Package(catalyst.planning)

    def project(self, expressions: Sequence[Expr], child: Node) -> Project:
        """Named expressions of each row."""
        made = self._logical.Project(self._reader.seq(expressions), child.in_java)
        return Project(made, self._reader, kind="Project", named=tuple(map(named, expressions)), children=(child,))

    def filter(self, condition: Expr, child: Node) -> Filter:
        """The rows for which a condition is true."""
        made = self._logical.Filter(condition.in_java, child.in_java)
        return Filter(made, self._reader, kind="Filter", condition=condition, children=(child,))

    def aggregate(self, groups: Sequence[Expr], results: Sequence[Expr], child: Node) -> Aggregate:
        """Results by group."""
        seq = self._reader.seq
        made = self._logical.Aggregate(seq(groups), seq(results), child.in_java, self._reader.none)
        known = {"groups": tuple(groups), "results": tuple(map(named, results)), "children": (child,)}
        return Aggregate(made, self._reader, kind="Aggregate", **known)

    def union(self, nodes: Sequence[Node]) -> Node:
        """All rows of nodes with equal column types."""
        made = self._logical.Union(self._reader.seq(nodes), False, False)
        return Node(made, self._reader, kind="Union", children=tuple(nodes))

    def local_leaf(self, output: Sequence[Attribute]) -> Node:
        """An empty leaf with exactly these attributes; it can be serialized."""
        seq = self._reader.seq
        made = self._logical.LocalRelation(seq(output), seq([]), False, self._reader.none)
        return Node(made, self._reader, kind="LocalRelation", children=(), output=tuple(output))

    # -- joins ---------------------------------------------------------------------------------------------------

    def join_on(self, join: Join, condition: Expr | None) -> Join:
        """The join with another condition."""
        left, right = join.children
        given = self._reader.some_or_none(condition)
        made = self._logical.Join(left.in_java, right.in_java, join.in_java.joinType(), given, join.in_java.hint())
        return Join(made, self._reader, kind="Join", condition=condition, children=(left, right))

    def left_join_single(self, left: Node, right: Node) -> Join:
        """Left outer join without a condition."""
        hint, kind = self._logical.module("JoinHint").NONE(), self._plans.module("LeftOuter")
        made = self._logical.Join(left.in_java, right.in_java, kind, self._reader.none, hint)
        return Join(made, self._reader, kind="Join", join_type="LeftOuter", condition=None, children=(left, right))

    def equi_join(self, join: Join) -> tuple[tuple[Expr, ...], tuple[Expr, ...], Expr | None]:
        """Left keys, right keys and the residual condition of a join; null-safe equality comes as plain equality."""
        found = self._equi_keys.ExtractEquiJoinKeys.unapply(join.in_java)
        if found.isEmpty():
            return (), (), join.condition
        parts, read = found.get(), self._reader
        return read.parts(parts._2(), Expr), read.parts(parts._3(), Expr), read.option(parts._4(), Expr)

    # -- a node again, with other parts --------------------------------------------------------------------------

    def with_expressions(self, node: Node, change: Change) -> Node:
        """A Filter, Join, Project, Aggregate, Sort, Window or Generate with its expressions changed."""
        match node:
            case Filter():
                return self.filter(change(node.condition), node.child)
            case Project():
                return self.project([change(e) for e in node.named], node.child)
            case Aggregate():
                groups = [change(e) for e in node.groups]
                return self.aggregate(groups, [change(e) for e in node.results], node.child)
            case Join():
                return self.join_on(node, None if node.condition is None else change(node.condition))
            case Sort():
                orders, java = self._reader.seq(map(change, node.orders)), node.in_java
                made = self._logical.Sort(orders, getattr(java, "global")(), node.child.in_java, java.hint())
            case Window():
                parts = (node.functions, node.partition, node.orders)
                changed = [self._reader.seq(map(change, part)) for part in parts]
                made = self._logical.Window(*changed, node.child.in_java, node.in_java.hint())
            case _:
                assert isinstance(node, Generate)
                generator = node.generator
                generator = generator.with_children([change(c) for c in generator.children])
                made = self._generate(node, generator, node.added, node.child)
        return type(node)(made, self._reader, kind=node.kind, children=node.children)

    def window(
        self, node: Window, change: Change, partition: Sequence[Expr], child: Node
    ) -> tuple[Node, dict[int, Attribute]]:
        """The `Window` node over another child, partitioned by other expressions; and its new output by old id."""
        seq = self._reader.seq

        def replace(e: Expr) -> Expr | None:
            if not isinstance(e, WindowSpec):
                return None
            orders = seq(map(change, e.orders))
            made = self._expressions.WindowSpecDefinition(seq(partition), orders, e.frame.in_java)
            return WindowSpec(made, self._reader, kind=e.kind)

        found, functions = {}, []
        for old in node.functions:
            new = self.alias(change(old.value.rewritten(replace)), old.name)
            functions.append(new)
            found[old.id] = new.attribute
        orders = seq(map(change, node.orders))
        made = self._logical.Window(seq(functions), seq(partition), orders, child.in_java, self._reader.none)
        return Window(made, self._reader, kind="Window", children=(child,)), found

    def expand(self, node: Expand, change: Change, extra: Attribute, child: Node) -> tuple[Node, dict[int, Attribute]]:
        """The `Expand` node over another child, with one more attribute passed through."""
        projections = [[*map(change, row), extra] for row in node.projections]
        found = {a.id: a.anew() for a in node.output}
        return self._expand(projections, [*found.values(), extra], child), found

    def multiplied(self, projections: Sequence[Sequence[Expr]], names: Sequence[str], child: Node) -> Node:
        """Each row of the child once for each projection of it: `Expand`."""
        output = [self.alias(e, n).attribute.as_nullable for e, n in zip(projections[0], names)]
        return self._expand(projections, output, child)

    def _expand(self, projections: Sequence[Sequence[Expr]], output: Sequence[Attribute], child: Node) -> Node:
        seq = self._reader.seq
        made = self._logical.Expand(seq([seq(row) for row in projections]), seq(output), child.in_java)
        return Expand(made, self._reader, kind="Expand", children=(child,), output=tuple(output))

    def extended(self, node: Node, change: Change, child: Node) -> tuple[Node, dict[int, Attribute]]:
        """A node that adds columns to those of its child (Generate, the evaluation of Python UDFs), over another child.

        Returns the node and the added attributes by their old ids.
        """
        seq, none = self._reader.seq, self._reader.none
        assert isinstance(node, (Generate, PythonTable, PythonColumns))
        found = {a.id: a.anew() for a in node.added}
        added = seq(found.values())
        match node:
            case Generate():
                made = self._generate(node, change(node.generator), tuple(found.values()), child)
            case PythonTable():  # as it was before it was optimized: Spark analyzes the plan once more
                made = self._logical.Generate(change(node.call).in_java, seq([]), False, none, added, child.in_java)
            case _:
                calls = seq(map(change, node.calls))
                if node.kind == "BatchEvalPython":
                    made = self._logical.BatchEvalPython(calls, added, child.in_java)
                else:
                    made = self._logical.ArrowEvalPython(calls, added, child.in_java, node.in_java.evalType())
        return self._reader.part(made, Node), found

    def _generate(self, like: Generate, generator: Expr, added: Sequence[Attribute], child: Node) -> JavaObject:
        java = like.in_java
        return self._logical.Generate(
            generator.in_java, java.unrequiredChildIndex(), java.outer(), java.qualifier(), self._reader.seq(added),
            child.in_java,
        )  # fmt: skip

    # -- Python functions ----------------------------------------------------------------------------------------

    def map_in(self, kind: str, call: PythonCall, output: Sequence[Attribute], child: Node) -> Node:
        """`MapInPandas` or `MapInArrow`."""
        made = getattr(self._logical, kind)(
            call.in_java, self._reader.seq(output), child.in_java, False, self._reader.none
        )
        return self._reader.part(made, Node)

    def flat_map_groups(
        self, kind: str, keys: Sequence[Attribute], call: PythonCall, output: Sequence[Attribute], child: Node
    ) -> Node:
        """`FlatMapGroupsInPandas` or `FlatMapGroupsInArrow`."""
        seq = self._reader.seq
        made = getattr(self._logical, kind)(seq(keys), call.in_java, seq(output), child.in_java)
        return self._reader.part(made, Node)


def mapped(expression: Expr, to: Mapping[int, Expr]) -> Expr:
    """The expression with other expressions in the place of some attributes, by their ids."""
    return expression.rewritten(lambda e: to.get(e.id) if isinstance(e, Attribute) else None)


__all__ = ["Change", "PlanMaker", "mapped"]
