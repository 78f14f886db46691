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

import numpy as np
import pyarrow as pa

from headrace.common.columns import Column
from headrace.connectors.declared import DeclaredOptions, Option
from headrace.connectors.files.options import spelled
from headrace.connectors.files.out import COMPRESSIONS, FORMATS, check_format, file_writer
from headrace.connectors.sinks import SINK_OPTIONS, WEIGHT_COLUMN, Sink, SinkPosition
from headrace.errors import DiskFull, InvalidParameter, NotSupported, SinkError
from headrace.state.objects import is_full, sync_directory

SINK = DeclaredOptions(
    (
        Option("path", "The directory that the files go to. It is made where there is none.", required=True),
        Option("format", "What the files are; `FORMAT PLAIN ENCODE PARQUET` says it, too.", default="parquet",
               choices=FORMATS),
        Option("compression", "Of Parquet's columns.", default="zstd", choices=COMPRESSIONS),
    )
)  # fmt: skip


class FileSink(Sink):
    """See the module."""

    declared = SINK

    def __init__(self, options: Mapping[str, str], columns: Sequence[Column]):
        options = spelled(options)
        super().__init__(options, columns)
        values = SINK.read(options, SINK_OPTIONS)
        if options.get("type") != "append-only":
            raise NotSupported("a files sink of any type but append-only", hint="write type = 'append-only'")
        self._directory = Path(values["path"])
        self._format: str = values["format"]
        self._compression: str = values["compression"]
        if not self._directory.is_absolute():
            raise InvalidParameter("option path must be an absolute path", hint="workers have directories of their own")
        check_format(self.columns, self._format)

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
                sync_directory(self._directory)  # whoever gave it its name may not have come to that
                return 0
            rows = self._write(made, _rows(batches, len(self.columns)))
            with suppress(FileExistsError):  # another attempt has been faster, with the same rows
                os.link(made, target)
            sync_directory(self._directory)
        except OSError as error:
            kind = DiskFull if is_full(error) else SinkError
            raise kind(f"the file {target} cannot be written: {error.strerror}") from error
        finally:
            with suppress(OSError):
                made.unlink()
        return rows

    def _write(self, path: Path, batches: Iterable[pa.RecordBatch]) -> int:
        rows = 0
        with open(path, "wb") as file:
            with closing(file_writer(file, self.columns, self._format, self._compression)) as writer:
                for batch in batches:
                    writer.write(batch)
                    rows += batch.num_rows
            file.flush()
            os.fsync(file.fileno())
        return rows


def _rows(batches: Iterable[pa.RecordBatch], width: int) -> Iterator[pa.RecordBatch]:
    """Every row as often as it is added."""
    for batch in batches:
        weights = np.asarray(batch.column(WEIGHT_COLUMN))
        rows = batch.select(range(width))
        yield rows if (weights == 1).all() else rows.take(np.repeat(np.arange(len(weights)), weights))
