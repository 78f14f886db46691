"""A server that follows two tables through one slot and is killed: no transaction is half seen or lost."""

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
VIEW = "SELECT count(*) AS n, sum(l.v) AS s FROM lefts l JOIN rights r ON l.id = r.id WHERE l.v <> r.v"
"""A transaction changes both sides of a row in the same way: so it has nothing, unless one is half seen."""


def write(there: Postgres, stop: threading.Event) -> None:
    chance = random.Random(7)
    with there.connect(autocommit=False) as connection:
        while not stop.is_set():
            i, v = chance.randrange(ROWS), chance.randrange(1000)
            for table in chance.sample(("lefts", "rights"), 2):
                connection.execute(f"UPDATE {table} SET v = {v} WHERE id = {i}")
            connection.commit()
            time.sleep(0.01)  # so that a new table catches up on a busy machine, too: some transactions are one epoch


def look(server: Server) -> None:
    assert server.rows("SELECT n FROM apart") == [(0,)], "half of a transaction"
    assert server.rows(VIEW) == [(0, None)], "half of a transaction"


@pytest.mark.timeout(900)
def test_nothing_is_half_seen_or_lost_by_kills(tmp_path: Path) -> None:
    try:
        with postgres_server({"wal_level": "logical", "fsync": "off"}) as postgres:
            run(Server(tmp_path, settings={"HEADRACE_BARRIER_INTERVAL_MS": "250"}), postgres)
    except NoPostgres as error:
        pytest.skip(str(error))


def run(server: Server, there: Postgres) -> None:
    for table in ("lefts", "rights"):
        there.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v int)",
                      f"INSERT INTO {table} SELECT i, 0 FROM generate_series(0, {ROWS - 1}) AS g(i)")  # fmt: skip
    stop = threading.Event()
    writer = threading.Thread(target=write, args=(there, stop), daemon=True)
    try:
        server.start()
        server.execute(
            f"CREATE SOURCE pg WITH (connector = 'postgres-cdc', hostname = '{HOST}', port = {there.port}, "
            f"username = 'root', database.name = '{there.dbname}')",
            "CREATE TABLE lefts (*) FROM pg TABLE 'public.lefts'",
        )
        writer.start()
        server.execute("SET background_ddl = on; CREATE TABLE rights (*) FROM pg TABLE 'public.rights'")
        server.kill()  # while the second table is being read, or waits for that
        server.start()
        eventually(lambda: readable(server))
        server.execute(f"CREATE MATERIALIZED VIEW apart AS {VIEW}")
        until_s = time.monotonic() + 1.5
        while time.monotonic() < until_s:
            look(server)
        server.kill()
        server.start()
        look(server)
        stop.set()
        writer.join()
        for table in ("lefts", "rights"):
            with there.connect() as connection:
                rows = sorted(connection.execute(f"SELECT id, v FROM {table}").fetchall())
            eventually(lambda t=table, r=rows: sorted(server.rows(f"SELECT id, v FROM {t}")) == r, table)
        look(server)
        server.execute("DROP SOURCE pg CASCADE")
        with there.connect() as connection:
            assert connection.execute("SELECT FROM pg_replication_slots").fetchall() == []
    finally:
        stop.set()
        server.close()


def readable(server: Server) -> bool:
    try:
        return bool(server.rows("SELECT count(*) FROM rights")[0][0])
    except psycopg.Error:
        return False
