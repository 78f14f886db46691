"""Arrow rows as the CSV that PostgreSQL's COPY reads: NULL is nothing, an empty text is a pair of quotes."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.csv

from headrace.connectors import json_out

_WRITE = pyarrow.csv.WriteOptions(include_header=False, quoting_style="all_valid")
FORMAT = "(FORMAT csv)"
"""What COPY is told."""


def copied(batch: pa.RecordBatch) -> bytes:
    """The rows of a batch."""
    sink = pa.BufferOutputStream()
    plain = pa.RecordBatch.from_arrays([_plain(c) for c in batch.columns], names=batch.schema.names)
    pyarrow.csv.write_csv(plain, sink, _WRITE)
    return sink.getvalue().to_pybytes()


def _plain(array: pa.Array) -> pa.Array:
    """A column of a type that Arrow's writer knows and whose text PostgreSQL reads."""
    kind = array.type
    if pa.types.is_null(kind):
        return pa.nulls(len(array), pa.string())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _each(array, lambda value: "\\x" + value.hex())
    if pa.types.is_list(kind) and not pa.types.is_nested(kind.value_type):
        return _each(array, _array_text)
    if pa.types.is_nested(kind):
        objects = json_out.objects(pa.RecordBatch.from_arrays([array], names=["it"]))
        return pa.array([None if o["it"] is None else _json(o["it"]) for o in objects], pa.string())
    if pa.types.is_duration(kind):
        return array.cast(pa.duration("us")).cast(pa.int64()).cast(pa.string())
    return array


def _each(array: pa.Array, text: Callable[[Any], str]) -> pa.Array:
    return pa.array([None if value is None else text(value) for value in array.to_pylist()], pa.string())


def _array_text(values: list[Any]) -> str:
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    text = "\\x" + value.hex() if isinstance(value, bytes) else str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _json(value: Any) -> str:
    """A value as JSON, in which decimals are numbers with all of their digits: PostgreSQL keeps these."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_json(str(name))}:{_json(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_json, value)) + "]"
    return format(value, "f") if isinstance(value, Decimal) else json_out.text(value).decode()
