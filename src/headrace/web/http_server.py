"""The server of webhooks: listens, and bounds how much is under way."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from headrace.common.loggers import get_logger
from headrace.errors import OperationalError
from headrace.server.peer import settled
from headrace.server.server import ServerThread
from headrace.server.tls import HANDSHAKE_S, Certificates
from headrace.web.exchange import Answer, Exchange, Head, Refused, Unanswerable, failed, too_large
from headrace.web.receiver import RETRY_S, Receiver, said

if TYPE_CHECKING:
    from headrace.config import Settings
    from headrace.web.receiver import WebhookHost

_log = get_logger("headrace.web")
CONNECTIONS_PER_REQUEST: Final = 4
"""Connections that may be open for each request that may be worked on."""
THREADS: Final = 4
"""Threads that check signatures and read JSON."""
WAIT_S: Final = 30.0
"""Seconds for which rows wait for others that have the table for themselves."""
GRACE_S: Final = 5.0
"""Seconds that what is under way has to be answered when the server stops."""
_BACKLOG: Final = 128
_PAUSE_S: Final = 1.0
"""Seconds until connections are accepted again after that has failed: the process may have no file left."""


class WebhookServer:
    """Takes requests for the tables of a database. `start` and `stop` belong to one event loop."""

    def __init__(self, receiver: Receiver, settings: Settings, certificates: Certificates | None = None) -> None:
        """With `certificates` all connections are encrypted, without none is."""
        self._receiver = receiver
        self._host = settings.webhook_host
        self._port = settings.webhook_port or 0
        self._timeout_s = settings.webhook_timeout_ms / 1000
        self._most_bytes = settings.webhook_body_kb << 10
        self._most_requests = settings.webhook_requests
        self._certificates = certificates
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="headrace-webhook")
        self._listening: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter | None] = {}
        """Those that are open; without a writer as long as they agree on TLS."""
        self._under_way = 0
        """Requests that are worked on: their bodies are there."""
        self._unanswered = 0
        """Requests whose heads are there, and whose answers have not left."""
        self._stopping = False

    @property
    def port(self) -> int:
        """The TCP port; the one that was picked, after `start` with port 0."""
        return self._port

    async def start(self) -> None:
        """Listen. Raises `OSError` if the address is taken."""
        loop = asyncio.get_running_loop()
        self._listening = await loop.run_in_executor(None, _listening, self._host, self._port)
        self._port = self._listening[0].getsockname()[1]
        self._accepting = [loop.create_task(self._accept(one)) for one in self._listening]

    async def stop(self) -> None:
        """Accept no more; what is under way is answered, everybody else is cut off."""
        self._stopping = True
        for accepting in self._accepting:
            accepting.cancel()
        if self._accepting:
            await asyncio.wait(self._accepting)
        for one in self._listening:
            one.close()
        await self._all_answered()
        await asyncio.get_running_loop().run_in_executor(None, self._receiver.close)
        await self._all_answered()
        for task, writer in self._connections.items():
            if writer is None:
                task.cancel()
            else:
                writer.transport.abort()
        if self._connections:
            _, hanging = await asyncio.wait(self._connections, timeout=GRACE_S)
            for task in hanging:
                task.cancel()
            if hanging:
                await asyncio.wait(hanging, timeout=GRACE_S)
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _all_answered(self) -> None:
        """Wait for the requests that are there, for a while."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                while self._under_way or self._unanswered:
                    await asyncio.sleep(0.02)

    async def _accept(self, listening: socket.socket) -> None:
        """Accept connections, and count them before anything is done for them: TLS would cost before it could count."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                line, _ = await loop.sock_accept(listening)
            except OSError as error:
                said.error("accept", "connections of webhooks cannot be accepted", error=error.strerror or str(error))
                await asyncio.sleep(_PAUSE_S)
                continue
            if len(self._connections) >= CONNECTIONS_PER_REQUEST * self._most_requests:
                line.close()
                continue
            line.setblocking(False)
            task = loop.create_task(self._connected(line))
            self._connections[task] = None
            task.add_done_callback(self._connections.pop)

    async def _connected(self, line: socket.socket) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            reader, writer = await self._streams(line)
        except OSError as error:  # an SSLError is one
            _log.info("a connection of a webhook did not come about", error=str(error))
            return
        self._connections[task] = writer
        exchange = Exchange(reader, writer, self._timeout_s)
        try:
            await self._serve(exchange)
            await exchange.linger()
        except Unanswerable:
            pass
        except Exception as error:  # a fault of this server: nobody else's connection
            said.error("connection", "a connection of a webhook failed", exc_info=error)
        finally:
            await exchange.close()

    async def _streams(self, line: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Both ends of a connection, encrypted where all are. Raises `OSError` where the client does not agree."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        encryption: dict[str, Any] = {}
        try:
            if self._certificates is not None:
                loaded = await loop.run_in_executor(None, self._certificates.now)
                encryption = {"ssl": loaded.unasking, "ssl_handshake_timeout": HANDSHAKE_S}
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, line, **encryption)
        except BaseException:
            line.close()
            raise
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _serve(self, exchange: Exchange) -> None:
        """Answer one request after another."""
        more = True
        while more:
            try:
                head = await exchange.head()
            except Refused as refused:
                await exchange.answer(refused.answer, last=True)
                return
            if head is None:
                return
            self._unanswered += 1
            try:
                more = await self._serve_one(exchange, head)
            finally:
                self._unanswered -= 1

    async def _serve_one(self, exchange: Exchange, head: Head) -> bool:
        """Answer a request; whether another one may follow."""
        try:
            answer, last = await self._answer(exchange, head), self._stopping
        except Refused as refused:
            answer, last = refused.answer, True
        return await exchange.answer(answer, last=last)

    async def _answer(self, exchange: Exchange, head: Head) -> Answer:
        refusal = self._receiver.refusal(head) or self._too_much()
        if refusal is not None:
            return refusal
        length = head.value("content-length")
        if length and int(length) > self._most_bytes:  # h11 has seen to it that it is a number
            return too_large(self._most_bytes)
        body = await exchange.body(self._most_bytes)
        refusal = self._too_much()  # others have come meanwhile: bodies are slow
        if refusal is not None:
            return refusal
        self._under_way += 1
        try:
            return await self._taken(head, body)
        finally:
            self._under_way -= 1

    def _too_much(self) -> Answer | None:
        if self._stopping:
            return failed(503, "the server is shutting down", RETRY_S)
        if self._under_way < self._most_requests:
            return None
        return failed(429, f"{self._most_requests} requests are under way (webhook_requests)", RETRY_S)

    async def _taken(self, head: Head, body: bytes) -> Answer:
        """What a request is answered, once its rows are durable."""
        loop = asyncio.get_running_loop()
        written = await loop.run_in_executor(self._pool, self._receiver.take, head, body)
        if isinstance(written, Answer):
            return written
        try:
            async with asyncio.timeout(WAIT_S):
                await settled(written.request.done)
        except TimeoutError:
            await loop.run_in_executor(self._pool, self._receiver.give_up, written)
            await settled(written.request.done)  # it is given up, or was being committed
        return written.answer()


def _listening(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen, one for each address of a host. Raises `OSError`."""
    found: list[socket.socket] = []
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((entry[0], entry[4]) for entry in addresses):
            found.append(socket.create_server(address, family=family, backlog=_BACKLOG))
            found[-1].setblocking(False)
    except BaseException:
        for one in found:
            one.close()
        raise
    return found


def serve_webhooks(
    home: WebhookHost, settings: Settings, certificates: Certificates | None
) -> ServerThread[WebhookServer]:
    """A started server. Raises `OperationalError` if it cannot listen."""
    thread = ServerThread(
        WebhookServer(Receiver(home, max(1, settings.webhook_requests // 2)), settings, certificates), "webhooks"
    )
    try:
        thread.start()
    except OSError as error:
        where = f"{settings.webhook_host}:{settings.webhook_port}"
        raise OperationalError(f"cannot take webhooks on {where}: {error.strerror or error}") from error
    return thread
