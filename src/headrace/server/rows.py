"""Result columns and batches as row descriptions and data rows."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from headrace.server.backend import Field, RowDescription
from headrace.server.binary import render_binary
from headrace.session.result import ResultColumn
from headrace.sql.types import pg_type, render_text, typmod

_SLICE_ROWS: Final = 4096
_SLICE_BYTES: Final = 1 << 20
_NULL: Final = b"\xff\xff\xff\xff"
_LENGTH = struct.Struct("!i").pack
_HEAD = struct.Struct("!cih").pack


def row_description(columns: Sequence[ResultColumn], formats: Sequence[int] = ()) -> RowDescription:
    """The description of rows with these columns; `formats` is empty, one for all, or one for each."""
    fields = []
    for column, form in zip(columns, spread(formats, len(columns)), strict=True):
        kind = pg_type(column.type)
        fields.append(Field(column.name, kind.oid, kind.size, typmod(column.type), form))
    return RowDescription(tuple(fields))


def spread(formats: Sequence[int], count: int) -> Sequence[int]:
    """One format code for each of `count` items, from none (text), one or all of them. Raises `ValueError`."""
    if len(formats) == count:
        return formats
    if len(formats) > 1:
        raise ValueError(f"{len(formats)} format codes for {count} columns or parameters")
    return (formats[0] if formats else 0,) * count


def slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in pieces of about a megabyte or less, so that rendering it takes little memory."""
    rows = batch.num_rows
    if rows == 0:
        return
    step = max(1, min(_SLICE_ROWS, _SLICE_BYTES * rows // max(batch.nbytes, 1)))
    for start in range(0, rows, step):
        yield batch.slice(start, step)


def data_rows(batch: pa.RecordBatch, columns: Sequence[ResultColumn], formats: Sequence[int]) -> list[bytes]:
    """One encoded DataRow message for each row of the batch."""
    rendered = [
        [_NULL if v is None else _LENGTH(len(v)) + v for v in _render(batch.column(i), column.type, form)]
        for i, (column, form) in enumerate(zip(columns, spread(formats, len(columns)), strict=True))
    ]
    if not rendered:
        return [_HEAD(b"D", 6, 0)] * batch.num_rows
    width, messages = len(columns), []
    for fields in zip(*rendered, strict=True):
        body = b"".join(fields)
        messages.append(_HEAD(b"D", len(body) + 6, width) + body)
    return messages


def _render(array: pa.Array, type: str, form: int) -> list[bytes | None]:
    return render_binary(array, type) if form else render_text(array, type)
