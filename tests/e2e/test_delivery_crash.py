"""A server that takes in and delivers is killed at each named point, and so are its workers.

Nothing is lost, doubled or torn: neither what it has of others, nor what others have of it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pyarrow.parquet
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from kafka import Kafka
from postgres import HOST, NoPostgres, Postgres, postgres_server
from server import Server
from support import WAIT_S, eventually

OF_SERVER = ("sink.bind.after", "commit.before", "barrier.bind.after", "commit.acked", "commit.after")
OF_WORKERS = ("sink.commit.after", "sink.commit.before")
SOON = ("sink.bind.after", "sink.commit.after")
"""The points of a delivery itself; the others come with the soaks."""
ROUNDS = 5


class Scene:
    """One database with a table, a source and a log, delivered to all that there is."""

    def __init__(self, folder: Path, postgres: Postgres, kafka: Kafka) -> None:
        self.server, self.files, self.lake = Server(folder), folder / "out", folder / "lake"
        self.lake.mkdir()
        self.target, self.kafka = postgres.new_database("crash"), kafka
        self.sent = 0

    def create(self) -> None:
        self.target.execute("CREATE TABLE kept (id int PRIMARY KEY, v int)", "CREATE TABLE log (n int)",
                            "CREATE TABLE sums (k int PRIMARY KEY, s bigint)")  # fmt: skip
        self.target.execute("CREATE TABLE moves (id int PRIMARY KEY, v int)",
                            "INSERT INTO moves SELECT i, 0 FROM generate_series(0, 9) AS g(i)")  # fmt: skip
        self.kafka.topic("crash-in", 2)
        self.kafka.topic("crash-out")
        into = (f"connector = 'postgres', host = '{HOST}', port = {self.target.port}, user = 'root', "
                f"database = '{self.target.dbname}'")  # fmt: skip
        cdc = (f"connector = 'postgres-cdc', hostname = '{HOST}', port = {self.target.port}, username = 'root', "
               f"database.name = '{self.target.dbname}', table.name = 'moves'")  # fmt: skip
        topic = f"connector = 'kafka', properties.bootstrap.server = '{self.kafka.servers}'"
        self.server.start()
        self.server.execute(
            "CREATE TABLE kept (id int PRIMARY KEY, v int)",
            f"CREATE TABLE moves (id int PRIMARY KEY, v int) WITH ({cdc})",
            "CREATE MATERIALIZED VIEW balance AS SELECT sum(v) AS s FROM moves",
            f"CREATE SOURCE ins (n int) WITH ({topic}, topic = 'crash-in') FORMAT PLAIN ENCODE JSON",
            f"CREATE SINK kept_out FROM kept WITH ({into}, table = 'kept', primary_key = 'id')",
            "CREATE SINK sums_out AS SELECT v % 5 AS k, sum(v) AS s FROM kept GROUP BY v % 5 "
            f"WITH ({into}, table = 'sums', primary_key = 'k')",
            f"CREATE SINK log_out FROM ins WITH ({into}, table = 'log', type = 'append-only')",
            f"CREATE SINK files_out FROM ins WITH (connector = 'files', path = '{self.files}', type = 'append-only')",
            f"CREATE SINK lake_out FROM kept WITH (connector = 'iceberg', catalog.type = 'sql', catalog.uri = "
            f"'sqlite:///{self.lake}/catalog.db', warehouse.path = 'file://{self.lake}', database.name = 'n', "
            "table.name = 'kept', create_table_if_not_exists = true, primary_key = 'id')",
            f"CREATE SINK delta_out FROM ins WITH (connector = 'deltalake', location = '{self.lake}/delta', "
            "create_table_if_not_exists = true, type = 'append-only')",
            f"CREATE SINK topic_out FROM ins WITH ({topic}, topic = 'crash-out') FORMAT PLAIN ENCODE JSON",
        )
        self.server.stop()

    def change(self) -> bool:
        """One change of each kind; False if the server has died."""
        self.kafka.send("crash-in", *(f'{{"n": {self.sent + i}}}' for i in range(3)))
        self.sent += 3
        with self.target.connect(autocommit=False) as connection:
            for which, by in (("%s", self.sent), ("(%s + 5) %% 10", -self.sent)):
                connection.execute(f"UPDATE moves SET v = v + {by} WHERE id = {which}", [self.sent % 10])
            connection.commit()
        new, old, gone = 1000 + self.sent, self.sent % 7, self.sent % 11
        try:
            with self.server.connect() as connection:
                connection.execute(f"INSERT INTO kept VALUES ({new}, {self.sent}), ({old}, {self.sent})")
                connection.execute(f"DELETE FROM kept WHERE id = {gone}")
        except psycopg.OperationalError:
            return False
        return True

    def check(self) -> None:
        """With a server that works: everything is at all targets, once."""
        moves = dict(self._found("SELECT id, v FROM moves"))

        def followed() -> bool:
            assert self.server.rows("SELECT s FROM balance") == [(0,)], "a transaction is taken in as a whole"
            return dict(self.server.rows("SELECT id, v FROM moves")) == moves

        eventually(followed, "the table that is followed")
        rows = dict(self.server.rows("SELECT id, v FROM kept"))
        sums = {k: sum(v for v in rows.values() if v % 5 == k) for k in {v % 5 for v in rows.values()}}
        numbers = Counter(range(self.sent))
        eventually(lambda: dict(self._found("SELECT * FROM kept")) == rows, "the table")
        eventually(lambda: dict(self._found("SELECT * FROM sums")) == sums, "the sums")
        eventually(lambda: Counter(n for (n,) in self._found("SELECT n FROM log")) == numbers, "the log")
        eventually(lambda: self._in_files() == numbers, "the files")
        eventually(lambda: self._in_delta() == numbers, "the Delta table")
        eventually(lambda: self._in_iceberg() == rows, "the Iceberg table")
        eventually(lambda: self._in_topic() == numbers, "the topic")

    def _found(self, sql: str) -> list[tuple[int, ...]]:
        with self.target.connect() as connection:
            return connection.execute(sql).fetchall()

    def _in_files(self) -> Counter[int]:
        tables = [pyarrow.parquet.read_table(path) for path in self.files.glob("[!.]*.parquet")]
        return Counter(n for table in tables for n in table.column("n").to_pylist())

    def _in_delta(self) -> Counter[int]:
        return Counter(DeltaTable(self.lake / "delta").to_pyarrow_table().column("n").to_pylist())

    def _in_iceberg(self) -> dict[int, int]:
        catalog = load_catalog("default", type="sql", uri=f"sqlite:///{self.lake}/catalog.db")
        found = catalog.load_table("n.kept").scan().to_arrow().to_pylist()
        assert len({row["id"] for row in found}) == len(found)
        return {row["id"]: row["v"] for row in found}

    def _in_topic(self) -> Counter[int]:
        return Counter(json.loads(m.value())["n"] for m in self.kafka.records("crash-out"))


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, kafka: Kafka) -> Iterator[Scene]:
    try:
        with postgres_server({"wal_level": "logical", "fsync": "off"}) as postgres:
            made = Scene(tmp_path_factory.mktemp("crash"), postgres, kafka)
            try:
                made.create()
                yield made
            finally:
                made.server.close()
    except NoPostgres as error:
        pytest.skip(str(error))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "point", [pytest.param(p, marks=[] if p in SOON else pytest.mark.soak) for p in (*OF_WORKERS, *OF_SERVER)]
)
def test_killed_at(scene: Scene, point: str) -> None:
    """FS-23: an epoch that a target has is not delivered again, one that it lacks is."""
    scene.server.start(f"{point}=kill@{6 if point in OF_SERVER else 2}", wait=False)
    eventually(lambda: scene.server.ready() or scene.server.exit_code() is not None)
    for _ in range(ROUNDS if point in OF_WORKERS else 20 * ROUNDS):
        if scene.server.exit_code() is not None or not scene.change():
            break
    if point in OF_SERVER:
        scene.server.wait_exit(WAIT_S)
        scene.server.start()
    scene.check()
    scene.server.stop()
