"""How fast small reads are answered over the wire, beside PostgreSQL 15 in one run.

`python benchmarks/serving.py [--rounds 3] [--seconds 3] [--connections 1,8] [--cases "point,expression"]`

point       one row of 100,000 by its primary key, in each of pgbench's modes: the text with the value in it (simple),
            parsed each time (extended), parsed once for each connection (prepared)
expression  `SELECT $1::int + 1`
count       `SELECT count(*)` of 100,000 rows
first       the ten rows with the highest balances of 100,000

Both servers hold the same rows, and take their turns in each round. The load comes from pgbench, one process for all
connections, on the same machine.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from pathlib import Path

import bench
import numpy as np
from writes import ACCOUNTS, POSTGRES, Address, Load, headrace_server, run_load

from postgres import postgres_server

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
    "first": (("prepared",), "SELECT id, balance FROM account ORDER BY balance DESC, id LIMIT 10;\n"),
}


def main() -> None:
    """Run the cases on both servers, round by round; medians of rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3, help="of each load")
    parser.add_argument("--warm-up", type=float, default=2, help="seconds of each load before any counts")
    parser.add_argument("--connections", default="1,8")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    counts = [int(c) for c in options.connections.split(",")]
    loads: dict[tuple[str, str, int, str], list[Load]] = defaultdict(list)
    chosen = {name: CASES[name] for name in options.cases.split(",")}
    with headrace_server(options.folder) as served, postgres_server(POSTGRES, options.folder) as postgres:
        for sql in ROWS:
            served.rows(sql)
            postgres.execute(sql)
        postgres.execute("VACUUM ANALYZE account")
        servers = {"headrace": Address(served.port, "dev"), "PostgreSQL": Address(postgres.port, "postgres")}
        for number in range(-1, options.rounds):
            seconds = options.warm_up if number < 0 else options.seconds
            for name, (modes, script) in chosen.items():
                for mode in modes:
                    for connections in counts:
                        for server, at in servers.items():
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
