"""Merges that are split by keys: exact for any history, evenly cut, and one level for whoever counts runs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from arrangement_model import DELTAS, SCHEMA, Model, counted
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import CorruptObject
from headrace.state.arrangement import Arrangement
from headrace.state.merge import (
    SMALL_BYTES,
    MergePart,
    choose_compaction,
    first_levels,
    levels,
    part_path,
    split_by_keys,
)
from headrace.state.run import Section, write_run
from headrace.state.schema import RunRef, TableSchema
from support import examples

PLAIN = TableSchema((pa.field("a", pa.int64()),), (), ((pa.field("__w", pa.int64()), "add"),))


@pytest.fixture(scope="module", autouse=True)
def tiny_strides() -> Iterator[None]:
    """Indexes of a row each, so that a few rows have places to be cut at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.state.run.INDEX_STRIDE", 1)
        yield


@settings(max_examples=examples(80), deadline=None)
@given(
    st.lists(st.tuples(DELTAS, st.integers(1, 3)), min_size=1, max_size=5),
    st.integers(1, 6),
    st.integers(0, 6),
    st.data(),
)
def test_split_merges_are_exact(epochs: list[Any], parts: int, safe: int, data: st.DataObject) -> None:
    """FS-14: every readable epoch and every log above the safe epoch are what they were."""
    with tempfile.TemporaryDirectory() as root:
        model = Model(Path(root))
        for epoch, (deltas, p) in enumerate(epochs, start=1):
            model.write(deltas, epoch, p)
        if not model.refs:
            return
        chosen = data.draw(st.lists(st.sampled_from(model.refs), unique_by=lambda r: (r.path, r.offset), min_size=1))
        last, safe = len(epochs), min(safe, len(epochs))
        work = MergePart(tuple(chosen), SCHEMA, root, "t/whole.run", safe, fsync=False).split("t/m", parts)
        assert 1 <= len(work) <= parts
        made = [ref for w in work if (ref := w.run()) is not None]
        assert len(levels(made)) <= 1
        after = [r for r in model.refs if r not in chosen] + made
        for e in range(safe, last + 1):
            before_rows = counted(Arrangement(SCHEMA, model.refs, root, as_of=e).scan())
            assert counted(Arrangement(SCHEMA, after, root, as_of=e).scan()) == before_rows
            for to in range(e, last + 1):
                logs = [Arrangement(SCHEMA, refs, root).log(e, to, with_epoch=True) for refs in (model.refs, after)]
                assert counted(logs[0], epochs=True) == counted(logs[1], epochs=True)


def _run(root: Path, name: str, keys: Any) -> RunRef:
    rows = [pa.array(sorted(keys), pa.int64())] * 2 + [pa.array([1] * len(keys), pa.int64())]
    batch = pa.RecordBatch.from_arrays(rows, schema=PLAIN.arrow())
    return write_run(root, name, [Section(1, PLAIN, [batch], 1)], fsync=False)[0]


@given(st.lists(st.lists(st.integers(-50, 50), min_size=1, max_size=40), min_size=1, max_size=4), st.integers(1, 9))
def test_ranges_cover_every_key_once(
    tmp_path_factory: pytest.TempPathFactory, runs: list[list[int]], parts: int
) -> None:
    root = tmp_path_factory.mktemp("split")
    ranges = split_by_keys([_run(root, str(i), keys) for i, keys in enumerate(runs)], root, parts)
    assert ranges[0][0] == -(2**63) and ranges[-1][1] is None and len(ranges) <= parts
    assert [high for _, high in ranges[:-1]] == [low for low, _ in ranges[1:]]
    assert all(high is None or low < high for low, high in ranges)


def test_ranges_are_about_equal(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    runs = [rng.integers(-(2**62), 2**62, n) for n in (4000, 500, 2500)]
    refs = [_run(tmp_path, str(i), keys.tolist()) for i, keys in enumerate(runs)]
    ranges = split_by_keys(refs, tmp_path, 4)
    keys = np.concatenate(runs)
    sizes = [int(((keys >= low) & (keys < (2**63 - 1 if high is None else high))).sum()) for low, high in ranges]
    assert len(sizes) == 4 and max(sizes) <= 1.5 * min(sizes)


def test_a_damaged_run_fails_the_parts_that_read_it(tmp_path: Path) -> None:
    refs = [_run(tmp_path, str(i), range(100)) for i in range(2)]
    data = bytearray((tmp_path / "1").read_bytes())
    data[700] ^= 1
    (tmp_path / "1").write_bytes(data)
    failed = 0
    for part in MergePart(tuple(refs), PLAIN, tmp_path, "w", 1, fsync=False).split("m", 3):
        try:
            part.run()
        except CorruptObject:
            failed += 1
    assert failed == 3, "each reads the one batch, and none makes a run of it"


def _ref(path: str, length: int) -> RunRef:
    return RunRef(1, path, 0, length, 10, 1, 1, 0, 9)


def test_the_parts_of_a_merge_count_as_one_run() -> None:
    """Otherwise a large merge in parts would be due again at once, and stall its view."""
    parts = [_ref(part_path(f"m{m}", i), 10) for m in range(3) for i in range(8)]
    assert len(levels(parts)) == 3
    assert choose_compaction(parts, fan_in=4, tier_bytes=1, max_runs=48) == []
    more = [*parts, _ref("single.run", 80)]
    assert choose_compaction(more, fan_in=4, tier_bytes=1, max_runs=48) == [more]
    large = [replace(r, length=r.length * SMALL_BYTES) for r in more]
    assert first_levels(large, 2) == large[:16]
    plain = [_ref(f"{i}.run", 80) for i in range(4)]
    assert len(levels(plain)) == 4 and choose_compaction(plain, fan_in=4, tier_bytes=1) == [plain]
