"""Views in which time has a part: conditions with `now()`, and temporal joins."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.config import Settings
from headrace.errors import NotSupported
from headrace.session.database import Database, connect
from support import eventually

SETTINGS = Settings(run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=200)


def wait_for(database: Database, query: str, rows: list[tuple[object, ...]]) -> None:
    """Wait until a query gives these rows; time is all that changes them."""
    eventually(lambda: database.sql(query).rows() == rows, f"{rows} from {query}")


def epochs_of(database: Database, view: str) -> int:
    """Epochs of a view that have run."""
    (job,) = [j for j in database.coordinator.jobs() if j.name == view]
    return job.epochs


def test_time_and_lookups_over_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    with connect(tmp_path / "db", spark=spark, settings=SETTINGS) as database:
        database.sql("CREATE TABLE a (k int, ts timestamptz) APPEND ONLY")
        database.sql("CREATE TABLE b (k int PRIMARY KEY, name text); INSERT INTO b VALUES (1, 'one'), (2, 'two')")
        database.sql(
            "CREATE MATERIALIZED VIEW recent AS SELECT k FROM a WHERE ts > now() AND ts < now() + INTERVAL '1 day'"
        )
        database.sql("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM recent")
        database.sql(
            "CREATE MATERIALIZED VIEW named AS SELECT a.k, b.name FROM a "
            "LEFT JOIN b FOR SYSTEM_TIME AS OF PROCTIME() ON a.k = b.k"
        )
        database.sql(
            "INSERT INTO a VALUES (1, now() + INTERVAL '1 day 1 second'), (2, now() - INTERVAL '1 day'), (3, NULL)"
        )
        database.flush()
        wait_for(database, "SELECT k, n FROM recent, n", [(1, 1)])
        before = epochs_of(database, "named"), epochs_of(database, "recent")
        database.sql("UPDATE b SET name = 'neuf'; DELETE FROM b WHERE k = 2; INSERT INTO b VALUES (3, 'drei')")
        database.flush()
        assert (epochs_of(database, "named"), epochs_of(database, "recent")) == before, "neither has anything to do"
        database.sql("INSERT INTO a VALUES (1, now() + INTERVAL '1.5 seconds'), (2, NULL), (3, NULL)")
        database.flush()
        named = [(1, "neuf"), (1, "one"), (2, "two"), (2, None), (3, "drei"), (3, None)]
        assert database.sql("SELECT * FROM named ORDER BY k, name").rows() == named
    with connect(tmp_path / "db", spark=spark, settings=SETTINGS) as database:
        wait_for(database, "SELECT k, n FROM recent, n", [(1, 1)])
        database.sql("UPDATE b SET name = 'uno' WHERE k = 1; INSERT INTO a VALUES (1, now() + INTERVAL '2 seconds')")
        database.flush()
        assert (1, "uno") in database.sql("SELECT * FROM named").rows()
        wait_for(database, "SELECT k, n FROM recent, n", [(1, 1)])
        for query, reason in {
            "SELECT a.k FROM a JOIN recent FOR SYSTEM_TIME AS OF PROCTIME() ON a.k = recent.k": "no primary key",
            "SELECT b.k FROM b JOIN b FOR SYSTEM_TIME AS OF PROCTIME() c ON b.k = c.k": "may change or go",
            "SELECT k, now() AS at FROM a": "comparison",
        }.items():
            with pytest.raises(NotSupported, match=reason):
                database.sql(f"CREATE MATERIALIZED VIEW x AS {query}")


@pytest.mark.parametrize("key", ["", ", PRIMARY KEY (a)"])
def test_what_a_statement_leaves_out_is_of_its_own_time(database: Database, key: str) -> None:
    """Several defaults, and what a query itself asks: all are of one time, as in PostgreSQL."""
    columns = "d timestamptz DEFAULT now(), e timestamp DEFAULT localtimestamp, f text DEFAULT 'k'"
    database.sql(f"CREATE TABLE timed (a int, x timestamptz, {columns}{key})")
    for statement in (
        "INSERT INTO timed (a) SELECT g FROM generate_series(1, 2) AS s(g)",
        "INSERT INTO timed (a, x) SELECT g, now() FROM generate_series(3, 4) AS s(g)",
        "INSERT INTO timed SELECT 5, now() RETURNING a",
        "INSERT INTO timed (a, x) VALUES (6, now()), (7, now() + INTERVAL '0 s')",
    ):
        database.sql(statement)
    found = "SELECT a, x IS NULL OR x = d, d = e, f FROM timed ORDER BY a"
    assert database.sql(found).rows() == [(a, True, True, "k") for a in range(1, 8)]
    database.sql("DROP TABLE timed")
