"""Row descriptions say which column of which relation a result's column is, as PostgreSQL's do for the same queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest

from postgres import Postgres
from server import HOST, Server, served

TABLES = (
    "CREATE TABLE customers (id int PRIMARY KEY, name text, city text)",
    "CREATE TABLE orders (id int PRIMARY KEY, customer int, amount float8)",
    "CREATE VIEW big AS SELECT amount, customer FROM orders WHERE amount > 10",
    "CREATE MATERIALIZED VIEW totals AS SELECT customer, count(*) AS n FROM orders GROUP BY customer",
)
QUERIES = (
    "SELECT * FROM customers",
    "SELECT city AS place, id FROM customers WHERE id = 1",
    "SELECT id FROM customers WHERE id = %s",
    "SELECT upper(name), city, id + 0, id FROM customers",
    "SELECT c.name, o.amount, o.id FROM customers c JOIN orders o ON o.customer = c.id",
    "SELECT * FROM customers LEFT JOIN orders USING (id)",
    "SELECT place FROM (SELECT city AS place FROM customers ORDER BY id LIMIT 3) AS s",
    "WITH s AS (SELECT name, amount FROM customers, orders) SELECT amount, name FROM s",
    "SELECT customer, amount FROM big",
    "SELECT n, customer FROM totals",
    "SELECT customer, sum(amount) FROM orders GROUP BY customer",
    "SELECT id FROM customers UNION SELECT id FROM orders",
    "SELECT DISTINCT city FROM customers",
    "SELECT (SELECT max(amount) FROM orders), 1, x FROM generate_series(1, 2) AS g(x)",
    "VALUES (1, 'a')",
    "INSERT INTO customers VALUES (7, 'n', 'c') RETURNING city, id",
    "UPDATE customers SET city = 'd' WHERE id = 7 RETURNING id, upper(city), city",
    "DELETE FROM customers WHERE id = 7 RETURNING name",
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("origins")) as found, connected(found) as connection:
        for statement in TABLES:
            connection.execute(statement)
        yield found


def connected(server: Server) -> psycopg.Connection[Any]:
    return psycopg.connect(host=HOST, port=server.port, user="root", dbname="dev", autocommit=True)


@pytest.fixture(scope="module")
def theirs(postgres: Postgres) -> Iterator[psycopg.Connection[Any]]:
    with postgres.new_database("origins").connect() as connection:
        connection.autocommit = True
        for statement in TABLES:
            connection.execute(statement)
        yield connection


def origins(connection: psycopg.Connection[Any], query: str, prepare: bool) -> list[tuple[Any, ...]]:
    values: Sequence[int] | None = (1,) if "%s" in query else None
    found = connection.execute(query, values, prepare=prepare).pgresult
    assert found is not None
    names = dict(connection.execute("SELECT oid, relname FROM pg_catalog.pg_class").fetchall())
    return [
        (found.fname(i), names[found.ftable(i)] if found.ftable(i) else None, found.ftablecol(i))
        for i in range(found.nfields)
    ]


@pytest.mark.parametrize("query", QUERIES)
def test_a_column_is_described_as_postgresql_does(server: Server, theirs: psycopg.Connection[Any], query: str) -> None:
    expected = origins(theirs, query, False)
    with connected(server) as connection:
        for prepare in (False, True, True):
            assert origins(connection, query, prepare) == expected
