"""Many connections at once, and clients that send as slowly as they can."""

from __future__ import annotations

import concurrent.futures
import gc
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from memory_session import Database

from clients import connect
from headrace.errors import ShuttingDown
from headrace.server import PgClient, ServerThread, run_server_in_thread
from headrace.server.frontend import Query, Startup
from headrace.server.wire import int32
from headrace.session.result import IdleLimit
from support import WAIT_S, eventually

HELLO = Startup({"user": "root"}).encode()


@pytest.fixture
def many(database: Database) -> Iterator[ServerThread]:
    with run_server_in_thread(database.session, max_connections=1200) as server:
        yield server


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def crowd(server: ServerThread, idle: int, busy: int, asked: int) -> None:
    """Idle connections that stay, beside busy ones each of which asks so many times."""

    def work(number: int) -> int:
        with connect(server) as connection:
            rows = [connection.execute("select %s::int", (number + i,)).fetchone() for i in range(asked)]
        return sum(1 for i, row in enumerate(rows) if row == (number + i,))

    with ExitStack() as stack:
        lines = [stack.enter_context(PgClient("127.0.0.1", server.port)) for _ in range(idle)]
        with concurrent.futures.ThreadPoolExecutor(busy) as pool:
            assert list(pool.map(work, range(busy))) == [asked] * busy
        for line in lines[:: max(1, idle // 20)]:  # they are served as before
            assert [list(reply.rows) for reply in line.query("select 1")] == [[(b"1",)]]


def crowds(server: ServerThread, idle: int, busy: int, asked: int) -> None:
    """Twice the same: the second time must leave no more behind than the first."""
    crowd(server, idle, busy, asked)
    eventually(lambda: not server.server._peers, "the connections to be gone")
    files, size = open_files(), resident_bytes()
    crowd(server, idle, busy, asked)
    eventually(lambda: not server.server._peers, "the connections to be gone")
    eventually(lambda: open_files() <= files, "the files to be closed")
    assert resident_bytes() - size < (32 << 20)


def test_idle_connections_beside_busy_ones(many: ServerThread) -> None:
    crowds(many, idle=100, busy=10, asked=10)


@pytest.mark.soak
def test_a_thousand_idle_connections_beside_a_hundred_busy_ones(many: ServerThread) -> None:
    crowds(many, idle=1000, busy=100, asked=100)


def dripped(line: socket.socket, data: bytes) -> bytes:
    """What the server says until it closes the line, to which a byte is sent whenever it has been silent."""
    line.settimeout(0.01)
    heard, at = b"", 0
    while True:
        try:
            piece = line.recv(65536)
        except TimeoutError:
            if at < len(data):
                try:
                    line.sendall(data[at : at + 1])
                except OSError:
                    return heard
            at += 1
            assert at * 0.01 < WAIT_S, "the line stays open"
            continue
        except OSError:
            return heard
        if not piece:
            return heard
        heard += piece


@pytest.mark.parametrize("begun", [int32(200) + int32(3 << 16) + b"user\0root\0", b""])
def test_who_logs_in_byte_by_byte_is_dropped_in_time(database: Database, begun: bytes) -> None:
    slow = begun + bytes(i % 250 + 1 for i in range(5000)) if begun else int32(5000) + int32(3 << 16) + b"x" * 4992
    with (
        run_server_in_thread(database.session, startup_timeout_s=0.3) as server,
        socket.create_connection(("127.0.0.1", server.port), WAIT_S) as line,
    ):
        dripped(line, slow)


def test_a_statement_byte_by_byte_does_not_keep_a_session(database: Database, many: ServerThread) -> None:
    database.idle_limit = IdleLimit(
        0.3, ShuttingDown("terminating connection due to idle-session timeout", sqlstate="57P05")
    )
    with socket.create_connection(("127.0.0.1", many.port), WAIT_S) as line:
        line.sendall(HELLO)
        assert b"57P05" in dripped(line, Query("select " + "1 + " * 5000 + "1").encode())
    assert database.all_closed.wait(WAIT_S)
