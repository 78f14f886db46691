"""CREATE SECRET, ALTER SECRET, and the secrets that options name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.catalog.contents import SecretContent
from headrace.catalog.records import ObjectRecord
from headrace.errors import InvalidParameter
from headrace.session.context import Context
from headrace.session.execution.existing import of_kind, taken
from headrace.session.execution.handler import Handler, Needs
from headrace.session.execution.owning import owned
from headrace.session.names import names_of
from headrace.session.result import Notice, Result
from headrace.sql import statements as st

Naming = st.CreateSource | st.CreateSink | st.CreateTable | st.CreateConnection | st.CopyFromFiles | st.CopyToFiles
"""The statements with options that may have the value of a secret."""


def create_secret(context: Context, statement: st.CreateSecret) -> Result:
    """CREATE SECRET."""
    found = taken(context, statement)
    if found is not None:
        return found
    schema, now = statement.name.schema or names_of(context).schema, context.clock.now_ms()
    record = ObjectRecord(0, SecretContent(), schema, statement.name.name, definition=statement.text, created_ms=now)
    context.coordinator.create_secret(owned(context, record), statement.value)
    return Result(statement.tag)


def alter_secret(context: Context, statement: st.AlterSecret) -> Result:
    """ALTER SECRET: whoever uses it gets the new value when it is opened or asked the next time."""
    found = names_of(context).find(statement.name)
    if found is None and statement.if_exists:
        return Result(statement.tag, notices=[Notice(f'secret "{statement.name}" does not exist, skipping')])
    record = of_kind(context, statement.name, SecretContent)
    context.rights.require_owner(record)
    context.coordinator.alter_secret(record.id, statement.value)
    return Result(statement.tag)


def named(context: Context, statement: Naming) -> dict[str, int]:
    """Option -> the id of the secret that the statement names. Raises `UndefinedObject`, `WrongObjectType`."""
    both = sorted(set(statement.secrets) & set(statement.options))
    if both:
        raise InvalidParameter(f"option {both[0]} is given twice, once as a secret")
    found = {option: of_kind(context, name, SecretContent) for option, name in statement.secrets.items()}
    for record in found.values():
        context.rights.require("U", record)
    return {option: record.id for option, record in found.items()}


def dependencies(secrets: Mapping[str, int]) -> tuple[int, ...]:
    """The secrets, each once."""
    return tuple(sorted(set(secrets.values())))


HANDLERS: Final = (
    Handler(st.CreateSecret, create_secret, needs=Needs.CREATE),
    Handler(st.AlterSecret, alter_secret, needs=Needs.OWNER),
)
