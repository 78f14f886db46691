"""INSERT, UPDATE and DELETE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.catalog.contents import TableContent
from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column, arrow_schema, arrow_type
from headrace.coordinator.decide.watermarks import declared
from headrace.coordinator.writes.layout import Key
from headrace.coordinator.writes.requests import WriteResult
from headrace.coordinator.writes.requests import Written as Runs
from headrace.errors import HeadraceError, NotSupported, SyntaxFault
from headrace.plan.catalyst.java_calls import stream
from headrace.session.context import Context
from headrace.session.defined import declared_zone
from headrace.session.engine import columns_of
from headrace.session.execution.assignment import assigned
from headrace.session.execution.defaults import default_values, left_out, of_each_row
from headrace.session.execution.handler import Columns, Handler, InScript, Needs, Server, Types
from headrace.session.execution.in_transaction import Written, late_rows, run_writing
from headrace.session.execution.kernel_queries import ROWS_AT_MOST, AssignedQuery, rows_by_kernels, rows_of
from headrace.session.execution.large_writes import delete_large, insert_large, update_large
from headrace.session.execution.row_writes import RowChange, key_wanted, plan_rows, run_plan
from headrace.session.execution.select import compute, describe
from headrace.session.execution.upserts import conflict_of, upserted
from headrace.session.execution.write_targets import (
    check_not_null,
    ignores,
    plain_items,
    returned_items,
    target_columns,
    target_table,
)
from headrace.session.names import BoundQuery, check_same, label, names_of, null_relation
from headrace.session.result import Result, ResultColumn, columns_of_record, with_origins
from headrace.session.system.asking_functions import localize
from headrace.session.transactions import Transaction
from headrace.sql import statements as st
from headrace.sql.dml import DEFAULT, Returning, delete_query, update_query
from headrace.sql.parser import bind
from headrace.sql.query import Query
from headrace.sql.statements import TableName
from headrace.state.table_changes import Delta, TableChange

S = TypeVar("S", st.Insert, st.Update, st.Delete)


def insert(context: Context, statement: st.Insert, into: ObjectRecord | None = None) -> Result:
    """INSERT of rows or of a query's result; `into` is the table, where another one of the name will not do."""
    plan = plan_rows(context, statement)
    if plan is not None:
        return run_plan(context, plan)
    record = target_table(context, statement)
    if into is not None:
        check_same(record, into)
    columns = target_columns(record, statement.columns)
    ignore, conflict = ignores(record, statement), conflict_of(record, statement)
    # Spark's tasks give all rows the same defaults; a query without a list of columns may leave any of them out.
    alike = not of_each_row(context, record, left_out(record, columns) if statement.columns else record.columns)

    def run(transaction: Transaction) -> tuple[Result, Written | None]:
        if conflict is not None and conflict.updates:
            rows = _insert_rows(context, record, columns, statement)
            check_not_null(record, rows)
            rows = upserted(context, transaction, record, conflict, rows)
            tag = statement.counted(rows.num_rows)
            return returning(context, statement.returning, statement.table, record, rows, tag), None
        if statement.query is not None and statement.returning is None and declared(record) is None and alike:
            written = insert_query(
                context, transaction, record, columns, statement.query, bool(statement.columns),
                "ignore" if ignore else "overwrite",
            )  # fmt: skip
            return Result(statement.counted(written.inserted)), None
        rows = _insert_rows(context, record, columns, statement)
        check_not_null(record, rows)
        changes = [TableChange(b, None, "ignore" if ignore else "overwrite") for b in batches_of(rows)]
        if transaction.implicit and not (ignore and statement.returning is not None):
            for change in changes:
                transaction.work.defer(record.id, change)
            result = returning(
                context, statement.returning, statement.table, record, rows, statement.counted(rows.num_rows)
            )
            return result, lambda outcome: _tell_inserted(statement, result, outcome, ignore)
        deltas = [transaction.work.change(record.id, change) for change in changes]
        if ignore:
            rows = _inserted(record, deltas)
        return returning(
            context, statement.returning, statement.table, record, rows, statement.counted(rows.num_rows)
        ), None

    return run_writing(context, run)


def insert_query(
    context: Context, transaction: Transaction, record: ObjectRecord, columns: Sequence[Column], query: Query,
    listed: bool, on_conflict: str,
) -> Runs:  # fmt: skip
    """INSERT of a query's rows by Spark's tasks."""
    bound = BoundQuery(localize(context, query), names_of(context))
    width = len(describe(context, bound))
    _check_width(width, len(columns), listed)
    targets = columns[:width]
    defaults = default_values(context, record, left_out(record, targets))
    return insert_large(context, transaction, record, targets, bound, defaults, on_conflict=on_conflict)


def _check_width(width: int, columns: int, listed: bool) -> None:
    """Raise `SyntaxFault` where a query has another number of columns than are to be filled."""
    if width > columns:
        raise SyntaxFault("INSERT has more expressions than target columns")
    if listed and width < columns:
        raise SyntaxFault("INSERT has more target columns than expressions")


def _tell_inserted(statement: st.Insert, result: Result, outcome: WriteResult, ignore: bool) -> None:
    """Put what the commit has found into the result of an INSERT."""
    if ignore or outcome.late:
        result.tag = statement.counted(outcome.inserted)
    result.notices += late_rows(outcome)


def _inserted(record: ObjectRecord, deltas: Sequence[Delta]) -> pa.Table:
    """The rows that changes have added."""
    schema = _schema(record)
    added = [d.rows.filter(pc.greater(d.rows.column("__w"), 0)).select(schema.names) for d in deltas]
    return pa.Table.from_batches([pa.RecordBatch.from_arrays(b.columns, schema=schema) for b in added], schema)


def _insert_rows(context: Context, record: ObjectRecord, targets: Sequence[Column], statement: st.Insert) -> pa.Table:
    types = [c.type for c in targets]
    if statement.rows is not None:
        width = statement.rows.width
        if statement.columns and width < len(targets):
            raise SyntaxFault("INSERT has more target columns than expressions")
        literal = statement.literal_rows(types, context.zone)
        if literal is not None:
            return _from_literals(context, record, targets, literal)
        defaults = [record.content_as(TableContent).defaults.get(c.name) for c in targets]
        names = [c.name for c in targets]
        return _from_query(
            context, record, targets[:width], statement.rows.query(types, defaults, names, declared_zone(record))
        )
    if statement.query is not None:
        return _from_query(context, record, targets, statement.query, bool(statement.columns))
    return _from_literals(context, record, [], [[]])


def _from_literals(
    context: Context, record: ObjectRecord, targets: Sequence[Column], rows: Sequence[Sequence[object]]
) -> pa.Table:
    at = {c.name: i for i, c in enumerate(targets)}
    given = {
        c.name: [row[i] if i is not None and i < len(row) else DEFAULT for row in rows]
        for c in record.columns for i in [at.get(c.name)]
    }  # fmt: skip
    open_ones = [c for c in record.columns if any(v is DEFAULT for v in given[c.name])]
    found = default_values(context, record, open_ones, len(rows))
    defaults = {name: values.to_pylist() for name, values in found.items()}
    arrays = [
        pa.array([defaults[c.name][i] if v is DEFAULT else v for i, v in enumerate(given[c.name])], arrow_type(c.type))
        for c in record.columns
    ]
    return pa.Table.from_arrays(arrays, schema=_schema(record))


def _from_query(
    context: Context, record: ObjectRecord, targets: Sequence[Column], query: Query, exact: bool = False
) -> pa.Table:
    bound = BoundQuery(localize(context, query), names_of(context))

    def wrap(found: list[ResultColumn], text: str) -> str:
        _check_width(len(found), len(targets), exact)
        return assigned(found, text, targets, bound.zone)

    computed = rows_of(context, AssignedQuery(bound, targets, wrap, exact=exact))
    given = targets[: computed.num_columns]
    at = {c.name: i for i, c in enumerate(given)}
    defaults = default_values(context, record, left_out(record, given), computed.num_rows)
    arrays = []
    for column in record.columns:
        kind = arrow_type(column.type)
        if column.name in at:
            arrays.append(computed.column(at[column.name]).cast(kind))
        else:
            arrays.append(defaults[column.name].slice(0, computed.num_rows))
    return pa.Table.from_arrays(arrays, schema=_schema(record))


def update(context: Context, statement: st.Update) -> Result:
    """UPDATE: the rows are found by a query, then replaced."""
    plan = plan_rows(context, statement)
    if plan is not None:
        return run_plan(context, plan)
    record = target_table(context, statement)
    refuse_append_only(record, "UPDATE")
    names = [c.name for c in record.columns]
    by_name = {c.name: c for c in record.columns}
    query = update_query(statement, names, record.content_as(TableContent).defaults, declared_zone(record))
    assigned = [a.column for a in statement.assignments]
    targets = [*record.columns, *(by_name[n] for n in assigned)]

    joined = statement.sources is not None
    key = key_wanted(context, record, statement)

    def run(transaction: Transaction) -> tuple[Result, Written | None]:
        bound = _bound(context, record, statement, query)
        found = _affected(context, transaction, record, _assigned_to(targets, bound, key), statement)
        if found is None:
            written = update_large(context, transaction, record, targets, bound, joined=joined)
            return Result(statement.counted(written.deleted)), None
        old = _named(record, found.columns[: len(names)])
        new_columns = dict(zip(names, old.columns)) | dict(zip(assigned, found.columns[len(names) :]))
        new = _named(record, [new_columns[n] for n in names])
        check_not_null(record, new)
        moved = any(name in record.primary_key for name in assigned)
        _replace(transaction, record, old, new, "refuse" if moved else "overwrite")
        return returning(
            context, statement.returning, statement.table, record, new, statement.counted(new.num_rows)
        ), None

    return run_writing(context, run)


def delete(context: Context, statement: st.Delete) -> Result:
    """DELETE: the rows are found by a query, then taken back."""
    plan = plan_rows(context, statement)
    if plan is not None:
        return run_plan(context, plan)
    record = target_table(context, statement)
    refuse_append_only(record, "DELETE")
    return run_writing(context, lambda transaction: (delete_rows(context, transaction, record, statement), None))


def delete_rows(context: Context, transaction: Transaction, record: ObjectRecord, statement: st.Delete) -> Result:
    """A DELETE as a part of a transaction."""
    query = delete_query(statement, [c.name for c in record.columns])
    joined = statement.sources is not None
    key = key_wanted(context, record, statement)
    bound = _bound(context, record, statement, query)
    found = _affected(context, transaction, record, _assigned_to(record.columns, bound, key), statement)
    if found is None:
        written = delete_large(context, transaction, record, bound, joined=joined)
        return Result(statement.counted(written.deleted))
    old = _named(record, found.columns)
    _replace(transaction, record, old, None)
    return returning(context, statement.returning, statement.table, record, old, statement.counted(old.num_rows))


def _replace(
    transaction: Transaction, record: ObjectRecord, old: pa.Table, new: pa.Table | None,
    on_conflict: Literal["overwrite", "refuse"] = "overwrite",
) -> None:  # fmt: skip
    """Take rows back and put others in their place; all go before any comes, should there be several batches."""
    gone, come = batches_of(old), [] if new is None else batches_of(new)
    if len(gone) <= 1 and len(come) <= 1:
        if gone:
            transaction.work.change(record.id, TableChange(come[0] if come else None, gone[0], on_conflict))
        return
    for batch in gone:
        transaction.work.change(record.id, TableChange(deletes=batch))
    for batch in come:
        transaction.work.change(record.id, TableChange(inserts=batch, on_conflict=on_conflict))


def refuse_append_only(record: ObjectRecord, verb: str) -> None:
    """Raise `NotSupported` where rows are only added."""
    if record.content_as(TableContent).append_only:
        raise NotSupported(f'{verb} on the append-only table "{label(record)}"', hint="declare it without APPEND ONLY")


def _is_large(transaction: Transaction, record: ObjectRecord, wanted: Returning | None) -> bool:
    """Whether a change of a table's rows is left to Spark's tasks. What RETURNING shows comes through the server."""
    return wanted is None and transaction.work.stored_rows(record.id) > ROWS_AT_MOST


def _bound(context: Context, record: ObjectRecord, statement: st.Update | st.Delete, query: Query) -> BoundQuery:
    """The query for the rows that a statement changes. Raises if another table has the name of the one it changes."""
    if statement.sources is not None and not record.primary_key:
        raise NotSupported("UPDATE ... FROM and DELETE ... USING on a table without a primary key")
    bound = BoundQuery(localize(context, query), names_of(context))
    check_same(bound.targets.get(statement.table), record)
    if any(inner.as_of() for inner in bound.queries()):
        raise NotSupported(
            "FOR SYSTEM_TIME AS OF in UPDATE and DELETE",
            hint="they change the newest rows; INSERT ... SELECT may read others",
        )
    return bound


def _assigned_to(targets: Sequence[Column], bound: BoundQuery, key: Key | None) -> AssignedQuery:
    return AssignedQuery(bound, targets, lambda columns, text: assigned(columns, text, targets, bound.zone), key)


def _affected(
    context: Context, transaction: Transaction, record: ObjectRecord, wanted: AssignedQuery,
    statement: st.Update | st.Delete,
) -> pa.Table | None:  # fmt: skip
    """The rows that a statement changes; None where they are so many that they are left to Spark's tasks."""
    large = _is_large(transaction, record, statement.returning)
    if statement.sources is None and (wanted.key is not None or not large):
        found = rows_by_kernels(context, wanted)
        if found is not None:
            return found
    if large:
        return None
    found = compute(context, wanted.bound, wanted.wrap)
    return found if statement.sources is None else _first_of_each(found, record)


def _first_of_each(found: pa.Table, record: ObjectRecord) -> pa.Table:
    """One row for each primary key: a row that several source rows match is changed once."""
    keys = [found.column(i) for i, c in enumerate(record.columns) if c.name in record.primary_key]
    names = [f"k{i}" for i in range(len(keys))]
    numbered = pa.Table.from_arrays([*keys, pa.array(np.arange(found.num_rows))], names=[*names, "at"])
    firsts = numbered.group_by(names, use_threads=False).aggregate([("at", "min")]).column("at_min")
    return found.take(firsts.combine_chunks().sort())


def _schema(record: ObjectRecord) -> pa.Schema:
    return arrow_schema([Column(c.name, c.type) for c in record.columns])


def _named(record: ObjectRecord, columns: Sequence[pa.ChunkedArray]) -> pa.Table:
    schema = _schema(record)
    return pa.Table.from_arrays([c.cast(f.type) for c, f in zip(columns, schema)], schema=schema)


def batches_of(rows: pa.Table) -> list[pa.RecordBatch]:
    """The rows in as few batches as they fit into: more than one where their strings exceed 2 GiB."""
    return [batch for batch in rows.combine_chunks().to_batches() if batch.num_rows]


def returning(
    context: Context, wanted: Returning | None, name: TableName, record: ObjectRecord, rows: pa.Table, tag: str
) -> Result:
    """The result of a statement that changed `rows`."""
    if wanted is None:
        return Result(tag)
    plain = plain_items(wanted, record)
    if plain is not None:
        columns = columns_of_record(record, plain)
        table = pa.Table.from_arrays([rows.column(c) for c, _ in plain], names=[label for _, label in plain])
        return Result(tag, columns, iter(table.to_batches()))
    engine = context.engine
    schema = {name: {c.name: c.type for c in record.columns}}
    with context.jobs.running(wanted.text):
        spark = engine.session_for(None)
        frame = spark.createDataFrame(rows)
        with engine.views({record.id: frame}) as labels:
            found = spark.sql(wanted.to_spark(lambda _: labels[record.id], schema, context.zone, context.times))
        columns = with_origins(columns_of(found), record, returned_items(wanted, record))
        return Result(tag, columns, iter(list(stream(found))))


def returning_columns(context: Context, wanted: Returning, record: ObjectRecord, name: TableName) -> list[ResultColumn]:
    """The columns of a RETURNING list."""
    plain = plain_items(wanted, record)
    if plain is not None:
        return columns_of_record(record, plain)
    schema = {name: {c.name: c.type for c in record.columns}}
    with context.jobs.running(wanted.text):
        found = context.engine.analyze(wanted.to_spark(lambda _: null_relation(record.columns), schema, context.zone))
    return with_origins(found, record, returned_items(wanted, record))


def describe_returned(context: Context, statement: RowChange, types: Types) -> Columns:
    """The columns of a RETURNING list."""
    record = target_table(context, statement)
    if types and statement.returning is not None:
        statement = replace(statement, returning=bind(statement, [None] * len(types), types).returning)
    if statement.returning is None:
        return None
    return returning_columns(context, statement.returning, record, statement.table)


def _infer_inserted(context: Context, statement: st.Insert, types: list[str | None]) -> None:
    """Fill in types of parameters from the columns and queries that they stand in. Raises what is wrong with those."""
    record = target_table(context, statement)
    targets = target_columns(record, statement.columns)
    kinds, defaults = [c.type for c in targets], record.content_as(TableContent).defaults
    queries: list[Query] = []
    if statement.rows is not None:
        texts = [defaults.get(c.name) for c in targets]
        queries.append(statement.rows.query(kinds, texts, [c.name for c in targets], declared_zone(record)))
    elif statement.query is not None:
        queries.append(statement.query.stored_as(kinds))
    if statement.conflict is not None and statement.conflict.updates:
        queries.append(statement.conflict.query([c.name for c in record.columns], defaults, declared_zone(record)))
    _infer(context, queries, statement.returning, types)


def _infer_updated(context: Context, statement: st.Update, types: list[str | None]) -> None:
    with suppress(HeadraceError):  # comes up when it is run
        record = target_table(context, statement)
        names, defaults = [c.name for c in record.columns], record.content_as(TableContent).defaults
        query = update_query(statement, names, defaults, declared_zone(record))
        _infer(context, [query], statement.returning, types)


def _infer_deleted(context: Context, statement: st.Delete, types: list[str | None]) -> None:
    with suppress(HeadraceError):
        query = delete_query(statement, [c.name for c in target_table(context, statement).columns])
        _infer(context, [query], statement.returning, types)


def _infer(context: Context, queries: list[Query], returned: Returning | None, types: list[str | None]) -> None:
    for query in [*queries, *([] if returned is None else [returned.query])]:
        types[:] = BoundQuery(query, names_of(context)).parameter_types(types)


def _row_handler(
    kind: type[S], run: Callable[[Context, S], Result], infer: Callable[[Context, S, list[str | None]], None]
) -> Handler[S]:
    """A change of rows: it needs nothing of what views are kept up to date by."""
    return Handler(
        kind, run, describe_returned, plan=plan_rows, infer=infer, asks=Server.ACTIVE, script=InScript.OPENS,
        needs=Needs.WRITE,
    )  # fmt: skip


HANDLERS: Final = (
    _row_handler(st.Insert, insert, _infer_inserted),
    _row_handler(st.Update, update, _infer_updated),
    _row_handler(st.Delete, delete, _infer_deleted),
)
