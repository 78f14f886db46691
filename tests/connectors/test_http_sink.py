"""The `http` sink: requests that are the same whenever they come again, answers, pauses, addresses."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pyarrow as pa
import pytest

from headrace.common.columns import Column
from headrace.connectors.http import sink as http
from headrace.connectors.http.client import Address, _retry_after_s
from headrace.connectors.http.sink import pause_s, requests
from headrace.connectors.sinks import Sink, SinkPosition, check_secret_options, open_sink
from headrace.errors import InvalidParameter, SinkError
from receiver import Receiver, receiving

COLUMNS = (Column("id", "int"), Column("v", "string"))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(http, "LONGEST_PAUSE_S", 0.02)


def opened(url: str, **options: str) -> Sink:
    given = {name.replace("_", "."): value for name, value in options.items() if name not in ("type", "primary_key")}
    kind = {name: options[name] for name in ("type", "primary_key") if name in options} or {"type": "append-only"}
    return open_sink({"connector": "http", "url": url, **kind, **given}, COLUMNS)


def changes(*rows: tuple[int, str | None, int]) -> Iterator[pa.RecordBatch]:
    for row in rows:
        arrays = [pa.array([row[0]], pa.int32()), pa.array([row[1]], pa.string()), pa.array([row[2]], pa.int64())]
        yield pa.RecordBatch.from_arrays(arrays, names=["id", "v", "__w"])


def at(epoch: int, attempt: str = "a") -> SinkPosition:
    return SinkPosition("d-7", epoch - 10, epoch, 0, attempt)


def test_rows_leave_in_requests_of_a_size(receiver: Receiver) -> None:
    sink = open_sink(
        {"connector": "http", "url": receiver.url, "type": "append-only", "batch.rows": "2", "header.x-who": "me",
         "method": "PUT"}, COLUMNS,
    )  # fmt: skip
    assert sink.write(at(10), changes((3, "c", 1), (1, "a", 2), (2, None, 1))) == 3
    assert receiver.added() == Counter({(1, "a"): 2, (2, None): 1, (3, "c"): 1})
    assert list(receiver.bodies) == ["d-7-10-0", "d-7-10-2"]
    assert {(method, path) for method, path, _ in receiver.seen} == {("PUT", "/in?x=1")}
    assert {h["x-who"] for _, _, h in receiver.seen} == {"me"}
    assert {h["content-type"] for _, _, h in receiver.seen} == {"application/json"}


def test_an_attempt_that_begins_anew_sends_the_same(receiver: Receiver) -> None:
    """In whatever order rows come, and wherever the attempt before has ended."""
    receiver.answers = [(200, {}), (400, {})]
    rows = [(i, f"v{i}", 1) for i in range(7)]
    with pytest.raises(SinkError, match="refuses a request: it answered 400 Bad Request") as caught:
        opened(receiver.url, batch_rows="3").write(at(10), changes(*rows))
    assert caught.value.detail == "said 400" and len(receiver.seen) == 2
    opened(receiver.url, batch_rows="3").write(at(10, "b"), changes(*reversed(rows)))
    assert receiver.added() == Counter((i, v) for i, v, _ in rows) and not receiver.changed
    assert len(receiver.seen) == 5


@pytest.mark.parametrize("status", [429, 500, 503, 408])
def test_what_passes_is_sent_again(receiver: Receiver, status: int) -> None:
    receiver.answers = [(status, {"Retry-After": "0"}), (status, {}), (204, {})]
    opened(receiver.url).write(at(10), changes((1, "a", 1)))
    assert len(receiver.seen) == 3 and receiver.added() == Counter([(1, "a")])


def test_it_ends_some_time(receiver: Receiver) -> None:
    receiver.answers = [(502, {})] * 9
    with pytest.raises(SinkError, match="did not take a request, sent 3 times: it answered 502 Bad Gateway"):
        opened(receiver.url, retries="2").write(at(10), changes((1, "a", 1)))
    assert len(receiver.seen) == 3


def test_an_answer_that_is_lost(receiver: Receiver) -> None:
    """The request was taken: it comes again with the same key."""
    receiver.answers = [(200, {}), (0, {})]
    opened(receiver.url, batch_rows="1").write(at(10), changes((1, "a", 1), (2, "b", 1)))
    assert len(receiver.seen) == 3 and receiver.added() == Counter([(1, "a"), (2, "b")]) and not receiver.changed


def test_redirects_are_not_followed(receiver: Receiver) -> None:
    receiver.answers = [(307, {"Location": "http://127.0.0.1:1/"})]
    with pytest.raises(SinkError, match="it answered 307"):
        opened(receiver.url).write(at(10), changes((1, "a", 1)))


def test_rows_are_replaced_and_deleted(receiver: Receiver) -> None:
    sink = opened(receiver.url, type="upsert", primary_key="id")
    sink.write(at(10), changes((1, "a", 1), (2, "b", 1)))
    sink.write(at(20), changes((1, "a", -1), (1, "A", 1), (2, "b", -1), (9, "x", 1), (9, "x", -1)))
    assert receiver.upserted("id") == Counter([(1, "A")])
    gone, come = {"op": "delete", "key": {"id": 2}}, {"op": "upsert", "row": {"id": 1, "v": "A"}}
    assert receiver.bodies["d-7-20-0"] == [gone, come]
    with pytest.raises(SinkError, match="does not tell the rows of the sink apart"):
        sink.write(at(30), changes((1, "x", 1), (1, "y", 1)))
    sink.write(at(30), changes((1, "x", 1), (1, "x", -1)))
    assert len(receiver.seen) == 2, "what comes to nothing is no request"


def test_nobody_is_there(receiver: Receiver) -> None:
    opened(receiver.url).reach()
    gone = "http://127.0.0.1:1/token-in-the-path"
    with pytest.raises(SinkError, match=r"the receiver at http://127\.0\.0\.1:1: Connection refused") as caught:
        opened(gone).reach()
    assert "token" not in str(caught.value)
    with pytest.raises(SinkError, match="sent 2 times: Connection refused"):
        opened(gone, retries="1").write(at(10), changes((1, "a", 1)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "ftp://x/"}, "option url must be http"),
        ({"url": "http://x:port/"}, "option url must be http"),
        ({"url": "http://me:hunter2@x/"}, "has a user or a password"),
        ({"url": "http://x/a b"}, "has a blank"),
        ({"url": "http://x/\r\nEvil: 1"}, "option url must be http"),
        ({"url": "http://x/", "header.host": "y"}, "option header.host cannot be set"),
        ({"url": "http://x/", "header.a:b": "y"}, "option header.a:b cannot be set"),
        ({"url": "http://x/", "header.a": "y\r\nEvil: 1"}, "has characters that no header can have"),
        ({"url": "http://x/", "ssl.ca.location": "/x"}, "is for https://"),
        ({"url": "http://x/", "batch.rows": "0"}, "option batch.rows must be a whole number of at least 1"),
        ({"url": "http://x/", "colour": "red"}, "unknown option colour"),
        ({}, "option url is required"),
    ],
)
def test_what_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message) as caught:
        open_sink({"connector": "http", "type": "append-only", **options}, COLUMNS)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "header.authorization",
        "header.x-api-key",
        "header.cookie",
        "header.x-auth-token",
        "header.apikey",
        "header.proxy-authorization",
    ],
)
def test_who_one_is_has_to_be_a_secret(name: str) -> None:
    with pytest.raises(InvalidParameter, match="has to be a secret"):
        check_secret_options({"connector": "http", name: "x"}, [])
    check_secret_options({"connector": "http"}, [name, "url"])


def test_addresses() -> None:
    assert Address.of("https://h/p?q=1", None) == Address(True, "h", 443, "/p?q=1")
    assert Address.of("http://[::1]:81", None) == Address(False, "::1", 81, "/")


def test_requests_are_bounded_by_rows_and_bytes() -> None:
    rows = [b"%d" % i * 10 for i in range(10)]
    assert [r.place for r in requests(rows, 4, 1000)] == [0, 4, 8]
    assert [r.place for r in requests(rows, 100, 25)] == [0, 2, 4, 6, 8]
    assert [r.body for r in requests([b"x" * 99], 1, 5)] == [b"[" + b"x" * 99 + b"]"] and not list(requests([], 1))


def test_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "FIRST_PAUSE_S", 0.2)
    monkeypatch.setattr(http, "LONGEST_PAUSE_S", 20.0)
    assert [round(pause_s(n, None, lambda: 1.0), 1) for n in (0, 1, 3, 30)] == [0.2, 0.4, 1.6, 20.0]
    assert pause_s(0, 7.0, lambda: 1.0) == 7.0 and pause_s(0, 3600.0, lambda: 1.0) == 20.0
    assert _retry_after_s("12") == 12.0 and _retry_after_s("soon") is None and _retry_after_s(None) is None
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=90))
    assert 60 < (_retry_after_s(later) or 0) <= 90


@pytest.mark.parametrize("endless", [b"HTTP/1.1 500 no\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_an_answer_that_never_ends_is_none(endless: bytes) -> None:
    with trickling(endless) as port:
        sink = opened(f"http://127.0.0.1:{port}/", timeout="300ms", retries="0")
        with pytest.raises(SinkError):
            sink.write(at(10), changes((1, "a", 1)))


def test_what_comes_after_the_word_that_it_was_taken_is_not_waited_for() -> None:
    with trickling(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nRetry-After: Mon, 01 Jan 99999 0:0:0\r\n\r\n"
    ) as port:
        sink = opened(f"http://127.0.0.1:{port}/", timeout="60s", retries="0")
        assert sink.write(at(10), changes((1, "a", 1))) == 1


@contextmanager
def trickling(begin: bytes) -> Iterator[int]:
    """A port that answers each request so, and then byte by byte for ever."""
    over = threading.Event()

    def answer(line: socket.socket) -> None:
        with line, suppress(OSError):
            line.recv(1 << 16)
            line.sendall(begin)
            while not over.wait(0.05):
                line.sendall(b"1\r\nx\r\n" if b"chunked" in begin else begin if b"100" in begin else b"x")

    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield server.getsockname()[1]
        finally:
            over.set()


@pytest.mark.parametrize("url", ["http://exam..ple/x", f"http://{'a' * 64}/"])
def test_hosts_that_cannot_be(url: str) -> None:
    with pytest.raises(InvalidParameter, match="option url must be"):
        opened(url)
