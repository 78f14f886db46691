"""The coordinator end to end on Spark: tables, a source, views on views, updates, a restart."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from spark_database import ACCOUNTS, EVENTS, LOG, Database

from headrace.dataflow.runner import EpochRunner
from headrace.errors import JobFailed
from support import WAIT_S


def test_views_follow_tables_and_survive_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    """PC-16, PC-21, PC-38, CK-16, CK-17: after FLUSH every view equals its query, also after a restart."""
    db = Database(spark, tmp_path)
    try:
        accounts = db.table("accounts", ACCOUNTS, ("id",))
        log = db.table("log", LOG)
        db.write(accounts, [(1, "ann", 100), (2, "bob", 50), (3, "cy", 7)])
        db.write(log, [("a", 1), ("a", 1), ("b", 2)])
        events = db.source("events", EVENTS, {"connector": "datagen", "number_of_rows": "1000",
            "rows_per_second": "unlimited", "fields.k.min": "0", "fields.k.max": "9"})  # fmt: skip
        totals = db.view("totals", f"SELECT owner, sum(amount) AS total FROM r{accounts} GROUP BY owner")
        words = db.view("words", f"SELECT word, count(*) AS n, sum(n) AS s FROM r{log} GROUP BY word")
        joined = db.view("joined", f"SELECT owner, total, n FROM r{totals} JOIN r{words} ON length(owner) = n + 1")
        counts = db.view("counts", f"SELECT count(*) AS n FROM r{events}")
        db.write(accounts, [(1, "ann", 90), (4, "bob", 60)])
        db.write(accounts, [], [(3, "cy", 7)])
        db.write(log, [("b", 5)], [("a", 1)])
        db.c.flush(WAIT_S)
        assert db.read(accounts, totals, words, joined, counts) == [
            Counter({(1, "ann", 90): 1, (2, "bob", 50): 1, (4, "bob", 60): 1}),
            Counter({("ann", 90): 1, ("bob", 110): 1}),
            Counter({("a", 1, 1): 1, ("b", 2, 7): 1}),
            Counter({("ann", 90, 2): 1, ("bob", 110, 2): 1}),
            Counter({(1000,): 1}),
        ]
        before = db.c.current_epoch()
        assert {j.status for j in db.c.jobs()} == {"running"}
    finally:
        db.close()
    db = Database(spark, tmp_path)
    try:
        assert db.c.current_epoch() >= before
        assert db.read(totals) == [Counter({("ann", 90): 1, ("bob", 110): 1})]
        db.write(accounts, [(5, "dee", 1)])
        db.write(log, [("c", 3), ("c", 3)])
        db.c.flush(WAIT_S)
        assert db.read(totals, words, counts) == [
            Counter({("ann", 90): 1, ("bob", 110): 1, ("dee", 1): 1}),
            Counter({("a", 1, 1): 1, ("b", 2, 7): 1, ("c", 2, 6): 1}),
            Counter({(1000,): 1}),
        ]
        assert db.read(joined) == [
            Counter({(o, t, 2): n for o, t, n in [("ann", 90, 2), ("bob", 110, 2), ("dee", 1, 2)]})
        ]
    finally:
        db.close()


def test_views_of_a_group_share_a_job(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I3, I4: a group of views, one of them on another; one that fails is told from those that share its job."""
    jobs: list[int] = []
    run_with = EpochRunner.run_with

    def counted(self: EpochRunner, params: Any, parallelism: int, others: Any) -> Any:
        jobs.append(1 + len(others))
        return run_with(self, params, parallelism, others)

    monkeypatch.setattr(EpochRunner, "run_with", counted)
    db = Database(spark, tmp_path, default_checkpoint_group="shared", group_retry_initial_ms=1)
    try:
        log = db.table("log", LOG)
        db.write(log, [("a", 1)])
        plain = db.view("plain", f"SELECT word, 10 div n AS q FROM r{log}")
        words = db.view("words", f"SELECT word, count(*) AS c FROM r{log} GROUP BY word")
        sums = db.view("sums", f"SELECT sum(n) AS s FROM r{log}")
        top = db.view("top", f"SELECT c, count(*) AS n FROM r{words} GROUP BY c")
        db.c.flush(WAIT_S)
        jobs.clear()
        db.write(log, [("a", 2), ("b", 5)])
        db.c.flush(WAIT_S)
        assert jobs == [3, 1]
        before = [Counter({("a", 10): 1, ("a", 5): 1, ("b", 2): 1}), Counter({("a", 2): 1, ("b", 1): 1}),
                  Counter({(8,): 1}), Counter({(2, 1): 1, (1, 1): 1})]  # fmt: skip
        assert db.read(plain, words, sums, top) == before
        jobs.clear()
        db.write(log, [("b", 0)])
        with pytest.raises(JobFailed, match='"plain" is failing') as caught:
            db.c.flush(WAIT_S)
        assert caught.value.sqlstate == "22012" and jobs[:2] == [3, 1]
        assert {j.name for j in db.c.jobs() if j.error is not None} == {"plain"}
        db.write(log, [], [("b", 0)])
        db.c.flush(WAIT_S)
        assert db.read(plain, words, sums, top) == before
    finally:
        db.close()


def test_a_poison_row_stops_its_view_only(spark: SparkSession, tmp_path: Path) -> None:
    """PC-41, PC-42: the failing view says why; the other one goes on; taking the row back heals it."""
    db = Database(spark, tmp_path)
    try:
        log = db.table("log", LOG)
        good = db.view("good", f"SELECT count(*) AS c FROM r{log}")
        bad = db.view("bad", f"SELECT word, 10 div n AS q FROM r{log}")
        db.write(log, [("a", 2), ("b", 0)])
        with pytest.raises(JobFailed, match='"bad" is failing') as caught:
            db.c.flush(WAIT_S)
        assert caught.value.sqlstate == "22012"
        assert db.read(good) == [Counter({(2,): 1})]
        with db.c.snapshot([bad]) as snapshot:
            assert "division" in snapshot.notices[0].lower()
        db.c.drop([bad])
        db.write(log, [("c", 3)], [("b", 0)])
        db.c.flush(WAIT_S)
        assert db.read(good) == [Counter({(2,): 1})]
    finally:
        db.close()


def test_a_group_takes_large_epochs_in_by_steps(spark: SparkSession, tmp_path: Path) -> None:
    """PC-2, PC-21, PC-40, CK-1, CK-9, LS-12: real operators in bounded steps, within one group, equal the query."""
    db = Database(spark, tmp_path)
    try:
        db.c.configure(db.settings.replaced(backfill_slice_rows=60, default_checkpoint_group="shared"))
        events = db.table("events", EVENTS)
        data = [(n % 7, n) for n in range(100)]
        db.write(events, data)
        sums = db.view("sums", f"SELECT k, sum(v) AS s FROM r{events} GROUP BY k")
        above = db.view("above", f"SELECT k, v FROM r{events} WHERE v > (SELECT avg(v) FROM r{events})")
        share = db.view("share", f"SELECT e.v, s.s FROM r{events} e LEFT JOIN r{sums} s ON e.k = s.k AND s.s > 700")
        ranked = f"SELECT k, v, row_number() OVER (PARTITION BY k ORDER BY v DESC) AS n FROM r{events}"
        best = db.view("best", f"SELECT k, v FROM ({ranked}) WHERE n = 1")
        total = db.view("total", f"SELECT count(*) AS n FROM r{share}")
        views = (sums, above, share, best, total)
        for view in views:
            db.c.alter_job(view, options={"max_rows_per_epoch": "80"})
        expect(db, data, views)
        data = [*data[30:], *((n % 5, n) for n in range(200, 320))]
        db.write(events, data[70:], [(n % 7, n) for n in range(30)])
        db.c.flush(WAIT_S)
        expect(db, data, views)
        state = db.catalog.state
        assert len({state.jobs[v].committed_epoch for v in views}) == 1 and not state.positions
        assert not any("failed" in e.kind for e in state.newest_events(100))
        stored = [r.ref for r in state.runs_of(db.c._core.live.graph.jobs[sums].tables["view/rows"])]
        assert len([r for r in stored if r.epoch_hi == state.jobs[sums].committed_epoch]) > 1, "taken in by steps"
    finally:
        db.close()


@pytest.mark.soak
def test_an_amplifying_join_loses_its_workers(spark: SparkSession, tmp_path: Path) -> None:
    """LS-23: 20,000 x 10 rows with all workers killed in the middle: the same in small steps as at one go."""
    db = Database(spark, tmp_path)
    try:
        left, right = db.table("l", EVENTS), db.table("r", EVENTS)
        db.write(right, [(n % 100, n) for n in range(1000)])
        query = f"SELECT l.k, l.v AS a, r.v AS b FROM r{left} l JOIN r{right} r ON l.k = r.k"
        pairs = [db.view(name, query) for name in ("whole", "stepped")]
        sums = [db.view(f"s{i}", f"SELECT k, count(*) AS n, sum(a * b) AS s FROM r{i} GROUP BY k") for i in pairs]
        for view in (pairs[1], sums[1]):
            db.c.alter_job(view, options={"max_rows_per_epoch": "5000"})
        data = [(n % 100, n) for n in range(20_000)]
        written, killed = db.write(left, data).epoch, 0
        core = db.c._core
        jobs = [core.live.graph.jobs[v] for v in pairs]
        while any(j.committed < written for j in jobs):
            if killed < 3 and any(j.activity.attempt for j in jobs):
                killed += kill_workers(spark) > 0
            time.sleep(0.3)
        db.c.flush(WAIT_S)
        assert killed and any(e.kind == "job_failed" for e in db.catalog.state.newest_events(100))
        values: dict[int, list[int]] = {}
        for k, v in data:
            values.setdefault(k, []).append(v)
        others = {k: sum(range(k, 1000, 100)) for k in range(100)}
        expected = Counter((k, 10 * len(found), sum(found) * others[k]) for k, found in values.items())
        assert db.read(*sums) == [expected, expected]
        assert sum(db.read(pairs[0])[0].values()) == 200_000
    finally:
        db.close()


def kill_workers(spark: SparkSession) -> int:
    """End the Python workers of this Spark, as a host that runs out of memory would; returns how many there were."""
    java = spark._jvm.java.lang.ProcessHandle.current().pid()
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    children: dict[int, list[int]] = {}
    for line in listed.splitlines():
        pid, parent = map(int, line.split())
        children.setdefault(parent, []).append(pid)
    workers = [worker for daemon in children.get(java, []) for worker in children.get(daemon, [])]
    for worker in workers:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    return len(workers)


def expect(db: Database, data: list[tuple[int, int]], views: tuple[int, ...]) -> None:
    keys = {k for k, _ in data}
    sums = {k: sum(v for key, v in data if key == k) for k in keys}
    mean = sum(v for _, v in data) / len(data)
    assert db.read(*views) == [
        Counter((k, s) for k, s in sums.items()),
        Counter((k, v) for k, v in data if v > mean),
        Counter((v, sums[k] if sums[k] > 700 else None) for k, v in data),
        Counter((k, max(v for key, v in data if key == k)) for k in keys),
        Counter({(len(data),): 1}),
    ]
