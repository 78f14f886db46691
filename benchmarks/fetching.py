"""How fast many rows leave over the wire, beside PostgreSQL 15 in one run.

`python benchmarks/fetching.py [--rows 1000000] [--rounds 3] [--ways psycopg,asyncpg]`

A table of ten columns (whole numbers, a float, a decimal, texts, a boolean, a date, a timestamp), read whole:

psycopg         `SELECT`, rows as psycopg makes them, of text
psycopg binary  the same, of binary values
asyncpg         `SELECT`, binary, prepared
copy            `COPY ... TO STDOUT`, which psycopg takes without looking at it
copy binary     the same with `(FORMAT binary)`

The client runs on the same machine and takes its part of the time; its processor seconds are told. Both servers hold
the same rows, and take their turns in each round.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import asyncpg
import bench
import psycopg
from writes import POSTGRES, Address, headrace_server

from postgres import HOST, postgres_server

COLUMNS = (
    "id bigint, small int, other bigint, ratio double precision, price numeric(18,4), name text, note text, "
    "is_open boolean, day date, at timestamp"
)
ROWS = """
INSERT INTO wide SELECT i, CAST(i % 1000 AS int), i * 79, CAST(i AS double precision) / 3, CAST(i % 100000 AS numeric(18,4)) / 8,
'name of ' || CAST(i AS text), 'a note that is rather long, as notes are: ' || CAST(i % 977 AS text), i % 3 = 0,
DATE '2020-01-01', TIMESTAMP '2021-01-01 00:00:00.123456' FROM generate_series(1, {rows}) AS s(i)
"""  # noqa: E501
Way = Callable[[Address, int], None]


def by_psycopg(binary: bool) -> Way:
    """All rows of a `SELECT`, a thousand at once."""

    def fetch(at: Address, rows: int) -> None:
        with psycopg.connect(host=HOST, port=at.port, user="root", dbname=at.database) as connection:
            cursor = connection.execute("SELECT * FROM wide", binary=binary)
            assert len(cursor.fetchall()) == rows

    return fetch


def by_asyncpg(at: Address, rows: int) -> None:
    """All rows of a prepared `SELECT`."""

    async def fetch() -> int:
        connection = await asyncpg.connect(host=HOST, port=at.port, user="root", database=at.database)
        found = len(await connection.fetch("SELECT * FROM wide"))
        await connection.close()
        return found

    assert asyncio.run(fetch()) == rows


def by_copy(form: str) -> Way:
    """All bytes of a `COPY`."""

    def fetch(at: Address, rows: int) -> None:
        with psycopg.connect(host=HOST, port=at.port, user="root", dbname=at.database) as connection:
            cursor = connection.cursor()
            with cursor.copy(f"COPY wide TO STDOUT (FORMAT {form})") as copy:
                assert sum(len(piece) for piece in copy) > rows
            assert cursor.rowcount == rows

    return fetch


WAYS: dict[str, Way] = {
    "psycopg": by_psycopg(binary=False),
    "psycopg binary": by_psycopg(binary=True),
    "asyncpg": by_asyncpg,
    "copy": by_copy("text"),
    "copy binary": by_copy("binary"),
}


def main() -> None:
    """Read by every way from both servers, round by round; medians of rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    took: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    with headrace_server(options.folder) as served, postgres_server(POSTGRES, options.folder) as postgres:
        for sql in (f"CREATE TABLE wide ({COLUMNS})", ROWS.format(rows=options.rows)):
            served.rows(sql)
            postgres.execute(sql)
        postgres.execute("VACUUM ANALYZE wide")
        servers = {"headrace": Address(served.port, "dev"), "PostgreSQL": Address(postgres.port, "postgres")}
        for number in range(-1, options.rounds):
            for name in options.ways.split(","):
                for server, at in servers.items():
                    begun, used = time.perf_counter(), time.process_time()
                    WAYS[name](at, options.rows)
                    taken = time.perf_counter() - begun, time.process_time() - used
                    if number >= 0:
                        took[name, server].append(taken)
                    print(number, name, server, f"{taken[0]:.2f} s, {taken[1]:.2f} s of the client's", flush=True)
    lines = []
    for name in options.ways.split(","):
        ours, theirs = (bench.median([s for s, _ in took[name, who]]) for who in servers)
        client = bench.median([s for _, s in took[name, "headrace"]])
        lines.append([
            name, f"{options.rows / ours:,.0f}", f"{options.rows / theirs:,.0f}", f"{theirs / ours:.2f}",
            f"{client / ours:.2f}",
        ])  # fmt: skip
    header = ["way", "headrace rows/s", "PostgreSQL rows/s", "ratio", "client's part"]
    bench.show("Many rows over the wire, medians of rounds", header, lines)


if __name__ == "__main__":
    main()
