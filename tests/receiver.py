"""A receiver of HTTP requests that takes each key of a request once, and answers as a test wants it to."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Receiver:
    """What has come."""

    port: int = 0
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """For the next requests, before it takes all of them; 0 takes one, and closes the connection without an answer."""
    bodies: dict[str, list[Any]] = field(default_factory=dict)
    """By idempotency key."""
    seen: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    """Method, path and headers of each request."""
    changed: list[str] = field(default_factory=list)
    """Keys that came again with other rows."""
    refuses: Callable[[Any], bool] = lambda row: False
    """Whether a row is one for which it refuses its request, as it does ever after under the same key."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}/in?x=1"

    def take(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str]]:
        """One request: the answer."""
        with self.lock:
            self.seen.append((method, path, headers))
            status, more = self.answers.pop(0) if self.answers else (200, {})
            key, rows = headers["idempotency-key"], json.loads(body)
            if any(map(self.refuses, rows)):
                return 422, more
            if status in (0, 200, 204) and self.bodies.setdefault(key, rows) != rows:
                self.changed.append(key)
            return status, more

    def added(self) -> Counter[tuple[Any, ...]]:
        """The rows that were added."""
        return Counter(tuple(row.values()) for rows in self.bodies.values() for row in rows)

    def upserted(self, key: str) -> Counter[tuple[Any, ...]]:
        """The rows that are there, after all changes in order."""
        found: dict[Any, tuple[Any, ...]] = {}
        for change in (change for rows in self.bodies.values() for change in rows):
            if change["op"] == "delete":
                found.pop(change["key"][key], None)
            else:
                found[change["row"][key]] = tuple(change["row"].values())
        return Counter(found.values())


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver on a port of its own."""
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _take(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, more = found.take(self.command, self.path, headers, body)
            if not status:
                self.close_connection = True
                return
            text = b"" if status == 204 else b"said " + str(status).encode()
            self.send_response(status)
            for name, value in more.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_PUT = do_PATCH = _take

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
