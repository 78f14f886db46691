"""A real `headrace serve` process: started, killed, stopped, talked to."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg

from support import BRIEF_JAVA, eventually

HOST = "127.0.0.1"
START_S = 240.0
STOP_S = 240.0
_READY = re.compile(rb"accepting connections on [^ ]+:(\d+) ")
# Small, and in a hurry: everything that a server does now and then happens all the time. Most tests that have no view
# need no Spark, whose start is most of what a server costs.
QUICK = {
    "HEADRACE_SPARK_START": "on_demand",
    "HEADRACE_SPARK_DRIVER_MEMORY_MB": "768",
    "HEADRACE_SPARK_NICENESS": "1",
    "HEADRACE_SPARK_CONF": json.dumps(BRIEF_JAVA),
    "HEADRACE_BARRIER_INTERVAL_MS": "100",
    "HEADRACE_COMPACTION_INTERVAL_MS": "200",
    "HEADRACE_COMPACTION_TRIGGER_RUNS": "4",
    "HEADRACE_VACUUM_INTERVAL_MS": "500",
    "HEADRACE_VACUUM_GRACE_MS": "1000",
    "HEADRACE_BACKFILL_SLICE_ROWS": "50",
    "HEADRACE_GROUP_RETRY_INITIAL_MS": "100",
    "HEADRACE_GROUP_RETRY_MAX_MS": "1000",
}


class Server:
    """`headrace serve` on a data directory, one life after another."""

    def __init__(
        self,
        folder: Path,
        data: Path | None = None,
        settings: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        place: Sequence[str] | None = None,
    ):
        """`arguments` are more of the command; `place` those that say where the database is, instead of a directory."""
        self.data = data or folder / "db"
        self._place = ["--data", str(self.data)] if place is None else place
        self.log = folder / f"{self.data.name}.log"
        self.port = 0
        self.fixed_port = 0
        """The port to listen on; 0 picks a free one."""
        self._scratch = folder / "scratch" / self.data.name
        self._settings = {**QUICK, **(settings or {})}
        self._arguments = list(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._read_from = 0

    # ---- life

    def start(self, faults: str = "", wait: bool = True, *, more: Sequence[str] = ()) -> Server:
        """Start, with fault points armed and `more` arguments, and wait until clients can connect."""
        self._scratch.mkdir(parents=True, exist_ok=True)
        self._read_from = self.log.stat().st_size if self.log.exists() else 0
        environment = {**os.environ, **self._settings, "TMPDIR": str(self._scratch), "HEADRACE_FAULTS": faults}
        with self.log.open("ab") as sink:
            self._process = subprocess.Popen(
                [
                    sys.executable, "-m", "headrace.cli", "serve", *self._place, "--port", str(self.fixed_port),
                    *self._arguments, *more,
                ],
                stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, env=environment,
                start_new_session=True,
            )  # fmt: skip
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """Wait for the line that says that clients can connect."""

        eventually(lambda: self.ready() or self.exit_code() is not None, "the server to come up", START_S)
        assert self.port, f"the server ended with exit code {self.exit_code()}:\n{self.log_text()[-4000:]}"

    def ready(self) -> bool:
        """Whether this life has said that clients can connect."""
        found = _READY.search(self.log_text().encode())
        self.port = int(found.group(1)) if found else 0
        return found is not None

    def exit_code(self) -> int | None:
        """How the process ended; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def wait_exit(self, timeout_s: float = STOP_S) -> int:
        """Wait until the process has ended by itself; its exit code, -9 after a SIGKILL."""
        assert self._process is not None
        code = self._process.wait(timeout_s)
        self._end_group()
        return code

    def kill(self, whole_group: bool = True) -> None:
        """SIGKILL: to the server and its Java process, or to the server alone, whose Java process then ends itself."""
        assert self._process is not None
        if whole_group:
            self._signal(signal.SIGKILL)
        else:
            self._process.kill()
        self._process.wait()
        if whole_group:
            self._end_group()

    def terminate(self) -> None:
        """SIGTERM."""
        assert self._process is not None
        self._process.terminate()

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.terminate()
        return self.wait_exit()

    def close(self) -> None:
        """Leave nothing running, whatever state it is in."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def freeze(self) -> None:
        """SIGSTOP to the server and its Java process: nothing of them goes on."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def _end_group(self) -> None:
        """What the process started ends with it; should something be left, end it."""
        self._signal(signal.SIGKILL)

    @property
    def process_id(self) -> int:
        """The id of the server's process."""
        assert self._process is not None
        return self._process.pid

    def java_process(self) -> int | None:
        """The id of the JVM that the server has started; None while there is none."""
        assert self._process is not None
        command = ["ps", "-o", "pid=,comm=", "--ppid", str(self._process.pid)]
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\n")
        return next((int(line.split()[0]) for line in found if line.endswith("java")), None)

    def wait_spark(self) -> None:
        """Wait until Spark runs, which comes after clients can connect."""
        self.rows("SELECT count(*) OVER () FROM (VALUES (1), (2)) AS v (i)")  # which nothing else answers
        eventually(lambda: "Spark runs" in self.log_text(), "Spark to start", START_S)

    def log_text(self) -> str:
        """What this life has written to stdout and stderr."""
        with self.log.open("rb") as file:
            file.seek(self._read_from)
            return file.read().decode("utf-8", "replace")

    # ---- clients

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """A psycopg connection; autocommit unless told otherwise."""
        options = {"autocommit": True, **options}
        return psycopg.connect(host=HOST, port=self.port, user="root", dbname="dev", connect_timeout=120, **options)

    def rows(self, sql: str, parameters: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """The rows of one query, on a connection of its own."""
        with self.connect() as connection:
            return connection.execute(sql, parameters).fetchall()

    def execute(self, *statements: str) -> None:
        """Run statements, on a connection of their own."""
        with self.connect() as connection:
            for sql in statements:
                connection.execute(sql)

    def flush(self, tries: int = 20) -> None:
        """FLUSH, also while jobs fail and are retried."""
        for left in reversed(range(tries)):
            try:
                self.execute("FLUSH")
                return
            except psycopg.errors.OperationalError:
                if not left or self.exit_code() is not None:
                    raise

    def psql(self, *arguments: str, script: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run psql against the server."""
        command = ["psql", "-X", "-h", HOST, "-p", str(self.port), "-U", "root", "-d", "dev", *arguments]
        environment = {**os.environ, "PAGER": "cat", "PGCONNECT_TIMEOUT": "120"}
        return subprocess.run(
            command, input=script, capture_output=True, text=True, timeout=240, check=False, env=environment
        )


def differences(server: Server, view: str, definition: str) -> str | None:
    """What a view has too much and too little against its definition, both read in one snapshot; None if nothing."""
    rows = server.rows(
        f"SELECT 0 AS side, v.* FROM (SELECT * FROM {view}) v UNION ALL SELECT 1, d.* FROM ({definition}) d"
    )
    kept = Counter(row[1:] for row in rows if row[0] == 0)
    wanted = Counter(row[1:] for row in rows if row[0] == 1)
    if kept == wanted:
        return None
    return f"{view}: too many {list((kept - wanted).items())[:5]}, missing {list((wanted - kept).items())[:5]}"


@contextlib.contextmanager
def served(folder: Path, *statements: str) -> Iterator[Server]:
    """A server that has run some statements, until the end of the block."""
    found = Server(folder)
    try:
        found.start()
        found.execute(*statements)
        yield found
    finally:
        found.close()
