"""Rows as objects of JSON, as sinks write them; sources read the same spellings."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headrace.connectors.leaving import is_document
from headrace.errors import SinkError


class NotSpelled(SinkError):
    """Raised for rows with a value that has no spelling in JSON."""


class Raw(str):
    """The text of a document, which stands in a row as it is."""


def objects(batch: pa.RecordBatch) -> list[dict[str, object]]:
    """The rows as what `text` writes: maps as objects, documents as they are, everything else as Arrow has it.

    Raises `NotSpelled`.
    """
    fields = list(batch.schema)
    plain = {f.name: _plain(f.type) for f in fields if _has_map(f.type)}
    plain |= {f.name: Raw for f in fields if is_document(f)}
    try:
        rows: list[dict[str, object]] = batch.to_pylist()
    except (ValueError, OverflowError) as error:
        raise NotSpelled(f"a row cannot be written as JSON: {error}", hint="it has years from 1 to 9999") from error
    for name, change in plain.items():
        for row in rows:
            row[name] = None if row[name] is None else change(row[name])
    return rows


def _has_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_map(kind.field(i).type) for i in range(kind.num_fields))


def _plain(kind: pa.DataType) -> Callable[[Any], Any]:
    """What makes a value of Arrow's one with objects for maps, however deep they are."""
    if pa.types.is_map(kind):
        item = _plain(kind.item_type)
        return lambda value: {_name(k): None if v is None else item(v) for k, v in value}
    if pa.types.is_list(kind):
        element = _plain(kind.value_type)
        return lambda value: [None if v is None else element(v) for v in value]
    if pa.types.is_struct(kind):
        inner = {kind.field(i).name: _plain(kind.field(i).type) for i in range(kind.num_fields)}
        return lambda value: {
            name: None if value[name] is None else change(value[name]) for name, change in inner.items()
        }
    return lambda value: value


def _name(key: Any) -> Any:
    """A key of a map as the name of an object's member, which is a text."""
    return key if isinstance(key, (str, bool, int, float)) else _spelled(key)


def text(value: object) -> bytes:
    """A value as JSON in UTF-8.

    Decimals are strings, so that no digit is lost; times are ISO 8601, those with a zone end in Z; binary is `\\x` and
    hex digits; NaN and infinities, which JSON does not have, are strings, too.
    """
    if isinstance(value, dict) and any(isinstance(v, Raw) for v in value.values()):
        members = (b"%b:%b" % (text(name), v.encode() if isinstance(v, Raw) else text(v)) for name, v in value.items())
        return b"{%b}" % b",".join(members)
    try:
        return json.dumps(value, default=_spelled, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        return json.dumps(_finite(value), default=_spelled, ensure_ascii=False, separators=(",", ":")).encode()


def bare(value: object) -> bytes:
    """A value that is not nested as `text` spells it, but without quotes and what they need."""
    if isinstance(value, str):
        return value.encode()
    found = text(value)
    return found[1:-1] if found.startswith(b'"') else found


def _spelled(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value
