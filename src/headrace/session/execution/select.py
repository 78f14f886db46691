"""SELECT: from a resolved query to a result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame
from sqlglot import exp

from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column
from headrace.session.engine import columns_of, stream
from headrace.session.execution.as_of import as_of_epoch, within_complete
from headrace.session.execution.simple import (
    SORT_ROWS,
    Scan,
    constant_row,
    count_rows,
    scan_batches,
    simple_scan,
)
from headrace.session.names import Bound, Target, null_relation
from headrace.session.result import Notice, Result, ResultColumn
from headrace.session.system.state import StateRelation
from headrace.sql.query import Query

if TYPE_CHECKING:
    from headrace.coordinator.reads import Snapshot
    from headrace.session.session import Session


class Stream:
    """An iterator over batches that holds on to what they are read from until they end or it is closed."""

    def __init__(self, batches: Iterator[pa.RecordBatch], release: Callable[[], None], check: Callable[[], None]):
        self._batches = batches
        self._release = release
        self._check = check
        self._first: list[pa.RecordBatch] = []

    def start(self) -> Stream:
        """Fetch the first batch, so that errors come up now."""
        try:
            self._first = [next(self._batches)]
        except StopIteration:
            self.close()
        except BaseException:
            self.close()
            raise
        return self

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> pa.RecordBatch:
        if self._first:
            return self._first.pop()
        try:
            self._check()
            return next(self._batches)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go; harmless when repeated."""
        batches, self._batches = self._batches, iter(())
        close = getattr(batches, "close", None)
        if close is not None:
            close()
        release, self._release = self._release, lambda: None
        release()

    def __del__(self) -> None:
        self.close()


def select(session: Session, query: Query) -> Result:
    """The result of a query."""
    query = session.localized(query)
    constant = constant_row(query)
    if constant is not None:
        columns, row = constant
        return Result("SELECT", columns, iter([row]))
    bound = Bound(query, session.names())
    with ExitStack() as stack:
        snapshot = open_snapshot(session, bound, stack)
        scanned = _scan(session, bound, snapshot)
        if scanned is not None:
            columns, batches = scanned
        else:
            text = query.text
            frame = frame_of(session, bound, snapshot)
            columns, batches = columns_of(frame), _computed(session, frame, text)
        notices = [Notice(text, "WARNING", "01000") for text in snapshot.notices] if snapshot is not None else []
        held = stack.pop_all()
    return Result("SELECT", columns, Stream(batches, held.close, session.check).start(), notices)


def _computed(session: Session, frame: DataFrame, text: str) -> Iterator[pa.RecordBatch]:
    with session.jobs.running(text):
        yield from stream(frame)


def compute(session: Session, bound: Bound, wrap: Callable[[list[ResultColumn], str], str]) -> pa.Table:
    """All rows of a query after `wrap` has put more Spark SQL around its text."""
    with ExitStack() as stack:
        snapshot = open_snapshot(session, bound, stack)
        found = describe(session, bound)
        frame = frame_of(session, bound, snapshot, lambda text: wrap(found, text))
        batches = list(_computed(session, frame, bound.query.text))
        columns = columns_of(frame)
    if not batches:
        return Result("", columns).table()
    return pa.Table.from_batches(batches)


def describe(session: Session, bound: Bound) -> list[ResultColumn]:
    """The columns of a query, without running it."""
    with session.jobs.running(bound.query.text):
        return session.database.engine.analyze(bound.spark(lambda target: null_relation(target.columns)))


def describe_query(session: Session, query: Query) -> list[ResultColumn]:
    """The columns of a query, by the shortest way."""
    query = session.localized(query)
    constant = constant_row(query)
    if constant is not None:
        return constant[0]
    bound = Bound(query, session.names())
    target = _only(bound)
    plan = simple_scan(query, target.columns) if target is not None else None
    if plan is not None and target is not None:
        return plan.columns(target.columns)
    return describe(session, bound)


def open_snapshot(session: Session, bound: Bound, stack: ExitStack) -> Snapshot | None:
    """What a query reads of relations and state tables, pinned until the stack ends; None where that is nothing."""
    snapshot = _open_relations(session, bound, stack)
    internal = bound.state_tables()
    if internal:
        held = stack.enter_context(session.database.coordinator.state_snapshot(sorted(internal)))
        if snapshot is None:
            return held
        snapshot.tables.update(held.tables)
    return snapshot


def _open_relations(session: Session, bound: Bound, stack: ExitStack) -> Snapshot | None:
    relations = bound.relations()
    if not relations:
        return None
    now_ms = session.database.now_ms()
    at = as_of_epoch(bound, now_ms)
    if at is not None:
        at = within_complete(at, now_ms, session.database.coordinator.current_epoch())
    return stack.enter_context(session.snapshot(sorted(relations), at))


def _only(bound: Bound) -> Target | None:
    """The one stored table or view that the query reads directly."""
    targets = list(bound.targets.values())
    if len(targets) != 1 or not isinstance(targets[0], ObjectRecord):
        return None
    return targets[0] if targets[0].kind in ("table", "materialized_view") else None


def _scan(
    session: Session, bound: Bound, snapshot: Snapshot | None
) -> tuple[list[ResultColumn], Iterator[pa.RecordBatch]] | None:
    target = _only(bound)
    if snapshot is None or not isinstance(target, ObjectRecord):
        return None
    plan = simple_scan(bound.query, target.columns)
    if plan is None:
        return None
    table = snapshot.tables[target.id]
    rows = sum(ref.rows for ref in table.refs)
    if plan.order and rows > SORT_ROWS:
        return None
    names = plan.names() or (target.columns[0].name,)
    scan = session.database.engine.scan(table, names)
    if plan.count is not None:
        number = pa.array([count_rows(scan)], pa.int64())
        return plan.columns(()), iter([pa.RecordBatch.from_arrays([number], names=[plan.count])])
    return _scan_columns(plan, target.columns), scan_batches(plan, scan)


def _scan_columns(plan: Scan, columns: Sequence[Column]) -> list[ResultColumn]:
    return plan.columns(columns)


def frame_of(session: Session, bound: Bound, snapshot: Snapshot | None, wrap: Callable[[str], str] = str) -> DataFrame:
    """The query over a snapshot as a Spark DataFrame."""
    engine = session.database.engine
    mentioned = _mentioned(bound)
    frames: dict[int, DataFrame] = {}
    with session.jobs.running(bound.query.text):
        spark = engine.session_for(snapshot)
        for i, relation in bound.state_tables().items():
            assert snapshot is not None
            names = pruned(relation.columns, mentioned)
            frames[i] = engine.state_leaf(spark, snapshot.tables[i], relation.columns, names)
        for record in bound.relations().values():
            assert snapshot is not None
            names = pruned(record.columns, mentioned)
            if record.kind == "source":
                frames[record.id] = engine.source_leaf(spark, record, snapshot.sources.get(record.id, {}), names)
            else:
                frames[record.id] = engine.table_leaf(spark, record.id, snapshot.tables[record.id], names)
        with engine.views(frames) as labels:
            return spark.sql(wrap(bound.spark(lambda target: _leaf(session, target, labels, mentioned))))


def _leaf(session: Session, target: Target, labels: dict[int, str], mentioned: frozenset[str] | None) -> str:
    if isinstance(target, StateRelation):
        return labels[target.table_id]
    if isinstance(target, ObjectRecord):
        return labels[target.id]
    return target.text(session, pruned(target.columns, mentioned))


def pruned(columns: Sequence[Column], mentioned: frozenset[str] | None) -> list[str]:
    """The names of the columns to read; at least one."""
    if mentioned is None:
        return [c.name for c in columns]
    return [c.name for c in columns if c.name in mentioned] or [columns[0].name]


def _mentioned(bound: Bound) -> frozenset[str] | None:
    """Every identifier of the query and its views; None where it may mean columns that it does not name."""
    found: set[str] = set()
    for query in bound.queries():
        tree = query.tree
        for node in tree.walk():
            if isinstance(node, exp.Star) and not isinstance(node.parent, exp.Count):
                return None
            if isinstance(node, exp.Join) and str(node.args.get("method") or "").upper() == "NATURAL":
                return None
            if isinstance(node, exp.Identifier):
                found.add(node.name)
        aliases = {t.alias_or_name for t in tree.find_all(exp.Table)}
        if any(c.name in aliases and not c.table for c in tree.find_all(exp.Column)):
            return None
    return frozenset(found)
