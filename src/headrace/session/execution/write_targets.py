"""What a statement writes to: the table, its columns, and the rules that its rows must keep."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from headrace.catalog.contents import TableContent
from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column
from headrace.common.texts import text_of
from headrace.dataflow.operators.table_write import null_in
from headrace.errors import HeadraceError, StatementError, UndefinedColumn, WrongObjectType
from headrace.session.context import Context
from headrace.session.names import label, names_of
from headrace.sql import statements as st
from headrace.sql.dml import Returning
from headrace.sql.parser import parse_query
from headrace.sql.statements import TableName

Writing = st.Insert | st.Update | st.Delete | st.CopyFrom | st.CopyFromFiles
"""The statements that write rows to a table."""


def letters_of(statement: Writing) -> str:
    """A letter for each privilege that a statement takes on the table that it writes to."""
    letters = statement.privileges
    return letters + "r" if statement.returning is not None and "r" not in letters else letters


def target_table(context: Context, statement: Writing) -> ObjectRecord:
    """The table to write to. Raises `WrongObjectType` for anything else, `InsufficientPrivilege`."""
    return writable_table(context, statement.table, statement.verb, letters_of(statement))


def writable_table(context: Context, name: TableName, verb: str, letters: str) -> ObjectRecord:
    """The same for a table by its name, and the letters of privileges that it takes."""
    record = names_of(context).get(name)
    if not record.content.writable:
        raise WrongObjectType(
            f'cannot {verb} {record.kind_name} "{label(record)}"', hint="Only tables can be written to."
        )
    context.rights.require(letters, record)
    return record


def target_columns(record: ObjectRecord, names: Sequence[str]) -> list[Column]:
    """The columns of an INSERT's column list; all without one."""
    by_name = {c.name: c for c in record.columns}
    for name in names:
        if name not in by_name:
            raise UndefinedColumn(f'column "{name}" of relation "{label(record)}" does not exist')
        if list(names).count(name) > 1:
            raise StatementError(f'column "{name}" specified more than once', sqlstate="42701")
    return [by_name[n] for n in names] if names else list(record.columns)


def ignores(record: ObjectRecord, statement: st.Insert) -> bool:
    """Whether an INSERT leaves a row out whose primary key is there."""
    if statement.conflict is not None:
        return not statement.conflict.updates
    return record.content_as(TableContent).on_conflict == "ignore"


def is_required(record: ObjectRecord, column: Column) -> bool:
    """Whether a column may not be null."""
    return not column.nullable or column.name in record.primary_key


def check_not_null(record: ObjectRecord, rows: pa.Table) -> None:
    """Raise `NotNullViolation` for a null in a column that may not hold it."""
    for column in record.columns:
        found = rows.column(column.name)
        if found.null_count and is_required(record, column):
            at = pc.index(pc.is_null(found), True).as_py()
            raise null_in(label(record), column.name, [text_of(c[at]) for c in rows.columns])


def check_row(record: ObjectRecord, row: Sequence[object]) -> None:
    """Raise `NotNullViolation` for a null in a row where none may be."""
    for column, value in zip(record.columns, row):
        if value is None and is_required(record, column):
            raise null_in(label(record), column.name, row)


def plain_items(wanted: Returning, record: ObjectRecord) -> list[tuple[str, str]] | None:
    """(column, label) of a list that is nothing but columns; None for another one."""
    found: list[tuple[str, str]] = []
    for column, shown in returned_items(wanted, record):
        if column is None:
            return None
        found.append((column, shown))
    return found or None


def _is_own(column: exp.Column, wanted: Returning) -> bool:
    """Whether a column is that of the changed table, by how it is qualified; the binder tells what any other is."""
    plain = isinstance(column.this, exp.Identifier) and column.args.get("db") is None
    return plain and column.table in ("", wanted.relation)


def returned_items(wanted: Returning, record: ObjectRecord) -> list[tuple[str | None, str]]:
    """(column, label) of each item of a list, None for what is no column; empty for a list that is not understood."""
    text = wanted.text.strip()
    try:
        tree = parse_query(
            "SELECT " + (text[len("RETURNING") :] if text.upper().startswith("RETURNING") else text)
        ).tree
    except HeadraceError:
        return []
    names = [c.name for c in record.columns]
    found: list[tuple[str | None, str]] = []
    for item in tree.expressions:
        inner = item.this if isinstance(item, exp.Alias) else item
        if isinstance(inner, exp.Star) and not any(inner.args.values()):
            found += [(n, n) for n in names]
        elif isinstance(inner, exp.Column) and inner.name in names and _is_own(inner, wanted):
            found.append((inner.name, item.alias_or_name))
        elif isinstance(inner, exp.Column) and isinstance(inner.this, exp.Star):
            return []
        else:
            found.append((None, item.alias_or_name))
    return found
