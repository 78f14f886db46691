"""An HTTP server between a client and an object store: throttles, fails, and loses answers, as it is told to."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

FAULTS = ("throttled", "failed", "torn", "lost", "")
"""What can become of a request: refused with 503 or 500, its answer cut in the middle or never sent, and nothing."""
_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class Faults:
    """What happens to requests; `choose` is asked for each."""

    def __init__(self, endpoint: str, choose: Callable[[str], str]) -> None:
        self.choose = choose
        self.seen: Counter[str] = Counter()
        self._target = urlsplit(endpoint)
        self._lock = threading.Lock()

    def pick(self, method: str) -> str:
        with self._lock:
            fault = self.choose(method)
            self.seen[fault] += 1
            return fault

    def forward(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = HTTPConnection(self._target.hostname or "", self._target.port, timeout=60)
        try:
            connection.request(request.command, request.path, body, dict(request.headers))
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()


def _handler(faults: Faults) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = faults.pick(self.command)
            if fault in ("throttled", "failed"):
                self._answer(503 if fault == "throttled" else 500, [], b"" if self.command == "HEAD" else _SLOW_DOWN)
                return
            status, headers, content = faults.forward(self, body)
            if fault == "lost" or (fault == "torn" and len(content) < 2):
                self.close_connection = True
                return
            self._answer(status, headers, content, torn=fault == "torn")

        def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes, torn: bool = False) -> None:
            length = next((v for k, v in headers if k.lower() == "content-length"), str(len(content)))
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", length if self.command == "HEAD" else str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if torn else content)
            self.close_connection = torn

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _serve

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is logged."""

    return Handler


@contextmanager
def faulty(endpoint: str, choose: Callable[[str], str]) -> Iterator[tuple[str, Faults]]:
    """The address of such a server before another one."""
    faults = Faults(endpoint, choose)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(faults))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", faults
    finally:
        server.shutdown()
        server.server_close()
