"""KILL: a session cancels what another one runs."""

from __future__ import annotations

import threading

import pytest

from headrace.errors import HeadraceError, InsufficientPrivilege, QueryCanceled, SyntaxFault
from headrace.session.database import Database
from headrace.session.session import Session
from support import WAIT_S, eventually


def run(session: Session, sql: str) -> list[str]:
    """Runs a script; the notices of its statements."""
    found: list[str] = []
    for result in session.execute(sql):
        found += [notice.message for notice in result.notices]
        result.table()
    return found


def test_what_waits_elsewhere_is_cancelled_and_its_session_goes_on(database: Database) -> None:
    database.sql("ALTER SYSTEM SET max_concurrent_queries = 1")
    ours, theirs = database.session(), database.session()
    ended: list[BaseException] = []

    def query() -> None:
        try:
            run(theirs, "SELECT * FROM generate_series(1, 3)")
        except BaseException as error:
            ended.append(error)

    try:
        with database.instance.turns.one(ours.context.check):
            thread = threading.Thread(target=query)
            thread.start()
            eventually(lambda: database.instance.turns.waiting, "the query to wait")
            assert run(ours, f"KILL {theirs.number}") == []
            thread.join(WAIT_S)
        assert [type(error) for error in ended] == [QueryCanceled]
        assert run(theirs, "SELECT 1") == []
    finally:
        database.sql("ALTER SYSTEM RESET ALL")
        theirs.close()
        ours.close()


def test_only_the_same_user_and_superusers_may(database: Database) -> None:
    database.sql("CREATE ROLE killer LOGIN")
    root, one, two = database.session(), database.session(user="killer"), database.session(user="killer")
    try:
        with pytest.raises(InsufficientPrivilege):
            run(one, f"KILL {root.number}")
        assert run(one, f"KILL '{two.number}'") == []
        assert run(root, f"KILL {one.number}") == []
        assert run(one, "SELECT 1") == []
    finally:
        for session in (root, one, two):
            session.close()
        database.sql("DROP ROLE killer")


def test_a_session_that_is_gone_is_a_notice(database: Database) -> None:
    ours, gone = database.session(), database.session()
    gone.close()
    try:
        assert run(ours, f"KILL {gone.number}") == [f"there is no session {gone.number}"]
        for sql in ("KILL", "KILL x", "KILL -1", "KILL 1, 2", "KILL 1.5"):
            with pytest.raises(SyntaxFault):
                run(ours, sql)
    finally:
        ours.close()
        with pytest.raises(HeadraceError):
            run(gone, "SELECT 1")
