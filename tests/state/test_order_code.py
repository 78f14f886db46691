"""Order codes: what they say of two rows is what Spark's order says."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from functools import cmp_to_key
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import NumericOutOfRange
from headrace.state.kernels import consolidate
from headrace.state.kernels.order_code import OrderColumn, counted_units, order_codes, useful
from headrace.state.schema import TableSchema
from support import examples

WIDE = 10**37
TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bool": (pa.bool_(), st.booleans()),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "int32": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float": (pa.float32(), st.floats(width=32)),
    "double": (pa.float64(), st.floats()),
    "small": (pa.decimal128(7, 2), st.integers(-(10**7) + 1, 10**7 - 1).map(lambda n: Decimal(n).scaleb(-2))),
    "medium": (pa.decimal128(18, 0), st.integers(-(10**18) + 1, 10**18 - 1).map(Decimal)),
    "wide": (
        pa.decimal128(38, 0),
        st.one_of(st.integers(-WIDE, WIDE), st.integers(-300, 300), st.integers(2**63 - 9, 2**64 + 9)).map(Decimal),
    ),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us"), st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 1, 1))),
    "string": (pa.string(), st.text(max_size=10) | st.sampled_from(["", "a", "a\0", "\U0001f600", "common-prefix-1"])),
    "binary": (pa.binary(), st.binary(max_size=10)),
    "list": (pa.list_(pa.int32()), st.lists(st.integers(0, 3), max_size=2)),
}
COLUMN = st.tuples(st.sampled_from(sorted(TYPES)), st.booleans(), st.booleans())
SPECIAL = {"float": [0.0, -0.0, math.nan, math.inf], "double": [0.0, -0.0, math.nan, -math.inf, 5e-324]}


@st.composite
def tables(draw: Any) -> tuple[list[tuple[str, bool, bool]], list[tuple[Any, ...]]]:
    columns = draw(st.lists(COLUMN, min_size=1, max_size=3))
    values = []
    for name, _, _ in columns:
        pool = draw(st.lists(TYPES[name][1], min_size=1, max_size=4))
        values.append(st.sampled_from([*pool, *SPECIAL.get(name, []), None]))
    return columns, draw(st.lists(st.tuples(*values), min_size=1, max_size=12))


def _key(value: Any) -> Any:
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value.encode() if isinstance(value, str) else value


def _compare(columns: list[tuple[str, bool, bool]], x: tuple[Any, ...], y: tuple[Any, ...]) -> int:
    for (_, descending, nulls_first), a, b in zip(columns, x, y):
        if a is None or b is None:
            if (a is None) != (b is None):
                return -1 if (a is None) == nulls_first else 1
            continue
        a, b = _key(a), _key(b)
        if a != b:
            return -1 if (a < b) != descending else 1
    return 0


@settings(max_examples=examples(400), deadline=None)
@given(tables(), st.integers(0, 3))
def test_codes_are_in_order(table: tuple[Any, Any], skip: int) -> None:
    columns, rows = table
    arrays = [pa.array([r[i] for r in rows], TYPES[name][0]) for i, (name, _, _) in enumerate(columns)]
    keys = [OrderColumn(descending, nulls_first) for _, descending, nulls_first in columns]
    codes = order_codes(arrays, keys)
    ranked = sorted(range(len(rows)), key=cmp_to_key(lambda i, j: _compare(columns, rows[i], rows[j])))
    assert codes[ranked].tolist() == sorted(codes.tolist())
    for i, j in pairwise(ranked):
        if _compare(columns, rows[i], rows[j]) == 0:
            assert codes[i] == codes[j]
    part = [a.slice(skip) for a in arrays]
    assert order_codes(part, keys).tolist() == codes[skip:].tolist() if skip < len(rows) else True
    enough = useful([a.type for a in arrays])
    assert order_codes(arrays[:enough], keys[:enough]).tolist() == codes.tolist()


@pytest.mark.parametrize("name", ["bool", "int8", "int32", "int64", "float", "double", "small", "medium", "date"])
@pytest.mark.parametrize("descending", [False, True])
@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_codes_of_values_without_null_are_exact(name: str, descending: bool, data: Any) -> None:
    kind, values = TYPES[name]
    a, b = data.draw(values), data.draw(values)
    first, second = order_codes([pa.array([a, b], kind)], [OrderColumn(descending, None)]).tolist()
    assert (first == second) == (_key(a) == _key(b))


@pytest.mark.parametrize("kind", [pa.string(), pa.list_(pa.int64())])
def test_many_rows_of_one_code(kind: pa.DataType) -> None:
    """Equal rows are found among 20,000 that share a code, in n log n."""
    n = 20_000
    names: list[Any] = [f"common prefix {i % 5000}" if kind == pa.string() else [i % 5000] for i in range(n)]
    schema = TableSchema((), (pa.field("v", kind),), ((pa.field("__w", pa.int64(), nullable=False), "add"),))
    zeros, ones = pa.array(np.zeros(n, dtype=np.int64)), pa.array(np.ones(n, dtype=np.int64))
    batch = pa.RecordBatch.from_arrays([zeros, zeros, pa.array(names, kind), ones], schema=schema.arrow())
    made = consolidate(batch, schema)
    assert made.num_rows == 5000
    assert set(made.column("__w").to_pylist()) == {4}


def test_rows_that_are_too_many_to_count_are_refused() -> None:
    """Which rows are the first would be told by sums that have wrapped."""
    k = np.zeros(3, dtype=np.int64)
    code, weights = np.arange(3), np.array([2**62, 2**62, -1])
    with pytest.raises(NumericOutOfRange):
        counted_units(k, code, weights, by_code=False)
    assert counted_units(k, code, weights, by_code=True).tolist() == [1, 1, 0]
    assert counted_units(k, code, weights // 8, by_code=False).tolist() == [2**59, 2**59, 0]
