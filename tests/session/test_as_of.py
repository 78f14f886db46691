"""FOR SYSTEM_TIME AS OF: the epochs that its forms mean."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import cast

import pytest

from headrace.common import zones
from headrace.common.epoch import from_unix_ms
from headrace.common.zones import Zone
from headrace.errors import HeadraceError, InvalidParameter, NotSupported
from headrace.session.execution.as_of import as_of_epoch, within_complete
from headrace.session.names import BoundQuery
from headrace.sql.parser import parse_query
from headrace.sql.query import Query

NOW = datetime(2026, 3, 31, 12, 0, 0, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)


class Parsed:
    """A query without look-up of its names."""

    def __init__(self, text: str, zone: Zone = zones.UTC):
        self.query = parse_query(text)
        self.zone = zone

    def queries(self) -> Iterator[Query]:
        yield self.query


def test_a_time_without_an_offset_is_one_of_the_sessions_zone() -> None:
    berlin = zones.zone_named("Europe/Berlin")
    moments = [
        as_of_epoch(cast(BoundQuery, Parsed(f"SELECT * FROM t FOR SYSTEM_TIME AS OF {time}", zone)), NOW_MS)
        for zone, time in (
            (berlin, "'2026-03-30 14:00'"), (zones.UTC, "'2026-03-30 12:00'"), (berlin, "now() - interval '1 day'"),
            (berlin, "now() - interval '3 days'"), (zones.UTC, "'2026-03-28 13:00'"),
        )
    ]  # fmt: skip
    assert moments[0] == moments[1] == moments[2] and moments[3] == moments[4], "the clocks changed on March 29"


def as_of(time: str, other: str = "") -> int | None:
    text = f"SELECT * FROM t FOR SYSTEM_TIME AS OF {time} AS x JOIN u {other} ON x.a = 1"
    return as_of_epoch(cast(BoundQuery, Parsed(text)), NOW_MS)


def last_of(*moment: int) -> int:
    return from_unix_ms(int(datetime(*moment, tzinfo=UTC).timestamp() * 1000) + 1) - 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("time", "epoch"),
    [
        ("'2026-03-31 11:00:00+00'", last_of(2026, 3, 31, 11)),
        ("'2026-03-31 13:00:00+02:00'", last_of(2026, 3, 31, 11)),
        ("'2026-03-31 11:00:00'::timestamptz", last_of(2026, 3, 31, 11)),
        ("now()", last_of(2026, 3, 31, 12)),
        ("NOW() - '5' MINUTE", last_of(2026, 3, 31, 11, 55)),
        ("now() - '90' seconds", last_of(2026, 3, 31, 11, 58, 30)),
        ("now() - INTERVAL '5 minutes'", last_of(2026, 3, 31, 11, 55)),
        ("now() - interval '1' day", last_of(2026, 3, 30, 12)),
        ("now() - interval '1 month'", last_of(2026, 2, 28, 12)),
        ("'2026-03-31 11:00:00+00'::timestamptz - interval '1 hour'", last_of(2026, 3, 31, 10)),
        ("1774954800", last_of(2026, 3, 31, 11)),
        ("1774954800.0", last_of(2026, 3, 31, 11)),
        ("10325012345678901", 10325012345678901),
    ],
)
def test_every_form(time: str, epoch: int) -> None:
    """PC-37: timestamps, distances from now, Unix seconds and epochs."""
    assert as_of(time) == epoch


@pytest.mark.parametrize(
    ("time", "error", "words"),
    [
        ("PROCTIME()", NotSupported, "temporal join"),
        ("random()", NotSupported, "give a timestamp"),
        ("now() - interval '9000000 months'", InvalidParameter, ""),
    ],
)
def test_what_is_refused(time: str, error: type[HeadraceError], words: str) -> None:
    with pytest.raises(error) as caught:
        as_of(time)
    assert words in (caught.value.hint or caught.value.message)


def test_several_times_in_one_query_are_refused() -> None:
    with pytest.raises(NotSupported) as caught:
        as_of("now() - '5' MINUTE", "FOR SYSTEM_TIME AS OF now()")
    assert "one time" in (caught.value.hint or "")


def test_a_query_without_a_time() -> None:
    assert as_of_epoch(cast(BoundQuery, Parsed("SELECT * FROM t")), NOW_MS) is None


def test_the_past_since_the_last_write_is_as_it_was() -> None:
    at = from_unix_ms(NOW_MS)
    assert within_complete(at, NOW_MS, at - 500) == at - 500
    future = from_unix_ms(NOW_MS + 5000)
    assert within_complete(future, NOW_MS, at) == future
