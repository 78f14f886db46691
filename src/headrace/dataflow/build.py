"""From the tree of incremental operators to the Spark plan of one epoch.

Between two operators rows flow as a Catalyst plan with the query's attributes and one weight attribute, over which the
query's own expressions are used, never printed and parsed again. Each stateful operator is a projection to its
wire format, a distribution by `__k`, and a `mapInArrow` over a stage of `dataflow.operators`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DataType, IntegerType, LongType, StructField, StructType

from headrace.dataflow import python
from headrace.dataflow.operators import calls, preserve
from headrace.dataflow.operators.aggregate import AggregateStage, Sum
from headrace.dataflow.operators.close import WindowCloseStage
from headrace.dataflow.operators.deliver import DeliverStage
from headrace.dataflow.operators.inputs import ConstantStage, InputStage
from headrace.dataflow.operators.join import JoinStage, Side
from headrace.dataflow.operators.materialize import MaterializeStage
from headrace.dataflow.operators.recompute import FirstRows, RecomputeStage
from headrace.dataflow.operators.task import run_stages
from headrace.dataflow.operators.values import Distinct, Ordered
from headrace.errors import NotSupported
from headrace.plan.bridge import STAGE_PREFIX, Bridge, JExpr, JNode
from headrace.plan.planner import ViewPlan
from headrace.plan.python import AGGREGATE_CALL, APPLY
from headrace.plan.tree import (
    Accumulator,
    Aggregate,
    Attr,
    Constant,
    Input,
    Join,
    JoinSide,
    Operator,
    Recompute,
    Rowwise,
    Union,
    WindowClose,
)
from headrace.plan.types import arrow_of_spark, spark_of
from headrace.state import accumulators
from headrace.state.arrangement import slice_bounds
from headrace.state.kernels.order_code import SortKey
from headrace.state.schema import TableSchema

_WIDTH = 2.0**64


@dataclass(frozen=True)
class Flow:
    """Rows between operators: a logical plan, its weight, and where the query's attributes are found in it.

    Every stage gives its output new expression ids (Catalyst would renew ids that occur twice in a plan), so `attrs`
    maps the ids of the query's plan to attributes of `node`.
    """

    node: JNode
    weight: JExpr
    attrs: Mapping[int, JExpr]


@dataclass(frozen=True)
class Made:
    """A stage that is about to run: over which rows, and what it puts out."""

    frame: DataFrame
    stage: Any
    attrs: list[Attr]
    schema: StructType


class EpochPlan:
    """Builds the plan of one view for one parallelism.

    `weak_hash` keeps only that many different hash values: for tests, that collisions change nothing. `active` are the
    relations that have changed (None: all may have): the others are planned as empty, which costs no task.
    """

    def __init__(
        self,
        bridge: Bridge,
        parallelism: int,
        acknowledge: Any,
        relations: Mapping[int, TableSchema | None],
        weak_hash: int | None = None,
        active: frozenset[int] | None = None,
    ):
        self.bridge = bridge
        self.parallelism = parallelism
        self.acknowledge = acknowledge
        self.relations = relations
        self.weak_hash = weak_hash
        self.active = active

    def build(self, plan: ViewPlan) -> DataFrame:
        """The DataFrame whose execution is one epoch. It returns no rows: results leave as runs, or into a sink."""
        root = plan.root
        bridge = self.bridge
        bridge.spark.conf.set("spark.sql.shuffle.partitions", str(self.parallelism))
        nothing = StructType([StructField("done", LongType())])
        last, positions = self._last_stage(root)
        if last is not None:
            made = self._made(last)
            return self._map(made.frame, [made.stage, self._terminal(plan, positions)], nothing)
        flow = self._flow(root)
        wire = [c.alias(f"c{i}") for i, c in enumerate(self._columns(flow, root.output))]
        frame = bridge.frame(flow.node).select(*wire, bridge.column(flow.weight).alias("__w"))
        return self._map(frame, [self._terminal(plan, tuple(range(len(wire))))], nothing)

    def _terminal(self, plan: ViewPlan, positions: tuple[int, ...]) -> MaterializeStage | DeliverStage:
        """Where the changes end up."""
        if plan.sink is None:
            return MaterializeStage(plan.schema, positions, self.weak_hash)
        return DeliverStage(tuple(plan.sink.items()), plan.columns, positions)

    def _last_stage(self, root: Operator) -> tuple[Operator | None, tuple[int, ...]]:
        """The stage whose output is the view's rows but for the order of columns, and where those columns are.

        None where Spark has something to compute after it: else both stages run in one worker, one after the other.
        """
        ids: list[int] = [a.id for a in root.output]
        op = root
        while isinstance(op, Rowwise):
            sources = self._renamed(op.expressions) if op.label == "Project" else None
            if sources is None or any(i not in sources for i in ids):
                return None, ()
            ids = [sources[i] for i in ids]
            op = op.children[0]
        if isinstance(op, Aggregate):
            sources = self._renamed(op.results)
            if sources is None:
                return None, ()
            ids = [sources[i] for i in ids]
        elif not isinstance(op, (Input, Join, WindowClose)) or (isinstance(op, Join) and not _is_plain(op)):
            return None, ()
        places = {a.id: i for i, a in enumerate(_stage_output(op))}
        return op, tuple(places[i] for i in ids)

    def _renamed(self, named: Sequence[JExpr]) -> dict[int, int] | None:
        """For expressions that are nothing but attributes under another name: new id to old id."""
        b, found = self.bridge, {}
        for e in named:
            inner = e if b.is_attribute(e) else b.children(e)[0]
            if not b.is_attribute(inner):
                return None
            found[b.attribute_id(e)] = b.attribute_id(inner)
        return found

    # -- pieces --------------------------------------------------------------------------------------------------

    def _flow(self, op: Operator) -> Flow:
        makers: dict[type[Operator], Any] = {
            Input: self._read,
            Constant: self._staged,
            Rowwise: self._rowwise,
            Union: self._union,
            Join: self._joined,
            Aggregate: self._grouped,
            Recompute: self._recompute,
            WindowClose: self._staged,
        }
        flow: Flow = makers[type(op)](op)
        return flow

    def _hash(self, columns: Sequence[SparkColumn]) -> SparkColumn:
        if not columns:
            return F.lit(0).cast("bigint")
        value = F.xxhash64(*columns)
        return value if self.weak_hash is None else F.pmod(value, F.lit(self.weak_hash).cast("bigint"))

    def _map(self, frame: DataFrame, stages: Sequence[Any], schema: StructType) -> DataFrame:
        function = partial(run_stages, tuple(stages), self.acknowledge)
        # Its name in Spark's plan: what `EpochParams.inner` is made of.
        function.__name__ = STAGE_PREFIX + stages[-1].label  # type: ignore[attr-defined]
        return frame.mapInArrow(function, schema)

    def _made(self, op: Operator) -> Made:
        """What an operator with a stage of its own is made of."""
        makers: dict[type[Operator], Any] = {
            Input: self._input,
            Constant: self._constant,
            Join: self._join,
            Aggregate: self._aggregate,
            WindowClose: self._window_close,
        }
        made: Made = makers[type(op)](op)
        return made

    def _staged(self, op: Operator) -> Flow:
        made = self._made(op)
        return self._read_as(self._map(made.frame, [made.stage], made.schema), made.attrs)

    def _read_as(self, frame: DataFrame, attrs: Sequence[Attr]) -> Flow:
        """A stage's output, its columns and then `__w`, as a flow of the query's attributes."""
        node, mapping, (weight,) = self._named(frame, attrs, ["__w"])
        return Flow(node, weight, mapping)

    def _together(self, frame: DataFrame, single: bool = False) -> DataFrame:
        """Rows of one `__k` in one task: nothing to do for a single task, else a shuffle by slices of the key space."""
        if self.parallelism == 1:
            return frame.coalesce(1)
        if single:
            return frame.repartition(1)
        share = F.floor((F.col("__k").cast("double") / _WIDTH + 0.5) * self.parallelism).cast("int")
        return frame.repartitionById(self.parallelism, F.least(share, F.lit(self.parallelism - 1)))

    def _at(self, expression: JExpr, flow: Flow) -> JExpr:
        """An expression of the query's plan over the attributes of a flow."""
        b = self.bridge

        def mapped(e: JExpr) -> JExpr | None:
            return flow.attrs.get(b.attribute_id(e)) if b.is_attribute(e) else None

        return b.rewrite(expression, mapped)

    def _column(self, expression: JExpr, flow: Flow) -> SparkColumn:
        return self.bridge.column(self._at(expression, flow))

    def _columns(self, flow: Flow, attrs: Sequence[Attr]) -> list[SparkColumn]:
        return [self.bridge.column(flow.attrs[a.id]) for a in attrs]

    def _fresh(self, named: JExpr, flow: Flow) -> JExpr:
        """A named expression of the query's plan over a flow, under a new id."""
        b = self.bridge
        inner = named if b.is_attribute(named) else b.children(named)[0]
        return b.alias(self._at(inner, flow), str(named.name()))

    def _named(
        self, frame: DataFrame, attrs: Sequence[Attr], extra: Sequence[str] = ()
    ) -> tuple[JNode, dict[int, JExpr], list[JExpr]]:
        """Read a stage's output as the query's attributes (its first columns, in order) and extra columns by name."""
        b = self.bridge
        node = b.analyzed(frame)
        handles = b.output(node)
        named = [b.alias(h, a.name) for h, a in zip(handles, attrs)]
        by_name = {str(h.name()): h for h in handles}
        extras = [b.alias(by_name[name], name) for name in extra]
        mapping = {a.id: n.toAttribute() for a, n in zip(attrs, named)}
        return b.project([*named, *extras], node), mapping, [e.toAttribute() for e in extras]

    def _slices(self) -> DataFrame:
        """What a leaf stands on: one row for each slice of the key space, each in a partition of its own."""
        return self.bridge.spark.range(0, self.parallelism, 1, self.parallelism)

    # -- operators -----------------------------------------------------------------------------------------------

    def _input(self, op: Input) -> Made:
        schema = _struct([(f"c{i}", spark_of(a.handle)) for i, a in enumerate(op.output)], weight=True)
        table = self.relations[op.relation]
        stage = InputStage(op.id, op.relation, tuple(op.columns), table, self.parallelism, _arrow(schema), op.late)
        return Made(self._slices(), stage, op.output, schema)

    def _read(self, op: Input) -> Flow:
        if self.active is None or op.relation in self.active:
            return self._staged(op)
        fields = [(f"c{i}", spark_of(a.handle)) for i, a in enumerate(op.output)]
        empty = self.bridge.spark.createDataFrame([], _struct(fields, weight=True))
        return self._read_as(empty, op.output)

    def _constant(self, op: Constant) -> Made:
        names = [n for n in op.rows.schema.names if n != "__row"]
        schema = _struct([(n, spark_of(a.handle)) for n, a in zip(names, op.output)], weight=True)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, op.rows.schema) as writer:
            writer.write_table(op.rows)
        stage = ConstantStage(op.id, sink.getvalue().to_pybytes(), _arrow(schema))
        return Made(self._slices(), stage, op.output, schema)

    def _rowwise(self, op: Rowwise) -> Flow:
        b, flow = self.bridge, self._flow(op.children[0])
        if op.label == "Project":
            named = [self._fresh(e, flow) for e in op.expressions]
            mapping = {b.attribute_id(e): n.toAttribute() for e, n in zip(op.expressions, named)}
            return Flow(b.project([*named, flow.weight], flow.node), flow.weight, mapping)
        if op.label == "Filter":
            return Flow(b.filter(self._at(op.node.condition(), flow), flow.node), flow.weight, flow.attrs)
        if op.label == "Expand":
            node, output = b.expand(op.node, lambda e: self._at(e, flow), flow.weight, flow.node)
            return Flow(node, flow.weight, output)
        if op.label in ("MapInPandas", "MapInArrow"):
            return self._read_as(python.mapped(b, op.node, flow.attrs, flow.weight, flow.node), op.output)
        child = flow.node
        if op.label == "Generate":  # it names the child's columns by position
            columns = [flow.attrs[b.attribute_id(a)] for a in b.output(b.children(op.node)[0])]
            child = b.project([*columns, flow.weight], child)
        node, added = b.extended(op.node, lambda e: self._at(e, flow), child)
        return Flow(node, flow.weight, {**flow.attrs, **added})

    def _union(self, op: Union) -> Flow:
        b = self.bridge
        parts = []
        for child in op.children:
            flow = self._flow(child)
            columns = [b.alias(flow.attrs[a.id], f"u{i}") for i, a in enumerate(child.output)]
            parts.append(b.project([*columns, b.alias(flow.weight, "__w")], flow.node))
        frame = b.frame(b.union(parts))
        if self.parallelism == 1:
            frame = frame.coalesce(1)
        return self._read_as(frame, op.output)

    def _join(self, op: Join) -> Made:
        slots = _Slots()
        sides = [self._side(op, i, slots) for i in (0, 1)]
        wire = [self._side_rows(op, i, sides[i], slots) for i in (0, 1)]
        attrs = _stage_output(op)
        tagged = op.left.preserved or op.right.preserved
        schema = _struct([(f"o{i}", spark_of(a.handle)) for i, a in enumerate(attrs)], weight=True, tag=tagged)
        stage = JoinStage(op.id, sides[0], sides[1], _arrow(schema))
        return Made(self._together(wire[0].unionByName(wire[1]), single=not op.left.keys), stage, attrs, schema)

    def _joined(self, op: Join) -> Flow:
        if op.left.preserved or op.right.preserved:
            made = self._made(op)
            return self._preserved(op, made.attrs, self._map(made.frame, [made.stage], made.schema))
        flow = self._staged(op)
        if op.residual is not None:
            flow = replace(flow, node=self.bridge.filter(self._at(op.residual, flow), flow.node))
        return flow

    def _side(self, op: Join, i: int, slots: _Slots) -> Side:
        side = (op.left, op.right)[i]
        name = ("left", "right")[i]
        taken = slots.assign([spark_of(a.handle) for a in side.values])
        return Side(name, op.state()[name], tuple(taken), side.preserved)

    def _side_rows(self, op: Join, i: int, side: Side, slots: _Slots) -> DataFrame:
        b, flow = self.bridge, self._flow(op.children[i])
        spec: JoinSide = (op.left, op.right)[i]
        keys = [self._column(k, flow) for k in spec.keys]
        values = self._columns(flow, spec.values)
        placed = dict(zip(side.slots, values))
        columns = [F.lit(i).alias("__s"), self._hash(keys).alias("__k"), self._hash([*keys, *values]).alias("__h")]
        columns.append(b.column(flow.weight).alias("__w"))
        columns += [k.alias(f"k{n}") for n, k in enumerate(keys)]
        for n, kind in enumerate(slots.types):
            value = placed.get(n)
            columns.append((F.lit(None).cast(kind) if value is None else value).alias(f"s{n}"))
        frame = b.frame(flow.node)
        if not spec.preserved:
            for k in keys:
                frame = frame.where(k.isNotNull())
        return frame.select(*columns)

    def _preserved(self, op: Join, attrs: list[Attr], frame: DataFrame) -> Flow:
        """The counting stages of an outer, semi, anti or existence join."""
        b = self.bridge
        node, mapping, (weight, tag) = self._named(frame, attrs, ["__w", "__t"])
        flow = Flow(node, weight, mapping)
        if op.residual is not None:
            counted = b.column(tag) != preserve.PAIR
            flow = replace(flow, node=b.analyzed(b.frame(node).where(counted | self._column(op.residual, flow))))
        if op.join_type not in ("left", "full"):
            return self._matched(op, flow, tag)
        flow, tag = self._count(op, op.left, preserve.LEFT, attrs, flow, tag)
        if op.join_type == "full":
            flow, tag = self._count(op, op.right, preserve.RIGHT, attrs, flow, tag)
        return flow

    def _count_input(self, side: JoinSide, columns: Sequence[Attr], flow: Flow, tag: JExpr) -> DataFrame:
        b = self.bridge
        own = self._columns(flow, side.values)
        wire = [c.alias(f"o{i}") for i, c in enumerate(self._columns(flow, columns))]
        fixed = [self._hash(own).alias("__k"), b.column(flow.weight).alias("__w"), b.column(tag).alias("__t")]
        return self._together(b.frame(flow.node).select(*fixed, *wire))

    def _count(
        self, op: Join, side: JoinSide, tag_value: int, attrs: list[Attr], flow: Flow, tag: JExpr
    ) -> tuple[Flow, JExpr]:
        frame = self._count_input(side, attrs, flow, tag)
        schema = _struct([(f"o{i}", spark_of(a.handle)) for i, a in enumerate(attrs)], weight=True, tag=True)
        split = len(op.left.values)
        names = [f"o{i}" for i in range(len(attrs))]
        left, right = tuple(names[:split]), tuple(names[split:])
        table, own = ("left_matches", left) if side is op.left else ("right_matches", right)
        stage = preserve.PreserveStage(op.id, table, op.state()[table], own, tag_value, "outer", _arrow(schema))
        node, mapping, (weight, tag) = self._named(self._map(frame, [stage], schema), attrs, ["__w", "__t"])
        return Flow(node, weight, mapping), tag

    def _matched(self, op: Join, flow: Flow, tag: JExpr) -> Flow:
        attrs = list(op.left.values)
        frame = self._count_input(op.left, attrs, flow, tag)
        fields = [(f"o{i}", spark_of(a.handle)) for i, a in enumerate(attrs)]
        if op.exists is not None:
            fields.append(("exists", spark_of(op.exists.handle)))
        schema = _struct(fields, weight=True)
        own = tuple(f"o{i}" for i in range(len(attrs)))
        mode: Any = op.join_type
        identity = op.state()["left_matches"]
        stage = preserve.PreserveStage(op.id, "left_matches", identity, own, preserve.LEFT, mode, _arrow(schema))
        return self._read_as(self._map(frame, [stage], schema), op.output)

    def _window_close(self, op: WindowClose) -> Made:
        """Its rows, and one for each slice of the state: the watermark may pass what waits there without any row."""
        b, flow = self.bridge, self._flow(op.children[0])
        columns = self._columns(flow, op.output)
        rows = b.frame(flow.node).select(
            self._hash(columns).alias("__k"), b.column(flow.weight).alias("__w"),
            *(c.alias(f"c{i}") for i, c in enumerate(columns)), F.lit(None).cast("bigint").alias("__i"),
        )  # fmt: skip
        lows = F.array(*(F.lit(slice_bounds(i, self.parallelism)[0]).cast("bigint") for i in range(self.parallelism)))
        nothing = [F.lit(None).cast(spark_of(a.handle)).alias(f"c{i}") for i, a in enumerate(op.output)]
        slices = self._slices().select(
            lows[F.col("id")].alias("__k"), F.lit(0).cast("bigint").alias("__w"), *nothing, F.col("id").alias("__i")
        )
        schema = _struct([(f"o{i}", spark_of(a.handle)) for i, a in enumerate(op.output)], weight=True)
        stage = WindowCloseStage(op.id, op.state()[WindowClose.TABLE], self.parallelism, _arrow(schema))
        return Made(self._together(rows.unionAll(slices)), stage, op.output, schema)

    def _aggregate(self, op: Aggregate) -> Made:
        b, flow = self.bridge, self._flow(op.children[0])
        weight = b.column(flow.weight)
        groups = [self._column(b.normalized(g), flow).alias(f"g{i}") for i, g in enumerate(op.groups)]
        wire = [c for i, a in enumerate(op.accumulators) if a.distinct is None for c in self._wire(a, f"a{i}", flow)]
        for i, d in enumerate(op.distincts):
            wire += [self._column(e, flow).alias(f"d{i}_{n}") for n, e in enumerate(d.arguments)]
        frame = b.frame(flow.node).select(weight.alias("__w"), *groups, *wire)
        names = [f"g{i}" for i in range(len(groups))]
        frame = frame.select(self._hash([F.col(n) for n in names]).alias("__k"), *frame.columns)
        if not op.distincts and all(accumulators.can_preaggregate(a.kind) for a in op.accumulators):
            frame = self._preaggregated(frame, names, op)
        else:
            frame = self._together(frame, single=op.is_global)
        types = [spark_of(a.handle) for a in op.group_attrs]
        for a in op.accumulators:
            types += [_sum_type(a), *([LongType()] if a.count is not None else [])]
        schema = _struct([(f"o{i}", t) for i, t in enumerate(types)], weight=True)
        stage = AggregateStage(op.id, op.state()["groups"], self._sums(op), _arrow(schema), self._distincts(op))
        return Made(frame, stage, _stage_output(op), schema)

    def _sums(self, op: Aggregate) -> tuple[Sum, ...]:
        tables, found = op.state(), []
        for i, a in enumerate(op.accumulators):
            made = Sum(a.kind, f"a{i}", a.argument_type, a.result_type, a.count is not None)
            if a.in_order:
                name = f"ordered{i}"
                made = replace(made, ordered=Ordered(name, tables[name], f"a{i}_raw", a.kind == "greatest"))
            if a.distinct is not None:
                made = replace(made, distinct=a.distinct, value="v0")
            found.append(made)
        return tuple(found)

    def _distincts(self, op: Aggregate) -> tuple[Distinct, ...]:
        tables = op.state()
        return tuple(
            Distinct(
                f"distinct{i}",
                tables[f"distinct{i}"],
                tuple(f"d{i}_{n}" for n in range(len(d.types))),
                self.weak_hash,
            )
            for i, d in enumerate(op.distincts)
        )

    def _grouped(self, op: Aggregate) -> Flow:
        b, flow = self.bridge, self._staged(op)
        results = [self._fresh(e, flow) for e in op.results]
        found = {a.id: r.toAttribute() for a, r in zip(op.output, results)}
        return Flow(b.project([*results, flow.weight], flow.node), flow.weight, found)

    def _wire(self, a: Accumulator, prefix: str, flow: Flow) -> list[SparkColumn]:
        """What each row sends for an accumulator."""
        b = self.bridge
        argument, weight = self._at(a.argument, flow), b.column(flow.weight)
        value = b.column(argument)
        if accumulators.wire_columns(a.kind) == ("raw",):
            return [value.alias(f"{prefix}_raw")]
        zero = F.lit(0).cast("bigint")
        columns = {"n": F.when(value.isNotNull(), weight).otherwise(zero)}
        if a.kind == "sum_small":
            columns["s"] = F.coalesce(value.cast("bigint") * weight, zero)
        elif a.kind == "sum_wide":
            decimal = pa.types.is_decimal(a.argument_type)
            whole = b.column(b.unscaled(argument)) if decimal else value
            low = whole.bitwiseAND(F.lit(0xFFFFFFFF).cast("bigint"))
            columns["0"] = F.coalesce(low * weight, zero)
            columns["1"] = F.coalesce(F.shiftright(whole, 32) * weight, zero)
        return [c.alias(f"{prefix}_{suffix}") for suffix, c in columns.items()]

    def _preaggregated(self, frame: DataFrame, names: list[str], op: Aggregate) -> DataFrame:
        """Let Spark combine the epoch's rows by group first, on both sides of its own shuffle."""
        combined = [F.sum("__w").alias("__w")]
        for i, a in enumerate(op.accumulators):
            for suffix in accumulators.wire_columns(a.kind):
                name = f"a{i}_{suffix}"
                how = {"min": F.min, "max": F.max}.get(a.kind, F.sum)
                combined.append(how(name).alias(name))
        out = frame.groupBy("__k", *names).agg(*combined)
        return out.coalesce(1) if op.is_global or self.parallelism == 1 else out

    def _recompute(self, op: Recompute) -> Flow:
        b, flow = self.bridge, self._flow(op.children[0])
        keys = [self._column(k, flow) for k in op.keys]
        values = self._columns(flow, op.values)
        first, orders = self._first_rows(op, flow)
        columns = [self._hash(keys).alias("__k"), b.column(flow.weight).alias("__w")]
        columns += [k.alias(f"k{i}") for i, k in enumerate(keys)]
        columns += [v.alias(f"v{i}") for i, v in enumerate(values)]
        columns += orders if first is not None and first.orders else [self._hash([*keys, *values]).alias("__h")]
        frame = self._together(b.frame(flow.node).select(*columns), single=not keys)
        # Spark gives no row for a Python aggregate over nothing, so there is nothing to keep alive.
        phantom = op.label == "Aggregate" and not keys and not self._calls_python(op.node)
        fields: list[tuple[str, DataType]] = [(f"o{i}", spark_of(a.handle)) for i, a in enumerate(op.values)]
        extra: dict[str, DataType] = {"__side": IntegerType(), **({"__row": BooleanType()} if phantom else {})}
        schema = _struct([*fields, *extra.items()])
        stage = RecomputeStage(op.id, op.state()["rows"], phantom, _arrow(schema), first)
        node, mapping, handles = self._named(self._map(frame, [stage], schema), op.values, list(extra))
        return self._recomputed(op, Flow(node, handles[0], mapping), handles)

    def _first_rows(self, op: Recompute, flow: Flow) -> tuple[FirstRows | None, list[SparkColumn]]:
        """What the stage is told of the order of rows, and the columns of it that it has not got as values."""
        if op.first is None:
            return None, []
        b = self.bridge
        places = {a.id: f"v{i}" for i, a in enumerate(op.values)}
        orders, columns = [], []
        for i, order in enumerate(op.first.orders):
            by = b.children(order)[0]
            name = places.get(b.attribute_id(by)) if b.is_attribute(by) else None
            if name is None:
                name = f"r{i}"
                columns.append(self._column(by, flow).alias(name))
            falls, nulls_last = b.direction(order)
            orders.append((name, SortKey(falls, not nulls_last)))
        return FirstRows(op.first.need, op.first.by_value, tuple(orders)), columns

    def _recomputed(self, op: Recompute, flow: Flow, extra: list[JExpr]) -> Flow:
        """Spark's own operator over both versions, kept apart by the side; then the side becomes the weight."""
        b, side = self.bridge, extra[0]
        if op.limit is not None:
            node, mapping = self._top_n(op, flow, side), flow.attrs
        elif op.label == "Window":
            partition = [*(self._at(e, flow) for e in b.items(op.node.partitionSpec())), side]
            node, added = b.window(op.node, lambda e: self._at(e, flow), partition, flow.node)
            mapping = {**flow.attrs, **added}
        elif op.label == "Aggregate":
            node, mapping, side = self._regrouped(op, flow, extra)
        elif op.label == APPLY:
            frame = python.applied(b, op.node, flow.attrs, side, flow.node)
            node, mapping, (side,) = self._named(frame, op.output, [calls.SIDE])
        else:
            raise NotSupported(f"group recompute of {op.label}")
        weight = F.when(b.column(side) == 0, F.lit(-1)).otherwise(F.lit(1)).cast("bigint")
        kept = [b.alias(mapping[a.id], a.name) for a in op.output]
        node = b.analyzed(b.frame(node).select(*[b.column(k) for k in kept], weight.alias("__w")))
        *columns, out_weight = b.output(node)
        return Flow(node, out_weight, {a.id: c for a, c in zip(op.output, columns)})

    def _calls_python(self, node: JNode) -> bool:
        b = self.bridge
        return any(True for e in b.expressions_of(node) for _ in b.find(e, AGGREGATE_CALL))

    def _regrouped(self, op: Recompute, flow: Flow, extra: list[JExpr]) -> tuple[JNode, dict[int, JExpr], JExpr]:
        b = self.bridge
        results = [self._fresh(e, flow) for e in b.items(op.node.aggregateExpressions())]
        if len(extra) == 2:
            results = [b.rewrite(r, partial(_only_rows, b, extra[1])) for r in results]
        side = b.alias(extra[0], "__side")
        groups = [*(self._at(e, flow) for e in b.items(op.node.groupingExpressions())), extra[0]]
        node = b.aggregate(groups, [*results, side], flow.node)
        return node, {a.id: r.toAttribute() for a, r in zip(op.output, results)}, side.toAttribute()

    def _top_n(self, op: Recompute, flow: Flow, side: JExpr) -> JNode:
        assert op.limit is not None
        b = self.bridge
        orders, low, high = op.limit
        # Ties are broken by the row's hash, so that the same rows always give the same answer.
        order = [*(b.ordering(self._at(o, flow)) for o in orders), self._hash(self._columns(flow, op.values))]
        position = F.row_number().over(Window.partitionBy(b.column(side)).orderBy(*order))
        frame = b.frame(flow.node).withColumn("__position", position).where(F.col("__position") > low)
        if high is not None:
            frame = frame.where(F.col("__position") <= high)
        return b.analyzed(frame)


def _only_rows(b: Bridge, is_row: JExpr, e: JExpr) -> JExpr | None:
    """The aggregate call made blind to the phantom row."""
    if b.kind(e) != "AggregateExpression":
        return None
    condition = is_row if e.filter().isEmpty() else b.and_(is_row, e.filter().get())
    return b.aggregate_expression(e.aggregateFunction(), e.mode(), e.isDistinct(), b.some(condition), e.resultId())


def _is_plain(op: Join) -> bool:
    """Whether Spark has nothing to do after the join's stage."""
    return op.join_type == "inner" and not op.residual


def _stage_output(op: Operator) -> list[Attr]:
    """The columns that an operator's stage puts out, before Spark makes the operator's output of them."""
    if isinstance(op, Join):
        return [*op.left.values, *op.right.values]
    if isinstance(op, Aggregate):
        sums = [a for s in op.accumulators for a in (s.result, s.count) if a is not None]
        return [*op.group_attrs, *sums]
    return list(op.output)


class _Slots:
    """Columns that both sides of a join share on the wire, one for each type in turn."""

    def __init__(self) -> None:
        self.types: list[DataType] = []

    def assign(self, types: Sequence[DataType]) -> list[int]:
        """A slot of the right type for each column; no slot twice."""
        taken: list[int] = []
        for kind in types:
            free = next((i for i, t in enumerate(self.types) if t == kind and i not in taken), None)
            if free is None:
                self.types.append(kind)
                free = len(self.types) - 1
            taken.append(free)
        return taken


def _sum_type(a: Any) -> DataType:
    """The Spark type of what an accumulator puts out."""
    from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(a.result_type)


def _struct(fields: Sequence[tuple[str, DataType]], *, weight: bool = False, tag: bool = False) -> StructType:
    all_fields = [StructField(n, t) for n, t in fields]
    if weight:
        all_fields.append(StructField("__w", LongType()))
    if tag:
        all_fields.append(StructField("__t", IntegerType()))
    return StructType(all_fields)


def _arrow(schema: StructType) -> pa.Schema:
    return pa.schema([pa.field(f.name, arrow_of_spark(f.dataType)) for f in schema.fields])
