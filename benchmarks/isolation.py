"""What one view does to another: side by side in one run, with a checkpoint group each and in one shared group.

`python benchmarks/isolation.py [neighbours] [amplification] [recovery] [idle] [busy] [--rows N] [--seconds S]`

neighbours     a healthy view alone, and beside one that fails, sleeps, is created over 10 N rows, or multiplies N rows
amplification  an upstream epoch of N rows that a join multiplies by 100: time of each step, memory of the workers
recovery       from SIGKILL of a server to its first read and first new commit, with 10^5 and N rows of state
idle           what 200 views cost that have nothing to do
busy           50 small views that are written to all the time, every 5 seconds
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import bench
import numpy as np
from pyspark.sql import SparkSession

import headrace
from headrace.config import Settings
from headrace.errors import HeadraceError
from headrace.server import PgClient

KEYS = 1000
FAN_OUT = 100
PAUSE_S = 0.1
"""Seconds between two writes to the table of the healthy view."""
STEP_ROWS = 100_000
FILLED = 10
"""Times `--rows` that a new view is filled with: it takes them in faster than a join multiplies them."""
SETTLE_IDLE_S = 20.0
"""Seconds until what follows the creation of many views (compaction, Java's compiler) has calmed down."""
READY = re.compile(r"accepting connections on [^ ]+:(\d+) ")
FUNCTIONS = """
CREATE FUNCTION nap(x bigint) RETURNS bigint LANGUAGE python AS $$
import time
time.sleep(10)
return x
$$;
"""


@dataclass
class Gauge:
    """Writes to `h` at a fixed pace, and sees when the view `healthy` has taken it in; reads it now and then."""

    db: headrace.Database
    fresh_s: list[float] = field(default_factory=list)
    """For each write, from its return until the view has it."""
    read_s: list[float] = field(default_factory=list)
    commits: int = 0
    stuck: int = 0
    """Writes that the view had not taken in at the end."""

    def run(self, seconds: float) -> Gauge:
        """Measure for so long."""
        view = bench.relation_id(self.db, "healthy")
        rng, waiting, done = np.random.default_rng(5), list[tuple[int, float]](), threading.Event()
        before = status(self.db, view).epochs

        def watch() -> None:
            while not done.wait(0.004):
                frontier, now = status(self.db, view).frontier, time.monotonic()
                while waiting and waiting[0][0] <= frontier:
                    self.fresh_s.append(now - waiting.pop(0)[1])

        def read() -> None:
            session = self.db.session()
            while not done.wait(0.05):
                since = time.monotonic()
                with contextlib.suppress(HeadraceError):
                    for result in session.execute("SELECT count(*) FROM healthy"):
                        result.table()
                    self.read_s.append(time.monotonic() - since)
            session.close()

        threads = [threading.Thread(target=t, daemon=True) for t in (watch, read)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            epoch = bench.write(self.db, "h", {"k": rng.integers(0, KEYS, 20), "v": rng.integers(0, 100, 20)})
            waiting.append((epoch, time.monotonic()))
            time.sleep(PAUSE_S)
        time.sleep(1.0)
        done.set()
        for thread in threads:
            thread.join()
        now = time.monotonic()
        self.stuck = len(waiting)
        self.fresh_s += [now - since for _, since in waiting]
        self.commits = status(self.db, view).epochs - before
        return self


def status(db: headrace.Database, view: int) -> headrace.coordinator.JobStatus:  # type: ignore[name-defined]
    return next(j for j in db.coordinator.jobs() if j.id == view)


@contextlib.contextmanager
def scene(spark: SparkSession, group: str) -> Iterator[headrace.Database]:
    """A database with the healthy view, warmed up, and tables for its neighbours."""
    quick = {"barrier_interval_ms": 500, "max_rows_per_epoch": STEP_ROWS, "backfill_slice_rows": STEP_ROWS}
    with bench.database(spark, default_checkpoint_group=group, **quick) as db:
        db.sql("CREATE TABLE h (k bigint, v bigint); CREATE TABLE n (k bigint, v bigint)")
        db.sql("CREATE TABLE d (k bigint, w bigint)")
        db.sql("CREATE MATERIALIZED VIEW healthy AS SELECT k, count(*) AS c, sum(v) AS s FROM h GROUP BY k")
        db.sql(FUNCTIONS)
        Gauge(db).run(4.0)
        yield db


def fill(db: headrace.Database, table: str, rows: int) -> None:
    """Rows in epochs of a million."""
    rng = np.random.default_rng(6)
    for start in range(0, rows, 1_000_000):
        count = min(1_000_000, rows - start)
        bench.write(db, table, {"k": rng.integers(0, KEYS, count), "v": np.arange(start, start + count)})


# ---- neighbours: each prepares itself, and returns what sets it off


def alone(db: headrace.Database, rows: int) -> Callable[[], None]:
    return lambda: None


def failing(db: headrace.Database, rows: int) -> Callable[[], None]:
    db.sql("CREATE MATERIALIZED VIEW bad AS SELECT k, 100 / v AS q FROM n")
    return lambda: db.sql("INSERT INTO n VALUES (1, 0)") and None


def sleeping(db: headrace.Database, rows: int) -> Callable[[], None]:
    db.sql("CREATE MATERIALIZED VIEW slow AS SELECT nap(k) AS k FROM n")

    def feed() -> None:
        for _ in range(100):
            with contextlib.suppress(HeadraceError):
                db.sql("INSERT INTO n VALUES (1, 1)")
            time.sleep(1.0)

    return lambda: threading.Thread(target=feed, daemon=True).start()


def backfilling(db: headrace.Database, rows: int) -> Callable[[], None]:
    fill(db, "n", FILLED * rows)
    made = "CREATE MATERIALIZED VIEW late WITH (parallelism = 1) AS "
    query = "SELECT k, count(*) AS c, sum(v) AS s FROM n GROUP BY k"
    return lambda: db.sql(f"SET background_ddl = true; {made} {query}") and None


def amplified(db: headrace.Database, rows: int) -> Callable[[], None]:
    keys = np.repeat(np.arange(KEYS), FAN_OUT)
    bench.write(db, "d", {"k": keys, "w": np.arange(len(keys)) % FAN_OUT})
    db.sql(
        "CREATE MATERIALIZED VIEW wide WITH (parallelism = 1) AS "
        "SELECT d.w, count(*) AS c, sum(n.v) AS s FROM n JOIN d ON n.k = d.k GROUP BY d.w"
    )
    rng = np.random.default_rng(7)
    return lambda: bench.write(db, "n", {"k": rng.integers(0, KEYS, rows), "v": np.arange(rows)}) and None


NEIGHBOURS = {
    "alone": alone, "fails": failing, "sleeps 10 s": sleeping, "backfill": backfilling, "join x 100": amplified,
}  # fmt: skip


def neighbours(spark: SparkSession, options: argparse.Namespace) -> None:
    with scene(spark, "own") as db:
        Gauge(db).run(options.seconds)  # Java has compiled what it compiles before anything is measured
    for group in options.groups.split(","):
        rows, base = [], (1.0, 1.0, 1.0)
        for name, prepare in NEIGHBOURS.items():
            with scene(spark, group) as db:
                prepare(db, options.rows)()
                time.sleep(options.settle)
                found = Gauge(db).run(options.seconds)
            rate, p50, p99 = found.commits / options.seconds, *np.quantile(found.fresh_s, (0.5, 0.99))
            if name == "alone":
                base = rate, p50, p99
            ratios = [
                f"{base[0] / rate:.2f}" if rate else "stands still",
                f"{p50 / base[1]:.2f}",
                f"{p99 / base[2]:.2f}",
            ]
            figures = [f"{rate:.1f}", f"{p50 * 1e3:.0f}", f"{p99 * 1e3:.0f}", *ratios]
            rows.append([name, *figures, f"{np.quantile(found.read_s, 0.99) * 1e3:.0f}", str(found.stuck)])
            print(group, *rows[-1], flush=True)
        header = ["beside", "commits/s", "p50 ms", "p99 ms", "rate x", "p50 x", "p99 x", "read p99 ms", "not taken in"]
        groups = "groups of their own" if group == "own" else "one shared group"
        bench.show(f"A healthy view, {groups} (target: at most 1.2 x)", header, rows)


# ---- the other cases


def workers_mb() -> float:
    """The largest of Spark's Python workers, as it is now."""
    most = 0
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"headrace.dataflow.daemon" in (path / "cmdline").read_bytes():
                most = max(most, int((path / "statm").read_text().split()[1]))
    return most * os.sysconf("SC_PAGE_SIZE") / 2**20


def amplification(spark: SparkSession, options: argparse.Namespace) -> None:
    rows = []
    for size, step in ((options.rows // 4, STEP_ROWS), (options.rows, STEP_ROWS), (options.rows, STEP_ROWS // 4)):
        with bench.database(spark, max_rows_per_epoch=step) as db:
            db.sql("CREATE TABLE n (k bigint, v bigint); CREATE TABLE d (k bigint, w bigint)")
            go = amplified(db, size)
            view = bench.relation_id(db, "wide")
            go()
            since = last = time.monotonic()
            before, memory, steps = status(db, view).rows_in, 0.0, []
            while True:
                now = status(db, view)
                if now.rows_in != before:
                    steps.append(time.monotonic() - last)
                    before, last = now.rows_in, time.monotonic()
                memory = max(memory, workers_mb())
                if now.frontier >= db.coordinator.current_epoch() and now.in_flight_epoch is None:
                    break
                time.sleep(0.05)
            took = time.monotonic() - since
        p50, most = np.quantile(steps, 0.5), max(steps)
        figures = [f"{len(steps)}", f"{p50 * 1e3:.0f}", f"{most * 1e3:.0f}", f"{memory:.0f}", f"{took:.1f}"]
        rows.append([f"{size:,} rows, steps of {step:,}", *figures])
        print(*rows[-1], flush=True)
    bench.show(
        f"An upstream epoch that a join multiplies by {FAN_OUT}",
        ["", "steps", "step p50 ms", "longest ms", "largest worker MiB", "all s"], rows,
    )  # fmt: skip


class Served:
    """A server process on a database, timed from the moment it is started."""

    def __init__(self, path: Path):
        self.since = time.monotonic()
        command = [sys.executable, "-m", "headrace.cli", "serve", "--data", str(path), "--port", "0"]
        environment = {**os.environ, "HEADRACE_BARRIER_INTERVAL_MS": "1000"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := READY.search(line):
                self.client = PgClient(port=int(found.group(1)), timeout_s=None)
                return
        raise RuntimeError(f"the server ended with exit code {self.process.wait()}")

    def rows(self, sql: str) -> list[tuple[bytes | None, ...]]:
        """The rows of the last statement."""
        return [row for reply in self.client.query(sql) for row in reply.rows]

    def age_s(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self.since

    def kill(self) -> None:
        """SIGKILL, to Spark as well; harmless when repeated."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def recovery(spark: SparkSession, options: argparse.Namespace) -> None:
    rows = []
    for size in (100_000, options.rows):
        path, ends = Path(tempfile.mkdtemp(prefix="headrace-bench-")), contextlib.ExitStack()
        try:
            settings = Settings(data_dir=path, barrier_interval_ms=1000)
            with headrace.connect(path, spark=spark, settings=settings) as db:
                db.sql("CREATE TABLE t (k bigint, v bigint)")
                fill(db, "t", size)
                db.sql("CREATE MATERIALIZED VIEW m AS SELECT v, count(*) AS c, sum(k) AS s FROM t GROUP BY v")
                db.sql("CREATE INDEX m_v ON m (v)")  # a read of one row: a scan would measure the size of the view
            times: list[tuple[float, float, float]] = []
            served = ends.enter_context(Served(path))
            for number in range(options.repeat):
                served.rows(f"INSERT INTO t VALUES (1, {-number - 1})")
                served.kill()
                served = ends.enter_context(Served(path))
                up = served.age_s()
                served.rows("SELECT v, c FROM m WHERE v = 1")
                first = served.age_s()
                served.rows(f"INSERT INTO t VALUES (2, {-1000 - number})")
                while not served.rows(f"SELECT v FROM m WHERE v = {-1000 - number}"):
                    time.sleep(0.01)
                times.append((up, first, served.age_s()))
        finally:
            ends.close()
            shutil.rmtree(path, ignore_errors=True)
        medians = [bench.median([t[i] for t in times]) for i in range(3)]
        rows.append([f"{size:,}", *(f"{s:.2f}" for s in medians)])
        print(*rows[-1], flush=True)
    bench.show("From SIGKILL to", ["rows of state", "ready s", "first read s", "first new commit s"], rows)


def many(db: headrace.Database, count: int) -> None:
    """So many views over one table, created in the background."""
    db.sql("CREATE TABLE t (k bigint, v bigint); INSERT INTO t VALUES (1, 1); SET background_ddl = true")
    for i in range(count):
        query = f"SELECT k, count(*) AS c, sum(v) AS s FROM t WHERE v <> {-i - 1} GROUP BY k"
        db.sql(f"CREATE MATERIALIZED VIEW v{i} AS {query}")
    while any(j.status != "running" for j in db.coordinator.jobs()):
        time.sleep(0.2)


def idle(spark: SparkSession, options: argparse.Namespace) -> None:
    rows = []
    for count in (0, options.views):
        with bench.database(spark, barrier_interval_ms=1000) as db:
            many(db, count)
            time.sleep(SETTLE_IDLE_S)
            since, before = time.monotonic(), bench.cpu_s(spark)
            time.sleep(options.seconds)
            took, after = time.monotonic() - since, bench.cpu_s(spark)
            db.sql("INSERT INTO t VALUES (2, 2)")
            began = time.monotonic()
            db.flush()
            flushed = time.monotonic() - began
        # A worker that has ended meanwhile takes what it used before with it.
        shares = [max(0.0, b - a) / took * 100 for a, b in zip(before, after)]
        rows.append([str(count), *(f"{s:.1f}" for s in shares), f"{sum(shares):.1f}", f"{flushed:.1f}"])
        print(*rows[-1], flush=True)
    header = ["idle views", "server, % of a core", "Spark's JVM", "workers", "all", "one row to all of them, s"]
    bench.show("What idle views cost, a tick a second (target: under 5 % of a core)", header, rows)


def busy(spark: SparkSession, options: argparse.Namespace) -> None:
    cadence_s, count = 5.0, options.busy_views
    with bench.database(spark, barrier_interval_ms=1000, checkpoint_interval_ms=5000) as db:
        many(db, count)
        rng, lags = np.random.default_rng(8), list[float]()
        bench.write(db, "t", {"k": np.arange(20), "v": np.arange(20)})
        db.flush()  # from here on all plans are made
        before = {j.id: j.epochs for j in db.coordinator.jobs()}
        since, looked, used = time.monotonic(), time.monotonic(), sum(bench.cpu_s(spark))
        while time.monotonic() < since + 3 * options.seconds:
            bench.write(db, "t", {"k": rng.integers(0, KEYS, 20), "v": rng.integers(0, 100, 20)})
            if time.monotonic() - looked > 1.0:
                looked = time.monotonic()
                lags += [j.lag_ms / 1e3 for j in db.coordinator.jobs()]
            time.sleep(PAUSE_S)
        took, used = time.monotonic() - since, sum(bench.cpu_s(spark)) - used
        epochs = [j.epochs - before[j.id] for j in db.coordinator.jobs()]
    each = took / np.array(epochs)
    cost = used / sum(epochs)
    figures = [f"{each.mean():.2f}", f"{each.max():.2f}", *(f"{np.quantile(lags, q):.1f}" for q in (0.5, 0.99))]
    rows = [[str(count), *figures, f"{used / took:.2f}", f"{cost * 1e3:.0f}", f"{cost * count / cadence_s:.2f}"]]
    header = [
        "views",
        "s between epochs",
        "slowest",
        "lag p50 s",
        "p99",
        "cores used",
        "CPU ms an epoch",
        "cores needed",
    ]
    bench.show(f"Small views written to all the time, a checkpoint every {cadence_s:.0f} s", header, rows)


CASES = {f.__name__: f for f in (neighbours, amplification, recovery, idle, busy)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="all by default")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each case is measured")
    parser.add_argument("--settle", type=float, default=3.0, help="seconds from a neighbour's start until measuring")
    parser.add_argument("--groups", default="own,shared", help="which of them: own, shared")
    parser.add_argument("--repeat", type=int, default=3, help="how often a server is killed")
    parser.add_argument("--views", type=int, default=200, help="idle views")
    parser.add_argument("--busy-views", type=int, default=50)
    options = parser.parse_args()
    spark = bench.session()
    for name in options.cases or CASES:
        CASES[name](spark, options)
    spark.stop()


if __name__ == "__main__":
    main()
