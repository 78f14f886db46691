"""Values framed as Confluent's serializers do, with the id of the writer's schema: what all encodings share."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Final, Protocol
from uuid import UUID

import pyarrow as pa

from headrace.common.columns import Column
from headrace.connectors import json_out

FRAME: Final = struct.Struct(">bI")
"""A zero, and the id."""


class Unreadable(ValueError):
    """A record that is none of the schema that it names."""


class FramedReader(Protocol):
    """Decodes values of one encoding."""

    def columns(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch | None:
        """The columns of records that are plain, else None. Raises `SourceError` as `record` does."""
        ...

    def record(self, data: bytes) -> dict[str, object]:
        """The fields of a record. Raises `Unreadable`, and `SourceError` where the registry does not answer."""
        ...

    def value(self, data: bytes) -> object:
        """A value, of any type. Raises as `record` does."""
        ...


def schema_id(data: bytes) -> int:
    """The id of the schema of a value. Raises `Unreadable`."""
    if len(data) < FRAME.size or data[0] != 0:
        raise Unreadable("it does not begin with the id of a schema")
    return int(FRAME.unpack_from(data)[1])


def as_json(value: object, column: Column) -> object:
    """A value as one of JSON's, as columns take them."""
    if isinstance(value, (dict, list)) and column.type == "string":
        return json_out.text(_plain(value)).decode()
    if isinstance(value, (datetime, Decimal)) and column.type == "string":
        return str(value)
    return _plain(value)


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, datetime):
        return value
    if isinstance(value, (date, time)):
        return value.isoformat()
    return str(value) if isinstance(value, UUID) else value
