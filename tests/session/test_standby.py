"""A standby beside the active server, both in this process: what it shows, what it refuses, how it takes over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from clients import run
from headrace.catalog.contents import TableContent
from headrace.catalog.store import Overtaken
from headrace.common.faults import disarm_all
from headrace.config import Settings
from headrace.errors import (
    Fenced,
    HeadraceError,
    InvalidParameter,
    NotSupported,
    ObjectMissing,
    ReadOnlyTransaction,
    SerializationFailure,
    ShuttingDown,
    SnapshotUnavailable,
    StatementError,
    StorageError,
    TransactionError,
)
from headrace.server.server import run_server_in_thread
from headrace.server.simple_client import PgClient
from headrace.session import shared_reads
from headrace.session.database import Database
from headrace.session.instance import open_with
from headrace.session.session import Session
from headrace.shell.takeover import take_over
from headrace.state.run import OPEN_RUNS, Run
from support import eventually

LEASE_MS = 600_000
"""Nobody takes over by himself, but where a test says so."""
Open = Callable[..., Database]


@pytest.fixture
def opened(spark: SparkSession, tmp_path: Path) -> Iterator[Open]:
    """Opens servers of one database."""
    with ExitStack() as stack:

        def open_server(name: str, *, standby: bool = False, **more: Any) -> Database:
            settings = Settings(
                **{
                    "data_dir": tmp_path / name, "catalog_url": f"file://{tmp_path}/catalog",
                    "state_url": str(tmp_path / "state"), "run_fsync": False, "catalog_commit_sync": False,
                    "barrier_interval_ms": 100, "lease_ms": LEASE_MS, "standby_look_ms": 20, **more,
                }
            )  # fmt: skip
            settings.data_dir.mkdir(exist_ok=True)
            found = Database(open_with(settings, spark, standby=standby))
            stack.callback(found.close)
            return found

        yield open_server
        disarm_all()


def rows(session: Session, sql: str) -> list[tuple[object, ...]]:
    *_, last = session.execute(sql)
    return last.rows()


def shows(session: Session, sql: str, wanted: list[tuple[object, ...]]) -> None:
    """Wait until a query on a standby has these rows."""

    def there() -> bool:
        try:
            return rows(session, sql) == wanted
        except HeadraceError:
            return False

    eventually(there, f"{sql} to give {wanted}")


def renewed(database: Database, standby: Database) -> None:
    """Let the active one say now what is complete, and the standby hear of it."""
    before = database.coordinator.lease
    database.coordinator.announce("here:1")
    eventually(lambda: database.coordinator.lease is not before, "the lease to be renewed")
    standby.coordinator.look_again(60)


FILLED = (
    "CREATE TABLE t (k int PRIMARY KEY, v int)",
    "INSERT INTO t VALUES (1, 10), (2, 20), (3, 30)",
    "CREATE MATERIALIZED VIEW m AS SELECT v % 20 AS g, count(*) AS n FROM t GROUP BY v % 20",
)
GROUPS = "SELECT g, n FROM m ORDER BY g"


def test_changes_are_followed_on_a_standby_and_after_it_has_taken_over(opened: Open) -> None:
    active = opened("a")
    run(active.session(), *FILLED, "CREATE SUBSCRIPTION s FROM t WITH (retention = '1 day')")
    standby = opened("b", standby=True)
    shows(standby.session(), GROUPS, [(0, 1), (10, 2)])
    with pytest.raises(ReadOnlyTransaction):
        run(standby.session(), "CREATE SUBSCRIPTION other FROM t WITH (retention = '1 day')")
    with standby.subscribe("s", since="full") as changes:
        assert next(changes).batch.num_rows == 3
        run(active.session(), "UPDATE t SET v = 11 WHERE k = 1")
        renewed(active, standby)
        assert next(changes).batch.column("op").to_pylist() == ["UpdateDelete", "UpdateInsert"]
        assert standby.coordinator.take_over(60)
        run(standby.session(), "DELETE FROM t WHERE k = 2")
        assert next(changes).batch.to_pylist() == [{"k": 2, "v": 20, "op": "Delete"}]


def test_it_shows_what_is_committed_and_takes_over(opened: Open) -> None:
    active = opened("a")
    run(active.session(), *FILLED)
    standby = opened("b", standby=True)
    session = standby.session()
    shows(session, GROUPS, [(0, 1), (10, 2)])
    assert rows(session, "SELECT v FROM t WHERE k = 2") == [(20,)]
    assert session.parameters["in_hot_standby"] == "on"
    assert rows(session, "SHOW transaction_read_only") == [("on",)]
    assert rows(session, "SHOW default_transaction_read_only") == [("off",)]
    assert rows(session, "SELECT pg_is_in_recovery(), current_setting('in_hot_standby')") == [(True, "on")]
    [notice] = session.greeting()
    assert "standby" in notice.message

    run(active.session(), "INSERT INTO t VALUES (4, 40)", "CREATE TABLE u (x int)", "DROP MATERIALIZED VIEW m")
    renewed(active, standby)
    assert rows(session, "SELECT count(*) FROM t") == [(4,)]
    assert rows(session, "SELECT count(*) FROM u") == [(0,)]
    with pytest.raises(HeadraceError, match='"m" does not exist'):
        rows(session, GROUPS)

    assert rows(session, "SELECT pg_promote()") == [(True,)]
    assert session.parameters["in_hot_standby"] == "off"
    assert session.greeting() == []
    assert rows(session, "SELECT pg_is_in_recovery()") == [(False,)]
    run(session, "INSERT INTO t VALUES (5, 50)", FILLED[2])
    assert rows(session, GROUPS) == [(0, 2), (10, 3)]
    eventually(lambda: isinstance(active.coordinator.failure, Fenced), "the other one to find out")
    assert rows(session, "SELECT role, epoch > 0, error IS NULL FROM headrace_catalog.server") == [
        ("active", True, True)
    ]
    with pytest.raises(StatementError, match="is the active one"):
        rows(session, "SELECT pg_promote()")


WRITES = (
    "INSERT INTO t VALUES (9, 9)", "UPDATE t SET v = 1", "DELETE FROM t", "CREATE TABLE w (x int)", "DROP TABLE t",
    "CREATE MATERIALIZED VIEW w AS SELECT * FROM t", "CREATE VIEW w AS SELECT * FROM t", "CREATE SCHEMA w",
    "CREATE INDEX w ON t (v)", "CREATE SINK w FROM t WITH (connector = 'blackhole')",
    "CREATE SOURCE w (x int) WITH (connector = 'datagen')", "ALTER MATERIALIZED VIEW m SET (parallelism = 1)",
    "ALTER SYSTEM SET barrier_interval_ms = 200", "CANCEL JOBS 1", "FLUSH", "WAIT",
    "EXPLAIN CREATE MATERIALIZED VIEW w AS SELECT * FROM t",
    "CREATE FUNCTION w(x int) RETURNS int LANGUAGE python AS 'def w(x): return x'",
)  # fmt: skip


def test_it_refuses_whatever_changes_anything(opened: Open) -> None:
    active = opened("a")
    run(active.session(), *FILLED)
    active.coordinator.announce("there:4566")
    standby = opened("b", standby=True)
    renewed(active, standby)
    active.coordinator.announce("there:4566")
    session = standby.session()
    eventually(lambda: standby.coordinator.standby().address == "there:4566", "the address")  # type: ignore[union-attr]
    before = active.catalog.state.objects
    for sql in WRITES:
        with pytest.raises(ReadOnlyTransaction) as caught:
            run(session, sql)
        assert caught.value.sqlstate == "25006"
        assert "at there:4566" in (caught.value.detail or ""), sql
        assert "target_session_attrs" in (caught.value.hint or "")
    for change in (
        lambda: standby.coordinator.drop([1]), lambda: standby.coordinator.tick(), lambda: standby.coordinator.vacuum(),
        lambda: standby.coordinator.compact(), lambda: standby.coordinator.alter_job(1, paused=True),
        lambda: standby.flush(), lambda: standby.catalog.transact([]),
    ):  # fmt: skip
        with pytest.raises(ReadOnlyTransaction):
            change()
    assert active.catalog.state.objects == before


def test_a_transaction_of_a_standby_stays_read_only(opened: Open) -> None:
    active = opened("a")
    run(active.session(), *FILLED)
    standby = opened("b", standby=True)
    session, other = standby.session(), standby.session()
    shows(session, "SELECT count(*) FROM t", [(3,)])
    with pytest.raises(NotSupported, match="during recovery"):
        run(session, "BEGIN READ WRITE")
    run(session, "BEGIN")
    assert rows(session, "SELECT count(*) FROM t") == [(3,)]
    with pytest.raises(NotSupported, match="during recovery"):
        run(other, "BEGIN; SET TRANSACTION READ WRITE")
    with pytest.raises(NotSupported, match="during recovery"):  # also where it takes over what a script has begun
        run(standby.session(), "DECLARE c CURSOR WITH HOLD FOR SELECT 1; BEGIN READ WRITE")
    standby.coordinator.take_over(60)
    run(standby.session(), "INSERT INTO t VALUES (4, 40)")
    # What was written between its snapshot and the take-over is not known: it must not decide by what it has read.
    assert rows(session, "SELECT count(*) FROM t") == [(3,)]
    with pytest.raises(TransactionError):
        run(session, "SET TRANSACTION READ WRITE")
    run(session, "ROLLBACK", "BEGIN", "INSERT INTO t VALUES (5, 50)", "COMMIT")
    assert rows(session, "SELECT count(*) FROM t") == [(5,)]


def test_what_is_not_complete_is_not_shown(opened: Open) -> None:
    """A write that is durable before one of an earlier epoch: no snapshot has the one without the other."""
    active = opened("a")
    run(active.session(), "CREATE TABLE t (k int)", "CREATE TABLE u (k int)")
    standby = opened("b", standby=True)
    session = standby.session()
    renewed(active, standby)
    assert rows(session, "SELECT count(*) FROM t") == [(0,)]
    epochs = active.coordinator._core.live.epochs
    early = epochs.begin()  # somebody who writes at it is held up
    writing = threading.Thread(target=lambda: run(active.session(), "INSERT INTO t VALUES (1)"), daemon=True)
    writing.start()
    table = next(o.id for o in active.catalog.state.objects_of(TableContent) if o.name == "t")
    state_table = active.catalog.state.tables_of(table)[0].id
    eventually(lambda: active.catalog.state.run_count(state_table) == 1, "the later write to be durable")
    renewed(active, standby)
    assert standby.catalog.state.run_count(state_table) == 1, "it is in what the standby follows"
    assert standby.coordinator.current_epoch() < early
    assert rows(session, "SELECT count(*) FROM t") == [(0,)]
    epochs.end(early)
    writing.join()
    renewed(active, standby)
    assert rows(session, "SELECT count(*) FROM t") == [(1,)]


def missing(*arguments: object) -> None:
    raise ObjectMissing("object x is missing")


def test_a_read_whose_objects_are_gone_is_made_of_newer_ones(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    active = opened("a", vacuum_grace_ms=0, vacuum_interval_ms=600_000, compaction_interval_ms=600_000,
                    compaction_trigger_runs=2)  # fmt: skip
    writer = active.session()
    run(writer, "CREATE TABLE t (k int)", "INSERT INTO t VALUES (1)")
    standby = opened("b", standby=True, standby_look_ms=600_000)
    renewed(active, standby)
    session, held = standby.session(), standby.session()
    shows(session, "SELECT count(*) FROM t", [(1,)])
    run(held, "BEGIN")
    for n in range(2, 10):
        run(writer, f"INSERT INTO t VALUES ({n})")
    renewed(active, standby)
    assert rows(held, "SELECT count(*) FROM t") == [(9,)]
    # The standby does not look again by itself from here on.
    run(writer, "INSERT INTO t VALUES (10)")
    while active.coordinator.compact():
        pass
    for _ in range(3):
        active.coordinator.vacuum()
    OPEN_RUNS.clear()  # nothing of what is gone is kept open in this process
    # At the same epoch by other runs.
    assert rows(held, "SELECT k + 1 FROM t ORDER BY k") == [(n + 1,) for n in range(1, 10)]
    OPEN_RUNS.clear()
    assert rows(session, "SELECT k FROM t WHERE k > 0 ORDER BY k")[:9] == [(n,) for n in range(1, 10)]
    with monkeypatch.context() as patched:
        patched.setattr(Run, "open", missing)
        patched.setattr(shared_reads, "CONTENT_BYTES", -1)  # nor are rows kept in memory
        OPEN_RUNS.clear()
        with pytest.raises(SerializationFailure, match="conflict with recovery"):
            rows(session, "SELECT k FROM t")


def test_a_released_lease_is_taken_at_once(opened: Open) -> None:
    active = opened("a")
    run(active.session(), *FILLED)
    standby = opened("b", standby=True)
    session = standby.session()
    active.close()
    eventually(lambda: not standby.coordinator.is_standby, "the standby to take over")
    assert rows(session, GROUPS) == [(0, 1), (10, 2)]
    run(session, "INSERT INTO t VALUES (4, 40)", "FLUSH")
    assert rows(session, GROUPS) == [(0, 2), (10, 2)]
    [event] = [e for e in standby.catalog.state.events.values() if e.kind == "took_over"]
    assert "it has stopped" in event.message


def test_who_stops_slowly_keeps_its_lease(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is under way is committed first, however long that takes: nobody takes over in the middle of it."""
    active = opened("a", lease_ms=500)
    run(active.session(), *FILLED)
    lanes = active.coordinator._parts.life.lanes
    halt_all = lanes.halt_all

    def renewals() -> int:
        assert active.coordinator.lease is not None
        return active.coordinator.lease.renewal

    def slowly(wait_s: float) -> None:
        before = renewals()
        eventually(lambda: renewals() >= before + 3, "the lease to be renewed", 30)
        halt_all(wait_s)

    monkeypatch.setattr(lanes, "halt_all", slowly)
    active.close()
    assert active.coordinator.failure is None
    assert active.coordinator.lease is not None and active.coordinator.lease.released


def test_of_two_standbys_one_takes_over(opened: Open) -> None:
    active = opened("a")
    run(active.session(), *FILLED)
    standbys = [opened(name, standby=True) for name in "bc"]
    active.close()
    eventually(lambda: [s.coordinator.is_standby for s in standbys].count(False) == 1, "one to take over")
    winner, other = sorted(standbys, key=lambda s: s.coordinator.is_standby)
    run(winner.session(), "INSERT INTO t VALUES (4, 40)", "FLUSH")
    renewed(winner, other)
    assert other.coordinator.is_standby
    assert rows(other.session(), GROUPS) == [(0, 2), (10, 2)]
    assert winner.coordinator.failure is None


def test_who_was_overtaken_stays_a_standby(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    active = opened("a")
    run(active.session(), *FILLED)
    standby = opened("b", standby=True)

    def overtaken() -> None:
        raise Overtaken("another one was first")

    with monkeypatch.context() as patched:
        patched.setattr(standby.catalog, "take_over", overtaken)
        assert standby.coordinator.take_over(600) is False
    assert standby.coordinator.is_standby
    run(active.session(), "INSERT INTO t VALUES (4, 40)")
    renewed(active, standby)
    assert rows(standby.session(), "SELECT count(*) FROM t") == [(4,)]


def test_a_catalog_that_does_not_answer_is_told_and_followed_again(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    active = opened("a")
    run(active.session(), *FILLED)
    standby = opened("b", standby=True, standby_staleness_ms=1)
    session = standby.session()

    def failing(taken: object) -> None:
        raise StorageError("the catalog does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(standby.catalog, "refresh", failing)
        standby.coordinator.look_again(60)
        eventually(lambda: standby.coordinator.standby().error == "the catalog does not answer", "it to be told")  # type: ignore[union-attr]
        with pytest.raises(SnapshotUnavailable, match="has heard nothing new") as caught:
            rows(session, "SELECT count(*) FROM t")
        assert caught.value.detail == "the catalog does not answer"
    eventually(lambda: standby.coordinator.standby().error == "", "it to be followed again")  # type: ignore[union-attr]


def test_functions_and_parameters_come_along(opened: Open) -> None:
    active = opened("a")
    standby = opened("b", standby=True)
    session = standby.session()
    run(active.session(),
        "CREATE TABLE t (k int)", "INSERT INTO t VALUES (1)",
        "CREATE FUNCTION twice(x int) RETURNS int LANGUAGE python AS 'def twice(x): return 2 * x'",
        "ALTER SYSTEM SET max_result_rows = 7")  # fmt: skip
    renewed(active, standby)
    shows(session, "SELECT twice(k) FROM t", [(2,)])
    eventually(lambda: standby.settings.max_result_rows == 7, "the parameter")
    run(active.session(), "ALTER SYSTEM RESET max_result_rows")
    eventually(lambda: standby.settings.max_result_rows == 0, "its default")
    standby.coordinator.take_over(60)
    run(session, "CREATE MATERIALIZED VIEW m AS SELECT twice(k) AS d FROM t")
    assert rows(session, "SELECT d FROM m") == [(2,)]


def test_what_it_cannot_do_is_refused_at_the_start(opened: Open, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="SQLite"):
        opened("b", standby=True, catalog_url=None)
    with pytest.raises(StorageError, match="there is no catalog") as caught:
        opened("b", standby=True)
    assert "without --standby" in (caught.value.hint or "")
    run(opened("a").session(), *FILLED)
    with pytest.raises(InvalidParameter, match="the state of this database is in"):
        opened("b", standby=True, state_url=str(tmp_path / "elsewhere"))


def test_without_a_lease_it_waits_to_be_told(opened: Open) -> None:
    active = opened("a", lease_ms=0)
    run(active.session(), "CREATE TABLE t (k int)")
    standby = opened("b", standby=True)
    with pytest.raises(SnapshotUnavailable, match="does not know yet"):
        rows(standby.session(), "SELECT * FROM t")
    run(active.session(), "INSERT INTO t VALUES (1)", "CREATE MATERIALIZED VIEW m AS SELECT count(*) AS n FROM t")
    shows(standby.session(), "SELECT n FROM m", [(1,)])
    active.close()
    standby.coordinator.look_again(60)
    assert standby.coordinator.is_standby
    assert rows(standby.session(), "SELECT pg_promote(wait => true, wait_seconds => 60)") == [(True,)]
    run(standby.session(), "INSERT INTO t VALUES (2)")


def test_tables_are_written_to_before_views_are_planned(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    active = opened("a")
    run(active.session(), *FILLED)
    standby = opened("b", standby=True)
    planning, go_on = threading.Event(), threading.Event()
    life = standby.coordinator._parts.planning
    recover_view = life._recover_view

    def slow(*arguments: Any) -> None:
        planning.set()
        go_on.wait()
        recover_view(*arguments)

    monkeypatch.setattr(life, "_recover_view", slow)
    assert standby.coordinator.take_over(60)
    planning.wait()
    session = standby.session()
    run(session, "INSERT INTO t VALUES (4, 40)", "UPDATE t SET v = 0 WHERE k = 1", "DELETE FROM t WHERE k = 2")
    assert rows(session, "SELECT k, v FROM t ORDER BY k") == [(1, 0), (3, 30), (4, 40)]
    assert rows(session, GROUPS) == [(0, 1), (10, 2)], "the view as it was"
    others = [
        threading.Thread(target=lambda sql=sql: run(standby.session(), sql), daemon=True)
        for sql in ("FLUSH", "CREATE MATERIALIZED VIEW o AS SELECT count(*) AS n FROM t")
    ]
    for other in others:
        other.start()
    assert all(other.is_alive() for other in others)
    go_on.set()
    for other in others:
        other.join()
    assert rows(session, GROUPS) == [(0, 2), (10, 1)]
    assert rows(session, "SELECT n FROM o") == [(3,)]


def test_small_runs_that_a_power_failure_takes_come_back(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object of a small write is not forced to the disk: its bytes are in the catalog as well."""
    monkeypatch.setattr(shared_reads, "CONTENT_BYTES", -1)  # no rows are kept in memory
    active = opened("a", run_fsync=True, compaction_interval_ms=600_000)
    run(active.session(), "CREATE TABLE t (k int PRIMARY KEY)", "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
    standby = opened("b", standby=True)
    renewed(active, standby)
    assert rows(standby.session(), "SELECT k FROM t ORDER BY k") == [(1,), (2,)]
    held = [r for r in standby.catalog.state.runs.values() if r.content_b64 is not None]
    assert len(held) == 2
    OPEN_RUNS.clear()
    for path in {record.ref.path for record in held}:  # small runs share an object
        (tmp_path / "state" / path).unlink()
    with pytest.raises(SerializationFailure):  # never fewer rows
        rows(standby.session(), "SELECT k FROM t ORDER BY k")
    standby.coordinator.take_over(60)
    assert rows(standby.session(), "SELECT k FROM t ORDER BY k") == [(1,), (2,)]
    assert any(e.kind == "objects_restored" for e in standby.catalog.state.events.values())


def test_a_directory_is_for_one_server(opened: Open) -> None:
    opened("a")
    with pytest.raises(InvalidParameter, match="another server uses the directory"):
        opened("a", standby=True)


def test_who_cannot_renew_its_lease_takes_no_new_clients(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that know a standby, too, are to find that one."""
    active = opened("a", lease_ms=300)
    session = active.session()

    def unreachable(*arguments: object) -> None:
        raise StorageError("the catalog does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(active.catalog._store, "append", unreachable)

        def refused() -> bool:
            try:
                active.session().close()
            except ShuttingDown as error:
                return error.sqlstate == "57P03"
            return False

        eventually(refused, "new clients to be refused")
        assert rows(session, "SELECT 1") == [(1,)]

    def admitted() -> bool:
        try:
            active.session().close()
        except ShuttingDown:
            return False
        return True

    eventually(admitted, "the lease to be renewed")


def test_the_command_tells_it_over_the_wire(opened: Open, capsys: pytest.CaptureFixture[str]) -> None:
    active = opened("a")
    run(active.session(), "CREATE TABLE t (k int)")
    standby = opened("b", standby=True)
    with run_server_in_thread(lambda parameters: standby.session()) as server:
        with PgClient("127.0.0.1", server.port) as client:
            assert client.parameters["in_hot_standby"] == "on"
            take_over(client, 60)
            assert client.parameters["in_hot_standby"] == "off"
            with pytest.raises(HeadraceError, match="is the active one"):
                take_over(client, 60)
        assert "it was told to" in capsys.readouterr().out
    run(standby.session(), "INSERT INTO t VALUES (1)")


def test_what_was_not_taken_in_is_taken_in_later(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    active = opened("a")
    run(active.session(), *FILLED)
    standby = opened("b", standby=True, standby_look_ms=600_000)
    renewed(active, standby)

    def failing(*arguments: object) -> None:
        raise StorageError("injected")

    run(active.session(), "INSERT INTO t VALUES (4, 40)", "CREATE TABLE u (k int)")
    with monkeypatch.context() as patched:
        patched.setattr("headrace.coordinator.run.standby.mirror", failing)
        standby.coordinator.look_again(60)
        assert standby.coordinator.standby().error == "injected"  # type: ignore[union-attr]
    renewed(active, standby)
    assert rows(standby.session(), "SELECT count(*) FROM t") == [(4,)]
    assert rows(standby.session(), "SELECT count(*) FROM u") == [(0,)]
