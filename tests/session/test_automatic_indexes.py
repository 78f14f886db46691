"""Indexes that the system makes for joins of a checkpoint group: made, used, shown, kept, and gone again."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.config import Settings
from headrace.errors import DependentObjectsExist, JobFailed, NotSupported, WrongObjectType
from headrace.plan.tree import Sharable
from headrace.session.database import Database, connect
from headrace.session.execution import arrangement_choice

SETTINGS = Settings(run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=100, checkpoint_interval_ms=0)
QUERY = "SELECT o.id, o.cents + {} AS v, p.name FROM o JOIN p ON o.person = p.k WHERE o.cents >= 0"
SELF = "SELECT x.id, {} AS v FROM (SELECT id, person FROM o) x JOIN o y ON x.person = y.person"
NAME = "automatic p(k) in g"


def create(database: Database, name: str, query: str, group: str = "g") -> None:
    database.sql(f"CREATE MATERIALIZED VIEW {name} WITH (checkpoint_group = '{group}') AS {query}")


def indexes(database: Database) -> list[tuple[str, str]]:
    """Name and users of every index."""
    return database.sql("SELECT name, used_by FROM headrace_catalog.indexes ORDER BY name").rows()


def sides(database: Database, view: str) -> set[str]:
    """The sides of its join that a view keeps itself."""
    state = database.catalog.state
    found = state.object_named("public", view)
    assert found is not None
    return {t.operator.partition("/")[2] for t in state.tables_of(found.id)} - {"rows"}


def change(database: Database, n: int) -> None:
    values = ", ".join(f"({n * 100 + i}, {i % 9}, {i})" for i in range(20))
    database.sql(f"INSERT INTO o VALUES {values}; UPDATE p SET name = name || '{n}' WHERE k % 3 = {n}")


def exact(database: Database, *views: str) -> None:
    """I1: the views show what their queries give."""
    database.flush()
    rows = database.sql(QUERY.format(0)).rows()
    for view in views:
        more = "abc".index(view)
        wanted = sorted((i, v + more, name) for i, v, name in rows)
        assert sorted(database.sql(f"SELECT * FROM {view}").rows()) == wanted and wanted, view


def test_equal_sides_in_a_group_are_shared(spark: SparkSession, tmp_path: Path) -> None:
    """From the second view of a group on joins look a side up in one index, which goes with the last of them."""
    with connect(tmp_path / "db", spark=spark, settings=SETTINGS) as database:
        database.sql("CREATE TABLE p (k int, name text); CREATE TABLE o (id int, person int, cents int)")
        database.sql("INSERT INTO p VALUES " + ", ".join(f"({i}, 'p{i}')" for i in range(8)))
        database.sql("INSERT INTO o VALUES (1, 1, 1), (2, 1, 2), (3, 7, 3)")
        create(database, "a", QUERY.format(0))
        assert indexes(database) == [] and sides(database, "a") == {"left", "right"}
        made = f"CREATE MATERIALIZED VIEW b WITH (checkpoint_group = 'g') AS {QUERY.format(1)}"
        assert f"shared once it is filled: {NAME}" in str(database.sql(f"EXPLAIN {made}").rows())
        alone = made.replace("'g'", "own")
        assert "shared" not in str(database.sql(f"EXPLAIN {alone}").rows())
        with pytest.raises(NotSupported):
            database.sql(made.replace("CREATE", "CREATE OR REPLACE"))
        database.sql(made.replace("VIEW b", "VIEW IF NOT EXISTS a"))
        with pytest.raises(JobFailed):
            create(database, "failing", SELF.format("x.id / (x.id - x.id)"))
        assert indexes(database) == []
        create(database, "b", QUERY.format(1))
        create(database, "c", QUERY.format(2))
        assert [sides(database, v) for v in "bc"] == [{"left"}, {"left"}]
        shown_and_refused(database, made)
        change(database, 1)
        moved = database.sql("ALTER MATERIALIZED VIEW b SET (checkpoint_group = 'own')")
        assert NAME in moved.notices[0]
        abandoned = arrangement_choice._make(database.session().context, Sharable(1, ("k",)), {"checkpoint_group": "h"})
        assert abandoned in database.catalog.state.jobs
    with connect(tmp_path / "db", spark=spark, settings=SETTINGS) as database:
        assert indexes(database) == [(NAME, "b, c")] and abandoned not in database.catalog.state.jobs
        change(database, 2)
        exact(database, "a", "b", "c")
        database.sql("DROP MATERIALIZED VIEW c")
        assert indexes(database) == [(NAME, "b")]
        database.sql("DROP MATERIALIZED VIEW b")
        assert indexes(database) == [] and [j.name for j in database.coordinator.jobs()] == ["a"]


def shown_and_refused(database: Database, made: str) -> None:
    """The index is the system's: named as such wherever it is shown, and out of a user's reach."""
    assert indexes(database) == [(NAME, "b, c")]
    assert database.sql("SHOW INDEXES FROM p").rows() == [(NAME, "p", "k", "name", "YES")]
    assert f"shared 0.0/right: {NAME} by (k): name" in str(database.sql(f"EXPLAIN {made}").rows())
    assert database.sql("SELECT indexname FROM pg_catalog.pg_indexes").rows() == []
    for text in ("DROP INDEX {} CASCADE", "ALTER INDEX {} PAUSE"):
        with pytest.raises(WrongObjectType, match="automatic"):
            database.sql(text.format(f'headrace_internal."{NAME}"'))
    with pytest.raises(NotSupported):
        database.sql("SELECT 1 FROM o JOIN p FOR SYSTEM_TIME AS OF PROCTIME() ON o.person = p.k")
    with pytest.raises(DependentObjectsExist):
        database.sql("DROP TABLE p")


def test_while_a_view_is_created_in_the_background(spark: SparkSession) -> None:
    """View and index are both created in the background; CANCEL JOBS and DROP CASCADE take the index along."""
    with connect(spark=spark, settings=SETTINGS) as database:
        database.sql("CREATE TABLE o (id int, person int, cents int); SET default_checkpoint_group = shared")
        database.sql("INSERT INTO o VALUES (1, 1, 1), (2, 1, 2), (3, 2, 3)")
        database.sql("SET streaming_use_arrangements = off")
        database.sql(f"CREATE MATERIALIZED VIEW off AS {SELF.format(1)}")
        database.sql("SET streaming_use_arrangements = on; SET background_ddl = on")
        assert indexes(database) == [] and sides(database, "off") == {"left", "right"}
        database.sql(f"CREATE MATERIALIZED VIEW m AS {SELF.format(1)}")
        assert indexes(database) == [("automatic o(person) in shared", "m")] and not sides(database, "m")
        (job,) = [o.id for o in database.catalog.state.objects.values() if o.name == "m"]
        database.coordinator.wait_created(job, 60)
        database.sql("INSERT INTO o VALUES (4, 2, 4)")
        database.flush()
        assert len(database.sql("SELECT * FROM m").rows()) == 8
        assert database.sql("DROP TABLE o CASCADE").notices == [
            "drop cascades to materialized view off",
            "drop cascades to materialized view m",
        ]
        assert indexes(database) == [] == database.coordinator.jobs()
