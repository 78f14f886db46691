"""COPY TO files: Spark's tasks write the rows that they have computed, each a file of its own."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, field
from typing import IO, BinaryIO, Final, cast

import pyarrow as pa

from headrace.common.columns import Column, arrow_schema
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.confidential import hiding
from headrace.connectors.files.folders import Folder, WrittenFile
from headrace.connectors.files.out import ending, file_writer
from headrace.connectors.leaving import columns_outside, outside
from headrace.dataflow.operators.task import leaving_a_task

OUTCOME: Final = pa.schema([pa.field("written", pa.string())])
"""What a task returns: a JSON text for each file."""


@dataclass(frozen=True)
class WriteFile:
    """Writes the rows of a partition as a file. For `mapInArrow`."""

    columns: tuple[Column, ...]
    folder: Folder
    copy_id: str
    format: str
    compression: str
    header: bool
    delimiter: str
    hidden: tuple[str, ...] = field(default=(), repr=False)
    """Values of secrets, which no error says."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function that `mapInArrow` calls."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        with leaving_a_task(), hiding(self.hidden):
            found = self.run(int(context.partitionId()), str(context.taskAttemptId()), batches)
        if found is not None:
            yield pa.RecordBatch.from_pydict({"written": [json.dumps(asdict(found))]}, schema=OUTCOME)

    def run(self, partition: int, attempt: str, batches: Iterable[pa.RecordBatch]) -> WrittenFile | None:
        """The file of a partition; None where it has no rows, but for the first, which tells the columns."""
        name = f"part-{partition:05}-{self.copy_id}-{attempt}{ending(self.format, self.compression)}"
        with tempfile.TemporaryFile() as file:
            rows = self._fill(file, batches)
            if not rows and partition:
                return None
            size = file.tell()
            file.seek(0)
            self.folder.put(name, cast(BinaryIO, file))
        return WrittenFile(name, rows, size)

    def _fill(self, file: IO[bytes], batches: Iterable[pa.RecordBatch]) -> int:
        leave = columns_outside(self.columns)
        schema, rows = arrow_schema(leave), 0
        writer = file_writer(file, leave, self.format, self.compression, header=self.header, delimiter=self.delimiter)
        with closing(writer):
            for batch in batches:
                arrays, fields = outside(batch.columns, self.columns)
                arrays = [a.cast(f.type) for a, f in zip(arrays, schema, strict=True)]
                fields = [pa.field(f.name, a.type, metadata=f.metadata) for f, a in zip(fields, arrays)]
                writer.write(pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)))
                rows += batch.num_rows
        return rows
