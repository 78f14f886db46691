"""CREATE CONNECTION, and the options of what names one.

An object takes over what its connection says when it is created, so nothing else asks what a connection is; it depends
on it all the same, and a connection cannot be changed. Values of secrets are not taken over: they are looked up when
they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from headrace.catalog.contents import ConnectionContent
from headrace.catalog.records import ObjectRecord
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors import connection_options, other_names
from headrace.connectors.confidential import hiding
from headrace.connectors.connection_options import GivenOptions
from headrace.errors import InvalidParameter
from headrace.session.context import Context
from headrace.session.execution import secrets
from headrace.session.execution.existing import of_kind, taken
from headrace.session.execution.handler import Handler, Needs
from headrace.session.execution.owning import owned
from headrace.session.names import label, names_of
from headrace.session.result import Result
from headrace.sql import statements as st

TYPE: Final = "type"
"""The option that says it; it is not among those that are stored."""


def create_connection(context: Context, statement: st.CreateConnection) -> Result:
    """CREATE CONNECTION. Nothing is connected to: whoever uses it finds out whether anybody is there."""
    found = taken(context, statement)
    if found is not None:
        return found
    options, named = dict(statement.options), secrets.named(context, statement)
    if TYPE not in options:
        raise InvalidParameter(
            "a connection needs the option type", hint=f"one of {', '.join(connection_options.TYPES)}"
        )
    kind, told = options.pop(TYPE), context.coordinator.secrets(named)
    values = {} if told is None else dict(told())
    with hiding([*values.values()]):
        connection_options.check(kind, options, values)
    schema, now = statement.name.schema or names_of(context).schema, context.clock.now_ms()
    record = ObjectRecord(
        0, ConnectionContent(type=kind), schema, statement.name.name, definition=statement.text, options=options,
        depends_on=secrets.dependencies(named), created_ms=now, secrets=named,
    )  # fmt: skip
    context.coordinator.create_relation(owned(context, record))
    return Result(statement.tag)


@dataclass(frozen=True)
class Resolved:
    """The options of a statement with those of its connection."""

    options: dict[str, str]
    secrets: dict[str, int]
    needed: tuple[int, ...]
    """The secrets and the connection, each once."""


NOTHING: Final = Resolved({}, {}, ())
"""Those of what has no connector."""


def resolved(
    context: Context, statement: st.CreateSource | st.CreateSink | st.CreateTable, options: Mapping[str, str],
    named: Callable[[GivenOptions], GivenOptions] = other_names.of_source,
) -> Resolved:  # fmt: skip
    """Those of a statement, whose own are `options`; `named` gives them headrace's names.

    Raises `UndefinedObject`, `WrongObjectType`, `InsufficientPrivilege`, and `InvalidParameter` where they contradict.
    """
    given = named(GivenOptions(dict(options), secrets.named(context, statement)))
    if statement.connection is None:
        return Resolved(given.options, given.secrets, secrets.dependencies(given.secrets))
    record = of_kind(context, statement.connection, ConnectionContent)
    context.rights.require("U", record)
    there = GivenOptions(dict(record.options), dict(record.secrets))
    given = connection_options.joined(label(record), record.content_as(ConnectionContent).type, there, given)
    return Resolved(given.options, given.secrets, (*secrets.dependencies(given.secrets), record.id))


def shown(context: Context, record: ObjectRecord) -> str:
    """A connection's options, with the names of secrets."""
    objects = context.catalog.state.objects
    both = record.options | {name: f"SECRET {label(objects[i])}" for name, i in record.secrets.items() if i in objects}
    return ", ".join(f"{name} = {value}" for name, value in sorted(both.items()))


HANDLERS: Final = (Handler(st.CreateConnection, create_connection, needs=Needs.CREATE),)
