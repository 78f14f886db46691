"""TRUNCATE, VACUUM, ANALYZE, and primary keys that tables are given later."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from clients import run
from headrace.config import Settings
from headrace.errors import (
    DependentObjectsExist,
    HeadraceError,
    InvalidParameter,
    NotNullViolation,
    NotSupported,
    StatementError,
    UniqueViolation,
)
from headrace.session.database import Database, connect
from headrace.session.execution import kernel_queries
from headrace.session.session import Session


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    found = database.session()
    yield found
    found.close()
    names = [o for o in database.catalog.state.objects.values() if o.name.startswith("up_")]
    database.coordinator.drop([o.id for o in names])


@pytest.fixture(params=["here", "by Spark"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the rows of a table go through the server, or through Spark's tasks."""
    if request.param == "by Spark":
        monkeypatch.setattr(kernel_queries, "ROWS_AT_MOST", 0)
        monkeypatch.setattr("headrace.session.execution.dml.ROWS_AT_MOST", 0)


def state_of(session: Session, sql: str) -> str:
    with pytest.raises(HeadraceError) as caught:
        run(session, sql)
    return caught.value.sqlstate


# ---- TRUNCATE


def test_truncate_takes_all_rows_back(session: Session, database: Database, way: None) -> None:
    run(session, "CREATE TABLE up_a (a int, b text)", "CREATE TABLE up_b (a int PRIMARY KEY)",
        "INSERT INTO up_a VALUES (1, 'x'), (1, 'x'), (2, NULL)", "INSERT INTO up_b VALUES (1), (2)",
        "CREATE MATERIALIZED VIEW up_v AS SELECT a, count(*) AS n FROM up_a GROUP BY a")  # fmt: skip
    run(session, "TRUNCATE up_a, up_b")
    assert run(session, "SELECT * FROM up_a") == [] and run(session, "SELECT * FROM up_b") == []
    database.flush()
    assert run(session, "SELECT * FROM up_v") == []
    run(session, "TRUNCATE TABLE up_a", "INSERT INTO up_a VALUES (3, 'y')")
    assert run(session, "SELECT * FROM up_a") == [(3, "y")]


def test_truncate_is_part_of_a_transaction(session: Session) -> None:
    run(session, "CREATE TABLE up_a (a int)", "INSERT INTO up_a VALUES (1)", "BEGIN", "INSERT INTO up_a VALUES (2)",
        "TRUNCATE up_a", "INSERT INTO up_a VALUES (3)")  # fmt: skip
    assert run(session, "SELECT * FROM up_a") == [(3,)]
    run(session, "ROLLBACK")
    assert run(session, "SELECT * FROM up_a") == [(1,)]
    run(session, "BEGIN", "TRUNCATE up_a", "INSERT INTO up_a VALUES (4)", "COMMIT")
    assert run(session, "SELECT * FROM up_a") == [(4,)]


def test_what_is_not_truncated(session: Session) -> None:
    run(session, "CREATE TABLE up_log (a int) APPEND ONLY", "CREATE TABLE up_a (a int)", "INSERT INTO up_a VALUES (1)",
        "CREATE VIEW up_w AS SELECT * FROM up_a")  # fmt: skip
    assert state_of(session, "TRUNCATE up_a, up_log") == "0A000"
    assert state_of(session, "TRUNCATE up_w") == "42809"
    assert state_of(session, "TRUNCATE up_a, up_nowhere") == "42P01"
    assert run(session, "SELECT * FROM up_a") == [(1,)]


def test_vacuum_and_analyze_look_at_their_tables(session: Session) -> None:
    run(session, "CREATE TABLE up_a (a int)", "VACUUM", "VACUUM ANALYZE up_a", "ANALYZE up_a (a)", "VACUUM (FULL) up_a")
    assert state_of(session, "VACUUM up_nowhere") == "42P01"
    run(session, "CREATE VIEW up_w AS SELECT * FROM up_a")
    assert state_of(session, "ANALYZE up_w") == "42809"
    run(session, "BEGIN", "ANALYZE up_a")
    assert state_of(session, "VACUUM up_a") == "25001"
    run(session, "ROLLBACK")


def test_what_asks_for_order_that_is_kept_anyway(session: Session) -> None:
    """REINDEX and CLUSTER, which maintenance scripts send, do nothing, to what is there."""
    run(session, "CREATE TABLE up_a (a int PRIMARY KEY, b int)", "CREATE INDEX up_i ON up_a (b)",
        "REINDEX TABLE up_a", "REINDEX (VERBOSE) TABLE CONCURRENTLY up_a", "REINDEX DATABASE dev", "CLUSTER",
        "REINDEX INDEX up_i", "CLUSTER up_a USING up_i", "CLUSTER VERBOSE up_a")  # fmt: skip
    assert state_of(session, "REINDEX TABLE up_none") == "42P01"
    assert state_of(session, "CLUSTER up_none") == "42P01"
    assert state_of(session, "REINDEX (nonsense) TABLE up_a") == "0A000"
    assert state_of(session, "REINDEX SCHEMA public") == "0A000"
    assert state_of(session, "REINDEX TABLE up_a now") == "42601"


# ---- primary keys


def test_a_table_is_given_a_primary_key(session: Session, database: Database, way: None) -> None:
    run(session, "CREATE TABLE up_a (b text DEFAULT 'z', a int, c int)", "COMMENT ON TABLE up_a IS 'kept'",
        "INSERT INTO up_a VALUES ('x', 1, 1), ('y', 2, NULL), ('y', 1, 2)",
        "CREATE ROLE up_r", "GRANT SELECT ON up_a TO up_r")  # fmt: skip
    run(session, "ALTER TABLE up_a ADD CONSTRAINT any_name PRIMARY KEY (a, b)")
    assert sorted(run(session, "SELECT a, b, c FROM up_a"), key=str) == [(1, "x", 1), (1, "y", 2), (2, "y", None)]
    run(session, "UPDATE up_a SET c = 7 WHERE a = 1 AND b = 'x'", "INSERT INTO up_a VALUES ('y', 2, 8)",
        "INSERT INTO up_a (a) VALUES (3)")  # fmt: skip
    wanted = [(1, "x", 7), (1, "y", 2), (2, "y", 8), (3, "z", None)]
    assert sorted(run(session, "SELECT a, b, c FROM up_a"), key=str) == wanted
    assert state_of(session, "INSERT INTO up_a (b) VALUES ('x')") == "23502"
    assert state_of(session, "ALTER TABLE up_a ADD PRIMARY KEY (a)") == "42P16"
    record = database.catalog.state.object_named("public", "up_a")
    assert record is not None and record.primary_key == ("a", "b") and record.comments == {"": "kept"}
    assert "r" in (record.grants or {}).values() and database.catalog.state.object_named("public", "up_a$keyed") is None
    run(session, "CREATE MATERIALIZED VIEW up_v AS SELECT sum(c) AS s FROM up_a")
    assert run(session, "SELECT s FROM up_v") == [(17,)]
    shown = run(session, "SHOW CREATE TABLE up_a")[0][1]
    assert shown.endswith(";\nALTER TABLE up_a ADD CONSTRAINT any_name PRIMARY KEY (a, b)")
    run(session, "DROP MATERIALIZED VIEW up_v", "DROP TABLE up_a", "DROP ROLE up_r")


def test_rows_in_the_way_of_a_primary_key(session: Session, database: Database, way: None) -> None:
    run(session, "CREATE TABLE up_a (a int, b int)", "INSERT INTO up_a VALUES (1, 1), (2, NULL), (1, 3)")
    with pytest.raises(UniqueViolation, match='could not create unique index "up_a_pkey"'):
        run(session, "ALTER TABLE up_a ADD PRIMARY KEY (a)")
    with pytest.raises(NotNullViolation, match='column "b" of relation "up_a" contains null values'):
        run(session, "ALTER TABLE up_a ADD PRIMARY KEY (a, b)")
    assert len(run(session, "SELECT * FROM up_a")) == 3
    assert database.catalog.state.object_named("public", "up_a$keyed") is None
    run(session, "DELETE FROM up_a WHERE b IS NULL", "ALTER TABLE up_a ADD PRIMARY KEY (b)")
    assert sorted(run(session, "SELECT * FROM up_a")) == [(1, 1), (1, 3)]


def test_what_is_given_no_primary_key(session: Session) -> None:
    run(session, "CREATE TABLE up_a (a int, j jsonb)", "CREATE VIEW up_w AS SELECT a FROM up_a",
        "CREATE TABLE up_log (a int) APPEND ONLY")  # fmt: skip
    with pytest.raises(DependentObjectsExist, match='"up_w" depends on table "up_a"') as caught:
        try:
            run(session, "ALTER TABLE up_a ADD PRIMARY KEY (a)")
        except DependentObjectsExist as error:
            raise DependentObjectsExist(error.detail or "") from error
    assert caught.value.sqlstate == "2BP01"
    run(session, "DROP VIEW up_w")
    assert state_of(session, "ALTER TABLE up_a ADD PRIMARY KEY (z)") == "42703"
    assert state_of(session, "ALTER TABLE up_a ADD PRIMARY KEY (a, a)") == "42701"
    assert state_of(session, "ALTER TABLE up_a ADD PRIMARY KEY (j)") == "0A000"
    assert state_of(session, "ALTER TABLE up_log ADD PRIMARY KEY (a)") == "0A000"
    assert state_of(session, "ALTER TABLE up_none ADD PRIMARY KEY (a)") == "42P01"
    run(session, "ALTER TABLE IF EXISTS up_none ADD PRIMARY KEY (a)", "BEGIN")
    assert state_of(session, "ALTER TABLE up_a ADD PRIMARY KEY (a)") == "25001"
    run(session, "ROLLBACK")


def test_nobody_writes_while_a_key_is_added(
    session: Session, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that comes meanwhile waits, and then is told that its table is another one; none is lost unseen."""
    run(session, "CREATE TABLE up_a (a int)", "INSERT INTO up_a VALUES (1)")
    other, told = database.session(), []
    waiting = threading.Event()
    change = type(database.coordinator).take_place

    def writes() -> None:
        waiting.set()
        try:
            run(other, "INSERT INTO up_a VALUES (2)")
            told.append("written")
        except HeadraceError as error:
            told.append(error.sqlstate)

    writer = threading.Thread(target=writes)

    def placed(self: Any, *given: Any) -> None:
        writer.start()
        assert waiting.wait(30)
        change(self, *given)

    monkeypatch.setattr(type(database.coordinator), "take_place", placed)
    run(session, "ALTER TABLE up_a ADD PRIMARY KEY (a)")
    writer.join(30)
    assert told in (["written"], ["40001"]), "it may be run again as it is"
    rows = run(session, "SELECT * FROM up_a")
    assert sorted(rows) == ([(1,), (2,)] if told == ["written"] else [(1,)]), (told, rows)
    other.close()


def test_a_table_of_an_open_transaction_is_another_one_afterwards(session: Session, database: Database) -> None:
    other = database.session()
    run(session, "CREATE TABLE up_a (a int)", "INSERT INTO up_a VALUES (1)")
    run(other, "BEGIN", "INSERT INTO up_a VALUES (2)")
    run(session, "ALTER TABLE up_a ADD PRIMARY KEY (a)")
    assert state_of(other, "COMMIT") == "40001"
    assert run(session, "SELECT * FROM up_a") == [(1,)]
    other.close()


def test_a_key_is_there_after_a_restart_and_what_was_cut_short_is_told(spark: SparkSession, tmp_path: Path) -> None:
    settings = Settings(run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=200)
    with connect(tmp_path / "db", spark=spark, settings=settings) as database:
        database.sql("CREATE TABLE up_a (a int); INSERT INTO up_a VALUES (1), (2)")
        database.sql('CREATE TABLE "up_a$keyed" (a int)')
        with pytest.raises(HeadraceError, match="already exists") as caught:
            database.sql("ALTER TABLE up_a ADD PRIMARY KEY (a)")
        assert "RENAME TO" in (caught.value.hint or "")
        database.sql('DROP TABLE "up_a$keyed"')
        database.sql("ALTER TABLE up_a ADD PRIMARY KEY (a)")
    with connect(tmp_path / "db", spark=spark, settings=settings) as database:
        database.sql("INSERT INTO up_a VALUES (2), (3)")
        assert sorted(database.sql("SELECT * FROM up_a").rows()) == [(1,), (2,), (3,)]


# ---- storage parameters


def test_a_table_that_has_its_key_is_kept_whatever_happens_then(
    session: Session, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was begun is dropped where it fails, and not once it has taken the place of the table."""
    run(session, "CREATE TABLE up_kept (a int)", "INSERT INTO up_kept VALUES (1), (2)")
    place = type(database.coordinator).take_place

    def placed(*arguments: Any) -> None:
        place(*arguments)
        raise StatementError("the answer is lost")

    with monkeypatch.context() as patched:
        patched.setattr(type(database.coordinator), "take_place", placed)
        with pytest.raises(StatementError, match="the answer is lost"):
            run(session, "ALTER TABLE up_kept ADD PRIMARY KEY (a)")
    *_, found = session.execute("SELECT a FROM up_kept ORDER BY a")
    assert found.rows() == [(1,), (2,)]
    assert state_of(session, "ALTER TABLE up_kept ADD PRIMARY KEY (a)") == "42P16"
    run(session, "DROP TABLE up_kept")


def test_storage_parameters_are_told_to_have_no_effect(session: Session, database: Database) -> None:
    (result,) = session.execute("CREATE TABLE up_a (a int) WITH (fillfactor = 70, autovacuum_enabled = false)")
    assert [n.message.split('"')[1] for n in result.notices] == ["fillfactor", "autovacuum_enabled"]
    record = database.catalog.state.object_named("public", "up_a")
    assert record is not None and record.options == {}
    with pytest.raises(InvalidParameter):
        run(session, "CREATE TABLE up_b (a int) WITH (fillfactor = 7)")
    with pytest.raises(NotSupported, match="the option user_catalog_table of a table without a connector"):
        run(session, "CREATE TABLE up_b (a int) WITH (user_catalog_table = true)")


def test_a_table_that_was_being_filled_goes_at_the_next_start(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a crash before the table takes the place of the other; one that a user calls so stays."""
    with connect(tmp_path / "db", spark=spark) as database:
        database.sql("CREATE TABLE t (a int); INSERT INTO t VALUES (1); CREATE TABLE other (a int)")
        database.sql('CREATE TABLE "other$keyed" (a int PRIMARY KEY)')
        coordinator, crash = database.coordinator, SystemExit("the server ends")

        def ends(*given: object) -> None:
            raise crash

        monkeypatch.setattr(coordinator, "take_place", ends)
        monkeypatch.setattr(coordinator, "drop", lambda ids: None)
        with pytest.raises(SystemExit):
            database.sql("ALTER TABLE t ADD PRIMARY KEY (a)")
        assert database.catalog.state.object_named("public", "t$keyed") is not None
    for _ in range(2):
        with connect(tmp_path / "db", spark=spark) as database:
            state = database.catalog.state
            assert state.object_named("public", "t$keyed") is None
            assert state.object_named("public", "other$keyed") is not None
            assert database.sql("SELECT * FROM t").rows() == [(1,)]
    with connect(tmp_path / "db", spark=spark) as database:
        database.sql("ALTER TABLE t ADD PRIMARY KEY (a)")
        assert database.sql("INSERT INTO t VALUES (1), (2); SELECT a FROM t ORDER BY a").rows() == [(1,), (2,)]
