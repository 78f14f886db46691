"""A small blocking client for the protocol: simple queries only, enough for the shell and the tests."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

from headrace.errors import HeadraceError, OperationalError
from headrace.server import backend, frontend
from headrace.server.backend import BackendDecoder, BackendMessage, Report, RowDescription
from headrace.session.result import Notice

_READ_BYTES: Final = 64 << 10


class ServerError(HeadraceError):
    """An error that a server reported."""


class ConnectionLost(OperationalError):
    """The server is not there, or no longer."""

    sqlstate = "08006"


@dataclass
class Reply:
    """One statement's outcome: rows come as they are read; `tag` is set after the last one."""

    description: RowDescription | None
    rows: Iterator[tuple[bytes | None, ...]]
    notices: list[Notice] = field(default_factory=list)
    tag: str = ""


class PgClient:
    """A connection to a server. Raises `ConnectionLost` where there is none, `ServerError` for what it reports."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 4566,
        *,
        user: str = "root",
        dbname: str = "dev",
        timeout_s: float | None = 10.0,
        **parameters: str,
    ):
        self._address = (host, port)
        self.parameters: dict[str, str] = {}
        """Settings the server reported."""
        self.transaction_status = "I"
        self._key = backend.BackendKeyData(0, b"")
        self._decoder = BackendDecoder()
        self._inbox: deque[BackendMessage] = deque()
        self._ready = self._failed = False
        try:
            self._socket = socket.create_connection(self._address, timeout_s)
        except OSError as error:
            raise ConnectionLost(
                f"could not connect to {host}:{port}: {error.strerror or error}",
                hint="Is it running? `headrace serve --data DIR` starts it.",
            ) from error
        try:
            self._start({"user": user, "database": dbname, "client_encoding": "UTF8", **parameters})
        except BaseException:
            self._socket.close()
            raise
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def query(self, sql: str) -> Iterator[Reply]:
        """Run a script: one reply for each statement, lazily. Rows that were not read are skipped.

        Leaving the iterator before its end cancels the rest.
        """
        self._settle()
        self._ready = self._failed = False
        self.send(frontend.Query(sql))
        notices: list[Notice] = []
        try:
            while True:
                message = self.receive()
                match message:
                    case RowDescription() | backend.CommandComplete():
                        reply = self._reply(message, notices)
                        yield reply
                        for _ in reply.rows:
                            pass
                        notices = []
                    case Report("N"):
                        notices.append(_notice(message))
                    case Report():
                        raise _error(message)
                    case backend.ReadyForQuery():
                        return
                    case _:
                        pass
        finally:
            self._settle()

    def cancel(self) -> None:
        """Ask the server to stop what this connection runs; may be called from another thread."""
        with contextlib.suppress(OSError), socket.create_connection(self._address, 10.0) as line:
            line.sendall(frontend.CancelRequest(self._key.pid, self._key.secret).encode())
            line.recv(1)

    def close(self) -> None:
        """Say goodbye."""
        with contextlib.suppress(OSError, ConnectionLost):
            self.send(frontend.Terminate())
        self._socket.close()

    def send(self, *messages: frontend.FrontendMessage) -> None:
        """Send messages as they are."""
        try:
            self._socket.sendall(b"".join(message.encode() for message in messages))
        except OSError as error:
            raise ConnectionLost(f"lost the connection to the server: {error.strerror or error}") from error

    def receive(self) -> BackendMessage:
        """The next message as it is. Raises `ConnectionLost` at the end."""
        while not self._inbox:
            try:
                data = self._socket.recv(_READ_BYTES)
            except OSError as error:
                raise ConnectionLost(f"lost the connection to the server: {error.strerror or error}") from error
            if not data:
                raise ConnectionLost("the server closed the connection")
            self._inbox.extend(self._decoder.feed(data))
        message = self._inbox.popleft()
        match message:
            case backend.ParameterStatus(name, value):
                self.parameters[name] = value
            case backend.ReadyForQuery(status):
                self.transaction_status, self._ready = status, True
            case Report("E"):
                self._failed = True
            case _:
                pass
        return message

    def __enter__(self) -> PgClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, parameters: dict[str, str]) -> None:
        self.send(frontend.Startup(parameters))
        while not self._ready:
            message = self.receive()
            if isinstance(message, Report) and message.kind == "E":
                raise _error(message)
            if isinstance(message, backend.BackendKeyData):
                self._key = message

    def _reply(self, message: RowDescription | backend.CommandComplete, notices: list[Notice]) -> Reply:
        if isinstance(message, backend.CommandComplete):
            return Reply(None, iter(()), notices, message.tag)
        reply = Reply(message, iter(()), notices)
        reply.rows = self._rows(reply)
        return reply

    def _rows(self, reply: Reply) -> Iterator[tuple[bytes | None, ...]]:
        while True:
            message = self.receive()
            match message:
                case backend.DataRow(values):
                    yield values
                case backend.CommandComplete(tag):
                    reply.tag = tag
                    return
                case Report("N"):
                    reply.notices.append(_notice(message))
                case Report():
                    raise _error(message)
                case _:
                    pass

    def _settle(self) -> None:
        """Cancel what still runs, and skip everything up to the server's next readiness."""
        if self._ready:
            return
        if not self._failed:
            self.cancel()
        with contextlib.suppress(ConnectionLost):
            while not self._ready:
                self.receive()


def _notice(report: Report) -> Notice:
    fields = report.fields
    return Notice(fields.get("M", ""), fields.get("S", "NOTICE"), fields.get("C", "00000"))


def _error(report: Report) -> ServerError:
    fields = report.fields
    position = fields.get("P", "")
    return ServerError(
        fields.get("M", "the server reported an error"),
        hint=fields.get("H"),
        detail=fields.get("D"),
        position=int(position) if position.isdigit() else None,
        sqlstate=fields.get("C", "XX000"),
    )


def texts(row: Sequence[bytes | None]) -> list[str | None]:
    """A row's values in text format as text."""
    return [None if value is None else value.decode("utf-8", "replace") for value in row]
