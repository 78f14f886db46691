"""ALTER TABLE ... ADD PRIMARY KEY: another table with the key gets the rows, and then takes the place of the first.

Nobody writes to the table meanwhile, and whoever reads it reads the first one until the other is in its place. A crash
before that leaves the table as it was; what was being filled is dropped by the next start.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.catalog.contents import TableContent
from headrace.catalog.records import ObjectRecord
from headrace.coordinator.ddl.replacing import definition_with, name_while_filled
from headrace.dataflow.operators.table_write import null_in
from headrace.errors import (
    DependentObjectsExist,
    DuplicateTable,
    HeadraceError,
    NotNullViolation,
    NotSupported,
    StatementError,
    UndefinedColumn,
    UniqueViolation,
    WrongObjectType,
)
from headrace.session.context import Context
from headrace.session.execution.dml import batches_of, insert_query
from headrace.session.execution.handler import Handler, Needs
from headrace.session.execution.in_transaction import opened
from headrace.session.execution.kernel_queries import all_of, all_rows
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
    coordinator = context.coordinator
    keyed = _with_key(table, statement)
    try:
        keyed = replace(keyed, id=coordinator.create_relation(keyed))
    except DuplicateTable as error:
        error.hint = "A table is filled under this name while it gets a primary key: DROP TABLE what has it."
        raise
    try:
        _fill(context, table, keyed)
    except BaseException:
        left = context.catalog.state.objects.get(keyed.id)
        if left is not None and left.name == keyed.name:  # else it has taken the place of the first, with all rows
            with suppress(HeadraceError):
                coordinator.drop([keyed.id])
        raise
    return Result(statement.tag)


def _check(context: Context, table: ObjectRecord, columns: tuple[str, ...]) -> None:
    """Raises what is wrong with such a key of such a table."""
    if not isinstance(table.content, TableContent):
        raise WrongObjectType(f'"{label(table)}" is a {table.kind_name}: only a table is given a primary key')
    if table.primary_key:
        raise StatementError(f'multiple primary keys for table "{label(table)}" are not allowed', sqlstate="42P16")
    if table.content.append_only or table.options:
        raise NotSupported(
            "adding a primary key to a table that is append-only or takes requests",
            hint="declare the key in CREATE TABLE",
        )
    kinds = {c.name: c.type for c in table.columns}
    for name in columns:
        if name not in kinds:
            raise UndefinedColumn(f'column "{name}" of relation "{label(table)}" does not exist')
        check_key_type(name, kinds[name])
    above = context.catalog.state.dependents(table.id)
    if above:
        other = context.catalog.state.objects[min(above)]
        raise DependentObjectsExist(
            f'cannot add a primary key to table "{label(table)}" because other objects depend on it',
            detail=f'{other.kind_name} "{label(other)}" depends on table "{label(table)}"',
            hint="Add the key before anything is built on the table: drop what is, and create it again.",
        )


def _with_key(table: ObjectRecord, statement: st.AddPrimaryKey) -> ObjectRecord:
    """What is stored of the table that takes the place of another one."""
    columns = tuple(replace(c, nullable=False) if c.name in statement.columns else c for c in table.columns)
    return replace(
        table, name=name_while_filled(table), columns=columns, primary_key=statement.columns,
        definition=definition_with(table, statement.text),
    )  # fmt: skip


def _fill(context: Context, table: ObjectRecord, keyed: ObjectRecord) -> None:
    """Copy the rows, and let the one table take the place of the other before anybody else writes to it."""
    own = opened(context, implicit=True, gated=frozenset({table.id}))
    try:
        with context.within(own):
            _copy(context, own, table, keyed)
        outcome = own.work.commit(context.check)
        context.coordinator.take_place(keyed.id, table.id)
    except UniqueViolation as error:
        key = ", ".join(keyed.primary_key)
        raise UniqueViolation(
            f'could not create unique index "{table.name}_pkey"',
            detail=error.detail or f"A value of ({key}) is duplicated.",
        ) from None
    except NotNullViolation as error:
        column = _IN_COLUMN.sub(r"\1", error.message)  # of one that a task has raised there is nothing else
        raise NotNullViolation(f'column "{column}" of relation "{table.name}" contains null values') from None
    finally:
        own.close()
    if outcome is not None:
        context.wrote(outcome.epoch)


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
