"""Values in PostgreSQL's binary format: out for results, in for parameters."""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.columns import split_top_level
from headrace.common.jsonb.document import SPARK_TYPE as JSONB
from headrace.common.jsonb.document import TEXT as JSONB_TEXT
from headrace.common.span import DAYS, MICROS, MONTHS
from headrace.common.span import SPARK_TYPE as SPAN
from headrace.common.time_of_day import FIELD as TIME_FIELD
from headrace.common.time_of_day import SPARK_TYPE as TIME
from headrace.common.time_of_day import text_of as time_text
from headrace.errors import InvalidText, NotSupported
from headrace.server.binary_catalog import catalog_encoder
from headrace.server.binary_numerics import numerics_binary
from headrace.server.message_blocks import Values, fixed_binary
from headrace.sql.type_names import pg_type, render_text, typmod

_EPOCH_DATE: Final = dt.date(2000, 1, 1).toordinal()
_EPOCH_DAYS: Final = 10_957
"""Days from 1970-01-01 to 2000-01-01."""
_EPOCH_MICROS: Final = _EPOCH_DAYS * 86_400_000_000
_NUMERIC_NEGATIVE, _NUMERIC_NAN = 0x4000, 0xC000

_Encoder = Callable[[Any], bytes]


def render_binary(array: pa.Array, type: str) -> list[bytes | None]:
    """Each value of a column of Spark type `type` in binary format; None for NULL."""
    if type == "string":
        return list(array.cast(pa.binary()).to_pylist())
    if type in ("timestamp", "timestamp_ntz"):
        shift = struct.Struct("!q").pack
        micros = array.cast(pa.timestamp("us", tz=array.type.tz)).cast(pa.int64()).to_pylist()
        return [None if v is None else shift(v - _EPOCH_MICROS) for v in micros]
    if type == "date":
        day = struct.Struct("!i").pack
        return [None if v is None else day(v - _EPOCH_DAYS) for v in array.cast(pa.int32()).to_pylist()]
    if type.startswith("map<"):
        return render_text(array, type)
    encode = _encoder(type)
    return [None if v is None else encode(v) for v in array.to_pylist()]


def column_binary(array: pa.Array, type: str) -> pa.Array:
    """The same as an array of binary values."""
    made = column_values(array, type)
    return fixed_binary(made) if isinstance(made, np.ndarray) else made


def column_values(array: pa.Array, type: str) -> Values:
    """The same as they stand in messages."""
    if type == "string":
        return array.cast(pa.binary())
    numbers, form = array, _PACKED.get(type)
    if type in ("timestamp", "timestamp_ntz"):
        micros = array.cast(pa.timestamp("us", tz=array.type.tz)).cast(pa.int64())
        numbers, form = pc.subtract(micros, _EPOCH_MICROS), "!q"
    elif type == "date":
        numbers, form = pc.subtract(array.cast(pa.int32()), pa.scalar(_EPOCH_DAYS, pa.int32())), "!i"
    if form is None:
        found = numerics_binary(array, bare=_scale(type) is None) if type.startswith("decimal") else None
        if found is None:
            return pa.array(render_binary(array, type), pa.binary())
        return _without_nulls(found, array)
    if type == "boolean":
        numbers = array.cast(pa.int8())
    values = np.asarray(pc.fill_null(numbers, 0) if array.null_count else numbers).astype(_DTYPES[form])
    return _without_nulls(fixed_binary(values), array) if array.null_count else values


def _without_nulls(made: pa.Array, array: pa.Array) -> pa.Array:
    """What was made of a column, null where that is."""
    return pc.if_else(array.is_valid(), made, pa.scalar(None, pa.binary())) if array.null_count else made


_DTYPES: Final = {"!h": ">i2", "!i": ">i4", "!q": ">i8", "!f": ">f4", "!d": ">f8", "!?": "u1"}
"""numpy's names of what `struct` packs."""


def _encoder(type: str) -> _Encoder:
    """The function that writes one non-NULL Python value of Spark type `type`."""
    if type in _PACKED:
        return struct.Struct(_PACKED[type]).pack
    if type in _ENCODERS:
        return _ENCODERS[type]
    found = catalog_encoder(type)
    if found is not None:
        return found
    if type.startswith("decimal"):
        scale = _scale(type)
        return lambda v: numeric_bytes(v, scale)
    if type.startswith("array<"):
        return _array_encoder(type)
    if type.startswith("struct<"):
        return _record_encoder(type[len("struct<") : -1])
    if type.startswith("interval"):
        return _interval
    raise NotSupported(f"the type {type} has no binary format", hint="Ask for the result in text format.")


def _scale(type: str) -> int | None:
    """Digits after the point that a decimal always has; None where zeros at their end are left out."""
    return (typmod(type) - 4) & 0xFFFF if typmod(type) >= 0 else None


_PACKED: Final = {
    "tinyint": "!h", "smallint": "!h", "int": "!i", "bigint": "!q", "float": "!f", "double": "!d", "boolean": "!?",
}  # fmt: skip


def _timestamp(value: dt.datetime) -> bytes:
    if value.tzinfo is not None:
        value = value.astimezone(dt.UTC).replace(tzinfo=None)
    return struct.pack("!q", (value - dt.datetime(2000, 1, 1)) // dt.timedelta(microseconds=1))


def _interval(value: dt.timedelta) -> bytes:
    micros = value // dt.timedelta(microseconds=1)
    days, clock = divmod(abs(micros), 86_400_000_000)
    sign = -1 if micros < 0 else 1
    return struct.pack("!qii", sign * clock, sign * days, 0)


_ENCODERS: Final[dict[str, _Encoder]] = {
    "string": lambda v: str(v).encode(),
    "void": lambda v: str(v).encode(),
    "binary": bytes,
    "date": lambda v: struct.pack("!i", v.toordinal() - _EPOCH_DATE),
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp,
    TIME: lambda v: struct.pack("!q", v[TIME_FIELD]),
    SPAN: lambda v: struct.pack("!qii", v[MICROS], v[DAYS], v[MONTHS]),
    JSONB: lambda v: b"\x01" + str(v[JSONB_TEXT]).encode(),
}


def numeric_bytes(number: Decimal, scale: int | None = None) -> bytes:
    """A decimal in binary format with `scale` digits after the point; None leaves out trailing zeros."""
    if number.is_nan():
        return struct.pack("!hhHH", 0, 0, _NUMERIC_NAN, 0)
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)) + "0" * max(exponent, 0)
    after = max(-exponent, 0)
    text = text.rjust(after + 1, "0")
    whole, fraction = text[: len(text) - after], text[len(text) - after :]
    if scale is None:
        fraction = fraction.rstrip("0")
    display_scale = len(fraction) if scale is None else scale
    fraction = fraction.ljust(display_scale, "0")
    whole = whole.rjust(-(-len(whole) // 4) * 4, "0")
    fraction = fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    groups = [int((whole + fraction)[i : i + 4]) for i in range(0, len(whole) + len(fraction), 4)]
    weight = len(whole) // 4 - 1
    while groups and groups[0] == 0:
        groups.pop(0)
        weight -= 1
    while groups and groups[-1] == 0:
        groups.pop()
    flag = _NUMERIC_NEGATIVE if sign and groups else 0
    head = struct.pack("!hhHH", len(groups), weight if groups else 0, flag, display_scale)
    return head + struct.pack(f"!{len(groups)}h", *groups)


def _array_encoder(type: str) -> _Encoder:
    depth, element = 0, type
    while element.startswith("array<"):
        depth, element = depth + 1, element[len("array<") : -1]
    encode, oid = _element_encoder(element), pg_type(element).oid

    def array_bytes(values: list[Any]) -> bytes:
        sizes, flat = [len(values)], values
        for _ in range(depth - 1):
            lengths = {len(v) if v is not None else -1 for v in flat}
            if len(lengths) > 1 or -1 in lengths:
                raise NotSupported("a ragged array has no binary format", hint="Ask for the result in text format.")
            sizes.append(lengths.pop() if lengths else 0)
            flat = [item for v in flat for item in v]
        if not flat:
            return struct.pack("!iii", 0, 0, oid)
        has_null = int(any(v is None for v in flat))
        head = struct.pack("!iii", len(sizes), has_null, oid) + b"".join(struct.pack("!ii", s, 1) for s in sizes)
        return head + b"".join(_sized(None if v is None else encode(v)) for v in flat)

    return array_bytes


def _element_encoder(type: str) -> _Encoder:
    if type.startswith("map<"):
        return lambda v: render_text(pa.array([v]), type)[0] or b""
    return _encoder(type)


def _record_encoder(inner: str) -> _Encoder:
    kinds = [tuple(split_top_level(part.strip(), ":")) for part in split_top_level(inner)] if inner else []
    fields = [(name.strip("`"), pg_type(kind).oid, _element_encoder(kind.strip())) for name, kind in kinds]

    def record_bytes(record: dict[str, Any]) -> bytes:
        parts = [struct.pack("!i", len(fields))]
        for name, oid, encode in fields:
            v = record[name]
            parts += [struct.pack("!i", oid), _sized(None if v is None else encode(v))]
        return b"".join(parts)

    return record_bytes


def _sized(data: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if data is None else struct.pack("!i", len(data)) + data


def parameter_text(data: bytes, oid: int) -> str:
    """A parameter in binary format as the text that spells it.

    Raises `InvalidText` (22P03) for bytes that are no such value and `NotSupported` for other types.
    """
    decode = _array if oid in _ARRAYS else _DECODERS.get(oid)
    if decode is None:
        raise NotSupported(
            f"binary parameters of the type with OID {oid} are not supported", hint="Send the parameter as text."
        )
    try:
        return decode(data)
    except (struct.error, ValueError, OverflowError) as error:
        raise InvalidText(f"incorrect binary data in bind parameter: {error}", sqlstate="22P03") from None


def _number(form: str) -> Callable[[bytes], str]:
    packed = struct.Struct(form)
    return lambda data: str(packed.unpack(data)[0])


def _boolean(data: bytes) -> str:
    return "t" if struct.unpack("!B", data)[0] else "f"


def _date(data: bytes) -> str:
    return dt.date.fromordinal(struct.unpack("!i", data)[0] + _EPOCH_DATE).isoformat()


def _timestamp_of(suffix: str) -> Callable[[bytes], str]:
    def decode(data: bytes) -> str:
        micros = struct.unpack("!q", data)[0]
        moment = dt.datetime(2000, 1, 1) + dt.timedelta(microseconds=micros)
        return moment.isoformat(sep=" ") + suffix

    return decode


def _interval_text(data: bytes) -> str:
    micros, days, months = struct.unpack("!qii", data)
    return f"{months} mons {days} days {micros} us"


def _numeric(data: bytes) -> str:
    count, weight, sign, scale = struct.unpack_from("!hhHH", data)
    if sign == _NUMERIC_NAN:
        return "NaN"
    if sign not in (0, _NUMERIC_NEGATIVE):
        raise ValueError("numeric is not finite")
    if count < 0 or len(data) != 8 + 2 * count or scale > 0x3FFF:
        raise ValueError("numeric has a wrong length")
    groups = struct.unpack_from(f"!{count}h", data, 8)
    if any(not 0 <= group < 10_000 for group in groups):
        raise ValueError("numeric has an invalid digit")
    digits, point = "".join(f"{group:04d}" for group in groups), 4 * (weight + 1)
    digits = "0" * -point + digits if point < 0 else digits.ljust(point, "0")
    whole = digits[: max(point, 0)].lstrip("0") or "0"
    body = whole + ("." + digits[max(point, 0) :].ljust(scale, "0")[:scale] if scale else "")
    return "-" + body if sign else body


def _plain(data: bytes) -> str:
    return data.decode("utf-8")


def _uuid(data: bytes) -> str:
    if len(data) != 16:
        raise ValueError("uuid has a wrong length")
    digits = data.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _jsonb(data: bytes) -> str:
    if data[:1] != b"\x01":
        raise ValueError("unknown jsonb version")
    return data[1:].decode("utf-8")


def _array(data: bytes) -> str:
    """An array as the literal that spells it: each element is quoted."""
    dimensions, _, oid = struct.unpack_from("!iiI", data)
    if not 0 <= dimensions <= _MAX_DIMENSIONS or (oid not in _DECODERS):
        raise ValueError("array has an invalid header")
    sizes = [struct.unpack_from("!ii", data, 12 + 8 * i)[0] for i in range(dimensions)]
    count = math.prod(sizes) if sizes else 0
    at = 12 + 8 * dimensions
    if any(size < 0 for size in sizes) or count * 4 > len(data) - at:
        raise ValueError("array has invalid dimensions")
    texts = []
    for _ in range(count):
        (length,) = struct.unpack_from("!i", data, at)
        at += 4
        if length < -1 or at + length > len(data):
            raise ValueError("array is shorter than what it announces")
        texts.append("NULL" if length < 0 else _quoted(_DECODERS[oid](data[at : at + length])))
        at += max(length, 0)
    if at != len(data):
        raise ValueError("array is longer than its content")
    for size in reversed(sizes[1:]):
        texts = ["{" + ",".join(texts[i : i + size]) + "}" for i in range(0, len(texts), size)] if size else []
    return "{" + ",".join(texts) + "}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


_MAX_DIMENSIONS: Final = 6
_ARRAYS: Final = frozenset((
    199, 1000, 1001, 1002, 1003, 1005, 1007, 1008, 1009, 1011, 1014, 1015, 1016, 1021, 1022, 1028, 1115, 1182, 1185,
    1231, 2207, 2210, 2211, 2951, 3807, 4090, 4097,
))  # fmt: skip
"""Type OIDs of arrays of what can be decoded."""
_DECODERS: Final[dict[int, Callable[[bytes], str]]] = {
    16: _boolean,
    17: lambda data: "\\x" + data.hex(),
    20: _number("!q"),
    21: _number("!h"),
    23: _number("!i"),
    **dict.fromkeys((24, 26, 28, 2202, 2205, 2206, 4089, 4096), _number("!I")),
    700: _number("!f"),
    701: _number("!d"),
    1082: _date,
    1114: _timestamp_of(""),
    1184: _timestamp_of("+00"),
    1083: lambda data: time_text(struct.unpack("!q", data)[0]),
    1186: _interval_text,
    1700: _numeric,
    2950: _uuid,
    3802: _jsonb,
    **dict.fromkeys((18, 19, 25, 114, 705, 1042, 1043), _plain),
}
