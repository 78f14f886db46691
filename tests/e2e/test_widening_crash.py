"""A server that is killed while a table of Kafka gets a column: it has it, with all values, or is what it was."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import psycopg
import pytest

from kafka import Kafka, NoKafka, kafka_server
from server import Server
from support import eventually

KEYS = 20
POINTS = ("columns.wider.after", "columns.commit.after")
"""Where it is killed, one life after another."""
ADD = "ALTER TABLE t ADD COLUMN c int"


class Writer:
    """Puts rows of (id, v, c) with c = 2 v into a topic, and knows the newest of each key."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka, self.rows = kafka, dict[int, int]()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        producer = self.kafka.producer()
        for v in itertools.count():
            id = v * 7 % KEYS
            producer.produce("t", f'{{"id": {id}, "v": {v}, "c": {2 * v}}}', f'{{"id": {id}}}')
            assert producer.flush(60) == 0
            self.rows[id] = v
            if self.stop.wait(0.05):
                return

    def end(self) -> None:
        self.stop.set()
        self.thread.join()


@pytest.mark.timeout(1500)
def test_a_table_gets_a_column_over_kills(tmp_path: Path) -> None:
    try:
        with kafka_server() as kafka:
            run(Server(tmp_path, settings={"HEADRACE_BARRIER_INTERVAL_MS": "250"}), kafka)
    except NoKafka as error:
        pytest.skip(str(error))


def run(server: Server, kafka: Kafka) -> None:
    kafka.topic("t")
    writer = Writer(kafka)
    try:
        server.start(f"{POINTS[0]}=kill@1")
        server.execute(
            f"CREATE TABLE t (id int PRIMARY KEY, v int) WITH (connector = 'kafka', topic = 't', "
            f"properties.bootstrap.server = '{kafka.servers}') FORMAT UPSERT ENCODE JSON",
            "CREATE MATERIALIZED VIEW sums AS SELECT count(*) AS n, sum(v) AS s FROM t",
        )
        writer.thread.start()
        for point, following in zip(POINTS, (*POINTS[1:], None), strict=True):
            with pytest.raises(psycopg.OperationalError, match=r"server closed the connection|consuming input"):
                # Another type at first: nothing of what came to nothing may be left of it.
                server.execute(ADD if point.startswith("columns.commit") else ADD.replace("int", "text"))
            assert server.wait_exit() == -9
            server.start(f"{following}=kill@1" if following else "")
            there = "columns.commit" in point
            assert (("c",) in columns_of(server, "t")) == there
            eventually(lambda t=there: is_level(server, t), point)
        writer.end()
        wanted = [(id, v, 2 * v) for id, v in sorted(writer.rows.items())]
        eventually(lambda: sorted(server.rows("SELECT id, v, c FROM t")) == wanted)
        eventually(lambda: server.rows("SELECT n, s FROM sums") == [(KEYS, sum(writer.rows.values()))])
        names = "SELECT name FROM headrace_catalog.jobs ORDER BY name"
        assert len(server.rows(names)) == 3, "the table, the view, and the table that it reads"
        server.execute("DROP MATERIALIZED VIEW sums")
        assert server.rows(names) == [("t",)]
        server.execute("DROP TABLE t")
    finally:
        writer.end()
        server.close()


def columns_of(server: Server, table: str) -> list[tuple[str]]:
    return server.rows(f"SELECT column_name FROM information_schema.columns WHERE table_name = '{table}'")


def is_level(server: Server, there: bool) -> bool:
    """Whether view and table can be read together, and are of one moment."""
    try:
        of_view, of_table = server.rows("SELECT n, s FROM sums UNION ALL SELECT count(*), sum(v) FROM t")
        assert of_view == of_table
        if there:
            assert server.rows("SELECT count(*) FROM t WHERE c IS DISTINCT FROM 2 * v") == [(0,)]
        return True
    except psycopg.Error:
        return False
