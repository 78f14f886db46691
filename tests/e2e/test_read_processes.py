"""A real server with reading processes: they answer what the server would, whatever else goes on, and end with it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from server import HOST, Server
from support import eventually

POINT = "SELECT v FROM t WHERE id = %s"
WHOLE = "SELECT id, v FROM t WHERE v >= 0 ORDER BY id DESC"
KEYS = 6
ENDLESS = """SELECT count(*) FROM generate_series(1, 10000000) AS a(i), generate_series(1, 10000000) AS b(i)
WHERE a.i + b.i = 3"""


def reading_pids(server: Server) -> list[int]:
    """The reading processes that have ever said in this life that they take clients."""
    return [int(pid) for pid in re.findall(r"takes clients .*?pid=(\d+)", _plain(server))]


def _plain(server: Server) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", server.log_text())


def answered(server: Server) -> int:
    """How many reads were answered beside the server, which has ended."""
    found = re.search(r"the reading processes have ended .*?answered=(\d+)", _plain(server))
    assert found is not None, server.log_text()[-2000:]
    assert "Traceback" not in server.log_text()
    return int(found[1])


def start(server: Server, processes: int = 2) -> None:
    server.start()
    eventually(lambda: len(reading_pids(server)) >= processes, "reading processes to take clients", 240)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    settings = {"HEADRACE_READ_PROCESSES": "2", "HEADRACE_AUDIT_LOG": str(tmp_path / "audit")}
    found = Server(tmp_path, settings=settings)
    yield found
    found.close()


def point(connection: psycopg.Connection[Any], key: int) -> Any:
    """A point read by a prepared statement."""
    return connection.execute(POINT, (key,), prepare=True).fetchall()


def warm(*connections: psycopg.Connection[Any]) -> None:
    """Have the statement prepared, run once by the server, and answered beside it if that may be."""
    for connection in connections:
        for _ in range(4):
            point(connection, 1)


class History:
    """What clients have been told of the rows of t: of each the newest value. Nobody may read an earlier one."""

    def __init__(self, server: Server) -> None:
        self.server = server
        server.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v bigint)",
            *(f"INSERT INTO t VALUES ({i}, 0)" for i in range(KEYS)),
        )
        self.acknowledged = [0] * KEYS
        self.failures: list[str] = []
        self.over = threading.Event()
        self.looks = 0

    def look(self, connection: psycopg.Connection[Any], key: int | None) -> None:
        """Read one row, or all."""
        least = self.acknowledged.copy()
        found = connection.execute(*((WHOLE,) if key is None else (POINT, (key,))), prepare=True).fetchall()
        for i, v in found if key is None else [(key, v) for (v,) in found]:  # none between its DELETE and its INSERT
            if v < least[i]:
                self.failures.append(f"key {i}: {v} after {least[i]}, alone: {key is not None}")
            self.acknowledged[i] = max(self.acknowledged[i], v)
        self.looks += 1

    def read(self, seed: int) -> None:
        """Read again and again, on another connection now and then, and whenever one is lost."""
        chosen = random.Random(seed)
        while not self.over.wait(0.01):
            with contextlib.suppress(psycopg.OperationalError), self.server.connect() as connection:
                for _ in range(80):
                    if self.over.is_set() or self.failures:
                        break
                    self.look(connection, chosen.choice([None, *range(KEYS)]))

    def write(self, key: int) -> None:
        """Write one row again and again; where it is not known what became of a value, a later one is written."""
        value = 0
        while not self.over.wait(0.01):
            with contextlib.suppress(psycopg.OperationalError), self.server.connect() as connection:
                while not self.over.is_set():
                    value += 1
                    if value % 7 == 0:
                        connection.execute("DELETE FROM t WHERE id = %s", (key,))
                    if value % 3 == 0 or value % 7 == 0:
                        connection.execute("INSERT INTO t VALUES (%s, %s)", (key, value))  # over what is there
                    else:
                        connection.execute("UPDATE t SET v = %s WHERE id = %s", (value, key))
                    self.acknowledged[key] = value

    def thread(self, call: Any, *given: Any) -> threading.Thread:
        """A thread that notes what goes wrong in it."""

        def run() -> None:
            try:
                call(*given)
            except Exception as error:
                self.failures.append(repr(error))

        return threading.Thread(target=run)


def test_reads_on_all_connections_are_never_stale(server: Server) -> None:
    """What is acknowledged on one connection is read on all others from then on, beside writes, compaction, vacuum and
    DDL; no reader ever sees an earlier state than any has seen, of a row or of all."""
    start(server)
    history = History(server)
    over = history.over

    def define() -> None:
        with server.connect() as connection:
            for i in range(10_000):
                if over.is_set():
                    return
                connection.execute(f"CREATE TABLE other_{i} (a int)")
                connection.execute(f"DROP TABLE other_{i}")

    writers = [history.thread(history.write, key) for key in range(KEYS - 1)]
    readers = [history.thread(history.read, seed) for seed in range(6)]
    threads = [*writers, *readers, history.thread(define)]
    for thread in threads:
        thread.start()
    # Acknowledged here, read there: one key has its writer and its readers in one thread.
    connections = [server.connect() for _ in range(6)]
    warm(*connections)
    for value in range(1, 80):
        writer = connections[value % len(connections)]
        writer.execute("UPDATE t SET v = %s WHERE id = %s", (value, KEYS - 1))
        for connection in connections:
            assert point(connection, KEYS - 1) == [(value,)]
    over.set()
    for thread in threads:
        thread.join(120)
    assert history.failures == []
    for connection in connections:
        assert [point(connection, key) for key in range(KEYS)] == [
            server.rows(f"SELECT v FROM t WHERE id = {key}") for key in range(KEYS)
        ]
        connection.close()
    assert server.stop() == 0
    assert answered(server) > 80


def test_what_texts_mean_and_who_may_read(server: Server) -> None:
    """Rights, definitions, settings and transactions count from the moment at which they change, on all connections."""
    start(server)
    server.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        "CREATE ROLE anna LOGIN", "GRANT SELECT ON t TO anna",
    )  # fmt: skip
    root = server.connect()
    annas = [psycopg.connect(host=HOST, port=server.port, user="anna", dbname="dev", autocommit=True) for _ in range(4)]
    warm(root, *annas)
    for _ in range(10):
        root.execute("REVOKE SELECT ON t FROM anna")
        for anna in annas:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                point(anna, 1)
        root.execute("GRANT SELECT ON t TO anna")
        for anna in annas:
            for _ in range(5):
                assert point(anna, 1) == [("a",)]
    for anna in annas:
        anna.close()
    events = [json.loads(line) for line in (server.data.parent / "audit").read_text().splitlines()]
    denied = [e for e in events if e["event"] == "statement" and e["user"] == "anna" and e["sqlstate"] == "42501"]
    assert len(denied) == 40 and {e["client"] for e in denied} == {HOST}
    assert {e["client"] for e in events if e["event"] == "login"} == {HOST}

    others = [server.connect() for _ in range(4)]
    warm(*others)
    for i in range(5):
        root.execute("DROP TABLE t")
        for other in others:
            with pytest.raises(psycopg.errors.UndefinedTable):
                point(other, 1)
        root.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        root.execute("INSERT INTO t VALUES (1, %s)", (f"new {i}",))
        for other in others:
            for _ in range(5):
                assert point(other, 1) == [(f"new {i}",)]

    for other in others:
        with other.transaction():
            assert point(other, 1) == [("new 4",)]
            root.execute("UPDATE t SET v = 'later' WHERE id = 1")
            assert point(other, 1) == [("new 4",)], "a transaction reads one snapshot"
            with contextlib.suppress(psycopg.errors.SerializationFailure):
                other.execute("INSERT INTO t VALUES (77, 'own')")
                assert point(other, 77) == [("own",)]
            raise psycopg.Rollback
        assert point(other, 77) == []
        assert point(other, 1) == [("later",)]
        root.execute("UPDATE t SET v = 'new 4' WHERE id = 1")
        other.execute("SET enable_quick_reads = off")
        assert point(other, 1) == [("new 4",)]
        other.execute("RESET enable_quick_reads")
        other.pgconn.exec_(b"DEALLOCATE ALL")  # which psycopg does not notice
        with pytest.raises(psycopg.errors.InvalidSqlStatementName):
            point(other, 1)
    for other in others:
        other.close()

    root.execute("CREATE TABLE moments (id int PRIMARY KEY, v timestamptz)")
    root.execute("INSERT INTO moments VALUES (1, '2026-01-01 12:00:00+00')")
    shown = [server.connect(cursor_factory=psycopg.RawCursor) for _ in range(4)]
    for one in shown:
        for zone, hour in (("UTC", "12"), ("Asia/Tokyo", "21"), ("UTC", "12")):
            one.execute(f"SET TimeZone = '{zone}'")
            for _ in range(4):
                found = one.execute("SELECT v FROM moments WHERE id = $1", (1,), prepare=True)
                assert found.pgresult is not None and found.pgresult.get_value(0, 0)[11:13] == hour.encode()
        one.close()
    root.close()
    assert server.stop() == 0
    assert answered(server) > 50


def test_texts_and_the_unnamed_statement(server: Server) -> None:
    """Simple queries and statements parsed each time are answered beside the server, too; and what the client has last
    made the unnamed statement is that for both."""
    start(server)
    server.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 0), (2, 5)")
    clients = [server.connect() for _ in range(6)]
    writer = clients[0]
    for n in range(1, 12):
        writer.execute("UPDATE t SET v = %s WHERE id = 1", (n,))
        for client in clients:
            raw = client.pgconn
            assert _value(raw.exec_(b"SELECT v FROM t WHERE id = 1")) == n
            assert _value(raw.exec_params(b"SELECT v FROM t WHERE id = $1", [b"1"])) == n
            assert _value(raw.exec_params(b"SELECT $1::int + 2", [b"%d" % n], result_format=1)) == n + 2
    seen = server.rows("SELECT pid, state, reads > 0, epoch > 0, connections FROM headrace_catalog.read_processes")
    assert {(pid, *more) for pid, *more, _ in seen} == {(pid, "running", True, True) for pid in reading_pids(server)}
    assert len(clients) - 3 <= sum(row[-1] for row in seen) <= len(clients) + 1
    for client in clients:
        raw = client.pgconn
        raw.prepare(b"", b"SELECT 'kept'")
        assert _value(raw.exec_params(b"SELECT v FROM t WHERE id = $1", [b"1"])) == 11
        for key in (1, 2, 1):
            assert _value(raw.exec_prepared(b"", [b"%d" % key])) == {1: 11, 2: 5}[key], "it is what was parsed last"
        assert _value(raw.exec_params(b"SELECT v FROM t WHERE id = $1", [b"2"])) == 5
        assert client.execute("SELECT %s::text || 'b'", ("a",), prepare=True).fetchall() == [("ab",)]
        assert _value(raw.exec_(b"SELECT v FROM t WHERE id = 2")) == 5
        failed = raw.exec_prepared(b"", [b"1"])
        assert failed.error_field(psycopg.pq.DiagnosticField.SQLSTATE) == b"26000", "a text forgets it"
        assert _value(raw.exec_params(b"SELECT v FROM t WHERE id = $1", [b"2"])) == 5
        assert raw.exec_params(b"SELECT v FROM nowhere WHERE id = $1", [b"2"]).status != psycopg.pq.ExecStatus.TUPLES_OK
        assert raw.exec_prepared(b"", [b"1"]).error_field(psycopg.pq.DiagnosticField.SQLSTATE) == b"26000"
        for _ in range(3):
            assert _value(raw.exec_params(b"SELECT v FROM t WHERE id = $1", [b"2"])) == 5
            with client.pipeline():
                found = [client.execute("SELECT v FROM t WHERE id = %s", (key,)) for key in (1, 2)]
            assert [cursor.fetchall() for cursor in found] == [[(11,)], [(5,)]]
        with client.cursor() as cursor:
            assert _value(raw.exec_params(b"SELECT v FROM t WHERE id = $1", [b"2"])) == 5
            with cursor.copy("COPY t FROM STDIN") as copy:
                copy.write_row((100 + raw.backend_pid, 1))
        client.close()
    assert server.stop() == 0
    assert answered(server) > 40


MANY = (
    "SELECT count(*) FROM r", "SELECT count(*), sum(v) FROM r WHERE v > 3",
    "SELECT id, v FROM r ORDER BY v DESC, id LIMIT 3", "SELECT g, count(*), max(v) FROM r GROUP BY g ORDER BY g",
    "SELECT id, v FROM r WHERE g = 'g2' AND v > 1 ORDER BY id",
    "SELECT v FROM r WHERE id BETWEEN 10 AND 15 ORDER BY id", "SELECT DISTINCT g FROM r ORDER BY g",
    "SELECT g, n, most FROM by_group ORDER BY g", "SELECT n FROM by_group WHERE g = 'g1'",
)  # fmt: skip
"""Of tables and views, with an index on g."""


def _value(result: psycopg.pq.abc.PGresult) -> int:
    """The only number of a result."""
    assert (result.ntuples, result.nfields) == (1, 1), result.error_message
    value = result.get_value(0, 0)
    assert value is not None
    return int.from_bytes(value, "big") if result.fformat(0) else int(value)


def _until(holds: Callable[[], bool], read: Callable[[], None], rounds: int = 30) -> None:
    """Read again and again until something holds: while a machine is busy the server answers now and then itself."""
    for _ in range(rounds):
        read()
        if holds():
            return
    raise AssertionError(f"the reading processes have not read enough in {rounds} rounds")


def _reached(counted: Callable[[], int], least: int) -> bool:
    return counted() >= least


def _compare(clients: Sequence[psycopg.Connection[Any]], known: Mapping[str, list[Any]]) -> None:
    """Ask each client for the rows that are known, in every way."""
    for client in clients:
        for sql, rows in known.items():
            assert client.execute(sql, prepare=True).fetchall() == rows, sql
            assert client.execute(sql, prepare=False).fetchall() == rows, sql
            assert client.pgconn.exec_(sql.encode()).ntuples == len(rows), sql


def _ranges_groups_and_views(server: Server) -> None:
    """What the server answers without Spark its reading processes do, in either protocol, with what is acknowledged in
    it; what is too large is the server's."""
    server.execute(
        "CREATE TABLE r (id int PRIMARY KEY, g text, v int)",
        "INSERT INTO r SELECT i, 'g' || (i % 5)::text, i FROM generate_series(1, 12000) AS s(i)",
        "CREATE INDEX t_g ON r (g)",
        "CREATE MATERIALIZED VIEW by_group AS SELECT g, count(*) AS n, max(v) AS most FROM r GROUP BY g", "FLUSH",
    )  # fmt: skip
    clients = [server.connect() for _ in range(4)]
    writer = server.connect()

    def counted() -> int:
        found = server.rows("SELECT sum(reads) FROM headrace_catalog.read_processes")
        return int(found[0][0])

    def asked() -> None:
        for client in clients:
            for sql in MANY:
                for _ in range(3):
                    client.execute(sql, prepare=True)
                    client.execute(sql, prepare=False)
                    client.pgconn.exec_(sql.encode())

    _until(functools.partial(_reached, counted, 100), asked)
    for n in range(3):
        writer.execute("UPDATE r SET v = %s WHERE id = %s", (20_000 + n, 12 + n))
        writer.execute("DELETE FROM r WHERE id = %s", (3 + n,))
        if n:
            writer.execute("FLUSH")
        with writer.transaction():  # which is the server's
            expected = {sql: writer.execute(sql).fetchall() for sql in MANY}
        least = counted() + 2 * len(MANY)  # two of four clients have a process, at least
        # What is read of the view may have the change, or not yet, before a FLUSH.
        known = {sql: rows for sql, rows in expected.items() if n or "by_group" not in sql}
        _until(functools.partial(_reached, counted, least), functools.partial(_compare, clients, known))
    for client in clients:
        for _ in range(3):
            assert len(client.execute("SELECT id, v FROM r", prepare=True).fetchall()) == 11_997
        client.close()
    writer.close()


def test_more_than_rows_and_what_goes_through(server: Server) -> None:
    """Ranges, groups and views are read beside the server. A cancel reaches its statement whichever process it comes
    to; large answers, pages, COPY and errors are the server's."""
    start(server)
    _ranges_groups_and_views(server)
    server.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    for _ in range(2):
        with server.connect() as connection:
            with connection.cursor() as cursor, cursor.copy("COPY t FROM STDIN") as copy:
                for i in range(2000):
                    copy.write_row((i, "x" * 100))
            warm(connection)
            assert connection.execute("SELECT count(*) FROM t").fetchall() == [(2000,)]
            assert len(connection.execute("SELECT id, v FROM t").fetchall()) == 2000
            with connection.cursor() as cursor, cursor.copy("COPY t TO STDOUT") as copy:
                assert sum(1 for _ in copy.rows()) == 2000
            with connection.transaction(), connection.cursor(name="page") as page:
                page.execute("SELECT id FROM t ORDER BY id")
                assert page.fetchmany(3) == [(0,), (1,), (2,)]
            with pytest.raises(psycopg.errors.InvalidTextRepresentation):
                connection.execute("SELECT v FROM t WHERE id = %s::int", ("nonsense",), prepare=True)
            with connection.pipeline():
                results = [connection.execute(POINT, (i,), prepare=True) for i in range(20)]
            assert all(result.fetchall() == [("x" * 100,)] for result in results)
            timer = threading.Timer(1.0, connection.cancel)
            timer.start()
            with pytest.raises(psycopg.errors.QueryCanceled):
                connection.execute(ENDLESS)
            timer.join()
            assert point(connection, 5) == [("x" * 100,)]
            connection.execute("DELETE FROM t")
    assert server.psql("-c", "\\d t").returncode == 0


def test_passwords_bound_to_the_line_and_certificates(tmp_path: Path) -> None:
    """TLS ends in a reading process: channel binding, rules for encrypted lines and certificates hold as ever."""
    pytest.importorskip("cryptography")
    sys.path.append(str(Path(__file__).parents[1] / "server"))
    from certificates import Authority

    authority = Authority(tmp_path)
    files, shown = authority.pair("server"), authority.pair("carla")
    rules = "hostnossl all root loopback trust; hostssl all carla all cert; hostssl all all all scram-sha-256"
    server = Server(
        tmp_path,
        settings={
            "HEADRACE_READ_PROCESSES": "1", "HEADRACE_AUTH_RULES": rules,
            "HEADRACE_TLS_CERT_FILE": str(files.certificate), "HEADRACE_TLS_KEY_FILE": str(files.key),
            "HEADRACE_TLS_CLIENT_CA_FILE": str(authority.file),
        },
    )  # fmt: skip

    def login(user: str, **options: str) -> psycopg.Connection[Any]:
        return psycopg.connect(
            host=HOST, port=server.port, user=user, dbname="dev", autocommit=True, **options,  # type: ignore[arg-type]
        )  # fmt: skip

    try:
        start(server, 1)
        with login("root", sslmode="disable") as root:
            root.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
            root.execute("INSERT INTO t VALUES (1, 'a')")
            root.execute("CREATE ROLE anna LOGIN PASSWORD 'open sesame'")
            root.execute("CREATE ROLE carla LOGIN")
            root.execute("GRANT SELECT ON t TO anna, carla")
        with contextlib.ExitStack() as held:
            for _ in range(3):  # with the server and its process in turn
                anna = held.enter_context(
                    login("anna", sslmode="require", channel_binding="require", password="open sesame")
                )
                carla = held.enter_context(
                    login("carla", sslmode="require", sslcert=str(shown.certificate), sslkey=str(shown.key))
                )
                for one in (anna, carla):
                    warm(one)
                    assert point(one, 1) == [("a",)]
        for options, told in (
            ({"sslmode": "require", "password": "wrong"}, "password authentication failed"),
            ({"sslmode": "disable", "password": "open sesame"}, "no rule lets"),
        ):
            for _ in range(3):
                with pytest.raises(psycopg.OperationalError, match=told):
                    login("anna", **options)
        assert server.stop() == 0
        assert answered(server) > 0
    finally:
        server.close()


def test_killed_processes_and_servers(server: Server) -> None:
    """A reading process that is killed loses its clients alone and is started again; none outlives its server."""
    start(server)
    server.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 0)")
    known = len(reading_pids(server))
    connections = [server.connect() for _ in range(6)]
    warm(*connections)
    os.kill(reading_pids(server)[-1], signal.SIGKILL)
    eventually(lambda: len(reading_pids(server)) > known, "another reading process", 240)
    alive = 0
    for connection in connections:
        with contextlib.suppress(psycopg.OperationalError):
            assert point(connection, 1) == [(0,)]
            alive += 1
        connection.close()
    assert 0 < alive < len(connections)
    server.execute("UPDATE t SET v = 1 WHERE id = 1")
    assert server.rows("SELECT v FROM t WHERE id = 1") == [(1,)]
    pids = [pid for pid in reading_pids(server) if _runs(pid)]
    connections = [server.connect() for _ in range(4)]
    warm(*connections)
    server.kill(whole_group=False)
    eventually(lambda: not any(_runs(pid) for pid in pids), "reading processes to end")
    for connection in connections:
        with pytest.raises(psycopg.OperationalError):
            point(connection, 1)
        connection.close()
    server.kill()
    start(server)
    server.execute("UPDATE t SET v = 3 WHERE id = 1")
    connections = [server.connect() for _ in range(4)]
    warm(*connections)
    for connection in connections:
        assert point(connection, 1) == [(3,)]
        connection.close()


@pytest.mark.soak
def test_killed_at_random_while_clients_read(server: Server) -> None:
    """Whatever is killed while clients read and write: what anybody has been told of is there afterwards."""
    start(server)
    history = History(server)
    threads = [history.thread(history.write, key) for key in range(3)]
    threads += [history.thread(history.read, seed) for seed in range(4)]
    for thread in threads:
        thread.start()

    def until_read(looks: int) -> None:
        least = history.looks + looks
        eventually(lambda: history.looks >= least or history.failures, "clients to read", 240)

    for _ in range(2):
        until_read(300)
        known = len(reading_pids(server))
        os.kill(reading_pids(server)[-1], signal.SIGKILL)
        eventually(lambda n=known: len(reading_pids(server)) > n, "another process", 240)  # type: ignore[misc]
    until_read(150)
    server.kill()
    start(server)
    until_read(600)
    history.over.set()
    for thread in threads:
        thread.join(120)
    assert history.failures == []
    rows = dict(server.rows("SELECT id, v FROM t"))
    assert all(rows[i] >= history.acknowledged[i] for i in range(3, KEYS))
    with server.connect() as connection:
        history.look(connection, None)
    assert history.failures == [] and server.stop() == 0
    assert answered(server) > 10


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_another_server_shuts_reading_processes_out(server: Server, tmp_path: Path) -> None:
    """After another server has opened the catalog, no reading process of the first answers any more (XC-3)."""
    start(server)
    server.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 0)")
    connections = [server.connect() for _ in range(4)]
    warm(*connections)
    for pid in {server.process_id}:
        os.kill(pid, signal.SIGSTOP)  # only its reading processes go on
    second = Server(tmp_path, data=server.data, settings={"HEADRACE_READ_PROCESSES": "0"})
    second.log = tmp_path / "second.log"
    try:
        second.start()
        second.execute("UPDATE t SET v = 1 WHERE id = 1")
        os.kill(server.process_id, signal.SIGCONT)
        for connection in connections:
            with pytest.raises(psycopg.OperationalError):
                point(connection, 1)
            connection.close()
        assert second.rows("SELECT v FROM t WHERE id = 1") == [(1,)]
    finally:
        second.close()
