"""A database whose tasks run on a standalone Spark cluster, in processes that share nothing but the state's store."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from spark_cluster import HOST, QUICK_SPARK, Cluster, apart, served, spark_cluster

from object_server import S3Server
from support import WAIT_S, eventually

_READY = re.compile(r"accepting connections on [^ ]+:(\d+) ")
QUICK = {"HEADRACE_BARRIER_INTERVAL_MS": "200", "HEADRACE_PARALLELISM": "3", "HEADRACE_COMPACTION_SPARK_MB": "0"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> Iterator[Cluster]:
    """Two workers, which know the credentials of the S3 server."""
    with spark_cluster(tmp_path_factory.mktemp("spark") / "cluster") as made:
        yield made


def ready(server: Any, log: Path) -> int:
    eventually(lambda: _READY.search(log.read_text()) or server.poll() is not None, "the server to come up", 2 * WAIT_S)
    found = _READY.search(log.read_text())
    assert found is not None, log.read_text()[-4000:]
    return int(found[1])


def connected(port: int) -> psycopg.Connection[Any]:
    return psycopg.connect(host="127.0.0.1", port=port, user="root", dbname="dev", autocommit=True)


@pytest.mark.timeout(900)
def test_views_on_a_cluster_lose_nothing(cluster: Cluster, s3: S3Server, tmp_path: Path) -> None:
    """Tasks of views, merges and queries run on two workers, one of which dies; nothing of it is on a local disk."""
    root = s3.root(tmp_path / "cache")
    settings = {
        **QUICK, "HEADRACE_MASTER": cluster.master, "HEADRACE_STATE_URL": root.url,
        "HEADRACE_STATE_OPTIONS": json.dumps(dict(root.options)), "HEADRACE_CACHE_DIR": str(tmp_path / "cache"),
        "HEADRACE_COMPACTION_TRIGGER_RUNS": "2", "HEADRACE_COMPACTION_INTERVAL_MS": "200",
    }  # fmt: skip
    with served(tmp_path, settings, tmp_path) as (server, log), connected(ready(server, log)) as db:
        db.execute("CREATE TABLE t (k int, v int)")
        db.execute("CREATE TABLE names (k int, name text)")
        db.execute("CREATE MATERIALIZED VIEW m AS SELECT name, count(*) AS n, sum(v) AS s "
                   "FROM t JOIN names ON t.k = names.k GROUP BY name")  # fmt: skip
        db.execute("INSERT INTO names VALUES (0, 'a'), (1, 'b'), (2, 'c')")
        for n in range(6):
            if n == 4:
                cluster.workers[1].send_signal(signal.SIGKILL)
            db.execute("INSERT INTO t VALUES " + ", ".join(f"({i % 3}, {i})" for i in range(n * 100, n * 100 + 100)))
            db.execute("FLUSH")
        expected = [(name, 200, sum(range(k, 600, 3))) for k, name in enumerate("abc")]
        assert sorted(db.execute("SELECT * FROM m").fetchall()) == expected
        assert sorted(db.execute("SELECT k, count(*) FROM t GROUP BY k").fetchall()) == [(0, 200), (1, 200), (2, 200)]
        metrics = dict(db.execute("SELECT name, value FROM headrace_catalog.metrics").fetchall())
        assert metrics["worker_io_bytes_written"] > 0
        server.terminate()
        server.wait(WAIT_S)
    assert not (tmp_path / "db" / "state").exists()
    assert not list(cluster.folder.rglob("*.run")), "a worker has written to its own disk"
    assert not list((tmp_path / "db").rglob("*.rows"))


@pytest.mark.timeout(600)
def test_state_that_each_host_has_for_itself_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    """The working directory of each process stands for a directory that hosts do not share."""
    (tmp_path / "here").mkdir()
    settings = {**QUICK, "HEADRACE_MASTER": cluster.master, "HEADRACE_STATE_URL": "/proc/self/cwd/state"}
    with served(tmp_path, settings, tmp_path / "here") as (server, log):
        assert server.wait(2 * WAIT_S) != 0
        said = log.read_text()
    assert "does not use the same store for the state as the server, /proc/self/cwd/state" in said, said[-3000:]
    assert not list(cluster.folder.rglob("*.run"))


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_directory_that_all_share_will_do(cluster: Cluster, tmp_path: Path) -> None:
    """Also where its name is relative: the tasks have other working directories than the server."""
    settings = {
        **QUICK,
        "HEADRACE_MASTER": cluster.master,
        "HEADRACE_STATE_URL": "shared",
        "HEADRACE_DRIVER_HOST": HOST,
    }
    with served(tmp_path, settings, tmp_path) as (server, log), connected(ready(server, log)) as db:
        db.execute("CREATE TABLE t (k int)")
        db.execute("CREATE MATERIALIZED VIEW m AS SELECT k % 2 AS p, count(*) AS n FROM t GROUP BY 1")
        db.execute("INSERT INTO t VALUES (1), (2), (3)")
        db.execute("FLUSH")
        assert sorted(db.execute("SELECT * FROM m").fetchall()) == [(0, 1), (1, 2)]
    assert list((tmp_path / "shared").rglob("*.run"))


def _may_mount() -> bool:
    with suppress(OSError):
        return subprocess.run([*apart(Path("/mnt")), "true"], capture_output=True, check=False).returncode == 0
    return False


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.skipif(not _may_mount(), reason="may not mount")
def test_an_executor_that_comes_later_with_another_disk_counts_for_nothing(tmp_path: Path) -> None:
    """The view stands still as long as tasks fail there; nothing is lost, and nothing that was written there counts."""
    settings = {
        **QUICK, "HEADRACE_STATE_URL": str(tmp_path / "shared"),
        "HEADRACE_GROUP_RETRY_INITIAL_MS": "50", "HEADRACE_GROUP_RETRY_MAX_MS": "100",
        "HEADRACE_SPARK_CONF": json.dumps({**QUICK_SPARK, "spark.task.maxFailures": "1"}),
    }  # fmt: skip
    with spark_cluster(tmp_path / "cluster", workers=0) as cluster:
        cluster.add_worker(cores=1)  # so that a view's tasks run on the other one as soon as it is there
        settings["HEADRACE_MASTER"] = cluster.master
        with served(tmp_path, settings, tmp_path) as (server, log), connected(ready(server, log)) as db:
            db.execute("CREATE TABLE t (k int)")
            db.execute("CREATE MATERIALIZED VIEW m AS SELECT k % 3 AS p, count(*) AS n FROM t GROUP BY 1")
            db.execute("INSERT INTO t VALUES (0), (1), (2)")
            db.execute("FLUSH")
            cluster.add_worker(hidden=tmp_path / "shared")
            count = 1

            def refused() -> bool:
                nonlocal count
                db.execute("INSERT INTO t VALUES (0), (1), (2)")
                count += 1
                return "does not see the server" in str(db.execute("SHOW JOBS", prepare=False).fetchall())

            eventually(refused, "a task that runs on the other worker")
            cluster.workers[1].kill()
            eventually(lambda: _flushed(db), "the view to go on without it")
            assert sorted(db.execute("SELECT * FROM m").fetchall()) == [(p, count) for p in range(3)]


def _flushed(db: psycopg.Connection[Any]) -> bool:
    try:
        db.execute("FLUSH")
    except psycopg.Error:
        return False
    return True
