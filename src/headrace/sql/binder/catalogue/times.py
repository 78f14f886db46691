"""Functions of dates and times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.errors import StatementError
from headrace.sql.binder import types as t
from headrace.sql.binder.coerce import plain
from headrace.sql.binder.reading import NotBound
from headrace.sql.binder.tree import Call, Constant, Expr

EXTRACT: Final = "extract"
TIMES: Final = """
now() -> timestamptz : current_timestamp()
transaction_timestamp() -> timestamptz : current_timestamp()
statement_timestamp() -> timestamptz : current_timestamp()
make_timestamp(int4, int4, int4, int4, int4, float8) -> timestamp : make_timestamp_ntz({0}, {1}, {2}, {3}, {4}, CAST({5} AS DECIMAL(16,6)))
make_date(int4, int4, int4) -> date : make_date({0}, {1}, {2})
to_timestamp(float8) -> timestamptz : timestamp_seconds({0})
"""
_FIELDS: Final = {
    "year": "YEAR", "month": "MONTH", "day": "DAY", "hour": "HOUR", "minute": "MINUTE", "week": "WEEK", "quarter": "QUARTER",
    "doy": "DOY", "isodow": "DOW_ISO", "isoyear": "YEAROFWEEK", "dow": "DOW",
}  # fmt: skip
_UNITS: Final = ("microseconds", "milliseconds", "second", "minute", "hour", "day", "week", "month", "quarter", "year")
_CLOCK: Final = ("hour", "minute", "second", "millisecond", "milliseconds", "microsecond", "microseconds")


def timezone(arguments: Sequence[Expr]) -> Expr:
    """`AT TIME ZONE`: a zoned time as local time, and local time as a zoned one. The zone is a full name."""
    zone, time = arguments
    if (
        not isinstance(zone, Constant)
        or zone.text is None
        or not ("/" in zone.text or zone.text.upper() in ("UTC", "GMT"))
    ):
        raise NotBound("a time zone that is no full name")
    if time.type.name == "timestamptz":
        return Call(t.TIMESTAMP, "convert_timezone('UTC', {0}, {1})", (zone, plain(time, t.TIMESTAMP)))
    return plain(Call(t.TIMESTAMP, "convert_timezone({0}, 'UTC', {1})", (zone, time)), t.TIMESTAMPTZ)


def zoned_trunc(arguments: Sequence[Expr]) -> Expr:
    """`date_trunc` in a time zone."""
    unit, time, zone = arguments
    return timezone([zone, date_trunc([unit, timezone([zone, time])])])


def _unit(expr: Expr) -> str:
    if not isinstance(expr, Constant) or expr.text is None:
        raise NotBound("a unit that is no literal")
    return expr.text.lower()


def date_part(arguments: Sequence[Expr]) -> Expr:
    """`extract`: a numeric."""
    field, value = _unit(arguments[0]), arguments[1]
    if value.type.name == "interval":
        return _of_interval(field, value)
    if value.type.name == "date" and field in _CLOCK:
        raise StatementError(f'unit "{field}" not supported for type date', sqlstate="0A000")
    if value.type.name == "date":
        value = plain(value, t.TIMESTAMP) if field == "epoch" else value
    if field == "epoch":
        micros = Call(t.INT8, "unix_micros({0})", (plain(value, t.TIMESTAMPTZ),))
        form = "CAST(CAST({0} AS DECIMAL(20,0)) / CAST(1000000 AS DECIMAL(7,0)) AS DECIMAL(26,6))"
        return Call(t.decimal(26, 6), form, (micros,))
    if field == "second":
        return Call(t.decimal(8, 6), "EXTRACT(SECOND FROM {0})", (value,))
    if field in ("millisecond", "milliseconds"):
        return Call(
            t.decimal(8, 3), "CAST(EXTRACT(SECOND FROM {0}) * CAST(1000 AS DECIMAL(4,0)) AS DECIMAL(8,3))", (value,)
        )
    if field in ("microsecond", "microseconds"):
        form = "CAST(EXTRACT(SECOND FROM {0}) * CAST(1000000 AS DECIMAL(7,0)) AS DECIMAL(8,0))"
        return Call(t.decimal(8, 0), form, (value,))
    return plain(Call(t.INT4, _field(field, value), (value,)), t.decimal(10, 0))


def _field(field: str, value: Expr) -> str:
    if field == "dow":
        return "(EXTRACT(DOW FROM {0}) - 1)"
    if field in _FIELDS:
        return f"EXTRACT({_FIELDS[field]} FROM {{0}})"
    year = "EXTRACT(YEAR FROM {0})"
    if field == "decade":
        return f"CAST({year} div 10 AS INT)"
    if field in ("century", "millennium"):
        size = 100 if field == "century" else 1000
        return f"CAST(({year} + {size - 1}) div {size} AS INT)"
    raise StatementError(f'unit "{field}" not recognized for type {value.type}', sqlstate="22023")


def _of_interval(field: str, value: Expr) -> Expr:
    if value.type.spark != t.INTERVAL.spark:
        raise NotBound("a part of an interval with months")
    parts = {"day": "DAY", "hour": "HOUR", "minute": "MINUTE"}
    if field in parts:
        return plain(Call(t.INT4, f"CAST(EXTRACT({parts[field]} FROM {{0}}) AS INT)", (value,)), t.decimal(10, 0))
    if field == "second":
        return Call(t.decimal(8, 6), "EXTRACT(SECOND FROM {0})", (value,))
    if field == "epoch":
        form = (
            "(CAST(EXTRACT(DAY FROM {0}) AS DECIMAL(10,0)) * CAST(86400 AS DECIMAL(5,0)) "
            "+ CAST(EXTRACT(HOUR FROM {0}) AS DECIMAL(3,0)) * CAST(3600 AS DECIMAL(4,0)) "
            "+ CAST(EXTRACT(MINUTE FROM {0}) AS DECIMAL(3,0)) * CAST(60 AS DECIMAL(2,0)) + EXTRACT(SECOND FROM {0}))"
        )
        return plain(Call(t.decimal(26, 6), form, (value,)), t.decimal(26, 6))
    raise NotBound(f"{field} of an interval")


def date_trunc(arguments: Sequence[Expr]) -> Expr:
    """`date_trunc`: a timestamp without zone stays one."""
    unit, value = _unit(arguments[0]), arguments[1]
    unit = unit if unit in _UNITS or not unit.endswith("s") else unit[:-1]
    if unit not in _UNITS:
        raise NotBound(f"date_trunc to {unit}")
    word = unit[:-1].upper() if unit.endswith("s") else unit.upper()
    return plain(Call(t.TIMESTAMPTZ, f"date_trunc('{word}', {{0}})", (value,)), value.type)
