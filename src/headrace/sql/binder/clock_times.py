"""Times of the day for Spark: structs with the microseconds since midnight."""

from __future__ import annotations

from typing import Final

from headrace.common.span import MICROS
from headrace.common.time_of_day import FIELD
from headrace.sql.binder.spans import DAY, let, struct


def of_micros(micros: str) -> str:
    """Spark's text for the time at so many microseconds, which may be null."""
    return let("__u", micros, f"CASE WHEN `__u` IS NOT NULL THEN named_struct('{FIELD}', `__u`) END")


OF_TIMESTAMP: Final = of_micros(f"pmod(unix_micros(CAST({{0}} AS TIMESTAMP)), {DAY})")
OF_INTERVAL: Final = of_micros(f"pmod({{0}}.{MICROS}, {DAY})")
TO_INTERVAL: Final = let("__u", f"{{0}}.{FIELD}", f"CASE WHEN `__u` IS NOT NULL THEN {struct('0', '0', '`__u`')} END")
_PATTERN: Final = r"^\\s*([0-9][0-9]?):([0-9][0-9])(:([0-9][0-9]([.][0-9]{1,6})?))?\\s*$"
_READ: Final = (
    f"CAST(regexp_extract({{0}}, '{_PATTERN}', 1) AS BIGINT) * 3600000000L "
    f"+ CAST(regexp_extract({{0}}, '{_PATTERN}', 2) AS BIGINT) * 60000000L "
    f"+ CAST(CAST(concat('0', regexp_extract({{0}}, '{_PATTERN}', 4)) AS DECIMAL(10,6)) "
    "* CAST(1000000 AS DECIMAL(7,0)) AS BIGINT)"
)
_WRONG: Final = "CAST(raise_error(concat('headrace.errors.{words}: \"', {0}, '\"')) AS BIGINT)"


def _read() -> str:
    syntax = _WRONG.replace("{words}", "InvalidDatetime: invalid input syntax for type time")
    beyond = _WRONG.replace("{words}", "DataError: [22008] date/time field value out of range")
    whole = f"CASE WHEN `__n` > {DAY} OR regexp_extract({{0}}, '{_PATTERN}', 2) > '59' THEN {beyond} ELSE `__n` END"
    unlike = f"WHEN NOT rlike({{0}}, '{_PATTERN}') THEN {syntax}"
    return of_micros(f"CASE WHEN {{0}} IS NULL THEN NULL {unlike} ELSE {let('__n', _READ, whole)} END")


OF_TEXT: Final = let("__x", "{0}", _read().replace("{0}", "`__x`"))
"""A time of text at run time: hours, minutes, and seconds if there are any."""


def _text() -> str:
    two = "lpad(CAST({part} AS STRING), 2, '0')"
    parts = ", ':', ".join(
        two.replace("{part}", p)
        for p in ("`__u` div 3600000000L", "`__u` div 60000000L % 60", "`__u` div 1000000L % 60")
    )
    micro = "lpad(CAST(`__u` % 1000000L AS STRING), 6, '0')"
    fraction = f"CASE WHEN `__u` % 1000000L <> 0 THEN concat('.', trim(TRAILING '0' FROM {micro})) ELSE '' END"
    return let("__u", f"{{0}}.{FIELD}", f"concat({parts}, {fraction})")


TEXT: Final = _text()
"""The text of a time as PostgreSQL writes it."""
