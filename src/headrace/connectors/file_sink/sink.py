"""The `files` sink: all rows of an epoch are one file, which appears whole, under a name that tells the epoch.

So the name is what delivers: it is given only where it is free, and who finds it taken knows that the epoch is there.
Readers may take any file that they see.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from headrace.common.columns import Column, arrow_schema, arrow_type
from headrace.connectors import json_out
from headrace.connectors.declared import Declared, Option
from headrace.connectors.sinks import SINK_OPTIONS, WEIGHT_COLUMN, Sink, SinkPosition
from headrace.errors import DiskFull, InvalidParameter, NotSupported, SinkError

FORMATS = ("parquet", "json", "csv")
SINK = Declared(
    (
        Option("path", "The directory that the files go to. It is made where there is none.", required=True),
        Option("format", "What the files are; `FORMAT PLAIN ENCODE PARQUET` says it, too.", default="parquet",
               choices=FORMATS),
        Option("compression", "Of Parquet's columns.", default="zstd", choices=("zstd", "snappy", "gzip", "none")),
    )
)  # fmt: skip


class FileSink(Sink):
    """See the module."""

    declared = SINK

    def __init__(self, options: Mapping[str, str], columns: Sequence[Column]):
        options = _spelled(options)
        super().__init__(options, columns)
        values = SINK.read(options, SINK_OPTIONS)
        if options.get("type") != "append-only":
            raise NotSupported("a files sink of any type but append-only", hint="write type = 'append-only'")
        self._directory = Path(values["path"])
        self._format: str = values["format"]
        self._compression: str = values["compression"]
        if not self._directory.is_absolute():
            raise InvalidParameter("option path must be an absolute path", hint="workers have directories of their own")
        nested = next((c for c in self.columns if pa.types.is_nested(arrow_type(c.type))), None)
        if nested is not None and self._format == "csv":
            raise NotSupported(f'the column "{nested.name}" of type {nested.type} in CSV', hint="write Parquet or JSON")

    def reach(self) -> None:
        """See `Sink`."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._directory, prefix="."):
                pass
        except OSError as error:
            raise SinkError(f"files cannot be written to {self._directory}: {error.strerror}") from error

    def write(self, position: SinkPosition, batches: Iterator[pa.RecordBatch]) -> int:
        """See `Sink`."""
        name = f"{position.delivery}-{position.epoch:016x}.{self._format}"
        target = self._directory / name
        made = self._directory / f".{name}.{position.attempt}"
        try:
            if target.exists():
                _sync(self._directory)  # whoever gave it its name may not have come to that
                return 0
            rows = self._write(made, _rows(batches, len(self.columns)))
            with suppress(FileExistsError):  # another attempt has been faster, with the same rows
                os.link(made, target)
            _sync(self._directory)
        except OSError as error:
            kind = DiskFull if error.errno == 28 else SinkError
            raise kind(f"the file {target} cannot be written: {error.strerror}") from error
        finally:
            with suppress(OSError):
                made.unlink()
        return rows

    def _write(self, path: Path, batches: Iterable[pa.RecordBatch]) -> int:
        rows = 0
        with open(path, "wb") as file:
            with closing(self._writer(file)) as writer:
                for batch in batches:
                    writer.write(batch)
                    rows += batch.num_rows
            file.flush()
            os.fsync(file.fileno())
        return rows

    def _writer(self, file: IO[bytes]) -> Any:
        schema = arrow_schema(self.columns)
        if self._format == "parquet":
            compression = self._compression if self._compression != "none" else None
            return _Fitted(pyarrow.parquet.ParquetWriter(file, schema, compression=compression), schema)
        if self._format == "csv":
            return _Fitted(pyarrow.csv.CSVWriter(file, schema), schema)
        return _JsonLines(file)


class _Fitted:
    """A writer of Arrow's, for batches whose columns may differ from the schema in whether they can be NULL."""

    def __init__(self, writer: Any, schema: pa.Schema) -> None:
        self._writer, self._schema = writer, schema

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows."""
        arrays = [c.cast(f.type) for c, f in zip(batch.columns, self._schema, strict=True)]
        self._writer.write(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def close(self) -> None:
        """End the file."""
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


def _rows(batches: Iterable[pa.RecordBatch], width: int) -> Iterator[pa.RecordBatch]:
    """Every row as often as it is added."""
    for batch in batches:
        weights = np.asarray(batch.column(WEIGHT_COLUMN))
        rows = batch.select(range(width))
        yield rows if (weights == 1).all() else rows.take(np.repeat(np.arange(len(weights)), weights))


def _spelled(options: Mapping[str, str]) -> dict[str, str]:
    """`FORMAT PLAIN ENCODE x` as the option `format`."""
    found = dict(options)
    if "encode" in found:
        if found.get("format", "plain") != "plain":
            raise NotSupported(f"FORMAT {found['format'].upper()} of a files sink", hint="write FORMAT PLAIN")
        found["format"] = found.pop("encode")
    return found


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
