"""A server that is killed while a table is created, gets columns, or goes: it has all of it, or what it had before."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import psycopg
import pytest

from postgres import HOST, NoPostgres, Postgres, postgres_server
from server import Server
from support import eventually

ROWS = 30
POINTS = ("columns.slot.after", "columns.commit.before", "columns.commit.after")
"""Where it is killed, one life after another; the last one alone outside of `make test-all`."""
SUMS = "SELECT count(*), sum(v) FROM t"


def write(there: Postgres, stop: threading.Event) -> None:
    chance = random.Random(7)
    with there.connect() as connection:
        while not stop.is_set():
            connection.execute("UPDATE t SET v = %s WHERE id = %s", (chance.randrange(1000), chance.randrange(ROWS)))
            time.sleep(0.2)


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("points", [POINTS[-1:], pytest.param(POINTS, marks=pytest.mark.soak)], ids=["once", "all"])
def test_a_table_gets_columns_over_kills(tmp_path: Path, points: tuple[str, ...]) -> None:
    try:
        with postgres_server({"wal_level": "logical", "fsync": "off"}) as postgres:
            run(Server(tmp_path, settings={"HEADRACE_BARRIER_INTERVAL_MS": "250"}), postgres, points)
    except NoPostgres as error:
        pytest.skip(str(error))


def run(server: Server, there: Postgres, points: tuple[str, ...]) -> None:
    there.execute("CREATE TABLE t (id int PRIMARY KEY, v int)",
                  f"INSERT INTO t SELECT i, 0 FROM generate_series(0, {ROWS - 1}) AS g(i)")  # fmt: skip
    stop = threading.Event()
    writer = threading.Thread(target=write, args=(there, stop), daemon=True)
    try:
        server.start("table.fed.after=kill@1")
        create = (
            f"CREATE TABLE t (id int PRIMARY KEY, v int) WITH (connector = 'postgres-cdc', hostname = '{HOST}', "
            f"port = {there.port}, username = 'root', database.name = '{there.dbname}', table.name = 't')"
        )
        with pytest.raises(psycopg.Error):
            server.execute(create)
        assert server.wait_exit() == -9
        server.start(f"{points[0]}=kill@1")
        server.execute(
            create,
            "CREATE MATERIALIZED VIEW sums AS SELECT count(*) AS n, sum(v) AS s FROM t",
            "CREATE INDEX by_v ON t (v)",
        )
        writer.start()
        columns = ["id", "v", "c0"]
        there.execute("ALTER TABLE t ADD c0 int DEFAULT 0")
        for point in points:  # each on what the one before has left
            if point != points[0]:
                server.start(f"{point}=kill@1")
            assert columns_of(server) == ["id", "v"], point
            eventually(lambda: is_level(server, ["id", "v"]), point)
            with pytest.raises(psycopg.Error):
                server.execute("ALTER TABLE t REFRESH SCHEMA")
            assert server.wait_exit() == -9
        server.start()
        assert columns_of(server) == sorted(columns)
        eventually(lambda: is_level(server, columns))
        columns.append("c1")
        there.execute("ALTER TABLE t ADD c1 int DEFAULT 1")
        server.execute("ALTER TABLE t REFRESH SCHEMA")
        assert columns_of(server) == sorted(columns)
        eventually(lambda: is_level(server, columns))
        stop.set()
        writer.join()
        with there.connect() as connection:
            rows = sorted(connection.execute(f"SELECT {', '.join(columns)} FROM t").fetchall())
            (sums,) = connection.execute(SUMS).fetchall()
        eventually(lambda: sorted(server.rows(f"SELECT {', '.join(columns)} FROM t")) == rows)
        eventually(lambda: server.rows("SELECT n, s FROM sums") == [sums])
        names = "SELECT name FROM headrace_catalog.jobs ORDER BY name"
        eventually(lambda: len(server.rows(names)) == 4, "the table, its index, the view, and the table that it reads")
        server.execute("DROP MATERIALIZED VIEW sums")
        assert server.rows(names) == [("by_v",), ("t",)]
        server.stop()
        server.start("source.dropped.after=kill@1")
        with pytest.raises(psycopg.Error):
            server.execute("DROP TABLE t CASCADE")
        assert server.wait_exit() == -9
        with there.connect() as connection:
            assert len(connection.execute("SELECT FROM pg_replication_slots").fetchall()) == 1
        server.start()
        assert server.rows(names) == []
        eventually(lambda: server.rows("SELECT source FROM headrace_catalog.dropped_sources") == [])
        with there.connect() as connection:
            assert connection.execute("SELECT FROM pg_replication_slots").fetchall() == []
            assert connection.execute("SELECT FROM pg_publication").fetchall() == []
    finally:
        stop.set()
        server.close()


def columns_of(server: Server) -> list[str]:
    found = server.rows("SELECT column_name FROM information_schema.columns WHERE table_name = 't'")
    return sorted(name for (name,) in found)


def is_level(server: Server, columns: list[str]) -> bool:
    """Whether view and table can be read together, and are of one moment."""
    try:
        of_view, of_table = server.rows(f"SELECT n, s FROM sums UNION ALL {SUMS}")
        assert of_view == of_table
        added = [name for name in columns if name.startswith("c")]
        if added:
            odd = " OR ".join(f"{name} IS DISTINCT FROM {name[1:]}" for name in added)
            assert server.rows(f"SELECT count(*) FROM t WHERE {odd}") == [(0,)], "a default that was made up"
        return True
    except psycopg.Error:
        return False
