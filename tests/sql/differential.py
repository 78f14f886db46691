"""Expressions and queries asked of headrace and of PostgreSQL: what differs, and what is meant to.

`python tests/sql/differential.py --minutes 30` looks for new differences and prints the seed of each.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

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


class Postgres:
    """PostgreSQL with the table."""

    def __init__(self, connection: Any):
        self._connection = connection
        columns = ", ".join(f"{n} {POSTGRES_TYPES[k]}" for n, k in COLUMNS.items())
        self.ask("SET TimeZone = 'UTC'")
        self.ask("SET extra_float_digits = 1")
        self.ask(f"CREATE TABLE d ({columns})")
        for row in ROWS:
            self.ask(f"INSERT INTO d VALUES ({', '.join(_literal(v) for v in row)})")

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
        spark.sql(" UNION ALL ".join(rows)).coalesce(1).localCheckpoint().createOrReplaceTempView("differential_d")

    def ask(self, sql: str) -> Answer:
        """The answer as the wire would have it."""
        try:
            query = bind_query(parse_statement(sql), Known(lambda name: TABLES.get(name.name)))
            frame = self._spark.sql(spark_text(query, _rename))
            return Answer(_rendered(frame))
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


def _rendered(frame: Any) -> list[tuple[str | None, ...]]:
    table: pa.Table = frame.toArrow()
    columns = [
        [None if v is None else v.decode() for v in render_text(table.column(i), field.dataType.simpleString())]
        for i, field in enumerate(frame.schema.fields)
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


MEANT: tuple[tuple[str, str], ...] = (
    (
        r"value out of range|numeric field overflow|numeric value out of range|overflow|22003|precision|out of range",
        "too many digits",
    ),
    (r"escape character is not allowed to precede", "a backslash before a letter in a pattern of LIKE"),
)
"""Differences that are meant: in the message of the one side that refuses."""


def difference(ours: Answer, theirs: Answer) -> str | None:
    """What differs, in words; None if nothing does that is not meant."""
    if ours.unknown is not None:
        return None
    if ours.rows is not None and theirs.rows is not None:
        if any("value out of range" in (c or "") for row in ours.rows for c in row):
            return None  # years that Python does not know
        if len(ours.rows) == len(theirs.rows) and all(
            len(a) == len(b) and all(map(same, a, b)) for a, b in zip(ours.rows, theirs.rows, strict=True)
        ):  # fmt: skip
            return None
        return f"{ours.rows} for {theirs.rows}"
    if ours.rows is None and theirs.rows is None:
        return None if ours.error != "XX000" else f"internal error: {ours.message}"
    failed = ours if ours.rows is None else theirs
    if any(re.search(pattern, f"{failed.error} {failed.message}", re.IGNORECASE) for pattern, _ in MEANT):
        return None
    if ours.rows is None:
        return f"refused: {ours.error} {ours.message[:200]}; PostgreSQL has {theirs.rows}"
    return f"{ours.rows}; PostgreSQL refuses: {theirs.error} {theirs.message[:120]}"


# ---- expressions

_LITERALS = {
    "int2": ("1::int2", "(-3)::int2"),
    "int4": ("0", "1", "2", "7", "-5", "100"),
    "int8": ("3000000000", "5::int8", "(-7)::int8"),
    "numeric": ("2.5", "0.01", "-7.25", "100.0", "1.005"),
    "float8": ("2.5::float8", "1e10::float8", "(-0.125)::float8", "'1e-5'::float8"),
    "float4": ("0.5::float4", "(-3)::float4"),
    "text": ("'a'::text", "'Hello World'::text", "''::text", "'b,c'::text", "'12'::text"),
    "bool": ("true", "false", "NULL::bool"),
    "date": ("date '2024-03-31'", "date '1999-01-01'"),
    "timestamp": ("timestamp '2024-03-31 12:30:45.25'", "timestamp '2000-01-01'"),
    "timestamptz": ("timestamptz '2024-03-31 12:30:45+00'",),
    "interval": ("interval '1 day'", "interval '2 hours 30 minutes'", "interval '-3 days'"),
    "int4[]": ("ARRAY[1, 2, 3]", "ARRAY[5]", "'{1,NULL}'::int[]"),
}
_COLUMNS_OF = {"int2": "i2", "int4": "i4", "int8": "i8", "float4": "f4", "float8": "f8", "numeric": "n", "text": "t",
               "bool": "b", "date": "d", "timestamp": "ts", "timestamptz": "tz", "int4[]": "a"}  # fmt: skip
_CASTS = {
    "int2": ("int4", "int8", "numeric", "float8"),
    "int4": ("int2", "int8", "numeric", "float8", "bool", "float4"),
    "int8": ("int4", "numeric", "float8"),
    "numeric": ("int4", "int8"),
    "float8": ("int4", "numeric", "float4"),
    "text": ("int4", "int8", "numeric", "float8", "bool", "date", "timestamp", "timestamptz", "int4[]"),
    "date": ("timestamp", "timestamptz"),
    "timestamp": ("date", "timestamptz"),
    "timestamptz": ("timestamp", "date"),
}
_UNITS = ("hour", "day", "month", "year", "minute", "week", "quarter", "second")
_FIELDS = ("year", "month", "day", "hour", "minute", "second", "dow", "isodow", "doy", "week", "quarter", "epoch",
           "century", "decade", "isoyear", "millennium")  # fmt: skip
_LEFT_OUT = frozenset(
    [
        "random",
        "pi",
        "chr",
        "make_date",
        "make_timestamp",
        "now",
        "transaction_timestamp",
        "statement_timestamp",
        "repeat",
        "lpad",
        "rpad",
        "power",
        "pow",
        "exp",
        "^",
        "degrees",
        "sin",
        "cos",
        "tan",
        "<<",
        ">>",
        "gen_random_uuid",
        "proctime",
        "clock_timestamp",
        "sinh",
        "cosh",
    ]
)
"""Entries that are never the same twice, or whose results are huge, or whose last digits are the processor's matter."""
_SPELLED_OTHERWISE = frozenset(("extract", "date_part", "date_trunc", "timezone", "split_part", "regexp_replace",
                                "overlay", "round", "trunc", "position", "to_char", "to_date", "to_timestamp",
                                "regexp_match", "regexp_count", "regexp_like", "format",
                                "string_to_array"))  # fmt: skip


class Generator:
    """Random expressions of the catalogue."""

    def __init__(self, seed: int, relations: Sequence[str] = ()):
        self.random = random.Random(seed)
        self.relations = relations
        self._by_result = _entries_by_result()

    def expression(self, kind: str | None = None, depth: int = 2) -> str:
        """An expression of a type."""
        kind = kind or self.random.choice(list(_LITERALS))
        choice = self.random.random()
        if depth == 0 or choice < 0.15:
            return self._leaf(kind)
        if choice < 0.25 and kind in _CASTS:
            source = self.random.choice(_CASTS[kind])
            return f"({self.expression(source, depth - 1)})::{kind}"
        if choice < 0.35:
            return self._special(kind, depth)
        known = self._by_result.get(kind)
        if not known:
            return self._leaf(kind)
        name, arguments, form = self.random.choice(known)
        return form(name, [self._argument(a, depth - 1) for a in arguments])

    def column(self, name: str) -> str:
        """A column of one of the relations."""
        return f"{self.random.choice(self.relations)}.{name}" if self.relations else name

    def _argument(self, kind: str, depth: int) -> str:
        if kind == "any":
            return self.expression(None, depth)
        if kind in ("anyelement", "anynonarray"):
            return self.expression("int4", depth)
        if kind == "anyarray":
            return self.expression("int4[]", depth)
        return self.expression(kind, depth)

    def _leaf(self, kind: str) -> str:
        if kind in _COLUMNS_OF and self.random.random() < 0.6:
            return self.column(_COLUMNS_OF[kind])
        return self.random.choice(_LITERALS[kind])

    def _special(self, kind: str, depth: int) -> str:
        pick = self.random.randrange(6)
        inner = [self.expression(kind, depth - 1) for _ in range(2)]
        if pick == 0:
            return f"CASE WHEN {self.expression('bool', depth - 1)} THEN {inner[0]} ELSE {inner[1]} END"
        if pick == 1:
            return f"coalesce({inner[0]}, {inner[1]})"
        if pick == 2 and kind != "bool":
            return f"{self.random.choice(('greatest', 'least'))}({inner[0]}, {inner[1]})"
        if pick == 3:
            return f"nullif({inner[0]}, {inner[1]})"
        if kind == "bool":
            other = self.random.choice(("int4", "text", "numeric", "date", "int8", "float8"))
            a, b, c = (self.expression(other, depth - 1) for _ in range(3))
            return self.random.choice((
                f"({a} BETWEEN {b} AND {c})", f"({a} IN ({b}, {c}))", f"({a} NOT IN ({b}, NULL))", f"({a} IS NULL)",
                f"({a} IS DISTINCT FROM {b})", f"({inner[0]} AND {inner[1]})", f"({inner[0]} OR {inner[1]})",
                f"(NOT {inner[0]})", f"({inner[0]} IS NOT TRUE)",
                f"({self.expression('int4', depth - 1)} = ANY ({self.expression('int4[]', depth - 1)}))",
                f"({self.expression('int4', depth - 1)} < ALL ({self.expression('int4[]', depth - 1)}))",
            ))  # fmt: skip
        if kind == "timestamp":
            return f"date_trunc('{self.random.choice(_UNITS)}', {inner[0]})"
        if kind == "numeric":
            source = self.random.choice(("timestamp", "date", "timestamptz"))
            field = self.random.choice(_FIELDS)
            if source == "date" and field in ("hour", "minute", "second"):
                field = "day"
            return f"extract({field} FROM {self.expression(source, depth - 1)})"
        if kind == "int4":
            return f"({self.expression('int4[]', depth - 1)})[{self.random.choice(('1', '2', '0', '-1'))}]"
        return inner[0]


def _entries_by_result() -> dict[str, list[tuple[str, tuple[str, ...], Any]]]:
    from headrace.sql.binder.catalogue.functions import FUNCTIONS
    from headrace.sql.binder.catalogue.operators import OPERATORS, PREFIXES

    found: dict[str, list[tuple[str, tuple[str, ...], Any]]] = {}

    def add(catalogue: Any, form: Any) -> None:
        for name, overloads in catalogue.items():
            for entry in overloads:
                arguments = entry.signature.arguments
                result = {"*": arguments[0] if arguments else "", "*[]": ""}.get(entry.result, entry.result)
                if result == "anyarray":
                    result = "int4[]"
                spans = result == "interval" and "timestamp" not in arguments
                if not spans and name not in _LEFT_OUT and result in _LITERALS and "bytea" not in arguments:
                    found.setdefault(result, []).append((name, arguments, form))

    add(OPERATORS, lambda name, a: f"({a[0]} {name} {a[1]})")
    add(PREFIXES, lambda name, a: f"({name} {a[0]})")
    plain = {name: found for name, found in FUNCTIONS.items() if name not in _SPELLED_OTHERWISE}
    add(plain, lambda name, a: f"{name}({', '.join(a)})")
    return found


# ---- queries

_AGGREGATES = (
    "count({})", "sum({})", "avg({})", "min({})", "max({})", "count(DISTINCT {})", "sum({}) FILTER (WHERE {b})",
)  # fmt: skip
_WINDOWS = (
    "sum({}) OVER (PARTITION BY {k} ORDER BY {o})", "count({}) OVER (ORDER BY {o})", "lag({}) OVER (ORDER BY {o})",
    "rank() OVER (PARTITION BY {k} ORDER BY {})", "first_value({}) OVER (PARTITION BY {k} ORDER BY {o})",
    "min({}) OVER (ORDER BY {o} ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)",
)  # fmt: skip
_JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
_GROUPED = ("i4", "b", "t", "d")


class Queries:
    """Random queries whose rows are the same in any order."""

    def __init__(self, seed: int):
        self._seed = seed
        self.random = random.Random(seed)

    def query(self) -> str:
        """A query."""
        makers = (self._joined, self._grouped, self._windowed, self._nested, self._set_operation, self._first)
        return self.random.choice(makers)()

    def _from(self, *relations: str) -> Generator:
        return Generator(self.random.randrange(2**31), relations)

    def _joined(self) -> str:
        inside = self._from("x", "y")
        key = self.random.choice(("id", "i4", "b", "d"))
        kind = self.random.choice(_JOINS)
        on = f"x.{key} = y.{key}" if kind == "FULL JOIN" else f"x.{key} = y.{key} AND {inside.expression('bool', 1)}"
        items = f"x.id AS a, y.id AS b, {inside.expression(None, 1)} AS c"
        if self.random.random() < 0.3:
            return f"SELECT x.id, y.id, {key} FROM d AS x {kind} d AS y USING ({key})"
        where = f" WHERE {inside.expression('bool', 1)}" if self.random.random() < 0.4 else ""
        return f"SELECT {items} FROM d AS x {kind} d AS y ON {on}{where}"

    def _grouped(self) -> str:
        inside = self._from("x")
        keys = self.random.sample(_GROUPED, self.random.choice((1, 2)))
        form = self.random.choice(("{}", "{}", "ROLLUP ({})", "CUBE ({})", "GROUPING SETS (({}), ())"))
        aggregate = self._aggregate(inside)
        having = f" HAVING count(*) > {self.random.choice((0, 1))}" if self.random.random() < 0.3 else ""
        listed = ", ".join(f"x.{k}" for k in keys)
        return f"SELECT {listed}, {aggregate} AS v FROM d AS x GROUP BY {form.format(listed)}{having}"

    def _aggregate(self, inside: Generator) -> str:
        form = self.random.choice(_AGGREGATES)
        kind = self.random.choice(("int4", "int8", "numeric", "int2"))
        return form.format(inside.expression(kind, 1), b=inside.expression("bool", 1))

    def _windowed(self) -> str:
        inside = self._from("x")
        value = inside.expression(self.random.choice(("int4", "int2")), 1)
        key = self.random.choice(("x.b", "x.i4 % 2", "x.t"))
        return f"SELECT x.id, {self.random.choice(_WINDOWS).format(value, k=key, o='x.id')} AS v FROM d AS x"

    def _nested(self) -> str:
        inside, within = self._from("x"), self._from("y")
        condition = within.expression("bool", 1)
        form = self.random.choice((
            "SELECT x.id, x.i4 IN (SELECT y.i4 FROM d AS y WHERE {c}) AS v FROM d AS x",
            "SELECT x.id FROM d AS x WHERE x.i4 NOT IN (SELECT y.i4 FROM d AS y WHERE y.i4 IS NOT NULL AND {c})",
            "SELECT x.id FROM d AS x WHERE EXISTS (SELECT 1 FROM d AS y WHERE y.id = x.id AND {c})",
            "SELECT x.id, (SELECT max(y.i4) FROM d AS y WHERE {c}) + x.id AS v FROM d AS x",
            "SELECT q.v FROM (SELECT {e} AS v FROM d AS x) AS q WHERE q.v IS NOT NULL",
            "WITH c AS (SELECT x.id AS k, {e} AS v FROM d AS x) SELECT c.v, e.v FROM c JOIN c AS e USING (k)",
        ))  # fmt: skip
        return form.format(c=condition, e=inside.expression(None, 1))

    def _set_operation(self) -> str:
        kind = self.random.choice(("int4", "text", "date", "numeric"))
        other = "int8" if kind == "int4" else kind
        word = self.random.choice(("UNION", "UNION ALL", "INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL"))
        sides = [self._from("x").expression(k, 1) for k in (kind, other)]
        return f"SELECT {sides[0]} AS v FROM d AS x {word} SELECT {sides[1]} FROM d AS x"

    def _first(self) -> str:
        inside = self._from("x")
        return self.random.choice((
            "SELECT DISTINCT {e} AS v FROM d AS x",
            "SELECT DISTINCT ON (x.b) x.b, x.id FROM d AS x ORDER BY x.b, x.id DESC",
            "SELECT x.id, {e} AS v FROM d AS x ORDER BY x.id DESC LIMIT 2 OFFSET 1",
            "SELECT x.b, x.id FROM d AS x ORDER BY x.b DESC FETCH FIRST 1 ROW WITH TIES",
        )).format(e=inside.expression(None, 1))  # fmt: skip


def search_queries(ours: Headrace, theirs: Postgres, seed: int, count: int) -> list[tuple[str, str]]:
    """What differs among so many random queries, their rows in any order."""
    queries = Queries(seed)
    found = []
    for _ in range(count):
        sql = queries.query()
        mine, other = ours.ask(sql), theirs.ask(sql)
        for answer in (mine, other):
            if answer.rows is not None:
                answer.rows.sort(key=_sortable)
        how = difference(mine, other)
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


def compare(ours: Headrace, theirs: Postgres, expressions: Sequence[str]) -> list[tuple[str, str]]:
    """The expressions that differ, and how."""
    sql = f"SELECT {', '.join(f'({e}) AS c{i}' for i, e in enumerate(expressions))} FROM d ORDER BY id"
    mine, other = ours.ask(sql), theirs.ask(sql)
    if mine.rows is not None and other.rows is not None and difference(mine, other) is None:
        return []
    if len(expressions) > 1:
        half = len(expressions) // 2
        return compare(ours, theirs, expressions[:half]) + compare(ours, theirs, expressions[half:])
    found = difference(mine, other)
    return [(expressions[0], found)] if found is not None else []


def search(ours: Headrace, theirs: Postgres, seed: int, count: int, batch: int = 16) -> list[tuple[str, str]]:
    """What differs among so many random expressions."""
    generator = Generator(seed)
    found = []
    for _ in range(0, count, batch):
        found += compare(ours, theirs, [generator.expression() for _ in range(batch)])
    return found


def main() -> None:
    from pyspark.sql import SparkSession

    from postgres import postgres_server

    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args()
    spark = session(SparkSession.builder.master("local[2]"))
    with postgres_server({"fsync": "off"}) as server:
        theirs, ours = Postgres(server.connect()), Headrace(spark)
        end, seed = time.monotonic() + options.minutes * 60, options.seed
        while time.monotonic() < end:
            found = search(ours, theirs, seed, options.count) + search_queries(ours, theirs, seed, options.count // 10)
            for expression, how in found:
                print(f"-- seed {seed}\n{expression}\n   {how}", flush=True)
            seed += 1


def session(builder: Any) -> Any:
    """Spark as headrace sets it up."""
    settings = {
        "spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true",
        "spark.sql.shuffle.partitions": "1",
    }  # fmt: skip
    for key, value in settings.items():
        builder = builder.config(key, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("OFF")
    return found


if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
