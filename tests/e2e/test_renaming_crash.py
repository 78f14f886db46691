"""A server that is killed while a relation gets another name: all says the new one, or all the old one."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from server import Server
from support import eventually

SETUP = (
    "CREATE TABLE old (k int PRIMARY KEY, v int)",
    "CREATE INDEX by_v ON old (v)",
    "CREATE VIEW plain AS SELECT old.k FROM old",
    "CREATE MATERIALIZED VIEW sums AS SELECT count(*) AS n, sum(old.v) AS s FROM old",
    "INSERT INTO old VALUES (1, 10)",
)

POINTS = (("rename.before", "old", "new"), ("rename.after", "new", "old"))
"""Where it is killed, one life after another; the name that is there then, and the one that is not."""


@pytest.mark.timeout(600)
def test_a_rename_over_kills(tmp_path: Path) -> None:
    server = Server(tmp_path, settings={"HEADRACE_BARRIER_INTERVAL_MS": "250"})
    try:
        server.start(f"{POINTS[0][0]}=kill@1")
        server.execute(*SETUP)
        for keys, (point, there, gone) in enumerate(POINTS, start=1):
            with pytest.raises(psycopg.OperationalError, match=r"server closed the connection|consuming input"):
                server.execute("ALTER TABLE old RENAME TO new")
            assert server.wait_exit() == -9
            server.start(f"{POINTS[keys][0]}=kill@1" if keys < len(POINTS) else "")
            with pytest.raises(psycopg.errors.UndefinedTable):
                server.rows(f"SELECT * FROM {gone}")
            shown = server.rows("SELECT definition FROM pg_views WHERE viewname = 'plain'")[0][0]
            assert shown.partition("FROM ")[2].rstrip("; ") == ("old" if there == "old" else "new AS old")
            server.execute(f"INSERT INTO {there} VALUES ({keys + 1}, 10)")
            wanted = (keys + 1, 10 * (keys + 1))
            eventually(lambda w=wanted: server.rows("SELECT n, s FROM sums") == [w], point)
            assert server.rows(f"SELECT count(*) FROM {there} WHERE v = 10") == [(keys + 1,)]
            assert server.rows("SELECT count(*) FROM plain") == [(keys + 1,)]
    finally:
        server.close()
