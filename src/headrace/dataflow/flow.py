"""What plans of epochs are made of: rows between operators, and the pieces that all operators are built from.

Between two operators rows flow as a Catalyst plan with the query's attributes and one weight attribute, over which the
query's own expressions are used, never printed and parsed again.

Rows that are together stay together: a `Flow` knows which columns have decided in which task its rows are
(`Flow.placed`). What counts the matches of an outer, semi or anti join, and a window function by the key of the join
below it, find their rows where the join has brought them, without a second shuffle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, IntegerType, LongType, StructField, StructType

from headrace.common.lazy_dataclass import dataclass
from headrace.dataflow.failures import NotedChecks, noted_by
from headrace.dataflow.operators.failures import FailureStage
from headrace.dataflow.operators.held_rows import RowsByKey
from headrace.dataflow.operators.task import run_stages
from headrace.plan import tolerance
from headrace.plan.border_types import arrow_of_spark, spark_of
from headrace.plan.catalyst.bridge import Bridge
from headrace.plan.catalyst.expressions import Alias, Attribute, Expr, Named, sources
from headrace.plan.catalyst.made_nodes import mapped
from headrace.plan.catalyst.marked_names import stage_name
from headrace.plan.catalyst.nodes import Node
from headrace.plan.guards import fails, tried
from headrace.plan.tree import Attr, Operator
from headrace.state.schema import TableSchema

if TYPE_CHECKING:
    from headrace.dataflow.chains import Chains, StageChain

_WIDTH = 2.0**64


Placed: TypeAlias = tuple[frozenset[int], ...]
"""Ids of attributes; those of one set are equal in every row."""


@dataclass(frozen=True)
class Flow:
    """Rows between operators: a logical plan, its weight, and where the query's attributes are found in it.

    Every stage gives its output new expression ids (Catalyst would renew ids that occur twice in a plan), so `attrs`
    maps the ids of the query's plan to attributes of `node`.
    """

    node: Node
    weight: Attribute
    attrs: Mapping[int, Attribute]
    placed: Placed = ()
    """Columns whose values decide in which task a row is; empty if that is not known."""

    def holds_together(self, columns: Iterable[int]) -> bool:
        """Whether rows that are equal in these columns are in one task already."""
        known = set(columns)
        return bool(self.placed) and all(known & same for same in self.placed)


@dataclass(frozen=True)
class StagePlan:
    """The plan of one stage: the rows that it runs over, the stage itself, and what it puts out."""

    frame: DataFrame
    stage: object
    attrs: list[Attr]
    schema: StructType
    before: Sequence[object] = ()
    """Stages that run before it in the same worker."""


@dataclass(frozen=True)
class InWorker:
    """Stages over a frame whose output need not go to Spark; `schema` is that of the output."""

    frame: DataFrame
    stages: tuple[Any, ...]
    schema: StructType


class Builder(ABC):
    """The pieces that plans of operators share, for one view and one parallelism.

    `weak_hash` keeps only that many different hash values: for tests, that collisions change nothing. `active` are the
    relations that have changed (None: all may have): the others are planned as empty, which costs no task. By `view`
    the stages find their own parameters in a Spark job that runs several views; `key` opens the secrets among them.
    """

    def __init__(
        self,
        bridge: Bridge,
        parallelism: int,
        acknowledge: object,
        relations: Mapping[int, TableSchema | None],
        weak_hash: int | None = None,
        active: frozenset[int] | None = None,
        view: int = 0,
        key: bytes = b"",
    ):
        self.bridge = bridge
        self.parallelism = parallelism
        self.acknowledge = acknowledge
        self.relations = relations
        self.weak_hash = weak_hash
        self.active = active
        self.view = view
        self.key = key
        self.on_error = tolerance.FAIL
        """What becomes of rows on which an expression fails."""
        self.failures: dict[str, NotedChecks] = {}
        """The stages that note such rows, by label."""
        self.rows: TableSchema | None = None
        """The layout of the view's own rows; None where it keeps none."""
        self.names: Mapping[int, str] = {}
        """The names of the query's attributes."""
        self._slices: list[DataFrame] = []
        self.following: dict[str, Sequence[object]] = {}
        """Operator -> stages that go on in the worker of its own, with the same columns."""
        self.by_key: dict[str, RowsByKey] = {}
        """Leaf -> where the newest rows of each key are kept of it."""

    @abstractmethod
    def flow(self, op: Operator) -> Flow:
        """The operator's output, planned."""

    @abstractmethod
    def made(self, op: Operator) -> StagePlan:
        """What an operator with a stage of its own is made of."""

    @abstractmethod
    def chained(self, op: Operator, chains: Chains) -> StageChain | None:
        """The stages of one worker that make an operator's output; None where Spark has something to compute for it."""

    @abstractmethod
    def staged(self, op: Operator) -> Flow:
        """An operator that is nothing but its stage, and what follows it in the same worker."""

    @abstractmethod
    def in_worker(self, op: Operator, flow: Flow, frame: DataFrame) -> InWorker | None:
        """An operator whose output is `flow`, and what `frame` makes of that, as stages of one worker.

        None where Spark has something to compute for it.
        """

    @abstractmethod
    def onward(self, worker: InWorker, rows: DataFrame, frame: DataFrame) -> InWorker | None:
        """Stages that put out what `rows` has, and what `frame` makes of that in the same worker; None as above."""

    def collected(
        self, op: Operator, flow: Flow, frame: DataFrame, *, single: bool = False, placed: bool = False
    ) -> tuple[DataFrame, Sequence[object]]:
        """Rows of one `__k` in one task, and the stages that make them in its worker, if they need not go to Spark."""
        worker = self.in_worker(op, flow, frame) if self.parallelism == 1 else None
        if worker is not None:
            return worker.frame, worker.stages
        return self.together(frame, single=single, placed=placed), ()

    def hash(self, columns: Sequence[SparkColumn]) -> SparkColumn:
        """The int64 hash of columns by which rows are distributed and found."""
        if not columns:
            return F.lit(0).cast("bigint")
        value = F.xxhash64(*columns)
        return value if self.weak_hash is None else F.pmod(value, F.lit(self.weak_hash).cast("bigint"))

    def map(self, frame: DataFrame, stages: Sequence[Any], schema: StructType) -> DataFrame:
        """Stages that follow each other in one Python worker, over rows."""
        function = partial(run_stages, self.view, self.key, tuple(stages), self.acknowledge)
        # Its name in Spark's plan: what `EpochParams.inner` is made of.
        function.__name__ = stage_name(stages[-1].label)  # type: ignore[attr-defined]
        return frame.mapInArrow(function, schema)

    def still_placed(self, named: Sequence[Named], placed: Placed) -> Placed:
        """What decides where rows are, in the columns that a projection leaves."""
        found = sources(named) if placed else {}
        kept = tuple(frozenset(new for new, old in found.items() if old in same) for same in placed)
        return kept if all(kept) else ()

    def read_as(self, frame: DataFrame, attrs: Sequence[Attr]) -> Flow:
        """A stage's output, its columns and then `__w`, as a flow of the query's attributes."""
        node, mapping, (weight,) = self.named(frame, attrs, ["__w"])
        return Flow(node, weight, mapping)

    def together(self, frame: DataFrame, single: bool = False, placed: bool = False) -> DataFrame:
        """Rows of one `__k` in one task: by a shuffle to slices of the key space, unless they are `placed` already."""
        if self.parallelism == 1:
            return frame.coalesce(1)
        if placed:
            return frame
        if single:
            return frame.repartition(1)
        share = F.floor((F.col("__k").cast("double") / _WIDTH + 0.5) * self.parallelism).cast("int")
        return frame.repartitionById(self.parallelism, F.least(share, F.lit(self.parallelism - 1)))

    def at(self, expression: Expr, flow: Flow) -> Expr:
        """An expression of the query's plan over the attributes of a flow."""
        return mapped(expression, flow.attrs)

    def column(self, expression: Expr, flow: Flow) -> SparkColumn:
        """The same expression as a column of Spark's Python API."""
        return self.bridge.column(self.at(expression, flow))

    def columns(self, flow: Flow, attrs: Sequence[Attr]) -> list[SparkColumn]:
        """The query's attributes as columns of a flow."""
        return [self.bridge.column(flow.attrs[a.id]) for a in attrs]

    def fresh(self, named: Named, flow: Flow) -> Alias:
        """A named expression of the query's plan over a flow, under a new id."""
        return self.bridge.alias(self.at(named.value, flow), named.name)

    def named(
        self, frame: DataFrame, attrs: Sequence[Attr], extra: Sequence[str] = ()
    ) -> tuple[Node, dict[int, Attribute], list[Attribute]]:
        """Read a stage's output as the query's attributes (its first columns, in order) and extra columns by name."""
        b = self.bridge
        node = b.analyzed(frame)
        handles = node.output
        named = [b.alias(h, a.name) for h, a in zip(handles, attrs)]
        by_name = {h.name: h for h in handles}
        extras = [b.alias(by_name[name], name) for name in extra]
        mapping = {a.id: n.attribute for a, n in zip(attrs, named)}
        return b.project([*named, *extras], node), mapping, [e.attribute for e in extras]

    def noted(self, label: str, flow: Flow, expressions: Sequence[Expr], *, condition: bool = False) -> Flow:
        """The flow through a stage that notes the rows on which a guarded one of the expressions fails, if there are.

        With `skip` only conditions have such rows: what fails elsewhere has been left out by one.
        """
        return self.noted_beside(label, flow, expressions, [], flow.weight, condition=condition)[0]

    def noted_beside(
        self, label: str, flow: Flow, expressions: Sequence[Expr], beside: Sequence[Attribute], counted: Expr,
        *, condition: bool = False,
    ) -> tuple[Flow, list[Attribute]]:  # fmt: skip
        """The same of a flow with more columns `beside`, where `counted` is above 0; and these columns."""
        b, asked = self.bridge, self.on_error == tolerance.NULL or (self.on_error == tolerance.SKIP and condition)
        checks = [check for e in expressions for check in tried(e)] if asked else []
        if not checks:
            return flow, list(beside)
        carried = [*flow.attrs.values(), *beside]
        fields = [(f"c{i}", spark_of(a)) for i, a in enumerate(carried)]
        columns = [b.column(a).alias(name) for a, (name, _) in zip(carried, fields)]
        flags = [b.column(fails(b, self.at(c, flow), counted)).alias(f"f{i}") for i, c in enumerate(checks)]
        frame = b.frame(flow.node).select(*columns, b.column(flow.weight).alias("__w"), *flags)
        schema = struct(fields, weight=True)
        stage = FailureStage(label.partition("!")[0], label, arrow(schema), len(flow.attrs))
        names = [(i, self.names.get(i, f"column{n}")) for n, i in enumerate(flow.attrs)]
        self.failures[label] = noted_by(checks, names)
        node = b.analyzed(self.map(frame, [stage], schema))
        *handles, weight = node.output
        named = [b.alias(h, a.name) for h, a in zip(handles, carried)]
        passed = b.alias(weight, "__w")
        attrs = dict(zip(flow.attrs, (n.attribute for n in named)))
        made = Flow(b.project([*named, passed], node), passed.attribute, attrs, flow.placed)
        return made, [n.attribute for n in named[len(flow.attrs) :]]

    def slices(self) -> DataFrame:
        """What a leaf stands on: one row for each slice of the key space, each in a partition of its own."""
        self._slices.append(self.bridge.spark.range(0, self.parallelism, 1, self.parallelism))
        return self._slices[-1]

    def is_slices(self, frame: DataFrame) -> bool:
        """Whether a frame is one that `slices` has made, as it was made."""
        return any(frame is made for made in self._slices)

    def with_slices(self, rows: DataFrame, known: Mapping[str, SparkColumn]) -> DataFrame:
        """The rows, and one more for each slice of the state: its columns are null but for those that are known."""
        columns = (known.get(f.name, F.lit(None).cast(f.dataType)).alias(f.name) for f in rows.schema)
        return rows.unionAll(self.slices().select(*columns))


def struct(fields: Sequence[tuple[str, DataType]], *, weight: bool = False, tag: bool = False) -> StructType:
    """A stage's columns, then its weight and its tag."""
    all_fields = [StructField(n, t) for n, t in fields]
    if weight:
        all_fields.append(StructField("__w", LongType()))
    if tag:
        all_fields.append(StructField("__t", IntegerType()))
    return StructType(all_fields)


def arrow(schema: StructType) -> pa.Schema:
    """The same schema for Arrow."""
    return pa.schema([pa.field(f.name, arrow_of_spark(f.dataType)) for f in schema.fields])
