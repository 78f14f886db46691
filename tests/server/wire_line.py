"""A connection without a network: what one side sends, and what the other one says."""

from __future__ import annotations

from memory_session import Database

from headrace.server.backend import BackendDecoder, Bare, Report
from headrace.server.connection import Connection

SECRET = b"abcd" * 8


class Line:
    """A client without a socket."""

    def __init__(self, database: Database | None = None):
        self.database = database or Database()
        self.cancelled: list[tuple[int, bytes]] = []
        self.connection = Connection(
            self.database.session, 7, SECRET, lambda pid, secret: self.cancelled.append((pid, secret))
        )
        self._decoder = BackendDecoder()

    def say(self, *messages) -> list:
        return [m for data in self.connection.receive(messages) for m in self._decoder.feed(data)]

    def kinds(self, *messages) -> list[str]:
        return [m.kind if isinstance(m, Bare | Report) else type(m).__name__ for m in self.say(*messages)]
