"""`interval` and `time` in a whole database: columns, changes, views, parameters and the wire."""

from __future__ import annotations

import datetime as dt
from typing import Any

import psycopg
import pytest

from clients import check_views_follow
from headrace.errors import DataError
from headrace.server import ServerThread
from headrace.session.database import Database

ROWS = """
(1, '1 mon', '08:15'), (2, '30 days', '08:15:00.5'), (3, '720:00:00', '24:00'), (4, NULL, NULL),
(5, '-1 day +01:02:03.5', '00:00')
"""


@pytest.fixture
def table(database: Database) -> Any:
    database.sql("CREATE TABLE spans (id int PRIMARY KEY, i interval DEFAULT '1 year 2 mons', c time DEFAULT '12:00')")
    database.sql(f"INSERT INTO spans VALUES {ROWS}")
    yield database
    database.sql("DROP TABLE spans CASCADE")


def test_columns_keep_months_days_and_times(table: Database) -> None:
    table.sql("INSERT INTO spans (id) VALUES (6); UPDATE spans SET i = i * 2, c = c - interval '9 hours' WHERE id = 5")
    assert table.sql("SELECT i, c FROM spans ORDER BY id").rows() == [
        ("1 mon", "08:15:00"), ("30 days", "08:15:00.5"), ("720:00:00", "24:00:00"), (None, None),
        ("-2 days +02:04:07", "15:00:00"), ("1 year 2 mons", "12:00:00"),
    ]  # fmt: skip
    assert table.sql("SELECT id FROM spans WHERE i = '1 mon' AND c < '12:00' ORDER BY id").rows() == [(1,), (2,)]
    for value in ("'x', NULL", "NULL, '25:00'"):
        with pytest.raises(DataError):
            table.sql(f"INSERT INTO spans VALUES (9, {value})")


VIEWS = {
    "grouped_spans": "SELECT i, count(*) AS n, min(c) AS c FROM spans GROUP BY i",
    "sums": "SELECT sum(i) AS s, max(i) AS m, count(DISTINCT i) AS d, max(c) AS c FROM spans",
    "moved": "SELECT id, timestamp '2024-01-31 10:00' + i AS t, date '2024-01-01' + c AS d, c + i AS c FROM spans",
    "joined_spans": "SELECT a.id AS a, b.id AS b FROM spans AS a JOIN spans AS b ON a.i = b.i AND a.c <= b.c",
    "longest": "SELECT id, i FROM spans ORDER BY i DESC NULLS LAST, id LIMIT 2",
}


def test_views_follow_changes(table: Database) -> None:
    """After inserts, updates and deletes each view has what its query has."""
    changes = (
        "SELECT 1",
        "UPDATE spans SET i = i + interval '1 day' WHERE id IN (1, 3)",
        "DELETE FROM spans WHERE id = 2; INSERT INTO spans VALUES (7, '31 days', '23:59:59.999999')",
    )
    check_views_follow(table, VIEWS, changes)


@pytest.mark.parametrize("binary", [False, True])
def test_spans_over_the_wire(table: Database, server: ServerThread, binary: bool) -> None:
    span, clock = dt.timedelta(days=2, hours=3, microseconds=5), dt.time(4, 5, 6, 7)
    mark = "%b" if binary else "%t"
    with psycopg.connect(host="127.0.0.1", port=server.port, user="root", dbname="dev", autocommit=True) as connection:
        cursor = connection.cursor(binary=binary)
        cursor.execute(f"INSERT INTO spans VALUES (20, {mark}, {mark})", [span, clock])
        cursor.execute(f"SELECT i, c, ARRAY[c] FROM spans WHERE i = {mark} AND c = {mark}", [span, clock])
        assert cursor.fetchall() == [(span, clock, [clock])]
        assert [column.type_code for column in cursor.description or ()] == [1186, 1083, 1183]


def test_a_key_of_times(database: Database) -> None:
    database.sql("CREATE TABLE clock (c time PRIMARY KEY, n int)")
    database.sql("INSERT INTO clock VALUES ('08:00', 1), ('09:00', 2); INSERT INTO clock VALUES ('08:00:00.0', 3)")
    database.sql("UPDATE clock SET n = 4 WHERE c = '9:00'; DELETE FROM clock WHERE c = '08:00' AND n = 1")
    assert database.sql("SELECT * FROM clock ORDER BY c").rows() == [("08:00:00", 3), ("09:00:00", 4)]
    database.sql("DROP TABLE clock")
