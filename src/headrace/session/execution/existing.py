"""What is there already when something is to be made, or is not there when something is to be done with it."""

from __future__ import annotations

from typing import Final, TypeAlias

from headrace.catalog.contents import (
    ConnectionContent,
    Content,
    FunctionContent,
    SchemaContent,
    SecretContent,
    SubscriptionContent,
)
from headrace.catalog.records import ObjectRecord
from headrace.coordinator.decide.automatic import is_automatic
from headrace.coordinator.decide.former import is_former, table_of
from headrace.errors import (
    DuplicateObject,
    DuplicateTable,
    HeadraceError,
    UndefinedFunction,
    UndefinedObject,
    UndefinedTable,
    WrongObjectType,
)
from headrace.session.context import Context
from headrace.session.execution import arrangement_choice
from headrace.session.names import kind_called, label, names_of
from headrace.session.result import Notice, Result
from headrace.sql import statements as st
from headrace.sql.statements import TableName

Creating: TypeAlias = (
    st.CreateTable | st.CreateSource | st.CreateSink | st.CreateConnection | st.CreateMaterializedView | st.CreateView
    | st.CreateIndex | st.CreateSubscription | st.CreateSecret
)  # fmt: skip
"""The statements that make something by a name that must be free."""
_APART: Final = ("secret", "connection")
"""What they make that is no relation."""


def taken(context: Context, statement: Creating) -> Result | None:
    """The result of a CREATE of what is there already; None where it is not. Raises `DuplicateTable`."""
    name = statement.name
    schema = name.schema or names_of(context).schema
    state = context.catalog.state
    if name.schema and schema != "public" and state.object_named("", schema) is None:
        raise UndefinedObject(f'schema "{schema}" does not exist', sqlstate="3F000")
    context.rights.require_new(schema)
    if state.object_named(schema, name.name) is None:
        return None
    made = statement.words.removeprefix("CREATE ").lower()
    what, error = (made, DuplicateObject) if made in _APART else ("relation", DuplicateTable)
    if statement.if_not_exists:
        text = f'{what} "{name.name}" already exists, skipping'
        return Result(statement.words, notices=[Notice(text, "NOTICE", error.sqlstate)])
    raise error(f'{what} "{name.name}" already exists')


def of_kind(context: Context, name: TableName, kind: type[Content]) -> ObjectRecord:
    """The object of a kind that a name stands for. Raises `UndefinedObject`, `WrongObjectType`."""
    found = names_of(context).find(name)
    if found is None:
        raise UndefinedObject(f'{kind.kind} "{name}" does not exist', hint=f"CREATE {kind.kind.upper()} makes one")
    if not isinstance(found.content, kind):
        raise WrongObjectType(f'"{name}" is a {found.kind_name}, not a {kind.kind}')
    return found


def refuse_automatic(context: Context, record: ObjectRecord, done: str) -> None:
    """Raises `WrongObjectType` for what the system has made and looks after by itself."""
    if is_former(record):
        table = table_of(context.catalog.state, record)
        raise WrongObjectType(
            f'"{record.name}" is what "{label(table)}" was before it got columns: it cannot be {done} by hand',
            hint="it goes with the last that reads it",
        )
    if is_automatic(record):
        state = context.catalog.state
        users = ", ".join(label(state.objects[i]) for i in state.dependents(record.id))
        raise WrongObjectType(
            f'"{record.name}" is an automatic index: it cannot be {done} by hand',
            detail=f"used by {users}" if users else None,
            hint="it goes with the last view that uses it; "
            f"SET {arrangement_choice.SETTING} = off has new views do without",
        )


def missing(word: str, name: TableName) -> HeadraceError:
    """The error of something that is not there, by the word that SQL has for its kind."""
    kind = kind_called(word)
    if kind is SchemaContent:
        return UndefinedObject(f'schema "{name.name}" does not exist', sqlstate="3F000")
    if kind is FunctionContent:
        return UndefinedFunction(f'{word} "{name}" does not exist')
    if kind in (SecretContent, SubscriptionContent, ConnectionContent):
        return UndefinedObject(f'{word} "{name}" does not exist')
    return UndefinedTable(f'{word} "{name}" does not exist')
