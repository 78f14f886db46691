"""ALTER TABLE ... ADD COLUMN of tables that statements write to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.config import Settings
from headrace.coordinator.ddl.replacing import definition_with
from headrace.errors import DependentObjectsExist, DuplicateTable, HeadraceError
from headrace.session.database import Database, connect
from headrace.session.execution import table_columns
from headrace.session.session import Session


@pytest.fixture(scope="module")
def database(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    folder = tmp_path_factory.mktemp("adding")
    settings = Settings(data_dir=folder, run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=100)
    with connect(folder, spark=spark, settings=settings) as found:
        yield found


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    with closing(database.session()) as found:
        yield found
        for name in ("ac_v", "ac_w"):
            list(found.execute(f"DROP VIEW IF EXISTS {name} CASCADE"))
        list(found.execute("DROP TABLE IF EXISTS ac CASCADE"))


@pytest.fixture(params=["here", "tasks"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the server, or as a large table by Spark's tasks."""
    if request.param == "tasks":
        monkeypatch.setattr(table_columns, "all_rows", lambda context, table: None)


def run(session: Session, *texts: str) -> list[Any]:
    found: list[Any] = []
    for text in texts:
        for result in session.execute(text):
            found = result.rows()
    return sorted(found, key=str)


def state_of(session: Session, text: str) -> str:
    with pytest.raises(HeadraceError) as caught:
        run(session, text)
    return str(caught.value.sqlstate)


@pytest.mark.parametrize("key", ["", " PRIMARY KEY"])
def test_rows_have_the_default_of_a_new_column(session: Session, database: Database, way: None, key: str) -> None:
    run(session, f"CREATE TABLE ac (a int{key}, b text DEFAULT 'z')", "COMMENT ON TABLE ac IS 'kept'",
        "INSERT INTO ac VALUES (1, 'x'), (2, NULL)", "CREATE ROLE ac_r", "GRANT SELECT ON ac TO ac_r")  # fmt: skip
    run(session, "ALTER TABLE ac ADD COLUMN c int DEFAULT 2 + 3 NOT NULL, ADD d numeric(4,1)")
    assert run(session, "SELECT * FROM ac") == [(1, "x", 5, None), (2, None, 5, None)]
    run(session, "INSERT INTO ac (a) VALUES (3)", "UPDATE ac SET d = 7.5 WHERE a = 1", "DELETE FROM ac WHERE a = 2")
    rows = run(session, "SELECT a, b, c, d::text FROM ac")
    assert rows == [(1, "x", 5, "7.5"), (3, "z", 5, None)]
    assert state_of(session, "INSERT INTO ac (a, c) VALUES (9, NULL)") == "23502"
    run(session, "ALTER TABLE ac ADD e text")
    assert run(session, "SELECT e FROM ac WHERE a = 1") == [(None,)]
    if key:
        run(session, "INSERT INTO ac VALUES (1, 'new', 1, 1, 'e')")
        assert run(session, "SELECT b, e FROM ac WHERE a = 1") == [("new", "e")]
    record = database.catalog.state.object_named("public", "ac")
    assert record is not None and record.comments == {"": "kept"} and "r" in (record.grants or {}).values()
    run(session, "CREATE MATERIALIZED VIEW ac_m AS SELECT sum(c) AS s FROM ac", "INSERT INTO ac (a) VALUES (4)")
    run(session, "FLUSH")
    assert run(session, "SELECT s FROM ac_m") == run(session, "SELECT sum(c) FROM ac")
    run(session, "DROP TABLE ac CASCADE", "DROP ROLE ac_r")


def test_plain_views_go_on_with_the_columns_that_they_have(session: Session) -> None:
    """However often, and those over other views; what is made later has all columns."""
    run(session, "CREATE TABLE ac (a int PRIMARY KEY)", "INSERT INTO ac VALUES (1)",
        "CREATE VIEW ac_v AS SELECT * FROM ac", "CREATE VIEW ac_w AS SELECT * FROM ac_v")  # fmt: skip
    run(session, "ALTER TABLE ac ADD b int DEFAULT 7", "CREATE VIEW ac_2 AS SELECT * FROM ac",
        "ALTER TABLE ac ADD c int DEFAULT 8", "INSERT INTO ac VALUES (2, 0, 0)")  # fmt: skip
    assert run(session, "SELECT * FROM ac_v") == run(session, "SELECT * FROM ac_w") == [(1,), (2,)]
    assert run(session, "SELECT * FROM ac_2") == [(1, 7), (2, 0)]
    assert run(session, "SELECT * FROM ac") == [(1, 7, 8), (2, 0, 0)]
    assert run(session, "SELECT ac.c, ac_v.a FROM ac JOIN ac_v USING (a)") == [(0, 2), (8, 1)]


def test_indexes_go_on(session: Session, database: Database) -> None:
    """By their names, with all rows; and nothing is left of those that there were."""
    run(session, "CREATE TABLE ac (a int PRIMARY KEY, b int)",
        "INSERT INTO ac SELECT i, i % 5 FROM generate_series(1, 50) AS g(i)",
        "CREATE INDEX ac_i ON ac (b)", "COMMENT ON INDEX ac_i IS 'kept'")  # fmt: skip
    before = len(database.catalog.state.objects)
    run(session, "ALTER TABLE ac ADD c int DEFAULT 1", "INSERT INTO ac VALUES (51, 4, 2)")
    assert len(database.catalog.state.objects) == before
    wanted = [(i, 4, 1) for i in range(4, 50, 5)] + [(51, 4, 2)]
    assert run(session, "SELECT * FROM ac WHERE b = 4") == sorted(wanted, key=str)
    run(session, "FLUSH")
    jobs = "SELECT name, status FROM headrace_catalog.jobs WHERE name LIKE 'ac%'"
    assert run(session, jobs) == [("ac_i", "running")]
    index = database.catalog.state.object_named("public", "ac_i")
    table = database.catalog.state.object_named("public", "ac")
    assert index is not None and table is not None and index.depends_on == (table.id,)
    assert index.comments == {"": "kept"}
    run(session, "ALTER TABLE ac ADD d int", "CREATE MATERIALIZED VIEW ac_m AS SELECT b, count(*) FROM ac GROUP BY b")
    assert state_of(session, "ALTER TABLE ac ADD e int") == "2BP01"
    run(session, "DROP INDEX ac_i", "DROP TABLE ac CASCADE")


def test_all_of_several_indexes_go_on(session: Session) -> None:
    """Those made first are not as far as the table has come with those made later."""
    run(session, "CREATE TABLE ac (a int PRIMARY KEY, b int)", "INSERT INTO ac VALUES (1, 1), (2, 2)",
        *(f"CREATE INDEX ac_{i} ON ac (b)" for i in range(3)))  # fmt: skip
    run(session, "ALTER TABLE ac ADD c int DEFAULT 1", "INSERT INTO ac VALUES (3, 2, 2)", "FLUSH")
    jobs = "SELECT name, status FROM headrace_catalog.jobs WHERE name LIKE 'ac%'"
    assert run(session, jobs) == [(f"ac_{i}", "running") for i in range(3)]
    assert run(session, "SELECT * FROM ac WHERE b = 2") == [(2, 2, 1), (3, 2, 2)]


def test_an_index_that_is_paused_stays_so(session: Session) -> None:
    run(session, "CREATE TABLE ac (a int, b int)", "INSERT INTO ac VALUES (1, 1), (2, 2)",
        "CREATE INDEX ac_1 ON ac (b)", "CREATE INDEX ac_2 ON ac (a)", "ALTER INDEX ac_1 PAUSE")  # fmt: skip
    run(session, "ALTER TABLE ac ADD c int DEFAULT 1", "INSERT INTO ac (a, b) VALUES (3, 2)", "FLUSH")
    jobs = "SELECT name, status FROM headrace_catalog.jobs WHERE name LIKE 'ac%' ORDER BY name"
    assert run(session, jobs) == [("ac_1", "paused"), ("ac_2", "running")]
    assert run(session, "SELECT a FROM ac WHERE b = 2") == [(2,), (3,)]
    run(session, "ALTER INDEX ac_1 RESUME", "FLUSH")
    assert run(session, jobs) == [("ac_1", "running"), ("ac_2", "running")]
    assert run(session, "SELECT a FROM ac WHERE b = 2") == [(2,), (3,)]


def test_the_name_under_which_a_table_is_filled(session: Session, database: Database) -> None:
    """A relation of somebody's is told from a table that another statement is filling, or has left."""
    run(session, "CREATE TABLE ac (a int)", 'CREATE TABLE "ac$keyed" (a int)')
    with pytest.raises(DuplicateTable) as caught:
        run(session, "ALTER TABLE ac ADD b int")
    assert "RENAME TO" in str(caught.value.hint)
    run(session, 'ALTER TABLE "ac$keyed" RENAME TO ac_mine', "CREATE TABLE ac_other (a int)")
    table = database.catalog.state.object_named("public", "ac")
    assert table is not None
    left = replace(table, id=0, name="ac$keyed", definition=definition_with(table, "ALTER TABLE ac ADD b int"))
    left_id = database.coordinator.create_relation(left)
    with pytest.raises(HeadraceError, match="is being filled again by another statement") as told:
        run(session, "ALTER TABLE ac ADD b int")
    assert told.value.sqlstate == "55006" and "next start" in str(told.value.hint)
    database.coordinator.drop([left_id])
    run(session, "ALTER TABLE ac ADD b int", "DROP TABLE ac_mine", "DROP TABLE ac_other")


def test_values_are_computed_once_or_for_each_row(session: Session) -> None:
    run(session, "CREATE TABLE ac (a int)", "INSERT INTO ac SELECT * FROM generate_series(1, 20)")
    run(session, "ALTER TABLE ac ADD t timestamptz DEFAULT now(), ADD u uuid DEFAULT gen_random_uuid()")
    assert run(session, "SELECT count(DISTINCT t), count(DISTINCT u) FROM ac") == [(1, 20)]


def test_what_is_refused(session: Session) -> None:
    run(session, "CREATE TABLE ac (a int, t timestamptz DEFAULT '2020-01-01 00:00')", "INSERT INTO ac VALUES (1)")
    for text, state in (
        ("ADD a int", "42701"), ("ADD b int, ADD b int", "42701"), ("ADD b int NOT NULL", "23502"),
        ("ADD b int DEFAULT a", "42703"), ("ADD b int DEFAULT 'x'", "22P02"), ("ADD __b int", "0A000"),
        ("ADD b int GENERATED ALWAYS AS (a + 1) STORED", "0A000"), ("DROP COLUMN a", "0A000"),
    ):  # fmt: skip
        assert state_of(session, f"ALTER TABLE ac {text}") == state, text
    run(session, "SET TIME ZONE 'Asia/Tokyo'")
    assert state_of(session, "ALTER TABLE ac ADD u timestamptz DEFAULT '2020-01-01 00:00'") == "0A000"
    run(session, "ALTER TABLE ac ADD u timestamptz", "SET TIME ZONE 'UTC'", "BEGIN")
    assert state_of(session, "ALTER TABLE ac ADD b int") == "25001"
    run(session, "ROLLBACK", "CREATE MATERIALIZED VIEW ac_m AS SELECT a FROM ac")
    with pytest.raises(DependentObjectsExist, match="cannot add a column") as caught:
        run(session, "ALTER TABLE ac ADD b int")
    assert "ac_m" in (caught.value.detail or "")
    run(session, "DROP MATERIALIZED VIEW ac_m", "DELETE FROM ac", "ALTER TABLE ac ADD b int NOT NULL")
    assert state_of(session, "INSERT INTO ac (a) VALUES (1)") == "23502"
    run(session, "ALTER TABLE IF EXISTS ac_none ADD b int")
    assert state_of(session, "ALTER TABLE ac_none ADD b int") == "42P01"


@pytest.mark.parametrize("column", ["b int NOT NULL", "b float DEFAULT random()"])
def test_a_table_of_which_all_rows_are_gone_has_none(session: Session, way: None, column: str) -> None:
    """Though many are stored, with what deletes them."""
    run(session, "CREATE TABLE ac (a int)", "INSERT INTO ac VALUES (1), (2)", "DELETE FROM ac",
        f"ALTER TABLE ac ADD {column}", "INSERT INTO ac VALUES (3, 4)")  # fmt: skip
    assert run(session, "SELECT a, b::int FROM ac") == [(3, 4)]


def test_columns_that_are_there_are_left_alone(session: Session, database: Database) -> None:
    """As PostgreSQL does: told by a notice, whatever type is asked for; the others are added."""
    run(session, "CREATE TABLE ac (a int PRIMARY KEY)", "INSERT INTO ac VALUES (1)")
    table = database.catalog.state.object_named("public", "ac")
    (result,) = session.execute("ALTER TABLE ac ADD COLUMN IF NOT EXISTS a text DEFAULT 'x'")
    assert [(n.severity, n.sqlstate, n.message) for n in result.notices] == [
        ("NOTICE", "42701", 'column "a" of relation "ac" already exists, skipping')
    ]
    assert database.catalog.state.object_named("public", "ac") == table, "nothing is done"
    (result,) = session.execute("ALTER TABLE ac ADD IF NOT EXISTS b int DEFAULT 2, ADD IF NOT EXISTS b text")
    assert [n.message for n in result.notices] == ['column "b" of relation "ac" already exists, skipping']
    assert run(session, "SELECT * FROM ac") == [(1, 2)]
    assert state_of(session, "ALTER TABLE ac ADD COLUMN IF NOT EXISTS b int, ADD b int") == "42701"
    run(session, "CREATE MATERIALIZED VIEW ac_m AS SELECT a FROM ac", "ALTER TABLE ac ADD IF NOT EXISTS b int")
    assert state_of(session, "ALTER TABLE ac ADD COLUMN IF NOT EXISTS c int") == "2BP01"
    assert state_of(session, "ALTER MATERIALIZED VIEW ac_m ADD COLUMN IF NOT EXISTS a int") == "0A000"


def test_two_at_once(session: Session, database: Database) -> None:
    """Each has its column, or is told; no row is lost that somebody has written meanwhile."""
    run(session, "CREATE TABLE ac (a int PRIMARY KEY)", "INSERT INTO ac SELECT * FROM generate_series(1, 50)")
    told: dict[str, str] = {}

    def does(name: str, text: str) -> None:
        with closing(database.session()) as own:
            try:
                run(own, text)
                told[name] = ""
            except HeadraceError as error:
                told[name] = str(error.sqlstate)

    threads = [threading.Thread(target=does, args=(c, f"ALTER TABLE ac ADD {c} int DEFAULT 1")) for c in ("x", "y")]
    threads += [
        threading.Thread(target=does, args=(f"{i}", f"INSERT INTO ac (a) VALUES ({i})")) for i in range(100, 110)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    had = [c for c in "xy" if not told[c]]
    assert had and {told[c] for c in "xy"} <= {"", "55006", "42P01", "40001", "55000"}, told
    assert {state for n, state in told.items() if n.isdigit()} <= {"", "40001"}, told
    written = [int(n) for n, state in told.items() if n.isdigit() and not state]
    assert run(session, "SELECT a FROM ac") == sorted([(i,) for i in [*range(1, 51), *written]], key=str)
    assert run(session, f"SELECT count(*), {', '.join(f'sum({c})' for c in had)} FROM ac") == [
        (50 + len(written),) * (1 + len(had))
    ]


@pytest.mark.parametrize("statement", ["ADD b int", "ADD PRIMARY KEY (a)"])
@pytest.mark.parametrize("point", ["create_relation", "take_place"])
def test_who_has_begun_to_read_before_never_sees_it_empty(
    session: Session, database: Database, monkeypatch: pytest.MonkeyPatch, statement: str, point: str
) -> None:
    run(session, "CREATE TABLE ac (a int)", "CREATE TABLE IF NOT EXISTS ac_other (a int)", "INSERT INTO ac VALUES (1)")
    does = getattr(type(database.coordinator), point)
    with closing(database.session()) as other:

        def begins(coordinator: Any, *given: Any) -> Any:
            if point == "take_place":
                run(other, "BEGIN", "SELECT * FROM ac_other")
            found = does(coordinator, *given)
            if point == "create_relation":
                run(other, "BEGIN", "SELECT * FROM ac_other")
            return found

        monkeypatch.setattr(type(database.coordinator), point, begins)
        run(session, f"ALTER TABLE ac {statement}")
        monkeypatch.undo()
        if point == "create_relation":
            assert state_of(other, "SELECT a FROM ac") == "HR001", "an epoch that is too old"
        else:
            assert run(other, "SELECT a FROM ac") == [(1,)]
        run(other, "ROLLBACK")
        assert run(other, "SELECT a FROM ac") == [(1,)]


@pytest.mark.parametrize("index", [False, True])
def test_rows_that_are_gone_are_not_missed_where_they_were_still_there(
    session: Session, database: Database, index: bool
) -> None:
    """The table is empty by now, and has rows for who has begun to read before."""
    run(session, "CREATE TABLE ac (a int)", "CREATE TABLE IF NOT EXISTS ac_other (a int)", "INSERT INTO ac VALUES (1)")
    if index:
        run(session, "CREATE INDEX ac_i ON ac (a)")
    with closing(database.session()) as other:
        run(other, "BEGIN", "SELECT * FROM ac_other")
        run(session, "DELETE FROM ac", "ALTER TABLE ac ADD b int")
        assert state_of(other, "SELECT a FROM ac") == "HR001", "an epoch that is too old"
        run(other, "ROLLBACK", "INSERT INTO ac VALUES (2, 3)")
    assert run(session, "SELECT * FROM ac") == [(2, 3)]


def test_columns_are_there_after_a_restart(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a table that was being filled when the server ended is not in the way."""
    settings = Settings(data_dir=tmp_path, run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=100)
    with connect(tmp_path, spark=spark, settings=settings) as database:
        database.sql("CREATE TABLE t (a int); INSERT INTO t VALUES (1); CREATE VIEW v AS SELECT * FROM t")
        database.sql("CREATE INDEX i ON t (a)")
        database.sql("ALTER TABLE t ADD b int DEFAULT 2")
        shown = database.sql("SHOW CREATE TABLE t").rows()[0][1]
        assert shown == "CREATE TABLE t (a int);\nALTER TABLE t ADD b int DEFAULT 2"

        def ends(*given: object) -> None:
            raise SystemExit("the server ends")

        monkeypatch.setattr(database.coordinator, "take_place", ends)
        monkeypatch.setattr(database.coordinator, "drop", lambda ids: None)
        with pytest.raises(SystemExit):
            database.sql("ALTER TABLE t ADD c int")
        assert database.catalog.state.object_named("public", "t$keyed") is not None
    with connect(tmp_path, spark=spark, settings=settings) as database:
        names = [o.name for o in database.catalog.state.objects.values()]
        assert names.count("i") == 1 and not any("$" in name for name in names)
        database.sql("FLUSH")
        assert database.sql("SELECT name, status FROM headrace_catalog.jobs").rows() == [("i", "running")]
        database.sql("INSERT INTO t (a) VALUES (3)")
        assert sorted(database.sql("SELECT * FROM t").rows()) == [(1, 2), (3, 2)]
        assert sorted(database.sql("SELECT * FROM v").rows()) == [(1,), (3,)]
        database.sql("ALTER TABLE t ADD c int DEFAULT 0")
        assert sorted(database.sql("SELECT * FROM t").rows()) == [(1, 2, 0), (3, 2, 0)]
