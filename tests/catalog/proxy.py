"""A network between a client and a server: forwards bytes until it is told to swallow them, or to cut the lines."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Proxy:
    """Listens on a port of its own. What it has been handed it acknowledges, whether or not it passes it on."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._lines: list[socket.socket] = []
        self._forwarding = threading.Event()
        self._forwarding.set()
        self.lose_answers = threading.Event()
        """While it is set, what the server says goes nowhere."""
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self) -> None:
        """Pass nothing on, in either direction, and take no notice of who connects."""
        self._forwarding.clear()

    def forward(self) -> None:
        """Pass on again what comes from now on."""
        self._forwarding.set()

    def cut(self) -> None:
        """End all connections."""
        lines, self._lines = self._lines, []
        for line in lines:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End everything."""
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if not self._forwarding.is_set():
                    self._lines.append(client)
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
                self._lines += [client, server]
                for ends in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                lost = answers and self.lose_answers.is_set()
                if self._forwarding.is_set() and not lost:
                    target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy(port: int) -> Iterator[Proxy]:
    """A proxy that ends with the block."""
    made = Proxy(port)
    try:
        yield made
    finally:
        made.close()
