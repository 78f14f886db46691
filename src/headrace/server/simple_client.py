"""A small blocking client for the protocol: simple queries only, enough for the shell and the tests."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import field
from types import TracebackType
from typing import Final, Literal, TypeAlias

from headrace.common.lazy_dataclass import dataclass
from headrace.common.scram import ClientExchange
from headrace.errors import HeadraceError, NotSupported, OperationalError
from headrace.server import backend, frontend
from headrace.server.backend import BackendDecoder, BackendMessage, Report, RowDescription
from headrace.server.wire import ProtocolViolation, cstring, value
from headrace.session.result import Notice

_READ_BYTES: Final = 64 << 10
Encryption: TypeAlias = Literal["disable", "prefer", "require", "verify-ca", "verify-full"]


class ServerError(HeadraceError):
    """Raised for an error that the server has reported."""


class PasswordNeeded(OperationalError):
    """Raised where the server asks for a password and none was given."""

    sqlstate = "28P01"


class ConnectionLost(OperationalError):
    """Raised where the server cannot be reached, or has gone."""

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
        password: str | None = None,
        encryption: Encryption = "prefer",
        root_certificate: str | None = None,
        timeout_s: float | None = 10.0,
        **parameters: str,
    ):
        """`encryption` means what libpq's `sslmode` does; `root_certificate` is a file, by default the system's."""
        self._address = (host, port)
        self.parameters: dict[str, str] = {}
        """Settings the server reported."""
        self.transaction_status = "I"
        self._key = backend.BackendKeyData(0, b"")
        self._decoder = BackendDecoder()
        self._inbox: deque[BackendMessage] = deque()
        self._ready = self._failed = False
        self._password = password
        self._exchange: ClientExchange | None = None
        try:
            self._socket = socket.create_connection(self._address, timeout_s)
        except OSError as error:
            raise ConnectionLost(
                f"could not connect to {host}:{port}: {error.strerror or error}",
                hint="Is it running? `headrace serve --data DIR` starts it.",
            ) from error
        try:
            if encryption != "disable":
                self._encrypt(encryption, root_certificate)
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
                    case backend.CopyResponse(kind):
                        if kind == "G":
                            self.send(frontend.Opaque("f", cstring("this client sends no rows")))
                        raise NotSupported("COPY is not for this client", hint="Use psql, or a driver that copies.")
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
        """Says goodbye and closes the socket."""
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

    def _encrypt(self, encryption: Encryption, root_certificate: str | None) -> None:
        """Go on by TLS if the server takes it. Raises `ConnectionLost` if it has to and does not."""
        host, port = self._address
        self.send(frontend.SslRequest())
        try:
            answer = self._socket.recv(1)
            if answer == backend.ENCRYPTION_ACCEPTED:
                self._socket = _tls(encryption, root_certificate).wrap_socket(self._socket, server_hostname=host)
                return
        except OSError as error:
            raise ConnectionLost(f"cannot encrypt the connection to {host}:{port}: {error}") from error
        if encryption != "prefer" or answer != backend.ENCRYPTION_REFUSED:
            raise ConnectionLost(f"the server at {host}:{port} does not offer TLS", hint="sslmode=prefer does without.")

    def _start(self, parameters: dict[str, str]) -> None:
        self.send(frontend.Startup(parameters))
        proved = False
        while not self._ready:
            message = self.receive()
            match message:
                case Report("E"):
                    raise _error(message)
                case backend.BackendKeyData():
                    self._key = message
                case backend.AuthenticationSasl(mechanisms):
                    self._prove(mechanisms)
                case backend.AuthenticationSaslContinue(data):
                    self.send(frontend.Opaque("p", self._proof().final(data)))
                case backend.AuthenticationSaslFinal(data):
                    self._proof().check(data)
                    proved = True
                case backend.AuthenticationOk() if self._exchange is not None and not proved:
                    raise ConnectionLost("the server has not proved that it knows the password")
                case _:
                    pass

    def _prove(self, mechanisms: Sequence[str]) -> None:
        if self._password is None:
            raise PasswordNeeded("the server asks for a password", hint="Set PGPASSWORD.")
        self._exchange = ClientExchange(self._password)
        if self._exchange.mechanism not in mechanisms:
            raise ConnectionLost(f"the server asks for one of {', '.join(mechanisms)}, which this client lacks")
        first = self._exchange.first()
        self.send(frontend.Opaque("p", cstring(self._exchange.mechanism) + value(first)))

    def _proof(self) -> ClientExchange:
        if self._exchange is None:
            raise ProtocolViolation("the server goes on with a proof that it has not asked for")
        return self._exchange

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


def _tls(encryption: Encryption, root_certificate: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=root_certificate)
    if encryption != "verify-full":
        context.check_hostname = False
    if encryption in ("prefer", "require") and root_certificate is None:
        context.verify_mode = ssl.CERT_NONE
    return context


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
