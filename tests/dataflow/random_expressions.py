"""Random expressions, nested, as SQL text: of the kinds that have kernels, and so many values that some must disagree.

`python tests/dataflow/random_expressions.py [--minutes 5] [--seed 1]` tries them for as long as one likes.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence

import pyarrow as pa
from expression_rows import compiled, give, relation, rows
from pyspark.errors import ArithmeticException
from pyspark.sql import SparkSession

from headrace.dataflow.operators.kernel_expressions import Expression, RowColumns, UncertainValue
from headrace.dataflow.spark import local_session
from headrace.plan.catalyst.bridge import Bridge

AT_ONCE = 40
"""Expressions of one query."""

_COLUMNS = {
    "bigint": ["a", "b"], "int": ["i", "j"], "smallint": ["h"], "tinyint": ["y"], "boolean": ["p", "q"],
    "string": ["s", "u"], "decimal": ["d", "e"], "timestamp": ["t"], "ntz": ["n", "m"], "date": ["c"],
    "double": ["f"],
}  # fmt: skip
_LITERALS = {
    "bigint": ["0L", "1L", "-3L", "4294967296L", "9223372036854775807L", "CAST(NULL AS bigint)"],
    "int": ["0", "1", "-7", "10", "2147483647", "CAST(NULL AS int)"],
    "smallint": ["2S", "-300S"], "tinyint": ["1Y", "-128Y"], "boolean": ["true", "false", "CAST(NULL AS boolean)"],
    "string": ["''", "'a'", "'apple'", "'a/b'", "'%'", "'ä'", "CAST(NULL AS string)"],
    "decimal": ["0.00", "1.25", "-99999.9", "0.908", "1e0BD", "CAST(NULL AS decimal(10,2))"],
    "timestamp": ["TIMESTAMP'2015-07-15 00:00:00'", "TIMESTAMP'0001-01-01 00:00:00'"],
    "ntz": ["TIMESTAMP_NTZ'1969-12-31 23:59:59.999999'", "TIMESTAMP_NTZ'2024-02-29 12:00:00'"],
    "date": ["DATE'2020-02-29'", "DATE'1900-03-01'"], "double": ["1.5e0", "-0.0e0", "CAST('NaN' AS double)"],
}  # fmt: skip
_FORMS: dict[str, list[str]] = {
    "boolean": [
        "{0:any} = {0:same}", "{0:any} < {0:same}", "{0:any} >= {0:same}", "{0:any} <=> {0:same}",
        "{0:any} <> {0:same}", "{boolean} AND {boolean}", "{boolean} OR {boolean}", "NOT {boolean}",
        "{0:any} IS NULL", "{0:any} IS NOT NULL", "{bigint} IN (1, 2, -3)", "{int} IN (0, 1, 7, 28)",
        "{string} IN ('', 'a', 'apple')", "{int} NOT IN (0,1,2,3,4,5,6,7,8,9,10,11,12)", "{string} LIKE '%a%'",
        "{string} LIKE 'a_'", "contains({string}, 'a')", "startswith({string}, '/')", "endswith({string}, 'e')",
        "{0:any} BETWEEN {0:same} AND {0:same}",
    ],
    "bigint": [
        "{bigint} + {bigint}", "{bigint} - {bigint}", "{bigint} * {int}", "{bigint} % 7", "{bigint} div 10",
        "pmod({bigint}, 5)", "-{bigint}", "CAST({int} AS bigint)", "CAST({smallint} AS bigint)",
        "{bigint} & {bigint}", "shiftright({bigint}, 3)", "shiftright({bigint}, {int})", "unix_micros({timestamp})",
        "xxhash64({string}, {bigint})", "xxhash64({decimal}, {date}, {ntz})", "xxhash64({double}, {boolean})",
    ],
    "int": [
        "CAST({bigint} AS int)", "{int} + {int}", "{int} - {smallint}", "{int} * {tinyint}", "{int} % 3",
        "pmod({int}, 4)", "-{int}",
        "length({string})", "hour({ntz})", "minute({timestamp})", "second({ntz})", "year({date})", "month({date})",
        "day({date})", "quarter({ntz})", "year({timestamp})", "CAST({tinyint} AS int)", "{int} & {int}",
        "shiftright({int}, 2)",
    ],
    "smallint": ["{smallint} + {smallint}", "CAST({int} AS smallint)", "-{smallint}",
        "CAST({tinyint} AS smallint)", "{smallint} % 5S"],
    "tinyint": ["{tinyint} * {tinyint}", "{tinyint} - {tinyint}"],
    "string": [
        "lower({string})", "upper({string})", "replace({string}, 'a', 'bb')", "replace({string}, '/', '')",
        "split_part({string}, '/', 1)", "split_part({string}, 'a', 2)", "substring({string}, 2, 3)",
        "substring({string}, 1, {string_length})", "{string} || {string}", "concat({string}, '-', {string})",
        "CAST({int} AS string)", "CAST({bigint} AS string)", "date_format({ntz}, 'yyyy-MM-dd HH:mm:ss')",
        "date_format({date}, 'dd/MM')", "date_format({timestamp}, 'HH')",
    ],
    "decimal": [
        "{decimal} + {decimal}", "{decimal} - {decimal}", "{decimal} * {decimal}",
        "CAST({int} AS decimal(12,1))", "CAST({decimal} * 2 AS decimal(12,3))", "CAST({smallint} AS decimal(5,2))",
        "CAST({bigint} AS decimal(20,0))", "{int} * 0.5",
    ],
    "timestamp": [
        "date_trunc('hour', {timestamp})", "{timestamp} + INTERVAL '1' DAY", "{timestamp} - INTERVAL '90' SECOND",
        "CAST({ntz} AS timestamp)", "CAST({date} AS timestamp)",
    ],
    "ntz": [
        "date_trunc('minute', {ntz})", "date_trunc('day', {ntz})", "{ntz} - INTERVAL '10' SECOND",
        "CAST({timestamp} AS timestamp_ntz)", "CAST({date} AS timestamp_ntz)",
    ],
    "date": ["CAST({ntz} AS date)", "CAST({timestamp} AS date)"],
    "double": ["{double} / 4", "{double} + {double}", "{double} - {int}", "{double} * {double}", "{int} / 7",
        "CAST({bigint} AS double)", "CAST({smallint} AS double) / {double}"],
}  # fmt: skip
_ANY_TYPE = [
    "coalesce({same}, {same})", "IF({boolean}, {same}, {same})", "CASE WHEN {boolean} THEN {same} ELSE {same} END",
    "CASE WHEN {boolean} THEN {same} END", "nullif({same}, {same})",
    "named_struct('x', {same}, 'y', {int}).x", "CASE {int} WHEN 1 THEN {same} WHEN {int} THEN {same} END",
]  # fmt: skip


def expression(draw: random.Random, kind: str | None = None, depth: int = 3) -> str:
    """An expression of a type, of up to that many levels."""
    kind = kind or draw.choice(sorted(_COLUMNS))
    if depth == 0 or draw.random() < 0.1:
        return draw.choice(_COLUMNS[kind] if draw.random() < 0.75 else _LITERALS[kind])
    form = draw.choice(_FORMS[kind] if draw.random() < 0.75 else _ANY_TYPE)
    same = draw.choice(sorted(_COLUMNS)) if "any" in form else kind
    text, *places = form.split("{")
    for place in places:
        name, rest = place.split("}", 1)
        if name == "string_length":
            text += str(draw.randint(0, 5))
        else:
            wanted = same if name in ("0:any", "0:same", "same") else name
            text += f"({expression(draw, wanted, depth - 1)})"
        text += rest
    return text


def check(b: Bridge, texts: Sequence[str], given: Sequence[pa.RecordBatch]) -> int:
    """What workers compute is what Spark computes, wherever they compute it; on how many batches they do, in all."""
    known = [(text, e) for text, e in zip(texts, _compiled(b, texts)) if e is not None]
    count = 0
    for batch in given:
        sure = [(text, found) for text, e in known if (found := _computed(e, batch)) is not None]
        give(b, batch)
        _compare(b.spark, sure)
        count += len(sure)
    return count


def _compare(spark: SparkSession, sure: Sequence[tuple[str, pa.Array]]) -> None:
    selected = ", ".join(f"{text} AS c{n}" for n, (text, _) in enumerate(sure))
    try:
        expected = spark.sql(f"SELECT {selected} FROM given_rows").toArrow() if sure else None
    except Exception as error:
        if len(sure) == 1:
            raise AssertionError(f"Spark refuses what a worker computes: {sure[0][0]}: {error}") from error
        for half in (sure[: len(sure) // 2], sure[len(sure) // 2 :]):
            _compare(spark, half)
        raise
    for n, (text, found) in enumerate(sure):
        assert expected is not None
        pairs = zip(_values(found), _values(expected.column(n).combine_chunks()), strict=True)
        wrong = [(row, mine, theirs) for row, (mine, theirs) in enumerate(pairs) if mine != theirs]
        assert not wrong, f"{text}\nrow, in a worker, by Spark: {wrong[:5]}"


def _values(column: pa.Array) -> list[str]:
    """As texts, since NaN is not equal to itself; times as numbers, since some are beyond Python's."""
    if pa.types.is_timestamp(column.type) or pa.types.is_date32(column.type):
        column = column.view(pa.int64() if column.type.bit_width == 64 else pa.int32())
    return list(map(str, column.to_pylist()))


def _compiled(b: Bridge, texts: Sequence[str]) -> list[Expression | None]:
    """As `compiled`; None also for what fails while it is planned, since it divides constants by zero."""
    try:
        return compiled(b, texts)
    except ArithmeticException:
        half = len(texts) // 2
        return [*_compiled(b, texts[:half]), *_compiled(b, texts[half:])] if half else [None]


def _computed(e: Expression, batch: pa.RecordBatch) -> pa.Array | None:
    try:
        return RowColumns.of(batch.columns, batch.num_rows).array(e)
    except (UncertainValue, pa.ArrowInvalid):
        return None


def main() -> None:
    """Try until the time is up, or until one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=random.randrange(10**9))
    options = parser.parse_args()
    spark = local_session()
    b, until, seed, tried, count = relation(spark), time.monotonic() + options.minutes * 60, options.seed, 0, 0
    while time.monotonic() < until:
        draw = random.Random(seed)
        print(f"seed {seed}: {tried} expressions so far, computed in workers on {count} batches", flush=True)
        count += check(b, [expression(draw) for _ in range(AT_ONCE)], [rows(200, seed), rows(200, seed, mild=True)])
        seed, tried = seed + 1, tried + AT_ONCE
    spark.stop()


if __name__ == "__main__":
    main()
