"""Times of the day, from 00:00:00 to 24:00:00."""

from __future__ import annotations

import re
from typing import Final

from headrace.errors import InvalidDatetime

FIELD: Final = "hr_time"
SPARK_TYPE: Final = f"struct<{FIELD}:bigint>"
"""How Spark and Arrow hold a time: microseconds since midnight."""
DAY_US: Final = 86_400_000_000
_TEXT: Final = re.compile(
    r"\s*(?:(\d{4,})-(\d{1,2})-(\d{1,2})[T\s]+|T)?(\d{1,2}):(\d{2})(?::(\d{2})(\.\d*)?)?\s*([ap]m)?\s*",
    re.ASCII | re.IGNORECASE,
)


def stored(micros: int) -> dict[str, int]:
    """A time as a column holds it."""
    return {FIELD: micros}


def parse(text: str) -> int:
    """The microseconds since midnight that a text spells. Raises `InvalidDatetime`."""
    if text.strip().lower() == "allballs":
        return 0
    match = _TEXT.fullmatch(text)
    if match is None:
        raise InvalidDatetime(f'invalid input syntax for type time: "{text}"')
    hour, minute, second = (int(part or 0) for part in match.groups()[3:6])
    half = (match[8] or "").lower()
    micros = round(float(f"0{match[7]}") * 1_000_000) if match[7] and match[7] != "." else 0
    if half and not 1 <= hour <= 12:
        raise InvalidDatetime(f'date/time field value out of range: "{text}"', sqlstate="22008")
    hour = hour % 12 + 12 * (half == "pm") if half else hour
    total = ((hour * 60 + minute) * 60 + second) * 1_000_000 + micros
    if minute > 59 or second > 60 or total > DAY_US:
        raise InvalidDatetime(f'date/time field value out of range: "{text}"', sqlstate="22008")
    return total


def text_of(micros: int) -> str:
    """A time as PostgreSQL writes it."""
    seconds, fraction = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return text + (f".{fraction:06d}".rstrip("0") if fraction else "")
