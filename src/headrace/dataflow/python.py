"""How plan nodes that call Python functions over many rows become part of an epoch's plan.

The functions' code is taken from the plan as Spark would have sent it to its workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, IntegerType, LongType, StructField, StructType

from headrace.dataflow.operators import calls
from headrace.plan.border_types import spark_of
from headrace.plan.catalyst.bridge import Bridge
from headrace.plan.catalyst.expressions import Expr, attribute
from headrace.plan.catalyst.nodes import Node, PythonGroups, PythonMap


def mapped(b: Bridge, node: PythonMap, attrs: Mapping[int, Expr], weight: Expr, child: Node) -> DataFrame:
    """`mapInPandas` or `mapInArrow` over rows with weights: its columns, then `__w`."""
    below = node.child.output
    columns = [b.alias(attrs[a.id], a.name) for a in below]
    frame = b.frame(b.project([*columns, b.alias(weight, calls.WEIGHT)], child))
    names = [a.name for a in node.output]
    command = b.python_command(node.call)
    schema = _schema(node, calls.WEIGHT, LongType())
    if node.kind == "MapInPandas":
        return frame.mapInPandas(calls.map_frames(command, names), schema)
    return frame.mapInArrow(calls.map_batches(command, names), schema)


def applied(b: Bridge, node: PythonGroups, attrs: Mapping[int, Expr], side: Expr, child: Node) -> DataFrame:
    """`applyInPandas` or `applyInArrow` for both versions of each group: its columns, then `__side`."""
    keys, arguments = node.keys, [attribute(a) for a in node.call.children]
    columns = [b.alias(attrs[a.id], a.name) for a in arguments]
    grouping = [b.alias(attrs[k.id], f"__g{i}") for i, k in enumerate(keys)]
    frame = b.frame(b.project([*columns, *grouping, b.alias(side, calls.SIDE)], child))
    grouped = frame.groupBy(*[f"__g{i}" for i in range(len(keys))], calls.SIDE)
    names = [a.name for a in node.output]
    command = b.python_command(node.call)
    schema = _schema(node, calls.SIDE, IntegerType())
    make: Any = calls.apply_frame if node.kind == "FlatMapGroupsInPandas" else calls.apply_table
    function = make(command, len(arguments), names)
    if node.kind == "FlatMapGroupsInPandas":
        return grouped.applyInPandas(function, schema)
    return grouped.applyInArrow(function, schema)


def _schema(node: Node, extra: str, kind: DataType) -> StructType:
    fields = [StructField(a.name, spark_of(a)) for a in node.output]
    return StructType([*fields, StructField(extra, kind)])
