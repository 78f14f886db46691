"""Listens to what tasks report: lines of JSON over TCP, from whoever knows the token."""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import socketserver
import threading
from collections.abc import Callable
from contextlib import suppress

from headrace.common.hosts import bind_address
from headrace.coordinator.observe.progress import ProgressBook

HELLO_S = 5.0
"""Seconds within which a connection has to say the token."""
MOST_CONNECTIONS = 1024
"""Worker processes that are heard at once; more are turned away, and try again later."""
STOP_LOOK_S = 0.05
"""Seconds between two looks whether to stop."""
MOST_LINE = 1 << 14
"""Bytes of a line; a longer one ends the connection."""


class ProgressServer:
    """Puts reports into a book, from `start` to `stop`. The token is new for each server: reports that are meant for
    an earlier process do not get in."""

    def __init__(self, book: ProgressBook, host: str) -> None:
        self._book = book
        self._token = secrets.token_hex(16)
        self._connections = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._host = host
        address = (bind_address(host), 0)
        self._server = socketserver.ThreadingTCPServer(address, self._handler(), bind_and_activate=False)
        self._thread: threading.Thread | None = None
        self._server.daemon_threads = True
        self._server.block_on_close = False

    def start(self, keep: Callable[[str, Callable[[], object]], object] = lambda name, loop: loop()) -> None:
        """Listen on a free port, and put the address into the book. `keep` runs the thread's loop, under a name."""
        self._server.server_bind()
        self._server.server_activate()
        port = self._server.server_address[1]
        self._book.address = f"{self._host}:{port}/{self._token}"
        self._thread = threading.Thread(
            target=keep,
            name="headrace-progress",
            daemon=True,
            args=("the listener to tasks", lambda: self._server.serve_forever(STOP_LOOK_S)),
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop listening; harmless when repeated."""
        thread, self._thread = self._thread, None
        self._book.address = ""
        if thread is not None:
            self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[socketserver.BaseRequestHandler]:
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            timeout = HELLO_S

            def handle(self) -> None:
                if not outer._connections.acquire(blocking=False):
                    return
                try:
                    with suppress(OSError, ValueError, RecursionError):
                        self._listen()
                finally:
                    outer._connections.release()

            def _listen(self) -> None:
                hello = json.loads(self.rfile.readline(MOST_LINE))
                given = str(hello.get("token") if isinstance(hello, dict) else "")
                if not hmac.compare_digest(given.encode(), outer._token.encode()):
                    return
                self.connection.settimeout(None)
                # A host that is gone says nothing more: its connection must not take a place for ever.
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                while (line := self.rfile.readline(MOST_LINE)).endswith(b"\n"):
                    event = json.loads(line)
                    outer._book.note(event if isinstance(event, dict) else {})

        return Handler
