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
MOST_CHARACTERS: Final = 1 << 24
"""Most characters of a document's text."""
FREE_ZEROS: Final = 20_000
ZEROS_PER_CHARACTER: Final = 4
"""Zeros that the exponents of a text may stand for: some, and more for longer ones. They are kept written in full."""
TOO_LARGE: Final = (
    f"the jsonb document is too large: it may have {MOST_CHARACTERS} characters, with its numbers written in full"
)
TOO_MANY_ZEROS: Final = (
    "the exponents in the jsonb document stand for too many zeros, which are written in full: "
    f"it may have {FREE_ZEROS}, and {ZEROS_PER_CHARACTER} for each of its characters"
)


class JsonbFault(Exception):
    """What a function of `jsonb` does not do: an SQLSTATE and a message."""

    def __init__(self, sqlstate: str, message: str):
        super().__init__(message)
        self.sqlstate = sqlstate


def read(text: str) -> Any:
    """The document that a text spells. Raises `JsonbFault`."""
    numbers = _Numbers(len(text))
    try:
        found = json.loads(text, parse_int=_number, parse_float=numbers.read, parse_constant=_refused)
    except RecursionError:
        raise _nested_too_deeply() from None
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


class _Numbers:
    """The numbers of a text with a point or an exponent, and how many zeros their exponents stand for together."""

    def __init__(self, length: int):
        self._left = FREE_ZEROS + ZEROS_PER_CHARACTER * length

    def read(self, text: str) -> Decimal:
        """Return a number. Raise `JsonbFault` where the document's exponents stand for too many zeros."""
        number = _number(text)
        self._left -= max(_number_length(number) - len(text), 0)
        if self._left < 0:
            raise JsonbFault("54000", TOO_MANY_ZEROS)
        return number


def _nested_too_deeply() -> JsonbFault:
    return JsonbFault("54001", "the JSON document is nested too deeply")


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


def _number_length(number: Decimal) -> int:
    """Return at least how many characters the number's text has, without writing it."""
    _, digits, exponent = number.as_tuple()
    if not number:
        return 1 + max(-int(exponent), 0)
    return max(len(digits) + max(int(exponent), 0), -int(exponent))


def in_order(found: dict[str, Any]) -> list[tuple[str, Any]]:
    """The pairs of an object as PostgreSQL keeps them: shorter keys first."""
    return sorted(found.items(), key=lambda pair: (len(data := pair[0].encode()), data))


def string_text(text: str) -> str:
    """A JSON string."""
    return json.dumps(text, ensure_ascii=False)


def written(document: object) -> str:
    """Return the document as PostgreSQL writes it. Raise `JsonbFault` if that is longer than `MOST_CHARACTERS`."""
    text = _Text()
    text.add(document)
    return text.joined()


def pretty(document: object) -> str:
    """Return the document over several lines, as `jsonb_pretty` writes it; bounded as `written` is."""
    text = _Text()
    text.add_lines(document, 0)
    return text.joined()


class _Text:
    """The text of a document in parts, each counted before it is made: exponents and indents grow out of few bytes."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._left = MOST_CHARACTERS

    def joined(self) -> str:
        """Return all parts as one text."""
        return "".join(self._parts)

    def add(self, document: object) -> None:
        """Add a document as PostgreSQL writes it."""
        if isinstance(document, dict):
            for i, (name, value) in enumerate(in_order(document)):
                self._part(f"{', ' if i else '{'}{string_text(name)}: ")
                self.add(value)
            self._part("}" if document else "{}")
        elif isinstance(document, list):
            for i, item in enumerate(document):
                self._part(", " if i else "[")
                self.add(item)
            self._part("]" if document else "[]")
        elif isinstance(document, Decimal):
            self._count(_number_length(document))
            self._parts.append(number_text(document))
        elif isinstance(document, str):
            self._part(string_text(document))
        else:
            self._part("null" if document is None else "true" if document else "false")

    def add_lines(self, document: object, depth: int) -> None:
        """Add a document with each member on a line of its own."""
        if not isinstance(document, (dict, list)):
            self.add(document)
            return
        opened, closed = "{}" if isinstance(document, dict) else "[]"
        members = in_order(document) if isinstance(document, dict) else [(None, item) for item in document]
        for i, (name, value) in enumerate(members):
            self._part("," if i else opened)
            self._new_line(depth + 1)
            if name is not None:
                self._part(f"{string_text(name)}: ")
            self.add_lines(value, depth + 1)
        if not members:
            self._part(opened)
        self._new_line(depth)
        self._part(closed)

    def _new_line(self, depth: int) -> None:
        self._part("\n" + "    " * depth)

    def _part(self, part: str) -> None:
        self._count(len(part))
        self._parts.append(part)

    def _count(self, characters: int) -> None:
        self._left -= characters
        if self._left < 0:
            raise JsonbFault("54000", TOO_LARGE)


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
    """A document as a column holds it. Raises `JsonbFault` if it is too large."""
    try:
        text = written(found)  # counts, so it comes first
    except RecursionError:
        raise _nested_too_deeply() from None
    return {KEY: key(found), TEXT: text}


def without_scale(found: Any) -> Any:
    """The same document, its numbers without zeros at the end: one of those that are equal to it."""
    if isinstance(found, Decimal):
        number = found.normalize(_EXACT)
        return number.quantize(Decimal(1), context=_EXACT) if int(number.as_tuple().exponent) > 0 else number
    if isinstance(found, dict):
        return {k: without_scale(v) for k, v in found.items()}
    return [without_scale(v) for v in found] if isinstance(found, list) else found


_EXACT: Final = Context(prec=_WHOLE_DIGITS + _PLACES + 10)
