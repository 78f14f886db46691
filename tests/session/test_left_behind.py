"""What a table of a connector holds where it reads goes also where nobody answers at its drop, or its server ends."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.common.faults import arm, disarm_all
from headrace.config import Settings
from headrace.coordinator.upkeep import leftovers
from headrace.errors import HeadraceError
from headrace.session.database import Database, connect
from postgres import HOST, Postgres
from support import eventually


@pytest.fixture
def left(logical: Postgres, spark: SparkSession, tmp_path: Path) -> Settings:
    """A database with the hidden source of a table that has come to nothing: a value does not fit it."""
    settings = Settings(data_dir=tmp_path, run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=100)
    logical.execute("DROP TABLE IF EXISTS misfit", "CREATE TABLE misfit (id int PRIMARY KEY, v text)",
                    "INSERT INTO misfit VALUES (1, 'x')")  # fmt: skip
    arm("table.undo.before", "fail")
    try:
        with connect(tmp_path, spark=spark, settings=settings) as database, pytest.raises(HeadraceError, match="'x'"):
            create(database, logical)
    finally:
        disarm_all()
    assert slots(logical) == (1, 1)
    return settings


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a drop leaves is not asked again before the next start."""
    monkeypatch.setattr(leftovers, "FIRST_MS", 3_600_000)


def create(database: Database, there: Postgres) -> Any:
    return database.sql(
        f"CREATE TABLE t (id int PRIMARY KEY, v int) WITH (connector = 'postgres-cdc', hostname = '{HOST}', "
        f"port = {there.port}, username = 'root', database.name = '{there.dbname}', table.name = 'misfit')"
    )


def slots(there: Postgres) -> tuple[int, int]:
    """How many slots and publications of ours there are."""
    with there.connect() as c:
        (found,) = c.execute("SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'headrace%'").fetchall()
        (publications,) = c.execute("SELECT count(*) FROM pg_publication WHERE pubname LIKE 'headrace%'").fetchall()
    return found[0], publications[0]


def test_a_slot_goes_with_the_next_start(left: Settings, logical: Postgres, spark: SparkSession) -> None:
    with connect(left.data_dir, spark=spark, settings=left) as database:
        eventually(lambda: slots(logical) == (0, 0))
        logical.execute("UPDATE misfit SET v = '7'")
        create(database, logical)
        assert database.sql("SELECT v FROM t").rows() == [(7,)]
        database.sql("DROP TABLE t")
    assert slots(logical) == (0, 0)


def test_what_cannot_be_reached_is_told_and_asked_again(left: Settings, logical: Postgres, spark: SparkSession) -> None:
    """Nobody waits for PostgreSQL to be there, and the name is free."""
    shown = "SELECT source, slot LIKE 'headrace_%', error LIKE '%not permitted%' FROM headrace_catalog.dropped_sources"
    with logical.connect() as holder:
        holder.execute("ALTER ROLE root NOLOGIN")
        try:
            with connect(left.data_dir, spark=spark, settings=left) as database:
                told = "SELECT message FROM headrace_catalog.events WHERE kind = 'source_left'"
                eventually(lambda: database.sql(told).rows())
                ((text,),) = database.sql(told).rows()
                assert 'what table "t" holds where it reads is still there' in text
                assert database.catalog.state.object_named("public", "t$changes") is None
                assert database.sql(shown).rows() == [("t", True, True)]
                holder.execute("ALTER ROLE root LOGIN")
                eventually(lambda: slots(logical) == (0, 0))
                eventually(lambda: database.sql(shown).rows() == [])
        finally:
            holder.execute("ALTER ROLE root LOGIN")


def test_a_drop_that_nobody_answers_is_done_later(logical: Postgres, spark: SparkSession, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=100)
    logical.execute("DROP TABLE IF EXISTS misfit", "CREATE TABLE misfit (id int PRIMARY KEY, v int)")
    with connect(tmp_path, spark=spark, settings=settings) as database, logical.connect() as holder:
        create(database, logical)
        holder.execute("ALTER ROLE root NOLOGIN")
        try:
            (notice,) = database.sql("DROP TABLE t").notices
            assert 'what table "t" holds where it reads is still there' in notice
            assert "it is tried again (headrace_catalog.dropped_sources)" in notice
            assert holder.execute("SELECT count(*) FROM pg_replication_slots").fetchall() == [(1,)]
        finally:
            holder.execute("ALTER ROLE root LOGIN")
        eventually(lambda: slots(logical) == (0, 0))


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("password", [False, True], ids=["plain", "secret"])
def test_a_table_that_was_dropped_lets_go_at_the_next_start(
    logical: Postgres, spark: SparkSession, tmp_path: Path, password: bool
) -> None:
    """Also where the secret that it takes for that is gone, too."""
    key = base64.b64encode(bytes(32)).decode()
    settings = Settings(
        data_dir=tmp_path, run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=100, secret_keys=key
    )
    logical.execute("DROP TABLE IF EXISTS fits", "CREATE TABLE fits (id int PRIMARY KEY, v text)")
    with connect(tmp_path, spark=spark, settings=settings) as database:
        if password:
            database.sql("CREATE SECRET word AS 'x'")
        more = ", password = SECRET word" if password else ""
        database.sql(
            f"CREATE TABLE t (id int PRIMARY KEY, v text) WITH (connector = 'postgres-cdc', hostname = '{HOST}', "
            f"port = {logical.port}, username = 'root', database.name = '{logical.dbname}', table.name = 'fits'{more})"
        )
        arm("source.dropped.after", "fail")
        try:
            with pytest.raises(HeadraceError, match=r"source\.dropped\.after"):
                database.sql("DROP SECRET word CASCADE" if password else "DROP TABLE t")
        finally:
            disarm_all()
        assert database.sql("SELECT count(*) FROM headrace_catalog.jobs").rows() == [(0,)]
        assert slots(logical) == (1, 1)
    with connect(tmp_path, spark=spark, settings=settings) as database:
        eventually(lambda: not database.catalog.state.leaving)
        assert slots(logical) == (0, 0)
        events = "SELECT count(*) FROM headrace_catalog.events WHERE kind = 'source_left'"
        assert database.sql(events).rows() == [(0,)]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("here", [True, False], ids=["here", "elsewhere"])
def test_a_slot_that_was_made_again_meanwhile_stays(
    logical: Postgres, spark: SparkSession, tmp_path: Path, here: bool
) -> None:
    """By its name: somebody has dropped it there by hand, and another table has it."""
    settings = Settings(data_dir=tmp_path, run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=100)
    logical.execute("DROP TABLE IF EXISTS again", "CREATE TABLE again (id int PRIMARY KEY, v text)")
    made = (
        f"CREATE TABLE t (id int PRIMARY KEY, v text) WITH (connector = 'postgres-cdc', hostname = '{HOST}', "
        f"port = {logical.port}, username = 'root', database.name = '{logical.dbname}', table.name = 'again', "
        "slot.name = 'headrace_again')"
    )
    with connect(tmp_path, spark=spark, settings=settings) as database:
        database.sql(made)
        arm("source.dropped.after", "fail")
        try:
            with pytest.raises(HeadraceError, match=r"source\.dropped\.after"):
                database.sql("DROP TABLE t")
        finally:
            disarm_all()
        logical.execute("SELECT pg_drop_replication_slot('headrace_again')")
        if here:
            database.sql(made)
        else:
            logical.execute("SELECT pg_create_logical_replication_slot('headrace_again', 'pgoutput')")
    with connect(tmp_path, spark=spark, settings=settings) as database:
        eventually(lambda: not database.catalog.state.leaving)
        assert slots(logical) == (1, 1)
        if not here:
            ((text,),) = database.sql("SELECT message FROM headrace_catalog.events WHERE kind = 'source_left'").rows()
            assert "the replication slot headrace_again in PostgreSQL may be another one of that name by now" in text
            logical.execute("SELECT pg_drop_replication_slot('headrace_again')", "DROP PUBLICATION headrace_again")
            return
        logical.execute("INSERT INTO again VALUES (1, 'x')")
        eventually(lambda: database.sql("SELECT v FROM t").rows() == [("x",)])
        database.sql("DROP TABLE t")
    assert slots(logical) == (0, 0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("dropped", ["DROP TABLE one", "DROP SOURCE pg CASCADE"])
def test_what_shares_a_slot_lets_go_of_its_own(
    logical: Postgres, spark: SparkSession, tmp_path: Path, dropped: str
) -> None:
    """A table of what is published for it, the source of all; the other table goes on in between."""
    settings = Settings(data_dir=tmp_path, run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=100)
    logical.execute(*(f"DROP TABLE IF EXISTS {name}" for name in ("one", "two")),
                    *(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)" for name in ("one", "two")))  # fmt: skip
    published = "SELECT tablename FROM pg_publication_tables ORDER BY 1"
    with connect(tmp_path, spark=spark, settings=settings) as database:
        database.sql(
            f"CREATE SOURCE pg WITH (connector = 'postgres-cdc', hostname = '{HOST}', port = {logical.port}, "
            f"username = 'root', database.name = '{logical.dbname}')"
        )
        for name in ("one", "two"):
            database.sql(f"CREATE TABLE {name} (*) FROM pg TABLE 'public.{name}'")
        arm("source.dropped.after", "fail")
        try:
            with pytest.raises(HeadraceError, match=r"source\.dropped\.after"):
                database.sql(dropped)
        finally:
            disarm_all()
        assert slots(logical) == (1, 1)
        with logical.connect() as c:
            assert c.execute(published).fetchall() == [("one",), ("two",)]
    with connect(tmp_path, spark=spark, settings=settings) as database, logical.connect() as c:
        eventually(lambda: not database.catalog.state.leaving)
        if dropped.startswith("DROP SOURCE"):
            assert slots(logical) == (0, 0)
            return
        assert slots(logical) == (1, 1) and c.execute(published).fetchall() == [("two",)]
        database.sql("CREATE TABLE one (*) FROM pg TABLE 'public.one'")
        assert c.execute(published).fetchall() == [("one",), ("two",)]
        assert database.sql("SELECT count(*) FROM one").rows() == [(0,)]
        database.sql("DROP SOURCE pg CASCADE")
        assert slots(logical) == (0, 0)
