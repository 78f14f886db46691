"""Catalyst in one Spark session: from queries to plans, from plans to what runs, and plans as text.

Plans and expressions come out as parts (`nodes.py`, `expressions.py`) and go in as such. `tests/plan/test_bridge.py`
pins every internal of Spark's that is used, so that a new version fails there and not in a user's view.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from functools import cached_property

from py4j.java_gateway import JavaGateway, JVMView
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructType, _parse_datatype_json_string

from headrace.plan.catalyst.expressions import Expr, Literal
from headrace.plan.catalyst.kinds import PythonCall
from headrace.plan.catalyst.made_nodes import PlanMaker
from headrace.plan.catalyst.nodes import Node
from headrace.plan.catalyst.physical import JavaRows, Physical
from headrace.plan.catalyst.typed_nodes import Package, PartReader

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
_IDS_AT_ONCE = 20_000


class Bridge(PlanMaker):
    """Catalyst's plans and expressions of one classic Spark session."""

    def __init__(self, spark: SparkSession, lock: threading.RLock | None = None):
        self.spark = spark.newSession()
        self.lock = lock or threading.RLock()
        """Held while options of the session are set for a plan, until that is made."""
        for key, value in PLANNING_CONF.items():
            self.spark.conf.set(key, value)
        jvm: JVMView = self.spark._jvm
        gateway: JavaGateway = self.spark.sparkContext._gateway
        super().__init__(PartReader(gateway, jvm), self.spark._jsparkSession, jvm)
        self._jvm = jvm
        spark_package = jvm.org.apache.spark
        self._datasets = Package(spark_package.sql.classic.Dataset)
        self._sessions = Package(spark_package.sql.classic.SparkSession)
        self._data_type = Package(spark_package.sql.types.DataType)
        self._context = spark_package.api.java.JavaSparkContext(self._session.sparkContext())
        self._spelled_types: dict[str, DataType] = {}

    @cached_property
    def properties(self) -> str:
        """A digest of the version of Spark that runs, and of the application's properties that are about SQL."""
        told = str(self._session.sparkContext().getConf().toDebugString()).splitlines()
        ours = sorted(line for line in told if line.startswith("spark.sql.") and ".warehouse." not in line)
        return hashlib.sha256("\n".join([str(self._session.version()), *ours]).encode()).hexdigest()

    # -- from queries to plans -----------------------------------------------------------------------------------

    def relation(self, schema: StructType) -> DataFrame:
        """A leaf that holds no rows, of which the optimizer does not know that it is empty."""
        java_schema = self._session.parseDataType(schema.json())
        return DataFrame(self._session.createDataFrame(self._context.emptyRDD(), java_schema), self.spark)

    def analyzed(self, frame: DataFrame) -> Node:
        """The analyzed logical plan."""
        return self._reader.part(frame._jdf.queryExecution().analyzed(), Node)

    def optimized(self, frame: DataFrame) -> Node:
        """The optimized logical plan, in the shape that the incremental rules expect."""
        return self.optimized_node(self.analyzed(frame))

    def optimized_node(self, node: Node) -> Node:
        """The same of a logical plan, which is analyzed where it has not been yet."""
        with_rules, conf = "spark.sql.optimizer.excludedRules", self.spark.conf
        execution = self._datasets.ofRows(self._session, node.in_java).queryExecution()
        with self.lock:
            conf.set(with_rules, _EXCLUDED_RULES)
            try:
                found = execution.optimizedPlan()
            finally:
                conf.unset(with_rules)
        return self._reader.part(found, Node)

    def optimized_by_default(self, frame: DataFrame) -> Node:
        """The logical plan that Spark would run, without any of its jobs."""
        return self._reader.part(frame._jdf.queryExecution().optimizedPlan(), Node)

    def frame(self, node: Node) -> DataFrame:
        """A DataFrame of a logical plan, in the bridge's session."""
        return DataFrame(self._datasets.ofRows(self._session, node.in_java), self.spark)

    def spark_type_of(self, text: str) -> DataType:
        """The PySpark type that Spark's type string spells."""
        if text not in self._spelled_types:
            self._spelled_types[text] = _parse_datatype_json_string(self._data_type.fromDDL(text).json())
        return self._spelled_types[text]

    def tells_time(self, analyzed: Node, *, literals: bool) -> bool:
        """Whether a plan has anything whose value follows the current time, so that it is good for one run only.

        `literals` says that there may be strings in its text, which could be cast to times.
        """
        pattern = Package(self._jvm.org.apache.spark.sql.catalyst.trees).module("TreePattern")
        if analyzed.in_java.containsPattern(pattern.CURRENT_LIKE()):
            return True
        expressions = (e for n in analyzed.walk() for e in n.expressions) if literals else iter(())
        return any(_is_special_time(cast) for e in expressions for cast in e.find(_CASTS))

    # -- from plans to what runs ---------------------------------------------------------------------------------

    def activate(self) -> None:
        """Make the session the calling thread's active one: physical plans ask for it when they are made or cloned."""
        self._sessions.setActiveSession(self._session)

    def executed(self, frame: DataFrame, parallelism: int) -> Physical:
        """The physical plan of a frame that has none yet, with as many tasks behind a shuffle."""
        execution = frame._jdf.queryExecution()
        with self.lock:
            self.spark.conf.set("spark.sql.shuffle.partitions", str(parallelism))
            return Physical(execution.executedPlan())

    def count_rows(self, rows: list[JavaRows]) -> int:
        """Run what physical plans compute as one Spark job, every row of it; how many there are.

        The partitions of the last stage are those of the first ones, then those of the second, and so on.
        """
        rdds = [r.in_java for r in rows]
        if len(rdds) == 1:
            return int(rdds[0].count())
        # Not `SparkContext.union`, which puts partitions together where they are partitioned alike.
        context, seq = self._session.sparkContext(), self._reader.seq(rdds)
        return int(self._jvm.org.apache.spark.rdd.UnionRDD(context, seq, rdds[0].elementClassTag()).count())

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

    # -- plans as text -------------------------------------------------------------------------------------------

    def serialize(self, node: Node) -> str:
        """A logical plan as base64 text; leaves must not hold a session."""
        return base64.b64encode(bytes(self._jvm.org.apache.spark.util.Utils.serialize(node.in_java))).decode()

    def deserialize(self, text: str) -> Node:
        """The inverse of `serialize`."""
        loader = self._jvm.java.lang.Thread.currentThread().getContextClassLoader()
        found = self._jvm.org.apache.spark.util.Utils.deserialize(base64.b64decode(text), loader)
        return self._reader.part(found, Node)

    def skip_ids(self, last: int) -> None:
        """See to it that this process gives out none of the expression ids up to `last`."""
        catalyst = self._jvm.org.apache.spark.sql.catalyst
        utils = Package(catalyst.types).module("DataTypeUtils")
        fields = [{"name": "c", "type": "integer", "nullable": True, "metadata": {}}] * _IDS_AT_ONCE
        wide = None
        while int(self._expressions.NamedExpression.newExprId().id()) <= last:
            if wide is None:
                wide = self._session.parseDataType(json.dumps({"type": "struct", "fields": fields}))
            utils.toAttributes(wide)

    # -- Python functions ----------------------------------------------------------------------------------------

    def python_command(self, call: PythonCall) -> bytes:
        """What a Python function was pickled to. Raises `NotSupported` where it is too large."""
        return call.command(Package(self._jvm.scala.reflect).module("ClassTag").Byte())

    def renew_function(self, call: PythonCall) -> None:
        """Make a Python function that another process has stored run in this process's Spark: in place."""
        function, context = call.in_java.func(), self.spark.sparkContext
        now = {
            "accumulator": context._javaAccumulator, "pythonExec": context.pythonExec, "pythonVer": context.pythonVer,
            "pythonIncludes": self._jvm.java.util.ArrayList(), "envVars": self._jvm.java.util.HashMap(),
        }  # fmt: skip
        for include in context._python_includes or ():
            now["pythonIncludes"].add(include)
        for key, value in context.environment.items():
            now["envVars"].put(key, value)
        for name, value in now.items():
            field = function.getClass().getDeclaredField(name)
            field.setAccessible(True)
            field.set(function, value)


def _is_special_time(cast: Expr) -> bool:
    """Whether a cast may be one of `'now'`, `'today'` or the like to a time."""
    child = cast.child
    if cast.type not in _TIMES or not child.is_foldable or "string" not in child.type:
        return False
    value = child.value if isinstance(child, Literal) else None
    return value is None or not any(c.isdigit() for c in str(value))


__all__ = ["PLANNING_CONF", "Bridge"]
