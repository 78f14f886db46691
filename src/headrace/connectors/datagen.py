"""The `datagen` connector: made-up rows, at a rate.

Row i of split s is a function of (seed, s, i) alone, so any range can be made again at any time, at once. Who knows
the seed knows all rows that will come: it may be a secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.common.columns import Column
from headrace.connectors.base import (
    Admission,
    Binding,
    Offsets,
    ReadBatch,
    ReadTask,
    Source,
    common_options,
    joined_ranges,
    range_tasks,
)
from headrace.connectors.datagen_fields import MadeField, make_fields
from headrace.connectors.declared import DeclaredOptions, Option
from headrace.connectors.option_reader import OptionReader
from headrace.connectors.pacing import admit_rate
from headrace.errors import InvalidParameter

OPTIONS: Final = DeclaredOptions(
    (
        Option("rows_per_second", "Over all splits: a number, or `unlimited`, as many as are admitted.", default="10"),
        Option("number_of_rows", "How many rows there are in all; by default there is no end.", "number"),
        Option("splits", "How many splits, for parallel reading.", "number", default="1", least=1),
        Option("seed", "Another number gives other rows.", "number", default="0", secret=True, least=None),
    ),
    prefix="fields.",
    prefix_help="`fields.<column>.<property>`: how a column is made, see below.",
)
BATCH_ROWS = 65_536
SAMPLE_ROWS: Final = 64
_START = "@start_ms"


class DatagenSource(Source):
    """See the module."""

    declared = OPTIONS

    def __init__(self, options: Mapping[str, str], columns: Sequence[Column]):
        super().__init__(options, columns)
        reader = OptionReader(options)
        values = OPTIONS.read(options)
        self.max_rows = common_options(reader).max_rows
        if not columns:
            raise InvalidParameter("connector datagen needs declared columns")
        self.splits: int = values["splits"]
        self.end: int | None = values["number_of_rows"]
        self.rate = self._rate(OptionReader({**options, "rows_per_second": values["rows_per_second"]}))
        self.fields: list[MadeField] = make_fields(reader, columns, values["seed"])

    @classmethod
    def infer_columns(cls, options: Mapping[str, str]) -> list[Column]:
        """Raises `InvalidParameter`: made-up rows have only the columns that are declared."""
        raise InvalidParameter("connector datagen needs declared columns")

    def start_offsets(self) -> Offsets:
        """All splits at row 0; the clock starts at the first binding."""
        return {str(split): 0 for split in range(self.splits)}

    def latest_offsets(self, after: Offsets, limit: Admission, now_ms: int) -> Binding:
        """See `Source`."""
        position = sum(int(after.get(str(split), 0)) for split in range(self.splits))
        most = limit.estimated_rows(self.max_rows, endless=self.rate is None and self.end is None)
        start_ms, reached, behind = admit_rate(self.rate, after.get(_START), position, self.end, most, now_ms)
        offsets: Offsets = {str(split): self._rows_of(split, reached) for split in range(self.splits)}
        offsets[_START] = start_ms
        finished = self.end is not None and reached >= self.end
        return Binding(offsets, reached - position, finished, None, behind)

    def rows_between(self, from_: Offsets, to: Offsets) -> int | None:
        """See `Source`."""
        return sum(int(to.get(str(s), 0)) - int(from_.get(str(s), 0)) for s in range(self.splits))

    @property
    def row_bytes(self) -> float:
        """See `Source`: as the first rows are."""
        numbers = np.arange(SAMPLE_ROWS, dtype=np.int64)
        return sum(field.make(numbers).nbytes for field in self.fields) / SAMPLE_ROWS

    def plan(self, from_: Offsets, to: Offsets, parallelism: int) -> list[ReadTask]:
        """See `Source`; a task holds ranges [start, stop) of splits."""
        ranges = [(s, int(from_.get(str(s), 0)), int(to.get(str(s), 0))) for s in range(self.splits)]
        return range_tasks(ranges, parallelism)

    def joined(self, tasks: Sequence[ReadTask], parallelism: int) -> list[ReadTask]:
        """See `Source`."""
        return joined_ranges(tasks, parallelism)

    def read(self, task: ReadTask) -> Iterator[ReadBatch]:
        """See `Source`; there are never errors."""
        for split, start, stop in task["ranges"]:
            for first in range(start, stop, BATCH_ROWS):
                rows = np.arange(first, min(first + BATCH_ROWS, stop), dtype=np.int64)
                numbers = rows * self.splits + split
                arrays = [field.make(numbers) for field in self.fields]
                yield ReadBatch(pa.RecordBatch.from_arrays(arrays, schema=self.schema))

    def _rows_of(self, split: int, total: int) -> int:
        return (total - split + self.splits - 1) // self.splits

    def _rate(self, reader: OptionReader) -> float | None:
        if reader.options.get("rows_per_second") != "unlimited":
            return reader.positive("rows_per_second")
        if self.end is None and self.max_rows is None:
            raise InvalidParameter("option rows_per_second 'unlimited' needs number_of_rows or max_rows_per_epoch")
        return None
