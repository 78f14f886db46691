"""One connection as a state machine: messages in, bytes out, a session behind it. It does no network I/O itself.

`Connection.receive` is a generator: it runs only as fast as its bytes are taken, which is what keeps the memory of
a large result flat. The session's calls block, so whoever drives it does that in a thread of the connection's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import structlog

from headrace.errors import HeadraceError, InvalidText, NotSupported
from headrace.server import backend, frontend
from headrace.server.backend import Report
from headrace.server.frontend import FrontendMessage
from headrace.server.portals import (
    Named,
    Portal,
    Statement,
    close_result,
    is_blank,
    pieces,
    refuse_copy,
)
from headrace.server.rows import data_rows, row_description
from headrace.server.wire import ProtocolViolation
from headrace.session.result import Notice, Result, ResultColumn, SessionLike
from headrace.sql.types import spark_type_of_oid

_log = structlog.get_logger("headrace.server")
_CHUNK_BYTES: Final = 32 << 10
_COUNTED: Final = ("SELECT", "FETCH")
_DEFAULT_PARAMETERS: Final = {
    "server_version": "15.0",
    "server_encoding": "UTF8",
    "client_encoding": "UTF8",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "integer_datetimes": "on",
    "standard_conforming_strings": "on",
    "is_superuser": "on",
}

MakeSession = Callable[[dict[str, str]], SessionLike]
"""Start-up parameters (`user`, `database`, ...) to a session; raises `HeadraceError` to turn the client away."""


class Connection:
    """The protocol of one client. One thread at a time drives it."""

    def __init__(
        self,
        make_session: MakeSession,
        pid: int,
        secret: bytes,
        on_cancel: Callable[[int, bytes], None] = lambda pid, secret: None,
    ):
        self._make_session = make_session
        self._pid = pid
        self._secret = secret
        self._on_cancel = on_cancel
        self._out = bytearray()
        self._skipping = False
        self._statements: Named[Statement] = Named("prepared statement", "26000", "42P05")
        self._portals: Named[Portal] = Named("portal", "34000", "42P03")
        self._reported: dict[str, str] = {}
        self.session: SessionLike | None = None
        """The session, once the client is let in."""
        self.closed = False
        """Whether the connection is over: send what is left, then close."""

    def receive(self, messages: Iterable[FrontendMessage | ProtocolViolation]) -> Iterator[bytes]:
        """Handle messages in turn; yields bytes to send as they come up. A violation stands for bytes that are none."""
        for message in messages:
            if self.closed:
                break
            yield from self._handle(message)
        if self._out:
            yield self._take()

    def shut_down(self, error: HeadraceError) -> bytes:
        """The last words to a client that is being sent away."""
        self.closed = True
        return error_report(error, "FATAL").encode()

    def close(self) -> None:
        """Let go of portals and session. Errors of the session are logged."""
        self.closed = True
        for portal in self._portals.clear():
            portal.close()
        session, self.session = self.session, None
        if session is not None:
            try:
                session.close()
            except Exception:
                _log.exception("session did not close", pid=self._pid)

    def _handle(self, message: FrontendMessage | ProtocolViolation) -> Iterator[bytes]:
        if self._skipping and not isinstance(message, (frontend.Sync, frontend.Terminate, ProtocolViolation)):
            return
        try:
            if isinstance(message, ProtocolViolation):
                raise message
            yield from self._dispatch(message)
        except GeneratorExit:
            raise
        except Exception as error:
            self._fail(error, message)

    def _dispatch(self, message: FrontendMessage) -> Iterator[bytes]:
        match message:
            case frontend.Query(sql):
                yield from self._query(sql)
            case frontend.Execute(name, max_rows):
                yield from self._execute(name, max_rows)
            case frontend.Parse():
                self._parse(message)
            case frontend.Bind():
                self._bind(message)
            case frontend.Describe(kind, name):
                self._describe(kind, name)
            case frontend.Close(kind, name):
                self._close_named(kind, name)
            case frontend.Sync():
                self._sync()
            case frontend.Opaque(kind):
                self._opaque(kind)
            case frontend.Terminate():
                self.closed = True
            case frontend.Flush():
                pass
            case _:
                self._start(message)

    def _fail(self, error: Exception, message: FrontendMessage | ProtocolViolation) -> None:
        """Report an error, and recover from it as the kind of message asks."""
        fatal = isinstance(error, ProtocolViolation) or self.session is None
        if not isinstance(error, HeadraceError):
            _log.error("statement failed unexpectedly", pid=self._pid, exc_info=error)
        self._send(error_report(error, "FATAL" if fatal else "ERROR"))
        if fatal:
            self.closed = True
        elif isinstance(message, (frontend.Query, frontend.Opaque, frontend.Sync)):
            self._ready()
        else:
            self._skipping = True

    # Start-up

    def _start(self, message: FrontendMessage) -> None:
        match message:
            case frontend.SslRequest() | frontend.GssEncRequest():
                self._out += backend.ENCRYPTION_REFUSED
            case frontend.CancelRequest(pid, secret):
                self.closed = True
                self._on_cancel(pid, secret)
            case frontend.Startup(parameters, version):
                self._open(parameters, version)

    def _open(self, parameters: dict[str, str], version: int) -> None:
        options = tuple(name for name in parameters if name.startswith("_pq_."))
        if version != frontend.PROTOCOL_3_0 or options:
            self._send(backend.NegotiateProtocolVersion(0, options))
        for text in (*parameters, *parameters.values()):
            _require_utf8(text)
        if not parameters.get("user"):
            raise HeadraceError("no user name in the start-up packet", sqlstate="28000")
        parameters.setdefault("database", parameters["user"])
        self.session = self._make_session(parameters)
        self._send(backend.AuthenticationOk())
        known = {**_DEFAULT_PARAMETERS, "session_authorization": parameters["user"]}
        known["application_name"] = parameters.get("application_name", "")
        self._report_parameters({**known, **self.session.parameters})
        self._send(backend.BackendKeyData(self._pid, self._secret))
        self._ready()

    def _report_parameters(self, parameters: Mapping[str, str]) -> None:
        for name, text in parameters.items():
            if self._reported.get(name) != text:
                self._reported[name] = text
                self._send(backend.ParameterStatus(name, text))

    # Simple query

    def _query(self, sql: str) -> Iterator[bytes]:
        _require_utf8(sql)
        self._drop_portal("")
        self._statements.pop("")
        if is_blank(sql):
            self._send(backend.EMPTY_QUERY)
        else:
            refuse_copy(sql)
            for result in self._require_session().execute(sql):
                try:
                    yield from self._result(result)
                finally:
                    close_result(result)
        self._ready()

    def _result(self, result: Result) -> Iterator[bytes]:
        self._notices(result.notices)
        told, rows = len(result.notices), 0
        if result.columns is not None:
            self._send(row_description(result.columns))
            for batch in pieces(result):
                rows += batch.num_rows
                yield from self._rows(data_rows(batch, result.columns, ()))
        self._notices(result.notices[told:])
        self._complete(result.tag, rows)

    # Extended query

    def _parse(self, message: frontend.Parse) -> None:
        _require_utf8(message.sql)
        self._statements.require_free(message.name)
        if is_blank(message.sql):
            statement = Statement(None)
        else:
            refuse_copy(message.sql)
            types = [spark_type_of_oid(oid) for oid in message.type_oids]
            statement = Statement(self._require_session().prepare(message.sql, types), message.type_oids)
        self._statements.put(message.name, statement)
        self._send(backend.PARSE_COMPLETE)

    def _bind(self, message: frontend.Bind) -> None:
        self._portals.require_free(message.portal)
        statement = self._statements.get(message.statement)
        width = len(statement.columns or ())
        if len(message.result_formats) not in (0, 1, width):
            raise HeadraceError(
                f"bind message has {len(message.result_formats)} result formats but query has {width} columns",
                sqlstate=ProtocolViolation.sqlstate,
            )
        portal = Portal(statement, statement.texts(message.formats, message.values), message.result_formats)
        self._drop_portal(message.portal)
        self._portals.put(message.portal, portal)
        self._send(backend.BIND_COMPLETE)

    def _describe(self, kind: str, name: str) -> None:
        formats: tuple[int, ...] = ()
        columns: list[ResultColumn] | None
        if kind == "S":
            statement = self._statements.get(name)
            self._send(statement.describe_parameters())
            columns = statement.columns
        else:
            portal = self._portals.get(name)
            columns, formats = portal.statement.columns, portal.result_formats
        self._send(backend.NO_DATA if columns is None else row_description(columns, formats))

    def _execute(self, name: str, max_rows: int) -> Iterator[bytes]:
        portal = self._portals.get(name)
        if portal.statement.prepared is None:
            self._send(backend.EMPTY_QUERY)
            return
        again = portal.result is not None
        result = portal.start()
        if again and result.columns is None:
            raise HeadraceError(f'portal "{name}" cannot be run again', sqlstate="55000")
        if not again:
            self._notices(result.notices)
        told, rows = len(result.notices), 0
        for batch in portal.read(max(max_rows, 0)) if result.columns is not None else ():
            rows += batch.num_rows
            yield from self._rows(data_rows(batch, result.columns or (), portal.result_formats))
        self._notices(result.notices[told:])
        if result.columns is not None and not portal.exhausted:
            self._send(backend.PORTAL_SUSPENDED)
        else:
            self._complete(result.tag, rows)

    def _close_named(self, kind: str, name: str) -> None:
        if kind == "S":
            self._statements.pop(name)
        else:
            self._drop_portal(name)
        self._send(backend.CLOSE_COMPLETE)

    def _sync(self) -> None:
        self._skipping = False
        self._ready()

    def _opaque(self, kind: str) -> None:
        if kind == "F":
            raise NotSupported("function calls by message are not supported", hint="Call the function in a SELECT.")
        if kind == "p":
            raise ProtocolViolation("unexpected password message")
        # CopyData, CopyDone and CopyFail: the client had not heard yet that its COPY was refused.

    # Common to both

    def _require_session(self) -> SessionLike:
        if self.session is None:
            raise ProtocolViolation("message before start-up")
        return self.session

    def _drop_portal(self, name: str) -> None:
        portal = self._portals.pop(name)
        if portal is not None:
            portal.close()

    def _rows(self, messages: list[bytes]) -> Iterator[bytes]:
        """Send encoded rows; what there is goes out before the next batch is waited for."""
        out = self._out
        for message in messages:
            out += message
            if len(out) >= _CHUNK_BYTES:
                yield self._take()
        if out:
            yield self._take()

    def _notices(self, notices: Iterable[Notice]) -> None:
        for notice in notices:
            severity = {"S": notice.severity, "V": notice.severity}
            self._send(Report("N", {**severity, "C": notice.sqlstate, "M": notice.message}))

    def _complete(self, tag: str, rows: int) -> None:
        self._send(backend.CommandComplete(f"{tag} {rows}" if tag in _COUNTED else tag))

    def _ready(self) -> None:
        session = self._require_session()
        status = session.transaction_status
        if status == "I":
            for portal in self._portals.clear():
                portal.close()
        self._report_parameters(session.parameters)
        self._send(backend.ReadyForQuery(status))

    def _send(self, message: backend.BackendMessage) -> None:
        self._out += message.encode()

    def _take(self) -> bytes:
        data = bytes(self._out)
        self._out.clear()
        return data


def _require_utf8(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidText('invalid byte sequence for encoding "UTF8"', sqlstate="22021") from None


def error_report(error: Exception, severity: str = "ERROR") -> Report:
    """An exception as the message that tells the client; one that is not headrace's is an internal error."""
    fields = {"S": severity, "V": severity}
    if not isinstance(error, HeadraceError):
        text = str(error) or type(error).__name__
        return Report("E", {**fields, "C": "XX000", "M": text})
    fields |= {"C": error.sqlstate, "M": error.message}
    if error.detail:
        fields["D"] = error.detail
    if error.hint:
        fields["H"] = error.hint
    if error.position is not None:
        fields["P"] = str(error.position)
    return Report("E", fields)
