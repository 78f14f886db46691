"""Stages of operators, and batches for them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.dataflow.operators import preserve
from headrace.dataflow.operators.aggregate import AggregateStage
from headrace.dataflow.operators.group_changes import Sum
from headrace.dataflow.operators.join import JoinStage, Side
from headrace.plan.tree import WEIGHT
from headrace.state.accumulators import Accumulator
from headrace.state.schema import TableSchema

I32, I64 = pa.int32(), pa.int64()
SIDE = TableSchema((pa.field("k0", I32),), (pa.field("v0", I32),), WEIGHT)
IDENTITY = TableSchema((pa.field("v0", I32),), (), (*WEIGHT, (pa.field("matches", I64), "add")))


def int64s(values: Any) -> pa.Array:
    return pa.array(list(values), I64)


def aggregate_stage(accumulator: Accumulator, is_global: bool = False) -> AggregateStage:
    diffs = [*WEIGHT, *accumulator.diffs("a0")]
    key = () if is_global else (pa.field("g0", I32),)
    output = pa.schema([*(() if is_global else (("o0", I32),)), ("o1", accumulator.result), ("o2", I64), ("__w", I64)])
    return AggregateStage("0", TableSchema(key, (), tuple(diffs)), (Sum(accumulator, "a0", True),), output)


def aggregate_batch(rows: list[tuple[Any, Any, int]], raw: bool, weak: int, is_global: bool = False) -> pa.RecordBatch:
    weights = int64s(w for *_, w in rows)
    columns = {"__k": int64s(0 if is_global else (g or 0) % weak for g, *_ in rows), "__w": weights}
    if not is_global:
        columns["g0"] = pa.array([g for g, *_ in rows], I32)
    if raw:
        columns["a0_raw"] = pa.array([x for _, x, _ in rows], pa.float64())
    else:
        columns["a0_n"] = int64s(0 if x is None else w for _, x, w in rows)
        columns["a0_s"] = int64s((x or 0) * w for _, x, w in rows)
    return pa.RecordBatch.from_pydict(columns)


def join_batch(rows: list[tuple[int, Any, int, int]], weak: int) -> pa.RecordBatch:
    k = [0 if key is None else key % weak for _, key, _, _ in rows]
    return pa.RecordBatch.from_pydict(
        {
            "__s": pa.array([s for s, *_ in rows], I32),
            "__k": int64s(k),
            "__h": int64s((h * 7 + v) % weak for h, (_, _, v, _) in zip(k, rows)),
            "__w": int64s(w for *_, w in rows),
            "k0": pa.array([key for _, key, _, _ in rows], I32),
            "s0": pa.array([v for _, _, v, _ in rows], I32),
        }
    )


def sides(preserved: tuple[bool, bool]) -> JoinStage:
    fields = [("o0", I32), ("o1", I32), ("__w", I64), *([("__t", I32)] if any(preserved) else [])]
    left, right = (Side(n, SIDE, (0,), p) for n, p in zip(("left", "right"), preserved))
    return JoinStage("0", left, right, pa.schema(fields))


def preserve_stage(mode: Any, table: str, own: str, tag: int) -> preserve.PreserveStage:
    fields: list[Any] = [("o0", I32)]
    if mode == "outer":
        fields += [("o1", I32), ("__w", I64), ("__t", I32)]
    else:
        fields += [*([("exists", pa.bool_())] if mode == "existence" else []), ("__w", I64)]
    return preserve.PreserveStage("0", table, IDENTITY, (own,), tag, mode, pa.schema(fields))


def recompute_batch(rows: list[tuple[int, int, int]], weak: int) -> pa.RecordBatch:
    columns = {"__k": [k % weak for k, *_ in rows], "__h": [(k + v) % weak for k, v, _ in rows]}
    batch = {n: int64s(c) for n, c in columns.items()} | {"__w": int64s(w for *_, w in rows)}
    batch["k0"] = pa.array([k for k, *_ in rows], I32)
    batch["v0"] = pa.array([v for _, v, _ in rows], I32)
    return pa.RecordBatch.from_pydict(batch)
