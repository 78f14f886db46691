"""Matching by key: hashes propose, the key columns decide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.dataflow.operators import pairs
from headrace.dataflow.operators.pairs import lookup, matching_pairs, take_or_null

KEYS = st.tuples(st.sampled_from([0, 1, 2, None]), st.sampled_from(["", "a", "b", None]))


def _columns(rows: list[tuple[Any, Any]]) -> list[pa.Array]:
    return [pa.array([a for a, _ in rows], pa.int32()), pa.array([b for _, b in rows], pa.string())]


def _hash(row: tuple[Any, Any], weak: int) -> int:
    return hash(row) % weak


@settings(deadline=None)
@given(st.lists(KEYS, max_size=12), st.lists(KEYS, max_size=12), st.integers(1, 5), st.integers(1, 7))
def test_all_pairs_with_equal_keys(left: list[Any], right: list[Any], weak: int, at_once: int) -> None:
    right = sorted(right, key=lambda r: _hash(r, weak))
    lk = np.array([_hash(r, weak) for r in left], dtype=np.int64)
    rk = np.array([_hash(r, weak) for r in right], dtype=np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "PAIRS_AT_ONCE", at_once)
        found = [
            (int(i), int(j))
            for li, ri in matching_pairs(lk, _columns(left), rk, _columns(right))
            for i, j in zip(li, ri)
        ]
    assert len(found) == len(set(found))
    assert set(found) == {(i, j) for i, a in enumerate(left) for j, b in enumerate(right) if a == b}


@settings(deadline=None)
@given(st.lists(KEYS, max_size=12), st.sets(KEYS, max_size=12), st.integers(1, 5))
def test_lookup_finds_the_one(left: list[Any], right: set[Any], weak: int) -> None:
    unique = sorted(right, key=lambda r: _hash(r, weak))
    lk = np.array([_hash(r, weak) for r in left], dtype=np.int64)
    rk = np.array([_hash(r, weak) for r in unique], dtype=np.int64)
    found = lookup(lk, _columns(left), rk, _columns(unique))
    assert found.tolist() == [unique.index(r) if r in right else -1 for r in left]


def test_without_key_columns_the_hash_is_all() -> None:
    zeros = np.zeros(2, dtype=np.int64)
    found = [(int(i), int(j)) for li, ri in matching_pairs(zeros, [], zeros, []) for i, j in zip(li, ri)]
    assert found == [(0, 0), (0, 1), (1, 0), (1, 1)]


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=5), st.data())
def test_take_or_null(values: list[int | None], data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(-1, len(values) - 1), max_size=6))
    taken = take_or_null(pa.array(values, pa.int64()), np.array(positions, dtype=np.int64))
    assert taken.to_pylist() == [None if p < 0 else values[p] for p in positions]
