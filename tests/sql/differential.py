"""Expressions and queries asked of headrace and of PostgreSQL: what differs, and what is meant to.

`python tests/sql/differential.py --minutes 30` looks for new differences and prints the seed of each.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from differential_random import Generator, Queries

from headrace.dataflow.kernels import register
from headrace.errors import HeadraceError
from headrace.plan.failures import translate
from headrace.sql.binder.bind import Known, bind_query
from headrace.sql.binder.reading import NotBound
from headrace.sql.binder.spark import spark_text
from headrace.sql.postgres import parse_statement
from headrace.sql.statements import TableName
from headrace.sql.types import render_text

COLUMNS = {
    "id": "int", "i2": "smallint", "i4": "int", "i8": "bigint", "f4": "float", "f8": "double", "n": "decimal(10,2)",
    "t": "string", "b": "boolean", "d": "date", "ts": "timestamp_ntz", "tz": "timestamp", "a": "array<int>",
}  # fmt: skip
POSTGRES_TYPES = {
    "int": "int4", "smallint": "int2", "bigint": "int8", "float": "float4", "double": "float8",
    "decimal(10,2)": "numeric(10,2)",
    "string": "text", "boolean": "bool", "date": "date", "timestamp_ntz": "timestamp", "timestamp": "timestamptz",
    "array<int>": "int4[]",
}  # fmt: skip
ROWS = (
    (1, 1, 2, 3, "1.5", "2.5", "3.25", "one", "t", "2024-02-29", "2024-02-29 13:45:10.5", "2024-02-29 13:45:10+00",
     "{1,2,3}"),
    (2, -7, -2147483648, 9223372036854775807, "-0.25", "-1e-7", "-99999999.99", "Two \\ 'x'", "f", "1999-12-31",
     "1999-12-31 23:59:59", "1970-01-01 00:00:00+00", "{}"),
    (3, 0, 0, 0, "0", "0", "0.00", "", "f", "2000-01-01", "2000-01-01 00:00:00", "2001-02-03 04:05:06.789+00",
     "{NULL,5}"),
    (4, None, None, None, None, None, None, None, None, None, None, None, None),
    (5, 32767, 100, -100, "1e10", "123456789.125", "12.50", "a,b,c", "t", "2023-07-15", "2023-07-15 10:00:00.000001",
     "2023-12-31 23:00:00+00", "{7}"),
)  # fmt: skip
TABLES = {"d": COLUMNS}


@dataclass
class Answer:
    """Rows of texts, or the SQLSTATE of an error; `unknown` says what the binder did not know."""

    rows: list[tuple[str | None, ...]] | None = None
    error: str | None = None
    message: str = ""
    unknown: str | None = None

    def sorted(self) -> Answer:
        """The same, its rows in an order of their own."""
        return self if self.rows is None else replace(self, rows=sorted(self.rows, key=_sortable))


class Postgres:
    """PostgreSQL with the table."""

    def __init__(self, connection: Any):
        self._connection = connection
        columns = ", ".join(f"{n} {POSTGRES_TYPES[k]}" for n, k in COLUMNS.items())
        self.ask("SET TimeZone = 'UTC'")
        self.ask("SET extra_float_digits = 1")
        self.ask(f"CREATE TABLE d ({columns})")
        for sql in filled():
            self.ask(sql)

    def ask(self, sql: str) -> Answer:
        """The answer in text format."""
        result = self._connection.pgconn.exec_(sql.encode())
        if result.error_message:
            state = result.error_field(67)
            return Answer(error=(state or b"XX000").decode(), message=result.error_message.decode())
        return Answer([
            tuple(None if (v := result.get_value(i, j)) is None else v.decode() for j in range(result.nfields))
            for i in range(result.ntuples)
        ])  # fmt: skip


def filled() -> list[str]:
    """The statements that fill the table."""
    return [f"INSERT INTO d VALUES ({', '.join(_literal(v) for v in row)})" for row in ROWS]


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"


class Headrace:
    """The binder, and Spark with the table."""

    def __init__(self, spark: Any):
        self._spark = spark
        register([spark])
        rows = []
        for row in ROWS:
            cells = [
                f"CAST({_spark_literal(v, k)} AS {k}) AS {n}" for v, (n, k) in zip(row, COLUMNS.items(), strict=True)
            ]
            rows.append(f"SELECT {', '.join(cells)}")
        made = spark.sql(" UNION ALL ".join(rows))
        # Not a checkpoint: Spark loses rows of outer joins of one with itself.
        spark.createDataFrame(made.toArrow(), made.schema).createOrReplaceTempView("differential_d")

    def ask(self, sql: str) -> Answer:
        """The answer as the wire would have it."""
        try:
            query = bind_query(parse_statement(sql), Known(lambda name: TABLES.get(name.name)))
            frame = self._spark.sql(spark_text(query, _rename))
            return Answer(rendered(arrow(frame), [f.dataType.simpleString() for f in frame.schema.fields]))
        except NotBound as unknown:
            return Answer(unknown=unknown.what)
        except HeadraceError as error:
            return Answer(error=error.sqlstate, message=error.message)
        except Exception as error:
            found = translate(error)
            state = found.sqlstate if isinstance(found, HeadraceError) else "XX000"
            return Answer(error=state, message=str(found)[:500])


def _spark_literal(value: object, kind: str) -> str:
    if value is None:
        return "NULL"
    if kind.startswith("array"):
        return "array(" + str(value).strip("{}") + ")"
    return str(value) if isinstance(value, int) else "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"


def _rename(name: TableName) -> str:
    return f"`differential_{name.name}`"


def arrow(frame: Any) -> pa.Table:
    """The rows as Spark gives them: `toArrow` fails for a null whose type has fields that are never null."""
    return pa.Table.from_batches(frame._collect_as_arrow(empty_list_if_zero_records=False))


def rendered(table: pa.Table, kinds: Sequence[str]) -> list[tuple[str | None, ...]]:
    """The rows as texts, as the wire has them."""
    columns = [
        [None if v is None else v.decode() for v in render_text(table.column(i), kind)] for i, kind in enumerate(kinds)
    ]
    return list(zip(*columns, strict=True))


# ---- comparing


def same(ours: str | None, theirs: str | None) -> bool:
    """Whether two texts say the same: numbers to 15 digits, everything else literally."""
    if ours == theirs:
        return True
    if ours is None or theirs is None:
        return False
    try:
        a, b = Decimal(ours), Decimal(theirs)
    except InvalidOperation:
        return False
    if not (a.is_finite() and b.is_finite()):
        return str(a) == str(b)
    return math.isclose(a, b, rel_tol=_tolerance(theirs), abs_tol=1e-19)


def _tolerance(text: str) -> float:
    """Single floats have seven digits."""
    return 1e-6 if sum(c.isdigit() for c in text.partition("e")[0]) < 10 and ("." in text or "e" in text) else 1e-14


@dataclass(frozen=True)
class Meant:
    """A difference that is meant: why, and patterns of the statement, of ours and of PostgreSQL's answer."""

    why: str
    sql: str = ""
    ours: str = ""
    theirs: str = ""

    def fits(self, sql: str, ours: str, theirs: str) -> bool:
        """Whether it is this one."""
        return bool(re.search(self.sql, sql) and re.search(self.ours, ours) and re.search(self.theirs, theirs))


MEANT: Final = (
    Meant("a numeric has 38 digits", ours=r"22003|numeric|digits|precision"),
    Meant("what is too small for a float becomes zero, but in exp and power", theirs=r"^22003.*underflow"),
    Meant("sums of floats become infinite", sql=r"(sum|avg)\(", theirs=r"^22003.*overflow", ours="Infinity"),
    Meant("a backslash before a letter in a pattern of LIKE is refused", ours="escape character is not allowed"),
    Meant("years beyond 9999 or before 4713 BC", ours=r"value out of range|date out of range|'-\d{4}-"),
    Meant("dates end sooner for PostgreSQL", ours="'-?[0-9]{4,}-", theirs="^22008"),
    Meant("a strict function of a constant NULL is NULL for PostgreSQL, whatever its other arguments are",
          ours=r"^(2\w{4}|0A000) ", theirs=r"^\[(\(None,\)(, )?)+\]$"),
    Meant("beside a NULL nothing is computed here", ours=r"^\[.*\bNone\b", theirs="^22"),
    Meant("whether a row is null does not need its values", sql="row.*IS NULL", theirs="^22"),
    Meant("what no element of an array needs is not computed", sql="array_(replace|remove)|ANY|ALL|FILTER",
          ours=r"^\[", theirs="^22012|^22003"),
    Meant("half of -2147483648 is itself for PostgreSQL's left and right", sql=r"(left|right)\(", theirs="^\\["),
)  # fmt: skip
"""The reviewed list: whatever is not on it is a difference."""


def difference(sql: str, ours: Answer, theirs: Answer) -> str | None:
    """What differs, in words; None if nothing does that is not meant."""
    if ours.unknown is not None or _same_answer(ours, theirs):
        return None
    if ours.rows is None and theirs.rows is None:
        return None if ours.error != "XX000" else f"internal error: {ours.message}"
    mine, other = _shown(ours), _shown(theirs)
    if any(meant.fits(sql, mine, other) for meant in MEANT):
        return None
    return f"{mine} for {other}"


def _same_answer(ours: Answer, theirs: Answer) -> bool:
    return (
        ours.rows is not None
        and theirs.rows is not None
        and len(ours.rows) == len(theirs.rows)
        and all(len(a) == len(b) and all(map(same, a, b)) for a, b in zip(ours.rows, theirs.rows, strict=True))
    )


def _shown(answer: Answer) -> str:
    return str(answer.rows) if answer.rows is not None else f"{answer.error} {answer.message[:200]}"


# ---- queries


def search_queries(
    ours: Headrace, theirs: Postgres, seed: int, count: int, tally: Counter[str] | None = None
) -> list[tuple[str, str]]:
    """What differs among so many random queries, their rows in any order."""
    queries = Queries(seed)
    found = []
    for _ in range(count):
        sql = queries.query()
        mine, other = ours.ask(sql).sorted(), theirs.ask(sql).sorted()
        if tally is not None:
            tally[_outcome(mine, other)] += 1
        how = difference(sql, mine, other)
        if how is not None:
            found.append((sql, how))
    return found


def _sortable(row: tuple[str | None, ...]) -> list[tuple[int, float, str]]:
    return [_cell(cell) for cell in row]


def _cell(cell: str | None) -> tuple[int, float, str]:
    if cell is None:
        return (2, 0.0, "")
    try:
        return (0, round(float(cell), 6), "")
    except ValueError:
        return (1, 0.0, cell)


# ---- looking


def compare(
    ours: Headrace, theirs: Postgres, expressions: Sequence[str], tally: Counter[str] | None = None
) -> list[tuple[str, str]]:
    """The expressions that differ, and how; those that PostgreSQL refuses are asked one by one."""
    tally = Counter() if tally is None else tally
    refused, others = [], []
    for expression in expressions:
        (refused if theirs.ask(_select([expression])).rows is None else others).append(expression)
    found = [pair for one in refused for pair in _together(ours, theirs, [one], tally)]
    return found + (_together(ours, theirs, others, tally) if others else [])


def _select(expressions: Sequence[str]) -> str:
    return f"SELECT {', '.join(f'({e}) AS c{i}' for i, e in enumerate(expressions))} FROM d ORDER BY id"


def _together(
    ours: Headrace, theirs: Postgres, expressions: Sequence[str], tally: Counter[str]
) -> list[tuple[str, str]]:
    sql = _select(expressions)
    mine, other = ours.ask(sql), theirs.ask(sql)
    if len(expressions) > 1 and not _same_answer(mine, other):
        half = len(expressions) // 2
        parts = (expressions[:half], expressions[half:])
        return [pair for part in parts for pair in _together(ours, theirs, part, tally)]
    tally[_outcome(mine, other)] += len(expressions)
    found = difference(sql, mine, other)
    return [(expressions[0], found)] if found is not None else []


def _outcome(ours: Answer, theirs: Answer) -> str:
    """How a comparison counts."""
    if ours.unknown is not None:
        return f"not known: {ours.unknown}"
    if _same_answer(ours, theirs):
        return "equal"
    return "refused by both" if ours.rows is None and theirs.rows is None else "different"


def search(
    ours: Headrace, theirs: Postgres, seed: int, count: int, tally: Counter[str] | None = None, batch: int = 24
) -> list[tuple[str, str]]:
    """What differs among so many random expressions."""
    generator = Generator(seed)
    found = []
    for at in range(0, count, batch):
        found += compare(ours, theirs, [generator.expression() for _ in range(min(batch, count - at))], tally)
    return found


_ONE_SHOT: Final = ("expressions", "queries")


def main() -> None:
    from differential_views import search_views
    from pyspark.sql import SparkSession

    from headrace.dataflow.spark import local_session
    from postgres import postgres_server

    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=500, help="expressions in a round")
    parser.add_argument("--only", choices=("expressions", "queries", "views"))
    options = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = session(SparkSession.builder.master("local[1]")) if options.only in _ONE_SHOT else local_session()
    tallies: dict[str, Counter[str]] = {kind: Counter() for kind in ("expressions", "queries", "views")}
    with postgres_server({"fsync": "off"}) as server:
        theirs, ours = Postgres(server.connect()), Headrace(spark)
        searches: dict[str, tuple[Callable[..., list[tuple[str, str]]], int]] = {
            "expressions": (partial(search, ours, theirs), options.count),
            "queries": (partial(search_queries, ours, theirs), options.count // 10),
            "views": (partial(search_views, spark, theirs), options.count // 100),
        }
        chosen = [options.only] if options.only else list(searches)
        end, seed = time.monotonic() + options.minutes * 60, options.seed
        while time.monotonic() < end:
            for kind in chosen:
                _compile(spark, seed % 4 == 0 or kind not in _ONE_SHOT)
                look, count = searches[kind]
                for expression, how in look(seed, count, tally=tallies[kind]):
                    print(f"-- seed {seed}\n{expression}\n   {how}", flush=True)
            seed += 1
            print(f"-- {', '.join(f'{tallies[kind].total()} {kind}' for kind in chosen)}", flush=True)
    for kind in chosen:
        for outcome, number in tallies[kind].most_common():
            print(f"-- {number:7} {kind}: {outcome}")


def _compile(spark: Any, on: bool) -> None:
    """Whether Spark makes Java of expressions, which takes longer than to compute them for five rows."""
    spark.conf.set("spark.sql.codegen.wholeStage", str(on).lower())
    spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK" if on else "NO_CODEGEN")


def session(builder: Any) -> Any:
    """Spark as headrace sets it up."""
    settings = {
        "spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation",
    }  # fmt: skip
    for key, value in settings.items():
        builder = builder.config(key, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("OFF")
    return found


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
