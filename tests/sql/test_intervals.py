"""Spellings of intervals, compared with PostgreSQL's."""

from __future__ import annotations

import random

import psycopg
import pytest

from headrace.errors import InvalidDatetime
from headrace.sql.intervals import parse_interval
from postgres import Postgres


def _listed(text: str) -> list[str]:
    return text.split()


_NUMBERS = _listed("0 1 2 3 12 13 25 59 60 61 100 1.5 0.25 .5 2. 1e2 007 2024 99999 99999999999")
_CLOCKS = _listed("""4:5 04:05 04:05:06 4:05:06.789 24:00 25:61 12:60 100:00:00 04:05.5 4:5:60 4:5:61 :: 4:
    04:05:06.1234567 1:2:3.4.5""")
_MONTHS = _listed("1-2 0-11 1-12 1-13 10-0 2024-02 2024-02-29 1-2-3 1- 1-1.5")
_WORDS = _listed("""s sec secs second seconds m min mins minute minutes h hr hrs hour hours d day days w week weeks mon
    mons month months y yr yrs year years decade decades dec decs c cent century centuries mil mils millennium millennia
    millenniums us usec usecs usecond microsecon microseconds ms msec mseconds milliseco milliseconds Day YEAR qtr
    quarter timezone timezone_h ago and , - @""")
_ISO = _listed("""P0001-02-03T04:05:06 P1-2-3 P00010203T040506 P1Y2M3DT4H5M6S PT1.5H P1.5Y P-1Y-2M P1W P1Y1W PT-3S PT P
    P1YT PT1H1H P1M1Y p1y -P1Y P1.5D P1.5M P0.5W PT0.000001S P1D2D PT36H P1YT1Y P1e1D P2 PT2 P12345678 PT123456 P1-2T3
    PT1:2 PT1:2:3:4 P1Y12345678 P1-2-3-4 P99999999999Y""")


def _text(draw: random.Random) -> str:
    def part() -> str:
        sign, kind = draw.choice(("", "", "-", "+")), draw.random()
        if kind < 0.6:
            return sign + draw.choice(_NUMBERS) + draw.choice(("", "", " ", "  ")) + draw.choice(_WORDS)
        return draw.choice(_WORDS) if kind > 0.9 else sign + draw.choice((*_CLOCKS, *_MONTHS, *_NUMBERS))

    if draw.random() < 0.1:
        return draw.choice(_ISO)
    return draw.choice((" ", " ", "  ", "")).join(part() for _ in range(draw.randint(1, 4))) + draw.choice(
        ("", "", " ago")
    )


def _ours(text: str) -> str:
    try:
        return "|".join(map(str, parse_interval(text)))
    except InvalidDatetime:
        return "error"


def _theirs(connection: psycopg.Connection[tuple[str]], text: str) -> str:
    found = connection.execute("SELECT read_interval(%s)", (text,)).fetchone()
    assert found is not None
    return found[0]


_READ = """CREATE FUNCTION read_interval(given text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE i interval;
BEGIN
  i := given::interval;
  RETURN (extract(year FROM i) * 12 + extract(month FROM i))::bigint || '|' || extract(day FROM i)::bigint || '|'
    || (extract(hour FROM i) * 3600000000 + extract(minute FROM i) * 60000000 + extract(microsecond FROM i))::bigint;
EXCEPTION WHEN others THEN RETURN 'error';
END $$"""


def test_each_spelling_means_what_it_means_to_postgres(postgres: Postgres) -> None:
    draw = random.Random(7)
    texts = [*_ISO, *(_text(draw) for _ in range(3000))]
    with postgres.new_database("intervals").connect() as connection:
        connection.execute(_READ)
        different = {
            text: (ours, theirs)
            for text in texts
            if (ours := _ours(text)) != (theirs := _theirs(connection, text))
        }  # fmt: skip
    assert not different


@pytest.mark.parametrize(
    ("text", "sqlstate"),
    [("1 day 2 days", "22007"), ("2024-02-29", "22007"), ("1-12", "22015"), ("4:60", "22015"),
     ("99999999999 years", "22015"), ("999999999 years", "22008")],
)  # fmt: skip
def test_what_is_no_interval(text: str, sqlstate: str) -> None:
    with pytest.raises(InvalidDatetime) as caught:
        parse_interval(text)
    assert caught.value.sqlstate == sqlstate
