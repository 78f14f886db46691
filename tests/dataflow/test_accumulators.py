"""Accumulators against Python's own arithmetic, which has no limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from operator import and_, or_, xor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import NumericOutOfRange
from headrace.plan.tree import WEIGHT
from headrace.state.accumulators import can_preaggregate, counted, read, state_diffs, to_diffs, wire_columns
from headrace.state.kernels import concat, consolidate
from headrace.state.schema import TableSchema

LIMB = 1 << 32


def _sent(kind: str, values: Sequence[Any], weights: Sequence[int], argument: pa.DataType) -> list[pa.Array]:
    """What the rows send: the Python twin of the expressions that run in Spark."""
    if wire_columns(kind) == ("raw",):
        return [pa.array(values, argument)]
    columns: dict[str, list[int]] = {"n": [w if v is not None else 0 for v, w in zip(values, weights)]}
    if kind == "sum_small":
        columns["s"] = [(v or 0) * w for v, w in zip(values, weights)]
    if kind == "sum_wide":
        whole = [_unscaled(v, argument) for v in values]
        columns["0"] = [(v % LIMB) * w for v, w in zip(whole, weights)]
        columns["1"] = [(v >> 32) * w for v, w in zip(whole, weights)]
    return [pa.array(columns[c], pa.int64()) for c in wire_columns(kind)]


def _unscaled(value: Any, kind: pa.DataType) -> int:
    if value is None:
        return 0
    return int(value.scaleb(kind.scale)) if pa.types.is_decimal(kind) else int(value)


def _total(kind: str, values: Sequence[Any], weights: Sequence[int], argument: pa.DataType) -> list[pa.Array]:
    """The diffs of all rows combined as a state table combines them."""
    diffs = state_diffs(kind, argument, "a")
    schema = TableSchema((), (), ((pa.field("__w", pa.int64()), "add"), *diffs))
    sent = to_diffs(kind, _sent(kind, values, weights, argument), np.array(weights, dtype=np.int64))
    ones = pa.array([1] * len(values), pa.int64())  # keeps the row whatever the sums are
    arrays = [pa.array([0] * len(values), pa.int64()), ones, *sent]
    batch = consolidate(pa.RecordBatch.from_arrays(arrays, schema=schema.arrow()), schema)
    assert batch.num_rows == 1
    return [batch.column(f.name) for f, _ in diffs]


def _weighted(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[tuple[Any, int]]]:
    return st.lists(st.tuples(st.one_of(values, st.none()), st.integers(-3, 3)), min_size=1, max_size=20)


def _split(rows: list[tuple[Any, int]]) -> tuple[list[Any], list[int], int, Any]:
    values, weights = [v for v, _ in rows], [w for _, w in rows]
    count = sum(w for v, w in rows if v is not None)
    return values, weights, count, sum(v * w for v, w in rows if v is not None)


@settings(deadline=None)
@given(_weighted(st.integers(-(2**31), 2**31 - 1)))
def test_small_integers(rows: list[tuple[int | None, int]]) -> None:
    values, weights, count, total = _split(rows)
    diffs = _total("sum_small", values, weights, pa.int32())
    assert counted("sum_small", diffs).to_pylist() == [count]
    assert read("sum_small", diffs, pa.int64()).to_pylist() == [total if count else None]


@settings(deadline=None)
@given(_weighted(st.integers(-(2**63), 2**63 - 1)))
def test_wide_integers(rows: list[tuple[int | None, int]]) -> None:
    values, weights, count, total = _split(rows)
    diffs = _total("sum_wide", values, weights, pa.int64())
    if -(2**63) <= total < 2**63:
        assert read("sum_wide", diffs, pa.int64()).to_pylist() == [total if count else None]
    else:
        with pytest.raises(NumericOutOfRange):
            read("sum_wide", diffs, pa.int64())
    as_double = read("sum_wide", diffs, pa.float64()).to_pylist()[0]
    assert as_double is None if not count else math.isclose(as_double, total, rel_tol=1e-15)


@settings(deadline=None)
@given(_weighted(st.decimals(Decimal("-9999999999999999.99"), Decimal("9999999999999999.99"), places=2)))
def test_narrow_decimals(rows: list[tuple[Decimal | None, int]]) -> None:
    values, weights, count, total = _split(rows)
    diffs = _total("sum_wide", values, weights, pa.decimal128(18, 2))
    assert read("sum_wide", diffs, pa.decimal128(38, 2)).to_pylist() == [Decimal(total) if count else None]


@settings(deadline=None)
@given(_weighted(st.integers(-(10**37), 10**37)))
def test_long_decimals(rows: list[tuple[int | None, int]]) -> None:
    values, weights, count, total = _split(rows)
    decimals = [None if v is None else Decimal(v) for v in values]
    diffs = _total("sum_decimal", decimals, weights, pa.decimal128(38, 0))
    if abs(total) < 10**38:
        assert read("sum_decimal", diffs, pa.decimal128(38, 0)).to_pylist() == [Decimal(total) if count else None]
    elif count:
        with pytest.raises(NumericOutOfRange):
            read("sum_decimal", diffs, pa.decimal128(38, 0))


@settings(deadline=None)
@given(_weighted(st.floats(allow_nan=False, allow_infinity=False)))
def test_doubles(rows: list[tuple[float | None, int]]) -> None:
    values, weights, count, _ = _split(rows)
    diffs = _total("sum_float", values, weights, pa.float64())
    exact = sum((Fraction(v) * w for v, w in rows if v is not None), Fraction())
    found = read("sum_float", diffs, pa.float64()).to_pylist()[0]
    assert found == (_nearest(exact) if count else None)


def _nearest(value: Fraction) -> float:
    try:
        return value.numerator / value.denominator
    except OverflowError:
        return math.inf if value > 0 else -math.inf


@settings(deadline=None)
@given(_weighted(st.sampled_from([math.nan, math.inf, -math.inf, 1.5, 2.0**-40])))
def test_doubles_that_are_no_numbers(rows: list[tuple[float | None, int]]) -> None:
    # Every row is put in more often than it is taken out, as in any relation.
    rows = [*rows, *((v, 3) for v, w in rows)]
    values, weights, count, _ = _split(rows)
    diffs = _total("sum_float", values, weights, pa.float64())
    present = [v for v, w in rows[: len(rows) // 2] if v is not None and w + 3 > 0]
    want = math.fsum(v * (w + 3) for v, w in rows[: len(rows) // 2] if v in (1.5, 2.0**-40))
    odd = sum(v for v in present if not math.isfinite(v)) if any(not math.isfinite(v) for v in present) else want
    found = read("sum_float", diffs, pa.float64()).to_pylist()[0]
    assert (found is None) if not count else (repr(float(odd)) == repr(found) or found == odd)


@settings(deadline=None)
@given(st.lists(st.floats(), min_size=1, max_size=10), st.randoms())
def test_what_goes_in_comes_out(values: list[float], order: Any) -> None:
    rows = [(v, w) for v in values for w in (1, -1)] + [(0.5, 1)]
    order.shuffle(rows)
    diffs = _total("sum_float", [v for v, _ in rows], [w for _, w in rows], pa.float64())
    assert read("sum_float", diffs, pa.float64()).to_pylist() == [0.5]


@pytest.mark.parametrize("width", [8, 16, 32, 64])
@settings(deadline=None)
@given(data=st.data())
def test_bits(width: int, data: st.DataObject) -> None:
    """Rows that are taken back leave no bit behind, the sign's among them."""
    least = -(1 << width - 1)
    numbers = st.one_of(st.none(), st.integers(least, -least - 1), st.sampled_from([least, -1, 0, -least - 1]))
    kept = data.draw(st.lists(numbers, max_size=8))
    gone = data.draw(st.lists(numbers, max_size=8))
    rows = [(v, 1) for v in kept] + [(v, w) for v in gone for w in (2, -2)]
    rows = data.draw(st.permutations(rows or [(None, 1)]))
    present = [v for v in kept if v is not None]
    for kind, combine in (("bit_and", and_), ("bit_or", or_), ("bit_xor", xor)):
        argument = getattr(pa, f"int{width}")()
        diffs = _total(kind, [v for v, _ in rows], [w for _, w in rows], argument)
        assert counted(kind, diffs).to_pylist() == [len(present)]
        found = read(kind, diffs, argument)
        assert found.type == argument and found.to_pylist() == [reduce(combine, present) if present else None]


@pytest.mark.parametrize("kind", ["min", "max"])
@settings(deadline=None)
@given(values=st.lists(st.one_of(st.none(), st.integers(-9, 9)), min_size=1, max_size=10))
def test_extremes(kind: str, values: list[int | None]) -> None:
    diffs = _total(kind, values, [1] * len(values), pa.int32())
    present = [v for v in values if v is not None]
    want = {"min": min, "max": max}[kind](present) if present else None
    assert read(kind, diffs, pa.int32()).to_pylist() == [want]


@settings(deadline=None)
@given(_weighted(st.booleans()))
def test_counts(rows: list[tuple[bool | None, int]]) -> None:
    values, weights, count, _ = _split(rows)
    assert read("count", _total("count", values, weights, pa.bool_()), pa.int64()).to_pylist() == [count]


def test_sliced_decimals_are_read_at_their_offset() -> None:
    array = pa.array([Decimal(7), None, Decimal(-5), Decimal(10**30)], pa.decimal128(38, 0)).slice(1)
    diffs = to_diffs("sum_decimal", [array], np.ones(3, dtype=np.int64))
    assert read("sum_decimal", diffs, pa.decimal128(38, 0)).to_pylist() == [None, Decimal(-5), Decimal(10**30)]


def test_only_raw_columns_are_not_combined_before_the_shuffle() -> None:
    assert [
        k for k in ("count", "sum_small", "sum_wide", "sum_decimal", "sum_float", "min") if not can_preaggregate(k)
    ] == [
        "sum_decimal",
        "sum_float",
    ]


@pytest.mark.parametrize("kind", ["min", "max"])
@pytest.mark.parametrize("argument", [pa.float32(), pa.float64()])
def test_extremes_of_doubles_are_not_accumulated(kind: str, argument: pa.DataType) -> None:
    """NaN is above every number, which the kernels that combine extremes do not know."""
    with pytest.raises(ValueError, match="kept in order"):
        state_diffs(kind, argument, "a")


_LARGE = st.one_of(st.integers(-3, 3), st.sampled_from([2**31 - 1, 2**31, -(2**31), 2**32 + 1, 2**40, -(2**45) + 1]))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-(10**20), 10**20), _LARGE), min_size=1, max_size=20))
def test_rows_of_large_weights(rows: list[tuple[int, int]]) -> None:
    """A pair of two rows with a hundred thousand copies each stands for ten thousand million."""
    values, weights, count, total = _split(rows)
    diffs = _total("sum_decimal", [Decimal(v) for v in values], weights, pa.decimal128(38, 0))
    assert read("sum_decimal", diffs, pa.decimal128(38, 0)).to_pylist() == [Decimal(total) if count else None]


def test_a_product_that_no_sum_could_take_is_refused() -> None:
    with pytest.raises(NumericOutOfRange):
        _total("sum_decimal", [Decimal(10**37)], [2**62], pa.decimal128(38, 0))


@pytest.mark.parametrize(
    ("kind", "argument", "value"),
    [("sum_wide", pa.int64(), -1), ("sum_decimal", pa.decimal128(38, 0), -1), ("sum_decimal", pa.decimal128(38, 0), 7)],
)
def test_sums_of_very_many_rows_fit_and_come_to_nothing(kind: str, argument: pa.DataType, value: int) -> None:
    """State is merged again and again: what is combined of 2**40 rows has limbs as small as that of one."""
    diffs = state_diffs(kind, argument, "a")
    schema = TableSchema((), (), (*WEIGHT, *diffs))
    given: Any = Decimal(value) if pa.types.is_decimal(argument) else value

    def rows(weight: int) -> pa.RecordBatch:
        sent = to_diffs(kind, _sent(kind, [given], [weight], argument), np.array([weight], dtype=np.int64))
        return pa.RecordBatch.from_arrays([pa.array([0]), pa.array([weight]), *sent], schema=schema.arrow())

    batch = rows(1)
    for _ in range(40):
        batch = consolidate(concat([batch, batch], schema.arrow()), schema)
    limbs = [batch.column(f.name)[0].as_py() for f, _ in diffs[1:]]
    assert all(0 <= limb < LIMB for limb in limbs[:-1])
    result = argument if pa.types.is_decimal(argument) else pa.int64()
    assert read(kind, [batch.column(f.name) for f, _ in diffs], result).to_pylist() == [value * 2**40]
    back = rows(-(2**30))
    gone = consolidate(concat([batch, *[back] * 2**10], schema.arrow()), schema)
    assert gone.num_rows == 0
