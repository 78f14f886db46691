"""Operators as they run in workers, without Spark: what they put out adds up to the result over all they took in."""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stage_cases import (
    I32,
    I64,
    SIDE,
    aggregate_batch,
    aggregate_stage,
    int64s,
    join_batch,
    preserve_stage,
    recompute_batch,
    sides,
)
from stage_task import MemoryTask, changed
from top_rows import TOP, TOP_OUTPUT, all_tops, take_top, top_batch

from headrace.dataflow.operators import preserve
from headrace.dataflow.operators.aggregate import AggregateStage
from headrace.dataflow.operators.group_changes import DistinctStage, GroupChanges, Sum
from headrace.dataflow.operators.join import LEFT, PAIR, RIGHT
from headrace.dataflow.operators.kept_values import Distinct, Ordered
from headrace.dataflow.operators.recompute import NEW, OLD, FirstRows, RecomputeStage
from headrace.errors import HeadraceError
from headrace.plan.tree import WEIGHT
from headrace.state.accumulators.counts import Count
from headrace.state.accumulators.doubles import DoubleSum
from headrace.state.accumulators.extremes import Greatest, Least
from headrace.state.accumulators.sums import SmallSum, WideSum
from headrace.state.kernels.order_code import OrderColumn
from headrace.state.schema import TableSchema
from support import examples

unhurried = settings(deadline=None, max_examples=examples(60))


def _bits(value: Any) -> Any:
    return struct.pack("d", value) if isinstance(value, float) else value


def _apply(bag: Counter[Any], batches: list[pa.RecordBatch], names: list[str]) -> None:
    """Add a delta to a relation; no row may be taken away that is not there."""
    for batch in batches:
        for *row, weight in zip(*(batch.column(n).to_pylist() for n in [*names, "__w"])):
            bag[tuple(map(_bits, row))] += weight
    for row in [r for r, w in bag.items() if not w]:
        del bag[row]
    assert all(w > 0 for w in bag.values()), bag


# -- grouping -----------------------------------------------------------------------------------------------------


GROUPED = st.lists(
    st.lists(st.tuples(st.sampled_from([None, 0, 1, 2]), st.sampled_from([None, 0, 1, 5]), st.booleans()), max_size=6),
    min_size=1,
    max_size=5,
)


@unhurried
@given(GROUPED, st.integers(1, 3), st.booleans())
def test_groups(epochs: list[list[tuple[Any, Any, bool]]], weak: int, is_global: bool) -> None:
    stage, task = aggregate_stage(SmallSum(I32), is_global), MemoryTask()
    content: Counter[tuple[Any, Any]] = Counter()
    view: Counter[Any] = Counter()
    for changes in epochs:
        delta = changed(content, (((g, x), add) for g, x, add in changes))
        batch = aggregate_batch(delta, False, weak, is_global) if delta else None
        _apply(view, task.epoch(stage, batch), ["o1", "o2"] if is_global else ["o0", "o1", "o2"])
        wanted: Counter[Any] = Counter()
        groups = [None] if is_global else {g for (g, _), w in content.items() if w}
        for group in groups:
            rows = [(x, w) for (g, x), w in content.items() if (is_global or g == group) and x is not None]
            count = sum(w for _, w in rows)
            values = (sum(x * w for x, w in rows) if count else None, count)
            wanted[values if is_global else (group, *values)] += 1
        assert view == wanted


VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "string": (pa.string(), ["", "a", "common prefix 1", "common prefix 2", "common prefix 10", "z"]),
    "double": (pa.float64(), [0.0, -1.5, math.nan, math.inf, -math.inf, 5e-324]),
    "decimal": (pa.decimal128(38, 2), [Decimal("-1.00"), Decimal("0.01"), Decimal("99999999999999999999.99")]),
    "boolean": (pa.bool_(), [False, True]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)]),
    "bigint": (pa.int64(), [-(2**63), -1, 0, 2**63 - 1]),
}


def _valued_stage(kind: pa.DataType, weak: int, is_global: bool) -> AggregateStage:
    """min(x), max(x), count(DISTINCT x), sum(DISTINCT y), count(y), by g."""
    key = () if is_global else (pa.field("g0", I32),)
    wide = pa.int64()
    diffs = [*WEIGHT, *Count().diffs("a2"), *WideSum(wide).diffs("a3"), *Count().diffs("a4")]
    ordered = TableSchema(key, (pa.field("v", kind),), WEIGHT)
    sums = (
        Sum(Least(kind), "a0", False, ordered=Ordered("ordered0", ordered, "a0_raw", False)),
        Sum(Greatest(kind), "a1", False, ordered=Ordered("ordered1", ordered, "a1_raw", True)),
        Sum(Count(), "a2", False, distinct=0, value="v0"),
        Sum(WideSum(wide), "a3", False, distinct=1, value="v0"),
        Sum(Count(), "a4", False),
    )
    distincts = (
        Distinct("distinct0", TableSchema((*key, pa.field("v0", kind)), (), WEIGHT), ("d0_0",), weak_hash=weak),
        Distinct("distinct1", TableSchema((*key, pa.field("v0", wide)), (), WEIGHT), ("d1_0",), weak_hash=weak),
    )
    output = pa.schema([*((f"o{i}", f.type) for i, f in enumerate(key)), ("lo", kind), ("hi", kind), ("cd", I64),
                        ("sd", I64), ("c", I64), ("__w", I64)])  # fmt: skip
    return AggregateStage("0", TableSchema(key, (), tuple(diffs)), sums, output, distincts)


@pytest.mark.parametrize("name", sorted(VALUES))
@settings(deadline=None, max_examples=examples(40))
@given(data=st.data(), weak=st.integers(1, 3), is_global=st.booleans())
def test_extrema_and_distinct_values(name: str, data: Any, weak: int, is_global: bool) -> None:
    """Under retraction, with groups and values that share hashes, beside a plain count."""
    kind, pool = VALUES[name]
    row = st.tuples(st.integers(0, 2), st.sampled_from([*pool, None]), st.sampled_from([None, 0, 1, -(2**40)]))
    epochs = data.draw(st.lists(st.lists(st.tuples(row, st.booleans()), max_size=8), min_size=1, max_size=5))
    stage, task = _valued_stage(kind, weak, is_global), MemoryTask()
    content: Counter[Any] = Counter()
    view: Counter[Any] = Counter()
    for changes in epochs:
        delta = changed(content, changes)
        columns = {"__k": int64s(0 if is_global else g % weak for g, *_ in delta), "__w": int64s(r[3] for r in delta)}
        if not is_global:
            columns["g0"] = pa.array([r[0] for r in delta], I32)
        x, y = pa.array([r[1] for r in delta], kind), int64s(r[2] for r in delta)
        columns |= {"a0_raw": x, "a1_raw": x, "d0_0": x, "d1_0": y}
        columns["a4_n"] = int64s(0 if r[2] is None else r[3] for r in delta)
        names = [f"o{i}" for i in range(not is_global)]
        batches = task.epoch(stage, pa.RecordBatch.from_pydict(columns) if delta else None)
        _apply(view, batches, [*names, "lo", "hi", "cd", "sd", "c"])
        wanted: Counter[Any] = Counter()
        for group in [None] if is_global else {g for (g, *_), w in content.items() if w}:
            live = [(x, y, w) for (g, x, y), w in content.items() if w and (is_global or g == group)]
            xs = sorted({x for x, _, _ in live if x is not None}, key=lambda v: (v != v, 0 if v != v else v))
            ys = {y for _, y, _ in live if y is not None}
            lo, hi = (xs[0], xs[-1]) if xs else (None, None)
            count = sum(w for _, y, w in live if y is not None)
            result = (_bits(lo), _bits(hi), len(xs), sum(ys) if ys else None, count)
            wanted[result if is_global else (group, *result)] += 1
        assert view == wanted


def _by_value_stages(weak: int, is_global: bool) -> tuple[DistinctStage, AggregateStage]:
    """count(*), count(DISTINCT x), the same for p, sum(DISTINCT x) for q, sum(DISTINCT y) for p, by g; y is double."""
    key = () if is_global else (pa.field("g0", I32),)
    count = Count()
    kinds = (
        (count, None, "__w"), (count, 0, "__w"), (count, 0, "w1"), (WideSum(I64), 0, "w2"), (DoubleSum(), 1, "__w")
    )  # fmt: skip
    diffs = [*WEIGHT]
    for i, (accumulator, _, _) in enumerate(kinds):
        diffs += accumulator.diffs(f"a{i}")
    groups = TableSchema(key, (), tuple(diffs))
    sums = tuple(
        Sum(accumulator, f"a{i}", False, distinct, "v0", weight)
        for i, (accumulator, distinct, weight) in enumerate(kinds)
    )
    three = (*WEIGHT, (pa.field("w1", I64), "add"), (pa.field("w2", I64), "add"))
    distincts = (
        Distinct("distinct0", TableSchema((*key, pa.field("v0", I64)), (), three), ("d0_0",), ("u0", "u1", "u2"), weak),
        Distinct("distinct1", TableSchema((*key, pa.field("v0", pa.float64())), (), WEIGHT), ("d1_0",), ("u0",), weak),
    )
    output = pa.schema([*((f"o{i}", f.type) for i, f in enumerate(key)), *((n, I64) for n in ("c", "cx", "cp", "sq")),
                        ("sy", pa.float64()), ("__w", I64)])  # fmt: skip
    first = DistinctStage("0", GroupChanges(groups, sums, distincts, keeps_values=True))
    return first, AggregateStage("0", groups, sums, output, changed=True)


def _by_value_batch(delta: list[tuple[Any, ...]], weak: int, is_global: bool) -> pa.RecordBatch:
    """Rows g, x, y, p, q, weight; each once for x and once for y."""
    rows = [(g, x, None, (w, w * p, w * q), w) for g, x, _, p, q, w in delta]
    rows += [(g, None, y if p else None, (w, 0, 0), 0) for g, _, y, p, _, w in delta]
    columns = {"__k": int64s(0 if is_global else r[0] % weak for r in rows), "__w": int64s(r[4] for r in rows)}
    if not is_global:
        columns["g0"] = pa.array([r[0] for r in rows], I32)
    columns |= {"d0_0": int64s(r[1] for r in rows), "d1_0": pa.array([r[2] for r in rows], pa.float64())}
    columns |= {f"u{i}": int64s(r[3][i] for r in rows) for i in range(3)} | {"a0_n": columns["__w"]}
    return pa.RecordBatch.from_pydict(columns)


DOUBLES = st.sampled_from([None, 0.1, 1e16, -3.0, math.inf, math.nan])
VALUED = st.tuples(
    st.integers(0, 2), st.sampled_from([None, 0, 7, -(2**40), 2**62]), DOUBLES, st.booleans(), st.booleans()
)


@settings(deadline=None, max_examples=examples(120))
@given(
    st.lists(st.lists(st.tuples(VALUED, st.booleans()), max_size=10), min_size=1, max_size=5),
    st.sampled_from([1, 3, 2**31]), st.booleans(), st.integers(1, 3),
)  # fmt: skip
def test_values_counted_once_before_groups_come_together(epochs: Any, weak: int, is_global: bool, tasks: int) -> None:
    """Under retraction, for several filters, in any number of tasks and ranges of keys."""
    (first, second), below, above = _by_value_stages(weak, is_global), MemoryTask(), MemoryTask()
    content: Counter[Any] = Counter()
    view: Counter[Any] = Counter()
    for changes in epochs:
        delta = changed(content, changes)
        rows, sent = _by_value_batch(delta, weak, is_global), list[pa.RecordBatch]()
        keys = first.keys(rows)
        for task in range(tasks):
            for negative in (True, False):
                mine = rows.filter(pa.array((keys % tasks == task) & ((keys < 0) == negative)))
                if mine.num_rows:
                    sent += below.epoch(first, mine)
                    written = [k for _, _, b in below.written for k in b.column("__k").to_pylist()]
                    assert all((k < 0) == negative for k in written), "ranges are written one after the other"
        batches = above.epoch(second, pa.concat_batches(sent) if sent else None)
        _apply(view, batches, [*(["o0"] if not is_global else []), "c", "cx", "cp", "sq", "sy"])
        wanted: Counter[Any] = Counter()
        for group in [None] if is_global else {r[0] for r, w in content.items() if w}:
            live = {r: w for r, w in content.items() if w and (is_global or r[0] == group)}
            ys = {str(y): y for _, _, y, p, _ in live if p and y is not None}
            summed = {x for _, x, _, _, q in live if q and x is not None}
            result = (sum(live.values()), len({x for _, x, *_ in live if x is not None}),
                      len({x for _, x, _, p, _ in live if p and x is not None}),
                      sum(summed) if summed else None, _bits(_exact_sum(ys.values())))  # fmt: skip
            wanted[result if is_global else (group, *result)] += 1
        assert view == wanted


def _exact_sum(values: Any) -> float | None:
    """The sum of doubles, rounded once."""
    found = list(values)
    if not found:
        return None
    return math.nan if any(map(math.isnan, found)) else math.fsum(found)


def test_distinct_values_are_not_taken_in_by_ranges_of_groups() -> None:
    """Their table is sorted by a key of its own, and must be written in order."""
    assert not _valued_stage(I64, 1, False).keyed
    assert aggregate_stage(SmallSum(I32)).keyed


def test_an_extremum_is_found_without_its_group() -> None:
    """Only the first values are asked for, however many there are."""
    stage, task = _valued_stage(I64, 1, True), MemoryTask()

    def epoch(rows: list[tuple[int, int]]) -> None:
        x, w = int64s(v for v, _ in rows), int64s(w for _, w in rows)
        columns = dict.fromkeys(("a0_raw", "a1_raw", "d0_0", "d1_0"), x)
        zeros = int64s(0 for _ in rows)
        task.epoch(stage, pa.RecordBatch.from_pydict({"__k": zeros, "__w": w, **columns, "a4_n": w}))

    epoch([(v, 1) for v in range(1000)])
    fetched = task.tables["ordered0"].fetched = []
    epoch([(0, -1), (5000, 1)])
    assert fetched == [2]


DOUBLE_RANGE = st.one_of(
    st.floats(), st.sampled_from([0.1, 1e308, 1.5e308, -1.5e308, 5e-324, -0.0, math.inf, -math.inf, math.nan])
)
HISTORY = st.lists(
    st.lists(
        st.one_of(
            st.tuples(st.just("in"), DOUBLE_RANGE, st.sampled_from([1, 1, 2, 3, 2**31, 2**40, 2**62])),
            st.tuples(st.just("out"), st.integers(0, 99), st.just(0)),
        ),
        max_size=6,
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=examples(200))
@given(HISTORY)
def test_sums_of_doubles_are_those_of_the_rows_that_are_left(epochs: list[list[tuple[str, Any, int]]]) -> None:
    """Over the whole range of doubles and any history: what was there before leaves no trace."""
    stage, task = aggregate_stage(DoubleSum()), MemoryTask()
    view: Counter[Any] = Counter()
    live: list[tuple[float, int]] = []
    for changes in epochs:
        delta = []
        for what, x, weight in changes:
            if what == "in" and sum(w for _, w in live) + weight < 2**63:
                live.append((x, weight))
                delta.append((1, x, weight))
            elif what == "out" and live:
                x, weight = live.pop(x % len(live))
                delta.append((1, x, -weight))
        batch = aggregate_batch(delta, True, 1) if delta else None
        _apply(view, task.epoch(stage, batch), ["o0", "o1", "o2"])
        wanted = Counter([(1, _bits(weighted_sum(live)), sum(w for _, w in live))] if live else [])
        assert view == wanted
    rest = aggregate_batch([(1, x, -w) for x, w in live], True, 1) if live else None
    _apply(view, task.epoch(stage, rest), ["o0", "o1", "o2"])
    assert not view and not any(t.content().num_rows for t in task.tables.values())


def weighted_sum(rows: list[tuple[float, int]]) -> float:
    """The sum of doubles, each as often as its weight says, rounded once."""
    special = {repr(x) for x, _ in rows if not math.isfinite(x)}
    if special:
        return float(special.pop()) if len(special) == 1 else math.nan
    total = sum((Fraction(x) * w for x, w in rows), Fraction())
    try:
        return total.numerator / total.denominator
    except OverflowError:
        return math.inf if total > 0 else -math.inf


@pytest.mark.parametrize(
    ("there", "gone", "left"),
    [
        ([1e308, 1.5e308], [1.5e308], 1e308),
        ([0.5, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1], 0.5),
        ([1e300, 1.0, 1e-300], [1e300, 1.0], 1e-300),
        ([1e16, 1.0, -1e16, math.nan, math.inf], [math.nan, math.inf], 1.0),
        ([5e-324, 1.7976931348623157e308], [1.7976931348623157e308], 5e-324),
    ],
)
def test_a_sum_of_doubles_after_rows_have_gone(there: list[float], gone: list[float], left: float) -> None:
    stage, task = aggregate_stage(DoubleSum()), MemoryTask()
    view: Counter[Any] = Counter()
    _apply(view, task.epoch(stage, aggregate_batch([(1, x, 1) for x in there], True, 1)), ["o1"])
    for x in gone:
        _apply(view, task.epoch(stage, aggregate_batch([(1, x, -1)], True, 1)), ["o1"])
    assert view == Counter([(_bits(left),)])


def test_a_sum_that_comes_back_to_zero_is_zero() -> None:
    """A weight of many rows is taken back one by one, and `HAVING sum(x) > 0` sees nothing that is left."""
    stage, task = aggregate_stage(DoubleSum()), MemoryTask()
    view: Counter[Any] = Counter()
    _apply(view, task.epoch(stage, aggregate_batch([(1, 0.1, 3), (1, 0.0, 1)], True, 1)), ["o1"])
    for _ in range(3):
        _apply(view, task.epoch(stage, aggregate_batch([(1, 0.1, -1)], True, 1)), ["o1"])
    assert view == Counter([(_bits(0.0),)])


# -- joins --------------------------------------------------------------------------------------------------------

CHANGES = st.lists(
    st.lists(
        st.tuples(st.integers(0, 1), st.sampled_from([None, 0, 1, 2]), st.integers(0, 2), st.booleans()), max_size=7
    ),
    min_size=1,
    max_size=5,
)


def _row(key: Any, value: int) -> int:
    """A value that tells its key too: rows of a preserved side are counted by what they hold."""
    return value + 10 * (3 if key is None else key)


def _joined(content: Counter[tuple[int, Any, int]]) -> Counter[tuple[int, int]]:
    pairs: Counter[tuple[int, int]] = Counter()
    for (s, key, x), w in content.items():
        for (s2, key2, y), w2 in content.items():
            if s == 0 and s2 == 1 and key is not None and key == key2:
                pairs[x, y] += w * w2
    return +pairs


@unhurried
@given(CHANGES, st.integers(1, 3))
def test_inner_joins(epochs: list[list[tuple[int, Any, int, bool]]], weak: int) -> None:
    stage, task = sides((False, False)), MemoryTask()
    content: Counter[Any] = Counter()
    view: Counter[Any] = Counter()
    for changes in epochs:
        before = set(_joined(content))
        delta = changed(content, (((s, key, _row(key, v)), add) for s, key, v, add in changes))
        batches = task.epoch(stage, join_batch(delta, weak) if delta else None)
        made = {pair for b in batches for pair in zip(b.column("o0").to_pylist(), b.column("o1").to_pylist())}
        _apply(view, batches, ["o0", "o1"])
        assert view == _joined(content)
        assert made <= before | set(view), "a pair that is in neither result"


def _counted(task: MemoryTask, stage: preserve.PreserveStage, batches: list[pa.RecordBatch], weak: int) -> Any:
    if not batches:
        return task.epoch(stage, None)
    rows = pa.concat_batches(batches)
    k = int64s((v or 0) % weak for v in rows.column(stage.own[0]).to_pylist())
    names = ["__w", "__t", "o0", "o1"]
    return task.epoch(stage, pa.RecordBatch.from_arrays([k, *(rows.column(n) for n in names)], names=["__k", *names]))


def _wanted(mode: str, content: Counter[Any]) -> Counter[Any]:
    pairs, found = _joined(content), Counter[Any]()
    for (s, _, x), w in (+content).items():
        matched = any(x == p[s] for p in pairs)
        if mode == "existence" and s == 0:
            found[x, matched] += w
        elif s == 0 and ((mode == "semi" and matched) or (mode == "anti" and not matched)):
            found[(x,)] += w
        elif not matched and ((mode in ("left", "full") and s == 0) or (mode == "full" and s == 1)):
            found[(x, None) if s == 0 else (None, x)] += w
    return found + pairs if mode in ("left", "full") else found


@pytest.mark.parametrize("mode", ["left", "full", "semi", "anti", "existence"])
@unhurried
@given(epochs=CHANGES, weak=st.integers(1, 3))
def test_outer_joins(mode: str, epochs: list[list[tuple[int, Any, int, bool]]], weak: int) -> None:
    join, tasks = sides((True, mode == "full")), [MemoryTask(), MemoryTask(), MemoryTask()]
    outer = mode in ("left", "full")
    first = preserve_stage("outer" if outer else mode, "left_matches", "o0", LEFT)
    second = preserve_stage("outer", "right_matches", "o1", RIGHT)
    content: Counter[Any] = Counter()
    view: Counter[Any] = Counter()
    for changes in epochs:
        delta = changed(content, (((s, key, _row(key, v)), add) for s, key, v, add in changes))
        batches = tasks[0].epoch(join, join_batch(delta, weak) if delta else None)
        assert all(set(b.column("__t").to_pylist()) <= {PAIR, LEFT, RIGHT} for b in batches)
        batches = _counted(tasks[1], first, batches, weak)
        if mode == "full":
            batches = _counted(tasks[2], second, batches, weak)
        _apply(view, batches, {"existence": ["o0", "exists"]}.get(mode, ["o0", "o1"] if outer else ["o0"]))
        assert view == _wanted(mode, content)


# -- group recompute ----------------------------------------------------------------------------------------------


PARTITIONED = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans()), max_size=6), min_size=1, max_size=5
)


@unhurried
@given(PARTITIONED, st.integers(1, 4), st.booleans())
def test_recompute_shows_both_versions(epochs: list[list[tuple[int, int, bool]]], weak: int, phantom: bool) -> None:
    fields = [("v0", I32), ("__side", I32), *([("__row", pa.bool_())] if phantom else [])]
    stage, task = RecomputeStage("0", SIDE, phantom, pa.schema(fields)), MemoryTask()
    content: Counter[tuple[int, int]] = Counter()
    for i, changes in enumerate(epochs):
        before = +content
        delta = changed(content, (((k, v), add) for k, v, add in changes))
        batches = task.epoch(stage, recompute_batch(delta, weak) if delta else None)
        sides: dict[int, Counter[Any]] = {OLD: Counter(), NEW: Counter()}
        ghosts: Counter[int] = Counter()
        for b in batches:
            there = b.column("__row").to_pylist() if phantom else [True] * b.num_rows
            for v, side, row in zip(b.column("v0").to_pylist(), b.column("__side").to_pylist(), there):
                if row:
                    sides[side][v] += 1
                else:
                    ghosts[side] += 1
        differing = {k for k, v in before.keys() | content.keys() if before[k, v] != content[k, v]}
        touched = {k % weak for k in differing}
        for side, relation in ((OLD, before), (NEW, +content)):
            wanted: Counter[int] = Counter()
            for (k, v), w in relation.items():
                if k % weak in touched:
                    wanted[v] += w
            assert sides[side] == wanted
        if phantom:
            assert ghosts == Counter({NEW: 1} if i == 0 else {OLD: 1, NEW: 1} if differing else {})


@unhurried
@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 2), st.integers(0, 3), st.sampled_from([None, 0, 1, 2, 5]), st.booleans()),
            max_size=9,
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 3),
    st.integers(1, 3),
    st.booleans(),
)
def test_recompute_of_the_first_rows(epochs: list[Any], weak: int, need: int, by_value: bool) -> None:
    """Ranks within the bound, taken over what comes out, change as those taken over everything."""
    first = FirstRows(need, by_value, (("v2", OrderColumn(True, False)),))
    stage, task = RecomputeStage("0", TOP, False, TOP_OUTPUT, first), MemoryTask()
    content: Counter[tuple[int, int, Any]] = Counter()
    view: Counter[Any] = Counter()
    for changes in epochs:
        delta = changed(content, (((k, row, v), add) for k, row, v, add in changes))
        take_top(view, task.epoch(stage, top_batch(delta, weak)), need, by_value)
        assert {r: n for r, n in view.items() if n} == all_tops(content, need, by_value)


def test_recompute_of_the_first_rows_says_nothing_of_the_others() -> None:
    schema = TableSchema((), (pa.field("v0", I32),), WEIGHT)
    first = FirstRows(2, False, (("v0", OrderColumn()),))
    stage, task = RecomputeStage("0", schema, False, pa.schema([("v0", I32), ("__side", I32)]), first), MemoryTask()

    def epoch(*rows: tuple[int, int]) -> list[tuple[int, int]]:
        columns = {"__k": int64s(0 for _ in rows), "__w": int64s(w for _, w in rows)}
        batch = pa.RecordBatch.from_pydict({**columns, "v0": pa.array([v for v, _ in rows], I32)})
        return sorted(
            (r["v0"], -1 if r["__side"] == OLD else 1) for b in task.epoch(stage, batch) for r in b.to_pylist()
        )

    assert epoch((1, 1), (2, 1), (3, 1)) == [(1, 1), (2, 1)]
    assert epoch((4, 1), (3, -1), (5, 1)) == []
    assert epoch((1, -1)) == [(1, -1), (2, -1), (2, 1), (4, 1)]


def test_recompute_refuses_to_remove_what_is_not_there() -> None:
    fields = pa.schema([("v0", I32), ("__side", I32)])
    with pytest.raises(HeadraceError, match="does not have"):
        MemoryTask().epoch(RecomputeStage("0", SIDE, False, fields), recompute_batch([(1, 1, -1)], 4))


def test_a_hash_decides_nothing() -> None:
    """Rows of other keys under the same hash stay where they are."""
    stage, task = aggregate_stage(SmallSum(I32)), MemoryTask()
    task.epoch(stage, aggregate_batch([(1, 5, 1), (2, 7, 1)], False, 1))
    out = task.epoch(stage, aggregate_batch([(2, 7, -1)], False, 1))
    assert [(b.column("o0").to_pylist(), b.column("__w").to_pylist()) for b in out] == [([2], [-1])]
    assert np.asarray(task.tables["groups"].fetch(np.array([0])).column("__w")).tolist() == [1]
