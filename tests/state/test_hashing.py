"""The hash of rows is a function of their values, whatever array they sit in."""

from __future__ import annotations

import decimal
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.common.columns import arrow_type
from headrace.state.kernels import rows_equal
from headrace.state.kernels.hashing import hash_columns, hash_key, key_mask

INTS = st.integers(-(2**31), 2**31 - 1)
DECIMALS = st.decimals(-(10**8), 10**8, places=2, allow_nan=False).map(decimal.Decimal)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "tinyint": st.integers(-128, 127),
    "int": INTS,
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(),
    "float": st.floats(width=32),
    "boolean": st.booleans(),
    "string": st.text(max_size=12),
    "binary": st.binary(max_size=12),
    "date": st.dates(),
    "timestamp_ntz": st.datetimes(),
    "decimal(20,2)": DECIMALS,
    "array<string>": st.lists(st.none() | st.text(max_size=3), max_size=3),
    "struct<a:int,b:array<int>>": st.fixed_dictionaries(
        {"a": st.none() | INTS, "b": st.none() | st.lists(st.none() | INTS, max_size=3)}
    ),
    "map<string,double>": st.dictionaries(st.text(max_size=2), st.none() | st.floats(), max_size=3).map(
        lambda d: list(d.items())
    ),
}
COLUMNS = st.sampled_from(sorted(VALUES)).flatmap(
    lambda kind: st.tuples(st.just(kind), st.lists(st.none() | VALUES[kind], min_size=1, max_size=8))
)


@given(COLUMNS)
def test_equal_values_have_equal_hashes(column: tuple[str, list[Any]]) -> None:
    kind, values = column
    array = pa.array(values, arrow_type(kind))
    found = hash_columns([array])
    shuffled = np.random.default_rng(len(values)).permutation(len(values))
    assert (hash_columns([array.take(pa.array(shuffled))]) == found[shuffled]).all()
    padded = pa.concat_arrays([array, array, array]).slice(len(values), len(values))
    assert (hash_columns([padded]) == found).all()
    for i in range(len(values)):
        same = rows_equal([array], np.zeros(len(values), np.int64) + i, [array], np.arange(len(values)))
        assert (found[same] == found[i]).all()
        assert (found[~same] != found[i]).all()


def test_columns_are_told_apart() -> None:
    a, b = pa.array(["x", None, ""]), pa.array([None, "x", ""])
    assert len(set(hash_columns([a, b]).tolist()) | set(hash_columns([b, a]).tolist())) == 3
    assert len(set(hash_columns([pa.array([[], None, [None], [[]]], pa.list_(pa.list_(pa.int32())))]).tolist())) == 4


def test_few_collisions() -> None:
    n = 200_000
    assert len(np.unique(hash_columns([pa.array(np.arange(n))]))) == n
    assert len(np.unique(hash_columns([pa.array([f"user-{i}" for i in range(n)])]))) == n
    top = hash_columns([pa.array(np.arange(n))]).view(np.uint64) >> np.uint64(60)
    assert np.bincount(top.astype(np.int64), minlength=16).min() > n // 20


def test_the_same_in_another_process() -> None:
    code = (
        "import pyarrow as pa; from headrace.state.kernels.hashing import hash_columns;"
        "print(hash_columns([pa.array(['a', None, 'ünï']), pa.array([1.5, float('nan'), -0.0])]).tolist())"
    )
    here = hash_columns([pa.array(["a", None, "ünï"]), pa.array([1.5, math.nan, -0.0])]).tolist()
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert there.strip() == str(here)


def test_no_hash() -> None:
    with pytest.raises(TypeError):
        hash_columns([pa.array(["a"], pa.string_view())])
    with pytest.raises(ValueError):
        hash_columns([])


_KEYS = st.one_of(
    st.tuples(st.just(pa.int8()), st.integers(-128, 127)),
    st.tuples(st.just(pa.int32()), st.integers(-(2**31), 2**31 - 1)),
    st.tuples(st.just(pa.int64()), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just(pa.bool_()), st.booleans()),
    st.tuples(st.just(pa.string()), st.text(max_size=40)),
)


@given(st.lists(_KEYS, min_size=1, max_size=4))
def test_one_row_alone_has_the_same_hash(parts: list[tuple[pa.DataType, Any]]) -> None:
    masks = [key_mask(kind) for kind, _ in parts]
    assert None not in masks
    columns = [pa.array([value], kind) for kind, value in parts]
    assert hash_key([value for _, value in parts], masks) == int(hash_columns(columns)[0])  # type: ignore[arg-type]
