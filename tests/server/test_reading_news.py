"""What the server and its reading processes say to each other, without either of them."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.common.zones import UTC
from headrace.config import Settings
from headrace.errors import InvalidParameter
from headrace.server.readers.news import (
    News,
    ReaderStart,
    SessionRest,
    data_head,
    packed,
    pieces_of,
    rest_bytes,
    unpacked,
)
from headrace.server.readers.paired import client_socket, line_head
from headrace.server.readers.pool import _SILENT_LOOKS, ReaderPlace, reading_processes
from headrace.server.readers.publisher import NewsLine
from headrace.server.readers.reading_board import TABLES, ReadingBoard


def test_pieces_come_whole_however_they_are_cut() -> None:
    rest = SessionRest(1 << 40, True, 77, 3, {"a": None})
    said = data_head(5) + b"abcde" + rest_bytes(rest) + data_head(0) + rest_bytes(SessionRest(0, False, 0, 0))
    for step in (1, 2, 3, 7, len(said)):
        buffer, found = bytearray(), []
        for at in range(0, len(said), step):
            buffer += said[at : at + step]
            found += list(pieces_of(buffer))
        assert found == [b"abcde", rest, b"", SessionRest(0, False, 0, 0)]
        assert not buffer


def test_messages_come_whole_however_they_are_cut() -> None:
    said = [ReaderStart(0, 2, None, None, None), News(4, 5, 6, gone=(1, 2))]
    data = b"".join(map(packed, said))
    for step in (1, 5, len(data)):
        buffer, found = bytearray(), []
        for at in range(0, len(data), step):
            buffer += data[at : at + step]
            found += list(unpacked(buffer))
        assert found == said


def test_a_client_keeps_what_its_line_proves() -> None:
    head = line_head(True, "anna", b"\x00\xff")
    told = client_socket(head[4:], "192.0.2.1")
    assert (told.address, told.encrypted, told.certificate_name, told.binding) == (
        "192.0.2.1", True, "anna", b"\x00\xff",
    )  # fmt: skip
    assert client_socket(line_head(False, None, None)[4:], "").binding is None


def test_the_board_keeps_the_newest_epoch_of_all_processes() -> None:
    board = ReadingBoard.create(2)
    board.version = 6
    board.show(0, 3, 10)
    board.show(1, 3, 12)
    board.show(1, 3, 11)
    board.show(1, TABLES - 1, 5)
    board.count(1)
    board.vouch(3, 9, 77)
    board.vouch(TABLES - 1, 8, 66)
    assert (board.vouched(3), board.vouched(TABLES - 1), board.vouched(0)) == ((9, 77), (8, 66), (0, 0))
    shown = board.shown()
    assert (shown[3], shown[TABLES - 1], shown[0]) == (12, 5, 0)
    assert (board.version, board.answered(0), board.answered(1)) == (6, 0, 1)


def test_a_process_that_is_stopped_is_killed_and_no_other() -> None:
    board = ReadingBoard.create(2)
    pool: Any = SimpleNamespace(board=board, stopping=True)
    places = [ReaderPlace(number, pool) for number in range(2)]
    with contextlib.ExitStack() as ends:
        processes = [ends.enter_context(subprocess.Popen(["sleep", "60"])) for _ in places]
        for place, process in zip(places, processes, strict=True):
            ends.callback(process.kill)
            place._process, place.ready = process, True
        processes[1].send_signal(signal.SIGSTOP)
        for _ in range(_SILENT_LOOKS + 1):
            board.beat(0)
            for place in places:
                place.look()
        assert processes[1].wait(30) == -signal.SIGKILL and processes[0].poll() is None
    assert [place.status.state for place in places] == ["running", "running"]
    assert (board.beats(0), board.beats(1), board.answered(0)) == (_SILENT_LOOKS + 1, 0, 0)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        one.setblocking(False)
        yield one, other


def test_news_that_a_process_does_not_take_waits_in_order(ends: tuple[socket.socket, socket.socket]) -> None:
    one, other = ends
    clogged: list[int] = []
    line = NewsLine(one, lambda: clogged.append(1), lambda: clogged.append(2))
    sent = b""
    for i in range(200):
        data = bytes([i]) * 10_000
        sent += data
        line.send(data)
    assert clogged == [1], "told once that something waits, and nothing is lost"
    received = b""
    while len(received) < len(sent):
        received += other.recv(1 << 20)
        line.flush()
    assert received == sent


def test_a_process_that_is_gone_is_told_of_once(ends: tuple[socket.socket, socket.socket]) -> None:
    one, other = ends
    lost: list[int] = []
    line = NewsLine(one, lambda: None, lambda: lost.append(1))
    other.close()
    for _ in range(3):
        line.send(b"x" * 1000)
    assert lost == [1]


@pytest.mark.parametrize(
    ("file", "local", "why"),
    [
        (None, True, "the catalog is no file of this machine: postgresql://db/headrace"),
        ("/data/catalog.db", False, "the state is not on a disk of this machine: s3://bucket"),
    ],
)
def test_they_are_refused_where_they_cannot_be(file: str | None, local: bool, why: str) -> None:
    """So a server that another one may take over from, and that one, are told at their start: they share a catalog."""
    root = SimpleNamespace(is_local=local, url="s3://bucket")
    instance: Any = SimpleNamespace(
        settings=Settings(read_processes=2), coordinator=SimpleNamespace(root=root),
        catalog=SimpleNamespace(file=file, location="postgresql://db/headrace"),
    )  # fmt: skip
    with pytest.raises(InvalidParameter, match=why) as error:
        reading_processes(instance)
    assert error.value.hint is not None and "standbys" in error.value.hint
    instance.settings = Settings()
    assert reading_processes(instance) is None


def test_zones_cross_the_line() -> None:
    """A plan goes with the zone in which its texts are read and shown."""
    buffer = bytearray(packed(UTC))
    assert list(unpacked(buffer)) == [UTC]
