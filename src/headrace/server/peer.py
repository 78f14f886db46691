"""One connected client: moves bytes between its socket and its connection's state machine."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import ssl
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Final

from headrace.common.loggers import get_logger
from headrace.coordinator.reads import Later
from headrace.coordinator.writes.layout import Row
from headrace.errors import HeadraceError, ShuttingDown
from headrace.server.backend import ENCRYPTION_ACCEPTED
from headrace.server.connection import ELSEWHERE, Connection
from headrace.server.encoders import Data
from headrace.server.frontend import FrontendDecoder, FrontendMessage, SslRequest, Terminate
from headrace.server.gate import ClientSocket
from headrace.server.short_way import Gathered
from headrace.server.tls import HANDSHAKE_S, Certificates, common_name
from headrace.server.wire import ProtocolViolation
from headrace.server.worker import Worker
from headrace.session.prepared import WantedRow
from headrace.session.result import Pending, Ready

_log = get_logger("headrace.server")
_INBOX_BYTES: Final = 1 << 20
_WRITE_HIGH_BYTES: Final = 64 << 10
"""Bytes from which on it is waited for the client to take what was written, down to fewer."""
_WRITE_LOW_BYTES: Final = 16 << 10
_CLOSE_TIMEOUT_S: Final = 5.0
_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 120_000}
"""Seconds of silence, seconds between two questions, how many without an answer; ms for what was sent."""


class Mailbox:
    """What other threads want the event loop to do, handed over together: waking it costs more than most of that."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], object]] = deque()
        self._waking = False

    def post(self, call: Callable[[], object]) -> None:
        """Have the loop make a call soon. Any thread."""
        self._calls.append(call)
        if not self._waking:
            self._waking = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        self._waking = False  # first of all: what is posted from here on wakes the loop again
        calls = self._calls
        while calls:
            try:
                calls.popleft()()
            except Exception:
                _log.exception("a client could not be told")


class Line(asyncio.StreamReaderProtocol):
    """The event loop's side of a client's socket: hands bytes to its peer as they come, without a task between."""

    def __init__(self, connected: Callable[[Line, asyncio.StreamWriter], None], loop: asyncio.AbstractEventLoop):
        self._reader = asyncio.StreamReader(loop=loop)  # what is awaited of the base class goes with one
        super().__init__(self._reader, loop=loop)
        self._connected = connected
        self._event_loop = loop
        self.peer: Peer | None = None
        self.encrypted = False
        """Whether the bytes here are what TLS has decrypted."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        super().connection_made(transport)
        self._connected(self, asyncio.StreamWriter(transport, self, None, self._event_loop))  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        if self.peer is not None:
            self.peer.received(data)

    def eof_received(self) -> bool:
        """The client sends no more. The line stays open for what it has not got yet."""
        if self.peer is not None:
            self.peer.ended()
        return not self.encrypted  # TLS has no half of a line that stays open

    def connection_lost(self, exc: Exception | None) -> None:
        """The line is cut."""
        super().connection_lost(exc)
        if self.peer is not None:
            self.peer.ended()


class Peer:
    """A client's socket and its connection. All methods belong to the event loop's thread.

    What is quick is handled where its bytes arrive; all else by the task that `run` is, with a thread of its own.
    """

    def __init__(
        self,
        line: Line,
        writer: asyncio.StreamWriter,
        connection: Connection,
        worker: Worker,
        mailbox: Mailbox,
        gathered: Gathered,
        certificates: Certificates | None = None,
    ):
        """`gathered` are the reads of all clients of the loop, `certificates` what the line may be encrypted with, None
        for nothing."""
        self._line = line
        self._certificates = certificates
        self._writer = writer
        self._transport: Any = writer.transport
        self._plain: asyncio.StreamWriter | None = None
        """What wrote to the line before it was encrypted: a writer that is collected closes its line."""
        self._loop = asyncio.get_running_loop()
        self._mailbox = mailbox
        self._gathered = gathered
        connection.gathers = True
        self.connection = connection
        self._worker = worker
        self._decoder = FrontendDecoder(admitted=lambda: connection.admitted)
        connection.wire = ClientSocket(address_of(writer))
        connection.send_now = self._send_now
        connection.hurry = self._hurry
        self._inbox: list[FrontendMessage | ProtocolViolation] = []
        self._inbox_bytes = 0
        self._paused = False
        """Whether the client is not read from, because what it has sent waits."""
        self._deaf = False
        """Whether what the client sends does not count any more."""
        self._wake = asyncio.Event()
        self._waits = False
        """Whether messages are waited for: nothing is being handled, and nothing is left to be."""
        self._gone = False
        self._over = False
        self._farewell: HeadraceError | None = None
        self._due: tuple[float, HeadraceError] | None = None
        """Until when, by the loop's clock, the client may ask for nothing, and what it is told then."""
        self._alarm: asyncio.TimerHandle | None = None
        self._expired = False
        self._stream: Generator[Data | Pending] | None = None
        """What is being sent: kept so that what it holds is let go of in the worker, wherever sending ends."""
        self._pending: Pending | None = None
        """What was taken quickly and is not ready yet."""
        self._asking: list[FrontendMessage | ProtocolViolation] = []
        """The messages of a read that waits for its row to be looked up together with others."""
        self._left: Generator[Data | Pending] | None = None
        """What was begun as quick, and waits for the client or takes its time: the task goes on with it."""
        self._left_quick = True
        """Whether what is left is quick still."""
        self._waiting: asyncio.Timeout | None = None
        """The wait for the client to take what was written."""
        self.busy = False
        """Whether a message is being handled right now."""
        self.at_rest: Callable[[], None] = lambda: None
        """Called when all that the client has sent is answered, and nothing of a message is there."""

    async def run(self, startup_timeout_s: float) -> None:
        """Serve the client until it leaves, misbehaves, or `send_away` is called."""
        self._transport.set_write_buffer_limits(_WRITE_HIGH_BYTES, _WRITE_LOW_BYTES)
        keep_alive(self._writer.get_extra_info("socket"))
        timer = self._loop.call_later(startup_timeout_s, self._startup_timed_out)
        try:
            await self._work()
        except (ConnectionError, OSError, asyncio.CancelledError):
            pass
        except Exception:
            # Else it only says that the closed line cannot be written to: reading may be told of that a moment later.
            if not (self._gone or self._writer.is_closing()):
                _log.exception("connection failed")
        finally:
            timer.cancel()
            if self._alarm is not None:
                self._alarm.cancel()
            self._over = self._deaf = True
            self._waits = False
            await self._finish()

    def send_away(self, error: HeadraceError) -> None:
        """Cancel what runs, tell the client `error`, close."""
        self._farewell = error
        self._wake.set()
        if self.busy:
            self._cancel_session()

    def abort(self) -> None:
        """Cut the line now."""
        self._transport.abort()

    # ---- what comes

    def received(self, data: bytes) -> None:
        """Bytes have come from the client."""
        if self._deaf:
            return
        self._inbox_bytes += len(data)
        try:
            whole = self._decoder.whole(data)
            if whole is not None:
                self._inbox += whole
            else:
                for message in self._decoder.feed(data):
                    self._inbox.append(message)
        except ProtocolViolation as violation:
            self._inbox.append(violation)
            self._deaf = True
        if not self._inbox:
            return
        if self._inbox_bytes > _INBOX_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._go_on()

    def ended(self) -> None:
        """The client sends no more."""
        if self._gone:
            return
        self._gone = True
        self._wake.set()
        if self.busy:
            self._abandon()
            self.abort()

    def _take_inbox(self) -> list[FrontendMessage | ProtocolViolation]:
        messages, self._inbox, self._inbox_bytes = self._inbox, [], 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        if self._gone:  # nobody waits for answers any more; only what is wrong is still said
            messages = [message for message in messages if isinstance(message, ProtocolViolation)]
        return messages

    # ---- what is quick

    def _go_on(self) -> None:
        """Handle what has come, unless something is being handled: then it has its turn afterwards."""
        if not self._waits:
            return
        if self._gone or self._farewell is not None:
            self._wake.set()
            return
        connection = self.connection
        connection.begin()
        taken = connection.take_quickly(self._inbox)
        if taken is None and not connection.is_quick(self._inbox):
            self._wake.set()
            return
        self._waits, self.busy = False, True
        messages = self._take_inbox()
        if taken is None:
            self._stream = connection.receive(messages)
            self._advance()
        elif isinstance(taken, bytes):
            self._answer(taken)
        elif isinstance(taken, WantedRow):
            self._asking = messages
            self._gathered.add(taken, self._found)
        else:
            self._pending = taken
            taken.ready.add_done_callback(self._post_finish)

    def _found(self, row: Row | Later | None) -> None:
        """What was taken quickly has waited for this row."""
        messages, self._asking = self._asking, []
        if self._over:
            return
        try:
            data = self.connection.finish_read(row)
        except Exception:
            _log.exception("connection failed")
            self.abort()
            data = b""
        if data is None:
            self._stream = self.connection.receive(messages)
            self._leave(self._stream, quick=False)
        else:
            self._answer(data)

    def _post_finish(self, _: object) -> None:
        self._mailbox.post(self._finish_quickly)

    def _finish_quickly(self) -> None:
        pending, self._pending = self._pending, None
        if self._over or pending is None:
            return
        try:
            data = self.connection.finish_quickly(pending)
        except Exception:
            _log.exception("connection failed")
            data = b""
            self.abort()
        self._answer(data)

    def _answer(self, data: bytes) -> None:
        """Send the whole answer to what was handled here."""
        if self._farewell is None:
            self._transport.write(data)
        if self._transport.get_write_buffer_size() > _WRITE_HIGH_BYTES:
            self._leave(self.connection.receive(()))  # which says nothing more: the task waits for the client
        else:
            self._handled()

    def _advance(self) -> None:
        """Go on with what is quick, until it is done or has to wait."""
        stream = self._stream
        if self._over or stream is None:
            return
        try:
            for data in stream:
                if data is ELSEWHERE:
                    self._leave(stream, quick=False)
                    return
                if not isinstance(data, Data):
                    data.ready.add_done_callback(self._post_advance)
                    return
                if self._farewell is not None:
                    break
                self._transport.write(data)
                if self._transport.get_write_buffer_size() > _WRITE_HIGH_BYTES:
                    self._leave(stream)
                    return
        except Exception:
            _log.exception("connection failed")
            self.abort()
        self._handled()

    def _leave(self, stream: Generator[Data | Pending], *, quick: bool = True) -> None:
        """Let the task go on with it."""
        self._left, self._left_quick = stream, quick
        self._wake.set()

    def _handled(self) -> None:
        """All that was taken from the inbox is answered."""
        self.busy = False
        if self._gone or self._farewell is not None or self.connection.closed:
            self._wake.set()
            return
        self._waits = True
        self._set_alarm()
        self._rest()
        if self._inbox:
            self._go_on()

    def _send_now(self, data: bytes) -> None:
        """Send whole messages beside what is being handled. Any thread."""
        self._mailbox.post(lambda: None if self._over else self._transport.write(data))

    def _post_advance(self, _: object) -> None:
        self._mailbox.post(self._advance)

    # ---- what takes its time

    async def _work(self) -> None:
        while not self.connection.closed and self._farewell is None:
            if self._left is not None:
                stream, self._left = self._left, None
                await self._send_busily(stream, quick=self._left_quick)
                continue
            if not self._inbox:
                if self._gone:
                    return
                await self._wait_for_messages()
                continue
            messages = self._take_inbox()
            if messages and isinstance(messages[0], Terminate):
                return
            if self._certificates is not None and any(isinstance(message, SslRequest) for message in messages):
                await self._encrypt(self._certificates, messages)
                continue
            self.connection.begin()
            quick = self.connection.is_quick(messages)
            self._stream = self.connection.receive(messages)
            await self._send_busily(self._stream, quick=quick)

    async def _encrypt(
        self, certificates: Certificates, messages: Sequence[FrontendMessage | ProtocolViolation]
    ) -> None:
        """Say yes to TLS, and go on by it.

        What came after the request in plain text was put there by somebody in between: it must not count as said by
        TLS.
        """
        if len(messages) > 1 or self._inbox or self._decoder.holds_bytes or self._line.encrypted:
            self._farewell = ProtocolViolation("received unencrypted data after SSL request")
            return
        self._transport.pause_reading()
        self._transport.write(ENCRYPTION_ACCEPTED)
        loaded = await self._loop.run_in_executor(None, certificates.now)
        try:
            transport = await self._loop.start_tls(
                self._transport, self._line, loaded.context, server_side=True, ssl_handshake_timeout=HANDSHAKE_S
            )
        except (ssl.SSLError, OSError) as error:
            _log.info("TLS handshake failed", client=self.connection.wire.address, error=str(error))
            raise ConnectionAbortedError("TLS handshake failed") from error
        assert transport is not None
        self._line.encrypted = True
        self._transport, self._plain = transport, self._writer
        self._writer = asyncio.StreamWriter(transport, self._line, None, self._loop)  # type: ignore[arg-type]
        transport.set_write_buffer_limits(_WRITE_HIGH_BYTES, _WRITE_LOW_BYTES)
        name = common_name(transport.get_extra_info("peercert"))
        self.connection.wire = ClientSocket(self.connection.wire.address, True, name, loaded.binding)

    async def _send_busily(self, stream: Iterator[Data | Pending], *, quick: bool) -> None:
        self.busy = True
        try:
            await self._drain()
            await self._send_all(stream, quick)
        finally:
            self.busy = False

    async def _send_all(self, stream: Iterator[Data | Pending], quick: bool) -> None:
        """Take bytes from the state machine no faster than the client takes them; wait for what is pending.

        What is quick is handled right here, on the event loop, which costs a fraction of the way to a thread and back.
        Of many rows the next piece is made while one is being sent: so much is held for a client that is slow. After
        any other answer the statement that follows is left alone until the client has taken it.
        """
        following: asyncio.Future[Data | Pending | None] | None = None
        try:
            while True:
                data = next(stream, None) if quick else await (following or self._next(stream))
                following = None
                if data is None or (self._farewell is not None and isinstance(data, Data)):
                    return
                if isinstance(data, Data):
                    following = self._next(stream) if isinstance(data, memoryview) and not quick else None
                    self._writer.write(data)
                    await self._drain()
                elif data is ELSEWHERE:
                    quick = False
                else:
                    await settled(data.ready)
        finally:
            if following is not None:
                following.cancel()
                self._abandon()

    def _next(self, stream: Iterator[Data | Pending]) -> asyncio.Future[Data | Pending | None]:
        return self._worker.begin(lambda: next(stream, None))

    async def _wait_for_messages(self) -> None:
        """Return when there is something to do here; a client that asks for nothing for too long is sent away."""
        self._waits = True
        self._set_alarm()
        self._rest()
        await self._wake.wait()
        self._wake.clear()
        while self.busy and self._left is None:  # what is quick is being handled; it wakes this task if need be
            await self._wake.wait()
            self._wake.clear()
        self._waits = False
        if self._expired and self._farewell is not None:
            await self._expire(self._farewell)

    def _rest(self) -> None:
        if not self._inbox and not self._decoder.holds_bytes:
            self.at_rest()

    def _set_alarm(self) -> None:
        """Note how long the client may ask for nothing from now on. There is one timer for all its statements."""
        limit = self.connection.idle_limit()
        if limit is None:
            self._due = None
            return
        due_s = self._loop.time() + limit.seconds
        self._due = due_s, limit.error
        if self._alarm is not None:
            if self._alarm.when() <= due_s:
                return
            self._alarm.cancel()
        self._alarm = self._loop.call_at(due_s, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        if not self._waits or self._due is None:
            return
        due_s, error = self._due
        if self._loop.time() < due_s:
            self._alarm = self._loop.call_at(due_s, self._ring)
        elif self._farewell is None:
            self._farewell, self._expired = error, True
            self._wake.set()

    async def _drain(self) -> None:
        """Wait until the client has taken most of what was written; one that takes nothing for too long is cut off.

        The wait is over, too, when no more rows may be sent: what holds them is let go of, and the client finds the
        error behind what it takes.
        """
        if self._writer.transport.get_write_buffer_size() <= _WRITE_LOW_BYTES:
            await self._writer.drain()
            return
        limit_s, until_s = self.connection.send_limit_s(), self.connection.sends_until_s()
        cut_s = math.inf if limit_s is None else self._loop.time() + limit_s
        wait_s = min(cut_s, math.inf if until_s is None else until_s)
        try:
            async with asyncio.timeout_at(None if wait_s == math.inf else wait_s) as self._waiting:
                await self._writer.drain()
        except TimeoutError:
            if self._loop.time() < cut_s:
                return
            error = ShuttingDown("the client takes nothing of what it has asked for")
            self.abort()
            await self._expire(error)
            raise ConnectionAbortedError(error.message) from None
        finally:
            self._waiting = None

    def _hurry(self) -> None:
        """What runs is to stop: wait for the client no longer. Any thread."""
        self._mailbox.post(self._wait_no_longer)

    def _wait_no_longer(self) -> None:
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(self._loop.time())

    async def _expire(self, error: HeadraceError) -> None:
        try:
            await self._worker.run(lambda: self.connection.expire(error))
        except Exception:
            _log.exception("an event could not be stored")

    def _abandon(self) -> None:
        """Stop what is handled, and handle nothing that comes after it, which would begin uncancelled."""
        self.connection.abandoned = True
        self._cancel_session()

    def _cancel_session(self) -> None:
        session = self.connection.session
        if session is not None:
            # In the default executor: the peer's own worker is what has to be interrupted.
            asyncio.get_running_loop().run_in_executor(None, _cancel_quietly, session.cancel)

    def _startup_timed_out(self) -> None:
        if not self.connection.admitted:
            self.abort()

    async def _finish(self) -> None:
        if self._farewell is not None and not self._gone and self._decoder.started:
            with contextlib.suppress(ConnectionError, OSError):
                self._writer.write(self.connection.shut_down(self._farewell))
        try:
            await asyncio.wait_for(self._worker.run(self._close), _CLOSE_TIMEOUT_S)
        except (TimeoutError, asyncio.CancelledError):
            _log.warning("a session did not close in time")
        finally:  # also where the loop ends before the session has closed
            self._worker.stop()
            self._writer.close()
        try:
            await asyncio.wait_for(self._writer.wait_closed(), _CLOSE_TIMEOUT_S)
        except (TimeoutError, asyncio.CancelledError):
            self.abort()
        except (ConnectionError, OSError):
            pass

    def _close(self) -> None:
        """In the worker: end what was being sent, then the session."""
        stream, self._stream = self._stream, None
        try:
            if stream is not None:
                stream.close()
        except Exception:
            _log.exception("a result could not be closed")
        finally:
            self.connection.close()


def address_of(writer: asyncio.StreamWriter) -> str:
    """The address that a client has come from; empty where there is none."""
    found = writer.get_extra_info("peername")
    return str(found[0]) if isinstance(found, tuple) and found else ""


def keep_alive(line: Any) -> None:
    """Have the kernel ask whether a silent client is still there: a line that is half open ends within minutes."""
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    for option in options if line is not None else ():
        with contextlib.suppress(OSError):
            line.setsockopt(*option)


def _cancel_quietly(cancel: Callable[[], None]) -> None:
    try:
        cancel()
    except Exception:
        _log.exception("a session could not be cancelled")


async def settled(future: Ready) -> None:
    """Return once the future is done, whatever came of it."""
    if future.done():
        return
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def wake(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(done.set)

    future.add_done_callback(wake)
    await done.wait()
