from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import (
    backends,
    startup_frontend,
    typed_frontend,
)

from headrace.server import frontend
from headrace.server.backend import BackendDecoder
from headrace.server.frontend import FrontendDecoder
from headrace.server.wire import ProtocolViolation, frame, int32
from support import examples


def started() -> FrontendDecoder:
    decoder = FrontendDecoder()
    list(decoder.feed(frontend.Startup({"user": "u"}).encode()))
    return decoder


def in_pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@settings(deadline=None)
@given(st.lists(typed_frontend, max_size=6), st.lists(st.integers(0, 2000), max_size=5))
def test_what_a_client_encodes_is_decoded_whatever_the_pieces(messages, cuts):
    decoder, data = started(), b"".join(message.encode() for message in messages)
    assert [m for piece in in_pieces(data, cuts) for m in decoder.feed(piece)] == messages


@settings(deadline=None)
@given(startup_frontend)
def test_startup_packets_round_trip(message):
    assert list(FrontendDecoder().feed(message.encode())) == [message]


def test_encryption_requests_come_before_startup_and_not_for_ever():
    decoder = FrontendDecoder()
    data = frontend.SslRequest().encode() + frontend.GssEncRequest().encode()
    assert list(decoder.feed(data)) == [frontend.SslRequest(), frontend.GssEncRequest()]
    with pytest.raises(ProtocolViolation, match="too many"):
        list(decoder.feed(frontend.SslRequest().encode()))


@settings(deadline=None)
@given(st.lists(backends, max_size=6), st.lists(st.integers(0, 2000), max_size=5))
def test_what_a_server_encodes_is_decoded_whatever_the_pieces(messages, cuts):
    decoder, data = BackendDecoder(), b"".join(message.encode() for message in messages)
    assert [m for piece in in_pieces(data, cuts) for m in decoder.feed(piece)] == messages


@settings(deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_random_bytes_are_messages_or_a_violation(data, after_startup):
    decoder = started() if after_startup else FrontendDecoder()
    try:
        list(decoder.feed(data))
    except ProtocolViolation as violation:
        assert violation.sqlstate == "08P01"


@settings(deadline=None)
@given(st.sampled_from("QPBDCESHXFpdcf"), st.binary(max_size=100))
def test_random_bodies_of_real_messages_are_messages_or_a_violation(kind, body):
    try:
        (message,) = started().feed(frame(kind.encode(), body))
    except ProtocolViolation:
        return
    assert list(started().feed(message.encode())) == [message]


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_random_startup_bodies_are_messages_or_a_violation(body):
    with contextlib.suppress(ProtocolViolation):
        list(FrontendDecoder().feed(int32(len(body) + 4) + body))


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_from_a_server_are_messages_or_a_violation(data):
    with contextlib.suppress(ProtocolViolation):
        list(BackendDecoder().feed(data))


@pytest.mark.parametrize(
    "data",
    [
        b"Q" + int32(3),
        b"Q" + int32((64 << 20) + 1),
        b"Q" + int32(-1),
        b"S" + int32(30_001),
        b"\x00",
        b"z",
        frame(b"Q", b"select 1"),
        frame(b"Q", b"select 1\0more"),
        frame(b"S", b"x"),
        frame(b"D", b"Xname\0"),
        frame(b"B", b"\0\0" + b"\xff\xff"),
        frame(b"B", b"\0\0" + b"\0\0" + b"\0\1" + int32(-2)),
        frame(b"B", b"\0\0" + b"\0\1\0\2" + b"\0\0" + b"\0\0"),
    ],
)
def test_each_malformed_message_is_a_violation(data):
    with pytest.raises(ProtocolViolation):
        list(started().feed(data))


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        int32(7) + b"\0\0\0",
        int32(10_001),
        int32(8) + int32(2 << 16),
        int32(9) + int32(3 << 16) + b"u",
        int32(12) + int32(80877102) + int32(1),
        int32(9) + int32(80877103) + b"x",
    ],
)
def test_each_malformed_startup_packet_is_a_violation(data):
    with pytest.raises(ProtocolViolation):
        list(FrontendDecoder().feed(data))


def test_a_long_message_is_taken_up_to_the_limit():
    decoder = FrontendDecoder(max_message_bytes=1000)
    list(decoder.feed(frontend.Startup({"user": "u"}).encode()))
    assert list(decoder.feed(frontend.Query("x" * 995).encode())) == [frontend.Query("x" * 995)]
    with pytest.raises(ProtocolViolation, match="at most 1000 bytes"):
        list(decoder.feed(frontend.Query("x" * 996).encode()))


def test_text_that_is_no_utf8_is_kept_for_the_connection_to_refuse():
    (message,) = started().feed(frame(b"Q", b"select '\xff'\0"))
    assert message == frontend.Query("select '\udcff'")
    assert message.encode() == frame(b"Q", b"select '\xff'\0")


@given(st.binary(max_size=40), st.sampled_from([b"", b"s", b"name"]), st.lists(st.none() | st.binary(max_size=5)))
@settings(max_examples=examples(200), deadline=None)
def test_what_is_decoded_together_is_what_is_decoded_one_by_one(noise, name, values):
    """The messages that clients send most, with and without noise before, within and behind them."""
    bind = frontend.Bind("", name.decode(), (), tuple(values), (0,)).encode()
    run = frontend.Execute("").encode() + frontend.Sync().encode()
    described = frontend.Describe("P", "").encode() + run
    cut = len(noise) % len(bind)
    parse, query = frontend.Parse("", "select 'ä'", (23, 0)).encode(), frontend.Query("select 'ä'").encode()
    for data in (
        bind + run, bind + described, bind + noise + run, noise + bind + run, bind[:cut] + noise + bind[cut:],
        parse + bind + run, parse + noise + bind + run, parse[:cut] + noise + parse[cut:] + bind + run, parse,
        query, query + noise, query[:cut] + noise + query[cut:], frame(b"Q", noise), frame(b"Q", noise + b"\0"),
        frame(b"P", noise) + bind + run, frame(b"P", b"\0" + noise + b"\0\0\0") + bind + run,
    ):  # fmt: skip
        together, alone = FrontendDecoder(), FrontendDecoder()
        together.started = alone.started = True
        whole = together.whole(data)
        if whole is not None:
            assert list(whole) == list(alone.feed(data))
    assert FrontendDecoder().whole(bind + run) is None, "before the start-up packet"
    started = FrontendDecoder()
    started.started = True
    assert started.whole(bind + run) is not None and started.whole(bind + described) is not None
    assert started.whole(parse + bind + described) is not None and started.whole(query) is not None
    list(started.feed(bind[:3]))
    assert started.whole(bind + run) is None, "what came before it is not complete"
