"""Values that grow out of a number: more than the bound is error 54000 before it is made, over the wire."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from headrace.server import ServerThread
from headrace.session.database import Database
from headrace.sql.binder.catalogue.bounded_values import MOST_BYTES, MOST_ELEMENTS

OVER = MOST_BYTES + 1


@pytest.fixture(scope="module")
def connection(database: Database, server: ServerThread) -> Iterator[psycopg.Connection]:
    database.sql("CREATE TABLE grown (id int PRIMARY KEY, n int, s text)")
    database.sql(f"INSERT INTO grown VALUES (1, {OVER}, 'x'), (2, 3, 'ab'), (3, NULL, 'z'), (4, -1, NULL)")
    with psycopg.connect(host="127.0.0.1", port=server.port, user="root", dbname="dev", autocommit=True) as connection:
        yield connection
    database.sql("DROP TABLE grown CASCADE")


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT repeat('x', {OVER})",
        f"SELECT length(repeat(s || 'x', {OVER // 2 + 1})) FROM grown WHERE id = 2",
        f"SELECT length(repeat(repeat('ab', 3), {OVER // 6 + 1}))",
        "SELECT length(repeat(s, n)) FROM grown",
        f"SELECT lpad('x', {OVER})",
        f"SELECT rpad('x', {OVER}, 'ab')",
        "SELECT length(lpad(s, n, '-')) FROM grown",
        f"SELECT count(*) FROM generate_series(1, {MOST_ELEMENTS + 1})",
        f"SELECT count(*) FROM generate_series({2 * MOST_ELEMENTS}, -1, -2)",
        "SELECT count(*) FROM generate_series(-9223372036854775807, 9223372036854775807)",
        "SELECT count(*) FROM grown, generate_series(-5, n)",
        "SELECT count(*) FROM generate_series('2024-01-01'::timestamp, '2024-01-02', '1 millisecond')",
        "SELECT count(*) FROM generate_series('2024-01-02'::timestamptz, '2024-01-01', '-1 millisecond')",
    ],
)
def test_what_would_be_too_large_is_refused(connection: psycopg.Connection, query: str) -> None:
    with pytest.raises(psycopg.errors.ProgramLimitExceeded, match=r"too large|more than"):
        connection.execute(query)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("SELECT repeat('xy', 3), repeat('x', -2147483648), repeat(NULL, 2), repeat('x', NULL), repeat('', 2147483647)",
         [("xyxyxy", "", None, None, "")]),
        ("SELECT lpad('x', 3), rpad('x', 4, 'ab'), lpad('x', NULL), rpad('xy', -5)", [("  x", "xaba", None, "")]),
        ("SELECT id, repeat(s || '.', n), lpad(s, n, '-') FROM grown WHERE id > 1 ORDER BY id",
         [(2, "ab.ab.ab.", "-ab"), (3, None, None), (4, None, None)]),
        ("SELECT repeat(repeat('a', 2) || 'b', id) FROM grown WHERE id = 2", [("aabaab",)]),
        ("SELECT array_agg(g ORDER BY g) FROM generate_series(9, 1, -4) AS g", [([1, 5, 9],)]),
        ("SELECT count(*) FROM generate_series(9223372036854775805, 9223372036854775807)", [(3,)]),
        ("SELECT count(*) FROM generate_series('2024-01-01'::timestamp, '2024-01-02', '1 hour')", [(25,)]),
        ("SELECT count(*) FROM generate_series('2024-01-02'::timestamptz, '2024-01-01', '-1 minute')", [(1441,)]),
        ("SELECT count(*) FROM generate_series('0001-01-01'::timestamp, '9999-12-31', '1 day')", [(3652059,)]),
        ("SELECT id, g FROM grown, generate_series(2, n) AS g WHERE id > 1 ORDER BY g", [(2, 2), (2, 3)]),
    ],
)  # fmt: skip
def test_what_is_within_the_bound_is_as_before(connection: psycopg.Connection, query: str, rows: list[object]) -> None:
    assert connection.execute(query).fetchall() == rows  # type: ignore[arg-type]
