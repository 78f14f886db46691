"""Writes of any size: computed and written by Spark's tasks, committed by the server once.

Tasks turn rows into runs (`dataflow/operators/table_write.py`), after a shuffle by `__k` where rows may meet others
with their primary key, and the transaction gets the runs as parts. Their epoch is that of the catalog's record, so
the commit writes none of them again. An `INSERT` into a table without a primary key, of what kernels compute over one
table, is read, computed and written in one task each (`ReadComputeWrite`): no row goes through Java, and rows whose
columns stay are in order already. If a kernel is in doubt the job fails, what it has written belongs to nobody, and
Spark computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, Row

from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column
from headrace.coordinator.writes.requests import Written
from headrace.coordinator.writes.transaction import TableView
from headrace.dataflow.operators.table_write import (
    CHUNK_BYTES,
    CHUNK_ROWS,
    OUTCOME,
    ReadComputeWrite,
    ToChanges,
    WriteChanges,
    WrittenRuns,
)
from headrace.session.context import Context
from headrace.session.execution.assignment import assigned
from headrace.session.execution.kernel_queries import AssignedQuery, kernels_over_table
from headrace.session.execution.select import describe
from headrace.session.execution.snapshots import open_snapshot
from headrace.session.execution.spark_queries import frame_of
from headrace.session.execution.write_targets import is_required
from headrace.session.names import BoundQuery, label
from headrace.session.result import ResultColumn
from headrace.sql.binder.spark_text import quoted
from headrace.state.proof import confirm
from headrace.state.stores import StoreRoot

if TYPE_CHECKING:
    from headrace.coordinator.reads import Snapshot
    from headrace.session.transactions import Transaction

PARTITIONS_OF_KEYS = 4
"""Partitions of a shuffle by keys, for each task that runs at once."""
Wrap = Callable[[list[ResultColumn], str], str]
"""Spark SQL around a query: rows with a first column `__w`, 1 or -1, and then columns of the table."""


def insert_large(
    context: Context, transaction: Transaction, record: ObjectRecord, targets: Sequence[Column], bound: BoundQuery,
    defaults: Mapping[str, pa.Array], *, on_conflict: str,
) -> Written:  # fmt: skip
    """INSERT of a query's rows.

    `defaults` are the values of the columns that are not among the targets.
    """

    def wrap(found: list[ResultColumn], text: str) -> str:
        return f"SELECT 1 AS __w, __rows.* FROM ({assigned(found, text, targets, bound.zone)}) AS __rows"

    keyed = bool(record.primary_key)
    names = tuple(c.name for c in targets)
    convert = _convert(transaction, record, names, defaults)
    wanted = None if keyed else AssignedQuery(bound, targets, wrap, weighted=True)
    return _write(context, transaction, record, bound, wrap, convert, on_conflict, looks_up=keyed, wanted=wanted)


def insert_frame(
    context: Context, transaction: Transaction, record: ObjectRecord, targets: Sequence[Column], frame: DataFrame,
    defaults: Mapping[str, pa.Array], *, ignore: bool,
) -> Written:  # fmt: skip
    """Insert the rows of a DataFrame that has the targets as its columns."""
    keyed, names = bool(record.primary_key), tuple(c.name for c in targets)
    view, convert = transaction.work.view(record.id), _convert(transaction, record, names, defaults)
    write = _writer(context, view, convert, "ignore" if ignore else "overwrite", keyed)
    if keyed:
        transaction.work.note_tables([record.id])
    weighted = frame.selectExpr("1 AS __w", *map(quoted, names))
    rows = _writing(context, weighted, record, view, convert, write).collect()
    return _taken(context, transaction, record, rows)


def insert_here(
    context: Context, transaction: Transaction, record: ObjectRecord, batches: Iterator[pa.RecordBatch], *, ignore: bool
) -> Written:
    """Insert rows that are in this process, with all columns of the table, in memory that does not grow with them."""
    keyed = bool(record.primary_key)
    view = transaction.work.view(record.id)
    convert = _convert(transaction, record, tuple(c.name for c in record.columns), {})
    root, fsync = context.engine.root, context.settings.run_fsync
    write = WriteChanges(
        view.table_id, view.schema, root, view.prefix, fsync, view.refs, view.epoch, keyed,
        "ignore" if ignore else "overwrite", convert, CHUNK_ROWS, CHUNK_BYTES // 2,
    )  # fmt: skip
    if keyed:
        transaction.work.note_tables([record.id])
    written = Written(())
    for outcome in write.run(view.prefix, map(_added, batches)):
        context.check()
        found = WrittenRuns.from_json(outcome.column(0)[0].as_py())
        written = Written(written.runs + found.runs, written.inserted + found.inserted, 0)
    if isinstance(root, StoreRoot) and root.proof:
        confirm(root, written.runs)
    transaction.work.add_runs(record.id, written)
    return written


def _added(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with their weights in front: each is added once."""
    weight = pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)
    return pa.RecordBatch.from_arrays([weight, *rows.columns], names=["__w", *rows.schema.names])


def delete_large(
    context: Context, transaction: Transaction, record: ObjectRecord, bound: BoundQuery, *, joined: bool
) -> Written:  # fmt: skip
    """DELETE: the rows that a query finds are taken back."""

    def wrap(found: list[ResultColumn], text: str) -> str:
        rows = _once(record, assigned(found, text, record.columns, bound.zone), joined)
        return f"SELECT -1 AS __w, __rows.* FROM ({rows}) AS __rows"

    convert = _convert(transaction, record, tuple(c.name for c in record.columns), {})
    return _write(context, transaction, record, bound, wrap, convert, "overwrite", looks_up=False)


def update_large(
    context: Context, transaction: Transaction, record: ObjectRecord, targets: Sequence[Column], bound: BoundQuery, *,
    joined: bool,
) -> Written:  # fmt: skip
    """UPDATE: the rows that a query finds are taken back, and others put in their place.

    `targets` are the table's columns, and those that are assigned, in the order of the query's columns.
    """
    names = [c.name for c in record.columns]
    new_at = {c.name: i for i, c in enumerate(targets)}  # of a column that is assigned, the later place

    def wrap(found: list[ResultColumn], text: str) -> str:
        rows = _once(record, assigned(found, text, targets, bound.zone), joined)
        old = ", ".join(f"{_text(n)}, `c{i}`" for i, n in enumerate(names))
        new = ", ".join(f"{_text(n)}, `c{new_at[n]}`" for n in names)
        pair = f"array(named_struct('__w', -1, {old}), named_struct('__w', 1, {new}))"
        shown = ", ".join(["__w", *map(quoted, names)])
        return f"SELECT {shown} FROM (SELECT inline({pair}) FROM ({rows}))"

    convert = _convert(transaction, record, tuple(names), {})
    moved = any(c.name in record.primary_key for c in targets[len(names) :])
    return _write(
        context, transaction, record, bound, wrap, convert, "refuse" if moved else "overwrite", looks_up=moved
    )


def _text(name: str) -> str:
    return "'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _once(record: ObjectRecord, rows: str, joined: bool) -> str:
    """Spark SQL that leaves one row for each primary key: a row that several source rows match is changed once."""
    if not joined:
        return rows
    keys = ", ".join(f"`c{i}`" for i, c in enumerate(record.columns) if c.name in record.primary_key)
    numbered = f"SELECT *, row_number() OVER (PARTITION BY {keys} ORDER BY {keys}) AS __n FROM ({rows})"
    return f"SELECT * EXCEPT (__n) FROM ({numbered}) WHERE __n = 1"


def _convert(
    transaction: Transaction, record: ObjectRecord, names: tuple[str, ...], defaults: Mapping[str, pa.Array]
) -> ToChanges:  # fmt: skip
    required = tuple(c.name for c in record.columns if is_required(record, c))
    order = tuple(c.name for c in record.columns)
    return ToChanges(label(record), transaction.work.schema(record.id), names, order, required, dict(defaults))


def _write(
    context: Context, transaction: Transaction, record: ObjectRecord, bound: BoundQuery, wrap: Wrap, convert: ToChanges,
    on_conflict: str, *, looks_up: bool, wanted: AssignedQuery | None = None,
) -> Written:  # fmt: skip
    """Write what a query says to a table, as part of a transaction.

    `looks_up` says that rows may meet others with their primary key: then all rows of a key come to one task.
    What is `wanted` is tried by kernels first.
    """
    with ExitStack() as stack:
        snapshot = open_snapshot(context, bound, stack)
        found = describe(context, bound)
        view = transaction.work.view(record.id)
        write = _writer(context, view, convert, on_conflict, looks_up)
        rows = None
        if wanted is not None and snapshot is not None:
            rows = _written_by_kernels(context, wanted, snapshot, write)
        if rows is None:
            frame = frame_of(context, bound, snapshot, lambda text: wrap(found, text))
            if looks_up:
                transaction.work.note_tables([record.id])
            with context.jobs.running(bound.query.text):
                rows = _writing(context, frame, record, view, convert, write).collect()
    return _taken(context, transaction, record, rows)


def _taken(context: Context, transaction: Transaction, record: ObjectRecord, rows: Sequence[Row]) -> Written:
    """What tasks have written becomes part of a transaction."""
    outcomes = [WrittenRuns.from_json(row[0]) for row in rows]
    runs = tuple(run for o in outcomes for run in o.runs)
    root = context.engine.root
    if isinstance(root, StoreRoot) and root.proof:
        confirm(root, runs)
    written = Written(runs, sum(o.inserted for o in outcomes), sum(o.deleted for o in outcomes))
    transaction.work.add_runs(record.id, written)
    return written


def _writer(
    context: Context, view: TableView, convert: ToChanges, on_conflict: str, looks_up: bool
) -> WriteChanges:  # fmt: skip
    engine, fsync = context.engine, context.settings.run_fsync
    return WriteChanges(
        view.table_id, view.schema, engine.root, view.prefix, fsync, view.refs, view.epoch, looks_up, on_conflict,
        None if looks_up else convert,
    )  # fmt: skip


def _written_by_kernels(
    context: Context, wanted: AssignedQuery, snapshot: Snapshot, write: WriteChanges
) -> list[Row] | None:  # fmt: skip
    """What tasks have written that read one table and compute by kernels; None where Spark is to compute it.

    So no row goes through Java, which would take most of the time. What tasks have written whose job failed belongs to
    nobody.
    """
    found = kernels_over_table(context, wanted, snapshot)
    if found is None:
        return None
    plan, scan = found
    engine = context.engine
    frame = engine.reading(
        engine.session_for(snapshot), scan, ReadComputeWrite(scan, plan.of, write), [Column(OUTCOME[0].name, "string")]
    )
    try:
        with context.jobs.running(wanted.bound.query.text):
            return frame.collect()
    except Exception:  # of whatever kind: Spark gives the verdict
        context.check()
        return None


def _writing(
    context: Context, frame: DataFrame, record: ObjectRecord, view: TableView, convert: ToChanges, write: WriteChanges
) -> DataFrame:  # fmt: skip
    """The DataFrame that writes, when it is computed."""
    engine = context.engine
    outcome = ", ".join(f"{f.name} string" for f in OUTCOME)
    if not write.looks_up:
        return frame.mapInArrow(write, outcome)
    kinds = {c.name: c.type for c in record.columns}
    hashes = [Column(f.name, "bigint") for f in list(view.schema.arrow())[: view.schema.data_start]]
    stored = [*hashes, *(Column(f.name, kinds[f.name]) for f in view.schema.data_fields), Column("__w", "bigint")]
    ddl = ", ".join(f"{quoted(c.name)} {c.type}" for c in stored)
    parts = engine.parallelism * PARTITIONS_OF_KEYS
    changes = frame.mapInArrow(convert, ddl).repartition(parts, "__k").sortWithinPartitions("__w")
    return changes.mapInArrow(write, outcome)
