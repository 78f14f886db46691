"""Exact sums of doubles against Python's fractions: over the whole range of doubles, with weights of any size."""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.state.kernels import exact_sum
from support import examples

LARGEST, TINY = 1.7976931348623157e308, 5e-324
EDGES = [0.0, -0.0, TINY, 2.2250738585072014e-308, 2.225073858507201e-308, 1.0, 0.1, 2.0**53, 2.0**1023, LARGEST]
FINITE = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([x for e in EDGES for x in (e, -e)]),
    st.builds(math.ldexp, st.sampled_from([1.0, -1.0, 3.0]), st.integers(-1074, 1021)),
    st.integers(-99, 99).map(float),
)
WEIGHTS = st.one_of(
    st.sampled_from([1, -1, 0, 2, 2**31 - 1, 2**31, -(2**31), 2**32, 2**63 - 1, -(2**63)]),
    st.integers(-(2**63), 2**63 - 1),
)
SLOW = settings(deadline=None, max_examples=examples(300))


def exact(stored: bytes) -> Fraction:
    """What a stored sum says; it must be in the one spelling that there is for it."""
    if len(stored) == 8:
        (value,) = struct.unpack("<d", stored)
        assert repr(value) != "-0.0"
        return Fraction(value)
    (low,) = struct.unpack("<I", stored[:4])
    number = int.from_bytes(stored[4:], "little", signed=True)
    found = Fraction(number << 32 * low, 1 << 1074)
    assert len(stored) % 4 == 0 and len(stored) >= 12 and any(stored[4:8])
    assert len(stored) == 12 or number.bit_length() + 1 > 8 * (len(stored) - 8), "no limb is spare"
    assert not (Fraction(nearest(found)) == found if abs(found) <= LARGEST else False), "a double is stored as such"
    return found


def nearest(value: Fraction) -> float:
    """The nearest double; Python divides whole numbers with one rounding."""
    try:
        return value.numerator / value.denominator
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def column(rows: list[tuple[float, int]]) -> pa.Array:
    values = np.array([x for x, _ in rows], dtype=np.float64)
    return exact_sum.products(values, np.array([w for _, w in rows], dtype=np.int64))


@SLOW
@given(st.lists(st.tuples(FINITE, WEIGHTS), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_sums_are_exact(rows: list[tuple[float, int]], choice: Any) -> None:
    wanted = [Fraction(x) * w for x, w in rows]
    stored = column(rows)
    assert [exact(v) for v in stored.to_pylist()] == wanted
    starts = sorted({0, *(choice.randrange(len(rows)) for _ in range(choice.randrange(4)))})
    sums = exact_sum.sums(stored, np.array(starts))
    totals = [sum(wanted[a:b], Fraction()) for a, b in zip(starts, [*starts[1:], len(rows)])]
    assert [exact(v) for v in sums.to_pylist()] == totals
    assert exact_sum.not_zero(sums).tolist() == [t != 0 for t in totals]
    assert [repr(x) for x in exact_sum.rounded(sums).tolist()] == [repr(nearest(t)) for t in totals]


@SLOW
@given(st.lists(st.tuples(FINITE, WEIGHTS), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_addition_does_not_matter(rows: list[tuple[float, int]], choice: Any) -> None:
    """Nor in how many steps it is done; and what is taken back leaves nothing."""
    stored, start = column(rows), np.array([0])
    total = exact_sum.sums(stored, start)
    order = list(range(len(rows)))
    choice.shuffle(order)
    shuffled = stored.take(pa.array(order))
    assert exact_sum.sums(shuffled, start).equals(total)
    cut = choice.randrange(len(rows))
    halves = [exact_sum.sums(half, start) for half in (shuffled[:cut], shuffled[cut:]) if len(half)]
    assert exact_sum.sums(pa.concat_arrays(halves), start).equals(total)
    back = column([(-x, w) for x, w in rows])
    assert exact_sum.sums(pa.concat_arrays([stored, back]), start).to_pylist() == [bytes(8)]


@SLOW
@given(st.lists(st.one_of(st.none(), FINITE), min_size=1, max_size=9), st.integers(0, 3), st.integers(1, 3))
def test_nulls_and_slices(values: list[float | None], skip: int, times: int) -> None:
    whole = [None if x is None else column([(x, times)])[0].as_py() for x in [1.5, 1e300, -TINY, *values]]
    part = pa.array(whole, exact_sum.EXACT_TYPE).slice(3 - skip)
    wanted = [Fraction(0) if v is None else exact(v) for v in part.to_pylist()]
    assert exact_sum.not_zero(part).tolist() == [v != 0 for v in wanted]
    assert [exact(v) for v in exact_sum.sums(part, np.arange(len(part))).to_pylist()] == wanted
    assert exact_sum.rounded(part).tolist() == [nearest(v) for v in wanted]


def test_many_groups_and_large_ones() -> None:
    """More groups than are summed at once, and more rows of one than that; also of sums that are no doubles."""
    draw = np.random.default_rng(5)
    size = 200_000
    values = draw.standard_normal(size) * 10.0 ** draw.integers(-4, 5, size)
    starts = np.concatenate([np.arange(0, 150_000, 2), [150_000, 199_999]])
    found = exact_sum.sums(exact_sum.products(values, np.full(size, 3)), starts)
    ends = np.append(starts[1:], size)
    wanted = [sum((3 * Fraction(x) for x in values[a:b]), Fraction()) for a, b in zip(starts, ends)]
    assert [exact(v) for v in found.to_pylist()] == wanted
    assert exact_sum.rounded(found).tolist() == [nearest(w) for w in wanted]


def test_nothing_has_no_sums() -> None:
    nothing = exact_sum.of_doubles(np.zeros(0))
    assert len(exact_sum.sums(nothing, np.zeros(0, dtype=np.int64))) == 0
    assert exact_sum.rounded(nothing).tolist() == [] and exact_sum.not_zero(nothing).tolist() == []
