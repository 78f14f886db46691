"""Rows as objects of JSON, as sinks write them; sources read the same spellings."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa


def objects(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as what `text` writes: maps as objects, everything else as Arrow has it."""
    maps = [f.name for f in batch.schema if pa.types.is_map(f.type)]
    rows: list[dict[str, Any]] = batch.to_pylist()
    for name in maps:
        for row in rows:
            row[name] = None if row[name] is None else dict(row[name])
    return rows


def text(value: Any) -> bytes:
    """A value as JSON in UTF-8.

    Decimals are strings, so that no digit is lost; times are ISO 8601, those with a zone end in Z; binary is `\\x` and
    hex digits; NaN and infinities, which JSON does not have, are strings, too.
    """
    try:
        return json.dumps(value, default=_spelled, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        return json.dumps(_finite(value), default=_spelled, ensure_ascii=False, separators=(",", ":")).encode()


def _spelled(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value
