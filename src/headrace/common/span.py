"""Intervals: months, days and microseconds, each for itself."""

from __future__ import annotations

from typing import Final

MONTHS: Final = "hr_months"
DAYS: Final = "hr_days"
MICROS: Final = "hr_micros"
SPARK_TYPE: Final = f"struct<{MONTHS}:int,{DAYS}:int,{MICROS}:bigint>"
"""How Spark and Arrow hold an interval."""


def stored(parts: tuple[int, int, int]) -> dict[str, int]:
    """Months, days and microseconds as a column holds them."""
    return dict(zip((MONTHS, DAYS, MICROS), parts, strict=True))


def text_of(months: int, days: int, micros: int) -> str:
    """An interval as PostgreSQL writes it, for instance `1 year 2 mons 3 days 04:05:06`."""
    years = int(months / 12)
    parts, before = "", False
    for value, unit in ((years, "year"), (months - 12 * years, "mon"), (days, "day")):
        if value:
            parts += (
                f"{' ' if parts else ''}{'+' if before and value > 0 else ''}{value} {unit}{'' if value == 1 else 's'}"
            )
            before = value < 0
    if micros or not parts:
        sign = "-" if micros < 0 else "+" if before else ""
        seconds, fraction = divmod(abs(micros), 1_000_000)
        parts += f"{' ' if parts else ''}{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        if fraction:
            parts += f".{fraction:06d}".rstrip("0")
    return parts
