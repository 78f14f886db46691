"""What depends on the session's time zone means here what it means in PostgreSQL, clock changes included."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import differential
import pytest
from catalogue_examples import compared, flat, made_up
from differential_meant import difference

from headrace.common import zones
from headrace.common.zones import offset_text, zone_of_setting
from headrace.sql.binder.catalogue.examples import AGGREGATE_EXAMPLES, EXAMPLES, OPERATOR_EXAMPLES, WINDOW_EXAMPLES

ZONES = ("Europe/Berlin", "America/St_Johns", "Asia/Kolkata", "+02", "UTC")
CHANGES = {
    "Europe/Berlin": ("2024-03-31", "2024-10-27", "1945-05-24", "1893-04-01"),
    "America/St_Johns": ("2024-03-10", "2024-11-03", "1988-04-03", "2007-11-04"),
    "Australia/Lord_Howe": ("2024-04-07", "2024-10-06"),
    "Europe/Dublin": ("2024-03-31", "2024-10-27"),
    "Pacific/Apia": ("2011-12-30", "2010-09-26"),
    "America/Sitka": ("1867-10-18", "2024-11-03"),
}
"""Days on which clocks change."""
TIMES = ("00:00:30", "00:01", "00:30", "01:30:15.5", "02:00", "02:30", "02:59:59.999999", "03:00", "15:00")


@pytest.fixture(scope="module")
def sides(sql_spark: Any, postgres: Any) -> Iterator[tuple[differential.Headrace, differential.Postgres]]:
    with postgres.new_database("zones").connect() as connection:
        differential.compile_expressions(sql_spark, False)
        sql_spark.conf.set("spark.sql.adaptive.enabled", "false")
        yield differential.Headrace(sql_spark), differential.Postgres(connection)
        sql_spark.conf.unset("spark.sql.adaptive.enabled")
        differential.compile_expressions(sql_spark, True)


def in_zone(sides: Any, name: str) -> Any:
    for side in sides:
        side.in_zone(name)
    return sides


def differences(sides: Any, *queries: str) -> list[tuple[str, str]]:
    found = []
    for sql in queries:
        mine, other = (side.ask(sql).sorted() for side in sides)
        assert other.rows is not None, (sql, other)
        how = mine.unknown or difference(sql, mine, other)
        found += [] if how is None else [(sql, how)]
    return found


def with_times(examples: list[str]) -> list[str]:
    """Those that have something to do with time."""
    words = ("tz", "ts", "time", "date", "d ", "d,", "interval", "now", "age", "current", "local")
    return [e for e in examples if any(word in e for word in words)]


@pytest.mark.parametrize(
    "zone", [pytest.param(z, marks=[] if z == "Europe/Berlin" else [pytest.mark.soak]) for z in ZONES[:-1]]
)
def test_the_examples_of_the_catalogue(sides: Any, zone: str) -> None:
    in_zone(sides, zone)
    assert compared(sides, with_times([*flat(EXAMPLES), *flat(OPERATOR_EXAMPLES)])) == []
    assert compared(sides, [e for e in made_up() if "tz" in e], "SELECT {} FROM d WHERE id IN (1, 4) ORDER BY id") == []


def test_totals_and_windows(sides: Any) -> None:
    in_zone(sides, "America/St_Johns")
    assert compared(sides, with_times(flat(AGGREGATE_EXAMPLES)), "SELECT {} FROM d") == []
    assert compared(sides, with_times(flat(WINDOW_EXAMPLES))) == []


FROM_CLOCKS = (
    "x::timestamptz", "x::text::timestamptz", "x::date::timestamptz", "x::timestamptz::text",
    "x::timestamptz::timestamp", "x = x::timestamptz", "x < timestamptz '2024-03-31 01:30+00'",
    "x AT TIME ZONE 'Europe/Berlin'", "x AT TIME ZONE interval '-03:30'", "x::date = x::timestamptz",
    "make_timestamptz(extract(year FROM x)::int, extract(month FROM x)::int, extract(day FROM x)::int, "
    "extract(hour FROM x)::int, extract(minute FROM x)::int, extract(second FROM x))",
    "x - timestamptz '2024-01-01'", "(x::date::text || ' 02:30')::timestamptz",
    "to_timestamp(to_char(x, 'YYYY-MM-DD HH24:MI:SS.US'), 'YYYY-MM-DD HH24:MI:SS.US')",
)  # fmt: skip
_PARTS = ("hour", "day", "dow", "epoch", "timezone", "timezone_hour", "timezone_minute", "second", "isoyear", "century")
_UNITS = ("second", "minute", "hour", "day", "week", "month", "quarter", "year", "decade", "century")
OF_MOMENTS = (
    "y", "y::text", "y::timestamp", "y::date", "y::time", "y + interval '1 day'", "y - interval '1 day'",
    "y + interval '1 month'", "y - interval '1 mon 1 day 1 hour'", "y + interval '24 hours'",
    "y + (i4 * interval '1 day')", "y - (i4 * interval '1 mon -1 day 02:00')",
    "y + (interval '1 mon' - i4 * interval '1 mon')",
    *(f"extract({f} FROM y)" for f in _PARTS), *(f"date_trunc('{u}', y)" for u in _UNITS),
    "date_trunc('day', y, 'Europe/Berlin')", "date_trunc('hour', y, 'America/St_Johns')",
    "to_char(y, 'YYYY-MM-DD HH24:MI:SS.US TZ tz OF TZH:TZM')", "to_char(y, 'FMOF')", "date_part('hour', y)",
    "age(y, timestamptz '2023-12-31 12:34')", "age(y - interval '30 min', y)",
    "to_jsonb(y)", "to_jsonb(ARRAY[y])", "concat(y, '|')", "y || 'x'", "format('%s', y)", "ARRAY[y]::text",
    "ROW(y, 1)::text", "y = y::timestamp", "y::date < y", "jsonb_build_object('a', y)",
    "y::timestamp::timestamptz = y", "y IN (y::timestamp, '2024-01-01')", "coalesce(y::timestamp, y)",
    "greatest(y, y::timestamp)", "ARRAY[y, '2024-07-01 12:00']", "'{2024-07-01 12:00, 2024-01-01}'::timestamptz[]",
    "ARRAY[y::timestamp]::timestamptz[]",
)  # fmt: skip


@pytest.mark.parametrize(
    "zone",
    [pytest.param(z, marks=[] if z in ("Europe/Berlin", "Pacific/Apia") else [pytest.mark.soak]) for z in CHANGES],
)
def test_clocks_that_change(sides: Any, zone: str) -> None:
    in_zone(sides, zone)
    times = ", ".join(f"(timestamp '{day} {time}')" for day in CHANGES[zone] for time in TIMES)
    moments = ", ".join(
        f"(timestamptz '{day} {time}+00' + interval '{hours} hours')"
        for day in CHANGES[zone] for time in TIMES for hours in (-12, 0, 3, 12)
    )  # fmt: skip
    found = differences(
        sides, *(f"SELECT x, {part} FROM (VALUES {times}) AS v(x)" for part in grouped(FROM_CLOCKS)),
        *(f"SELECT y, {part} FROM (VALUES {moments}) AS v(y), d WHERE id = 1" for part in grouped(OF_MOMENTS)),
    )  # fmt: skip
    assert found == []


def grouped(parts: tuple[str, ...], size: int = 8) -> list[str]:
    return [", ".join(parts[at : at + size]) for at in range(0, len(parts), size)]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Pacific/Apia", "+02"])
def test_series(sides: Any, zone: str) -> None:
    in_zone(sides, zone)
    bounds = [("2024-03-29 02:30", "2024-04-02", "1 day"), ("2024-10-29", "2024-10-25 02:30", "-1 day"),
              ("2024-10-26 02:30", "2024-10-29", "1 day 12:00"), ("2024-01-31 02:30", "2024-12-01", "1 mon"),
              ("2011-12-28", "2012-01-02", "1 day"), ("2024-03-31", "2024-03-31 05:00", "30 min"),
              ("2024-12-01", "2024-01-01", "-2 mon")]  # fmt: skip
    found = differences(
        sides, *(f"SELECT * FROM generate_series(timestamptz '{a}', '{b}', '{step}')" for a, b, step in bounds)
    )
    assert found == []


def test_the_time_now(sides: Any) -> None:
    for zone in ("Pacific/Kiritimati", "Pacific/Pago_Pago"):
        in_zone(sides, zone)
        sql = (
            "SELECT current_date = now()::date, localtimestamp = now()::timestamp, current_date - (now() AT TIME ZONE "
            f"'{zone}')::date, localtime = now()::time, age(now()) = age(current_date::timestamptz, now())"
        )
        assert sides[0].ask(sql).rows == sides[1].ask(sql).rows == [("t", "t", "0", "t", "t")]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT sum(i4) OVER (ORDER BY tz RANGE '1 month' PRECEDING) FROM d",
        "SELECT sum(i4) OVER (ORDER BY tz RANGE '1 day' PRECEDING) FROM d",
    ],
)
def test_what_is_refused_in_a_zone(sides: Any, sql: str) -> None:
    assert in_zone(sides, "UTC")[0].ask(sql).rows is not None
    assert in_zone(sides, "Europe/Berlin")[0].ask(sql).unknown is not None


def test_names_of_zones(postgres: Any) -> None:
    """A zone is set by the names that PostgreSQL takes, and shown as it shows it; offsets are what they are there."""
    named = ("Europe/Berlin", "europe/berlin", "+02", "-3.5", "5.75", "0", "+02:00", "GMT-02:00", "FOO+5", "<+02>-02",
             "EST", "PST8PDT", "gmt", "utc", "Etc/UTC", "Etc/GMT+5", "America/Argentina/Buenos_Aires")  # fmt: skip
    with postgres.connect() as connection:
        for name in named:
            connection.execute("SELECT set_config('timezone', %s, false)", [name])
            shown = connection.execute("SHOW timezone").fetchone()[0]
            zone = zone_of_setting(name)
            assert zone.name == shown, name
            for day in ("1880-01-01", "1943-07-01", "2024-01-01", "2077-07-01"):
                moment = f"{day} 12:00+00"
                local = connection.execute(f"SELECT timestamptz '{moment}'::timestamp").fetchone()[0]
                assert zone.local(dt.datetime.fromisoformat(moment)) == local, (name, moment)
        for wrong in ("Nowhere/Here", "PST", "", "Europe", "+02:99"):
            with pytest.raises(ValueError):
                zone_of_setting(wrong)
            with pytest.raises(Exception, match="invalid value"):
                connection.execute("SELECT set_config('timezone', %s, false)", [wrong])


def test_java_knows_all_zones_as_they_are_known_here(sql_spark: Any) -> None:
    """From when on they are known, before laws that one of the two may not have heard of."""
    names = sorted(zones._names().values())
    moments = [dt.datetime(1850, 1, 1, tzinfo=dt.UTC) + i * dt.timedelta(days=60, hours=7) for i in range(1060)]
    sql_spark.createDataFrame(
        [(n, zone_of_setting(n).java) for n in names], "n string, j string"
    ).createOrReplaceTempView("names")
    sql_spark.createDataFrame([(m,) for m in moments], "m timestamp").createOrReplaceTempView("moments")
    local = "convert_timezone('UTC', j, CAST(m AS timestamp_ntz))"
    found = sql_spark.sql(
        f"SELECT n, collect_list(o) o FROM (SELECT n, unix_seconds(CAST({local} AS timestamp)) - unix_seconds(m) AS o "
        "FROM names CROSS JOIN moments ORDER BY n, m) GROUP BY n"
    ).collect()
    assert len(found) == len(names) > 500
    wrong = []
    for name, offsets in found:
        zone = zone_of_setting(name)
        since = zone.known_since or moments[0]
        pairs = [(m, zone.offset_s(m), o) for m, o in zip(moments, offsets, strict=True) if m >= since]
        wrong += [(name, *pair) for pair in pairs if pair[1] != pair[2]][:1]
    assert wrong == []


def test_what_java_does_not_know_as_postgresql_does_is_refused(sides: Any) -> None:
    in_zone(sides, "Europe/Stockholm")
    late = (
        "SELECT '1949-10-04 12:00'::timestamptz::text, date '1949-10-04'::timestamptz, timestamptz '1920-01-01 12:00'"
    )
    assert differences(sides, late) == []
    for sql in ("SELECT '1949-10-01 12:00'::timestamptz::text", "SELECT (date '1940-01-01')::timestamptz"):
        assert sides[0].ask(sql).error == "0A000"


def test_offsets_are_written_as_postgresql_writes_them() -> None:
    assert [offset_text(s) for s in (0, 7200, -12600, 3208, -60)] == ["+00", "+02", "-03:30", "+00:53:28", "-00:01"]
