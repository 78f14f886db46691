"""The `datagen` connector: made-up rows, at a rate.

Row i of split s is a function of (seed, s, i) alone, so any range can be made again at any time, at once.

Options, besides those of every source:

`rows_per_second`        rate over all splits (default 10), or `unlimited`: as many as admission allows
`number_of_rows`         how many rows there are in all (default: without end)
`splits`                 how many splits, for parallel reading (default 1)
`seed`                   another number gives other rows (default 0)
`fields.<col>.<property>` how a column is made, see `datagen_fields`
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

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
    range_tasks,
)
from headrace.connectors.datagen_fields import Field, make_fields
from headrace.connectors.options import OptionReader
from headrace.connectors.pacing import admit_rate
from headrace.errors import InvalidParameter

OPTIONS = ("rows_per_second", "number_of_rows", "splits", "seed")
BATCH_ROWS = 65_536
_START = "@start_ms"
_DEFAULT_RATE = 10.0


class DatagenSource(Source):
    """See the module."""

    @classmethod
    def takes_secret(cls, option: str) -> bool:
        """The seed: who knows it knows all rows that will come."""
        return option == "seed"

    def __init__(self, options: Mapping[str, str], columns: Sequence[Column]):
        super().__init__(options, columns)
        reader = OptionReader(options)
        reader.refuse_unknown(OPTIONS, "fields.")
        self.max_rows = common_options(reader).max_rows
        if not columns:
            raise InvalidParameter("connector datagen needs declared columns")
        self.splits = reader.integer("splits", 1) or 1
        self.end = reader.integer("number_of_rows", 0)
        self.rate = self._rate(reader)
        self.fields: list[Field] = make_fields(reader, columns, reader.integer("seed") or 0)

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
        most = limit.rows(self.max_rows)
        start_ms, reached, behind = admit_rate(self.rate, after.get(_START), position, self.end, most, now_ms)
        offsets: Offsets = {str(split): self._rows_of(split, reached) for split in range(self.splits)}
        offsets[_START] = start_ms
        finished = self.end is not None and reached >= self.end
        return Binding(offsets, reached - position, finished, None, behind)

    def rows_between(self, from_: Offsets, to: Offsets) -> int | None:
        """See `Source`."""
        return sum(int(to.get(str(s), 0)) - int(from_.get(str(s), 0)) for s in range(self.splits))

    def plan(self, from_: Offsets, to: Offsets, parallelism: int) -> list[ReadTask]:
        """See `Source`; a task holds ranges [start, stop) of splits."""
        ranges = [(s, int(from_.get(str(s), 0)), int(to.get(str(s), 0))) for s in range(self.splits)]
        return range_tasks(ranges, parallelism)

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
            return reader.positive("rows_per_second") or _DEFAULT_RATE
        if self.end is None and self.max_rows is None:
            raise InvalidParameter("option rows_per_second 'unlimited' needs number_of_rows or max_rows_per_epoch")
        return None
