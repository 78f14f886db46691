"""A database whose rows are integers: the real coordinator, catalog and state, with fakes for the planner and Spark."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.catalog.catalog import Catalog
from headrace.catalog.contents import MaterializedViewContent, SinkContent, SourceContent, TableContent
from headrace.catalog.records import ObjectRecord
from headrace.common.clock import ManualClock
from headrace.common.columns import Column, arrow_schema
from headrace.config import Settings
from headrace.connectors.sources import open_source
from headrace.coordinator import Coordinator, TableChange
from headrace.dataflow.epoch_result import EpochResult
from headrace.dataflow.params import EpochParams
from headrace.plan.tree import Sharable
from headrace.plan.watermark_rules import NO_EVENT_TIME, EventTime
from headrace.state.arrangement import Arrangement
from headrace.state.kernels import concat, consolidate
from headrace.state.merge import MergeRunner
from headrace.state.run import Section, write_run
from headrace.state.run_cursor import K_LOWEST
from headrace.state.schema import TableSchema
from headrace.state.table_changes import stored_rows
from support import WAIT_S, eventually

WEIGHT = ((pa.field("__w", pa.int64(), nullable=False), "add"),)


COLUMNS = (Column("n", "bigint"),)


SCHEMA = TableSchema((pa.field("n", pa.int64()),), (), WEIGHT)


POLL_S = 0.05
"""Nobody is told of what fakes note; what the coordinator does wakes whoever waits."""


@dataclass(frozen=True)
class FakePlan:
    """The union of its inputs."""

    name: str
    upstreams: tuple[int, ...]
    columns: tuple[Column, ...] = COLUMNS
    schema: TableSchema = SCHEMA
    append_only: bool = False
    event_time: EventTime = NO_EVENT_TIME
    generation: int = 0
    temporal: bool = False
    lookups: frozenset[int] = frozenset()
    read_only_by_lookup: frozenset[int] = frozenset()
    arrangements: frozenset[int] = frozenset()
    sharable: tuple[Sharable, ...] = ()
    changes_only: frozenset[int] = frozenset()
    hands_over: bool = False

    def into_table(self, width: int) -> FakePlan:
        return replace(self, hands_over=True)

    @property
    def fingerprint(self) -> str:
        return f"{self.name}{self.upstreams}"

    def state_tables(self) -> dict[str, TableSchema]:
        return {"into/rows" if self.hands_over else "view/rows": SCHEMA, "0/state": SCHEMA}


@dataclass
class FakePlanner:
    """Plans queries that are nothing but the ids of their inputs."""

    defined: dict[int, str] = field(default_factory=dict)
    prefix: str = ""
    generation: int = 0

    def define(self, relation: Any, columns: Any, name: str) -> None:
        self.defined[relation.id] = name

    def define_path(self, relation_id: int, path: Any) -> None:
        """See `Planner`."""

    def forget(self, relation_id: int) -> None:
        self.defined.pop(relation_id, None)

    def plan(
        self, sql: str, *, on_window_close: bool = False, arrangements: Any = (), on_error: str = "fail"
    ) -> FakePlan:  # fmt: skip
        return FakePlan(self.prefix + sql, tuple(int(i) for i in sql.split(",") if i), generation=self.generation)


class FakeRunner:
    """Writes the change of all inputs to the view; fails, or waits, when it is told to."""

    def __init__(self, plan: FakePlan, relations: Mapping[int, TableSchema | None]):
        self.plan, self.relations = plan, relations
        self.error: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.calls: list[EpochParams] = []
        self.cancelled: list[str] = []

    def run(self, params: EpochParams, parallelism: int) -> EpochResult:
        self.calls.append(params)
        self.entered.set()
        assert self.gate.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        if params.attempt in self.cancelled:
            raise RuntimeError("cancelled")
        read = {i: list(self._table(params, i)) for i in params.tables}
        read |= {i: list(self._source(params, i)) for i in params.sources}
        counts = {i: sum(b.num_rows for b in found) for i, found in read.items()}
        batches = [b for found in read.values() for b in found]
        rows = consolidate(concat(batches, SCHEMA.arrow()), SCHEMA)
        sections = [
            Section(params.state[n].table_id, SCHEMA, [rows], params.to_epoch) for n in self.plan.state_tables()
        ]
        refs = write_run(params.root, f"{params.prefix}/0.run", sections, fsync=False)
        return EpochResult(refs, sum(counts.values()), counts, rows.num_rows)

    def run_with(
        self, params: EpochParams, parallelism: int, others: Sequence[tuple[FakeRunner, EpochParams, int]]
    ) -> list[EpochResult]:
        return [self.run(params, parallelism), *(r.run(p, n) for r, p, n in others)]

    def _table(self, params: EpochParams, i: int) -> Iterator[pa.RecordBatch]:
        schema = self.relations[i]
        assert schema is not None
        table = params.tables[i]
        arrangement = Arrangement(schema, table.refs, params.root, as_of=params.to_epoch)
        low, high = table.keys or (K_LOWEST, 1 << 63)
        bounds = (low, high if high < 1 << 63 else None)
        if params.snapshot:
            found = arrangement.scan(*bounds)
        else:
            found = arrangement.log(params.from_epoch, params.to_epoch, *bounds)
        for batch in found:
            data = stored_rows(SCHEMA, batch.select(["n"]), 1)
            yield data.set_column(data.num_columns - 1, "__w", batch.column("__w"))

    def _source(self, params: EpochParams, i: int) -> Iterator[pa.RecordBatch]:
        source = params.sources[i]
        reader = open_source(source.options, [Column(*c) for c in source.columns])
        for task in source.tasks:
            for found in reader.read(task):
                yield stored_rows(SCHEMA, found.batch, 1)

    def cancel(self, attempt: str) -> None:
        self.cancelled.append(attempt)
        self.gate.set()


class Database:
    """A coordinator over fakes, and short ways to use it."""

    def __init__(
        self,
        folder: Path,
        clock: ManualClock | None = None,
        prefix: str = "",
        merge_runner: MergeRunner | None = None,
        **settings: Any,
    ):
        given = {"barrier_interval_ms": 3_600_000, "compaction_interval_ms": 3_600_000, "run_fsync": False, **settings}
        self.settings = Settings(data_dir=folder, catalog_commit_sync=False, parallelism=4, **given)
        self.catalog = Catalog.open(self.settings.catalog_location, full_sync=False)
        self.runners: list[FakeRunner] = []
        self.planner = FakePlanner(prefix=prefix)
        self.c = Coordinator(
            self.settings,
            self.catalog,
            self.planner,  # type: ignore[arg-type]
            clock,
            make_runner=self.runner,  # type: ignore[arg-type]
            merge_runner=merge_runner,
        )
        self.c.start()
        # It makes a tick of its own, and the next one in an hour: later it would come between what a test does.
        eventually(lambda: self.c._parts.ticker.rounds or self.c.failure, "the first tick")

    def runner(self, plan: Any, relations: Any) -> FakeRunner:
        self.runners.append(FakeRunner(plan, relations))
        return self.runners[-1]

    def runner_of(self, view: int) -> FakeRunner:
        found: FakeRunner = self.core.live.graph.jobs[view].runner
        return found

    @property
    def core(self) -> Any:
        return self.c._core

    def close(self) -> None:
        for runner in self.runners:
            runner.gate.set()
        self.c.stop(30)
        self.catalog.close()

    def table(self, name: str = "t", key: bool = False) -> int:
        return self.c.create_relation(
            ObjectRecord(0, TableContent(), "public", name, COLUMNS, primary_key=("n",) if key else ())
        )

    def source(self, name: str, **options: str) -> int:
        return self.c.create_relation(ObjectRecord(0, SourceContent(), "public", name, COLUMNS, options=options))

    def view(self, name: str, *inputs: int, wait: bool = True) -> int:
        sql = ",".join(map(str, inputs))
        record = ObjectRecord(0, MaterializedViewContent(spark_sql=sql), "public", name)
        made = self.c.create_view(record, self.planner.plan(sql))  # type: ignore[arg-type]
        if wait:
            self.c.wait_created(made, WAIT_S)
        return made

    def sink_into(self, name: str, table: int, *inputs: int, wait: bool = True, **options: str) -> int:
        sql = ",".join(map(str, inputs))
        content = SinkContent(spark_sql=sql, into=table)
        given = {"type": "upsert", "checkpoint_group": "own", **options}
        record = ObjectRecord(0, content, "public", name, options=given, depends_on=(*inputs, table))
        made = self.c.create_view(record, self.planner.plan(sql).into_table(1))  # type: ignore[arg-type]
        if wait:
            self.c.wait_created(made, WAIT_S)
        return made

    def insert(self, table: int, *values: int) -> int:
        return self.c.write(table, TableChange(rows(*values))).epoch

    def delete(self, table: int, *values: int) -> int:
        return self.c.write(table, TableChange(deletes=rows(*values))).epoch

    def read(self, *ids: int, at: int | None = None) -> list[list[int]]:
        with self.c.snapshot(ids, at=at, timeout_s=WAIT_S) as snapshot:
            return [self.values(snapshot.tables[i]) for i in ids]

    def values(self, table: Any) -> list[int]:
        found: Counter[int] = Counter()
        arrangement = Arrangement(table.schema, table.refs, self.core.storage.root, as_of=table.as_of)
        for batch in arrangement.scan():
            weights = np.asarray(batch.column("__w")).tolist()
            assert min(weights) > 0
            found.update(dict(zip(batch.column("n").to_pylist(), weights)))
        return sorted(found.elements())

    def status(self, view: int) -> Any:
        return next(j for j in self.c.jobs() if j.id == view)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something. It is looked at without the coordinator's lock: a read takes the catalog's first."""
        until_s = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < until_s, "it did not come true"
            with self.core.live.changed:
                self.core.live.changed.wait(POLL_S)

    def hold(self, *views: int) -> None:
        """Let the next epoch of each view begin and then wait; what there was to do before is done."""
        self.c.flush(WAIT_S)
        self.until(lambda: not any(self.core.live.graph.jobs[v].activity.epochs for v in views))
        for view in views:
            self.runner_of(view).gate.clear()
            self.runner_of(view).entered.clear()

    def until_held(self, view: int) -> None:
        """Wait until an epoch of a view has begun that `hold` keeps from ending."""
        assert self.runner_of(view).entered.wait(WAIT_S)

    def events(self, kind: str) -> list[str]:
        return [e.message for e in self.catalog.state.newest_events(1000) if e.kind == kind]

    def check_edges(self) -> None:
        for job in self.c.jobs():
            for upstream in self.core.live.graph.jobs[job.id].upstreams:
                assert self.core.live.graph.frontier(upstream) >= job.committed_epoch


def rows(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], schema=arrow_schema(COLUMNS))
