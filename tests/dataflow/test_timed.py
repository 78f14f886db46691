"""Filters by time as they run in workers, without Spark: what they have put out is what passes at each moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from stage_task import MemoryTask, Stored, changed

from headrace.common.epoch import from_unix_ms
from headrace.common.shifts import now_us
from headrace.dataflow.operators.timed import KeepStage, PlaceStage, TimeBound
from headrace.plan.tree import WEIGHT
from headrace.state.kernels import concat, consolidate
from headrace.state.schema import TableSchema
from support import examples

I64 = pa.int64()
SCHEMA = TableSchema((pa.field("due", I64),), (pa.field("leaves", I64), pa.field("v0", I64)), WEIGHT)
BOUNDS = (TimeBound("b0", (), 0, False), TimeBound("b1", (-2000,), 1, True))
"""The row is in while b0 <= now() and b1 >= now() - 2 ms."""
OUTPUT = pa.schema([("o0", I64), ("__w", I64)])
START_MS = 1_800_000_000_000


class Ordered(Stored):
    """A state table that can be scanned."""

    refs = (SimpleNamespace(k_min=-(1 << 63)),)

    def lowest_key(self, low: int) -> int | None:
        return next((int(np.asarray(b.column("__k"))[0]) for b in self.scan(low) if b.num_rows), None)

    def scan(self, low: int, high: int = 1 << 63) -> Iterator[pa.RecordBatch]:
        rows = consolidate(concat(self.batches, self.schema.arrow()), self.schema)
        k = np.asarray(rows.column("__k"))
        yield rows.filter(pa.array((k >= low) & (k < high)))


class TimedTask(MemoryTask):
    """Both stages of the operator, epoch after epoch."""

    def __init__(self, parallelism: int) -> None:
        super().__init__()
        self.due: int | None = None
        self.parallelism = parallelism
        self.done = 0

    def arrangement(self, name: str, schema: TableSchema) -> Stored:
        return self.tables.setdefault(name, Ordered(schema))

    def next_due(self, time_us: int | None) -> None:
        if time_us is not None:
            self.due = time_us if self.due is None else min(self.due, time_us)

    def run(self, ms: int, rows: list[tuple[int, int, int, int]]) -> Counter[int]:
        """One epoch; rows are value, b0 and b1 (ms after the start), weight."""
        epoch = from_unix_ms(START_MS + ms)
        self.params, self.due = SimpleNamespace(from_epoch=self.done, to_epoch=epoch), None
        place = PlaceStage("0", SCHEMA, BOUNDS, self.parallelism)
        batch = _batch([(None, *row) for row in rows] + [(i, 0, 0, 0, 0) for i in range(self.parallelism)])
        placed = list(place.run(self, iter([batch])))  # type: ignore[arg-type]
        params = self.params
        out: Counter[int] = Counter()
        for found in self.epoch(KeepStage("0", SCHEMA, OUTPUT), pa.concat_batches(placed) if placed else None):
            for value, weight in zip(found.column("o0").to_pylist(), found.column("__w").to_pylist()):
                out[value] += weight
        self.params, self.done = params, epoch
        return out


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = list(zip(*rows))
    times = [pa.array([(START_MS + ms) * 1000 for ms in columns[i]], I64) for i in (2, 3)]
    hashes = pa.array([v % 2 for v in columns[1]], I64)  # they collide
    arrays = [pa.array(columns[0], I64), hashes, pa.array(columns[4], I64), *times, pa.array(columns[1], I64)]
    return pa.RecordBatch.from_arrays(arrays, ["__s", "__h", "__w", "b0", "b1", "v0"])


ROWS = st.tuples(st.integers(0, 4), st.integers(0, 12), st.integers(0, 12))
STEPS = st.lists(st.tuples(st.integers(0, 4), st.lists(st.tuples(ROWS, st.booleans()), max_size=5)), max_size=8)


@settings(deadline=None, max_examples=examples(150))
@given(STEPS, st.integers(1, 3))
def test_what_passes_at_each_moment(steps: list[tuple[int, list[Any]]], parallelism: int) -> None:
    task, view, ms = TimedTask(parallelism), Counter[int](), 0
    content: Counter[tuple[int, int, int]] = Counter()
    due_us: int | None = None
    for after, changes in steps:
        ms += after
        delta = changed(content, changes)
        now = now_us(from_unix_ms(START_MS + ms))
        quiet = not delta and (due_us is None or due_us > now) and task.done
        out = task.run(ms, delta)
        assert not quiet or not any(out.values()), "nothing was due"
        view.update(out)
        wanted = Counter[int]()
        for (value, enters, stays), weight in content.items():
            if enters <= ms <= stays + 2:
                wanted[value] += weight
        assert +view == +wanted and not -view
        due_us = task.due
    table = task.tables.get("rows")
    assert table is None or all(r["due"] > now_us(task.done) for b in table.scan(-(1 << 63)) for r in b.to_pylist()), (
        "only what is still to come is kept"
    )


def test_the_last_of_all_times_is_never_reached() -> None:
    """It is not taken for the first one where a microsecond is added to it."""
    last, first = (1 << 63) - 1, -(1 << 63)
    rows = pa.record_batch([pa.array([last, last - 1, first], I64)], ["b"])
    for late in (0, 1):
        never, almost, always = TimeBound("b", (), late, True).times(rows).tolist()
        assert never == almost > START_MS * 10_000 and always < 0
