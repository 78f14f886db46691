"""What a client sends in COPY in binary format: bytes to rows in Arrow's columns."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.common.columns import arrow_type
from headrace.errors import BadCopyData, HeadraceError, InvalidText
from headrace.server.binary import parameter_text
from headrace.session.result import ResultColumn
from headrace.sql.text_values import parse_text
from headrace.sql.type_names import pg_type

SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0"
_CHUNK_BYTES: Final = 1 << 20
_COUNT: Final = struct.Struct("!h").unpack_from
_LENGTH: Final = struct.Struct("!i").unpack_from
_EPOCH_DAYS: Final = 10_957
_EPOCH_MICROS: Final = _EPOCH_DAYS * 86_400_000_000
_FIXED: Final[dict[str, tuple[str, str, int]]] = {
    "smallint": (">i2", "<i2", 0),
    "int": (">i4", "<i4", 0),
    "bigint": (">i8", "<i8", 0),
    "float": (">f4", "<f4", 0),
    "double": (">f8", "<f8", 0),
    "date": (">i4", "<i4", _EPOCH_DAYS),
    "timestamp": (">i8", "<i8", _EPOCH_MICROS),
    "timestamp_ntz": (">i8", "<i8", _EPOCH_MICROS),
}
"""By type how its values are sent, how Arrow has them, and what is added."""

Value = bytes | None


class BinaryReader:
    """Takes in bytes, gives rows. Errors have their line as the context, without the name of the table."""

    def __init__(self, columns: Sequence[ResultColumn]) -> None:
        self._columns = columns
        self._left = b""
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._enough_bytes = _CHUNK_BYTES
        self._begun = False
        self._ended = False
        self.line = 0
        """Rows that have been read."""

    def feed(self, data: bytes) -> Iterator[pa.RecordBatch]:
        """Take in bytes; the rows that are whole now, once there are enough."""
        self._pieces.append(data)
        self._held_bytes += len(data)
        if self._held_bytes >= self._enough_bytes:
            yield from self._split(final=False)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """The rows that are left."""
        yield from self._split(final=True)

    def _split(self, *, final: bool) -> Iterator[pa.RecordBatch]:
        data = b"".join((self._left, *self._pieces))
        self._pieces, self._held_bytes = [], 0
        at = 0
        if not self._begun:
            begun = _header_end(data)
            if begun is None:
                self._left = data
                if final:
                    raise _header_fault(data)
                return
            self._begun, at = True, begun
        rows: list[list[Value]] = []
        wrong = None
        try:
            at = self._rows(data, at, rows)
            if final and not self._ended and at < len(data):
                raise self._placed(BadCopyData("unexpected EOF in COPY data"), self.line + len(rows) + 1)
            if self._ended and at < len(data):
                raise self._placed(BadCopyData("received copy data after EOF marker"), self.line + len(rows) + 1)
        except HeadraceError as error:
            wrong = error
        self._left = data[at:]
        self._enough_bytes = max(_CHUNK_BYTES, len(self._left))
        if rows:
            yield self._batch(rows)
        if wrong is not None:  # after what comes before it: that may be wrong, too
            raise wrong

    def _rows(self, data: bytes, at: int, rows: list[list[Value]]) -> int:
        """Add the rows that are whole; returns where the first one begins that is not."""
        width, end = len(self._columns), len(data)
        while not self._ended and at + 2 <= end:
            (count,) = _COUNT(data, at)
            if count == -1:
                self._ended = True
                return at + 2
            if count != width:
                error = BadCopyData(f"row field count is {count}, expected {width}")
                raise self._placed(error, self.line + len(rows) + 1)
            row: list[Value] = []
            here = at + 2
            for column in self._columns:
                if here + 4 > end:
                    return at
                (length,) = _LENGTH(data, here)
                here += 4
                if length < 0:
                    if length != -1:
                        error = BadCopyData("invalid field size")
                        raise self._placed(error, self.line + len(rows) + 1, column)
                    row.append(None)
                    continue
                if here + length > end:
                    return at
                row.append(data[here : here + length])
                here += length
            rows.append(row)
            at = here
        return at

    def _batch(self, rows: list[list[Value]]) -> pa.RecordBatch:
        arrays = []
        for column, values in zip(self._columns, zip(*rows)):
            found = _quickly(values, column.type)
            arrays.append(self._one_by_one(values, column) if found is None else found)
        self.line += len(rows)
        if not arrays:
            raise BadCopyData("a table without columns has no binary rows")
        return pa.RecordBatch.from_arrays(arrays, names=[f"c{i}" for i in range(len(arrays))])

    def _one_by_one(self, values: Sequence[Value], column: ResultColumn) -> pa.Array:
        decode = _decoder(column.type)
        found = []
        for row, value in enumerate(values):
            try:
                found.append(None if value is None else decode(value))
            except HeadraceError as error:
                if error.sqlstate == "22P03":
                    error = InvalidText("incorrect binary data format", sqlstate="22P03", detail=error.message)
                raise self._placed(error, self.line + row + 1, column) from None
        return pa.array(found, arrow_type(column.type))

    def _placed(self, error: HeadraceError, line: int, column: ResultColumn | None = None) -> HeadraceError:
        error.context = f"line {line}" if column is None else f"line {line}, column {column.name}"
        return error


def _header_end(data: bytes) -> int | None:
    """Where the header ends; None where it has not come yet."""
    if data[: len(SIGNATURE)] != SIGNATURE[: len(data)]:
        raise _header_fault(data)
    start = len(SIGNATURE)
    if len(data) < start + 8:
        return None
    flags, extension = struct.unpack_from("!ii", data, start)
    if flags & (1 << 16):
        raise BadCopyData("invalid COPY file header (WITH OIDS)")
    if flags & 0xFFFE0000:
        raise BadCopyData("unrecognized critical flags in COPY file header")
    if extension < 0:
        raise BadCopyData("invalid COPY file header (missing length)")
    return None if len(data) < start + 8 + extension else start + 8 + extension


def _header_fault(data: bytes) -> BadCopyData:
    if data[: len(SIGNATURE)] != SIGNATURE:
        return BadCopyData("COPY file signature not recognized")
    if len(data) < len(SIGNATURE) + 4:
        return BadCopyData("invalid COPY file header (missing flags)")
    if len(data) < len(SIGNATURE) + 8:
        return BadCopyData("invalid COPY file header (missing length)")
    return BadCopyData("invalid COPY file header (wrong length)")


def _quickly(values: Sequence[Value], type: str) -> pa.Array | None:
    """A column of values of fixed width, all at once; None where it is not that."""
    form = _FIXED.get(type)
    if form is None:
        return None
    sent, stored, shift = form
    numbers = np.dtype(sent)
    width = numbers.itemsize
    empty = None
    if None in values:
        empty = np.array([value is None for value in values])
        values = [bytes(width) if value is None else value for value in values]
    if any(len(value or b"") != width for value in values):
        return None
    found = np.frombuffer(b"".join(values), numbers).astype(np.dtype(stored))  # type: ignore[arg-type]
    if shift:
        found = found + found.dtype.type(shift)
    column = pa.array(found, mask=empty)
    return column if column.type == arrow_type(type) else column.cast(arrow_type(type))


def _decoder(type: str) -> Callable[[bytes], object]:
    if type == "binary":
        return bytes
    oid = pg_type(type).oid
    return lambda data: parse_text(parameter_text(data, oid), type)
