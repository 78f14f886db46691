"""What is not understood changes nothing, and nothing of the machine is shown."""

from __future__ import annotations

import pytest

from headrace.errors import HeadraceError
from headrace.session.database import Database


def state_of(database: Database, sql: str) -> str:
    with pytest.raises(HeadraceError) as raised:
        database.sql(sql)
    return raised.value.sqlstate


def test_changes_with_clauses_that_are_not_understood_change_nothing(database: Database) -> None:
    database.sql("CREATE TABLE kept (a int PRIMARY KEY, b text); INSERT INTO kept VALUES (1, 'x'), (2, 'y')")
    for text in ("DELETE FROM kept ORDER BY a LIMIT 1", "UPDATE kept SET b = 'z' LIMIT 1"):
        assert state_of(database, text) == "42601", text
    for text in (
        "UPDATE kept SET b.f = 'z'",
        "INSERT INTO kept VALUES (1, 'z') ON CONFLICT (a) WHERE a > 0 DO UPDATE SET b = 'nothing'",
        "DELETE FROM other.public.kept",
    ):
        assert state_of(database, text) == "0A000", text
    assert database.sql("SELECT * FROM kept ORDER BY a").rows() == [(1, "x"), (2, "y")]


def test_nothing_of_the_machine_is_shown(database: Database) -> None:
    for text in ("${env:PATH}", "${system:java.version}", "${spark:spark.app.id}", "${spark.app.id}"):
        assert database.sql(f"SELECT max('{text}') AS x").rows() == [(text,)]
    assert state_of(database, "SELECT java_method('java.lang.System', 'getenv', 'PATH')") == "42883"
    assert state_of(database, "SELECT reflect('java.util.UUID', 'randomUUID')") == "42883"
    assert state_of(database, "CREATE VIEW asking AS SELECT version() AS v") == "0A000"


def test_a_cte_hides_no_table(database: Database) -> None:
    database.sql("CREATE TABLE hidden (a int PRIMARY KEY); INSERT INTO hidden VALUES (7)")
    number = database.catalog.state.object_named("public", "hidden").id  # type: ignore[union-attr]
    database.sql(f"""
        CREATE MATERIALIZED VIEW seen AS WITH r{number} AS (SELECT 1 AS a)
          SELECT r{number}.a AS x, hidden.a AS y FROM r{number} CROSS JOIN hidden;
    """)
    assert database.sql("SELECT * FROM seen").rows() == [(1, 7)]


def test_a_schema_that_is_not_empty_is_not_dropped(database: Database) -> None:
    database.sql("CREATE SCHEMA full_one; CREATE TABLE full_one.t (a int)")
    assert state_of(database, "DROP SCHEMA full_one") == "2BP01"
    database.sql("CREATE SCHEMA python; CREATE FUNCTION python.f(x int) RETURNS int LANGUAGE python AS 'return x'")
    assert state_of(database, "DROP SCHEMA python") == "2BP01"
    database.sql("DROP SCHEMA full_one CASCADE")
