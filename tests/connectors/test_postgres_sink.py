"""The postgres sink against tables and servers that are not as one expects them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.common.columns import Column
from headrace.connectors.sinks import Sink, SinkPosition, open_sink
from headrace.errors import InvalidParameter, SinkError
from postgres import HOST, Postgres

POSITION = SinkPosition("d", 0, 1, 0, "a")


def sink(server: Postgres, table: str, key: str = "id", *names: str, **more: str) -> Sink:
    options = {"connector": "postgres", "host": HOST, "port": str(server.port), "user": "root", "type": "upsert",
               "database": server.dbname, "table": table, "primary_key": key, **more}  # fmt: skip
    return open_sink(options, [Column(key, "int"), *(Column(n, "string") for n in names)])


def batch(names: list[str], *rows: tuple[Any, ...]) -> pa.RecordBatch:
    arrays = [pa.array(values) for values in zip(*rows, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[*names, "__w"])


@pytest.mark.parametrize(
    "columns",
    ["id int, UNIQUE (id, v)", "id int UNIQUE DEFERRABLE", "id int, EXCLUDE (id WITH =)"],
)
def test_an_index_that_is_no_key(postgres: Postgres, columns: str) -> None:
    postgres.execute("DROP TABLE IF EXISTS keyless", f"CREATE TABLE keyless (v text, {columns})")
    with pytest.raises(InvalidParameter, match="no primary key or unique index of id"):
        sink(postgres, "keyless").reach()


def test_columns_beside_the_key_of_an_index_do_not_count(postgres: Postgres) -> None:
    postgres.execute("CREATE TABLE beside (id int, v text)", "CREATE UNIQUE INDEX ON beside (id) INCLUDE (v)")
    found = sink(postgres, "beside", "id", "v")
    found.reach()
    found.write(POSITION, iter([batch(["id", "v"], (1, "a", 1))]))
    with postgres.connect() as c:
        assert c.execute("SELECT * FROM beside").fetchall() == [(1, "a")]


def test_rows_that_are_only_added(postgres: Postgres) -> None:
    """They are taken as they are, also into the place of others, unless their key does not tell them apart."""
    postgres.execute("CREATE TABLE grown (id int UNIQUE, v text); INSERT INTO grown VALUES (1, 'old'), (3, 'kept')")
    made = sink(postgres, "grown", "id", "v")
    made.reach()
    assert made.write(SinkPosition("grown", 0, 10, 0, "a"), iter([batch(["id", "v"], (1, "a", 1), (2, "b", 1))])) == 2
    twice: list[list[tuple[int | None, str, int]]] = [
        [(4, "x", 1), (4, "y", 1)], [(5, "x", 2)], [(None, "x", 1), (7, "x", 1)], [(6, "x", 1), (6, "x", 1)],
    ]  # fmt: skip
    for rows in twice:
        with pytest.raises(SinkError, match="does not tell the rows of the sink apart"):
            made.write(SinkPosition("grown", 10, 20, 0, "a"), iter([batch(["id", "v"], *rows)]))
    with postgres.connect() as c:
        assert c.execute("SELECT * FROM grown ORDER BY 1").fetchall() == [(1, "a"), (2, "b"), (3, "kept")]
    postgres.execute("CREATE TABLE keys (id int PRIMARY KEY)")
    only = sink(postgres, "keys", "id")
    only.reach()
    with pytest.raises(SinkError, match="does not tell the rows of the sink apart"):
        only.write(SinkPosition("keys", 0, 10, 0, "a"), iter([batch(["id"], (1, 1), (1, 1))]))


def test_names_with_signs(postgres: Postgres) -> None:
    postgres.execute('CREATE SCHEMA "100%s"', 'CREATE TABLE "100%s".signs ("at.t.id" int PRIMARY KEY, "v%" text)')
    found = sink(postgres, "signs", "at.t.id", "v%", schema="100%s")
    found.reach()
    found.write(POSITION, iter([batch(["at.t.id", "v%"], (1, "a", 1), (2, "b", 1))]))
    later = SinkPosition("d", 1, 2, 0, "a")
    found.write(later, iter([batch(["at.t.id", "v%"], (1, "a", -1), (2, "b", -1), (2, "c", 1))]))
    with postgres.connect() as c:
        assert c.execute('SELECT * FROM "100%s".signs').fetchall() == [(2, "c")]


def test_a_commit_is_safe_whatever_the_database_says(postgres: Postgres) -> None:
    careless = postgres.new_database("careless")
    careless.execute(
        "ALTER DATABASE careless SET synchronous_commit = off",
        "CREATE TABLE noted (id int PRIMARY KEY, v text DEFAULT current_setting('synchronous_commit'))",
    )
    found = sink(careless, "noted")
    found.reach()
    found.write(POSITION, iter([batch(["id"], (1, 1))]))
    with careless.connect() as c:
        assert c.execute("SELECT * FROM noted").fetchall() == [(1, "on")]


def test_a_connection_uses_nothing_of_the_process(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither the environment's password nor the file of passwords lets anybody in."""
    rules = postgres.data / "pg_hba.conf"
    before = rules.read_text()
    postgres.execute("CREATE ROLE owner LOGIN SUPERUSER PASSWORD 'theirs'", "CREATE TABLE locked (id int PRIMARY KEY)")
    passwords = tmp_path / "pgpass"
    passwords.write_text("*:*:*:owner:theirs\n")
    passwords.chmod(0o600)
    monkeypatch.setenv("PGPASSWORD", "theirs")
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    try:
        rules.write_text(f"host all owner 127.0.0.1/32 scram-sha-256\n{before}")
        postgres.execute("SELECT pg_reload_conf()")
        with pytest.raises(SinkError, match="password"):
            sink(postgres, "locked", user="owner").reach()
        sink(postgres, "locked", user="owner", password="theirs").reach()
    finally:
        rules.write_text(before)
        postgres.execute("SELECT pg_reload_conf()")


def test_a_socket_is_no_host(postgres: Postgres) -> None:
    with pytest.raises(InvalidParameter, match="must be a name or an address"):
        sink(postgres, "locked", host="/var/run/postgresql").reach()
