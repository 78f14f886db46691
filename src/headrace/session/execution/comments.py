"""COMMENT ON: what people write about objects, kept with these and shown by `pg_description` and `pg_shdescription`."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from headrace.catalog.contents import SchemaContent
from headrace.catalog.records import DATABASE_COMMENT, ObjectRecord
from headrace.errors import InsufficientPrivilege, UndefinedColumn, UndefinedObject, UndefinedTable, WrongObjectType
from headrace.session.context import Context
from headrace.session.execution.grants import schema_record
from headrace.session.execution.handler import Handler, Needs
from headrace.session.execution.roles import role_to_alter
from headrace.session.names import kind_called, names_of
from headrace.session.result import Result
from headrace.sql import statements as st


def comment(context: Context, statement: st.Comment) -> Result:
    """Write a comment about an object or a column, or take it back."""
    about = statement.column or ""
    if statement.kind == "database":
        record, about = _database(context, statement.name.name), DATABASE_COMMENT
    elif statement.kind == "role":
        record = role_to_alter(context, statement.name.name)
    else:
        record = _meant(context, statement)
        context.rights.require_owner(record)
    if statement.column and all(c.name != about for c in record.columns):
        raise UndefinedColumn(f'column "{about}" of relation "{record.name}" does not exist')

    def change(record: ObjectRecord) -> ObjectRecord:
        others = {name: text for name, text in record.comments.items() if name != about}
        return replace(record, comments=others if statement.comment is None else {**others, about: statement.comment})

    context.coordinator.alter_objects([record.id], change, f"was commented on by {context.role}")
    return Result(statement.tag)


def _database(context: Context, name: str) -> ObjectRecord:
    """What keeps the comment on the database. Raises `UndefinedObject`, `InsufficientPrivilege`."""
    if name != st.DATABASE:
        raise UndefinedObject(f'database "{name}" does not exist', sqlstate="3D000")
    if not context.rights.superuser:
        raise InsufficientPrivilege(f"must be owner of database {name}")
    return schema_record(context, "public")


def _meant(context: Context, statement: st.Comment) -> ObjectRecord:
    name, wanted = statement.name, kind_called(statement.kind)
    if wanted is SchemaContent:
        return schema_record(context, name.name)
    record = names_of(context).find(name)
    if record is None:
        if wanted is None or wanted.relation:
            raise UndefinedTable(f'relation "{name}" does not exist')
        raise UndefinedObject(f'{statement.kind} "{name}" does not exist')
    if wanted is not None and not isinstance(record.content, wanted):
        raise WrongObjectType(f'"{name}" is a {record.kind_name}, not a {statement.kind}')
    if wanted is None and not record.content.relation:
        raise WrongObjectType(f'"{name}" is a {record.kind_name}, which has no columns')
    return record


HANDLERS: Final = (Handler(st.Comment, comment, needs=Needs.OWNER),)
