"""Rows into a file of Parquet, JSON lines or CSV, and what is said where it cannot be written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Final, Protocol

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from headrace.common.columns import Column, arrow_schema, arrow_type
from headrace.connectors import json_out
from headrace.errors import DiskFull, NotSupported, SinkError
from headrace.state.objects import is_full

FORMATS: Final = ("parquet", "json", "csv")
COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "none")


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


def file_writer(
    file: IO[bytes], columns: Sequence[Column], format: str, compression: str = "zstd", *, header: bool = True,
    delimiter: str = ",",
) -> FileWriter:  # fmt: skip
    """A writer; `compression` is of Parquet's columns, `header` and `delimiter` are of CSV."""
    schema = arrow_schema(columns)
    if format == "parquet":
        codec = compression if compression != "none" else None
        return _Fitted(pyarrow.parquet.ParquetWriter(file, schema, compression=codec), schema)
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

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows."""
        self._file.write(b"".join(json_out.text(row) + b"\n" for row in json_out.objects(batch)))

    def close(self) -> None:
        """There is nothing at the end of such a file."""
