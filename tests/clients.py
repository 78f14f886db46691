"""Sessions and connections as tests use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
import pytest

from headrace.errors import HeadraceError
from headrace.server import ServerThread
from headrace.session.database import Database
from headrace.session.session import Session
from support import WAIT_S


def connect(server: ServerThread, user: str = "root", **options: Any) -> psycopg.Connection[Any]:
    """A connection to a server of this process, which commits each statement unless told otherwise."""
    options = {"autocommit": True, "connect_timeout": int(WAIT_S), **options}
    return psycopg.connect(host="127.0.0.1", port=server.port, user=user, dbname="dev", **options)


def count(connection: psycopg.Connection[Any], table: str) -> int:
    """How many rows a table has."""
    row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    assert row is not None
    return int(row[0])


def check_views_follow(database: Database, views: Mapping[str, str], changes: Sequence[str]) -> None:
    """Make views, and after each change compare each with its query."""
    for name, query in views.items():
        database.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
    for change in changes:
        database.sql(change)
        database.sql("FLUSH")
        for name, query in views.items():
            assert _sorted(database, f"SELECT * FROM {name}") == _sorted(database, query), (name, change)


def _sorted(database: Database, query: str) -> list[str]:
    return sorted(map(str, database.sql(query).rows()))


def refused(database: Database, sql: str) -> str:
    """What a statement is refused with: SQLSTATE and message."""
    with pytest.raises(HeadraceError) as caught:
        database.sql(sql)
    return f"{caught.value.sqlstate} {caught.value.message}"


def run(session: Session, *statements: str) -> list[tuple[Any, ...]]:
    """The rows of the last one of some statements."""
    rows: list[tuple[Any, ...]] = []
    for sql in statements:
        for result in session.execute(sql):
            rows = result.rows() if result.columns is not None else []
    return rows
