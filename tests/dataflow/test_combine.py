"""Rows combined by key before they travel: the same sums, however many rows are left."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.dataflow.operators.combine import CombineStage

SCHEMA = pa.schema(
    [("__w", pa.int64()), ("g0", pa.int64()), ("g1", pa.string()), ("a0_n", pa.int64()), ("a1_raw", pa.string())]
)
STAGE = CombineStage("0", ("g0", "g1"), ("__w", "a0_n"), (("a1_raw", "max"),), SCHEMA)


def rows(count: int, groups: int, weight: int = 1) -> pa.RecordBatch:
    draw = np.random.default_rng(count + groups)
    keys = draw.integers(0, groups, count)
    texts = [None if k % 7 == 0 else f"{k % 5}" for k in keys.tolist()]
    values = [None if v == 3 else f"{v:02d}" for v in draw.integers(0, 50, count).tolist()]
    weights = draw.choice([weight, -weight], count)
    columns = [pa.array(weights), pa.array(keys), pa.array(texts), pa.array(draw.integers(-5, 5, count))]
    return pa.record_batch([*columns, pa.array(values, pa.string())], schema=SCHEMA)


def combined(stage: CombineStage, *batches: pa.RecordBatch) -> list[dict[str, Any]]:
    task: Any = None
    found = list(stage.run(task, iter(batches)))
    assert all(batch.schema == stage.output for batch in found)
    return [row for batch in found for row in batch.to_pylist()]


def summed(given: list[dict[str, Any]]) -> dict[Any, Any]:
    found: dict[Any, list[Any]] = defaultdict(lambda: [0, 0, None])
    for row in given:
        group = found[row["g0"], row["g1"]]
        group[0] += row["__w"]
        group[1] += row["a0_n"]
        group[2] = max((v for v in (group[2], row["a1_raw"]) if v is not None), default=None)
    return dict(found)


def test_sums_and_extremes_stay_the_same() -> None:
    batches = [rows(30_000, 100), rows(20_000, 1_000), rows(1, 1)]
    found = combined(STAGE, *batches)
    assert summed(found) == summed([r for b in batches for r in b.to_pylist()])
    assert len(found) == len(summed(found))


def test_rows_whose_keys_hardly_repeat_pass() -> None:
    batch = rows(20_000, 10_000_000)
    assert combined(STAGE, batch) == batch.to_pylist()


def test_sums_that_might_overflow_are_left_to_who_checks_them() -> None:
    batch = rows(100, 3, weight=1 << 60)
    assert combined(STAGE, batch) == batch.to_pylist()


def test_without_a_key_one_row_is_left() -> None:
    stage = CombineStage("0", (), ("__w", "a0_n"), (("a1_raw", "min"),), SCHEMA.remove(1).remove(1))
    batch = rows(20_000, 100)
    weights, numbers = (np.asarray(batch.column(n)).sum() for n in ("__w", "a0_n"))
    expected = {"__w": weights, "a0_n": numbers, "a1_raw": "00"}
    assert combined(stage, batch.drop_columns(["g0", "g1"])) == [expected]
