"""Sinks that write outside: what is at the target after changes, refusals, failures and restarts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from clients import refused
from headrace.config import Settings
from headrace.session.database import Database, connect
from postgres import HOST, Postgres
from support import eventually

APPEND = "type = 'append-only'"


@pytest.fixture(scope="module")
def target(postgres: Postgres) -> Iterator[Postgres]:
    yield postgres.new_database("delivered")


def into(target: Postgres, table: str, rest: str = "primary_key = 'id'") -> str:
    return (
        f"WITH (connector = 'postgres', host = '{HOST}', port = {target.port}, user = 'root', "
        f"database = '{target.dbname}', table = '{table}', {rest})"
    )


def rows(target: Postgres, table: str) -> list[tuple[Any, ...]]:
    with target.connect() as connection:
        return connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()


def error_of(database: Database, job: str) -> str:
    found = database.sql(f"SELECT error FROM headrace_catalog.jobs WHERE name = '{job}'").rows()
    return str(found[0][0] or "")


def test_postgres_upsert(database: Database, target: Postgres) -> None:
    target.execute("CREATE TABLE up (id int PRIMARY KEY, name text, total numeric(20,2), extra text DEFAULT 'own')")
    database.sql("CREATE TABLE t (id int PRIMARY KEY, name text, total decimal(20,2))")
    database.sql("INSERT INTO t VALUES (1, 'a', 1.5), (2, '', NULL), (3, NULL, 3)")
    database.sql(f"CREATE SINK up FROM t {into(target, 'up')}")
    assert [r[:3] for r in rows(target, "up")] == [(1, "a", 1.5), (2, "", None), (3, None, 3)]
    target.execute("UPDATE up SET extra = 'kept' WHERE id = 1")
    database.sql("UPDATE t SET name = 'it''s, \"b\"' WHERE id = 1")
    database.sql("DELETE FROM t WHERE id = 2")
    database.sql("INSERT INTO t VALUES (4, 'd', 4)")
    database.flush()
    assert rows(target, "up") == [(1, 'it\'s, "b"', 1.5, "kept"), (3, None, 3, "own"), (4, "d", 4, "own")]
    (note,) = rows(target, "headrace_deliveries")
    assert note[1] > 0


def test_postgres_types(database: Database, target: Postgres) -> None:
    columns = (
        "id int, b boolean, s smallint, l bigint, r real, d double precision, t text, ts timestamp, tz timestamptz, "
        "da date, by bytea, ar int[], ts_list text[], j jsonb, iv interval, tm time"
    )
    target.execute(f"CREATE TABLE every ({columns}, PRIMARY KEY (id))")
    database.sql(f"CREATE TABLE every ({columns}, PRIMARY KEY (id))")
    values = """(1, true, -3, 9223372036854775807, 1.5, 'NaN', 'é\\,"', timestamp '2024-02-29 12:00:00.000001',
                timestamptz '2024-02-29 12:00:00+02', date '1999-01-01', '\\x00ff', ARRAY[1, NULL, 3],
                ARRAY['a"b', ''], '{"a": [1.50, "x"]}'::jsonb, interval '1 mon 2 days 03:00', time '01:00')"""
    database.sql(f"INSERT INTO every VALUES {values}")
    database.sql("INSERT INTO every (id) VALUES (2)")
    database.sql(f"CREATE SINK every_out FROM every {into(target, 'every')}")
    with target.connect() as connection:
        connection.execute("SET timezone = 'UTC'")
        same = connection.execute(f"SELECT count(*) FROM every e, (VALUES {values}) v WHERE (e.*)::text = (v.*)::text")
        assert same.fetchone() == (1,)
    assert rows(target, "every")[1] == (2, *[None] * 15)


def test_postgres_of_a_query(database: Database, target: Postgres) -> None:
    target.execute("CREATE TABLE sums (k int PRIMARY KEY, n bigint, s bigint)")
    database.sql("CREATE TABLE facts (k int, v int)")
    database.sql("INSERT INTO facts SELECT i % 10, i FROM generate_series(1, 1000) AS g(i)")
    database.sql(
        "CREATE SINK sums AS SELECT k, count(*) AS n, sum(v) AS s FROM facts GROUP BY k "
        + into(target, "sums", "type = 'upsert', primary_key = 'k'")
    )
    for _ in range(3):
        database.sql("INSERT INTO facts VALUES (1, 1), (77, 5); DELETE FROM facts WHERE k = 3")
        database.flush()
        wanted = database.sql("SELECT k, count(*), sum(v) FROM facts GROUP BY k ORDER BY k").rows()
        assert rows(target, "sums") == [tuple(r) for r in wanted]


def test_an_epoch_that_is_there_already_still_counts_for_the_state(database: Database, target: Postgres) -> None:
    target.execute("CREATE TABLE totals (k int PRIMARY KEY, n bigint)")
    database.sql("CREATE TABLE things (k int); INSERT INTO things SELECT i % 3 FROM generate_series(1, 30) AS g(i)")
    of_query = "AS SELECT k, count(*) AS n FROM things GROUP BY k"
    database.sql(f"CREATE SINK totals_out {of_query} {into(target, 'totals', 'primary_key = k')}")
    target.execute("CREATE TABLE kept_back AS SELECT * FROM headrace_deliveries ORDER BY delivered_at DESC LIMIT 1")
    noted = "UPDATE headrace_deliveries SET epoch = {} WHERE sink IN (SELECT sink FROM kept_back)"
    target.execute(noted.format(1 << 62))
    database.sql("INSERT INTO things SELECT i FROM generate_series(0, 2) AS g(i)")
    database.flush()
    assert rows(target, "totals") == [(0, 10), (1, 10), (2, 10)]
    target.execute(noted.format("(SELECT epoch FROM kept_back)"))
    database.sql("INSERT INTO things SELECT i FROM generate_series(0, 2) AS g(i)")
    database.flush()
    assert rows(target, "totals") == [(0, 12), (1, 12), (2, 12)]


def test_a_target_restored_from_a_backup_stops_the_sink(spark: SparkSession, tmp_path: Path, target: Postgres) -> None:
    """After a restart, too; it goes on once the target is what it was."""
    target.execute("CREATE TABLE restored (id int PRIMARY KEY, v int)")
    with connect(tmp_path, spark=spark, settings=Settings(data_dir=tmp_path, barrier_interval_ms=100)) as database:
        database.sql("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1)")
        database.sql(f"CREATE SINK restored AS SELECT * FROM t {into(target, 'restored')}")
        target.execute("CREATE TABLE backup AS SELECT * FROM headrace_deliveries")
        database.sql("INSERT INTO t VALUES (2, 2)")
        database.flush()
        target.execute("CREATE TABLE newest AS SELECT * FROM headrace_deliveries")
        target.execute("DELETE FROM restored WHERE id = 2", "TRUNCATE headrace_deliveries",
                       "INSERT INTO headrace_deliveries SELECT * FROM backup")  # fmt: skip
    with connect(tmp_path, spark=spark, settings=Settings(data_dir=tmp_path, barrier_interval_ms=100)) as database:
        database.sql("INSERT INTO t VALUES (3, 3)")
        eventually(lambda: "does not have what this sink has delivered" in error_of(database, "restored"))
        assert rows(target, "restored") == [(1, 1)]
        target.execute("INSERT INTO restored VALUES (2, 2)", "TRUNCATE headrace_deliveries",
                       "INSERT INTO headrace_deliveries SELECT * FROM newest")  # fmt: skip
        eventually(lambda: rows(target, "restored") == [(1, 1), (2, 2), (3, 3)])


def test_postgres_append(database: Database, target: Postgres) -> None:
    target.execute("CREATE TABLE log (a int, b text)", "CREATE TABLE late (a int, b text)")
    database.sql("CREATE TABLE events (a int, b text) APPEND ONLY; INSERT INTO events VALUES (1, 'x'), (1, 'x')")
    database.sql(f"CREATE SINK log FROM events {into(target, 'log', APPEND)}")
    database.sql(f"CREATE SINK late FROM events {into(target, 'late', APPEND + ', snapshot = false')}")
    database.sql("INSERT INTO events VALUES (2, 'y')")
    database.flush()
    assert rows(target, "log") == [(1, "x"), (1, "x"), (2, "y")]
    assert rows(target, "late") == [(2, "y")]


def test_postgres_refused(database: Database, target: Postgres) -> None:
    database.sql("CREATE TABLE r (id int PRIMARY KEY, other int)")
    target.execute("CREATE TABLE few (id int PRIMARY KEY)", "CREATE TABLE loose (id int, other int)")
    assert "there is no table" in refused(database, f"CREATE SINK x FROM r {into(target, 'nowhere')}")
    assert 'no column "other"' in refused(database, f"CREATE SINK x FROM r {into(target, 'few')}")
    assert "no primary key or unique index of id" in refused(database, f"CREATE SINK x FROM r {into(target, 'loose')}")
    assert "needs the option primary_key" in refused(
        database, f"CREATE SINK x FROM r {into(target, 'few', 'schema = public')}"
    )
    assert 'there is no column "no"' in refused(
        database, f"CREATE SINK x FROM r {into(target, 'few', 'primary_key = no')}"
    )
    assert "unknown option colour" in refused(database, f"CREATE SINK x FROM r {into(target, 'few', 'colour = red')}")
    nobody = into(target, "few").replace(f"port = {target.port}", "port = 1")
    assert refused(database, f"CREATE SINK x FROM r {nobody}").startswith("HR011")
    group = into(target, "few", "primary_key = 'id', checkpoint_group = 'g'")
    assert refused(database, f"CREATE SINK x FROM r {group}").startswith("0A000")
    assert "x" not in {r[0] for r in database.sql("SHOW SINKS").rows()}


def test_a_key_that_does_not_tell_rows_apart(database: Database, target: Postgres) -> None:
    target.execute("CREATE TABLE vague (id int PRIMARY KEY, v int)")
    database.sql("CREATE TABLE vague (id int, v int)")
    database.sql(f"CREATE SINK vague_out FROM vague {into(target, 'vague')}")
    database.sql("INSERT INTO vague VALUES (1, 1), (1, 2)")
    eventually(lambda: "does not tell the rows of the sink apart" in error_of(database, "vague_out"))
    database.sql("DELETE FROM vague WHERE v = 2")  # the epoch is settled: it is delivered as it was, or not at all
    database.sql("DROP SINK vague_out")
    assert rows(target, "vague") == []


def test_a_target_that_is_down_delays_nobody(database: Database, target: Postgres) -> None:
    target.execute("CREATE TABLE slow (id int PRIMARY KEY)")
    database.sql("CREATE TABLE slow (id int PRIMARY KEY)")
    database.sql(f"CREATE SINK slow_out FROM slow {into(target, 'slow')}")
    database.sql("CREATE MATERIALIZED VIEW beside AS SELECT count(*) AS n FROM slow")
    target.kill()
    try:
        database.sql("INSERT INTO slow VALUES (1)")
        eventually(lambda: error_of(database, "slow_out"))
        database.sql("INSERT INTO slow VALUES (2)")
        eventually(lambda: database.sql("SELECT n FROM beside").rows() == [(2,)])
        assert "PostgreSQL at" in error_of(database, "slow_out")
    finally:
        target.start()
    eventually(lambda: rows(target, "slow") == [(1,), (2,)])
    eventually(lambda: not error_of(database, "slow_out"))


def test_targets_that_are_full_or_slow_delay_nobody(database: Database, target: Postgres) -> None:
    """What is the matter with each is shown; both have everything once they take it."""
    target.execute("CREATE TABLE is_full (id int PRIMARY KEY); CREATE TABLE is_slow (id int PRIMARY KEY)")
    target.execute("CREATE TABLE hindered (by text); INSERT INTO hindered VALUES ('is_full'), ('is_slow')")
    target.execute(
        """CREATE FUNCTION hinder() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF TG_TABLE_NAME = 'is_full' AND EXISTS (SELECT FROM hindered WHERE by = 'is_full') THEN
               RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100';
             END IF;
             WHILE EXISTS (SELECT FROM hindered WHERE by = TG_TABLE_NAME) LOOP PERFORM pg_sleep(0.05); END LOOP;
             RETURN NEW;
           END $$""",
        *(f"CREATE TRIGGER h BEFORE INSERT ON {name} FOR EACH ROW EXECUTE FUNCTION hinder()"
          for name in ("is_full", "is_slow")),
    )  # fmt: skip
    database.sql("CREATE TABLE pressed (id int PRIMARY KEY)")
    for name in ("is_full", "is_slow"):
        database.sql(f"CREATE SINK {name} FROM pressed {into(target, name)}")
    database.sql("CREATE MATERIALIZED VIEW unhindered AS SELECT count(*) AS n FROM pressed")
    database.sql("INSERT INTO pressed VALUES (1)")
    eventually(lambda: "could not extend file (SQLSTATE 53100)" in error_of(database, "is_full"))
    shown = "SELECT status, in_flight_epoch IS NOT NULL FROM headrace_catalog.jobs WHERE name = 'is_slow'"
    eventually(lambda: database.sql(shown).rows() == [("running", True)])
    for i in range(2, 5):
        database.sql(f"INSERT INTO pressed VALUES ({i})")
        eventually(lambda i=i: database.sql("SELECT n FROM unhindered").rows() == [(i,)])
    (line,) = (row for row in database.sql("SHOW JOBS").rows() if row[1] == "is_full")
    assert line[2] == "failing" and line[3] > 0 and "could not extend file" in line[4], "with its lag"
    target.execute("DELETE FROM hindered")
    for name in ("is_full", "is_slow"):
        eventually(lambda name=name: rows(target, name) == [(1,), (2,), (3,), (4,)])


def test_a_commit_at_every_so_many_checkpoints(database: Database, tmp_path: Path) -> None:
    """FLUSH has one at once; the option can be altered while the sink runs."""
    database.sql(
        "CREATE TABLE rare (id int PRIMARY KEY); CREATE MATERIALIZED VIEW often AS SELECT count(*) AS n FROM rare"
    )
    way = f"connector = 'deltalake', location = '{tmp_path}/rare', create_table_if_not_exists = true"
    database.sql(f"CREATE SINK rarely FROM rare WITH ({way}, primary_key = 'id', commit_checkpoint_interval = 100000)")

    def commits() -> int:
        return len(DeltaTable(f"{tmp_path}/rare").history())

    before = commits()
    for i in range(1, 4):
        database.sql(f"INSERT INTO rare VALUES ({i})")
        eventually(lambda i=i: database.sql("SELECT n FROM often").rows() == [(i,)])
    assert commits() <= before + 1, "its first epoch may begin at once"
    database.flush()
    assert commits() <= before + 2 and DeltaTable(f"{tmp_path}/rare").to_pyarrow_table().num_rows == 3
    database.sql("ALTER SINK rarely SET (commit_checkpoint_interval = 1)")
    database.sql("INSERT INTO rare VALUES (4)")
    eventually(lambda: DeltaTable(f"{tmp_path}/rare").to_pyarrow_table().num_rows == 4)


def test_an_epoch_whose_files_cannot_be_put_together_is_delivered(database: Database, tmp_path: Path) -> None:
    """It does not fail; people are told once, and again when it has been possible meanwhile."""
    place, aside = tmp_path / "heap", tmp_path / "aside"
    way = f"connector = 'deltalake', location = '{place}', create_table_if_not_exists = true, type = 'append-only'"
    database.sql("CREATE TABLE heap (a int) APPEND ONLY")
    database.sql(f"CREATE SINK heaped FROM heap WITH ({way}, compact_files = 2)")

    def deliver(*values: int) -> None:
        for a in values:
            database.sql(f"INSERT INTO heap VALUES ({a})")
            database.flush()

    def told(kind: str) -> list[str]:
        found = database.sql(f"SELECT message FROM headrace_catalog.events WHERE kind = '{kind}'").rows()
        return [str(m) for (m,) in found if '"heaped"' in str(m)]

    for number, a in enumerate((1, 4), 1):
        deliver(a)
        [missing] = (Path(uri) for uri in DeltaTable(place).file_uris())
        missing.rename(aside)
        deliver(a + 1, a + 2)
        assert not told("job_failed") and len(told("sink_remark")) == number
        aside.rename(missing)
        deliver(10 * a)
        assert "OPTIMIZE" in {commit["operation"] for commit in DeltaTable(place).history(1)}
    assert told("sink_remark")[0].startswith('sink "heaped" has delivered an epoch, but small files of Delta table')
    assert sorted(DeltaTable(place).to_pyarrow_table().column("a").to_pylist()) == [1, 2, 3, 4, 5, 6, 10, 40]


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_files(database: Database, tmp_path: Path, kind: str) -> None:
    out, name = tmp_path / "out", f"files_{kind}"
    database.sql(
        f"CREATE TABLE {name} (a int, b text, c decimal(10,2)) APPEND ONLY; INSERT INTO {name} VALUES (1, 'x', 1.5)"
    )
    with_ = f"WITH (connector = 'files', path = '{out}', type = 'append-only') FORMAT PLAIN ENCODE {kind.upper()}"
    database.sql(f"CREATE SINK {name}_out FROM {name} {with_}")
    database.sql(f"INSERT INTO {name} VALUES (2, NULL, NULL), (2, NULL, NULL)")
    database.flush()
    found = sorted(p for p in out.iterdir())
    assert len(found) == 2 and all(p.suffix == f".{kind}" for p in found)
    assert sorted(a for p in found for a in _firsts(p)) == [1, 2, 2]


def _firsts(path: Path) -> list[int]:
    if path.suffix == ".parquet":
        return list(pyarrow.parquet.read_table(path).column("a").to_pylist())
    if path.suffix == ".csv":
        return list(pyarrow.csv.read_csv(path).column("a").to_pylist())
    return [json.loads(line)["a"] for line in path.read_text().splitlines()]


def test_files_are_refused(database: Database, tmp_path: Path) -> None:
    database.sql("CREATE TABLE ft (a int)")
    way = f"connector = 'files', path = '{tmp_path / 'x'}'"
    assert refused(database, f"CREATE SINK x FROM ft WITH ({way})").startswith("0A000")
    assert refused(database, f"CREATE SINK x FROM ft WITH ({way}, type = 'append-only')").startswith("0A000")
    database.sql(
        f"CREATE SINK forced FROM ft WITH ({way}) FORMAT PLAIN ENCODE JSON "
        "(type = 'append-only', force_append_only = true)"
    )
    database.sql("INSERT INTO ft VALUES (1); DELETE FROM ft")
    assert "absolute" in refused(
        database,
        "CREATE SINK x FROM ft WITH (connector = 'files', path = 'x', type = 'append-only', force_append_only = true)",
    )


def test_a_settled_epoch_is_taken_up_after_a_restart(spark: SparkSession, tmp_path: Path, target: Postgres) -> None:
    """The target is away when a server ends: the next one delivers the same epoch, and then the rest."""
    target.execute("CREATE TABLE again (id int PRIMARY KEY, v int)")
    settings = Settings(data_dir=tmp_path, run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=100)
    with connect(tmp_path, spark=spark, settings=settings) as database:
        database.sql("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1)")
        database.sql(f"CREATE SINK again FROM t {into(target, 'again')}")
        target.execute("ALTER TABLE again RENAME TO away")
        database.sql("INSERT INTO t VALUES (2, 2)")
        eventually(lambda: error_of(database, "again"))
        database.sql("UPDATE t SET v = 3 WHERE id = 2")
    target.execute("ALTER TABLE away RENAME TO again")
    with connect(tmp_path, spark=spark, settings=settings) as database:
        eventually(lambda: rows(target, "again") == [(1, 1), (2, 3)])
        database.sql("DELETE FROM t")
        database.flush()
        assert rows(target, "again") == []
