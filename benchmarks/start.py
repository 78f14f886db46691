"""How soon a server does what after its start: from its `exec` to the first answer of each kind.

`python benchmarks/start.py [--rounds 3] [--views 50] [--rows 100000]`

empty   on a new directory
killed  on one with a table and views over it, after SIGKILL under writes: the views have a backlog

accepted  a connection is made      point  a row is read by its primary key      write  a row is written
spark     a query that needs Spark is answered      flush  every view has what was written before the kill and since
create    the first materialized view, and another one, each from its statement to its rows (of the empty one)

Medians over the rounds, in seconds. `processor` is the server's own processor time up to `accepted`, `processor, flush`
that of the server and of Java up to the answered FLUSH: what is more than that (on as many cores) is other work's.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import psycopg

_TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(_TESTS), str(_TESTS / "e2e")]
from server import HOST, QUICK, Server  # noqa: E402

QUICK.clear()  # what is in a hurry for tests would be measured instead

SPARK = "SELECT upper(owner), count(*) FROM account GROUP BY 1 ORDER BY 1 LIMIT 1"


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
        since_s = time.monotonic()
        self._client.execute(sql)  # type: ignore[call-overload]
        self.found[what] = time.monotonic() - since_s


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


def empty(server: Server, views: int, rows: int) -> dict[str, float]:
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
    life.time("fill", "INSERT INTO account SELECT i, i % 1000, 'o' || CAST(i % 100 AS text) "
                      f"FROM generate_series(2, {rows}) AS s(i)")  # fmt: skip
    server.kill()
    return life.found


def killed(server: Server, round_: int) -> dict[str, float]:
    """A start after SIGKILL."""
    life = Life(server)
    life.ask("point", "SELECT balance FROM account WHERE id = 1")
    life.ask("write", f"INSERT INTO account VALUES (-{round_ + 1}, 1, 'a')")
    life.ask("spark", SPARK)
    life.ask("flush", "FLUSH")
    life.note_processor("processor, flush")
    server.kill()
    return life.found


def main() -> None:
    """Run the rounds; one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--views", type=int, default=50)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    figures: dict[tuple[str, str], list[float]] = defaultdict(list)
    for round_ in range(options.rounds):
        folder = Path(tempfile.mkdtemp(prefix="headrace-bench-", dir=options.folder))
        server = Server(folder, settings={"HEADRACE_CLASS_ARCHIVE": "off"})  # it would be made beside
        try:
            for what, found in (("empty", empty(server, options.views, options.rows)), ("killed", killed(server, 0))):
                for name, seconds in found.items():
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
