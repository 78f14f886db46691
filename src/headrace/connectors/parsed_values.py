"""Text and JSON values to Arrow arrays, one verdict per value.

Whether a value is accepted, and what it becomes, depends on that value alone and never on its neighbours: the whole
array is tried at once, and where that fails it is halved until the values at fault stand alone.

Accepted besides the plain spellings: blanks around numbers, dates, times and booleans; yes/no/on/off/t/f for
booleans; ISO 8601 times with or without zone (without: UTC for `timestamp`; a zone is refused for `timestamp_ntz`);
more digits than a decimal's scale, rounded half up; `\\x` and hex digits for binary, any other text as its UTF-8 bytes;
JSON for arrays, structs and maps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.spelling import spelled

_TRUE = frozenset(("true", "t", "yes", "y", "on", "1"))
_FALSE = frozenset(("false", "f", "no", "n", "off", "0"))
_DECIMALS = Context(prec=80, rounding=ROUND_HALF_UP)

Bad = list[tuple[int, str]]
"""(index, message) of values that could not be understood."""


def strings_to_array(strings: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Bad]:
    """Text values as `kind`; a value at fault becomes NULL."""
    if pa.types.is_string(kind):
        return strings, []
    if pa.types.is_binary(kind) or pa.types.is_nested(kind):
        return objects_to_array(strings.to_pylist(), kind)
    bad: Bad = []
    pieces = _cast(strings, kind, 0, bad)
    return (pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)), bad


def objects_to_array(values: Sequence[object], kind: pa.DataType) -> tuple[pa.Array, Bad]:
    """Values as `json.loads` gives them as `kind`; a value at fault becomes NULL."""
    plain = _all_plain(values, kind)
    if plain is not None:
        return plain, []
    convert = _converter(kind)
    converted: list[object] = []
    bad: Bad = []
    for i, value in enumerate(values):
        try:
            converted.append(None if value is None else convert(value))
        except (ValueError, TypeError, KeyError, ArithmeticError) as error:
            converted.append(None)
            bad.append((i, str(error) or f"not a {kind}"))
    return pa.array(converted, kind), bad


_PLAIN: dict[pa.DataType, frozenset[type]] = {
    pa.string(): frozenset((str,)), pa.bool_(): frozenset((bool,)), pa.int64(): frozenset((int,)),
    pa.int32(): frozenset((int,)), pa.int16(): frozenset((int,)), pa.float64(): frozenset((float, Decimal, int)),
}  # fmt: skip
"""The Python types of values that need no conversion by themselves."""


def _all_plain(values: Sequence[Any], kind: pa.DataType) -> pa.Array | None:
    """The values if each is NULL or of the column's own type; None if one is not, or is too large."""
    if kind not in _PLAIN or not set(map(type, values)) <= _PLAIN[kind] | {type(None)}:
        return None
    try:
        if pa.types.is_floating(kind):
            values = [None if value is None else float(value) for value in values]
        return pa.array(values, kind)
    except (pa.ArrowInvalid, ValueError, OverflowError):
        return None


def cast_array(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Bad]:
    """Typed values (of a Parquet file) as `kind`; a value that does not fit becomes NULL."""
    if array.type == kind:
        return array, []
    bad: Bad = []
    pieces = _cast(array, kind, 0, bad)
    return (pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)), bad


def _cast(array: pa.Array, kind: pa.DataType, base: int, bad: Bad) -> list[pa.Array]:
    done = _cast_whole(array, kind)
    if done is not None:
        return [done]
    if len(array) == 1:
        return [_cast_one(array[0], kind, base, bad)]
    middle = len(array) // 2
    return [
        *_cast(array.slice(0, middle), kind, base, bad),
        *_cast(array.slice(middle), kind, base + middle, bad),
    ]


def _cast_whole(array: pa.Array, kind: pa.DataType) -> pa.Array | None:
    options = pc.CastOptions(target_type=kind, allow_time_truncate=True)
    try:
        return pc.cast(array, options=options)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass
    if pa.types.is_timestamp(kind) and kind.tz and pa.types.is_string(array.type):
        try:
            return pc.cast(pc.cast(array, pa.timestamp("us")), kind)
        except pa.ArrowInvalid:
            pass
    return None


def _cast_one(value: pa.Scalar, kind: pa.DataType, index: int, bad: Bad) -> pa.Array:
    try:
        return pa.array([_converter(kind)(value.as_py())], kind)
    except (ValueError, TypeError, KeyError, ArithmeticError) as error:
        bad.append((index, str(error) or f"not a {kind}"))
        return pa.nulls(1, kind)


def _converter(kind: pa.DataType) -> Callable[[object], object]:
    """A function from a JSON value or text to the Python value of `kind`; it raises for a value at fault."""
    t = pa.types
    if t.is_integer(kind):
        info = np.iinfo(kind.to_pandas_dtype())
        return lambda value: _integer(value, int(info.min), int(info.max))
    if t.is_decimal(kind):
        return lambda value: _decimal(value, kind.precision, kind.scale)
    if t.is_list(kind):
        inner = _converter(kind.value_type)
        return lambda value: [None if v is None else inner(v) for v in _json(value, list, "array")]
    if t.is_struct(kind):
        fields = {kind.field(i).name: _converter(kind.field(i).type) for i in range(kind.num_fields)}
        return lambda value: _struct(_json(value, dict, "object"), fields)
    if t.is_map(kind):
        key, item = _converter(kind.key_type), _converter(kind.item_type)
        return lambda value: [(key(k), None if v is None else item(v)) for k, v in _json(value, dict, "object").items()]
    if t.is_timestamp(kind):
        return lambda value: _timestamp(value, kind.tz is not None)
    simple = {pa.string(): _string, pa.binary(): _binary, pa.bool_(): _boolean, pa.date32(): _date}
    simple |= {pa.float64(): _double, pa.float32(): _double, pa.null(): _null}
    return simple[kind]


def _integer(value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str, Decimal, float)):
        raise ValueError("not a whole number")
    try:
        number = int(value)
    except (ValueError, ArithmeticError):
        raise ValueError("not a whole number") from None
    if not isinstance(value, str) and number != value:
        raise ValueError("not a whole number")
    if not least <= number <= most:
        raise ValueError(f"out of range {least} to {most}")
    return number


def _decimal(value: object, precision: int, scale: int) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal)):
        raise ValueError("not a number")
    try:
        number = Decimal(value.strip() if isinstance(value, str) else str(value))
        number = number.quantize(Decimal(1).scaleb(-scale), context=_DECIMALS)
    except InvalidOperation:
        raise ValueError("not a number") from None
    if not number.is_finite() or (number.adjusted() >= precision - scale and number):
        raise ValueError(f"does not fit decimal({precision},{scale})")
    return number


def _double(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal)):
        raise ValueError("not a number")
    try:
        return float(value)
    except ValueError:
        raise ValueError("not a number") from None


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = value.strip().lower() if isinstance(value, str) else ""
    if text not in _TRUE and text not in _FALSE:
        raise ValueError("not a boolean")
    return text in _TRUE


def _date(value: Any) -> date:
    try:
        return date.fromisoformat(value.strip())
    except (ValueError, AttributeError):
        raise ValueError("not a date (YYYY-MM-DD)") from None


def _timestamp(value: Any, with_zone: bool) -> datetime:
    if isinstance(value, datetime):
        moment = value
    else:
        try:
            moment = datetime.fromisoformat(value.strip())
        except (ValueError, AttributeError):
            raise ValueError("not a timestamp (ISO 8601)") from None
    if with_zone:
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    if moment.tzinfo:
        raise ValueError("a time zone in a timestamp without time zone")
    return moment


def _string(value: object) -> str:
    text = value
    if not isinstance(text, str):
        text = json.dumps(value, separators=(",", ":"), default=float, ensure_ascii=False)
    text.encode()  # a lone surrogate has no UTF-8 form
    return text


def _binary(value: object) -> bytes:
    if not isinstance(value, str):
        raise ValueError("not text")
    return bytes.fromhex(value[2:]) if value.startswith("\\x") else value.encode()


def _null(value: object) -> None:
    raise ValueError("not NULL")


def _json(value: Any, kind: type, name: str) -> Any:
    if isinstance(value, str):
        try:
            value = json.loads(value, parse_float=Decimal)
        except ValueError:
            raise ValueError(f"not a JSON {name}") from None
    if not isinstance(value, kind):
        raise ValueError(f"not a JSON {name}")
    return value


def _struct(value: dict[str, object], fields: dict[str, Callable[[object], object]]) -> dict[str, object]:
    found = spelled(value, tuple(fields))
    return {name: None if found.get(name) is None else convert(found[name]) for name, convert in fields.items()}
