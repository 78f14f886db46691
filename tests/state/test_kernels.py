from __future__ import annotations

import math
import struct
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import NotSupported
from headrace.state.kernels import (
    concat,
    conform,
    consolidate,
    exact_sum,
    group_rows,
    in_row_order,
    match,
    rows_equal,
    sort_order,
    sort_rows,
    take,
)
from headrace.state.schema import TableSchema
from support import examples

FLOATS = st.one_of(st.sampled_from([0.0, -0.0, math.nan, -math.nan, math.inf, 1.5]), st.floats(width=32))
SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-2, 2)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)])),
    (pa.float32(), FLOATS),
    (pa.float64(), FLOATS),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.one_of(st.sampled_from(["", "a", "ab", "b", "é", "e\u0301", "𝄞"]), st.text(max_size=3))),
    (pa.binary(), st.binary(max_size=2)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.timestamp("us", tz="UTC"), st.datetimes()),
    (pa.decimal128(38, 4), st.integers(-(10**37), 10**37).map(lambda i: Decimal(i).scaleb(-4))),
    (pa.decimal128(5, 2), st.integers(-3, 3).map(lambda i: Decimal(i).scaleb(-2))),
    (pa.null(), st.none()),
]


def _nest(inner: tuple[pa.DataType, st.SearchStrategy[Any]]) -> list[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    kind, values = inner
    nullable = st.none() | values
    lists = st.lists(nullable, max_size=3)
    return [
        (pa.list_(kind), lists),
        (pa.large_list(kind), lists),
        (pa.list_(kind, 2), st.lists(nullable, min_size=2, max_size=2)),
        (
            pa.struct([("a", kind), ("b", pa.int32())]),
            st.fixed_dictionaries({"a": nullable, "b": st.sampled_from([1, None])}),
        ),
        (pa.map_(pa.string(), kind), st.lists(st.tuples(st.sampled_from("xy"), nullable), max_size=2)),
    ]


NESTED = [n for s in SCALARS for n in _nest(s)]
DEEP = [n for s in (NESTED[3], NESTED[20], NESTED[34]) for n in _nest(s)]


def canonical(value: Any) -> Any:
    """A hashable value, equal exactly where the kernels say equal."""
    if isinstance(value, float):
        return ("f", "nan") if value != value else ("f", struct.pack("d", value))
    if isinstance(value, dict):
        return tuple((k, canonical(v)) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return ("l", *(canonical(v) for v in value))
    return value


@st.composite
def typed_arrays(draw: st.DrawFn, types: list[tuple[pa.DataType, st.SearchStrategy[Any]]]) -> pa.Array:
    kind, values = draw(st.sampled_from(types))
    pool = draw(st.lists(st.none() | values, min_size=1, max_size=5))
    rows = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=40))
    array = pa.array(rows, type=kind)
    start = draw(st.integers(0, len(rows) - 1))
    return array.slice(start, draw(st.integers(1, len(rows) - start)))


@pytest.mark.parametrize("types", [SCALARS, NESTED, DEEP], ids=["scalars", "nested", "deep"])
@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_rows_equal_is_exact_for_every_type(types: Any, data: st.DataObject) -> None:
    array = data.draw(typed_arrays(types))
    n = len(array)
    li, ri = (np.repeat(np.arange(n), n), np.tile(np.arange(n), n))
    values = [canonical(v) for v in array.to_pylist()]
    assert rows_equal([array], li, [array], ri).tolist() == [values[i] == values[j] for i in range(n) for j in range(n)]
    if n > 1:
        neighbours = rows_equal([array], slice(0, n - 1), [array], slice(1, n))
        assert neighbours.tolist() == [values[i] == values[i + 1] for i in range(n - 1)]


def test_rows_equal_refuses_different_types() -> None:
    one = np.array([0])
    with pytest.raises(TypeError):
        rows_equal([pa.array([1], pa.int32())], one, [pa.array([1.0])], one)


def test_nan_of_any_bits_is_one_value() -> None:
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000001, 0x7FF0000000000001], dtype=np.uint64)
    array = pa.array(bits.view(np.float64))
    assert rows_equal([array], np.array([0, 1]), [array], np.array([1, 2])).all()


def test_a_null_hides_what_stands_in_its_place() -> None:
    array = pa.array([1, 2, 2], mask=np.array([True, True, False]))
    assert rows_equal([array], np.array([0, 1]), [array], np.array([1, 2])).tolist() == [True, False]
    lists = pa.ListArray.from_arrays([0, 1, 3], pa.array([1, 2, 3]), mask=pa.array([True, True]))
    assert rows_equal([lists], np.array([0]), [lists], np.array([1])).all()


def _schema(key: list[pa.DataType], value: list[pa.DataType], diffs: list[tuple[str, pa.DataType, str]]) -> TableSchema:
    return TableSchema(
        tuple(pa.field(f"k{i}", t) for i, t in enumerate(key)),
        tuple(pa.field(f"v{i}", t) for i, t in enumerate(value)),
        tuple((pa.field(name, t), how) for name, t, how in diffs),  # type: ignore[misc]
    )


def _weak(values: Any, buckets: int) -> int:
    return hash(repr(values)) % buckets


@st.composite
def weighted_tables(draw: st.DrawFn) -> tuple[pa.RecordBatch, TableSchema]:
    """A batch with hashes that collide as often as can be."""
    kinds = draw(st.lists(st.sampled_from(SCALARS + NESTED[:20] + DEEP[:5]), min_size=1, max_size=3))
    split = draw(st.integers(0, len(kinds)))
    schema = _schema([k for k, _ in kinds[:split]], [k for k, _ in kinds[split:]], [("__w", pa.int64(), "add")])
    pool = draw(st.lists(st.tuples(*(st.none() | v for _, v in kinds)), min_size=1, max_size=6))
    rows = draw(st.lists(st.tuples(st.sampled_from(pool), st.integers(-2, 2), st.integers(1, 3)), max_size=40))
    buckets = draw(st.sampled_from([1, 2, 1000]))
    arrays = [pa.array([_weak(canonical(r[:split]), buckets) for r, _, _ in rows], pa.int64())]
    if schema.has_row_hash:
        arrays.append(pa.array([_weak(canonical(r), buckets) for r, _, _ in rows], pa.int64()))
    arrays += [pa.array([r[i] for r, _, _ in rows], kind) for i, (kind, _) in enumerate(kinds)]
    arrays += [pa.array([w for _, w, _ in rows], pa.int64()), pa.array([e for _, _, e in rows], pa.int64())]
    return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow(with_epoch=True)), schema


def _counts(batch: pa.RecordBatch, schema: TableSchema, *, by_epoch: bool) -> Counter[Any]:
    data = [c.to_pylist() for c in batch.columns]
    result: Counter[Any] = Counter()
    for row in zip(*data, strict=True):
        epoch = row[schema.width] if by_epoch else None
        result[canonical(row[schema.data_start : schema.diff_start]), epoch] += row[schema.diff_start]
    return Counter({k: w for k, w in result.items() if w})


@settings(max_examples=examples(300), deadline=None)
@given(weighted_tables(), st.booleans())
def test_consolidate_is_exact_whatever_the_hash(table: tuple[pa.RecordBatch, TableSchema], by_epoch: bool) -> None:
    batch, schema = table
    result = consolidate(batch, schema, by_epoch=by_epoch)
    assert result.schema == schema.arrow(with_epoch=by_epoch)
    assert _counts(result, schema, by_epoch=by_epoch) == _counts(batch, schema, by_epoch=by_epoch)
    assert result.num_rows == len(_counts(batch, schema, by_epoch=by_epoch))
    keys = list(zip(*(c.to_pylist() for c in result.columns[: schema.data_start]), strict=True))
    assert keys == sorted(keys)


def test_a_constant_hash_is_exact_for_many_rows() -> None:
    rng = np.random.default_rng(5)
    schema = _schema([pa.int64()], [pa.list_(pa.int32())], [("__w", pa.int64(), "add")])
    key, value, weight = rng.integers(0, 20, 5000), rng.integers(0, 20, 5000), rng.integers(-1, 2, 5000)
    zero = pa.array(np.zeros(5000, dtype=np.int64))
    lists = pa.array([[int(v)] for v in value], pa.list_(pa.int32()))
    batch = pa.RecordBatch.from_arrays([zero, zero, pa.array(key), lists, pa.array(weight)], schema=schema.arrow())
    result = consolidate(batch, schema)
    assert _counts(result, schema, by_epoch=False) == _counts(batch, schema, by_epoch=False)
    assert result.num_rows == len(_counts(batch, schema, by_epoch=False))


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 1), st.integers(0, 2)), max_size=50))
def test_sort_order_is_stable(rows: list[tuple[int, int, int]]) -> None:
    schema = _schema([], [pa.int64()], [("__w", pa.int64(), "add")])
    k, h, e = (pa.array([r[i] for r in rows], pa.int64()) for i in range(3))
    position = pa.array(range(len(rows)), pa.int64())
    batch = pa.RecordBatch.from_arrays([k, h, position, position, e], schema=schema.arrow(with_epoch=True))
    order = sort_order(batch, schema)
    expected = sorted(range(len(rows)), key=lambda i: rows[i])
    assert order.tolist() == expected
    assert sort_rows(batch, schema).column(2).to_pylist() == expected


ORDERED = [s for s in SCALARS if s[0] != pa.null()] + [(pa.list_(pa.int64()), st.lists(st.integers(0, 2), max_size=2))]


def _order_key(value: Any) -> Any:
    if isinstance(value, float):
        return (value != value, value, math.copysign(1, value))
    return value


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 1), st.integers(0, 1), st.integers(0, 9)), max_size=30), st.randoms())
def test_rows_that_tie_have_an_order_of_their_own(rows: list[tuple[int, int, int]], random: Any) -> None:
    """However they come, and whether others are among them or not."""
    schema = TableSchema((), (pa.field("v", pa.int64()),), ((pa.field("__w", pa.int64(), nullable=False), "add"),))

    def ordered(rows: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        columns = {n: pa.array([r[i] for r in rows], pa.int64()) for i, n in enumerate(("__k", "__h", "v"))}
        batch = pa.RecordBatch.from_pydict({**columns, "__w": pa.array([1] * len(rows), pa.int64())})
        found = take(batch, in_row_order(batch, sort_order(batch, schema), schema)).to_pylist()
        return [(r["__k"], r["__h"], r["v"]) for r in found]

    once = ordered(rows)
    assert [r[:2] for r in once] == sorted(r[:2] for r in rows) and sorted(once) == sorted(rows)
    assert ordered(random.sample(rows, len(rows))) == once
    assert ordered([r for r in rows if r[2] % 2]) == [r for r in once if r[2] % 2]


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_min_and_max_ignore_nulls(data: st.DataObject) -> None:
    kind, values = data.draw(st.sampled_from(ORDERED))
    rows = data.draw(st.lists(st.tuples(st.integers(0, 3), st.none() | values), max_size=30))
    diffs = [("lo", kind, "min"), ("hi", kind, "max")]
    schema = _schema([pa.int64()], [], diffs)
    array = pa.array([v for _, v in rows], kind)
    keys = pa.array([k for k, _ in rows], pa.int64())
    result = consolidate(pa.RecordBatch.from_arrays([keys, keys, array, array], schema=schema.arrow()), schema)
    by_key: dict[int, list[Any]] = {}
    for (k, _), v in zip(rows, array.to_pylist(), strict=True):
        by_key.setdefault(k, []).append(v)
    for k, lo, hi in zip(*(result.column(i).to_pylist() for i in (1, 2, 3)), strict=True):
        present = sorted((v for v in by_key.pop(k) if v is not None), key=_order_key)
        expected = (present[0], present[-1]) if present else (None, None)
        assert canonical((lo, hi)) == canonical(expected)
    assert not by_key


EXACT = _schema([pa.int64()], [], [("n", pa.int64(), "add"), ("s", exact_sum.EXACT_TYPE, "exact")])


def _sums(keys: list[int], counts: list[int], values: list[float]) -> dict[int, float]:
    k = pa.array(keys, pa.int64())
    arrays = [k, k, pa.array(counts, pa.int64()), exact_sum.of_doubles(np.array(values))]
    result = consolidate(pa.RecordBatch.from_arrays(arrays, schema=EXACT.arrow()), EXACT)
    return dict(zip(result.column("k0").to_pylist(), exact_sum.rounded(result.column("s")).tolist(), strict=True))


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.floats(-1e200, 1e200)), min_size=1, max_size=60))
def test_sums_of_doubles_are_rounded_once(rows: list[tuple[int, float]]) -> None:
    for key, found in _sums([k for k, _ in rows], [1] * len(rows), [x for _, x in rows]).items():
        assert found == math.fsum(x for k, x in rows if k == key)


def test_a_sum_of_doubles_takes_back_what_was_added() -> None:
    rng = np.random.default_rng(3)
    values = (rng.random(999) * 10.0 ** rng.integers(-300, 300, 999)).tolist()
    values += [-v for v in values] + [0.125]
    assert _sums([7] * len(values), [1] * len(values), values) == {7: 0.125}


def test_a_sum_that_moves_under_an_unchanged_count_is_kept() -> None:
    assert _sums([1, 1, 2, 2], [1, -1, 1, -1], [7.5, -5.0, 3.0, -3.0]) == {1: 2.5}


def test_sums_of_doubles_whose_hashes_collide() -> None:
    k = pa.array([0] * 4, pa.int64())
    columns = [k, pa.array([1, 2, 1, 2]), pa.array([1] * 4), exact_sum.of_doubles(np.array([1.0, 10.0, 2.0, 20.0]))]
    result = consolidate(pa.RecordBatch.from_arrays(columns, schema=EXACT.arrow()), EXACT)
    totals = exact_sum.rounded(result.column("s")).tolist()
    assert dict(zip(result.column("k0").to_pylist(), totals, strict=True)) == {1: 3.0, 2: 30.0}


def test_state_of_another_version_is_not_combined() -> None:
    """Sums of doubles were pairs of doubles once; they must not be taken for something else, by a merge say."""
    old: Any = _schema([pa.int64()], [], [("n", pa.int64(), "add"), ("s", pa.float64(), "twosum")])
    assert not old.combinable and EXACT.combinable
    with pytest.raises(NotSupported, match="earlier version"):
        consolidate(pa.record_batch([[1, 1], [1, 1], [1, 1], [0.5, 0.5]], schema=old.arrow()), old)


def test_rows_stay_while_one_add_diff_is_not_zero() -> None:
    schema = _schema([pa.int64()], [], [("a", pa.int64(), "add"), ("b", pa.int64(), "add"), ("m", pa.int64(), "max")])
    columns = [[1, 1, 2, 2, 3], [1, 1, 2, 2, 3], [1, -1, 1, -1, 0], [2, -1, 3, -3, 0], [5, 6, 7, 8, 9]]
    result = consolidate(pa.record_batch(columns, schema=schema.arrow()), schema)
    assert result.to_pylist() == [{"__k": 1, "k0": 1, "a": 0, "b": 1, "m": 6}]


@given(st.lists(st.integers(-3, 3), max_size=20), st.lists(st.integers(-3, 3), max_size=20))
def test_match_finds_all_pairs(left: list[int], right: list[int]) -> None:
    right = sorted(right)
    li, ri = match(np.array(left, dtype=np.int64), np.array(right, dtype=np.int64))
    expected = [(i, j) for i, a in enumerate(left) for j, b in enumerate(right) if a == b]
    assert list(zip(li.tolist(), ri.tolist(), strict=True)) == expected


def test_nothing_in_nothing_out() -> None:
    schema = _schema([pa.string()], [pa.list_(pa.int64())], [("__w", pa.int64(), "add"), ("m", pa.string(), "min")])
    empty = concat([], schema.arrow(with_epoch=True))
    assert take(empty, np.zeros(0, dtype=np.int64)).num_rows == 0
    assert consolidate(empty, schema).schema == schema.arrow()
    assert len(group_rows(empty, schema).starts) == 0


def test_conform_renames_and_casts() -> None:
    batch = pa.record_batch({"a": pa.array([[1]], pa.list_(pa.field("item", pa.int32(), nullable=False)))})
    schema = pa.schema([pa.field("b", pa.list_(pa.field("element", pa.int32())))])
    assert conform(batch, schema).schema == schema
    assert conform(batch, schema).to_pylist() == [{"b": [1]}]
    with pytest.raises(ValueError, match="1 columns where 0"):
        conform(batch, pa.schema([]))


def test_a_null_is_no_rival_of_the_extreme_value() -> None:
    low, high = -(2**63), 2**63 - 1
    schema = _schema([pa.int64()], [], [("lo", pa.int64(), "min"), ("hi", pa.int64(), "max")])
    keys = pa.array([1, 1, 2, 2])
    least, most = pa.array([None, high, None, None], pa.int64()), pa.array([None, low, None, None], pa.int64())
    result = consolidate(pa.RecordBatch.from_arrays([keys, keys, least, most], schema=schema.arrow()), schema)
    assert result.to_pydict() == {"__k": [1, 2], "k0": [1, 2], "lo": [high, None], "hi": [low, None]}
