"""The options of the connector `postgres`, and connections that are made by them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from headrace.connectors.declared import Declared, Option, needed_module
from headrace.errors import HeadraceError, SinkError

CONNECT_S = 10
LOCK_WAIT_MS = 10_000
"""How long a transaction waits for a lock: what others hold is tried again, without a task that waits meanwhile."""

SERVER = (
    Option("host", "Where the server is.", default="localhost"),
    Option("port", "Its port.", "number", default="5432", least=1),
    Option("user", "The role to connect as.", required=True),
    Option("password", "Its password.", secret=True),
    Option("database", "The database.", required=True),
    Option(
        "ssl_mode", "As libpq's `sslmode`.", default="prefer",
        choices=("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    ),
    Option("ssl_root_cert", "A file with the certificates that the server's is checked by."),
)  # fmt: skip

SINK = Declared(
    (
        *SERVER,
        Option("schema", "The schema of the table.", default="public"),
        Option("table", "The table, which has to be there, with the sink's columns among its own.", required=True),
    )
)


@contextmanager
def connection(values: Mapping[str, Any]) -> Iterator[Any]:
    """A connection of psycopg within a transaction, which is committed by whoever asked for it, or not at all.

    Raises `SinkError` for what the server says or does not say.
    """
    psycopg = needed_module("psycopg", "postgres")
    where = f"PostgreSQL at {values['host']}:{values['port']}"
    try:
        with psycopg.connect(
            host=values["host"], port=values["port"], user=values["user"], password=values["password"],
            dbname=values["database"], sslmode=values["ssl_mode"], sslrootcert=values["ssl_root_cert"],
            connect_timeout=CONNECT_S, keepalives_idle=CONNECT_S, tcp_user_timeout=3 * CONNECT_S * 1000,
            application_name="headrace",
        ) as found:  # fmt: skip
            found.execute(f"SET lock_timeout = {LOCK_WAIT_MS}; SET timezone = 'UTC'; SET client_encoding = 'UTF8'")
            yield found
    except HeadraceError:
        raise
    except psycopg.Error as error:
        diagnostics = getattr(error, "diag", None)
        said = diagnostics.message_primary if diagnostics is not None else None
        detail = "\n".join(filter(None, (diagnostics.message_detail, diagnostics.context))) if diagnostics else None
        state = f" (SQLSTATE {error.sqlstate})" if error.sqlstate else ""
        raise SinkError(f"{where}: {said or error}{state}", detail=detail or None) from error
