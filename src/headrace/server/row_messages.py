"""Result columns and batches as row descriptions and data rows."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from headrace.common.zones import UTC, Zone
from headrace.server.backend import Field, RowDescription
from headrace.server.binary import column_values, render_binary
from headrace.server.message_blocks import FEW_ROWS, sized_blocks
from headrace.session.result import ResultColumn
from headrace.sql.render import column_text
from headrace.sql.type_names import pg_type, render_text, typmod

_COMPUTED: Final = (0, 0)
_NULL: Final = b"\xff\xff\xff\xff"
_LENGTH = struct.Struct("!i").pack
_HEAD = struct.Struct("!cih").pack


def row_description(columns: Sequence[ResultColumn], formats: Sequence[int] = ()) -> RowDescription:
    """The description of rows with these columns; `formats` is empty, one for all, or one for each."""
    fields = []
    for column, form in zip(columns, spread(formats, len(columns)), strict=True):
        kind = pg_type(column.told_as)
        origin = column.origin or _COMPUTED
        fields.append(Field(column.name, kind.oid, kind.size, typmod(column.type), form, *origin))
    return RowDescription(tuple(fields))


def spread(formats: Sequence[int], count: int) -> Sequence[int]:
    """One format code for each of `count` items, from none (text), one or all of them. Raises `ValueError`."""
    if len(formats) == count:
        return formats
    if len(formats) > 1:
        raise ValueError(f"{len(formats)} format codes for {count} columns or parameters")
    return (formats[0] if formats else 0,) * count


def data_rows(
    batch: pa.RecordBatch, columns: Sequence[ResultColumn], formats: Sequence[int], zone: Zone = UTC
) -> list[bytes]:
    """One encoded DataRow message for each row of the batch; texts show moments in a time zone."""
    rendered = [
        [_NULL if v is None else _LENGTH(len(v)) + v for v in _render(batch.column(i), column, form, zone)]
        for i, (column, form) in enumerate(zip(columns, spread(formats, len(columns)), strict=True))
    ]
    if not rendered:
        return [_HEAD(b"D", 6, 0)] * batch.num_rows
    width, messages = len(columns), []
    for row in zip(*rendered, strict=True):
        body = b"".join(row)
        messages.append(_HEAD(b"D", len(body) + 6, width) + body)
    return messages


def row_blocks(
    batch: pa.RecordBatch, columns: Sequence[ResultColumn], formats: Sequence[int], zone: Zone = UTC
) -> Iterator[bytes | memoryview]:
    """The DataRow messages of a batch, many in each piece."""
    if batch.num_rows < FEW_ROWS or not columns:
        yield b"".join(data_rows(batch, columns, formats, zone))
        return
    values = [
        column_values(batch.column(i), column.told_as) if form else column_text(batch.column(i), column.type, zone)
        for i, (column, form) in enumerate(zip(columns, spread(formats, len(columns)), strict=True))
    ]
    yield from sized_blocks(b"D", values)


Writer: TypeAlias = Callable[[Any], bytes]
"""Writes a value that is not null, with its length before it."""


def row_writers(columns: Sequence[ResultColumn], form: int) -> tuple[Writer, ...] | None:
    """What writes the values of single rows that are given as Python objects; None where that takes an array."""
    known = _BINARY_WRITERS if form else _TEXT_WRITERS
    types = [c.told_as if form else c.type for c in columns]
    return tuple([known[kind] for kind in types]) if all(kind in known for kind in types) else None


def data_row(values: Sequence[object], writers: Sequence[Writer]) -> bytes:
    """One encoded DataRow message."""
    body = b"".join([_NULL if v is None else write(v) for v, write in zip(values, writers, strict=True)])
    return _HEAD(b"D", len(body) + 6, len(writers)) + body


def _sized(data: bytes) -> bytes:
    return _LENGTH(len(data)) + data


def _packed(form: str) -> Writer:
    pack = struct.Struct(f"!i{form}").pack
    size = struct.calcsize(f"!{form}")
    return lambda value: pack(size, value)


def _text(value: str) -> bytes:
    return _sized(value.encode())


_TEXT_WRITERS: Final[Mapping[str, Writer]] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), lambda value: _sized(b"%d" % value)),
    "boolean": lambda value: b"\0\0\0\1t" if value else b"\0\0\0\1f",
    "string": _text,
}
_BINARY_WRITERS: Final[Mapping[str, Writer]] = {
    "tinyint": _packed("h"), "smallint": _packed("h"), "int": _packed("i"), "bigint": _packed("q"),
    "boolean": _packed("?"), "string": _text,
}  # fmt: skip


def _render(array: pa.Array, column: ResultColumn, form: int, zone: Zone) -> list[bytes | None]:
    return render_binary(array, column.told_as) if form else render_text(array, column.type, zone)
