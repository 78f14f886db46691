"""Several statements in one message: one transaction, as far as they can be taken back."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from clients import connect, count
from headrace.server import ServerThread
from headrace.session.database import Database


@pytest.fixture
def table(database: Database) -> Iterator[str]:
    database.sql("CREATE TABLE scripted (id int PRIMARY KEY, v int)")
    yield "scripted"
    database.sql("DROP TABLE scripted")


@pytest.mark.parametrize(
    ("script", "left", "state"),
    [
        ("INSERT INTO scripted VALUES (1, 1); INSERT INTO scripted VALUES (2, 2)", 2, ""),
        ("INSERT INTO scripted VALUES (1, 1); SELECT 1/0", 0, "22012"),
        ("INSERT INTO scripted VALUES (1, 1); SELECT nope; INSERT INTO scripted VALUES (2, 2)", 0, "42703"),
        ("INSERT INTO scripted VALUES (1, 1); UPDATE scripted SET v = 5; DELETE FROM scripted WHERE v = 5", 0, ""),
        ("INSERT INTO scripted VALUES (1, 1); COMMIT; INSERT INTO scripted VALUES (2, 2); SELECT 1/0", 1, "22012"),
        ("INSERT INTO scripted VALUES (1, 1); ROLLBACK; INSERT INTO scripted VALUES (2, 2)", 1, ""),
        ("BEGIN; INSERT INTO scripted VALUES (1, 1); COMMIT; SELECT 1/0", 1, "22012"),
        ("INSERT INTO scripted VALUES (1, 1); FLUSH; SELECT 1/0", 1, "22012"),
        ("INSERT INTO scripted VALUES (1, 1); SAVEPOINT s", 0, "25P01"),
        ("SELECT 1; SELECT count(*) FROM scripted; INSERT INTO scripted VALUES (1, 1)", 1, ""),
    ],
)
def test_what_is_left_of_a_script(server: ServerThread, table: str, script: str, left: int, state: str) -> None:
    with connect(server) as connection:
        found = ""
        try:
            connection.execute(script)
        except psycopg.Error as error:
            found = error.sqlstate or ""
        assert (found, count(connection, table)) == (state, left)
        assert connection.info.transaction_status.name == "IDLE"


def test_begin_takes_in_what_came_before_it(server: ServerThread, table: str) -> None:
    with connect(server) as connection, connect(server) as other:
        connection.execute("INSERT INTO scripted VALUES (1, 1); BEGIN; INSERT INTO scripted VALUES (2, 2)")
        assert connection.info.transaction_status.name == "INTRANS"
        assert (count(connection, table), count(other, table)) == (2, 0)
        connection.execute("ROLLBACK")
        assert count(connection, table) == 0
