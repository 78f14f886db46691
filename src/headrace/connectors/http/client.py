"""Requests over one connection, which is made again where the receiver has closed it."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import SplitResult, urlsplit

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import InvalidParameter

EXCERPT_CHARS: Final = 300
"""How much of an answer is shown."""
ANSWER_BYTES: Final = 1 << 16
"""How much of an answer is read; a connection with more of it is given up."""


REFUSED: Final = 300
"""The least status of answers that do not say that the request was taken."""


class NoAnswer(Exception):
    """The receiver cannot be reached, or has not answered."""


@dataclass(frozen=True)
class Address:
    """Where requests go."""

    secure: bool
    host: str
    port: int
    path: str
    ca_file: str | None = None

    @classmethod
    def of(cls, url: str, ca_file: str | None) -> Address:
        """That of a URL. Raises `InvalidParameter`, without the URL: there may be a password in it."""
        try:
            parts = urlsplit(url)
            port = parts.port
            (parts.hostname or "").encode("idna")
        except ValueError:
            parts, port = SplitResult("", "", "", "", ""), None
        if parts.scheme not in ("http", "https") or not parts.hostname or not (url.isascii() and url.isprintable()):
            raise InvalidParameter("option url must be http://host/path or https://host/path")
        if " " in url or parts.fragment:
            raise InvalidParameter("option url has a blank or a fragment, which no request has")
        if parts.username is not None or parts.password is not None:
            raise InvalidParameter(
                "option url has a user or a password in it", hint="header.authorization = SECRET name says who comes"
            )
        secure = parts.scheme == "https"
        if ca_file is not None and not secure:
            raise InvalidParameter("option ssl.ca.location is for https://")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(secure, parts.hostname, port or (443 if secure else 80), path, ca_file)

    def __str__(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.host}:{self.port}"  # a path may be what nobody is to know


@dataclass(frozen=True)
class Response:
    """What the receiver says to a request."""

    status: int
    reason: str
    excerpt: str
    retry_after_s: float | None


class Client:
    """Sends requests to one address. Not thread-safe."""

    def __init__(self, address: Address, method: str, headers: Mapping[str, str], timeout_s: float) -> None:
        self._address, self._method, self._timeout_s = address, method, timeout_s
        self._headers = {**headers, "Content-Type": "application/json"}
        self._connection: http.client.HTTPConnection | None = None

    def reach(self) -> None:
        """Connect, and say goodbye. Raises `NoAnswer`, `InvalidParameter`."""
        with self.connected():
            try:
                self._open().connect()
            except (OSError, http.client.HTTPException) as error:
                raise NoAnswer(_said(error)) from error

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Inside the block requests go over one connection."""
        try:
            yield
        finally:
            self._close()

    def send(self, body: bytes, key: str) -> Response:
        """Send a request once. Raises `NoAnswer`: then nobody knows whether it was taken."""
        fresh = self._connection is None
        try:
            return self._exchange(body, key)
        except (http.client.RemoteDisconnected, ConnectionError) as error:
            self._close()
            if fresh:
                raise NoAnswer(_said(error)) from error
        except (OSError, http.client.HTTPException) as error:
            self._close()
            raise NoAnswer(_said(error)) from error
        return self.send(body, key)  # it had closed a connection that nothing came over for a while

    def _exchange(self, body: bytes, key: str) -> Response:
        connection = self._open()
        connection.request(self._method, self._address.path, body, {**self._headers, "Idempotency-Key": key})
        response, content = self._answer(connection)
        if response.will_close or not response.isclosed():
            self._close()
        shown = content[: 4 * EXCERPT_CHARS].decode("utf-8", "replace").strip()[:EXCERPT_CHARS]
        return Response(response.status, response.reason, shown, _retry_after_s(response.getheader("Retry-After")))

    def _answer(self, connection: http.client.HTTPConnection) -> tuple[http.client.HTTPResponse, bytes]:
        """An answer with its beginning. The time-out is for all of it: one that comes byte by byte never ends."""
        line = connection.sock
        over = threading.Timer(self._timeout_s, _cut, (line,))
        over.daemon = True
        over.start()
        try:
            response = connection.getresponse()
            content = b""
            # What comes after the word that it was taken changes nothing.
            while response.status >= REFUSED and len(content) < ANSWER_BYTES and (part := response.read1(ANSWER_BYTES)):
                content += part
            if response.status < REFUSED and response.length is not None and response.length <= ANSWER_BYTES:
                content = response.read()
            return response, content
        finally:
            over.cancel()

    def _open(self) -> http.client.HTTPConnection:
        if self._connection is None:
            to, timeout_s = self._address, self._timeout_s
            if to.secure:
                self._connection = http.client.HTTPSConnection(
                    to.host, to.port, timeout=timeout_s, context=_tls(to.ca_file)
                )
            else:
                self._connection = http.client.HTTPConnection(to.host, to.port, timeout=timeout_s)
        return self._connection

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(OSError):
                connection.close()


def _tls(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidParameter(f"option ssl.ca.location: {ca_file}: {_said(error)}") from None


def _cut(line: socket.socket | None) -> None:
    if line is not None:
        with suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)


def _said(error: BaseException) -> str:
    if isinstance(error, TimeoutError | socket.timeout):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _retry_after_s(text: str | None) -> float | None:
    """The seconds that a receiver asks to be waited for."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return max((moment - datetime.now(UTC)).total_seconds(), 0.0)
    except (ValueError, OverflowError):
        return None
