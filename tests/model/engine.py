"""The smallest engine: one view over tables in memory, epoch by epoch, against Spark's batch answer."""

from __future__ import annotations

import shutil
import tempfile
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headrace.common.columns import Column, arrow_type
from headrace.dataflow.epoch_result import EpochResult
from headrace.dataflow.params import EpochParams, StateInput, TableInput
from headrace.dataflow.runner import EpochRunner
from headrace.plan.failures import translated
from headrace.plan.planner import PlannedRelation, Planner
from headrace.plan.watermark_rules import LeastWatermark
from headrace.state.arrangement import Arrangement
from headrace.state.kernels import consolidate
from headrace.state.run import Section, write_run
from headrace.state.schema import RunRef, TableSchema

WEIGHT = ((pa.field("__w", pa.int64(), nullable=False), "add"),)

Row = tuple[Any, ...]
Udfs = Mapping[str, tuple[Callable[..., Any], str]]
"""Python functions by name, each with its return type."""
Query = str | Callable[[SparkSession], DataFrame]
"""A query as text, or as what makes a DataFrame of the tables of a session."""

# Small data is answered fastest without generated code.
_BATCH_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def canonical(value: Any) -> Any:
    """A value that can be compared and hashed: floats to ten digits, NaN as text, containers as tuples."""
    if isinstance(value, float):
        if value != value:
            return "NaN"
        return 0.0 if value == 0 else float(f"{value:.10g}")
    if isinstance(value, dict):
        return tuple((k, canonical(v)) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(canonical(v) for v in value)
    return value


def bag(table: pa.Table) -> Counter[Row]:
    """Rows as a multiset."""
    columns = [c.to_pylist() for c in table.columns]
    return Counter(tuple(canonical(v) for v in row) for row in zip(*columns))


@dataclass
class Table:
    """An input table: its columns, its content, its history as runs."""

    id: int
    name: str
    columns: tuple[Column, ...]
    append_only: bool = False
    rows: list[Row] = field(default_factory=list)
    refs: list[RunRef] = field(default_factory=list)
    time: str | None = None
    """The column with a watermark."""
    watermark_us: int | None = None

    @property
    def schema(self) -> TableSchema:
        return TableSchema(tuple(pa.field(c.name, arrow_type(c.type)) for c in self.columns), (), WEIGHT)

    def arrow(self, rows: Sequence[Row]) -> pa.Table:
        fields = [pa.field(c.name, arrow_type(c.type)) for c in self.columns]
        arrays = [pa.array([r[i] for r in rows], f.type) for i, f in enumerate(fields)]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    def apply(self, row: Row, weight: int) -> None:
        """Add the row, or take it away."""
        if weight > 0:
            self.rows.append(row)
            return
        # By its text, which tells 0.0 from -0.0 and finds NaN.
        del self.rows[next(i for i, r in enumerate(self.rows) if repr(r) == repr(row))]


class Batch:
    """Spark's batch answers, in a session of their own."""

    _known: dict[int, Batch] = {}

    def __init__(self, spark: SparkSession):
        self.session = spark.newSession()
        for key, value in _BATCH_CONF.items():
            self.session.conf.set(key, value)

    @classmethod
    def of(cls, spark: SparkSession) -> Batch:
        """The one for this session."""
        return cls._known.setdefault(id(spark), cls(spark))

    def answer(self, query: Query, tables: Mapping[str, Table]) -> pa.Table:
        """The query's result over the tables as they are."""
        for table in tables.values():
            # The types are said: read off the Arrow table, a timestamp without a zone would come with one.
            schema = StructType.fromDDL(", ".join(f"{c.name} {c.type}" for c in table.columns))
            self.session.createDataFrame(table.arrow(table.rows), schema).createOrReplaceTempView(table.name)
        return (self.session.sql(query) if isinstance(query, str) else query(self.session)).toArrow()


class Engine:
    """Drives one view without a coordinator."""

    def __init__(
        self,
        spark: SparkSession,
        tables: Sequence[Table],
        query: Query,
        weak_hash: int | None = None,
        udfs: Udfs | None = None,
        codegen: bool | None = None,
        setup: Callable[[SparkSession], None] | None = None,
        on_window_close: bool = False,
        arrangements: Collection[int] = (),
        on_error: str = "fail",
        oracle: str | None = None,
    ):
        self.tables = {t.name: t for t in tables}
        self.query = query
        self.oracle = oracle or query
        self.batch = Batch.of(spark)
        self.root = Path(tempfile.mkdtemp(prefix="headrace-model-"))
        self.planner = Planner(spark)
        # Compiling code is what takes the time of a tiny case: one in eight does it, and all that ask for it.
        if not (zlib.crc32(str(query).encode()) % 8 == 0 if codegen is None else codegen):
            for key in ("spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode"):
                self.planner.bridge.spark.conf.set(key, _BATCH_CONF[key])
        for name, (function, kind) in (udfs or {}).items():
            self.planner.bridge.spark.udf.register(name, function, kind)
            self.batch.session.udf.register(name, function, kind)
        if setup is not None:
            setup(self.planner.bridge.spark)
            setup(self.batch.session)
        for t in tables:
            self.define(self.planner, t)
        made = query if isinstance(query, str) else query(self.planner.bridge.spark)
        self.plan = self.planner.plan(
            made, on_window_close=on_window_close, arrangements=arrangements, on_error=on_error
        )
        schemas = {t.id: t.schema for t in tables}
        self.runner = EpochRunner(self.planner.bridge, self.plan, schemas, weak_hash=weak_hash)
        self.state: dict[str, list[RunRef]] = {name: [] for name in self.plan.state_tables()}
        self.ids = {name: 100 + i for i, name in enumerate(self.state)}
        self.epoch = max((r.epoch_hi for t in tables for r in t.refs), default=0)
        self.done = 0
        self.expired: dict[str, int] = {}
        self.memory_bytes = 0
        self.budget_bytes = 1 << 40

    def define(self, planner: Planner, table: Table) -> None:
        """Make a table known to the planner."""
        planner.define(PlannedRelation(table.id, table.name, table.append_only, table.time), table.columns, table.name)

    def close(self) -> None:
        """Remove what is on the disk."""
        shutil.rmtree(self.root, ignore_errors=True)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def change(self, name: str, delta: Sequence[tuple[Row, int]]) -> None:
        """Insert (+1) and delete (-1) rows in one epoch of a table."""
        table = self.tables[name]
        self.epoch += 1
        for row, weight in delta:
            table.apply(row, weight)
        data = table.arrow([row for row, _ in delta])
        # Any function of the row will do; multiplied so that rows spread over the whole space of keys.
        spread = [(zlib.crc32(repr(row).encode()) - 2**31) << 32 for row, _ in delta]
        columns = [pa.array(spread, pa.int64()), *(c.combine_chunks() for c in data.columns)]
        columns.append(pa.array([w for _, w in delta], pa.int64()))
        batch = consolidate(pa.RecordBatch.from_arrays(columns, schema=table.schema.arrow()), table.schema)
        if batch.num_rows:
            section = Section(table.id, table.schema, [batch], self.epoch)
            table.refs += write_run(self.root, f"{name}/{self.epoch}.run", [section], fsync=False)

    def insert(self, name: str, *rows: Row) -> None:
        """Insert rows in one epoch of a table."""
        self.change(name, [(row, 1) for row in rows])

    def delete(self, name: str, *rows: Row) -> None:
        """Delete rows in one epoch of a table."""
        self.change(name, [(row, -1) for row in rows])

    def params(self, attempt: str) -> EpochParams:
        """Parameters of an attempt at the epoch that takes in all that has changed."""
        return EpochParams(
            attempt, self.done, self.epoch, self.done == 0, str(self.root), f"view/{attempt}", False,
            spool=str(self.root / "spool"), memory_bytes=self.memory_bytes, budget_bytes=self.budget_bytes,
            tables={t.id: TableInput(tuple(t.refs)) for t in self.tables.values()},
            state={n: StateInput(self.ids[n], tuple(refs), self.expired.get(n)) for n, refs in self.state.items()},
            closed_us=self.mark(self.plan.event_time.closes),
        )  # fmt: skip

    def mark(self, mark: LeastWatermark | None) -> int | None:
        """What a mark of the plan comes to by the watermarks of the tables."""
        tables = {t.id: t for t in self.tables.values()}
        return None if mark is None else mark.value(lambda i, _: tables[i].watermark_us)

    def advance(self, parallelism: int = 1) -> EpochResult:
        """Take all that changed since the last time into the view, as one epoch; if it fails, nothing has happened."""
        self.epoch += 1
        result = self.runner.run(self.params(uuid.uuid4().hex), parallelism)
        self.commit(result)
        return result

    def commit(self, result: EpochResult) -> None:
        """Make what an attempt has written part of the state."""
        by_id = {i: n for n, i in self.ids.items()}
        for ref in result.runs:
            self.state[by_id[ref.table_id]].append(ref)
        self.done = self.epoch
        marks = {name: self.mark(mark) for name, mark in self.plan.event_time.expiry.items()}
        self.expired |= {name: at for name, at in marks.items() if at is not None}

    def view(self) -> pa.Table:
        """The view's rows."""
        arrangement = Arrangement(self.plan.schema, self.state["view/rows"], self.root)
        names = [c.name for c in self.plan.columns]
        out = []
        for batch in arrangement.scan():
            weights = np.asarray(batch.column("__w"))
            assert (weights > 0).all(), f"{self.query}\nholds a row a negative number of times: {batch.to_pylist()}"
            out.append(batch.select(names).take(pa.array(np.repeat(np.arange(len(weights)), weights))))
        schema = pa.schema([(f.name, f.type) for f in self.plan.schema.key])
        return pa.Table.from_batches(out, schema=schema)

    def rows(self) -> list[Row]:
        """The view's rows as tuples, sorted by their text."""
        return sorted(zip(*(c.to_pylist() for c in self.view().columns)), key=repr)

    def expected(self) -> pa.Table:
        """Spark's batch answer over the tables as they are."""
        with translated():
            return self.batch.answer(self.oracle, self.tables)

    def check(self) -> None:
        """The law: what is kept equals what is computed."""
        got, want = bag(self.view()), bag(self.expected())
        assert got == want, f"{self.query}\nmissing: {want - got}\nsurplus: {got - want}"
