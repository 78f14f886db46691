"""COPY TO STDOUT: rows to the bytes of each, as text, CSV or binary."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.zones import UTC, Zone
from headrace.server.binary import column_values, render_binary
from headrace.server.copy_binary import SIGNATURE
from headrace.server.message_blocks import FEW_ROWS, bytes_of, delimited_blocks, sized_blocks
from headrace.session.result import ResultColumn
from headrace.sql.copying import CopyFormat
from headrace.sql.render import column_text, render_text

_NULL: Final = b"\xff\xff\xff\xff"
_LENGTH: Final = struct.Struct("!i").pack
_ESCAPES: Final = {
    b"\\": b"\\\\", b"\b": b"\\b", b"\f": b"\\f", b"\n": b"\\n", b"\r": b"\\r", b"\t": b"\\t", b"\v": b"\\v",
}  # fmt: skip
_BINARY_HEAD: Final = SIGNATURE + bytes(8)
_BINARY_END: Final = b"\xff\xff"

_COPY_HEAD: Final = struct.Struct("!ci").pack
_TEXT_MARKS: Final = b"".join(_ESCAPES).decode()
_USUAL_DELIMITERS: Final = ("\t", ",", ";", "|")
_USUAL_NULLS: Final = ("\\N", "")
_USUAL_QUOTES: Final = ('"', "'")
_PLAIN_TYPES: Final = frozenset((
    "tinyint", "smallint", "int", "bigint", "float", "double", "decimal", "boolean", "date", "timestamp",
    "timestamp_ntz",
))  # fmt: skip

Encode = Callable[[bytes | None], bytes]


class CopyOut:
    """Makes the rows of one COPY TO. What it gives are the contents of messages: one for each row."""

    def __init__(self, form: CopyFormat, columns: Sequence[ResultColumn], zone: Zone = UTC) -> None:
        self.form = form
        self._columns = columns
        self._zone = zone
        self._head = _BINARY_HEAD if form.form == "binary" else b""
        """What goes in front of the first message."""
        if form.form == "csv":
            forced = {c.name for c in columns} if "*" in form.force_quote else set(form.force_quote)
            self._encoders = [_csv_encoder(form, c.name in forced, len(columns) == 1) for c in columns]
        else:
            self._encoders = [_text_encoder(form)] * len(columns)

    def head(self) -> Iterator[bytes]:
        """What comes before the rows as a message of its own."""
        if self.form.header == "none":
            return
        encoders = self._encoders
        if self.form.form == "csv":
            encoders = [_csv_encoder(self.form, False, len(self._columns) == 1)] * len(self._columns)
        yield self._line([encode(c.name.encode()) for c, encode in zip(self._columns, encoders)])

    def rows(self, batch: pa.RecordBatch) -> list[bytes]:
        """One message for each row."""
        if self.form.form == "binary":
            return self._binary(batch)
        columns = [
            [encode(value) for value in render_text(batch.column(i), column.type, self._zone)]
            for i, (column, encode) in enumerate(zip(self._columns, self._encoders))
        ]
        if not columns:
            return [b"\n"] * batch.num_rows
        delimiter = self.form.delimiter.encode()
        return [delimiter.join(row) + b"\n" for row in zip(*columns)]

    def messages(self, batch: pa.RecordBatch) -> Iterator[bytes | memoryview]:
        """The same as whole messages, many in each piece."""
        if self._head and batch.num_rows:
            yield from copy_data(self.rows(batch.slice(0, 1)))
            batch = batch.slice(1)
        if batch.num_rows < FEW_ROWS or not self._columns:
            yield from copy_data(self.rows(batch))
            return
        arrays = batch.columns
        if self.form.form == "binary":
            yield from sized_blocks(b"d", [column_values(a, c.told_as) for a, c in zip(arrays, self._columns)])
            return
        texts = [self._texts(*given) for given in zip(arrays, self._columns, self._encoders)]
        yield from delimited_blocks(b"d", texts, self.form.delimiter.encode(), self.form.null.encode())

    def _texts(self, array: pa.Array, column: ResultColumn, encode: Encode) -> pa.Array:
        """The values of a column as they stand between delimiters, null where they are."""
        values = column_text(array, column.type, self._zone)
        return values if self._is_plain(column) else self._encoded(values, encode)

    def _is_plain(self, column: ResultColumn) -> bool:
        """Whether no value of a column can have anything in it that is to be escaped or quoted."""
        form = self.form
        usual = form.delimiter in _USUAL_DELIMITERS and form.null in _USUAL_NULLS
        if form.form == "csv":
            usual = usual and form.quote in _USUAL_QUOTES and not form.force_quote
        return usual and column.type.partition("(")[0] in _PLAIN_TYPES

    def _encoded(self, values: pa.Array, encode: Encode) -> pa.Array:
        """Encoded values: one by one those that have something in them, or may be taken for something else."""
        form = self.form
        if form.form == "csv" and (form.force_quote or len(self._columns) == 1):
            return pa.array([encode(value) for value in values.to_pylist()], pa.binary())
        marks = form.quote + "\r\n" if form.form == "csv" else _TEXT_MARKS
        chosen = _having(values, (marks + form.delimiter).encode())
        if form.form == "csv":
            chosen |= np.asarray(pc.fill_null(pc.equal(values, form.null.encode()), False))
        if not chosen.any():
            return values
        mask = pa.array(chosen)
        made = [encode(value) for value in values.filter(mask).to_pylist()]
        return pc.replace_with_mask(values, mask, pa.array(made, pa.binary()))

    def begin(self, batches: Iterator[pa.RecordBatch]) -> tuple[list[bytes], Iterator[pa.RecordBatch]]:
        """Messages that come before those that may be made in any order, and the rows of these.

        In binary the first message has its row behind what goes in front of all.
        """
        first = next((batch for batch in batches if batch.num_rows), None) if self._head else None
        if first is None:
            return [], batches
        return copy_data(self.rows(first.slice(0, 1))), chain((first.slice(1),), batches)

    def end(self) -> Iterator[bytes]:
        """The bytes behind the last row."""
        if self.form.form == "binary":
            head, self._head = self._head, b""
            yield head + _BINARY_END

    def _line(self, fields: Sequence[bytes]) -> bytes:
        return self.form.delimiter.encode().join(fields) + b"\n"

    def _binary(self, batch: pa.RecordBatch) -> list[bytes]:
        columns = [
            [_NULL if v is None else _LENGTH(len(v)) + v for v in render_binary(batch.column(i), column.told_as)]
            for i, column in enumerate(self._columns)
        ]
        width = struct.pack("!h", len(columns))
        rows = [width + b"".join(row) for row in zip(*columns)] if columns else [width] * batch.num_rows
        if rows and self._head:
            rows[0], self._head = self._head + rows[0], b""
        return rows


def copy_data(rows: Iterable[bytes]) -> list[bytes]:
    """The contents of messages as messages."""
    return [_COPY_HEAD(b"d", len(row) + 4) + row for row in rows]


def _having(values: pa.Array, marks: bytes) -> npt.NDArray[np.bool_]:
    """Which binary values have one of these bytes in them."""
    offsets, data = bytes_of(values)
    data, chosen = data[offsets[0] : offsets[-1]], np.zeros(len(values), np.bool_)
    hits = np.zeros(len(data), np.bool_)
    for first, last in _stretches(marks):
        hits |= data - np.uint8(first) <= last - first
    if hits.any():
        chosen[np.searchsorted(offsets, np.flatnonzero(hits) + offsets[0], side="right") - 1] = True
    return chosen


def _stretches(marks: bytes) -> list[tuple[int, int]]:
    """The first and the last of bytes that follow one another."""
    found: list[tuple[int, int]] = []
    for mark in sorted(set(marks)):
        follows = bool(found) and mark == found[-1][1] + 1
        found.append((found.pop()[0], mark) if follows else (mark, mark))
    return found


def _text_encoder(form: CopyFormat) -> Encode:
    null, delimiter = form.null.encode(), form.delimiter.encode()
    escapes = {**_ESCAPES, delimiter: _ESCAPES.get(delimiter, b"\\" + delimiter)}
    special = re.compile(b"[" + b"".join(map(re.escape, escapes)) + b"]")
    search, sub = special.search, special.sub

    def encode(value: bytes | None) -> bytes:
        if value is None:
            return null
        return sub(lambda match: escapes[match[0]], value) if search(value) else value

    return encode


def _csv_encoder(form: CopyFormat, forced: bool, single: bool) -> Encode:
    null, quote, escape = form.null.encode(), form.quote.encode(), form.escape.encode()
    search = re.compile(b"[" + re.escape(form.delimiter.encode()) + re.escape(quote) + b"\r\n]").search
    escaped = re.compile(b"[" + re.escape(quote) + re.escape(escape) + b"]").sub

    def encode(value: bytes | None) -> bytes:
        if value is None:
            return null
        if forced or value == null or search(value) or (single and value == b"\\."):
            return quote + escaped(lambda match: escape + match[0], value) + quote
        return value

    return encode
