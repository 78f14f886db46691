"""Connections of the command to a server, with what libpq's environment variables say of passwords and TLS."""

from __future__ import annotations

import getpass
import os
import sys
from typing import cast, get_args

from headrace.errors import InvalidParameter
from headrace.server.simple_client import Encryption, PasswordNeeded, PgClient


def connect(host: str, port: int, *, user: str, dbname: str, password: str | None = None) -> PgClient:
    """A connection; asks for a password at the terminal where one is needed and PGPASSWORD is not set.

    Raises `InvalidParameter` for an unknown PGSSLMODE, and as `PgClient` does.
    """
    mode = os.environ.get("PGSSLMODE", "prefer")
    if mode not in get_args(Encryption):
        raise InvalidParameter(f"PGSSLMODE cannot be {mode!r}", hint=f"one of {', '.join(get_args(Encryption))}")
    root = os.environ.get("PGSSLROOTCERT") or None
    password = os.environ.get("PGPASSWORD") or None if password is None else password

    def connected(secret: str | None) -> PgClient:
        return PgClient(
            host, port, user=user, dbname=dbname, password=secret, encryption=cast(Encryption, mode),
            root_certificate=root, application_name="headrace",
        )  # fmt: skip

    try:
        return connected(password)
    except PasswordNeeded:
        if not sys.stdin.isatty():
            raise
        return connected(getpass.getpass(f"Password for user {user}: "))
