"""ALTER TABLE ... ADD COLUMN of a table that statements write to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from headrace.catalog.contents import TableContent
from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column, arrow_schema
from headrace.errors import NotNullViolation, NotSupported, StatementError
from headrace.session.context import Context
from headrace.session.defined import declared_zone
from headrace.session.execution import ddl
from headrace.session.execution.defaults import default_values, of_each_row
from headrace.session.execution.dml import batches_of, insert_query
from headrace.session.execution.kernel_queries import all_of, all_rows
from headrace.session.execution.replacing_tables import check_replaceable, put_in_place
from headrace.session.execution.select import select
from headrace.session.names import label
from headrace.session.transactions import Transaction
from headrace.sql import statements as st
from headrace.sql.parser import parse_query
from headrace.state.table_changes import TableChange


def add_to_table(context: Context, table: ObjectRecord, statement: st.AlterColumns) -> None:
    """Give a table columns, which have their defaults in the rows that are there: computed once, as PostgreSQL does,
    but for those that have another value for each row.
    """
    check_replaceable(context, table, "a column", built_on=True)
    known = {c.name for c in table.columns}
    for column in statement.add:
        if column.name in known:
            text = f'column "{column.name}" of relation "{label(table)}" already exists'
            raise StatementError(text, sqlstate="42701")
        if column.generated is not None:
            raise NotSupported("generated columns", hint="compute them in a view")
        if column.default is not None:
            ddl.check_default(context, column.default)
    added = ddl.unlike(ddl.declared_columns(statement.add))
    put_in_place(
        context, table, _with_columns(context, table, added, statement.add), statement.text,
        lambda transaction, other: _copy(context, transaction, table, other, added),
    )  # fmt: skip


def _with_columns(
    context: Context, table: ObjectRecord, added: tuple[Column, ...], asked: tuple[st.ColumnDef, ...]
) -> ObjectRecord:  # fmt: skip
    """What is stored of the table that takes the place of another one."""
    content = table.content_as(TableContent)
    more = {c.name: c.default for c in asked if c.default is not None}
    if more and content.defaults and declared_zone(table).name != context.zone.name:
        raise NotSupported(
            f'a default of "{label(table)}" in another time zone than those that it has',
            hint=f"SET TIME ZONE '{declared_zone(table).name}'",
        )
    content = replace(content, defaults={**content.defaults, **more})
    if more:
        content = replace(content, time_zone=None if context.zone.is_plain else context.zone.name)
    return replace(table, columns=(*table.columns, *added), content=content)


def _copy(
    context: Context, transaction: Transaction, table: ObjectRecord, other: ObjectRecord, added: tuple[Column, ...]
) -> None:  # fmt: skip
    rows = all_rows(context, table)
    if rows is None:
        if not _has_rows(context, table):  # many were stored, and are gone
            return
        if of_each_row(context, other, added):
            raise NotSupported(
                "a default that has another value for each row in a column that a large table gets",
                hint="ADD COLUMN without it, then UPDATE",
            )
        _refuse_nulls(table, added, default_values(context, other, added))
        insert_query(context, transaction, other, table.columns, all_of(table), True, "refuse")
        return
    if not rows.num_rows:
        return
    values = default_values(context, other, added, rows.num_rows)
    _refuse_nulls(table, added, values)
    schema = arrow_schema([Column(c.name, c.type) for c in other.columns])
    arrays = [*rows.columns, *(values[c.name] for c in added)]
    for batch in batches_of(pa.Table.from_arrays(arrays, schema=schema)):
        transaction.work.change(other.id, TableChange(batch, None, "refuse"))


def _has_rows(context: Context, table: ObjectRecord) -> bool:
    return bool(select(context, parse_query(f"SELECT 1 FROM ({all_of(table).text}) AS t LIMIT 1")).rows())


def _refuse_nulls(table: ObjectRecord, added: tuple[Column, ...], values: Mapping[str, pa.Array]) -> None:
    empty = next((c for c in added if not c.nullable and values[c.name].null_count), None)
    if empty is not None:
        raise NotNullViolation(f'column "{empty.name}" of relation "{table.name}" contains null values')
