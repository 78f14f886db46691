"""A database whose Spark is still starting: what needs none is served, what needs it waits, and nothing gets lost."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.config import Settings
from headrace.errors import HeadraceError, NotSupported, OperationalError, QueryCanceled, ShuttingDown
from headrace.session.database import Database
from headrace.session.instance import open_with
from headrace.session.result import Notice
from headrace.session.session import Session
from support import NEEDS_SPARK, WAIT_S, eventually


class Coming:
    """A Spark that comes when the test says so; before that its start may fail."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._may_end = threading.Event()
        self.failures = 0
        self.abandoned = False

    def first(self) -> SparkSession:
        assert self._may_end.wait(WAIT_S)
        if self.failures:
            self.failures -= 1
            self._may_end.clear()
            raise OperationalError("Spark did not start: no memory", hint="see its log")
        return self._spark

    def another(self) -> SparkSession:
        raise AssertionError("this Spark does not end")

    def abandon(self) -> None:
        self.abandoned = True

    def come(self) -> None:
        """Let the attempt that is under way, or the next one, come to its end."""
        self._may_end.set()


Open = Callable[..., tuple[Database, Coming]]


@pytest.fixture
def opened(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens databases whose Spark has not come yet."""
    monkeypatch.setattr(spark, "stop", lambda: None)  # other tests go on with it
    with ExitStack() as stack:

        def open_one(name: str = "db", *, standby: bool = False, **more: Any) -> tuple[Database, Coming]:
            settings = Settings(
                **{"data_dir": tmp_path / name, "run_fsync": False, "catalog_commit_sync": False,
                   "barrier_interval_ms": 100, **more}
            )  # fmt: skip
            settings.data_dir.mkdir(exist_ok=True)
            shutil.rmtree(settings.data_dir / "plans", ignore_errors=True)  # views are to be planned here
            coming = Coming(spark)
            found = Database(open_with(settings, None, coming, standby=standby))  # type: ignore[arg-type]
            stack.callback(coming.come)
            stack.callback(found.close)
            return found, coming

        yield open_one


def rows(session: Session, sql: str) -> list[tuple[object, ...]]:
    *_, last = session.execute(sql)
    return last.rows()


class Asking:
    """A statement in a thread of its own."""

    def __init__(self, session: Session, sql: str) -> None:
        self.error: BaseException | None = None
        self.rows: list[tuple[object, ...]] | None = None
        self.told: list[str] = []
        session.tell = self._tell
        self._thread = threading.Thread(target=self._run, args=(session, sql), daemon=True)
        self._thread.start()

    def _tell(self, notice: Notice) -> None:
        self.told.append(notice.message)

    def _run(self, session: Session, sql: str) -> None:
        try:
            self.rows = rows(session, sql)
        except BaseException as error:
            self.error = error

    def wait_told(self) -> None:
        """Until it says that it waits."""
        eventually(lambda: self.told == ["waiting for Spark to start"], "the client to be told")

    def end(self) -> Asking:
        """Once it has its answer."""
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        return self


FILL = "CREATE TABLE t (k int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b')"
VIEW = "CREATE MATERIALIZED VIEW m AS SELECT v, count(*) AS n FROM t GROUP BY v"
WHAT_M_HAS = "SELECT v, n FROM m ORDER BY v"


def jobs(session: Session) -> list[tuple[object, object]]:
    """Names and statuses of the jobs."""
    return [(row[1], row[2]) for row in rows(session, "SHOW JOBS")]


def test_what_needs_no_spark_is_served_before_it_is_there(opened: Open) -> None:
    """Two clients that need it wait, are told so, and get their answers."""
    database, coming = opened()
    session = database.session()
    rows(session, FILL)
    assert rows(session, "SELECT 1 + 1") == [(2,)]
    assert rows(session, "SELECT v FROM t WHERE k = 2") == [("b",)]
    assert rows(session, "BEGIN; UPDATE t SET v = 'c' WHERE k = 2; COMMIT; SELECT v FROM t WHERE k = 2") == [("c",)]
    assert rows(session, "SELECT nspname FROM pg_namespace WHERE nspname = 'public'") == [("public",)]
    asking = [Asking(database.session(), NEEDS_SPARK), Asking(database.session(), VIEW)]
    for each in asking:
        each.wait_told()
    coming.come()
    assert [each.end().error for each in asking] == [None, None]
    assert asking[0].rows == [("A", 1), ("C", 1)]
    assert rows(session, WHAT_M_HAS) == [("a", 1), ("c", 1)] and jobs(session) == [("m", "running")]


def test_a_statement_that_waits_can_be_cancelled_and_runs_into_its_time_limit(opened: Open) -> None:
    database, coming = opened()
    session, limited = database.session(), database.session({"statement_timeout": "50ms"})
    rows(session, FILL)
    asking = Asking(session, NEEDS_SPARK)
    asking.wait_told()
    session.cancel()
    error = asking.end().error
    assert isinstance(error, QueryCanceled) and "user request" in error.message
    with pytest.raises(QueryCanceled, match="statement timeout"):
        rows(limited, NEEDS_SPARK)
    with pytest.raises(QueryCanceled, match="statement timeout"):
        rows(limited, VIEW)
    rows(limited, "FLUSH")  # there is no view that would have to go on
    assert rows(session, "SELECT v FROM t WHERE k = 1") == [("a",)]
    coming.come()
    assert rows(session, NEEDS_SPARK) == [("A", 1), ("B", 1)]


@pytest.mark.parametrize("sql", [NEEDS_SPARK, VIEW])
def test_a_spark_that_does_not_start_fails_what_waits_and_is_tried_again(opened: Open, sql: str) -> None:
    database, coming = opened()
    coming.failures = 1
    session = database.session()
    rows(session, FILL)
    asking = Asking(session, sql)
    asking.wait_told()
    coming.come()
    error = asking.end().error
    assert isinstance(error, OperationalError) and error.message == "Spark did not start: no memory"
    rows(session, "INSERT INTO t VALUES (3, 'c')")
    coming.come()
    eventually(lambda: coming.failures == 0)

    def started() -> bool:
        try:
            return len(rows(session, NEEDS_SPARK)) == 3
        except OperationalError:
            return False  # the next attempt has not begun

    eventually(started, "the next attempt")


def test_closed_while_spark_starts(opened: Open) -> None:
    """Nobody waits for Spark then, and nobody takes it when it comes."""
    database, coming = opened()
    session = database.session()
    rows(session, FILL)
    asking = Asking(session, NEEDS_SPARK)
    asking.wait_told()
    database.close()
    assert coming.abandoned and database.instance.keeper.session is None
    assert isinstance(asking.end().error, (QueryCanceled, ShuttingDown))
    coming.come()
    again, _ = opened()
    assert rows(again.session(), "SELECT v FROM t WHERE k = 1") == [("a",)]


def test_views_are_shown_as_they_were_and_go_on_when_spark_is_there(opened: Open) -> None:
    """A read never shows less than before, nor rows that a view has not taken in; what was written is not lost."""
    database, coming = opened()
    coming.come()
    session = database.session()
    rows(session, f"{FILL}; {VIEW}; CREATE MATERIALIZED VIEW idle AS SELECT 1 AS one; FLUSH")
    database.close()
    database, coming = opened(retention_ms=0, vacuum_grace_ms=0, vacuum_interval_ms=100, compaction_interval_ms=100)
    session = database.session()
    assert jobs(session) == [("m", "starting"), ("idle", "starting")]
    assert rows(session, WHAT_M_HAS) == [("a", 1), ("b", 1)]
    for k in range(3, 13):
        rows(session, f"INSERT INTO t VALUES ({k}, 'b')")
    reader = database.session({"read_your_writes": "off"})
    assert rows(reader, WHAT_M_HAS) == [("a", 1), ("b", 1)]
    flushing = Asking(database.session(), "FLUSH")
    flushing.wait_told()
    coming.come()
    assert flushing.end().error is None
    assert rows(session, WHAT_M_HAS) == [("a", 1), ("b", 11)]
    assert jobs(session) == [("m", "running"), ("idle", "running")]


class Held:
    """Plans of views that are made when the test says so; `refused` of them fail."""

    def __init__(self, database: Database, refused: str = "nothing") -> None:
        self._plan = database.planner.plan
        self._may_go_on = threading.Event()
        self.planning = threading.Event()
        self._refused = refused
        database.planner.plan = self._planned  # type: ignore[method-assign]

    def _planned(self, query: Any, **options: Any) -> Any:
        self.planning.set()
        assert self._may_go_on.wait(WAIT_S)
        if self._refused in str(query):
            raise NotSupported("what nobody can plan")
        return self._plan(query, **options)

    def go_on(self) -> None:
        self._may_go_on.set()


def test_queries_need_no_plans_of_views(opened: Open) -> None:
    """Those on Spark are answered while views are planned; what is about views waits for these."""
    database, coming = opened()
    coming.come()
    rows(database.session(), f"{FILL}; {VIEW}; CREATE MATERIALIZED VIEW odd AS SELECT sqrt(k) AS r FROM t; FLUSH")
    rows(database.session(), "CREATE MATERIALIZED VIEW above AS SELECT r FROM odd; FLUSH")
    database.close()
    database, coming = opened()
    held = Held(database, refused="sqrt")
    session = database.session()
    rows(session, "INSERT INTO t VALUES (3, 'b')")
    coming.come()
    assert held.planning.wait(WAIT_S)
    assert rows(session, NEEDS_SPARK) == [("A", 1), ("B", 2)]
    reader = database.session({"read_your_writes": "off"})
    assert rows(reader, "SELECT upper(v), sum(n) FROM m GROUP BY 1 ORDER BY 1") == [("A", 1), ("B", 1)]
    waiting = [Asking(database.session(), sql) for sql in ("FLUSH", VIEW.replace(" m ", " w "))]
    assert rows(session, NEEDS_SPARK) == [("A", 1), ("B", 2)]
    assert all(each._thread.is_alive() for each in waiting)
    assert jobs(session) == [("m", "starting"), ("odd", "starting"), ("above", "starting")]
    held.go_on()
    assert [each.end().error for each in waiting] == [None, None]
    assert rows(session, WHAT_M_HAS) == rows(session, WHAT_M_HAS.replace(" m ", " w ")) == [("a", 1), ("b", 2)]
    assert jobs(session)[:2] == [("m", "running"), ("odd", "quarantined")]


def test_what_waits_for_plans_of_views_is_cancelled_and_ends_with_the_database(opened: Open) -> None:
    database, coming = opened()
    coming.come()
    rows(database.session(), f"{FILL}; {VIEW}")
    database.close()
    database, coming = opened()
    held = Held(database)
    coming.come()
    assert held.planning.wait(WAIT_S)
    session = database.session()
    asking, other = Asking(session, "FLUSH"), Asking(database.session(), "FLUSH")
    with pytest.raises(QueryCanceled, match="statement timeout"):
        rows(database.session({"statement_timeout": "50ms"}), "FLUSH")
    session.cancel()
    assert isinstance(asking.end().error, QueryCanceled)
    closing = threading.Thread(target=database.close)
    closing.start()
    assert isinstance(other.end().error, (QueryCanceled, ShuttingDown))
    held.go_on()
    closing.join(WAIT_S)


def test_definitions_change_before_spark_is_there(opened: Open) -> None:
    """What is dropped is not planned any more, what is paused stays so, and new tables can be read by new views."""
    database, coming = opened()
    coming.come()
    rows(database.session(), f"{FILL}; {VIEW}; CREATE MATERIALIZED VIEW gone AS SELECT v FROM t")
    database.close()
    database, coming = opened()
    session = database.session()
    rows(session, "DROP MATERIALIZED VIEW gone; ALTER MATERIALIZED VIEW m PAUSE; CREATE TABLE u (k int)")
    rows(session, "INSERT INTO u VALUES (7)")
    coming.come()
    rows(session, "CREATE MATERIALIZED VIEW w AS SELECT max(u.k) AS most, count(*) AS n FROM u JOIN t ON t.k < u.k")
    assert rows(session, "SELECT most, n FROM w") == [(7, 2)]
    assert jobs(session) == [("m", "paused"), ("w", "running")]
    rows(session, "INSERT INTO t VALUES (3, 'a'); ALTER MATERIALIZED VIEW m RESUME; FLUSH")
    assert rows(session, WHAT_M_HAS) == [("a", 2), ("b", 1)]


@pytest.mark.parametrize("first", ["spark", "takeover"])
def test_a_standby_takes_over_while_its_spark_starts(opened: Open, tmp_path: Path, first: str) -> None:
    """Its views go on with it, whichever comes first."""
    shared = {
        "catalog_url": f"file://{tmp_path}/catalog", "state_url": str(tmp_path / "state"), "lease_ms": 600_000,
        "standby_look_ms": 20,
    }  # fmt: skip
    active, coming = opened("a", **shared)
    coming.come()
    rows(active.session(), f"{FILL}; {VIEW}; FLUSH")
    standby, coming = opened("b", standby=True, **shared)
    session = standby.session()
    eventually(lambda: _shown(session) == [("a", 1), ("b", 1)], "the standby to show the view")
    if first == "spark":
        coming.come()
        assert rows(session, NEEDS_SPARK) == [("A", 1), ("B", 1)]
    rows(session, "SELECT pg_promote(true, 60)")
    rows(session, "INSERT INTO t VALUES (3, 'b')")
    if first == "takeover":
        eventually(lambda: jobs(session) == [("m", "starting")], "the view to be taken up")
    coming.come()
    rows(session, "FLUSH")
    assert rows(session, WHAT_M_HAS) == [("a", 1), ("b", 2)]


def _shown(session: Session) -> list[tuple[object, ...]]:
    try:
        return rows(session, WHAT_M_HAS)
    except HeadraceError:
        return []


def test_a_program_uses_dataframes_right_away(opened: Open) -> None:
    database, coming = opened()
    rows(database.session(), FILL)
    threading.Timer(0.05, coming.come).start()
    assert database.spark.range(3).count() == 3
    assert sorted(r.v for r in database.table("t").collect()) == ["a", "b"]
    database.create_materialized_view("m", database.relation("t").groupBy("v").count())
    assert database.sql("SELECT v, count FROM m ORDER BY v").rows() == [("a", 1), ("b", 1)]
