"""Queries over one table, or over none, that Arrow's kernels compute here: Spark plans them, and runs no job."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from sqlglot import exp

from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column
from headrace.coordinator.writes.layout import Key
from headrace.dataflow.kernels import register
from headrace.dataflow.operators.inputs import SnapshotScan
from headrace.dataflow.queries import KernelQuery, kernel_query
from headrace.plan.catalyst.bridge import Bridge
from headrace.session.engine import columns_of
from headrace.session.execution.select import compute
from headrace.session.execution.snapshots import open_snapshot
from headrace.session.names import Bound, quoted
from headrace.session.result import ResultColumn
from headrace.state.arrangement import Arrangement

if TYPE_CHECKING:
    from headrace.coordinator.reads import Snapshot
    from headrace.session.session import Session

ROWS_AT_MOST = 200_000
"""Stored rows of a table up to which a query over it is computed in this process."""
_KEPT = 1000
"""Plans that are kept."""
_TEXT_CHARS_AT_MOST = 10_000
"""Length of a query's text up to which it is looked at: each of its expressions costs several calls into Java."""
Wrap: TypeAlias = Callable[[list[ResultColumn], str], str]
_Key: TypeAlias = tuple[object, ...]


class KernelPlans:
    """Plans of queries by what they were made of. Safe to use from several threads."""

    def __init__(self) -> None:
        """Plans can be made once `renew` has brought a Spark."""
        self._spark: SparkSession | None = None
        self._bridge: Bridge | None = None
        self._leaves: dict[int, tuple[tuple[Column, ...], int | None]] = {}
        """What the bridge's session knows of each table: its columns, and the id of its leaf."""
        self._planning = threading.Lock()
        self._keeping = threading.Lock()
        self._kept: OrderedDict[_Key, KernelQuery | None] = OrderedDict()

    def renew(self, spark: SparkSession) -> None:
        """Plan in another Spark application from now on. What is kept stays: it needs none."""
        with self._planning:
            self._spark, self._bridge = spark, None
            self._leaves.clear()

    def kept(self, key: _Key) -> tuple[bool, KernelQuery | None]:
        """Whether it is known what a query is, and its plan; None where it is for Spark to run."""
        with self._keeping:
            if key not in self._kept:
                return False, None
            self._kept.move_to_end(key)
            return True, self._kept[key]

    def plan(self, key: _Key, table: ObjectRecord | None, text: str, wrap: Wrap) -> KernelQuery | None:
        """The plan of a query in Spark SQL that calls the table by its `leaf_name`. Raises what Spark does."""
        with self._planning:
            bridge = self._bridge
            if bridge is None:
                assert self._spark is not None, "whoever plans has waited for it"
                bridge = self._bridge = Bridge(self._spark)
                register([bridge.spark])
            leaf = None if table is None else self._leaf(bridge, table)
            frame = bridge.spark.sql(wrap(columns_of(bridge.spark.sql(text)), text))
            found = kernel_query(bridge.optimized_by_default(frame), leaf)
            keep = found is None or not bridge.tells_time(bridge.analyzed(frame), literals="'" in text)
        if keep:
            self._keep(key, found)
        return found

    def _leaf(self, bridge: Bridge, table: ObjectRecord) -> int | None:
        """Make the table known to the bridge's session; the id of its leaf."""
        known = self._leaves.get(table.id)
        if known is not None and known[0] == table.columns:
            return known[1]
        ddl = ", ".join(f"{quoted(c.name)} {c.type}" for c in table.columns)
        frame = bridge.relation(cast(StructType, StructType.fromDDL(ddl)))
        frame.createOrReplaceTempView(leaf_name(table.id).strip("`"))
        leaf = bridge.analyzed(frame).leaf_id
        self._leaves[table.id] = (table.columns, leaf)
        while len(self._leaves) > _KEPT:
            oldest = next(iter(self._leaves))
            del self._leaves[oldest]
            bridge.spark.catalog.dropTempView(leaf_name(oldest).strip("`"))
        return leaf

    def _keep(self, key: _Key, found: KernelQuery | None) -> None:
        with self._keeping:
            self._kept[key] = found
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)


def leaf_name(table_id: int) -> str:
    """The name of a table in the texts that are planned."""
    return f"`r{table_id}`"


@dataclass(frozen=True)
class AssignedQuery:
    """A query whose rows are assigned to columns of a table: its values are cast to their types."""

    bound: Bound
    targets: Sequence[Column]
    wrap: Wrap
    """Spark SQL with these casts around the query's text."""
    key: Key | None = None
    """The primary key of the only row that it reads of its table, where that is known."""
    exact: bool = False
    """Whether the wrap wants as many columns as there are targets."""
    weighted: bool = False
    """Whether the wrap puts a weight in front of the columns."""


def rows_of(session: Session, wanted: AssignedQuery) -> pa.Table:
    """All rows of a query: by kernels where they do what Spark does, else by Spark."""
    found = rows_by_kernels(session, wanted)
    return compute(session, wanted.bound, wanted.wrap) if found is None else found


def rows_by_kernels(session: Session, wanted: AssignedQuery) -> pa.Table | None:
    """All rows of a query as kernels compute them; None where Spark is to do it, or to say what is wrong.

    What is read is noted in the transaction, whatever comes of it.
    """
    table, known = _only_table(wanted.bound)
    if not known:
        return None
    plan = _planned(session, wanted, table)
    if plan is None:
        return None
    with ExitStack() as stack:
        batches: Iterator[pa.RecordBatch] = iter(())
        if table is not None and plan.reads:
            point = None if wanted.key is None else (table.id, wanted.key)
            snapshot = open_snapshot(session, wanted.bound, stack, point)
            assert snapshot is not None
            if wanted.key is None and sum(ref.rows for ref in snapshot.tables[table.id].refs) > ROWS_AT_MOST:
                return None
            batches = _stored(session, table, snapshot, wanted.key)
        return _run(plan, batches)


def kernels_over_table(
    session: Session, wanted: AssignedQuery, snapshot: Snapshot
) -> tuple[KernelQuery, SnapshotScan] | None:
    """The plan of a query that reads one table and nothing else, and what reads it; None where it is for Spark."""
    table, _ = _only_table(wanted.bound)
    plan = None if table is None else _planned(session, wanted, table)
    if table is None or plan is None or not all(branch.reads for branch in plan.branches):
        return None
    return plan, session.database.engine.scan(snapshot.tables[table.id], [c.name for c in table.columns])


def _run(plan: KernelQuery, batches: Iterator[pa.RecordBatch]) -> pa.Table | None:
    failed: list[BaseException] = []

    def reading() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except Exception as error:
            failed.append(error)
            raise

    try:
        return plan.run(reading())
    except Exception:  # of whatever kind: Spark gives the verdict, except on what cannot be read
        if failed:
            raise
        return None


def _only_table(bound: Bound) -> tuple[ObjectRecord | None, bool]:
    """The table that a query reads, or None for one that reads nothing; and whether that is all there is to it."""
    selects = list(bound.query.tree.find_all(exp.Select))
    targets = list(bound.targets.values())
    if bound.functions or len(targets) > 1:
        return None, False
    if not targets:
        return None, True
    only = targets[0]
    plain = isinstance(only, ObjectRecord) and only.content.writable and len(selects) == 1
    return (only, True) if plain and isinstance(only, ObjectRecord) else (None, False)


def _planned(session: Session, wanted: AssignedQuery, table: ObjectRecord | None) -> KernelQuery | None:
    text = wanted.bound.spark(lambda target: leaf_name(target.id) if isinstance(target, ObjectRecord) else "")
    if len(text) > _TEXT_CHARS_AT_MOST:
        return None
    kind = wanted.exact, wanted.weighted, wanted.bound.zone
    key = (text, tuple(wanted.targets), kind, None if table is None else (table.id, table.columns))
    plans = session.database.kernels
    known, plan = plans.kept(key)
    if known:
        return plan
    try:
        with session.jobs.running(wanted.bound.query.text):
            return plans.plan(key, table, text, wanted.wrap)
    except Exception:  # Spark says what is wrong when it is to run the query
        session.check()
        return None


def _stored(session: Session, table: ObjectRecord, snapshot: Snapshot, key: Key | None) -> Iterator[pa.RecordBatch]:
    """The table's rows, or those that may have the primary key, each as often as it is there."""
    stored = snapshot.tables[table.id]
    scan = session.database.engine.scan(stored, [c.name for c in table.columns])
    if key is not None:
        hashes = session.database.coordinator.writer.layout(table.id).hashes([key])
        found = Arrangement(stored.schema, stored.refs, scan.root, as_of=stored.as_of).fetch(hashes)
        yield from scan.expanded(scan.named(found))
        return
    for i in range(scan.parallelism):
        for batch in scan.slice(i):
            session.check()
            yield batch
