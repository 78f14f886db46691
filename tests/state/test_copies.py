"""Rows by multiplicity: as often as their weights say, in pieces that stay small whatever these are."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.state.kernels.copies import PIECE_BYTES, copies, piece_rows, repeated


@given(st.lists(st.integers(-2, 9), max_size=12), st.integers(1, 7))
def test_each_as_often_as_it_counts(counts: list[int], most: int) -> None:
    pieces = [at.tolist() for at in repeated(np.array(counts, dtype=np.int64), most)]
    assert [i for piece in pieces for i in piece] == [i for i, n in enumerate(counts) for _ in range(n)]
    assert all(len(piece) == most for piece in pieces[:-1]) and all(pieces)


@given(st.lists(st.integers(-2, 9), max_size=12), st.integers(1, 7))
def test_copies_of_rows(counts: list[int], most: int) -> None:
    rows = pa.record_batch([pa.array([f"r{i}" for i in range(len(counts))], pa.string())], ["a"])
    found = list(copies(rows, np.array(counts, dtype=np.int64), most))
    wanted = [f"r{i}" for i, n in enumerate(counts) for _ in range(n)]
    assert [v for b in found for v in b.column(0).to_pylist()] == wanted
    assert all(0 < b.num_rows <= most for b in found)


@pytest.mark.parametrize("weight", [10**8, 2**62, 2**63 - 1])
def test_a_row_that_stands_for_very_many_takes_no_memory(weight: int) -> None:
    rows = pa.record_batch([pa.array([1, 2, 3], pa.int64())], ["a"])
    tracemalloc.start()
    try:
        found = list(itertools.islice(copies(rows, np.array([1, weight, weight]), 1000), 3))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [b.num_rows for b in found] == [1000] * 3 and found[0].column(0).to_pylist()[:2] == [1, 2]
    assert peak < 1 << 20


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("x" * 100_000, pa.string()),
        (b"x" * 100_000, pa.binary()),
        (["x" * 50_000] * 2, pa.list_(pa.string())),
        ({"a": {"b": "x" * 100_000}}, pa.struct([("a", pa.struct([("b", pa.string())]))])),
        ([("k" * 50_000, "v" * 50_000)], pa.map_(pa.string(), pa.string())),
    ],
)
def test_pieces_of_long_rows_are_short(value: object, kind: pa.DataType) -> None:
    rows = pa.record_batch([pa.array([None, value], kind), pa.array([1, 2], pa.int32())], ["a", "b"])
    first = next(copies(rows, np.array([1, 10**8]), 65_536))
    assert 100 < first.num_rows < 400 and first.nbytes <= PIECE_BYTES
    assert piece_rows(rows.select(["b"]), 65_536) == 65_536
