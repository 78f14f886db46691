"""Vectorised expressions give exactly what Spark gives, over values that are drawn to be difficult; or they refuse."""

from __future__ import annotations

import random
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest
from expression_rows import compiled, give, relation, rows, table
from pyspark.sql import SparkSession
from random_expressions import AT_ONCE, check, expression

from headrace.dataflow.operators.kernel_expressions import Call, Column, Expression, Literal, RowColumns, UncertainValue
from headrace.plan.catalyst.bridge import Bridge

RANDOM = 10

CASES = [
    # logic and comparison
    "a = b", "a <> b", "a < b", "i <= j", "a > 3", "b >= -2", "a <=> b", "i <=> j", "p AND q", "p OR q", "NOT p",
    "a IS NULL", "s IS NOT NULL", "(a > 0 AND s = 'apple') OR i IN (1, 2, 3)", "p = q", "s < u", "s >= u", "s <=> u",
    "a IN (1, 2, 3)", "s IN ('apple', '', 'google')", "a NOT IN (0, -1)", "d > 1.5", "d = e", "c < DATE'2020-02-29'",
    "n < m", "t >= TIMESTAMP'2015-07-15 00:00:00'", "n = TIMESTAMP_NTZ'1969-12-31 23:59:59.999999'", "c <=> c",
    "i IN (0,1,2,3,4,5,6,7,8,9,10,11,12,13,14)", "s IN ('a','b','c','d','e','f','g','h','i','j','aaa','aa')",
    "f = 0.0e0", "f > 1", "f < f * 2", "f <= 1.5e0", "f >= f + 1", "f <=> f", "f <> -0.0e0", "g = g", "g < 1.0F",
    "f < CAST('NaN' AS double)", "f <= CAST('NaN' AS double)", "f > CAST(i AS double)",
    # conditionals
    "CASE WHEN a > 0 THEN 'more' WHEN a = 0 THEN 'zero' ELSE s END", "CASE WHEN p THEN a END", "IF(p, i, j)",
    "CASE i WHEN 1 THEN s WHEN 2 THEN u ELSE 'other' END", "coalesce(a, b, 0)", "coalesce(s, u)", "nvl(p, true)",
    "CASE WHEN p THEN d ELSE 0.00 END", "CASE WHEN q THEN n ELSE m END", "nullif(a, b)",
    "named_struct('x', coalesce(f, 0.0D), 'y', coalesce(f, -0.0D))",
    # numbers
    "a + b", "a - b", "i * 3", "i + j", "h + h", "y * y", "-i", "a % 7", "i % 3", "a % 123 = 0", "a div 10", "i + a",
    "f + 1.5e0", "f - f", "f * a", "f * -0.0e0", "CAST(a % 1000 AS int)", "CAST(i % 100 AS tinyint)",
    "CAST(CAST(d AS decimal(12,3)) AS decimal(11,3))", "CAST(h AS decimal(6,1))", "CAST(i % 1000 AS decimal(5,2))",
    "CAST(e AS decimal(20,1))", "CAST(d * 0 + 1.5 AS decimal(5,3))",
    "pmod(a, 7)", "f / 4", "i / 7", "f / 0.3e0",
    "0.908 * a", "d + 1.25", "d - e", "d * d", "CAST(i AS bigint)", "CAST(y AS int)", "CAST(a AS decimal(20,0))",
    "CAST(i AS double)", "CAST(a AS double)", "CAST(a AS string)", "CAST(i AS string)", "0.908 * a > 10",
    "a & 4294967295L", "shiftright(a, 32)", "shiftright(a, 65)", "shiftright(i, j)", "shiftright(b, i)", "i & j",
    # texts
    "length(s)", "length(u)", "lower(s)", "upper(s)", "replace(s, 'a', '')", "replace(u, '/', '--')",
    "replace(s, 'aa', 'b')", "split_part(s, '/', 1)", "split_part(s, '/', 2)", "split_part(u, '/', 4)",
    "split_part(split_part(s, 'channel_id=', 2), '&', 1)", "substring(u, 2, 3)", "substring(s, 1, 100)",
    "substr(s, 3, 0)", "s || '-' || u", "concat(s, u)", "s LIKE '%channel_id=%'", "s LIKE 'a%'", "u LIKE '%x'",
    "s LIKE '_'", "u LIKE '__'", "s LIKE 'x_y'", "u LIKE '%'", "contains(s, 'a')", "startswith(s, '/')",
    "endswith(u, 'b')", "char_length(s) - char_length(replace(s, 'a', ''))", "lower(s) = 'apple'",
    # times
    "hour(n)", "minute(n)", "second(t)", "hour(t)", "year(c)", "month(c)", "day(c)", "quarter(c)", "CAST(n AS date)",
    "CAST(t AS date)", "year(n)", "CAST(n AS timestamp)", "CAST(t AS timestamp_ntz)", "date_trunc('hour', n)",
    "date_trunc('MINUTE', t)", "date_trunc('day', n)", "date_trunc('second', n)", "date_format(n, 'yyyy-MM-dd')",
    "date_format(n, 'HH:mm')", "date_format(t, 'yyyy-MM-dd HH:mm:ss')", "date_format(c, 'dd.MM.yyyy')",
    "date_format(t, 'HH')", "date_format(n, 'yyyy')",
    "n - INTERVAL '10' SECOND < m", "unix_micros(t + INTERVAL '1' DAY)", "n >= m - INTERVAL '1' HOUR",
    # hashes, by which rows are distributed
    "xxhash64(a)", "xxhash64(i, h, y, p)", "xxhash64(s)", "xxhash64(u, a)", "xxhash64(d, e)", "xxhash64(t, n, c)",
    "xxhash64(s || s || s || s || s || s || s || u || s || u || s)", "xxhash64(p, q, s, u, c)",
    "xxhash64(f)", "xxhash64(g, a)", "unix_micros(t)",
    # structs
    "named_struct('x', a, 'y', s)", "named_struct('x', a, 'y', s).y",
]  # fmt: skip
"""All of these must be vectorised."""

LEFT_TO_SPARK = [
    "d / e", "a % b", "a div b", "a % -3", "d * CAST(d AS decimal(38,10))", "CAST(s AS int)",
    "try_cast(a AS int)", "rlike(s, 'a+')", "s LIKE '\\\\%'", "regexp_extract(s, '(a)', 1)", "date_format(n, 'MMM')",
    "date_format(n, 'y')", "date_trunc('month', n)", "replace(s, u, 'x')", "split_part(s, u, 1)",
    "split_part(s, '/', -1)", "substring(s, -2, 2)", "md5(s)", "try_add(a, b)", "s COLLATE UNICODE_CI = 'x'",
    "CAST(d AS decimal(10,1))", "CAST(f AS bigint)", "sqrt(f)", "initcap(s)", "i IN (a, b)", "a IN (1, NULL)",
    "xxhash64(CAST(d AS decimal(38,2)))", "xxhash64(array(a))",
]  # fmt: skip

REFUSED = [
    ("a + b", {"a": [1 << 62], "b": [1 << 62]}), ("a - b", {"a": [-(1 << 63)], "b": [1]}), ("i * 3", {"i": [1 << 30]}),
    ("-i", {"i": [-(1 << 31)]}), ("y * y", {"y": [100]}), ("a / b", {"a": [1, 2], "b": [1, 0]}),
    ("CAST(a AS int)", {"a": [1 << 31]}), ("CAST(i AS smallint)", {"i": [-32769]}),
    ("CAST(d AS decimal(6,2))", {"d": [Decimal("10000.00")]}), ("CAST(i AS decimal(5,2))", {"i": [1000]}),
    ("CAST(a AS decimal(38,30))", {"a": [100_000_000]}),
    ("lower(s)", {"s": ["É"]}), ("upper(s)", {"s": ["x", "ß"]}),
    ("year(c)", {"c": [pa.scalar(10_000_000, pa.date32())]}),
    ("date_format(n, 'yyyy')", {"n": [pa.scalar(1 << 60, pa.timestamp("us"))]}),
]  # fmt: skip
"""Expressions and values for which Spark is to give the verdict."""


@pytest.fixture(scope="module")
def bridge(spark: SparkSession) -> Bridge:
    return relation(spark)


def computed(expression: Expression, given: pa.RecordBatch) -> pa.Array:
    return RowColumns.of(given.columns, given.num_rows).array(expression)


def test_the_same_as_spark(bridge: Bridge) -> None:
    """I1: what workers compute is what Spark computes."""
    given = rows(900, seed=1)
    found = {text: compiled(bridge, [text])[0] for text in CASES}
    assert [text for text, e in found.items() if e is None] == []
    selected = ", ".join(f"{text} AS c{n}" for n, text in enumerate(CASES))
    give(bridge, given)
    expected = bridge.spark.sql(f"SELECT {selected} FROM given_rows").toArrow()
    sliced = given.slice(7, 500)  # what does not begin at the start of its buffers
    for n, (text, e) in enumerate(found.items()):
        assert e is not None
        column = expected.column(n).combine_chunks()
        # As texts: NaN is not equal to itself.
        assert str(computed(e, given).to_pylist()) == str(column.to_pylist()), text
        assert str(computed(e, sliced).to_pylist()) == str(column.slice(7, 500).to_pylist()), text


def test_what_is_left_to_spark(bridge: Bridge) -> None:
    assert [text for text in LEFT_TO_SPARK if compiled(bridge, [text])[0] is not None] == []


def test_what_spark_must_decide_is_refused(bridge: Bridge) -> None:
    for text, values in REFUSED:
        (e,) = compiled(bridge, [text])
        assert e is not None, text
        with pytest.raises((UncertainValue, pa.ArrowInvalid)):
            computed(e, table(values))


def test_a_result_that_has_to_be_finite(bridge: Bridge) -> None:
    checked = "CASE WHEN isnan({0} * CAST(0 AS DOUBLE)) THEN CAST(raise_error('no') AS DOUBLE) ELSE {0} END"
    (e,) = compiled(bridge, [checked.format("(f * f + 1e0)")])
    assert e is not None
    assert computed(e, table({"f": [1.5, None, -0.0]})).to_pylist() == [3.25, None, 1.0]
    for large in (1e200, float("nan"), float("-inf")):
        with pytest.raises(UncertainValue):
            computed(e, table({"f": [1.0, large, None]}))


def test_constants_that_are_equal_but_not_the_same() -> None:
    """Each expression is computed once; 0.0 equals -0.0, and NaN not even itself."""
    f64, given = pa.float64(), pa.record_batch([pa.array([None], pa.float64())], ["f"])
    rows = RowColumns.of(given.columns, 1)
    filled = [Call("coalesce", (Column(0), Literal(x, f64)), f64) for x in (0.0, -0.0, float("nan"), float("nan"))]
    assert [repr(rows.array(e)[0].as_py()) for e in filled] == ["0.0", "-0.0", "nan", "nan"]
    assert filled[0] != filled[1] and filled[2] == filled[3] and len({*filled}) == 3
    assert Literal(1, pa.int64()) != Literal(True, pa.bool_()) and Literal(1, pa.int64()) == Literal(1, pa.int64())
    assert Literal(Decimal("1.0"), pa.decimal128(3, 2)) != Literal(Decimal("1.00"), pa.decimal128(3, 2))


def test_dates_of_all_kinds_of_months(bridge: Bridge) -> None:
    days = [date(1, 1, 1), date(1582, 10, 10), date(1900, 2, 28), date(2000, 2, 29), date(9999, 12, 31)]
    (e,) = compiled(bridge, ["date_format(c, 'yyyy-MM-dd')"])
    assert e is not None
    assert computed(e, table({"c": days})).to_pylist() == [d.isoformat() for d in days]


@pytest.mark.parametrize("seed", range(RANDOM))
def test_random_expressions(bridge: Bridge, seed: int) -> None:
    """I1: so it is for any nesting of them."""
    draw = random.Random(seed)
    texts = [expression(draw) for _ in range(AT_ONCE)]
    assert check(bridge, texts, [rows(200, seed), rows(200, seed, mild=True)]) > AT_ONCE // 2
