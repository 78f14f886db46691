"""Stages over rows with long texts: their batches are bounded by bytes, and what is too large says what it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.dataflow.operators.pairs import in_pieces, matching_pairs
from headrace.dataflow.operators.recompute import versions
from headrace.dataflow.operators.task import chunks, collect, gathered, named, sliced
from headrace.errors import DivisionByZero, OutOfBudget
from headrace.plan.tree import WEIGHT
from headrace.session.execution.dml import batches_of
from headrace.state.kernels import copies, sizes
from headrace.state.schema import TableSchema

SCHEMA = TableSchema((pa.field("id", pa.int64()),), (pa.field("text", pa.string()),), WEIGHT)
LARGE = 1000
"""Bytes of a text."""


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "CHUNK_BYTES", 10 * LARGE)
    monkeypatch.setattr(copies, "PIECE_BYTES", 10 * LARGE)


def rows(count: int, weight: int = 1) -> pa.RecordBatch:
    ids = pa.array(range(count), pa.int64())
    texts = pa.array(["x" * LARGE] * count)
    weights = pa.array([weight] * count, pa.int64())
    return pa.RecordBatch.from_arrays([ids, ids, ids, texts, weights], schema=SCHEMA.arrow())


def test_pairs_of_a_join() -> None:
    """One row that meets 200 others: what comes out is many times what goes in."""
    one, many = rows(1), rows(200)
    zeros = np.zeros(200, dtype=np.int64)
    pairs = list(in_pieces(matching_pairs(zeros[:1], [], zeros, []), one, many))
    assert max(len(li) for li, _ in pairs) <= 10 and sum(len(li) for li, _ in pairs) == 200
    assert [r for _, ri in pairs for r in ri.tolist()] == list(range(200))
    assert len(list(in_pieces(iter([(zeros, zeros - 1)]), one, rows(0)))) > 1, "also of rows that meet none"


def test_rows_that_are_there_many_times() -> None:
    output = pa.schema([("text", pa.string()), ("__side", pa.int32())])
    found = list(versions(rows(3, 100), np.arange(3), 1, SCHEMA, output))
    assert sum(b.num_rows for b in found) == 300 and all(b.nbytes <= 11 * LARGE for b in found)


def test_what_is_gathered_and_put_out() -> None:
    found = list(gathered(iter([rows(3)] * 20)))
    assert sum(b.num_rows for b in found) == 60 and all(b.nbytes <= 14 * LARGE for b in found)
    assert [b.num_rows for b in gathered(iter([rows(1)] * 3))] == [3]
    assert all(b.nbytes <= 10 * LARGE for b in sliced(rows(60))) and sum(b.num_rows for b in sliced(rows(60))) == 60
    made = list(chunks(5, lambda s: rows(s.stop - s.start), np.array([9, 20_000, 1, 1, 1])))
    assert [b.num_rows for b in made] == [1, 1, 3]


def test_an_operator_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one in which it happened, however many stages follow; other errors pass through."""
    monkeypatch.setattr(sizes, "COLUMN_BYTES", 50 * LARGE)

    def failing(error: BaseException | None) -> Iterator[Any]:
        if error is not None:
            raise error
        yield collect(iter([rows(30), rows(30)]))

    overflow = pa.ArrowInvalid("offset overflow while concatenating arrays")
    for error in (None, overflow, MemoryError(), OutOfBudget("operator 0.1 has to hold too much")):
        with pytest.raises(OutOfBudget, match=r"^operator 0\.1") as caught:
            list(named("0", named("0.1", failing(error))))
        assert caught.value.sqlstate == "53200" and caught.value.message.count("operator") == 1
    for other in (DivisionByZero("division by zero"), pa.ArrowInvalid("Could not parse")):
        with pytest.raises(type(other)) as passed:
            list(named("0", failing(other)))
        assert passed.value is other


def test_rows_to_insert_are_never_cut_off() -> None:
    table = pa.Table.from_batches([rows(30), rows(30)])
    assert pa.Table.from_batches(batches_of(table)).equals(table.combine_chunks())
    assert batches_of(table.slice(0, 0)) == []
