"""Tasks on other hosts: where they find the server, and that nothing of theirs counts that the server does not see."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headrace
from headrace.common.hosts import address_towards, bind_address
from headrace.config import Settings
from headrace.coordinator.observe.progress import ProgressBook
from headrace.coordinator.observe.progress_server import ProgressServer
from headrace.dataflow import executors
from headrace.dataflow.executors import driver_host, is_remote, prove
from headrace.dataflow.params import EpochParams
from headrace.dataflow.spark import _addresses
from headrace.errors import HeadraceError, OperationalError, StorageError
from headrace.session import instance
from headrace.state.proof import asking_for_proof, put_proof
from headrace.state.stores import LocalStore, StoreRoot
from support import eventually

ELSEWHERE = "driver.headrace.invalid"
"""The name of a service, say, that passes on what it gets to this host."""


def test_where_executors_find_the_driver() -> None:
    loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    assert _addresses(None, None) == _addresses("local[2]", "10.1.2.3") == loopback
    assert _addresses("spark://127.0.0.1:7077", None) == loopback
    here = address_towards("192.0.2.1", 7077)
    if here is not None:
        assert not here.startswith("127.")
        assert _addresses("spark://192.0.2.1:7077,192.0.2.2:7077", None)["spark.driver.host"] == here
    given = {"spark.driver.host": ELSEWHERE, "spark.driver.bindAddress": "0.0.0.0"}
    assert _addresses("spark://127.0.0.1:7077", ELSEWHERE) == _addresses("yarn", ELSEWHERE) == given
    assert _addresses("yarn", None) == {}, "Spark finds it out by itself"


def test_tasks_report_to_where_they_reach_the_server(spark: SparkSession) -> None:
    assert not is_remote(spark) and driver_host(spark) == "127.0.0.1"
    assert bind_address("127.0.0.1") == "127.0.0.1"
    book = ProgressBook(time.monotonic, lambda: 0)
    server = ProgressServer(book, ELSEWHERE)
    server.start()
    try:
        assert book.address.startswith(f"{ELSEWHERE}:")
    finally:
        server.stop()


def test_executors_that_do_not_come_are_not_waited_for(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(context: Any, group: str, root: StoreRoot) -> Any:
        context.setJobGroup(group, "waits", True)
        return context.parallelize([0], 1).map(lambda _: time.sleep(10**6)).collect()

    monkeypatch.setattr(executors, "_answers", never)
    with pytest.raises(OperationalError, match=r"no executor of local\[\d+\] has taken a task within 0 s") as caught:
        prove(spark, StoreRoot(str(tmp_path)), wait_s=0.01)
    assert caught.value.hint is not None and "driver_host" in caught.value.hint


def test_executors_show_that_they_use_the_same_store(spark: SparkSession, tmp_path: Path) -> None:
    root = asking_for_proof(StoreRoot(str(tmp_path / "state")))
    with pytest.raises(StorageError, match="does not use the same store for the state as the server"):
        prove(spark, root)
    put_proof(root)
    prove(spark, root)


def test_what_waits_in_an_executor_lies_in_its_own_folder(spark: SparkSession, tmp_path: Path) -> None:
    """Spark removes it with the executor. The server's folders may not even exist there."""
    root = asking_for_proof(StoreRoot(str(tmp_path / "state")))
    params = EpochParams("1-1-1", 0, 1, True, root, "1/1")
    context = spark.sparkContext
    assert params.on_other_hosts and not replace(params, root=replace(root, proof="")).on_other_hosts
    (there,) = context.parallelize([0], 1).map(lambda _: str(params.spool_root)).collect()
    assert Path(there).is_relative_to(context.getConf().get("spark.local.dir") or tempfile.gettempdir())
    assert "blockmgr-" in there
    (told,) = context.parallelize([0], 1).map(lambda _: str(replace(params, spool="/fast").spool_root)).collect()
    assert told == "/fast"


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's tasks count as if they ran on other hosts."""
    monkeypatch.setattr(instance, "is_remote", lambda spark: True)


def test_what_does_not_arrive_in_the_servers_store_does_not_count(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: None
) -> None:
    settings = Settings(barrier_interval_ms=50, group_retry_initial_ms=50, group_retry_max_ms=100)
    head = LocalStore.head
    with headrace.connect(tmp_path / "db", spark=spark, settings=settings) as db:
        db.sql("CREATE TABLE t (k int)")
        db.sql("CREATE MATERIALIZED VIEW m AS SELECT k % 2 AS p, count(*) AS n FROM t GROUP BY 1")
        db.sql("INSERT INTO t VALUES (1), (2), (3)")
        db.flush()
        assert sorted(db.sql("SELECT * FROM m")) == [(0, 1), (1, 2)]
        assert len(list((tmp_path / "db" / "state" / "proof").iterdir())) == 1
        with monkeypatch.context() as lost:
            # The tasks run in processes of their own: only the server does not see what they write.
            lost.setattr(LocalStore, "head", lambda self, path: None if path.endswith(".run") else head(self, path))
            db.sql("INSERT INTO t VALUES (4)")
            eventually(lambda: "is not in the server's store" in str(list(db.sql("SHOW JOBS"))), "the view to fail")
            assert sorted(db.sql("SELECT * FROM m")) == [(0, 1), (1, 2)], "nothing of it is visible"
        eventually(lambda: _flushed(db), "the view to recover")
        assert sorted(db.sql("SELECT * FROM m")) == [(0, 2), (1, 2)]
    assert not (tmp_path / "db" / "cache" / "spool").exists(), "the server's folders are no executor's"
    assert not list((tmp_path / "db" / "state" / "proof").iterdir()), "it went with the server"


def _flushed(db: headrace.Database) -> bool:
    try:
        db.flush()
    except HeadraceError:
        return False
    return True
