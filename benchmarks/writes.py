"""How fast rows come in over the wire, beside PostgreSQL on the same disk, a forced write to it, and Spark.

`python benchmarks/writes.py [rates] [bulk] [--rounds 3] [--seconds 5] [--connections 1,8,32] [--rows 10000000]`

rates  committed single-row `INSERT`s, `UPDATE`s by key and transfers (two `UPDATE`s between BEGIN and COMMIT) a second
       and their latencies, in turn on headrace and on PostgreSQL with `synchronous_commit = on`; and the p50 of each
       over one connection beside an append that is forced to the disk, and a commit of SQLite in WAL mode
bulk   `INSERT ... SELECT` of N rows from one table into another, beside Spark reading the same rows from Parquet and
       writing them to Parquet; with the most memory that the server's process had

The load comes from pgbench, PostgreSQL's own program in C, with statements prepared once for each connection and all
connections in one process apart: it uses a fraction of what either server does, and the table says how much of a core.
What ends with 40001 is tried again within its time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import bench
import numpy as np

from headrace.server import PgClient

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from postgres import HOST, binaries, postgres_server

ACCOUNTS = 100_000
FORCED = 200
"""Forced writes, and commits of SQLite, in each round."""
RECORD_BYTES = 200
POSTGRES = {"synchronous_commit": "on", "fsync": "on", "max_connections": "100"}
TABLES = (
    "CREATE TABLE account (id bigint PRIMARY KEY, balance bigint NOT NULL)",
    "CREATE TABLE entry (id bigint PRIMARY KEY, account bigint, amount bigint, note text)",
)
PICK = f"\\set a random(1, {ACCOUNTS // 2})\n\\set b :a + random(1, {ACCOUNTS // 2})\n\\set by random(1, 100)\n"
# The first account of a transfer has the smaller number: no two wait for each other.
SCRIPTS = {
    "INSERT": f"\\set id random(1, 1000000000000000)\n{PICK}INSERT INTO entry VALUES (:id, :a, :by, 'paid');\n",
    "UPDATE by key": f"{PICK}UPDATE account SET balance = balance + :by WHERE id = :b;\n",
    "transfer": f"{PICK}BEGIN;\nUPDATE account SET balance = balance - :by WHERE id = :a;\n"
    "UPDATE account SET balance = balance + :by WHERE id = :b;\nCOMMIT;\n",
}
_READY = re.compile(r"accepting connections on [^ ]+:(\d+) ")
_FAILED = re.compile(r"number of failed transactions: (\d+)")
_TRIED_AGAIN = re.compile(r"number of transactions retried: (\d+)")
_RATE = re.compile(r"^tps = ([0-9.]+)", re.MULTILINE)


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    port: int
    database: str


@dataclass(frozen=True)
class Load:
    """What one run of pgbench came to."""

    per_s: float
    ms: np.ndarray
    """The latency of each transaction, tries included."""
    cores: float
    """What pgbench used itself."""
    again: int
    """Transactions that were tried more than once."""


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_load(at: Address, script: str, connections: int, seconds: float, mode: str = "prepared") -> Load:
    """Load a server for so long, statements sent in one of pgbench's modes.

    Raises RuntimeError if anything fails but what is tried again.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-load-") as folder:
        file = Path(folder, "script.sql")
        file.write_text(script)
        command = [
            str(binaries() / "pgbench"), "-n", "-M", mode, "-f", str(file), "-c", str(connections), "-j", "1",
            "-T", f"{seconds:.0f}", "-l", "--max-tries=100", "-h", HOST, "-p", str(at.port), "-U", "root", at.database,
        ]  # fmt: skip
        before, since = _children_cpu_s(), time.monotonic()
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        took_s, used_s = time.monotonic() - since, _children_cpu_s() - before
        failed = _FAILED.search(done.stdout)
        if done.returncode or failed is None or int(failed.group(1)):
            raise RuntimeError(f"pgbench ended with {done.returncode}:\n{done.stdout}\n{done.stderr[-4000:]}")
        lines = "".join(path.read_text() for path in Path(folder).glob("pgbench_log.*")).splitlines()
        ms = np.array([int(line.split()[2]) / 1000 for line in lines])
        again = _TRIED_AGAIN.search(done.stdout)
        return Load(_number(_RATE, done.stdout), ms, used_s / took_s, int(again.group(1)) if again else 0)


def _number(pattern: re.Pattern[str], text: str) -> float:
    found = pattern.search(text)
    if found is None:
        raise RuntimeError(f"pgbench said nothing of {pattern.pattern!r}:\n{text}")
    return float(found.group(1))


# ---- the servers


class Served:
    """A `headrace serve` process with its default settings; what it says goes to a file beside the database."""

    def __init__(self, path: Path):
        log = path / "log"
        command = [sys.executable, "-m", "headrace.cli", "serve", "--data", str(path / "db"), "--port", "0"]
        with log.open("wb") as sink:
            self.process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True)
        while (ready := _READY.search(log.read_text())) is None:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}:\n{log.read_text()[-4000:]}")
            time.sleep(0.05)
        self.port = int(ready.group(1))
        self.log = log
        self._client = PgClient(port=self.port, timeout_s=None)

    def rows(self, sql: str) -> list[tuple[bytes | None, ...]]:
        """The rows of the last statement."""
        return [row for reply in self._client.query(sql) for row in reply.rows]

    def kill(self) -> None:
        """SIGKILL, to Spark as well."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def headrace_server(folder: Path) -> Iterator[Served]:
    """A server on a directory that is removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix="headrace-bench-", dir=folder))
    with contextlib.ExitStack() as ends:
        ends.callback(shutil.rmtree, path, ignore_errors=True)
        served = Served(path)
        ends.callback(served.kill)
        yield served


def prepare(run: Callable[[str], object]) -> None:
    """The tables, and the accounts."""
    for sql in TABLES:
        run(sql)
    run(f"INSERT INTO account SELECT i, 1000 FROM generate_series(1, {ACCOUNTS}) AS s(i)")


# ---- what a forced write takes


def forced_ms(folder: Path) -> list[float]:
    """Milliseconds of appends of a small record, each forced to the disk."""
    record, found = os.urandom(RECORD_BYTES), []
    with tempfile.NamedTemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(FORCED):
            since = time.perf_counter()
            file.write(record)
            os.fdatasync(file.fileno())
            found.append((time.perf_counter() - since) * 1e3)
    return found


def sqlite_ms(folder: Path) -> list[float]:
    """Milliseconds of commits of one row in SQLite's WAL mode, each forced to the disk."""
    found = []
    with contextlib.ExitStack() as ends:
        scratch = ends.enter_context(tempfile.TemporaryDirectory(dir=folder))
        connection = sqlite3.connect(Path(scratch, "db"), isolation_level=None)
        ends.callback(connection.close)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE t (id integer PRIMARY KEY, record blob)")
        for i in range(FORCED):
            record, since = os.urandom(RECORD_BYTES), time.perf_counter()
            connection.execute("INSERT INTO t VALUES (?, ?)", (i, record))
            found.append((time.perf_counter() - since) * 1e3)
    return found


# ---- rates


def rates(options: argparse.Namespace) -> None:
    """Rounds in which each case runs on the one server and then on the other; medians of rounds."""
    counts = [int(c) for c in options.connections.split(",")]
    loads: dict[tuple[str, int, str], list[Load]] = defaultdict(list)
    disk: dict[str, list[float]] = defaultdict(list)
    with headrace_server(options.folder) as served, postgres_server(POSTGRES, options.folder) as postgres:
        prepare(served.rows)
        prepare(postgres.execute)
        servers = {"headrace": Address(served.port, "dev"), "PostgreSQL": Address(postgres.port, "postgres")}
        for script in SCRIPTS.values():
            for at in servers.values():
                run_load(at, script, max(counts), options.warm_up)
        for number in range(options.rounds):
            disk["forced"] += forced_ms(options.folder)
            disk["sqlite"] += sqlite_ms(options.folder)
            for name, script in SCRIPTS.items():
                for connections in counts:
                    for server, at in servers.items():
                        load = run_load(at, script, connections, options.seconds)
                        loads[name, connections, server].append(load)
                        print(number, name, connections, server, f"{load.per_s:.0f}/s", flush=True)
    show_rates(loads)
    show_single(loads, disk)


def show_rates(loads: dict[tuple[str, int, str], list[Load]]) -> None:
    lines = []
    for name, connections, server in loads:
        if server != "headrace":
            continue
        ours, theirs = loads[name, connections, server], loads[name, connections, "PostgreSQL"]
        rate, other = (bench.median([load.per_s for load in each]) for each in (ours, theirs))
        cores = bench.median([load.cores for load in ours]), bench.median([load.cores for load in theirs])
        lines.append([
            f"{name} x {connections}", f"{rate:,.0f}", f"{other:,.0f}", f"{rate / other:.2f}",
            *(f"{_quantile(each, q):.1f}" for each in (ours, theirs) for q in (0.5, 0.99)),
            f"{sum(load.again for load in ours)}", f"{cores[0]:.2f}, {cores[1]:.2f}",
        ])  # fmt: skip
    header = ["x connections, a second", "headrace", "PostgreSQL", "ratio", "p50 ms", "p99 ms", "theirs p50", "p99",
              "tried again", "pgbench, cores"]  # fmt: skip
    bench.show("Small writes over the wire, medians of rounds", header, lines)


def _quantile(loads: list[Load], q: float) -> float:
    """The median over rounds of a quantile of latencies."""
    return bench.median([float(np.quantile(load.ms, q)) for load in loads])


def show_single(loads: dict[tuple[str, int, str], list[Load]], disk: dict[str, list[float]]) -> None:
    forced, sqlite = (bench.median(disk[name]) for name in ("forced", "sqlite"))
    lines = [["append of 200 bytes and fdatasync", f"{forced:.2f}", ""]]
    lines.append(["commit of SQLite in WAL mode", f"{sqlite:.2f}", f"{sqlite - forced:+.2f}"])
    for (name, connections, server), each in loads.items():
        if connections == 1:
            p50 = _quantile(each, 0.5)
            lines.append([f"{name}, {server}", f"{p50:.2f}", f"{p50 - forced:+.2f}"])
    bench.show("One write at a time (target: at most 5 ms more than a forced one)", ["", "p50 ms", "more"], lines)


# ---- bulk


class Watch:
    """The most memory of a process while the block runs; MiB that are resident and not of a file."""

    def __init__(self, process: int):
        self._process = process
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.before_mb = self.most_mb = self._now_mb()

    def _now_mb(self) -> float:
        for line in Path(f"/proc/{self._process}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024
        return 0.0

    def _run(self) -> None:
        while not self._ending.wait(0.05):
            with contextlib.suppress(OSError):
                self.most_mb = max(self.most_mb, self._now_mb())

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()


COLUMNS = "id bigint, k bigint, v bigint, note text"


def bulk(options: argparse.Namespace) -> None:
    """A tenth of the rows and all of them, so that memory that grows with them is seen."""
    spark = bench.session()
    lines = []
    try:
        for rows in (options.rows // 10, options.rows):
            source = Path(tempfile.mkdtemp(prefix="headrace-rows-", dir=options.folder))
            try:
                spark.range(rows).selectExpr("id AS i").selectExpr(*_spark_columns()).write.parquet(str(source / "in"))
                with headrace_server(options.folder) as served:
                    served.rows(f"CREATE TABLE source ({COLUMNS})")
                    served.rows(
                        f"INSERT INTO source SELECT {_our_columns()} FROM generate_series(0, {rows - 1}) AS s(i)"
                    )
                    lines.append(_one_size(spark, served, source, rows, options.rounds))
            finally:
                shutil.rmtree(source, ignore_errors=True)
    finally:
        spark.stop()
    header = ["rows", "headrace s", "Spark s", "ratio", "server before MiB", "at most MiB"]
    bench.show("INSERT ... SELECT, beside Parquet to Parquet (target: at most 1.5 times)", header, lines)


def _spark_columns() -> list[str]:
    return ["i AS id", "i % 1000 AS k", "i * 7 AS v", "concat('note ', CAST(i AS string)) AS note"]


def _our_columns() -> str:
    return "i, i % 1000, i * 7, 'note ' || CAST(i AS text)"


def _one_size(spark: bench.SparkSession, served: Served, source: Path, rows: int, rounds: int) -> list[str]:
    ours, theirs, before, most = [], [], 0.0, 0.0
    for number in range(rounds + 1):  # the first round warms both up
        served.rows(f"CREATE TABLE target{number} ({COLUMNS})")
        with Watch(served.process.pid) as watch:
            since = time.monotonic()
            served.rows(f"INSERT INTO target{number} SELECT * FROM source")
            ours.append(time.monotonic() - since)
        before, most = (watch.before_mb if number == 0 else before), max(most, watch.most_mb)
        found = int(served.rows(f"SELECT count(*) FROM target{number}")[0][0] or b"0")
        if found != rows:
            raise RuntimeError(f"target{number} has {found} rows of {rows}")
        served.rows(f"DROP TABLE target{number}")
        since = time.monotonic()
        spark.read.parquet(str(source / "in")).write.parquet(str(source / f"out{number}"))
        theirs.append(time.monotonic() - since)
        shutil.rmtree(source / f"out{number}")
        print(rows, number, f"{ours[-1]:.2f} s, Spark {theirs[-1]:.2f} s, {watch.most_mb:.0f} MiB", flush=True)
    taken, other = bench.median(ours[1:]), bench.median(theirs[1:])
    return [f"{rows:,}", f"{taken:.2f}", f"{other:.2f}", f"{taken / other:.2f}", f"{before:.0f}", f"{most:.0f}"]


CASES = {"rates": rates, "bulk": bulk}


def main() -> None:
    """Run the cases that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="all by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5, help="of each load")
    parser.add_argument("--warm-up", type=float, default=5, help="seconds of each kind of load before any counts")
    parser.add_argument("--connections", default="1,8,32")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to be measured")
    options = parser.parse_args()
    for case in options.cases or CASES:
        CASES[case](options)


if __name__ == "__main__":
    main()
