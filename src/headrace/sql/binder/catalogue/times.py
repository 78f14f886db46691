"""Functions of dates and times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.common.zones import Zone, offset_of, zone_at, zone_named
from headrace.errors import InvalidParameter, StatementError
from headrace.sql.binder import types as t
from headrace.sql.binder import zone_times
from headrace.sql.binder.bound_tree import Call, Constant, Expr
from headrace.sql.binder.catalogue import clock_times, spans
from headrace.sql.binder.coerce import plain
from headrace.sql.binder.parse_tree import NotBound
from headrace.sql.binder.types import Type
from headrace.sql.intervals import zone_of_interval

EXTRACT: Final = "extract"
_MAKE: Final = "make_timestamp_ntz({0}, {1}, {2}, {3}, {4}, CAST({5} AS DECIMAL(16,6)))"
TIMES: Final = """
now() -> timestamptz : current_timestamp()
transaction_timestamp() -> timestamptz : current_timestamp()
statement_timestamp() -> timestamptz : now()
make_timestamp(int4, int4, int4, int4, int4, float8) -> timestamp : MAKE
make_date(int4, int4, int4) -> date : make_date({0}, {1}, {2})
proctime() -> timestamptz : now()
clock_timestamp() -> timestamptz : (now())
""".replace("MAKE", _MAKE)
_FIELDS: Final = {
    "year": "YEAR", "month": "MONTH", "day": "DAY", "hour": "HOUR", "minute": "MINUTE", "week": "WEEK", "quarter": "QUARTER",
    "doy": "DOY", "isodow": "DOW_ISO", "isoyear": "YEAROFWEEK", "dow": "DOW",
}  # fmt: skip
_OFFSETS: Final = {
    "timezone": "CAST({0} AS INT)", "timezone_hour": "CAST({0} div 3600 AS INT)",
    "timezone_minute": "CAST({0} % 3600 div 60 AS INT)",
}  # fmt: skip
_UNITS: Final = ("microseconds", "milliseconds", "second", "minute", "hour", "day", "week", "month", "quarter", "year")
_CLOCK: Final = ("hour", "minute", "second", "millisecond", "milliseconds", "microsecond", "microseconds")


def timezone(arguments: Sequence[Expr]) -> Expr:
    """`AT TIME ZONE`: a zoned time as local time, and local time as a zoned one."""
    zone, time = _zone(arguments[0]), arguments[1]
    return zone_times.local(time, zone) if time.type.name == "timestamptz" else zone_times.moment(time, zone)


def _zone(expr: Expr) -> Zone:
    """The zone that a literal names: a full name, an offset as POSIX has it, or one as an interval."""
    if not isinstance(expr, Constant) or expr.text is None:
        raise NotBound("a time zone that is no literal")
    if expr.type.name == "interval":
        return zone_of_interval(expr.text)
    if not ("/" in expr.text or expr.text.upper() in ("UTC", "GMT") or expr.text[:1] in ("+", "-", "<")):
        raise NotBound("a time zone that is no full name")
    try:
        return zone_named(expr.text)
    except ValueError:
        raise InvalidParameter(f'time zone "{expr.text}" not recognized') from None


def zoned_trunc(arguments: Sequence[Expr]) -> Expr:
    """`date_trunc` in a time zone."""
    unit, time, zone = arguments
    with zone_times.within(_zone(zone)):
        return date_trunc([unit, time])


def make_zoned(arguments: Sequence[Expr]) -> Expr:
    """`make_timestamptz`: in the session's zone, or in another one, whose offset is one eastwards here."""
    made = Call(t.TIMESTAMP, _MAKE, tuple(arguments[:6]))
    if len(arguments) == 6:
        return zone_times.moment(made)
    text = arguments[6].text if isinstance(arguments[6], Constant) else None
    if text is None:
        raise NotBound("a time zone that is no literal")
    try:
        east = offset_of(text)
        zone = zone_at(east) if east is not None else _zone(arguments[6])
    except ValueError:
        raise InvalidParameter(f'time zone "{text}" not recognized') from None
    return zone_times.moment(made, zone)


def _unit(expr: Expr) -> str:
    if not isinstance(expr, Constant) or expr.text is None:
        raise NotBound("a unit that is no literal")
    return expr.text.lower()


def date_part(arguments: Sequence[Expr]) -> Expr:
    """`extract`: a numeric."""
    field, value = _unit(arguments[0]), arguments[1]
    if value.type.name == "interval":
        return spans.part(field, value)
    if value.type.name == "time":
        return clock_times.part(field, value)
    if value.type.name == "date" and field in _CLOCK:
        raise StatementError(f'unit "{field}" not supported for type date', sqlstate="0A000")
    if value.type.name == "date" and field == "epoch":
        days = Call(t.INT4, "unix_date({0})", (value,))
        return Call(t.decimal(15, 0), "CAST(CAST({0} AS BIGINT) * 86400L AS DECIMAL(15,0))", (days,))
    if field == "epoch":
        micros = Call(t.INT8, "unix_micros({0})", (zone_times.spark_cast(value, t.TIMESTAMPTZ),))
        form = "CAST(CAST({0} AS DECIMAL(20,0)) / CAST(1000000 AS DECIMAL(7,0)) AS DECIMAL(26,6))"
        return Call(t.decimal(26, 6), form, (micros,))
    if field in _OFFSETS and value.type.name == "timestamptz":
        return zone_times.spark_cast(Call(t.INT4, _OFFSETS[field], (zone_times.offset(value),)), t.decimal(10, 0))
    value = zone_times.clocks(value)
    if field == "second":
        return Call(t.decimal(8, 6), "EXTRACT(SECOND FROM {0})", (value,))
    if field in ("millisecond", "milliseconds"):
        return Call(
            t.decimal(8, 3), "CAST(EXTRACT(SECOND FROM {0}) * CAST(1000 AS DECIMAL(4,0)) AS DECIMAL(8,3))", (value,)
        )
    if field in ("microsecond", "microseconds"):
        form = "CAST(EXTRACT(SECOND FROM {0}) * CAST(1000000 AS DECIMAL(7,0)) AS DECIMAL(8,0))"
        return Call(t.decimal(8, 0), form, (value,))
    return plain(Call(t.INT4, _field(field, value.type), (value,)), t.decimal(10, 0))


def _field(field: str, kind: Type) -> str:
    if field in _OFFSETS:
        raise StatementError(f'unit "{field}" not supported for type {kind}', sqlstate="0A000")
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
    raise StatementError(f'unit "{field}" not recognized for type {kind}', sqlstate="22023")


_ERAS: Final = {
    "decade": "(EXTRACT(YEAR FROM {0}) div 10) * 10", "century": "((EXTRACT(YEAR FROM {0}) - 1) div 100) * 100 + 1",
    "millennium": "((EXTRACT(YEAR FROM {0}) - 1) div 1000) * 1000 + 1",
}  # fmt: skip
_SPELLINGS: Final = {
    "decades": "decade",
    "centuries": "century",
    "millennia": "millennium",
    "millenniums": "millennium",
}


def date_trunc(arguments: Sequence[Expr]) -> Expr:
    """`date_trunc`: a timestamp without zone stays one."""
    unit, value = arguments
    if isinstance(unit, Constant) and unit.text is not None:
        return _truncated(unit.text.lower(), value)
    arms = []
    parts: list[Expr] = [unit]
    for name in (*_UNITS, *_ERAS):
        arms.append(f"WHEN '{name}' THEN {{{len(parts)}}}")
        parts.append(_truncated(name, value))
    wrong = "raise_error(concat('headrace.errors.DataError: [22023] unit \"', {0}, '\" not recognized for this type'))"
    otherwise = f"WHEN {{0}} IS NOT NULL THEN CAST({wrong} AS {value.type.spark})"
    arms = [arm.replace("WHEN ", "WHEN lower({0}) = ", 1) for arm in arms]
    return Call(value.type, f"CASE {' '.join(arms)} {otherwise} END", tuple(parts))


def _truncated(unit: str, value: Expr) -> Expr:
    unit = _SPELLINGS.get(unit, unit)
    unit = unit if unit in (*_UNITS, *_ERAS) or not unit.endswith("s") else unit[:-1]
    if unit not in (*_UNITS, *_ERAS):
        raise StatementError(f'unit "{unit}" not recognized for type {value.type}', sqlstate="22023")
    if value.type.name == "timestamptz" and not zone_times.current().is_utc:
        return _truncated_in_zone(unit, value)
    if unit in _ERAS:
        form = f"make_timestamp_ntz(CAST({_ERAS[unit]} AS INT), 1, 1, 0, 0, CAST(0 AS DECIMAL(16,6)))"
        made = Call(t.TIMESTAMP, form, (value,))
        return made if value.type.name == "timestamp" else zone_times.spark_cast(made, value.type)
    return zone_times.spark_cast(Call(t.TIMESTAMPTZ, f"date_trunc('{_word(unit)}', {{0}})", (value,)), value.type)


def _word(unit: str) -> str:
    return unit[:-1].upper() if unit.endswith("s") else unit.upper()


def _truncated_in_zone(unit: str, value: Expr) -> Expr:
    """Up to hours the offset stays what it is; of a day the first moment is looked for."""
    local = zone_times.local(value)
    if unit in _ERAS or unit in _UNITS[_UNITS.index("day") :]:
        return zone_times.moment(_truncated(unit, local))
    shown = "CAST({1} AS TIMESTAMP)"
    return Call(t.TIMESTAMPTZ, f"({{0}} - ({shown} - date_trunc('{_word(unit)}', {shown})))", (value, local))
