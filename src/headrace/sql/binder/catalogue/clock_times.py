"""Functions and operators of times of the day."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.common.span import MICROS
from headrace.common.time_of_day import FIELD
from headrace.errors import StatementError
from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import Call, Expr
from headrace.sql.binder.catalogue.entries import Entry, Make, made
from headrace.sql.binder.clock_times import of_micros
from headrace.sql.binder.spans import DAY, let, struct

_U: Final = f"{{0}}.{FIELD}"
_UNITS: Final = {
    "hour": (f"({_U} div 3600000000L)", 0), "minute": (f"({_U} div 60000000L % 60)", 0),
    "second": (f"({_U} % 60000000L)", 6), "millisecond": (f"({_U} % 60000000L)", 3),
    "milliseconds": (f"({_U} % 60000000L)", 3), "microsecond": (f"({_U} % 60000000L)", 0),
    "microseconds": (f"({_U} % 60000000L)", 0), "epoch": (_U, 6),
}  # fmt: skip
"""For each unit a whole number, and of how many places it is."""
_DATED: Final = ("day", "month", "year", "week", "dow", "doy", "isodow", "isoyear", "quarter", "decade", "century",
                 "millennium", "julian", "timezone", "timezone_hour", "timezone_minute")  # fmt: skip


def part(field: str, value: Expr) -> Expr:
    """`extract(field FROM time)`."""
    if field not in _UNITS:
        known = field in _DATED
        words = "not supported" if known else "not recognized"
        message = f'unit "{field}" {words} for type time without time zone'
        raise StatementError(message, sqlstate="0A000" if known else "22023")
    number, places = _UNITS[field]
    if not places:
        return Call(t.decimal(11, 0), f"CAST({number} AS DECIMAL(11,0))", (value,))
    kind = t.decimal(11 + places, places)
    unit = f"CAST(0.{'0' * (places - 1)}1 AS DECIMAL({places},{places}))"
    return Call(kind, f"CAST(CAST({number} AS DECIMAL(11,0)) * {unit} AS {kind.spark.upper()})", (value,))


def _moved(symbol: str) -> Make:
    """A time and an interval: around the clock; months and days do not count."""
    form = of_micros(f"pmod({{0}}.{FIELD} {symbol} {{1}}.{MICROS} % {DAY}, {DAY})")

    def make(arguments: Sequence[Expr]) -> Expr:
        time, span = arguments if arguments[0].type.name == "time" else reversed(arguments)
        return Call(t.TIME, form, (time, span))

    return make


def _difference(arguments: Sequence[Expr]) -> Expr:
    made_of = f"CASE WHEN `__u` IS NOT NULL THEN {struct('0', '0', '`__u`')} END"
    return Call(t.INTERVAL, let("__u", f"{{0}}.{FIELD} - {{1}}.{FIELD}", made_of), tuple(arguments))


def _dated(arguments: Sequence[Expr]) -> Expr:
    """A date and a time as a timestamp."""
    date, time = arguments if arguments[0].type.name == "date" else reversed(arguments)
    moment = f"timestamp_micros(unix_micros(CAST({{0}} AS TIMESTAMP)) + {{1}}.{FIELD})"
    return Call(t.TIMESTAMP, f"CAST({moment} AS TIMESTAMP_NTZ)", (date, time))


_MADE: Final = "(CAST({0} AS BIGINT) * 60 + {1}) * 60000000L + CAST(rint({2} * 1000000D) AS BIGINT)"
_MAKE: Final = of_micros(
    f"CASE WHEN {{0}} BETWEEN 0 AND 24 AND {{1}} BETWEEN 0 AND 59 AND {{2}} BETWEEN 0D AND 60D AND {_MADE} <= {DAY} "
    f"THEN {_MADE} WHEN {{0}} IS NOT NULL AND {{1}} IS NOT NULL AND {{2}} IS NOT NULL "
    "THEN CAST(raise_error('headrace.errors.DataError: [22008] time field value out of range') AS BIGINT) END"
)


def functions() -> list[Entry]:
    """All functions of single rows."""
    return [made("make_time", "int4, int4, float8", lambda a: Call(t.TIME, _MAKE, tuple(a)), "time")]


def operators() -> list[Entry]:
    """All operators, comparisons apart."""
    return [
        made("+", "time, interval", _moved("+"), "time"),
        made("+", "interval, time", _moved("+"), "time"),
        made("-", "time, interval", _moved("-"), "time"),
        made("-", "time, time", _difference, "interval"),
        made("+", "date, time", _dated, "timestamp"),
        made("+", "time, date", _dated, "timestamp"),
    ]
