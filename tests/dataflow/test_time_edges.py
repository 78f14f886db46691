"""Times at the very ends of their range, and all patterns of `date_format`: the same as Spark, or left to it."""

from __future__ import annotations

from string import ascii_letters
from typing import Any

import pyarrow as pa
import pytest
from expression_rows import compiled, give, relation, table
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.dataflow.operators.kernel_expressions import Expression, RowColumns, UncertainValue
from headrace.plan.catalyst.bridge import Bridge

FIRST, LAST = -(1 << 63), (1 << 63) - 1
DAY_US, HOUR_US = 86_400_000_000, 3_600_000_000
LOWEST_DAY_US = FIRST // DAY_US * DAY_US + DAY_US
"""The first midnight."""
TIMES_US = [
    FIRST, FIRST + 1, LOWEST_DAY_US - 1, LOWEST_DAY_US, LAST, LAST - 1, LAST // DAY_US * DAY_US, LAST - DAY_US,
    0, -1, 1_709_210_096_789_012, -62_135_596_800_000_000, 253_402_300_799_999_999,
]  # fmt: skip
DAYS = [0, -1, 106_751_991, 106_751_992, -106_751_991, -106_751_992, -106_751_993, 2**31 - 1, -(2**31), 2_932_896]
OF_TIMES = [
    "hour({})", "minute({})", "second({})", "year({})", "month({})", "day({})", "quarter({})", "CAST({} AS date)",
    "date_trunc('day', {})", "date_trunc('hour', {})", "date_trunc('minute', {})", "date_trunc('second', {})",
    "date_format({}, 'yyyy-MM-dd HH:mm:ss')", "date_format({}, 'HH')", "{} + INTERVAL '1' DAY",
    "{} - INTERVAL '1' DAY", "{} + INTERVAL '0' SECOND",
]  # fmt: skip
OF_DAYS = [
    "year(c)", "month(c)", "day(c)", "quarter(c)", "CAST(c AS timestamp)", "CAST(c AS timestamp_ntz)",
    "date_format(c, 'yyyy-MM-dd')", "date_trunc('hour', c)", "CAST(c AS timestamp) < t", "xxhash64(c)",
]  # fmt: skip
CASTS = ["CAST(t AS timestamp_ntz)", "CAST(n AS timestamp)", "unix_micros(t)", "xxhash64(t, n)"]


@pytest.fixture(scope="module")
def bridge(spark: SparkSession) -> Bridge:
    return relation(spark)


def given(values: dict[str, list[int]]) -> pa.RecordBatch:
    kinds = {"t": pa.timestamp("us", "UTC"), "n": pa.timestamp("us"), "c": pa.date32()}
    return table({name: [pa.scalar(v, kinds[name]) for v in column] for name, column in values.items()})


def plain(column: pa.Array) -> list[Any]:
    """Values as Python has them; times, for which it has none, as numbers."""
    t = pa.types
    if t.is_timestamp(column.type):
        column = column.cast(pa.int64())
    elif t.is_date32(column.type):
        column = column.cast(pa.int32())
    return column.to_pylist()


def computed(e: Expression, batch: pa.RecordBatch) -> list[Any] | None:
    """What the kernels make of it; None if they leave it to Spark."""
    try:
        return plain(RowColumns.of(batch.columns, batch.num_rows).array(e))
    except (UncertainValue, pa.ArrowInvalid, OverflowError):
        return None


def check(bridge: Bridge, texts: list[str], batch: pa.RecordBatch) -> int:
    """How many values the kernels have computed, all of them right; each row by itself, so that one is no excuse."""
    count, wrong = 0, []
    give(bridge, batch.set_column(0, "a", pa.array(range(batch.num_rows), pa.int64())))
    for text, e in zip(texts, compiled(bridge, texts), strict=True):
        found = {i: computed(e, batch.slice(i, 1)) for i in range(batch.num_rows)} if e is not None else {}
        known = {i: v[0] for i, v in found.items() if v is not None}
        if not known:
            continue
        count += len(known)
        rows = ", ".join(map(str, known))
        try:
            made = bridge.spark.sql(f"SELECT a, {text} AS x FROM given_rows WHERE a IN ({rows})").toArrow()
            expected = dict(zip(made.column(0).to_pylist(), plain(made.column(1).combine_chunks()), strict=True))
        except PySparkException as error:
            expected = {-1: str(error)}
        if known != expected:
            wrong.append((text, known, expected))
    assert wrong == []
    return count


@pytest.mark.parametrize("name", ["t", "n"])
def test_times_at_the_ends_of_their_range(bridge: Bridge, name: str) -> None:
    batch = given({"t": TIMES_US, "n": TIMES_US})
    assert check(bridge, [text.format(name) for text in OF_TIMES], batch) > 100


def test_casts_at_the_ends_of_their_range(bridge: Bridge) -> None:
    assert check(bridge, CASTS, given({"t": TIMES_US, "n": TIMES_US})) > 40


def test_days_at_the_ends_of_their_range(bridge: Bridge) -> None:
    assert check(bridge, OF_DAYS, given({"c": DAYS, "t": [0] * len(DAYS)})) > 20


PATTERNS = [
    *(letter * n for letter in ascii_letters for n in range(1, 7)), "yyyyyyyyyy",
    "MMMM yyyy", "dddd", "HHHH", "mmmm", "ssss", "yyyyMMdd", "yyyyMMMMdd", "MMMMdd", "yyyy-MM-ddTHH", "HHmmss",
    "yyyy'T'MM", "yyyy[MM]", "''", "yyyy.MM.dd", "MM%dd", "dd\u00e4MM", "MMM MM", "yyyy MMMMM", "dddyyyy", "ddMMMddMM",
    "HH:mm:ss.SSS", "{yyyy}", "yyyy#", " ", "2024-MM", "\\MM", "yyyyy", "ddd", "HHH", "MMM",
]  # fmt: skip


def test_all_patterns_of_times(bridge: Bridge) -> None:
    """Letters in any number mean other things than the same letters in another number."""
    batch = given(
        {"n": [1_709_210_096_789_012, 1_707_015_845_000_001, -62_135_596_800_000_000, 253_402_300_799_999_999]}
    )
    texts = ["date_format(n, '{}')".format(p.replace("\\", "\\\\").replace("'", "\\'")) for p in PATTERNS]
    known = [text for text in texts if _plans(bridge, text)]
    assert check(bridge, known, batch) >= 40


def _plans(bridge: Bridge, text: str) -> bool:
    try:
        compiled(bridge, [text])
    except (PySparkException, Py4JError):  # a pattern that Spark refuses
        return False
    return True
