"""Rows with long texts: what is held together is bounded by bytes, so that Arrow's 32-bit offsets are never passed.

The bounds are lowered, and Arrow's own with them, so that kilobytes do what gigabytes would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import OutOfBudget
from headrace.state import run as run_module
from headrace.state.arrangement import Arrangement, slice_bounds
from headrace.state.inspect import run_problems
from headrace.state.kernels import concat, consolidate, sizes
from headrace.state.merge import merge
from headrace.state.run import Run, RunCache, Section, write_run
from headrace.state.schema import RunRef, TableSchema
from support import examples

SCHEMA = TableSchema(
    (pa.field("id", pa.int64()),), (pa.field("text", pa.string()),), ((pa.field("__w", pa.int64()), "add"),)
)
CHUNK, BATCH, COLUMN = 20_000, 8_000, 60_000
"""Bytes that are held together, in a batch of a run, and in a column at most."""
STRIDE = 4
_concat_arrays = pa.concat_arrays


def _narrow(arrays: list[pa.Array]) -> pa.Array:
    """`pa.concat_arrays` with offsets that go no further than `COLUMN`."""
    if sizes.varies(arrays[0].type) and sum(a.nbytes for a in arrays) > COLUMN:
        raise pa.ArrowInvalid("offset overflow while concatenating arrays")
    return _concat_arrays(arrays)


@pytest.fixture(autouse=True, scope="module")
def _narrow_arrow() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "RUN_BATCH_ROWS", 64)
        patch.setattr(run_module, "INDEX_STRIDE", STRIDE)
        patch.setattr(run_module, "RUN_BATCH_BYTES", BATCH)
        patch.setattr(sizes, "CHUNK_BYTES", CHUNK)
        patch.setattr(pa, "concat_arrays", _narrow)
        yield


def rows(texts: list[tuple[int, int]], weight: int = 1) -> pa.RecordBatch:
    """A row for each (key, length of its text)."""
    ids = [i for i, _ in texts]
    columns: list[Any] = [ids, [i * 7 % 5 for i in ids], ids, ["x" * n for _, n in texts], [weight] * len(ids)]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA.arrow())]
    return consolidate(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA.arrow()), SCHEMA)


def store(root: Path, epoch: int, batch: pa.RecordBatch) -> RunRef:
    return write_run(root, f"{epoch}.run", [Section(3, SCHEMA, [batch], epoch)], fsync=False)[0]


def counted(batches: Any) -> Counter[tuple[int, int]]:
    found: Counter[tuple[int, int]] = Counter()
    for b in batches:
        for row in b.to_pylist():
            found[row["id"], len(row["text"])] += row["__w"]
    return +found


TEXTS = st.lists(st.tuples(st.integers(0, 300), st.sampled_from([0, 1, 30, 300, 1500])), min_size=1, max_size=200)


@settings(deadline=None, max_examples=examples(40))
@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_however_long_texts_are_everything_is_read_and_merged(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[tuple[int, int]]]
) -> None:
    root = tmp_path_factory.mktemp("large")
    refs = [store(root, i + 1, rows(part)) for i, part in enumerate(parts)]
    wanted = Counter(row for part in parts for row in part)
    for ref in refs:
        run = Run.open(root, ref)
        assert all(b.nbytes <= BATCH + STRIDE * 1600 for b in run.batches)
        assert not list(run_problems(root, ref, SCHEMA, 9))
    kept = merge(refs, SCHEMA, root, "kept.run", 0)
    merged = merge(refs, SCHEMA, root, "merged.run", 9)
    assert kept is not None and merged is not None
    for version in (refs, [kept], [merged]):
        table = Arrangement(SCHEMA, version, root, cache=RunCache())
        found = list(table.scan())
        assert counted(found) == wanted
        assert all(b.nbytes <= CHUNK + STRIDE * 1600 * len(parts) for b in found)
        assert counted(b for i in range(3) for b in table.scan(*slice_bounds(i, 3))) == wanted
        assert counted(table.log(0, 9)) == wanted
        some = np.unique(np.array([i for i, _ in parts[0][:9]], dtype=np.int64))
        few = counted([table.fetch(some)])
        assert few == Counter({row: n for row, n in wanted.items() if row[0] in some})
        assert counted([table.first_rows(some, np.full(len(some), 10**6))]) == few
        assert table.lowest_key(0) == min(i for i, _ in wanted)


def test_only_runs_with_large_rows_have_another_format(tmp_path: Path) -> None:
    """What any earlier program can read it goes on reading; of the others it says that they are none of its runs."""
    plain, large = store(tmp_path, 1, rows([(i, 9) for i in range(200)])), store(tmp_path, 2, rows([(1, 99_000)]))
    mixed = store(tmp_path, 3, rows([(i, 900) for i in range(200)]))
    magics = [(tmp_path / ref.path).read_bytes()[-8:] for ref in (plain, large, mixed)]
    assert magics == [b"HEADRUN3", b"HEADRUN3", b"HEADRUN4"]
    run = Run.open(tmp_path, mixed)
    assert run.starts.tolist() != list(range(0, 200, 64)) and not (run.starts % STRIDE).any()
    assert [run.point_at(i)[0] for i in range(200)] == list(range(200))
    assert run.ranges(np.array([0, 77, 199]))[0].tolist() == [0, 77, 199]


def test_one_row_may_be_larger_than_a_chunk(tmp_path: Path) -> None:
    refs = [store(tmp_path, e, rows([(1, 5), (2, 50_000), (3, 5)])) for e in (1, 2)]
    assert counted(Arrangement(SCHEMA, refs[:1], tmp_path).scan()) == Counter([(1, 5), (2, 50_000), (3, 5)])
    with pytest.raises(OutOfBudget, match=r"merging 2 runs of state table 3.*text") as caught:
        merge(refs, SCHEMA, tmp_path, "m.run", 9)
    assert caught.value.sqlstate == "53200" and caught.value.hint


@pytest.mark.parametrize("what", ["look-up", "look-up over two runs", "run", "concat", "take", "memory"])
def test_what_cannot_be_done_says_what_it_was(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "COLUMN_BYTES", COLUMN)
    texts = [(i, 1000) for i in range(80)]
    refs = [store(tmp_path, e, rows(texts[at::2])) for at, e in ((0, 1), (1, 2))]
    whole = store(tmp_path, 3, rows(texts))
    with pytest.raises(OutOfBudget, match=r"text|merging|rows") as caught:
        if what == "look-up":
            Arrangement(SCHEMA, [whole], tmp_path).fetch(np.arange(80))
        elif what == "look-up over two runs":
            Arrangement(SCHEMA, refs, tmp_path).fetch(np.arange(80))
        elif what == "run":
            pieces = [rows([(i, 31_000)]) for i in range(4)]
            write_run(tmp_path, "x.run", [Section(3, SCHEMA, pieces, 1)])
        elif what == "concat":
            concat([rows(texts)] * 2, SCHEMA.arrow())
        elif what == "take":
            with sizes.overflows_named("rows of a join"):
                raise pa.ArrowInvalid("Take operation overflowed binary array capacity")
        else:
            with sizes.overflows_named("merging"):
                raise MemoryError
    assert caught.value.sqlstate == "53200" and "max_rows_per_epoch" in (caught.value.hint or "")


NESTED = pa.struct([("a", pa.list_(pa.string())), ("b", pa.map_(pa.string(), pa.int64())), ("c", pa.binary())])
VALUES = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {
            "a": st.one_of(st.none(), st.lists(st.one_of(st.none(), st.text(max_size=40)), max_size=4)),
            "b": st.lists(st.tuples(st.text(max_size=9), st.integers(0, 5)), max_size=3),
            "c": st.one_of(st.none(), st.binary(max_size=90)),
        }
    ),
)


@given(st.lists(st.tuples(VALUES, st.text(max_size=60)), max_size=20), st.integers(0, 5))
def test_bytes_of_rows(values: list[tuple[Any, str]], skip: int) -> None:
    """Never less than the values themselves take, and about what Arrow says of all of them."""
    arrays = [pa.array([v for v, _ in values], NESTED), pa.array([t for _, t in values], pa.string())]
    batch = pa.RecordBatch.from_arrays(arrays, ["n", "t"]).slice(skip)
    found = sizes.row_bytes(batch)
    assert len(found) == batch.num_rows
    for n, (value, text) in zip(found.tolist(), values[skip:]):
        inner = value or {}
        content = [*(inner.get("a") or []), *(k for k, _ in inner.get("b") or [])]
        assert n >= len(text.encode()) + sum(len(c.encode()) for c in content if c) + len(inner.get("c") or b"")
    pieces = list(sizes.pieces(batch, 7, 100))
    assert sum(p.num_rows for p in pieces) == batch.num_rows and all(p.num_rows <= 7 for p in pieces)
    assert not pieces or pa.Table.from_batches(pieces).equals(pa.Table.from_batches([batch]))
    assert all(sizes.row_bytes(p).sum() <= 100 or p.nbytes <= 100 or p.num_rows == 1 for p in pieces)


def test_pieces_look_at_each_element_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists share one array of elements; that of a slice of them is not that of all."""
    rows = 400
    values = pa.array([["x" * (i % 7)] * 10 for i in range(rows)], pa.list_(pa.string()))
    batch = pa.RecordBatch.from_arrays([values], names=["v"])
    looked = []
    measure = sizes._value_bytes

    def measured(array: pa.Array) -> Any:
        looked.append(len(array))
        return measure(array)

    monkeypatch.setattr(sizes, "_value_bytes", measured)
    found = list(sizes.pieces(batch, 4, 1))
    assert pa.Table.from_batches(found).column("v").to_pylist() == values.to_pylist()
    assert sum(looked) == rows + 10 * rows
