"""Plans by which Arrow's kernels compute queries over one table, or over none; Spark makes one once for each query."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias, cast

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column
from headrace.dataflow.queries import KernelQuery, kernel_query
from headrace.dataflow.spark_kernels import register
from headrace.plan.catalyst.bridge import Bridge
from headrace.session.engine import columns_of
from headrace.session.result import ResultColumn
from headrace.sql.binder.spark_text import quoted

_KEPT = 1000
"""Plans that are kept."""
Wrap: TypeAlias = Callable[[list[ResultColumn], str], str]
"""Puts more Spark SQL around a query's text, whose columns it gets."""
_Key: TypeAlias = tuple[object, ...]


class KernelPlans:
    """Plans of queries by what they were made of. Safe to use from several threads."""

    def __init__(self) -> None:
        """Plans can be made once `renew` has brought a Spark."""
        self._spark: SparkSession | None = None
        self._bridge: Bridge | None = None
        self._leaves: dict[int, tuple[tuple[Column, ...], int | None]] = {}
        """What the bridge's session knows of each table: its columns, and the id of its leaf."""
        self._planning = threading.Lock()
        self._keeping = threading.Lock()
        self._kept: OrderedDict[_Key, KernelQuery | None] = OrderedDict()

    def renew(self, spark: SparkSession) -> None:
        """Plan in another Spark application from now on. What is kept stays: it needs none."""
        with self._planning:
            self._spark, self._bridge = spark, None
            self._leaves.clear()

    def kept(self, key: _Key) -> tuple[bool, KernelQuery | None]:
        """Whether it is known what a query is, and its plan; None where it is for Spark to run."""
        with self._keeping:
            if key not in self._kept:
                return False, None
            self._kept.move_to_end(key)
            return True, self._kept[key]

    def plan(self, key: _Key | None, table: ObjectRecord | None, text: str, wrap: Wrap) -> KernelQuery | None:
        """The plan of a query in Spark SQL that calls the table by its `leaf_name`. Raises what Spark does.

        Without a key it is good for this once.
        """
        with self._planning:
            bridge = self._bridge
            if bridge is None:
                assert self._spark is not None, "whoever plans has waited for it"
                bridge = self._bridge = Bridge(self._spark)
                register([bridge.spark])
            leaf = None if table is None else self._leaf(bridge, table)
            frame = bridge.spark.sql(wrap(columns_of(bridge.spark.sql(text)), text))
            found = kernel_query(bridge.optimized_by_default(frame), leaf)
            keep = found is None or not bridge.tells_time(bridge.analyzed(frame), literals="'" in text)
        if keep and key is not None:
            self._keep(key, found)
        return found

    def _leaf(self, bridge: Bridge, table: ObjectRecord) -> int | None:
        """Make the table known to the bridge's session; the id of its leaf."""
        known = self._leaves.get(table.id)
        if known is not None and known[0] == table.columns:
            return known[1]
        ddl = ", ".join(f"{quoted(c.name)} {c.type}" for c in table.columns)
        frame = bridge.relation(cast(StructType, StructType.fromDDL(ddl)))
        frame.createOrReplaceTempView(leaf_name(table.id).strip("`"))
        leaf = bridge.analyzed(frame).leaf_id
        self._leaves[table.id] = (table.columns, leaf)
        while len(self._leaves) > _KEPT:
            oldest = next(iter(self._leaves))
            del self._leaves[oldest]
            bridge.spark.catalog.dropTempView(leaf_name(oldest).strip("`"))
        return leaf

    def _keep(self, key: _Key, found: KernelQuery | None) -> None:
        with self._keeping:
            self._kept[key] = found
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)


def leaf_name(table_id: int) -> str:
    """The name of a table in the texts that are planned."""
    return f"`r{table_id}`"
