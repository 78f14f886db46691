"""The `files` sink: all rows of an epoch are one file, which appears whole, under a name that tells the epoch.

So the name is what delivers (`epoch_files.py`). Readers may take any file that they see.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from headrace.common.columns import Column
from headrace.connectors.declared import DeclaredOptions, Option
from headrace.connectors.files.clients import STORE
from headrace.connectors.files.epoch_files import place_at
from headrace.connectors.files.options import spelled
from headrace.connectors.files.out import COMPRESSION, FORMATS, check_format, compression_of, ending, file_writer
from headrace.connectors.sinks import SINK_OPTIONS, WEIGHT_COLUMN, Sink, SinkPosition
from headrace.errors import NotSupported

SINK = DeclaredOptions(
    (
        Option("path", "Where the files go to: a directory, which is made where there is none, `file:///path`, or a "
               "folder of a store, `s3://bucket/path`, `gs://bucket/path` or `az://container/path`.", required=True),
        Option("format", "What the files are; `FORMAT PLAIN ENCODE PARQUET` says it, too.", default="parquet",
               choices=FORMATS),
        COMPRESSION,
        *STORE,
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
        self._place = place_at(values["path"], options)
        self._format: str = values["format"]
        self._compression: str = compression_of(values)
        check_format(self.columns, self._format)

    def reach(self) -> None:
        """See `Sink`."""
        self._place.reach()

    def write(self, position: SinkPosition, batches: Iterator[pa.RecordBatch]) -> int:
        """See `Sink`."""

        def fill(file: BinaryIO) -> int:
            rows = 0
            with closing(file_writer(file, self.columns, self._format, self._compression)) as writer:
                for batch in _rows(batches, len(self.columns)):
                    writer.write(batch)
                    rows += batch.num_rows
            return rows

        stem = f"{position.delivery}-{position.epoch:016x}"
        # Older programs wrote text as it is whatever the option said, and gave it the name of that.
        name, plain = (f"{stem}{ending(self._format, c)}" for c in (self._compression, "none"))
        return self._place.give(name, position.attempt, fill, former=plain if plain != name else None)


def _rows(batches: Iterable[pa.RecordBatch], width: int) -> Iterator[pa.RecordBatch]:
    """Every row as often as it is added."""
    for batch in batches:
        weights = np.asarray(batch.column(WEIGHT_COLUMN))
        rows = batch.select(range(width))
        yield rows if (weights == 1).all() else rows.take(np.repeat(np.arange(len(weights)), weights))
