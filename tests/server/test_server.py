from __future__ import annotations

import concurrent.futures
import contextlib
import datetime as dt
import random
import shutil
import socket
import struct
import subprocess
import sys
import threading
from decimal import Decimal
from pathlib import Path

import psycopg
import pytest

from clients import connect
from headrace.errors import ShuttingDown
from headrace.server import PgClient, PgServer, ServerThread, run_server_in_thread
from headrace.server.frontend import Bind, Execute, Parse, Query, Startup, Sync, Terminate
from headrace.server.simple_client import ConnectionLost, ServerError
from headrace.server.wire import int32
from headrace.session.result import IdleLimit
from support import WAIT_S, child, eventually

psql_missing = pytest.mark.skipif(shutil.which("psql") is None, reason="psql is not installed")


def pg_client(server: ServerThread) -> PgClient:
    return PgClient("127.0.0.1", server.port, timeout_s=WAIT_S)


def raw(server: ServerThread, *data: bytes) -> socket.socket:
    line = socket.create_connection(("127.0.0.1", server.port), WAIT_S)
    line.sendall(b"".join(data))
    return line


def read_all(line: socket.socket) -> bytes:
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while data := line.recv(65536):
            parts.append(data)
    return b"".join(parts)


def psql(server: ServerThread, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = ["psql", "-X", "-h", "127.0.0.1", "-p", str(server.port), "-d", "dev", "-U", "root", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=WAIT_S, check=False)


@psql_missing
def test_psql_runs_scripts_and_shows_errors_where_they_are(server):
    done = psql(server, "-At", "-c", "select 1 as a, 'x' as b", "-c", "select generate_series(1, 3)")
    assert (done.stdout, done.returncode) == ("1|x\n1\n2\n3\n", 0)
    done = psql(server, "-c", "oops")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        'ERROR:  syntax error at or near "oops"', "LINE 1: oops", "        ^", "DETAIL:  No rule.",
        "HINT:  See the manual.",
    ]  # fmt: skip
    done = psql(server, stdin="create table t (a int, b text);\ninsert into t values (1, null);\nselect * from t;\n")
    assert "(1 row)" in done.stdout
    assert "NOTICE:  hello" in psql(server, "-c", "notify 'hello'").stderr


@pytest.mark.parametrize("binary", [False, True])
def test_psycopg_values_go_both_ways(server, binary):
    values = (
        1, 2**40, "hä\n", 1.5, dt.date(2020, 2, 3), dt.datetime(2021, 1, 1, 2, 3, 4, 5),
        dt.datetime(1999, 1, 1, tzinfo=dt.UTC), Decimal("-12345.6789"), True, b"\0\xff", None,
    )  # fmt: skip
    kinds = ["smallint", "bigint", "text", "float8", "date", "timestamp", "timestamptz", "numeric"]
    kinds += ["bool", "bytea", "int"]
    for mark in ("%s", "%b", "%t"):
        sql = "select " + ", ".join(f"{mark}::{kind}" for kind in kinds)
        with connect(server) as connection:
            row = connection.cursor(binary=binary).execute(sql, values).fetchone()
            assert row == values


def test_psycopg_prepared_statements(server):
    with connect(server) as connection:
        for i in range(10):
            row = connection.execute("select %s::bigint as n", (i,), prepare=True).fetchone()
            assert row == (i,)
        connection.execute("create table t (a int)")
        connection.cursor().executemany("insert into t values (%s)", [(i,) for i in range(50)])
        assert connection.execute("select * from t", binary=True).fetchall() == [(i,) for i in range(50)]


def test_psycopg_recovers_from_errors_in_the_extended_protocol(server):
    with connect(server, autocommit=False) as connection:
        for _ in range(3):
            with pytest.raises(psycopg.errors.SyntaxError) as raised:
                connection.execute("select %s::int, oops", (1,))
            assert raised.value.diag.statement_position == "17"
            connection.rollback()
            with pytest.raises(psycopg.errors.DivisionByZero):
                connection.execute("select 1/0", prepare=True)
            connection.rollback()
            assert connection.execute("select %s::int", (5,)).fetchone() == (5,)


def test_psycopg_pipeline_mode(server):
    with connect(server) as connection:
        connection.execute("create table t (a int)")
        with connection.pipeline():
            cursors = [connection.execute("select %s::int", (i,)) for i in range(200)]
            assert [cursor.fetchone() for cursor in cursors] == [(i,) for i in range(200)]
        with pytest.raises(psycopg.errors.SyntaxError), connection.pipeline():
            connection.execute("insert into t values (1)")
            connection.execute("oops")
            connection.execute("insert into t values (2)")
        assert connection.execute("select * from t").fetchall() == [(1,)]


def test_psycopg_streams_rows_one_by_one(server):
    with connect(server) as connection:
        rows = connection.cursor().stream("select generate_series(1, 20000)")
        assert sum(row[0] for row in rows) == 20000 * 20001 // 2


def test_a_notice_reaches_its_handler(server):
    notices = []
    with connect(server) as connection:
        connection.add_notice_handler(lambda notice: notices.append(notice.message_primary))
        connection.execute("notify 'hello'")
    assert notices == ["hello"]


def test_a_running_statement_is_cancelled_and_the_connection_goes_on(server, database):
    with connect(server) as connection:
        running = concurrent.futures.ThreadPoolExecutor(1).submit(connection.execute, "select pg_sleep(60)")
        assert database.waiting.wait(WAIT_S)
        connection.cancel_safe()
        with pytest.raises(psycopg.errors.QueryCanceled):
            running.result(WAIT_S)
        assert connection.execute("select 1").fetchone() == (1,)


def test_a_cancel_request_with_a_wrong_key_does_nothing(server, database):
    with pg_client(server) as client:
        good, client._key = client._key, type(client._key)(client._key.pid, b"none")
        client.send(Query("select pg_sleep(60)"))
        assert database.waiting.wait(WAIT_S)
        client.cancel()
        assert database.cancelled == 0
        client._key = good
        client.cancel()
        assert client.receive().fields["C"] == "57014"


def test_a_client_that_disappears_is_cleaned_up_while_another_goes_on(server, database):
    startup = Startup({"user": "root", "database": "dev"}).encode()
    with connect(server) as other:
        line = raw(server, startup, Query("select generate_series(1, 2000000000)").encode())
        assert len(line.recv(100_000)) > 0
        line.close()
        sleeping = raw(server, startup, Query("select pg_sleep(60)").encode())
        assert database.waiting.wait(WAIT_S)
        sleeping.close()
        for i in range(20):
            assert other.execute("select %s::int", (i,)).fetchone() == (i,)
    assert database.all_closed.wait(WAIT_S)
    assert database.opened == database.closed == 3
    assert database.produced < 10_000_000


def test_a_slow_reader_holds_up_the_producer(server, database):
    line = raw(server, Startup({"user": "root"}).encode(), Query("select wide(2000, 1000000)").encode())
    with connect(server) as other:
        other.execute("select 1")
        line.recv(1000)
        other.execute("select 1")
    assert database.produced < 200
    line.close()


def test_a_huge_result_leaves_memory_flat(tmp_path):
    script = Path(tmp_path, "serve.py")
    script.write_text(
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from memory_session import Database\n"
        "from headrace.server import run_server_in_thread\n"
        "with run_server_in_thread(Database().session) as server:\n"
        "    print(server.port, flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, str(script), str(Path(__file__).parent)]
    with child(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        with PgClient("127.0.0.1", int(process.stdout.readline()), timeout_s=WAIT_S) as client:
            sizes = []
            for count in (30, 600):
                (size,) = [
                    sum(len(row[0]) for row in reply.rows) for reply in client.query(f"select wide({count}, 500000)")
                ]
                assert size == count * 500_000
                sizes.append(_resident_bytes(process.pid))
        process.communicate("")
    assert sizes[1] - sizes[0] < 60 << 20


def _resident_bytes(pid: int) -> int:
    if not Path("/proc").exists():
        pytest.skip("needs /proc")
    peak = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) * 1024


HOSTILE = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)),
    int32(2**31 - 1) + b"x" * 100,
    int32(0),
    int32(-1),
    Startup({"user": "root"}).encode() + b"Q" + int32(2**31 - 1),
    Startup({"user": "root"}).encode() + b"\xff" * 100,
    Startup({"user": "root"}).encode() + b"Q" + int32(8) + b"abcd",
    Startup({"user": "root"}, version=2 << 16).encode(),
]


@pytest.mark.parametrize("data", HOSTILE)
def test_hostile_bytes_close_that_connection_and_nothing_else(server, data):
    with connect(server) as other, raw(server, data) as line:
        assert b"C08P01\0" in read_all(line)
        assert other.execute("select 1").fetchone() == (1,)


def test_a_storm_of_random_bytes_leaves_the_server_serving(server, database):
    source = random.Random(4566)
    for i in range(60):
        head = Startup({"user": "root"}).encode() if i % 2 else b""
        with contextlib.suppress(ConnectionError), raw(server, head, source.randbytes(source.randrange(2000))) as line:
            line.shutdown(socket.SHUT_WR)
            read_all(line)
    with connect(server) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
    assert database.all_closed.wait(WAIT_S)


def test_idle_and_half_open_connections_disturb_nobody(server):
    with contextlib.ExitStack() as lines:
        for _ in range(50):
            lines.enter_context(raw(server))
            lines.enter_context(raw(server, int32(100)))
        with connect(server) as connection:
            assert connection.execute("select 1").fetchone() == (1,)


def test_a_client_that_never_says_hello_is_dropped(database):
    with run_server_in_thread(database.session, startup_timeout_s=0.05) as server, raw(server) as line:
        assert read_all(line) == b""


def accepted(server: ServerThread) -> bool:
    try:
        connect(server).close()
    except psycopg.OperationalError:
        return False
    return True


def test_too_many_clients_are_turned_away(database):
    with run_server_in_thread(database.session, max_connections=2) as server:
        with connect(server), connect(server), pytest.raises(psycopg.OperationalError, match="too many clients"):
            connect(server)
        # A connection counts until it is gone altogether, which is a moment later than its session.
        eventually(lambda: accepted(server), "room for another client")


def test_stopping_tells_the_clients_and_closes_their_sessions(database):
    server = run_server_in_thread(database.session)
    idle, busy, reading = pg_client(server), pg_client(server), pg_client(server)
    reading.send(Query("select wide(100000, 1000000)"))
    busy.send(Query("select pg_sleep(60)"))
    assert database.waiting.wait(WAIT_S)
    server.stop()
    for client in (idle, busy):
        assert client.receive().fields["C"] == "57P01"
        with pytest.raises(ConnectionLost):
            client.receive()
    assert database.opened == database.closed == 3
    with pytest.raises(ConnectionLost, match="could not connect"):
        pg_client(server)
    reading.close()
    server.stop()


def test_a_taken_port_is_an_error(server, database):
    with pytest.raises(OSError):
        run_server_in_thread(database.session, port=server.port)


def test_a_connection_reset_is_no_trouble(server, database):
    line = raw(server, Startup({"user": "root"}).encode(), Query("select wide(1000, 1000000)").encode())
    line.recv(1000)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.close()
    assert database.all_closed.wait(WAIT_S)


def test_goodbye_closes_the_session(server, database):
    with raw(server, Startup({"user": "root"}).encode(), Terminate().encode()) as line:
        read_all(line)
    assert database.all_closed.wait(WAIT_S)
    assert (database.closed, database.cancelled) == (1, 0)


def test_many_clients_at_once(server):
    def work(i: int) -> int:
        with connect(server) as connection:
            return sum(connection.execute("select %s::int", (i + j,)).fetchone()[0] - j for j in range(20)) // 20

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert list(pool.map(work, range(32))) == list(range(32))


def test_the_client_goes_on_after_errors_and_unread_rows(server):
    with pg_client(server) as client:
        with pytest.raises(ServerError) as raised:
            for reply in client.query("select 1; select 1/0"):
                list(reply.rows)
        assert raised.value.sqlstate == "22012"
        for reply in client.query("select generate_series(1, 1000000000)"):
            assert next(reply.rows) == (b"1",)
            break
        replies = [(list(reply.rows), reply.tag) for reply in client.query("select 1; notify 'x'")]
        assert replies == [([(b"1",)], "SELECT 1"), ([], "NOTIFY")]


def test_sessions_of_closed_connections_leave_no_threads(server, database):
    before = set(threading.enumerate())
    for _ in range(5):
        connect(server).close()
    assert database.all_closed.wait(WAIT_S)

    def left() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t.name.startswith("pg-") and t not in before]

    eventually(lambda: not left(), "the threads of the connections to end")


@pytest.mark.parametrize("wanted", ["simple", "extended"])
def test_a_client_lost_in_the_middle_lets_go_in_its_own_thread(server, database, wanted):
    """What a result holds on to is released by calls that may block: never on the event loop."""
    sql = "select generate_series(1, 100000000)"
    asked = [Query(sql)] if wanted == "simple" else [Parse("", sql), Bind("", ""), Execute("", 0), Sync()]
    with raw(server, Startup({"user": "root"}).encode(), *(message.encode() for message in asked)) as line:
        eventually(lambda: database.produced > 0, "the first rows")
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    eventually(lambda: database.let_go, "the end of the stream")
    assert set(database.let_go) == {"pg-1"}


def test_a_cancel_that_comes_too_late_hits_nothing_else(database):
    sessions = []

    def make(parameters):
        sessions.append(database.session(parameters))
        return sessions[-1]

    with run_server_in_thread(make) as server, connect(server) as connection:
        for _ in range(3):
            assert connection.execute("select 1").fetchone() == (1,)
            sessions[0].cancel()
            with connection.pipeline():
                found = [connection.execute("select %s::int", (i,)) for i in range(3)]
            assert [cursor.fetchone() for cursor in found] == [(0,), (1,), (2,)]
            sessions[0].cancel()


def test_an_idle_client_is_sent_away(server, database):
    error = ShuttingDown("terminating connection due to idle-session timeout", sqlstate="57P05")
    database.idle_limit = IdleLimit(0.05, error)
    with raw(server, Startup({"user": "root"}).encode()) as line:
        assert b"57P05" in read_all(line)
    assert database.expired == [error.message]
    assert database.all_closed.wait(WAIT_S)


def test_a_client_that_takes_nothing_is_cut_off(server, database):
    database.send_limit_s = 0.05
    asked = Query("select generate_series(1, 100000000)").encode()
    with raw(server, Startup({"user": "root"}).encode(), asked) as line:
        assert database.all_closed.wait(WAIT_S), "the session holds what it reads until the client goes"
        assert line.fileno() > 0
    assert database.expired == ["the client takes nothing of what it has asked for"]


def test_the_kernel_asks_whether_a_silent_client_is_there(server):
    found = []

    def accepting(line, writer):
        found.append(writer.get_extra_info("socket"))
        accept(line, writer)

    def options():
        line = found[0]
        return [
            line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            line.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
            line.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
        ]

    server.stop()
    other = PgServer(server.server._make_session, port=0)
    accept, other._connected = other._connected, accepting
    with ServerThread(other) as running:
        running.start()
        with connect(running):
            assert options() == [1, 60, 120_000]
