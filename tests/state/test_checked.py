"""Sums, products and counts of 64 bits against Python's own arithmetic, which has no limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import NumericOutOfRange
from headrace.plan.tree import WEIGHT
from headrace.state.kernels import checked, consolidate
from headrace.state.schema import TableSchema

LOWEST, HIGHEST = -(2**63), 2**63 - 1
LONGS = st.one_of(
    st.integers(LOWEST, HIGHEST), st.integers(-3, 3), st.sampled_from([LOWEST, HIGHEST, 2**62, -(2**62), 2**32])
)


def ints(values: list[int]) -> Any:
    return np.array(values, dtype=np.int64)


def same(found: Callable[[], Any], wanted: list[int]) -> None:
    """The numbers, or an error where one of them has more than 64 bits."""
    if all(LOWEST <= n <= HIGHEST for n in wanted):
        assert found().tolist() == wanted
    else:
        with pytest.raises(NumericOutOfRange, match="ARITHMETIC_OVERFLOW"):
            found()


@given(st.lists(st.tuples(LONGS, LONGS), max_size=5))
def test_pairs(pairs: list[tuple[int, int]]) -> None:
    a, b = ints([p[0] for p in pairs]), ints([p[1] for p in pairs])
    same(lambda: checked.plus(a, b), [x + y for x, y in pairs])
    same(lambda: checked.times(a, b), [x * y for x, y in pairs])


@given(st.lists(st.tuples(st.lists(LONGS, min_size=1, max_size=6), LONGS), max_size=4), st.booleans())
def test_groups(groups: list[tuple[list[int], int]], carried: bool) -> None:
    values = ints([v for group, _ in groups for v in group])
    starts = ints(np.cumsum([0, *(len(g) for g, _ in groups)])[:-1].tolist())
    carry = ints([c for _, c in groups]) if carried else None
    if not groups:
        carry = None
    same(lambda: checked.sums(values, starts, carry), [sum(g) + c * carried for g, c in groups])


@given(st.lists(LONGS, max_size=6))
def test_rows(weights: list[int]) -> None:
    assert checked.count(ints(weights)) == sum(max(w, 0) for w in weights)


def test_weights_that_wrap_are_refused() -> None:
    """Two runs have a row 2**62 times each: together that is more than a weight can hold."""
    schema = TableSchema((pa.field("a", pa.int64()),), (), WEIGHT)
    rows = [pa.array(v, pa.int64()) for v in ([1, 1], [7, 7], [2**62, 2**62])]
    batch = pa.RecordBatch.from_arrays(rows, schema=schema.arrow())
    with pytest.raises(NumericOutOfRange, match="more often than 9223372036854775807 times"):
        consolidate(batch, schema)
