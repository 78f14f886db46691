"""COPY in and out of many rows: how fast, and how much memory the server takes meanwhile.

    python benchmarks/copying.py --rows 10000000

A server of its own on a scratch directory. What is measured is the server's Python process; Java's is another one.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

_READY = re.compile(r"accepting connections on [^ ]+:(\d+) ")
_PIECE_ROWS = 10_000


def resident_mib(pid: int) -> int:
    """Memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def anonymous_mib(pid: int) -> int:
    """The same without files that are mapped, which the kernel takes back when it wants."""
    found = re.search(r"^RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) >> 10 if found else resident_mib(pid)


class Memory:
    """Looks at a process now and then."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._over = threading.Event()
        self.seen: list[int] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look as long as the block runs."""
        self.seen, self._over = [], threading.Event()
        thread = threading.Thread(target=self._look)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.5):
            self.seen.append(anonymous_mib(self._pid))

    def told(self) -> str:
        """The most of each quarter of the time."""
        quarter = max(len(self.seen) // 4, 1)
        return " ".join(str(max(self.seen[i : i + quarter])) for i in range(0, quarter * 4, quarter) if self.seen[i:])


@contextmanager
def served(folder: Path) -> Iterator[tuple[int, int]]:
    """A server; its port and its process."""
    log = (folder / "log").open("w+b")
    command = [sys.executable, "-m", "headrace.cli", "serve", "--data", str(folder / "db"), "--port", "0"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    try:
        while not (found := _READY.search((folder / "log").read_text())):
            if process.poll() is not None:
                raise SystemExit((folder / "log").read_text())
            time.sleep(0.2)
        yield int(found[1]), process.pid
    finally:
        process.terminate()
        process.wait(120)


def pieces(rows: int, form: str) -> Iterator[str]:
    """The rows as text."""
    mark = "," if form == "csv" else "\t"
    for start in range(0, rows, _PIECE_ROWS):
        end = min(start + _PIECE_ROWS, rows)
        yield "".join(f"{i}{mark}name of {i}{mark}{i / 4}\n" for i in range(start, end))


def main() -> None:
    """Copy in and out, and print a line for each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--forms", default="text", help="text,csv")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as (port, pid):
        memory = Memory(pid)
        with psycopg.connect(host="127.0.0.1", port=port, user="root", dbname="dev", autocommit=True) as connection:
            for form in options.forms.split(","):
                connection.execute("CREATE TABLE copied (id bigint, name text, x float8)")
                for way in (f"COPY copied FROM STDIN (FORMAT {form})", f"COPY copied TO STDOUT (FORMAT {form})"):
                    before, begun = anonymous_mib(pid), time.monotonic()
                    with memory.watched(), connection.cursor().copy(way) as copy:
                        if "FROM" in way:
                            for piece in pieces(options.rows, form):
                                copy.write(piece)
                        else:
                            assert sum(1 for _ in copy) == options.rows
                    took_s = time.monotonic() - begun
                    rate = options.rows / took_s
                    print(f"{way}: {took_s:.1f} s, {rate:,.0f} rows/s; MiB before {before}, then {memory.told()}")
                connection.execute("DROP TABLE copied")


if __name__ == "__main__":
    main()
