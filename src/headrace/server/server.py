"""The server: accepts clients, routes cancel requests, stops gracefully."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from headrace.common.loggers import get_logger
from headrace.errors import HeadraceError, ShuttingDown
from headrace.server.connection import Connection, MakeSession
from headrace.server.gate import AccessGate
from headrace.server.peer import Line, Mailbox, Peer, address_of
from headrace.server.readers.paired import PairedLine
from headrace.server.readers.pool import ReaderPool
from headrace.server.short_way import Gathered
from headrace.server.tls import Certificates
from headrace.server.worker import Worker
from headrace.session.result import SessionLike

_log = get_logger("headrace.server")
_BACKLOG: Final = 128
_SECRET_BYTES: Final = 32
"""Bytes of a cancel key; who speaks an older version of the protocol gets the first few."""
SWITCH_S: Final = 0.0005
_MORE_LINES: Final = 100
"""Lines beyond twice the connections that are served: who has not said yet who it is takes up some, too."""


class PgServer:
    """Serves sessions over the PostgreSQL protocol. `start` and `stop` belong to one event loop.

    `make_session` gets the client's start-up parameters and is called in a thread of the connection's own, as are
    all calls of the session but `cancel`.
    """

    def __init__(
        self,
        make_session: MakeSession,
        host: str = "127.0.0.1",
        port: int = 4566,
        *,
        max_connections: int = 100,
        startup_timeout_s: float = 60.0,
        stop_grace_s: float = 5.0,
        gate: AccessGate | None = None,
        certificates: Certificates | None = None,
        readers: ReaderPool | None = None,
    ):
        """Without a `gate` clients on this machine are trusted and all others refused; without `certificates` no line
        is encrypted; without `readers` no other process has any of the clients."""
        self._make_session = make_session
        self._host = host
        self._port = port
        self._max_connections = max_connections
        self._startup_timeout_s = startup_timeout_s
        self._gate = gate or AccessGate()
        self._certificates = certificates
        self._readers = readers
        self._handed = 0
        """Clients that other processes have."""
        self._stop_grace_s = stop_grace_s
        self._pids = itertools.count(1)
        self._peers: dict[int, Peer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._mailbox: Mailbox | None = None
        self._gathered: Gathered | None = None
        self._stopping = False
        self.farewell: HeadraceError = ShuttingDown("terminating connection due to administrator command")
        """What clients are told when the server stops."""

    @property
    def port(self) -> int:
        """The TCP port; the one that was picked, after `start` with port 0."""
        return self._port

    @property
    def host(self) -> str:
        """The address listened on."""
        return self._host

    async def start(self) -> None:
        """Listen. Raises `OSError` if the address is taken."""
        # By default a thread that wants to run Python waits 5 ms for one that does: each message would.
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_S))
        loop = asyncio.get_running_loop()
        self._mailbox, self._gathered = Mailbox(loop), Gathered(loop)
        self._server = await loop.create_server(
            lambda: Line(self._connected, loop), self._host, self._port, backlog=_BACKLOG
        )
        self._port = self._server.sockets[0].getsockname()[1]
        if self._readers is not None:
            self._readers.start()

    async def stop(self) -> None:
        """Accept no more, tell the clients (57P01), close their sessions; those that hang are cut off."""
        self._stopping = True
        if self._server is not None:
            self._server.close()
        for peer in list(self._peers.values()):
            peer.send_away(self.farewell)
        if self._tasks:
            _, hanging = await asyncio.wait(self._tasks, timeout=self._stop_grace_s)
            for peer in list(self._peers.values()):
                peer.abort()
            for task in hanging:
                task.cancel()
            if hanging:
                await asyncio.wait(hanging, timeout=self._stop_grace_s)
        if self._readers is not None:
            await self._readers.stop()
        if self._server is not None:
            await self._server.wait_closed()

    def _connected(self, line: Line, writer: asyncio.StreamWriter) -> None:
        if self._stopping or len(self._peers) >= 2 * self._max_connections + _MORE_LINES:
            writer.close()
            return
        if self._readers is not None and not isinstance(line, PairedLine) and self._hand_over(self._readers, writer):
            return
        assert self._mailbox is not None and self._gathered is not None
        pid, secret = next(self._pids), secrets.token_bytes(_SECRET_BYTES)
        connection = Connection(self._open_session, pid, secret, self._cancel, self._gate)
        worker = Worker(f"pg-{pid}")
        peer = line.peer = Peer(line, writer, connection, worker, self._mailbox, self._gathered, self._certificates)
        self._peers[pid] = peer
        task = asyncio.get_running_loop().create_task(self._serve(pid, peer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _hand_over(self, readers: ReaderPool, writer: asyncio.StreamWriter) -> bool:
        """Let another process have a client of which nothing has been read yet; whether one has taken it."""
        client = writer.get_extra_info("socket")
        given = readers.give(client, len(self._peers) - self._handed)
        if given is None:
            return False
        end, left = given
        address = address_of(writer)
        writer.transport.abort()  # the socket is open in the other process, and stays so
        self._handed += 1

        def closed() -> None:
            self._handed -= 1
            left()

        loop = asyncio.get_running_loop()
        task = loop.create_task(self._meet(end, address, readers, closed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _meet(
        self, end: socket.socket, address: str, readers: ReaderPool, closed: Callable[[], None]
    ) -> None:  # fmt: skip
        loop = asyncio.get_running_loop()
        end.setblocking(False)
        try:
            await loop.connect_accepted_socket(
                lambda: PairedLine(self._connected, loop, address, readers.publisher, closed), end
            )
        except OSError:
            end.close()
            closed()

    async def _serve(self, pid: int, peer: Peer) -> None:
        try:
            await peer.run(self._startup_timeout_s)
        finally:
            del self._peers[pid]

    def _open_session(self, parameters: dict[str, str]) -> SessionLike:
        if self._stopping:
            raise ShuttingDown("the database system is shutting down")
        served = [p.connection for p in list(self._peers.values()) if p.connection.session is not None]
        role = self._gate.role(parameters["user"])
        limit = -1 if role is None else role.connection_limit
        if 0 <= limit <= sum(connection.user == parameters["user"] for connection in served):
            raise HeadraceError(f'too many connections for role "{parameters["user"]}"', sqlstate="53300")
        if len(served) >= self._max_connections:
            raise HeadraceError(
                "sorry, too many clients already",
                hint=f"At most {self._max_connections} clients are served (max_connections).",
                sqlstate="53300",
            )
        return self._make_session(parameters)

    def _cancel(self, pid: int, secret: bytes) -> None:
        """Cancel what another connection runs, if the secret is right. Called in a worker's thread."""
        peer = self._peers.get(pid)
        if peer is None or not hmac.compare_digest(secret, peer.connection.secret):
            _log.warning("cancel request with a wrong key", pid=pid)
            return
        session = peer.connection.session
        if session is not None and (peer.busy or peer.connection.is_copying):
            session.cancel()


class AsyncServer(Protocol):
    """A server whose `start` and `stop` belong to one event loop."""

    @property
    def port(self) -> int: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


S = TypeVar("S", bound=AsyncServer)


class ServerThread(Generic[S]):
    """A server with an event loop in a thread of its own; also a context manager."""

    def __init__(self, server: S, name: str = "pg-server"):
        self.server = server
        self._loop = new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)

    @property
    def port(self) -> int:
        """The TCP port."""
        return self.server.port

    def start(self) -> None:
        """Return once clients can connect. Raises `OSError` if the address is taken."""
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self.server.start(), self._loop).result()
        except BaseException:
            self._end_loop()
            raise

    def stop(self) -> None:
        """Stop the server and its thread; calling it again does nothing."""
        if not self._thread.is_alive():
            return
        try:
            asyncio.run_coroutine_threadsafe(self.server.stop(), self._loop).result()
        finally:
            self._end_loop()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def run_server_in_thread(
    make_session: MakeSession, host: str = "127.0.0.1", port: int = 0, **options: Any
) -> ServerThread[PgServer]:
    """A started server; `options` are those of `PgServer`. Port 0 picks a free one."""
    thread = ServerThread(PgServer(make_session, host, port, **options))
    thread.start()
    return thread


def new_loop() -> asyncio.AbstractEventLoop:
    """The fastest event loop that there is."""
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop()
    return asyncio.new_event_loop()
