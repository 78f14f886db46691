"""What cancelling, timing out and failing leave behind: nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from headrace.errors import HeadraceError, QueryCanceled
from headrace.session.context import Context
from headrace.session.database import Database
from headrace.session.execution.handler import Handler
from headrace.session.handlers import handler_of
from headrace.session.result import Result
from headrace.sql import statements as st
from support import POLL_S, WAIT_S, eventually


def test_a_cancel_between_two_statements_stops_the_second(database: Database) -> None:
    database.sql("CREATE TABLE between_two (a int)")
    session = database.session()
    script = session.execute("INSERT INTO between_two VALUES (1); INSERT INTO between_two VALUES (2)")
    next(script)
    session.cancel()
    with pytest.raises(QueryCanceled, match="user request"):
        next(script)
    assert database.sql("SELECT * FROM between_two").rows() == []  # a script is one transaction
    assert [result.rows() for result in session.execute("SELECT 1")] == [[(1,)]]
    session.cancel()
    assert [result.rows() for result in session.execute("SELECT 1")] == [[(1,)]]


def test_a_cancel_in_the_middle_of_a_request_stops_the_rest_of_it(database: Database) -> None:
    session = database.session()
    session.begin_request()
    prepared = session.prepare("SELECT $1::int")
    session.cancel()
    with pytest.raises(QueryCanceled):
        prepared.execute(["1"])
    session.begin_request()
    assert prepared.execute(["1"]).rows() == [(1,)]


@pytest.mark.parametrize("timeout", ["0", "1h"])
@pytest.mark.parametrize("sql", ["CREATE SCHEMA", "DROP SCHEMA"])
def test_what_has_taken_effect_is_not_said_to_be_cancelled(
    database: Database, monkeypatch: pytest.MonkeyPatch, sql: str, timeout: str
) -> None:
    """The cancel comes when the statement can do nothing about it any more; what comes next is stopped."""
    name = f"too_late_{timeout}"
    if sql.startswith("DROP"):
        database.sql(f"CREATE SCHEMA {name}")
    session = database.session({"statement_timeout": timeout})

    def cancelled_at_the_end(statement: st.Statement) -> Handler[st.Statement]:
        handler = handler_of(statement)

        def run(context: Context, statement: st.Statement) -> Result:
            result = handler.run(context, statement)
            context.cancel()
            return result

        return replace(handler, run=run)

    monkeypatch.setattr("headrace.session.session.handler_of", cancelled_at_the_end)
    script = session.execute(f"{sql} {name}; SELECT 1")
    assert next(script).tag == sql
    with pytest.raises(QueryCanceled, match="user request"):
        next(script)
    if sql.startswith("CREATE"):
        database.sql(f"DROP SCHEMA {name}")


def test_a_time_out_that_comes_too_late_hits_nothing_else(database: Database) -> None:
    session = database.session({"statement_timeout": "60s"})
    timers: list[threading.Timer | None] = []
    session.context.variables.set("statement_timeout", "1h")
    prepared = session.prepare("SELECT 1")
    interrupts, check = session.context.interrupts, session.context.interrupts.check
    interrupts.check = lambda: (timers.append(interrupts._timer), check())  # type: ignore[assignment,method-assign]
    prepared.execute([])
    timer = next(t for t in timers if t is not None)
    interrupts.time_out(timer)
    check()


def test_who_waits_for_what_was_cancelled_is_told(database: Database) -> None:
    """FLUSH and CREATE wait in a thread, which must end when nobody waits for it any more."""
    session = database.session()
    ended = threading.Event()

    def step(check: Callable[[], None]) -> None:
        session.cancel()
        pause = threading.Event()
        try:
            while not pause.wait(POLL_S):
                check()
        finally:
            ended.set()

    session.begin_request()
    with pytest.raises(QueryCanceled, match="user request"):
        session.context.wait(step)
    assert ended.wait(WAIT_S)


def test_a_cancelled_flush_leaves_no_thread(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    database.sql("CREATE TABLE held (a int); CREATE MATERIALIZED VIEW holding AS SELECT a FROM held")
    core = database.coordinator._core
    monkeypatch.setattr(core.live.graph, "exact", lambda *given: ())  # no view ever gets anywhere
    session = database.session()
    name = f"headrace-wait-{session.number}"

    def waiting() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t.name == name]

    def cancel() -> None:
        eventually(waiting, "FLUSH to wait")
        session.cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(QueryCanceled, match="user request"):
        list(session.execute("FLUSH"))
    canceller.join()
    eventually(lambda: not waiting(), "the thread to end")


@pytest.mark.parametrize(
    "sql", ["CREATE TABLE failed AS SELECT 1 / (a - 1) AS x FROM one", "CREATE TABLE failed AS SELECT 1 / 0 AS x"]
)
def test_a_create_table_as_that_fails_leaves_no_table(database: Database, sql: str) -> None:
    database.sql("CREATE TABLE IF NOT EXISTS one (a int PRIMARY KEY); INSERT INTO one VALUES (1)")
    with pytest.raises(HeadraceError) as raised:
        database.sql(sql)
    assert raised.value.sqlstate == "22012"
    assert database.sql("CREATE TABLE failed AS SELECT a FROM one").tag == "SELECT 1"
    database.sql("DROP TABLE failed")
