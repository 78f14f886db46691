"""Queries over one table, or over none, that Arrow's kernels compute here: Spark plans them, and runs no job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column, arrow_schema
from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.writes.layout import Key
from headrace.dataflow.operators.inputs import SnapshotScan
from headrace.dataflow.queries import KernelQuery
from headrace.session.context import Context
from headrace.session.execution.select import compute
from headrace.session.execution.snapshots import open_snapshot
from headrace.session.kernel_plans import Wrap, leaf_name
from headrace.session.names import BoundQuery, check_same, names_of
from headrace.sql.parser import parse_query
from headrace.sql.query import Query
from headrace.state.arrangement import Arrangement

if TYPE_CHECKING:
    from headrace.coordinator.reads import Snapshot

ROWS_AT_MOST = 200_000
"""Stored rows of a table up to which a query over it is computed in this process."""
_TEXT_CHARS_AT_MOST = 10_000
"""Length of a query's text up to which it is looked at: each of its expressions costs several calls into Java."""


@dataclass(frozen=True)
class AssignedQuery:
    """A query whose rows are assigned to columns of a table: its values are cast to their types."""

    bound: BoundQuery
    targets: Sequence[Column]
    wrap: Wrap
    """Spark SQL with these casts around the query's text."""
    key: Key | None = None
    """The primary key of the only row that it reads of its table, where that is known."""
    exact: bool = False
    """Whether the wrap wants as many columns as there are targets."""
    weighted: bool = False
    """Whether the wrap puts a weight in front of the columns."""


def rows_of(context: Context, wanted: AssignedQuery) -> pa.Table:
    """All rows of a query: by kernels where they do what Spark does, else by Spark."""
    found = rows_by_kernels(context, wanted)
    return compute(context, wanted.bound, wanted.wrap) if found is None else found


def rows_by_kernels(context: Context, wanted: AssignedQuery) -> pa.Table | None:
    """All rows of a query as kernels compute them; None where Spark is to do it, or to say what is wrong.

    What is read is noted in the transaction, whatever comes of it.
    """
    table, known = _only_table(wanted.bound)
    if not known:
        return None
    plan = _planned(context, wanted, table)
    if plan is None:
        return None
    with ExitStack() as stack:
        batches: Iterator[pa.RecordBatch] = iter(())
        if table is not None and plan.reads:
            point = None if wanted.key is None else (table.id, wanted.key)
            snapshot = open_snapshot(context, wanted.bound, stack, point)
            assert snapshot is not None
            if wanted.key is None and sum(ref.rows for ref in snapshot.tables[table.id].refs) > ROWS_AT_MOST:
                return None
            batches = _stored(context, table, snapshot, wanted.key)
        return _run(plan, batches)


def kernels_over_table(
    context: Context, wanted: AssignedQuery, snapshot: Snapshot
) -> tuple[KernelQuery, SnapshotScan] | None:
    """The plan of a query that reads one table and nothing else, and what reads it; None where it is for Spark."""
    table, _ = _only_table(wanted.bound)
    plan = None if table is None else _planned(context, wanted, table)
    if table is None or plan is None or not all(branch.reads for branch in plan.branches):
        return None
    return plan, context.engine.scan(snapshot.tables[table.id], [c.name for c in table.columns])


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


def _only_table(bound: BoundQuery) -> tuple[ObjectRecord | None, bool]:
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


def _planned(context: Context, wanted: AssignedQuery, table: ObjectRecord | None) -> KernelQuery | None:
    leaf = lambda target: leaf_name(target.id) if isinstance(target, ObjectRecord) else ""  # noqa: E731
    text = wanted.bound.spark(leaf, context.times)
    if len(text) > _TEXT_CHARS_AT_MOST:
        return None
    kind = wanted.exact, wanted.weighted, wanted.bound.zone
    key = (text, tuple(wanted.targets), kind, None if table is None else (table.id, table.columns))
    plans = context.kernels
    known, plan = plans.kept(key)
    if known:
        return plan
    try:
        with context.jobs.running(wanted.bound.query.text):
            return plans.plan(None if wanted.bound.uses_now else key, table, text, wanted.wrap)
    except Exception:  # Spark says what is wrong when it is to run the query
        context.check()
        return None


def all_rows(context: Context, table: ObjectRecord) -> pa.Table | None:
    """A table's rows as the session sees them, without Spark; None where there are too many to have them here."""
    bound = BoundQuery(all_of(table), names_of(context))
    for found in bound.targets.values():
        check_same(found, table)
    with ExitStack() as stack:
        snapshot = open_snapshot(context, bound, stack)
        assert snapshot is not None
        if sum(ref.rows for ref in snapshot.tables[table.id].refs) > ROWS_AT_MOST:
            return None
        schema = arrow_schema([Column(c.name, c.type) for c in table.columns])
        return pa.Table.from_batches((b.cast(schema) for b in _stored(context, table, snapshot, None)), schema)


def all_of(table: ObjectRecord) -> Query:
    """The query for a table's rows."""
    names = ", ".join(_name(c.name) for c in table.columns)
    return parse_query(f"SELECT {names} FROM {_name(table.schema)}.{_name(table.name)}")


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _stored(context: Context, table: ObjectRecord, snapshot: Snapshot, key: Key | None) -> Iterator[pa.RecordBatch]:
    """The table's rows, or those that may have the primary key, each as often as it is there."""
    stored = snapshot.tables[table.id]
    scan = context.engine.scan(stored, [c.name for c in table.columns])
    if key is not None:
        hashes = context.coordinator.tables.layout(table.id).hashes([key])
        found = Arrangement(stored.schema, stored.refs, scan.root, as_of=stored.as_of).fetch(hashes)
        yield from scan.expanded(scan.named(found))
        return
    for i in range(scan.parallelism):
        for batch in scan.slice(i):
            context.check()
            yield batch
