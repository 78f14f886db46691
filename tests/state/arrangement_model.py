"""A table's runs beside a dict that holds the same rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from headrace.state.arrangement import slice_of
from headrace.state.kernels import consolidate
from headrace.state.merge import merge
from headrace.state.run import Section, write_run
from headrace.state.schema import RunRef, TableSchema

SCHEMA = TableSchema(
    (pa.field("id", pa.int64()),), (pa.field("name", pa.string()),), ((pa.field("__w", pa.int64()), "add"),)
)


MAX = TableSchema(
    (pa.field("id", pa.int64()),), (), ((pa.field("n", pa.int64()), "add"), (pa.field("m", pa.string()), "max"))
)


Row = tuple[int, str | None]


def key_of(ident: int) -> int:
    """A weak hash over the whole signed range: keys collide in pairs."""
    return [-(2**63), -5, 0, 3 * 2**40, 2**63 - 1][ident % 5]


def hash_of(row: Row) -> int:
    return (row[0] * 7 + len(row[1] or "")) % 3


def table_batch(deltas: list[tuple[Row, int, int]]) -> pa.RecordBatch:
    columns: list[Any] = [
        [key_of(r[0]) for r, _, _ in deltas],
        [hash_of(r) for r, _, _ in deltas],
        [r[0] for r, _, _ in deltas],
        [r[1] for r, _, _ in deltas],
        [w for _, w, _ in deltas],
        [e for _, _, e in deltas],
    ]
    schema = SCHEMA.arrow(with_epoch=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )


def counted(batches: Any, *, epochs: bool = False) -> Counter[Any]:
    result: Counter[Any] = Counter()
    for batch in batches:
        for row in batch.to_pylist():
            result[(row["id"], row["name"]), row["__e"] if epochs else None] += row["__w"]
    return Counter({k: w for k, w in result.items() if w})


@dataclass
class Model:
    """A table with its history, beside the runs that should hold it."""

    root: Path
    history: list[tuple[Row, int, int]] = field(default_factory=list)
    refs: list[RunRef] = field(default_factory=list)
    safe: int = 0
    names: int = 0

    def name(self) -> str:
        self.names += 1
        return f"t/{self.names}"

    def write(self, deltas: list[tuple[Row, int]], epoch: int, p: int) -> None:
        rows = [(r, w, epoch) for r, w in deltas]
        self.history += rows
        batch = consolidate(table_batch(rows), SCHEMA)
        slices = slice_of(np.asarray(batch.column(0)), p)
        parts = [batch.filter(pa.array(slices == i)) for i in range(p)]
        self.refs += write_run(self.root, self.name(), [Section(1, SCHEMA, [b], epoch) for b in parts], fsync=False)

    def merge(self, chosen: list[int], safe: int, chunk_rows: int) -> None:
        self.safe = max(self.safe, safe)
        refs = [self.refs[i] for i in sorted({i % len(self.refs) for i in chosen})]
        merged = merge(refs, SCHEMA, self.root, self.name(), self.safe, chunk_rows=chunk_rows, fsync=False)
        self.refs = [r for r in self.refs if r not in refs] + ([] if merged is None else [merged])
        if merged is not None and max(r.epoch_hi for r in refs) <= self.safe:
            assert merged.constant_epoch
            assert merged.epoch_hi == max(r.epoch_hi for r in refs)

    def expected(self, after: int, up_to: int, keys: Any, *, epochs: bool = False) -> Counter[Any]:
        result: Counter[Any] = Counter()
        for row, w, e in self.history:
            if after < e <= up_to and keys(key_of(row[0])):
                result[row, e if epochs else None] += w
        return Counter({k: w for k, w in result.items() if w})


ROWS = st.tuples(st.integers(0, 9), st.sampled_from(["a", "b", "", None, "ßß", "long"]))


DELTAS = st.lists(st.tuples(ROWS, st.integers(-2, 2)), min_size=1, max_size=60)
