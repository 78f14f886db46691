"""One connection of HTTP, without a network: what the limits of time do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.web.exchange import Answer, Exchange, Head, Refused, Unanswerable

GET = b"GET /x HTTP/1.1\r\nHost: x\r\nX-Twice: a\r\nx-twice: b\r\n\r\n"


class Writer:
    """A client's end that takes what is written, or nothing at all."""

    def __init__(self, *, takes: bool = True) -> None:
        self.transport, self.written, self.ended = self, b"", ""
        self._takes = takes

    def get_extra_info(self, _: str) -> Any:
        return None

    def write(self, data: bytes) -> None:
        self.written += data

    async def drain(self) -> None:
        if not self._takes:
            await asyncio.Event().wait()

    def close(self) -> None:
        self.ended += "closed "

    async def wait_closed(self) -> None:
        await self.drain()

    def abort(self) -> None:
        self.ended += "aborted"


def exchange(data: bytes, writer: Writer, *, ended: bool = False) -> Exchange:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    if ended:
        reader.feed_eof()
    stand_in: Any = writer
    return Exchange(reader, stand_in, 0.05)


def test_a_request_and_its_answer() -> None:
    async def play() -> None:
        writer = Writer()
        line = exchange(GET + GET, writer)
        for _ in range(2):
            head = await line.head()
            assert head == Head("GET", "/x", [("host", "x"), ("x-twice", "a"), ("x-twice", "b")], "")
            assert await line.body(10) == b""
            assert await line.answer(Answer(200, {"a": "é"}), last=False)
        assert await line.head() is None, "nothing more came in time"
        assert writer.written.count(b'\r\n\r\n{"a": "\xc3\xa9"}\n') == 2

    asyncio.run(play())


def test_the_answer_to_a_head_has_no_body() -> None:
    async def play() -> None:
        writer = Writer()
        line = exchange(GET.replace(b"GET", b"HEAD") + GET, writer)
        for _ in range(2):
            assert await line.head() is not None
            await line.body(10)
            assert await line.answer(Answer(405, {"a": 1}), last=False)
        _, first, second = writer.written.split(b"HTTP/1.1 405")
        assert first.endswith(b"\r\n\r\n") and b"Content-Length: 9" in first and second.endswith(b'{"a": 1}\n')

    asyncio.run(play())


@pytest.mark.parametrize(
    "head",
    [
        b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_lengths_that_can_be_understood_in_two_ways(head: bytes) -> None:
    async def play() -> None:
        line = exchange(head + b"2\r\n{}\r\n0\r\n\r\n", Writer())
        with pytest.raises(Refused) as caught:
            await line.head()
        assert caught.value.answer.status == 400
        assert not await line.answer(caught.value.answer, last=True)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("target", "path", "host"),
    [("http://a:1/x?y", "/x?y", "a:1"), ("HTTPS://b", "/", "b"), ("/http://b/x", "/http://b/x", "x")],
)
def test_targets_that_are_whole_urls(target: str, path: str, host: str) -> None:
    async def play() -> None:
        head = await exchange(GET.replace(b"/x", target.encode()), Writer()).head()
        assert head is not None and (head.target, head.value("host")) == (path, host)

    asyncio.run(play())


def test_a_body_that_was_not_read_ends_the_connection() -> None:
    async def play() -> None:
        writer = Writer()
        line = exchange(GET, writer)
        await line.head()
        assert not await line.answer(Answer(404, {}), last=False)
        assert b"Connection: close" in writer.written

    asyncio.run(play())


def test_a_client_that_takes_no_answer_is_given_up() -> None:
    async def play() -> None:
        writer = Writer(takes=False)
        line = exchange(GET, writer)
        await line.head()
        with pytest.raises(Unanswerable):
            await line.answer(Answer(200, {}), last=False)
        await line.close()
        assert writer.ended == "closed aborted"

    asyncio.run(play())


@pytest.mark.parametrize(
    ("data", "ended", "status"),
    [
        (b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab", False, 408),
        (b"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", False, 400),
        (b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab", True, None),
        (b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n\r\n0123456789ab", False, 413),
    ],
)
def test_bodies_that_are_not_taken(data: bytes, ended: bool, status: int | None) -> None:
    async def play() -> None:
        line = exchange(data, Writer(), ended=ended)
        assert await line.head() is not None
        with pytest.raises((Refused, Unanswerable)) as caught:
            await line.body(10)
        assert (caught.value.answer.status if isinstance(caught.value, Refused) else None) == status

    asyncio.run(play())
