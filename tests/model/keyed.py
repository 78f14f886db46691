"""Tables whose rows lie by some of their columns, as those with a primary key and indexes do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from engine import WEIGHT, Row, Table

from headrace.common.columns import arrow_type
from headrace.state.kernels import consolidate
from headrace.state.kernels.hashing import hash_columns
from headrace.state.run import Section, write_run
from headrace.state.schema import TableSchema


@dataclass
class Keyed(Table):
    """A table with a primary key, or an index of one, stored as the coordinator stores it."""

    key: tuple[str, ...] = ()
    unique: bool = True

    @property
    def schema(self) -> TableSchema:
        fields = [pa.field(c.name, arrow_type(c.type)) for c in self.columns]
        by_name = {f.name: f for f in fields}
        return TableSchema(
            tuple(by_name[n] for n in self.key), tuple(f for f in fields if f.name not in self.key), WEIGHT
        )

    def write(self, root: Path, epoch: int, delta: Sequence[tuple[Row, int]], weak_hash: int | None = None) -> None:
        """Make a change part of the history; `weak_hash` keeps only that many different hash values."""
        data = self.arrow([r for r, _ in delta])
        columns: dict[str, Any] = {n: data.column(n).combine_chunks() for n in data.column_names}
        k = hash_columns([columns[n] for n in self.key])
        columns["__k"] = pa.array(k if weak_hash is None else k % weak_hash)
        columns["__h"] = pa.array(hash_columns([columns[c.name] for c in self.columns]))
        columns["__w"] = pa.array([w for _, w in delta], pa.int64())
        arrow = self.schema.arrow()
        batch = pa.RecordBatch.from_arrays([columns[f.name] for f in arrow], schema=arrow)
        batch = consolidate(batch, self.schema)
        if batch.num_rows:
            section = Section(self.id, self.schema, [batch], epoch)
            self.refs += write_run(root, f"{self.name}/{epoch}.run", [section], fsync=False)
