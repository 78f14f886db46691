"""The one place that touches Catalyst's internals through py4j.

Everything else sees JVM objects only as opaque handles (`JNode` for logical plan nodes, `JExpr` for expressions) and
works on them through the functions here. `tests/plan/test_bridge.py` pins every internal that is used, so that a new
Spark version fails there and not in a user's view.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
from py4j.java_gateway import is_instance_of
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructType, _parse_datatype_json_string

from headrace.errors import NotSupported
from headrace.plan.catalyst.handles import CHILDREN, Package, has_text, once, spark_type_of, type_of

JNode: TypeAlias = Any
JExpr: TypeAlias = Any
Change: TypeAlias = Callable[[Any], Any]

# Rules that only make a physical plan faster and hide the shape that the incremental rules look for.
_EXCLUDED_RULES = ",".join(
    f"org.apache.spark.sql.{rule}"
    for rule in (
        "catalyst.optimizer.InferWindowGroupLimit",
        "catalyst.optimizer.RewriteAsOfJoin",
        "execution.planmerging.MergeSubplans",
    )
)

PLANNING_CONF = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.legacy.allowHashOnMapType": "true",
    "spark.sql.optimizer.runtime.bloomFilter.enabled": "false",
    "spark.sql.optimizer.dynamicPartitionPruning.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
    "spark.sql.variable.substitute": "false",
}
"""Session settings under which views are planned and run."""

_CASTS = frozenset(("Cast",))
_TIMES = ("date", "timestamp", "timestamp_ntz")
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"
_TRY = frozenset({"TryEval"})
_LISTED = 10
"""Up to how many elements Java's `List.of` takes one by one."""
_SOUND = "__sound"
"""What the names of the fields of a struct begin with that is tried as a whole."""
_NESTED = ("Struct", "Array", "Map", "Variant")

STAGE_PREFIX = "headrace_stage_"
"""What the name of a stage's function begins with."""


class PythonStages(NamedTuple):
    """Where the stages of a physical plan run, by label."""

    inner: tuple[str, ...]
    """Those whose output goes to another one within the same Spark task."""
    last: tuple[str, ...]
    """Those that no shuffle follows: they run in the tasks of the job's last stage."""
    tasks: Mapping[str, int]
    """How many tasks each has, as far as the plan tells."""


_KEEPING = (
    "WholeStageCodegen", "InputAdapter", "Project", "Filter", "MapInArrow", "Sort", "HashAggregate",
    "ObjectHashAggregate", "SortAggregate", "Generate", "Expand", "Window",
)  # fmt: skip
"""What the names of physical nodes begin with whose output has the partitions of their only input."""


def _partitions(node: Any, kind: str, below: Sequence[int | None]) -> int | None:
    """Of how many partitions the output of a physical node is, given those of its children; None if not known."""
    if "Exchange" in kind or kind == "Range":
        return int(node.outputPartitioning().numPartitions())
    if kind == "Coalesce":
        return 1 if int(node.numPartitions()) == 1 else None
    if kind == "Union":
        # Inputs that are partitioned alike are put together partition by partition.
        apart = str(node.outputPartitioning()).startswith("UnknownPartitioning")
        known = [n for n in below if n is not None]
        return sum(known) if apart and len(known) == len(below) else None
    if kind == "LocalTableScan":
        return 0 if node.rows().isEmpty() else None
    return below[0] if len(below) == 1 and kind.startswith(_KEEPING) else None


class Bridge:
    """Catalyst's plans and expressions of one classic Spark session."""

    def __init__(self, spark: SparkSession, lock: threading.RLock | None = None):
        self.spark = spark.newSession()
        self.lock = lock or threading.RLock()
        """Held while options of the session are set for a plan, until that is made."""
        for key, value in PLANNING_CONF.items():
            self.spark.conf.set(key, value)
        self.jvm: Any = self.spark._jvm
        self._gateway: Any = self.spark.sparkContext._gateway
        self._session: Any = self.spark._jsparkSession
        spark_package = self.jvm.org.apache.spark
        catalyst, classic = spark_package.sql.catalyst, spark_package.sql.classic
        self._expressions = Package(catalyst.expressions)
        self._aggregates = Package(catalyst.expressions.aggregate)
        self._optimizer = Package(catalyst.optimizer)
        self._logical = Package(catalyst.plans.logical)
        self._plans = Package(catalyst.plans)
        self._python = self._logical
        self._columns = Package(classic.ExpressionUtils)
        self._datasets = Package(classic.Dataset)
        self._sessions = Package(classic.SparkSession)
        self._to_seq = spark_package.api.python.PythonUtils.toSeq
        self._list_of = self.jvm.java.util.List.of
        self._empty = self._to_seq([])
        self._class_name = spark_package.util.Utils.getFormattedClassName
        self._some = self.jvm.scala.Some
        self._none = self.jvm.scala.Option.empty()
        self._types: dict[str, Any] = {}
        self._spelled: dict[str, DataType] = {}
        self._data_type = Package(spark_package.sql.types.DataType)
        self._context = spark_package.api.java.JavaSparkContext(self._session.sparkContext())

    # -- Scala collections -------------------------------------------------------------------------------------

    def seq(self, items: Iterable[Any]) -> Any:
        """A Scala Seq of the items."""
        found = list(items)
        if not found:
            return self._empty
        if len(found) <= _LISTED and all(i is not None for i in found):
            found = self._list_of(*found)  # one question to Java instead of one for each
        return self._to_seq(found)

    @staticmethod
    def items(sequence: Any) -> list[Any]:
        """The elements of a Scala Seq."""
        return [sequence.apply(i) for i in range(sequence.size())]

    def module(self, package: Any, name: str) -> Any:
        """The singleton behind a Scala `object`."""
        return getattr(getattr(package, name + "$"), "MODULE$")

    def activate(self) -> None:
        """Make the session the calling thread's active one: physical plans ask for it when they are made or cloned."""
        self._sessions.setActiveSession(self._session)

    def python_stages(self, executed_plan: Any) -> PythonStages:
        """The stages of a physical plan: what `mapInArrow` calls that is named `STAGE_PREFIX` and a label."""
        inner: set[str] = set()
        last: set[str] = set()
        tasks: dict[str, int] = {}

        def visit(node: Any, followed: bool, at_end: bool) -> int | None:
            kind, label = str(node.nodeName()), ""
            if "Exchange" in kind:
                followed = at_end = False
            elif kind == "MapInArrow" and (name := str(node.func().name())).startswith(STAGE_PREFIX):
                label = name.removeprefix(STAGE_PREFIX)
                if followed:
                    inner.add(label)
                if at_end:
                    last.add(label)
                followed = True
            below = [visit(child, followed, at_end) for child in self.items(node.children())]
            if label and (known := below[0]) is not None:
                tasks[label] = known
            return _partitions(node, kind, below)

        visit(executed_plan, False, True)
        return PythonStages(tuple(sorted(inner)), tuple(sorted(last)), tasks)

    def reconnect_accumulators(self) -> None:
        """Have Java send what tasks add to PySpark's accumulators over another connection from now on."""
        sender = self.spark.sparkContext._javaAccumulator
        place = sender.getClass().getDeclaredField("socket")
        place.setAccessible(True)
        with self.lock:
            connection = place.get(sender)
            place.set(sender, None)
        if connection is not None:
            connection.close()

    def count_rows(self, rdds: Sequence[Any]) -> int:
        """Run RDDs of Java's as one Spark job, computing every row; how many there are.

        The partitions of the last stage are those of the first RDD, then those of the second, and so on.
        """
        if len(rdds) == 1:
            return int(rdds[0].count())
        # Not `SparkContext.union`, which puts partitions together where they are partitioned alike.
        context = self._session.sparkContext()
        return int(self.jvm.org.apache.spark.rdd.UnionRDD(context, self.seq(rdds), rdds[0].elementClassTag()).count())

    # -- plans ---------------------------------------------------------------------------------------------------

    def relation(self, schema: StructType) -> DataFrame:
        """A leaf that holds no rows, of which the optimizer does not know that it is empty."""
        java_schema = self._session.parseDataType(schema.json())
        return DataFrame(self._session.createDataFrame(self._context.emptyRDD(), java_schema), self.spark)

    def relation_id(self, node: JNode) -> int | None:
        """What identifies a leaf made by `relation`, also after the analyzer copied it."""
        return int(node.rdd().id()) if self.kind(node) == "LogicalRDD" else None

    def optimized(self, frame: DataFrame) -> JNode:
        """The optimized logical plan, in the shape that the incremental rules expect."""
        return self.optimized_node(self.analyzed(frame))

    def optimized_node(self, node: JNode) -> JNode:
        """The same of a logical plan, which is analyzed where it has not been yet."""
        with_rules, conf = "spark.sql.optimizer.excludedRules", self.spark.conf
        execution = self._datasets.ofRows(self._session, node).queryExecution()
        with self.lock:
            conf.set(with_rules, _EXCLUDED_RULES)
            try:
                return execution.optimizedPlan()
            finally:
                conf.unset(with_rules)

    def executed(self, frame: DataFrame, parallelism: int) -> Any:
        """The physical plan of a frame that has none yet, with as many tasks behind a shuffle."""
        execution = frame._jdf.queryExecution()
        with self.lock:
            self.spark.conf.set("spark.sql.shuffle.partitions", str(parallelism))
            return execution.executedPlan()

    def optimized_by_default(self, frame: DataFrame) -> JNode:
        """The logical plan that Spark would run, without any of its jobs."""
        return frame._jdf.queryExecution().optimizedPlan()

    def tells_time(self, analyzed: JNode, *, literals: bool) -> bool:
        """Whether a plan has anything whose value follows the current time, so that it is good for one run only.

        `literals` says that there may be strings in its text, which could be cast to times.
        """
        pattern = self.module(self.jvm.org.apache.spark.sql.catalyst.trees, "TreePattern")
        if analyzed.containsPattern(pattern.CURRENT_LIKE()):
            return True
        return literals and any(self._is_special_time(c) for n in self.nodes(analyzed) for e in self.expressions_of(n)
                   for c in self.find(e, _CASTS))  # fmt: skip

    def _is_special_time(self, cast: JExpr) -> bool:
        """Whether a cast may be one of `'now'`, `'today'` or the like to a time."""
        child = self.children(cast)[0]
        if self.simple_type(cast) not in _TIMES or not child.foldable() or "string" not in self.simple_type(child):
            return False
        plain = self.kind(child) == "Literal" and child.value() is not None
        return not plain or not any(c.isdigit() for c in str(child.value().toString()))

    def is_empty(self, node: JNode) -> bool:
        """Whether a node is a relation that the optimizer knows to have no rows."""
        return self.kind(node) == "LocalRelation" and int(node.data().size()) == 0

    def analyzed(self, frame: DataFrame) -> JNode:
        """The analyzed logical plan."""
        return frame._jdf.queryExecution().analyzed()

    def frame(self, node: JNode) -> DataFrame:
        """A DataFrame of a logical plan, in the bridge's session."""
        return DataFrame(self._datasets.ofRows(self._session, node), self.spark)

    def kind(self, obj: Any) -> str:
        """The simple class name of a node or expression."""
        return once(obj, "kind", lambda: str(self._class_name(obj)))

    def children(self, obj: Any) -> list[Any]:
        """Child nodes of a node, or child expressions of an expression."""
        return list(once(obj, "children", lambda: self._children(obj)))

    def _children(self, obj: Any) -> list[Any]:
        getters = CHILDREN.get(self.kind(obj))
        return self.items(obj.children()) if getters is None else [getattr(obj, name)() for name in getters]

    def subqueries(self, node: JNode) -> list[JNode]:
        """The plans of the subqueries in a node's expressions."""
        return list(once(node, "subqueries", lambda: self.items(node.subqueries())))

    def is_deterministic(self, expression: JExpr) -> bool:
        """Whether an expression gives the same for the same row, each time."""
        return once(expression, "deterministic", lambda: bool(expression.deterministic()))

    def output(self, node: JNode) -> list[JExpr]:
        """The attributes that a node puts out."""
        return list(once(node, "output", lambda: self.items(node.output())))

    def with_children(self, obj: Any, children: Sequence[Any]) -> Any:
        """A copy of a node or expression with other children."""
        return obj.withNewChildren(self.seq(children))

    def expressions_of(self, node: JNode) -> list[JExpr]:
        """All top expressions that a node holds."""
        return list(once(node, "expressions", lambda: self.items(node.expressions())))

    def project(self, expressions: Sequence[JExpr], child: JNode) -> JNode:
        """`Project` with named expressions."""
        return self._logical.Project(self.seq(expressions), child)

    def filter(self, condition: JExpr, child: JNode) -> JNode:
        """`Filter` by a boolean expression."""
        return self._logical.Filter(condition, child)

    def with_expressions(self, node: JNode, change: Change) -> JNode:
        """A Filter, Join, Project, Aggregate, Sort, Window or Generate with its expressions changed."""
        kind, children = self.kind(node), self.children(node)
        if kind == "Sort":
            orders = self.seq([change(o) for o in self.items(node.order())])
            return self._logical.Sort(orders, getattr(node, "global")(), children[0], node.hint())
        if kind == "Window":
            parts = [node.windowExpressions(), node.partitionSpec(), node.orderSpec()]
            changed = [self.seq([change(e) for e in self.items(part)]) for part in parts]
            return self._logical.Window(*changed, children[0], node.hint())
        if kind == "Generate":
            generator = node.generator()
            generator = self.with_children(generator, [change(c) for c in self.children(generator)])
            return self._logical.Generate(
                generator, node.unrequiredChildIndex(), node.outer(), node.qualifier(), node.generatorOutput(),
                children[0],
            )  # fmt: skip
        if kind == "Filter":
            return self.filter(change(node.condition()), children[0])
        if kind == "Project":
            return self.project([change(e) for e in self.items(node.projectList())], children[0])
        if kind == "Aggregate":
            groups = [change(e) for e in self.items(node.groupingExpressions())]
            return self.aggregate(groups, [change(e) for e in self.items(node.aggregateExpressions())], children[0])
        assert kind == "Join"
        condition = node.condition()
        return self.join_on(node, None if condition.isEmpty() else change(condition.get()))

    def join_on(self, join: JNode, condition: JExpr | None) -> JNode:
        """The join with another condition."""
        left, right = self.children(join)
        given = self.none() if condition is None else self.some(condition)
        return self._logical.Join(left, right, join.joinType(), given, join.hint())

    def nodes(self, node: JNode) -> Iterator[JNode]:
        """A node and all below it, without those of subqueries."""
        yield node
        for child in self.children(node):
            yield from self.nodes(child)

    def aggregate(self, groups: Sequence[JExpr], results: Sequence[JExpr], child: JNode) -> JNode:
        """`Aggregate` of the child."""
        return self._logical.Aggregate(self.seq(groups), self.seq(results), child, self.none())

    def window(
        self, node: JNode, change: Change, partition: Sequence[JExpr], child: JNode
    ) -> tuple[JNode, dict[int, JExpr]]:
        """The `Window` node over another child, partitioned by other expressions; and its new output by old id."""

        def replace(e: JExpr) -> JExpr | None:
            if self.kind(e) != "WindowSpecDefinition":
                return None
            orders = self.seq([change(o) for o in self.items(e.orderSpec())])
            return self._expressions.WindowSpecDefinition(self.seq(partition), orders, e.frameSpecification())

        found, functions = {}, []
        for old in self.items(node.windowExpressions()):
            new = self.alias(change(self.rewrite(self.children(old)[0], replace)), str(old.name()))
            functions.append(new)
            found[self.attribute_id(old)] = new.toAttribute()
        orders = self.seq([change(o) for o in self.items(node.orderSpec())])
        return self._logical.Window(self.seq(functions), self.seq(partition), orders, child, self.none()), found

    def expand(self, node: JNode, change: Change, extra: JExpr, child: JNode) -> tuple[JNode, dict[int, JExpr]]:
        """The `Expand` node over another child, with one more attribute passed through."""
        projections = [self.seq([*(change(e) for e in self.items(p)), extra]) for p in self.items(node.projections())]
        found = {self.attribute_id(a): a.newInstance() for a in self.items(node.output())}
        output = self.seq([*found.values(), extra])
        return self._logical.Expand(self.seq(projections), output, child), found

    def multiplied(self, projections: Sequence[Sequence[JExpr]], names: Sequence[str], child: JNode) -> JNode:
        """Each row of the child once for each projection of it: `Expand`."""
        output = [self.alias(e, n).toAttribute().withNullability(True) for e, n in zip(projections[0], names)]
        return self._logical.Expand(self.seq([self.seq(p) for p in projections]), self.seq(output), child)

    def extended(self, node: JNode, change: Change, child: JNode) -> tuple[JNode, dict[int, JExpr]]:
        """A node that adds columns to those of its child (Generate, the evaluation of Python UDFs), over another child.

        Returns the node and the added attributes by their old ids.
        """
        kind = self.kind(node)
        if kind == "Generate":
            found = {self.attribute_id(a): a.newInstance() for a in self.items(node.generatorOutput())}
            made = self._logical.Generate(
                change(node.generator()), node.unrequiredChildIndex(), node.outer(), node.qualifier(),
                self.seq(found.values()), child,
            )  # fmt: skip
            return made, found
        found = {self.attribute_id(a): a.newInstance() for a in self.items(node.resultAttrs())}
        if kind in ("BatchEvalPythonUDTF", "ArrowEvalPythonUDTF"):
            nothing, output = self.seq([]), self.seq(found.values())
            call = change(node.udtf())  # as it was before it was optimized: Spark analyzes the plan once more
            return self._logical.Generate(call, nothing, False, self.none(), output, child), found
        udfs, results = self.seq([change(u) for u in self.items(node.udfs())]), self.seq(found.values())
        if kind == "BatchEvalPython":
            return self._python.BatchEvalPython(udfs, results, child), found
        return self._python.ArrowEvalPython(udfs, results, child, node.evalType()), found

    def python_command(self, function: Any) -> bytes:
        """What a Python function (`func()` of its call) was pickled to. Raises `NotSupported` where it is too large."""
        if not function.broadcastVars().isEmpty():
            raise NotSupported(
                "a Python function with more than a megabyte of data or with broadcast variables in a view",
                hint="keep the data in a table and join it, or load it inside the function",
            )
        tag = self.module(self.jvm.scala.reflect, "ClassTag").Byte()
        return bytes(function.command().toArray(tag))

    def renew_function(self, function: Any) -> None:
        """Make a Python function that another process has stored run in this process's Spark: in place."""
        context = self.spark.sparkContext
        now = {
            "accumulator": context._javaAccumulator, "pythonExec": context.pythonExec, "pythonVer": context.pythonVer,
            "pythonIncludes": self.jvm.java.util.ArrayList(), "envVars": self.jvm.java.util.HashMap(),
        }  # fmt: skip
        for include in context._python_includes:
            now["pythonIncludes"].add(include)
        for key, value in context.environment.items():
            now["envVars"].put(key, value)
        for name, value in now.items():
            field = function.getClass().getDeclaredField(name)
            field.setAccessible(True)
            field.set(function, value)

    def map_in(self, kind: str, function: JExpr, output: Sequence[JExpr], child: JNode) -> JNode:
        """`MapInPandas` or `MapInArrow`."""
        made = getattr(self._logical, kind)
        return made(function, self.seq(output), child, False, self.none())

    def flat_map_groups(
        self, kind: str, keys: Sequence[JExpr], function: JExpr, output: Sequence[JExpr], child: JNode
    ) -> JNode:
        """`FlatMapGroupsInPandas` or `FlatMapGroupsInArrow`."""
        return getattr(self._logical, kind)(self.seq(keys), function, self.seq(output), child)

    def union(self, nodes: Sequence[JNode]) -> JNode:
        """`Union` of nodes with equal column types."""
        return self._logical.Union(self.seq(nodes), False, False)

    def equi_join(self, join: JNode) -> tuple[list[JExpr], list[JExpr], JExpr | None]:
        """Left keys, right keys and the residual condition of a join; null-safe equality comes as plain equality."""
        found = self.jvm.org.apache.spark.sql.catalyst.planning.ExtractEquiJoinKeys.unapply(join)
        if found.isEmpty():
            condition = join.condition()
            return [], [], (None if condition.isEmpty() else condition.get())
        parts = found.get()
        residual = parts._4()
        return self.items(parts._2()), self.items(parts._3()), (None if residual.isEmpty() else residual.get())

    def left_join_single(self, left: JNode, right: JNode) -> JNode:
        """Left outer join without a condition."""
        hint = self._logical.module("JoinHint").NONE()
        return self._logical.Join(left, right, self._plans.module("LeftOuter"), self.none(), hint)

    def serialize(self, node: JNode) -> str:
        """A logical plan as base64 text; leaves must not hold a session."""
        return base64.b64encode(bytes(self.jvm.org.apache.spark.util.Utils.serialize(node))).decode()

    def deserialize(self, text: str) -> JNode:
        """The inverse of `serialize`."""
        loader = self.jvm.java.lang.Thread.currentThread().getContextClassLoader()
        return self.jvm.org.apache.spark.util.Utils.deserialize(base64.b64decode(text), loader)

    def local_leaf(self, output: Sequence[JExpr]) -> JNode:
        """An empty leaf with exactly these attributes; it can be serialized."""
        return self._logical.LocalRelation(self.seq(output), self.seq([]), False, self.none())

    # -- expressions ---------------------------------------------------------------------------------------------

    def none(self) -> Any:
        """Scala's None."""
        return self._none

    def some(self, value: Any) -> Any:
        """Scala's Some(value)."""
        return self._some(value)

    def alias(self, expression: JExpr, name: str, expr_id: Any | None = None) -> JExpr:
        """`expression AS name`, under a given or a new expression id."""
        if expr_id is None:
            expr_id = self._expressions.NamedExpression.newExprId()
        return self._expressions.Alias(expression, name, expr_id, self.seq([]), self.none(), self.seq([]))

    def column(self, expression: JExpr) -> SparkColumn:
        """The expression as a PySpark column."""
        return SparkColumn(self._columns.column(expression))

    def expression(self, column: SparkColumn) -> JExpr:
        """The inverse of `column`."""
        return self._columns.expression(column._jc)

    def ordering(self, order: JExpr) -> SparkColumn:
        """A sort order as a column to order by."""
        column = self.column(self.children(order)[0])
        falls, last = self.direction(order)
        if falls:
            return column.desc_nulls_last() if last else column.desc_nulls_first()
        return column.asc_nulls_last() if last else column.asc_nulls_first()

    def direction(self, order: JExpr) -> tuple[bool, bool]:
        """Of a sort order: whether it descends, and whether nulls come last."""
        return self.kind(order.direction()) == "Descending", self.kind(order.nullOrdering()) == "NullsLast"

    def literal(self, value: bool | int | str | None, type_json: str | None = None) -> JExpr:
        """A literal; of the given type where one is given."""
        module = self._expressions.module("Literal")
        if type_json is None:
            return module.apply(value)
        return self._expressions.Cast(
            module.apply(value), self._type(type_json), self.some("UTC"), self._eval_mode("ANSI")
        )

    def _type(self, json: str) -> Any:
        """Catalyst's type for the JSON of one."""
        if json not in self._types:
            self._types[json] = self._session.parseDataType(json)
        return self._types[json]

    def _eval_mode(self, name: str) -> Any:
        modes = self._expressions.module("EvalMode")
        return once(modes, name, lambda: getattr(modes, name)())

    def cast(self, expression: JExpr, data_type: Any) -> JExpr:
        """An ANSI cast, in UTC; nothing where the type is right already."""
        if type_of(expression).equals(data_type):
            return expression
        return self._expressions.Cast(expression, data_type, self.some("UTC"), self._eval_mode("ANSI"))

    def widens(self, source: Any, target: Any) -> bool:
        """Whether a cast between two of Catalyst's types keeps every value, so that it can be cast back."""
        return bool(self._expressions.module("Cast").canUpCast(source, target))

    def try_cast(self, expression: JExpr, data_type: Any) -> JExpr:
        """A cast that gives null for what does not fit; nothing where the type is right already."""
        if type_of(expression).equals(data_type):
            return expression
        return self._expressions.Cast(expression, data_type, self.some("UTC"), self._eval_mode("TRY"))

    def if_else_null(self, condition: JExpr, value: JExpr) -> JExpr:
        """The value where the condition holds, else null."""
        return self._expressions.If(condition, value, self.null_of(value))

    def and_(self, left: JExpr, right: JExpr) -> JExpr:
        """`left AND right`."""
        return self._expressions.And(left, right)

    def conjuncts(self, condition: JExpr) -> list[JExpr]:
        """What a condition joins by AND."""
        if self.kind(condition) != "And":
            return [condition]
        return [part for child in self.children(condition) for part in self.conjuncts(child)]

    def all_of(self, conditions: Sequence[JExpr]) -> JExpr:
        """The conditions, at least one, joined by AND."""
        return reduce(self.and_, conditions)

    def null_of(self, expression: JExpr) -> JExpr:
        """A null of the expression's type."""
        return self.cast(self.literal(None), type_of(expression))

    def literal_us(self, expression: JExpr) -> int | None:
        """The microseconds of an interval literal; None for what is none, and for one with months."""
        if self.kind(expression) != "Literal" or expression.value() is None:
            return None
        kind, value = self.kind(type_of(expression)), expression.value()
        if kind == "DayTimeIntervalType":
            return int(value)
        if kind != "CalendarIntervalType":
            return None
        period, duration = value.extractAsPeriod(), value.extractAsDuration()
        if period.toTotalMonths():
            return None
        return int(period.getDays()) * 86_400_000_000 + int(duration.toNanos()) // 1000

    def normalized(self, expression: JExpr) -> JExpr:
        """The expression with one form of NaN and of zero, at any depth: what grouping and joining compare.

        Raises `NotSupported` for text with a collation, of which different values are equal.
        """
        if self.is_collated(expression):
            raise NotSupported(
                f"bringing rows together by values of type {self.simple_type(expression)}",
                hint="group, join or partition by lower(...) of the text, or another form of it that is equal",
            )
        return self._optimizer.module("NormalizeFloatingNumbers").normalize(expression)

    def rewrite(self, expression: JExpr, replace: Callable[[JExpr], JExpr | None]) -> JExpr:
        """The expression with every part replaced for which `replace` gives another one, from the top."""
        other = replace(expression)
        if other is not None:
            return other
        children = self.children(expression)
        if not children:
            return expression
        changed = [self.rewrite(c, replace) for c in children]
        if all(a is b for a, b in zip(children, changed)):
            return expression
        return self.with_children(expression, changed)

    def find(self, expression: JExpr, kinds: frozenset[str]) -> Iterator[JExpr]:
        """Every part of the expression, itself included, that is of one of the kinds."""
        if self.kind(expression) in kinds:
            yield expression
        for child in self.children(expression):
            yield from self.find(child, kinds)

    def references(self, expression: JExpr) -> set[int]:
        """Ids of the attributes that the expression reads."""
        return set(once(expression, "references", lambda: self._references(expression)))

    def _references(self, expression: JExpr) -> set[int]:
        if self.is_attribute(expression):
            return {self.attribute_id(expression)}
        return {self.attribute_id(a) for a in self.items(expression.references().toSeq())}

    def is_attribute(self, expression: JExpr) -> bool:
        """Whether the expression is nothing but an attribute."""
        return self.kind(expression) == "AttributeReference"

    def is_session_window(self, group: JExpr) -> bool:
        """Whether a grouping expression stands for Spark's session windows, which its physical operators merge."""
        return self.is_attribute(group) and bool(group.metadata().contains("spark.sessionWindow"))

    def spark_type_of(self, text: str) -> DataType:
        """The PySpark type that Spark's type string spells."""
        if text not in self._spelled:
            self._spelled[text] = _parse_datatype_json_string(self._data_type.fromDDL(text).json())
        return self._spelled[text]

    @staticmethod
    def attribute_id(attribute: JExpr) -> int:
        """The expression id of a named expression."""
        return once(attribute, "id", lambda: int(attribute.exprId().id()))

    def spark_type(self, obj: Any) -> DataType:
        """The PySpark type of an expression."""
        return spark_type_of(obj)

    def simple_type(self, obj: Any) -> str:
        """Spark's simple string of an expression's type."""
        return once(obj, "simple type", lambda: str(type_of(obj).catalogString()))

    def arrow_type(self, obj: Any) -> pa.DataType:
        """The Arrow type in which values of the expression reach Python; `TypeError` where there is none."""
        return to_arrow_type(self.spark_type(obj), timezone="UTC")

    def eval_mode(self, function: JExpr) -> str:
        """`ANSI`, `LEGACY` or `TRY`: what an aggregate, a cast or arithmetic does on overflow."""
        mode = function.evalMode() if self.kind(function) in ("Average", "Cast") else function.evalContext().evalMode()
        return str(mode.toString())

    def literal_long(self, value: int) -> JExpr:
        """A bigint literal."""
        return self.cast(self.literal(value), self._type('"long"'))

    def literal_decimal(self, scale: int) -> JExpr:
        """A null of type decimal(38, scale)."""
        return self.cast(self.literal(None), self._type(f'"decimal(38,{scale})"'))

    def mark(self, expression: JExpr) -> JExpr:
        """The expression in a wrapping that changes nothing and that the optimizer leaves alone."""
        return self._expressions.KnownNullable(expression)

    def is_collated(self, expression: JExpr) -> bool:
        """Whether its strings are compared otherwise than by their bytes."""
        return has_text(expression) and "collate" in self.simple_type(expression).lower()

    def all_not_null(self, expressions: Sequence[JExpr]) -> JExpr:
        """True where no expression is null, else null."""
        condition = self.literal(True)
        for e in expressions:
            condition = self.and_(condition, self._expressions.IsNotNull(e))
        return self._expressions.If(condition, self.literal(True), self.null_of(condition))

    def filtered(self, call: JExpr, value: JExpr) -> JExpr:
        """The value where the aggregate call's own filter holds, else null."""
        condition = call.filter()
        if condition.isEmpty():
            return value
        return self._expressions.If(condition.get(), value, self.null_of(value))

    def aggregate_expression(self, function: JExpr, mode: Any, distinct: bool, condition: Any, result_id: Any) -> JExpr:
        """A call of an aggregate function."""
        return self._aggregates.AggregateExpression(function, mode, distinct, condition, result_id)

    # -- expressions that may fail -------------------------------------------------------------------------------

    def is_form(self, expression: JExpr) -> bool:
        """Whether an expression is not computed for a row by itself: an aggregate or window function, and the like."""
        return any(
            is_instance_of(self._gateway, expression, f"{_EXPRESSIONS}.{name}")
            for name in ("Unevaluable", "aggregate.AggregateFunction")
        )

    def guard(self, expression: JExpr) -> JExpr:
        """The expression, but NULL where it fails: tried twice, which Spark's own `try_` functions are not."""
        return self._expressions.TryEval(self._expressions.TryEval(expression))

    def unguarded(self, expression: JExpr) -> JExpr | None:
        """What a guard is of; None if the expression is none."""
        for _ in range(2):
            if self.kind(expression) != "TryEval":
                return None
            expression = self.children(expression)[0]
        return expression

    def has_guard(self, expression: JExpr) -> bool:
        """Whether there is a guard in the expression."""
        return any(self.unguarded(e) is not None for e in self.find(expression, _TRY))

    def bare(self, expression: JExpr) -> JExpr:
        """The expression without its guards, at any depth."""
        if not self.has_guard(expression):
            return expression
        inner = self.unguarded(expression)
        if inner is not None:
            return self.bare(inner)
        return self.with_children(expression, [self.bare(c) for c in self.children(expression)])

    def is_sound(self, raw: Sequence[JExpr]) -> JExpr:
        """True where none of the expressions fails, else false."""
        x = self._expressions
        names = [self.literal(f"{_SOUND}{i}") for i in range(len(raw))]
        tried = x.IsNotNull(x.TryEval(self._struct(names, raw)))
        columns = (a for e in raw for a in self.find(e, frozenset({"AttributeReference"})))
        column = min(columns, key=lambda a: self.kind(a.dataType()).startswith(_NESTED), default=None)
        if column is None:
            return tried
        always = x.GreaterThanOrEqual(x.XxHash64(self.seq([column])), self.literal_long(-(2**63)))
        return x.If(always, tried, always)  # the other branch is never taken, and nothing that could be simplified

    def soundness(self, expression: JExpr) -> JExpr | None:
        """The struct of the expressions that an `is_sound` tries; None for any other expression."""
        if self.kind(expression) != "If" or self.kind(self.children(expression)[1]) != "IsNotNull":
            return None
        tried = self.children(self.children(expression)[1])[0]
        struct = self.children(tried)[0] if self.kind(tried) == "TryEval" else None
        if struct is None or self.kind(struct) != "CreateNamedStruct":
            return None
        name = self.children(struct)[0]
        named = self.kind(name) == "Literal" and str(name.value().toString()).startswith(_SOUND)
        return struct if named else None

    def _struct(self, names: Sequence[JExpr], values: Sequence[JExpr]) -> JExpr:
        fields = [part for name, value in zip(names, values, strict=True) for part in (name, value)]
        return self._expressions.CreateNamedStruct(self.seq(fields))

    def tried(self, expression: JExpr) -> list[JExpr]:
        """For an expression with guards: what must not fail for it to be what it is without them."""
        found = [s for part in self.find(expression, frozenset({"If"})) if (s := self.soundness(part)) is not None]
        if found:
            return [value for struct in found for value in self.children(struct)[1::2]]
        inner = self.children(expression)[0] if self.kind(expression) == "Alias" else expression
        return [self.bare(inner)] if self.has_guard(inner) else []

    def row_parts(self, expression: JExpr) -> Iterator[JExpr]:
        """The parts with guards of an expression that are computed of one row: arguments of aggregates, sort keys."""
        if not self.has_guard(expression):
            return
        forms = ("AggregateExpression", "WindowExpression", "WindowSpecDefinition", "SortOrder", "Alias")
        if self.is_form(expression) or any(self.find(expression, frozenset(forms))):
            for child in self.children(expression):
                yield from self.row_parts(child)
        else:
            yield expression

    def fails(self, expression: JExpr, where: JExpr) -> JExpr:
        """Whether the expression fails, in rows where a number is above 0; false in others.

        The conditional keeps what expressions have in common from being computed before, where nothing catches it.
        """
        x = self._expressions
        above = x.GreaterThan(where, self.literal_long(0))
        return x.If(above, x.IsNull(x.TryEval(self._struct([self.literal("v")], [expression]))), above)

    def failure(self, expression: JExpr) -> None:
        """Evaluate a constant expression. Raises what it fails with."""
        expression.eval(None)

    def text_as(self, text: str | None, typed_like: JExpr) -> JExpr:
        """A constant of the expression's type, from its text."""
        module = self._expressions.module("Literal")
        return self.cast(module.apply(text), type_of(typed_like)) if text is not None else self.null_of(typed_like)

    def apart(self, node: JNode, wanted: Callable[[JExpr], bool]) -> tuple[JNode, JNode] | None:
        """An Aggregate whose results compute with its aggregates: a Project, and the bare Aggregate below it.

        None if `wanted` is of no part of a result that has an aggregate in it.
        """
        calls = frozenset({"AggregateExpression"})
        results = self.items(node.aggregateExpressions())
        inner = [self.children(e)[0] if self.kind(e) == "Alias" else e for e in results]
        if not any(self.kind(e) != "AggregateExpression" and any(self.find(e, calls)) and wanted(e) for e in inner):
            return None
        named: list[tuple[JExpr, JExpr]] = []
        for part in [*self.items(node.groupingExpressions()), *(c for e in results for c in self.find(e, calls))]:
            if not any(part.semanticEquals(known) for known, _ in named):
                named.append((part, part if self.is_attribute(part) else self.alias(part, "part")))

        def replace(e: JExpr) -> JExpr | None:
            return next((n.toAttribute() for known, n in named if e.semanticEquals(known)), None)

        below = self.aggregate(self.items(node.groupingExpressions()), [n for _, n in named], self.children(node)[0])
        above = []
        for e in results:
            made = self.rewrite(e, replace)
            same = self.is_attribute(made) and self.attribute_id(made) == self.attribute_id(e)
            above.append(made if same or self.kind(made) == "Alias" else self.alias(made, str(e.name()), e.exprId()))
        return self.project(above, below), below

    def unscaled(self, decimal: JExpr) -> JExpr:
        """The unscaled value of a decimal of at most 18 digits, as bigint."""
        return self._expressions.UnscaledValue(decimal)
