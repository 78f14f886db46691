"""Expressions and queries asked of headrace and of PostgreSQL: what differs, and what is meant to.

`python tests/sql/differential.py --minutes 30` looks for new differences and prints the seed of each.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from differential_meant import Answer, judged, same, same_answer
from differential_mixed import mixed
from differential_queries import Queries
from differential_random import Generator

from headrace.common.zones import UTC, Zone, zone_of_setting
from headrace.dataflow.spark_kernels import register
from headrace.errors import HeadraceError
from headrace.plan.failures import translate
from headrace.session.engine import READING_CONF
from headrace.sql.binder import types as t
from headrace.sql.binder.bind import BindingContext, bind_query
from headrace.sql.binder.parse_tree import NotBound
from headrace.sql.binder.spark_text import spark_text
from headrace.sql.binder.world import World
from headrace.sql.postgres import parse_statement
from headrace.sql.statements import TableName
from headrace.sql.type_names import render_text

COLUMNS = {
    "id": "int", "i2": "smallint", "i4": "int", "i8": "bigint", "f4": "float", "f8": "double", "n": "decimal(10,2)",
    "t": "string", "b": "boolean", "d": "date", "ts": "timestamp_ntz", "tz": "timestamp", "a": "array<int>",
    "tm": t.TIME.spark, "iv": t.INTERVAL.spark, "j": t.JSONB.spark, "by": "binary", "ta": "array<string>",
}  # fmt: skip
POSTGRES_TYPES = {
    "int": "int4", "smallint": "int2", "bigint": "int8", "float": "float4", "double": "float8",
    "decimal(10,2)": "numeric(10,2)",
    "string": "text", "boolean": "bool", "date": "date", "timestamp_ntz": "timestamp", "timestamp": "timestamptz",
    "array<int>": "int4[]", t.TIME.spark: "time", t.INTERVAL.spark: "interval", t.JSONB.spark: "jsonb",
    "binary": "bytea", "array<string>": "text[]",
}  # fmt: skip
ROWS = (
    (1, 1, 2, 3, "1.5", "2.5", "3.25", "one", "t", "2024-02-29", "2024-02-29 13:45:10.5", "2024-02-29 13:45:10+00",
     "{1,2,3}", "04:05:06.789", "1 mon -2 days 03:04:05.5", '{"a": 1, "b": [1, "x", null]}', "\\x00ff10",
     '{a,"b c",NULL}'),
    (2, -7, -2147483648, 9223372036854775807, "-0.25", "-1e-7", "-99999999.99", "Two \\ 'x'", "f", "1999-12-31",
     "1999-12-31 23:59:59", "1970-01-01 00:00:00+00", "{}", "23:59:59.999999", "-1 day", '[1, 2.50, {"a": true}]',
     "\\x", "{}"),
    (3, 0, 0, 0, "0", "0", "0.00", "", "f", "2000-01-01", "2000-01-01 00:00:00", "2001-02-03 04:05:06.789+00",
     "{NULL,5}", "00:00", "30 days", '"x"', "\\x61", "{x,x}"),
    (4, *[None] * 17),
    (5, 32767, 100, -100, "1e10", "123456789.125", "12.50", "a,b,c", "t", "2023-07-15", "2023-07-15 10:00:00.000001",
     "2023-12-31 23:00:00+00", "{7}", "24:00", "1 mon", "null", "\\xff", '{"",NULL}'),
)  # fmt: skip
TABLES = {"d": COLUMNS}


ZONES: Final = ("UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kolkata", "Australia/Lord_Howe", "+02")
"""Time zones to ask in."""


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

    def in_zone(self, name: str) -> None:
        """Ask from now on in a time zone."""
        assert self.ask(f"SET TimeZone = '{name}'").error is None, name

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
        self._zone = UTC
        register([spark])
        text = self.bound(" UNION ALL ".join(f"SELECT {', '.join(_cells(row))}" for row in ROWS))
        assert not isinstance(text, Answer), text
        made = spark.sql(text[0])
        table = spark.createDataFrame(made.toArrow(), made.schema)
        table.coalesce(1).createOrReplaceTempView("differential_d")  # so that nothing has to be shuffled

    def in_zone(self, name: str) -> None:
        """Ask from now on in a time zone."""
        self._zone = zone_of_setting(name)

    def ask(self, sql: str) -> Answer:
        """The answer as the wire would have it."""
        bound = self.bound(sql)
        return bound if isinstance(bound, Answer) else self._run(bound[0])

    def bound(self, sql: str) -> tuple[str, int] | Answer:
        """Spark's text, and how many columns there are; or why there is none."""
        try:
            query = bind_query(parse_statement(sql), self._known())
            return spark_text(query, _rename), len(query.names)
        except NotBound as unknown:
            return Answer(unknown=unknown.what)
        except HeadraceError as error:
            return Answer(error=error.sqlstate, message=error.message)

    def _known(self) -> BindingContext:
        return BindingContext(lambda name: TABLES.get(name.name), World(zone=self._zone))

    def ask_together(self, queries: Sequence[str]) -> list[Answer]:
        """The answers to several queries by one job, which takes as long as one of them; their rows in any order."""
        found = [self.bound(sql) for sql in queries]
        texts = [bound for bound in found if not isinstance(bound, Answer)]
        answers = iter(self._together(texts))
        return [bound if isinstance(bound, Answer) else next(answers) for bound in found]

    def _together(self, texts: Sequence[tuple[str, int]]) -> list[Answer]:
        if len(texts) < 2:
            return [self._run(text) for text, _ in texts]
        whole = self._run(_side_by_side(texts))
        if whole.rows is None:
            half = len(texts) // 2
            return [*self._together(texts[:half]), *self._together(texts[half:])]
        answers, at = [], 1
        for i, (_, width) in enumerate(texts):
            answers.append(Answer([row[at : at + width] for row in whole.rows if row[0] == str(i)]))
            at += width
        return answers

    def _run(self, text: str) -> Answer:
        try:
            frame = self._spark.sql(text)
            return Answer(rendered(arrow(frame), [f.dataType.simpleString() for f in frame.schema.fields], self._zone))
        except Exception as error:
            found = translate(error)
            return Answer(error=found.sqlstate, message=found.message[:500])


def _side_by_side(texts: Sequence[tuple[str, int]]) -> str:
    """One query with the rows of several: the number of the query, and columns for each."""
    total, at, parts = sum(width for _, width in texts), 0, []
    for i, (text, width) in enumerate(texts):
        columns = ", ".join(f"`c{j}`" for j in range(width))
        items = [*["NULL"] * at, *(f"`c{j}`" for j in range(width)), *["NULL"] * (total - at - width)]
        parts.append(f"SELECT {i}, {', '.join(items)} FROM ({text}) AS q{i}({columns})")
        at += width
    return " UNION ALL ".join(parts)


def _cells(row: Sequence[object]) -> list[str]:
    texts = [None if v is None else str(v) for v in row]
    return [f"{_literal(v)}::{POSTGRES_TYPES[k]} AS {n}" for v, (n, k) in zip(texts, COLUMNS.items(), strict=True)]


def _rename(name: TableName) -> str:
    return f"`differential_{name.name}`"


def arrow(frame: Any) -> pa.Table:
    """The rows as Spark gives them: `toArrow` fails for a null whose type has fields that are never null."""
    return pa.Table.from_batches(frame._collect_as_arrow(empty_list_if_zero_records=False))


def rendered(table: pa.Table, kinds: Sequence[str], zone: Zone = UTC) -> list[tuple[str | None, ...]]:
    """The rows as texts, as the wire has them."""
    columns = [
        [None if v is None else v.decode() for v in render_text(table.column(i), kind, zone)]
        for i, kind in enumerate(kinds)
    ]
    return list(zip(*columns, strict=True))


# ---- queries

AT_ONCE: Final = 8
"""Queries that one job of Spark's answers."""


def search_queries(
    ours: Headrace, theirs: Postgres, seed: int, count: int, tally: Counter[str] | None = None
) -> list[tuple[str, str]]:
    """What differs among so many random queries, their rows in any order."""
    queries = Queries(seed, lambda sql: theirs.ask(sql).rows is not None)
    return compare_queries(ours, theirs, [queries.query() for _ in range(count)], tally)


def compare_queries(
    ours: Headrace, theirs: Postgres, queries: Sequence[str], tally: Counter[str] | None = None
) -> list[tuple[str, str]]:
    """The queries that differ, their rows in any order, and how."""
    asked = [(sql, theirs.ask(sql).sorted()) for sql in queries]
    answered = [pair for pair in asked if pair[1].rows is not None]
    pairs = [(sql, ours.ask(sql).sorted(), other) for sql, other in asked if other.rows is None]
    for at in range(0, len(answered), AT_ONCE):
        part = answered[at : at + AT_ONCE]
        mine = ours.ask_together([sql for sql, _ in part])
        pairs += [(sql, one.sorted(), other) for (sql, other), one in zip(part, mine, strict=True)]
    found = []
    for sql, one, other in pairs:
        outcome, how = judged(sql, one, other)
        if tally is not None:
            tally[outcome] += 1
        if how is not None:
            found.append((sql, how))
    return found


UNSURE: Final = re.compile(
    r"LIMIT|OFFSET|FETCH|DISTINCT ON|row_number|ntile|lag|lead|_value|agg\(|mode|ROWS|GROUPS|FOR |now|random|current"
    r"|ORDER BY"
)
"""Words of queries whose rows are not the same each time when words have been taken out."""


def search_mutated(
    ours: Headrace, theirs: Postgres, seed: int, count: int, tally: Counter[str] | None = None
) -> list[tuple[str, str]]:
    """What differs among so many random queries whose words have been mixed up."""
    queries, chance = Queries(seed), random.Random(seed)
    asked = [mixed(chance, queries.query(), queries.query(), i % 4 == 0) for i in range(count)]
    found = compare_queries(ours, theirs, [sql for sql in asked if not sql.startswith("--")], tally)
    return [(sql, how) for sql, how in found if how.startswith("internal") or not UNSURE.search(sql)]


# ---- looking


def compare(
    ours: Headrace, theirs: Postgres, expressions: Sequence[str], tally: Counter[str] | None = None
) -> list[tuple[str, str]]:
    """The expressions that differ, and how; those that PostgreSQL refuses are asked one by one."""
    tally = Counter() if tally is None else tally
    alone, others = [], []
    for expression in expressions:
        sql = _select([expression])
        fine = theirs.ask(sql).rows is not None and not isinstance(ours.bound(sql), Answer)
        (others if fine else alone).append(expression)
    found = [pair for one in alone for pair in _together(ours, theirs, [one], tally)]
    return found + (_together(ours, theirs, others, tally) if others else [])


def _select(expressions: Sequence[str]) -> str:
    return f"SELECT {', '.join(f'({e}) AS c{i}' for i, e in enumerate(expressions))} FROM d ORDER BY id"


def _together(
    ours: Headrace, theirs: Postgres, expressions: Sequence[str], tally: Counter[str]
) -> list[tuple[str, str]]:
    sql = _select(expressions)
    mine, other = ours.ask(sql), theirs.ask(sql)
    if len(expressions) > 1 and not same_answer(sql, mine, other):
        half = len(expressions) // 2
        parts = (expressions[:half], expressions[half:])
        return [pair for part in parts for pair in _together(ours, theirs, part, tally)]
    outcome, found = judged(sql, mine, other, lambda null: _row_by_row(theirs, expressions[0], mine, null))
    tally[outcome] += len(expressions)
    return [(expressions[0], found)] if found is not None else []


def _row_by_row(theirs: Postgres, expression: str, ours: Answer, null: bool) -> bool:
    """Whether each row is as PostgreSQL has it alone; where that fails NULL, or unless `null`, anything."""
    assert ours.rows is not None
    for row, mine in zip(ROWS, ours.rows, strict=True):
        alone = theirs.ask(f"SELECT {expression} FROM d WHERE id = {row[0]}")
        if alone.rows is None:
            if null and mine != (None,):
                return False
        elif not all(map(same, mine, alone.rows[0])):
            return False
    return True


def search(
    ours: Headrace, theirs: Postgres, seed: int, count: int, tally: Counter[str] | None = None, batch: int = 24
) -> list[tuple[str, str]]:
    """What differs among so many random expressions."""
    generator = Generator(seed)
    found = []
    for at in range(0, count, batch):
        drawn = [generator.drawn() for _ in range(min(batch, count - at))]
        found += compare(ours, theirs, drawn, tally)
    return found


_ONE_SHOT: Final = ("expressions", "queries", "mutated")


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
    parser.add_argument("--zone", help="the time zone to ask in; else one after the other")
    parser.add_argument("--only", choices=(*_ONE_SHOT, "views"))
    options = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = session(SparkSession.builder.master("local[1]")) if options.only in _ONE_SHOT else local_session()
    tallies: dict[str, Counter[str]] = {kind: Counter() for kind in (*_ONE_SHOT, "views")}
    with postgres_server({"fsync": "off"}) as server:
        theirs, ours = Postgres(server.connect()), Headrace(spark)
        zone = "UTC"
        searches: dict[str, tuple[Callable[..., list[tuple[str, str]]], int]] = {
            "expressions": (partial(search, ours, theirs), options.count),
            "queries": (partial(search_queries, ours, theirs), options.count // 10),
            "mutated": (partial(search_mutated, ours, theirs), options.count),
            "views": (
                lambda *given, **more: search_views(spark, theirs, *given, **more, zone=zone),
                options.count // 100,
            ),
        }
        chosen = [options.only] if options.only else list(searches)
        zones = [options.zone] if options.zone else ZONES
        end, seed = time.monotonic() + options.minutes * 60, options.seed
        while time.monotonic() < end:
            zone = zones[seed % len(zones)]
            for kind in chosen:
                ours.in_zone(zone)
                theirs.in_zone(zone)
                compile_expressions(spark, seed % 4 == 0 or kind not in _ONE_SHOT)
                look, count = searches[kind]
                for expression, how in look(seed, count, tally=tallies[kind]):
                    print(f"-- seed {seed} in {zone}\n{expression}\n   {how}", flush=True)
            seed += 1
            print(f"-- {', '.join(f'{tallies[kind].total()} {kind}' for kind in chosen)}", flush=True)
    for kind in chosen:
        for outcome, number in tallies[kind].most_common():
            print(f"-- {number:7} {kind}: {outcome}")


def compile_expressions(spark: Any, on: bool) -> None:
    """Whether Spark makes Java of expressions, which takes longer than to compute them for five rows."""
    spark.conf.set("spark.sql.codegen.wholeStage", str(on).lower())
    spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK" if on else "NO_CODEGEN")


def session(builder: Any) -> Any:
    """Spark as headrace sets it up."""
    settings = {
        "spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true",
        "spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false",
        "spark.sql.autoBroadcastJoinThreshold": "-1", **READING_CONF,
        "spark.sql.optimizer.excludedRules": f"{READING_CONF['spark.sql.optimizer.excludedRules']},"
                                             "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation",
    }  # fmt: skip
    for key, value in settings.items():
        builder = builder.config(key, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("OFF")
    return found


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
