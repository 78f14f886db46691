"""One connection as a state machine: messages in, bytes out, a session behind it. It does no network I/O itself.

`Connection.receive` is a generator: it runs only as fast as its bytes are taken, which is what keeps the memory of
a large result flat. The session's calls block, so whoever drives it does that in a thread of the connection's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple

import pyarrow as pa

from headrace.common.loggers import get_logger
from headrace.common.zones import Zone
from headrace.coordinator.reads import Later
from headrace.coordinator.writes.layout import Row
from headrace.errors import HeadraceError, InvalidText, NotSupported, QueryCanceled
from headrace.server import backend, frontend
from headrace.server.backend import Report
from headrace.server.copy_in import CopyIn
from headrace.server.copy_out import CopyOut, copy_data
from headrace.server.encoders import ENCODERS, Data, Encode, cut
from headrace.server.frontend import FrontendMessage
from headrace.server.gate import AccessGate, ClientSocket, Login
from headrace.server.portals import (
    Portal,
    PortalCursor,
    WireStatement,
    close_result,
    is_blank,
)
from headrace.server.row_messages import data_rows, row_blocks, row_description
from headrace.server.short_way import OneStatement, Quickly, StatementKey, WireStatements, asked_once, key_of
from headrace.server.wire import MessageReader, ProtocolViolation
from headrace.session.literal_texts import CHARS_AT_MOST
from headrace.session.named import ByName
from headrace.session.open_cursors import not_to_be_run
from headrace.session.prepared import WantedRow
from headrace.session.result import (
    CopySink,
    IdleLimit,
    Notice,
    Pending,
    Prepared,
    Result,
    ResultColumn,
    RowResult,
    SessionLike,
    shown_zone,
)
from headrace.session.transactions import aborted
from headrace.sql.type_names import spark_type_of_oid

_log = get_logger("headrace.server")
_CHUNK_BYTES: Final = 32 << 10
_PARSE_COMPLETE: Final = backend.PARSE_COMPLETE.encode()
SHORT_SECRET_BYTES: Final = 4
"""Bytes of a cancel key, before clients can take a longer one."""
_BIND_COMPLETE: Final = backend.BIND_COMPLETE.encode()
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


class _Copying(NamedTuple):
    """A COPY FROM STDIN that is under way."""

    rows: CopyIn
    rest: Iterator[Result] | None
    """What comes after it in its script; None where a portal runs it."""


class _Elsewhere:
    """A `Pending` of nothing: what comes next may take its time."""

    def __init__(self) -> None:
        self.ready: Future[object] = Future()
        self.ready.set_result(None)

    def finish(self) -> Result:
        """Not to be called: what comes next is not under way yet."""
        raise AssertionError("nothing was started")


ELSEWHERE: Final = _Elsewhere()
"""What `Connection.receive` yields where messages that were quick are not any more."""

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
        gate: AccessGate | None = None,
    ):
        self._make_session = make_session
        self._pid = pid
        self.secret = secret
        """What a cancel request must show; a part of it before version 3.2 of the protocol."""
        self._on_cancel = on_cancel
        self._gate = gate or AccessGate()
        self._login: Login | None = None
        self._parameters: dict[str, str] = {}
        self.wire = ClientSocket()
        """What is known of the client's line."""
        self.send_now: Callable[[bytes], None] = lambda data: None
        """Sends whole messages beside those that are yielded; any thread."""
        self.hurry: Callable[[], None] = lambda: None
        """Has whoever waits for the client to take rows ask for the next ones: there may be none. Any thread."""
        self._out = bytearray()
        self._skipping = False
        self._inline = False
        """Whether the messages at hand are handled where others wait: they were quick."""
        self.gathers = False
        """Whether rows that reads want are looked up by whoever drives the connection, and given to `finish_read`."""
        self._quickly: Quickly | None = None
        """What was taken quickly and is pending."""
        self._wanted: WantedRow | None = None
        """The row that it waits for."""
        self._lifted: Sequence[str | None] = ()
        """The values in the text that was taken quickly last."""
        self._wired = WireStatements()
        self._done: tuple[Quickly, Result | None] | None = None
        """What was taken quickly last, in the transaction that is open: its portal is made only if anybody asks."""
        self._unnamed: WireStatement | None = None
        self._copying: _Copying | None = None
        self._portals: ByName[Portal] = ByName("portal", "34000", "42P03")
        self._running: Portal | None = None
        """The portal that is being run."""
        self.notes = False
        """Whether somebody wants to know which statements the client uses."""
        self._noted: dict[StatementKey, WireStatement] = {}
        self._reported: dict[str, str] = {}
        self._told: Mapping[str, str] | None = None
        """The settings of the session, as it has given them last."""
        self.session: SessionLike | None = None
        """The session, once the client is let in."""
        self._number: int | None = None
        """That of the session, also after it has ended."""
        self.closed = False
        """Whether the connection is over: send what is left, then close."""
        self.abandoned = False
        """Whether nobody waits for answers any more: no other message is handled. Any thread may say so."""

    @property
    def admitted(self) -> bool:
        """Whether it is known who the client is."""
        return self._login is not None and self._login.done

    @property
    def user(self) -> str:
        """The role that the client wants to be, or is."""
        return self._parameters.get("user", "")

    def is_quick(self, messages: Iterable[FrontendMessage | ProtocolViolation]) -> bool:
        """Whether these messages can be handled without blocking: what takes its time is waited for elsewhere."""
        self._inline = False
        self._make_portal()
        if self.session is None or self._skipping or self._copying is not None:
            return False
        if any(p.holds_rows for p in self._portals.all()):
            return False
        bound: set[str] = set()
        parsed: set[str] = set()
        self._inline = all(self._is_quick(message, bound, parsed) for message in messages)
        return self._inline

    def _is_quick(self, message: FrontendMessage | ProtocolViolation, bound: set[str], parsed: set[str]) -> bool:
        """`bound` are the portals that messages before this one make of quick statements, `parsed` such statements."""
        match message:
            case frontend.Bind():
                bound.add(message.portal)
                if message.statement in parsed:
                    return True
                statement = self._statements_known(message.statement)
                return statement is not None and statement.is_quick
            case frontend.Parse(name, sql, oids):
                parsed.add(name)
                return self._known_statement(sql, oids) is not None
            case frontend.Query(sql):
                knows = getattr(self.session, "knows_text", None)
                return knows is not None and bool(knows(sql))
            case frontend.Describe("S", name):
                return name in parsed
            case frontend.Describe(kind) | frontend.Close(kind):
                return kind == "P"
            case frontend.Execute(name):
                return name in bound or self._is_portal_quick(name)
            case frontend.Sync() | frontend.Flush():
                return True
        return False

    def _known_statement(self, sql: str, oids: Sequence[int]) -> Prepared | None:
        """What the session prepares a text to without blocking; None where it may block."""
        find: Callable[..., Prepared | None] | None = getattr(self.session, "known_statement", None)
        return None if find is None else find(sql, [spark_type_of_oid(oid) for oid in oids])

    def _is_portal_quick(self, name: str) -> bool:
        with contextlib.suppress(HeadraceError):
            return self._portals.get(name).statement.is_quick
        return False

    def _statements_known(self, name: str) -> WireStatement | None:
        try:
            return self._statement(name)
        except HeadraceError:
            return None

    def receive(self, messages: Iterable[FrontendMessage | ProtocolViolation]) -> Generator[Data | Pending]:
        """Handle messages in turn; yields bytes to send as they come up. A violation stands for bytes that are none.

        What is pending is yielded, too: the generator is to be gone on with once that is ready; after `ELSEWHERE` by
        somebody for whom nobody else waits.
        """
        self._make_portal()
        for message in messages:
            if self.closed or self.abandoned:
                break
            yield from self._handle(message)
        if self._out:
            yield self._take()

    # What clients send for a prepared statement: most of what a database gets whose rows are read and written singly.

    def take_quickly(
        self, messages: Sequence[FrontendMessage | ProtocolViolation]
    ) -> bytes | Pending | WantedRow | None:  # fmt: skip
        """Answer one statement by the short way, if messages ask for that and it does not block; None if not.

        What is pending is for `finish_quickly`, once it is ready; the row that is wanted for `finish_read`.
        """
        asked = asked_once(messages)
        statement = None if asked is None else self._statement_asked(asked)
        if asked is None or statement is None:
            return None
        self._done = None
        if self._portals:
            self._drop_portal("")
        begun, bind = b"", asked.bind
        formats: tuple[int, ...] = ()
        if bind is None or asked.parse is not None:
            self._unnamed = None if bind is None else statement
            begun = b"" if bind is None else _PARSE_COMPLETE
        try:
            values = self._lifted if bind is None else statement.texts(bind.formats, bind.values)
        except Exception as error:
            return self._failed_quickly(begun, error)
        if bind is not None:
            begun, formats = begun + _BIND_COMPLETE, bind.result_formats
        if self.notes:
            self._note_used(asked, statement)
        head = begun + statement.described(formats) if asked.described else begun
        self._quickly = quickly = Quickly(head, statement, values, formats, bind is not None)
        try:
            started = statement.begin(values, together=self.gathers)
        except Exception as error:
            return self._failed_quickly(head, error)
        if started is None:
            self._quickly = None
        if isinstance(started, WantedRow):
            self._wanted = started
        return self._completed_quickly(quickly, started) if isinstance(started, Result) else started

    def _statement_asked(self, asked: OneStatement) -> WireStatement | None:
        """The statement, if the short way is one for it now."""
        session, bind = self.session, asked.bind
        if session is None or self._skipping or self._copying is not None:
            return None
        if self._portals and any(p.holds_rows for p in self._portals.all()):
            return None
        if asked.query is not None:
            find = getattr(session, "known_text", None)
            found = None if find is None else find(asked.query.sql)
            if found is None or found[0].columns is None:
                return None
            self._lifted = found[1]
            return self._wired.of(found[0])
        assert bind is not None
        if asked.parse is not None:
            known = self._known_statement(asked.parse.sql, asked.parse.type_oids)
            statement = None if known is None else self._wired.of(known, asked.parse.type_oids)
        else:
            statement = self._statements_known(bind.statement)
            if statement is None or not statement.is_quick:
                return None
        if statement is not None and statement.columns is not None and session.transaction_status != "I":
            return None  # its portal outlives it, and may be read from
        return statement

    def _note_used(self, asked: OneStatement, statement: WireStatement) -> None:
        """Note by what the client has asked for a statement."""
        key = key_of(asked)
        if key is not None:
            self._noted[key[0]] = statement

    def _note_text(self, sql: str) -> None:
        """The same of a text that was run the ordinary way, if it is like others before."""
        find = getattr(self.session, "planned_text", None)
        found = None if find is None else find(sql)
        key = None if found is None else key_of(OneStatement(frontend.Query(sql), None, None, True))
        if found is not None and key is not None:
            self._noted[key[0]] = self._wired.of(found)

    def finish_read(self, row: Row | Later | None) -> bytes | None:
        """The answer to a read that has waited for a row; None where it is to be done the ordinary way after all."""
        quickly = self._quickly
        assert quickly is not None and self._wanted is not None
        self._quickly, wanted, self._wanted = None, self._wanted, None
        if isinstance(row, Later):
            return None
        try:
            result = wanted.read.result(row)
        except Exception:  # of whatever kind: the ordinary way says what is wrong
            return None
        return self._completed_quickly(quickly, result)

    def finish_quickly(self, pending: Pending) -> bytes:
        """The answer, once what `take_quickly` has left pending is ready."""
        quickly = self._quickly
        assert quickly is not None
        try:
            result = pending.finish()
        except Exception as error:
            return self._failed_quickly(quickly.head, error)
        return self._completed_quickly(quickly, result)

    def _completed_quickly(self, quickly: Quickly, result: Result) -> bytes:
        try:
            columns = result.columns
            wire, formats = quickly.statement, quickly.result_formats
            rows = [] if columns is None else quick_answer(wire, formats, result, columns, self._zone)
        except Exception as error:
            return self._failed_quickly(quickly.head, error)
        self._quickly = None
        if quickly.extended and self._require_session().transaction_status != "I":
            # Else it would be gone when the client is told.
            self._done = quickly, result
        self._out += quickly.head
        if result.notices:
            self._notices(result.notices)
        self._out += b"".join(rows)
        self._complete(result.tag, len(rows))
        self._ready()
        return self._take()

    def _make_portal(self) -> None:
        """Make the portal of what was taken quickly last: other messages may name it."""
        done, self._done = self._done, None
        if done is not None:
            quickly, result = done
            portal = quickly.portal(result, self._require_session().savepoints_made)
            portal.failed = result is None
            self._portals.put("", portal)

    def _failed_quickly(self, head: bytes, error: Exception) -> bytes:
        quickly, self._quickly = self._quickly, None
        extended = quickly is None or quickly.extended
        if quickly is not None and extended:
            self._done = quickly, None
        self._out += head if extended else b""
        self._fail(error, skips=extended)
        if extended and not self.closed:
            self._sync()
        return self._take()

    def shut_down(self, error: HeadraceError) -> bytes:
        """The last words to a client that is being sent away."""
        self.closed = True
        return error_report(error, "FATAL").encode()

    @property
    def at_rest(self) -> bool:
        """Whether a client is let in, and nothing is under way or left over from what it has asked for."""
        if self.session is None or self.closed or self._skipping or self._copying is not None or self._done is not None:
            return False
        return not self._portals and self.session.transaction_status == "I"

    def take_noted(self) -> dict[StatementKey, WireStatement]:
        """The statements that were used since the last call, by what the client has asked for them."""
        noted, self._noted = self._noted, {}
        return noted

    def close(self) -> None:
        """Let go of portals and session. Errors of the session are logged."""
        self.closed = True
        self._end_copy()
        for portal in self._portals.clear():
            portal.close()
        session, self.session = self.session, None
        if session is not None:
            self._note("logout")
            try:
                session.close()
            except Exception:
                _log.exception("session did not close", pid=self._pid)

    def _handle(self, message: FrontendMessage | ProtocolViolation) -> Iterator[Data | Pending]:
        if self._skipping and not isinstance(message, (frontend.Sync, frontend.Terminate, ProtocolViolation)):
            return
        stopped = False
        try:
            if isinstance(message, ProtocolViolation):
                raise message
            yield from self._dispatch(message) if self._copying is None else self._copy(self._copying, message)
        except GeneratorExit:
            raise
        except Exception as error:
            copying = self._end_copy()
            skips = not isinstance(message, (frontend.Query, frontend.Opaque, frontend.Sync))
            self._fail(error, skips=skips if copying is None else copying.rest is None)
            stopped = isinstance(error, QueryCanceled)
        if stopped:
            # Nobody has waited for the client to take its rows, to which those of what comes next would be added.
            yield self._take()

    def _dispatch(self, message: FrontendMessage) -> Iterator[Data | Pending]:
        match message:
            case frontend.Query(sql):
                yield from self._query(sql)
            case frontend.Execute(name, max_rows):
                yield from self._execute(name, max_rows)
            case frontend.Parse(_, sql, oids):
                if self._inline and self._known_statement(sql, oids) is None:
                    yield self._elsewhere()
                self._parse(message)
            case frontend.Bind():
                self._bind(message)
            case frontend.Describe(kind, name):
                self._describe(kind, name)
            case frontend.Close(kind, name):
                self._close_named(kind, name)
            case frontend.Sync():
                self._sync()
            case frontend.Opaque(kind, body):
                self._opaque(kind, body)
            case frontend.Terminate():
                self.closed = True
            case frontend.Flush():
                pass
            case _:
                self._start(message)

    def _fail(self, error: Exception, *, skips: bool) -> None:
        """Report an error; what follows is left out up to the client's `Sync`, or it is told now to go on."""
        fatal = isinstance(error, ProtocolViolation) or self.session is None
        if not isinstance(error, HeadraceError):
            _log.error("statement failed unexpectedly", pid=self._pid, exc_info=error)
        if self.session is None and self._parameters:
            why = error.message if isinstance(error, HeadraceError) else type(error).__name__
            _log.warning("client turned away", user=self.user, client=self.wire.address, reason=why)
            self._note("login_failed", sqlstate=getattr(error, "sqlstate", None), message=why)
        self._send(error_report(error, "FATAL" if fatal else "ERROR"))
        if self.session is not None:
            self.session.failed()
        if fatal:
            self.closed = True
        elif skips:
            self._skipping = True
        else:
            self._ready()

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
        if self._login is not None:
            raise ProtocolViolation("a second start-up packet")
        options = tuple(name for name in parameters if name.startswith("_pq_."))
        granted = min(version, frontend.PROTOCOL_3_2)
        if version != granted or options:
            self._send(backend.NegotiateProtocolVersion(granted, options))
        if granted < frontend.PROTOCOL_3_2:
            self.secret = self.secret[:SHORT_SECRET_BYTES]
        for text in (*parameters, *parameters.values()):
            _require_utf8(text)
        if not parameters.get("user"):
            raise HeadraceError("no user name in the start-up packet", sqlstate="28000")
        parameters.setdefault("database", parameters["user"])
        self._parameters = parameters
        self._login = self._gate.login(parameters["user"], parameters["database"], self.wire)
        self._go_in(self._login)

    def _go_in(self, login: Login) -> None:
        """Tell the client what it is to prove, or let it in."""
        for message in login.to_send:
            self._send(message)
        if not login.done:
            return
        parameters = self._parameters
        self.session = self._make_session(parameters)
        self._number = self.session.number
        self.session.client = self.wire.address
        self._note("login")
        self.session.find_portal = self._portal_cursor
        self.session.drop_portals = self._drop_portals
        self.session.tell = self._tell
        self.session.stopped = lambda: self.hurry()
        self._send(backend.AuthenticationOk())
        known = {**_DEFAULT_PARAMETERS, "session_authorization": parameters["user"]}
        known["application_name"] = parameters.get("application_name", "")
        self._report_parameters({**known, **self.session.parameters})
        self._send(backend.BackendKeyData(self._pid, self.secret))
        self._notices(self.session.greeting())
        self._ready()

    def _note(self, event: str, **said: str | None) -> None:
        """Tell the audit log of the client."""
        known = self._parameters
        self._gate.note(
            event, user=self.user, client=self.wire.address or None, connection=self._pid,
            session=self._number,
            database=known.get("database"), application=known.get("application_name"),
            encrypted=None if not self.wire.encrypted else "yes", **said,
        )  # fmt: skip

    def _report_parameters(self, parameters: Mapping[str, str]) -> None:
        for name, text in parameters.items():
            if self._reported.get(name) != text:
                self._reported[name] = text
                self._send(backend.ParameterStatus(name, text))

    # Simple query

    def _query(self, sql: str) -> Iterator[Data | Pending]:
        _require_utf8(sql)
        self._drop_portal("")
        self._unnamed = None
        if is_blank(sql):
            self._send(backend.EMPTY_QUERY)
        else:
            started = self._started(sql)
            if started is None and self._inline:
                yield self._elsewhere()
            if started is not None and not isinstance(started, Result):
                yield started
                started = started.finish()
            results = self._require_session().execute(sql) if started is None else iter((started,))
            yield from self._script(results)
            if self.notes:
                self._note_text(sql)
            return
        self._ready()

    def _script(self, results: Iterator[Result]) -> Iterator[Data]:
        """Send the results of a script; where one of its statements takes rows from the client, it is left there."""
        try:
            for result in results:
                if result.sink is not None:
                    self._begin_copy(result, result.sink, results)
                    return
                try:
                    yield from self._result(result)
                finally:
                    close_result(result)
        except BaseException:
            _close_script(results)
            raise
        self._ready()

    def _started(self, sql: str) -> Result | Pending | None:
        """What becomes of a text that the session can start without waiting for it."""
        start = getattr(self._require_session(), "start_text", None)
        found: Result | Pending | None = None if start is None else start(sql)
        return found

    def _result(self, result: Result) -> Iterator[Data]:
        if result.copy is not None:
            yield from self._copy_out(result)
            return
        self._notices(result.notices)
        told, batches = len(result.notices), _Counted(result.batches)
        if result.columns is not None:
            formats = (1,) if result.binary else ()
            self._send(row_description(result.columns, formats))
            yield from self._rows(result, batches, _rows_encoder(result.columns, formats, self._zone))
        self._notices(result.notices[told:])
        self._complete(result.tag, batches.rows)

    # Extended query

    def _parse(self, message: frontend.Parse) -> None:
        _require_utf8(message.sql)
        statements = self._require_session().statements
        statements.require_free(message.name)
        if not message.name:
            self._unnamed = None  # also where this one is in error
        if is_blank(message.sql):
            statement = WireStatement(None)
        else:
            types = [spark_type_of_oid(oid) for oid in message.type_oids]
            statement = WireStatement(self._require_session().prepare(message.sql, types), message.type_oids)
        if message.name:
            statements.put(message.name, statement)
        else:
            self._unnamed = statement
            if self.notes and len(message.sql) <= CHARS_AT_MOST:
                self._noted[message.sql, message.type_oids] = statement
        self._send(backend.PARSE_COMPLETE)

    def _bind(self, message: frontend.Bind) -> None:
        self._portals.require_free(message.portal)
        statement = self._statement(message.statement)
        width = len(statement.columns or ())
        if len(message.result_formats) not in (0, 1, width):
            raise HeadraceError(
                f"bind message has {len(message.result_formats)} result formats but query has {width} columns",
                sqlstate=ProtocolViolation.sqlstate,
            )
        since = self._require_session().savepoints_made
        portal = Portal(statement, statement.texts(message.formats, message.values), message.result_formats, since)
        self._drop_portal(message.portal)
        self._portals.put(message.portal, portal)
        if self.notes and message.statement:
            self._noted[message.statement] = statement
        self._out += _BIND_COMPLETE

    def _describe(self, kind: str, name: str) -> None:
        formats: tuple[int, ...] = ()
        columns: list[ResultColumn] | None
        if kind == "S":
            statement = self._statement(name)
            self._send(statement.describe_parameters())
            columns = statement.columns
        elif not self._portals.has(name) and self._require_session().cursors.has(name):
            cursor = self._require_session().cursors.get(name)
            columns, formats = cursor.columns, (1,) if cursor.binary else ()
        else:
            portal = self._portals.get(name)
            columns, formats = portal.statement.columns, portal.result_formats
        if columns is None:
            self._send(backend.NO_DATA)
        else:
            self._send(row_description(columns, formats))

    def _execute(self, name: str, max_rows: int) -> Iterator[Data | Pending]:
        portal = self._portals.get(name)
        if portal.statement.prepared is None:
            self._send(backend.EMPTY_QUERY)
            return
        again = portal.result is not None
        if (again or portal.failed) and self._require_session().transaction_status == "E":
            raise aborted()
        if portal.failed:
            raise not_to_be_run(name)
        self._running = portal
        try:
            yield from self._run_portal(name, portal, max_rows, again=again)
        except BaseException:
            portal.failed = True
            portal.close()
            raise
        finally:
            self._running = None

    def _run_portal(self, name: str, portal: Portal, max_rows: int, *, again: bool) -> Iterator[Data | Pending]:
        pending = portal.begin()
        if pending is not None:
            yield pending
        elif self._inline and not portal.is_started:
            yield self._elsewhere()
        result = portal.start()
        if again and (result.columns is None or result.copy is not None):
            raise HeadraceError(f'portal "{name}" cannot be run again', sqlstate="55000")
        if result.sink is not None:
            self._begin_copy(result, result.sink, None)
            return
        if result.copy is not None:
            yield from self._copy_out(result)
            return
        if not again:
            self._notices(result.notices)
        told, batches = len(result.notices), _Counted(portal.read(max(max_rows, 0)))
        if result.columns is not None:
            encode = _rows_encoder(result.columns, portal.result_formats, self._zone)
            yield from self._rows(result, batches, encode)
        self._notices(result.notices[told:])
        if result.columns is not None and not portal.exhausted:
            self._send(backend.PORTAL_SUSPENDED)
        else:
            self._complete(result.tag, batches.rows)

    def _close_named(self, kind: str, name: str) -> None:
        if kind == "S":
            if name:
                self._require_session().statements.pop(name)
            else:
                self._unnamed = None
        else:
            self._drop_portal(name)
        self._send(backend.CLOSE_COMPLETE)

    def _sync(self) -> None:
        self._skipping = False
        self._ready()

    def _opaque(self, kind: str, body: bytes) -> None:
        login = self._login
        if kind == "p" and login is not None and self.session is None:
            login.answer(body)
            self._go_in(login)
            return
        self._require_session()
        if kind == "F":
            raise NotSupported("function calls by message are not supported", hint="Call the function in a SELECT.")
        if kind == "p":
            raise ProtocolViolation("unexpected password message")
        # CopyData, CopyDone and CopyFail: the client had not heard yet that its COPY has failed.

    # COPY

    def _copy_out(self, result: Result) -> Iterator[Data]:
        assert result.copy is not None
        columns, told, batches = result.columns or [], len(result.notices), _Counted(result.batches)
        out = CopyOut(result.copy, columns, self._zone)
        self._notices(result.notices)
        self._send(backend.CopyResponse("H", result.copy.form == "binary", len(columns)))
        self._out += b"".join(copy_data(out.head()))
        yield self._take()  # before rows are waited for
        with result.sending() as check:
            first, rest = out.begin(batches)
            if first:
                yield b"".join(first)
            yield from self._sent(_made(result, rest, out.messages), check)
        self._out += b"".join(copy_data(out.end()))
        self._send(backend.COPY_DONE)
        self._notices(result.notices[told:])
        self._complete(f"COPY {batches.rows}", 0)

    def _begin_copy(self, result: Result, sink: CopySink, rest: Iterator[Result] | None) -> None:
        self._notices(result.notices)
        self._copying = _Copying(CopyIn(sink), rest)
        self._send(backend.CopyResponse("G", sink.format.form == "binary", len(sink.columns)))

    def _copy(self, copying: _Copying, message: FrontendMessage) -> Iterator[Data]:
        """Handle a message from a client that is to send rows."""
        match message:
            case frontend.Opaque("d", body):
                copying.rows.feed(body)
            case frontend.Opaque("c"):
                result = copying.rows.finish()
                self._copying = None
                self._notices(result.notices)
                self._complete(result.tag, 0)
                if copying.rest is not None:
                    yield from self._script(copying.rest)
            case frontend.Opaque("f", body):
                reason = MessageReader(body).cstring()
                copying.rows.fail(QueryCanceled(f"COPY from stdin failed: {reason}"))
            case frontend.Flush() | frontend.Sync():
                pass  # sent before the client knew what the statement was
            case frontend.Terminate():
                self.closed = True
            case _:
                kind = message.encode()[0]
                copying.rows.fail(
                    HeadraceError(f"unexpected message type 0x{kind:02X} during COPY from stdin", sqlstate="08P01")
                )

    def _end_copy(self) -> _Copying | None:
        """Give up a COPY FROM that is under way; returns it."""
        copying, self._copying = self._copying, None
        if copying is not None:
            copying.rows.sink.close()
            if copying.rest is not None:
                _close_script(copying.rest)
        return copying

    # Common to both

    def _elsewhere(self) -> Pending:
        """What was quick when the messages came is not any more, and others must not wait for it.

        A message before it may have begun a transaction, or somebody has changed the table meanwhile.
        """
        self._inline = False
        return ELSEWHERE

    @property
    def _zone(self) -> Zone:
        return shown_zone(self._require_session())

    def _require_session(self) -> SessionLike:
        if self.session is None:
            raise ProtocolViolation("message before start-up")
        return self.session

    def _statement(self, name: str) -> WireStatement:
        """A prepared statement; the unnamed one is the connection's own, as the others are not."""
        if name or self._unnamed is None:
            return WireStatement.of(self._require_session().statements.get(name))
        return self._unnamed

    def _portal_cursor(self, name: str) -> PortalCursor | None:
        if not name or not self._portals.has(name):
            return None
        portal = self._portals.get(name)
        return None if portal.statement.columns is None else PortalCursor(name, portal)

    def _drop_portal(self, name: str) -> None:
        portal = self._portals.pop(name)
        if portal is not None:
            portal.close()

    def _drop_portals(self, since: int) -> None:
        """A transaction has ended, or gone back to a savepoint: let go of what was made since then.

        The portal that does it is still needed, and goes when it has been run.
        """
        if self._portals:
            for portal in self._portals.pop_those(lambda portal: portal.since >= since):
                if portal is not self._running:
                    portal.close()

    def _rows(self, result: Result, batches: Iterable[pa.RecordBatch], encode: Encode) -> Iterator[Data]:
        """Send rows of a result, while that is allowed; errors are the session's."""
        with result.sending() as check:
            yield from self._sent(_made(result, batches, encode), check)

    def _sent(self, made: Generator[Iterable[Data]], check: Callable[[], None]) -> Iterator[Data]:
        with contextlib.closing(made):
            for messages in made:
                yield from self._pieces(messages, check)
            check()  # nobody may have waited for the client to take the last ones

    def _pieces(self, messages: Iterable[Data], check: Callable[[], None]) -> Iterator[Data]:
        """Encoded rows, the large pieces as they are; what there is goes out before others are waited for.

        Where `check` raises, nothing is taken that is to be sent: what other statements have said is in it, too.
        """
        out = self._out
        for message in messages:
            if len(message) >= _CHUNK_BYTES:
                check()
                if out:
                    yield self._take()
                    check()
                yield message
                continue
            out += message
            if len(out) >= _CHUNK_BYTES:
                check()
                yield self._take()
        if out:
            check()
            yield self._take()

    def _notices(self, notices: Iterable[Notice]) -> None:
        for notice in notices:
            self._send(_report(notice))

    def _tell(self, notice: Notice) -> None:
        """Tell the client at once, while a statement runs: between any two messages it may be told something."""
        self.send_now(_report(notice).encode())

    def _complete(self, tag: str, rows: int) -> None:
        self._out += backend.completed(f"{tag} {rows}" if tag in _COUNTED else tag)

    def idle_limit(self) -> IdleLimit | None:
        """How long the client may ask for nothing. Does not block."""
        return None if self.session is None else self.session.idle_limit()

    def send_limit_s(self) -> float | None:
        """Seconds for which the client may take nothing. Does not block."""
        return None if self.session is None else self.session.send_limit_s

    def sends_until_s(self) -> float | None:
        """By the monotonic clock, until when rows that are being sent may be. Does not block."""
        return None if self.session is None else self.session.sends_until_s

    def expire(self, error: HeadraceError) -> None:
        """The client is being sent away: it has held too long what others need."""
        _log.warning("client sent away", pid=self._pid, reason=error.message)
        if self.session is not None:
            self.session.expired(error)

    @property
    def is_copying(self) -> bool:
        """Whether a client is to send rows: a statement runs, also while none of them come. Any thread may ask."""
        return self._copying is not None

    def begin(self) -> None:
        """Messages have come to an idle connection. Does not block; a cancel that comes from now on is for them."""
        session = self.session
        if session is not None and self._copying is None:
            session.begin_request()

    def _ready(self) -> None:
        session = self._require_session()
        session.begin_request()  # what was to be cancelled has ended
        status = session.transaction_status
        if status == "I":
            self._done = None
            self._drop_portals(0)
        parameters = session.parameters
        if parameters is not self._told:
            self._report_parameters(parameters)
            self._told = parameters
        self._out += backend.READY[status]

    def _send(self, message: backend.BackendMessage) -> None:
        self._out += message.encode()

    def _take(self) -> bytes:
        data = bytes(self._out)
        self._out.clear()
        return data


_ABOUT: Final = {"schema": "s", "table": "t", "column": "c", "datatype": "d", "constraint": "n"}
"""The fields of an error by what it is about."""


class _Counted:
    """Batches, and how many rows those had that were taken."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = next(self._batches)
        self.rows += batch.num_rows
        return batch


def _rows_encoder(columns: Sequence[ResultColumn], formats: Sequence[int], zone: Zone) -> Encode:
    return lambda batch: row_blocks(batch, columns, formats, zone)


def _made(result: Result, batches: Iterable[pa.RecordBatch], encode: Encode) -> Generator[Iterable[Data]]:
    """The messages of rows, made ahead of their client unless the next ones may be long in coming."""
    if result.follows:
        return (encode(rows) for rows in cut(batches))
    return ENCODERS.encoded(batches, encode)


def _close_script(results: Iterator[Result]) -> None:
    """Run no more of a script, and take back what it has done as far as that is not committed."""
    close = getattr(results, "close", None)
    if close is not None:
        with contextlib.suppress(HeadraceError):
            close()


def quick_answer(
    statement: WireStatement, formats: Sequence[int], result: Result, columns: Sequence[ResultColumn], zone: Zone
) -> list[bytes]:
    """The messages with all rows of a result, for at most one format."""
    if isinstance(result, RowResult):
        only = statement.row(result.values, formats)
        if only is not None:
            return [only]
    return [message for batch in result.batches for message in data_rows(batch, columns, formats, zone)]


def _report(notice: Notice) -> Report:
    return Report("N", {"S": notice.severity, "V": notice.severity, "C": notice.sqlstate, "M": notice.message})


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
    if error.context:
        fields["W"] = error.context
    fields |= {_ABOUT[name]: text for name, text in error.about.items()}
    if error.detail:
        fields["D"] = error.detail
    if error.hint:
        fields["H"] = error.hint
    if error.position is not None:
        fields["P"] = str(error.position)
    return Report("E", fields)
