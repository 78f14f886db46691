"""One connected client: moves bytes between its socket and its connection's state machine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Final

import structlog

from headrace.errors import HeadraceError
from headrace.server.connection import Connection
from headrace.server.frontend import FrontendDecoder, FrontendMessage, Terminate
from headrace.server.wire import ProtocolViolation
from headrace.server.worker import Worker

_log = structlog.get_logger("headrace.server")
_READ_BYTES: Final = 64 << 10
_INBOX_BYTES: Final = 1 << 20
_WRITE_HIGH_BYTES: Final = 64 << 10
_CLOSE_TIMEOUT_S: Final = 5.0


class Peer:
    """A client's socket. All methods belong to the event loop's thread."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: Connection, worker: Worker
    ):
        self._reader = reader
        self._writer = writer
        self.connection = connection
        self._worker = worker
        self._decoder = FrontendDecoder()
        self._inbox: list[FrontendMessage | ProtocolViolation] = []
        self._inbox_bytes = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._gone = False
        self._farewell: HeadraceError | None = None
        self.busy = False
        """Whether a message is being handled right now."""

    async def run(self, startup_timeout_s: float) -> None:
        """Serve the client until it leaves, misbehaves, or `send_away` is called."""
        self._writer.transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        timer = asyncio.get_running_loop().call_later(startup_timeout_s, self._startup_timed_out)
        reading = asyncio.create_task(self._read())
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
            reading.cancel()
            await self._finish()

    def send_away(self, error: HeadraceError) -> None:
        """Cancel what runs, tell the client `error`, close."""
        self._farewell = error
        self._wake.set()
        if self.busy:
            self._cancel_session()

    def abort(self) -> None:
        """Cut the line now."""
        self._writer.transport.abort()

    async def _read(self) -> None:
        try:
            await self._read_messages()
        except ProtocolViolation as violation:
            self._inbox.append(violation)
            self._wake.set()
            with contextlib.suppress(ConnectionError, OSError):
                while await self._reader.read(_READ_BYTES):
                    pass
        except (ConnectionError, OSError):
            pass
        self._gone = True
        self._wake.set()
        if self.busy:
            self._cancel_session()
            self.abort()

    async def _read_messages(self) -> None:
        while data := await self._reader.read(_READ_BYTES):
            self._inbox_bytes += len(data)
            for message in self._decoder.feed(data):
                self._inbox.append(message)
            if self._inbox:
                self._wake.set()
            while self._inbox and self._inbox_bytes > _INBOX_BYTES:
                self._room.clear()
                await self._room.wait()

    def _take_inbox(self) -> list[FrontendMessage | ProtocolViolation]:
        messages, self._inbox, self._inbox_bytes = self._inbox, [], 0
        self._room.set()
        if self._gone:  # nobody waits for answers any more; only what is wrong is still said
            messages = [message for message in messages if isinstance(message, ProtocolViolation)]
        return messages

    async def _work(self) -> None:
        while not self.connection.closed and self._farewell is None:
            if not self._inbox:
                if self._gone:
                    return
                await self._wake.wait()
                self._wake.clear()
                continue
            messages = self._take_inbox()
            if messages and isinstance(messages[0], Terminate):
                return
            stream = self.connection.receive(messages)
            self.busy = True
            try:
                await self._send_all(stream)
            finally:
                self.busy = False

    async def _send_all(self, stream: Iterator[bytes]) -> None:
        """Take bytes from the state machine no faster than the client takes them."""
        while (data := await self._worker.run(lambda: next(stream, None))) is not None:
            if self._farewell is not None:
                return
            self._writer.write(data)
            await self._writer.drain()

    def _cancel_session(self) -> None:
        session = self.connection.session
        if session is not None:
            # In the default executor: the peer's own worker is what has to be interrupted.
            asyncio.get_running_loop().run_in_executor(None, _cancel_quietly, session.cancel)

    def _startup_timed_out(self) -> None:
        if not self._decoder.started:
            self.abort()

    async def _finish(self) -> None:
        if self._farewell is not None and not self._gone and self._decoder.started:
            with contextlib.suppress(ConnectionError, OSError):
                self._writer.write(self.connection.shut_down(self._farewell))
        try:
            await asyncio.wait_for(self._worker.run(self.connection.close), _CLOSE_TIMEOUT_S)
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


def _cancel_quietly(cancel: Callable[[], None]) -> None:
    try:
        cancel()
    except Exception:
        _log.exception("a session could not be cancelled")
