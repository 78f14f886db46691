"""Transactions that have read a view which is behind its tables, and write to these."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from clients import run
from headrace.errors import SerializationFailure
from headrace.session.database import Database
from headrace.session.session import Session

SETUP = """
    CREATE TABLE late_t (id int PRIMARY KEY, a int);
    INSERT INTO late_t VALUES (1, 1);
    CREATE MATERIALIZED VIEW late_v AS SELECT id, a FROM late_t;
    FLUSH;
"""


@pytest.fixture
def sessions(database: Database) -> Iterator[tuple[Session, Session]]:
    one, two = database.session(), database.session()
    run(one, SETUP)
    yield one, two
    run(one, "ROLLBACK", "DROP MATERIALIZED VIEW late_v", "DROP TABLE late_t")
    one.close()
    two.close()


def double_what_the_view_has(session: Session) -> int:
    ((a,),) = run(session, "BEGIN", "SELECT a FROM late_v WHERE id = 1")
    run(session, f"UPDATE late_t SET a = {2 * a} WHERE id = 1", "COMMIT")
    return int(a)


def test_a_paused_view_is_named_and_one_that_goes_on_is_waited_for(sessions: tuple[Session, Session]) -> None:
    one, two = sessions
    run(one, "ALTER MATERIALIZED VIEW late_v PAUSE")
    run(two, "UPDATE late_t SET a = 10 WHERE id = 1")
    for _ in range(2):
        with pytest.raises(SerializationFailure) as raised:
            double_what_the_view_has(one)
        assert re.search(r'"late_v".*paused', raised.value.detail or ""), raised.value.detail
        run(one, "ROLLBACK")
    assert run(two, "SELECT a FROM late_t") == [(10,)]
    run(two, "ALTER MATERIALIZED VIEW late_v RESUME")
    assert double_what_the_view_has(one) == 10, "it has waited for the view"
    assert run(two, "SELECT a FROM late_t") == [(20,)]


def test_a_conflict_of_tables_says_nothing_of_views(sessions: tuple[Session, Session]) -> None:
    one, two = sessions
    run(one, "BEGIN", "SELECT * FROM late_t")
    run(two, "UPDATE late_t SET a = 7 WHERE id = 1")
    run(one, "INSERT INTO late_t VALUES (2, 2)")
    with pytest.raises(SerializationFailure) as raised:
        run(one, "COMMIT")
    assert raised.value.detail is None
