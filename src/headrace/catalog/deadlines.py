"""Limits how long a connection of a database may be in use: what has got no answer by then loses its line.

A server that does not answer cannot be made to by its own time-outs, and a network that swallows packets may go on
acknowledging them. Cutting the line here is what wakes whoever waits for it.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from headrace.common.lazy_dataclass import dataclass

_LINE: Final = "headrace_line"


class Deadlines:
    """One thread for all connections of an engine; each use has the same limit."""

    def __init__(self, limit_ms: int) -> None:
        self._limit_s = limit_ms / 1000
        self._lines: dict[int, tuple[float, socket.socket]] = {}
        self._changed = threading.Condition()
        self._watching = False

    def attach(self, engine: Engine) -> None:
        """Watch all connections that the engine makes, from when they are there to when they are given back."""

        @sa.event.listens_for(engine, "do_connect")
        def connect(dialect: Any, record: Any, arguments: Any, parameters: Any) -> Any:
            made = dialect.connect(*arguments, **parameters)
            # A descriptor of our own: that of the connection may be closed, and its number given out again.
            record.info[_LINE] = _Line(self, socket.socket(fileno=os.dup(made.fileno())))
            self._begin(record)
            return made

        @sa.event.listens_for(engine, "checkout")
        def checkout(connection: object, record: object, proxy: object) -> None:
            self._begin(record)

        @sa.event.listens_for(engine, "checkin")
        def checkin(connection: object, record: object) -> None:
            self._end(record)

        @sa.event.listens_for(engine, "close")
        def close(connection: Any, record: Any) -> None:
            self._end(record)
            line = record.info.pop(_LINE, None)
            if line is not None:
                line.socket.close()

    def _begin(self, record: Any) -> None:
        line = record.info.get(_LINE)
        if line is not None:
            self.begin(line.socket)

    def begin(self, line: socket.socket) -> None:
        """Give a line all of its time."""
        with self._changed:
            self._lines[id(line)] = (time.monotonic() + self._limit_s, line)
            if not self._watching:
                threading.Thread(target=self._watch, name="headrace-deadlines", daemon=True).start()
                self._watching = True

    def _end(self, record: Any) -> None:
        line = record.info.get(_LINE)
        if line is not None:
            self.end(line.socket)

    def end(self, line: socket.socket) -> None:
        """A line is in use no more."""
        with self._changed:
            self._lines.pop(id(line), None)

    def _watch(self) -> None:
        """Cut what is late; ends when nothing has been in use for a while."""
        while True:
            with self._changed:
                now_s = time.monotonic()
                for key, (due_s, line) in list(self._lines.items()):
                    if due_s <= now_s:
                        del self._lines[key]
                        with suppress(OSError):
                            line.shutdown(socket.SHUT_RDWR)
                # All have the same limit, so one that begins now is due after those that are there.
                next_s = min((due_s for due_s, _ in self._lines.values()), default=now_s + self._limit_s)
                self._changed.wait(max(next_s - now_s, 0.001))
                if not self._lines:
                    self._watching = False
                    return


@dataclass(frozen=True)
class _Line:
    deadlines: Deadlines
    socket: socket.socket


@contextmanager
def limited(connection: Connection) -> Iterator[None]:
    """Limit one use of a connection that is kept, and not given back to the engine's pool, between uses."""
    line = connection.connection.info.get(_LINE)
    if line is None:
        yield
        return
    line.deadlines.begin(line.socket)
    try:
        yield
    finally:
        line.deadlines.end(line.socket)


def renew(connection: Connection) -> None:
    """Something has come or gone on a connection, of much that is to: its time begins anew."""
    line = connection.connection.info.get(_LINE)
    if line is not None:
        line.deadlines.begin(line.socket)
