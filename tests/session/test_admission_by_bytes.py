"""Wide rows: how much of a source is bound, and of any input taken in, is bounded by bytes with nothing configured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.config import Settings
from headrace.connectors.postgres import content_parts
from headrace.coordinator.decide.group_epoch import JobPart
from headrace.coordinator.decide.work import Work
from headrace.coordinator.run.attempt import Attempts, EpochInFlight
from headrace.coordinator.run.live_state import Job
from headrace.errors import HeadraceError
from headrace.session.database import Database, connect
from kafka import Kafka
from postgres import HOST, Postgres
from support import eventually

MB = 1 << 20
WIDE = 200_000
"""Bytes of a record."""


def settings(folder: Path, most_mb: int = 2) -> Settings:
    return Settings(
        data_dir=folder, run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=100, max_mb_per_epoch=most_mb
    )


@pytest.fixture
def database(spark: SparkSession, tmp_path: Path) -> Iterator[Database]:
    with connect(tmp_path, spark=spark, settings=settings(tmp_path)) as found:
        yield found


def wide(first: int, stop: int) -> list[str]:
    return [f'{{"a": {i}, "v": "{str(i % 10) * WIDE}"}}' for i in range(first, stop)]


def rows_in(database: Database, view: str) -> list[int]:
    """Rows of each checkpoint of a view, the oldest first."""
    query = "SELECT rows_in FROM headrace_catalog.checkpoints WHERE name = %s AND rows_in > 0 ORDER BY epoch"
    return [rows for (rows,) in database.sql(query.replace("%s", f"'{view}'")).rows()]


def one(database: Database, query: str) -> Any:
    return database.sql(query).rows()[0][0]


def from_topic(kafka: Kafka, topic: str, more: str = "") -> str:
    return (
        f"CREATE SOURCE {topic} (a int, v text) WITH (connector = 'kafka', topic = '{topic}', "
        f"properties.bootstrap.server = '{kafka.servers}'{more}) FORMAT PLAIN ENCODE JSON"
    )


def test_a_backlog_of_wide_records_is_taken_in_by_small_epochs(
    database: Database, kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    topic = kafka.topic("wide", 2)
    kafka.send(topic, *wide(0, 60))
    database.sql(from_topic(kafka, topic))
    database.sql("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n, sum(length(v)) AS l FROM wide")
    eventually(lambda: database.sql("SELECT n, l FROM n").rows() == [(60, 60 * WIDE)])
    taken = rows_in(database, "n")
    # The first checkpoint of a view takes in all that was bound until then, by steps.
    assert sum(taken) == 60 and max(taken[1:]) <= 2 * MB // WIDE and len(taken) >= 3
    assert WIDE <= one(database, "SELECT row_bytes FROM headrace_catalog.sources WHERE name = 'wide'") < WIDE + 100
    database.close()
    kafka.send(topic, *wide(60, 100))
    with connect(tmp_path, spark=spark, settings=settings(tmp_path)) as again:
        eventually(lambda: one(again, "SELECT n FROM n") == 100)
        assert max(rows_in(again, "n")) <= 2 * MB // WIDE, "what it has learnt is learnt again"


def test_a_backlog_of_narrow_records_is_taken_in_at_once(database: Database, kafka: Kafka) -> None:
    """Nothing is known of them before, and they are as many as no guess would let in."""
    topic = kafka.topic("narrow", 2)
    for partition in (0, 1):
        kafka.send(topic, *(f'{{"a": {i}, "v": "x"}}' for i in range(20_000)), partition=partition)
    database.sql(from_topic(kafka, topic))
    database.sql("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM narrow")
    eventually(lambda: one(database, "SELECT n FROM n") == 40_000)
    assert rows_in(database, "n") == [40_000]


def test_the_limit_is_altered_while_it_is_read(database: Database, kafka: Kafka) -> None:
    topic = kafka.topic("narrowed")
    kafka.send(topic, *wide(0, 12))
    database.sql(from_topic(kafka, topic, ", max_mb_per_epoch = 1"))
    database.sql("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM narrowed")
    eventually(lambda: one(database, "SELECT n FROM n") == 12)
    bound = "SELECT rows_behind FROM headrace_catalog.sources WHERE name = 'narrowed'"
    eventually(lambda: one(database, bound) == 0)
    database.sql("ALTER SOURCE narrowed SET max_mb_per_epoch = 2")
    kafka.send(topic, *wide(12, 40))
    eventually(lambda: one(database, "SELECT n FROM n") == 40)
    with pytest.raises(HeadraceError, match="max_mb_per_epoch"):
        database.sql("ALTER SOURCE narrowed SET max_mb_per_epoch = 0")
    with pytest.raises(HeadraceError, match="max_mb_per_epoch"):
        database.sql("ALTER MATERIALIZED VIEW n SET (max_mb_per_epoch = 'all')")
    database.sql("ALTER SOURCE narrowed SET max_mb_per_epoch = DEFAULT")


def steps(database: Database, view: str) -> int:
    """Objects that the first content of a view was written to, each by a step of its own: there is one task."""
    return int(one(database, f"SELECT max(objects) FROM headrace_catalog.checkpoints WHERE name = '{view}'"))


@pytest.mark.parametrize("spread", [False, True])
def test_files_and_tables_are_taken_in_by_bytes(database: Database, tmp_path: Path, spread: bool) -> None:
    """Files by their sizes, in one or in many; then the table that has their rows by what these take."""
    folder = tmp_path / "files"
    folder.mkdir()
    rows = wide(0, 50)
    parts = [rows[i : i + 5] for i in range(0, 50, 5)] if spread else [rows]
    for i, part in enumerate(parts):
        (folder / f"{i}.json").write_text("\n".join(part) + "\n")
    database.sql(f"CREATE SOURCE f (a int, v text) WITH (connector = 'files', path = '{folder}')")
    database.sql("CREATE MATERIALIZED VIEW kept WITH (parallelism = 1) AS SELECT a, v FROM f")
    eventually(lambda: one(database, "SELECT count(*) FROM kept") == 50)
    taken = rows_in(database, "kept")
    assert sum(taken) == 50 and max(taken[1:]) <= 10 and len(taken) >= 2
    database.sql("CREATE MATERIALIZED VIEW again WITH (parallelism = 1) AS SELECT a, v FROM kept")
    assert database.sql("SELECT a, length(v) FROM again ORDER BY a").rows() == [(i, WIDE) for i in range(50)]
    assert steps(database, "again") >= 5
    database.sql(
        "CREATE MATERIALIZED VIEW whole WITH (parallelism = 1, max_mb_per_epoch = 64) AS SELECT a, v FROM kept"
    )
    assert steps(database, "whole") == 1


def test_transactions_and_content_of_postgres_are_taken_in_by_bytes(database: Database, logical: Postgres) -> None:
    """A table's content by steps, of its log as many transactions as fit."""
    values = f"i, (SELECT string_agg(md5(i::text || n), '') FROM generate_series(1, {WIDE // 32}) AS n)"
    with logical.connect() as c:
        c.autocommit = True
        c.execute("CREATE TABLE wide_rows (a int PRIMARY KEY, v text)")
        c.execute(f"INSERT INTO wide_rows SELECT {values} FROM generate_series(1, 60) AS i")
        database.sql(
            "CREATE TABLE t (a int PRIMARY KEY, v text) WITH (connector = 'postgres-cdc', table.name = 'wide_rows', "
            f"hostname = '{HOST}', port = {logical.port}, username = 'root', database.name = '{logical.dbname}')"
        )
        eventually(lambda: one(database, "SELECT count(*) FROM t") == 60)
        for i in range(61, 101):
            c.execute(f"INSERT INTO wide_rows SELECT {values} FROM (SELECT {i} AS i) AS g")
        eventually(lambda: one(database, "SELECT count(*) FROM t") == 100)
        expected = c.execute("SELECT a, md5(v) FROM wide_rows ORDER BY a").fetchall()
    assert database.sql("SELECT a, md5(v) FROM t ORDER BY a").rows() == expected
    assert max(rows_in(database, "t")[1:]) <= 2 * MB // WIDE + 1


def test_the_content_of_a_table_of_postgres_is_taken_in_by_steps(
    database: Database, logical: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content_parts, "LEAST_BYTES", 64 << 10)
    run_steps, taken = Attempts.run_steps, list[bool]()

    def noted(self: Attempts, now: EpochInFlight, found: Sequence[tuple[JobPart[Job], Work]]) -> None:
        taken.extend(work.step.last for _, work in found)
        run_steps(self, now, found)

    monkeypatch.setattr(Attempts, "run_steps", noted)
    logical.execute(
        "CREATE TABLE many_blocks (a int PRIMARY KEY, v text)",
        "INSERT INTO many_blocks SELECT i, repeat('x', 1500) FROM generate_series(1, 6000) AS i",
    )
    database.sql(
        "CREATE TABLE m (a int PRIMARY KEY, v text) WITH (connector = 'postgres-cdc', table.name = 'many_blocks', "
        f"hostname = '{HOST}', port = {logical.port}, username = 'root', database.name = '{logical.dbname}', "
        "parallelism = 1)"
    )
    eventually(lambda: database.sql("SELECT count(*), sum(length(v)) FROM m").rows() == [(6000, 6000 * 1500)])
    assert taken.count(False) >= 4 and taken[-1]
