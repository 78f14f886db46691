"""A relation with columns of all types that have kernels: values drawn to be difficult, and expressions over it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from headrace.dataflow.operators.kernel_expressions import Expression
from headrace.dataflow.vectors import vectorized
from headrace.plan.border_types import arrow_of_spark
from headrace.plan.catalyst.bridge import Bridge
from headrace.plan.catalyst.expressions import Attribute, Expr
from headrace.plan.catalyst.made_nodes import mapped
from headrace.plan.catalyst.nodes import Project

DDL = (
    "a bigint, b bigint, i int, j int, h smallint, y tinyint, p boolean, q boolean, s string, u string, "
    "d decimal(10,2), e decimal(18,0), t timestamp, n timestamp_ntz, m timestamp_ntz, c date, f double, g float"
)
STRINGS = [
    "", "/", "a/", "/a", "a//b", "a/b/c/d", "Apple", "apple", "google", "GOOGLE", "channel_id=12&x", "channelXid=&",
    "x\ny", "%", "_", "aaa", "aa", "  pad ", "a b", "z", "Z",
]  # fmt: skip
WIDE_STRINGS = ["ä/ö/ü", "日本/語", "🦆/x🦆", "né", "a\u0301"]


def rows(count: int, seed: int, *, mild: bool = False) -> pa.RecordBatch:
    """Rows of the relation, with many nulls; with many values at the edges, or `mild` ones, which overflow nowhere."""
    draw = random.Random(seed)

    def some(choose: Any) -> list[Any]:
        return [None if draw.random() < 0.15 else choose() for _ in range(count)]

    def us() -> datetime:
        if mild:
            return datetime(2024, 2, 28, 23, 59) + timedelta(seconds=draw.randint(-100, 100))
        near = draw.choice([0, 0, 1436918400, 86400, -86400, -2208988800, 253402300799, -62135596800])
        span = 0 if near in (253402300799, -62135596800) else draw.randint(-200_000, 200_000)
        return datetime(1970, 1, 1) + timedelta(seconds=near + span, microseconds=draw.choice([0, 1, 999_999]))

    def number(bits: int) -> int:
        if mild:
            return draw.randint(-5, 5)
        return draw.choice([draw.randint(-5, 5), draw.randint(-(1 << bits), (1 << bits) - 1)])

    tiny, wider = (2, STRINGS) if mild else (11, STRINGS + WIDE_STRINGS)
    values = {
        "a": some(lambda: number(61)), "b": some(lambda: number(61)), "i": some(lambda: number(28)),
        "j": some(lambda: number(28)), "h": some(lambda: number(13)), "y": some(lambda: draw.randint(-tiny, tiny)),
        "p": some(lambda: draw.random() < 0.5), "q": some(lambda: draw.random() < 0.5),
        "s": some(lambda: draw.choice(STRINGS)), "u": some(lambda: draw.choice(wider)),
        "d": some(lambda: Decimal(number(20)) / 100), "e": some(lambda: Decimal(number(58))),
        "t": some(us), "n": some(us), "m": some(us), "c": some(lambda: us().date()),
        **{n: some(lambda: draw.choice([0.0, -0.0, 1.5, float("nan"), float("inf")])) for n in "fg"},
    }  # fmt: skip
    return table(values)


def table(values: dict[str, Sequence[Any]]) -> pa.RecordBatch:
    count = len(next(iter(values.values())))
    fields = [(f.name, arrow_of_spark(f.dataType)) for f in StructType.fromDDL(DDL).fields]
    return pa.record_batch({n: pa.array(values.get(n, [None] * count), kind) for n, kind in fields})


def relation(spark: SparkSession) -> Bridge:
    """A session in which the relation is `given`."""
    made = Bridge(spark)
    made.relation(StructType.fromDDL(DDL)).createOrReplaceTempView("given")
    return made


def give(b: Bridge, batch: pa.RecordBatch) -> None:
    """Make rows of the relation known as `given_rows`.

    Not as a local relation: the optimizer would compute parts of an expression that others make superfluous.
    """
    frame = b.spark.createDataFrame(pa.table(batch), StructType.fromDDL(DDL))
    frame.localCheckpoint().createOrReplaceTempView("given_rows")


def compiled(b: Bridge, texts: Sequence[str]) -> list[Expression | None]:
    """Expressions over the columns of the relation, as they are in an optimized plan; None for what Spark computes."""
    selected = ", ".join(f"{text} AS x{n}" for n, text in enumerate(texts))
    node = b.optimized(b.spark.sql(f"SELECT {selected} FROM given"))
    while not isinstance(node, Project):
        node = node.child
    found: list[Expr] = list(node.named)
    while isinstance(child := node.child, Project):  # parts that are common to several places
        node = child
        inner = {e.id: e.value for e in node.named if not isinstance(e, Attribute)}
        found = [mapped(e, inner) for e in found]
    places = {a.id: i for i, a in enumerate(b.analyzed(b.spark.table("given")).output)}
    assert {a.id for a in node.child.output} <= places.keys()
    return [vectorized(e, places) for e in found]
