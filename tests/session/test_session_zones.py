"""The time zone of a session: what it is set to, and what times mean and how they are shown in it on every way."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from clients import connect
from headrace.common.zones import UTC, zone_named
from headrace.errors import HeadraceError
from headrace.server import ServerThread
from headrace.session.database import Database
from headrace.session.defined import declared_zone
from headrace.session.variables import Variables
from headrace.sql import statements as st
from headrace.sql.parser import parse_one
from headrace.sql.render import render_text
from headrace.sql.text_values import assign, parse_text

BERLIN = zone_named("Europe/Berlin")
SUMMER = "2024-07-01 14:00:00+02"


@pytest.fixture(scope="module")
def times(database: Database) -> str:
    database.sql(
        "CREATE TABLE times (k int PRIMARY KEY, at timestamptz, clock timestamp, day date, note text);"
        "INSERT INTO times VALUES (1, '2024-07-01 12:00+00', '2024-07-01 12:00', '2024-07-01', 'a'),"
        " (2, '2024-01-01 00:30+00', '2024-10-27 02:30', '2024-03-31', 'b'), (3, NULL, NULL, NULL, NULL)"
    )
    return "times"


@pytest.fixture
def berlin(server: ServerThread, times: str) -> Iterator[Any]:
    with connect(server, options="-c TimeZone=Europe/Berlin", autocommit=True) as connection:
        yield connection


def texts(connection: Any, sql: str, parameters: Any = None) -> list[tuple[str | None, ...]]:
    """The rows as the wire has them in text format."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        found = cursor.pgresult
        return [
            tuple(None if (v := found.get_value(i, j)) is None else v.decode() for j in range(found.nfields))
            for i in range(found.ntuples)
        ]


@pytest.mark.parametrize(
    ("sql", "shown"),
    [
        ("SET TIME ZONE 'europe/berlin'", "Europe/Berlin"), ("SET TimeZone = '+02'", "<+02>-02"),
        ("SET TIME ZONE -3.5", "<-03:30>+03:30"), ("SET TIME ZONE INTERVAL '+02:00' HOUR TO MINUTE", "<+02>-02"),
        ("SET TIME ZONE LOCAL", "Asia/Kolkata"), ("SET TIME ZONE DEFAULT", "Asia/Kolkata"),
        ("SET SESSION TIME ZONE 'UTC'", "UTC"), ("RESET TIME ZONE", "Asia/Kolkata"), ("RESET ALL", "Asia/Kolkata"),
        ("SELECT set_config('timezone', 'Asia/Tokyo', false)", "Asia/Tokyo"),
    ],
)  # fmt: skip
def test_setting_a_zone(server: ServerThread, postgres: Any, sql: str, shown: str) -> None:
    """As PostgreSQL does, which the client is told."""
    for connection in (
        connect(server, options="-c TimeZone=Asia/Kolkata", autocommit=True),
        postgres.connect(options="-c TimeZone=Asia/Kolkata"),
    ):
        with connection:
            assert connection.info.parameter_status("TimeZone") == "Asia/Kolkata"
            if not sql.startswith(("RESET", "SET TIME ZONE LOCAL", "SET TIME ZONE DEFAULT")):
                connection.execute("SET TimeZone = 'America/New_York'")
            connection.execute(sql)
            assert connection.execute("SHOW timezone").fetchone() == (shown,)
            assert connection.info.parameter_status("TimeZone") == shown


def test_a_zone_for_one_transaction(berlin: Any) -> None:
    with berlin.transaction():
        berlin.execute("SET LOCAL TIME ZONE 'Asia/Tokyo'")
        assert texts(berlin, "SELECT at FROM times WHERE k = 1") == [("2024-07-01 21:00:00+09",)]
    assert texts(berlin, "SELECT at FROM times WHERE k = 1") == [(SUMMER,)]


@pytest.mark.parametrize("sql", ["SET TIME ZONE 'Nowhere/Here'", "SET TIME ZONE INTERVAL '1 day'", "SET TimeZone = ''"])
def test_what_is_no_zone(berlin: Any, sql: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        berlin.execute(sql)


def test_what_the_wire_shows_and_takes(berlin: Any) -> None:
    assert texts(berlin, "SELECT at, clock FROM times ORDER BY k") == [
        (SUMMER, "2024-07-01 12:00:00"), ("2024-01-01 01:30:00+01", "2024-10-27 02:30:00"), (None, None),
    ]  # fmt: skip
    found = berlin.execute("SELECT at FROM times WHERE k = 1").fetchone()[0]
    assert found == dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)
    binary = berlin.execute("SELECT at FROM times WHERE k = 1", binary=True).fetchone()[0]
    assert binary == found
    for text in ("2024-07-01 14:00", "2024-07-01 12:00+00"):
        assert texts(berlin, "SELECT k FROM times WHERE at = %s::timestamptz", (text,)) == [("1",)]
    assert texts(berlin, "SELECT k FROM times WHERE at = %s", (found,)) == [("1",)]
    assert texts(berlin, "SELECT k FROM times WHERE at = '2024-07-01 14:00'") == [("1",)]
    assert texts(berlin, "SELECT ARRAY[at], (at, 1) FROM times WHERE k = 1") == [
        ('{"2024-07-01 14:00:00+02"}', '("2024-07-01 14:00:00+02",1)')
    ]
    assert texts(berlin, "SELECT timestamptz '2024-10-27 02:30'") == [("2024-10-27 02:30:00+01",)]
    berlin.execute("SET TIME ZONE 'Asia/Kolkata'")
    assert texts(berlin, "SELECT at, '1890-01-01'::timestamptz FROM times WHERE k = 1") == [
        ("2024-07-01 17:30:00+05:30", "1890-01-01 00:00:00+05:21:10")
    ]


def test_a_prepared_statement_means_the_new_zone(berlin: Any, postgres: Any) -> None:
    """As in PostgreSQL: also one that is answered without Spark, a write of single rows, and a text that is known.

    A literal that PostgreSQL reads when the statement is prepared is read anew here.
    """
    statements = (
        ("SELECT at, k FROM times WHERE at >= $1::text::timestamptz", ("2024-07-01 13:30",)),
        ("SELECT at FROM times WHERE k = $1", (1,)),
        ("SELECT timestamptz '2024-07-01 12:00+00', $1", (1,)),
        ("SELECT k FROM times WHERE at = $1::timestamptz", ("2024-07-01 14:00",)),
        ("UPDATE times SET at = $1 WHERE k = 3 RETURNING at", ("2024-07-01 12:00",)),
        ("SELECT to_char(at, 'HH24') FROM times WHERE k = $1", (1,)),
        ("SELECT clock::timestamptz FROM times WHERE k = $1", (2,)),
    )
    with postgres.connect() as other:
        other.execute("CREATE TABLE IF NOT EXISTS times (k int PRIMARY KEY, at timestamptz, clock timestamp)")
        other.execute("DELETE FROM times")
        other.execute(
            "INSERT INTO times VALUES (1, '2024-07-01 12:00+00', '2024-07-01 12:00'),"
            " (2, '2024-01-01 00:30+00', '2024-10-27 02:30'), (3, NULL, NULL)"
        )
        answers = []
        for connection in (berlin, other):
            pg = connection.pgconn
            rows: list[Any] = []
            connection.execute("SET TIME ZONE 'Asia/Tokyo'")
            for i, (sql, _) in enumerate(statements):
                assert pg.prepare(b"s%d" % i, sql.encode()).error_message == b""
            for zone in ("Europe/Berlin", "UTC", "America/St_Johns", "Europe/Berlin"):
                connection.execute(f"SET TIME ZONE '{zone}'")
                for i, (sql, values) in enumerate(statements):
                    for found in (
                        pg.exec_prepared(b"s%d" % i, [str(v).encode() for v in values]),
                        pg.exec_(_written(sql, values).encode()),
                        pg.exec_(_written(sql, values).encode()),
                    ):
                        assert found.error_message == b"", (sql, found.error_message)
                        rows.append((zone, sql, [found.get_value(j, 0) for j in range(found.ntuples)]))
            answers.append(rows)
        connection.execute("UPDATE times SET at = NULL WHERE k = 3")
    assert answers[0] == answers[1]
    berlin.execute("PREPARE literal AS SELECT timestamptz '2024-07-01 12:00' = '2024-07-01 12:00+00'")
    berlin.execute("SET TIME ZONE 'UTC'")
    assert berlin.execute("EXECUTE literal").fetchone() == (True,)


def _written(sql: str, values: tuple[Any, ...]) -> str:
    for value in values:
        sql = sql.replace("$1", str(value) if isinstance(value, int) else f"'{value}'")
    return sql


def test_short_ways_of_writing_mean_the_same(server: ServerThread, database: Database) -> None:
    """INSERT, UPDATE and DELETE of single rows, of literals, of queries, and by COPY."""
    database.sql("CREATE TABLE put (k int PRIMARY KEY, at timestamptz, clock timestamp, day date, note text)")
    with connect(server, options="-c TimeZone=Europe/Berlin", autocommit=True) as c:
        c.execute("INSERT INTO put VALUES (1, '2024-07-01 14:00')")
        c.execute("INSERT INTO put (k, at) VALUES (2, timestamp '2024-07-01 14:00'), (3, date '2024-07-01')")
        c.execute("INSERT INTO put (k, at) SELECT k + 3, clock FROM times WHERE k < 3")
        c.execute("INSERT INTO put (k, clock, day, note) SELECT k + 5, at, at, at FROM times WHERE k = 1")
        c.execute("INSERT INTO put (k, at) VALUES (%s, %s::timestamptz)", (7, "2024-07-01 14:00"))
        c.execute("INSERT INTO put (k, clock, note) VALUES (8, timestamptz '2024-07-01 12:00+00', %s::timestamptz)",
                  ("2024-07-01 12:00+00",))  # fmt: skip
        with c.cursor().copy("COPY put (k, at) FROM STDIN") as copy:
            copy.write(b"9\t2024-07-01 14:00\n10\t2024-07-01 12:00+00\n")
        c.execute("UPDATE put SET at = clock + interval '0' WHERE k = 6")
        c.execute("INSERT INTO put (k, at) VALUES (11, '2024-07-01 14:00'), (12, '2024-07-01 14:01')")
        c.execute("DELETE FROM put WHERE k = 12 AND at = '2024-07-01 14:01'")
        c.execute("DELETE FROM put WHERE at = '2024-07-01 14:00'::timestamptz AND k = 11")
        summer, local = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC), dt.datetime(2024, 7, 1, 14)
        rows = c.execute("SELECT k, at, clock, day, note FROM put ORDER BY k").fetchall()
        assert [(k, at and at.astimezone(dt.UTC), *rest) for k, at, *rest in rows] == [
            (1, summer, None, None, None), (2, summer, None, None, None),
            (3, dt.datetime(2024, 6, 30, 22, tzinfo=dt.UTC), None, None, None),
            (4, dt.datetime(2024, 7, 1, 10, tzinfo=dt.UTC), None, None, None),
            (5, dt.datetime(2024, 10, 27, 1, 30, tzinfo=dt.UTC), None, None, None),
            (6, summer, local, dt.date(2024, 7, 1), SUMMER), (7, summer, None, None, None),
            (8, None, local, None, SUMMER), (9, summer, None, None, None), (10, summer, None, None, None),
        ]  # fmt: skip
        with c.cursor().copy("COPY (SELECT at FROM put WHERE k = 1) TO STDOUT") as copy:
            assert b"".join(copy) == SUMMER.encode() + b"\n"
    database.sql("DROP TABLE put")


def test_definitions_keep_their_zone(server: ServerThread, database: Database) -> None:
    """A materialized view and a default mean what they meant to their creator, a plain view what its reader means."""
    query = "SELECT k, at::date AS day, at::text AS shown, date_trunc('day', at) AS begins FROM times"
    with connect(server, options="-c TimeZone=Europe/Berlin", autocommit=True) as c:
        c.execute(f"CREATE MATERIALIZED VIEW kept AS {query}")
        c.execute(f"CREATE VIEW plain AS {query}")
        c.execute("CREATE MATERIALIZED VIEW over AS SELECT * FROM plain")
        c.execute("CREATE TABLE declared (k int PRIMARY KEY, at timestamptz DEFAULT '2024-07-01 14:00', "
                  "t text DEFAULT timestamptz '2024-07-01 12:00+00'::text)")  # fmt: skip
        c.execute("INSERT INTO times VALUES (4, '2024-06-30 23:00+00')")
        c.execute("FLUSH")
        shown = c.execute("SHOW CREATE MATERIALIZED VIEW kept").fetchone()[1]
        assert shown == f"-- SET TIME ZONE 'Europe/Berlin';\nCREATE MATERIALIZED VIEW kept AS {query}"
    with connect(server, autocommit=True) as c:
        for view in ("kept", "over"):
            assert c.execute(f"SELECT day, shown, begins FROM {view} WHERE k = 4").fetchone() == (
                dt.date(2024, 7, 1), "2024-07-01 01:00:00+02", dt.datetime(2024, 6, 30, 22, tzinfo=dt.UTC)
            )  # fmt: skip
        assert c.execute("SELECT day, shown FROM plain WHERE k = 4").fetchone() == (
            dt.date(2024, 6, 30), "2024-06-30 23:00:00+00"
        )  # fmt: skip
        c.execute("INSERT INTO declared (k) VALUES (1)")
        c.execute("INSERT INTO declared VALUES (2, DEFAULT, DEFAULT), (3, now(), DEFAULT)")
        c.execute("UPDATE declared SET at = DEFAULT, t = DEFAULT WHERE k = 3")
        with c.cursor().copy("COPY declared (k) FROM STDIN") as copy:
            copy.write(b"4\n")
        moment = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)
        assert c.execute("SELECT at, t FROM declared").fetchall() == [(moment, SUMMER)] * 4
        c.execute("CREATE MATERIALIZED VIEW unzoned AS SELECT k, at::date AS day FROM times")
    records = {o.name: o for o in database.catalog.state.objects.values()}
    zones = [declared_zone(records[n]) for n in ("kept", "over", "declared", "unzoned", "plain", "times")]
    assert zones == [BERLIN, BERLIN, BERLIN, UTC, UTC, UTC]
    assert "time_zone" in records["kept"].content.to_json() and "time_zone" not in records["unzoned"].content.to_json()
    database.sql("DROP MATERIALIZED VIEW kept, over, unzoned; DROP VIEW plain; DROP TABLE declared")
    database.sql("DELETE FROM times WHERE k = 4")


def test_conditions_with_the_current_time(berlin: Any) -> None:
    """A view that time alone changes has intervals of a fixed length: days are none here."""
    berlin.execute("CREATE MATERIALIZED VIEW recent AS SELECT k FROM times WHERE at > now() - interval '24 hours'")
    berlin.execute("INSERT INTO times (k, at) VALUES (5, now())")
    berlin.execute("FLUSH")
    assert berlin.execute("SELECT k FROM recent").fetchall() == [(5,)]
    berlin.execute("DELETE FROM times WHERE k = 5")
    berlin.execute("DROP MATERIALIZED VIEW recent")
    for condition in ("at > now() - interval '1 day'", "day >= current_date", "clock < localtimestamp"):
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            berlin.execute(f"CREATE MATERIALIZED VIEW recent AS SELECT k FROM times WHERE {condition}")


def test_a_session_of_this_process(database: Database, times: str) -> None:
    """Python gets aware datetimes whatever the zone; as of a time without an offset means the session's."""
    session = database.session()
    list(session.execute("SET TIME ZONE 'Europe/Berlin'"))
    (found,) = session.execute("SELECT at, at::text FROM times WHERE k = 1")
    assert found.rows() == [(dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC), SUMMER)]
    assert session.context.zone == BERLIN
    with pytest.raises(HeadraceError):  # it is in the future there as here
        list(session.execute("SELECT * FROM times FOR SYSTEM_TIME AS OF '1990-01-01'"))
    session.close()
    assert database.session().context.zone == UTC


def test_what_a_zone_cannot_have_is_refused_with_its_place(berlin: Any) -> None:
    with pytest.raises(psycopg.errors.FeatureNotSupported) as caught:
        berlin.execute("SELECT count(*) OVER (ORDER BY at RANGE '1 day' PRECEDING) FROM times")
    assert caught.value.diag.statement_position is not None


@pytest.mark.parametrize("name", ["Europe/Berlin", "America/New_York", "Asia/Tokyo"])
def test_the_ends_of_time_are_shown_in_any_zone(name: str) -> None:
    """Rows that hold for ever have the last moment that there is; its clocks may show a year that Python has not."""
    zone = zone_named(name)
    ends = [dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC), dt.datetime(1, 1, 1, tzinfo=dt.UTC)]
    shown = render_text(pa.array(ends, pa.timestamp("us", tz="UTC")), "timestamp", zone)
    assert shown == [zone.text(moment).encode() for moment in ends]
    beyond = pa.array([253_402_300_800_000_000 + 10**15], pa.timestamp("us", tz="UTC"))
    assert render_text(beyond, "timestamp", zone)[0].startswith(b"10031-")


def test_times_beyond_the_ends_are_out_of_range() -> None:
    with pytest.raises(HeadraceError) as caught:
        parse_text("0001-01-01 00:00:00", "timestamp", BERLIN)
    assert caught.value.sqlstate == "22008"
    with pytest.raises(HeadraceError) as caught:
        assign(dt.datetime(9999, 12, 31, 23, 59, 59), "timestamp", zone_named("America/New_York"))
    assert caught.value.sqlstate == "22008"


@pytest.mark.parametrize(
    ("sql", "zone"),
    [("INTERVAL '2' HOUR", "<+02>-02"), ("INTERVAL '-30' HOUR TO MINUTE", "<-00:30>+00:30"), ("+2", "<+02>-02")],
)
def test_bare_numbers_have_the_unit_that_is_said(sql: str, zone: str) -> None:
    statement = parse_one(f"SET TIME ZONE {sql}")
    assert isinstance(statement, st.SetVariable)
    variables = Variables()
    variables.set(statement.name, statement.value)
    assert variables.get("timezone") == zone


def test_local_settings_end_with_their_transaction_alone() -> None:
    variables = Variables(timezone="Europe/Berlin")
    variables.set("timezone", "Asia/Tokyo")
    variables.set("timezone", None, local=True)
    assert variables.get("timezone") == "Europe/Berlin"
    variables.end_transaction()
    assert variables.get("timezone") == "Asia/Tokyo"
    variables.set("timezone", "UTC", local=True)
    variables.set("timezone", "America/New_York")
    assert variables.get("timezone") == "America/New_York"


def test_a_number_without_end_is_no_zone() -> None:
    with pytest.raises(HeadraceError):
        Variables().set("timezone", "9" * 400)
