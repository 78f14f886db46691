"""Rows into a file of Parquet, JSON lines or CSV, and what is said where it cannot be written."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Final, Protocol

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from headrace.common.columns import Column, arrow_schema, arrow_type
from headrace.connectors import json_out
from headrace.connectors.declared import Option
from headrace.errors import DiskFull, InvalidParameter, NotSupported, SinkError
from headrace.state.objects import is_full

if TYPE_CHECKING:
    from typing_extensions import Buffer

FORMATS: Final = ("parquet", "json", "csv")
COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "none")
COMPRESSION: Final = Option(
    "compression",
    "Of Parquet's columns, by default `zstd`; or of files of JSON and CSV as a whole (`gzip`, `zstd`), whose "
    "names then end in `.gz` or `.zst`.", choices=COMPRESSIONS,
)  # fmt: skip
_ENDINGS: Final = {"none": "", "gzip": ".gz", "zstd": ".zst"}
"""Of files that are compressed as a whole."""


@contextmanager
def write_errors(place: str) -> Iterator[None]:
    """Turn an `OSError` inside into `DiskFull`, or `SinkError`, that names the place."""
    try:
        yield
    except OSError as error:
        kind = DiskFull if is_full(error) else SinkError
        raise kind(f"{place} cannot be written: {error.strerror or error}") from error


class FileWriter(Protocol):
    """Takes rows for a file; the file itself belongs to whoever has opened it."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows, with the columns in order."""

    def close(self) -> None:
        """End what was written."""


def compression_of(values: Mapping[str, str | None]) -> str:
    """The compression that options say, or that counts where they say none. Raises `InvalidParameter`."""
    format, given = values["format"], values[COMPRESSION.name]
    if format != "parquet" and given not in (None, *_ENDINGS):
        raise InvalidParameter(
            f"option compression = '{given}' is for parquet, not for {format}", hint=f"one of {', '.join(_ENDINGS)}"
        )
    return str(given or ("zstd" if format == "parquet" else "none"))


def ending(format: str, compression: str) -> str:
    """What the name of a file ends in, by which readers know how it is read."""
    return f".{format}" if format == "parquet" else f".{format}{_ENDINGS[compression]}"


def file_writer(
    file: IO[bytes], columns: Sequence[Column], format: str, compression: str, *, header: bool = True,
    delimiter: str = ",",
) -> FileWriter:  # fmt: skip
    """A writer; `compression` is as `compression_of` has it, `header` and `delimiter` are of CSV."""
    schema = arrow_schema(columns)
    if format == "parquet":
        codec = compression if compression != "none" else None
        return _Fitted(pyarrow.parquet.ParquetWriter(file, schema, compression=codec), schema)
    if compression != "none":
        stream = pa.CompressedOutputStream(pa.PythonFile(_Lent(file), "w"), compression)
        return _Compressed(_text_writer(stream, schema, format, header, delimiter), stream)
    return _text_writer(file, schema, format, header, delimiter)


def _text_writer(
    file: IO[bytes] | pa.NativeFile, schema: pa.Schema, format: str, header: bool, delimiter: str
) -> FileWriter:  # fmt: skip
    if format == "csv":
        options = pyarrow.csv.WriteOptions(include_header=header, delimiter=delimiter)
        schema = pa.schema([pa.field(f.name, pa.string()) if pa.types.is_binary(f.type) else f for f in schema])
        fitted = _Fitted(pyarrow.csv.CSVWriter(file, schema, write_options=options), schema)
        return _OneColumn(fitted) if len(schema) == 1 else fitted
    return _JsonLines(file)


def check_format(columns: Sequence[Column], format: str) -> None:
    """Raise `NotSupported` for a column that a format has no values for."""
    nested = next((c for c in columns if pa.types.is_nested(arrow_type(c.type))), None)
    if nested is not None and format == "csv":
        raise NotSupported(f'the column "{nested.name}" of type {nested.type} in CSV', hint="write Parquet or JSON")


class _Fitted:
    """A writer of Arrow's, for batches whose columns may differ from the schema in whether they can be NULL."""

    def __init__(self, writer: FileWriter, schema: pa.Schema) -> None:
        self._writer, self._schema = writer, schema

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows."""
        arrays = [_fitted(c, f.type) for c, f in zip(batch.columns, self._schema, strict=True)]
        self._writer.write(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def close(self) -> None:
        """End the file."""
        self._writer.close()


def _fitted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values of another type; bytes as text are `\\x` and hex digits, as in JSON, since they need not be UTF-8."""
    if pa.types.is_binary(array.type) and pa.types.is_string(kind):
        return pa.array([None if v is None else "\\x" + v.hex() for v in array.to_pylist()], kind)
    return array.cast(kind)


class _Lent(io.RawIOBase):
    """A file that is written to and not closed, though who writes closes this."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: Buffer) -> int:
        """See `io.RawIOBase`."""
        return self._file.write(data)


class _Compressed:
    """A writer to a stream that compresses, which is ended with it."""

    def __init__(self, writer: FileWriter, stream: pa.NativeFile) -> None:
        self._writer, self._stream = writer, stream
        self.write = writer.write

    def close(self) -> None:
        """See `FileWriter`."""
        self._writer.close()
        self._stream.close()


class _OneColumn:
    """CSV of one column, whose NULLs would be empty lines, which readers leave out."""

    def __init__(self, writer: FileWriter) -> None:
        self._writer = writer

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows. Raises `NotSupported` where one is lost."""
        if batch.column(0).null_count:
            raise NotSupported("NULL in CSV of one column", hint="add a column, or write Parquet or JSON")
        self._writer.write(batch)

    def close(self) -> None:
        """See `FileWriter`."""
        self._writer.close()


class _JsonLines:
    """Writes an object a line."""

    def __init__(self, file: IO[bytes] | pa.NativeFile) -> None:
        self._file = file

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows."""
        self._file.write(b"".join(json_out.text(row) + b"\n" for row in json_out.objects(batch)))

    def close(self) -> None:
        """There is nothing at the end of such a file."""
