"""`now()` is when the transaction began, as in PostgreSQL, whoever computes it: kernels, Spark, or a row's writer."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import psycopg
import pytest

from headrace.server import ServerThread

TIMES = "now(), current_timestamp, transaction_timestamp(), statement_timestamp(), clock_timestamp()"
BY_SPARK = f"SELECT {TIMES} FROM a JOIN b ON a.k = b.k"
HERE = f"SELECT {TIMES}"
OVER_TABLE = f"SELECT {TIMES} FROM a WHERE k = 1"
WAYS = pytest.mark.parametrize("sql", [HERE, OVER_TABLE, BY_SPARK], ids=["values", "table", "spark"])


@pytest.fixture
def client(server: ServerThread) -> Iterator[psycopg.Connection[Any]]:
    at = f"host=127.0.0.1 port={server.port} dbname=dev user=root"
    with psycopg.connect(at, autocommit=True) as found:
        found.execute("DROP TABLE IF EXISTS a; DROP TABLE IF EXISTS b")
        found.execute("CREATE TABLE a (k int PRIMARY KEY, at timestamptz DEFAULT now(), v timestamptz)")
        found.execute("CREATE TABLE b (k int PRIMARY KEY)")
        found.execute("INSERT INTO a VALUES (1); INSERT INTO b VALUES (1)")
        yield found


def times_of(client: psycopg.Connection[Any], sql: str, **how: Any) -> tuple[datetime, ...]:
    """The only row of a query."""
    (row,) = client.execute(sql, **how)
    return tuple(row)


@WAYS
@pytest.mark.parametrize("how", [{}, {"prepare": True}], ids=["simple", "prepared"])
def test_a_transaction_has_one_time(client: psycopg.Connection[Any], sql: str, how: dict[str, bool]) -> None:
    client.execute("BEGIN")
    first, second = times_of(client, sql, **how), times_of(client, sql, **how)
    (here,) = client.execute("SELECT now()")
    client.execute("COMMIT")
    later = times_of(client, sql, **how)
    assert {*first[:3], *second[:3]} == {here[0]}
    assert first[0] < first[3] <= first[4] < second[3] <= second[4] < later[0]
    assert later[0] == later[1] == later[2] == later[3] <= later[4]


def test_all_ways_agree_on_the_time_of_a_transaction(client: psycopg.Connection[Any]) -> None:
    client.execute("BEGIN")
    client.execute("INSERT INTO a VALUES (2, DEFAULT, now())")
    client.execute("INSERT INTO a SELECT k + 2, now(), current_timestamp FROM b")
    client.execute("UPDATE a SET v = now() WHERE k = 1")
    client.execute("UPDATE a SET v = now() WHERE k + 0 = 1")
    client.execute("INSERT INTO a (k) SELECT k + 3 FROM b")
    found = client.execute(
        "SELECT DISTINCT x FROM (SELECT at AS x FROM a WHERE k > 1 UNION ALL SELECT v FROM a WHERE k < 4) AS u"
    ).fetchall()
    (now,) = client.execute("SELECT now()").fetchall()
    client.execute("ROLLBACK")
    assert found == [now]


def test_what_is_returned_of_changed_rows_is_of_that_time(client: psycopg.Connection[Any]) -> None:
    client.execute("BEGIN")
    (now,) = client.execute("SELECT now()").fetchall()
    rows = client.execute("INSERT INTO a VALUES (2, DEFAULT, now()) RETURNING now(), at, v").fetchall()
    rows += client.execute("UPDATE a SET v = now() WHERE k = 2 RETURNING current_timestamp, at, v").fetchall()
    rows += client.execute("DELETE FROM a WHERE k = 2 RETURNING transaction_timestamp(), at, v").fetchall()
    client.execute("ROLLBACK")
    assert rows == [now * 3] * 3


def test_statements_of_one_text_have_one_time(client: psycopg.Connection[Any]) -> None:
    cursor = client.execute(f"SELECT now(), statement_timestamp(); {BY_SPARK}; INSERT INTO a VALUES (5); SELECT now()")
    rows = []
    while True:
        if cursor.description is not None:
            rows.append(cursor.fetchall()[0])
        if not cursor.nextset():
            break
    (at,) = client.execute("SELECT at FROM a WHERE k = 5").fetchall()
    assert {rows[0][0], *rows[1][:4], rows[2][0]} == {rows[0][1], at[0]}


def test_views_and_clocks_go_by_the_time_of_the_transaction(client: psycopg.Connection[Any]) -> None:
    client.execute("CREATE VIEW at_now AS SELECT k, now() AS t, localtimestamp AS l, current_date AS d FROM a")
    client.execute("SET TimeZone = 'Asia/Tokyo'")
    client.execute("BEGIN")
    row = client.execute("SELECT x.t, x.l, x.d FROM at_now AS x JOIN b ON x.k = b.k").fetchall()
    assert row == client.execute("SELECT now(), localtimestamp, current_date").fetchall()
    client.execute("ROLLBACK; DROP VIEW at_now; RESET TimeZone")


def test_equal_questions_at_other_times_have_other_answers(client: psycopg.Connection[Any]) -> None:
    asked = "SELECT count(*) FROM a WHERE at < now() - interval '1 hour' OR v < clock_timestamp()"
    assert times_of(client, asked) == (0,) == times_of(client, asked)
    client.execute("UPDATE a SET v = now()")
    assert times_of(client, asked) == (1,)
    moments = [times_of(client, "SELECT now() FROM a") for _ in range(3)]
    assert moments == sorted(set(moments))
