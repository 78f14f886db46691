"""Real clients against a real server: psql, psycopg, SQLAlchemy, pg_isready."""

from __future__ import annotations

import datetime as dt
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from server import HOST, Server, served
from support import WAIT_S

needs_psql = pytest.mark.skipif(shutil.which("psql") is None, reason="psql is not installed")

_SETUP = """
    CREATE TABLE items (id int PRIMARY KEY, kind varchar NOT NULL, price numeric(10,2) DEFAULT 1.50, sold date);
    INSERT INTO items VALUES (1, 'a', 10, '2024-01-01'), (2, 'b', 20, '2024-01-02'), (3, 'a', 30, NULL);
    CREATE MATERIALIZED VIEW totals AS SELECT kind, sum(price) AS total, count(*) AS n FROM items GROUP BY kind;
    CREATE VIEW dear AS SELECT * FROM items WHERE price > 15;
    CREATE SCHEMA other;
    CREATE TABLE other.things (a int);
    CREATE SOURCE ticks (k int, v bigint) WITH (connector = 'datagen', rows_per_second = '1');
    CREATE TABLE many (n bigint, t text);
    FLUSH
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("clients"), *_SETUP.split(";")) as found:
        yield found


def psql(server: Server, *commands: str) -> str:
    """What psql prints for commands that must succeed."""
    done = server.psql("-v", "ON_ERROR_STOP=1", "-A", script="\n".join(commands) + "\n")
    assert done.returncode == 0 and "ERROR" not in done.stderr, done.stdout + done.stderr
    return done.stdout


# ---- psql


@needs_psql
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (r"\d", ["public|items|table|root", "public|totals|materialized view|root", "public|dear|view|root"]),
        (r"\dt", ["public|items|table|root", "public|many|table|root"]),
        (r"\dt other.*", ["other|things|table|root"]),
        (r"\dm", ["public|totals|materialized view|root"]),
        (r"\dv", ["public|dear|view|root"]),
        (r"\d items", ['Table "public.items"', "id|integer||not null|", "price|numeric(10,2)||", "sold|date|||"]),
        (r"\d totals", ['Materialized view "public.totals"', "total|numeric", "n|bigint|||"]),
        (r"\d dear", ['View "public.dear"', "id|integer"]),
        (r"\d other.things", ['Table "other.things"', "a|integer"]),
        (r"\d ticks", ['Foreign table "public.ticks"', "k|integer", "v|bigint", "Server: datagen"]),
        (r"\d+ items", ['Table "public.items"', "price|numeric(10,2)"]),
        (r"\dt+", ["public|items|table|root"]),
        (r"\dn", ["other|root", "public|root"]),
        (r"\l", ["dev|root|UTF8"]),
        (r"\du", ["root|"]),
        (r"\df", ["List of functions"]),
        (r"\di", []),
        (r"\dT", ["List of data types"]),
        (r"\conninfo", ['You are connected to database "dev" as user "root"']),
        (r"\encoding", ["UTF8"]),
    ],
)  # fmt: skip
def test_psql_describes(server: Server, command: str, expected: list[str]) -> None:
    shown = psql(server, command)
    assert [text for text in expected if text not in shown] == [], shown


@needs_psql
def test_psql_without_a_match(server: Server) -> None:
    done = server.psql(script="\\d nothing\n")
    assert 'Did not find any relation named "nothing".' in done.stderr


@needs_psql
def test_psql_reads_and_writes(server: Server) -> None:
    shown = psql(
        server,
        "\\timing on",
        "INSERT INTO items (id, kind) VALUES (10, 'z') RETURNING id, kind, price;",
        "UPDATE items SET price = 2 WHERE id = 10 RETURNING price;",
        "SELECT * FROM items WHERE id = 10;",
        "DELETE FROM items WHERE id = 10;",
        "FLUSH;",
        "SELECT kind, n FROM totals ORDER BY kind;",
    )
    assert "10|z|1.50" in shown and "10|z|2.00|" in shown
    assert "INSERT 0 1" in shown and "UPDATE 1" in shown and "DELETE 1" in shown
    assert "a|2\nb|1\n(2 rows)" in shown
    assert len(re.findall(r"^Time: \d+\.\d{3} ms", shown, re.M)) == 6


@needs_psql
def test_psql_shows_where_an_error_is(server: Server) -> None:
    done = server.psql("-c", "SELECT kind,\n  prise FROM items")
    assert done.returncode == 1
    assert 'ERROR:  column "prise" does not exist' in done.stderr, done.stderr
    assert "LINE 2:   prise FROM items\n          ^" in done.stderr, done.stderr


@needs_psql
def test_psql_variables_gdesc_and_files(server: Server, tmp_path: Any) -> None:
    shown = psql(server, "\\set k 1", "SELECT kind FROM items WHERE id = :k;", "SELECT id, price FROM items \\gdesc",
                 "SELECT kind AS found FROM items WHERE id = 2 \\gset", "\\echo got :found",
                 "SELECT 1 AS one \\gx")  # fmt: skip
    assert "a\n(1 row)" in shown and "id|integer\nprice|numeric" in shown and "got b" in shown and "one|1" in shown
    script = tmp_path / "script.sql"
    script.write_text("SELECT count(*) FROM items;\nSELECT nothing;\nSELECT 'unreached';\n")
    done = server.psql("-v", "ON_ERROR_STOP=1", "-At", "-f", str(script))
    assert done.returncode == 3 and done.stdout == "3\n" and "script.sql:2: ERROR:" in done.stderr


@pytest.mark.skipif(shutil.which("pg_isready") is None, reason="pg_isready is not installed")
def test_pg_isready(server: Server) -> None:
    command = ["pg_isready", "-h", HOST, "-p", str(server.port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0 and "accepting connections" in done.stdout


# ---- pgbench

needs_pgbench = pytest.mark.skipif(shutil.which("pgbench") is None, reason="pgbench is not installed")


def pgbench(server: Server, *arguments: str) -> str:
    """What pgbench prints, which must succeed."""
    place = ["-h", HOST, "-p", str(server.port), "-U", "root", "dev"]
    command = ["pgbench", *arguments, *place]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0 and "ERROR" not in done.stderr, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def bench(server: Server) -> Iterator[Server]:
    pgbench(server, "-i", "-s", "1", "-q")
    yield server
    pgbench(server, "-i", "-I", "d")


@needs_pgbench
@pytest.mark.parametrize("mode", ["simple", "extended", "prepared"])
def test_pgbench_runs_its_own_scripts(bench: Server, mode: str) -> None:
    """Each script by one client and by several; what gets in each other's way is tried again, as pgbench counts it."""
    for script, clients in (("select-only", "1"), ("select-only", "4"), ("simple-update", "2"), ("tpcb-like", "3")):
        told = pgbench(bench, "-b", script, "-M", mode, "-c", clients, "-j", "2", "-t", "2", "--max-tries", "1000")
        assert f"actually processed: {2 * int(clients)}/{2 * int(clients)}" in told, told
    with bench.connect() as connection:
        sums = [connection.execute(f"SELECT sum({c}) FROM pgbench_{t}").fetchone()
                for c, t in (("bbalance", "branches"), ("tbalance", "tellers"))]  # fmt: skip
        assert sums[0] == sums[1]
        assert connection.execute("SELECT count(*) FROM pgbench_accounts").fetchone() == (100_000,)
        assert connection.execute("SELECT count(*) FROM pgbench_history").fetchone() == (6,)  # of the last script


# ---- psycopg


def test_types_come_back_as_they_went(connection: psycopg.Connection[Any]) -> None:
    row = connection.execute("SELECT id, kind, price, sold FROM items WHERE id = 1").fetchone()
    assert row == (1, "a", Decimal("10.00"), dt.date(2024, 1, 1))
    values = connection.execute(
        "SELECT true, 1.5::float8, 'x'::bytea, '2024-01-01 10:00:00+00'::timestamptz, '2024-01-01 10:00'::timestamp, "
        "ARRAY[1, 2], NULL::int"
    ).fetchone()
    moment = dt.datetime(2024, 1, 1, 10)
    assert values == (True, 1.5, b"x", moment.replace(tzinfo=dt.UTC), moment, [1, 2], None)


@pytest.mark.parametrize("binary", [False, True])
def test_parameters_text_and_binary(connection: psycopg.Connection[Any], binary: bool) -> None:
    cursor = connection.cursor(binary=binary)
    rows = cursor.execute(
        "SELECT id, kind, price, sold FROM items WHERE id > %s AND kind = %s AND price < %s ORDER BY id",
        (0, "a", Decimal("20")),
    ).fetchall()
    assert rows == [(1, "a", Decimal("10.00"), dt.date(2024, 1, 1))]
    assert [(c.name, c.type_code) for c in cursor.description or ()] == [
        ("id", 23), ("kind", 25), ("price", 1700), ("sold", 1082)]  # fmt: skip


def test_prepared_statements_are_used_again(connection: psycopg.Connection[Any]) -> None:
    found = [
        connection.execute("SELECT kind FROM items WHERE id = %s", (i,), prepare=True).fetchone() for i in (1, 2, 3, 99)
    ]
    assert found == [("a",), ("b",), ("a",), None]


def test_executemany_returning_and_pipeline(connection: psycopg.Connection[Any]) -> None:
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO other.things VALUES (%s)", [(i,) for i in range(20)])
        assert cursor.rowcount == 20
        assert cursor.execute("SELECT count(*), sum(a) FROM other.things").fetchone() == (20, 190)
    with connection.pipeline():
        counts = [connection.execute("SELECT count(*) FROM other.things WHERE a < %s", (n,)) for n in (5, 10)]
    assert [c.fetchone() for c in counts] == [(5,), (10,)]
    returned = connection.execute("DELETE FROM other.things WHERE a >= 18 RETURNING a").fetchall()
    assert sorted(returned) == [(18,), (19,)]
    assert connection.execute("DELETE FROM other.things").rowcount == 18


def test_a_transaction_commits_and_rolls_back(server: Server) -> None:
    with server.connect(autocommit=False) as connection:
        connection.execute("INSERT INTO items (id, kind) VALUES (20, 'tx')")
        connection.rollback()
        connection.execute("INSERT INTO items (id, kind) VALUES (21, 'tx')")
        connection.commit()
        assert connection.execute("SELECT id FROM items WHERE kind = 'tx'").fetchall() == [(21,)]
        connection.commit()
        with pytest.raises(psycopg.errors.UndefinedColumn):
            connection.execute("SELECT nope FROM items")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            connection.execute("SELECT 1")
        connection.rollback()
        connection.execute("DELETE FROM items WHERE kind = 'tx'")


def test_transaction_blocks(connection: psycopg.Connection[Any]) -> None:
    with connection.transaction():
        connection.execute("INSERT INTO items (id, kind) VALUES (30, 'block')")
    with pytest.raises(ZeroDivisionError), connection.transaction():
        connection.execute("INSERT INTO items (id, kind) VALUES (31, 'block')")
        raise ZeroDivisionError
    assert connection.execute("SELECT id FROM items WHERE kind = 'block'").fetchall() == [(30,)]
    connection.execute("DELETE FROM items WHERE kind = 'block'")


def test_a_transaction_block_inside_another_is_a_savepoint(connection: psycopg.Connection[Any]) -> None:
    with connection.transaction():
        connection.execute("INSERT INTO items (id, kind) VALUES (35, 'nest')")
        with pytest.raises(psycopg.errors.UndefinedTable), connection.transaction():
            connection.execute("INSERT INTO items (id, kind) VALUES (36, 'nest')")
            connection.execute("SELECT * FROM nothing")
        with connection.transaction():
            connection.execute("INSERT INTO items (id, kind) VALUES (37, 'nest')")
    assert sorted(connection.execute("SELECT id FROM items WHERE kind = 'nest'").fetchall()) == [(35,), (37,)]
    connection.execute("DELETE FROM items WHERE kind = 'nest'")
    with pytest.raises(psycopg.errors.NoActiveSqlTransaction):
        connection.execute("SAVEPOINT s")


def test_reads_of_a_transaction_see_one_snapshot(server: Server) -> None:
    with server.connect(autocommit=False) as reader, server.connect() as writer:
        before = reader.execute("SELECT count(*) FROM items").fetchone()
        writer.execute("INSERT INTO items (id, kind) VALUES (40, 'snap')")
        assert reader.execute("SELECT count(*) FROM items").fetchone() == before
        reader.commit()
        assert reader.execute("SELECT count(*) FROM items WHERE kind = 'snap'").fetchone() == (1,)
        writer.execute("DELETE FROM items WHERE id = 40")


def test_a_server_side_cursor_works_or_is_refused_clearly(server: Server) -> None:
    with server.connect(autocommit=False) as connection, connection.cursor(name="c") as cursor:
        try:
            cursor.execute("SELECT id FROM items ORDER BY id")
        except psycopg.errors.FeatureNotSupported as error:
            assert "DECLARE" in str(error)
            connection.rollback()
        else:
            assert cursor.fetchmany(2) == [(1,), (2,)]


def test_a_large_result_streams_in_pieces(server: Server) -> None:
    with server.connect() as connection:
        connection.execute("INSERT INTO many SELECT g, 'row ' || g FROM generate_series(1, 20000) AS g")
        seen = total = 0
        with connection.cursor() as cursor:
            for n, text in cursor.stream("SELECT n, t FROM many"):
                assert text == f"row {n}"
                seen, total = seen + 1, total + n
        assert (seen, total) == (20_000, 20_000 * 20_001 // 2)


def test_a_statement_is_cancelled_and_times_out(connection: psycopg.Connection[Any]) -> None:
    # Not less: whoever takes it back has so long for it.
    connection.execute("SET statement_timeout = '1s'")
    with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
        numbers = "generate_series(1, 100000)"
        connection.execute(f"SELECT count(*) FROM {numbers} a(x), {numbers} b(y) WHERE x * y % 7 = 3")
    connection.execute("RESET statement_timeout")
    assert connection.execute("SELECT 1").fetchone() == (1,)


def test_the_newest_protocol_has_long_cancel_keys(server: Server) -> None:
    if psycopg.pq.version() < 180000:
        pytest.skip("libpq is older than version 3.2 of the protocol")
    with server.connect(max_protocol_version="latest") as connection:
        assert connection.pgconn.full_protocol_version == 30002
        canceller = threading.Timer(0.5, connection.cancel_safe)
        canceller.start()
        with pytest.raises(psycopg.errors.QueryCanceled, match="user request"):
            numbers = "generate_series(1, 10000000)"
            connection.execute(f"SELECT count(*) FROM {numbers} a(x), {numbers} b(y) WHERE x * y % 7 = 3")
        canceller.join()
    with server.connect(max_protocol_version="3.0") as connection:
        assert connection.pgconn.full_protocol_version == 30000


def test_notices_reach_the_client(connection: psycopg.Connection[Any]) -> None:
    heard: list[str | None] = []
    connection.add_notice_handler(lambda d: heard.append(d.message_primary))
    connection.execute("DROP TABLE IF EXISTS nowhere")
    assert heard and "nowhere" in (heard[0] or "")


# ---- SQLAlchemy


def test_sqlalchemy_inspects_and_selects(server: Server) -> None:
    sa = pytest.importorskip("sqlalchemy")
    engine = sa.create_engine(f"postgresql+psycopg://root@{HOST}:{server.port}/dev")
    try:
        inspector = sa.inspect(engine)
        assert {"items", "many"} <= set(inspector.get_table_names())
        assert inspector.get_materialized_view_names() == ["totals"]
        assert inspector.get_view_names() == ["dear"]
        assert {"public", "other"} <= set(inspector.get_schema_names())
        columns = {c["name"]: (str(c["type"]), c["nullable"]) for c in inspector.get_columns("items")}
        assert columns == {"id": ("INTEGER", False), "kind": (columns["kind"][0], False),
                           "price": ("NUMERIC(10, 2)", True), "sold": ("DATE", True)}  # fmt: skip
        items = sa.table("items", *(sa.column(c["name"], c["type"]) for c in inspector.get_columns("items")))
        with engine.begin() as connection:
            connection.execute(items.insert(), [{"id": 50, "kind": "sa", "price": 5}])
        with engine.connect() as connection:
            query = sa.select(items.c.id, items.c.price).where(items.c.kind == "sa")
            assert connection.execute(query).all() == [(50, Decimal("5.00"))]
            connection.execute(items.delete().where(items.c.kind == "sa"))
            connection.commit()
    finally:
        engine.dispose()
