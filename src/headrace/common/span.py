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
