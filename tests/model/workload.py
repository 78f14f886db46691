"""Many views over the same inputs, epoch by epoch, against Spark's batch answers: what published workloads need.

Inputs are tables, which are written as runs, and sources, which are read by offset as a running server reads them.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from engine import _BATCH_CONF, WEIGHT, Batch, bag
from pyspark.sql import SparkSession

from headrace.common.columns import Column, arrow_schema
from headrace.connectors.base import Offsets
from headrace.connectors.sources import infer_columns, open_source
from headrace.dataflow.epoch_result import EpochResult
from headrace.dataflow.params import EpochParams, SourceInput, StateInput, TableInput
from headrace.dataflow.runner import EpochRunner
from headrace.plan.failures import translated
from headrace.plan.planner import PlannedRelation, Planner, ViewPlan
from headrace.sql.parser import parse_query
from headrace.sql.statements import TableName
from headrace.state.arrangement import Arrangement
from headrace.state.kernels import consolidate
from headrace.state.kernels.hashing import hash_columns
from headrace.state.run import Section, write_run
from headrace.state.schema import RunRef, TableSchema


@dataclass
class TableFeed:
    """A table: its content, and its history as runs."""

    name: str
    content: pa.Table
    refs: list[RunRef] = field(default_factory=list)
    delta: list[tuple[pa.Table, int]] = field(default_factory=list)
    id: int = 0

    append_only = False

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns with Spark's names of their types."""
        from pyspark.sql.pandas.types import from_arrow_type

        return tuple(Column(f.name, from_arrow_type(f.type).simpleString()) for f in self.content.schema)

    @property
    def schema(self) -> TableSchema:
        """The layout of its rows."""
        return TableSchema(tuple(arrow_schema(self.columns)), (), WEIGHT)

    def change(self, gone: np.ndarray, new: pa.Table) -> None:
        """Take away the rows at the positions `gone`, and add others; both in the next epoch."""
        kept = np.ones(len(self.content), bool)
        kept[gone] = False
        self.delta += [(self.content.filter(pa.array(~kept)), -1), (new, 1)]
        self.content = pa.concat_tables([self.content.filter(pa.array(kept)), new])

    def write(self, root: Path, epoch: int) -> None:
        """Make what has changed part of the history."""
        delta, self.delta = self.delta, []
        rows = pa.concat_tables([t for t, _ in delta]).combine_chunks() if delta else self.content.slice(0, 0)
        if not len(rows):
            return
        data = [c.combine_chunks() for c in rows.columns]
        weights = np.concatenate([np.full(len(t), w) for t, w in delta])
        columns = [pa.array(hash_columns(data)), *data, pa.array(weights, pa.int64())]
        batch = consolidate(pa.RecordBatch.from_arrays(columns, schema=self.schema.arrow()), self.schema)
        if batch.num_rows:
            section = Section(self.id, self.schema, [batch], epoch)
            self.refs += write_run(root, f"{self.name}/{epoch}.run", [section], fsync=False)


@dataclass
class SourceFeed:
    """A source, up to an offset."""

    name: str
    options: dict[str, str]
    offsets: dict[int, Offsets] = field(default_factory=dict)
    """Epoch -> what it is bound to."""
    id: int = 0

    append_only = True
    schema = None

    @property
    def columns(self) -> tuple[Column, ...]:
        """Its columns."""
        return tuple(infer_columns(self.options))

    def range(self, after: int, upto: int, parallelism: int) -> SourceInput:
        """What an epoch reads."""
        source = open_source(self.options, self.columns)
        tasks = source.plan(self.at(after), self.at(upto), parallelism)
        return SourceInput(tuple(tasks), self.options, tuple((c.name, c.type, c.nullable) for c in self.columns))

    def at(self, epoch: int) -> Offsets:
        """The newest offsets at an epoch."""
        known = [e for e in self.offsets if e <= epoch]
        return self.offsets[max(known)] if known else open_source(self.options, self.columns).start_offsets()

    @property
    def content(self) -> pa.Table:
        """All rows so far."""
        source = open_source(self.options, self.columns)
        upto = self.at(max(self.offsets, default=0))
        batches = [b.batch for task in source.plan(source.start_offsets(), upto, 1) for b in source.read(task)]
        return pa.Table.from_batches(batches, schema=source.schema)


Feed = TableFeed | SourceFeed


@dataclass
class View:
    """A view under test."""

    name: str
    spark_sql: str
    plan: ViewPlan
    runner: EpochRunner
    ids: dict[str, int]
    state: dict[str, list[RunRef]]
    done: int = 0


class Workload:
    """Queries in headrace's dialect over feeds."""

    def __init__(self, spark: SparkSession, feeds: Sequence[Feed], queries: Mapping[str, str]):
        self.root = Path(tempfile.mkdtemp(prefix="headrace-workload-"))
        self.feeds = list(feeds)
        self.batch = Batch.of(spark)
        self.planner = Planner(spark)
        for key in ("spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode"):
            self.planner.bridge.spark.conf.set(key, _BATCH_CONF[key])
        for i, feed in enumerate(self.feeds):
            feed.id = i + 1
            self.planner.define(PlannedRelation(feed.id, feed.name, feed.append_only), feed.columns, feed.name)
        self.epoch = 0
        self.views = {name: self._view(name, sql) for name, sql in queries.items()}

    def close(self) -> None:
        """Remove what is on the disk."""
        shutil.rmtree(self.root, ignore_errors=True)

    def __enter__(self) -> Workload:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _view(self, name: str, sql: str) -> View:
        columns = {TableName(None, f.name): {c.name: c.type for c in f.columns} for f in self.feeds}
        text = parse_query(sql).to_spark(lambda table: f"`{table.name}`", columns)
        with translated():
            plan = self.planner.plan(text)
        schemas = {f.id: f.schema for f in self.feeds if f.id in plan.upstreams}
        tables = list(plan.state_tables())
        runner = EpochRunner(self.planner.bridge, plan, schemas)
        ids = {t: 1000 + i for i, t in enumerate(tables)}
        return View(name, text, plan, runner, ids, {t: [] for t in tables})

    def begin(self) -> None:
        """Begin an epoch: tables write what has changed; Spark's batch session sees the same."""
        self.epoch += 1
        for feed in self.feeds:
            if isinstance(feed, TableFeed):
                feed.write(self.root, self.epoch)
            shape = ", ".join(f"`{c.name}` {c.type}" for c in feed.columns)
            self.batch.session.createDataFrame(feed.content, shape).createOrReplaceTempView(feed.name)

    def bind(self, name: str, offsets: Offsets) -> None:
        """Bind a source for the epoch that begins next."""
        feed = next(f for f in self.feeds if f.name == name)
        assert isinstance(feed, SourceFeed)
        feed.offsets[self.epoch + 1] = offsets

    def advance(self, view: View, parallelism: int) -> EpochResult:
        """Take the epoch into a view."""
        attempt = uuid.uuid4().hex
        inputs = [f for f in self.feeds if f.id in view.plan.upstreams]
        tables = [f for f in inputs if isinstance(f, TableFeed)]
        first = view.done == 0
        params = EpochParams(
            attempt, view.done, self.epoch, first, str(self.root), f"{view.name}/{attempt}", False,
            tables={t.id: TableInput(tuple(r for r in t.refs if first or r.epoch_hi > view.done)) for t in tables},
            sources={
                f.id: f.range(view.done, self.epoch, parallelism) for f in inputs if isinstance(f, SourceFeed)
            },
            state={t: StateInput(view.ids[t], tuple(refs)) for t, refs in view.state.items()},
        )  # fmt: skip
        result = view.runner.run(params, parallelism)
        by_id = {i: t for t, i in view.ids.items()}
        for ref in result.runs:
            view.state[by_id[ref.table_id]].append(ref)
        view.done = self.epoch
        return result

    def rows(self, view: View) -> pa.Table:
        """A view's content."""
        arrangement = Arrangement(view.plan.schema, view.state["view/rows"], self.root)
        names = [c.name for c in view.plan.columns]
        out = []
        for batch in arrangement.scan():
            weights = np.asarray(batch.column("__w"))
            assert (weights > 0).all(), f"{view.name} holds a row a negative number of times: {batch.to_pylist()}"
            out.append(batch.select(names).take(pa.array(np.repeat(np.arange(len(weights)), weights))))
        return pa.Table.from_batches(out, schema=pa.schema([(f.name, f.type) for f in view.plan.schema.key]))

    def check(self, view: View) -> int:
        """Hold a view against the batch answer; how many rows it has."""
        got, want = bag(self.rows(view)), bag(self.batch.session.sql(view.spark_sql).toArrow())
        assert got == want, (
            f"{view.name} at epoch {self.epoch}\nmissing: {list((want - got).items())[:5]}\n"
            f"surplus: {list((got - want).items())[:5]}"
        )
        return got.total()
