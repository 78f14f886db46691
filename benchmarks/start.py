"""How soon a server does what after its start: from its `exec` to the first answer of each kind.

`python benchmarks/start.py [--rounds 3] [--views 50] [--rows 100000] [--settled 0]`

empty     on a new directory
killed    on one with a table and views over it, after SIGKILL under writes: the views have `--rows` to take in, beside
          the `--settled` rows that they have taken in before
embedded  on the same one, after another SIGKILL, by `headrace.connect()` in a program: until it returns (connected),
          and until the first answers of each kind

accepted  a connection is made      point  a row is read by its primary key      write  a row is written
spark     a query that needs Spark is answered      flush  every view has what was written before the kill and since
create    the first materialized view, and another one, each from its statement to its rows (of the empty one)

Medians over the rounds, in seconds. `processor` is the server's own processor time up to `accepted`, `processor, flush`
that of the server and all its processes, Java among them, up to the answered FLUSH, and `processor, spark` up to the
query on Spark that is asked next: what is more than that (on as many cores) is other work's.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from functools import partial
from pathlib import Path

import psycopg

_TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(_TESTS), str(_TESTS / "e2e")]
from server import HOST, QUICK, Server  # noqa: E402

QUICK.clear()  # what is in a hurry for tests would be measured instead

SETTINGS = {"HEADRACE_CLASS_ARCHIVE": "off"}  # it would be made beside
CHUNK_ROWS = 1_000_000
"""Rows of one statement of those that are settled."""
FIRST_ID = 1_000_000_000
"""Of the rows that are settled."""
EMBEDDED = """
import sys, time
import headrace

def note(what):
    print("NOTE", what, time.time() - float(sys.argv[2]), sep="\t", flush=True)

with headrace.connect(sys.argv[1]) as db:
    note("connected")
    db.sql("SELECT balance FROM account WHERE id = 1").rows()
    note("point")
    db.sql("INSERT INTO account VALUES (-9, 1, 'a')")
    note("write")
    db.sql("FLUSH")
    note("flush")
"""
SPARK = "SELECT count(*) FROM account AS a JOIN account AS b ON a.id = b.id WHERE a.id = 1"
"""Of two relations: over one, groups of few rows need no Spark either."""


class Life:
    """One start of a server, and what it answers first."""

    def __init__(self, server: Server) -> None:
        self.found: dict[str, float] = {}
        self._since_s = time.monotonic()
        server.start()
        self._client = psycopg.connect(host=HOST, port=server.port, user="root", dbname="dev", autocommit=True)
        self._process_id = server.process_id
        self._note("accepted")
        self.found["processor"] = _processor_s(server.process_id)

    def _note(self, what: str) -> None:
        self.found[what] = time.monotonic() - self._since_s

    def ask(self, what: str, sql: str) -> None:
        """Note when a statement is answered."""
        self._client.execute(sql)  # type: ignore[call-overload]
        self._note(what)

    def note_processor(self, what: str) -> None:
        """Note the processor time of the server and of Java so far."""
        self.found[what] = sum(_processor_s(i) for i in _group(self._process_id))

    def time(self, what: str, sql: str) -> None:
        """Note how long a statement takes."""
        self.found.pop(what, None)
        self.add(what, sql)

    def add(self, what: str, sql: str) -> None:
        """Note how long a statement takes, with others of its name."""
        since_s = time.monotonic()
        self._client.execute(sql)  # type: ignore[call-overload]
        self.found[what] = self.found.get(what, 0.0) + time.monotonic() - since_s


def _processor_s(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _group(leader: int) -> list[int]:
    """The processes of a group that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rsplit(")", 1)[1].split()[2]) == leader:
                found.append(int(stat.parent.name))
    return found


def empty(server: Server, views: int, rows: int, settled: int) -> dict[str, float]:
    """A start on a new directory, which is filled for the next."""
    life = Life(server)
    life.ask("table", "CREATE TABLE account (id bigint PRIMARY KEY, balance bigint, owner text)")
    life.ask("write", "INSERT INTO account VALUES (1, 1, 'a')")
    life.ask("point", "SELECT balance FROM account WHERE id = 1")
    life.ask("spark", SPARK)
    for number in range(views):
        name = {0: "create first", 1: "create later"}.get(number, "create others")
        life.time(name, f"CREATE MATERIALIZED VIEW v{number} AS SELECT owner, sum(balance) + {number} AS s "
                        "FROM account GROUP BY owner")  # fmt: skip
    for first in range(0, settled, CHUNK_ROWS):
        life.add("fill, settled", _fill(FIRST_ID + first, FIRST_ID + min(first + CHUNK_ROWS, settled) - 1))
    life.time("flush, settled", "FLUSH")
    life.time("fill", _fill(2, rows))
    server.kill()
    return life.found


def _fill(first: int, last: int) -> str:
    """A statement that writes the accounts of these ids."""
    return (
        "INSERT INTO account SELECT i, i % 1000, 'o' || CAST(i % 100 AS text) "
        f"FROM generate_series({first}, {last}) AS s(i)"
    )


def killed(server: Server, round_: int) -> dict[str, float]:
    """A start after SIGKILL."""
    life = Life(server)
    life.ask("point", "SELECT balance FROM account WHERE id = 1")
    life.ask("write", f"INSERT INTO account VALUES (-{round_ + 1}, 1, 'a')")
    life.ask("flush", "FLUSH")
    life.note_processor("processor, flush")
    life.ask("spark", SPARK)
    life.note_processor("processor, spark")
    server.kill()
    return life.found


def embedded(data: Path) -> dict[str, float]:
    """A program that opens the database itself, from its `exec` on."""
    done = subprocess.run(
        [sys.executable, "-c", EMBEDDED, str(data), str(time.time())],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | SETTINGS,
    )
    noted = [
        line.split("\t")[1:] for line in done.stdout.splitlines() if line.startswith("NOTE\t")
    ]  # others print, too
    return {what: float(seconds) for what, seconds in noted}


def main() -> None:
    """Run the rounds; one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--views", type=int, default=50)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--settled", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    figures: dict[tuple[str, str], list[float]] = defaultdict(list)
    for round_ in range(options.rounds):
        folder = Path(tempfile.mkdtemp(prefix="headrace-bench-", dir=options.folder))
        server = Server(folder, settings=SETTINGS)
        try:
            lives = {
                "empty": partial(empty, server, options.views, options.rows, options.settled),
                "killed": partial(killed, server, 0),
                "embedded": partial(embedded, server.data),
            }
            for what, life in lives.items():
                for name, seconds in life().items():
                    figures[what, name].append(seconds)
                    print(round_, what, name, f"{seconds:.2f} s", file=sys.stderr, flush=True)
        finally:
            server.close()
            shutil.rmtree(folder, ignore_errors=True)
    print("| start | until | s |\n| --- | --- | --- |")
    for (what, name), seconds in figures.items():
        print(f"| {what} | {name} | {statistics.median(seconds):.2f} |")


if __name__ == "__main__":
    main()
