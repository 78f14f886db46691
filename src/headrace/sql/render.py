"""PostgreSQL's text output of values."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.columns import split_top_level
from headrace.common.jsonb.document import SPARK_TYPE as JSONB
from headrace.common.jsonb.document import TEXT as JSONB_TEXT
from headrace.common.span import DAYS, MICROS, MONTHS
from headrace.common.span import SPARK_TYPE as SPAN
from headrace.common.span import text_of as span_text
from headrace.common.time_of_day import FIELD as TIME_FIELD
from headrace.common.time_of_day import SPARK_TYPE as TIME
from headrace.common.time_of_day import text_of as time_text
from headrace.common.zones import UTC, Zone, offset_text

UNCONSTRAINED_NUMERIC = "decimal(38,10)"
"""The Spark type of `numeric` without precision; its values are written without trailing zeros."""

_ARRAY_SPECIAL = set('{},"\\ \t\n\r\v\f')
_RECORD_SPECIAL = set('(),"\\ \t\n\r\v\f')
_EPOCH = dt.datetime(1970, 1, 1)
_UTC_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_QUARTER_US = 900_000_000
_FIRST_US, _LAST_US = (
    (moment.replace(tzinfo=dt.UTC) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    for moment in (dt.datetime.min, dt.datetime.max)
)


def render_text(array: pa.Array, type: str, zone: Zone = UTC) -> list[bytes | None]:
    """Each value of a column of Spark type `type` as PostgreSQL writes it in text format; None for NULL.

    Moments are shown as the clocks of a zone show them.
    """
    made = _texts(array, type, zone)
    return made if isinstance(made, list) else list(made.to_pylist())


def column_text(array: pa.Array, type: str, zone: Zone = UTC) -> pa.Array:
    """The same as an array of binary values."""
    made = _texts(array, type, zone)
    return pa.array(made, pa.binary()) if isinstance(made, list) else made


def _texts(array: pa.Array, type: str, zone: Zone) -> pa.Array | list[bytes | None]:
    """The texts, as an array where Arrow makes them."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if type == "timestamp":
        return _timestamptz_text(array, zone).cast(pa.binary())
    fast = _FAST.get(type)
    if fast is not None:
        return fast(array).cast(pa.binary())
    if type in _PLAIN_FLOATS:
        return _float_texts(array, type).cast(pa.binary())
    if type.startswith("decimal"):
        return _numeric_texts(array, type).cast(pa.binary())
    render = renderer(type, zone)
    return [None if value is None else render(value).encode() for value in array.to_pylist()]


def _timestamp_text(array: pa.Array) -> pa.Array:
    values = array.cast(pa.timestamp("us"))
    text, micros = values.cast(pa.string()), np.asarray(values.cast(pa.int64()).fill_null(1))
    if (micros % 10).all():
        return text  # no fraction ends with a zero
    return pc.utf8_rtrim(pc.utf8_rtrim(text, "0"), ".")


def _date_text(array: pa.Array) -> pa.Array:
    """The text of each day is made once, where they are close to each other."""
    days = pc.min_max(array.cast(pa.int32()))
    first, last = days["min"].as_py(), days["max"].as_py()
    if first is None or (last - first) * _DAYS_APART > len(array):
        return array.cast(pa.string())
    texts = pa.array(np.arange(first, last + 1, dtype=np.int32)).cast(pa.date32()).cast(pa.string())
    return texts.take(pc.subtract(array.cast(pa.int32()), first))


_DAYS_APART = 4
"""How many values there are for each day from the first to the last, where the texts of all days are made."""


def _timestamptz_text(array: pa.Array, zone: Zone) -> pa.Array:
    if zone.is_utc:
        return pc.binary_join_element_wise(_timestamp_text(array), pa.scalar("+00"), "")
    micros = array.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    offsets = _offsets(micros, zone)
    local = pc.add(micros, pc.multiply(offsets, 1_000_000)).cast(pa.timestamp("us"))
    named = pc.dictionary_encode(offsets)
    texts = pa.array([offset_text(o) for o in named.dictionary.to_pylist()], pa.string())
    return pc.binary_join_element_wise(_timestamp_text(local), texts.take(named.indices), "")


def _offsets(micros: pa.Array, zone: Zone) -> pa.Array:
    """Seconds that clocks are ahead of UTC: those of each quarter of an hour, which are looked up once.

    Where clocks change within one, as they did in former times, each moment is looked up.
    """
    if zone.fixed_s is not None:
        return pc.add(pc.multiply(micros, 0), zone.fixed_s)
    found: dict[int, int | None] = {}
    offsets = [None if value is None else _offset(found, value, zone) for value in micros.to_pylist()]
    return pa.array(offsets, pa.int64())


def _offset(found: dict[int, int | None], micros: int, zone: Zone) -> int:
    quarter = micros // _QUARTER_US
    if quarter not in found:
        first, last = (zone.offset_s(_moment(at))
                       for at in (quarter * _QUARTER_US, (quarter + 1) * _QUARTER_US - 1))  # fmt: skip
        found[quarter] = first if first == last else None
    offset = found[quarter]
    return zone.offset_s(_moment(micros)) if offset is None else offset


def _moment(micros: int) -> dt.datetime:
    """The moment; the nearest one that Python has."""
    return _UTC_EPOCH + dt.timedelta(microseconds=min(max(micros, _FIRST_US), _LAST_US))


_PLAIN_FLOATS: dict[str, tuple[float, float]] = {"float": (1e-4, 1e6), "double": (1e-4, 1e10)}
"""Absolute values, from and below, of which Arrow writes the text that PostgreSQL does."""


def _float_texts(array: pa.Array, type: str) -> pa.Array:
    low, high = _PLAIN_FLOATS[type]
    values = np.asarray(pc.fill_null(array, 0.0))
    size = np.abs(values)
    plain = ((size >= values.dtype.type(low)) & (size < values.dtype.type(high))) | (values == 0)
    return _but_for(array, array.cast(pa.string()), pa.array(~plain), type)


def _numeric_texts(array: pa.Array, type: str) -> pa.Array:
    """Arrow's texts, but for the tiny ones, to which it gives exponents."""
    texts = array.cast(pa.string())
    if type == UNCONSTRAINED_NUMERIC:
        texts = pc.utf8_rtrim(pc.utf8_rtrim(texts, "0"), ".")
    if array.type.scale <= _EXPONENT_BEYOND:
        return texts
    return _but_for(array, texts, pc.match_substring(texts, "E"), type)


_EXPONENT_BEYOND = 6
"""Digits after the point up to which Arrow writes a decimal without an exponent."""


def _but_for(array: pa.Array, texts: pa.Array, chosen: pa.BooleanArray, type: str) -> pa.Array:
    """Texts of a column, some of which are made one by one."""
    chosen, render = pc.fill_null(chosen, False), renderer(type, UTC)
    if not pc.any(chosen).as_py():
        return texts
    made = [None if value is None else render(value) for value in array.filter(chosen).to_pylist()]
    return pc.replace_with_mask(texts, chosen, pa.array(made, pa.string()))


def _as_string(array: pa.Array) -> pa.Array:
    return array.cast(pa.string())


def _jsonb_text(array: pa.Array) -> pa.Array:
    return pc.struct_field(array, JSONB_TEXT)


_FAST: dict[str, Callable[[pa.Array], pa.Array]] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint", "string"), _as_string),
    "date": _date_text,
    "boolean": lambda array: pc.if_else(array, "t", "f"),
    "timestamp_ntz": _timestamp_text,
    JSONB: _jsonb_text,
}


def plain_table(table: pa.Table, types: Sequence[str]) -> pa.Table:
    """A table for those who know Arrow's types alone: documents, intervals and times as their texts."""
    for i, kind in enumerate(types):
        if kind in (JSONB, SPAN, TIME):
            texts = pa.array(
                [None if v is None else v.decode() for v in render_text(table.column(i), kind)], pa.string()
            )
            table = table.set_column(i, table.schema.field(i).name, texts)
    return table


def float_text(value: float, single: bool = False) -> str:
    """The shortest text that reads back as the same float; exponents appear where PostgreSQL has them."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    if not single and 1e-4 <= abs(value) < 1e15:
        text = repr(value)  # the shortest, too, and many times faster
        return text[:-2] if text.endswith(".0") else text
    number = np.float32(value) if single else np.float64(value)
    mantissa, _, exponent = np.format_float_scientific(number, unique=True, trim="-").partition("e")
    power = int(exponent)
    if power < -4 or power >= (6 if single else 15):
        return f"{mantissa}e{'-' if power < 0 else '+'}{abs(power):02d}"
    return str(np.format_float_positional(number, unique=True, trim="-"))


def numeric_text(value: Decimal, type: str) -> str:
    """A numeric with its scale; unconstrained ones without trailing zeros."""
    text = format(value, "f")
    if type == UNCONSTRAINED_NUMERIC and "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def timestamp_text(value: dt.datetime, zone: Zone = UTC) -> str:
    """A timestamp; the fraction has no trailing zeros, and a moment is shown as the clocks of a zone show it."""
    if value.tzinfo is not None:
        return zone.text(value)
    return value.isoformat(sep=" ", timespec="microseconds").rstrip("0").rstrip(".")


def interval_text(value: dt.timedelta) -> str:
    """A day-time interval in PostgreSQL's default style, for instance `1 day 02:00:00`."""
    micros = value // dt.timedelta(microseconds=1)
    sign, micros = ("-" if micros < 0 else ""), abs(micros)
    days, clock = divmod(micros, 86_400_000_000)
    seconds, fraction = divmod(clock, 1_000_000)
    text = f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    if fraction:
        text += f".{fraction:06d}".rstrip("0")
    if not days:
        return text
    label = f"{sign}{days} day" if days == 1 and not sign else f"{sign}{days} days"
    return f"{label} {text}" if clock else label


def renderer(type: str, zone: Zone) -> Callable[[Any], str]:
    """The function that writes one non-NULL value of `type`."""
    if type == "timestamp":
        return lambda value: timestamp_text(value, zone)
    if type in ("float", "double"):
        single = type == "float"
        return lambda value: float_text(value, single)
    if type.startswith("decimal"):
        return lambda value: numeric_text(value, type)
    if type.startswith("array<"):
        return _array_renderer(type[len("array<") : -1], zone)
    if type.startswith("struct<") and type not in _SCALAR:
        inner = type[len("struct<") : -1]
        kinds = [tuple(split_top_level(part.strip(), ":")) for part in split_top_level(inner)] if inner else []
        fields = [(name.strip("`"), renderer(kind.strip(), zone)) for name, kind in kinds]
        return lambda value: _record_text([None if value[n] is None else r(value[n]) for n, r in fields])
    if type.startswith("map<"):
        return _map_text
    return _SCALAR.get(type, _other_text)


def _other_text(value: object) -> str:
    return interval_text(value) if isinstance(value, dt.timedelta) else str(value)


_SCALAR: dict[str, Callable[[Any], str]] = {
    "boolean": lambda value: "t" if value else "f",
    "binary": lambda value: "\\x" + value.hex(),
    "date": lambda value: value.isoformat(),
    "timestamp_ntz": timestamp_text,
    JSONB: lambda value: str(value[JSONB_TEXT]),
    TIME: lambda value: time_text(value[TIME_FIELD]),
    SPAN: lambda value: span_text(value[MONTHS], value[DAYS], value[MICROS]),
}


def _array_renderer(element_type: str, zone: Zone) -> Callable[[Any], str]:
    render, nested = renderer(element_type, zone), element_type.startswith("array<")

    def array_text(values: list[object]) -> str:
        parts = ["NULL" if v is None else render(v) if nested else _array_element(render(v)) for v in values]
        return "{" + ",".join(parts) + "}"

    return array_text


def _array_element(text: str) -> str:
    if text == "" or text.upper() == "NULL" or not _ARRAY_SPECIAL.isdisjoint(text):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text


def _record_text(fields: list[str | None]) -> str:
    return "(" + ",".join("" if text is None else _record_field(text) for text in fields) + ")"


def _record_field(text: str) -> str:
    if text == "" or not _RECORD_SPECIAL.isdisjoint(text):
        return '"' + text.replace("\\", "\\\\").replace('"', '""') + '"'
    return text


def _map_text(value: Any) -> str:
    pairs = value.items() if isinstance(value, dict) else value
    return json.dumps({str(k): v for k, v in pairs}, default=str, ensure_ascii=False)
