"""Documents of `jsonb`: read, written as PostgreSQL writes them, and as keys that sort and compare as it does.

A document is what `json` makes of it, its numbers decimals: dict, list, str, Decimal, bool or None.
"""

from __future__ import annotations

import json
from decimal import Context, Decimal
from typing import Any, Final

KEY: Final = "hr_key"
"""The field of a stored document by which it is compared."""
TEXT: Final = "hr_jsonb"
"""The field with its text."""
SPARK_TYPE: Final = f"struct<{KEY}:binary,{TEXT}:string>"
"""How Spark and Arrow hold a `jsonb`."""
_WHOLE_DIGITS: Final = 131_072
_PLACES: Final = 16_383
"""Most digits of a numeric of PostgreSQL's before and behind the point."""


class JsonbFault(Exception):
    """What a function of `jsonb` does not do: an SQLSTATE and a message."""

    def __init__(self, sqlstate: str, message: str):
        super().__init__(message)
        self.sqlstate = sqlstate


def read(text: str) -> Any:
    """The document that a text spells. Raises `JsonbFault`."""
    try:
        found = json.loads(text, parse_int=_number, parse_float=_number, parse_constant=_refused)
    except RecursionError:
        raise JsonbFault("54001", "the JSON document is nested too deeply") from None
    except ValueError:
        raise JsonbFault("22P02", "invalid input syntax for type json") from None
    if "\\u" in text:
        _require_unicode(found)
    return found


def known(text: str) -> Any:
    """The document of a text that `written` has made."""
    return json.loads(text, parse_int=Decimal, parse_float=Decimal)


def _refused(name: str) -> None:
    raise ValueError(name)


def _number(text: str) -> Decimal:
    number = Decimal(text)
    exponent = int(number.as_tuple().exponent)
    if number.adjusted() >= _WHOLE_DIGITS or -exponent > _PLACES or exponent > _WHOLE_DIGITS:
        raise JsonbFault("22003", "value overflows numeric format")
    return number


def _require_unicode(found: Any) -> None:
    """Raises `JsonbFault` for what PostgreSQL's text cannot hold."""
    texts = [found] if isinstance(found, str) else list(found) if isinstance(found, dict) else []
    for text in texts:
        if "\0" in text:
            raise JsonbFault("22P05", "unsupported Unicode escape sequence")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise JsonbFault("22P02", "invalid input syntax for type json") from None
    for part in found.values() if isinstance(found, dict) else found if isinstance(found, list) else ():
        _require_unicode(part)


def number_text(number: Decimal) -> str:
    """A number with its places."""
    exponent = int(number.as_tuple().exponent)
    if not number:
        return "0" if exponent >= 0 else "0." + "0" * -exponent
    return format(number, "f")


def in_order(found: dict[str, Any]) -> list[tuple[str, Any]]:
    """The pairs of an object as PostgreSQL keeps them: shorter keys first."""
    return sorted(found.items(), key=lambda pair: (len(data := pair[0].encode()), data))


def string_text(text: str) -> str:
    """A JSON string."""
    return json.dumps(text, ensure_ascii=False)


def written(found: Any) -> str:
    """A document as PostgreSQL writes it."""
    if isinstance(found, str):
        return string_text(found)
    if isinstance(found, Decimal):
        return number_text(found)
    if isinstance(found, dict):
        return "{" + ", ".join(f"{string_text(k)}: {written(v)}" for k, v in in_order(found)) + "}"
    if isinstance(found, list):
        return "[" + ", ".join(map(written, found)) + "]"
    return "null" if found is None else "true" if found else "false"


def pretty(found: Any, depth: int = 0) -> str:
    """A document over several lines, as `jsonb_pretty` writes it."""
    if not isinstance(found, (dict, list)):
        return written(found)
    inside, outside = "\n" + "    " * (depth + 1), "\n" + "    " * depth
    if isinstance(found, dict):
        parts = [f"{string_text(k)}: {pretty(v, depth + 1)}" for k, v in in_order(found)]
        opened, closed = "{}"
    else:
        parts = [pretty(v, depth + 1) for v in found]
        opened, closed = "[]"
    return opened + (inside + ("," + inside).join(parts) if parts else "") + outside + closed


# ---- keys

_NULL, _STRING, _NUMBER, _BOOL, _ARRAY, _OBJECT = range(6)


def key(found: Any) -> bytes:
    """Bytes that compare as documents do: objects, arrays, booleans, numbers, strings and null, the largest first.

    Of two objects or arrays the one with more members is larger; an empty array, though, is below all scalars, which
    count as arrays with one element.
    """
    parts = bytearray()
    if not isinstance(found, (dict, list)):
        parts += bytes((_ARRAY, 0, 0, 0, 1, 0))
    _append(parts, found)
    return bytes(parts)


def _append(parts: bytearray, found: Any) -> None:
    if found is None:
        parts.append(_NULL)
    elif isinstance(found, bool):
        parts += bytes((_BOOL, found))
    elif isinstance(found, str):
        parts.append(_STRING)
        parts += found.encode() + b"\0"
    elif isinstance(found, Decimal):
        parts.append(_NUMBER)
        parts += number_key(found)
    elif isinstance(found, list):
        parts.append(_ARRAY)
        parts += len(found).to_bytes(4, "big") + b"\1"
        for item in found:
            _append(parts, item)
    else:
        parts.append(_OBJECT)
        parts += len(found).to_bytes(4, "big")
        for name, value in in_order(found):
            _append(parts, name)
            _append(parts, value)


def number_key(number: Decimal) -> bytes:
    """Bytes that compare as numbers do, whatever their places."""
    if not number:
        return b"\1"
    sign, digits, _ = number.as_tuple()
    text = bytes(d + 1 for d in digits).lstrip(b"\1").rstrip(b"\1")
    body = (number.adjusted() + (1 << 31)).to_bytes(4, "big") + text + b"\0"
    return b"\0" + bytes(255 - b for b in body) if sign else b"\2" + body


def stored(found: Any) -> dict[str, Any]:
    """A document as a column holds it."""
    return {KEY: key(found), TEXT: written(found)}


def without_scale(found: Any) -> Any:
    """The same document, its numbers without zeros at the end: one of those that are equal to it."""
    if isinstance(found, Decimal):
        number = found.normalize(_EXACT)
        return number.quantize(Decimal(1), context=_EXACT) if int(number.as_tuple().exponent) > 0 else number
    if isinstance(found, dict):
        return {k: without_scale(v) for k, v in found.items()}
    return [without_scale(v) for v in found] if isinstance(found, list) else found


_EXACT: Final = Context(prec=_WHOLE_DIGITS + _PLACES + 10)
