"""The server of the demonstration: a child process that can be killed and started again."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from headrace.errors import HeadraceError, OperationalError
from headrace.server.simple_client import ConnectionLost, PgClient, texts

HOST: Final = "127.0.0.1"
_START_S: Final = 120.0
_STOP_S: Final = 30.0
_OF_ANOTHER: Final = frozenset(("HEADRACE_CATALOG_URL", "HEADRACE_STATE_URL"))
"""What the environment says of where a database is: that is not this one."""
_POLL_S: Final = 0.2
_LOG_TAIL_BYTES: Final = 2000


def free_port(wanted: int) -> int | None:
    """`wanted` if nobody listens there (any free port for 0), else None."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted))
        except OSError:
            return None
        port: int = probe.getsockname()[1]
        return port


class DemoServer:
    """`headrace serve` on a directory and a port. Its output goes to a log file."""

    def __init__(self, data: Path, port: int, log: Path, scratch: Path):
        self.data = data
        self.port = port
        self.log = log
        self._scratch = scratch
        self._process: subprocess.Popen[bytes] | None = None
        self._sink: IO[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        return self._process.pid if self._process is not None else None

    def start(self, idle: Callable[[], None]) -> None:
        """Start it and wait until it takes connections, calling `idle` meanwhile.

        Raises `OperationalError` with the end of the log if it does not come up.
        """
        self._scratch.mkdir(parents=True, exist_ok=True)
        self._sink = self.log.open("ab")
        command = [sys.executable, "-m", "headrace.cli", "serve", "--data", str(self.data)]
        self._process = subprocess.Popen(
            [*command, "--host", HOST, "--port", str(self.port)],
            stdin=subprocess.DEVNULL,
            stdout=self._sink,
            stderr=subprocess.STDOUT,
            env={k: v for k, v in os.environ.items() if k not in _OF_ANOTHER} | {"TMPDIR": str(self._scratch)},
            start_new_session=True,
        )
        until = time.monotonic() + _START_S
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise self._failed(f"the server ended with exit code {self._process.returncode}")
            try:
                self.connect().close()
                return
            except ConnectionLost:
                idle()
                time.sleep(_POLL_S)
        raise self._failed(f"the server took no connections within {_START_S:g} s")

    def connect(self) -> PgClient:
        """A new connection. Raises `ConnectionLost`."""
        return PgClient(HOST, self.port, application_name="headrace demo")

    def kill(self) -> None:
        """SIGKILL to it and to its Java process: no chance to tidy up."""
        self._signal(signal.SIGKILL)
        self._reap()

    def stop(self) -> None:
        """Ask it to stop, and insist after a while. Does nothing if it does not run."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_S)
        self._signal(signal.SIGKILL)
        self._reap()

    def _signal(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait()
        if self._sink is not None:
            self._sink.close()
        self._process = self._sink = None

    def _failed(self, what: str) -> OperationalError:
        self.stop()
        tail = self.log.read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()
        return OperationalError(f"{what}; its log ({self.log}) ends with:\n{tail}")


def execute(client: PgClient, sql: str) -> None:
    """Run statements, and forget what they return."""
    for reply in client.query(sql):
        for _ in reply.rows:
            pass


Fetched = tuple[list[str], list[list[str | None]]]
"""Column names, and rows in text format."""


def select(client: PgClient, sql: str) -> Fetched:
    """The outcome of one query."""
    for reply in client.query(sql):
        if reply.description is None:
            raise HeadraceError(f"{reply.tag or 'the statement'} returns no rows")
        names = [field.name for field in reply.description.fields]
        return names, [texts(row) for row in reply.rows]
    raise HeadraceError("the server sent no reply")
