"""Ranks with a bound: rows for the stages that keep the first of each partition, and what must come of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pyarrow as pa

from headrace.dataflow.operators.recompute import NEW
from headrace.plan.tree import WEIGHT
from headrace.state.schema import TableSchema

I32, I64 = pa.int32(), pa.int64()
TOP = TableSchema((pa.field("k0", I32),), tuple(pa.field(n, I32) for n in ("v0", "v1", "v2")), WEIGHT)
TOP_OUTPUT = pa.schema([("v0", I32), ("v1", I32), ("v2", I32), ("__side", I32)])


def top_batch(delta: list[tuple[int, int, Any, int]], weak: int) -> pa.RecordBatch | None:
    """Rows (partition, row, value, weight) as input of a stage."""
    columns = {
        "__k": pa.array([k % weak for k, *_ in delta], I64),
        "__w": pa.array([w for *_, w in delta], I64),
        "k0": pa.array([k for k, *_ in delta], I32),
        "v0": pa.array([k for k, *_ in delta], I32),
        "v1": pa.array([row for _, row, *_ in delta], I32),
        "v2": pa.array([v for _, _, v, _ in delta], I32),
    }
    return pa.RecordBatch.from_pydict(columns) if delta else None


def take_top(view: Counter[Any], batches: list[pa.RecordBatch], need: int, by_value: bool) -> None:
    """Take a stage's output into the view, as a rank and its filter over it would."""
    sides: dict[tuple[int, int], list[tuple[int, Any]]] = defaultdict(list)
    for b in batches:
        for out in b.to_pylist():
            sides[out["v0"], out["__side"]].append((out["v1"], out["v2"]))
    for (k, side), rows in sides.items():
        for row, count in _top(rows, need, by_value).items():
            view[(k, *row)] += count if side == NEW else -count


def all_tops(content: Counter[tuple[int, int, Any]], need: int, by_value: bool) -> Counter[Any]:
    """What the view must hold."""
    wanted: Counter[Any] = Counter()
    for k in {k for k, *_ in content}:
        rows = [(row, v) for (k2, row, v), w in content.items() if k2 == k for _ in range(w)]
        wanted.update({(k, *row): n for row, n in _top(rows, need, by_value).items()})
    return wanted


def _top(values: list[tuple[int, Any]], need: int, by_value: bool) -> Counter[Any]:
    """The rows of one partition whose rank, or dense rank, is at most `need`: nulls last, descending."""
    order = sorted({v for _, v in values}, key=lambda v: (v is None, -(v or 0)))
    kept: Counter[Any] = Counter()
    for i, v in enumerate(order):
        before = sum(order.index(other) < i for _, other in values)
        if (i if by_value else before) < need:
            kept.update((row, v) for row, other in values if other == v)
    return kept
