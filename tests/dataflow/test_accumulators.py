"""Accumulators against Python's own arithmetic, which has no limits."""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from operator import and_, or_, xor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import NumericOutOfRange
from headrace.plan.tree import WEIGHT
from headrace.state import accumulators as home
from headrace.state.accumulators import Accumulator, Sent
from headrace.state.accumulators.bits import BitAnd, BitOr, BitXor
from headrace.state.accumulators.counts import Count
from headrace.state.accumulators.doubles import DoubleSum
from headrace.state.accumulators.extremes import Extreme, Greatest, Least, Maximum, Minimum
from headrace.state.accumulators.sums import DecimalSum, SmallSum, WideSum
from headrace.state.kernels import concat, consolidate
from headrace.state.schema import TableSchema

LIMB = 1 << 32
DECIMALS, DOUBLES = DecimalSum(pa.decimal128(38, 0)), DoubleSum()


def _sent(accumulator: Accumulator, values: Sequence[Any], weights: Sequence[int]) -> list[pa.Array]:
    """What the rows send: the Python twin of the expressions that run in Spark."""
    argument, rows = accumulator.argument, list(zip(values, weights))
    columns: dict[Sent, Callable[[], pa.Array]] = {
        Sent.VALUE: lambda: pa.array(values, argument),
        Sent.COUNT: lambda: pa.array([w if v is not None else 0 for v, w in rows], pa.int64()),
        Sent.PRODUCT: lambda: pa.array([(v or 0) * w for v, w in rows], pa.int64()),
        Sent.LOW: lambda: pa.array([(_unscaled(v, argument) % LIMB) * w for v, w in rows], pa.int64()),
        Sent.HIGH: lambda: pa.array([(_unscaled(v, argument) >> 32) * w for v, w in rows], pa.int64()),
    }
    return [columns[wire.sent]() for wire in accumulator.wire]


def _unscaled(value: Any, kind: pa.DataType) -> int:
    if value is None:
        return 0
    return int(value.scaleb(kind.scale)) if pa.types.is_decimal(kind) else int(value)


def _total(accumulator: Accumulator, values: Sequence[Any], weights: Sequence[int]) -> list[pa.Array]:
    """The diffs of all rows combined as a state table combines them."""
    diffs = accumulator.diffs("a")
    schema = TableSchema((), (), ((pa.field("__w", pa.int64()), "add"), *diffs))
    sent = accumulator.of_rows(_sent(accumulator, values, weights), np.array(weights, dtype=np.int64))
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
    sums = SmallSum(pa.int32())
    diffs = _total(sums, values, weights)
    assert sums.counted(diffs).to_pylist() == [count]
    assert sums.read(diffs).to_pylist() == [total if count else None]


@settings(deadline=None)
@given(_weighted(st.integers(-(2**63), 2**63 - 1)))
def test_wide_integers(rows: list[tuple[int | None, int]]) -> None:
    values, weights, count, total = _split(rows)
    sums = WideSum(pa.int64())
    diffs = _total(sums, values, weights)
    if -(2**63) <= total < 2**63:
        assert sums.read(diffs).to_pylist() == [total if count else None]
    else:
        with pytest.raises(NumericOutOfRange):
            sums.read(diffs)
    as_double = WideSum(pa.int64(), as_double=True).read(diffs).to_pylist()[0]
    assert as_double is None if not count else math.isclose(as_double, total, rel_tol=1e-15)


@settings(deadline=None)
@given(_weighted(st.decimals(Decimal("-9999999999999999.99"), Decimal("9999999999999999.99"), places=2)))
def test_narrow_decimals(rows: list[tuple[Decimal | None, int]]) -> None:
    values, weights, count, total = _split(rows)
    sums = WideSum(pa.decimal128(18, 2))
    assert sums.result == pa.decimal128(38, 2)
    assert sums.read(_total(sums, values, weights)).to_pylist() == [Decimal(total) if count else None]


@settings(deadline=None)
@given(_weighted(st.integers(-(10**37), 10**37)))
def test_long_decimals(rows: list[tuple[int | None, int]]) -> None:
    values, weights, count, total = _split(rows)
    decimals = [None if v is None else Decimal(v) for v in values]
    diffs = _total(DECIMALS, decimals, weights)
    if abs(total) < 10**38:
        assert DECIMALS.read(diffs).to_pylist() == [Decimal(total) if count else None]
    elif count:
        with pytest.raises(NumericOutOfRange):
            DECIMALS.read(diffs)


@settings(deadline=None)
@given(_weighted(st.floats(allow_nan=False, allow_infinity=False)))
def test_doubles(rows: list[tuple[float | None, int]]) -> None:
    values, weights, count, _ = _split(rows)
    diffs = _total(DOUBLES, values, weights)
    exact = sum((Fraction(v) * w for v, w in rows if v is not None), Fraction())
    found = DOUBLES.read(diffs).to_pylist()[0]
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
    diffs = _total(DOUBLES, values, weights)
    present = [v for v, w in rows[: len(rows) // 2] if v is not None and w + 3 > 0]
    want = math.fsum(v * (w + 3) for v, w in rows[: len(rows) // 2] if v in (1.5, 2.0**-40))
    odd = sum(v for v in present if not math.isfinite(v)) if any(not math.isfinite(v) for v in present) else want
    found = DOUBLES.read(diffs).to_pylist()[0]
    assert (found is None) if not count else (repr(float(odd)) == repr(found) or found == odd)


@settings(deadline=None)
@given(st.lists(st.floats(), min_size=1, max_size=10), st.randoms())
def test_what_goes_in_comes_out(values: list[float], order: Any) -> None:
    rows = [(v, w) for v in values for w in (1, -1)] + [(0.5, 1)]
    order.shuffle(rows)
    diffs = _total(DOUBLES, [v for v, _ in rows], [w for _, w in rows])
    assert DOUBLES.read(diffs).to_pylist() == [0.5]


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
    for kind, combine in ((BitAnd, and_), (BitOr, or_), (BitXor, xor)):
        argument = getattr(pa, f"int{width}")()
        bits: Accumulator = kind(argument)
        diffs = _total(bits, [v for v, _ in rows], [w for _, w in rows])
        assert bits.counted(diffs).to_pylist() == [len(present)]
        found = bits.read(diffs)
        assert found.type == argument and found.to_pylist() == [reduce(combine, present) if present else None]


@pytest.mark.parametrize("kind", [Minimum, Maximum])
@settings(deadline=None)
@given(values=st.lists(st.one_of(st.none(), st.integers(-9, 9)), min_size=1, max_size=10))
def test_extremes(kind: type[Extreme], values: list[int | None]) -> None:
    extreme = kind(pa.int32())
    diffs = _total(extreme, values, [1] * len(values))
    present = [v for v in values if v is not None]
    want = (min if kind is Minimum else max)(present) if present else None
    assert extreme.read(diffs).to_pylist() == [want]


@settings(deadline=None)
@given(_weighted(st.booleans()))
def test_counts(rows: list[tuple[bool | None, int]]) -> None:
    values, weights, count, _ = _split(rows)
    assert Count().read(_total(Count(), values, weights)).to_pylist() == [count]


def test_sliced_decimals_are_read_at_their_offset() -> None:
    array = pa.array([Decimal(7), None, Decimal(-5), Decimal(10**30)], pa.decimal128(38, 0)).slice(1)
    diffs = DECIMALS.of_rows([array], np.ones(3, dtype=np.int64))
    assert DECIMALS.read(diffs).to_pylist() == [None, Decimal(-5), Decimal(10**30)]


def test_only_raw_columns_are_not_combined_before_the_shuffle() -> None:
    merging = [Count(), SmallSum(pa.int32()), WideSum(pa.int64()), Minimum(pa.int32()), Maximum(pa.int32())]
    assert all(a.merges for a in merging)
    raw = [
        DECIMALS,
        DOUBLES,
        Least(pa.int32()),
        Greatest(pa.int32()),
        *(k(pa.int32()) for k in (BitAnd, BitOr, BitXor)),
    ]
    assert not any(a.merges for a in raw)


@pytest.mark.parametrize("kind", [Minimum, Maximum])
@pytest.mark.parametrize("argument", [pa.float32(), pa.float64(), pa.bool_()])
def test_extremes_of_doubles_are_not_accumulated(kind: type[Extreme], argument: pa.DataType) -> None:
    """NaN is above every number, which the kernels that combine extremes do not know; nor an order of booleans."""
    with pytest.raises(ValueError, match="kept in order"):
        kind(argument)


_LARGE = st.one_of(st.integers(-3, 3), st.sampled_from([2**31 - 1, 2**31, -(2**31), 2**32 + 1, 2**40, -(2**45) + 1]))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-(10**20), 10**20), _LARGE), min_size=1, max_size=20))
def test_rows_of_large_weights(rows: list[tuple[int, int]]) -> None:
    """A pair of two rows with a hundred thousand copies each stands for ten thousand million."""
    values, weights, count, total = _split(rows)
    diffs = _total(DECIMALS, [Decimal(v) for v in values], weights)
    assert DECIMALS.read(diffs).to_pylist() == [Decimal(total) if count else None]


def test_a_product_that_no_sum_could_take_is_refused() -> None:
    with pytest.raises(NumericOutOfRange):
        _total(DECIMALS, [Decimal(10**37)], [2**62])


@pytest.mark.parametrize(
    ("sums", "value"), [(WideSum(pa.int64()), -1), (DECIMALS, -1), (DECIMALS, 7)], ids=["wide", "decimal", "positive"]
)
def test_sums_of_very_many_rows_fit_and_come_to_nothing(sums: Accumulator, value: int) -> None:
    """State is merged again and again: what is combined of 2**40 rows has limbs as small as that of one."""
    diffs = sums.diffs("a")
    schema = TableSchema((), (), (*WEIGHT, *diffs))
    given: Any = Decimal(value) if pa.types.is_decimal(sums.argument) else value

    def rows(weight: int) -> pa.RecordBatch:
        sent = sums.of_rows(_sent(sums, [given], [weight]), np.array([weight], dtype=np.int64))
        return pa.RecordBatch.from_arrays([pa.array([0]), pa.array([weight]), *sent], schema=schema.arrow())

    batch = rows(1)
    for _ in range(40):
        batch = consolidate(concat([batch, batch], schema.arrow()), schema)
    limbs = [batch.column(f.name)[0].as_py() for f, _ in diffs[1:]]
    assert all(0 <= limb < LIMB for limb in limbs[:-1])
    assert sums.read([batch.column(f.name) for f, _ in diffs]).to_pylist() == [value * 2**40]
    back = rows(-(2**30))
    gone = consolidate(concat([batch, *[back] * 2**10], schema.arrow()), schema)
    assert gone.num_rows == 0


SAMPLES: dict[type[Accumulator], tuple[Accumulator, Sequence[Any]]] = {
    Count: (Count(), [True, False]),
    SmallSum: (SmallSum(pa.int16()), [0, 1, -(2**15), 2**15 - 1]),
    WideSum: (WideSum(pa.int64()), [0, 1, -1, 2**38, -(2**38)]),
    DecimalSum: (DECIMALS, [Decimal(n) for n in (0, 1, -1, 10**20, -(10**28))]),
    DoubleSum: (DOUBLES, [0.0, 0.1, -1e300, 1e300, 5e-324, math.inf, -math.inf, math.nan]),
    Minimum: (Minimum(pa.string()), ["", "a", "b"]),
    Maximum: (Maximum(pa.date32()), [0, 1, -5]),
    Least: (Least(pa.int32()), [0, 1]),
    Greatest: (Greatest(pa.int32()), [0, 1]),
    BitAnd: (BitAnd(pa.int8()), [0, 1, -128, 127]),
    BitOr: (BitOr(pa.int32()), [0, 1, -(2**31)]),
    BitXor: (BitXor(pa.int64()), [0, 1, 2, -(2**63)]),
}
"""Each accumulator, and values that it takes: the law is tried on them."""
ONLY_GROWS = (Minimum, Maximum)


def _state(accumulator: Accumulator, batches: Sequence[Sequence[tuple[Any, int]]]) -> pa.RecordBatch:
    """The state of one group after some batches of rows, as values and weights."""
    schema = TableSchema((), (), tuple(accumulator.diffs("a")))
    parts = []
    for rows in batches:
        sent = _sent(accumulator, [v for v, _ in rows], [w for _, w in rows])
        diffs = accumulator.of_rows(sent, int64s(rows))
        zeros = pa.array([0] * len(rows), pa.int64())
        parts.append(pa.RecordBatch.from_arrays([zeros, *diffs], schema=schema.arrow()))
    return consolidate(concat(parts, schema.arrow()), schema, keep_zeros=True)


def int64s(rows: Sequence[tuple[Any, int]]) -> np.ndarray:
    return np.array([w for _, w in rows], dtype=np.int64)


def test_every_accumulator_has_samples() -> None:
    modules = [importlib.import_module(f"{home.__name__}.{m.name}") for m in pkgutil.iter_modules(home.__path__)]
    kinds = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
    assert {k for k in kinds if issubclass(k, Accumulator) and not k.__subclasses__()} == SAMPLES.keys()


@pytest.mark.parametrize("kind", SAMPLES, ids=lambda kind: kind.__name__)
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_the_law(kind: type[Accumulator], data: st.DataObject) -> None:
    """I1, I2: the state depends on the rows that are there and on nothing else; the result is of the type it says."""
    accumulator, pool = SAMPLES[kind]
    weights = st.integers(1, 3) if kind in ONLY_GROWS else st.sampled_from([1, 2, -1, -3, 2**20])
    rows = data.draw(st.lists(st.tuples(st.sampled_from([*pool, None]), weights), min_size=1, max_size=8))
    state = _state(accumulator, [rows])
    assert state.schema.names[1:] == [f.name for f, _ in accumulator.diffs("a")]
    cut = data.draw(st.integers(0, len(rows)))
    shuffled = data.draw(st.permutations(rows))
    assert _state(accumulator, [b for b in (shuffled[:cut], shuffled[cut:]) if b]).equals(state)
    if kind not in ONLY_GROWS:
        gone = data.draw(st.lists(st.tuples(st.sampled_from([*pool, None]), weights), max_size=5))
        back = [(v, -w) for v, w in gone]
        assert _state(accumulator, [b for b in (gone, rows, back) if b]).equals(state)
    if accumulator.order is None:
        result = accumulator.read(state.columns[1:])
        assert result.type == accumulator.result and len(result) == 1
        missing = kind is not Count and not sum(w for v, w in rows if v is not None)
        assert result.null_count == missing
    else:
        assert not accumulator.diffs("a")


@pytest.mark.parametrize("kind", [k for k, (a, _) in SAMPLES.items() if a.merges], ids=lambda kind: kind.__name__)
def test_rows_that_are_one_on_their_way_come_to_the_same(kind: type[Accumulator]) -> None:
    """What they send is merged as their diffs are combined."""
    accumulator, pool = SAMPLES[kind]
    rows = [(v, w) for v in [*pool, None] for w in (1, 2)]
    ways: dict[str | None, Callable[[pa.Array], pa.Scalar]] = {"sum": pc.sum, "min": pc.min, "max": pc.max}
    sent = _sent(accumulator, [v for v, _ in rows], [w for _, w in rows])
    one = [pa.array([ways[w.merged](c).as_py()], c.type) for w, c in zip(accumulator.wire, sent, strict=True)]
    schema = TableSchema((), (), tuple(accumulator.diffs("a")))
    diffs = accumulator.of_rows(one, np.array([3 * len(rows) // 2], dtype=np.int64))
    given = pa.RecordBatch.from_arrays([pa.array([0], pa.int64()), *diffs], schema=schema.arrow())
    assert consolidate(given, schema, keep_zeros=True).equals(_state(accumulator, [rows]))


@pytest.mark.parametrize("kind", [k for k in SAMPLES if k not in ONLY_GROWS], ids=lambda kind: kind.__name__)
def test_values_are_rows(kind: type[Accumulator]) -> None:
    """Values that count once come to what rows with these values come to."""
    accumulator, pool = SAMPLES[kind]
    rows = [(v, w) for v in pool for w in (1, -1, 1)]
    schema = TableSchema((), (), tuple(accumulator.diffs("a")))
    diffs = accumulator.of_values(pa.array([v for v, _ in rows], accumulator.argument), int64s(rows))
    given = pa.RecordBatch.from_arrays([pa.array([0] * len(rows), pa.int64()), *diffs], schema=schema.arrow())
    assert consolidate(given, schema, keep_zeros=True).equals(_state(accumulator, [rows]))
