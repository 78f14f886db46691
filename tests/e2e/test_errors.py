"""What goes wrong, and what goes on: bad statements, poison rows, bad files, lost clients, a full disk, two servers."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.errors import FENCED_EXIT_CODE
from server import Server, differences
from support import WAIT_S, eventually

STATE_BYTES = 64 << 20


@pytest.fixture(scope="module")
def small_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, bool]]:
    """A data directory, and whether its state lies on a small file system of its own."""
    data = tmp_path_factory.mktemp("errors") / "db"
    state = data / "state"
    state.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={STATE_BYTES}", "tmpfs", str(state)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield data, mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(state)], check=True)


@pytest.fixture(scope="module")
def server(small_state: tuple[Path, bool]) -> Iterator[Server]:
    data, _ = small_state
    found = Server(data.parent, data)
    try:
        found.start()
        found.execute(
            "CREATE TABLE log (word text, n int)",
            "INSERT INTO log VALUES ('a', 1), ('a', 1), ('b', 2), ('12', 3)",
            "CREATE MATERIALIZED VIEW words AS SELECT word, count(*) AS c, sum(n) AS s FROM log GROUP BY word",
        )
        yield found
    finally:
        found.close()


def jobs(server: Server) -> dict[str, tuple[str, str | None]]:
    """Status and error of every job, as SHOW JOBS tells them."""
    return {row[1]: (row[2], row[4]) for row in server.rows("SHOW JOBS")}


def wait_for_status(server: Server, view: str, status: str) -> None:
    eventually(lambda: jobs(server)[view][0] == status, f"{view} to be {status}")


def refused(connection: psycopg.Connection[Any], sql: str) -> psycopg.Error:
    """The error of a statement that must fail; the connection is good for more afterwards."""
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(sql)
    assert connection.execute("SELECT 1").fetchone() == (1,)
    return caught.value


# ---- statements


@pytest.mark.parametrize(
    ("sql", "sqlstate", "at", "says"),
    [
        ("SELEC 1", "42601", "SELEC", "SELEC"),
        ("SELECT word FROM log WHERE", "42601", None, "syntax"),
        ("SELECT (1 FROM log", "42601", "FROM", "FROM"),
        ("SELECT * FROM lgo", "42P01", "lgo", 'relation "lgo" does not exist'),
        ("SELECT wrd FROM log", "42703", "wrd", 'column "wrd" does not exist'),
        ("SELECT l.x FROM log l", "42703", None, "x"),
        ("INSERT INTO nowhere VALUES (1)", "42P01", "nowhere", "nowhere"),
        ("INSERT INTO log (word, m) VALUES ('a', 1)", "42703", "m", '"m"'),
        ("INSERT INTO log VALUES ('a', 'x')", "22P02", None, "x"),
        ("SELECT nofun(1)", "42883", "nofun", "nofun"),
        ("SELECT word + ARRAY[1] FROM log", None, None, ""),
        ("SELECT sum(word), n FROM log", None, None, ""),
        ("CREATE TABLE log (a int)", "42P07", None, "log"),
        ("CREATE TABLE t (a nosuchtype)", "42704", None, "nosuchtype"),
        ("CREATE MATERIALIZED VIEW bad AS SELECT nope FROM log", "42703", "nope", "nope"),
        ("DROP TABLE log", "2BP01", None, "cannot drop table log"),
        ("DROP TABLE nowhere", "42P01", None, "nowhere"),
        ("INSERT INTO words VALUES ('a', 1, 1)", "42809", None, "words"),
        ("SET nosuchsetting = 1", "42704", None, "nosuchsetting"),
        ("CREATE SOURCE s (a int) WITH (connector = 'nothing')", "22023", None, "nothing"),
    ],
)
def test_a_bad_statement_says_what_and_where(
    connection: psycopg.Connection[Any], sql: str, sqlstate: str | None, at: str | None, says: str
) -> None:
    error = refused(connection, sql)
    assert sqlstate is None or error.sqlstate == sqlstate, error
    assert error.sqlstate not in ("XX000", "HR020"), error
    assert says in (error.diag.message_primary or "")
    if at is not None:
        assert error.diag.statement_position == str(sql.index(at) + 1)


@pytest.mark.parametrize(
    ("sql", "sqlstate"),
    [
        ("SELECT 1 / 0", "22012"),
        ("SELECT word, 10 / (n - 2) FROM log", "22012"),
        ("SELECT word::int FROM log", "22P02"),
        ("SELECT sum(word::int) FROM log", "22P02"),
        ("SELECT (n + 2147483640)::int + 100 FROM log", "22003"),
        ("SELECT ('2024-13-0' || n)::date FROM log", "22007"),
        ("UPDATE log SET n = n / 0", "22012"),
        ("DELETE FROM log WHERE word::int > 0", "22P02"),
    ],
)
def test_an_expression_that_fails_on_a_row(connection: psycopg.Connection[Any], sql: str, sqlstate: str) -> None:
    assert refused(connection, sql).sqlstate == sqlstate
    assert connection.execute("SELECT count(*) FROM log").fetchone() == (4,)


# ---- running views


def test_a_failing_view_is_alone_and_recovers(server: Server) -> None:
    """PC-41, PC-42, PC-43: a poison row stops its view, whose last snapshot stays readable, and nothing else."""
    server.execute(
        "CREATE TABLE nums (k int PRIMARY KEY, d int)",
        "INSERT INTO nums VALUES (1, 1), (2, 2)",
        "CREATE MATERIALIZED VIEW ratios AS SELECT k, 10 / d AS q FROM nums",
        "CREATE MATERIALIZED VIEW steady AS SELECT count(*) AS c FROM nums",
        "CREATE MATERIALIZED VIEW below AS SELECT sum(q) AS s FROM ratios",
        "FLUSH",
        "INSERT INTO nums VALUES (3, 0)",
    )
    with server.connect() as connection:
        heard: list[str] = []
        connection.add_notice_handler(lambda d: heard.append(d.message_primary or ""))
        error = refused(connection, "FLUSH")
        assert error.sqlstate == "22012" and '"ratios" is failing' in str(error)
        status, reason = jobs(server)["ratios"]
        assert status == "failing" and "ivision" in (reason or "")
        eventually(lambda: server.rows("SELECT c FROM steady") == [(3,)], "the other view to go on")
        assert jobs(server)["steady"] == ("running", None) and jobs(server)["below"] == ("running", None)
        assert not heard
        assert sorted(connection.execute("SELECT k, q FROM ratios").fetchall()) == [(1, 10), (2, 5)]
        assert len(heard) == 1 and '"ratios" is failing since' in heard[0]
        assert connection.execute("SELECT s FROM below").fetchone() == (15,)
        connection.execute("INSERT INTO nums VALUES (4, 5)")
        connection.execute("DELETE FROM nums WHERE k = 3")
        wait_for_status(server, "ratios", "running")
        connection.execute("FLUSH")
        assert sorted(connection.execute("SELECT k, q FROM ratios").fetchall()) == [(1, 10), (2, 5), (4, 2)]
        assert connection.execute("SELECT s FROM below").fetchone() == (17,)
    kinds = [r[0] for r in server.rows("SELECT kind FROM headrace_catalog.events WHERE message LIKE '%ratios%'")]
    assert "job_failed" in kinds and "job_recovered" in kinds
    server.execute("DROP MATERIALIZED VIEW below", "DROP MATERIALIZED VIEW ratios", "DROP MATERIALIZED VIEW steady")


def test_a_view_that_fails_at_once_is_not_created(server: Server) -> None:
    with server.connect() as connection:
        error = refused(connection, "CREATE MATERIALIZED VIEW never AS SELECT word::int AS w FROM log")
        assert error.sqlstate == "22P02"
        assert refused(connection, "SELECT * FROM never").sqlstate == "42P01"
    assert "never" not in jobs(server)


def test_malformed_files_follow_on_error(server: Server, tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("k,v\n1,10\n2,20\n")
    for policy in ("fail", "skip", "null"):
        server.execute(
            f"CREATE SOURCE src_{policy} (k int, v int) WITH "
            f"(connector = 'files', path = '{tmp_path}', format = 'csv', on_error = '{policy}')",
            f"CREATE MATERIALIZED VIEW got_{policy} AS SELECT k, v FROM src_{policy}",
        )
    hidden = tmp_path / ".2.csv.tmp"
    hidden.write_text("k,v\n3,thirty\nfour,40\n5,50\n")
    hidden.rename(tmp_path / "2.csv")
    wait_for_status(server, "got_fail", "failing")
    good = [(1, 10), (2, 20)]

    def rows(view: str) -> list[tuple[Any, ...]]:
        return sorted(server.rows(f"SELECT k, v FROM {view}"), key=repr)

    eventually(lambda: len(rows("got_skip")) == 3 and len(rows("got_null")) == 5, "the tolerant views to go on")
    assert rows("got_skip") == [*good, (5, 50)]
    assert set(rows("got_null")) == {*good, (3, None), (None, 40), (5, 50)}
    assert rows("got_fail") == good
    reason = jobs(server)["got_fail"][1] or ""
    assert "2.csv" in reason and "thirty" in reason, reason
    assert jobs(server)["got_skip"][0] == jobs(server)["got_null"][0] == "running"
    events = server.rows("SELECT message, detail FROM headrace_catalog.events WHERE kind = 'row_errors'")
    assert any("got_skip" in m and "2 rows" in m and "thirty" in d for m, d in events), events
    for policy in ("fail", "skip", "null"):
        server.execute(f"DROP MATERIALIZED VIEW got_{policy}", f"DROP SOURCE src_{policy}")


# ---- clients and the disk


def test_a_client_that_disappears_harms_nobody(server: Server) -> None:
    lost = server.connect()
    lost.execute("CREATE TABLE wide AS SELECT g AS n, repeat('x', 200) AS t FROM generate_series(1, 20000) AS g")
    lost.pgconn.send_query(b"SELECT a.n, a.t, b.t AS u FROM wide a JOIN wide b ON a.n % 1000 = b.n % 1000")
    with socket.socket(fileno=os.dup(lost.pgconn.socket)) as raw:
        assert select.select([raw], [], [], WAIT_S)[0]
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        lost.close()
    with server.connect() as connection:
        assert connection.execute("SELECT count(*) FROM wide").fetchone() == (20_000,)
        assert connection.execute("SELECT sum(n % 10) FROM wide").fetchone() == (90_000,)
        connection.execute("INSERT INTO log VALUES ('later', 7)")
        connection.execute("FLUSH")
        assert connection.execute("SELECT s FROM words WHERE word = 'later'").fetchone() == (7,)
        connection.execute("DELETE FROM log WHERE word = 'later'")
        connection.execute("DROP TABLE wide")
    assert "Traceback" not in server.log_text()


def test_a_full_disk_stops_writes_until_there_is_room(server: Server, small_state: tuple[Path, bool]) -> None:
    data, mounted = small_state
    if not mounted:
        pytest.skip("a file system of its own for the state takes root and mount(8)")
    server.execute(
        "CREATE SOURCE ticks (k int, v int) WITH (connector = 'datagen', rows_per_second = '200', "
        "fields.k.min = '0', fields.k.max = '9')",
        "CREATE MATERIALIZED VIEW counts AS SELECT k, count(*) AS c, sum(v) AS s FROM ticks GROUP BY k",
    )
    ballast = data / "state" / "ballast"

    def fill() -> None:
        with ballast.open("ab", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while file.write(b"x" * size) == size:
                        pass

    written, errors, told = 0, set(), set()

    def refuses_writes() -> bool:
        """Compaction gives up its objects and vacuum removes others: there may be room again for a moment."""
        nonlocal written
        fill()
        try:
            connection.execute("INSERT INTO log VALUES ('full', 1)")
            written += 1
        except psycopg.Error as error:
            errors.add(error.sqlstate)
        return bool(errors)

    def fails() -> bool:
        fill()
        status, reason = jobs(server)["counts"]
        told.add(reason or "")
        return status == "failing"

    try:
        with server.connect() as connection:
            eventually(refuses_writes, "a write to be refused")
            assert errors == {"53100"}
            eventually(fails, "the view to fail")
            assert any("space" in reason.lower() for reason in told)
            assert sum(r[1] for r in connection.execute("SELECT k, c FROM counts").fetchall()) >= 0
            assert connection.execute("SELECT count(*) FROM log WHERE word = 'full'").fetchone() == (written,)
    finally:
        ballast.unlink()
    wait_for_status(server, "counts", "running")
    server.execute("INSERT INTO log VALUES ('room', 1)", "FLUSH")
    assert server.rows("SELECT c FROM words WHERE word = 'room'") == [(1,)]
    definition = "SELECT k, count(*) AS c, sum(v) AS s FROM ticks GROUP BY k"
    assert differences(server, "counts", definition) is None
    server.execute(
        "DELETE FROM log WHERE word IN ('room', 'full')", "DROP MATERIALIZED VIEW counts", "DROP SOURCE ticks"
    )


# ---- the process


def test_spark_that_is_killed_is_started_again(server: Server) -> None:
    """PC-42, PC-48: SIGKILL to the JVM under load: no connection, write or read of rows notices; then all is exact.

    What needs Spark meanwhile waits, within its statement_timeout, or is told to run again.
    """
    server.wait_spark()
    java = server.java_process()
    assert java is not None
    served = server.process_id
    with server.connect() as writer, server.connect() as reader, server.connect() as hasty:
        writer.execute("CREATE FUNCTION twice(x bigint) RETURNS bigint STRICT LANGUAGE python AS $$ return 2 * x $$")
        writer.execute("CREATE TABLE load (k int, v bigint)")
        writer.execute("CREATE MATERIALIZED VIEW doubled AS SELECT k, sum(twice(v)) AS s FROM load GROUP BY k")
        hasty.execute("SET statement_timeout = '300ms'")
        query = "SELECT k, sum(twice(v)) FROM load GROUP BY k"
        told: list[str | None] = []
        for number in range(150):
            writer.execute(f"INSERT INTO load VALUES ({number % 3}, {number})")
            if number == 20:
                os.kill(java, signal.SIGKILL)
                with pytest.raises(psycopg.OperationalError) as caught:
                    hasty.execute(query)
                assert caught.value.sqlstate in ("58000", "57014")
            assert reader.execute("SELECT count(*) FROM load").fetchone() == (number + 1,)
        rows: list[tuple[Any, ...]] = []

        def computed() -> bool:
            try:
                rows[:] = reader.execute(query).fetchall()
            except psycopg.OperationalError as error:
                told.append(error.sqlstate)
            return bool(rows)

        eventually(computed, "another Spark")
        assert set(told) <= {"58000"}
        assert sorted(rows) == [(k, 2 * sum(range(k, 150, 3))) for k in range(3)]
        writer.execute("FLUSH")
        assert sorted(reader.execute("SELECT k, s FROM doubled").fetchall()) == sorted(rows)
    assert server.process_id == served and server.exit_code() is None
    assert server.java_process() not in (None, java)
    found = [kind for (kind,) in server.rows("SELECT kind FROM headrace_catalog.events WHERE kind LIKE 'spark%'")]
    assert sorted(found) == ["spark_lost", "spark_restarted"]
    failed = server.rows("SELECT * FROM headrace_catalog.events WHERE kind = 'job_failed' AND message LIKE '%doubled%'")
    assert failed == []
    assert differences(server, "words", "SELECT word, count(*) AS c, sum(n) AS s FROM log GROUP BY word") is None
    server.execute("DROP MATERIALIZED VIEW doubled", "DROP TABLE load", "DROP FUNCTION twice")


@pytest.mark.soak
def test_a_server_that_wakes_up_after_another_has_taken_over(tmp_path: Path) -> None:
    """CM-2, CM-30: with catalog and state in directories of their own, and nothing else in common."""
    shared = {
        "HEADRACE_CATALOG_URL": f"file://{tmp_path}/catalog", "HEADRACE_STATE_URL": str(tmp_path / "state"),
        "HEADRACE_CATALOG_LEASE_MS": "0",
    }  # fmt: skip
    servers = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        servers.append(Server(tmp_path / name, settings=shared))
    first, second = servers
    try:
        first.start()
        first.execute("CREATE TABLE t (a int)", "CREATE MATERIALIZED VIEW v AS SELECT count(*) AS c FROM t")
        first.execute("INSERT INTO t VALUES (1), (2)")
        idle = first.connect()
        os.kill(first.process_id, signal.SIGSTOP)
        second.start()
        second.execute("INSERT INTO t VALUES (3)", "FLUSH")
        os.kill(first.process_id, signal.SIGCONT)
        with pytest.raises(psycopg.Error) as told:
            while True:
                idle.execute("SELECT 1")
        assert told.value.sqlstate in ("57P01", None)
        assert first.wait_exit() == FENCED_EXIT_CODE, first.log_text()[-3000:]
        assert "It was taken over by headrace" in first.log_text()
        second.execute("INSERT INTO t VALUES (4)", "FLUSH")
        assert second.rows("SELECT * FROM v") == [(4,)]
        assert not list((tmp_path / "a" / "db").glob("catalog.db*"))
    finally:
        first.close()
        second.close()


def test_a_second_server_fences_the_first_and_sigterm_ends_cleanly(tmp_path: Path) -> None:
    """PC-6: what is acknowledged by a fenced server is refused; the newer one has all that was acknowledged."""
    first, second = Server(tmp_path / "a", tmp_path / "db"), Server(tmp_path / "b", tmp_path / "db")
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    try:
        first.start()
        first.execute(
            "CREATE TABLE t (a int)",
            "INSERT INTO t VALUES (1), (2)",
            "CREATE MATERIALIZED VIEW v AS SELECT count(*) AS c, sum(a) AS s FROM t",
        )
        idle = first.connect()
        second.start()
        assert first.wait_exit() == FENCED_EXIT_CODE
        assert "another process" in first.log_text(), first.log_text()
        assert "It was taken over by headrace" in first.log_text(), first.log_text()
        with pytest.raises(psycopg.Error) as caught:
            idle.execute("INSERT INTO t VALUES (99)")
        assert caught.value.sqlstate in ("57P01", None)
        second.execute("INSERT INTO t VALUES (3)", "FLUSH")
        assert second.rows("SELECT * FROM v") == [(3, 6)]
        waiting = second.connect()
        second.execute("INSERT INTO t VALUES (4)")
        assert second.stop() == 0
        assert "Traceback" not in second.log_text(), second.log_text()
        with pytest.raises(psycopg.errors.AdminShutdown):
            waiting.execute("SELECT 1")
        second.start()
        second.flush()
        assert sorted(second.rows("SELECT a FROM t")) == [(1,), (2,), (3,), (4,)]
        assert second.rows("SELECT * FROM v") == [(4, 10)]
    finally:
        first.close()
        second.close()


def test_a_server_that_wakes_after_its_successor_came_changes_nothing(tmp_path: Path) -> None:
    """XC-3, PC-6: stopped in the middle of a write, it goes on with it, vacuums and takes writes: none has effect."""
    calm = {"HEADRACE_BARRIER_INTERVAL_MS": "3600000", "HEADRACE_COMPACTION_INTERVAL_MS": "3600000"}
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    first = Server(tmp_path / "a", tmp_path / "db", calm)
    second = Server(tmp_path / "b", tmp_path / "db", {"HEADRACE_VACUUM_INTERVAL_MS": "3600000"})
    try:
        first.start(faults="table.commit.before=delay:20000@2")
        first.execute(
            "CREATE TABLE t (a int)",
            "CREATE MATERIALIZED VIEW v AS SELECT count(*) AS c, sum(a) AS s FROM t",
            "INSERT INTO t VALUES (1), (2)",
            "FLUSH",
        )
        known, writing, idle = set(_objects(tmp_path)), first.connect(), first.connect()
        size = _size(tmp_path)
        writing.pgconn.send_query(b"INSERT INTO t VALUES (99)")
        eventually(lambda: _size(tmp_path) > size, "the rows of the write to be on the disk", WAIT_S)
        first.freeze()
        second.start()
        second.execute("INSERT INTO t VALUES (3)", "FLUSH", "INSERT INTO t VALUES (4)", "FLUSH")
        objects = set(_objects(tmp_path)) - known
        idle.pgconn.send_query(b"INSERT INTO t VALUES (77)")
        first.thaw()
        assert first.wait_exit() == FENCED_EXIT_CODE
        assert "another process" in first.log_text(), first.log_text()
        gone = {o for o in objects if not o.exists()}
        second.execute("INSERT INTO t VALUES (5)", "FLUSH")
        for again in (True, False):
            assert sorted(second.rows("SELECT a FROM t")) == [(n,) for n in range(1, 6)], gone
            assert second.rows("SELECT * FROM v") == [(5, 15)]
            assert second.stop() == 0
            if again:
                second.start()
    finally:
        first.close()
        second.close()


def _size(folder: Path) -> int:
    """Bytes of all objects; small runs of a table share one."""
    return sum(o.stat().st_size for o in _objects(folder))


def _objects(folder: Path) -> list[Path]:
    """The objects of the state on the disk."""
    return list((folder / "db").rglob("*.run"))
