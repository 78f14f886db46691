"""Tables whose rows come in HTTP requests: what `CREATE TABLE` keeps of the connector."""

from __future__ import annotations

from headrace.connectors.webhook.options import check_options
from headrace.connectors.webhook.validation import SECRET
from headrace.errors import InvalidParameter, NotSupported
from headrace.session.context import Context
from headrace.session.execution import connections, secrets
from headrace.session.execution.connections import Resolved
from headrace.session.result import Notice
from headrace.sql import statements as st


def resolved(context: Context, statement: st.CreateTable) -> Resolved:
    """The options as they are stored, how requests prove where they come from among them.

    Raises `InvalidParameter`, `NotSupported` for what such a table does not have, and as `connections.resolved` does.
    """
    if statement.query is not None:
        raise NotSupported("AS of a table whose rows come in requests", hint="INSERT them after it was created")
    if any(column.default is not None for column in statement.columns):
        raise NotSupported("DEFAULT in a table whose rows come in requests", hint="compute it in a view")
    proof = {} if statement.validation is None else statement.validation.options()
    other = next((name for name in statement.secrets if not (proof and name == SECRET)), None)
    if other is not None:
        raise InvalidParameter(f"option {other} of connector webhook cannot be a secret")
    if statement.connection is not None:
        raise InvalidParameter("connector webhook goes nowhere: it takes no connection")
    check_options(statement.options)
    found = connections.resolved(context, statement, statement.options)
    values = context.coordinator.secrets(found.secrets)
    if values is not None and not values()[SECRET]:
        raise InvalidParameter("VALIDATE with an empty secret proves nothing", hint="ALTER SECRET s AS '...'; first")
    return Resolved({**found.options, **proof}, found.secrets, secrets.dependencies(found.secrets))


def notices(context: Context) -> list[Notice]:
    """What whoever has created such a table should know."""
    if context.settings.webhook_port is not None:
        return []
    return [Notice("this server takes no requests: it was started without webhook_port")]
