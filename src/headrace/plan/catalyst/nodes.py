"""The nodes of Catalyst's logical plans. A kind of which more is asked than of any node has a class of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from py4j.java_gateway import JavaObject

from headrace.plan.catalyst.expressions import Attribute, Expr, Named
from headrace.plan.catalyst.kinds import PythonCall, SortOrder
from headrace.plan.catalyst.marked_names import relation_read
from headrace.plan.catalyst.typed_nodes import Part, asked

N = TypeVar("N", bound="Node")

_DETAIL_CHARS = 1000


class Node(Part):
    """A node."""

    @asked
    def children(self) -> tuple[Node, ...]:
        """The nodes right below it, without those of subqueries."""
        return self._children(Node)

    @property
    def child(self) -> Node:
        """The first of them, often the only one."""
        return self.children[0]

    @asked
    def output(self) -> tuple[Attribute, ...]:
        """The columns that it puts out."""
        return self._attributes(self.in_java.output())

    @asked
    def expressions(self) -> tuple[Expr, ...]:
        """All top expressions that it holds."""
        return self.reader.parts(self.in_java.expressions(), Expr)

    @asked
    def subqueries(self) -> tuple[Node, ...]:
        """The plans of the subqueries in its expressions."""
        return self.reader.parts(self.in_java.subqueries(), Node)

    @asked
    def detail(self) -> str:
        """One line that says what it does, without its kind."""
        return self.line(_DETAIL_CHARS).removeprefix(self.kind).strip()

    def line(self, chars: int) -> str:
        """One line of it, of about so many characters."""
        return str(self.in_java.simpleString(chars))

    @property
    def numbered(self) -> str:
        """Its kind and its number in Spark's own `EXPLAIN`."""
        return str(self.in_java.simpleStringWithNodeId())

    @asked
    def leaf_id(self) -> int | None:
        """What identifies a leaf made by `Bridge.relation`, also after the analyzer copied it."""
        return None

    @property
    def is_empty(self) -> bool:
        """Whether it is a relation that the optimizer knows to have no rows."""
        return self.kind == "LocalRelation" and int(self.in_java.data().size()) == 0

    @property
    def has_one_row_at_most(self) -> bool:
        """Whether it is known never to put out more than one row."""
        bound = self.in_java.maxRows()
        return not bound.isEmpty() and int(bound.get()) <= 1

    def with_children(self: N, children: Sequence[Node]) -> N:
        """A copy with other children."""
        return self._with_children(children)

    def walk(self) -> Iterator[Node]:
        """Itself and all below it, without those of subqueries."""
        yield self
        for child in self.children:
            yield from child.walk()

    def _attributes(self, sequence: JavaObject) -> tuple[Attribute, ...]:
        return tuple(Attribute(java, self.reader, kind="AttributeReference") for java in self.reader.items(sequence))


class Leaf(Node, kinds=("LogicalRDD",)):
    """Rows that are there already: a leaf made by `Bridge.relation`, unless it is another session's."""

    @asked
    def leaf_id(self) -> int | None:
        return int(self.in_java.rdd().id())


class Union(Node, kinds=("Union",)):
    """All rows of several inputs."""


class Project(Node, kinds=("Project",)):
    """Columns computed of each row."""

    @asked
    def named(self) -> tuple[Named, ...]:
        """The columns."""
        return self.reader.parts(self.in_java.projectList(), Named)

    @asked
    def expressions(self) -> tuple[Expr, ...]:
        return self.named


class Filter(Node, kinds=("Filter",)):
    """The rows for which a condition is true."""

    @asked
    def condition(self) -> Expr:
        """The condition."""
        return self.reader.part(self.in_java.condition(), Expr)

    @asked
    def expressions(self) -> tuple[Expr, ...]:
        return (self.condition,)


class Join(Node, kinds=("Join",)):
    """A join of two inputs."""

    @asked
    def join_type(self) -> str:
        """`Inner`, `LeftOuter`, `LeftSemi`, `ExistenceJoin` and so on."""
        return str(self.in_java.joinType().toString()).partition("(")[0]

    @asked
    def condition(self) -> Expr | None:
        """What its pairs fulfil; None if nothing is said."""
        return self.reader.option(self.in_java.condition(), Expr)

    @asked
    def expressions(self) -> tuple[Expr, ...]:
        return () if self.condition is None else (self.condition,)

    @property
    def exists(self) -> Attribute:
        """Of an existence join: the column that says whether there is a match."""
        return Attribute(self.in_java.joinType().exists(), self.reader, kind="AttributeReference")


class Aggregate(Node, kinds=("Aggregate",)):
    """Grouping."""

    @asked
    def groups(self) -> tuple[Expr, ...]:
        """What rows are grouped by."""
        return self.reader.parts(self.in_java.groupingExpressions(), Expr)

    @asked
    def results(self) -> tuple[Named, ...]:
        """The columns computed of each group."""
        return self.reader.parts(self.in_java.aggregateExpressions(), Named)

    @asked
    def expressions(self) -> tuple[Expr, ...]:
        return (*self.groups, *self.results)


class Window(Node, kinds=("Window",)):
    """Window functions beside each row."""

    @asked
    def functions(self) -> tuple[Named, ...]:
        """The columns that it adds."""
        return self.reader.parts(self.in_java.windowExpressions(), Named)

    @asked
    def partition(self) -> tuple[Expr, ...]:
        """What rows are partitioned by."""
        return self.reader.parts(self.in_java.partitionSpec(), Expr)

    @asked
    def orders(self) -> tuple[SortOrder, ...]:
        """Their order in a partition."""
        return self.reader.parts(self.in_java.orderSpec(), SortOrder)

    @asked
    def expressions(self) -> tuple[Expr, ...]:
        return (*self.functions, *self.partition, *self.orders)


class Expand(Node, kinds=("Expand",)):
    """Each row once for each of several projections."""

    @asked
    def projections(self) -> tuple[tuple[Expr, ...], ...]:
        """The projections, each with an expression for each column of the output."""
        rows = self.reader.items(self.in_java.projections())
        return tuple(self.reader.parts(row, Expr) for row in rows)


class Generate(Node, kinds=("Generate",)):
    """Each row once for each row that a function makes of it."""

    @asked
    def generator(self) -> Expr:
        """The function's call."""
        return self.reader.part(self.in_java.generator(), Expr)

    @asked
    def added(self) -> tuple[Attribute, ...]:
        """The columns that it adds."""
        return self._attributes(self.in_java.generatorOutput())


class Sort(Node, kinds=("Sort",)):
    """Rows in order."""

    @asked
    def orders(self) -> tuple[SortOrder, ...]:
        """The order."""
        return self.reader.parts(self.in_java.order(), SortOrder)

    @asked
    def expressions(self) -> tuple[Expr, ...]:
        return self.orders


class GlobalLimit(Node, kinds=("GlobalLimit",)):
    """The first rows."""

    @asked
    def count(self) -> int:
        """How many."""
        return int(self.in_java.limitExpr().eval(None))


class Offset(Node, kinds=("Offset",)):
    """All but the first rows."""

    @asked
    def count(self) -> int:
        """How many are left out."""
        return int(self.in_java.offsetExpr().eval(None))


class PythonMap(Node, kinds=("MapInPandas", "MapInArrow")):
    """What a Python function makes of all rows."""

    @asked
    def call(self) -> PythonCall:
        """The call."""
        return self.reader.part(self.in_java.functionExpr(), PythonCall)

    @property
    def relation(self) -> int | None:
        """The id of the relation whose snapshot it reads; None for any other function."""
        return relation_read(self.call.name)

    @property
    def is_barrier(self) -> bool:
        """Whether its tasks start together."""
        return bool(self.in_java.isBarrier())


class PythonGroups(Node, kinds=("FlatMapGroupsInPandas", "FlatMapGroupsInArrow")):
    """What a Python function makes of the rows of each group."""

    @asked
    def call(self) -> PythonCall:
        """The call."""
        return self.reader.part(self.in_java.functionExpr(), PythonCall)

    @asked
    def keys(self) -> tuple[Attribute, ...]:
        """The columns that rows are grouped by."""
        return self._attributes(self.in_java.groupingAttributes())


class PythonCoGroups(Node, kinds=("FlatMapCoGroupsInPandas", "FlatMapCoGroupsInArrow")):
    """What a Python function makes of the rows of each group of two inputs."""


class PythonTable(Node, kinds=("BatchEvalPythonUDTF", "ArrowEvalPythonUDTF")):
    """Each row once for each row that a Python table function makes of it."""

    @asked
    def call(self) -> PythonCall:
        """The call."""
        return self.reader.part(self.in_java.udtf(), PythonCall)

    @asked
    def added(self) -> tuple[Attribute, ...]:
        """The columns that it adds."""
        return self._attributes(self.in_java.resultAttrs())


class PythonColumns(Node, kinds=("BatchEvalPython", "ArrowEvalPython")):
    """What Python functions make of each row, as further columns."""

    @asked
    def calls(self) -> tuple[Expr, ...]:
        """The calls."""
        return self.reader.parts(self.in_java.udfs(), Expr)

    @asked
    def added(self) -> tuple[Attribute, ...]:
        """The columns that it adds."""
        return self._attributes(self.in_java.resultAttrs())


class Subquery(Expr, kinds=("ScalarSubquery", "Exists", "ListQuery", "LateralSubquery")):
    """A query within an expression."""

    @asked
    def id(self) -> int:
        """Catalyst's expression id."""
        return int(self.in_java.exprId().id())

    @asked
    def plan(self) -> Node:
        """The query."""
        return self.reader.part(self.in_java.plan(), Node)

    def over(self, plan: Node) -> Subquery:
        """The same of another query."""
        return type(self)(self.in_java.withNewPlan(plan.in_java), self.reader, kind=self.kind, plan=plan)
