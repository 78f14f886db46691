"""Time zones as PostgreSQL knows them: their names, and the way between moments and the clocks of a zone.

Names and rules are those of the machine's files, which PostgreSQL reads, too. Java has its own, which are like the
package `tzdata`'s: where these two tell the past apart, and Spark computes, a time is refused (`known_since`).

A clock that is turned back shows the same time twice: then the later moment is meant. A time that a clock leaves out is
read as the clock went before. So of the two offsets that a time may have the smaller one always counts.
"""

from __future__ import annotations

import datetime as dt
import re
import struct
from functools import cache, cached_property, lru_cache
from importlib import resources
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Final
from zoneinfo import TZPATH, ZoneInfo, ZoneInfoNotFoundError, available_timezones

from headrace.common.lazy_dataclass import dataclass

_UNKNOWN: Final = frozenset(("localtime", "posixrules", "Factory", "ROC", "America/Coyhaique"))
"""Names that are none of a zone everywhere, or that Java does not know."""
_LINKED: Final = frozenset(("EST5EDT", "CST6CDT", "MST7MDT", "PST8PDT"))
"""Names that Java takes for those of cities, which kept other times before 1970."""
_POSIX: Final = re.compile(
    r"(?:<([+\-:A-Za-z0-9]{3,})>|([A-Za-z]{3,}))?([+-]?)(\d{1,2})(?::(\d{2})(?::(\d{2}))?)?", re.ASCII
)
_ISO: Final = re.compile(r"([+-])(\d{1,2})(?::?(\d{2})(?::?(\d{2}))?)?", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?(?:\d{1,6}\.?\d{0,20}|\.\d{1,20})", re.ASCII)
_MOST_S: Final = 18 * 3600 - 1
"""Java takes no larger offset."""
_PAST_S: Final = 946_684_800
"""Later differences are laws that one of the two has not heard of."""
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_SECOND: Final = dt.timedelta(seconds=1)
_NEARBY: Final = dt.timedelta(days=2)
_CYCLE, _CYCLE_YEARS = dt.timedelta(days=146_097), 400
"""Of the Gregorian calendar."""


@dataclass(frozen=True)
class Zone:
    """A time zone; `fixed_s` are the seconds that its clocks are always ahead of UTC, if they are, `short` its sign."""

    name: str
    fixed_s: int | None = None
    short: str | None = None

    @property
    def is_utc(self) -> bool:
        """Whether its clocks show UTC."""
        return self.fixed_s == 0

    @property
    def is_plain(self) -> bool:
        """Whether it is UTC by whatever name."""
        return self.fixed_s == 0 and self.short == "UTC"

    @property
    def java(self) -> str:
        """What Java calls it."""
        if self.fixed_s is None:
            return self.name
        return "UTC" if not self.fixed_s else offset_text(self.fixed_s, minutes=True)

    @cached_property
    def known_since(self) -> dt.datetime | None:
        """From when on Java computes with the zone as PostgreSQL does; None for always."""
        return None if self.fixed_s is not None else _known_since(self.name)

    @cached_property
    def _rules(self) -> dt.tzinfo:
        return ZoneInfo(self.name) if self.fixed_s is None else dt.timezone(self.fixed_s * _SECOND)

    def offset_s(self, moment: dt.datetime) -> int:
        """Seconds that its clocks are ahead of UTC at an aware moment."""
        if self.fixed_s is not None:
            return self.fixed_s
        try:
            return _seconds(moment.astimezone(self._rules))
        except OverflowError:  # its clocks show a year that Python has not; they go as they do nearby
            return _seconds((moment + (_NEARBY if moment.year == 1 else -_NEARBY)).astimezone(self._rules))

    def local(self, moment: dt.datetime) -> dt.datetime:
        """What its clocks show at an aware moment. Raises `OverflowError` for a year that Python has not."""
        utc = moment.astimezone(dt.UTC).replace(tzinfo=None)
        return utc + self.offset_s(moment) * _SECOND

    def moment(self, local: dt.datetime) -> dt.datetime:
        """The moment at which its clocks show a time, in UTC. Raises `OverflowError`."""
        offset = self.fixed_s
        if offset is None:
            offset = min(_seconds(local.replace(tzinfo=self._rules, fold=fold)) for fold in (0, 1))
        return (local - offset * _SECOND).replace(tzinfo=dt.UTC)

    def text(self, moment: dt.datetime) -> str:
        """An aware moment as PostgreSQL writes it."""
        offset = self.offset_s(moment)
        utc = moment.astimezone(dt.UTC).replace(tzinfo=None)
        # The calendar repeats itself after 400 years: those that Python has not are written by way of others.
        shift = 1 if utc.year == 1 else -1 if utc.year == dt.MAXYEAR else 0
        shown = utc + shift * _CYCLE + offset * _SECOND
        year, rest = shown.isoformat(sep=" ", timespec="microseconds").rstrip("0").rstrip(".").split("-", 1)
        return f"{int(year) - shift * _CYCLE_YEARS:04d}-{rest}{offset_text(offset)}"

    @cached_property
    def spans(self) -> tuple[ZoneSpan, ...]:
        """What its clocks are called, and from when on."""
        if self.fixed_s is not None:
            return (ZoneSpan(None, self.fixed_s, self.short or ""),)
        return _spans(self.name)


@dataclass(frozen=True)
class ZoneSpan:
    """A time in which a zone's clocks go alike: from when on (seconds since 1970), how far ahead of UTC, their sign."""

    since_s: int | None
    offset_s: int
    short: str


UTC: Final = Zone("UTC", 0, "UTC")


def offset_text(seconds: int, *, minutes: bool = False) -> str:
    """An offset as PostgreSQL writes it behind a time: minutes and seconds if there are any."""
    size = abs(seconds)
    text = f"{'-' if seconds < 0 else '+'}{size // 3600:02d}"
    if minutes or size % 3600:
        text += f":{size // 60 % 60:02d}"
    return text + (f":{size % 60:02d}" if size % 60 else "")


@lru_cache(maxsize=1024)
def zone_named(text: str) -> Zone:
    """The zone of a name, or of a clock as POSIX writes it, which counts westwards. Raises `ValueError`."""
    if text.upper() == "UTC":
        return UTC
    name = _names().get(text.lower())
    if name is not None:
        return _of_rules(name)
    match = _POSIX.fullmatch(text)
    if match is None:
        raise ValueError("a name of a time zone is needed, such as Europe/Berlin, or hours such as +02")
    size = _size(match[4], match[5], match[6])
    # An empty sign is PostgreSQL's, too.
    return Zone(text.upper(), size if match[3] == "-" else -size, (match[1] or match[2] or "").upper())


@lru_cache(maxsize=1024)
def zone_of_setting(text: str) -> Zone:
    """The zone of a setting: a name, or a number of hours eastwards. Raises `ValueError`."""
    if _NUMBER.fullmatch(text.strip()):
        return zone_at(round(float(text) * 3600))
    return zone_named(text)


def zone_at(seconds: int) -> Zone:
    """The zone whose clocks are always so far ahead of UTC. Raises `ValueError`."""
    if abs(seconds) > _MOST_S:
        raise ValueError("an offset of less than 18 hours is needed")
    east, west = offset_text(seconds), offset_text(-seconds) if seconds else "-00"
    return Zone(f"<{east}>{west}", seconds, east)


def offset_of(text: str) -> int | None:
    """The seconds of an offset as ISO 8601 has it, eastwards; None for another text. Raises `ValueError`."""
    match = _ISO.fullmatch(text)
    if match is None:
        return None
    size = _size(match[2], match[3], match[4])
    return size if match[1] == "+" else -size


def _size(hours: str, minutes: str | None, seconds: str | None) -> int:
    found = int(hours) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
    if found > _MOST_S or int(minutes or 0) > 59 or int(seconds or 0) > 59:
        raise ValueError("an offset of less than 18 hours is needed")
    return found


def _seconds(moment: dt.datetime) -> int:
    offset = moment.utcoffset()
    assert offset is not None
    return offset // _SECOND


@cache
def _names() -> dict[str, str]:
    return {name.lower(): name for name in available_timezones() if name not in _UNKNOWN}


def _of_rules(name: str) -> Zone:
    spans = _spans(name)
    same = {(span.offset_s, span.short) for span in spans}
    if len(same) > 1 or any(_seconds(_EPOCH.replace(year=year).astimezone(ZoneInfo(name))) != spans[0].offset_s
                            for year in (1800, 2000, 2030, 2100)):  # fmt: skip
        return Zone(name)
    return Zone(name, spans[0].offset_s, spans[0].short)


@lru_cache(maxsize=256)
def _known_since(name: str) -> dt.datetime | None:
    """The end of the last time, before 2000, in which the machine's files and the package differ."""
    packaged = _packaged(name)
    if packaged is None:
        return None
    others = ZoneInfo.from_file(BytesIO(packaged))
    times = sorted(
        {s.since_s for s in (*_spans(name), *_read(packaged)) if s.since_s is not None and s.since_s < _PAST_S}
    )
    moments = [_EPOCH + min(times, default=0) * _SECOND - 366 * dt.timedelta(1), *(_EPOCH + t * _SECOND for t in times)]
    found = _EPOCH if name in _LINKED else None
    for moment, following in pairwise(moments):
        if _seconds(moment.astimezone(ZoneInfo(name))) != _seconds(moment.astimezone(others)):
            found = max(found or following, following)
    return found


@lru_cache(maxsize=256)
def _spans(name: str) -> tuple[ZoneSpan, ...]:
    return _read(_file(name))


def _read(data: bytes) -> tuple[ZoneSpan, ...]:
    """What a file of zone information (RFC 8536, its second part) says; rules behind its last change repeat these."""

    def head(at: int) -> tuple[int, ...]:
        return struct.unpack(">6l", data[at + 20 : at + 44])

    utc, std, leaps, times, types, chars = head(0)
    at = 44 + times * 5 + types * 6 + chars + leaps * 8 + std + utc
    utc, std, leaps, times, types, chars = head(at)
    at += 44
    since = struct.unpack(f">{times}q", data[at : at + times * 8])
    which = data[at + times * 8 : at + times * 9]
    at += times * 9
    kinds = [struct.unpack(">lbB", data[at + i * 6 : at + i * 6 + 6]) for i in range(types)]
    names = data[at + types * 6 : at + types * 6 + chars]
    shorts = [names[place : names.index(b"\0", place)].decode() for _, _, place in kinds]
    found = [ZoneSpan(None, kinds[0][0], shorts[0])]
    return (*found, *(ZoneSpan(s, kinds[i][0], shorts[i]) for s, i in zip(since, which, strict=True)))


def _file(name: str) -> bytes:
    """Looked for where `ZoneInfo` looks."""
    for folder in TZPATH:
        path = Path(folder, name)
        if path.is_file():
            return path.read_bytes()
    packaged = _packaged(name)
    if packaged is None:
        raise ZoneInfoNotFoundError(name)
    return packaged


def _packaged(name: str) -> bytes | None:
    """What the package `tzdata` has, whose files are made as Java's are."""
    try:
        return resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()
    except (ImportError, OSError):
        return None
