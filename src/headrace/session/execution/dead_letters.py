"""Dead-letter tables: which table a sink names for the rows that its target refuses, and whether it is one."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.catalog.contents import PlannedContent, SinkContent
from headrace.catalog.records import ObjectRecord
from headrace.connectors import refusals
from headrace.coordinator.ddl.recovered import rows_schema
from headrace.coordinator.decide.watermarks import declared
from headrace.errors import InvalidParameter, WrongObjectType
from headrace.session.context import Context
from headrace.session.execution.write_targets import is_required
from headrace.session.names import label, names_of
from headrace.sql.statements import TableName
from headrace.state.schema import TableSchema


def table_of(context: Context, options: Mapping[str, str]) -> ObjectRecord | None:
    """The table that options name; None where they name none.

    Raises `UndefinedTable`, `WrongObjectType`, `InsufficientPrivilege`, `InvalidParameter` for one that does not do.
    """
    if refusals.TABLE not in options:
        return None
    schema, _, name = options[refusals.TABLE].rpartition(".")
    found = names_of(context).get(TableName(schema or None, name))
    if not found.content.writable:
        raise WrongObjectType(f'option {refusals.TABLE}: {found.kind_name} "{label(found)}" is no table')
    context.rights.require("a", found)
    hint = f"CREATE TABLE {label(found)} {refusals.DEFINITION}"
    if found.primary_key or declared(found) is not None:
        message = f'the dead-letter table "{label(found)}" must have no primary key and no watermark'
        raise InvalidParameter(message, hint=hint)
    types = {column.name: column.type for column in found.columns}
    for column in refusals.COLUMNS:
        if types.get(column.name) != column.type:
            problem = "has no" if column.name not in types else f"is not {column.type} in its"
            raise InvalidParameter(
                f'the dead-letter table "{label(found)}" {problem} column "{column.name}"', hint=hint
            )
    known = {column.name for column in refusals.COLUMNS}
    other = next((c.name for c in found.columns if c.name not in known and is_required(found, c)), None)
    if other is not None:
        message = f'the column "{other}" of the dead-letter table "{label(found)}" must be allowed to be NULL'
        raise InvalidParameter(message, hint=hint)
    return found


def layout(context: Context, content: PlannedContent) -> TableSchema | None:
    """The layout of the table that a sink has for refused rows; None where there is none."""
    if not isinstance(content, SinkContent) or content.dead_letters is None:
        return None
    return rows_schema(context.catalog.state.objects[content.dead_letters])
