"""How plan nodes that call Python functions over many rows become part of an epoch's plan.

The functions' code is taken from the plan as Spark would have sent it to its workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, IntegerType, LongType, StructField, StructType

from headrace.dataflow.operators import calls
from headrace.plan.catalyst.bridge import Bridge, JExpr, JNode
from headrace.plan.types import spark_of


def mapped(b: Bridge, node: JNode, attrs: Mapping[int, JExpr], weight: JExpr, child: JNode) -> DataFrame:
    """`mapInPandas` or `mapInArrow` over rows with weights: its columns, then `__w`."""
    below = b.output(b.children(node)[0])
    columns = [b.alias(attrs[b.attribute_id(a)], str(a.name())) for a in below]
    frame = b.frame(b.project([*columns, b.alias(weight, calls.WEIGHT)], child))
    names = [str(a.name()) for a in b.output(node)]
    command = b.python_command(node.functionExpr().func())
    schema = _schema(b, node, calls.WEIGHT, LongType())
    if b.kind(node) == "MapInPandas":
        return frame.mapInPandas(calls.map_frames(command, names), schema)
    return frame.mapInArrow(calls.map_batches(command, names), schema)


def applied(b: Bridge, node: JNode, attrs: Mapping[int, JExpr], side: JExpr, child: JNode) -> DataFrame:
    """`applyInPandas` or `applyInArrow` for both versions of each group: its columns, then `__side`."""
    arguments = b.children(node.functionExpr())
    keys = b.items(node.groupingAttributes())
    columns = [b.alias(attrs[b.attribute_id(a)], str(a.name())) for a in arguments]
    grouping = [b.alias(attrs[b.attribute_id(k)], f"__g{i}") for i, k in enumerate(keys)]
    frame = b.frame(b.project([*columns, *grouping, b.alias(side, calls.SIDE)], child))
    grouped = frame.groupBy(*[f"__g{i}" for i in range(len(keys))], calls.SIDE)
    names = [str(a.name()) for a in b.output(node)]
    command = b.python_command(node.functionExpr().func())
    schema = _schema(b, node, calls.SIDE, IntegerType())
    make: Any = calls.apply_frame if b.kind(node) == "FlatMapGroupsInPandas" else calls.apply_table
    function = make(command, len(arguments), names)
    if b.kind(node) == "FlatMapGroupsInPandas":
        return grouped.applyInPandas(function, schema)
    return grouped.applyInArrow(function, schema)


def _schema(b: Bridge, node: JNode, extra: str, kind: DataType) -> StructType:
    fields = [StructField(str(a.name()), spark_of(a)) for a in b.output(node)]
    return StructType([*fields, StructField(extra, kind)])
