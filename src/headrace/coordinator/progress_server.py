"""Listens to what tasks report: lines of JSON over TCP, from whoever knows the token."""

from __future__ import annotations

import hmac
import json
import secrets
import socketserver
import threading
from contextlib import suppress

from headrace.coordinator.progress import ProgressBook

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
        self._server = socketserver.ThreadingTCPServer((host, 0), self._handler(), bind_and_activate=False)
        self._thread: threading.Thread | None = None
        self._server.daemon_threads = True
        self._server.block_on_close = False

    def start(self) -> None:
        """Listen on a free port, and put the address into the book."""
        self._server.server_bind()
        self._server.server_activate()
        host, port = self._server.server_address[:2]
        self._book.address = f"{host!s}:{port}/{self._token}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(STOP_LOOK_S,), name="headrace-progress", daemon=True
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
                    with suppress(OSError, ValueError):
                        self._listen()
                finally:
                    outer._connections.release()

            def _listen(self) -> None:
                hello = json.loads(self.rfile.readline(MOST_LINE))
                given = str(hello.get("token") if isinstance(hello, dict) else "")
                if not hmac.compare_digest(given.encode(), outer._token.encode()):
                    return
                self.connection.settimeout(None)
                while (line := self.rfile.readline(MOST_LINE)).endswith(b"\n"):
                    event = json.loads(line)
                    outer._book.note(event if isinstance(event, dict) else {})

        return Handler
