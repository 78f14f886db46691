"""Queries on Spark: leaves for snapshots, jobs that can be cancelled, results as a stream of Arrow batches."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column
from headrace.connectors.sources import Secrets, open_source
from headrace.dataflow.operators.inputs import SnapshotScan
from headrace.dataflow.spark import cores_of
from headrace.errors import SparkLost
from headrace.plan.catalyst.answers import UNANSWERED
from headrace.plan.catalyst.bridge import PLANNING_CONF
from headrace.plan.catalyst.java_calls import cancel_jobs, set_property
from headrace.plan.failures import translate
from headrace.session.keeper import SparkKeeper
from headrace.session.kept_queries import KeptQueries, ToldLeaf
from headrace.session.leaves import TOLD, RelationFunction, SourceFunction, StateFunction, ToldFunction
from headrace.session.result import ResultColumn
from headrace.session.scans import scan_of, slices_of
from headrace.sql.binder.spark_text import quoted
from headrace.state.stores import Root

if TYPE_CHECKING:
    from headrace.coordinator.reads import Snapshot, SnapshotTable

# Spark's client logs every failing statement in full; here the error itself goes to whoever sent the statement.
PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True

_SMALL_ROWS = 200_000
"""Stored rows up to which a query may copy relations to every task."""


class Engine:
    """Owns the Spark sessions that queries run in, and makes leaves for them. Thread-safe."""

    def __init__(self, root: Root, parallelism: int | None):
        """Queries can be run once `renew` has brought a Spark. `parallelism` is by default what fits that."""
        self.root = root
        self.parallelism = parallelism or os.cpu_count() or 1
        self._fixed = parallelism
        self._numbers = itertools.count(1)
        self.sessions: list[SparkSession] = []
        """All Spark sessions in which queries run: for queries over few rows, and for others."""
        self.application = 0
        """Which Spark it is that queries run in."""
        self.kept = KeptQueries()

    def renew(self, spark: SparkSession) -> None:
        """Run queries in another Spark application from now on."""
        self.parallelism = self._fixed or cores_of(spark)
        self.sessions = [_session(spark, self.parallelism, most) for most in ("10485760", "-1")]
        self.application += 1
        self.kept.clear()

    def session_of(self, small: bool) -> SparkSession:
        """The session for queries over few rows, or for others."""
        if not self.sessions:
            raise SparkLost("Spark has not started yet", hint="run the statement again")
        return self.sessions[0 if small else 1]

    def session_for(self, snapshot: Snapshot | None) -> SparkSession:
        """The session for a query over a snapshot."""
        return self.session_of(is_small(snapshot))

    def told_leaf(self, spark: SparkSession, leaf: ToldLeaf) -> DataFrame:
        """A stored relation as of the snapshot that the job tells of."""
        columns = [Column(n, t) for n, t in zip(leaf.scan.names, leaf.types, strict=True)]
        return _mapped(spark, ToldFunction(leaf.scan, leaf.relation), leaf.scan.parallelism, columns)

    def table_leaf(self, spark: SparkSession, relation: int, table: SnapshotTable, names: Sequence[str]) -> DataFrame:
        """A stored relation's columns `names` as of its snapshot."""
        scan = self.scan(table, names)
        types = {c.name: c.type for c in table.columns}
        function = RelationFunction(scan, relation)
        return _mapped(spark, function, scan.parallelism, [Column(n, types[n]) for n in names])

    def scan(self, table: SnapshotTable, names: Sequence[str]) -> SnapshotScan:
        """What reads a stored relation's columns `names` slice by slice."""
        return scan_of(table, names, self.root, slices_of(table.refs, self.parallelism))

    def reading(
        self, spark: SparkSession, scan: SnapshotScan, function: object, columns: Sequence[Column]
    ) -> DataFrame:
        """The columns that a function for `mapInArrow` makes of what it reads by a scan."""
        return _mapped(spark, function, scan.parallelism, columns)

    def state_leaf(
        self, spark: SparkSession, table: SnapshotTable, columns: Sequence[Column], names: Sequence[str]
    ) -> DataFrame:
        """A state table's columns `names` as stored."""
        parallelism = slices_of(table.refs, self.parallelism)
        function = StateFunction(
            table.schema, table.refs, self.root, table.as_of, table.watermark, tuple(names), parallelism
        )
        types = {c.name: c.type for c in columns}
        return _mapped(spark, function, parallelism, [Column(n, types[n]) for n in names])

    def source_leaf(
        self, spark: SparkSession, record: ObjectRecord, offsets: Mapping[str, object], names: Sequence[str],
        secrets: Secrets | None = None,
    ) -> DataFrame:  # fmt: skip
        """A source's rows from its start to the offsets."""
        source = open_source(record.options, record.columns, secrets)
        values = {} if secrets is None else dict(secrets())
        tasks = tuple(source.plan(source.start_offsets(), dict(offsets), self.parallelism))
        function = SourceFunction(
            record.options, record.columns, tuple(names), tasks, self.parallelism, record.id, values
        )
        types = {c.name: c.type for c in record.columns}
        return _mapped(spark, function, self.parallelism, [Column(n, types[n]) for n in names])

    @contextmanager
    def views(self, frames: Mapping[int, DataFrame]) -> Iterator[dict[int, str]]:
        """Names under which the frames can be queried inside the block."""
        number = next(self._numbers)
        names = {i: f"q{number}_r{i}" for i in frames}
        try:
            for i, frame in frames.items():
                frame.createOrReplaceTempView(names[i])
            yield {i: quoted(name) for i, name in names.items()}
        finally:
            for i, frame in frames.items():
                frame.sparkSession.catalog.dropTempView(names[i])

    def analyze(self, text: str) -> list[ResultColumn]:
        """The columns of a query in Spark SQL, without running it."""
        return columns_of(self.session_of(True).sql(text))


def is_small(snapshot: Snapshot | None) -> bool:
    """Whether a query over a snapshot may copy relations to every task."""
    rows = sum(ref.rows for t in snapshot.tables.values() for ref in t.refs) if snapshot is not None else 0
    return rows <= _SMALL_ROWS


READING_CONF: Final = {
    # Spark loses a column of which a window uses a field, too.
    "spark.sql.optimizer.nestedSchemaPruning.enabled": "false",
    # It adds up numbers in another order, in which they may be too large.
    "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.ReorderAssociativeOperator",
}
"""Settings of queries alone: with them existing views would be planned otherwise."""


def _session(spark: SparkSession, parallelism: int, broadcast_bytes: str) -> SparkSession:
    session = spark.newSession()
    for key, value in PLANNING_CONF.items():
        session.conf.set(key, value)
    for key, value in READING_CONF.items():
        session.conf.set(key, value)
    session.conf.set("spark.sql.shuffle.partitions", str(parallelism))
    session.conf.set("spark.sql.autoBroadcastJoinThreshold", broadcast_bytes)
    return session


def _mapped(spark: SparkSession, function: Any, parallelism: int, columns: Sequence[Column]) -> DataFrame:
    ddl = ", ".join(f"{quoted(c.name)} {c.type}" for c in columns)
    return spark.range(0, parallelism, 1, parallelism).mapInArrow(function, ddl)


def columns_of(frame: DataFrame) -> list[ResultColumn]:
    """The columns of a DataFrame."""
    return [ResultColumn(f.name, f.dataType.simpleString()) for f in frame.schema.fields]


class Jobs:
    """The Spark jobs of one session: run in the query pool, cancelled as one from any thread.

    `check` raises if the running statement was cancelled: it is asked before any job starts. `wait` returns once Spark
    is there.
    """

    def __init__(self, keeper: SparkKeeper, name: str, check: Callable[[], None], wait: Callable[[], None]):
        self._keeper = keeper
        self._name = name
        self._check = check
        self._wait = wait
        self._lock = threading.RLock()  # `check` may find that time is up, and cancel: in here, again
        self._groups: set[str] = set()
        self._numbers = itertools.count(1)

    @contextmanager
    def running(self, text: str) -> Iterator[None]:
        """Jobs started inside the block belong to the session; errors of Spark come out as headrace's."""
        self._wait()
        session = self._keeper.session
        assert session is not None
        context = session.sparkContext
        with self._lock:
            self._check()
            group = f"{self._name}-{next(self._numbers)}"
            self._groups.add(group)
        context.setLocalProperty("spark.scheduler.pool", "query")
        context.setJobGroup(group, text[:200], False)
        try:
            yield
        except Exception as error:
            raise translate(error) from error
        finally:
            with self._lock:
                self._groups.discard(group)
            with suppress(*UNANSWERED):  # Spark may have ended
                for key in ("spark.scheduler.pool", "spark.jobGroup.id", "spark.job.description"):
                    set_property(context, key, None)

    @contextmanager
    def telling(self, told: str | None) -> Iterator[None]:
        """Jobs that this thread starts inside the block tell their leaves what to read; None is nothing."""
        session = self._keeper.session
        if told is None or session is None:
            yield
            return
        context = session.sparkContext
        set_property(context, TOLD, told)
        try:
            yield
        finally:
            with suppress(*UNANSWERED):
                set_property(context, TOLD, None)

    def cancel(self) -> None:
        """Stop what runs, and what is about to."""
        session = self._keeper.session
        if session is None:  # without Spark nothing runs
            return
        with self._lock:
            for group in self._groups:
                cancel_jobs(session.sparkContext, group)
