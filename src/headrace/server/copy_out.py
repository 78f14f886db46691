"""COPY TO STDOUT: rows to the bytes of each, as text, CSV or binary."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from headrace.common.zones import UTC, Zone
from headrace.server.binary import render_binary
from headrace.server.copy_binary import SIGNATURE
from headrace.session.result import ResultColumn
from headrace.sql.copying import CopyFormat
from headrace.sql.render import render_text

_NULL: Final = b"\xff\xff\xff\xff"
_LENGTH: Final = struct.Struct("!i").pack
_ESCAPES: Final = {
    b"\\": b"\\\\", b"\b": b"\\b", b"\f": b"\\f", b"\n": b"\\n", b"\r": b"\\r", b"\t": b"\\t", b"\v": b"\\v",
}  # fmt: skip
_BINARY_HEAD: Final = SIGNATURE + bytes(8)
_BINARY_END: Final = b"\xff\xff"

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
        return [delimiter.join(fields) + b"\n" for fields in zip(*columns)]

    def end(self) -> Iterator[bytes]:
        """The bytes behind the last row."""
        if self.form.form == "binary":
            head, self._head = self._head, b""
            yield head + _BINARY_END

    def _line(self, fields: Sequence[bytes]) -> bytes:
        return self.form.delimiter.encode().join(fields) + b"\n"

    def _binary(self, batch: pa.RecordBatch) -> list[bytes]:
        columns = [
            [_NULL if v is None else _LENGTH(len(v)) + v for v in render_binary(batch.column(i), column.type)]
            for i, column in enumerate(self._columns)
        ]
        width = struct.pack("!h", len(columns))
        rows = [width + b"".join(fields) for fields in zip(*columns)] if columns else [width] * batch.num_rows
        if rows and self._head:
            rows[0], self._head = self._head + rows[0], b""
        return rows


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
