"""A server with sinks into tables is killed around the commit of their epochs: each change is in the tables once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from server import Server
from support import WAIT_S, eventually

POINTS = (
    "table.commit.before", "table.commit.after", "commit.after", "commit.before", "catalog.commit.before",
    "catalog.commit.after", "commit.acked",
)  # fmt: skip
SOON = ("table.commit.after",)
"""Where what is written is there and is not noted yet; the others come with the soaks."""


class Scene:
    """Two tables, and sinks of what is computed of them into a table by key and into one that only grows."""

    def __init__(self, folder: Path) -> None:
        self.server = Server(folder)
        self.sent = 0

    def create(self) -> None:
        self.server.start()
        self.server.execute(
            "CREATE TABLE kept (id int PRIMARY KEY, v int)",
            "CREATE TABLE ins (n int) APPEND ONLY",
            "CREATE TABLE sums (k int PRIMARY KEY, s bigint)",
            "CREATE TABLE log (n int) APPEND ONLY",
            "CREATE SINK sums_out INTO sums AS SELECT v % 5, sum(v) FROM kept GROUP BY v % 5",
            "CREATE SINK log_out INTO log FROM ins",
            "CREATE MATERIALIZED VIEW totals AS SELECT count(*) AS n, sum(s) AS s FROM sums",
        )
        self.server.stop()

    def change(self) -> bool:
        """One change of each table; False if the server has died."""
        self.sent += 1
        try:
            with self.server.connect() as connection:
                n = self.sent
                connection.execute(f"INSERT INTO kept VALUES ({1000 + n}, {n}), ({n % 7}, {n})")
                connection.execute(f"DELETE FROM kept WHERE id = {n % 11}")
                connection.execute(f"INSERT INTO ins VALUES ({n})")
        except psycopg.OperationalError:
            return False
        return True

    def check(self) -> None:
        """With a server that works: the tables are what was computed, no row twice."""
        rows = dict(self.server.rows("SELECT id, v FROM kept"))
        sums = {k: sum(v for v in rows.values() if v % 5 == k) for k in {v % 5 for v in rows.values()}}
        numbers = sorted(self.server.rows("SELECT n FROM ins"))
        eventually(lambda: sorted(self.server.rows("SELECT k, s FROM sums")) == sorted(sums.items()), "the sums")
        eventually(lambda: sorted(self.server.rows("SELECT n FROM log")) == numbers, "the log")
        total = [(len(sums), sum(sums.values()) if sums else None)]
        eventually(lambda: self.server.rows("SELECT n, s FROM totals") == total, "the view over a table")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = Scene(tmp_path_factory.mktemp("into"))
    try:
        made.create()
        yield made
    finally:
        made.server.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("point", [pytest.param(p, marks=[] if p in SOON else pytest.mark.soak) for p in POINTS])
def test_killed_at(scene: Scene, point: str) -> None:
    scene.server.start(f"{point}=kill@6", wait=False)
    eventually(lambda: scene.server.ready() or scene.server.exit_code() is not None)
    eventually(lambda: scene.server.exit_code() is not None or not scene.change(), "the server to be killed")
    scene.server.wait_exit(WAIT_S)
    scene.server.start()
    scene.check()
    scene.server.stop()
