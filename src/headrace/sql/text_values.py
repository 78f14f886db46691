"""PostgreSQL's text input of values: text and a Spark type to a Python value that Arrow takes."""

from __future__ import annotations

import datetime as dt
import re
import struct
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from typing import Any

from headrace.common import span, time_of_day
from headrace.common.columns import split_top_level
from headrace.common.jsonb import document
from headrace.common.zones import UTC, Zone
from headrace.errors import DatatypeMismatch, HeadraceError, InvalidDatetime, InvalidText, NumericOutOfRange
from headrace.sql.intervals import parse_interval
from headrace.sql.type_names import pg_type_text

_RANGES = {name: (-(1 << bits), (1 << bits) - 1) for name, bits in
           {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}.items()}  # fmt: skip
_SPACE = " \t\n\r\v\f"
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_ZONE = r"Z|UTC|GMT|[+-]\d{1,2}(?::?\d{2})?(?::?\d{2})?"
_DATETIME = re.compile(
    r"\s*(\d{4,})-(\d{1,2})-(\d{1,2})"
    rf"(?:[T\s]+(\d{{1,2}}):(\d{{2}})(?::(\d{{2}})(\.\d+)?)?\s*({_ZONE})?|\s+({_ZONE}))?\s*",
    re.IGNORECASE,
)


class Untyped(str):
    """A string literal inside an array or row: its context decides its type."""


def _invalid(text: str, type: str) -> InvalidText:
    return InvalidText(f'invalid input syntax for type {pg_type_text(type)}: "{text}"')


def parse_text(text: str, type: str, zone: Zone = UTC) -> Any:
    """The value of Spark type `type` that `text` spells; a moment without an offset is one of the zone.

    Raises `InvalidText`, `InvalidDatetime` or `NumericOutOfRange`.
    """
    if type in _RANGES:
        return _integer(text, type)
    if type.startswith("decimal"):
        return _decimal(text, type)
    if type.startswith("array<"):
        return _array(text, type, zone)
    if type == "timestamp":
        return _timestamp(text, type, zone)
    if type == document.SPARK_TYPE:
        return _jsonb(text, type)
    if type == time_of_day.SPARK_TYPE:
        return time_of_day.stored(time_of_day.parse(text))
    if type == span.SPARK_TYPE:
        return span.stored(parse_interval(text))
    if type.startswith(("struct<", "map<", "interval")):
        raise DatatypeMismatch(f"a text literal cannot be stored as {pg_type_text(type)}")
    return _PARSERS[type](text, type) if type in _PARSERS else text


_WHOLE_NUMBER = re.compile(r"\s*[+-]?\d+\s*", re.ASCII).fullmatch


def _integer(text: str, type: str) -> int:
    if not _WHOLE_NUMBER(text):
        raise _invalid(text, type)
    if len(text) > 60:
        raise NumericOutOfRange(f'value "{text}" is out of range for type {pg_type_text(type)}')
    return in_range(int(text), type)


def in_range(value: int, type: str) -> int:
    """`value` if the integer type holds it; else `NumericOutOfRange`."""
    low, high = _RANGES[type]
    if not low <= value <= high:
        raise NumericOutOfRange(f'value "{value}" is out of range for type {pg_type_text(type)}')
    return value


def _float(text: str, type: str) -> float:
    try:
        value = float(text.strip())
    except ValueError:
        raise _invalid(text, type) from None
    if "_" in text:
        raise _invalid(text, type)
    limit = 3.4028235677973366e38 if type == "float" else float("inf")
    infinite = value in (float("inf"), float("-inf"))
    if infinite != ("inf" in text.lower()) or (not infinite and abs(value) >= limit):
        raise NumericOutOfRange(f'"{text}" is out of range for type {pg_type_text(type)}')
    return float(struct.unpack("f", struct.pack("f", value))[0]) if type == "float" else value


def _decimal(text: str, type: str) -> Decimal:
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        raise _invalid(text, type) from None
    if not value.is_finite() or "_" in text:
        raise _invalid(text, type)
    return fit_decimal(value, type)


def fit_decimal(value: Decimal, type: str) -> Decimal:
    """`value` rounded half away from zero to the scale of `type`; `NumericOutOfRange` if it does not fit."""
    precision, scale = (int(part) for part in type[len("decimal(") : -1].split(","))
    with localcontext() as context:
        context.prec = 100
        try:
            rounded = value.quantize(Decimal(1).scaleb(-scale), rounding=ROUND_HALF_UP)
        except InvalidOperation:
            rounded = Decimal(10) ** precision
    if rounded and rounded.adjusted() >= precision - scale:
        raise NumericOutOfRange(
            "numeric field overflow",
            detail=f"A field with precision {precision}, scale {scale} must round to an absolute value less than "
            f"10^{precision - scale}.",
        )
    return rounded


def _jsonb(text: str, type: str) -> dict[str, object]:
    try:
        return document.stored(document.read(text))
    except document.JsonbFault as wrong:
        raise InvalidText(str(wrong), sqlstate=wrong.sqlstate) from None


def _boolean(text: str, type: str) -> bool:
    word = text.strip().lower()
    if word and word != "o":
        if any(name.startswith(word) for name in _TRUE):
            return True
        if any(name.startswith(word) for name in _FALSE):
            return False
    raise _invalid(text, type)


def _binary(text: str, type: str) -> bytes:
    try:
        if text.startswith("\\x"):
            return bytes.fromhex(text[2:])
        return re.sub(
            rb"\\(\\|[0-3][0-7]{2})", lambda m: b"\\" if m[1] == b"\\" else bytes([int(m[1], 8)]), text.encode()
        )
    except ValueError:
        raise InvalidText(f'invalid hexadecimal data in "{text}"') from None


def _moment(text: str, type: str) -> tuple[dt.datetime, dt.timedelta | None]:
    """The wall-clock time that `text` spells, and its offset from UTC if it names one."""
    if text.strip().lower() == "epoch":
        return dt.datetime(1970, 1, 1), None
    match = _DATETIME.fullmatch(text)
    if not match:
        raise InvalidDatetime(f'invalid input syntax for type {pg_type_text(type)}: "{text}"')
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    micros = round(float(match[7] or 0) * 1_000_000)
    extra = dt.timedelta(microseconds=micros)
    if second == 60 or (hour == 24 and minute == 0 and second == 0):
        extra += dt.timedelta(minutes=1) if second == 60 else dt.timedelta(days=1)
        hour, second = hour % 24, second % 60
    try:
        return dt.datetime(year, month, day, hour, minute, second) + extra, _offset(match[8] or match[9])
    except (ValueError, OverflowError):
        raise InvalidDatetime(f'date/time field value out of range: "{text}"', sqlstate="22008") from None


def _offset(zone: str | None) -> dt.timedelta | None:
    if not zone:
        return None
    if zone[0] not in "+-":
        return dt.timedelta(0)
    digits = zone[1:].replace(":", "")
    digits = digits.zfill(2) if len(digits) <= 2 else digits
    parts = [int(digits[i : i + 2]) for i in range(0, len(digits), 2)] + [0, 0]
    size = dt.timedelta(hours=parts[0], minutes=parts[1], seconds=parts[2])
    return -size if zone[0] == "-" else size


def _timestamp(text: str, type: str, zone: Zone) -> dt.datetime:
    moment, offset = _moment(text, type)
    if offset is None and text.strip().lower() == "epoch":
        offset = dt.timedelta(0)
    try:
        return zone.moment(moment) if offset is None else (moment - offset).replace(tzinfo=dt.UTC)
    except OverflowError:
        raise InvalidDatetime(f'date/time field value out of range: "{text}"', sqlstate="22008") from None


def _array(text: str, type: str, zone: Zone) -> list[object]:
    body = text.strip(_SPACE)
    items, at = _array_items(body, 0, type, type[len("array<") : -1], zone)
    if at != len(body):
        raise InvalidText(f'malformed array literal: "{text}"')
    return items


def _array_items(text: str, at: int, type: str, element: str, zone: Zone) -> tuple[list[object], int]:
    """The elements of the array literal that opens at `at`, and the offset after its closing brace."""
    malformed = InvalidText(f'malformed array literal: "{text}"')
    if text[at : at + 1] != "{":
        raise malformed
    items: list[object] = []
    value: object
    at += 1
    if text[at:].lstrip(_SPACE).startswith("}"):
        return items, text.index("}", at) + 1
    token = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([^{},"]*))\s*', re.DOTALL | re.ASCII)
    while True:
        if element.startswith("array<") and text[at:].lstrip(_SPACE).startswith("{"):
            at += len(text[at:]) - len(text[at:].lstrip(_SPACE))
            value, at = _array_items(text, at, type, element[len("array<") : -1], zone)
        else:
            match = token.match(text, at)
            if not match or (match[1] is None and not match[2].strip(_SPACE)):
                raise malformed
            raw = re.sub(r"\\(.)", r"\1", match[1]) if match[1] is not None else match[2].strip(_SPACE)
            value = None if match[1] is None and raw.upper() == "NULL" else parse_text(raw, element, zone)
            at = match.end()
        items.append(value)
        if text[at : at + 1] == "}":
            return items, at + 1
        if text[at : at + 1] != ",":
            raise malformed
        at += 1


_PARSERS: dict[str, Callable[[str, str], object]] = {
    "float": _float,
    "double": _float,
    "boolean": _boolean,
    "binary": _binary,
    "date": lambda text, type: _moment(text, type)[0].date(),
    "timestamp_ntz": lambda text, type: _moment(text, type)[0],
}


def assign(value: object, type: str, zone: Zone = UTC) -> object:
    """Store an already typed value in a column of Spark type `type`, as PostgreSQL's assignment casts do in a zone.

    Raises `DatatypeMismatch` where there is no such cast, `NumericOutOfRange` where the value does not fit.
    """
    if value is None:
        return None
    try:
        return _assign(value, type, zone)
    except HeadraceError:
        raise
    except OverflowError:
        raise InvalidDatetime(f"date/time field value out of range: {value!r}", sqlstate="22008") from None
    except (ValueError, TypeError, ArithmeticError):
        raise DatatypeMismatch(f"{value!r} cannot be stored as {pg_type_text(type)}") from None


def _assign(value: object, type: str, zone: Zone) -> object:
    if isinstance(value, Untyped):
        return parse_text(str(value), type, zone)
    if isinstance(value, list) and type.startswith("array<"):
        return [assign(item, type[len("array<") : -1], zone) for item in value]
    if isinstance(value, dict) and type in (document.SPARK_TYPE, span.SPARK_TYPE, time_of_day.SPARK_TYPE):
        return value
    if isinstance(value, tuple) and type.startswith("struct<"):
        kinds = [tuple(split_top_level(p.strip(), ":")) for p in split_top_level(type[len("struct<") : -1])]
        return {name.strip("`"): assign(v, kind, zone) for v, (name, kind) in zip(value, kinds, strict=True)}
    if type == "string" and not isinstance(value, (list, tuple, bytes)):
        return to_text(value, zone)
    if isinstance(value, bool):
        if type != "boolean":
            raise DatatypeMismatch(f"a boolean cannot be stored as {pg_type_text(type)}")
        return value
    if isinstance(value, (int, float, Decimal)):
        return _assign_number(value, type)
    return _assign_moment(value, type, zone)


def _assign_number(value: int | float | Decimal, type: str) -> object:
    if type in _RANGES:
        if isinstance(value, float):
            return in_range(round(value), type)
        return in_range(int(Decimal(value).quantize(Decimal(1), rounding=ROUND_HALF_UP)), type)
    if type in ("float", "double"):
        return _float(repr(value) if isinstance(value, float) else str(value), type)
    if type.startswith("decimal"):
        return fit_decimal(Decimal(repr(value)) if isinstance(value, float) else Decimal(value), type)
    raise DatatypeMismatch(f"a number cannot be stored as {pg_type_text(type)}")


def _assign_moment(value: object, type: str, zone: Zone) -> object:
    if isinstance(value, bytes) and type == "binary":
        return value
    if isinstance(value, dt.date) and type in ("date", "timestamp", "timestamp_ntz"):
        moment = value if isinstance(value, dt.datetime) else dt.datetime(value.year, value.month, value.day)
        if type == "timestamp":
            return moment if moment.tzinfo else zone.moment(moment)
        moment = zone.local(moment) if moment.tzinfo else moment
        return moment.date() if type == "date" else moment
    raise DatatypeMismatch(f"{value!r} cannot be stored as {pg_type_text(type)}")


def to_array_text(values: list[object], type: str) -> str:
    """An array of moments as a literal that means the same in any zone."""
    from headrace.sql.render import renderer

    return renderer(type, UTC)(values)


def to_text(value: object, zone: Zone = UTC) -> str:
    """A scalar as a cast to text writes it in a zone."""
    from headrace.sql.render import float_text, timestamp_text

    if isinstance(value, dict) and document.TEXT in value:
        return str(value[document.TEXT])
    if isinstance(value, dict) and time_of_day.FIELD in value:
        return time_of_day.text_of(value[time_of_day.FIELD])
    if isinstance(value, dict) and span.MONTHS in value:
        return span.text_of(value[span.MONTHS], value[span.DAYS], value[span.MICROS])
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return float_text(value)
    if isinstance(value, dt.datetime):
        return timestamp_text(value, zone)
    return format(value, "f") if isinstance(value, Decimal) else str(value)
