"""Rows that a sink's target refuses go to a table of this database, once, while the others are delivered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from clients import refused, run
from headrace.common import faults
from headrace.errors import InsufficientPrivilege
from headrace.session.database import Database, connect
from kafka import Kafka
from postgres import HOST, Postgres
from support import eventually

LETTERS = "(sink text, epoch bigint, op text, row text, error text, at timestamptz) APPEND ONLY"


@pytest.fixture(scope="module")
def target(postgres: Postgres) -> Iterator[Postgres]:
    yield postgres.new_database("refusing")


def into(target: Postgres, table: str, rest: str) -> str:
    return (
        f"WITH (connector = 'postgres', host = '{HOST}', port = {target.port}, user = 'root', "
        f"database = '{target.dbname}', table = '{table}', {rest})"
    )


def rows(target: Postgres, table: str) -> list[tuple[Any, ...]]:
    with target.connect() as connection:
        return connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()


def letters(database: Database, table: str) -> list[tuple[str, str, Any]]:
    found = database.sql(f"SELECT sink, op, row FROM {table} ORDER BY epoch, row").rows()
    return [(sink, op, json.loads(row)) for sink, op, row in found]


def error_of(database: Database, job: str) -> str:
    (found,) = (row for row in database.sql("SELECT name, error FROM headrace_catalog.jobs").rows() if row[0] == job)
    return str(found[1] or "")


def test_refused_rows_go_to_the_table_and_the_others_to_the_target(
    spark: SparkSession, target: Postgres, tmp_path: Path
) -> None:
    """Also through a commit that fails once the target has the epoch, and a restart."""
    policy = "primary_key = 'id', on_row_error = 'dead_letter', dead_letter_table = 'lost'"
    target.execute("CREATE TABLE short (id int PRIMARY KEY, v varchar(3))")
    with connect(tmp_path / "db", spark=spark) as database:
        database.sql(f"CREATE TABLE lost {LETTERS}; CREATE TABLE t (id bigint PRIMARY KEY, v text)")
        database.sql("INSERT INTO t VALUES (1, 'a'), (2, 'too long'), (3, 'c'), (5000000000, 'd')")
        database.sql(f"CREATE SINK s FROM t {into(target, 'short', policy)}")
        assert rows(target, "short") == [(1, "a"), (3, "c")]
        first = [("s", "insert", {"id": 2, "v": "too long"}), ("s", "insert", {"id": 5000000000, "v": "d"})]
        assert letters(database, "lost") == first
        (error, at) = database.sql("SELECT error, at IS NOT NULL FROM lost WHERE row LIKE '%too long%'").rows()[0]
        assert error == "value too long for type character varying(3) (SQLSTATE 22001)" and at
        # What took the place of a refused row, or a row that is there; and what goes that has never been there.
        database.sql("UPDATE t SET v = CASE id WHEN 2 THEN 'b' WHEN 1 THEN 'longer' ELSE 'D' END WHERE id <> 3")
        database.flush()
        assert rows(target, "short") == [(2, "b"), (3, "c")], "the rows of the sink, but for those in the table"
        second = [*first, ("s", "insert", {"id": 1, "v": "longer"}), ("s", "insert", {"id": 5000000000, "v": "D"})]
        assert letters(database, "lost") == second
        faults.arm("commit.acked", "fail", nth=1)
        database.sql("INSERT INTO t VALUES (7, 'seven'), (8, 'ok')")
        eventually(lambda: (8, "ok") in rows(target, "short"))
        database.flush()
        assert faults.passages("commit.acked") > 1, "it has failed once with the epoch at the target"
        faults.disarm_all()
        assert rows(target, "short") == [(2, "b"), (3, "c"), (8, "ok")]
        third = [*second, ("s", "insert", {"id": 7, "v": "seven"})]
        assert letters(database, "lost") == third
    with connect(tmp_path / "db", spark=spark) as database:
        database.sql("INSERT INTO t VALUES (9, 'nines'), (10, 'ten'); DELETE FROM t WHERE id IN (1, 7)")
        database.flush()
        assert rows(target, "short") == [(2, "b"), (3, "c"), (8, "ok"), (10, "ten")]
        assert letters(database, "lost") == [*third, ("s", "insert", {"id": 9, "v": "nines"})]
        assert refused(database, "DROP TABLE lost").startswith("2BP01 cannot drop")
        append = policy.replace("primary_key = 'id'", "type = 'append-only'")
        target.execute("CREATE TABLE letters (sink text, epoch bigint, op text, row text, error text, at timestamptz)")
        again = f"CREATE SINK again FROM lost {into(target, 'letters', append)}"
        assert "would feed itself" in refused(database, again)


def test_rows_that_a_lake_and_a_topic_refuse(database: Database, kafka: Kafka, tmp_path: Path) -> None:
    policy = "primary_key = 'id', on_row_error = 'dead_letter', dead_letter_table = 'wrong_rows'"
    database.sql(f"CREATE TABLE wrong_rows {LETTERS}; CREATE TABLE prices (id int PRIMARY KEY, price int, note text)")
    lake = f"WITH (connector = 'deltalake', location = '{tmp_path}/t', create_table_if_not_exists = true, {policy})"
    topic = kafka.topic("priced", 1, max_message_bytes="2000")
    way = f"WITH (connector = 'kafka', topic = '{topic}', properties.bootstrap.server = '{kafka.servers}', {policy})"
    database.sql(f"CREATE SINK lake FROM prices {lake}; CREATE SINK topic FROM prices {way} FORMAT UPSERT ENCODE JSON")
    DeltaTable(f"{tmp_path}/t").alter.add_constraint({"positive": "price > 0"})
    long = "".join(f"{i * i:x}" for i in range(1200))
    database.sql(f"INSERT INTO prices VALUES (1, 10, 'a'), (2, -1, 'b'), (3, 30, '{long}')")
    database.flush()
    eventually(lambda: len(letters(database, "wrong_rows")) == 2)
    assert sorted((sink, op, row["id"]) for sink, op, row in letters(database, "wrong_rows")) == [
        ("lake", "insert", 2), ("topic", "insert", 3)
    ]  # fmt: skip
    assert sorted(row["id"] for row in DeltaTable(f"{tmp_path}/t").to_pyarrow_table().to_pylist()) == [1, 3]
    assert sorted(json.loads(message.key())["id"] for message in kafka.records(topic)) == [1, 2]


def test_without_a_table_the_sink_waits_and_says_which_row(database: Database, target: Postgres) -> None:
    target.execute("CREATE TABLE strict (id int PRIMARY KEY, v text NOT NULL)")
    database.sql("CREATE TABLE strict_from (id int PRIMARY KEY, v text)")
    sink = into(target, "strict", "primary_key = 'id'")
    database.sql(f"CREATE SINK strict_out FROM strict_from {sink}")
    database.sql("INSERT INTO strict_from VALUES (1, 'a'), (2, NULL)")
    eventually(lambda: "refuses a row for good: null value in column" in error_of(database, "strict_out"))
    assert error_of(database, "strict_out").endswith('insert of {"id":2,"v":null}')
    assert rows(target, "strict") == []
    target.execute("ALTER TABLE strict ALTER v DROP NOT NULL")
    eventually(lambda: rows(target, "strict") == [(1, "a"), (2, None)])


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ("(row text)", 'has no column "sink"'),
        (LETTERS.replace("bigint", "int"), 'is not bigint in its column "epoch"'),
        ("(id int PRIMARY KEY, row text)", "must have no primary key"),
        (LETTERS.replace("at timestamptz", "at timestamptz, more int NOT NULL"), '"more" of the dead-letter table'),
    ],
)
def test_a_table_that_does_not_do(database: Database, target: Postgres, definition: str, message: str) -> None:
    database.sql(f"CREATE TABLE IF NOT EXISTS some (id int PRIMARY KEY, v text); CREATE TABLE wrong {definition}")
    policy = "primary_key = 'id', on_row_error = 'dead_letter', dead_letter_table = 'wrong'"
    try:
        assert message in refused(database, f"CREATE SINK x FROM some {into(target, 'short', policy)}")
    finally:
        database.sql("DROP TABLE wrong")


def test_rights_on_the_table(database: Database, target: Postgres) -> None:
    database.sql(f"CREATE TABLE guarded {LETTERS}; CREATE TABLE readable (id int PRIMARY KEY)")
    database.sql("CREATE USER letter_writer; GRANT SELECT ON readable TO letter_writer")
    database.sql("GRANT pg_write_server_files TO letter_writer; GRANT CREATE ON SCHEMA public TO letter_writer")
    policy = "primary_key = 'id', on_row_error = 'dead_letter', dead_letter_table = 'guarded'"
    session = database.session(user="letter_writer")
    with pytest.raises(InsufficientPrivilege, match="permission denied for table guarded"):
        run(session, f"CREATE SINK x FROM readable {into(target, 'short', policy)}")
