"""ALTER TABLE ... ADD PRIMARY KEY: a table that has the key gets the rows."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.catalog.contents import TableContent
from headrace.catalog.records import ObjectRecord
from headrace.dataflow.operators.table_write import null_in
from headrace.errors import NotNullViolation, StatementError, UndefinedColumn, UniqueViolation
from headrace.session.context import Context
from headrace.session.execution.dml import batches_of, insert_query
from headrace.session.execution.handler import Handler, Needs
from headrace.session.execution.kernel_queries import all_of, all_rows
from headrace.session.execution.replacing_tables import check_replaceable, put_in_place
from headrace.session.names import label, names_of
from headrace.session.result import Notice, Result
from headrace.session.transactions import Transaction
from headrace.sql import statements as st
from headrace.sql.ddl import check_key_type
from headrace.state.table_changes import TableChange

_IN_COLUMN: Final = re.compile(r'.* in column "(.*)" of relation ".*', re.DOTALL)


def add_primary_key(context: Context, statement: st.AddPrimaryKey) -> Result:
    """Give a table a primary key. Raises `UniqueViolation`, `NotNullViolation` for rows that are in its way."""
    found = names_of(context).find(statement.name)
    if found is None and statement.if_exists:
        return Result(statement.tag, notices=[Notice(f'relation "{statement.name}" does not exist, skipping')])
    table = found or names_of(context).get(statement.name)
    context.rights.require_owner(table)
    _check(context, table, statement.columns)
    columns = tuple(replace(c, nullable=False) if c.name in statement.columns else c for c in table.columns)
    keyed = replace(table, columns=columns, primary_key=statement.columns)
    try:
        put_in_place(context, table, keyed, statement.text, lambda own, keyed: _copy(context, own, table, keyed))
    except UniqueViolation as error:
        key = ", ".join(keyed.primary_key)
        raise UniqueViolation(
            f'could not create unique index "{table.name}_pkey"',
            detail=error.detail or f"A value of ({key}) is duplicated.",
        ) from None
    except NotNullViolation as error:
        column = _IN_COLUMN.sub(r"\1", error.message)  # of one that a task has raised there is nothing else
        raise NotNullViolation(f'column "{column}" of relation "{table.name}" contains null values') from None
    return Result(statement.tag)


def _check(context: Context, table: ObjectRecord, columns: tuple[str, ...]) -> None:
    """Raise what is wrong with such a key of such a table."""
    if isinstance(table.content, TableContent) and table.primary_key:
        raise StatementError(f'multiple primary keys for table "{label(table)}" are not allowed', sqlstate="42P16")
    kinds = {c.name: c.type for c in table.columns}
    for name in columns if isinstance(table.content, TableContent) else ():
        if name not in kinds:
            raise UndefinedColumn(f'column "{name}" of relation "{label(table)}" does not exist')
        check_key_type(name, kinds[name])
    check_replaceable(context, table, "a primary key", built_on=False)


def _copy(context: Context, transaction: Transaction, table: ObjectRecord, keyed: ObjectRecord) -> None:
    rows = all_rows(context, table)
    if rows is None:
        insert_query(context, transaction, keyed, keyed.columns, all_of(table), True, "refuse")
        return
    for name in keyed.primary_key:
        if rows.column(name).null_count:
            raise null_in(keyed.name, name, ())
    _refuse_duplicates(rows, keyed.primary_key)
    for batch in batches_of(rows):
        transaction.work.change(keyed.id, TableChange(batch, None, "refuse"))


def _refuse_duplicates(rows: pa.Table, key: tuple[str, ...]) -> None:
    counted = rows.select(key).group_by(list(key), use_threads=False).aggregate([([], "count_all")])
    twice = counted.filter(pc.greater(counted.column("count_all"), 1)).slice(0, 1).to_pylist()
    if twice:
        values = ", ".join(str(twice[0][name]) for name in key)
        raise UniqueViolation("duplicate key", detail=f"Key ({', '.join(key)})=({values}) is duplicated.")


HANDLERS: Final = (
    Handler(
        st.AddPrimaryKey, add_primary_key, outside=lambda _: "ALTER TABLE ... ADD PRIMARY KEY", needs=Needs.OWNER
    ),
)  # fmt: skip
