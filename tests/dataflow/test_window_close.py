"""Rows that wait for the watermark, in a task without Spark."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.dataflow.operators.close import TABLE, WindowCloseStage
from headrace.plan.tree import WEIGHT
from headrace.state.arrangement import Arrangement, slice_bounds, slice_of
from headrace.state.run import Section, write_run
from headrace.state.schema import RunRef, TableSchema
from support import examples

SCHEMA = TableSchema((pa.field("c0", pa.int64()), pa.field("c1", pa.int64())), (), WEIGHT, "c0")
INPUT = pa.schema([(name, pa.int64()) for name in ("__k", "__w", "c0", "c1", "__i")])
OUTPUT = pa.schema([("o0", pa.int64()), ("o1", pa.int64()), ("__w", pa.int64())])
Change = tuple[int | None, int, int]
"""Time, value, weight."""


class Waiting:
    """The stage over epochs, with real runs."""

    def __init__(self, root: Path, parallelism: int) -> None:
        self.root, self.parallelism = root, parallelism
        self.stage = WindowCloseStage("0", SCHEMA, parallelism, OUTPUT)
        self.refs: list[RunRef] = []
        self.watermark: int | None = None
        self.epochs = 0

    def epoch(self, rows: list[Change], below: int | None) -> Counter[tuple[int | None, int]]:
        self.epochs += 1
        out: Counter[tuple[int | None, int]] = Counter()
        written: list[tuple[str, TableSchema, pa.RecordBatch]] = []
        keys = [hash((t, v)) * 0x9E3779B97F4A7C15 % 2**64 - 2**63 for t, v, _ in rows]
        slices = slice_of(pa.array(keys, pa.int64()).to_numpy(), self.parallelism).tolist() if rows else []
        task: Any = SimpleNamespace(
            params=SimpleNamespace(closed_us=below), write=written.extend,
            arrangement=lambda name, schema: Arrangement(schema, self.refs, str(self.root), watermark=self.watermark),
        )  # fmt: skip
        for i in range(self.parallelism):
            own = [(k, w, t, v, None) for k, (t, v, w), at in zip(keys, rows, slices) if at == i]
            own.append((slice_bounds(i, self.parallelism)[0], 0, None, None, i))
            batch = pa.RecordBatch.from_arrays(
                [pa.array(column, f.type) for column, f in zip(zip(*own), INPUT)], schema=INPUT
            )
            for found in self.stage.run(task, iter([batch])):
                for row in found.to_pylist():
                    out[row["o0"], row["o1"]] += row["__w"]
        for n, (name, schema, batch) in enumerate(written):
            assert name == TABLE
            if batch.num_rows:
                sections = [Section(1, schema, [batch], self.epochs)]
                self.refs += write_run(self.root, f"{self.epochs}-{n}.run", sections, fsync=False)
        if below is not None:
            self.watermark = below
        return out


STEP = st.tuples(
    st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 9)), st.integers(0, 1)), max_size=5),
    st.integers(0, 4), st.sampled_from(["rise", "stay", "part"]),
)  # fmt: skip


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(STEP, max_size=8), st.integers(1, 3))
def test_every_row_comes_out_once_when_it_is_passed(steps: list[Any], parallelism: int) -> None:
    """FS-21: rows that are taken back before never come out; a watermark that rises alone closes, too."""
    with tempfile.TemporaryDirectory() as folder:
        waiting = Waiting(Path(folder), parallelism)
        live: Counter[tuple[int | None, int]] = Counter()
        out: Counter[tuple[int | None, int]] = Counter()
        mark, low = None, 0
        for added, rise, what in steps:
            # Nothing that comes is late; some of what waits is taken back.
            new = [(t, v) for t, v in added if t is None or t + low >= (mark or 0)]
            rows = [(None if t is None else t + low, v) for t, v in new]
            gone = [row for row in sorted(live, key=repr) if row[0] is None or row[0] >= (mark or 0)][:1]
            changes = [(t, v, 1) for t, v in rows] + [(t, v, -1) for t, v in gone]
            live.update(rows)
            live.subtract(gone)
            live = +live
            if what == "rise":
                low += rise
                mark = low
            out.update(waiting.epoch(changes, None if what == "part" else mark))
            if what != "part" or mark is None:
                due = {row: n for row, n in live.items() if mark is not None and row[0] is not None and row[0] < mark}
                assert +out == Counter(due)


def test_closed_rows_are_not_kept(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path, 1)
    assert waiting.epoch([(1, 7, 1), (5, 8, 2)], None) == Counter()
    assert waiting.epoch([(2, 9, 1)], 3) == Counter({(1, 7): 1, (2, 9): 1})
    table = Arrangement(SCHEMA, waiting.refs, str(tmp_path), watermark=3)
    assert [row["c0"] for batch in table.scan() for row in batch.to_pylist()] == [5]
    assert sum(ref.rows for ref in waiting.refs) == 2, "what came and was closed at once was never written"
    assert waiting.epoch([], 3) == Counter()
    assert waiting.epoch([], 6) == Counter({(5, 8): 2})
