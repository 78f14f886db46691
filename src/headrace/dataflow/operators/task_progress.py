"""What tasks tell the coordinator while they run: started, rows so far, acknowledged, declined.

One connection for each worker process, opened when there is first something to say and kept as long as the process
lives; lines of JSON, the first of them the token that the coordinator has given out. Nothing here ever waits, and a
listener that is slow or gone costs the task nothing but what it had to say: that an epoch may be committed is told by
other means.

A running task reports at most every `INTERVAL_S`. The listener's address travels with the epoch's parameters, with a
token that is new for each process. A report that a slow listener does not take is left out; a listener that is gone
is tried again after some seconds.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol

INTERVAL_S = 0.5
"""Least seconds between two reports of the rows of one task."""
RETRY_S = 5.0
"""Seconds until a listener that could not be reached is tried again."""
MOST_PENDING = 1 << 16
"""Bytes that are kept for a listener that does not take them; what comes on top is left out."""
_WORDS = 500


class Reporting(Protocol):
    """What a report needs of a task: who it is, and how far."""

    label: str
    partition: int
    attempt_number: int
    rows_in: int
    rows_out: int


class ProgressStream:
    """A stream to the listener at `host:port/token`. Of one process, for all its threads."""

    def __init__(self, address: str, clock: Callable[[], float] = time.monotonic):
        self.address = address
        self.process = os.getpid()
        place, _, self._token = address.partition("/")
        host, _, port = place.rpartition(":")
        self._place = (host, int(port))
        self._clock = clock
        self._socket: socket.socket | None = None
        self._pending = b""
        self._retry_at_s = 0.0
        self._sending = threading.Lock()

    def send(self, events: Sequence[dict[str, object]]) -> None:
        """Say something, if the listener takes it."""
        with self._sending:
            self._send(events)

    def _send(self, events: Sequence[dict[str, object]]) -> None:
        if self._socket is None and not self._open():
            return
        assert self._socket is not None
        data = b"".join(json.dumps(event).encode() + b"\n" for event in events)
        if len(self._pending) + len(data) <= MOST_PENDING:
            self._pending += data
        try:
            sent = self._socket.send(self._pending)
            self._pending = self._pending[sent:]
        except BlockingIOError:
            return
        except OSError:
            self.close()

    def _open(self) -> bool:
        if self._clock() < self._retry_at_s:
            return False
        self._retry_at_s = self._clock() + RETRY_S
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setblocking(False)
        try:
            made.connect_ex(self._place)
        except OSError:
            made.close()
            return False
        self._socket = made
        self._pending = json.dumps({"token": self._token}).encode() + b"\n"
        return True

    def close(self) -> None:
        """Let go of the stream; what comes next opens it again, after a while."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._retry_at_s = self._clock() + RETRY_S


_current: ProgressStream | None = None


def connection(address: str) -> ProgressStream:
    """This process's connection to a listener; that to an earlier one is given up."""
    global _current
    if _current is None or _current.address != address or _current.process != os.getpid():
        if _current is not None and _current.process == os.getpid():
            _current.close()
        _current = ProgressStream(address)
    return _current


class Reports:
    """The reports of the stages that run one after the other in one Spark task. Around their work, as a context."""

    def __init__(self, address: str, attempt: str, epoch: int, tasks: Sequence[Reporting]):
        self._to = connection(address) if address else None
        self._attempt, self._epoch = attempt, epoch
        self._tasks = tasks
        self._next_s = 0.0

    def __enter__(self) -> Reports:
        self._say("started")
        self._next_s = time.monotonic() + INTERVAL_S
        return self

    def look(self) -> None:
        """Say how many rows there are so far, now and then."""
        if self._to is not None and (now_s := time.monotonic()) >= self._next_s:
            self._next_s = now_s + INTERVAL_S
            self._say("progress")

    def acknowledged(self) -> None:
        """Reports that the task has written and acknowledged everything."""
        self._say("ack")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._say("decline", reason=f"{type(error).__name__}: {error}"[:_WORDS])

    def _say(self, kind: str, **also: str) -> None:
        if self._to is None:
            return
        self._to.send(
            [
                {
                    "kind": kind, "attempt": self._attempt, "epoch": self._epoch, "operator": task.label,
                    "task": task.partition, "try": task.attempt_number, "in": task.rows_in, "out": task.rows_out,
                    **also,
                }
                for task in self._tasks
            ]
        )  # fmt: skip
