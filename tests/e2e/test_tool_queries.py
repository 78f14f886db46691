"""The catalog queries of Grafana, Metabase, Superset and DBeaver, answered as PostgreSQL answers them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from described_statements import KINDS, MEANT, SAME
from psycopg.pq import ExecStatus
from psycopg.rows import dict_row
from psycopg.types.numeric import Int8
from tool_queries import QUERIES, TABLES, ToolQuery

from postgres import Postgres
from server import HOST, Server, served


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[psycopg.Connection[Any]]:
    with (
        served(tmp_path_factory.mktemp("tools"), *TABLES, "FLUSH") as found,
        _connected(found) as connection,
    ):
        yield connection


def _connected(server: Server) -> psycopg.Connection[Any]:
    return psycopg.connect(
        host=HOST, port=server.port, user="root", dbname="dev", autocommit=True, options="-c TimeZone=UTC"
    )


@pytest.fixture(scope="module")
def theirs(postgres: Postgres) -> Iterator[psycopg.Connection[Any]]:
    with postgres.new_database("dev").connect() as connection:
        for statement in TABLES:
            connection.execute(statement)
        connection.execute("REFRESH MATERIALIZED VIEW totals")
        connection.execute("SET TIME ZONE 'UTC'")
        yield connection


def answered(connection: psycopg.Connection[Any], query: ToolQuery) -> tuple[list[str], list[dict[str, Any]]]:
    """The names of the columns, and the rows that are compared."""
    values = [_value(connection, given) for given in query.given]
    cursor = connection.cursor(row_factory=dict_row)
    cursor.execute(query.sql, values or None)
    columns = [column.name for column in cursor.description or ()]
    return columns, [row for row in cursor.fetchall() if query.only(row)]


def _value(connection: psycopg.Connection[Any], given: Any) -> Any:
    if given == "$schema":
        return _oid(connection, "SELECT oid FROM pg_namespace WHERE nspname = 'public'")
    if isinstance(given, str) and given.startswith("$"):
        return _oid(connection, "SELECT oid FROM pg_class WHERE relname = %s", given[1:])
    return Int8(given) if isinstance(given, int) else given


def _oid(connection: psycopg.Connection[Any], sql: str, *values: str) -> Int8:
    found = connection.execute(sql, values or None).fetchone()
    assert found is not None
    return Int8(found[0])


def _compared(query: ToolQuery, columns: list[str], rows: list[dict[str, Any]]) -> set[str]:
    names = columns if query.same is None else query.same.split()
    return {repr([row[name] for name in names]) for row in rows} if names else set()


@pytest.mark.parametrize("query", QUERIES, ids=lambda q: f"{q.tool}: {q.name}")
def test_a_tool_is_told_what_postgresql_tells(
    ours: psycopg.Connection[Any], theirs: psycopg.Connection[Any], query: ToolQuery
) -> None:
    names, rows = answered(ours, query)
    wanted_names, wanted_rows = answered(theirs, query)
    if query.sql.startswith("SELECT"):
        assert [name for name in wanted_names if name not in names] == []
    found, wanted = _compared(query, wanted_names, rows), _compared(query, wanted_names, wanted_rows)
    assert wanted or not wanted_rows or query.same == ""
    assert wanted <= found if query.more else wanted == found


Described = tuple[tuple[int, ...], tuple[tuple[str, int], ...]]
"""The types of a statement's parameters, and the names and types of its columns."""


def described(connection: psycopg.Connection[Any], sql: str) -> Described:
    """What the server says of a statement before it runs."""
    done = connection.pgconn.prepare(b"", sql.encode(), [])
    assert done.status == ExecStatus.COMMAND_OK, (sql, done.error_message)
    done = connection.pgconn.describe_prepared(b"")
    assert done.status == ExecStatus.COMMAND_OK, (sql, done.error_message)
    parameters = tuple(done.param_type(i) for i in range(done.nparams))
    return parameters, tuple(((done.fname(i) or b"").decode(), done.ftype(i)) for i in range(done.nfields))


@pytest.fixture
def kinds(ours: psycopg.Connection[Any], theirs: psycopg.Connection[Any]) -> Iterator[None]:
    """A table with a column of each type, which is no table that a tool is told of."""
    for connection in (ours, theirs):
        connection.execute(KINDS)
    yield
    for connection in (ours, theirs):
        connection.execute("DROP TABLE kinds")


def test_statements_are_described_as_postgresql_describes_them(
    ours: psycopg.Connection[Any], theirs: psycopg.Connection[Any], kinds: None
) -> None:
    """With unknown types of parameters, as most drivers send them."""
    assert [(sql, described(ours, sql)) for sql in SAME] == [(sql, described(theirs, sql)) for sql in SAME]
    for sql, (parameters, columns) in MEANT.items():
        found = described(ours, sql)
        assert (found[0], tuple(kind for _, kind in found[1])) == (parameters, columns), sql


_OTHER_TYPES = {
    "attmissingval", "client_addr", "data_type", "refname", "time", "TimeZone", "current_database", "current_schema",
    "session_user",
}  # fmt: skip
"""Columns of the tools' queries that have a type which there is none of here."""


def test_tools_are_told_postgresql_s_types(ours: psycopg.Connection[Any], theirs: psycopg.Connection[Any]) -> None:
    for query in QUERIES:
        pieces = re.split("(?<!%)%s", query.sql) if query.given else [query.sql]
        sql = pieces[0] + "".join(f"${i}{piece}" for i, piece in enumerate(pieces[1:], 1))
        sql = sql.replace("%%", "%") if query.given else sql
        found, wanted = described(ours, sql), described(theirs, sql)
        assert found[0] == wanted[0], (query.tool, query.name)
        for name, kind in wanted[1]:
            assert name in _OTHER_TYPES or (name, kind) in found[1], (query.tool, query.name, name)
