"""What is asked of Java beside plans: jobs to cancel, rows to fetch, functions to register, what it still holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any, cast

import pyarrow as pa
from py4j.java_gateway import JavaObject, JVMView
from pyspark import SparkContext
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.util import _local_iterator_from_socket

from headrace.plan.catalyst.answers import UNANSWERED


def cancel_jobs(context: SparkContext, group: str) -> None:
    """Cancel the jobs of a group, and those that are still to come. Nothing where Spark has ended."""
    with suppress(*UNANSWERED, AttributeError):
        context._jsc.sc().cancelJobGroupAndFutureJobs(group)


def set_property(context: SparkContext, name: str, value: str | None) -> None:
    """Set a local property of this thread's jobs; None takes it away, of which PySpark's types know nothing."""
    context.setLocalProperty(name, cast(str, value))


def register_function(session: SparkSession, name: str, function: Any) -> None:
    """Make a Python function known to a session's queries, whatever it is made for."""
    session._jsparkSession.udf().registerPython(name, function._judf)


def physical_text(frame: DataFrame) -> str:
    """Spark's physical plan of a frame, as Spark shows it."""
    return str(frame._jdf.queryExecution().executedPlan().treeString())


def stream(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """The rows of a DataFrame: computed in one job and kept by Spark, on disk where memory is short; then fetched.

    The first batch comes when all are computed, so that an error on any row comes before the first row. One
    partition at a time is in memory.
    """
    yield from streamed(frame, arrow_schema(frame), lambda: frame._jdf.toArrowBatchRdd())


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """What the rows of a DataFrame are in Arrow."""
    return to_arrow_schema(frame.schema, timezone="UTC")


def streamed(frame: DataFrame, schema: pa.Schema, computing: Callable[[], JavaObject]) -> Iterator[pa.RecordBatch]:
    """The same of what else computes the rows of a frame, as Java's RDD of Arrow's messages."""
    level, server = _keeping(frame.sparkSession._jvm)
    rdd = computing()
    rdd.persist(level)
    try:
        if int(rdd.count()):
            socket = server.toLocalIteratorAndServe(rdd, False)
            for message in _local_iterator_from_socket(socket, NoOpSerializer()):
                yield pa.ipc.read_record_batch(pa.py_buffer(message), schema)
    finally:
        rdd.unpersist(False)


@lru_cache(maxsize=1)
def _keeping(jvm: JVMView) -> tuple[JavaObject, JavaObject]:
    """How Spark keeps rows until they are fetched, and what hands them out: several questions to look up."""
    return jvm.org.apache.spark.storage.StorageLevel.MEMORY_AND_DISK_SER(), jvm.PythonRDD


class LeafHold:
    """Whether Java still has any plan over a leaf, the outcome of a `mapInArrow`.

    A DataFrame that is derived of another one holds on to its plan in Java, not to the Python object. What all plans
    over a leaf share is the function that makes its rows.
    """

    def __init__(self, reference: JavaObject) -> None:
        """`reference` is Java's weak reference to that function."""
        self._reference = reference

    @classmethod
    def of(cls, leaf: DataFrame) -> LeafHold:
        """Look after the plans over a leaf."""
        jvm: JVMView = leaf.sparkSession._jvm
        function = leaf._jdf.queryExecution().analyzed().functionExpr().func()
        return cls(jvm.java.lang.ref.WeakReference(function))

    def is_gone(self) -> bool:
        """Whether there is none left. So it is, too, when its Java process has ended, and all plans with it."""
        try:
            return bool(self._reference.refersTo(None))
        except UNANSWERED:
            return True


__all__ = [
    "LeafHold",
    "arrow_schema",
    "cancel_jobs",
    "physical_text",
    "register_function",
    "set_property",
    "stream",
    "streamed",
]
