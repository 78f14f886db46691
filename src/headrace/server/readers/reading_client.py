"""A client of a reading process: what it sends is answered here, or goes on to the server, which answers through here.

Before the login only TLS is this process's own. A client and its line to the server end together.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from concurrent.futures import Executor
from typing import Final, cast

from headrace.common.loggers import get_logger
from headrace.errors import QueryCanceled
from headrace.server.backend import ENCRYPTION_ACCEPTED, ENCRYPTION_REFUSED
from headrace.server.connection import error_report
from headrace.server.peer import keep_alive
from headrace.server.readers.news import SessionRest, pieces_of
from headrace.server.readers.own_answers import Answers, SlowAnswer, WireRows
from headrace.server.readers.paired import line_head
from headrace.server.tls import HANDSHAKE_S, Certificates, common_name
from headrace.server.wire import ProtocolViolation

_log = get_logger("headrace.readers")
_REQUEST: Final = struct.Struct("!II")
_SSL: Final = 80877103
_GSSENC: Final = 80877104
_HIGH_BYTES: Final = 64 << 10
_REQUESTS_AT_MOST: Final = 4


class ReadingClient(asyncio.Protocol):
    """A client's socket. All methods belong to the event loop's thread."""

    def __init__(self, server: ServerEnd, certificates: Certificates | None, computers: Executor) -> None:
        """`answers` is to be set before anything comes. What takes long is computed by `computers`."""
        self._server = server
        self._certificates = certificates
        self._computers = computers
        self.answers: Answers
        self._transport: asyncio.Transport
        self._met = False
        """Whether the line is there."""
        self._before: bytearray | None = bytearray()
        """What has come while it is not known yet whether the line is to be encrypted; None afterwards."""
        self._requests = 0
        self._handshake: asyncio.Task[None] | None = None
        self._encrypted = False
        self._sent = 0
        """Bytes that have gone on to the server."""
        self._waiting: bytearray | None = None
        """What waits for the server to have been told what is owed to it; None where nothing is."""
        self._behind: bytearray | None = None
        """What has come while an answer is computed; None where none is."""
        self._ended = False
        """Whether the client sends no more."""
        self._slow = False
        """Whether the client is slow to take in, and whether the server is: then nothing is read from the client."""
        self._held = False
        self.gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client is there."""
        self._transport, self._met = cast(asyncio.Transport, transport), True
        self._transport.set_write_buffer_limits(high=_HIGH_BYTES)
        keep_alive(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        """Bytes have come from the client."""
        if self._before is not None:
            self._before += data
            self._begin()
            return
        if self._waiting is not None:
            self._waiting += data
            return
        if self._behind is not None:
            self._behind += data
            self._read_or_not()
            return
        answer = self.answers.answer(data, self._sent)
        if isinstance(answer, SlowAnswer):
            self._compute(answer, data)
        elif answer is not None:
            self._transport.write(answer)
        else:
            self._relay(data)

    def _relay(self, data: bytes) -> None:
        """Have the server answer."""
        owed = self.answers.owed(data)
        if owed is not None:
            self._waiting = bytearray(data)
            self._read_or_not()
            data = owed
        self._pass_on(data)

    def _compute(self, slow: SlowAnswer, data: bytes) -> None:
        """Have an answer computed, and what the client sends meanwhile wait for it."""
        self._behind = bytearray()
        computing = asyncio.get_running_loop().run_in_executor(self._computers, slow.rows)
        computing.add_done_callback(lambda done: self._computed(slow, data, done))

    def _computed(self, slow: SlowAnswer, data: bytes, done: asyncio.Future[WireRows]) -> None:
        behind, self._behind = self._behind, None
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if self.gone:
            return
        answer = self.answers.finished(slow, done.result() if error is None else error)
        if answer is None:
            self._relay(data)
        else:
            self._transport.write(answer)
        if behind:
            self.data_received(bytes(behind))
        if self._ended and self._at_rest:
            self._server.finish()
        self._read_or_not()

    @property
    def _at_rest(self) -> bool:
        """Whether nothing that has come waits here."""
        return self._waiting is None and self._behind is None

    def require_client(self) -> None:
        """Raise `QueryCanceled` if the client is gone: nobody waits for an answer."""
        if self.gone:
            raise QueryCanceled("the client is gone")

    def _pass_on(self, data: bytes) -> None:
        self._sent += len(data)
        self._server.write(data)

    def eof_received(self) -> bool:
        """The client sends no more. The line stays open for what it has not got yet."""
        self._ended = True
        if self._at_rest:
            self._server.finish()
        return not self._encrypted

    def connection_lost(self, exc: Exception | None) -> None:
        """The line is cut."""
        self.gone = True
        self._server.abort()

    def pause_writing(self) -> None:
        """The client is slow: nothing more is made for it, here or in the server."""
        self._slow = True
        self._server.pause_reading()
        self._read_or_not()

    def resume_writing(self) -> None:
        """It has taken most of it."""
        self._slow = False
        self._server.resume_reading()
        self._read_or_not()

    def _read_or_not(self) -> None:
        if not self._transport.is_closing() and self._handshake is None:
            (
                self._transport.pause_reading
                if self._slow or self._held or self._waiting is not None or self._behind
                else self._transport.resume_reading
            )()

    # ---- what the server's end does

    def get(self, data: bytes) -> None:
        """The server has answered."""
        if self._waiting is None:
            self._transport.write(data)

    def rested(self, rest: SessionRest) -> None:
        """The server has said how the session stands."""
        self.answers.rested(rest)
        if self._waiting is not None and rest.received == self._sent:
            data, self._waiting = bytes(self._waiting), None
            self._pass_on(data)
            if self._ended:
                self._server.finish()
            self._read_or_not()

    def hold(self, wait: bool) -> None:
        """Let the client wait, or go on, since the server is slow to take in."""
        self._held = wait
        self._read_or_not()

    def close(self) -> None:
        """Send what is left, then close."""
        if self._handshake is not None:
            self._handshake.cancel()
        if self._met:
            self._transport.close()

    # ---- before the login

    def _begin(self) -> None:
        """Answer requests for encryption; anything else is for the server."""
        before = self._before
        assert before is not None
        if self._handshake is not None or len(before) < 4:
            return
        if int.from_bytes(before[:4], "big") == _REQUEST.size:
            if len(before) < _REQUEST.size:
                return
            code = _REQUEST.unpack_from(before)[1]
            self._requests += 1
            if code == _SSL and self._certificates is not None and not self._encrypted:
                self._encrypt(self._certificates, len(before) > _REQUEST.size)
                return
            if code == _GSSENC and self._requests < _REQUESTS_AT_MOST:
                del before[: _REQUEST.size]
                self._transport.write(ENCRYPTION_REFUSED)
                self._begin()
                return
        self._meet(None, None)

    def _encrypt(self, certificates: Certificates, more: bool) -> None:
        """Say yes to TLS. What came after the request in plain text must not count as said by TLS."""
        if more:
            error = ProtocolViolation("received unencrypted data after SSL request")
            self._transport.write(error_report(error, "FATAL").encode())
            self.close()
            return
        assert self._before is not None
        self._before.clear()
        self._transport.pause_reading()
        self._transport.write(ENCRYPTION_ACCEPTED)
        self._handshake = asyncio.get_running_loop().create_task(self._shake_hands(certificates))

    async def _shake_hands(self, certificates: Certificates) -> None:
        loop = asyncio.get_running_loop()
        plain = self._transport
        try:
            loaded = await loop.run_in_executor(None, certificates.now)
            transport = await loop.start_tls(
                plain, self, loaded.context, server_side=True, ssl_handshake_timeout=HANDSHAKE_S
            )
        except (ssl.SSLError, OSError, asyncio.CancelledError) as error:
            _log.info("TLS handshake failed", error=str(error))
            plain.abort()
            self._server.abort()
            return
        assert transport is not None
        self._handshake = None
        self._transport, self._encrypted = transport, True
        transport.set_write_buffer_limits(high=_HIGH_BYTES)
        self._meet(common_name(transport.get_extra_info("peercert")), loaded.binding)

    def _meet(self, certificate_name: str | None, binding: bytes | None) -> None:
        """Let the server have what the client says from here on."""
        before, self._before = self._before, None
        self._server.write(line_head(self._encrypted, certificate_name, binding))
        if before:
            self._pass_on(bytes(before))


class ServerEnd(asyncio.Protocol):
    """The line to the server's connection for a client."""

    def __init__(self) -> None:
        self.client: ReadingClient | None = None
        self._transport: asyncio.Transport
        self._met = False
        """Whether the line is there."""
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The line is there."""
        self._transport, self._met = cast(asyncio.Transport, transport), True

    def data_received(self, data: bytes) -> None:
        """Pieces of what the client gets, and words on how the session stands."""
        client = self.client
        if client is None or client.gone:
            return
        self._buffer += data
        for piece in pieces_of(self._buffer):
            if isinstance(piece, SessionRest):
                client.rested(piece)
            else:
                client.get(piece)

    def connection_lost(self, exc: Exception | None) -> None:
        """The server has closed it: so is the client's, once that has got all."""
        if self.client is not None:
            self.client.close()

    def pause_writing(self) -> None:
        """The server takes in slowly."""
        if self.client is not None:
            self.client.hold(True)

    def resume_writing(self) -> None:
        """It has taken most of it in."""
        if self.client is not None:
            self.client.hold(False)

    def write(self, data: bytes) -> None:
        """Send bytes on to the server."""
        self._transport.write(data)

    def finish(self) -> None:
        """The client sends no more."""
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()

    def abort(self) -> None:
        """The client is gone."""
        if self._met:
            self._transport.abort()

    def pause_reading(self) -> None:
        """Take nothing from the server for the time being."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on."""
        if not self._transport.is_closing():
            self._transport.resume_reading()
