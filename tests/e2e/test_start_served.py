"""A real server while its Spark starts: stopped, killed, and with one that does not start. No test waits for Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from server import Server
from support import NEEDS_SPARK, eventually


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    found = Server(tmp_path, settings={"HEADRACE_SPARK_START": "eager"})
    yield found
    found.close()


def _group(process_id: int) -> dict[str, int]:
    """What is left of the processes that a server has started, and how nice they are."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, rest = stat.read_text().split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue  # it has just ended
        state, _, group, *more = rest.split()
        if int(group) == process_id and state != "Z":
            found[name] = int(more[13])
    return found


def test_stopped_and_killed_while_spark_starts(server: Server) -> None:
    """What was written before is there, and Java goes with the server."""
    server.start()
    server.execute("CREATE TABLE t (k int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a')")
    group = server.process_id
    server.terminate()
    assert server._process is not None and server._process.wait(120) == 0
    eventually(lambda: not _group(group), "Java to end with the server")
    server.start()
    server.execute("INSERT INTO t VALUES (2, 'b')")
    own = os.nice(0)
    eventually(lambda: _group(server.process_id).get("java") == own + 1, "Java to give way")
    server.kill()
    server.start()
    assert server.rows("SELECT k, v FROM t ORDER BY k") == [(1, "a"), (2, "b")]
    assert server.rows("SELECT v FROM t WHERE k = 2") == [("b",)]
    server.kill()


def test_a_spark_that_does_not_start_is_told(tmp_path: Path) -> None:
    """By the log, and to whoever needs it; all else is served, and the server stops as it should."""
    server = Server(tmp_path, settings={"HEADRACE_SPARK_CONF": '{"spark.driver.extraJavaOptions": "-Xmx1g"}'})
    try:
        server.start()
        server.execute("CREATE TABLE t (k int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a')")
        server.execute("FLUSH")  # there is no view that would have to go on
        for sql in (NEEDS_SPARK, "CREATE MATERIALIZED VIEW m AS SELECT v FROM t"):
            with pytest.raises(psycopg.errors.OperationalError, match="Spark did not start"):
                server.execute(sql)
        assert server.rows("SELECT v FROM t WHERE k = 1") == [("a",)]
        assert "Spark cannot be started" in server.log_text() and "JAVA_GATEWAY_EXITED" in server.log_text()
        assert server.stop() == 0
    finally:
        server.close()


def test_spark_starts_once_it_is_needed(tmp_path: Path) -> None:
    """Rows are written and read by a server without Java; a query, or a view that is there at a start, brings it."""
    server = Server(tmp_path, settings={"HEADRACE_SPARK_START": "on_demand"})
    try:
        server.start()
        server.execute("CREATE TABLE t (k int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a'), (2, 'a')", "FLUSH")
        assert server.rows("SELECT v FROM t WHERE k = 1") == [("a",)]
        assert "java" not in _group(server.process_id)
        assert server.rows(NEEDS_SPARK) == [("A", 2)]
        assert "java" in _group(server.process_id)
        server.execute("CREATE MATERIALIZED VIEW m AS SELECT v, count(*) AS n FROM t GROUP BY v")
        server.kill()
        server.start()
        eventually(lambda: "java" in _group(server.process_id), "Java to start for the view")
        server.execute("INSERT INTO t VALUES (3, 'b')", "FLUSH")
        assert server.rows("SELECT v, n FROM m ORDER BY v") == [("a", 2), ("b", 1)]
    finally:
        server.close()
