"""The options of the connector `postgres`, and connections that are made by them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from headrace.connectors.connection_options import Connects
from headrace.connectors.declared import DeclaredOptions, Option, needed_module
from headrace.errors import HeadraceError, InvalidParameter, SinkError

CONNECT_S = 10
NO_FILE = f"{os.devnull}/none"
"""A file that nobody can make."""
REQUIRES_AUTH = 160_000
"""The first version of libpq that can be told which ways of authentication, and no certificate, to use."""
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

SINK = DeclaredOptions(
    (
        *SERVER,
        Option("schema", "The schema of the table.", default="public"),
        Option("table", "The table, which has to be there, with the sink's columns among its own.", required=True),
    )
)


_CDC_SERVER = (
    Option("hostname", "Where the server is.", default="localhost"),
    Option("port", "Its port.", "number", default="5432", least=1),
    Option("username", "The role to connect as; it needs `REPLICATION` and `SELECT` on the table.", required=True),
    Option("password", "Its password.", secret=True),
    Option("database.name", "The database.", required=True),
    Option("ssl.mode", "As libpq's `sslmode`.", default="prefer",
           choices=("disable", "allow", "prefer", "require", "verify-ca", "verify-full")),
    Option("ssl.root.cert", "A file with the certificates that the server's is checked by."),
)  # fmt: skip
CDC = DeclaredOptions(
    (
        *_CDC_SERVER,
        Option("schema.name", "The schema of the table.", default="public"),
        Option("table.name", "The table.", required=True),
        Option("slot.name", "The replication slot, for this table alone; by default one is made up."),
        Option("publication.name", "The publication, which is made if it is not there; by default as the slot."),
    )
)
SHARED = DeclaredOptions(
    (
        *_CDC_SERVER,
        Option("schema.name", "The schema of tables that are named without one.", default="public"),
        Option("slot.name", "The replication slot of all tables, made with the source; by default one is made up."),
        Option("publication.name", "The publication of all tables, which is made if it is not there, and then has the "
                                   "tables added that are asked for; by default as the slot."),
    )
)  # fmt: skip
_CDC_NAMES = {
    "host": "hostname", "port": "port", "user": "username", "password": "password", "database": "database.name",
    "ssl_mode": "ssl.mode", "ssl_root_cert": "ssl.root.cert",
}  # fmt: skip
CONNECTION = Connects(DeclaredOptions(SERVER), {"postgres": {}, "postgres-cdc": _CDC_NAMES})


def with_slot(options: Mapping[str, str]) -> dict[str, str]:
    """Options with a slot and a publication, made up where they are not named."""
    found = dict(options)
    found.setdefault("slot.name", f"headrace_{secrets.token_hex(6)}")
    found.setdefault("publication.name", found["slot.name"])
    return found


def cdc_server(values: Mapping[str, Any]) -> dict[str, Any]:
    """The server of the options of `CDC`, as `connection` takes it."""
    return {name: values[spelled] for name, spelled in _CDC_NAMES.items()}


def _nobody(psycopg: Any) -> dict[str, str]:
    """Options by which nothing that belongs to this process says who it is: only what the user has given does."""
    found = {"passfile": NO_FILE, "gssencmode": "disable"}
    if psycopg.pq.version() >= REQUIRES_AUTH:
        found |= {"require_auth": "none,password,md5,scram-sha-256", "sslcertmode": "disable"}
    return found


@contextmanager
def connection(values: Mapping[str, Any], failure: type[HeadraceError] = SinkError) -> Iterator[Any]:
    """A connection of psycopg within a transaction, which is committed by whoever asked for it, or not at all.

    Raises `failure` for what the server says or does not say.
    """
    psycopg = needed_module("psycopg", "postgres")
    if values["host"].startswith(("/", "@")):
        raise InvalidParameter(
            "the host of PostgreSQL must be a name or an address", hint="a socket tells the server who this process is"
        )
    where = f"PostgreSQL at {values['host']}:{values['port']}"
    try:
        with psycopg.connect(
            host=values["host"], port=values["port"], user=values["user"], password=values["password"] or "",
            dbname=values["database"], sslmode=values["ssl_mode"], sslrootcert=values["ssl_root_cert"],
            connect_timeout=CONNECT_S, keepalives_idle=CONNECT_S, tcp_user_timeout=3 * CONNECT_S * 1000,
            application_name="headrace", **_nobody(psycopg),
        ) as found:  # fmt: skip
            found.execute(f"SET lock_timeout = {LOCK_WAIT_MS}; SET timezone = 'UTC'; SET client_encoding = 'UTF8'")
            found.commit()
            yield found
    except HeadraceError:
        raise
    except psycopg.Error as error:
        diagnostics = getattr(error, "diag", None)
        said = diagnostics.message_primary if diagnostics is not None else None
        detail = "\n".join(filter(None, (diagnostics.message_detail, diagnostics.context))) if diagnostics else None
        state = f" (SQLSTATE {error.sqlstate})" if error.sqlstate else ""
        raise failure(f"{where}: {said or error}{state}", detail=detail or None) from error
