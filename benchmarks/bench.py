"""What the benchmarks share: a database on a scratch directory, bulk writes, waiting for a view, a table of figures."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

import headrace
from headrace.config import Settings
from headrace.coordinator import TableChange
from headrace.dataflow.spark import local_session

Columns = Mapping[str, np.ndarray]

_CALM_S, _CALM_SHARE = 0.5, 0.2
"""A process is calm that uses less than this share of a core for so long."""


def session() -> SparkSession:
    """One Spark for both engines, in memory enough for the largest case."""
    return local_session(driver_memory="6g")


@contextmanager
def database(spark: SparkSession, **settings: Any) -> Iterator[headrace.Database]:
    """A new database that is removed afterwards; ticks are slow because every write wakes its views by itself."""
    path = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    options = {"barrier_interval_ms": 60_000, "max_rows_per_epoch": 100_000_000, **settings}
    db = headrace.connect(path, spark=spark, settings=Settings(data_dir=path, **options))
    try:
        yield db
    finally:
        db.close()
        shutil.rmtree(path, ignore_errors=True)


def relation_id(db: headrace.Database, name: str) -> int:
    """The id of a table or view in the public schema."""
    found = db.catalog.image.object_named("public", name)
    assert found is not None, name
    return found.id


def batch(columns: Columns) -> pa.RecordBatch:
    """The columns as Arrow."""
    return pa.RecordBatch.from_pydict({name: pa.array(values) for name, values in columns.items()})


def write(db: headrace.Database, table: str, columns: Columns) -> int:
    """Insert rows through the coordinator, durable on return; returns their epoch."""
    return db.coordinator.write(relation_id(db, table), TableChange(inserts=batch(columns))).epoch


def wait_for(db: headrace.Database, view: str, epoch: int, timeout_s: float = 600) -> None:
    """Until the view has committed everything up to the epoch."""
    job = relation_id(db, view)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        status = next(j for j in db.coordinator.jobs() if j.id == job)
        if status.error:
            raise RuntimeError(status.error)
        if status.frontier >= epoch:
            return
        time.sleep(0.002)
    raise TimeoutError(view)


def epoch_s(db: headrace.Database, view: str, writes: Sequence[tuple[str, Columns]]) -> float:
    """Seconds from the last write's return to the view's commit that has all of them.

    Of several writes all go into one epoch: the view is paused meanwhile.
    """
    job = relation_id(db, view)
    if len(writes) > 1:
        db.coordinator.alter_job(job, paused=True)
    epoch = max(write(db, table, columns) for table, columns in writes)
    started = time.perf_counter()
    if len(writes) > 1:
        db.coordinator.alter_job(job, paused=False)
    wait_for(db, view, epoch)
    return time.perf_counter() - started


def change_s(db: headrace.Database, view: str, table: str, change: TableChange) -> float:
    """Seconds from the return of a change to the view's commit that has it."""
    epoch = db.coordinator.write(relation_id(db, table), change).epoch
    started = time.perf_counter()
    wait_for(db, view, epoch)
    return time.perf_counter() - started


def cpu_s(spark: SparkSession) -> tuple[float, float, float]:
    """Processor seconds used so far by this process, by Spark's JVM, and by the Python workers below it."""
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    ticks, parents = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            # Of children that have ended the daemon knows as well.
            ticks[int(path.parent.name)] = sum(map(int, fields[11:15]))
            parents[int(path.parent.name)] = int(fields[1])

    def below(process: int) -> int:
        return sum(ticks[p] + below(p) for p, parent in parents.items() if parent == process)

    own = os.times()
    return own.user + own.system, *(t / os.sysconf("SC_CLK_TCK") for t in (ticks[jvm], below(jvm)))


def settle(spark: SparkSession, at_most_s: float = 60.0) -> None:
    """Wait until what follows the creation of a view (merges, deletions, Java's compiler) has calmed down."""
    until = time.monotonic() + at_most_s
    while time.monotonic() < until:
        before = sum(cpu_s(spark))
        time.sleep(_CALM_S)
        if sum(cpu_s(spark)) - before < _CALM_SHARE * _CALM_S:
            return


class Stream:
    """A Structured Streaming query over directories of Parquet files, one file of each for every micro-batch."""

    def __init__(self, spark: SparkSession, schemas: Mapping[str, str]):
        self.spark = spark.newSession()
        for key, value in {
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.streaming.stateStore.providerClass": (
                "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
            ),
            "spark.sql.streaming.pollingDelay": "250ms",
            "spark.sql.streaming.numRecentProgressUpdates": "1000",
        }.items():
            self.spark.conf.set(key, value)
        self.root = Path(tempfile.mkdtemp(prefix="headrace-peer-"))
        self.schemas = schemas
        self.count = 0
        for name in schemas:
            (self.root / name).mkdir()
        self.query: Any = None

    def source(self, name: str) -> DataFrame:
        """The stream of one directory."""
        reader = self.spark.readStream.schema(self.schemas[name]).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.root / name))

    def start(self, frame: DataFrame, mode: str) -> None:
        """Run the query into a sink that drops the rows."""
        writer = frame.writeStream.format("noop").outputMode(mode)
        self.query = writer.option("checkpointLocation", str(self.root / "checkpoint")).start()

    def put(self, name: str, columns: Columns) -> None:
        """Add a file."""
        self.count += 1
        target = self.root / name / f"{self.count:06d}.parquet"
        temporary = self.root / f"{self.count}.tmp"
        pq.write_table(pa.table({k: pa.array(v) for k, v in columns.items()}), temporary)
        os.rename(temporary, target)

    def drain(self) -> list[float]:
        """Process all files; the durations in seconds of the micro-batches that had rows, so far."""
        self.query.processAllAvailable()
        progress = [json.loads(p.json) if not isinstance(p, dict) else p for p in self.query.recentProgress]
        return [p["durationMs"]["triggerExecution"] / 1000 for p in progress if p["numInputRows"] > 0]

    def close(self) -> None:
        """Stop the query and remove its files."""
        if self.query is not None:
            self.query.stop()
        shutil.rmtree(self.root, ignore_errors=True)


def median(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    table = Table(title=title, title_justify="left")
    for i, name in enumerate(header):
        table.add_column(name, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=120).print(table)
