"""How fast small reads are answered over the wire, beside PostgreSQL 15 in one run.

`python benchmarks/serving.py [--rounds 3] [--seconds 3] [--connections 1,8,64] [--cases "point,expression"]`

point       one row of 100,000 by its primary key, in each of pgbench's modes: the text with the value in it (simple),
            parsed each time (extended), parsed once for each connection (prepared)
expression  `SELECT $1::int + 1`
count       `SELECT count(*)` of 100,000 rows
first       the ten rows with the highest balances of 100,000
filtered    how many are above a random balance, and the highest of their numbers: never the same question
groups      count, sum and highest balance of each of ten groups of those above a random balance

`--busy` does the same beside other work: inserts, which ten views take in, and one long `SELECT` after another.
PostgreSQL has the inserts and the long `SELECT`; it keeps no views.

`count` and `first` ask the same again and again of a table that does not change: headrace has the answer in memory.

Both servers hold the same rows, and take their turns in each round. The load comes from pgbench, one process for all
connections, on the same machine.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import bench
import numpy as np
import psycopg
from writes import ACCOUNTS, POSTGRES, Address, Load, headrace_server, run_load

from postgres import HOST, postgres_server

ROWS = (
    "CREATE TABLE account (id bigint PRIMARY KEY, balance bigint NOT NULL, owner text)",
    "INSERT INTO account SELECT i, (i * 7919) % 100003, 'owner ' || CAST(i AS text) "
    f"FROM generate_series(1, {ACCOUNTS}) AS s(i)",
)
MODES = ("simple", "extended", "prepared")
CASES = {
    "point": (MODES, f"\\set a random(1, {ACCOUNTS})\nSELECT balance FROM account WHERE id = :a;\n"),
    "expression": (MODES, "\\set a random(1, 1000)\nSELECT :a::int + 1;\n"),
    "count": (("prepared",), "SELECT count(*) FROM account;\n"),
    "filtered": (
        ("prepared",),
        f"\\set a random(1, {ACCOUNTS})\nSELECT count(*), max(id) FROM account WHERE balance > :a;\n",
    ),
    "groups": (
        ("prepared",),
        f"\\set a random(1, {ACCOUNTS})\nSELECT id % 10, count(*), sum(id), max(balance) FROM account "
        "WHERE balance > :a GROUP BY id % 10;\n",
    ),
    "first": (("prepared",), "SELECT id, balance FROM account ORDER BY balance DESC, id LIMIT 10;\n"),
}


BUSY = "CREATE TABLE busy (k bigint, g int, v double precision)"
BUSY_VIEWS = tuple(
    f"CREATE MATERIALIZED VIEW busy_{n} AS SELECT g % {10 * n + 1} AS g, count(*) AS n, sum(v) AS v FROM busy "
    f"GROUP BY g % {10 * n + 1}"
    for n in range(10)
)
WRITE = "INSERT INTO busy SELECT i, i % 1000, i / 3.0 FROM generate_series(1, 100) AS s(i)"
LONG = (
    "SELECT count(*), sum(a.balance % 7) FROM account a JOIN account b ON a.balance % 5000 = b.balance % 5000 "
    "WHERE a.owner <> b.owner"
)
"""Of some two million pairs."""
PAUSE_S = 0.05


@contextmanager
def busy(at: Address) -> Iterator[None]:
    """Keep a server busy as long as the block runs: with inserts, what follows from them, and long reads."""
    over, failures = threading.Event(), list[Exception]()

    def again_and_again(sql: str, pause_s: float) -> None:
        try:
            with psycopg.connect(
                host=HOST, port=at.port, user="root", dbname=at.database, autocommit=True
            ) as connection:
                while not over.wait(pause_s):
                    connection.execute(sql)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=again_and_again, args=work) for work in ((WRITE, PAUSE_S), (LONG, 0.0))]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


def main() -> None:
    """Run the cases on both servers, round by round; medians of rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3, help="of each load")
    parser.add_argument("--warm-up", type=float, default=2, help="seconds of each load before any counts")
    parser.add_argument("--connections", default="1,8,64")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--busy", action="store_true", help="beside inserts, ten views and long reads")
    parser.add_argument("--read-processes", type=int, default=0, help="beside headrace's server")
    options = parser.parse_args()
    os.environ["HEADRACE_READ_PROCESSES"] = str(options.read_processes)
    counts = [int(c) for c in options.connections.split(",")]
    loads: dict[tuple[str, str, int, str], list[Load]] = defaultdict(list)
    chosen = {name: CASES[name] for name in options.cases.split(",")}
    with headrace_server(options.folder) as served, postgres_server(POSTGRES, options.folder) as postgres:
        for sql in ROWS:
            served.rows(sql)
            postgres.execute(sql)
        postgres.execute("VACUUM ANALYZE account")
        if options.busy:
            postgres.execute(BUSY)
            for sql in (BUSY, *BUSY_VIEWS):
                served.rows(sql)
        while served.log.read_text().count("takes clients") < options.read_processes:
            time.sleep(0.1)
        servers = {"headrace": Address(served.port, "dev"), "PostgreSQL": Address(postgres.port, "postgres")}
        for number in range(-1, options.rounds):
            seconds = options.warm_up if number < 0 else options.seconds
            for name, (modes, script) in chosen.items():
                for mode in modes:
                    for connections in counts:
                        for server, at in servers.items():
                            with busy(at) if options.busy else nullcontext():
                                load = run_load(at, script, connections, seconds, mode)
                            if number >= 0:
                                loads[name, mode, connections, server].append(load)
                            print(number, name, mode, connections, server, f"{load.per_s:.0f}/s", flush=True)
    show(loads)


def show(loads: dict[tuple[str, str, int, str], list[Load]]) -> None:
    """The table of medians."""
    lines = []
    for name, mode, connections, server in loads:
        if server != "headrace":
            continue
        ours, theirs = (loads[name, mode, connections, who] for who in ("headrace", "PostgreSQL"))
        rate, other = (bench.median([load.per_s for load in each]) for each in (ours, theirs))
        quantiles = [_quantile(each, q) for each in (ours, theirs) for q in (0.5, 0.99)]
        lines.append([
            f"{name}, {mode} x {connections}", f"{rate:,.0f}", f"{other:,.0f}", f"{rate / other:.3f}",
            *(f"{q:.2f}" for q in quantiles),
        ])  # fmt: skip
    header = [
        "reads x connections, a second",
        "headrace",
        "PostgreSQL",
        "ratio",
        "p50 ms",
        "p99 ms",
        "theirs p50",
        "p99",
    ]
    bench.show("Small reads over the wire, medians of rounds", header, lines)


def _quantile(loads: list[Load], q: float) -> float:
    return bench.median([float(np.quantile(load.ms, q)) for load in loads])


if __name__ == "__main__":
    main()
