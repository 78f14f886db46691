"""Interval literals: PostgreSQL's spelling to months, days and microseconds, to Spark's spelling, and to zones."""

from __future__ import annotations

import re
from decimal import Decimal

from headrace.common.zones import Zone, zone_at
from headrace.errors import InvalidDatetime, InvalidParameter

_MICROS = {"microsecond": 1, "millisecond": 1000, "second": 1_000_000, "minute": 60_000_000, "hour": 3_600_000_000}
_DAYS = {"day": 1, "week": 7}
_MONTHS = {"month": 1, "year": 12, "decade": 120, "century": 1200, "millennium": 12000}
_ALIASES = {
    "us": "microsecond", "usec": "microsecond", "ms": "millisecond", "msec": "millisecond", "s": "second",
    "sec": "second", "m": "minute", "min": "minute", "h": "hour", "hr": "hour", "d": "day", "w": "week",
    "mon": "month", "y": "year", "yr": "year", "centurie": "century", "centuries": "century",
}  # fmt: skip
_PART = re.compile(
    r"\s*(?:([+-]?)(\d+):(\d{1,2})(?::(\d{1,2}(?:\.\d+)?))?|([+-]?)(\d+)-(\d+)(?=\s|$)"
    r"|([+-]?\d*\.?\d+)\s*([a-zA-Z]*))\s*", re.ASCII
)  # fmt: skip
_CLOCK = re.compile(r"[+-]?\d+:", re.ASCII)
_ISO = re.compile(
    r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)W)?(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?\d+(?:\.\d+)?)S)?)?",
    re.ASCII,
)


def parse_interval(text: str) -> tuple[int, int, int]:
    """Months, days and microseconds of an interval's text. Raises `InvalidDatetime`."""
    months, days, micros, at = Decimal(0), Decimal(0), Decimal(0), 0
    body = text.strip()
    ago = body.lower().endswith(" ago")
    body = body[:-4] if ago else body
    wrong = InvalidDatetime(f'invalid input syntax for type interval: "{text}"')
    if not body:
        raise wrong
    iso = _ISO.fullmatch(body) if len(body) > 1 else None
    if iso is not None:
        years, months_, weeks, days_, hours, minutes, seconds = (Decimal(part or 0) for part in iso.groups())
        clock = (hours * 3600 + minutes * 60 + seconds) * 1_000_000
        return int(years * 12 + months_), int(weeks * 7 + days_), int(clock.to_integral_value())
    while at < len(body):
        match = _PART.match(body, at)
        if not match:
            raise wrong
        at = match.end()
        if match[2] is not None:
            clock = Decimal(match[2]) * 3600 + Decimal(match[3]) * 60 + Decimal(match[4] or 0)
            micros += clock * 1_000_000 * (-1 if match[1] == "-" else 1)
            continue
        if match[6] is not None:
            months += (Decimal(match[6]) * 12 + Decimal(match[7])) * (-1 if match[5] == "-" else 1)
            continue
        amount = Decimal(match[8])
        word = match[9].lower() or ("day" if _CLOCK.match(body, at) else "second")
        unit = _ALIASES.get(word) or _ALIASES.get(word.removesuffix("s")) or word.removesuffix("s")
        if unit in _MONTHS:
            months += amount * _MONTHS[unit]
        elif unit in _DAYS:
            days += amount * _DAYS[unit]
        elif unit in _MICROS:
            micros += amount * _MICROS[unit]
        else:
            raise wrong
    days += (months - int(months)) * 30
    micros += (days - int(days)) * 86_400_000_000
    sign = -1 if ago else 1
    return sign * int(months), sign * int(days), sign * int(micros.to_integral_value())


def spark_interval(text: str) -> str:
    """The Spark expression for an interval: a year-month or day-time literal, or `make_interval` for a mixture."""
    months, days, micros = parse_interval(text)
    if months and not (days or micros):
        return f"INTERVAL '{months}' MONTH"
    if months:
        return f"MAKE_INTERVAL(0, {months}, 0, {days}, 0, 0, {Decimal(micros) / 1_000_000})"
    total = days * 86_400_000_000 + micros
    sign, total = ("-" if total < 0 else ""), abs(total)
    seconds, fraction = divmod(total, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    day, hour = divmod(hours, 24)
    return f"INTERVAL '{sign}{day} {hour:02d}:{minute:02d}:{second:02d}.{fraction:06d}' DAY TO SECOND"


def zone_of_interval(text: str) -> Zone:
    """The zone that is an interval ahead of UTC. Raises `InvalidParameter`, `InvalidDatetime`."""
    months, days, micros = parse_interval(text)
    if months or days or micros % 1_000_000:
        raise InvalidParameter(f'interval time zone "{text}" must not include months or days')
    try:
        return zone_at(micros // 1_000_000)
    except ValueError:
        raise InvalidParameter(f'time zone "{text}" out of range') from None
