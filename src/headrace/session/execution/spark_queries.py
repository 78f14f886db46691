"""Queries on Spark: as DataFrames over a snapshot, and by plans that are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame
from sqlglot import exp

from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column
from headrace.dataflow.operators.inputs import SnapshotScan
from headrace.plan.catalyst.java_calls import stream
from headrace.plan.catalyst.kept import KeptPlan
from headrace.session.context import Context
from headrace.session.engine import columns_of, is_small
from headrace.session.kept_queries import CHARS_AT_MOST, KeptQuery, Shape, ToldLeaf
from headrace.session.leaves import blank, told_runs
from headrace.session.names import BoundQuery, Target
from headrace.session.result import ResultColumn, closing_if_possible
from headrace.session.system.state_relations import StateRelation

if TYPE_CHECKING:
    from headrace.coordinator.reads import Snapshot

_TOLD_AT_MOST: Final = 256 * 1024
"""Length of what each task is told of the runs to read, up to which a plan that is kept is run."""
Rows: TypeAlias = tuple[list[ResultColumn], Iterator[pa.RecordBatch]]


def rows_on_spark(context: Context, bound: BoundQuery, snapshot: Snapshot | None) -> Rows:
    """The columns and rows of a query over a snapshot, by the plan that is kept of it if there is one."""
    context.wait_for_spark()
    rows = _rows_again(context, bound, snapshot) if context.settings.kept_spark_plans else None
    if rows is not None:
        return rows
    frame = frame_of(context, bound, snapshot)
    return columns_of(frame), computed(context, bound.query.text, stream(frame))


def computed(
    context: Context, text: str, batches: Iterator[pa.RecordBatch], told: str | None = None
) -> Iterator[pa.RecordBatch]:
    """What Spark computes, as jobs of the session that runs the text; `told` is what their leaves are to read."""
    with context.jobs.running(text), closing_if_possible(batches):
        # All rows are computed before the first one comes; how fast the client takes them is its own matter.
        with context.turns.one(context.check), context.jobs.telling(told):
            first = next(batches, None)
        if first is not None:
            yield first
            yield from batches


# ---- plans that are kept


def _rows_again(context: Context, bound: BoundQuery, snapshot: Snapshot | None) -> Rows | None:
    """The columns and rows of a query that was asked before; None where it is to be planned for this once."""
    scans = None if bound.uses_now else _scans(context, bound, snapshot)
    shape = None if scans is None else _shape(context, bound, snapshot, scans)
    told = "" if scans is None else told_runs(scans)
    if shape is None or len(shape.text) > CHARS_AT_MOST or len(told) > _TOLD_AT_MOST:
        return None
    queries, text = context.engine.kept, bound.query.text
    kept = queries.find(shape)
    if kept is not None:
        return kept.columns, computed(context, text, kept.plan.stream(), told)
    if not queries.is_wanted(shape):
        return None
    frame = _told_frame(context, bound, shape)
    columns = columns_of(frame)
    with context.jobs.running(text):
        plan = KeptPlan.of(frame)
    if plan is None:
        queries.refuse(shape)
        return columns, computed(context, text, stream(frame), told)
    queries.keep(shape, KeptQuery(plan, columns))
    return columns, computed(context, text, plan.stream(), told)


def _scans(context: Context, bound: BoundQuery, snapshot: Snapshot | None) -> dict[int, SnapshotScan] | None:
    """What reads each relation of a query; None where it reads anything but tables and views, or is not bound."""
    if not bound.by_binder:
        return None
    mentioned, scans = _mentioned(bound), {}
    for target in bound.leaves():
        if not isinstance(target, ObjectRecord) or target.content.external:
            return None
        assert snapshot is not None
        scans[target.id] = context.engine.scan(snapshot.tables[target.id], pruned(target.columns, mentioned))
    return scans


def _shape(
    context: Context, bound: BoundQuery, snapshot: Snapshot | None, scans: Mapping[int, SnapshotScan]
) -> Shape:  # fmt: skip
    types = {record.id: {c.name: c.type for c in record.columns} for record in bound.relations().values()}
    leaves = [ToldLeaf(i, blank(scan), tuple(types[i][n] for n in scan.names)) for i, scan in sorted(scans.items())]
    labels = {i: f"`\1{i}`" for i in scans}  # as nothing else is called
    text = bound.spark(lambda target: _leaf(context, target, labels, None), context.times)
    return Shape(text, is_small(snapshot), tuple(leaves), context.engine.application)


def _told_frame(context: Context, bound: BoundQuery, shape: Shape) -> DataFrame:
    """The query as a DataFrame whose jobs have to be told what to read."""
    engine = context.engine
    with context.jobs.running(bound.query.text):
        spark = engine.session_of(shape.small)
        with engine.views({leaf.relation: engine.told_leaf(spark, leaf) for leaf in shape.leaves}) as labels:
            return spark.sql(bound.spark(lambda target: _leaf(context, target, labels, None), context.times))


# ---- DataFrames


def frame_of(
    context: Context, bound: BoundQuery, snapshot: Snapshot | None, wrap: Callable[[str], str] = str
) -> DataFrame:
    """The query over a snapshot as a Spark DataFrame."""
    engine = context.engine
    mentioned = _mentioned(bound)
    frames: dict[int, DataFrame] = {}
    with context.jobs.running(bound.query.text):
        spark = engine.session_for(snapshot)
        for i, relation in bound.state_tables().items():
            assert snapshot is not None
            names = pruned(relation.columns, mentioned)
            frames[i] = engine.state_leaf(spark, snapshot.tables[i], relation.columns, names)
        for record in bound.relations().values():
            assert snapshot is not None
            names = pruned(record.columns, mentioned)
            if record.content.external:
                secrets = context.coordinator.secrets(record.secrets)
                offsets = snapshot.sources.get(record.id, {})
                frames[record.id] = engine.source_leaf(spark, record, offsets, names, secrets)
            else:
                frames[record.id] = engine.table_leaf(spark, record.id, snapshot.tables[record.id], names)
        with engine.views(frames) as labels:
            return spark.sql(wrap(bound.spark(lambda target: _leaf(context, target, labels, mentioned), context.times)))


def _leaf(context: Context, target: Target, labels: dict[int, str], mentioned: frozenset[str] | None) -> str:
    if isinstance(target, StateRelation):
        return labels[target.table_id]
    if isinstance(target, ObjectRecord):
        return labels[target.id]
    return target.text(context, pruned(target.columns, mentioned))


def pruned(columns: Sequence[Column], mentioned: frozenset[str] | None) -> list[str]:
    """The names of the columns to read; at least one."""
    if mentioned is None:
        return [c.name for c in columns]
    return [c.name for c in columns if c.name in mentioned] or [columns[0].name]


def _mentioned(bound: BoundQuery) -> frozenset[str] | None:
    """Every identifier of the query and its views; None where it may mean columns that it does not name."""
    found: set[str] = set()
    for query in bound.queries():
        tree = query.tree
        for node in tree.walk():
            if isinstance(node, exp.Star) and not isinstance(node.parent, exp.Count):
                return None
            if isinstance(node, exp.TableAlias) and node.args.get("columns") and isinstance(node.parent, exp.Table):
                return None  # its columns go by other names
            if isinstance(node, exp.Join) and str(node.args.get("method") or "").upper() == "NATURAL":
                return None
            if isinstance(node, exp.Identifier):
                found.add(node.name)
        aliases = {t.alias_or_name for t in tree.find_all(exp.Table)}
        if any(c.name in aliases and not c.table for c in tree.find_all(exp.Column)):
            return None
    return frozenset(found)
