"""A fuzzer of the wire: what clients send, mutated, in every state of the protocol.

    PYTHONPATH=src:tests:tests/server python tests/server/wire_fuzz.py --messages 1000000 --seed 1
    PYTHONPATH=src:tests:tests/server python tests/server/wire_fuzz.py --messages 100000 --sockets
    PYTHONPATH=src:tests:tests/server:tests/e2e python tests/server/wire_fuzz.py --messages 100000 --served

The first is the decoder and the state machine of a connection without a socket; the second a served port, in plain text
and by TLS; the third a whole server with reading processes. A
failure names the seed of its case, with which `--seed N --cases 1` does the same again.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import structlog
from memory_session import Database

from headrace.common.scram import Verifier
from headrace.server import PgClient, run_server_in_thread
from headrace.server.backend import AuthenticationOk, BackendDecoder, ReadyForQuery, Report
from headrace.server.connection import Connection
from headrace.server.copy_binary import SIGNATURE
from headrace.server.frontend import (
    Bind,
    CancelRequest,
    Close,
    Describe,
    Execute,
    Flush,
    FrontendDecoder,
    GssEncRequest,
    Opaque,
    Parse,
    Query,
    SslRequest,
    Startup,
    Sync,
)
from headrace.server.gate import AccessGate
from headrace.server.wire import ProtocolViolation, cstring, value
from headrace.session.access import Rules
from headrace.session.stored_roles import Role

ROLES = {"root": Role("root"), "anna": Role("anna", password=Verifier.of("open sesame").text)}
RULES = "host all root all trust; host all all all scram-sha-256"
HELLO = Startup({"user": "root", "database": "dev"}).encode()
ANNA = Startup({"user": "anna", "database": "dev"}).encode()
TABLE = Query("create table t (a int, b text, d double precision, e date)").encode()
FIRST = Opaque("p", cstring("SCRAM-SHA-256") + value(b"n,,n=,r=abc")).encode()
BINARY_ROWS = SIGNATURE + bytes(8) + b"\0\4\0\0\0\4\0\0\0\1\0\0\0\1x\xff\xff\xff\xff\0\0\0\4\0\0\0\5\xff\xff"

STATES: dict[str, bytes] = {
    "before": b"",
    "asked for TLS": SslRequest().encode(),
    "asked for GSSAPI": GssEncRequest().encode(),
    "login": ANNA,
    "proof": ANNA + FIRST,
    "idle": HELLO + TABLE,
    "transaction": HELLO + TABLE + Query("begin").encode(),
    "failed": HELLO + Query("begin").encode() + Query("select 1/0").encode(),
    "prepared": HELLO + TABLE + Parse("s", "select $1::int", (23,)).encode(),
    "bound": HELLO + Parse("", "select generate_series(1, 20)").encode() + Bind("p", "").encode(),
    "suspended": HELLO + Query("begin").encode() + Parse("", "select generate_series(1, 20)").encode()
    + Bind("p", "").encode() + Execute("p", 2).encode(),
    "skipping": HELLO + Parse("", "rubbish").encode(),
    "copying text": HELLO + TABLE + Query("copy t from stdin").encode(),
    "copying CSV": HELLO + TABLE + Query("begin; copy t from stdin csv; select 1").encode(),
    "copying binary": HELLO + TABLE + Query("copy t from stdin binary").encode(),
    "with cursors": HELLO + TABLE + Query("begin; declare c scroll cursor with hold for select generate_series(1, 30); "
    "declare d binary cursor for select generate_series(1, 5); fetch 2 from c").encode(),
    "following": HELLO + TABLE + Query("insert into t values (1, 'x', 2.5, null)").encode()
    + Query("copy (subscribe t) to stdout").encode(),
    "copying by a portal": HELLO + TABLE + Parse("", "copy t from stdin").encode() + Bind("", "").encode()
    + Execute("").encode(),
}  # fmt: skip
MESSAGES: list[bytes] = [
    Query("select 1").encode(), Query("select 'a', null, 2.5; select 2").encode(), Query("").encode(),
    Query("select generate_series(1, 30)").encode(), Query("begin").encode(), Query("commit").encode(),
    Query("insert into t values (1, 'x', 2.5, null)").encode(), Query("select * from t").encode(),
    Query("copy t from stdin").encode(), Query("copy t from stdin binary").encode(),
    Query("copy t to stdout").encode(), Query("copy t to stdout binary; select 1").encode(),
    Query("declare c cursor for select generate_series(1, 30)").encode(),
    Query("declare d scroll cursor with hold for select 'a', 2.5").encode(), Query("fetch 3 from c").encode(),
    Query("fetch backward all from d; move absolute 2 in c; close d").encode(), Query("fetch all from p").encode(),
    Query("close all").encode(), Query("rollback").encode(), Query("copy (subscribe t) to stdout").encode(),
    Parse("", "fetch 2 from c").encode(), Parse("f", "fetch relative -1 from d").encode(),
    Parse("", "declare p binary cursor for select 1").encode(), Bind("", "f").encode(),
    Parse("", "copy (subscribe t) to stdout").encode(), Parse("k", "select b from k where a = $1", (23,)).encode(),
    Bind("", "k", (1,), (b"\0\0\0\1",), (1,)).encode() + Execute("").encode() + Sync().encode(),
    Bind("", "k", (), (b"2",)).encode() + Describe("P", "").encode() + Execute("").encode() + Sync().encode(),
    Parse("", "select $1::int, $2::text").encode(), Parse("s", "select $1::int", (23,)).encode(),
    Parse("", "select generate_series(1, 50)").encode(), Parse("", "copy t from stdin csv").encode(),
    Parse("", "copy t to stdout").encode(), Bind("", "", (), (b"1", b"x")).encode(),
    Bind("p", "s", (1,), (b"\0\0\0\1",), (1,)).encode(), Bind("p", "", ()).encode(), Bind("", "", ()).encode(),
    Describe("S", "").encode(), Describe("P", "").encode(), Describe("P", "p").encode(), Close("S", "s").encode(),
    Close("P", "p").encode(), Execute("").encode(), Execute("p", 3).encode(), Sync().encode(), Flush().encode(),
    Opaque("d", b"1\tx\t2.5\t2024-01-01\n").encode(), Opaque("d", b'2,"a\n""b",,\n').encode(),
    Opaque("d", b"\\.\n").encode(), Opaque("d", BINARY_ROWS).encode(), Opaque("c", b"").encode(),
    Opaque("f", b"no\0").encode(), Opaque("F", b"\0\0\0\1").encode(), FIRST,
    Opaque("p", b"c=biws,r=abc,p=AAAA").encode(), CancelRequest(7, b"abcd").encode(), HELLO, ANNA,
    SslRequest().encode(), GssEncRequest().encode(),
    Startup({"user": "root", "_pq_.x": "1"}, 3 << 16 | 2).encode(),
]  # fmt: skip
MOST_GROWN_BYTES = 64 << 20
"""By how much memory may grow after the first tenth of the messages: what the allocator keeps, and no leak."""
_NUMBERS = (0, 1, 2, 4, 5, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def mutated(choose: random.Random, message: bytes) -> bytes:
    """The message with something changed; its length is made to fit again, most of the time."""
    data = bytearray(message)
    for _ in range(choose.choice((1, 1, 1, 2, 4))):
        at = choose.randrange(len(data) + 1)
        match choose.randrange(6):
            case 0:
                data[at : at + 1] = bytes([choose.randrange(256)])
            case 1:
                del data[at : at + choose.randrange(1, 9)]
            case 2:
                data[at:at] = choose.randbytes(choose.randrange(1, 9))
            case 3:
                data[at : at + 4] = choose.choice(_NUMBERS).to_bytes(4, "big")
            case 4:
                data[at : at + 2] = (choose.choice(_NUMBERS) & 0xFFFF).to_bytes(2, "big")
            case _:
                other = choose.choice(MESSAGES)
                data[at:] = other[choose.randrange(len(other)) :]
    if choose.random() < 0.85 and len(data) >= 5:
        if message[:1].isalpha():
            data[0] = message[0]
            data[1:5] = (len(data) - 1).to_bytes(4, "big")
        else:
            data[0:4] = len(data).to_bytes(4, "big")
    return bytes(data)


def case(seed: int) -> tuple[str, bytes, int]:
    """A state, the bytes of a client from the first on, and how many messages they are."""
    choose = random.Random(seed)
    state = choose.choice(list(STATES))
    count = choose.randrange(1, 12)
    parts = [choose.choice(MESSAGES) for _ in range(count)]
    parts = [mutated(choose, part) if choose.random() < 0.4 else part for part in parts]
    before = STATES[state]
    if choose.random() < 0.05:
        before = mutated(choose, before) if before else choose.randbytes(20)
    return state, before + b"".join(parts), count


def cuts(choose: random.Random, data: bytes) -> Iterator[bytes]:
    """The bytes in the pieces in which they come."""
    at = 0
    while at < len(data):
        step = choose.choice((1, 5, 40, 500, len(data)))
        yield data[at : at + step]
        at += step


def alone(seed: int) -> int:
    """One case for the state machine without a socket; returns how many messages it was. Raises `AssertionError`."""
    state, data, count = case(seed)
    database = Database()
    connection = Connection(
        database.session, 7, b"abcd", gate=AccessGate(lambda: Rules.parse(RULES), ROLES.get)
    )  # fmt: skip
    decoder, answers = FrontendDecoder(admitted=lambda: connection.admitted), BackendDecoder()
    said: list[Any] = []

    def say(messages: list[Any]) -> None:
        for out in connection.receive(messages):
            assert isinstance(out, bytes)
            said.extend(answers.feed(out if said else out.lstrip(b"N")))  # which refuses encryption

    for piece in cuts(random.Random(seed), data):
        messages: list[Any] = []
        try:
            messages.extend(decoder.feed(piece))
        except ProtocolViolation as violation:
            messages.append(violation)
        connection.begin()
        say(messages)
        if connection.closed or isinstance(messages[-1:] and messages[-1], ProtocolViolation):
            break
    internal = [m for m in said if isinstance(m, Report) and m.fields["C"] == "XX000"]
    assert not internal, (seed, state, internal)
    welcomed = any(isinstance(m, AuthenticationOk) for m in said)
    assert welcomed or not database.opened, (seed, state)
    if not connection.closed and connection.session is not None:
        said.clear()
        say([Opaque("f", b"enough\0"), Sync()])
        assert isinstance(said[-1], ReadyForQuery), (seed, state, said)
    connection.close()
    assert database.opened == database.closed, (seed, state)
    return count


def sockets(seeds: Iterator[int], messages: int) -> int:
    """Cases for a served port, in plain text and by TLS; returns how many messages they were."""
    from certificates import Authority
    from headrace.server.tls import Certificates

    done = 0
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        pair = Authority(Path(folder)).pair("server")
        database = Database(follows_for_ever=True)
        gate = AccessGate(lambda: Rules.parse(RULES), ROLES.get)
        server = stack.enter_context(
            run_server_in_thread(database.session, gate=gate, certificates=Certificates(pair.certificate, pair.key))
        )
        with PgClient("127.0.0.1", server.port, user="root", database="dev") as client:
            list(client.query("select 1"))
        before, early = (len(os.listdir("/proc/self/fd")), threading.active_count()), 0
        while done < messages:
            seed = next(seeds)
            _, data, count = case(seed)
            _send(server.port, data, seed)
            done += count
            early = early or (done > messages // 10) * resident_bytes()
            if seed % 200 == 0:
                database.tables = {name: found for name, found in database.tables.items() if name in ("t", "k")}
                with PgClient("127.0.0.1", server.port, user="root", database="dev") as client:
                    assert [list(reply.rows) for reply in client.query("select 1")] == [[(b"1",)]], seed
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and (
            database.opened > database.closed
            or len(os.listdir("/proc/self/fd")) > before[0]
            or threading.active_count() > before[1]
        ):
            time.sleep(0.1)
        after = len(os.listdir("/proc/self/fd")), threading.active_count()
        assert after[0] <= before[0] + 2 and after[1] <= before[1] + 2, (before, after)
        assert database.opened == database.closed, (database.opened, database.closed)
        grown = resident_bytes() - early
        assert grown < MOST_GROWN_BYTES, grown
        print(f"descriptors {before[0]}, then {after[0]}; memory grew by {grown >> 20} MiB after the first tenth")
    return done


def served(seeds: Iterator[int], messages: int) -> int:
    """Cases for a whole server with reading processes; returns how many messages they were.

    Half of the cases come when the client has a statement that is answered beside the server.
    """
    from server import Server
    from support import eventually

    done = 0
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), settings={"HEADRACE_READ_PROCESSES": "2"})
        try:
            server.start()
            server.execute(
                "create table k (a int primary key, b text)",
                "insert into k values (1, 'x'), (2, null)",
                "create table t (a int, b text, d double precision, e date)",
            )
            server.wait_spark()
            before: tuple[int, int] | None = None
            while done < messages:
                seed = next(seeds)
                _, data, count = case(seed)
                _send(server.port, _known_there(data) if seed % 4 < 2 else data, seed, tls=False)
                done += count
                if seed % 200 == 0:
                    assert server.rows("select b from k where a = 1") == [("x",)], seed
                    if before is None and done > messages // 10:
                        before = _held(server.process_id)
            assert before is not None

            def as_before() -> bool:
                return _held(server.process_id)[0] <= before[0] + 4

            eventually(as_before, "all clients to be let go of", 120)
            after = _held(server.process_id)
            print(f"descriptors {before[0]}, then {after[0]}; memory {before[1] >> 20} MiB, then {after[1] >> 20}")
            said = server.log_text()
            assert "Traceback" not in said, said[said.index("Traceback") - 500 :][:4000]
        finally:
            server.close()
    return done


def _known_there(data: bytes) -> bytes:
    """The case behind what has a reading process know a statement, if it is one of a client that is let in."""
    if not data.startswith(HELLO):
        return data
    use = Bind("", "k", (1,), (b"\0\0\0\1",), (1,)).encode() + Execute("").encode() + Sync().encode()
    return HELLO + Parse("k", "select b from k where a = $1", (23,)).encode() + use * 4 + data[len(HELLO) :]


def _held(pid: int) -> tuple[int, int]:
    """Descriptors and bytes of memory of a server and its reading processes, without Java."""
    pids = [pid]
    for one in pids:
        children = Path(f"/proc/{one}/task/{one}/children")
        pids += map(int, children.read_text().split()) if children.exists() else ()
    descriptors = size = 0
    for one in pids:
        if "java" in Path(f"/proc/{one}/comm").read_text():
            continue
        descriptors += len(os.listdir(f"/proc/{one}/fd"))
        size += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return descriptors, size


def _send(port: int, data: bytes, seed: int, *, tls: bool = True) -> None:
    """What one client sends, of which it takes a part of the answers."""
    with socket.create_connection(("127.0.0.1", port), 60) as raw:
        line: socket.socket = raw
        try:
            if tls and seed % 2:
                raw.sendall(SslRequest().encode())
                if raw.recv(1) == b"S":
                    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                    line = context.wrap_socket(raw)
            line.settimeout(60)
            line.sendall(data)
            if seed % 3:
                line.sendall(Opaque("f", b"\0").encode() + Sync().encode() + b"X\0\0\0\4")
                line.settimeout(0.05)  # the server may wait for the rest of a message
                while line.recv(65536):
                    pass
        except (ConnectionError, ssl.SSLError, TimeoutError):
            pass
        finally:
            if line is not raw:
                line.close()


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Run cases until there were enough messages."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=0, help="this many cases, whatever the messages")
    parser.add_argument("--sockets", action="store_true")
    parser.add_argument("--served", action="store_true")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    begun, done, seed = time.monotonic(), 0, options.seed
    if options.sockets:
        done = sockets(iter(range(options.seed, 1 << 62)), options.messages)
    if options.served:
        done = served(iter(range(options.seed, 1 << 62)), options.messages)
    early = 0
    alone_too = not (options.sockets or options.served)
    while alone_too and (seed < options.seed + options.cases if options.cases else done < options.messages):
        done += alone(seed)
        seed += 1
        early = early or (done > options.messages // 10) * resident_bytes()
    if early:
        grown = resident_bytes() - early
        assert grown < MOST_GROWN_BYTES, grown
        print(f"memory grew by {grown >> 20} MiB after the first tenth")
    print(f"{done} messages in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
