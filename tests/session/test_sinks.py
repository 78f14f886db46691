"""Sinks: jobs that keep state and checkpoints like views, and hand their changes on instead of keeping them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from clients import refused
from headrace.config import Settings
from headrace.session.database import Database, connect

_SOURCE = """CREATE SOURCE bid WITH (connector = 'nexmark', nexmark.table.type = 'Bid', event_num = 2000,
             rows_per_second = 'unlimited', max_rows_per_epoch = 1000)"""


def job(database: Database, name: str) -> dict[str, Any]:
    heads = database.sql("SELECT name, status, rows_in, rows_out, epochs, kind FROM headrace_catalog.jobs")
    found = [dict(zip(("name", "status", "rows_in", "rows_out", "epochs", "kind"), row)) for row in heads.rows()]
    return next(row for row in found if row["name"] == name)


def test_blackhole(database: Database) -> None:
    database.sql(_SOURCE)
    database.sql("CREATE SINK plain AS SELECT auction, price * 2 AS p FROM bid WITH (connector = 'blackhole')")
    database.sql("CREATE MATERIALIZED VIEW counts AS SELECT auction, count(*) AS n FROM bid GROUP BY auction")
    database.sql("CREATE SINK busy AS SELECT n, count(*) AS c FROM counts GROUP BY n WITH (connector = 'blackhole')")
    database.sql("CREATE SINK whole FROM public.counts WITH (connector = 'blackhole', type = 'append-only', "
                 "force_append_only = true)")  # fmt: skip
    while job(database, "plain")["rows_in"] < 1840:
        database.flush()
    assert job(database, "plain")["rows_out"] == 1840
    assert job(database, "plain")["kind"] == "sink"
    assert job(database, "busy")["rows_out"] > 0
    assert job(database, "whole")["rows_out"] >= database.sql("SELECT count(*) FROM counts").rows()[0][0]
    assert [r[0] for r in database.sql("SHOW SINKS").rows()] == ["busy", "plain", "whole"]
    assert [r[0] for r in database.sql("DESCRIBE plain").rows()] == ["auction", "p"]
    shown = {r[1]: r for r in database.sql("SHOW JOBS").rows()}
    assert shown["plain"][2] == "running" and shown["plain"][6] == 1840
    lines = [r[0] for r in database.sql("EXPLAIN CREATE SINK x FROM counts WITH (connector = 'blackhole')").rows()]
    assert lines[0] == "sink blackhole: [auction bigint, n bigint]"
    tables = database.sql("SELECT job_id, operator FROM headrace_catalog.state_tables").rows()
    ids = {r[1]: r[0] for r in database.sql("SHOW JOBS").rows()}
    assert [o for i, o in tables if i == ids["plain"]] == []
    assert [o for i, o in tables if i == ids["busy"]] == ["0/groups"]


def test_refused(database: Database) -> None:
    database.sql("CREATE TABLE t (a int)")
    assert refused(database, "CREATE SINK x FROM t").startswith("22023 a sink needs the option connector")
    assert "must be one of blackhole" in refused(database, "CREATE SINK x FROM t WITH (connector = 'pulsar')")
    assert "unknown option path" in refused(database, "CREATE SINK x FROM t WITH (connector = 'blackhole', path = 'y')")
    text = refused(database, "CREATE SINK x FROM t WITH (connector = 'blackhole', type = 'append-only')")
    assert text.startswith("0A000 an append-only sink of rows that may be taken back")
    database.sql("CREATE SINK t_out FROM t WITH (connector = 'blackhole')")
    assert refused(database, "SELECT * FROM t_out").startswith("42809")
    assert refused(database, "DROP TABLE t").startswith("2BP01")
    assert refused(database, "DROP MATERIALIZED VIEW t_out").startswith("42809")
    database.sql("ALTER SINK t_out PAUSE; ALTER SINK t_out RESUME")
    database.sql("CREATE SINK IF NOT EXISTS t_out FROM t WITH (connector = 'blackhole')")
    database.sql("DROP SINK t_out; DROP TABLE t")
    assert "t_out" not in {r[0] for r in database.sql("SHOW SINKS").rows()}


def test_a_sink_is_always_decoupled(database: Database) -> None:
    for value in ("default", "true", "enable"):
        database.sql(f"SET sink_decouple = {value}")
    assert database.sql("SHOW sink_decouple").rows()[0][0] == "enable"
    for value in ("false", "disable"):
        assert refused(database, f"SET sink_decouple = {value}").startswith("22023")


def test_a_restart_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=60_000)
    with connect(tmp_path, spark=spark, settings=settings) as database:
        database.sql("CREATE TABLE t (a int, b int); INSERT INTO t VALUES (1, 1), (1, 2), (2, 3)")
        database.sql("CREATE SINK s AS SELECT a, sum(b) AS s FROM t GROUP BY a WITH (connector = 'blackhole')")
        assert job(database, "s")["rows_out"] == 2
    with connect(tmp_path, spark=spark, settings=settings) as database:
        database.sql("INSERT INTO t VALUES (2, 4)")
        database.flush()
        found = job(database, "s")
        assert (found["status"], found["rows_in"], found["rows_out"]) == ("running", 1, 2)
