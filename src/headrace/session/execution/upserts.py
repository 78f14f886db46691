"""INSERT ... ON CONFLICT: which key it names, and what rows become that are there already.

What Python computes exactly is an operation on single rows (`row_writes.py`), which sees the rows that are there when
its turn comes. All else is here: the rows that are to be inserted are looked up in the transaction, and the query of
`DO UPDATE` is computed over the pairs of both: columns that are only copied need nothing, then kernels, then Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from sqlglot import exp

from headrace.catalog.contents import TableContent
from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column, arrow_schema, arrow_type
from headrace.coordinator.decide.watermarks import declared
from headrace.coordinator.writes.written_rows import affected_twice
from headrace.dataflow.operators.kernel_expressions import RowColumns
from headrace.errors import NotSupported, StatementError, UndefinedColumn, UndefinedObject
from headrace.plan.catalyst.java_calls import stream
from headrace.session.context import Context
from headrace.session.defined import declared_zone
from headrace.session.engine import columns_of
from headrace.session.execution.assignment import assigned
from headrace.session.execution.write_targets import check_not_null
from headrace.session.names import BoundQuery, label, names_of
from headrace.session.reading.twins import Twins
from headrace.session.system.asking_functions import localize
from headrace.session.transactions import Transaction
from headrace.sql import statements as st
from headrace.sql.binder import bound_tree as bt
from headrace.sql.binder.moments import at as at_times
from headrace.sql.conflicts import EXCLUDED, Conflict
from headrace.sql.query import Expression
from headrace.state.kernels.equality import Ints
from headrace.state.table_changes import TableChange

_Changed: TypeAlias = tuple[Ints, Sequence[pa.ChunkedArray]]
"""The places of pairs whose rows are changed, and the new values of the columns that are assigned."""


def conflict_of(record: ObjectRecord, statement: st.Insert) -> Conflict | None:
    """The clause of an INSERT. Raises what is wrong with the key that it names, and `NotSupported`."""
    conflict = statement.conflict
    if conflict is None:
        return None
    _check_key(record, conflict)
    if conflict.updates and (record.content_as(TableContent).append_only or declared(record) is not None):
        raise NotSupported(
            f'ON CONFLICT DO UPDATE on "{label(record)}", which is append-only or has a watermark',
            hint="rows of such a table are not changed; leave the clause out, or say DO NOTHING",
        )
    return conflict


def _check_key(record: ObjectRecord, conflict: Conflict) -> None:
    names = {c.name for c in record.columns}
    for column in conflict.columns:
        if column not in names:
            raise UndefinedColumn(f'column "{column}" does not exist')
    if conflict.constraint is not None and not (record.primary_key and conflict.constraint == f"{record.name}_pkey"):
        raise UndefinedObject(f'constraint "{conflict.constraint}" for table "{record.name}" does not exist')
    if conflict.columns and set(conflict.columns) != set(record.primary_key):
        raise StatementError(
            "there is no unique or exclusion constraint matching the ON CONFLICT specification", sqlstate="42P10",
            hint="A table's only constraint of that kind is its primary key.",
        )  # fmt: skip


def keeps_key(record: ObjectRecord, conflict: Conflict, column: str, value: Expression | None) -> bool:
    """Whether an assignment to a column of the primary key leaves it as it is, by what it says."""
    tree = None if value is None else value.tree
    if column not in record.primary_key or not isinstance(tree, exp.Column):
        return False
    return tree.name == column and tree.table in (EXCLUDED, conflict.relation) and conflict.relation != EXCLUDED


def upserted(
    context: Context, transaction: Transaction, record: ObjectRecord, conflict: Conflict, rows: pa.Table
) -> pa.Table:  # fmt: skip
    """Insert rows as a part of a transaction; those that were inserted, and what those became that were there."""
    batches = rows.combine_chunks().to_batches()
    if len(batches) > 1:
        raise NotSupported("ON CONFLICT DO UPDATE of rows with more than 2 GiB of text", hint="insert them in parts")
    update = _Update(context, record, conflict)
    if not batches or not rows.num_rows:
        update.check()
        return rows
    met = transaction.work.encounters(record.id, batches[0])
    pairs = np.flatnonzero(met.there >= 0)
    old = _table(record, met.stored.take(pa.array(met.there[pairs])))
    changed, new = update.of(old, rows.take(pa.array(pairs)))
    check_not_null(record, new)
    _check_keys_kept(record, old.take(pa.array(changed)), new)
    source = np.where(met.there < 0, np.arange(rows.num_rows), -1)
    source[pairs[changed]] = rows.num_rows + np.arange(len(changed))
    source = _once(met.keys, source)
    found = pa.concat_tables([rows, new]).take(pa.array(source)).combine_chunks()
    for batch in found.to_batches():
        transaction.work.change(record.id, TableChange(batch))
    return found


def _once(keys: Ints, source: Ints) -> Ints:
    """Where each row comes from that is written. Raises if a key comes again after it was written."""
    written: set[int] = set()
    for key, at in zip(keys.tolist(), source.tolist(), strict=True):
        if key in written:
            raise affected_twice()
        if at >= 0:
            written.add(key)
    return source[source >= 0]


def _table(record: ObjectRecord, stored: pa.RecordBatch) -> pa.Table:
    """Stored rows with the columns of their table."""
    schema = _schema(record)
    return pa.Table.from_arrays([stored.column(f.name).cast(f.type) for f in schema], schema=schema)


def _schema(record: ObjectRecord) -> pa.Schema:
    return arrow_schema([Column(c.name, c.type) for c in record.columns])


def _check_keys_kept(record: ObjectRecord, old: pa.Table, new: pa.Table) -> None:
    for name in record.primary_key:
        if old.column(name).combine_chunks() != new.column(name).combine_chunks():
            raise NotSupported(
                f'a new value of the primary key "{name}" in ON CONFLICT DO UPDATE', hint="use UPDATE for that"
            )


class _Update:
    """What DO UPDATE makes of rows."""

    def __init__(self, context: Context, record: ObjectRecord, conflict: Conflict) -> None:
        self._context = context
        self._record = record
        self._conflict = conflict
        self._names = [c.name for c in record.columns]
        defaults = record.content_as(TableContent).defaults
        query = conflict.query(self._names, defaults, declared_zone(record))
        self._bound = BoundQuery(localize(context, query), names_of(context))
        by_name = {c.name: c for c in record.columns}
        self._targets = [by_name[a.column] for a in conflict.assignments if a.column in by_name]

    def check(self) -> None:
        """Raise what is wrong with the clause, where there are no rows to compute it for."""
        self._bound.spark(lambda _: "none")

    def of(self, old: pa.Table, excluded: pa.Table) -> tuple[Ints, pa.Table]:
        """The places of the pairs whose rows are changed, and what these become."""
        found = self._copied(old, excluded)
        if found is None:
            pairs = _pairs(old, excluded)
            found = self._by_kernels(pairs)
            if found is None:
                found = self._by_spark(pairs)
        at, values = found
        kept = old.take(pa.array(at))
        columns = dict(zip(self._names, kept.columns)) | {c.name: v for c, v in zip(self._targets, values, strict=True)}
        return at, pa.Table.from_arrays(
            [columns[f.name].cast(f.type) for f in kept.schema], schema=kept.schema
        )  # fmt: skip

    def _copied(self, old: pa.Table, excluded: pa.Table) -> _Changed | None:
        """Where all values are columns, for all rows."""
        values: list[pa.ChunkedArray] = []
        if self._conflict.where is not None or self._conflict.relation == EXCLUDED:
            return None
        for assignment, target in zip(self._conflict.assignments, self._targets):
            tree = None if assignment.value is None else assignment.value.tree
            if not isinstance(tree, exp.Column) or not isinstance(tree.this, exp.Identifier) or tree.args.get("db"):
                return None
            source = {EXCLUDED: excluded, self._conflict.relation: old}.get(tree.table)
            if source is None or tree.name not in self._names:
                return None
            values.append(source.column(tree.name))
            if values[-1].type != old.schema.field(target.name).type:
                return None
        names = {column.name for column in self._targets}
        whole = len(values) == len(names) == len(self._conflict.assignments)
        return (np.arange(old.num_rows), values) if whole else None

    def _by_kernels(self, pairs: pa.Table) -> _Changed | None:
        """The same by Arrow's kernels, where they do exactly what Spark does."""
        try:
            query = at_times(self._bound.changed(), self._context.times)
            assert isinstance(query, bt.SelectQuery)
            twins = Twins({name: i for i, name in enumerate(pairs.column_names)}, ())
            where = None if query.where is None else twins.of(query.where)
            outputs = [twins.of(output.value) for output in query.outputs]
            rows = RowColumns.of([c.combine_chunks() for c in pairs.columns], pairs.num_rows)
            kept = rows if where is None else rows.where(where)
            number, *found = [kept.array(output) for output in outputs]
            values = [pa.chunked_array([v]).cast(arrow_type(c.type)) for v, c in zip(found, self._targets, strict=True)]
        except Exception:  # of whatever kind: Spark gives the verdict
            self._context.check()
            return None
        return np.asarray(number, dtype=np.int64), values

    def _by_spark(self, pairs: pa.Table) -> _Changed:
        context, engine, bound = self._context, self._context.engine, self._bound
        targets = [Column("n", "bigint"), *self._targets]
        with context.jobs.running(bound.query.text):
            spark = engine.session_for(None)
            with engine.views({self._record.id: spark.createDataFrame(pairs)}) as labels:
                text = bound.spark(lambda _: labels[self._record.id], context.times)
                frame = spark.sql(assigned(columns_of(spark.sql(text)), text, targets, bound.zone))
                schema = arrow_schema([Column(f"c{i}", c.type) for i, c in enumerate(targets)])
                found = pa.Table.from_batches([b.cast(schema) for b in stream(frame)], schema)
        found = found.sort_by("c0")
        return found.column(0).to_numpy(), found.columns[1:]


def _pairs(old: pa.Table, excluded: pa.Table) -> pa.Table:
    """Rows that are there beside those that were to be inserted: see `QueryWanted`."""
    columns = [*old.columns, *excluded.columns, pa.array(np.arange(old.num_rows), pa.int64())]
    names = [*(f"o{i}" for i in range(old.num_columns)), *(f"e{i}" for i in range(old.num_columns)), "n"]
    return pa.Table.from_arrays(columns, names=names)
