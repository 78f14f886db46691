"""Is every view what its query gives over the same input? Computed by Spark alone, from the files."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.common.lazy_dataclass import dataclass
from headrace.demo.data import COLUMNS, Inputs
from headrace.demo.demo_statements import VIEWS, View
from headrace.sql.parser import parse_query
from headrace.sql.statements import TableName
from headrace.sql.text_values import parse_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = tuple[object, ...]
_EXAMPLES: Final = 2


@dataclass(frozen=True)
class ExpectedRows:
    """What a view should hold: column names, their Spark types, and the rows."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: Sequence[Row]

    def parsed(self, names: Sequence[str], rows: Sequence[Sequence[str | None]]) -> list[Row]:
        """Rows in text format, with columns `names`, as values in the answer's order of columns."""
        places = [(names.index(name), kind) for name, kind in zip(self.columns, self.types, strict=True)]
        return [tuple(None if (v := row[i]) is None else parse_text(v, kind) for i, kind in places) for row in rows]


@dataclass(frozen=True)
class Verdict:
    """The outcome of comparing one view with its query."""

    view: str
    rows: int
    difference: str | None
    """None if there is none."""

    def __str__(self) -> str:
        return f"exact ({_rows(self.rows)})" if self.difference is None else f"differs: {self.difference}"


def compare(view: str, expected: Sequence[Row], found: Sequence[Row]) -> Verdict:
    """Compares view and query as multisets of rows."""
    should, has = Counter(expected), Counter(found)
    missing, extra = should - has, has - should
    if not missing and not extra:
        return Verdict(view, len(found), None)
    parts = [
        f"{_rows(rows.total())} {what}, such as {', '.join(map(_show, list(rows)[:_EXAMPLES]))}"
        for what, rows in (("missing", missing), ("too many", extra))
        if rows
    ]
    return Verdict(view, len(found), "; ".join(parts))


def batch_answers(inputs: Inputs, log: Path) -> dict[str, ExpectedRows]:
    """Run every view's query with Spark over the input files. Spark's own messages go to the file `log`."""
    with _batch_session(log) as spark:
        schema: dict[TableName, Mapping[str, str]] = {}
        for name, columns in COLUMNS.items():
            _input(spark, inputs, name).createOrReplaceTempView(name)
            schema[TableName(None, name)] = columns
        answers = {}
        for view in VIEWS:
            frame = spark.sql(spark_query(view, schema)).cache()
            frame.createOrReplaceTempView(view.name)
            schema[TableName(None, view.name)] = dict(frame.dtypes)
            answers[view.name] = _collected(frame)
    return answers


def spark_query(view: View, schema: Mapping[TableName, Mapping[str, str]]) -> str:
    """The view's query in Spark's dialect."""
    return parse_query(view.query).to_spark(lambda name: f"`{name.name}`", schema)


def _collected(frame: DataFrame) -> ExpectedRows:
    table = frame.toArrow()
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    return ExpectedRows(tuple(frame.columns), tuple(kind for _, kind in frame.dtypes), rows)


def _input(spark: SparkSession, inputs: Inputs, name: str) -> DataFrame:
    path = str(inputs.path(name))
    if name == "flights":
        return spark.read.parquet(path)
    ddl = ", ".join(f"`{column}` {kind}" for column, kind in COLUMNS[name].items())
    return spark.read.csv(path, schema=ddl, header=True)


@contextmanager
def _batch_session(log: Path) -> Iterator[SparkSession]:
    from headrace.dataflow.spark import local_session

    with _stderr_to(log):
        spark = local_session("local[2]", driver_memory="1g")
    spark.conf.set("spark.sql.shuffle.partitions", "4")
    try:
        yield spark
    finally:
        with _stderr_to(log):
            spark.stop()


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Send what child processes started inside the block write to stderr to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    with log.open("ab") as sink:
        os.dup2(sink.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _show(row: Row) -> str:
    return "(" + ", ".join("NULL" if v is None else str(v) for v in row) + ")"


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"
