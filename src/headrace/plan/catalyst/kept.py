"""Physical plans of queries that are run again and again.

What Spark runs cannot be run twice: an exchange keeps what it has shuffled, a subquery its value, and an exchange that
is reused stands for the very node. So what is kept is the plan as it was before Spark prepared it, as Spark itself
keeps it beside the prepared one (`QueryExecution.sparkPlan`). Each run copies it and prepares the copy: then there are
exchanges, subqueries and what is shared anew. What its leaves read they have to find out when they run.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from py4j.java_gateway import JavaObject, JVMView
from pyspark.sql import DataFrame

from headrace.plan.catalyst.java_calls import arrow_schema, streamed
from headrace.plan.catalyst.typed_nodes import Package, PartReader

_UNDERSTOOD: Final = frozenset((
    "ArrowAggregatePython", "ArrowEvalPython", "ArrowEvalPythonUDTF", "ArrowWindowPython", "BatchEvalPython",
    "BatchEvalPythonUDTF", "BroadcastExchange", "BroadcastHashJoin", "BroadcastNestedLoopJoin", "CartesianProduct",
    "Coalesce", "CollectLimit", "Exchange", "Expand", "Filter", "Generate", "GlobalLimit", "HashAggregate",
    "LocalLimit", "LocalTableScan", "MapInArrow", "ObjectHashAggregate", "Project", "Range", "ReusedExchange",
    "ReusedSubquery", "ScanOneRowRelation", "ShuffledHashJoin", "Sort", "SortAggregate", "SortMergeJoin", "Subquery",
    "TakeOrderedAndProject", "Union", "Window", "WindowGroupLimit",
))  # fmt: skip
"""Physical nodes that have nothing of a run in them before they are prepared, and nothing random.

Among those that are missing: samples, whose seed is the plan's; what Spark caches by its plan, such as recursive
queries; scans of whatever is no leaf of ours.
"""
_NODE: Final = re.compile(r"[\s:+\-|]*(?:\*\(\d+\) )?(Scan OneRowRelation|\w+)?")
"""The name of a node at the beginning of a line of Spark's tree."""


class KeptPlan:
    """The physical plan of a query, to be run again and again by any number of threads at once."""

    def __init__(self, frame: DataFrame) -> None:
        """See `of`, which refuses what must not be kept."""
        self._frame = frame
        self._schema = arrow_schema(frame)
        self._plan: JavaObject = frame._jdf.queryExecution().sparkPlan()
        jvm: JVMView = frame.sparkSession._jvm
        spark = jvm.org.apache.spark.sql
        self._executions = Package(spark.execution).module("QueryExecution")
        self._sessions = spark.classic.SparkSession
        self._none = jvm.scala.Option.empty()
        self._copying = threading.Lock()
        """Held while a copy is made: Spark does not say that two may be made at once."""

    @classmethod
    def of(cls, frame: DataFrame) -> KeptPlan | None:
        """The plan of a frame, if it is good for any other run, too: at other times, over what its leaves find then."""
        execution = frame._jdf.queryExecution()
        analyzed = execution.analyzed()
        if not analyzed.deterministic() or _tells_time(frame.sparkSession._jvm, analyzed):
            return None
        return cls(frame) if _is_understood(str(execution.executedPlan().treeString())) else None

    def stream(self) -> Iterator[pa.RecordBatch]:
        """The rows of another run; see `java_calls.stream`."""
        yield from streamed(self._frame, self._schema, lambda: self._frame._jdf.toArrowBatchRdd(self._prepared()))

    def _prepared(self) -> JavaObject:
        """A copy that Spark can run, once."""
        # Rules are made anew, too: they number what code is generated for, by which code is found that is compiled.
        session, before = self._frame._jdf.sparkSession(), self._sessions.getActiveSession()
        self._sessions.setActiveSession(session)  # by whose settings it is prepared
        try:
            rules = self._executions.preparations(session, self._none, False)
            with self._copying:
                return self._executions.prepareForExecution(rules, self._plan.clone())
        finally:
            if before.isDefined():
                self._sessions.setActiveSession(before.get())
            else:
                self._sessions.clearActiveSession()


def _is_understood(tree: str) -> bool:
    """Whether all nodes of a physical plan, as Spark writes it, are known. A line that begins with none is not."""
    names = (_NODE.match(line) for line in tree.splitlines() if line.strip())
    return all(name is not None and (name[1] or "").replace(" ", "") in _UNDERSTOOD for name in names)


def _tells_time(jvm: JVMView, analyzed: JavaObject) -> bool:
    """Whether the optimizer puts the time of the run into the plan."""
    catalyst = jvm.org.apache.spark.sql.catalyst
    if analyzed.containsPattern(Package(catalyst.trees).module("TreePattern").CURRENT_LIKE()):
        return True
    rules = Package(catalyst.optimizer)
    replaced, special = rules.module("ReplaceExpressions"), rules.module("SpecialDatetimeValues")
    for plan in (analyzed, *PartReader.items(analyzed.subqueriesAll())):
        plain = replaced.apply(plan)
        if not special.apply(plain).fastEquals(plain):  # it has 'now' as a date, say
            return True
    return False


__all__ = ["KeptPlan"]
