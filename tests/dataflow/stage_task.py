"""A task without Spark: state in memory, one epoch after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.state.kernels import concat, consolidate
from headrace.state.schema import TableSchema


def changed(content: Counter[Any], changes: Iterable[tuple[tuple[Any, ...], bool]]) -> list[tuple[Any, ...]]:
    """Add rows, or take back those that are there: the rows, each with its weight as the last value."""
    delta = []
    for row, add in changes:
        weight = 1 if add or not content[row] else -1
        content[row] += weight
        delta.append((*row, weight))
    return delta


@dataclass
class Stored:
    """A state table as what was written to it."""

    schema: TableSchema
    batches: list[pa.RecordBatch] = field(default_factory=list)
    fetched: list[int] = field(default_factory=list)
    """How many rows each look-up of first rows has given."""

    def content(self) -> pa.RecordBatch:
        """What is left of everything that was written."""
        return consolidate(concat(self.batches, self.schema.arrow()), self.schema)

    def fetch(self, keys: np.ndarray) -> pa.RecordBatch:
        rows = self.content()
        return rows.filter(pa.array(np.isin(np.asarray(rows.column("__k")), keys)))

    def first_rows(self, keys: np.ndarray, need: np.ndarray, *, by_code: bool = False) -> pa.RecordBatch:
        rows = self.fetch(keys)
        if not self.schema.has_row_hash:
            return rows
        kept: list[int] = []
        for key, wanted in zip(keys.tolist(), need.tolist()):
            have, last = 0, None
            for i, row in enumerate(rows.to_pylist()):
                if row["__k"] == key:
                    if have >= wanted and row["__h"] != last:
                        break
                    have += row["__h"] != last if by_code else row["__w"]
                    last = row["__h"]
                    kept.append(i)
        self.fetched.append(len(kept))
        return rows.take(pa.array(kept, pa.int64()))


class MemoryTask:
    """Stands where `Task` stands, for all epochs of one stage."""

    def __init__(self) -> None:
        self.tables: dict[str, Stored] = {}
        self.pending: list[tuple[str, TableSchema, pa.RecordBatch]] = []
        self.written: list[tuple[str, TableSchema, pa.RecordBatch]] = []
        """What the last epoch wrote."""
        self.params: Any = SimpleNamespace(first=True)

    def arrangement(self, name: str, schema: TableSchema) -> Stored:
        return self.tables.setdefault(name, Stored(schema))

    def write(self, writes: list[tuple[str, TableSchema, pa.RecordBatch]]) -> None:
        self.pending += writes

    def make_room(self, nbytes: int) -> bool:
        return False

    def epoch(self, stage: Any, batch: pa.RecordBatch | None) -> list[pa.RecordBatch]:
        """Run the stage over one batch, commit what it wrote, and give its output."""
        source: Iterator[pa.RecordBatch] = iter([] if batch is None else [batch])
        out = [b for b in stage.run(self, source) if b.num_rows]
        for name, schema, rows in self.pending:
            assert rows.schema.equals(schema.arrow())
            self.arrangement(name, schema).batches.append(rows)
        self.written, self.pending = self.pending, []
        self.params = SimpleNamespace(first=False)
        return out
