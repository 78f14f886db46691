"""An S3 server far away: moto's, behind a proxy that delays every request and notes when it was under way."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

KEYS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
"""Must be in the environment of whoever sends requests."""


@dataclass
class Request:
    """One request: its first line, and when it was under way, in seconds of `time.perf_counter`."""

    line: str
    start_s: float
    end_s: float


@dataclass
class Proxy:
    """Forwards connections to a port; every request waits `delay_s` on its way there."""

    target: int
    delay_s: float
    port: int = 0
    requests: list[Request] = field(default_factory=list)

    async def serve(self, started: threading.Event, ended: asyncio.Event) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        async with server:
            await ended.wait()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target)
        current: list[Request] = []
        back = asyncio.create_task(self._back(up_reader, writer, current))
        with suppress(ConnectionError):
            while data := await reader.read(1 << 20):
                if not current:
                    # The first bytes after an answer begin the next request of the connection.
                    line = data.split(b"\r\n", 1)[0].decode(errors="replace")
                    current.append(Request(line, time.perf_counter(), 0.0))
                    await asyncio.sleep(self.delay_s)
                up_writer.write(data)
                await up_writer.drain()
        up_writer.close()
        back.cancel()

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, current: list[Request]) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 20):
                if current:
                    self.requests.append(current.pop())
                self.requests[-1].end_s = time.perf_counter()
                writer.write(data)
                await writer.drain()
        writer.close()

    def between(self, start_s: float, end_s: float) -> list[Request]:
        """The requests sent in this time."""
        return [r for r in self.requests if start_s <= r.start_s < end_s]


def sequential(requests: list[Request]) -> int:
    """The round trips that must have waited for one another: most requests of which no two were under way at once."""
    count, free_s = 0, 0.0
    for request in sorted(requests, key=lambda r: r.end_s):
        if request.start_s >= free_s:
            count, free_s = count + 1, request.end_s
    return count


@contextmanager
def distant_s3(delay_s: float) -> Iterator[Proxy]:
    """A server with the bucket `bench`, reached through the proxy's port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    loop, started, ended = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    proxy = Proxy(port, delay_s)
    thread = threading.Thread(target=lambda: loop.run_until_complete(proxy.serve(started, ended)), daemon=True)
    try:
        _make_bucket(server, f"http://127.0.0.1:{port}/bench")
        thread.start()
        started.wait()
        yield proxy
    finally:
        if thread.is_alive():
            loop.call_soon_threadsafe(ended.set)
            thread.join(10)
        server.terminate()
        server.wait(30)


def _make_bucket(server: subprocess.Popen[bytes], url: str) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=10).close()
            return
        except (urllib.error.URLError, OSError):
            if server.poll() is not None:
                raise
            time.sleep(0.1)
    raise TimeoutError("the S3 server does not come up")
