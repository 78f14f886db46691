"""One connection of HTTP/1.1: requests in, answers out, within limits of size and time. `h11` knows the protocol."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from http import HTTPStatus
from typing import Any, Final

import h11

from headrace.common.lazy_dataclass import dataclass

HEAD_BYTES: Final = 16 << 10
"""A request's first line and its headers, at most."""
LINGER_S: Final = 1.0
"""For so long what a client goes on to send is dropped, so that it reads its answer before the connection ends."""
_URL: Final = re.compile(r"https?://(?P<host>[^/?]*)(?P<path>.*)", re.IGNORECASE)
_CHUNK: Final = 64 << 10


@dataclass(frozen=True)
class Head:
    """A request without its body."""

    method: str
    target: str
    headers: Sequence[tuple[str, str]]
    """Names in lower case; bytes beyond ASCII as Latin-1 has them."""
    address: str = ""
    """Of whoever sends it; empty where the socket does not tell."""

    def value(self, name: str) -> str:
        """What a header says, the first of that name; empty without one."""
        return next((value for given, value in self.headers if given == name), "")


@dataclass(frozen=True)
class Answer:
    """What a request is answered: a status and a JSON object."""

    status: int
    content: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        """The object as bytes."""
        return json.dumps(self.content, ensure_ascii=False).encode(errors="replace") + b"\n"


def failed(status: int, message: str, retry_after_s: int | None = None, **more: Any) -> Answer:
    """An answer that says what is wrong; with `retry_after_s` the same request may come again then."""
    said = {name: value for name, value in more.items() if value is not None}
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    return Answer(status, {"error": message, **said}, headers)


class Unanswerable(Exception):
    """Nobody is there any more, or is too slow: the connection is over."""


class Refused(Exception):
    """What comes in cannot be a request that is taken; `answer` says why, and is the last one of the connection."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class Exchange:
    """The server's end of a connection. Its methods are called one after another, by one task."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, timeout_s: float) -> None:
        self._reader, self._writer, self._timeout_s = reader, writer, timeout_s
        self._bodiless = False
        """Whether the answer is to have no body: the request is a HEAD."""
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        peer = writer.get_extra_info("peername")
        self.address: str = peer[0] if isinstance(peer, tuple) else ""

    async def head(self) -> Head | None:
        """The next request; None when the client has none any more, or says nothing for long. Raises as `body` does."""
        self._bodiless = False
        try:
            async with asyncio.timeout(self._timeout_s):
                event = await self._event()
        except TimeoutError:
            if self._protocol.trailing_data[0]:  # part of it is there
                raise Refused(failed(408, "the request did not come in time")) from None
            return None
        if not isinstance(event, h11.Request):
            return None
        self._bodiless = event.method == b"HEAD"
        head = _head(event, self.address)
        if head.value("transfer-encoding") and (head.value("content-length") or event.http_version < b"1.1"):
            # Whatever stands in front of this server may have another opinion of where such a request ends.
            raise Refused(failed(400, "the length of the body is said in two ways, or in one that HTTP/1.0 lacks"))
        return head

    async def body(self, most: int) -> bytes:
        """The body of the request. Raises `Refused`, also where it is larger, `Unanswerable` where nobody is there."""
        if self._protocol.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[]))
        found = bytearray()
        try:
            async with asyncio.timeout(self._timeout_s):
                while not isinstance(event := await self._event(), h11.EndOfMessage):
                    if not isinstance(event, h11.Data):
                        raise Unanswerable
                    found += event.data
                    if len(found) > most:
                        raise Refused(too_large(most))
        except TimeoutError:
            raise Refused(failed(408, "the request did not come in time")) from None
        return bytes(found)

    async def answer(self, answer: Answer, *, last: bool) -> bool:
        """Send an answer; whether another request may follow: not after the `last`, nor where its body was not read."""
        if self._protocol.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return False
        # After its last request a client is not DONE: it has said that it wants no more, or is to be told so.
        last = last or self._protocol.their_state is not h11.DONE
        body = answer.body()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), *answer.headers.items()]
        if last:
            headers.append(("Connection", "close"))
        reason = HTTPStatus(answer.status).phrase
        head = h11.Response(status_code=answer.status, headers=headers, reason=reason.encode())
        await self._send(head, *([] if self._bodiless else [h11.Data(data=body)]), h11.EndOfMessage())
        if not last:
            self._protocol.start_next_cycle()
        return not last

    async def linger(self) -> None:
        """Let the client read its answer, though it may still be sending, then be done with it."""
        with suppress(OSError, RuntimeError, NotImplementedError, TimeoutError):
            if self._writer.can_write_eof():
                self._writer.write_eof()
            async with asyncio.timeout(LINGER_S):
                while await self._reader.read(_CHUNK):
                    pass

    async def close(self) -> None:
        """End the connection; what the client does not take by then is dropped."""
        self._writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await self._writer.wait_closed()
        self._writer.transport.abort()

    async def _event(self) -> Any:
        while True:
            try:
                event = self._protocol.next_event()
                if event is not h11.NEED_DATA:
                    return event
                self._protocol.receive_data(await self._reader.read(_CHUNK))
            except h11.RemoteProtocolError as error:
                if self._protocol.trailing_data[1]:
                    raise Unanswerable from error
                raise Refused(failed(error.error_status_hint, f"not HTTP/1.1: {error}")) from error
            except OSError as error:
                raise Unanswerable from error

    async def _send(self, *events: Any) -> None:
        data = b"".join(filter(None, (self._protocol.send(event) for event in events)))
        try:
            self._writer.write(data)
            async with asyncio.timeout(self._timeout_s):
                await self._writer.drain()
        except (OSError, TimeoutError) as error:
            raise Unanswerable from error


def _head(event: h11.Request, address: str) -> Head:
    """A request as it is meant: a whole URL, which clients send to proxies, is a path and the host that it names."""
    headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in event.headers]
    target = event.target.decode("latin-1")
    whole = _URL.fullmatch(target)
    if whole is not None:
        headers = [("host", whole["host"]), *((name, value) for name, value in headers if name != "host")]
        target = whole["path"] or "/"
    return Head(event.method.decode("latin-1"), target, headers, address)


def too_large(most: int) -> Answer:
    """What is said of a body that is too large."""
    return failed(413, f"the body has more than {most} bytes (webhook_body_kb)")
