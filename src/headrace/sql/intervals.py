"""Interval literals: PostgreSQL's spellings to months, days and microseconds, to Spark's spelling, and to zones.

What is accepted is what PostgreSQL 15 accepts with the default styles: parts with units in any order, each unit once;
`[+-]hours:minutes[:seconds]`; years-months; and ISO 8601 with designators or in its alternative form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Final

from headrace.common.lazy_dataclass import dataclass
from headrace.common.zones import Zone, zone_at
from headrace.errors import InvalidDatetime, InvalidParameter

_SECOND, _MINUTE, _HOUR, _DAY = 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000
_MICROS: Final = {"microsecond": 1, "millisecond": 1000, "second": _SECOND, "minute": _MINUTE, "hour": _HOUR}
_YEARS: Final = {"year": 1, "decade": 10, "century": 100, "millennium": 1000}
_UNITS: Final = {
    spelling: unit
    for unit, spellings in {
        "microsecond": "us usec usecs usecond useconds microsecon", "second": "s sec secs second seconds",
        "millisecond": "ms msec msecs msecond mseconds millisecon", "minute": "m min mins minute minutes",
        "hour": "h hr hrs hour hours", "day": "d day days", "week": "w week weeks", "month": "mon mons month months",
        "year": "y yr yrs year years", "decade": "dec decs decade decades", "century": "c cent century centuries",
        "millennium": "mil mils millennia millennium",
        "none": "qtr quarter timezone",
    }.items()
    for spelling in spellings.split()
}  # fmt: skip
"""Words that stand for units; `none` are those that may stand anywhere but with a number."""
_SIGNIFICANT: Final = 10
"""So many letters of a word count."""
_MOST_PARTS: Final = 25
_LONGEST: Final = 255
"""Characters of a text; PostgreSQL has room for about as many."""
_CLOCK: Final = frozenset(("hour", "minute", "second", "millisecond", "microsecond"))
_SUBSECONDS: Final = frozenset(("second", "millisecond", "microsecond"))
_DAYS_OF_MONTH: Final = 30
_INT: Final = 1 << 31
_BIG: Final = 1 << 63
_MOST_ISO: Final = 1e15
_PART: Final = re.compile(
    r"(?P<clock>\d+:[\d:.]*)"
    r"|(?P<number>\d+(?:(?P<separator>[-./])(?:\d+(?:(?P=separator)(?:\d|(?P=separator))*)?|(?:[a-z\d]|(?P=separator))*))?|\.\d*)"
    r"|(?P<word>(?:d|h|m|s|y|mon|dec)(?=[+\d])|[a-z]++(?![-/.+\d]))|(?P<date>[a-z]+[-+/_.:a-z\d]+)"
    r"|(?P<sign>[+-])\s*(?:(?P<signed>\d[\d:.-]*)|(?P<special>[a-z]+))?|(?P<blank>\s+|[!-/:-@\[-`{-~])", re.ASCII
)  # fmt: skip
"""What PostgreSQL's scanner of dates takes as one part; `date` and `special` are no part of an interval."""
_INTEGER: Final = re.compile(r"[+-]?\d*", re.ASCII)
_FRACTION: Final = re.compile(r"\.\d+", re.ASCII)
_TIME: Final = re.compile(r"(\d+):(\d*)(?::(\d*))?(\.\d*)?", re.ASCII)
_ISO_NUMBER: Final = re.compile(r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


class _Wrong(Exception):
    """The text is no interval."""


class _TooMuch(Exception):
    """A part of it is out of its range."""


@dataclass
class _Span:
    """What has been read: each part within the bounds of its type."""

    months: int = 0
    years: int = 0
    days: int = 0
    micros: int = 0

    def add(self, unit: str, whole: int, fraction: float) -> None:
        """A number of a unit; `fraction` has its sign. Raises `_TooMuch`."""
        if unit in _MICROS:
            self._add_micros(whole * _MICROS[unit])
            self._add_fraction(fraction * _MICROS[unit])
        elif unit == "day":
            self._add_days(whole)
            self._add_fraction(fraction * _DAY)
        elif unit == "week":
            self._add_days(whole * 7)
            self._add_part_of_days(fraction * 7)
        elif unit == "month":
            self.months = _bounded(self.months + _bounded(whole))
            self._add_part_of_days(fraction * _DAYS_OF_MONTH)
        elif unit in _YEARS:
            self.years = _bounded(self.years + _bounded(_bounded(whole) * _YEARS[unit]))
            self.months = _bounded(self.months + round(fraction * _YEARS[unit] * 12))
        else:
            raise _Wrong

    def _add_micros(self, micros: int) -> None:
        self.micros = _bounded(self.micros + _bounded(micros, _BIG), _BIG)

    def _add_fraction(self, micros: float) -> None:
        """Rounded; a half goes towards zero."""
        whole, rest = int(micros), micros - int(micros)
        self._add_micros(whole + (rest > 0.5) - (rest < -0.5))

    def _add_days(self, days: int) -> None:
        self.days = _bounded(self.days + _bounded(days))

    def _add_part_of_days(self, days: float) -> None:
        self._add_days(int(days))
        self._add_fraction((days - int(days)) * _DAY)

    def parts(self, sign: int) -> tuple[int, int, int]:
        """Months, days and microseconds. Raises `InvalidDatetime`."""
        months = self.years * 12 + self.months
        if not -_INT <= months < _INT:
            raise InvalidDatetime("interval out of range", sqlstate="22008")
        return sign * months, sign * self.days, sign * self.micros


def _bounded(value: int, bound: int = _INT) -> int:
    if not -bound <= value < bound:
        raise _TooMuch
    return value


def parse_interval(text: str) -> tuple[int, int, int]:
    """Months, days and microseconds of an interval's text.

    Raises `InvalidDatetime`: no interval (22007), a part out of its range (22015), all of it out of range (22008).
    """
    try:
        if len(text) > _LONGEST:
            raise _Wrong
        try:
            return _words(text)
        except _Wrong:
            return _iso(text)
    except _Wrong:
        raise InvalidDatetime(f'invalid input syntax for type interval: "{text}"') from None
    except _TooMuch:
        raise InvalidDatetime(f'interval field value out of range: "{text}"', sqlstate="22015") from None


_KINDS: Final = ("clock", "number", "word", "date", "special")


@dataclass(frozen=True)
class _Part:
    """A part of the text; `kind` is one of `_KINDS`, or signed."""

    kind: str
    text: str


def _parts(text: str) -> Iterator[_Part]:
    at, lowered = 0, text.lower()
    while at < len(lowered):
        match = _PART.match(lowered, at)
        if match is None or (match["sign"] and not (match["signed"] or match["special"])):
            raise _Wrong
        at = match.end()
        if match["signed"]:
            yield _Part("signed", match["sign"] + match["signed"])
        elif not match["blank"]:
            yield _Part(next(kind for kind in _KINDS if match[kind]), match[0])


def _words(text: str) -> tuple[int, int, int]:
    """Parts with units, read from the last one to the first: a unit stands behind its number."""
    span, seen, unit, ago = _Span(), set[str](), "", False
    parts = list(_parts(text))
    if len(parts) > _MOST_PARTS:
        raise _Wrong
    for part in reversed(parts):
        filled: frozenset[str] = frozenset()
        if part.kind == "word":
            if part.text == "ago":
                ago, unit = True, "none"
            else:
                unit = _unit(part.text)
        elif part.kind == "clock":
            span.micros, unit, filled = _time(part.text), "day", _CLOCK
        elif part.kind == "signed" and (micros := _signed_time(part.text)) is not None:
            span.micros, unit, filled = micros, "day", _CLOCK
        elif part.kind in ("signed", "number"):
            whole, fraction, in_months = _number(part.text)
            unit = "month" if in_months else unit or "second"
            span.add(unit, whole, fraction)
            filled = _SUBSECONDS if unit == "second" and fraction else frozenset((unit,))
            unit = "day" if unit == "hour" else unit
        else:
            raise _Wrong
        if filled & seen:
            raise _Wrong
        seen |= filled
    if not seen:
        raise _Wrong
    return span.parts(-1 if ago else 1)


def _unit(word: str) -> str:
    found = _UNITS.get(word[:_SIGNIFICANT])
    if found is None:
        raise _Wrong
    return found


def _number(text: str) -> tuple[int, float, bool]:
    """The whole and the fraction of a number, or the months of years-months."""
    sign, whole_text = -1 if text[0] == "-" else 1, _INTEGER.match(text)[0]  # type: ignore[index]
    whole, rest = _bounded(_integer(whole_text), _BIG), text[len(whole_text) :]
    if rest[:1] == "-":
        months_text = _INTEGER.match(rest, 1)[0]  # type: ignore[index]
        months = _integer(months_text)
        if not 0 <= months < 12:
            raise _TooMuch
        if rest[1 + len(months_text) :]:
            raise _Wrong
        return _bounded(whole * 12 + sign * months, _BIG), 0.0, True
    return whole, sign * _fraction(rest), False


def _integer(text: str) -> int:
    return int(text) if text not in ("", "+", "-") else 0


def _fraction(text: str) -> float:
    if text in ("", "."):
        return 0.0
    if not _FRACTION.fullmatch(text):
        raise _Wrong
    return float(text)


def _time(text: str) -> int:
    """The microseconds of `hours:minutes:seconds`; of two numbers with a fraction the second one is seconds."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise _Wrong
    hours, minutes, seconds = (int(part or 0) for part in match.groups()[:3])
    if match[4] and match[3] is None:
        hours, minutes, seconds = 0, hours, minutes
    fraction = _fraction(match[4] or "")
    if minutes > 59 or seconds > 60:
        raise _TooMuch
    return _bounded(hours * _HOUR + minutes * _MINUTE + seconds * _SECOND + round(fraction * _SECOND), _BIG)


def _signed_time(text: str) -> int | None:
    """None for what is no time, but may be a number."""
    try:
        return _time(text[1:]) * (-1 if text[0] == "-" else 1) if ":" in text else None
    except (_Wrong, _TooMuch):
        return None


class _Iso:
    """Reads ISO 8601: section 4.4.3.2 with designators, 4.4.3.3 without."""

    _DATE: Final = {"Y": "year", "M": "month", "W": "week", "D": "day"}
    _TIME: Final = {"H": "hour", "M": "minute", "S": "second"}

    def __init__(self, text: str):
        if len(text) < 2 or text[0] != "P":
            raise _Wrong
        self._text, self._at = text, 1
        self._span = _Span()

    def parts(self) -> tuple[int, int, int]:
        """Months, days and microseconds."""
        in_date, designated = True, False
        while self._at < len(self._text):
            if self._next() == "T":
                self._at += 1
                in_date = designated = False
                continue
            start = self._at
            whole, fraction = self._number()
            unit = (self._DATE if in_date else self._TIME).get(self._next())
            if unit is not None:
                self._at += 1
                self._span.add(unit, whole, fraction)
                designated = True
                continue
            if designated:
                raise _Wrong
            # What follows the time ends the text.
            width = len(re.match(r"-?(\d*)", self._text[start:])[1])  # type: ignore[index]
            self._alternative(in_date, width, whole, fraction)
        return self._span.parts(1)

    def _alternative(self, in_date: bool, width: int, whole: int, fraction: float) -> None:
        """The date or the time without designators, of which the first number has been read."""
        last = self._next()
        names = ("year", "month", "day") if in_date else ("hour", "minute", "second")
        ends = ("", "T") if in_date else ("",)
        if width == (8 if in_date else 6) and last in ends:
            for name, part in zip(names, _digits(whole), strict=True):
                self._span.add(name, part, fraction if name == names[-1] else 0.0)
            return
        separator = "-" if in_date else ":"
        self._span.add(names[0], whole, fraction)
        for name in names[1:]:
            if self._next() in ends:
                return
            if self._next() != separator:
                raise _Wrong
            self._at += 1
            self._span.add(name, *self._number())
        if self._next() not in ends:
            raise _Wrong

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _number(self) -> tuple[int, float]:
        match = _ISO_NUMBER.match(self._text, self._at)
        if match is None:
            raise _Wrong
        self._at = match.end()
        value = float(match[0])
        if abs(value) > _MOST_ISO:
            raise _TooMuch
        return int(value), value - int(value)


def _digits(value: int) -> tuple[int, int, int]:
    """The digits before the last four, and two pairs; all have its sign."""
    sign, value = (-1 if value < 0 else 1), abs(value)
    return sign * (value // 10000), sign * (value // 100 % 100), sign * (value % 100)


def _iso(text: str) -> tuple[int, int, int]:
    return _Iso(text).parts()


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
