"""I1 for plan nodes that call Python functions: scalar, table, aggregate, over windows, over groups, over batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from engine import Engine, Query, Table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import arrow_udf, pandas_udf, udf, udtf

from headrace.common.columns import Column
from headrace.errors import NotSupported

COLUMNS = (Column("a", "int"), Column("b", "bigint"), Column("s", "string"))


def setup(spark: SparkSession) -> None:
    """Register one function of each kind."""

    @udtf(returnType="x: int, y: string")
    class Series:
        def eval(self, n: int) -> Iterator[tuple[int, str]]:
            for i in range(n or 0):
                yield i, str(i)

    @udtf(returnType="x: int")
    class Careless:
        def eval(self, n: int) -> Iterator[tuple[int]]:
            yield (n,)

    @udtf(returnType="x: int")
    class Ends:
        def eval(self, n: int) -> Iterator[tuple[int]]:
            yield (n,)

        def terminate(self) -> Iterator[tuple[int]]:
            yield (-1,)

    def doubled(x: pd.Series) -> pd.Series:
        return x * 2

    def negated(x: pa.Array) -> pa.Array:
        return pc.negate(x)

    def spread(x: pd.Series) -> float:
        return float(x.max() - x.min())

    def summed(x: pa.Array) -> int:
        return pc.sum(x).as_py() or 0

    made: dict[str, Any] = {
        "plus": udf(lambda x: None if x is None else x + 1, "int"),
        "plus_row": udf(lambda x: None if x is None else x + 1, "int", useArrow=False),
        "random_one": udf(lambda x: x, "int").asNondeterministic(),
        "doubled": pandas_udf(doubled, "bigint"),
        "negated": arrow_udf(negated, "bigint"),
        "spread": pandas_udf(spread, "double"),
        "summed": arrow_udf(summed, "bigint"),
    }
    for name, function in made.items():
        spark.udf.register(name, function)
    spark.udtf.register("series", Series.asDeterministic())
    spark.udtf.register("careless", Careless)
    spark.udtf.register("ends", Ends.asDeterministic())


def mapped(spark: SparkSession) -> DataFrame:
    def twice(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield pd.concat([frame[["a", "s"]], frame.loc[frame["b"] > 1, ["a", "s"]]])

    return spark.table("t").mapInPandas(twice, "a int, s string")


def mapped_arrow(spark: SparkSession) -> DataFrame:
    def some(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.filter(pc.greater(batch.column("b"), 0)).select(["b", "a"])

    return spark.table("t").mapInArrow(some, "b bigint, a int").groupBy("b").count()


def applied(spark: SparkSession) -> DataFrame:
    def ranked(key: tuple[Any, ...], group: pd.DataFrame) -> pd.DataFrame:
        ordered = group.sort_values(["b", "s"]).reset_index(drop=True)
        return pd.DataFrame({"a": ordered["a"], "s": ordered["s"], "place": ordered.index, "size": len(ordered)})

    return spark.table("t").groupBy("a").applyInPandas(ranked, "a int, s string, place long, size long")


def applied_global(spark: SparkSession) -> DataFrame:
    def total(group: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame([[int(group["b"].sum()), len(group)]])

    return spark.table("t").groupBy().applyInPandas(total, "total long, n long")


def applied_arrow(spark: SparkSession) -> DataFrame:
    def total(key: tuple[pa.Scalar, ...], group: pa.Table) -> pa.Table:
        return pa.table({"n": pa.array([group.num_rows]), "k": pa.array([key[0].as_py()], pa.int64())})

    return spark.table("t").groupBy((spark.table("t").b % 2).alias("k")).applyInArrow(total, "k long, n long")


CASES: dict[str, Query] = {
    "scalar": "SELECT a, plus(a) AS x, plus_row(a) AS y, doubled(b) AS d, negated(b) AS n FROM t WHERE plus(a) > 1",
    "table function": "SELECT n, x, y FROM (SELECT CAST(count(*) AS int) AS n FROM t GROUP BY a) g, LATERAL series(n)",
    "table function, outer": "SELECT a, x FROM t LEFT JOIN LATERAL series(a) ON true",
    "arrow aggregate": "SELECT a % 2 AS k, summed(b) AS d, summed(b) + 1 AS e FROM t GROUP BY a % 2 "
    "HAVING summed(b) > 0",
    "global aggregate": "SELECT spread(b) AS d FROM t",
    "window with frame": "SELECT a, b, spread(b) OVER (PARTITION BY a ORDER BY b ROWS BETWEEN 1 PRECEDING "
    "AND CURRENT ROW) AS w, row_number() OVER (PARTITION BY a ORDER BY b) AS r FROM t",
    "mapInPandas": mapped,
    "mapInArrow": mapped_arrow,
    "applyInPandas": applied,
    "applyInPandas of all": applied_global,
    "applyInArrow": applied_arrow,
}


@pytest.mark.parametrize("name", CASES)
def test_views_with_python_functions(spark: SparkSession, name: str) -> None:
    """I1, I2: the view is the batch answer after inserts and deletes, with one task and with several."""
    table = Table(1, "t", COLUMNS)
    with Engine(spark, [table], CASES[name], setup=setup, codegen=False) as engine:
        engine.insert("t", (1, 10, "x"), (1, 3, "y"), (2, 5, "z"), (1, 10, "x"))
        engine.advance()
        engine.check()
        engine.change("t", [((1, 10, "x"), -1), ((3, 1, "w"), 1), ((2, 6, "v"), 1)])
        engine.advance(2)
        engine.check()
        engine.delete("t", (2, 5, "z"), (2, 6, "v"), (3, 1, "w"), (1, 10, "x"), (1, 3, "y"))
        engine.advance()
        engine.check()


def _cogrouped(spark: SparkSession) -> DataFrame:
    one, two = spark.table("t").groupBy("a"), spark.table("t").groupBy("a")
    return one.cogroup(two).applyInPandas(lambda x, y: x, "a int, b long, s string")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT random_one(a) AS x FROM t", "random_one.*not declared deterministic"),
        ("SELECT x FROM t, LATERAL careless(a)", "careless.*not declared deterministic"),
        ("SELECT x FROM t, LATERAL ends(a)", "ends.*terminate"),
        ("SELECT * FROM series(TABLE(SELECT a FROM t))", "series.*TABLE argument"),
        ("SELECT a, spread(b) AS d, count(*) AS n FROM t GROUP BY a", "spread beside aggregates of another kind"),
        ("SELECT a, spread(b) AS d, summed(b) AS n FROM t GROUP BY a", "beside aggregates of another kind"),
        (_cogrouped, "cogroup"),
    ],
)
def test_what_cannot_be_exact_is_refused(
    spark: SparkSession, query: str | Callable[[SparkSession], DataFrame], message: str
) -> None:
    with pytest.raises(NotSupported, match=message) as raised:
        Engine(spark, [Table(1, "t", COLUMNS)], query, setup=setup)
    assert raised.value.hint
